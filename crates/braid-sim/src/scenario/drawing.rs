//! Draws the lives of each scenario.

use super::catalog::Scenario;
use super::{journal_scenarios, mirror_scenarios, parity_scenarios};
use crate::acts::Act;
use crate::rng::Rng;

impl Scenario {
    /// Draws the lives of the scenario.
    pub fn draw(self, rng: &mut Rng) -> Vec<Act> {
        match self {
            Scenario::Succession => mirror_scenarios::succession(rng),
            Scenario::Clearing => mirror_scenarios::clearing(rng),
            Scenario::Dropping => mirror_scenarios::dropping(rng),
            Scenario::Refilling => mirror_scenarios::refilling(rng),
            Scenario::RebuildingUnderLoad => mirror_scenarios::rebuilding_under_load(rng),
            Scenario::CutPromotion => mirror_scenarios::cut_promotion(rng),
            Scenario::SplitBrain => mirror_scenarios::split_brain(rng),
            Scenario::OldCopy => mirror_scenarios::old_copy(rng),
            Scenario::EarlyReturn => mirror_scenarios::early_return(rng),
            Scenario::Merging => mirror_scenarios::merging(rng),
            Scenario::Settling => mirror_scenarios::settling(rng),
            Scenario::HalfCleared => mirror_scenarios::half_cleared(rng),
            Scenario::Checking => mirror_scenarios::checking(rng),
            Scenario::Unreadable => mirror_scenarios::unreadable(rng),
            Scenario::Replacing => mirror_scenarios::replacing(rng),
            Scenario::TakeoverFailed => mirror_scenarios::taking_over(rng),
            Scenario::Growing => mirror_scenarios::growing(rng),
            Scenario::StripesTorn => parity_scenarios::torn(rng),
            Scenario::StripesInTurn => parity_scenarios::in_turn(rng),
            Scenario::StripesTornTwice => parity_scenarios::torn_twice(rng),
            Scenario::StripesOfNewMembers => parity_scenarios::of_new_members(rng),
            Scenario::StripesDegraded => parity_scenarios::degraded(rng),
            Scenario::StripesRepaired => parity_scenarios::repaired(rng),
            Scenario::StripesBeyondTolerance => parity_scenarios::beyond(rng),
            Scenario::StripesReadOn => parity_scenarios::read_on(rng),
            Scenario::StripesWidened => parity_scenarios::widened(rng),
            Scenario::StripesFullFileSystem => parity_scenarios::full(rng),
            Scenario::JournalLost => journal_scenarios::lost(rng),
            Scenario::JournalMoves => journal_scenarios::moves(rng),
            Scenario::JournalFails => journal_scenarios::fails(rng),
            Scenario::JournalOld => journal_scenarios::old(rng),
        }
    }
}
