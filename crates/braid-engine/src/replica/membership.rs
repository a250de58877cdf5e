//! Tracks which replicas are in sync while a volume is served.
//!
//! A drop: the remaining replicas in sync are flushed, then the drop is voted for. No request is answered before enough
//! voters have the vote.
//!
//! A promotion: the replica is rebuilt, takes every write, and is flushed; then the promotion is voted for. From then
//! on a failure of the replica is a drop. The promotion counts only once enough voters have the vote, and the promoted
//! replica's own voter is one of them: until then its register names a boot in which the replica was not in sync, and a
//! controller that opens the volume would take it for rebooted.
//!
//! A change of voters: a joint vote, then one without the previous voters ([`VoterConfig`]). Failures and promotions
//! continue meanwhile.

use braid_format::Uuid;

use super::opening::Opened;
use super::quorum::{VOTERS_MAX, VoterConfig, VoterId, Voters};
use super::register::Vote;

/// What the caller is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MembershipAction {
    /// Nothing: every vote has been recorded.
    Nothing,
    /// Flush these replicas ([`Membership::flushed`]).
    Flush(Voters),
    /// Send this vote to these voters, repeatedly until they reply.
    Cast(Vote, Voters),
    /// Nothing may be written or answered: the remaining replicas do not hold everything. The voters' registers stay as
    /// they are.
    Frozen,
}

#[derive(Clone, Copy)]
struct Proposal {
    vote: Vote,
    /// The replicas to be flushed before.
    unflushed: Voters,
    /// The voters that have the vote.
    cast: Voters,
    /// Whether the vote drops a replica: then no request is answered before enough voters have it.
    drops: bool,
}

/// The replicas of a volume that is served.
pub struct Membership {
    settled: Vote,
    /// The last sequence number used.
    sequence: u64,
    proposal: Option<Proposal>,
    frozen: bool,
    /// The boot of each voter's replica when it connected last.
    boots: [Option<Uuid>; VOTERS_MAX],
    /// The last lineage id. Ids are counted up from a random number.
    lineage: u64,
}

impl Membership {
    /// Creates the membership of an opened volume. `lineage` is random.
    pub fn new(opened: &Opened, lineage: u64) -> Membership {
        let Opened { vote, boots } = *opened;
        let mut membership =
            Membership { settled: vote, sequence: vote.sequence, proposal: None, frozen: false, boots, lineage };
        membership.end_joint();
        membership
    }

    /// Records that a new session with a replica has begun, and the boot of its node. Under another boot than before it
    /// may lack what was acknowledged: it has failed.
    pub fn connected(&mut self, voter: VoterId, boot: Uuid) {
        let last = self.boots[usize::from(voter.0)].replace(boot);
        if last != Some(boot) {
            self.fail(voter);
        }
    }

    /// Returns the boot under which a voter's replica is trusted, as in [`super::VoterRequest::Cast`]; nil: it is not.
    pub fn boot(&self, voter: VoterId) -> Uuid {
        self.boots[usize::from(voter.0)].unwrap_or_default()
    }

    /// Returns the vote that counts.
    pub fn settled(&self) -> &Vote {
        &self.settled
    }

    /// Returns the replicas that take every write that may be answered: those in sync that have not failed, and the one
    /// being promoted.
    pub fn in_sync(&self) -> Voters {
        self.proposal.as_ref().map_or(self.settled.in_sync, |proposal| proposal.vote.in_sync)
    }

    /// Returns the replicas that may be read: those that were in sync and still are.
    pub fn readable(&self) -> Voters {
        self.in_sync().and(self.settled.in_sync)
    }

    /// Returns whether the membership allows answering requests: it is not frozen, and no drop waits for votes.
    pub fn may_answer(&self) -> bool {
        let drops = self.proposal.as_ref().is_some_and(|proposal| proposal.drops);
        !self.frozen && !drops
    }

    /// Records that a replica has failed: it failed an I/O, or its node has rebooted. Ignored if it was not in sync.
    pub fn fail(&mut self, voter: VoterId) {
        let mut in_sync = self.in_sync();
        if self.frozen || !in_sync.has(voter) {
            return;
        }
        in_sync.remove(voter);
        self.propose(in_sync, self.config(), true);
    }

    /// Promotes a replica that holds everything, takes every write and is flushed. Returns false if a drop or another
    /// promotion is pending, to be retried; or if nothing may be written any more, or the replica is no voter any more.
    /// A pending change of voters does not prevent a promotion: the new vote includes it.
    #[must_use]
    pub fn promote(&mut self, voter: VoterId) -> bool {
        if self.in_sync() != self.settled.in_sync || self.frozen || !self.config().voters.has(voter) {
            return false;
        }
        let mut in_sync = self.settled.in_sync;
        in_sync.insert(voter);
        self.propose(in_sync, self.config(), false);
        true
    }

    /// Returns the voters by the last proposed vote.
    pub fn config(&self) -> VoterConfig {
        self.proposal.as_ref().map_or(self.settled.config, |proposal| proposal.vote.config)
    }

    /// Returns all voters, including those whose vote may still be needed.
    pub fn all_voters(&self) -> Voters {
        self.config().all().or(self.settled.config.all())
    }

    /// Returns the sets of voters that must each have replied for a lease: a controller that opens the volume may know
    /// any of them.
    pub fn lease_sets(&self) -> impl Iterator<Item = Voters> {
        let proposed = self.proposal.as_ref().map_or(VoterConfig::default(), |proposal| proposal.vote.config);
        self.settled.config.sets().chain(proposed.sets()).collect::<Vec<_>>().into_iter()
    }

    /// Begins a change of voters to `config`: [`VoterConfig::with`] or [`VoterConfig::without`] of
    /// [`Membership::config`]. The vote after the joint vote follows automatically. Returns false if another vote is
    /// pending, or a replica in sync would lose its vote; to be retried.
    #[must_use]
    pub fn change(&mut self, config: VoterConfig) -> bool {
        let fits = config.previous_voters == self.settled.config.voters
            && self.settled.in_sync.without(config.voters).is_empty();
        if self.proposal.is_some() || self.frozen || self.settled.config.is_joint() || !fits {
            return false;
        }
        self.propose(self.settled.in_sync, config, false);
        true
    }

    /// Proposes the vote that ends a joint configuration.
    fn end_joint(&mut self) {
        if self.proposal.is_none() && !self.frozen && self.settled.config.is_joint() {
            let config = self.settled.config.final_config();
            let in_sync = self.settled.in_sync.and(config.voters);
            self.propose(in_sync, config, in_sync != self.settled.in_sync);
        }
    }

    fn propose(&mut self, in_sync: Voters, config: VoterConfig, drops: bool) {
        // Enough of the replicas in sync must remain to hold everything: a replica that is being promoted counts once
        // enough voters have the vote.
        let least = self.settled.config.replicas_needed();
        if in_sync.and(self.settled.in_sync).count() < least {
            self.frozen = true;
            return;
        }
        self.sequence += 1;
        self.lineage = self.lineage.wrapping_add(u64::from(drops)).max(1);
        let lineage = if drops { self.lineage } else { self.settled.lineage };
        let vote = Vote { epoch: self.settled.epoch, sequence: self.sequence, lineage, in_sync, config };
        let unflushed = if drops { in_sync } else { Voters::NONE };
        self.proposal = Some(Proposal { vote, unflushed, cast: Voters::NONE, drops });
    }

    /// Returns what is to be done now.
    pub fn next_action(&self) -> MembershipAction {
        match &self.proposal {
            _ if self.frozen => MembershipAction::Frozen,
            None => MembershipAction::Nothing,
            Some(proposal) if !proposal.unflushed.is_empty() => MembershipAction::Flush(proposal.unflushed),
            Some(proposal) => MembershipAction::Cast(proposal.vote, proposal.vote.config.all().without(proposal.cast)),
        }
    }

    /// Records that a replica was flushed, by a flush that began after [`Membership::next_action`] requested it. A
    /// replica that cannot be flushed has failed.
    pub fn flushed(&mut self, voter: VoterId) {
        if let Some(proposal) = &mut self.proposal {
            proposal.unflushed.remove(voter);
        }
    }

    /// Records that a voter has this vote.
    pub fn cast(&mut self, voter: VoterId, vote: (u64, u64)) {
        let Some(proposal) = self.proposal.as_mut().filter(|proposal| proposal.vote.order() == vote) else { return };
        proposal.cast.insert(voter);
        let new_members = proposal.vote.in_sync.without(self.settled.in_sync);
        let recorded = new_members.without(proposal.cast).is_empty();
        let enough = proposal.vote.config.may_record(proposal.cast);
        if enough && recorded {
            self.settled = proposal.vote;
            self.proposal = None;
            self.end_joint();
        }
    }
}
