//! Voters that are added and removed while the volume is served.

use braid_engine::replica::{Register, Vote, VoterConfig, VoterId, Voters};

use super::bugs::{Bug, is_active};
use super::controller_state::{Controller, Phase};
use super::node_state::Node;
use super::serving_state::{Serving, VoterChange};
use super::world::World;

impl World {
    /// Tells the serving controller to add or to remove a voter.
    pub fn want_voter_change(&mut self, c: usize) {
        let c = if self.controllers[c].serving().is_some() { c } else { 1 - c };
        let (node, is_replica) = (self.rng.index(self.nodes.len()), self.rng.chance(700_000));
        let voter = VoterId(node as u8);
        let Some(serving) = self.controllers[c].serving() else { return };
        if serving.voter_change.is_some() {
            return;
        }
        let config = serving.membership.config();
        let voter_change =
            if config.all().has(voter) { VoterChange::Remove(voter) } else { VoterChange::Add(voter, is_replica) };
        serving.voter_change = Some(voter_change);
        self.event(format_args!("{c} is to see to {voter_change:?}"));
    }

    /// Advances the wanted change of voters as far as possible.
    pub fn advance_voter_change(&mut self, c: usize) {
        let lost = self.lost;
        let Some(run) = &mut self.controllers[c].run else { return };
        let epoch = run.epoch;
        let Phase::Serving(serving) = &mut run.phase else { return };
        let Some(voter_change) = serving.voter_change else { return };
        if let VoterChange::Add(voter, _) = voter_change
            && lost.has(voter)
        {
            serving.voter_change = None;
            return;
        }
        let Serving { membership, changes, .. } = serving.as_mut();
        let (config, in_sync) = (membership.settled().config, membership.in_sync());
        if config.is_joint() || membership.config() != config {
            return;
        }
        let version = VoterConfig::version_of(epoch, *changes + 1).expect("epochs are small");
        match voter_change {
            VoterChange::Remove(voter) if in_sync.has(voter) && in_sync.count() > config.replicas_needed() => {
                self.fail_replica(c, voter, "it is to go")
            }
            VoterChange::Remove(voter) => {
                let last = in_sync.has(voter) || config.voters.count() == 1;
                let Some(next) = config.without(voter, version).filter(|_| !last) else {
                    serving.voter_change = None;
                    return;
                };
                if let Some(sync) = &mut serving.sync {
                    sync.fail(voter);
                }
                // A plan for copying snapshots to it is not valid for a new voter in its place.
                if let Some(snapshot_copy) = &mut serving.snapshot_copy {
                    snapshot_copy.fail(voter);
                }
                if serving.sync.is_none() && serving.membership.change(next) {
                    // A new voter in its place holds nothing of what it held.
                    serving.dropped.remove(&voter.0);
                    (serving.voter_change, serving.changes) = (None, serving.changes + 1);
                    // The voter's replica leaves the mirror's table here. If a forced attach adds it once more, it is
                    // synced as a new one.
                    self.nodes[usize::from(voter.0)].store.lineage = self.number();
                    self.write_list(c, &next, None);
                    self.voter_change_begun(c, &next);
                }
            }
            VoterChange::Add(voter, is_replica) => {
                let node = usize::from(voter.0);
                let Some(next) = config.with(voter, is_replica, version) else {
                    serving.voter_change = None;
                    return;
                };
                // The voter exists before any message names it.
                if self.nodes[node].up && serving.membership.change(next) {
                    (serving.voter_change, serving.changes) = (None, serving.changes + 1);
                    // There is no connection to the new voter, and no reply is outstanding: requests to the previous
                    // voter of that number are dropped, too.
                    run.raised.remove(voter);
                    run.asks.retain(|_, (of, ..)| *of != voter);
                    run.peers[node] = Default::default();
                    let vote = Vote { lineage: 1, in_sync, config: next, ..Vote::default() };
                    let register = Register { vote, added_in_version: version, ..Register::default() };
                    self.nodes[node].replace_voter(&register, self.parameters.blocks);
                    self.write_list(c, &next, Some(voter));
                    self.voter_change_begun(c, &next);
                }
            }
        }
    }

    fn voter_change_begun(&mut self, c: usize, next: &VoterConfig) {
        self.event(format_args!("{c} begins {next:?}"));
        self.ask_voters(c);
        self.aim(c);
        if self.rng.chance(300_000) {
            self.schedule_cut_off(c);
        }
    }

    /// Writes the member list of a change that is about to be voted for: every voter of it is to hold the list.
    fn write_list(&mut self, c: usize, next: &VoterConfig, comes: Option<VoterId>) {
        let since = |voter: VoterId| match comes == Some(voter) {
            true => next.version,
            false => self.lists[&self.controllers[c].list_version].get(&voter.0).copied().unwrap_or(0),
        };
        let list = next.all().iter().map(|voter| (voter.0, since(voter))).collect();
        self.lists.insert(next.version, list);
        self.controllers[c].list_version = next.version;
    }

    /// Writes the member list of a vote, if it does not exist: every voter holds the list of its vote. A forced attach
    /// has a list without a change; it names the voters that are left.
    pub fn note_list(&mut self, c: usize, config: &VoterConfig) {
        if self.lists.contains_key(&config.version) {
            return;
        }
        let known_list = &self.lists[&self.controllers[c].list_version];
        let list = config.all().iter().map(|voter| (voter.0, known_list.get(&voter.0).copied().unwrap_or(0))).collect();
        self.lists.insert(config.version, list);
        self.controllers[c].list_version = config.version;
    }

    /// Notes a member list that a controller learns of. Returns the voters that replaced an earlier voter of the same
    /// number.
    pub fn learn_list(&mut self, c: usize, version: u64) -> Voters {
        if version <= self.controllers[c].list_version {
            return Voters::NONE;
        }
        let (before, now) = (&self.lists[&self.controllers[c].list_version], &self.lists[&version]);
        self.controllers[c].list_version = version;
        if is_active(Bug::MovedCounted) {
            return Voters::NONE;
        }
        let others = now.iter().filter(|(voter, since)| before.get(voter) != Some(since));
        let others: Voters = others.map(|(voter, _)| VoterId(*voter)).collect();
        others.iter().for_each(|voter| self.voter_replaced(c, voter));
        others
    }

    /// Checks a voter that replies with an epoch below the one that it was raised to: it must be another voter than the
    /// one that was raised.
    pub fn check_replaced(&mut self, c: usize, voter: VoterId) {
        let raised = self.controllers[c].run.as_ref().and_then(|run| run.since.get(&voter.0).copied());
        let there = self.nodes[usize::from(voter.0)].since();
        if raised.is_some() && raised == there {
            self.violation.get_or_insert(format!("{voter:?} has forgotten the epoch that it was raised to"));
        }
    }

    /// Handles the replacement of a voter under the same number: the replaced voter's guarantees are void, and its late
    /// replies are ignored.
    pub fn voter_replaced(&mut self, c: usize, voter: VoterId) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        run.asks.retain(|_, (of, ..)| *of != voter);
        if let Phase::Opening(opening, _) = &mut run.phase {
            opening.replaced(voter, now);
            let anew = opening.epoch() != run.epoch;
            run.raised.remove(voter);
            self.counters.add("opening", "voters made anew", 1);
            if anew {
                self.stop(c, "who was counted is somebody else");
            }
        }
    }

    /// Looks up the current voters for a controller that is about to open the volume, or leaves it with those that it
    /// remembers.
    pub fn look_up_voters(&mut self, c: usize, surely: bool) {
        let votes = self.nodes.iter().filter(|node| node.exists).filter_map(Node::vote);
        let newest = votes.filter(|vote| vote.epoch > 0).max_by_key(Vote::order);
        if let Some(newest) = newest.filter(|_| surely || self.rng.coin()) {
            self.controllers[c].known_voters = newest.config;
        }
    }

    /// Handles a vote in effect with other voters than the last one.
    pub fn voters_changed(&mut self, c: usize, config: &VoterConfig) {
        self.record_voters(c, config);
        if config.is_joint() {
            return;
        }
        for node in 0..self.nodes.len() {
            // Some removed voters are forgotten; the others keep replying.
            if !config.voters.has(VoterId(node as u8)) && self.rng.coin() {
                self.nodes[node].remove();
            }
        }
    }

    /// Records the voters at a controller, or fails to.
    pub fn record_voters(&mut self, c: usize, config: &VoterConfig) {
        let noted = self.rng.coin();
        let Controller { known_voters, .. } = &mut self.controllers[c];
        if noted {
            *known_voters = *config;
        }
    }
}
