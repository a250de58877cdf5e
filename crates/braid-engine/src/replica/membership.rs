//! Who is in sync while a volume is served.
//!
//! A drop: the survivors are flushed, then it is voted for; nothing is answered before enough voters have the vote. A promotion:
//! the replica is filled, takes every write, and is flushed; then it is voted for, and from the first voter that has the vote on
//! its failure is a drop. It counts once the newcomer has the vote itself: until then its register speaks of a boot in which it was
//! not in sync, and whoever opens the volume would take it for rebooted.
//!
//! A change of voters: a joint vote, then one without those of before ([`Seating`]). Failures and promotions go on meanwhile.

use braid_format::Uuid;

use super::opening::Opened;
use super::planted::{Planted, planted};
use super::quorum::{Seating, VOTERS_MAX, VoterId, Voters};
use super::register::Vote;

/// What is wanted of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// All that was voted for counts.
    Nothing,
    /// These are to be flushed ([`Membership::flushed`]).
    Flush(Voters),
    /// These voters are to be asked to take a vote, again and again until they answer.
    Cast(Vote, Voters),
    /// The replicas that are left do not hold everything: nothing may be written or answered. What voters remember stays as it is.
    Frozen,
}

#[derive(Clone, Copy)]
struct Proposal {
    vote: Vote,
    /// Who is to be flushed before.
    unflushed: Voters,
    /// Who has the vote.
    cast: Voters,
    drops: bool,
}

/// The replicas of a volume that is served.
pub struct Membership {
    settled: Vote,
    /// The last sequence number that was used.
    sequence: u64,
    proposal: Option<Proposal>,
    frozen: bool,
    /// Under which boot each voter's replica was met last.
    boots: [Option<Uuid>; VOTERS_MAX],
    /// Ids for new lines are counted up from a random number.
    lineage: u64,
}

impl Membership {
    /// With what was opened. `lineage` is random.
    pub fn new(opened: &Opened, lineage: u64) -> Membership {
        let Opened { vote, boots } = *opened;
        let mut membership =
            Membership { settled: vote, sequence: vote.sequence, proposal: None, frozen: false, boots, lineage };
        membership.settle_seating();
        membership
    }

    /// A new session with a replica has begun, and its node says under which boot. In another one than before it may lack what was
    /// acknowledged: it has failed.
    pub fn met(&mut self, voter: VoterId, boot: Uuid) {
        let last = self.boots[usize::from(voter.0)].replace(boot);
        if last != Some(boot) && !planted(Planted::RebootUnnoticed) {
            self.fail(voter);
        }
    }

    /// Under which boot a voter's replica is believed, as [`super::Ask::Cast`] says it; nil: it is not.
    pub fn boot(&self, voter: VoterId) -> Uuid {
        self.boots[usize::from(voter.0)].unwrap_or_default()
    }

    /// The vote that counts.
    pub fn settled(&self) -> &Vote {
        &self.settled
    }

    /// Who takes every write that may be answered: those in sync that have not failed, and who is being promoted.
    pub fn in_sync(&self) -> Voters {
        self.proposal.as_ref().map_or(self.settled.in_sync, |proposal| proposal.vote.in_sync)
    }

    /// Who may be read from: whoever was and stays in sync.
    pub fn readable(&self) -> Voters {
        self.in_sync().and(self.settled.in_sync)
    }

    /// Whether requests may be answered, as far as members go: no drop waits for votes.
    pub fn may_answer(&self) -> bool {
        let drops = self.proposal.as_ref().is_some_and(|proposal| proposal.drops);
        !self.frozen && (!drops || planted(Planted::AnsweredBeforeVotes))
    }

    /// A replica has failed: an I/O of it, or its node has rebooted. Nothing of its state counts where it was not in sync.
    pub fn fail(&mut self, voter: VoterId) {
        let mut in_sync = self.in_sync();
        if self.frozen || !in_sync.has(voter) {
            return;
        }
        in_sync.remove(voter);
        self.propose(in_sync, self.seating(), true);
    }

    /// A replica holds everything, takes every write and is flushed. False: something else is being voted for; later, then. Or it votes no more.
    #[must_use]
    pub fn promote(&mut self, voter: VoterId) -> bool {
        if self.in_sync() != self.settled.in_sync || self.frozen || !self.seating().voters.has(voter) {
            return false;
        }
        let mut in_sync = self.settled.in_sync;
        in_sync.insert(voter);
        self.propose(in_sync, self.seating(), false);
        true
    }

    /// Who votes by the last vote that was proposed.
    pub fn seating(&self) -> Seating {
        self.proposal.as_ref().map_or(self.settled.seating, |proposal| proposal.vote.seating)
    }

    /// Everybody who votes, or may still have to.
    pub fn asked(&self) -> Voters {
        self.seating().all().or(self.settled.seating.all())
    }

    /// The sets of voters that have to be heard of for a lease: whoever opens the volume may know of any of them.
    pub fn lease_sets(&self) -> impl Iterator<Item = Voters> {
        let proposed = self.proposal.as_ref().map_or(Seating::default(), |proposal| proposal.vote.seating);
        let unmet = planted(Planted::ChangeWithoutOld);
        let settled = if unmet { self.settled.seating.settled() } else { self.settled.seating };
        settled.sets().chain(proposed.sets()).collect::<Vec<_>>().into_iter()
    }

    /// Begins a change of who votes: [`Seating::with`] or [`Seating::without`] of [`Membership::seating`]. What follows after the joint vote follows
    /// by itself. False: something else is being voted for, or a replica in sync would lose its vote; later, then.
    #[must_use]
    pub fn change(&mut self, seating: Seating) -> bool {
        let fits =
            seating.before == self.settled.seating.voters && self.settled.in_sync.without(seating.voters).is_empty();
        if self.proposal.is_some() || self.frozen || self.settled.seating.is_joint() || !fits {
            return false;
        }
        let seating = if planted(Planted::ChangeWithoutOld) { seating.settled() } else { seating };
        self.propose(self.settled.in_sync, seating, false);
        true
    }

    /// What a joint vote leads to.
    fn settle_seating(&mut self) {
        if self.proposal.is_none() && !self.frozen && self.settled.seating.is_joint() {
            let seating = self.settled.seating.settled();
            let in_sync = self.settled.in_sync.and(seating.voters);
            self.propose(in_sync, seating, in_sync != self.settled.in_sync);
        }
    }

    fn propose(&mut self, in_sync: Voters, seating: Seating, drops: bool) {
        // Of those that were in sync as many must be left as it takes to have everything: who is being promoted counts once enough voters
        // say so.
        let least = if planted(Planted::DroppedBelowLeast) { 1 } else { self.settled.seating.least() };
        if in_sync.and(self.settled.in_sync).count() < least {
            self.frozen = true;
            return;
        }
        self.sequence += 1;
        self.lineage = self.lineage.wrapping_add(u64::from(drops)).max(1);
        let lineage = if drops { self.lineage } else { self.settled.lineage };
        let vote = Vote { epoch: self.settled.epoch, sequence: self.sequence, lineage, in_sync, seating };
        let unflushed = if drops && !planted(Planted::SurvivorsNotFlushed) { in_sync } else { Voters::NONE };
        self.proposal = Some(Proposal { vote, unflushed, cast: Voters::NONE, drops });
    }

    /// What is to be done now.
    pub fn wanted(&self) -> Wanted {
        match &self.proposal {
            _ if self.frozen => Wanted::Frozen,
            None => Wanted::Nothing,
            Some(proposal) if !proposal.unflushed.is_empty() => Wanted::Flush(proposal.unflushed),
            Some(proposal) => Wanted::Cast(proposal.vote, proposal.vote.seating.all().without(proposal.cast)),
        }
    }

    /// A replica was flushed, by a flush that began after [`Membership::wanted`] asked for it. One that cannot be has failed.
    pub fn flushed(&mut self, voter: VoterId) {
        if let Some(proposal) = &mut self.proposal {
            proposal.unflushed.remove(voter);
        }
    }

    /// A voter has this vote.
    pub fn cast(&mut self, voter: VoterId, vote: (u64, u64)) {
        let Some(proposal) = self.proposal.as_mut().filter(|proposal| proposal.vote.order() == vote) else { return };
        proposal.cast.insert(voter);
        let newcomers = proposal.vote.in_sync.without(self.settled.in_sync);
        let told = newcomers.without(proposal.cast).is_empty() || planted(Planted::NewcomerUntold);
        let enough = proposal.vote.seating.may_record(proposal.cast) || planted(Planted::OneVoteDrop);
        if enough && told {
            self.settled = proposal.vote;
            self.proposal = None;
            self.settle_seating();
        }
    }
}
