//! Waking a shard that sleeps in the kernel.
//!
//! The sleeper says so in a flag, looks once more at everything that could wake it, and sleeps on an
//! eventfd. Whoever has something for it puts that in its queue first and then looks at the flag, so that
//! a busy shard costs no system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// An eventfd and the flag that says whether somebody sleeps on it.
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

    /// To be watched by the driver: written when somebody woke the shard. It is the writing that counts; nobody reads it.
    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Called after something was put where the shard will find it.
    pub(crate) fn wake(&self) {
        // Orders what the caller published before our look at the flag; pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            // The counter holds 2^64 - 2, so that adding 1 cannot fail.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces sleep. The caller must look at its queues once more before it really sleeps.
    pub(crate) fn fall_asleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
