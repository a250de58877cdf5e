//! Mutations of replicas: the number of seeds within which each must be found.

use braid_engine::replica::Planted;

use crate::mutations::{Mutation, Target};

/// Every mutation, its number of seeds (about three times what it took when this was written, at least 100), and the
/// seed that found it then. That seed is no guarantee: a change of the random draws changes the run. A limit of 0:
/// found by luck only, and not looked for.
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
    // The replies of a voter that the other controller cannot reach must be delayed by more than the margin of the
    // wait.
    (Planted::LeaseFromAnswer, 0, 0),
    (Planted::OpenedWithoutWait, 220, 95),
    (Planted::RebootTrusted, 100, 32),
    (Planted::RaiseForgetsBoot, 300, 45),
    (Planted::SurvivorsNotFlushed, 600, 42),
    (Planted::RebootUnnoticed, 100, 24),
    // It takes a reboot between the flush of the survivors and the vote, and a third replica that holds more: a test of
    // the engine shows it.
    (Planted::CastTrustsBoot, 0, 0),
    // The previous controller must continue, reached by a voter that was raised only by an opening that never
    // completed: a test of the engine shows it.
    (Planted::ReleaseWithoutService, 0, 0),
    (Planted::LineagesCalledDiverged, 100, 14),
    (Planted::OwnDirtyForgotten, 100, 23),
    (Planted::NewVoterNotCounted, 3300, 2821),
    (Planted::WitnessIsData, 100, 7),
    (Planted::UnequalServed, 100, 0),
    (Planted::EpochForgotten, 130, 42),
    (Planted::ChangeWithoutOld, 13_700, 5076),
    // It takes three changes, the last one begun and not voted for, and one voter cut off all the time: a test of the
    // engine shows it.
    (Planted::NewVoterKnowsPast, 0, 0),
    // It shows as a volume that does not become whole. Two serving controllers take more: a controller that has raised
    // the old voter is cut off from the new one, and reaches a voter that knows of it; a test of the engine shows that.
    (Planted::MovedCounted, 40_600, 13_524),
    (Planted::DroppedBelowLeast, 100, 18),
    (Planted::OpenedBelowLeast, 100, 3),
    (Planted::SnapshotUnheld, 100, 15),
    (Planted::SnapshotOnOne, 200, 63),
    (Planted::SnapshotsUnsettled, 3000, 1003),
    (Planted::SnapshotNotBrought, 100, 3),
    (Planted::DeletedSnapshotKept, 100, 11),
    (Planted::WrittenBeforeSnapshots, 100, 18),
    // It takes a replica that dies after its snapshot and before the snapshot is named there, a write in between that
    // no replica marks dirty any more, and a return under the same boot: an end-to-end test of daemons shows it.
    (Planted::CaughtUpFromSnapshot, 0, 0),
    (Planted::RolledBackBesideOthers, 100, 15),
    (Planted::RollbackNotDirty, 350, 106),
    (Planted::OlderTrusted, 100, 0),
    (Planted::OlderMarkForgotten, 160, 51),
    (Planted::OlderLikeRebooted, 100, 0),
    (Planted::OlderCaughtUp, 750, 242),
    (Planted::PromiseForgotten, 120, 36),
    (Planted::LossNotedLate, 3300, 1098),
    (Planted::KilledUndrained, 3100, 1010),
    // It takes a copy that was made while the pool served, an end in order after that, and a start that is killed
    // between its record and its labels.
    (Planted::EndForgotten, 15_200, 108_791),
];

/// Returns every mutation, and how it is looked for.
pub fn targets() -> Vec<Target> {
    let target = |(mutation, limit, known)| Target::of_seeds(Mutation::Replicas(mutation), limit, vec![known]);
    TABLE.into_iter().map(target).collect()
}
