//! Future events by virtual time; events of one instant come in insertion order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Entry<T> {
    at_ns: u64,
    order: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns its greatest entry first: the earliest event is the greatest.
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

/// A queue of events, ordered by virtual time.
pub struct EventQueue<T> {
    heap: BinaryHeap<Entry<T>>,
    order: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), order: 0 }
    }
}

impl<T> EventQueue<T> {
    /// Adds an event that happens at `at_ns`.
    pub fn push(&mut self, at_ns: u64, what: T) {
        self.heap.push(Entry { at_ns, order: self.order, what });
        self.order += 1;
    }

    /// Takes the earliest event, with its time.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        self.heap.pop().map(|e| (e.at_ns, e.what))
    }

    /// Returns the time of the earliest event.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|e| e.at_ns)
    }

    /// Keeps only the events that `keep` accepts, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.heap.retain(|e| keep(&e.what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_insertion_order() {
        let mut q = EventQueue::default();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            q.push(at, name);
        }
        q.retain(|n| *n != 'b');
        assert_eq!(q.next_at(), Some(1));
        let order: Vec<char> = std::iter::from_fn(|| q.pop().map(|e| e.1)).collect();
        assert_eq!(order, ['a', 'c', 'd']);
    }
}
