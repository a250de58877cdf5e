//! Opening a volume whose voters are lost for ever, all but too few: by the word of its user, who says that they are.
//!
//! A *forced* opening asks the voters that are present, and nobody else. All of them have to be raised, and it takes the best data that any of them
//! has. Its vote seats these voters alone, without those of before, and it is served once *all* of them have that vote: whoever meets any one of
//! them later goes by it.
//!
//! What it cannot know is whether the others are lost. Where they are not, and are enough, whoever serves the volume goes on with them: then there
//! are two of it, and nothing can bring them together again. What is kept even then:
//!
//! - No voter is of both. One that was raised answers the forced controller, and refuses the other one, whose epochs are lower for as long as it
//!   lives ([`EPOCHS_AHEAD`]); it drops these voters as it would if they were dead. The forced controller asks none of the others who votes.
//! - Whoever meets a voter of each goes by the higher vote, that of the forced one, and by its voters. What the others have is in no seating then, and
//!   comes back only as a voter that is new.
//! - Two who force the volume on both sides have epochs of their own: part of the leap is random.

use braid_format::Uuid;

use super::super::quorum::{Seating, VoterId, Voters};
use super::super::register::{Register, Vote};
use super::{Next, Opening};

/// So many epochs above all that are known a forced opening begins, and up to half as many more: at one opening a second nobody else
/// comes there in a hundred years.
const EPOCHS_AHEAD: u64 = 1 << 32;

/// What a forced opening would go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// Who would vote alone from then on.
    pub present: Voters,
    /// Who would vote no more.
    pub absent: Voters,
    /// Whose data it would take.
    pub from: Voters,
    /// They were in sync by the newest vote that is known: what they lack was acknowledged after a drop of which nobody here knows.
    pub newest: bool,
    /// Their nodes have rebooted since: they may lack what was not flushed.
    pub rebooted: bool,
    /// The highest epoch that is known.
    pub epoch: u64,
    /// The order of the newest vote that is known.
    pub vote: (u64, u64),
}

/// Why an opening is not to be forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unforced {
    /// The votes allow an ordinary one.
    VotesAllow,
    /// Nobody who is there has what can be served: of those that were in sync by some vote too few are there.
    NoData,
}

/// What a forced opening would go by, where these voters answer with these registers, and under these boots. `known`: who votes, as far as is known.
///
/// # Errors
/// It is not needed, or of no use.
pub fn forecast(known: Seating, said: &[(VoterId, Register, Uuid)]) -> Result<Forecast, Unforced> {
    let mut opening = Opening::new(known, Uuid::nil(), 0);
    for (voter, register, boot) in said {
        opening.raised(*voter, opening.epoch(), *register, *boot, 0);
    }
    if !matches!(opening.next(u64::MAX), Next::Ask(..) | Next::Missing(..)) {
        return Err(Unforced::VotesAllow);
    }
    let seating = opening.seating();
    let present = opening.older(seating.version.saturating_add(1)).and(seating.all());
    let (from, newest) = opening.best_of(present).ok_or(Unforced::NoData)?;
    Ok(Forecast {
        present,
        absent: seating.all().without(present),
        from,
        newest,
        rebooted: from.iter().all(|voter| opening.has_rebooted(voter)),
        epoch: opening.registers().map(|register| register.epoch.max(register.vote.epoch)).max().unwrap_or(0),
        vote: opening.winner().order(),
    })
}

impl Opening {
    /// The same by the word of the volume's user, who has agreed to this: it opens as long as no later vote is met. None: no epoch is left that is
    /// high enough.
    #[must_use]
    pub fn forced(self, agreed: &Forecast, random: u32) -> Option<Opening> {
        let epoch = agreed.epoch.checked_add(EPOCHS_AHEAD + u64::from(random >> 1))?;
        Seating::version_of(epoch, 0)?;
        Some(Opening { epoch, forced: Some((agreed.present, agreed.vote)), ..self })
    }

    /// Who votes after a forced opening. No change by [`Seating::with`] or [`Seating::without`] has the version 0 of an epoch.
    pub(super) fn seating_of_present(&self, present: Voters) -> Seating {
        let found = self.seating();
        let voters = present.and(found.all());
        let version = Seating::version_of(self.epoch, 0).unwrap_or(found.version).max(found.version);
        Seating { version, voters, before: Voters::NONE, replicas: found.replicas.and(voters), ..found }
    }

    /// The replicas among these that have the most, and whether the newest vote says so of them. None: none has what can be served.
    pub(super) fn best_of(&self, present: Voters) -> Option<(Voters, bool)> {
        let (seating, winner) = (self.seating(), self.winner());
        let here = present.and(seating.all()).and(seating.replicas);
        // Who is away is given up: nobody else knows better than those that have not rebooted, if they are enough.
        let steady = |among: Voters| -> Option<Voters> {
            let steady: Voters = among.iter().filter(|voter| !self.has_rebooted(*voter)).collect();
            [steady, among].into_iter().find(|some| some.count() >= seating.least())
        };
        if let Some(best) = steady(winner.in_sync.and(here)) {
            return Some((best, true));
        }
        // Parts of several moments make no whole.
        if seating.least() > 1 {
            return None;
        }
        // Who has heard that it is out may be half filled; who has not is as it was when it was left out.
        let own = |voter: &VoterId| -> Option<Vote> {
            let (register, _) = self.raised[usize::from(voter.0)]?;
            Some(register.vote).filter(|vote| vote.in_sync.has(*voter))
        };
        let newest = here.iter().filter_map(|voter| own(&voter)).map(|vote| vote.order()).max()?;
        let as_new = here.iter().filter(|voter| own(voter).is_some_and(|vote| vote.order() == newest)).collect();
        steady(as_new).map(|best| (best, false))
    }
}
