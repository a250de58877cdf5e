//! Read-ahead: reads that begin before they are needed, so that a disk reads while earlier results are processed.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Futures in order, some of them started ahead.
pub(super) struct ReadAhead<I: Iterator<Item: Future>> {
    rest: I,
    begun: VecDeque<Begun<I::Item>>,
    depth: usize,
}

impl<I: Iterator<Item: Future>> ReadAhead<I> {
    /// Keeps up to `depth` futures in flight. None is started before the first call of [`ReadAhead::next`].
    pub fn new(depth: usize, futures: I) -> ReadAhead<I> {
        ReadAhead { rest: futures, begun: VecDeque::with_capacity(depth), depth }
    }

    /// Returns the next output; `None` after the last.
    pub async fn next(&mut self) -> Option<<I::Item as Future>::Output> {
        while self.begun.len() < self.depth {
            let Some(future) = self.rest.next() else { break };
            let mut future = Box::pin(future);
            // This poll starts it. From here on it progresses by itself or not at all: it is polled again when it is
            // awaited.
            let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
            self.begun.push_back(match first {
                Poll::Ready(value) => Begun::Ready(value),
                Poll::Pending => Begun::Pending(future),
            });
        }
        match self.begun.pop_front()? {
            Begun::Ready(value) => Some(value),
            Begun::Pending(future) => Some(future.await),
        }
    }
}

enum Begun<F: Future> {
    Pending(Pin<Box<F>>),
    Ready(F::Output),
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn they_come_in_order_and_so_many_are_begun_ahead() {
        let (begun, open) = (Cell::new(0), Cell::new(0));
        let one = |number: u32| {
            let (begun, open) = (&begun, &open);
            let mut first = true;
            poll_fn(move |_| {
                begun.set(begun.get() + u32::from(std::mem::take(&mut first)));
                // The even ones are ready at once.
                if number.is_multiple_of(2) || number < open.get() { Poll::Ready(number) } else { Poll::Pending }
            })
        };
        let mut ahead = ReadAhead::new(3, (0..6).map(one));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(begun.get(), 0);
        assert_eq!(pin!(ahead.next()).poll(&mut cx), Poll::Ready(Some(0)));
        assert_eq!(begun.get(), 3);
        {
            let mut next = pin!(ahead.next());
            assert_eq!(next.as_mut().poll(&mut cx), Poll::Pending);
            open.set(6);
            assert_eq!(next.poll(&mut cx), Poll::Ready(Some(1)));
        }
        let rest: Vec<_> = (0..5).map(|_| pin!(ahead.next()).poll(&mut cx)).collect();
        assert_eq!(rest, [Some(2), Some(3), Some(4), Some(5), None].map(Poll::Ready));
        assert_eq!(begun.get(), 6);
    }
}
