//! The replica on a node's disk, and the copies of its register.

use std::collections::{BTreeMap, BTreeSet};

use braid_format::Uuid;
use braid_format::register::REGISTER_BYTES;

use super::bugs::{Bug, is_active};
use super::messages::SnapshotOp;
use crate::rng::Rng;

/// Returns the identity of a node's boot.
pub fn boot_id(node: usize, boot: u64) -> Uuid {
    Uuid::from_u64_pair(node as u64 + 1, boot + 1)
}

/// Returns the value of a block after a rollback.
pub fn rolled_back(mark: u64, block: u16) -> u64 {
    mark << 32 | u64::from(block)
}

pub type RegisterCopy = Box<[u8; REGISTER_BYTES]>;

/// A replica's blocks, one word each, and their dirty bits.
#[derive(Clone, Default)]
pub struct Store {
    /// By block: the number of its last durable write, and the word.
    pub durable: Vec<(u64, u64)>,
    pub cached: BTreeMap<u16, (u64, u64)>,
    pub writes: u64,
    /// The dirty bit of a block is durable before a write to its data begins.
    pub dirty: BTreeSet<u16>,
    /// The lineage in the replica's label: the data against which its dirty blocks are recorded. Between two replicas
    /// of different lineage, dirty blocks say nothing.
    pub lineage: u64,
    /// Durable snapshots by number: the content, and whether the snapshot has its name.
    pub snapshots: BTreeMap<u64, (Vec<u64>, bool)>,
}

impl Store {
    /// Returns the word that a read of the block finds.
    pub fn read(&self, block: u16) -> u64 {
        self.cached.get(&block).unwrap_or(&self.durable[usize::from(block)]).1
    }

    /// Returns the content of a snapshot that has its name.
    pub fn named(&self, id: u64) -> Option<Vec<u64>> {
        self.snapshots.get(&id).filter(|(_, named)| *named).map(|(content, _)| content.clone())
    }

    /// Performs a snapshot operation. An operation that was performed before has no effect.
    pub fn snapshot(&mut self, what: SnapshotOp) -> (u64, Vec<(u64, bool)>) {
        match what {
            SnapshotOp::Take(id) => {
                let content = (0..self.durable.len() as u16).map(|block| self.read(block)).collect();
                self.snapshots.entry(id).or_insert((content, false));
            }
            SnapshotOp::Name(id) | SnapshotOp::Hide(id) => {
                if let Some((_, named)) = self.snapshots.get_mut(&id) {
                    *named = matches!(what, SnapshotOp::Name(_));
                }
            }
            SnapshotOp::Remove(id) => drop(self.snapshots.remove(&id)),
            SnapshotOp::List => {
                return (0, self.snapshots.iter().map(|(id, (_, named))| (*id, *named)).collect());
            }
            SnapshotOp::Rollback(id, mark) => {
                let there = self.snapshots.contains_key(&id);
                if there {
                    self.roll_back(mark);
                }
                return (u64::from(there), Vec::new());
            }
            SnapshotOp::Read(id, block) => {
                let content = self.snapshots.get(&id).map_or(0, |(content, _)| content[usize::from(block)]);
                return (content, Vec::new());
            }
        }
        (0, Vec::new())
    }

    /// Rolls all blocks back in one durable step.
    pub fn roll_back(&mut self, mark: u64) {
        self.cached.clear();
        let blocks = self.durable.len() as u16;
        for block in 0..blocks {
            self.writes += 1;
            self.durable[usize::from(block)] = (self.writes, rolled_back(mark, block));
        }
        if !is_active(Bug::RollbackNotDirty) {
            self.dirty = (0..blocks).collect();
        }
    }

    pub fn write(&mut self, block: u16, value: u64) {
        self.writes += 1;
        self.cached.insert(block, (self.writes, value));
    }

    /// Makes all cached writes durable.
    pub fn flush(&mut self) {
        let cached = self.cached.clone();
        self.flushed(cached);
    }

    /// Makes durable what was cached when a flush began. A later flush may have ended before.
    pub fn flushed(&mut self, cached: BTreeMap<u16, (u64, u64)>) {
        for (block, written) in cached {
            let durable = &mut self.durable[usize::from(block)];
            *durable = (*durable).max(written);
            if self.cached.get(&block).is_some_and(|(number, _)| *number <= written.0) {
                self.cached.remove(&block);
            }
        }
    }

    /// Cuts the power: some of the cached writes and of the writes in flight survive.
    pub fn lose_cached(&mut self, in_flight: impl Iterator<Item = (u16, u64)>, rng: &mut Rng) {
        in_flight.for_each(|(block, value)| {
            if rng.coin() {
                self.write(block, value);
            }
        });
        for (block, written) in std::mem::take(&mut self.cached) {
            if rng.coin() {
                self.durable[usize::from(block)] = written;
            }
        }
    }
}
