//! Waiting for the first of several things, without an executor of one's own.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What came first.
pub(super) enum First<A, B, C> {
    A(A),
    B(B),
    C(C),
}

/// Waits for the first; where several are there, for the first in this order. The others are dropped.
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

/// The value, if it is there at once.
pub(super) async fn at_once<A>(a: impl Future<Output = A>) -> Option<A> {
    match first(a, std::future::ready(()), std::future::pending::<()>()).await {
        First::A(value) => Some(value),
        _ => None,
    }
}
