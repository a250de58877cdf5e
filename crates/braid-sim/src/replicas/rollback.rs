//! Rollback of a volume to a snapshot: all replicas but one are dropped, the volume is closed, and in the next epoch
//! that replica is rolled back in one step before any client is served. A replica that returns is synced with
//! everything that it holds then.
//!
//! For the oracle it is one write of every block. Each block gets a value of its own, so that its earlier content is
//! distinguished from the new one.

use braid_engine::replica::{MembershipAction, VoterId, Voters};

use super::bugs::{Bug, is_active};
use super::controller_state::{IoPurpose, Phase};
use super::history::Request;
use super::messages::{Io, SnapshotOp};
use super::parameters::SECOND;
use super::serving_state::{IoReply, Rollback};
use super::store::rolled_back;
use super::world::World;

impl World {
    /// Drops all other replicas, and has the volume closed.
    pub fn advance_rollback(&mut self, c: usize) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let Some(rollback) = serving.rollback else { return };
        let in_sync = serving.membership.in_sync();
        if !in_sync.has(rollback.keep) {
            serving.rollback = None;
            return self.counters.add("rollback", "given up", 1);
        }
        let others = in_sync.without(rollback.alone());
        if !others.is_empty() && !is_active(Bug::RolledBackBesideOthers) {
            return others.iter().for_each(|voter| self.fail_replica(c, voter, "another one is rolled back"));
        }
        if serving.membership.next_action() == MembershipAction::Nothing {
            serving.stopping = true;
        }
    }

    /// Handles the release by the serving controller: it opens the volume again, to roll it back.
    pub fn reopen_to_roll_back(&mut self, c: usize, rollback: Option<Rollback>) {
        let Some(rollback) = rollback else { return };
        self.controllers[c].rolls_back = Some(rollback);
        self.controllers[c].must_open = true;
        // The other controllers open the volume when they are ordered to, or when it stays closed.
        for other in (0..self.controllers.len()).filter(|other| *other != c) {
            self.controllers[other].retry_ns = self.controllers[other].retry_ns.max(self.clock(other) + 10 * SECOND);
        }
    }

    /// Performs a pending rollback before the replicas are made equal. Returns `false` while the opening must wait for
    /// it.
    pub fn roll_back_first(&mut self, c: usize, chosen: Voters) -> bool {
        let Some(run) = &mut self.controllers[c].run else { return false };
        if run.rolls_back.is_some() {
            return false;
        }
        let Some(rollback) = self.controllers[c].rolls_back.take() else { return true };
        if chosen != rollback.alone() && !is_active(Bug::RolledBackBesideOthers) {
            self.counters.add("rollback", "given up", 1);
            return true;
        }
        let Some(run) = &mut self.controllers[c].run else { return false };
        let Phase::Opening(opening, _) = &mut run.phase else { return false };
        opening.choose(chosen);
        run.rolls_back = Some(rollback.keep);
        self.event(format_args!("{c} rolls back: {rollback:?}"));
        let (begun, opened) = (self.now_ns, self.history.opened.len() as u64);
        for block in 0..self.parameters.blocks {
            let value = Some(rolled_back(rollback.mark, block));
            let (write, ended, holders, promoting_holders) = (true, None, Vec::new(), Vec::new());
            let request =
                Request { block: Some(block), value, write, opened, begun, ended, holders, promoting_holders };
            self.history.requests.push(request);
        }
        let io = Io::Snapshot(SnapshotOp::Rollback(rollback.id, rollback.mark));
        self.request_io(c, rollback.keep, io, IoPurpose::Rollback(rollback.mark));
        false
    }

    /// Handles the reply of the replica that was rolled back.
    pub fn handle_rolled_back(&mut self, c: usize, voter: VoterId, mark: u64, found: &IoReply) {
        let Some(run) = &mut self.controllers[c].run else { return };
        if run.rolls_back.take().is_none() {
            return;
        }
        if found.value == 0 {
            // Another controller has served since, and deleted the snapshot.
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
