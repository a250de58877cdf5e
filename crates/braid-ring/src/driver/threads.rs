//! The driver of ordinary system calls: disks by a few threads, sockets by readiness, sleep in epoll.
//!
//! The libaio driver stands on this one for all that Linux' asynchronous I/O cannot do.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::epoll::Epoll;
use super::pool::Pool;
use super::sockets::Sockets;
use super::{DriverConfig, DriverInfo, DriverKind, Event, Job, Wait};
use crate::error::RingError;
use crate::net::SOCKETS_MAX;
use crate::wake::Wake;

/// Tags of what is watched; sockets have their index.
const EVENTFD_TAG: u64 = u64::MAX;

/// What failed, in an error.
pub(super) const STARTING_THREADS: &str = "starting the threads for disk I/O";

pub(crate) struct Threads {
    epoll: Epoll,
    sockets: Sockets,
    pool: Pool,
    files: u32,
    /// Keeps the eventfd open that is watched.
    _wake: Arc<Wake>,
}

impl Threads {
    pub(crate) fn start(config: &DriverConfig) -> Result<(Threads, DriverInfo), RingError> {
        let failed = |what: &'static str| move |e| RingError::os(e, what);
        let epoll = Epoll::new().map_err(failed("making an epoll instance"))?;
        let pool = Pool::start(config.depth, config.files).map_err(failed(STARTING_THREADS))?;
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
            passed_over: Vec::new(),
            features,
            registered_buffer_bytes: 0,
            unregistered_because: Some("only io_uring takes registered buffers".to_string()),
            registered_files: 0,
        };
        Ok((threads, info))
    }

    /// Ends a sleep each time that somebody writes the eventfd.
    pub(super) fn watch_eventfd(&mut self, fd: RawFd) -> Result<(), RingError> {
        let watched = self.epoll.watch(fd, EVENTFD_TAG, libc::EPOLLIN);
        watched.map_err(|e| RingError::os(e, "watching an eventfd"))
    }

    /// # Safety
    /// As [`super::Driver::push`].
    #[inline]
    pub(crate) unsafe fn push(&mut self, token: u64, job: &Job) {
        match job {
            // SAFETY: the caller's promise, passed on.
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

    /// Begins what was pushed, and takes what has ended.
    pub(super) fn work(&mut self, events: &mut Vec<Event>) {
        self.sockets.try_due(&self.epoll, events);
        self.pool.exchange(events);
    }

    /// Sees whether sockets have become ready, without waiting.
    pub(super) fn look(&mut self, events: &mut Vec<Event>) {
        if self.sockets.pending() > 0 {
            self.poll(Wait::No);
            self.sockets.try_due(&self.epoll, events);
        }
    }

    /// Sleeps until something happens.
    pub(super) fn sleep(&mut self, wait: Wait, events: &mut Vec<Event>) {
        let before = events.len();
        self.pool.fall_asleep();
        // Once more, now that the pool's threads can see that somebody is going to sleep.
        self.pool.exchange(events);
        self.poll(if events.len() > before { Wait::No } else { wait });
        self.pool.awake();
        self.work(events);
    }

    fn poll(&mut self, wait: Wait) {
        for at in 0..self.epoll.wait(wait) {
            let (tag, events) = self.epoll.edge(at);
            // The eventfds have done their work by ending the wait.
            if tag != EVENTFD_TAG {
                self.sockets.ready(tag as u32, events, &self.epoll);
            }
        }
    }

    /// Jobs of a file that has a place have a line of their own in the pool.
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
