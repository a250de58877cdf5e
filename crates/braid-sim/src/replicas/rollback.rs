//! A volume becomes as one of its snapshots is: all replicas but one are left out, the volume is closed, and before anybody is served in the
//! next epoch that one is rolled back, in one step. Whoever comes back is filled with all that it is then.
//!
//! To whoever judges it is one write of every block: each gets a value of its own, so that what it was before is told from what it is.

use braid_engine::replica::{Planted, VoterId, Voters, Wanted, planted};

use super::controller::{For, Phase};
use super::history::Request;
use super::nature::SECOND;
use super::net::{Io, OfSnapshot};
use super::serving::Found;
use super::world::World;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Rollback {
    /// The snapshot.
    pub id: u64,
    /// The replica that is rolled back.
    pub keep: VoterId,
    /// Which rollback: nobody has the number of another one.
    pub mark: u64,
}

/// What a block is after a rollback.
pub fn rolled_back(mark: u64, block: u16) -> u64 {
    mark << 32 | u64::from(block)
}

impl Rollback {
    fn alone(&self) -> Voters {
        [self.keep].into_iter().collect()
    }
}

impl World {
    /// Leaves all others out, and has the volume closed.
    pub fn advance_rollback(&mut self, c: usize) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let Some(rollback) = serving.rollback else { return };
        let in_sync = serving.membership.in_sync();
        if !in_sync.has(rollback.keep) {
            serving.rollback = None;
            return self.counters.add("rollback", "given up", 1);
        }
        let others = in_sync.without(rollback.alone());
        if !others.is_empty() && !planted(Planted::RolledBackBesideOthers) {
            return others.iter().for_each(|voter| self.failed(c, voter, "another one is rolled back"));
        }
        if serving.membership.wanted() == Wanted::Nothing {
            serving.stopping = true;
        }
    }

    /// Who serves has let go: it opens the volume again, to roll it back.
    pub fn closed_to_roll_back(&mut self, c: usize, rollback: Option<Rollback>) {
        let Some(rollback) = rollback else { return };
        self.controllers[c].rolls_back = Some(rollback);
        self.controllers[c].told = true;
        // Others open it when they are told to, or when it stays closed.
        for other in (0..self.controllers.len()).filter(|other| *other != c) {
            self.controllers[other].retry_ns = self.controllers[other].retry_ns.max(self.clock(other) + 10 * SECOND);
        }
    }

    /// Before the replicas are made equal. False: that waits.
    pub fn is_rolled_back(&mut self, c: usize, chosen: Voters) -> bool {
        let Some(run) = &mut self.controllers[c].run else { return false };
        if run.rolls_back.is_some() {
            return false;
        }
        let Some(rollback) = self.controllers[c].rolls_back.take() else { return true };
        if chosen != rollback.alone() && !planted(Planted::RolledBackBesideOthers) {
            self.counters.add("rollback", "given up", 1);
            return true;
        }
        let Some(run) = &mut self.controllers[c].run else { return false };
        let Phase::Opening(opening, _) = &mut run.phase else { return false };
        opening.choose(chosen);
        run.rolls_back = Some(rollback.keep);
        self.event(format_args!("{c} rolls back: {rollback:?}"));
        let (begun, opened) = (self.now_ns, self.history.opened.len() as u64);
        for block in 0..self.nature.blocks {
            let value = Some(rolled_back(rollback.mark, block));
            let (write, ended, holders, hopefuls) = (true, None, Vec::new(), Vec::new());
            let request = Request { block: Some(block), value, write, opened, begun, ended, holders, hopefuls };
            self.history.requests.push(request);
        }
        let io = Io::Snapshot(OfSnapshot::Rollback(rollback.id, rollback.mark));
        self.ask_io(c, rollback.keep, io, For::Rollback(rollback.mark));
        false
    }

    /// The replica has been rolled back.
    pub fn was_rolled_back(&mut self, c: usize, voter: VoterId, mark: u64, found: &Found) {
        let Some(run) = &mut self.controllers[c].run else { return };
        if run.rolls_back.take().is_none() {
            return;
        }
        if found.value == 0 {
            // Somebody else has served since, and deleted the snapshot.
            return self.counters.add("rollback", "without its snapshot", 1);
        }
        self.counters.add("rollback", "done", 1);
        let (now, holder) = (self.now_ns, (usize::from(voter.0), found.boot));
        let of_this = |request: &&mut Request| {
            request.write && request.block.is_some_and(|block| request.value == Some(rolled_back(mark, block)))
        };
        for request in self.history.requests.iter_mut().filter(of_this) {
            (request.ended, request.holders) = (Some(now), vec![holder]);
        }
    }
}
