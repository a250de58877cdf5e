//! Mutations of arrays: how each must be found, and within how many seeds.

use braid_array_admin::lifecycle;

use crate::arrays::ArrayKind;
use crate::mutations::{Kind, Mutation, Target};
use crate::scenario::catalog::Scenario;

/// Which seeds find which mutation: one line per mutation, its name and the seeds. This is not guaranteed: a change of
/// the drawn numbers, or of the I/Os of the engine, alters the runs.
const KNOWN_SEEDS: &str = include_str!("../../known-seeds.txt");

/// How a mutation is found. The limits are about three times what was needed when they were set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By ordinary seeds of arrays without redundancy, at most this many.
    Seeds(u64),
    /// By ordinary seeds of redundant arrays, at most this many.
    Mirrors(u64),
    /// By ordinary seeds of redundant arrays that answer under a lease, at most this many.
    Replicated(u64),
    /// By scenarios of redundant arrays, at most this many.
    Scenarios(u64),
    /// By this scenario of arrays with parity, at most this many seeds.
    Parity(u64, Scenario),
    /// By seeds cut at every step, at most this many.
    Sweeps(u64),
    /// Found by luck, or not yet: `--hunt` does not look for it.
    Open,
}

impl Way {
    /// Returns the kind of run that shows it.
    pub fn kind(self) -> Kind {
        match self {
            Way::Seeds(_) | Way::Mirrors(_) | Way::Replicated(_) | Way::Open => Kind::Seed,
            Way::Scenarios(_) | Way::Parity(..) => Kind::Scenario,
            Way::Sweeps(_) => Kind::Sweep,
        }
    }

    /// Returns the largest number of runs.
    fn limit(self) -> u64 {
        match self {
            Way::Seeds(limit) | Way::Mirrors(limit) | Way::Replicated(limit) => limit,
            Way::Scenarios(limit) | Way::Parity(limit, _) | Way::Sweeps(limit) => limit,
            Way::Open => 0,
        }
    }

    /// Returns the kinds of arrays with which it is looked for.
    pub fn kinds(self) -> Vec<ArrayKind> {
        match self {
            Way::Mirrors(_) | Way::Replicated(_) | Way::Scenarios(_) | Way::Open => {
                vec![ArrayKind::Raid1, ArrayKind::Raid10]
            }
            Way::Parity(..) => vec![ArrayKind::Raid5, ArrayKind::Raid6],
            Way::Seeds(_) | Way::Sweeps(_) => vec![ArrayKind::Concat, ArrayKind::Raid0],
        }
    }

    /// Returns whether only arrays that answer under a lease show it.
    pub fn is_of_leases(self) -> bool {
        matches!(self, Way::Replicated(_))
    }

    /// Returns the scenario that shows it, if only one does.
    pub fn scenario(self) -> Option<Scenario> {
        if let Way::Parity(_, scenario) = self { Some(scenario) } else { None }
    }
}

/// Returns how a mutation of arrays is found; `None` for a mutation of pools or replicas.
pub fn way(mutation: Mutation) -> Option<Way> {
    table().into_iter().find(|(of, _)| *of == mutation).map(|(_, way)| way)
}

/// Returns every mutation, and how it is looked for.
pub fn targets() -> Vec<Target> {
    let target = |(mutation, way): (Mutation, Way)| Target {
        mutation,
        kind: way.kind(),
        limit: way.limit(),
        known: known(&mutation.name()),
    };
    table().into_iter().map(target).collect()
}

/// Returns the seeds that found the mutation of this name when the table was last printed (`--hunt --table`).
fn known(name: &str) -> Vec<u64> {
    let line = KNOWN_SEEDS.lines().find(|line| line.split(' ').next() == Some(name)).unwrap_or("");
    line.split(' ').skip(1).filter_map(|seed| seed.parse().ok()).collect()
}

/// Returns every mutation, and the way in which it is found.
fn table() -> Vec<(Mutation, Way)> {
    use braid_engine::Planted as D;
    use lifecycle::Planted as L;
    let data = [
        (D::FlushSkipsMember, Way::Seeds(60)),
        (D::FlushTooEarly, Way::Seeds(60)),
        (D::FuaIgnored, Way::Seeds(400)),
        (D::ZeroesNotFlushed, Way::Seeds(250)),
        (D::MirrorTooEarly, Way::Mirrors(60)),
        (D::NoRangeLock, Way::Mirrors(60)),
        (D::RangeGivenBackEarly, Way::Mirrors(60)),
        (D::BitAfterData, Way::Scenarios(600)),
        (D::BitNotDurable, Way::Mirrors(600)),
        (D::FreedTooEarly, Way::Seeds(2000)),
        (D::ClaimsForgotten, Way::Seeds(60)),
        (D::QueueJumped, Way::Seeds(300)),
        (D::LateWriteForgotten, Way::Seeds(150)),
        (D::ReadErrorSwallowed, Way::Seeds(60)),
        (D::WriteErrorSwallowed, Way::Seeds(100)),
        (D::FlushErrorSwallowed, Way::Seeds(200)),
        (D::GapForgotten, Way::Seeds(60)),
        (D::BitOnOneMember, Way::Mirrors(400)),
        (D::BlockHalfWritten, Way::Scenarios(900)),
        (D::ClearedWhileDegraded, Way::Mirrors(150)),
        (D::ClearedBeforeFlush, Way::Scenarios(300)),
        (D::ClearedUnderWrites, Way::Scenarios(600)),
        (D::DirtyAnsweredUnflushed, Way::Scenarios(600)),
        (D::CheckpointAhead, Way::Scenarios(600)),
        (D::CatchUpForgets, Way::Mirrors(60)),
        (D::NotZeroed, Way::Mirrors(60)),
        (D::ReturnsTooEarly, Way::Scenarios(800)),
        (D::HeldAnsweredAtOnce, Way::Mirrors(2400)),
        (D::DroppedBeforeRecorded, Way::Scenarios(400)),
        (D::RetiredBeforeRecorded, Way::Scenarios(500)),
        (D::FlushSkipsRebuilding, Way::Open),
        (D::RebuildingMemberRead, Way::Mirrors(60)),
        (D::RebuildMissesWrites, Way::Mirrors(120)),
        (D::RebuiltBeforeDrained, Way::Scenarios(1200)),
        (D::RebuiltWithoutBitmap, Way::Scenarios(200)),
        (D::DirtyServed, Way::Mirrors(60)),
        (D::AnsweredWithoutLease, Way::Replicated(60)),
        (D::UnsettledAnswered, Way::Replicated(1500)),
        (D::ReadNotOrdered, Way::Replicated(200)),
        (D::PartialUnclaimed, Way::Replicated(60)),
        (D::PartialWithoutLease, Way::Replicated(60)),
        (D::CalledOffBegun, Way::Seeds(200)),
        (D::MissedByOwnLayout, Way::Open),
        (D::MissedLookedUpEarly, Way::Replicated(1200)),
        (D::LackedForgotten, Way::Replicated(1500)),
        (D::DifferencesLookedUpEarly, Way::Open),
        (D::MissedForgottenEarly, Way::Open),
        (D::LossesForgotten, Way::Replicated(6000)),
        (D::FreshForgotten, Way::Replicated(600)),
        (D::UpdateIgnoresLast, Way::Replicated(600)),
        (D::SyncUnlocked, Way::Mirrors(300)),
        (D::RepairUnlocked, Way::Scenarios(300)),
        (D::GrownUnfrozen, Way::Scenarios(600)),
        (D::CheckIgnoresLast, Way::Scenarios(300)),
        (D::StripesBeforeJournal, Way::Parity(200, Scenario::StripesTorn)),
        (D::BatchOnOneMember, Way::Parity(60, Scenario::StripesTorn)),
        (D::BatchNotDurable, Way::Parity(60, Scenario::StripesTorn)),
        (D::BatchesOutOfOrder, Way::Parity(1200, Scenario::StripesTorn)),
        (D::TailUnflushed, Way::Parity(200, Scenario::StripesTorn)),
        (D::TailAheadOfFlush, Way::Parity(400, Scenario::StripesTorn)),
        (D::RingReusedEarly, Way::Parity(1600, Scenario::StripesTorn)),
        (D::MarkOverLiveEntry, Way::Parity(900, Scenario::StripesInTurn)),
        (D::MarksForgotten, Way::Parity(300, Scenario::StripesTorn)),
        (D::EntryOverLiveMark, Way::Parity(900, Scenario::StripesInTurn)),
        (D::MarksLeftAtDrop, Way::Open),
        (D::MarksRetiredEarly, Way::Open),
        (D::FlushLeavesMarks, Way::Parity(600, Scenario::StripesInTurn)),
        (D::StripeAnsweredEarly, Way::Parity(400, Scenario::StripesTorn)),
        (D::StepsWithOldLayout, Way::Parity(400, Scenario::StripesReadOn)),
        (D::GatheredAnsweredEarly, Way::Parity(60, Scenario::StripesTorn)),
        (D::StripesUnlocked, Way::Parity(60, Scenario::StripesTorn)),
        (D::RebuildingStripeRead, Way::Parity(60, Scenario::StripesOfNewMembers)),
        (D::LostCellsSwapped, Way::Parity(200, Scenario::StripesTorn)),
        (D::DegradedOnlyMarked, Way::Parity(300, Scenario::StripesDegraded)),
        (D::GroupNeverFits, Way::Open),
        (D::PartMakesReadable, Way::Parity(300, Scenario::StripesRepaired)),
        (D::TailBeforeHead, Way::Parity(900, Scenario::StripesInTurn)),
        (D::RebuildMissesBatches, Way::Open),
        (D::FlushTrustsDisk, Way::Parity(250, Scenario::JournalLost)),
        (D::MovedUnsettled, Way::Parity(60, Scenario::JournalMoves)),
        (D::MovedWithoutHead, Way::Parity(60, Scenario::JournalMoves)),
        (D::NotRetiredForNewMember, Way::Parity(1200, Scenario::StripesOfNewMembers)),
    ];
    let labels = [
        (L::BothCopiesAtOnce, Way::Seeds(60)),
        (L::NotDurable, Way::Seeds(60)),
        (L::ActiveTooEarly, Way::Seeds(150)),
        (L::EraseUnannounced, Way::Seeds(120)),
        (L::StartWithoutFlush, Way::Seeds(450)),
        (L::NewestNotWritten, Way::Seeds(600)),
        (L::RaisedWhileBehind, Way::Seeds(600)),
        (L::GoodCopyFirst, Way::Seeds(250)),
        (L::RemainsLeft, Way::Sweeps(60)),
        (L::WrongRole, Way::Seeds(60)),
        (L::ErasesTooMuch, Way::Seeds(60)),
        (L::FormingServed, Way::Seeds(60)),
        (L::StaleAccepted, Way::Scenarios(400)),
        (L::DivergedMerged, Way::Scenarios(400)),
        (L::OldCopyReturns, Way::Scenarios(400)),
        (L::ServedAfterOneLabel, Way::Scenarios(500)),
        (L::PlainServedAfterOneLabel, Way::Seeds(200)),
        (L::NewMemberLabelFirst, Way::Scenarios(900)),
        (L::RebuildingStartedAlone, Way::Mirrors(120)),
        (L::PromotionWithoutFlush, Way::Scenarios(300)),
        (L::LastSurvivorRecordedFailed, Way::Mirrors(400)),
        (L::MergedNotRewritten, Way::Scenarios(600)),
        (L::StopWithoutFlush, Way::Mirrors(300)),
        (L::GrownTailNotZeroed, Way::Mirrors(600)),
        (L::GrownBeforeNewMembers, Way::Seeds(600)),
        (L::CopyMovedFirst, Way::Seeds(1500)),
        (L::OldCopyLeft, Way::Open),
        (L::GrownBitmapNotWritten, Way::Open),
        (L::JoiningKept, Way::Parity(200, Scenario::StripesWidened)),
        (L::JoiningUncounted, Way::Parity(80, Scenario::StripesWidened)),
        (L::DropRecordedWithoutFlush, Way::Mirrors(300)),
        (L::SuccessorNotFlushed, Way::Scenarios(400)),
        (L::SuccessorFlushedWithOthers, Way::Scenarios(200)),
        (L::ReplayedBeforeLogged, Way::Parity(1800, Scenario::StripesTornTwice)),
        (L::RetiredBeforeResync, Way::Parity(600, Scenario::StripesTornTwice)),
        (L::RetiredBeforeFlush, Way::Parity(900, Scenario::StripesTornTwice)),
        (L::UnreadableForgotten, Way::Parity(600, Scenario::StripesInTurn)),
        (L::UnreadableNotListed, Way::Parity(300, Scenario::StripesTorn)),
        (L::LostCellNotZeros, Way::Parity(600, Scenario::StripesTorn)),
        (L::OldRunsCount, Way::Parity(60, Scenario::StripesTorn)),
        (L::RegionsNotMarked, Way::Open),
        (L::HeadOnOneMember, Way::Parity(300, Scenario::StripesTorn)),
        (L::DiskHeadLast, Way::Parity(300, Scenario::JournalMoves)),
        (L::DiskTrustedBlindly, Way::Parity(150, Scenario::JournalOld)),
        (L::DiskLostUnnoticed, Way::Parity(150, Scenario::JournalLost)),
        (L::DiskDroppedFirst, Way::Parity(200, Scenario::JournalMoves)),
        (L::NewMemberKeepsHead, Way::Open),
        (L::WidenedInMemory, Way::Mirrors(900)),
        (L::VacantTakenInLineage, Way::Open),
        (L::WholeNotClosed, Way::Open),
    ];
    let data = data.map(|(mutation, way)| (Mutation::Data(mutation), way));
    data.into_iter().chain(labels.map(|(mutation, way)| (Mutation::Labels(mutation), way))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_known_seeds_is_of_a_mutation_that_is_looked_for() {
        let required: Vec<Target> = targets().into_iter().filter(Target::is_required).collect();
        assert_eq!(KNOWN_SEEDS.lines().count(), required.len());
        for target in required {
            assert!(!target.known.is_empty(), "{}", target.mutation.name());
        }
    }
}
