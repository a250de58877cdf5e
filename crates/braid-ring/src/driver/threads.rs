//! The driver of blocking system calls: disks through a few threads, sockets through readiness, sleep in epoll.
//!
//! The libaio driver uses this one for everything that native AIO cannot do.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::epoll::Epoll;
use super::sockets::Sockets;
use super::thread_pool::ThreadPool;
use super::{DriverConfig, DriverInfo, DriverKind, Event, Job, Wait};
use crate::error::RingError;
use crate::limits::SOCKETS_MAX;
use crate::wake::Wake;

/// Tag of watched eventfds. The tag of a socket is its index.
const EVENTFD_TAG: u64 = u64::MAX;

/// Context of the error when the threads cannot be started.
pub(super) const STARTING_THREADS: &str = "starting the threads for disk I/O";

pub(crate) struct Threads {
    epoll: Epoll,
    sockets: Sockets,
    pool: ThreadPool,
    files: u32,
    /// Keeps the watched eventfd open.
    _wake: Arc<Wake>,
}

impl Threads {
    pub(crate) fn start(config: &DriverConfig) -> Result<(Threads, DriverInfo), RingError> {
        let failed = |what: &'static str| move |e| RingError::os(e, what);
        let epoll = Epoll::new().map_err(failed("making an epoll instance"))?;
        let pool = ThreadPool::start(config.depth, config.files).map_err(failed(STARTING_THREADS))?;
        let mut threads = Threads {
            epoll,
            sockets: Sockets::new(SOCKETS_MAX),
            pool,
            files: config.files,
            _wake: Arc::clone(&config.wake),
        };
        threads.watch_eventfd(config.wake.fd())?;
        threads.watch_eventfd(threads.pool.fd())?;
        let features = if threads.epoll.has_pwait2() { vec!["epoll_pwait2"] } else { Vec::new() };
        let info = DriverInfo {
            kind: DriverKind::Threads,
            skipped: Vec::new(),
            features,
            registered_buffer_bytes: 0,
            unregistered_reason: Some("only io_uring takes registered buffers".to_string()),
            registered_files: 0,
        };
        Ok((threads, info))
    }

    /// Makes each write to the eventfd end a sleep.
    pub(super) fn watch_eventfd(&mut self, fd: RawFd) -> Result<(), RingError> {
        let watched = self.epoll.watch(fd, EVENTFD_TAG, libc::EPOLLIN);
        watched.map_err(|e| RingError::os(e, "watching an eventfd"))
    }

    /// # Safety
    /// As [`super::Driver::push`].
    #[inline]
    pub(crate) unsafe fn push(&mut self, token: u64, job: &Job) {
        match job {
            // SAFETY: guaranteed by the caller.
            Job::Recv { .. } | Job::Send { .. } => unsafe { self.sockets.push(token, job) },
            // SAFETY: as above.
            _ => unsafe { self.pool.push(token, job) },
        }
    }

    pub(crate) fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) {
        let before = events.len();
        self.work(events);
        if wait == Wait::No || events.len() > before {
            self.look(events);
        } else {
            self.sleep(wait, events);
        }
    }

    /// Starts queued jobs, and takes events.
    pub(super) fn work(&mut self, events: &mut Vec<Event>) {
        self.sockets.try_due(&self.epoll, events);
        self.pool.exchange(events);
    }

    /// Checks, without waiting, whether sockets with a pending receive or send have become ready, and tries those.
    pub(super) fn look(&mut self, events: &mut Vec<Event>) {
        if self.sockets.pending() > 0 {
            self.poll(Wait::No);
            self.sockets.try_due(&self.epoll, events);
        }
    }

    /// Sleeps until a job of the pool ends, a socket becomes ready, another thread wakes the shard, or the time of
    /// `wait` is over. Then starts queued jobs, and takes events.
    pub(super) fn sleep(&mut self, wait: Wait, events: &mut Vec<Event>) {
        let before = events.len();
        self.pool.fall_asleep();
        // A job that ended before the pool's threads saw the announcement has not written the eventfd: check once more.
        self.pool.exchange(events);
        self.poll(if events.len() > before { Wait::No } else { wait });
        self.pool.awake();
        self.work(events);
    }

    fn poll(&mut self, wait: Wait) {
        for at in 0..self.epoll.wait(wait) {
            let (tag, events) = self.epoll.edge(at);
            // The eventfds only had to end the wait.
            if tag != EVENTFD_TAG {
                self.sockets.ready(tag as u32, events, &self.epoll);
            }
        }
    }

    /// Returns whether the pool has a queue of its own for the file at this slot. Nothing needs to be registered: the
    /// queues exist from the start.
    pub(crate) fn register_file(&mut self, slot: u32, _fd: RawFd) -> bool {
        slot < self.files
    }

    pub(crate) fn watch_socket(&mut self, index: u32, fd: RawFd) -> bool {
        self.sockets.add(index, fd, &self.epoll)
    }

    pub(crate) fn unwatch_socket(&mut self, index: u32) {
        self.sockets.remove(index, &self.epoll);
    }
}
