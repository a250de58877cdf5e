//! Bugs planted in the engine, one at a time: each must be found by the oracle.

use braid_engine::lifecycle;

use crate::arrays::Kind;
use crate::plot::subject::Subject;

/// Which seeds find which bug: a line for each, its name and they. Nobody's promise: a change of what is drawn, or of the I/Os
/// of the engine, makes other stories of them.
const KNOWN_SEEDS: &str = include_str!("../known-seeds.txt");

/// One planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// On the data path.
    Data(braid_engine::Planted),
    /// In the life of arrays on their disks.
    Labels(lifecycle::Planted),
}

/// By what a planted bug is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Ordinary seeds of arrays without redundancy, so many at most.
    Seeds(u64),
    /// Ordinary seeds of redundant arrays alone, so many at most.
    Mirrors(u64),
    /// The same of those that answer under a lease.
    Replicated(u64),
    /// Drills of redundant arrays alone, so many at most.
    Drills(u64),
    /// This drill of arrays with parity alone, so many at most.
    Rows(u64, Subject),
    /// Seeds cut at every step, so many at most.
    Sweeps(u64),
    /// Found by luck, or not yet: not looked for by `--hunt`.
    Open,
}

impl Way {
    /// About how many runs the limit allows.
    pub fn weight(self) -> u64 {
        match self {
            Way::Seeds(limit) | Way::Mirrors(limit) | Way::Replicated(limit) => limit,
            Way::Drills(limit) | Way::Rows(limit, _) => limit,
            Way::Sweeps(limit) => limit * 300,
            Way::Open => 0,
        }
    }
}

impl Plant {
    /// All of them.
    pub fn all() -> Vec<Plant> {
        table().into_iter().map(|(plant, _)| plant).collect()
    }

    /// How it is found: within about three times what it took when this was written.
    pub fn way(self) -> Way {
        table().into_iter().find(|(plant, _)| *plant == self).expect("every bug stands in the table").1
    }

    /// The kinds of arrays with which it is looked for.
    pub fn kinds(self) -> Vec<Kind> {
        match self.way() {
            Way::Mirrors(_) | Way::Replicated(_) | Way::Drills(_) | Way::Open => vec![Kind::Raid1, Kind::Raid10],
            Way::Rows(..) => vec![Kind::Raid5, Kind::Raid6],
            Way::Seeds(_) | Way::Sweeps(_) => vec![Kind::Concat, Kind::Raid0],
        }
    }

    /// Whether only arrays that answer under a lease show it.
    pub fn is_of_leases(self) -> bool {
        matches!(self.way(), Way::Replicated(_))
    }

    /// The drill that shows it, where only one does.
    pub fn subject(self) -> Option<Subject> {
        if let Way::Rows(_, subject) = self.way() { Some(subject) } else { None }
    }

    /// Seeds that found it when the table of them was printed last (`--hunt --table`), on the same way.
    pub fn known(self) -> Vec<u64> {
        let name = self.name();
        let of = |line: &&str| line.split(' ').next() == Some(&name);
        let line = KNOWN_SEEDS.lines().find(of).unwrap_or("");
        line.split(' ').skip(1).filter_map(|seed| seed.parse().ok()).collect()
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Plant::Data(bug) => format!("{bug:?}"),
            Plant::Labels(bug) => format!("{bug:?}"),
        }
    }

    /// Runs `f` with this bug in the engine, on this thread.
    pub fn during<T>(self, f: impl FnOnce() -> T) -> T {
        struct Pull;
        impl Drop for Pull {
            fn drop(&mut self) {
                braid_engine::plant(None);
                lifecycle::plant(None);
            }
        }
        let _pull = Pull;
        match self {
            Plant::Data(bug) => braid_engine::plant(Some(bug)),
            Plant::Labels(bug) => lifecycle::plant(Some(bug)),
        }
        f()
    }
}

/// Every bug, and how it is found.
fn table() -> Vec<(Plant, Way)> {
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
        (D::BitAfterData, Way::Drills(600)),
        (D::BitNotDurable, Way::Mirrors(600)),
        (D::FreedTooEarly, Way::Seeds(2000)),
        (D::ClaimsForgotten, Way::Seeds(60)),
        (D::QueueJumped, Way::Seeds(300)),
        (D::LateForgotten, Way::Seeds(150)),
        (D::ReadErrorSwallowed, Way::Seeds(60)),
        (D::WriteErrorSwallowed, Way::Seeds(100)),
        (D::FlushErrorSwallowed, Way::Seeds(200)),
        (D::GapForgotten, Way::Seeds(60)),
        (D::BitOnOneMember, Way::Mirrors(400)),
        (D::BlockHalfWritten, Way::Drills(900)),
        (D::ClearedWhileDegraded, Way::Mirrors(150)),
        (D::ClearedBeforeFlush, Way::Drills(300)),
        (D::ClearedUnderWrites, Way::Drills(600)),
        (D::DirtyAnsweredUnflushed, Way::Drills(600)),
        (D::CheckpointAhead, Way::Drills(600)),
        (D::CatchUpForgets, Way::Mirrors(60)),
        (D::NotZeroed, Way::Mirrors(60)),
        (D::ReturnsTooEarly, Way::Drills(800)),
        (D::HeldAnsweredAtOnce, Way::Mirrors(2400)),
        (D::DroppedBeforeRecorded, Way::Drills(400)),
        (D::RetiredBeforeRecorded, Way::Drills(500)),
        (D::FlushSkipsFilling, Way::Open),
        (D::FillingRead, Way::Mirrors(60)),
        (D::FillingMissesWrites, Way::Mirrors(120)),
        (D::FilledBeforeDrained, Way::Drills(1200)),
        (D::FilledWithoutBits, Way::Drills(200)),
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
        (D::LikenedEarly, Way::Open),
        (D::MissedForgottenEarly, Way::Open),
        (D::LossesForgotten, Way::Replicated(6000)),
        (D::FreshForgotten, Way::Replicated(600)),
        (D::UpdateIgnoresLast, Way::Replicated(600)),
        (D::SyncUnlocked, Way::Mirrors(300)),
        (D::RepairUnlocked, Way::Drills(300)),
        (D::GrownUnfrozen, Way::Drills(600)),
        (D::CheckIgnoresLast, Way::Drills(300)),
        (D::RowsBeforeJournal, Way::Rows(200, Subject::RowsTorn)),
        (D::BatchOnOneMember, Way::Rows(60, Subject::RowsTorn)),
        (D::BatchNotDurable, Way::Rows(60, Subject::RowsTorn)),
        (D::BatchesOutOfOrder, Way::Rows(1200, Subject::RowsTorn)),
        (D::TailUnflushed, Way::Rows(200, Subject::RowsTorn)),
        (D::TailAheadOfFlush, Way::Rows(400, Subject::RowsTorn)),
        (D::RingReusedEarly, Way::Rows(1600, Subject::RowsTorn)),
        (D::MarkOverLiveEntry, Way::Rows(900, Subject::RowsInTurn)),
        (D::MarksForgotten, Way::Rows(300, Subject::RowsTorn)),
        (D::EntryOverLiveMark, Way::Rows(900, Subject::RowsInTurn)),
        (D::MarksLeftAtDrop, Way::Open),
        (D::MarksRetiredEarly, Way::Open),
        (D::FlushLeavesMarks, Way::Rows(600, Subject::RowsInTurn)),
        (D::RowAnsweredEarly, Way::Rows(400, Subject::RowsTorn)),
        (D::StepsWithOldLayout, Way::Rows(400, Subject::RowsReadOn)),
        (D::GatheredAnsweredEarly, Way::Rows(60, Subject::RowsTorn)),
        (D::RowsUnlocked, Way::Rows(60, Subject::RowsTorn)),
        (D::FillingRowRead, Way::Rows(60, Subject::RowsOfNewcomers)),
        (D::LostCellsSwapped, Way::Rows(200, Subject::RowsTorn)),
        (D::DegradedOnlyMarked, Way::Rows(300, Subject::RowsDegraded)),
        (D::GroupNeverFits, Way::Open),
        (D::PartMakesReadable, Way::Rows(300, Subject::RowsMended)),
        (D::TailBeforeHead, Way::Rows(900, Subject::RowsInTurn)),
        (D::FillingMissesBatches, Way::Open),
        (D::FlushTrustsDisk, Way::Rows(250, Subject::JournalLost)),
        (D::MovedUnsettled, Way::Rows(60, Subject::JournalMoves)),
        (D::MovedWithoutHead, Way::Rows(60, Subject::JournalMoves)),
        (D::NotRetiredForNewcomer, Way::Rows(1200, Subject::RowsOfNewcomers)),
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
        (L::StaleAccepted, Way::Drills(400)),
        (L::DivergedMerged, Way::Drills(400)),
        (L::OldCopyReturns, Way::Drills(400)),
        (L::ServedAfterOneLabel, Way::Drills(500)),
        (L::PlainServedAfterOneLabel, Way::Seeds(200)),
        (L::NewcomerLabelFirst, Way::Drills(900)),
        (L::FillingStartedAlone, Way::Mirrors(120)),
        (L::PromotionWithoutFlush, Way::Drills(300)),
        (L::LastSurvivorRecordedFailed, Way::Mirrors(400)),
        (L::MergedNotRewritten, Way::Drills(600)),
        (L::StopWithoutFlush, Way::Mirrors(300)),
        (L::GrownTailNotZeroed, Way::Mirrors(600)),
        (L::GrownBeforeNewcomers, Way::Seeds(600)),
        (L::CopyMovedFirst, Way::Seeds(1500)),
        (L::OldCopyLeft, Way::Open),
        (L::GrownBitmapNotWritten, Way::Open),
        (L::JoiningKept, Way::Rows(200, Subject::RowsWidened)),
        (L::JoiningUncounted, Way::Rows(80, Subject::RowsWidened)),
        (L::DropRecordedWithoutFlush, Way::Mirrors(300)),
        (L::SuccessorNotFlushed, Way::Drills(400)),
        (L::SuccessorFlushedWithOthers, Way::Drills(200)),
        (L::ReplayedBeforeLogged, Way::Rows(1800, Subject::RowsTornTwice)),
        (L::RetiredBeforeResync, Way::Rows(600, Subject::RowsTornTwice)),
        (L::RetiredBeforeFlush, Way::Rows(900, Subject::RowsTornTwice)),
        (L::UnreadableForgotten, Way::Rows(600, Subject::RowsInTurn)),
        (L::UnreadableNotListed, Way::Rows(300, Subject::RowsTorn)),
        (L::LostCellNotZeros, Way::Rows(600, Subject::RowsTorn)),
        (L::OldRunsCount, Way::Rows(60, Subject::RowsTorn)),
        (L::RegionsNotMarked, Way::Open),
        (L::HeadOnOneMember, Way::Rows(300, Subject::RowsTorn)),
        (L::DiskHeadLast, Way::Rows(300, Subject::JournalMoves)),
        (L::DiskBelievedBlindly, Way::Rows(150, Subject::JournalOld)),
        (L::DiskLostUnnoticed, Way::Rows(150, Subject::JournalLost)),
        (L::DiskDroppedFirst, Way::Rows(200, Subject::JournalMoves)),
        (L::NewcomerKeepsHead, Way::Open),
        (L::WidenedInMemory, Way::Mirrors(900)),
        (L::VacantFilledInLine, Way::Open),
        (L::WholeNotClosed, Way::Open),
    ];
    let data = data.map(|(bug, way)| (Plant::Data(bug), way));
    data.into_iter().chain(labels.map(|(bug, way)| (Plant::Labels(bug), way))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_known_seeds_is_of_a_bug_that_is_looked_for() {
        let demanded: Vec<Plant> = Plant::all().into_iter().filter(|plant| plant.way() != Way::Open).collect();
        assert_eq!(KNOWN_SEEDS.lines().count(), demanded.len());
        for plant in demanded {
            assert!(!plant.known().is_empty(), "{}", plant.name());
        }
    }
}
