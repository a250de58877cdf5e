//! Mutations of the controller and of the replicas' processes. The simulator plays these, so the mutations stand in the simulator.

/// A mutation of what the simulator plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bug {
    /// The lease counts from the time of the reply.
    LeaseFromAnswer,
    /// A rebuilding replica gets what the others changed, not what it changed itself.
    OwnDirtyForgotten,
    /// Replicas that were being written when the controller died are served without a resync.
    UnequalServed,
    /// A voter's guarantees count for the one that was created again under its number, which is not raised again.
    MovedCounted,
    /// A snapshot is taken while requests are in flight.
    SnapshotUnheld,
    /// A snapshot gets its name, and is acknowledged, when one replica has it.
    SnapshotOnOne,
    /// An opening leaves snapshots as the previous controller left them.
    SnapshotsUnsettled,
    /// A returning replica does not get the snapshots that it lacks.
    SnapshotNotBrought,
    /// A returning replica keeps the snapshots that were deleted.
    DeletedSnapshotKept,
    /// A returning replica takes writes before it has the snapshots that it lacks.
    WrittenBeforeSnapshots,
    /// A replica whose data was rolled back to a snapshot gets only what it missed while it was missing.
    CaughtUpFromSnapshot,
    /// A replica is rolled back while others are in sync.
    RolledBackBesideOthers,
    /// What a rollback changed is not among what a returning replica has to get.
    RollbackNotDirty,
    /// A replica that is an older copy of itself shows the boot that it had.
    OlderTrusted,
    /// A restart takes a replica that is an older copy for one that has lost what was not flushed.
    OlderMarkForgotten,
    /// A replica that is an older copy gets only what is dirty.
    OlderCaughtUp,
    /// The register on the disk counts, although the file beside it is newer.
    PromiseForgotten,
    /// The loss of shared memory is recorded after the session that would report it was begun.
    LossNotedLate,
    /// A process begins while I/O of the previous one is in flight.
    KilledUndrained,
    /// A start that was killed forgets that the previous session had ended cleanly.
    EndForgotten,
}

/// Returns whether the mutation is compiled in and switched on.
#[cfg(feature = "mutations")]
pub(super) fn is_active(bug: Bug) -> bool {
    use braid_engine::replica::{Planted, planted};
    planted(match bug {
        Bug::LeaseFromAnswer => Planted::LeaseFromAnswer,
        Bug::OwnDirtyForgotten => Planted::OwnDirtyForgotten,
        Bug::UnequalServed => Planted::UnequalServed,
        Bug::MovedCounted => Planted::MovedCounted,
        Bug::SnapshotUnheld => Planted::SnapshotUnheld,
        Bug::SnapshotOnOne => Planted::SnapshotOnOne,
        Bug::SnapshotsUnsettled => Planted::SnapshotsUnsettled,
        Bug::SnapshotNotBrought => Planted::SnapshotNotBrought,
        Bug::DeletedSnapshotKept => Planted::DeletedSnapshotKept,
        Bug::WrittenBeforeSnapshots => Planted::WrittenBeforeSnapshots,
        Bug::CaughtUpFromSnapshot => Planted::CaughtUpFromSnapshot,
        Bug::RolledBackBesideOthers => Planted::RolledBackBesideOthers,
        Bug::RollbackNotDirty => Planted::RollbackNotDirty,
        Bug::OlderTrusted => Planted::OlderTrusted,
        Bug::OlderMarkForgotten => Planted::OlderMarkForgotten,
        Bug::OlderCaughtUp => Planted::OlderCaughtUp,
        Bug::PromiseForgotten => Planted::PromiseForgotten,
        Bug::LossNotedLate => Planted::LossNotedLate,
        Bug::KilledUndrained => Planted::KilledUndrained,
        Bug::EndForgotten => Planted::EndForgotten,
    })
}

/// Returns `false`: mutations are not compiled in.
#[cfg(not(feature = "mutations"))]
pub(super) const fn is_active(_: Bug) -> bool {
    false
}
