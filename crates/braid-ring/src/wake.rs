//! Waking a shard that sleeps in the kernel.
//!
//! The sleeping shard sets a flag, checks once more everything that could wake it, and sleeps on an eventfd. Another
//! thread first puts its message in the shard's queue and then checks the flag, so that waking a busy shard takes no
//! system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// An eventfd, and the flag that says whether a shard sleeps on it.
pub(crate) struct Wake {
    event: OwnedFd,
    sleeping: AtomicBool,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        Ok(Wake { event, sleeping: AtomicBool::new(false) })
    }

    /// The eventfd for the driver to watch. Each write to it wakes the shard; it is never read.
    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Wakes the shard if it sleeps. Called after work was put where the shard will find it.
    pub(crate) fn wake(&self) {
        // Orders the caller's stores before the check of the flag. Pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            // The counter holds up to 2^64 - 2, so adding 1 cannot fail.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces sleep. The caller must check its queues once more before it sleeps.
    pub(crate) fn fall_asleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
