//! Replies that come later: awaited by any executor, or waited for by a thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::RingError;

struct State<T> {
    value: Option<T>,
    /// The sender was dropped without a reply.
    closed: bool,
    waker: Option<Waker>,
}

struct Cell<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T> Cell<T> {
    fn with<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends the reply, once.
pub(crate) struct ReplySender<T>(Arc<Cell<T>>);

/// A reply that a shard will send.
#[must_use = "the outcome is lost unless this is awaited or waited for"]
pub struct Pending<T>(Arc<Cell<T>>);

pub(crate) fn pending<T>() -> (ReplySender<T>, Pending<T>) {
    let state = Mutex::new(State { value: None, closed: false, waker: None });
    let cell = Arc::new(Cell { state, changed: Condvar::new() });
    (ReplySender(Arc::clone(&cell)), Pending(cell))
}

impl<T> ReplySender<T> {
    pub(crate) fn send(self, value: T) {
        self.0.with(|s| s.value = Some(value));
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        let waker = self.0.with(|s| {
            s.closed = true;
            s.waker.take()
        });
        self.0.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Pending<T> {
    /// Blocks until the reply arrives. Must not be called on a shard or an executor's thread.
    ///
    /// # Errors
    /// `Stopped` when the shards end without a reply.
    pub fn wait(self) -> Result<T, RingError> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = state.value.take() {
                return Ok(value);
            }
            if state.closed {
                return Err(RingError::stopped("waiting for a shard that has ended"));
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, RingError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.with(|s| {
            if let Some(value) = s.value.take() {
                return Poll::Ready(Ok(value));
            }
            if s.closed {
                return Poll::Ready(Err(RingError::stopped("waiting for a shard that has ended")));
            }
            s.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_reaches_a_waiting_thread() {
        let (sender, reply) = pending();
        let waiter = std::thread::spawn(move || reply.wait());
        sender.send(7);
        assert_eq!(waiter.join().unwrap().unwrap(), 7);
    }

    #[test]
    fn a_dropped_sender_is_an_error() {
        let (sender, reply) = pending::<()>();
        drop(sender);
        assert_eq!(reply.wait().unwrap_err().kind, crate::error::RingErrorKind::Stopped);
    }
}
