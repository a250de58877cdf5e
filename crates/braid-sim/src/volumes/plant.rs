//! Bugs planted in what shards make of pools: within how many seeds each must be found.

use std::panic::{self, AssertUnwindSafe};

use braid_engine::Planted;

use super::{Focus, Options, run};

/// What runs are about that look for this bug.
pub fn focus(bug: Planted) -> Option<Focus> {
    match bug {
        Planted::SnapshotNotDrained | Planted::NewUncounted | Planted::BarrierSkipsShard => Some(Focus::Snapshots),
        Planted::SnapshotNotCommitted
        | Planted::HotIgnored
        | Planted::ZeroesUncommitted
        | Planted::VolumeFlushSkipped => Some(Focus::Durable),
        Planted::DirtyServed => Some(Focus::Arrays),
        Planted::WaitsCounted => Some(Focus::Reuse),
        Planted::LateUncounted => Some(Focus::Late),
        Planted::RunUnchecked => Some(Focus::Moves),
        Planted::PartialUnclaimed | Planted::PartialMemoryLost => Some(Focus::Sectors),
        Planted::TailDroppedEarly => Some(Focus::Starts),
        _ => None,
    }
}

/// Every bug, its number of seeds (about three times what it took when this was written, 100 at least), and the seed that found it then:
/// nobody's promise, a change of what is drawn makes another story of it.
const TABLE: [(Planted, u64, u64); Planted::VOLUMES.len()] = [
    (Planted::BarrierSkipsShard, 100, 32),
    (Planted::NewUncounted, 300, 94),
    (Planted::LateUncounted, 100, 2),
    (Planted::UnplacedBound, 100, 2),
    (Planted::BindUnwaited, 100, 0),
    (Planted::VolumeUnlocked, 100, 2),
    (Planted::VolumeFlushSkipped, 300, 8),
    (Planted::ZeroesUncommitted, 400, 97),
    (Planted::OwnerUnchecked, 100, 2),
    (Planted::RunUnchecked, 600, 61),
    (Planted::PartialUnclaimed, 100, 2),
    (Planted::PartialMemoryLost, 4000, 1903),
    // Only two disks that hang in an array with two parities show it, and there are none here.
    (Planted::PartialReadLent, 0, 0),
    (Planted::HotIgnored, 150, 42),
    (Planted::SnapshotNotDrained, 100, 3),
    (Planted::SnapshotNotCommitted, 100, 1),
    (Planted::WaitsCounted, 100, 6),
    (Planted::TailDroppedEarly, 600, 190),
    (Planted::DirtyServed, 400, 58),
];

/// All of them.
pub fn all() -> Vec<Planted> {
    TABLE.iter().map(|(bug, ..)| *bug).collect()
}

/// Every bug that must be found, within how many seeds, and one that may find it.
pub fn table() -> Vec<(Planted, u64, u64)> {
    TABLE.into_iter().filter(|(_, limit, _)| *limit > 0).collect()
}

/// What a run of this seed with this bug says of it; `None` when it notices nothing.
pub fn notices(bug: Planted, seed: u64, options: &Options) -> Option<String> {
    let options = Options { focus: options.focus.or(focus(bug)), ..options.clone() };
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
