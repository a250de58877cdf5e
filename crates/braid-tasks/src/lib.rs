//! Tasks of an asynchronous runtime, spawned as a few types of future.
//!
//! What it is: [`tokio::spawn`] and its like, for the daemon and the crates below it. For each type of future that is
//! spawned, the compiler generates the runtime's code for tasks anew. These functions box the future, so that all
//! futures with the same result have one type. This costs one allocation per task, and removes a third of the code for
//! tasks from the binary. What it guarantees: a task runs, ends and is aborted as one that was spawned with the
//! runtime's own functions.
//! What it never does: start a runtime.

#![forbid(unsafe_code)]

use std::future::Future;
use std::pin::Pin;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// A future without a type of its own.
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Spawns a future on the runtime, as [`tokio::spawn`] does.
///
/// # Panics
/// Outside of a runtime.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: Boxed<T> = Box::pin(future);
    tokio::spawn(future)
}

/// Runs work that may block, on a thread of the runtime for such work, as [`tokio::task::spawn_blocking`] does.
///
/// # Panics
/// Outside of a runtime.
pub fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work)
}

/// Adds a future to a set of tasks, as [`JoinSet::spawn`] does.
///
/// # Panics
/// Outside of a runtime.
pub fn spawn_in<T: Send + 'static>(
    set: &mut JoinSet<T>,
    future: impl Future<Output = T> + Send + 'static,
) -> AbortHandle {
    let future: Boxed<T> = Box::pin(future);
    set.spawn(future)
}
