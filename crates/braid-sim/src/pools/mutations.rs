//! Mutations of pools: the number of seeds within which each must be found.

use braid_engine::Planted;

use super::Focus;
use crate::mutations::{Mutation, Target};

/// Returns the focus of the runs that look for this mutation.
pub fn focus(mutation: Mutation) -> Option<Focus> {
    let Mutation::Data(mutation) = mutation else { return None };
    match mutation {
        Planted::MergeBeforeCommitted => Some(Focus::Merges),
        Planted::StartNotFlushed => Some(Focus::Checkpoints),
        Planted::BarrierSkipped | Planted::StartRotUnseen => Some(Focus::Reuse),
        Planted::ReserveForgotten | Planted::EmptiedOverKept => Some(Focus::Space),
        Planted::MarkChosenAnew => Some(Focus::Full),
        Planted::FlattenCutsEarly
        | Planted::FlattenOverNewer
        | Planted::FlattenForgetsZeros
        | Planted::FlattenForgetsMaps
        | Planted::MergeUnderCopies => Some(Focus::Flattening),
        Planted::FlattenNotHeld
        | Planted::MoveNotHeld
        | Planted::MoveNotDrained
        | Planted::MoveOvertakesMerge
        | Planted::MoveForgetsMaps
        | Planted::MoveLosesZeros
        | Planted::LeftBeforeCheckpoint
        | Planted::LeftWhileOpen
        | Planted::DiscardHalf => Some(Focus::Moves),
        Planted::LookupFallsThrough
        | Planted::ReturnTrusted
        | Planted::DecisionNotDurable
        | Planted::DecisionOvertaken
        | Planted::MergeWhileMissing => Some(Focus::Losses),
        _ => None,
    }
}

/// Every mutation, its number of seeds (about three times what it took when this was written, at least 100), and the
/// seed that found it then. That seed is no guarantee: a change of the random draws changes the run. A limit of 0:
/// found by luck only, and not looked for.
const TABLE: [(Planted, u64, u64); Planted::POOLS.len()] = [
    (Planted::ReusedBeforeCommitted, 1200, 1),
    (Planted::ZeroRangeForgotten, 100, 1),
    (Planted::BatchBeforeDataFlush, 200, 162),
    (Planted::StartBeforeTables, 100, 0),
    (Planted::TableAheadOfRing, 200, 36),
    // The space that is reserved for the longest batch lies before the checkpoint: rarely is anything lost.
    (Planted::StartNotFlushed, 0, 0),
    (Planted::OldRunGoesOn, 2200, 0),
    (Planted::OldLogNotCommitted, 100, 1),
    (Planted::CommitWithoutAllMembers, 100, 10),
    (Planted::MergeBeforeCommitted, 1100, 334),
    (Planted::MergeForgetsChild, 100, 1),
    (Planted::MergeLosesOlder, 100, 2),
    (Planted::MergeZerosFirst, 12800, 4261),
    (Planted::EntryBeforeData, 100, 2),
    (Planted::MarkAfterFlush, 4900, 144),
    (Planted::UncommittedIgnored, 100, 36),
    (Planted::SnapshotNotDrained, 300, 26),
    (Planted::SnapshotNotCommitted, 100, 0),
    (Planted::BarrierSkipped, 600, 58),
    (Planted::SlotUsedAgain, 300, 1),
    (Planted::ReserveForgotten, 100, 25),
    // It takes a power cut between two checkpoints, and rot of the very last batch of the member that is behind: not
    // met yet.
    (Planted::LastPartUnseen, 0, 0),
    // The rot hits the first checkpoint of a session, before the first regular checkpoint has written another.
    (Planted::StartRotUnseen, 500, 158),
    (Planted::DiscardHalf, 4000, 733),
    (Planted::ZerosForgottenByClones, 100, 1),
    (Planted::LogDroppedEarly, 200, 5),
    (Planted::RingReadShort, 2800, 1169),
    (Planted::RingEndTrusted, 200, 52),
    (Planted::DamageFallsThrough, 100, 30),
    (Planted::DamagedGivenOut, 100, 5),
    (Planted::DamageWrittenOver, 100, 30),
    (Planted::UnreadWrittenOver, 500, 136),
    (Planted::EmptiesForgotten, 300, 63),
    (Planted::MoveNotHeld, 200, 4),
    (Planted::MoveNotDrained, 100, 21),
    (Planted::MoveOvertakesMerge, 600, 58),
    (Planted::MoveForgetsMaps, 100, 4),
    (Planted::MoveLosesZeros, 200, 31),
    (Planted::FlattenCutsEarly, 100, 0),
    (Planted::FlattenOverNewer, 100, 30),
    (Planted::FlattenForgetsZeros, 200, 7),
    (Planted::FlattenForgetsMaps, 100, 8),
    (Planted::FlattenNotHeld, 12000, 9915),
    (Planted::MergeUnderCopies, 1000, 273),
    (Planted::LookupFallsThrough, 100, 17),
    (Planted::ReturnTrusted, 100, 18),
    (Planted::DecisionOvertaken, 2500, 993),
    (Planted::DecisionNotDurable, 7000, 555),
    (Planted::MergeWhileMissing, 1000, 527),
    // What only this member's ring says concerns the member alone, and nothing of it is left.
    (Planted::LeftBeforeCheckpoint, 0, 0),
    (Planted::LeftWhileOpen, 100, 84),
    (Planted::EmptiedOverKept, 3400, 1130),
    (Planted::ShrinkKeepsData, 300, 88),
    (Planted::MarkChosenAnew, 1200, 389),
];

/// Returns every mutation, and how it is looked for.
pub fn targets() -> Vec<Target> {
    let target = |(mutation, limit, known)| Target::of_seeds(Mutation::Data(mutation), limit, vec![known]);
    TABLE.into_iter().map(target).collect()
}
