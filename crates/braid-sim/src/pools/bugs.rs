//! Mistakes that stand in the simulator, as what they would be made in does: whoever serves a pool.

/// Those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bug {
    EntryBeforeData,
    SnapshotNotDrained,
    SnapshotNotCommitted,
    TailDroppedEarly,
}

/// Whether it is compiled in and switched on.
#[cfg(feature = "planted")]
pub(super) fn is_planted(bug: Bug) -> bool {
    use braid_engine::Planted;
    braid_engine::is_planted(match bug {
        Bug::EntryBeforeData => Planted::EntryBeforeData,
        Bug::SnapshotNotDrained => Planted::SnapshotNotDrained,
        Bug::SnapshotNotCommitted => Planted::SnapshotNotCommitted,
        Bug::TailDroppedEarly => Planted::TailDroppedEarly,
    })
}

/// Whether it is compiled in and switched on: never.
#[cfg(not(feature = "planted"))]
pub(super) const fn is_planted(_: Bug) -> bool {
    false
}
