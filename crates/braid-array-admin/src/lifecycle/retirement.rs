//! The request by which a change of an array's labels has the reconciler retire marks of the journal.
//!
//! Freezing and retiring are done by the reconciler, which serves the array. The change of the labels has borrowed the
//! array from the reconciler and knows no shards: it requests the retirement through a [`Retirement`] that both share,
//! and waits for the reply. Both are futures of one task, and [`Retirement::beside`] polls them in turn.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;

use braid_engine::Marks;

/// The array is not served: no stripe is written, and no request is made.
const IDLE: u8 = 0;
/// The array is served, and a request can be made.
const SERVED: u8 = 1;
/// The change of a label waits for the marks to be retired.
const REQUESTED: u8 = 2;
/// The reconciler has accepted the request.
const TAKEN: u8 = 3;
/// The marks are retired.
const DONE: u8 = 4;

/// A request to retire the marks of a served array's journal, shared by the array and its reconciler.
#[derive(Debug)]
pub(crate) struct Retirement {
    pub(super) marks: Arc<Marks>,
    stage: AtomicU8,
}

/// Resets the stage when dropped, also if the future that owns it is dropped.
struct ResetStage<'a>(&'a AtomicU8, u8);

impl Drop for ResetStage<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::Release);
    }
}

impl Retirement {
    /// Creates the request for these marks. The array is not served yet.
    pub(crate) fn new(marks: Arc<Marks>) -> Retirement {
        Retirement { marks, stage: AtomicU8::new(IDLE) }
    }

    /// Runs `work`, which serves the array and changes labels, and beside it `retirer`, which never ends: in a loop it
    /// waits for a request ([`Retirement::requested`]), retires the marks, and replies ([`Retirement::reply`]).
    pub(crate) async fn beside<T>(
        &self,
        work: impl Future<Output = T>,
        retirer: impl Future<Output = Infallible>,
    ) -> T {
        self.stage.store(SERVED, Ordering::Release);
        let _idle = ResetStage(&self.stage, IDLE);
        let (mut work, mut retirer) = (pin!(work), pin!(retirer));
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(value) = work.as_mut().poll(cx) {
                    return Poll::Ready(value);
                }
                let _ = retirer.as_mut().poll(cx);
                if self.stage.load(Ordering::Acquire) != DONE {
                    return Poll::Pending;
                }
                // The reply does not wake the work that waits for it: poll the work again.
            }
        })
        .await
    }

    /// Waits for a request, and accepts it.
    pub(crate) async fn requested(&self) {
        poll_fn(|_| if self.pass(REQUESTED, TAKEN) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Replies that the marks are retired, as [`Marks`] records, and that the device is frozen until the next layout.
    /// Has no effect if the request was given up.
    pub(crate) fn reply(&self) {
        self.pass(TAKEN, DONE);
    }

    /// Makes a request and waits for the reply. Returns false if the array is not served: the marks are unchanged.
    pub(super) async fn request(&self) -> bool {
        if !self.pass(SERVED, REQUESTED) {
            return false;
        }
        let _served = ResetStage(&self.stage, SERVED);
        let is_done = || self.stage.load(Ordering::Acquire) == DONE;
        poll_fn(|_| if is_done() { Poll::Ready(()) } else { Poll::Pending }).await;
        true
    }

    fn pass(&self, from: u8, to: u8) -> bool {
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
