//! Bugs that the simulator must notice. They exist only with the feature `planted`, which only the simulator's tests
//! ask for, and there only on threads that switch one on.

use braid_format::journal::{EntryKind, JournalEntry};

use crate::io::{Cookie, Flags, LeafId, LeafIo, Op};

/// One mistake that somebody could make on the data path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A replicated device answers although its lease has run out.
    AnsweredWithoutLease,
    /// A request that is not of whole blocks does not claim those that it touches.
    PartialUnclaimed,
    /// Such a request is answered although the lease has run out.
    PartialWithoutLease,
    /// A request begins although it was called off, as its client has gone.
    CalledOffBegun,
    /// What such a request has read is taken for something that a hanging disk may still fill, and written from other memory.
    PartialReadLent,
    /// The memory of such a request is given to others while the kernel has it.
    PartialMemoryLost,
    /// A replicated device that serves no more tells errors, although a later session settles the requests.
    UnsettledAnswered,
    /// A replicated device answers a read of what not all members have.
    ReadNotOrdered,
    /// What was under way when a member was left out is not noted as missed by it.
    MissedByOwnLayout,
    /// What a member misses is looked up before it takes every write.
    MissedLookedUpEarly,
    /// What a member lacks that is like another one is not copied.
    LackedForgotten,
    /// In what a member differs is looked up before it takes every write.
    DifferencesLookedUpEarly,
    /// What is noted of what a member misses is given up when it begins to be filled: it may be left out again.
    MissedForgottenEarly,
    /// A member that may have lost what was not flushed gets nothing but what it missed.
    LossesForgotten,
    /// The last block of what a member gets is taken for equal without a look.
    UpdateIgnoresLast,
    /// Of a region that was first written while a member was out it gets nothing but what was written.
    FreshForgotten,
    /// An extent of a pool is used again before its freeing is committed.
    ReusedBeforeCommitted,
    /// What a volume discards over a snapshot is not said to be zeros.
    ZeroRangeForgotten,
    /// The batches of a commit are written before the data that they speak of are durable.
    BatchBeforeDataFlush,
    /// A ring's new start is written before the tables.
    StartBeforeTables,
    /// The tables get what is not committed.
    TableAheadOfRing,
    /// The place before a ring's new start is used again before the start is durable.
    StartNotFlushed,
    /// A start of a pool goes on with the run of the rings that it found.
    OldRunGoesOn,
    /// What an old tail says is served before it is committed.
    OldLogNotCommitted,
    /// A commit counts when the batches of one member are there.
    CommitWithoutAllMembers,
    /// What a crash left is written into pages of tables that could not be read, over all else that stands there.
    UnreadWrittenOver,
    /// Folding begins before the deletion is committed.
    MergeBeforeCommitted,
    /// Folding gives the child what it has stated itself.
    MergeForgetsChild,
    /// Folding drops all that an extent has when the child has stated any of it.
    MergeLosesOlder,
    /// Folding gives the child records of zeros before what stands above them.
    MergeZerosFirst,
    /// The tail says that blocks are somewhere while they are on their way there.
    #[cfg(feature = "planted")]
    EntryBeforeData,
    /// A commit covers what the tail said when the flush had ended.
    MarkAfterFlush,
    /// A FUA write of a block that nobody has committed is treated as an overwrite.
    UncommittedIgnored,
    /// A snapshot is acknowledged while writes that began before it are under way.
    SnapshotNotDrained,
    /// A snapshot is acknowledged before it is committed.
    SnapshotNotCommitted,
    /// An extent is used again while somebody may still have it in mind.
    BarrierSkipped,
    /// What a map is being built of is relabelled, and it is built on.
    RelabelledWhileBuilt,
    /// Who waits for space is among those who may have places in mind, and for whose end that space waits.
    WaitsCounted,
    /// The home of a pool counts the shards on which a time has run out, and does not wait for the last.
    BarrierSkipsShard,
    /// Requests are not counted while their data are on the way to new places.
    NewUncounted,
    /// What was to be copied from a member that was late, and read from others, counts as copied although nothing was written.
    LateCopyCounts,
    /// Moves whose barrier waits for a disk that hangs keep what they hold.
    MoveHeldByHanging,
    /// Requests to volumes that the kernel still has are not counted any more.
    LateUncounted,
    /// The key of a pool that has left is free while requests and I/Os of its own are out.
    KeyFreeAtOnce,
    /// What a pool has read to copy it is written although the pool has left.
    CopyOutlivesPool,
    /// Blocks are bound whose data could not be written.
    UnwrittenAllocated,
    /// Who wrote new blocks is answered while the home is being told that they are there.
    AllocationUnwaited,
    /// Requests that need new blocks, or take some away, are not put in one order.
    VolumeUnlocked,
    /// A flush of a volume ends where it begins.
    VolumeFlushSkipped,
    /// Blocks that are taken away with FUA are not committed.
    ZeroesUncommitted,
    /// What shows through from a snapshot is written over like a volume's own.
    OwnerUnchecked,
    /// Of a run over several extents only the first is seen to be the volume's own, and held by nobody.
    RunUnchecked,
    /// A slot of a packed extent that was given back is handed out again in the same life.
    SlotUsedAgain,
    /// What thick volumes have a right to is given to others.
    ReserveForgotten,
    /// A map that is built does not know the zeros of those before.
    ZerosForgottenByClones,
    /// The tail of the last session is dropped before what it says is committed, and the session raised.
    #[cfg(feature = "planted")]
    LogDroppedEarly,
    /// The ring is not read to its end where it goes round.
    RingReadShort,
    /// What stands in a ring behind a batch that is damaged is not looked for.
    RingEndTrusted,
    /// That a member's ring lacks what another one's tables hold is not seen.
    LastPartUnseen,
    /// One whose newest ring start is damaged is taken for one that was cut off before the pool served.
    StartRotUnseen,
    /// Of a logical extent that cannot be taken away whole, as a job holds some, the rest is taken away.
    DiscardHalf,
    /// What a damaged record may have said is looked up in a parent.
    DamageFallsThrough,
    /// The extent of a damaged record is given out.
    DamagedGivenOut,
    /// A checkpoint writes over what is damaged.
    DamageWrittenOver,
    /// What a crash left empty stays so.
    EmptiesForgotten,
    /// Blocks are moved under those who write over them.
    MoveNotHeld,
    /// Blocks are copied while writes to them are under way.
    MoveNotDrained,
    /// What a fold has not come to moves to where it has been.
    MoveOvertakesMerge,
    /// Of what has moved only one volume is told.
    MoveForgetsMaps,
    /// What an extent says is zero is not said where it has moved.
    MoveLosesZeros,
    /// What a volume sees of its ancestors is cut off while some of it is still being copied.
    FlattenCutsEarly,
    /// What was copied from an ancestor goes over what was written meanwhile.
    FlattenOverNewer,
    /// What a volume says is zero is copied from an ancestor.
    FlattenForgetsZeros,
    /// Of what has been copied those are not told that see it through a snapshot.
    FlattenForgetsMaps,
    /// Others write to an extent while something is copied into it.
    FlattenNotHeld,
    /// What a deleted owner has is freed while something is copied into it.
    MergeUnderCopies,
    /// What an owner may have on an absent member is looked up in its parent.
    LookupFallsThrough,
    /// A member that returns is believed, whatever it has.
    ReturnTrusted,
    /// What a start without a member decided is not durable before the tables say what follows from it.
    DecisionNotDurable,
    /// What is decided without a member that is absent may count less than the start that this one has.
    DecisionOvertaken,
    /// Folding goes on with owners that may have blocks on an absent member.
    MergeWhileMissing,
    /// The labels lack a member before the tables have what its ring says.
    LeftBeforeCheckpoint,
    /// A member leaves that is empty, and to which new blocks go.
    LeftWhileOpen,
    /// A member is emptied although the others have less than is kept for thick volumes.
    EmptiedOverKept,
    /// A volume becomes smaller with data beyond its new end.
    ShrinkKeepsData,
    /// A commit that found no space is written again up to what the tail says by then.
    MarkChosenAnew,
    /// A flush does not ask the last of several disks.
    FlushSkipsMember,
    /// A flush is acknowledged before the disks have answered.
    FlushTooEarly,
    /// The last of several leaf I/Os of a write loses its FUA.
    FuaIgnored,
    /// Zeroing with FUA is acknowledged without the flush that makes it durable.
    ZeroesNotFlushed,
    /// A mirrored write is acknowledged when all members but one have answered.
    MirrorTooEarly,
    /// Overlapping writes are not put in one order.
    NoRangeLock,
    /// The range of a write is given back when it is submitted, not when it has ended.
    RangeGivenBackEarly,
    /// Data are written to a region while its bit is still on its way.
    BitAfterData,
    /// The block of bits is written without FUA.
    BitNotDurable,
    /// Bits count as durable on all members when all but the last have them.
    BitOnOneMember,
    /// A block of bits that was written on some members when another failed is not written again.
    BlockHalfWritten,
    /// Bits are taken away while a member is missing.
    ClearedWhileDegraded,
    /// Bits are taken away although what was written there may be in a cache.
    ClearedBeforeFlush,
    /// Bits are taken away while somebody may still write there.
    ClearedUnderWrites,
    /// What a crash left dirty is answered once it is equal, before it is flushed.
    DirtyAnsweredUnflushed,
    /// The note of how far a rebuild has come is ahead of it.
    CheckpointAhead,
    /// A member returns while writes from before may still land on it.
    ReturnsTooEarly,
    /// A member that returns does not get what is dirty.
    CatchUpForgets,
    /// What was under way when a member failed is answered before it is recorded that the member is left out.
    HeldAnsweredAtOnce,
    /// Marked rows that are to be logged, and that no batch has room for together, wait for room for ever.
    GroupNeverFits,
    /// The layout without a lost member is published, and so writes that never touched it are answered, before the labels
    /// say that it is left out.
    DroppedBeforeRecorded,
    /// Whoever was replaced gets no more writes before the labels say that it is left out: a crash in between, and it is
    /// believed.
    RetiredBeforeRecorded,
    /// A flush does not ask members that are being rebuilt.
    FlushSkipsRebuilding,
    /// A member that is being rebuilt answers reads.
    RebuildingMemberRead,
    /// A member that is being rebuilt does not get what is written meanwhile.
    RebuildMissesWrites,
    /// Copying to a member begins while requests are under way that do not know it.
    RebuiltBeforeDrained,
    /// A member is filled without getting the bitmap.
    RebuiltWithoutBitmap,
    /// What a crash left dirty is served as it is.
    DirtyServed,
    /// A region counts as written although it was not zeroed.
    NotZeroed,
    /// Jobs copy without holding the range.
    SyncUnlocked,
    /// What compares and mends copies does so without holding the range.
    RepairUnlocked,
    /// The last copy is not compared.
    CheckIgnoresLast,
    /// The map of the regions is made longer while its home still changes the shorter one.
    GrownUnfrozen,
    /// An old layout counts as drained while requests still use it.
    FreedTooEarly,
    /// Overlapping writes do not wait for each other.
    ClaimsForgotten,
    /// A write that waits for its blocks is overtaken by later ones.
    QueueJumped,
    /// A write may overlap one that is late.
    LateWriteForgotten,
    /// A read that failed is answered as if it had not.
    ReadErrorSwallowed,
    /// A write that failed is answered as if it had not.
    WriteErrorSwallowed,
    /// A flush that failed is answered as if it had not.
    FlushErrorSwallowed,
    /// Rows are put in place while their batch is on its way to the journal.
    StripesBeforeJournal,
    /// A batch goes to one member, whatever may be lost.
    BatchOnOneMember,
    /// Batches are written without FUA.
    BatchNotDurable,
    /// A batch counts although one before it is not durable.
    BatchesOutOfOrder,
    /// Space of the journal counts as free although not all members have flushed.
    TailUnflushed,
    /// The tail says that everything is durable which was in place when the flush ended, not when it began.
    TailAheadOfFlush,
    /// Space of the journal is used again before a batch that says so is durable.
    RingReusedEarly,
    /// What is written wholly is only marked, although older data of its row are in the journal.
    MarkOverLiveEntry,
    /// Rows that are written wholly are not noted in the journal.
    MarksForgotten,
    /// Parts of a row are logged while it is only marked: their parity is of data that a crash may undo.
    EntryOverLiveMark,
    /// A member is left out while rows are only marked.
    MarksLeftAtDrop,
    /// Marks are retired at a drop although some of their rows are on their way.
    MarksRetiredEarly,
    /// A flush is answered while rows are only marked.
    FlushLeavesMarks,
    /// A flush trusts what has one copy in the journal, on a disk of its own.
    FlushTrustsDisk,
    /// The ring moves to the members, and no head says so.
    MovedWithoutHead,
    /// The ring moves while what was logged is on its way to its place.
    MovedUnsettled,
    /// A row counts as written while its last parity is on its way.
    StripeAnsweredEarly,
    /// What is left of a request goes on with the layout that it began with, whoever was left out since.
    StepsWithOldLayout,
    /// Who wrote is answered when his data have been copied to those of others, not when they are written.
    GatheredAnsweredEarly,
    /// Rows are changed without being held: parity is computed from what another is just changing.
    StripesUnlocked,
    /// A member that is being rebuilt answers reads of rows.
    RebuildingStripeRead,
    /// Of two cells that are lost each gets what the other had.
    LostCellsSwapped,
    /// What is written wholly is only marked, although a member is out.
    DegradedOnlyMarked,
    /// A row of which something cannot be read takes parts of it, and passes for readable then.
    PartMakesReadable,
    /// The tail passes what has written an unreadable row again, and no head says so before.
    TailBeforeHead,
    /// Batches do not go to members that are being rebuilt.
    RebuildMissesBatches,
    /// A member is filled and promoted while what was logged before it came is needed still.
    NotRetiredForNewMember,
    /// A request whose pieces are not adjacent in memory is planned as if they were.
    GapForgotten,
    /// What was written is looked up by the region that a byte lies in, also where its stripe begins in another one.
    HolesByOffset,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "planted")]
impl Planted {
    /// Those of volumes on shards, and those of pools and arrays that are looked for with shards, too.
    pub const VOLUMES: [Planted; 19] = [
        Planted::BarrierSkipsShard,
        Planted::NewUncounted,
        Planted::LateUncounted,
        Planted::UnwrittenAllocated,
        Planted::AllocationUnwaited,
        Planted::VolumeUnlocked,
        Planted::VolumeFlushSkipped,
        Planted::ZeroesUncommitted,
        Planted::OwnerUnchecked,
        Planted::RunUnchecked,
        Planted::PartialUnclaimed,
        Planted::PartialMemoryLost,
        Planted::PartialReadLent,
        Planted::UncommittedIgnored,
        Planted::SnapshotNotDrained,
        Planted::SnapshotNotCommitted,
        Planted::WaitsCounted,
        Planted::LogDroppedEarly,
        Planted::DirtyServed,
    ];

    /// Those of pools.
    pub const POOLS: [Planted; 54] = [
        Planted::ReusedBeforeCommitted,
        Planted::ZeroRangeForgotten,
        Planted::BatchBeforeDataFlush,
        Planted::StartBeforeTables,
        Planted::TableAheadOfRing,
        Planted::StartNotFlushed,
        Planted::OldRunGoesOn,
        Planted::OldLogNotCommitted,
        Planted::CommitWithoutAllMembers,
        Planted::MergeBeforeCommitted,
        Planted::MergeForgetsChild,
        Planted::MergeLosesOlder,
        Planted::MergeZerosFirst,
        Planted::EntryBeforeData,
        Planted::MarkAfterFlush,
        Planted::UncommittedIgnored,
        Planted::SnapshotNotDrained,
        Planted::SnapshotNotCommitted,
        Planted::BarrierSkipped,
        Planted::SlotUsedAgain,
        Planted::ReserveForgotten,
        Planted::ZerosForgottenByClones,
        Planted::LogDroppedEarly,
        Planted::RingReadShort,
        Planted::RingEndTrusted,
        Planted::LastPartUnseen,
        Planted::StartRotUnseen,
        Planted::DiscardHalf,
        Planted::DamageFallsThrough,
        Planted::DamagedGivenOut,
        Planted::DamageWrittenOver,
        Planted::UnreadWrittenOver,
        Planted::EmptiesForgotten,
        Planted::MoveNotHeld,
        Planted::MoveNotDrained,
        Planted::MoveOvertakesMerge,
        Planted::MoveForgetsMaps,
        Planted::MoveLosesZeros,
        Planted::FlattenCutsEarly,
        Planted::FlattenOverNewer,
        Planted::FlattenForgetsZeros,
        Planted::FlattenForgetsMaps,
        Planted::FlattenNotHeld,
        Planted::MergeUnderCopies,
        Planted::LookupFallsThrough,
        Planted::ReturnTrusted,
        Planted::DecisionNotDurable,
        Planted::DecisionOvertaken,
        Planted::MergeWhileMissing,
        Planted::LeftBeforeCheckpoint,
        Planted::LeftWhileOpen,
        Planted::EmptiedOverKept,
        Planted::ShrinkKeepsData,
        Planted::MarkChosenAnew,
    ];
}

/// Whether this bug is switched on: for what stands in the simulator where the program has its own.
#[cfg(feature = "planted")]
pub fn is_planted(bug: Planted) -> bool {
    planted(bug)
}

/// Whether this bug is compiled in and switched on.
#[cfg(feature = "planted")]
pub fn planted(bug: Planted) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is compiled in and switched on: never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}

/// A slot that no shard of the simulator has: what comes back to it is ignored.
const NOBODY: Cookie = Cookie(0xfff << 20);

/// Spoils the I/Os of a step. Returns for how many of the last of them nobody waits.
#[inline(always)]
pub(crate) fn spoil(ios: &mut [LeafIo], ordered: bool) -> u32 {
    if planted(Planted::FuaIgnored)
        && let [_, .., last] = ios
    {
        last.flags = Flags::NONE;
    }
    let mirrored = ordered && ios.len() > 1 && ios[0].op != Op::Read;
    u32::from(planted(Planted::MirrorTooEarly) && mirrored)
}

/// The cookie of I/O number `k` of a step of which `awaited` are waited for.
#[inline(always)]
pub(crate) fn cookie_of(cookie: Cookie, k: usize, awaited: u32) -> Cookie {
    if planted(Planted::MirrorTooEarly) && k >= awaited as usize { NOBODY } else { cookie }
}

/// Which of the disks a flush asks.
#[inline(always)]
pub(crate) fn asked(leaves: &[LeafId]) -> &[LeafId] {
    match leaves {
        [others @ .., _] if !others.is_empty() && planted(Planted::FlushSkipsMember) => others,
        _ => leaves,
    }
}

/// Who waits for a disk's answer to a flush.
#[inline(always)]
pub(crate) fn cookie_of_flush(cookie: Cookie) -> Cookie {
    if planted(Planted::FlushTooEarly) { NOBODY } else { cookie }
}

/// Which of the disks the journal asks to flush.
#[inline(always)]
pub(crate) fn asked_by_journal(leaves: &[LeafId]) -> &[LeafId] {
    if planted(Planted::TailUnflushed) { &leaves[..leaves.len().min(1)] } else { leaves }
}

/// What of a batch is written down: nothing, where it would only be marks.
#[inline(always)]
pub(crate) fn written_down(entries: &[JournalEntry]) -> &[JournalEntry] {
    let forgets = planted(Planted::MarksForgotten) && entries.iter().all(|entry| entry.kind == EntryKind::Mark);
    if forgets { &[] } else { entries }
}

/// Who waits for one of the writes of a row.
#[inline(always)]
pub(crate) fn cookie_of_cell(cookie: Cookie, is_last: bool) -> Cookie {
    if planted(Planted::StripeAnsweredEarly) && is_last { NOBODY } else { cookie }
}

/// Whether a disk's error does not count.
#[inline(always)]
pub(crate) fn swallowed(op: Op) -> bool {
    match op {
        Op::Read => planted(Planted::ReadErrorSwallowed),
        Op::Flush => planted(Planted::FlushErrorSwallowed),
        Op::Write | Op::WriteZeroes | Op::Discard => planted(Planted::WriteErrorSwallowed),
    }
}

/// Switches a bug on for this thread, or all off.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Planted>) {
    PLANTED.set(bug);
}
