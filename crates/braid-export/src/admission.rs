//! Admission control of exports: a client requests an export as `NAME?TERMS`. Admission may refuse the connection, keep
//! it waiting, or revoke it later.
//!
//! A connection holds one [`AdmissionPass`] from its request for admission until no I/O of the connection is in flight
//! in the kernel. I/O that has timed out counts as in flight until the kernel completes it. Dropping the last reference
//! to the pass tells admission that the connection can change nothing any more. The data path therefore counts no
//! single requests and takes no lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Decides which connections may use an export. No method may block.
pub trait Admission: Send + Sync {
    /// Requests admission under the terms that follow the `?` in the requested name.
    ///
    /// # Errors
    /// The reason for the refusal.
    fn request(&self, terms: &str) -> Result<Arc<AdmissionPass>, AdmissionDenied>;
}

/// Why admission is refused, with a text for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionDenied {
    /// These terms are never admitted: NBD sends `ERR_POLICY`.
    Permanently(String),
    /// The client may retry later: NBD sends `ERR_SHUTDOWN`.
    Temporarily(String),
}

/// The admission state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionState {
    /// The decision is pending.
    Waits,
    /// I/O may begin.
    Admitted,
    /// Admission is revoked: no further I/O may begin.
    Cut,
}

/// One connection's right to use an export.
pub struct AdmissionPass {
    standing: AtomicU8,
    /// Called when the last reference to the pass is dropped.
    ended: Box<dyn Fn() + Send + Sync>,
}

const WAITS: u8 = 0;
const ADMITTED: u8 = 1;
const CUT: u8 = 2;

impl AdmissionPass {
    /// Returns a pending pass that calls `ended` when it is dropped.
    pub fn new(ended: impl Fn() + Send + Sync + 'static) -> AdmissionPass {
        AdmissionPass { standing: AtomicU8::new(WAITS), ended: Box::new(ended) }
    }

    /// Admits the connection unless its admission was revoked. The shards act on it when their frontend is notified of
    /// the change.
    pub fn admit(&self) {
        let _ = self.standing.compare_exchange(WAITS, ADMITTED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Revokes admission: no further I/O begins, and the shard closes the connection when its frontend is
    /// notified of the change.
    pub fn revoke(&self) {
        self.standing.store(CUT, Ordering::Release);
    }

    /// Returns the admission state.
    #[inline]
    pub fn state(&self) -> AdmissionState {
        match self.standing.load(Ordering::Acquire) {
            WAITS => AdmissionState::Waits,
            ADMITTED => AdmissionState::Admitted,
            _ => AdmissionState::Cut,
        }
    }
}

impl Drop for AdmissionPass {
    fn drop(&mut self) {
        (self.ended)();
    }
}

impl fmt::Debug for AdmissionPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pass").field(&self.state()).finish()
    }
}
