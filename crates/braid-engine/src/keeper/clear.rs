//! Taking away dirty bits that nobody needs any more.
//!
//! Twice within the time that bits are kept a round is made. It closes the regions that were dirty at the round before: who
//! writes there has to ask from now on. Then it waits until nobody is left who did not have to ask, and a while longer. What
//! was asked for meanwhile is open again, at no cost on any disk. All members flush, and the rest becomes clean.

use super::{Act, Keeper, KeeperIo};
use crate::planted::{Planted, planted};
use crate::shard::RegionCall;

/// Regions that one round takes up.
const ROUND_MAX: usize = 1 << 16;

/// Where the rounds are.
#[derive(Default)]
pub(super) struct Clearing {
    /// Dirty at the last round.
    before: Vec<u32>,
}

impl Keeper {
    /// Waits, and then makes a round.
    pub(super) async fn clear<I: KeeperIo>(&mut self, io: &I) -> Act {
        let half = self.options.clear_after_ns / 2;
        io.sleep(half).await;
        let whole = self.array.is_whole() || planted(Planted::ClearedWhileDegraded);
        if !whole || self.failed {
            self.clearing.before.clear();
            return Act::Nothing;
        }
        let map = &self.regions;
        let idle = |region: &u32| map.dirty.has(*region) && map.written.has(*region) && !map.unsettled.has(*region);
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
        if !planted(Planted::ClearedUnderWrites) {
            let layout = self.layout(io);
            io.publish(device, Some(layout)).await;
        }
        io.sleep(half / 2).await;
        if !planted(Planted::ClearedBeforeFlush) {
            for (role, leaf) in self.serving() {
                if io.flush(leaf).await.is_err() {
                    return Act::Lose(role);
                }
            }
        }
        io.call(device, home, RegionCall::Clear(old)).await;
        Act::Nothing
    }
}
