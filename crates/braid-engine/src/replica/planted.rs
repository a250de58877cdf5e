//! Bugs that the simulator of replicas must notice. They exist only in tests, and with the feature `planted`.

/// One mistake that somebody could make here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A volume is opened with the voters that are there.
    OpenedWithoutVotes,
    /// A drop counts when one voter has it.
    OneVoteDrop,
    /// What waited for a drop is answered before enough voters have it.
    AnsweredBeforeVotes,
    /// What an opening found is served before enough voters have it in the new epoch.
    ServedBeforeRecorded,
    /// A raise is answered while I/O of older epochs is under way.
    RaisedBeforeDrained,
    /// A raise is answered before it is durable.
    RaisedBeforeDurable,
    /// A new session is let in while I/O of an older one is under way.
    OldSessionUndrained,
    /// A new connection is let in while I/O of the one that it takes the place of is under way.
    OldAttemptUndrained,
    /// A controller that hears of nobody goes on answering.
    LeaseIgnored,
    /// The lease counts from the moment in which an answer came.
    LeaseFromAnswer,
    /// Whoever opens does not wait for the lease of whoever was cut off.
    OpenedWithoutWait,
    /// A replica whose node has rebooted is believed.
    RebootBelieved,
    /// A raise makes a rebooted replica look as if it had not.
    RaiseForgetsBoot,
    /// A drop is voted for while what the survivors hold is in their caches.
    SurvivorsNotFlushed,
    /// A replica whose node has rebooted while the volume was served goes on.
    RebootUnnoticed,
    /// A vote makes a rebooted replica look as if it had not.
    CastBelievesBoot,
    /// Whoever stopped without having served is taken for the one who served last.
    ReleaseOfNobody,
    /// Two voters that remember drops by two controllers are said to have gone apart.
    LinesCalledApart,
    /// Whoever is filled gets what the others changed, not what it changed itself.
    OwnDirtyForgotten,
    /// A vote counts before those that it makes members have it.
    NewcomerUntold,
    /// A witness that was raised counts as a replica.
    WitnessIsData,
    /// Replicas that were written to when the controller died are served from as they are.
    UnequalServed,
    /// The vote that counts is the one with the highest sequence number, whatever its epoch.
    EpochForgotten,
    /// Voters change without a vote that takes those of before, too.
    ChangeWithoutOld,
    /// A voter that has come anew under an old one's number counts for the time before.
    NewcomerKnowsPast,
    /// What a voter has promised counts for the one that was made anew under its number, which is not asked again.
    MovedCounted,
    /// A replica is dropped although those that are left do not have everything.
    DroppedBelowLeast,
    /// A volume is opened with replicas that do not have everything.
    OpenedBelowLeast,
    /// A snapshot is taken while requests are under way.
    SnapshotUnheld,
    /// A snapshot gets its name, and is acknowledged, when one replica has it.
    SnapshotOnOne,
    /// Whoever opens the volume leaves snapshots as the controller before left them.
    SnapshotsUnsettled,
    /// A replica that comes back does not get the snapshots that it lacks.
    SnapshotNotBrought,
    /// A replica that comes back keeps the snapshots that were deleted.
    DeletedSnapshotKept,
    /// A replica that comes back takes writes before it has the snapshots that it lacks.
    WrittenBeforeSnapshots,
    /// A replica whose data were set back to a snapshot gets what it missed since it was away, and no more.
    CaughtUpFromSnapshot,
    /// A replica is rolled back while others are in sync.
    RolledBackBesideOthers,
    /// What a rollback changed is not among what a replica that comes back has to get.
    RollbackNotDirty,
    /// A replica that is an older copy of itself shows the boot that it had.
    OlderBelieved,
    /// A restart takes a replica that is an older copy for one that has lost what was not flushed.
    OlderMarkForgotten,
    /// Older copies are believed like replicas whose nodes have rebooted, where nobody knows better than these.
    OlderLikeRebooted,
    /// A replica that is an older copy gets what is dirty, and no more.
    OlderCaughtUp,
    /// What the disk says of its register counts, although the file beside it is newer.
    PromiseForgotten,
    /// That shared memory was lost is noted after the session that would tell was begun.
    LossNotedLate,
    /// A process begins while I/O of the one before it is under way.
    KilledUndrained,
    /// A start that was killed forgets that the session before had ended in order.
    EndForgotten,
}

impl Planted {
    /// Each of them.
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
        Planted::RebootBelieved,
        Planted::RaiseForgetsBoot,
        Planted::SurvivorsNotFlushed,
        Planted::RebootUnnoticed,
        Planted::CastBelievesBoot,
        Planted::ReleaseOfNobody,
        Planted::LinesCalledApart,
        Planted::OwnDirtyForgotten,
        Planted::NewcomerUntold,
        Planted::WitnessIsData,
        Planted::UnequalServed,
        Planted::EpochForgotten,
        Planted::ChangeWithoutOld,
        Planted::NewcomerKnowsPast,
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
        Planted::OlderBelieved,
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

/// Whether this bug is compiled in and switched on: some stand in the simulator, as what they would be made in does.
#[cfg(any(test, feature = "planted"))]
pub fn planted(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is compiled in and switched on: never.
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
