//! Forced attach: opens a volume of which too many voters are lost for ever, by the decision of its user.
//!
//! A *forced* opening asks only the voters that are present. All of them must be raised, and it takes the best data
//! that any of them has. Its vote makes these the only voters, without a joint vote, and the volume is served once
//! *all* of them have that vote: an opening that meets any of them later follows it.
//!
//! The opening cannot know whether the other voters are lost. If they are not, and are enough, a controller may
//! continue to serve the volume with them: then there is a split brain, and the two sides cannot be merged. Even then
//! these guarantees hold:
//!
//! - No voter belongs to both sides. A raised voter answers the forced controller, and refuses the other one, whose
//!   epochs are lower for its whole life ([`EPOCHS_AHEAD`]); the other controller drops these voters as if they were
//!   dead. The forced controller asks none of the other voters.
//! - An opening that meets voters of both sides follows the higher vote, that of the forced opening, and its voters.
//!   The others are in no list of voters then, and return only as new voters.
//! - Two forced openings on both sides have different epochs: part of the distance is random.

use braid_format::Uuid;

use super::super::quorum::{VoterConfig, VoterId, Voters};
use super::super::register::{Register, Vote};
use super::{Opening, OpeningStep};

/// A forced opening begins so many epochs above all known ones, and up to half as many more: at one opening a second no
/// ordinary opening reaches that epoch in a hundred years.
const EPOCHS_AHEAD: u64 = 1 << 32;

/// The outcome that a forced opening would have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// The only voters from then on.
    pub present: Voters,
    /// The voters that would be removed.
    pub absent: Voters,
    /// The replicas whose data it would take.
    pub from: Voters,
    /// Whether these replicas were in sync by the newest known vote. If not, they lack what was acknowledged after they
    /// were dropped.
    pub newest: bool,
    /// Whether all of their nodes have rebooted since: then the replicas may lack what was not flushed.
    pub rebooted: bool,
    /// The highest known epoch.
    pub epoch: u64,
    /// The order of the newest known vote.
    pub vote: (u64, u64),
}

/// Why an opening must not be forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForceRefusal {
    /// The votes allow an ordinary opening.
    NotNeeded,
    /// The present voters have no data that can be served: too few replicas that were in sync by some vote are present.
    NoData,
}

/// Returns the outcome of a forced opening, if these voters reply with these registers and boots. `known`: the voters,
/// as far as known.
///
/// # Errors
/// Forcing is not needed, or would not help.
pub fn forecast(known: VoterConfig, said: &[(VoterId, Register, Uuid)]) -> Result<Forecast, ForceRefusal> {
    let mut opening = Opening::new(known, Uuid::nil(), 0);
    for (voter, register, boot) in said {
        opening.raised(*voter, opening.epoch(), *register, *boot, 0);
    }
    if !matches!(opening.next(u64::MAX), OpeningStep::Ask(..) | OpeningStep::Missing(..)) {
        return Err(ForceRefusal::NotNeeded);
    }
    let config = opening.config();
    let present = opening.older(config.version.saturating_add(1)).and(config.all());
    let (from, newest) = opening.best_of(present).ok_or(ForceRefusal::NoData)?;
    Ok(Forecast {
        present,
        absent: config.all().without(present),
        from,
        newest,
        rebooted: from.iter().all(|voter| opening.has_rebooted(voter)),
        epoch: opening.registers().map(|register| register.epoch.max(register.vote.epoch)).max().unwrap_or(0),
        vote: opening.winner().order(),
    })
}

impl Opening {
    /// Returns this opening as a forced one. The volume's user has agreed to the forecast `agreed`: the opening
    /// succeeds only while the newest vote that it meets is that of the forecast. `random` keeps the epochs of two
    /// forced openings apart. `None`: there is no epoch left that is high enough.
    #[must_use]
    pub fn forced(self, agreed: &Forecast, random: u32) -> Option<Opening> {
        let epoch = agreed.epoch.checked_add(EPOCHS_AHEAD + u64::from(random >> 1))?;
        VoterConfig::version_of(epoch, 0)?;
        Some(Opening { epoch, forced: Some((agreed.present, agreed.vote)), ..self })
    }

    /// Returns the voters after a forced opening. Their list has the version 0 of the epoch, which no change by
    /// [`VoterConfig::with`] or [`VoterConfig::without`] has.
    pub(super) fn config_of_present(&self, present: Voters) -> VoterConfig {
        let found = self.config();
        let voters = present.and(found.all());
        let version = VoterConfig::version_of(self.epoch, 0).unwrap_or(found.version).max(found.version);
        VoterConfig { version, voters, previous_voters: Voters::NONE, replicas: found.replicas.and(voters), ..found }
    }

    /// Returns the replicas among these with the newest content, and whether the newest vote says so. `None`: none has
    /// data that can be served.
    pub(super) fn best_of(&self, present: Voters) -> Option<(Voters, bool)> {
        let (config, winner) = (self.config(), self.winner());
        let available = present.and(config.all()).and(config.replicas);
        // Absent replicas are given up. If enough replicas have not rebooted, only these are taken.
        let steady = |among: Voters| -> Option<Voters> {
            let steady: Voters = among.iter().filter(|voter| !self.has_rebooted(*voter)).collect();
            [steady, among].into_iter().find(|some| some.count() >= config.replicas_needed())
        };
        if let Some(best) = steady(winner.in_sync.and(available)) {
            return Some((best, true));
        }
        // Parts of different versions make no whole.
        if config.replicas_needed() > 1 {
            return None;
        }
        // A replica whose own register says that it was dropped may be half rebuilt. One whose register does not has
        // its content from when it was dropped.
        let own = |voter: &VoterId| -> Option<Vote> {
            let (register, _) = self.raised[usize::from(voter.0)]?;
            Some(register.vote).filter(|vote| vote.in_sync.has(*voter))
        };
        let newest = available.iter().filter_map(|voter| own(&voter)).map(|vote| vote.order()).max()?;
        let as_new = available.iter().filter(|voter| own(voter).is_some_and(|vote| vote.order() == newest)).collect();
        steady(as_new).map(|best| (best, false))
    }
}
