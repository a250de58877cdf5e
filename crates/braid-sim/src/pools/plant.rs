//! Bugs planted in pools: within how many seeds each must be found.

use std::panic::{self, AssertUnwindSafe};

use braid_engine::Planted;

use super::{Focus, Options, run};

/// What runs are about that look for this bug.
pub fn focus(bug: Planted) -> Option<Focus> {
    match bug {
        Planted::FoldBeforeCommitted => Some(Focus::Folds),
        Planted::StartNotFlushed => Some(Focus::Starts),
        Planted::BarrierSkipped => Some(Focus::Reuse),
        _ => None,
    }
}

/// Every bug, its number of seeds (about three times what it took when this was written, 60 at least), and the seed that found it then:
/// nobody's promise, a change of what is drawn makes another story of it. 0: found by luck, and not looked for.
const TABLE: [(Planted, u64, u64); Planted::POOLS.len()] = [
    (Planted::ReusedBeforeCommitted, 900, 275),
    (Planted::ZeroRangeForgotten, 60, 0),
    (Planted::BatchBeforeDataFlush, 100, 30),
    (Planted::StartBeforeTables, 60, 0),
    (Planted::TableAheadOfRing, 60, 4),
    // The room that is kept free for the longest batch lies before the start: rarely is anything lost.
    (Planted::StartNotFlushed, 0, 0),
    (Planted::OldRunGoesOn, 1100, 363),
    (Planted::OldTailNotCommitted, 60, 1),
    (Planted::CommitWithoutAllMembers, 60, 6),
    (Planted::FoldBeforeCommitted, 700, 202),
    (Planted::FoldForgetsChild, 60, 1),
    (Planted::FoldLosesOlder, 60, 2),
    (Planted::FoldZerosFirst, 1100, 340),
    (Planted::EntryBeforeData, 60, 2),
    (Planted::MarkAfterFlush, 3000, 967),
    (Planted::HotIgnored, 60, 10),
    (Planted::SnapshotNotDrained, 60, 2),
    (Planted::SnapshotNotCommitted, 60, 2),
    (Planted::BarrierSkipped, 600, 181),
    (Planted::SlotUsedAgain, 200, 58),
    (Planted::ZerosForgottenByClones, 60, 0),
    (Planted::TailDroppedEarly, 60, 2),
    (Planted::RingReadShort, 2100, 694),
    (Planted::EmptiesForgotten, 100, 25),
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
