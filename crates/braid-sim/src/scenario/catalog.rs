//! The list of scenarios, and what each needs of its array.

use crate::rng::Rng;

/// A scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// The member that was promoted last is the only one left.
    Succession,
    /// Dirty bits are cleared and set again while clients write.
    Clearing,
    /// A member is dropped while clients write.
    Dropping,
    /// A crash interrupts the rebuild of a member, and the rebuild continues.
    Refilling,
    /// A member is rebuilt while clients write.
    RebuildingUnderLoad,
    /// Split brain after an interrupted promotion.
    CutPromotion,
    /// Split brain: both halves run separately.
    SplitBrain,
    /// An old copy of a member takes its place.
    OldCopy,
    /// A member returns while its disk still has earlier I/O in flight.
    EarlyReturn,
    /// A crash leaves dirty bits on one member only; a client writes to these regions, and that member is lost.
    Merging,
    /// Copies that a crash left unequal are resynced and read; another crash follows, and one member is lost.
    Settling,
    /// A member fails while bits are being cleared.
    HalfCleared,
    /// Copies are checked and repaired while clients write.
    Checking,
    /// Blocks that no in-sync member can read.
    Unreadable,
    /// A member is replaced while clients write; then either its successor or the member itself is the only one left.
    Replacing,
    /// The only in-sync member is replaced, and its successor fails when it is about to take over.
    TakeoverFailed,
    /// The array grows while clients write where no data was written.
    Growing,
    /// With parity: power and members are lost while stripes are written.
    StripesTorn,
    /// The same stripes are written over and over, one request after the other.
    StripesInTurn,
    /// As [`Scenario::StripesTorn`], with another crash during the recovery.
    StripesTornTwice,
    /// A member is rebuilt as a new one while the journal is in use, and then others are lost.
    StripesOfNewMembers,
    /// Stripes are written while members are missing, and a crash follows.
    StripesDegraded,
    /// Stripes that a crash and a loss made unreadable are written, in parts and as a whole.
    StripesRepaired,
    /// More members are lost than the array tolerates, and come back.
    StripesBeyondTolerance,
    /// A member is dropped during long reads, which must not continue with data that it has missed.
    StripesReadOn,
    /// The array takes new members.
    StripesWidened,
    /// The file system of the members is full while stripes are written.
    StripesFullFileSystem,
    /// The disk of the journal is lost with a crash.
    JournalLost,
    /// The ring of the journal moves to a disk and back.
    JournalMoves,
    /// The disk of the journal fails.
    JournalFails,
    /// An old copy of the disk of the journal takes its place.
    JournalOld,
}

impl Scenario {
    /// The scenarios of arrays whose journal has a disk of its own.
    pub const OF_JOURNAL: [Scenario; 4] =
        [Scenario::JournalLost, Scenario::JournalMoves, Scenario::JournalFails, Scenario::JournalOld];

    /// The scenarios that [`Scenario::any`] draws from.
    const FIRST: [Scenario; 14] = [
        Scenario::Succession,
        Scenario::Clearing,
        Scenario::Dropping,
        Scenario::Refilling,
        Scenario::RebuildingUnderLoad,
        Scenario::CutPromotion,
        Scenario::SplitBrain,
        Scenario::OldCopy,
        Scenario::EarlyReturn,
        Scenario::Merging,
        Scenario::Settling,
        Scenario::HalfCleared,
        Scenario::Checking,
        Scenario::Unreadable,
    ];

    /// Draws one of `FIRST`; scenarios in which the aimed situation seldom comes about are drawn more often.
    pub fn any(rng: &mut Rng) -> Scenario {
        const SELDOM: [Scenario; 7] = [
            Scenario::RebuildingUnderLoad,
            Scenario::Succession,
            Scenario::Clearing,
            Scenario::Dropping,
            Scenario::Merging,
            Scenario::Settling,
            Scenario::HalfCleared,
        ];
        if rng.below(3) == 0 { *rng.pick(&SELDOM) } else { *rng.pick(&Scenario::FIRST) }
    }

    /// Returns this scenario or, with a chance of one in `of`, a scenario that was added to the simulator later. Draws
    /// from a random stream of its own, so that the rest of the seed stays the same.
    pub fn or_later(self, of: u64, chance: &mut Rng) -> Scenario {
        const LATER: [Scenario; 3] = [Scenario::Replacing, Scenario::TakeoverFailed, Scenario::Growing];
        if chance.below(of) == 0 { *chance.pick(&LATER) } else { self }
    }

    /// Returns whether one of the shards is much busier than the others.
    pub fn has_busy_shard(self) -> bool {
        matches!(self, Scenario::RebuildingUnderLoad | Scenario::Growing)
    }

    /// Returns whether it needs disks for the journal.
    pub fn is_of_journal(self) -> bool {
        Scenario::OF_JOURNAL.contains(&self) || self == Scenario::StripesWidened
    }

    /// Returns whether it needs disks that the array takes as new members.
    pub fn widens(self) -> bool {
        matches!(self, Scenario::Growing | Scenario::StripesWidened)
    }

    /// Returns whether it needs a disk that is not a member.
    pub fn replaces(self) -> bool {
        matches!(self, Scenario::Replacing | Scenario::TakeoverFailed)
    }

    /// Returns its name in the counters and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Succession => "succession",
            Scenario::Clearing => "clearing",
            Scenario::Dropping => "dropping",
            Scenario::Refilling => "refilling",
            Scenario::RebuildingUnderLoad => "rebuilding under load",
            Scenario::CutPromotion => "interrupted promotion",
            Scenario::SplitBrain => "split brain",
            Scenario::OldCopy => "an old copy",
            Scenario::EarlyReturn => "an early return",
            Scenario::Merging => "merging bits",
            Scenario::Settling => "settling",
            Scenario::HalfCleared => "bits partly cleared",
            Scenario::Checking => "checking",
            Scenario::Unreadable => "unreadable blocks",
            Scenario::Replacing => "replacing",
            Scenario::TakeoverFailed => "failed takeover",
            Scenario::Growing => "growing",
            Scenario::StripesTorn => "stripes torn",
            Scenario::StripesInTurn => "stripes in turn",
            Scenario::StripesTornTwice => "stripes torn twice",
            Scenario::StripesOfNewMembers => "stripes of new members",
            Scenario::StripesDegraded => "stripes degraded",
            Scenario::StripesRepaired => "stripes repaired",
            Scenario::StripesBeyondTolerance => "stripes beyond tolerance",
            Scenario::StripesReadOn => "stripes read on",
            Scenario::StripesWidened => "stripes widened",
            Scenario::StripesFullFileSystem => "stripes on a full file system",
            Scenario::JournalLost => "journal lost",
            Scenario::JournalMoves => "journal moves",
            Scenario::JournalFails => "journal fails",
            Scenario::JournalOld => "journal old",
        }
    }

    /// Returns by how many blocks the size of a member may exceed the minimum. Scenarios about the bitmap work best
    /// with few regions.
    pub fn blocks_max(self) -> u64 {
        match self {
            Scenario::Merging | Scenario::HalfCleared | Scenario::TakeoverFailed => 30,
            Scenario::Clearing
            | Scenario::Dropping
            | Scenario::EarlyReturn
            | Scenario::Settling
            | Scenario::Checking => 60,
            Scenario::SplitBrain | Scenario::OldCopy | Scenario::CutPromotion | Scenario::Replacing => 200,
            Scenario::Succession | Scenario::Refilling | Scenario::RebuildingUnderLoad | Scenario::Unreadable => 600,
            Scenario::Growing => 600,
            Scenario::StripesTorn
            | Scenario::StripesInTurn
            | Scenario::StripesTornTwice
            | Scenario::StripesOfNewMembers
            | Scenario::StripesDegraded
            | Scenario::StripesRepaired
            | Scenario::StripesBeyondTolerance
            | Scenario::StripesReadOn
            | Scenario::StripesWidened
            | Scenario::StripesFullFileSystem
            | Scenario::JournalLost
            | Scenario::JournalMoves
            | Scenario::JournalFails
            | Scenario::JournalOld => 40,
        }
    }

    /// Returns the maximum time in nanoseconds for which the bitmap keeps a region dirty after its last write has
    /// ended.
    pub fn clear_ns_max(self, rng: &mut Rng) -> u64 {
        match self {
            Scenario::Clearing => *rng.pick(&[20_000, 100_000, 400_000, 2_000_000]),
            Scenario::HalfCleared => *rng.pick(&[400_000, 2_000_000]),
            Scenario::Merging | Scenario::Settling | Scenario::RebuildingUnderLoad | Scenario::Growing => 500_000_000,
            // These lives last minutes.
            Scenario::EarlyReturn => 4_000_000_000,
            _ => *rng.pick(&[200_000, 2_000_000]),
        }
    }
}
