//! Mutations that the crash sweep and the simulator must detect. They exist only in tests, and with the feature
//! `planted`.

/// A seeded bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The copies of a label are written without waiting for the first to be durable.
    BothCopiesAtOnce,
    /// Labels are acknowledged while they are only in the disk's cache.
    NotDurable,
    /// `active` is written to a member before all have `forming`.
    ActiveTooEarly,
    /// A delete erases labels without writing `deleting` first.
    EraseUnannounced,
    /// A start does not flush before it trusts what it read.
    StartWithoutFlush,
    /// A start serves without writing the newest label to all members.
    NewestNotWritten,
    /// A start raises the sequence number while some members are still a step behind.
    RaisedWhileBehind,
    /// The doubtful copy is written last, after the good one was overwritten.
    GoodCopyFirst,
    /// A start writes the next label beside a damaged copy, which may be the remains of a label of that number.
    RemainsLeft,
    /// The label of one member is written to all.
    WrongRole,
    /// A delete zeroes the block after the label too.
    ErasesTooMuch,
    /// A label in the state `forming` is started as if it were active.
    FormingServed,
    /// A member that is further behind than a crash leaves it counts as in sync.
    StaleAccepted,
    /// A member that was used apart counts as one that was missing, and gets a delta resync.
    DivergedMerged,
    /// An old copy of a failed member counts as that member, and gets a delta resync from bits that were cleared since.
    OldCopyReturns,
    /// A start serves after one label: a copy from before it counts as a step behind, and in sync.
    ServedAfterOneLabel,
    /// [`Planted::ServedAfterOneLabel`] for arrays without redundancy only.
    PlainServedAfterOneLabel,
    /// A label one step behind counts as left by a crash, whatever its session.
    SessionIgnored,
    /// Of several copies of one member, the one with the oldest label is used.
    OlderCopyTaken,
    /// An old copy with a data area smaller than the array's now is refused for that, even if nothing would be read
    /// from it.
    OldSizeRefused,
    /// The label of a member to be rebuilt is written before the survivors'.
    NewMemberLabelFirst,
    /// A rebuilding member counts as a copy when an array starts.
    RebuildingStartedAlone,
    /// A member is recorded as in sync while what was copied to it is still in its cache.
    PromotionWithoutFlush,
    /// When the last copy fails, it is recorded as failed too.
    LastSurvivorRecordedFailed,
    /// Bits found on some members are not written to the others.
    MergedNotRewritten,
    /// An array is recorded as stopped cleanly while its writes are still in caches.
    StopWithoutFlush,
    /// The label at the start of an enlarged disk names the new location of its copy before the copy is there.
    CopyMovedFirst,
    /// The old copy of the label is left where the disk ended before it grew.
    OldCopyLeft,
    /// The larger array is recorded on its members before the new members bear a label.
    GrownBeforeNewMembers,
    /// What a growth adds to the array's last region is not zeroed.
    GrownTailNotZeroed,
    /// The bitmap blocks that a growth adds are not written.
    GrownBitmapNotWritten,
    /// Disks that a redundant array was about to add stay in its table as spares after an interrupted growth.
    JoiningKept,
    /// Such disks do not count when the label that makes them members is on some members only.
    JoiningUncounted,
    /// A journal recovery writes batches in place before it has written them to the rings of all members.
    ReplayedBeforeLogged,
    /// A recovery begins the new run, which ignores the marks, before parity was recomputed.
    RetiredBeforeResync,
    /// A recovery begins the new run while what it wrote in place is in caches.
    RetiredBeforeFlush,
    /// A recovery forgets which stripes were lost before it.
    UnreadableForgotten,
    /// A recovery does not list the stripes that it finds lost.
    UnreadableNotListed,
    /// The parity of a lost stripe stays as it was found.
    LostCellNotZeros,
    /// A recovery accepts batches of older runs.
    OldRunsCount,
    /// A recovery changes members without recording that in the bitmap.
    RegionsNotMarked,
    /// The head that ends a recovery is on one member only.
    HeadOnOneMember,
    /// The head of a new run is on members before it is on the disk of the journal.
    DiskHeadLast,
    /// The label removes the disk of the journal before the ring is elsewhere.
    DiskDroppedFirst,
    /// The disk of the journal is used without a head of the run: an old copy of it passes for an empty ring.
    DiskTrustedBlindly,
    /// A disk of the journal that another copy of the array has used since is trusted.
    DiskOfOthersTrusted,
    /// What a recovery reads from the disk of the journal may be in that disk's cache only.
    DiskNotFlushed,
    /// Without the disk of the journal, parity stays as the crash left it.
    DiskLostUnnoticed,
    /// A disk to be rebuilt keeps its old head of the journal.
    NewMemberKeepsHead,
    /// A drop is recorded without a flush of the survivors.
    DropRecordedWithoutFlush,
    /// A member without free space is dropped during a recovery, and marked stripes with it.
    DroppedWhenFull,
    /// Numbers behind the slots are not flushed: a successor takes the slot of a member while what was copied to it is
    /// still in its cache.
    SuccessorNotFlushed,
    /// A label records a member as failed before the voters of the volume do.
    LabelsBeforeVotes,
    /// A vacant slot is taken within the lineage: bits cleared before cannot be told from those kept afterwards.
    VacantTakenInLineage,
    /// An array without failed members still lets members of earlier lineages return.
    WholeNotClosed,
    /// A mirror gains a slot before any label records it.
    WidenedInMemory,
    /// A successor that fails as it takes over is dropped together with the member that it was to replace.
    SuccessorFlushedWithOthers,
}

#[cfg(any(test, feature = "planted"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Whether this mutation is compiled in and enabled.
#[cfg(any(test, feature = "planted"))]
pub(super) fn planted(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this mutation is compiled in and enabled: never.
#[cfg(not(any(test, feature = "planted")))]
#[inline(always)]
pub(super) const fn planted(_: Planted) -> bool {
    false
}

/// Enables one mutation for this thread, or none.
#[cfg(any(test, feature = "planted"))]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}
