//! Mutations of what shards make of pools: the number of seeds within which each must be found.

use braid_engine::Planted;

use super::Focus;
use crate::mutations::{Mutation, Target};

/// Returns the focus of the runs that look for this mutation.
pub fn focus(mutation: Mutation) -> Option<Focus> {
    let Mutation::Data(mutation) = mutation else { return None };
    match mutation {
        Planted::SnapshotNotDrained | Planted::NewUncounted | Planted::BarrierSkipsShard => Some(Focus::Snapshots),
        Planted::SnapshotNotCommitted
        | Planted::UncommittedIgnored
        | Planted::ZeroesUncommitted
        | Planted::VolumeFlushSkipped => Some(Focus::Durable),
        Planted::DirtyServed => Some(Focus::Arrays),
        Planted::WaitsCounted => Some(Focus::Reuse),
        Planted::LateUncounted => Some(Focus::LateWrites),
        Planted::RunUnchecked => Some(Focus::Moves),
        Planted::PartialUnclaimed | Planted::PartialMemoryLost => Some(Focus::PartialBlocks),
        Planted::LogDroppedEarly => Some(Focus::Starts),
        _ => None,
    }
}

/// Every mutation, its number of seeds (about three times what it took when this was written, at least 100), and the
/// seed that found it then. That seed is no guarantee: a change of the random draws changes the run.
const TABLE: [(Planted, u64, u64); Planted::VOLUMES.len()] = [
    (Planted::BarrierSkipsShard, 100, 32),
    (Planted::NewUncounted, 300, 94),
    (Planted::LateUncounted, 100, 2),
    (Planted::UnwrittenAllocated, 100, 2),
    (Planted::AllocationUnwaited, 100, 0),
    (Planted::VolumeUnlocked, 100, 2),
    (Planted::VolumeFlushSkipped, 300, 8),
    (Planted::ZeroesUncommitted, 400, 97),
    (Planted::OwnerUnchecked, 100, 2),
    (Planted::RunUnchecked, 600, 61),
    (Planted::PartialUnclaimed, 100, 2),
    (Planted::PartialMemoryLost, 4000, 1903),
    // Only two hanging disks in an array with two parities show it, and there are none here.
    (Planted::PartialReadLent, 0, 0),
    (Planted::UncommittedIgnored, 150, 42),
    (Planted::SnapshotNotDrained, 100, 3),
    (Planted::SnapshotNotCommitted, 100, 1),
    (Planted::WaitsCounted, 100, 6),
    (Planted::LogDroppedEarly, 600, 190),
    (Planted::DirtyServed, 400, 58),
];

/// Returns every mutation, and how it is looked for.
pub fn targets() -> Vec<Target> {
    let target = |(mutation, limit, known)| Target::of_seeds(Mutation::Data(mutation), limit, vec![known]);
    TABLE.into_iter().map(target).collect()
}
