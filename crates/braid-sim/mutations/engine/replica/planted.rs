//! Seeded bugs that the simulator of replicas must notice. They exist only in tests, and with the feature `planted`.

/// A seeded bug of the replica code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A volume is opened with the voters that are present.
    OpenedWithoutVotes,
    /// A drop counts when one voter has it.
    OneVoteDrop,
    /// Requests that waited for a drop are answered before enough voters have it.
    AnsweredBeforeVotes,
    /// The result of an opening is served before enough voters have it in the new epoch.
    ServedBeforeRecorded,
    /// A raise is answered while I/O of older epochs is under way.
    RaisedBeforeDrained,
    /// A raise is answered before it is durable.
    RaisedBeforeDurable,
    /// A new session is admitted while I/O of an older one is in flight.
    OldSessionUndrained,
    /// A new connection is admitted while I/O of the one that it replaces is in flight.
    OldAttemptUndrained,
    /// A controller that receives no replies continues to answer.
    LeaseIgnored,
    /// The lease counts from the time of the reply.
    LeaseFromAnswer,
    /// An opening does not wait for the lease of the fenced controller.
    OpenedWithoutWait,
    /// A replica whose node has rebooted is trusted.
    RebootTrusted,
    /// A raise makes a rebooted replica look as if it had not.
    RaiseForgetsBoot,
    /// A drop is voted for while what the survivors hold is in their caches.
    SurvivorsNotFlushed,
    /// A replica whose node has rebooted while the volume was served continues to serve.
    RebootUnnoticed,
    /// A vote makes a rebooted replica look as if it had not.
    CastTrustsBoot,
    /// A controller that stopped without having served is taken for the last one that served.
    ReleaseWithoutService,
    /// Two voters that recorded drops by two controllers are reported as diverged.
    LineagesCalledDiverged,
    /// A rebuilding replica gets what the others changed, not what it changed itself.
    OwnDirtyForgotten,
    /// A vote counts before the members that it adds have it.
    NewVoterNotCounted,
    /// A witness that was raised counts as a replica.
    WitnessIsData,
    /// Replicas that were being written when the controller died are served without a resync.
    UnequalServed,
    /// The vote that counts is the one with the highest sequence number, whatever its epoch.
    EpochForgotten,
    /// Voters change without a joint vote.
    ChangeWithoutOld,
    /// A voter that was added again under an earlier number counts for the time before.
    NewVoterKnowsPast,
    /// A voter's guarantees count for the one that was created again under its number, which is not asked again.
    MovedCounted,
    /// A replica is dropped although the remaining ones do not have everything.
    DroppedBelowLeast,
    /// A volume is opened with replicas that do not have everything.
    OpenedBelowLeast,
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
    /// Older copies are trusted like replicas whose nodes have rebooted, if no better content exists.
    OlderLikeRebooted,
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

impl Planted {
    /// All seeded bugs.
    pub const ALL: [Planted; 45] = [
        Planted::OpenedWithoutVotes,
        Planted::OneVoteDrop,
        Planted::AnsweredBeforeVotes,
        Planted::ServedBeforeRecorded,
        Planted::RaisedBeforeDrained,
        Planted::RaisedBeforeDurable,
        Planted::OldSessionUndrained,
        Planted::OldAttemptUndrained,
        Planted::LeaseIgnored,
        Planted::LeaseFromAnswer,
        Planted::OpenedWithoutWait,
        Planted::RebootTrusted,
        Planted::RaiseForgetsBoot,
        Planted::SurvivorsNotFlushed,
        Planted::RebootUnnoticed,
        Planted::CastTrustsBoot,
        Planted::ReleaseWithoutService,
        Planted::LineagesCalledDiverged,
        Planted::OwnDirtyForgotten,
        Planted::NewVoterNotCounted,
        Planted::WitnessIsData,
        Planted::UnequalServed,
        Planted::EpochForgotten,
        Planted::ChangeWithoutOld,
        Planted::NewVoterKnowsPast,
        Planted::MovedCounted,
        Planted::DroppedBelowLeast,
        Planted::OpenedBelowLeast,
        Planted::SnapshotUnheld,
        Planted::SnapshotOnOne,
        Planted::SnapshotsUnsettled,
        Planted::SnapshotNotBrought,
        Planted::DeletedSnapshotKept,
        Planted::WrittenBeforeSnapshots,
        Planted::CaughtUpFromSnapshot,
        Planted::RolledBackBesideOthers,
        Planted::RollbackNotDirty,
        Planted::OlderTrusted,
        Planted::OlderMarkForgotten,
        Planted::OlderLikeRebooted,
        Planted::OlderCaughtUp,
        Planted::PromiseForgotten,
        Planted::LossNotedLate,
        Planted::KilledUndrained,
        Planted::EndForgotten,
    ];
}

#[cfg(any(test, feature = "planted"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Returns whether this bug is compiled in and switched on. Some are checked in the simulator, in place of the code
/// that they concern.
#[cfg(any(test, feature = "planted"))]
pub fn planted(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns whether this bug is compiled in and switched on: never.
#[cfg(not(any(test, feature = "planted")))]
#[inline(always)]
pub const fn planted(_: Planted) -> bool {
    false
}

/// Switches a bug on for this thread, or all off.
#[cfg(any(test, feature = "planted"))]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}
