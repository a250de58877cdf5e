//! Bugs planted in pools: within how many seeds each must be found.

use std::panic::{self, AssertUnwindSafe};

use braid_engine::Planted;

use super::{Focus, Options, run};

/// What runs are about that look for this bug.
pub fn focus(bug: Planted) -> Option<Focus> {
    match bug {
        Planted::FoldBeforeCommitted => Some(Focus::Folds),
        Planted::StartNotFlushed => Some(Focus::Starts),
        Planted::BarrierSkipped | Planted::StartRotUnseen => Some(Focus::Reuse),
        Planted::ReserveForgotten | Planted::EmptiedOverKept => Some(Focus::Space),
        Planted::MarkChosenAnew => Some(Focus::Full),
        Planted::FlattenCutsEarly
        | Planted::FlattenOverNewer
        | Planted::FlattenForgetsZeros
        | Planted::FlattenForgetsMaps
        | Planted::FoldUnderCopies => Some(Focus::Flattening),
        Planted::FlattenNotHeld
        | Planted::MoveNotHeld
        | Planted::MoveNotDrained
        | Planted::MoveOvertakesFold
        | Planted::MoveForgetsMaps
        | Planted::MoveLosesZeros
        | Planted::LeftBeforeCheckpoint
        | Planted::LeftWhileOpen
        | Planted::DiscardHalf => Some(Focus::Moves),
        Planted::LookupFallsThrough
        | Planted::ReturnBelieved
        | Planted::VerdictNotDurable
        | Planted::VerdictOvertaken
        | Planted::FoldWhileAbsent => Some(Focus::Losses),
        _ => None,
    }
}

/// Every bug, its number of seeds (about three times what it took when this was written, 100 at least), and the seed that found it then:
/// nobody's promise, a change of what is drawn makes another story of it. 0: found by luck, and not looked for.
const TABLE: [(Planted, u64, u64); Planted::POOLS.len()] = [
    (Planted::ReusedBeforeCommitted, 1200, 1),
    (Planted::ZeroRangeForgotten, 100, 1),
    (Planted::BatchBeforeDataFlush, 200, 162),
    (Planted::StartBeforeTables, 100, 0),
    (Planted::TableAheadOfRing, 200, 36),
    // The room that is kept free for the longest batch lies before the start: rarely is anything lost.
    (Planted::StartNotFlushed, 0, 0),
    (Planted::OldRunGoesOn, 2200, 0),
    (Planted::OldTailNotCommitted, 100, 1),
    (Planted::CommitWithoutAllMembers, 100, 10),
    (Planted::FoldBeforeCommitted, 1100, 334),
    (Planted::FoldForgetsChild, 100, 1),
    (Planted::FoldLosesOlder, 100, 2),
    (Planted::FoldZerosFirst, 12800, 4261),
    (Planted::EntryBeforeData, 100, 2),
    (Planted::MarkAfterFlush, 4900, 144),
    (Planted::HotIgnored, 100, 36),
    (Planted::SnapshotNotDrained, 300, 26),
    (Planted::SnapshotNotCommitted, 100, 0),
    (Planted::BarrierSkipped, 600, 58),
    (Planted::SlotUsedAgain, 300, 1),
    (Planted::ReserveForgotten, 100, 25),
    // A power cut between two starts, and rot of the very last batch of the one that is behind: not met yet.
    (Planted::LastPartUnseen, 0, 0),
    // What rots is the first start of a session, before the first checkpoint has written another.
    (Planted::StartRotUnseen, 500, 158),
    (Planted::DiscardHalf, 4000, 733),
    (Planted::ZerosForgottenByClones, 100, 1),
    (Planted::TailDroppedEarly, 200, 5),
    (Planted::RingReadShort, 2800, 1169),
    (Planted::RingEndBelieved, 200, 52),
    (Planted::DamageFallsThrough, 100, 30),
    (Planted::DamagedGivenOut, 100, 5),
    (Planted::DamageWrittenOver, 100, 30),
    (Planted::UnreadWrittenOver, 500, 136),
    (Planted::EmptiesForgotten, 300, 63),
    (Planted::MoveNotHeld, 200, 4),
    (Planted::MoveNotDrained, 100, 21),
    (Planted::MoveOvertakesFold, 600, 58),
    (Planted::MoveForgetsMaps, 100, 4),
    (Planted::MoveLosesZeros, 200, 31),
    (Planted::FlattenCutsEarly, 100, 0),
    (Planted::FlattenOverNewer, 100, 30),
    (Planted::FlattenForgetsZeros, 200, 7),
    (Planted::FlattenForgetsMaps, 100, 8),
    (Planted::FlattenNotHeld, 12000, 9915),
    (Planted::FoldUnderCopies, 1000, 273),
    (Planted::LookupFallsThrough, 100, 17),
    (Planted::ReturnBelieved, 100, 18),
    (Planted::VerdictOvertaken, 2500, 993),
    (Planted::VerdictNotDurable, 7000, 555),
    (Planted::FoldWhileAbsent, 1000, 527),
    // What a member's ring says that no other one does is of the member alone, and nothing of it is left.
    (Planted::LeftBeforeCheckpoint, 0, 0),
    (Planted::LeftWhileOpen, 100, 84),
    (Planted::EmptiedOverKept, 3400, 1130),
    (Planted::ShrinkKeepsData, 300, 88),
    (Planted::MarkChosenAnew, 1200, 389),
];

/// Every bug, within how many seeds it is to be found, and one that may find it.
pub fn table() -> Vec<(Planted, u64, u64)> {
    TABLE.into_iter().filter(|(_, limit, _)| *limit > 0).collect()
}

/// What a run of this seed with this bug says of it; `None` when it notices nothing.
pub fn notices(bug: Planted, seed: u64, options: &Options) -> Option<String> {
    let options = Options { focus: focus(bug), ..options.clone() };
    braid_engine::plant(Some(bug));
    // Nothing of a run outlives it: what a panic leaves half done nobody looks at.
    let said = panic::catch_unwind(AssertUnwindSafe(|| run(seed, &options).violation));
    braid_engine::plant(None);
    match said {
        Ok(said) => said,
        Err(payload) => {
            let said = payload.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| payload.downcast_ref::<&str>().copied());
            Some(format!("panics: {}", said.unwrap_or("without a word")))
        }
    }
}
