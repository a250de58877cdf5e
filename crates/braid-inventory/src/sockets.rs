//! Listening sockets that outlive an upgrade of the daemon: those that the previous daemon has left, and those that the
//! next one will get.

use braid_ring::kept::InheritedFds;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// A listening socket, of whatever type.
pub type ListeningSocket = dyn AsFd + Send + Sync;

/// The listening sockets of the daemon, by names that two daemons agree on.
#[derive(Default)]
pub struct ListeningSockets {
    /// Sockets of the previous daemon that nothing has claimed yet.
    inherited: Mutex<InheritedFds>,
    /// Sockets that listen now, by the same names.
    listening: Mutex<Vec<(String, Weak<ListeningSocket>)>>,
}

impl ListeningSockets {
    /// Creates the table of a daemon with these inherited sockets.
    pub fn new(inherited: InheritedFds) -> ListeningSockets {
        ListeningSockets { inherited: Mutex::new(inherited), listening: Mutex::default() }
    }

    /// Claims the socket that the previous daemon has left under this name; `None`: it has left none, or it was claimed
    /// already.
    pub fn claim(&self, name: &str) -> Option<OwnedFd> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).remove(name)?.pop()
    }

    /// Takes the inherited sockets that nothing has claimed.
    pub fn take_unclaimed(&self) -> InheritedFds {
        std::mem::take(&mut *self.inherited.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes the inherited sockets that nothing has claimed.
    pub fn close_unclaimed(&self) {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Registers a listening socket, which is handed over to the next daemon if it still exists then.
    pub fn register(&self, name: String, socket: Weak<ListeningSocket>) {
        let mut listening = self.listening();
        listening.retain(|(_, other)| other.strong_count() > 0);
        listening.push((name, socket));
    }

    /// Locks the registered sockets.
    pub fn listening(&self) -> MutexGuard<'_, Vec<(String, Weak<ListeningSocket>)>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
