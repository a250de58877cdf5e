//! Clears the bits of regions that no longer need to be dirty.
//!
//! A round is made twice per retention time of dirty bits. It closes the regions that were dirty at the previous round:
//! a write to a closed region has to request its dirty bit again. The round waits until every write that began before
//! the regions were closed has finished, and a while longer. A region requested meanwhile is open again, at no disk
//! I/O. All members flush, and the remaining closed regions become clean.

use braid_engine::RegionCall;

use super::{Act, Reconciler, ReconcilerIo};

/// Maximum number of regions in a round.
const ROUND_MAX: usize = 1 << 16;

/// The state of the rounds.
#[derive(Default)]
pub(super) struct Clearing {
    /// The regions that were dirty at the last round.
    before: Vec<u32>,
    /// The closed regions whose earlier writes have all finished.
    closed: Vec<u32>,
    /// When the next step is due; `None` before the first.
    due_ns: Option<u64>,
}

impl Reconciler {
    /// Returns the time until the next step is due.
    pub(super) fn clear_in_ns<I: ReconcilerIo>(&mut self, io: &I) -> u64 {
        let first = io.now_ns().saturating_add(self.options.clear_after_ns / 2);
        let due = *self.clearing.due_ns.get_or_insert(first);
        due.saturating_sub(io.now_ns())
    }

    /// Makes the next step.
    pub(super) async fn clear<I: ReconcilerIo>(&mut self, io: &I) -> Act {
        let half = self.options.clear_after_ns / 2;
        let now = io.now_ns();
        let replaces = self.array.successors().next().is_some();
        let whole = self.array.may_clear_bits() && !replaces;
        if !whole || self.failed {
            self.clearing = Clearing { due_ns: Some(now.saturating_add(half)), ..Clearing::default() };
            return Act::Nothing;
        }
        if self.clearing.closed.is_empty() {
            self.clearing.due_ns = Some(now.saturating_add(half));
            self.close(io).await
        } else {
            self.clearing.due_ns = Some(now.saturating_add(half / 2));
            self.clear_closed(io).await
        }
    }

    /// Closes the regions that were dirty at the last round already.
    async fn close<I: ReconcilerIo>(&mut self, io: &I) -> Act {
        let map = &self.regions;
        let idle = |region: &u32| map.dirty.has(*region) && map.written.has(*region) && !map.unequal.has(*region);
        let old: Vec<u32> = std::mem::take(&mut self.clearing.before).into_iter().filter(idle).collect();
        let mut next = Vec::new();
        let mut from = 0;
        while let Some(region) = map.dirty.next(from).filter(|_| next.len() < ROUND_MAX) {
            if idle(&region) && old.binary_search(&region).is_err() {
                next.push(region);
            }
            from = region + 1;
        }
        self.clearing.before = next;
        if old.is_empty() {
            return Act::Nothing;
        }
        let (device, home) = (self.options.device, self.options.home);
        io.call(device, home, RegionCall::Close(old.clone())).await;
        let layout = self.layout(io);
        io.publish(device, Some(layout)).await;
        self.clearing.closed = old;
        self.clearing.due_ns = Some(io.now_ns().saturating_add(self.options.clear_after_ns / 4));
        Act::Nothing
    }

    /// Clears the closed regions that were not requested again.
    async fn clear_closed<I: ReconcilerIo>(&mut self, io: &I) -> Act {
        let old = std::mem::take(&mut self.clearing.closed);
        for (role, leaf) in self.serving() {
            if let Err(error) = io.flush(leaf).await {
                self.note_failure(role, error.kind);
                return Act::Drop(role);
            }
        }
        // Full-stripe writes there no longer depend on their marks either.
        self.retire_journal(io).await;
        io.call(self.options.device, self.options.home, RegionCall::Clear(old)).await;
        Act::Nothing
    }
}
