//! Bugs that the crash sweep and the simulator must notice. They exist only in tests, and with the feature `planted`.

/// One mistake that somebody could make here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The copies of a label are written without waiting for the first to be durable.
    BothCopiesAtOnce,
    /// Labels are acknowledged while they are only in the disk's cache.
    NotDurable,
    /// `active` is written on a member before all have `forming`.
    ActiveTooEarly,
    /// A delete erases labels without saying `deleting` first.
    EraseUnannounced,
    /// A start does not flush before it believes what it read.
    StartWithoutFlush,
    /// A start serves without writing the newest label on all.
    NewestNotWritten,
    /// A start raises the sequence number while some members are still a step behind.
    RaisedWhileBehind,
    /// A doubtful copy is written last, over the good one first.
    GoodCopyFirst,
    /// A start writes the next label beside a damaged copy, which may be the remains of one of that number.
    RemainsLeft,
    /// The label of one member is written on all.
    WrongRole,
    /// A delete zeroes the block after the label too.
    ErasesTooMuch,
    /// A label that says `forming` is started as if it were active.
    FormingServed,
    /// A member that is further behind than a crash leaves it is taken as in sync.
    StaleAccepted,
    /// A member that was used apart is taken as one that was away, and catches up from the bitmap.
    DivergedMerged,
    /// An old copy of a member that is out is taken for that member, and catches up from bits that were cleared since.
    OldCopyReturns,
    /// A start serves after one label: a copy from before it is taken as a step behind, and in sync.
    ServedAfterOneLabel,
    /// The same, of an array without redundancy alone.
    PlainServedAfterOneLabel,
    /// A label one step behind counts as left by a crash, of whatever session it is.
    SessionIgnored,
    /// Of several copies of one member the one with the oldest label is taken.
    OlderTwinTaken,
    /// An old copy whose data area is smaller than the array's now is refused for that, even where nothing is to be read from it.
    OldSizeRefused,
    /// The label of a member that is about to be filled is written before the survivors'.
    NewcomerLabelFirst,
    /// A member that is being filled counts as a copy when an array starts.
    FillingStartedAlone,
    /// A member is recorded as in sync while what was copied to it is still in its cache.
    PromotionWithoutFlush,
    /// When the last copy fails it is recorded as failed, too.
    LastSurvivorRecordedFailed,
    /// Bits that were found on some members are not written on the others.
    MergedNotRewritten,
    /// An array is noted as stopped in order while what was written is still in caches.
    StopWithoutFlush,
    /// The label at the start of a disk that has grown names another place for its copy before that is there.
    CopyMovedFirst,
    /// The copy of the label stays where the disk ended before it grew.
    OldCopyLeft,
    /// The larger array is recorded on its members before those that are new bear a label.
    GrownBeforeNewcomers,
    /// What a growth adds to the array's last region is not zeroed.
    GrownTailNotZeroed,
    /// The blocks of the bitmap that a growth adds are not written.
    GrownBitmapNotWritten,
    /// Disks that a redundant array was about to take up stay in its table as spares when that was cut off.
    JoiningKept,
    /// Such disks do not count when the label that makes them members stands on some members only.
    JoiningUncounted,
    /// The recovery of a journal puts batches in place before it has written them on all members again.
    ReplayedBeforeLogged,
    /// A recovery begins the new run, in which marks count nothing, before parity was computed anew.
    RetiredBeforeResync,
    /// A recovery begins the new run while what it has put in place is in caches.
    RetiredBeforeFlush,
    /// A recovery forgets which rows were unreadable before it.
    UnreadableForgotten,
    /// A recovery does not list the rows that it finds unreadable.
    UnreadableNotListed,
    /// Parity of an unreadable row stays as it was found.
    LostCellNotZeros,
    /// A recovery takes batches of older runs.
    OldRunsCount,
    /// A recovery changes members without noting that in the bitmap.
    RegionsNotMarked,
    /// The head that ends a recovery is on one member only.
    HeadOnOneMember,
    /// The head of a new run is on members before it is on the disk of the journal.
    DiskHeadLast,
    /// The label says that the disk of the journal is gone before the ring is elsewhere.
    DiskDroppedFirst,
    /// The disk of the journal counts without a head of the run: an old copy of it is taken for an empty ring.
    DiskBelievedBlindly,
    /// A disk of the journal that was with others since is taken for this array's.
    DiskOfOthersBelieved,
    /// What a recovery reads of the disk of the journal may be in that disk's cache.
    DiskNotFlushed,
    /// Without the disk of the journal parity stays as the crash left it.
    DiskLostUnnoticed,
    /// A disk that is to be filled keeps the head of the journal that it bore.
    NewcomerKeepsHead,
    /// A member is dropped without the survivors' having flushed.
    DropRecordedWithoutFlush,
    /// A member that has no space left in a recovery is dropped, with rows that are only marked.
    DroppedWhenFull,
    /// Who has no role of its own is not flushed: a successor takes the place of a member while what was copied to it is
    /// still in its cache.
    SuccessorNotFlushed,
    /// A label says that a member is out before the voters of the volume do.
    LabelsBeforeVotes,
    /// A role that is nobody's is taken, and the bits that were cleared before are not told from those that are kept from there on.
    VacantFilledInLine,
    /// An array in which nobody is out any more still believes those that come from its lines before.
    WholeNotClosed,
    /// A mirror has one role more before any label says so.
    WidenedInMemory,
    /// A successor that fails as it takes over is dropped together with the member that it was to replace.
    SuccessorFlushedWithOthers,
}

#[cfg(any(test, feature = "planted"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is compiled in and switched on.
#[cfg(any(test, feature = "planted"))]
pub(super) fn planted(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is compiled in and switched on: never.
#[cfg(not(any(test, feature = "planted")))]
#[inline(always)]
pub(super) const fn planted(_: Planted) -> bool {
    false
}

/// Switches a bug on for this thread, or all off.
#[cfg(any(test, feature = "planted"))]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}
