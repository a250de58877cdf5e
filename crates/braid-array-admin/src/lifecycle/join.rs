//! Waits for several futures at once, without an executor.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Runs all futures concurrently and returns their results in order.
pub(super) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Option<Pin<Box<F>>>> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    let mut results: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for (slot, result) in pending.iter_mut().zip(&mut results) {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => {
                    *result = Some(output);
                    *slot = None;
                }
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// [`join_all`] for fallible futures: all run to completion, then the first error is returned.
pub(super) async fn try_join_all<F, T, E>(futures: impl IntoIterator<Item = F>) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<T, E>>,
{
    join_all(futures).await.into_iter().collect()
}
