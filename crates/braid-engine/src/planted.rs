//! Bugs that the simulator must notice. They exist only with the feature `planted`, which only the simulator's tests
//! ask for, and there only on threads that switch one on.

use crate::io::{Cookie, Flags, LeafId, LeafIo, Op};

/// One mistake that somebody could make on the data path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
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
    /// The layout without a lost member is published, and so writes that never touched it are answered, before the labels
    /// say that it is left out.
    DroppedBeforeRecorded,
    /// Whoever was replaced gets no more writes before the labels say that it is left out: a crash in between, and it is
    /// believed.
    RetiredBeforeRecorded,
    /// A flush does not ask members that are being filled.
    FlushSkipsFilling,
    /// A member that is being filled answers reads.
    FillingRead,
    /// A member that is being filled does not get what is written meanwhile.
    FillingMissesWrites,
    /// Copying to a member begins while requests are under way that do not know it.
    FilledBeforeDrained,
    /// A member is filled without getting the bitmap.
    FilledWithoutBits,
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
    /// A write may overlap one that is late.
    LateForgotten,
    /// A read that failed is answered as if it had not.
    ReadErrorSwallowed,
    /// A write that failed is answered as if it had not.
    WriteErrorSwallowed,
    /// A flush that failed is answered as if it had not.
    FlushErrorSwallowed,
    /// A request whose pieces are not adjacent in memory is planned as if they were.
    GapForgotten,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is compiled in and switched on.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: Planted) -> bool {
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
