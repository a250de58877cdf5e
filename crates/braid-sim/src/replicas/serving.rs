//! Serving: client requests, written to all in-sync replicas and read from one, and replicas that fail and return.
//!
//! Requests for one block wait for each other, including reads: a read of a write that the other replicas do not hold
//! yet could be undone by an opening from another replica.

use std::collections::BTreeMap;

use braid_engine::replica::{MembershipAction, VoterId, VoterRequest, Voters, is_of_older_copy};

use super::bugs::{Bug, is_active};
use super::controller_state::{IoPurpose, Phase};
use super::events::Event;
use super::history::Request;
use super::messages::{Io, ToNode};
use super::parameters::MS;
use super::replica_copy::ReplicaCopy;
use super::serving_state::{IoReply, OpenRequest, VoterChange};
use super::snapshot_state::SnapshotChange;
use super::world::World;

impl World {
    /// Has a client make a request, if its controller serves.
    pub fn client(&mut self, client: usize) {
        let c = client % self.controllers.len();
        let later = self.now_ns + self.rng.between(1, self.parameters.think_ns);
        if self.clients[client].is_some() {
            return;
        }
        let is_paused = self.controllers[c].paused_until_ns > self.now_ns;
        if is_paused || self.controllers[c].serving().is_none_or(|serving| serving.stopping) {
            self.queue.push(later + 50 * MS, Event::Client(client));
            return;
        }
        let (any, value) =
            (self.rng.below(u64::from(self.parameters.blocks)) as u16, self.history.requests.len() as u64 + 1);
        let io = match self.final_reads.pop() {
            Some(read) => read.map_or(Io::Flush, Io::Read),
            None if self.rng.chance(self.parameters.flushes) => Io::Flush,
            None if self.rng.chance(self.parameters.writes[client]) => Io::Write(any, value),
            None => Io::Read(any),
        };
        let number = self.history.requests.len();
        let Some(serving) = self.controllers[c].serving() else { return };
        let (block, value) = match io {
            Io::Write(block, value) => (Some(block), Some(value)),
            Io::Read(block) => (Some(block), None),
            _ => (None, None),
        };
        let clean = serving.touched.difference(&serving.locks).copied().collect();
        let open = OpenRequest {
            number,
            io,
            client,
            begun: false,
            sent: Voters::NONE,
            done: Voters::NONE,
            boots: BTreeMap::new(),
            value: None,
            clean,
        };
        let request = Request {
            block,
            value,
            write: value.is_some(),
            opened: serving.opened,
            begun: self.now_ns,
            ended: None,
            holders: Vec::new(),
            promoting_holders: Vec::new(),
        };
        serving.requests.push(open);
        self.history.requests.push(request);
        self.clients[client] = Some(number);
        self.advance(c);
    }

    /// Abandons the outstanding requests of a controller's clients.
    pub fn abandon_clients(&mut self, c: usize) {
        for client in (0..self.clients.len()).filter(|client| client % self.controllers.len() == c) {
            if self.clients[client].take().is_some() {
                self.counters.add("client", "never answered", 1);
                self.queue.push(self.now_ns + 50 * MS, Event::Client(client));
            }
        }
    }

    /// Does what can be done. Returns what the membership wants.
    pub fn serve(&mut self, c: usize) -> MembershipAction {
        self.flush_survivors(c);
        self.advance_snapshots(c);
        self.begin_requests(c);
        self.end_requests(c);
        self.advance_voter_change(c);
        self.advance_rollback(c);
        self.begin_sync(c);
        self.advance_sync(c);
        self.release(c);
        self.controllers[c].serving().map_or(MembershipAction::Nothing, |serving| serving.membership.next_action())
    }

    fn flush_survivors(&mut self, c: usize) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        if let MembershipAction::Flush(voters) = serving.membership.next_action() {
            let purpose = IoPurpose::Survivors(serving.round);
            let is_requested = |voter: &VoterId| run.peers[usize::from(voter.0)].is_outstanding(purpose);
            let new: Vec<VoterId> = voters.iter().filter(|voter| !is_requested(voter)).collect();
            new.into_iter().for_each(|voter| self.request_io(c, voter, Io::Flush, purpose));
        }
    }

    fn begin_requests(&mut self, c: usize) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let (targets, in_sync, readable) =
            (serving.targets(), serving.membership.in_sync(), serving.membership.readable());
        let holds = serving.change.as_ref().is_some_and(SnapshotChange::holds);
        let beside = VoterId(c as u8);
        let (mut asks, mut written) = (Vec::new(), Vec::new());
        for open in &mut serving.requests {
            if let (false, Io::Write(block, _) | Io::Read(block)) = (open.begun, &open.io) {
                if holds || !serving.locks.insert(*block) {
                    continue;
                }
                if matches!(open.io, Io::Write(..)) {
                    serving.touched.insert(*block);
                    for dropped in serving.dropped.values_mut() {
                        dropped.missed_writes.insert(*block);
                    }
                    written.push(*block);
                }
            }
            open.begun = true;
            let voters = match open.io {
                Io::Write(..) => targets.without(open.sent),
                Io::Flush => in_sync.without(open.sent),
                _ if open.value.is_some() || !open.sent.and(readable).is_empty() => Voters::NONE,
                // The replica that the read was sent to was dropped: another one is read.
                _ if self.parameters.local && readable.has(beside) => [beside].into_iter().collect(),
                _ => {
                    let all: Vec<VoterId> = readable.iter().collect();
                    if all.is_empty() { Voters::NONE } else { [*self.rng.pick(&all)].into_iter().collect() }
                }
            };
            open.sent =
                if matches!(open.io, Io::Read(_)) && !voters.is_empty() { voters } else { open.sent.or(voters) };
            asks.extend(voters.iter().map(|voter| (voter, open.io.clone(), IoPurpose::Client(open.number))));
        }
        // A flush in flight does not cover what is written now.
        for open in &mut serving.requests {
            open.clean.retain(|block| !written.contains(block));
        }
        asks.into_iter().for_each(|(voter, io, purpose)| self.request_io(c, voter, io, purpose));
    }

    fn end_requests(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        let holds = run.lease.holds(serving.membership.lease_sets(), now);
        let (in_sync, targets) = (serving.membership.in_sync(), serving.targets());
        // A replica that is being promoted does not count: it is in sync once the promotion is in effect.
        let hold = serving.membership.readable();
        // A replica that is being synced is waited for as well: a later write of the block must not overtake this one
        // there.
        let is_done = |open: &OpenRequest| match open.io {
            Io::Read(_) => open.value.is_some(),
            _ => open.begun && in_sync.or(targets.and(open.sent)).without(open.done).is_empty(),
        };
        if !serving.requests.iter().any(is_done) {
            return;
        }
        if !holds || !serving.membership.may_answer() {
            self.counters.add(
                "client",
                if holds { "answers that wait for votes" } else { "answers without a lease" },
                1,
            );
            return;
        }
        let least = serving.membership.settled().config.replicas_needed();
        if in_sync.count() < least {
            let why = format!("controller {c} answers with {} replicas, and it takes {least}", in_sync.count());
            self.violation.get_or_insert(why);
        }
        let (done, rest) = std::mem::take(&mut serving.requests).into_iter().partition(is_done);
        serving.requests = rest;
        let whole = serving.is_whole();
        let (done, mut clean): (Vec<OpenRequest>, Vec<Vec<u16>>) = (done, Vec::new());
        for open in &done {
            match open.io {
                Io::Read(block) | Io::Write(block, _) => serving.locks.retain(|at| *at != block),
                _ if whole && !open.clean.is_empty() => {
                    serving.touched.retain(|block| !open.clean.contains(block));
                    clean.push(open.clean.iter().copied().collect());
                }
                _ => {}
            }
        }
        for open in done {
            let kind = match open.io {
                Io::Read(_) => "reads",
                Io::Write(..) => "writes",
                _ => "flushes",
            };
            let request = &mut self.history.requests[open.number];
            request.ended = Some(self.now_ns);
            request.value = request.value.or(open.value);
            let had = in_sync.iter().filter_map(|voter| Some((voter, *open.boots.get(&usize::from(voter.0))?)));
            let (holders, promoting_holders): (Vec<_>, Vec<_>) = had.partition(|(voter, _)| hold.has(*voter));
            let of_nodes =
                |had: Vec<(VoterId, u64)>| had.into_iter().map(|(v, boot)| (usize::from(v.0), boot)).collect();
            (request.holders, request.promoting_holders) = (of_nodes(holders), of_nodes(promoting_holders));
            let (block, value) = (request.block, request.value);
            self.trace.event(self.now_ns, format_args!("{c} answers {} {kind} {block:?} {value:?}", open.number));
            self.counters.add("client", kind, 1);
            self.clients[open.client] = None;
            let later = self.now_ns + self.rng.between(1, self.parameters.think_ns);
            self.queue.push(later, Event::Client(open.client));
        }
        for blocks in clean {
            self.counters.add("client", "blocks clean", blocks.len() as u64);
            in_sync.iter().for_each(|voter| self.request_io(c, voter, Io::Clean(blocks.clone()), IoPurpose::Nothing));
        }
        // Other requests may have waited for these blocks.
        self.begin_requests(c);
    }

    /// Handles the reply to an I/O.
    pub fn done(&mut self, c: usize, voter: VoterId, purpose: IoPurpose, found: IoReply) {
        match purpose {
            IoPurpose::Snapshot(number) => return self.snapshot_done(c, voter, number, found),
            IoPurpose::SnapshotCopy(number) => return self.handle_snapshot_copied(c, voter, number, found),
            IoPurpose::Rollback(mark) => return self.handle_rolled_back(c, voter, mark, &found),
            _ => {}
        }
        let IoReply { io, value, dirty, boot, .. } = found;
        let Some(run) = &mut self.controllers[c].run else { return };
        match (&mut run.phase, purpose) {
            (Phase::Serving(serving), IoPurpose::Client(number)) => {
                let Some(open) = serving.requests.iter_mut().find(|open| open.number == number) else { return };
                open.done.insert(voter);
                open.boots.insert(usize::from(voter.0), boot);
                if matches!(io, Io::Read(_)) && serving.membership.readable().has(voter) {
                    open.value.get_or_insert(value);
                }
            }
            (Phase::Serving(serving), IoPurpose::Survivors(round)) if round == serving.round => {
                serving.membership.flushed(voter);
                self.ask_voters(c);
            }
            (Phase::Opening(_, Some(copying)), IoPurpose::Copy(number)) if copying.number == number => {
                let asks = copying.done(voter, &io, value, &dirty);
                asks.into_iter().for_each(|(voter, io)| self.request_io(c, voter, io, purpose));
            }
            (Phase::Serving(serving), IoPurpose::Copy(number)) => {
                let Some(sync) = serving.sync.as_mut().filter(|sync| sync.number == number) else { return };
                let asks = sync.done(voter, &io, value, &dirty);
                asks.into_iter().for_each(|(voter, io)| self.request_io(c, voter, io, purpose));
            }
            _ => {}
        }
    }

    fn begin_sync(&mut self, c: usize) {
        let number = self.number();
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        let changes = serving.change.is_some() || serving.rollback.is_some() || serving.unsettled;
        if serving.sync.is_some()
            || changes
            || serving.membership.next_action() != MembershipAction::Nothing
            || serving.stopping
        {
            return;
        }
        let settled = serving.membership.settled().in_sync;
        let is_admitted = |voter: &VoterId| run.peers[usize::from(voter.0)].is_admitted();
        let replicas = serving.membership.settled().config.replicas;
        let stays = |voter: &VoterId| serving.voter_change != Some(VoterChange::Remove(*voter));
        let mut targets = replicas.without(settled).iter().filter(stays);
        let ends = targets.find(is_admitted).zip(settled.iter().find(is_admitted));
        let Some((target, source)) = ends else {
            serving.snapshot_copy = None;
            return;
        };
        if self.parameters.snapshots && !self.copy_snapshots(c, source, target) {
            return;
        }
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        // What was requested of the replica before it was dropped is not outstanding any more.
        run.peers[usize::from(target.0)].forget();
        serving.requests.iter_mut().for_each(|open| open.sent.remove(target));
        let written = serving.locks.clone();
        let boot = run.peers[usize::from(target.0)].boot();
        let is_older = is_of_older_copy(boot) && !is_active(Bug::OlderCaughtUp);
        let lineage = |voter: VoterId| self.nodes[usize::from(voter.0)].store.lineage;
        serving.sync = Some(match serving.dropped.get(&target.0).filter(|dropped| dropped.boot == boot) {
            Some(dropped) => {
                self.counters.add("fill", "of what was missed", 1);
                ReplicaCopy::delta(number, source, target, &written | &dropped.missed_writes)
            }
            // It is unknown in which blocks the replica differs.
            None if is_older || lineage(source) != lineage(target) => {
                self.counters.add("fill", "wholly", 1);
                ReplicaCopy::sync(number, source, target, written).with_all_blocks(self.parameters.blocks)
            }
            None => ReplicaCopy::sync(number, source, target, written),
        });
        self.event(format_args!("{c} fills {target:?} from {source:?}"));
        self.counters.add("fill", "begun", 1);
    }

    /// Releases the epoch of a controller that is to stop, once nothing is in flight.
    fn release(&mut self, c: usize) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let (epoch, controller) = (run.epoch, run.uuid);
        let Phase::Serving(serving) = &mut run.phase else { return };
        if !serving.stopping || !serving.requests.is_empty() || serving.change.is_some() {
            return;
        }
        serving.released += 1;
        let last = serving.released > 3;
        let rollback = serving.rollback.filter(|_| last);
        for node in 0..self.nodes.len() {
            let number = self.number();
            self.send(c, node, ToNode::Ask(number, VoterRequest::Release { epoch, controller }));
        }
        if last {
            self.counters.add("controller", "handovers", 1);
            self.stop(c, "it was told to");
            self.reopen_to_roll_back(c, rollback);
        }
    }
}
