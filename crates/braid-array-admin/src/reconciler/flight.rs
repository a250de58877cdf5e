//! Drives several futures at a time without an executor: as one completes, another can be added.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Futures in flight, all of one type, so that the set is `Send` if they are.
pub(super) struct Flight<F>(Vec<Pin<Box<F>>>);

impl<F: Future> Flight<F> {
    pub fn new() -> Flight<F> {
        Flight(Vec::new())
    }

    pub fn add(&mut self, future: F) {
        self.0.push(Box::pin(future));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for the next future to complete and returns its output; pending forever if there is none.
    pub async fn next(&mut self) -> F::Output {
        poll_fn(|cx| {
            for at in 0..self.0.len() {
                if let Poll::Ready(value) = self.0[at].as_mut().poll(cx) {
                    drop(self.0.remove(at));
                    return Poll::Ready(value);
                }
            }
            Poll::Pending
        })
        .await
    }
}
