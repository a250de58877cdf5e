//! Waits for the first of several futures, without an executor of its own.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Which future completed first.
pub(super) enum First<A, B, C> {
    A(A),
    B(B),
    C(C),
}

/// Waits for the first to complete; if several have, the first in argument order. The others are dropped.
pub(super) async fn first<A, B, C>(
    a: impl Future<Output = A>,
    b: impl Future<Output = B>,
    c: impl Future<Output = C>,
) -> First<A, B, C> {
    let (mut a, mut b, mut c) = (pin!(a), pin!(b), pin!(c));
    poll_fn(|cx| {
        if let Poll::Ready(value) = a.as_mut().poll(cx) {
            return Poll::Ready(First::A(value));
        }
        if let Poll::Ready(value) = b.as_mut().poll(cx) {
            return Poll::Ready(First::B(value));
        }
        c.as_mut().poll(cx).map(First::C)
    })
    .await
}

/// Returns the value if the future is ready at once.
pub(super) async fn poll_once<A>(a: impl Future<Output = A>) -> Option<A> {
    match first(a, std::future::ready(()), std::future::pending::<()>()).await {
        First::A(value) => Some(value),
        _ => None,
    }
}
