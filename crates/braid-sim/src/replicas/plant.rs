//! Bugs planted in replicas: within how many seeds each must be found.

use std::panic::{self, AssertUnwindSafe};

use braid_engine::replica::{Planted, plant};

use super::{Options, run};

/// What a run of this seed with this bug says of it; `None` when it notices nothing.
pub fn notices(bug: Planted, seed: u64, options: &Options) -> Option<String> {
    plant(Some(bug));
    // Nothing of a run outlives it: what a panic leaves half done nobody looks at.
    let said = panic::catch_unwind(AssertUnwindSafe(|| run(seed, options).violation));
    plant(None);
    said.unwrap_or_else(|_| Some("it panics".to_owned()))
}

/// Every bug, its number of seeds (about three times what it took when this was written, 100 at least), and the seed that found it then:
/// nobody's promise, a change of what is drawn makes another story of it. 0: found by luck, and not looked for.
const TABLE: [(Planted, u64, u64); Planted::ALL.len()] = [
    (Planted::OpenedWithoutVotes, 450, 146),
    (Planted::OneVoteDrop, 600, 144),
    (Planted::AnsweredBeforeVotes, 800, 259),
    (Planted::ServedBeforeRecorded, 100, 3),
    (Planted::RaisedBeforeDrained, 700, 209),
    (Planted::RaisedBeforeDurable, 200, 20),
    (Planted::OldSessionUndrained, 450, 149),
    (Planted::OldAttemptUndrained, 250, 80),
    (Planted::LeaseIgnored, 620, 206),
    // The answers of a voter that the other controller cannot reach have to come late by more than the margin of the wait.
    (Planted::LeaseFromAnswer, 0, 0),
    (Planted::OpenedWithoutWait, 220, 95),
    (Planted::RebootBelieved, 100, 32),
    (Planted::RaiseForgetsBoot, 300, 45),
    (Planted::SurvivorsNotFlushed, 600, 42),
    (Planted::RebootUnnoticed, 100, 24),
    // A reboot between the flush of the survivors and the vote, with a third replica that knows better: a test of the engine shows it.
    (Planted::CastBelievesBoot, 0, 0),
    // The one before must go on, reached by a voter that only nobody's opening has raised: a test of the engine shows it.
    (Planted::ReleaseOfNobody, 0, 0),
    (Planted::LinesCalledApart, 100, 14),
    (Planted::OwnDirtyForgotten, 100, 23),
    (Planted::NewcomerUntold, 3300, 2821),
    (Planted::WitnessIsData, 100, 7),
    (Planted::UnequalServed, 100, 0),
    (Planted::EpochForgotten, 130, 42),
    (Planted::ChangeWithoutOld, 13_700, 5076),
    // Three changes, the last one begun and not voted for, with one voter cut off all the time: a test of the engine shows it.
    (Planted::NewcomerKnowsPast, 0, 0),
    // Met as a volume that does not become whole. That two serve it wants more: whoever has raised the one before is cut off from the one that was made
    // anew, and reaches one that knows of it; a test of the engine shows that.
    (Planted::MovedCounted, 40_600, 13_524),
    (Planted::DroppedBelowLeast, 100, 18),
    (Planted::OpenedBelowLeast, 100, 3),
    (Planted::SnapshotUnheld, 100, 15),
    (Planted::SnapshotOnOne, 200, 63),
    (Planted::SnapshotsUnsettled, 3000, 1003),
    (Planted::SnapshotNotBrought, 100, 3),
    (Planted::DeletedSnapshotKept, 100, 11),
    (Planted::WrittenBeforeSnapshots, 100, 18),
    // One that dies after its snapshot and before that has its name there, with a write in between that nobody makes dirty any more, and is
    // back under the same boot: a story of daemons shows it.
    (Planted::CaughtUpFromSnapshot, 0, 0),
    (Planted::RolledBackBesideOthers, 100, 15),
    (Planted::RollbackNotDirty, 350, 106),
    (Planted::OlderBelieved, 100, 0),
    (Planted::OlderMarkForgotten, 160, 51),
    (Planted::OlderLikeRebooted, 100, 0),
    (Planted::OlderCaughtUp, 750, 242),
    (Planted::PromiseForgotten, 120, 36),
    (Planted::LossNotedLate, 3300, 1098),
    (Planted::KilledUndrained, 3100, 1010),
    // A copy that was made while the pool served, an end in order after that, and a start that is killed in the moment between its note and its labels.
    (Planted::EndForgotten, 15_200, 108_791),
];

/// Every bug that is looked for, within how many seeds it is to be found, and one that may find it.
pub fn table() -> Vec<(Planted, u64, u64)> {
    TABLE.into_iter().filter(|(_, limit, _)| *limit > 0).collect()
}
