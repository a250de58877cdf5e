//! Waiting for events in the drivers without io_uring: one epoll instance per shard.
//!
//! Everything is edge-triggered (EPOLLET), so no descriptor is registered twice, and no eventfd needs to be read: each
//! write to one is an edge.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::Wait;

/// Events taken from the kernel at a time. Further ones wait for the next call.
const READY_MAX: usize = 256;

pub(super) struct Epoll {
    epoll: OwnedFd,
    ready: Box<[libc::epoll_event; READY_MAX]>,
    /// Whether the kernel has epoll_pwait2, whose timeout is in nanoseconds.
    has_pwait2: bool,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let empty = libc::epoll_event { events: 0, u64: 0 };
        let mut new = Epoll { epoll, ready: Box::new([empty; READY_MAX]), has_pwait2: true };
        // Older kernels lack it, and the system call filters of some container runtimes deny it.
        new.has_pwait2 = new.pwait2(Some(0)) >= 0;
        Ok(new)
    }

    pub(super) fn has_pwait2(&self) -> bool {
        self.has_pwait2
    }

    /// Watches `fd` under `tag`. The current state is reported as the first edge.
    pub(super) fn watch(&self, fd: RawFd, tag: u64, interest: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, tag, interest)
    }

    /// Changes which edges of `fd` are watched. The current state is reported as the first edge.
    pub(super) fn change(&self, fd: RawFd, tag: u64, interest: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, tag, interest)
    }

    fn control(&self, operation: i32, fd: RawFd, tag: u64, interest: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (interest | libc::EPOLLET) as u32, u64: tag };
        // SAFETY: `event` is read during the call only.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Stops watching `fd`, which is still open.
    pub(super) fn forget(&self, fd: RawFd) {
        // Fails only if `fd` was not watched. SAFETY: this operation takes no event.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits for at least one edge, and returns the number of edges. A signal ends the wait early.
    pub(super) fn wait(&mut self, wait: Wait) -> usize {
        let ns = match wait {
            Wait::No => Some(0),
            Wait::For(ns) => Some(ns),
            Wait::Forever => None,
        };
        let count = if self.has_pwait2 { self.pwait2(ns) } else { self.wait_ms(ns) };
        count.max(0) as usize
    }

    /// Returns an edge of the last wait: its tag and its events.
    pub(super) fn edge(&self, at: usize) -> (u64, i32) {
        let event = self.ready[at];
        (event.u64, event.events as i32)
    }

    fn pwait2(&mut self, ns: Option<u64>) -> i64 {
        let timeout =
            ns.map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mask: *const libc::sigset_t = std::ptr::null();
        // SAFETY: the kernel writes at most READY_MAX events to `ready`; the timeout lives until the call returns.
        let count = unsafe {
            let (fd, ready) = (self.epoll.as_raw_fd(), self.ready.as_mut_ptr());
            libc::syscall(libc::SYS_epoll_pwait2, fd, ready, READY_MAX as i32, timeout, mask, 0usize)
        };
        count as i64
    }

    /// Waits in whole milliseconds, rounded up: waking too early would spin.
    fn wait_ms(&mut self, ns: Option<u64>) -> i64 {
        let ms = ns.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the kernel writes at most READY_MAX events to `ready`.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), self.ready.as_mut_ptr(), READY_MAX as i32, ms) };
        i64::from(count)
    }
}
