//! Rebuilds by delta: a member that holds most of its data is compared with a base and gets only the differing ranges.
//! The daemon does so after it has copied a snapshot of a replica.

use std::collections::BTreeMap;
use std::ops::Range;

use braid_array_admin::reconciler::Order;
use braid_engine::EngineIo;
use braid_engine::io::{DeviceId, LeafId, MetaIo};
use braid_format::{DiskLayout, Label};

use super::Admin;
use crate::disk_pair::DiskPair;

/// Pause between two tries in nanoseconds, and the number of tries.
const PAUSE_NS: u64 = 3_000_000;
const TRIES: usize = 20;

impl Admin {
    /// Rebuilds a member by delta, at times: compares its disk with that of a member that may be in sync, after the
    /// rebuild has begun.
    pub(super) async fn fill_by_delta(&mut self, index: usize, id: DeviceId, slot: u16, leaf: LeafId) {
        let is_leased = self.state.borrow().mirrors[index].leases.is_some();
        if !is_leased || self.rng.below(3) == 0 {
            return;
        }
        let disks = self.state.borrow().mirrors[index].disks.clone();
        let others: Vec<LeafId> =
            disks.iter().filter_map(|disk| self.leaves.get(disk).copied()).filter(|other| *other != leaf).collect();
        if others.is_empty() {
            return;
        }
        let by_leaf: BTreeMap<LeafId, usize> = self.leaves.iter().map(|(disk, leaf)| (*leaf, *disk)).collect();
        let disk_of = |leaf: LeafId| by_leaf[&leaf];
        self.phase("comparing a member");
        let mut begun = None;
        for with in others.iter().cycle().take(TRIES) {
            if self.port.give_order(id, Order::BeginDelta { slot, base: *with }).await.is_ok() {
                begun = Some(*with);
                break;
            }
            self.port.sleep(PAUSE_NS).await;
        }
        let Some(with) = begun else { return self.count("delta not begun") };
        let (Some(one), Some(other)) = (self.data(leaf).await, self.data(with).await) else {
            return self.count("delta begun, and label not read");
        };
        self.state.borrow_mut().disk_pair =
            Some(DiskPair { disks: [disk_of(leaf), disk_of(with)], data: [one, other] });
        self.until(|state| state.differing_ranges.is_some()).await;
        let ranges = self.state.borrow_mut().differing_ranges.take().expect("it was waited for");
        for _ in 0..TRIES {
            let order = Order::ApplyDelta { slot, base: with, ranges: ranges.clone() };
            match self.port.give_order(id, order).await {
                Ok(()) => return self.count("rebuild a member by delta"),
                Err(error) => self.expect_refusal(&error),
            }
            self.port.sleep(PAUSE_NS).await;
        }
    }

    /// Returns the data area of a member, from its label.
    async fn data(&mut self, leaf: LeafId) -> Option<Range<u64>> {
        let places = DiskLayout::for_device(self.port.size_bytes(leaf)).ok()?;
        let label = self.port.read(leaf, places.label_start, 4096).await.ok()?;
        let data = Label::decode(&label).ok()?.member.layout.data;
        Some(data.start..data.start + data.bytes)
    }
}
