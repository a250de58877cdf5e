//! What every operation of a daemon shares: the form of its reply, and the life of the daemon as a whole.
//!
//! Methods of the service that only read memory return at once. All others return a future that owns what it needs: so
//! it can run to its end after the client has disconnected.

use braid_api::ErrorDetail;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// A boxed future, which may run on any thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The reply to a request, once it is known.
pub type Reply<T> = BoxFuture<Result<T, ErrorDetail>>;

/// A change is in progress until this is dropped.
pub type ChangeGuard = Box<dyn Send>;

/// What the daemon is doing as a whole.
pub trait Lifecycle: Send + Sync + 'static {
    /// Returns a receiver that becomes true when the daemon begins to stop.
    fn stopping(&self) -> watch::Receiver<bool>;

    /// Returns whether the start still scans disks.
    fn is_starting(&self) -> bool;

    /// Returns the error that replaces `missing` ("there is no such object") while the start still scans disks; `None`:
    /// `missing` is final.
    fn unknown_yet(&self, missing: ErrorDetail) -> Option<ErrorDetail>;

    /// Registers a change: a stop and an upgrade of the daemon wait until the guard is dropped.
    fn begin_change(self: Arc<Self>) -> ChangeGuard;
}
