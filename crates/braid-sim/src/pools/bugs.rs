//! Mutations of the component that serves a pool. The simulator plays that component, so these stand in the simulator.

/// A mutation of the component that serves a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bug {
    EntryBeforeData,
    SnapshotNotDrained,
    SnapshotNotCommitted,
    LogDroppedEarly,
}

/// Returns whether the mutation is compiled in and switched on.
#[cfg(feature = "mutations")]
pub(super) fn is_active(bug: Bug) -> bool {
    use braid_engine::Planted;
    braid_engine::is_planted(match bug {
        Bug::EntryBeforeData => Planted::EntryBeforeData,
        Bug::SnapshotNotDrained => Planted::SnapshotNotDrained,
        Bug::SnapshotNotCommitted => Planted::SnapshotNotCommitted,
        Bug::LogDroppedEarly => Planted::LogDroppedEarly,
    })
}

/// Returns `false`: mutations are not compiled in.
#[cfg(not(feature = "mutations"))]
pub(super) const fn is_active(_: Bug) -> bool {
    false
}
