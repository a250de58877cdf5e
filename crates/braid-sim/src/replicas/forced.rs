//! Voters that are lost for ever, so many that nobody can open the volume any more; and an opening by force.
//!
//! What may be lost is known here: forced is only where the newest vote of all, those of the lost nodes included, says that what is taken holds
//! everything. Then nothing may be lost, whoever else is alive.

use braid_engine::replica::{Forecast, Opening, Quorums, Register, Unforced, Vote, VoterId, Voters, forecast};
use braid_format::Uuid;

use super::controller::Phase;
use super::nature::SECOND;
use super::node::Node;
use super::world::World;

/// So long an opening waits for voters before somebody forces it.
const PATIENCE_NS: u64 = 10 * SECOND;

impl World {
    /// The newest vote that stands anywhere.
    fn newest_vote(&self) -> Vote {
        let written = self.nodes.iter().filter(|node| node.exists).filter_map(Node::written);
        written.map(|register| register.vote).max_by_key(Vote::order).unwrap_or_default()
    }

    /// Voters are lost for ever, so many that those which are left open nothing; of those that hold everything enough are left.
    pub fn lose(&mut self) {
        let newest = self.newest_vote();
        let seating = newest.seating;
        let open = Quorums::of(seating.voters.count()).open;
        if seating.is_joint() || !self.lost.is_empty() {
            return;
        }
        let mut order: Vec<VoterId> = seating.voters.iter().collect();
        self.of_force.shuffle(&mut order);
        let mut left = seating.voters;
        for voter in order {
            let mut rest = left;
            rest.remove(voter);
            if newest.in_sync.and(rest).count() >= seating.least() && (left.count() >= open || self.of_force.coin()) {
                left = rest;
            }
        }
        if left.count() >= open {
            return;
        }
        self.lost = seating.voters.without(left);
        self.lost_may_return = self.lost.count() < open && self.of_force.coin();
        let lost = self.lost;
        self.event(format_args!("lost for ever: {lost:?}"));
        self.counters.add("force", "voters lost for ever", 1);
        for voter in self.lost.iter() {
            let node = usize::from(voter.0);
            self.cut_power(node);
            if node < self.controllers.len() && self.of_force.coin() {
                self.die(node);
            }
        }
    }

    /// Whether a node never has power again.
    pub fn is_lost(&self, node: usize) -> bool {
        self.lost.has(VoterId(node as u8))
    }

    /// The faults end: some that were lost for ever were not, where they cannot open the volume among themselves.
    pub fn find_lost(&mut self) {
        if self.lost_may_return {
            self.lost = Voters::NONE;
        }
    }

    /// Forces an opening that has waited for long, if it is of use.
    pub fn force_if_stuck(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &self.controllers[c].run else { return };
        let waits_since = match &run.phase {
            Phase::Opening(..) if run.forced => now,
            Phase::Opening(..) => run.begun_ns,
            // It answers nobody since then, and cannot.
            Phase::Serving(serving) => {
                run.lease.until_ns(serving.membership.lease_sets()).unwrap_or(0).max(run.begun_ns)
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
        let known = self.controllers[c].known;
        let uuid = Uuid::from_u64_pair(0xf0 + c as u64, self.of_force.bits() | 1);
        let opening = Opening::new(known, uuid, self.of_force.bits() | 1);
        let random = self.of_force.bits() as u32;
        let Some(opening) = opening.forced(&forecast, random) else { return };
        self.stop(c, "it is to be forced");
        self.event(format_args!("{c} forces it: {forecast:?}"));
        self.counters.add("force", "openings begun", 1);
        self.begin_run(c, uuid, opening, true);
    }

    /// What an opening by force would go by; none: somebody is only just down.
    fn forecast(&mut self, c: usize) -> Option<Result<Forecast, Unforced>> {
        self.look_for_seats(c, true);
        let known = self.controllers[c].known;
        Some(forecast(known, &self.said_of(known.all())?))
    }

    /// Whether something is lost by it, as far as votes say.
    fn loses(&self, forecast: &Forecast) -> bool {
        !forecast.newest || !forecast.from.without(self.newest_vote().in_sync).is_empty()
    }

    /// Whether what was lost for ever took data with it, so that nothing brings the volume back, or not all of it; or is just what is not whole.
    pub fn is_given_up(&mut self, c: usize) -> bool {
        let lost = self.lost;
        if let Some(serving) = self.controllers[c].serving()
            && !lost.is_empty()
        {
            let vote = *serving.membership.settled();
            return vote.seating.replicas.without(lost).without(vote.in_sync).is_empty();
        }
        let gone = match self.forecast(c) {
            _ if self.lost.is_empty() => false,
            Some(Ok(forecast)) => self.loses(&forecast),
            Some(Err(why)) => why == Unforced::NoData,
            None => false,
        };
        if gone {
            self.counters.add("force", "given up", 1);
        }
        gone
    }

    /// What those of these remember that are there.
    fn said_of(&self, voters: Voters) -> Option<Vec<(VoterId, Register, Uuid)>> {
        let of = |voter: VoterId| {
            let number = usize::from(voter.0);
            let node = self.nodes.get(number).filter(|node| node.exists && node.up)?;
            let fence = node.fence.as_ref()?;
            Some((voter, *fence.register(), fence.boot()))
        };
        // Somebody who is only just down is waited for; not one that was taken away by a change whose last vote only lost ones have.
        let is_away = |voter: VoterId| {
            let number = usize::from(voter.0);
            let exists = self.nodes.get(number).is_some_and(|node| node.exists);
            exists && !self.is_lost(number) && of(voter).is_none()
        };
        if voters.iter().any(is_away) {
            return None;
        }
        Some(voters.iter().filter_map(of).collect())
    }
}
