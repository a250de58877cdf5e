//! Replicas that are filled and have most of what they get: somebody looks for what they lack, as a daemon does that has brought them a
//! snapshot.

use std::collections::BTreeMap;
use std::ops::Range;

use braid_engine::io::{DeviceId, LeafId, MetaIo};
use braid_engine::keeper::{EngineIo, Order};
use braid_format::{DiskLayout, Label};

use super::Admin;
use crate::content::BLOCK_BYTES;
use crate::world::World;

/// Between two tries, and how many there are.
const PAUSE_NS: u64 = 3_000_000;
const TRIES: usize = 20;

/// Two disks, and where the data of a mirror's members are on them.
pub struct Alike {
    disks: [usize; 2],
    data: [Range<u64>; 2],
}

impl Alike {
    /// Where they differ at this moment. What is there of one of them alone is not told.
    pub fn differing(&self, world: &World) -> Vec<Range<u64>> {
        let [one, other] = &self.data;
        let size_bytes = (one.end - one.start).min(other.end - other.start);
        let block = |at: u64, of: usize| {
            let mut bytes = vec![0; BLOCK_BYTES];
            let disk = &world.disks[self.disks[of]];
            (!disk.gone && disk.read(self.data[of].start + at, &mut bytes)).then_some(bytes)
        };
        let blocks = (0..size_bytes / BLOCK_BYTES as u64).map(|block| block * BLOCK_BYTES as u64);
        let unlike = blocks.filter(|at| block(*at, 0).is_none_or(|bytes| Some(bytes) != block(*at, 1)));
        unlike.map(|at| at..at + BLOCK_BYTES as u64).collect()
    }
}

impl Admin {
    /// Now and then what a member lacks that has begun to be filled is looked for, on its disk and on that of one that may be in sync.
    pub(super) async fn liken(&mut self, index: usize, id: DeviceId, role: u16, leaf: LeafId) {
        let is_leased = self.stage.borrow().mirrors[index].leases.is_some();
        if !is_leased || self.rng.below(3) == 0 {
            return;
        }
        let disks = self.stage.borrow().mirrors[index].disks.clone();
        let others: Vec<LeafId> =
            disks.iter().filter_map(|disk| self.leaves.get(disk).copied()).filter(|other| *other != leaf).collect();
        if others.is_empty() {
            return;
        }
        let by_leaf: BTreeMap<LeafId, usize> = self.leaves.iter().map(|(disk, leaf)| (*leaf, *disk)).collect();
        let disk_of = |leaf: LeafId| by_leaf[&leaf];
        self.phase("likening a member");
        let mut likened = None;
        for with in others.iter().cycle().take(TRIES) {
            if self.port.give_order(id, Order::BeginDelta { slot: role, base: *with }).await.is_ok() {
                likened = Some(*with);
                break;
            }
            self.port.sleep(PAUSE_NS).await;
        }
        let Some(with) = likened else { return self.count("not likened") };
        let (Some(one), Some(other)) = (self.data(leaf).await, self.data(with).await) else {
            return self.count("likened, and not read");
        };
        self.stage.borrow_mut().alike = Some(Alike { disks: [disk_of(leaf), disk_of(with)], data: [one, other] });
        self.until(|stage| stage.unlike.is_some()).await;
        let ranges = self.stage.borrow_mut().unlike.take().expect("it was waited for");
        for _ in 0..TRIES {
            let order = Order::ApplyDelta { slot: role, base: with, ranges: ranges.clone() };
            match self.port.give_order(id, order).await {
                Ok(()) => return self.count("liken a member"),
                Err(error) => self.expect_refusal(&error),
            }
            self.port.sleep(PAUSE_NS).await;
        }
    }

    /// Where a member's data are, by its label.
    async fn data(&mut self, leaf: LeafId) -> Option<Range<u64>> {
        let places = DiskLayout::for_device(self.port.size_bytes(leaf)).ok()?;
        let label = self.port.read(leaf, places.label_start, 4096).await.ok()?;
        let data = Label::decode(&label).ok()?.member.layout.data;
        Some(data.start..data.start + data.bytes)
    }
}
