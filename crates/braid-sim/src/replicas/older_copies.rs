//! The process of a node, which ends and restarts without its node, and disks that are replaced by older copies of
//! themselves meanwhile.
//!
//! A killed process leaves what it has acknowledged: the kernel of its disk holds it, or the shared memory of its pool,
//! unless that is lost, too. Then the boot stays the same, and everything in flight has ended, or never will, before
//! the next process begins. A process that ends in order has flushed everything, and its labels are clean.
//!
//! The node's table of sessions is the daemon's (`braid-pools/src/sessions.rs`), with each record durable before the next
//! step. By it the node detects an older copy. The replica then shows a boot that says so, until a vote names that boot with
//! the replica in sync. Granted votes are in a file beside the disk. What no node can know is not simulated: a copy
//! that was made while the pool served is not put back in that same session, unless the session has ended in order.

use braid_engine::replica::{ConnectionId, Register, Vote, VoterId, Voters};
use braid_format::Uuid;

use super::bugs::{Bug, is_active};
use super::controller_state::{Phase, Run};
use super::events::{Event, FaultEnd};
use super::messages::{Io, ToController};
use super::parameters::{MS, SECOND};
use super::process::{DiskCopy, Label, Process, SessionRecord};
use super::store::boot_id;
use super::world::World;

impl World {
    /// Ends the process of a node, or copies its disk.
    pub fn end_process(&mut self) {
        let next = self.now_ns + self.process_rng.between(self.parameters.calm_ns / 4, 2 * self.parameters.calm_ns);
        if next < self.parameters.faults_ns {
            self.queue.push(next, Event::FaultEnd(FaultEnd::ProcessEnd));
        }
        let node = self.process_rng.index(self.nodes.len());
        let host = &self.nodes[node];
        if !host.exists || !host.up {
            return;
        }
        if self.process_rng.below(5) == 0 {
            return self.copy_disk(node);
        }
        let in_order = self.process_rng.coin();
        self.stop_process(node, in_order);
        if self.process_rng.coin() {
            self.copy_disk(node);
        }
        let most = *self.process_rng.pick(&[20 * MS, SECOND, 8 * SECOND]);
        self.schedule_restart(node, most);
        // A controller runs in the process, too.
        if node < self.controllers.len() && self.process_rng.coin() {
            self.die(node);
        }
    }

    fn schedule_restart(&mut self, node: usize, most: u64) {
        let at = self.now_ns + self.process_rng.between(MS, most);
        self.queue.push(at, Event::FaultEnd(FaultEnd::Power(node)));
    }

    fn stop_process(&mut self, node: usize, in_order: bool) {
        let how = if in_order { "ends in order" } else { "is killed" };
        self.event(format_args!("the process of node {node} {how}"));
        self.counters.add("fault", if in_order { "processes ended in order" } else { "processes killed" }, 1);
        let further = self.parameters.config.extra_replicas;
        let host = &mut self.nodes[node];
        (host.up, host.fence) = (false, None);
        host.requested_by.clear();
        let connections = std::mem::take(&mut host.connections);
        for in_flight in std::mem::take(&mut host.in_flight).into_values() {
            // What has reached the disk is done; some of it has not.
            let reached = in_order || self.process_rng.coin();
            match in_flight.io {
                Io::Write(block, value) if reached && is_active(Bug::KilledUndrained) && !in_order => {
                    let at = self.now_ns + self.process_rng.between(MS, 2 * SECOND);
                    self.queue.push(at, Event::FaultEnd(FaultEnd::LateWrite(node, block, value)));
                }
                Io::Write(block, value) if reached => host.store.write(block, value),
                Io::Snapshot(what) if reached => drop(host.store.snapshot(what)),
                _ => {}
            }
        }
        if let Some(mut writing) = host.writing.take() {
            let reached = if in_order { usize::MAX } else { self.process_rng.index(2) };
            for copy in writing.left.drain(..).rev().take(reached) {
                *host.register_copies[copy] = writing.register.encode();
            }
        }
        let process = &mut host.process;
        (process.is_down, process.since_ns) = (true, self.now_ns);
        process.life += 1;
        if in_order || further > 0 {
            host.store.flush();
        }
        if in_order {
            (process.label.clean, process.memory_lost) = (true, false);
            // The process may be killed before it has recorded that.
            let recorded = self.process_rng.below(8) > 0;
            (process.record.closed, process.ended_in_order) = (recorded, recorded);
        } else if self.process_rng.below(4) == 0 {
            process.memory_lost = true;
            host.store.lose_cached(std::iter::empty(), &mut self.process_rng);
        }
        for (id, controller) in connections {
            self.reply(controller, node, ToController::Closed(ConnectionId(id)));
        }
    }

    /// Copies a disk as it would read after a loss of power.
    fn copy_disk(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let mut store = host.store.clone();
        store.lose_cached(std::iter::empty(), &mut self.process_rng);
        let Process { label, servings, ended_in_order, .. } = host.process;
        let register_copies = [host.register_copies[0].clone(), host.register_copies[1].clone()];
        host.process.copy = Some(DiskCopy { register_copies, store, label, serving: servings, of_end: ended_in_order });
        self.event(format_args!("the disk of node {node} is copied"));
    }

    /// Replaces the disk of a node that is down by its copy, perhaps.
    fn replace_by_copy(&mut self, node: usize) {
        let host = &self.nodes[node];
        let Some(copy) = &host.process.copy else { return };
        let (is_ours, is_calm) = (host.exists && host.process.is_replica, self.now_ns >= self.parameters.faults_ns);
        let is_unknowable = copy.serving == host.process.servings && (copy.of_end || !host.process.ended_in_order);
        if is_calm || !is_ours || is_unknowable || self.process_rng.coin() {
            return;
        }
        if !self.may_lose && !self.others_are_complete(Some(node)) {
            return;
        }
        self.event(format_args!("the disk of node {node} is exchanged for an older copy"));
        self.counters.add("fault", "disks exchanged for older copies", 1);
        let host = &mut self.nodes[node];
        let Some(copy) = &host.process.copy else { return };
        [host.register_copies[0], host.register_copies[1]] = copy.register_copies.clone();
        (host.store, host.process.label, host.process.replaced_by_copy) = (copy.store.clone(), copy.label, true);
    }

    /// Returns the boot that a replica shows, if the node's register is readable.
    fn shown_boot(&self, node: usize) -> Option<Uuid> {
        let host = &self.nodes[node];
        Some(host.process.boot_of(boot_id(node, host.boot), &host.stored_register()?))
    }

    /// Notes that a replica was synced from this source; its label records it. Whatever it was before, it holds
    /// everything that it has answered since under this boot.
    pub fn note_synced(&mut self, c: usize, source: VoterId, target: VoterId) {
        let Some(run) = &self.controllers[c].run else { return };
        let (node, boot) = (usize::from(target.0), run.peers[usize::from(target.0)].boot());
        if self.shown_boot(node) == Some(boot) {
            self.nodes[node].store.lineage = self.nodes[usize::from(source.0)].store.lineage;
            self.nodes[node].process.replaced_by_copy = false;
        }
    }

    /// Returns whether a disk is an older copy that was not synced since, and that no vote names in sync.
    fn is_older(&self, node: usize) -> bool {
        let host = &self.nodes[node];
        let is_named = |register: &Register| {
            register.vote.in_sync.has(host.of.voter) && Some(register.boot) == self.shown_boot(node)
        };
        host.process.replaced_by_copy && !host.stored_register().is_some_and(|register| is_named(&register))
    }

    /// Returns whether, for every vote that may be in effect, its in-sync replicas hold everything without older copies
    /// and without this node.
    fn others_are_complete(&self, without: Option<usize>) -> bool {
        let is_older = |voter: &VoterId| {
            let node = usize::from(voter.0);
            without == Some(node) || self.is_older(node)
        };
        let count = |vote: &Vote| vote.in_sync.iter().filter(|voter| !is_older(voter)).count();
        let written = self.nodes.iter().filter_map(|node| node.stored_register()).map(|register| register.vote);
        let mut may_count =
            written.filter(|vote| vote.order() >= self.effective_vote.order()).chain([self.effective_vote]);
        may_count.all(|vote| count(&vote) >= vote.config.replicas_needed())
    }

    /// Gives the replica a new boot, which it shows from now on.
    fn begin_boot(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.boot += 1;
        self.history.cuts[node].push(host.process.since_ns);
    }

    /// Starts the process of a node, which opens its pool. Returns `false` if the process was killed on the way.
    pub fn open_pool(&mut self, node: usize) -> bool {
        self.replace_by_copy(node);
        let is_calm = self.now_ns >= self.parameters.faults_ns;
        let killed_at = if is_calm || self.process_rng.below(6) > 0 { 4 } else { self.process_rng.below(4) };
        let process = &mut self.nodes[node].process;
        (process.is_down, process.sessions) = (true, process.sessions + 1);
        let (found, next, lost_memory) = (process.label, process.sessions, process.memory_lost);
        let fits = process.record.fits(found);
        // Until the label shows another session, the record of the session that ended in order is valid.
        let closed = found.clean && !is_active(Bug::EndForgotten);
        process.record = SessionRecord { session: found.session, next: Some(next), closed };
        if is_active(Bug::OlderMarkForgotten) {
            process.older = false;
        }
        if !fits && process.is_replica && !is_active(Bug::OlderTrusted) {
            process.older = true;
            self.begin_boot(node);
            self.counters.add("older", "copies known", 1);
            self.event(format_args!("node {node} finds an older copy"));
        }
        if killed_at == 0 {
            return self.kill_at_start(node);
        }
        self.nodes[node].process.label = Label { session: next, clean: false };
        if killed_at == 1 {
            return self.kill_at_start(node);
        }
        if lost_memory && !is_active(Bug::LossNotedLate) {
            self.note_loss(node);
        }
        self.nodes[node].process.record = SessionRecord { session: next, next: None, closed: false };
        if killed_at == 2 {
            return self.kill_at_start(node);
        }
        // From here on a lost write is of this session.
        let process = &mut self.nodes[node].process;
        (process.memory_lost, process.ended_in_order) = (false, false);
        process.servings += 1;
        if killed_at == 3 {
            return self.kill_at_start(node);
        }
        if lost_memory && is_active(Bug::LossNotedLate) {
            self.note_loss(node);
        }
        self.nodes[node].process.is_down = false;
        true
    }

    fn note_loss(&mut self, node: usize) {
        self.begin_boot(node);
        self.counters.add("older", "losses noted", 1);
    }

    fn kill_at_start(&mut self, node: usize) -> bool {
        self.counters.add("older", "starts that were killed", 1);
        self.nodes[node].process.life += 1;
        self.schedule_restart(node, SECOND);
        false
    }

    /// Carries out a write that an earlier process had submitted.
    pub fn late_write(&mut self, node: usize, block: u16, value: u64) {
        self.nodes[node].store.write(block, value);
    }

    /// Checks an opening that is about to use these replicas. Returns whether older copies are among them. That is
    /// allowed only if no other replicas hold everything. All earlier client writes may be lost then.
    pub fn uses_older_copies(&mut self, c: usize, chosen: Voters) -> bool {
        let Some(Run { phase: Phase::Opening(opening, _), .. }) = &self.controllers[c].run else { return false };
        let is_older = |voter: &VoterId| {
            let node = usize::from(voter.0);
            self.is_older(node) && self.shown_boot(node) == Some(opening.boot(*voter))
        };
        let older: Voters = chosen.iter().filter(is_older).collect();
        if older.is_empty() {
            return false;
        }
        let epoch = opening.epoch();
        if self.others_are_complete(None) {
            let mut written = self.nodes.iter().filter_map(|node| node.stored_register());
            if written.any(|register| register.epoch > epoch) {
                // A newer controller has appeared: it does not know that the older copies were voted in sync, and they
                // refuse it.
                return false;
            }
            let why = format!("controller {c} goes by older copies, {older:?} of {chosen:?}, where others know better");
            self.violation.get_or_insert(why);
        }
        self.event(format_args!("{c} goes by older copies: {older:?}"));
        self.counters.add("older", "openings by them", 1);
        self.history.note_older_copies(self.now_ns);
        self.controllers.iter_mut().for_each(|controller| controller.rolls_back = None);
        true
    }

    /// Notes a vote that is in effect for a controller.
    pub fn note_effective_vote(&mut self, vote: Vote) {
        if vote.order() > self.effective_vote.order() {
            self.effective_vote = vote;
        }
    }

    /// Begins a new lineage: these replicas are equal and no others are. Their dirty blocks say nothing about others.
    pub fn begin_lineage(&mut self, equal: Voters) {
        let lineage = self.number();
        equal.iter().for_each(|voter| self.nodes[usize::from(voter.0)].store.lineage = lineage);
    }
}
