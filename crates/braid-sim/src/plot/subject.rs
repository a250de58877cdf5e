//! What drills there are, and what each needs of its array.

use super::drills::{self, Act};
use super::{journal_drills, row_drills};
use crate::rng::Rng;

/// What a drill is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// Who was promoted last is the only one left.
    Succession,
    /// Bits are cleared, and set again, while clients write.
    Clearing,
    /// A member is left out while clients write.
    Dropping,
    /// A crash comes while a member is filled, and the filling goes on.
    Refilling,
    /// A member is filled while clients write.
    FillingUnderLoad,
    /// Both halves run apart after a promotion that was cut.
    CutPromotion,
    /// Both halves run apart.
    Apart,
    /// An old copy of a member turns up.
    OldCopy,
    /// A member returns while its disk still has I/O from before.
    EarlyReturn,
    /// Bits that a crash left on one member, a write there, and that member lost.
    Merging,
    /// What a crash left unequal is made equal and read; another crash, and one member lost.
    Settling,
    /// A member fails while bits are being cleared.
    HalfCleared,
    /// Copies are compared and mended while clients write.
    Checking,
    /// What no member that is in sync can read.
    Unreadable,
    /// A member is replaced while clients write; then its successor is the only one left, or it is.
    Replacing,
    /// The only member in sync is replaced, and its successor fails when it is to take the place.
    TakingOver,
    /// The array becomes larger while clients write where nobody has written.
    Growing,
    /// Of an array with parity: rows are on their way when power and members are lost.
    RowsTorn,
    /// The same rows are written over and over, one request after the other.
    RowsInTurn,
    /// As the first, and another crash while that is being dealt with.
    RowsTornTwice,
    /// A member is filled anew while the journal is in use, and then others are lost.
    RowsOfNewcomers,
    /// Rows are written while members are out, and a crash comes.
    RowsDegraded,
    /// Rows that a crash and a loss made unreadable are written, in parts and wholly.
    RowsMended,
    /// More members are lost than may be, and come back.
    RowsBeyond,
    /// A member is left out under long reads, which must not go on with what it has missed.
    RowsReadOn,
    /// The array takes up further disks.
    RowsWidened,
    /// The file system of the members is full while rows are written.
    RowsFull,
    /// The disk of the journal is lost with a crash.
    JournalLost,
    /// The ring of the journal moves to a disk and back.
    JournalMoves,
    /// The disk of the journal fails.
    JournalFails,
    /// An old copy of the disk of the journal turns up.
    JournalOld,
}

impl Subject {
    /// Those that [`Subject::any`] draws from.
    const FIRST: [Subject; 14] = [
        Subject::Succession,
        Subject::Clearing,
        Subject::Dropping,
        Subject::Refilling,
        Subject::FillingUnderLoad,
        Subject::CutPromotion,
        Subject::Apart,
        Subject::OldCopy,
        Subject::EarlyReturn,
        Subject::Merging,
        Subject::Settling,
        Subject::HalfCleared,
        Subject::Checking,
        Subject::Unreadable,
    ];

    /// Any of them: those more often that show what they are about seldom.
    pub fn any(rng: &mut Rng) -> Subject {
        const SELDOM: [Subject; 7] = [
            Subject::FillingUnderLoad,
            Subject::Succession,
            Subject::Clearing,
            Subject::Dropping,
            Subject::Merging,
            Subject::Settling,
            Subject::HalfCleared,
        ];
        if rng.below(3) == 0 { *rng.pick(&SELDOM) } else { *rng.pick(&Subject::FIRST) }
    }

    /// The same, or now and then one of those that came later, by a chance of their own: what else a seed draws stays.
    /// One of so many is one of those.
    pub fn or_later(self, of: u64, chance: &mut Rng) -> Subject {
        const LATER: [Subject; 3] = [Subject::Replacing, Subject::TakingOver, Subject::Growing];
        if chance.below(of) == 0 { *chance.pick(&LATER) } else { self }
    }

    /// Whether one of the shards is much busier than the others.
    pub fn has_busy_shard(self) -> bool {
        matches!(self, Subject::FillingUnderLoad | Subject::Growing)
    }

    /// Whether it needs disks for the journal.
    pub fn is_of_journal(self) -> bool {
        journal_drills::SUBJECTS.contains(&self) || self == Subject::RowsWidened
    }

    /// Whether it needs disks that the array takes up.
    pub fn widens(self) -> bool {
        matches!(self, Subject::Growing | Subject::RowsWidened)
    }

    /// Whether it needs a disk that is no member.
    pub fn replaces(self) -> bool {
        matches!(self, Subject::Replacing | Subject::TakingOver)
    }

    /// Its name, for the count.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Succession => "succession",
            Subject::Clearing => "clearing",
            Subject::Dropping => "dropping",
            Subject::Refilling => "refilling",
            Subject::FillingUnderLoad => "filling under load",
            Subject::CutPromotion => "a promotion that is cut",
            Subject::Apart => "halves apart",
            Subject::OldCopy => "an old copy",
            Subject::EarlyReturn => "an early return",
            Subject::Merging => "merging bits",
            Subject::Settling => "settling",
            Subject::HalfCleared => "bits half cleared",
            Subject::Checking => "checking",
            Subject::Unreadable => "unreadable blocks",
            Subject::Replacing => "replacing",
            Subject::TakingOver => "taking over",
            Subject::Growing => "growing",
            Subject::RowsTorn => "rows torn",
            Subject::RowsInTurn => "rows in turn",
            Subject::RowsTornTwice => "rows torn twice",
            Subject::RowsOfNewcomers => "rows of newcomers",
            Subject::RowsDegraded => "rows degraded",
            Subject::RowsMended => "rows mended",
            Subject::RowsBeyond => "rows beyond tolerance",
            Subject::RowsReadOn => "rows read on",
            Subject::RowsWidened => "rows widened",
            Subject::RowsFull => "rows on a full file system",
            Subject::JournalLost => "journal lost",
            Subject::JournalMoves => "journal moves",
            Subject::JournalFails => "journal fails",
            Subject::JournalOld => "journal old",
        }
    }

    /// Blocks of each member beside the least, at most: where bits are what it is about, few regions are best.
    pub fn blocks_max(self) -> u64 {
        match self {
            Subject::Merging | Subject::HalfCleared | Subject::TakingOver => 30,
            Subject::Clearing | Subject::Dropping | Subject::EarlyReturn | Subject::Settling | Subject::Checking => 60,
            Subject::Apart | Subject::OldCopy | Subject::CutPromotion | Subject::Replacing => 200,
            Subject::Succession | Subject::Refilling | Subject::FillingUnderLoad | Subject::Unreadable => 600,
            Subject::Growing => 600,
            Subject::RowsTorn
            | Subject::RowsInTurn
            | Subject::RowsTornTwice
            | Subject::RowsOfNewcomers
            | Subject::RowsDegraded
            | Subject::RowsMended
            | Subject::RowsBeyond
            | Subject::RowsReadOn
            | Subject::RowsWidened
            | Subject::RowsFull
            | Subject::JournalLost
            | Subject::JournalMoves
            | Subject::JournalFails
            | Subject::JournalOld => 40,
        }
    }

    /// Longest time for which bits that nobody needs are kept.
    pub fn clear_ns_max(self, rng: &mut Rng) -> u64 {
        match self {
            Subject::Clearing => *rng.pick(&[20_000, 100_000, 400_000, 2_000_000]),
            Subject::HalfCleared => *rng.pick(&[400_000, 2_000_000]),
            Subject::Merging | Subject::Settling | Subject::FillingUnderLoad | Subject::Growing => 500_000_000,
            // Lives of minutes.
            Subject::EarlyReturn => 4_000_000_000,
            _ => *rng.pick(&[200_000, 2_000_000]),
        }
    }

    /// Draws what happens.
    pub fn draw(self, rng: &mut Rng) -> Vec<Act> {
        match self {
            Subject::Succession => drills::succession(rng),
            Subject::Clearing => drills::clearing(rng),
            Subject::Dropping => drills::dropping(rng),
            Subject::Refilling => drills::refilling(rng),
            Subject::FillingUnderLoad => drills::filling_under_load(rng),
            Subject::CutPromotion => drills::cut_promotion(rng),
            Subject::Apart => drills::apart(rng),
            Subject::OldCopy => drills::old_copy(rng),
            Subject::EarlyReturn => drills::early_return(rng),
            Subject::Merging => drills::merging(rng),
            Subject::Settling => drills::settling(rng),
            Subject::HalfCleared => drills::half_cleared(rng),
            Subject::Checking => drills::checking(rng),
            Subject::Unreadable => drills::unreadable(rng),
            Subject::Replacing => drills::replacing(rng),
            Subject::TakingOver => drills::taking_over(rng),
            Subject::Growing => drills::growing(rng),
            Subject::RowsTorn => row_drills::torn(rng),
            Subject::RowsInTurn => row_drills::in_turn(rng),
            Subject::RowsTornTwice => row_drills::torn_twice(rng),
            Subject::RowsOfNewcomers => row_drills::of_newcomers(rng),
            Subject::RowsDegraded => row_drills::degraded(rng),
            Subject::RowsMended => row_drills::mended(rng),
            Subject::RowsBeyond => row_drills::beyond(rng),
            Subject::RowsReadOn => row_drills::read_on(rng),
            Subject::RowsWidened => row_drills::widened(rng),
            Subject::RowsFull => row_drills::full(rng),
            Subject::JournalLost => journal_drills::lost(rng),
            Subject::JournalMoves => journal_drills::moves(rng),
            Subject::JournalFails => journal_drills::fails(rng),
            Subject::JournalOld => journal_drills::old(rng),
        }
    }
}
