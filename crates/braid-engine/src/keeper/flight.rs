//! Several futures under way at a time, without an executor: the first that is done is taken, and another begun.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Those that are under way.
pub(super) struct Flight<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + 'a>>>);

impl<'a, T> Flight<'a, T> {
    pub fn new() -> Flight<'a, T> {
        Flight(Vec::new())
    }

    pub fn add(&mut self, future: impl Future<Output = T> + 'a) {
        self.0.push(Box::pin(future));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the next one that is done came to; never, where there is none.
    pub async fn next(&mut self) -> T {
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
