//! Timers of frontends: a bounded heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of timers of a shard.
pub const TIMERS_MAX: usize = 16 << 10;

/// The timers of a shard.
pub(crate) struct Timers {
    /// Time, order of insertion, frontend and token.
    heap: BinaryHeap<Reverse<(u64, u64, u16, u64)>>,
    set: u64,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers { heap: BinaryHeap::with_capacity(TIMERS_MAX), set: 0 }
    }

    /// Sets a timer. Returns false if there is no room.
    pub(crate) fn set(&mut self, at_ns: u64, frontend: u16, token: u64) -> bool {
        if self.heap.len() >= TIMERS_MAX {
            return false;
        }
        self.set += 1;
        self.heap.push(Reverse((at_ns, self.set, frontend, token)));
        true
    }

    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(t)| t.0)
    }

    /// Takes a timer that is due: the frontend and its token.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<(u16, u64)> {
        let Reverse((at, _, frontend, token)) = *self.heap.peek()?;
        (at <= now_ns).then(|| {
            self.heap.pop();
            (frontend, token)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_are_bounded() {
        let mut timers = Timers::new();
        assert!(timers.set(20, 0, 2) && timers.set(10, 1, 1) && timers.set(20, 0, 3));
        assert_eq!(timers.due_ns(), Some(10));
        assert_eq!(timers.pop(9), None);
        let fired: Vec<_> = std::iter::from_fn(|| timers.pop(20)).collect();
        assert_eq!(fired, [(1, 1), (0, 2), (0, 3)]);
        (0..TIMERS_MAX).for_each(|n| assert!(timers.set(n as u64, 0, 0)));
        assert!(!timers.set(0, 0, 0));
    }
}
