//! Permanent loss of so many voters that no controller can open the volume any more, and the forced attach after it.
//!
//! The simulator knows what a forced attach would lose. It forces only if the newest vote of all, including those of
//! the lost nodes, says that the chosen replicas hold everything. Then nothing may be lost, whichever other nodes are
//! alive.

use braid_engine::replica::{ForceRefusal, Forecast, Opening, Quorums, Register, Vote, VoterId, Voters, forecast};
use braid_format::Uuid;

use super::controller_state::Phase;
use super::node_state::Node;
use super::parameters::SECOND;
use super::world::World;

/// How long an opening waits for voters before it is forced.
const PATIENCE_NS: u64 = 10 * SECOND;

impl World {
    /// Returns the newest vote on any node.
    fn newest_vote(&self) -> Vote {
        let written = self.nodes.iter().filter(|node| node.exists).filter_map(Node::stored_register);
        written.map(|register| register.vote).max_by_key(Vote::order).unwrap_or_default()
    }

    /// Loses voters permanently: too many for the rest to open the volume, while enough in-sync replicas remain.
    pub fn lose_voters(&mut self) {
        let newest = self.newest_vote();
        let config = newest.config;
        let open = Quorums::of(config.voters.count()).open;
        if config.is_joint() || !self.lost.is_empty() {
            return;
        }
        let mut order: Vec<VoterId> = config.voters.iter().collect();
        self.force_rng.shuffle(&mut order);
        let mut left = config.voters;
        for voter in order {
            let mut rest = left;
            rest.remove(voter);
            if newest.in_sync.and(rest).count() >= config.replicas_needed()
                && (left.count() >= open || self.force_rng.coin())
            {
                left = rest;
            }
        }
        if left.count() >= open {
            return;
        }
        self.lost = config.voters.without(left);
        self.lost_may_return = self.lost.count() < open && self.force_rng.coin();
        let lost = self.lost;
        self.event(format_args!("lost for ever: {lost:?}"));
        self.counters.add("force", "voters lost for ever", 1);
        for voter in self.lost.iter() {
            let node = usize::from(voter.0);
            self.cut_power(node);
            if node < self.controllers.len() && self.force_rng.coin() {
                self.die(node);
            }
        }
    }

    /// Returns whether a node never has power again.
    pub fn is_lost(&self, node: usize) -> bool {
        self.lost.has(VoterId(node as u8))
    }

    /// Returns lost voters at the end of the faults, if this run has drawn so. These voters cannot open the volume
    /// among themselves.
    pub fn return_lost(&mut self) {
        if self.lost_may_return {
            self.lost = Voters::NONE;
        }
    }

    /// Forces an opening that has waited for long, if the forced attach helps and loses nothing.
    pub fn force_if_stuck(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &self.controllers[c].run else { return };
        let waits_since = match &run.phase {
            Phase::Opening(..) if run.forced => now,
            Phase::Opening(..) => run.begun_ns,
            // The controller has answered nothing since its lease ran out, and cannot.
            Phase::Serving(serving) => {
                run.lease.expires_ns(serving.membership.lease_sets()).unwrap_or(0).max(run.begun_ns)
            }
        };
        let is_stuck = now > waits_since + PATIENCE_NS;
        if self.lost.is_empty() || !is_stuck {
            return;
        }
        let Some(Ok(forecast)) = self.forecast(c) else { return };
        if self.loses(&forecast) {
            self.counters.add("force", "not without a loss", 1);
            return;
        }
        let known_voters = self.controllers[c].known_voters;
        let uuid = Uuid::from_u64_pair(0xf0 + c as u64, self.force_rng.bits() | 1);
        let opening = Opening::new(known_voters, uuid, self.force_rng.bits() | 1);
        let random = self.force_rng.bits() as u32;
        let Some(opening) = opening.forced(&forecast, random) else { return };
        self.stop(c, "it is to be forced");
        self.event(format_args!("{c} forces it: {forecast:?}"));
        self.counters.add("force", "openings begun", 1);
        self.begin_run(c, uuid, opening, true);
    }

    /// Returns the forecast of a forced attach; `None`: a voter is down only temporarily.
    fn forecast(&mut self, c: usize) -> Option<Result<Forecast, ForceRefusal>> {
        self.look_up_voters(c, true);
        let known_voters = self.controllers[c].known_voters;
        Some(forecast(known_voters, &self.registers_of(known_voters.all())?))
    }

    /// Returns whether the forced attach loses anything, as far as votes say.
    fn loses(&self, forecast: &Forecast) -> bool {
        !forecast.newest || !forecast.from.without(self.newest_vote().in_sync).is_empty()
    }

    /// Returns whether the run need not wait for all replicas to be in sync: the volume is served and only lost
    /// replicas are missing, or the lost voters took data with them, so that it cannot be opened without loss.
    pub fn is_given_up(&mut self, c: usize) -> bool {
        let lost = self.lost;
        if let Some(serving) = self.controllers[c].serving()
            && !lost.is_empty()
        {
            let vote = *serving.membership.settled();
            return vote.config.replicas.without(lost).without(vote.in_sync).is_empty();
        }
        let gone = match self.forecast(c) {
            _ if self.lost.is_empty() => false,
            Some(Ok(forecast)) => self.loses(&forecast),
            Some(Err(why)) => why == ForceRefusal::NoData,
            None => false,
        };
        if gone {
            self.counters.add("force", "given up", 1);
        }
        gone
    }

    /// Returns the registers of the voters that are up; `None`: a voter is down only temporarily.
    fn registers_of(&self, voters: Voters) -> Option<Vec<(VoterId, Register, Uuid)>> {
        let of = |voter: VoterId| {
            let number = usize::from(voter.0);
            let node = self.nodes.get(number).filter(|node| node.exists && node.up)?;
            let fence = node.fence.as_ref()?;
            Some((voter, *fence.register(), fence.boot()))
        };
        // A voter that is down temporarily is waited for. A voter that was removed by a change whose last vote only
        // lost voters hold is not.
        let is_down_temporarily = |voter: VoterId| {
            let number = usize::from(voter.0);
            let exists = self.nodes.get(number).is_some_and(|node| node.exists);
            exists && !self.is_lost(number) && of(voter).is_none()
        };
        if voters.iter().any(is_down_temporarily) {
            return None;
        }
        Some(voters.iter().filter_map(of).collect())
    }
}
