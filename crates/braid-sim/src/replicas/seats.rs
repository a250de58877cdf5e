//! Voters that come and go while the volume is served.

use braid_engine::replica::{Planted, Register, Seating, Vote, VoterId, Voters, planted};

use super::controller::{Controller, Phase};
use super::node::Node;
use super::serving::Serving;
use super::world::World;

/// What becomes of a voter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// It comes, with data or without.
    Comes(VoterId, bool),
    /// It goes.
    Goes(VoterId),
}

impl World {
    /// Whoever serves is to take a voter in, or to leave one out.
    pub fn wish(&mut self, c: usize) {
        let c = if self.controllers[c].serving().is_some() { c } else { 1 - c };
        let (node, is_replica) = (self.rng.index(self.nodes.len()), self.rng.chance(700_000));
        let voter = VoterId(node as u8);
        let Some(serving) = self.controllers[c].serving() else { return };
        if serving.wish.is_some() {
            return;
        }
        let seating = serving.membership.seating();
        let wish = if seating.all().has(voter) { Wish::Goes(voter) } else { Wish::Comes(voter, is_replica) };
        serving.wish = Some(wish);
        self.event(format_args!("{c} is to see to {wish:?}"));
    }

    /// Goes on with what is wished for, as far as it can now.
    pub fn advance_wish(&mut self, c: usize) {
        let lost = self.lost;
        let Some(run) = &mut self.controllers[c].run else { return };
        let epoch = run.epoch;
        let Phase::Serving(serving) = &mut run.phase else { return };
        let Some(wish) = serving.wish else { return };
        if let Wish::Comes(voter, _) = wish
            && lost.has(voter)
        {
            serving.wish = None;
            return;
        }
        let Serving { membership, changes, .. } = serving.as_mut();
        let (seating, in_sync) = (membership.settled().seating, membership.in_sync());
        if seating.is_joint() || membership.seating() != seating {
            return;
        }
        let version = Seating::version_of(epoch, *changes + 1).expect("epochs are small");
        match wish {
            Wish::Goes(voter) if in_sync.has(voter) && in_sync.count() > seating.least() => {
                self.failed(c, voter, "it is to go")
            }
            Wish::Goes(voter) => {
                let last = in_sync.has(voter) || seating.voters.count() == 1;
                let Some(next) = seating.without(voter, version).filter(|_| !last) else {
                    serving.wish = None;
                    return;
                };
                if let Some(fill) = &mut serving.fill {
                    fill.fail(voter);
                }
                // What was planned to be brought to it is no plan for one that is made anew in its place.
                if let Some(bringing) = &mut serving.bringing {
                    bringing.fail(voter);
                }
                if serving.fill.is_none() && serving.membership.change(next) {
                    // Whoever comes in its place has nothing of what it had.
                    serving.absent.remove(&voter.0);
                    (serving.wish, serving.changes) = (None, serving.changes + 1);
                    // It is off the mirror's table from here on. Should an opening by force seat it once more it is filled as a new one.
                    self.nodes[usize::from(voter.0)].store.line = self.number();
                    self.write_list(c, &next, None);
                    self.begun_change(c, &next);
                }
            }
            Wish::Comes(voter, is_replica) => {
                let node = usize::from(voter.0);
                let Some(next) = seating.with(voter, is_replica, version) else {
                    serving.wish = None;
                    return;
                };
                // It is there before anybody hears of it.
                if self.nodes[node].up && serving.membership.change(next) {
                    (serving.wish, serving.changes) = (None, serving.changes + 1);
                    // Nobody is met there, and nothing is waited for: not what was asked of who was there under that number, either.
                    run.raised.remove(voter);
                    run.asks.retain(|_, (of, ..)| *of != voter);
                    run.peers[node] = Default::default();
                    let vote = Vote { lineage: 1, in_sync, seating: next, ..Vote::default() };
                    let register = Register { vote, since: version, ..Register::default() };
                    self.nodes[node].make_anew(&register, self.nature.blocks);
                    self.write_list(c, &next, Some(voter));
                    self.begun_change(c, &next);
                }
            }
        }
    }

    fn begun_change(&mut self, c: usize, next: &Seating) {
        self.event(format_args!("{c} begins {next:?}"));
        self.ask_voters(c);
        self.aim(c);
        if self.rng.chance(300_000) {
            self.cuts_off(c);
        }
    }

    /// A change is about to be voted for, and everybody who votes for it is to have its list.
    fn write_list(&mut self, c: usize, next: &Seating, comes: Option<VoterId>) {
        let since = |voter: VoterId| match comes == Some(voter) {
            true => next.version,
            false => self.lists[&self.controllers[c].list].get(&voter.0).copied().unwrap_or(0),
        };
        let list = next.all().iter().map(|voter| (voter.0, since(voter))).collect();
        self.lists.insert(next.version, list);
        self.controllers[c].list = next.version;
    }

    /// Everybody who has a vote has the list that it goes by. That of a forced opening has come about without a change: it names those who are left.
    pub fn note_list(&mut self, c: usize, seating: &Seating) {
        if self.lists.contains_key(&seating.version) {
            return;
        }
        let known = &self.lists[&self.controllers[c].list];
        let list = seating.all().iter().map(|voter| (voter.0, known.get(&voter.0).copied().unwrap_or(0))).collect();
        self.lists.insert(seating.version, list);
        self.controllers[c].list = seating.version;
    }

    /// A controller hears of a list, and who of it is somebody else than who had that number in the list before.
    pub fn learn_list(&mut self, c: usize, version: u64) -> Voters {
        if version <= self.controllers[c].list {
            return Voters::NONE;
        }
        let (before, now) = (&self.lists[&self.controllers[c].list], &self.lists[&version]);
        self.controllers[c].list = version;
        if planted(Planted::MovedCounted) {
            return Voters::NONE;
        }
        let others = now.iter().filter(|(voter, since)| before.get(voter) != Some(since));
        let others: Voters = others.map(|(voter, _)| VoterId(*voter)).collect();
        others.iter().for_each(|voter| self.moved(c, voter));
        others
    }

    /// A voter answers an epoch below the one that it was raised to: it must not be who was raised.
    pub fn is_another(&mut self, c: usize, voter: VoterId) {
        let raised = self.controllers[c].run.as_ref().and_then(|run| run.since.get(&voter.0).copied());
        let there = self.nodes[usize::from(voter.0)].since();
        if raised.is_some() && raised == there {
            self.violation.get_or_insert(format!("{voter:?} has forgotten the epoch that it was raised to"));
        }
    }

    /// Who was raised under this number was taken away, and another one made: what it has promised does not count, and what it answers
    /// after all says nothing.
    pub fn moved(&mut self, c: usize, voter: VoterId) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        run.asks.retain(|_, (of, ..)| *of != voter);
        if let Phase::Opening(opening, _) = &mut run.phase {
            opening.moved(voter, now);
            let anew = opening.epoch() != run.epoch;
            run.raised.remove(voter);
            self.counters.add("opening", "voters made anew", 1);
            if anew {
                self.stop(c, "who was counted is somebody else");
            }
        }
    }

    /// A controller that is about to open asks around who votes, or goes by what it remembers.
    pub fn look_for_seats(&mut self, c: usize, surely: bool) {
        let votes = self.nodes.iter().filter(|node| node.exists).filter_map(Node::vote);
        let newest = votes.filter(|vote| vote.epoch > 0).max_by_key(Vote::order);
        if let Some(newest) = newest.filter(|_| surely || self.rng.coin()) {
            self.controllers[c].known = newest.seating;
        }
    }

    /// A vote with other voters than the last one counts.
    pub fn changed_seats(&mut self, c: usize, seating: &Seating) {
        self.remember_seats(c, seating);
        if seating.is_joint() {
            return;
        }
        for node in 0..self.nodes.len() {
            // Some are forgotten, and go on to answer whoever asks.
            if !seating.voters.has(VoterId(node as u8)) && self.rng.coin() {
                self.nodes[node].remove();
            }
        }
    }

    /// A controller notes who votes, or does not come to it.
    pub fn remember_seats(&mut self, c: usize, seating: &Seating) {
        let noted = self.rng.coin();
        let Controller { known, .. } = &mut self.controllers[c];
        if noted {
            *known = *seating;
        }
    }
}
