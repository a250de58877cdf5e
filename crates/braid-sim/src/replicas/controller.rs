//! A controller: it opens the volume and serves it. This file has its requests to voters and its connections to
//! replicas.

use std::collections::BTreeMap;

use braid_engine::replica::{
    ConnectionId, ConnectionOrigin, LEASE_NS, Lease, MembershipAction, Opening, OpeningStep, VoterId, VoterRefusal,
    VoterReply, VoterRequest, Voters,
};
use braid_format::Uuid;

use super::bugs::{Bug, is_active};
use super::controller_state::{IoPurpose, Peer, Phase, Run};
use super::events::Event;
use super::messages::{Io, ToController, ToNode};
use super::parameters::{MS, SECOND};
use super::replica_copy::ReplicaCopy;
use super::serving_state::{IoReply, Serving};
use super::world::World;

/// A replica that has not replied to anything for this long is dropped.
const PROGRESS_NS: u64 = 5 * SECOND;
/// A connection that has carried nothing for this long is replaced.
const STALL_NS: u64 = 2 * SECOND;

impl World {
    /// Returns the time of a controller's monotonic clock.
    pub fn clock(&self, c: usize) -> u64 {
        let controller = &self.controllers[c];
        let skew = (i128::from(self.now_ns) * i128::from(controller.rate) / 1_000_000) as i64;
        (controller.offset_ns + self.now_ns).saturating_add_signed(skew)
    }

    /// Performs a controller's periodic work.
    pub fn tick(&mut self, c: usize) {
        let next = self.now_ns + self.rng.between(50, 150) * MS;
        self.queue.push(next, Event::Tick { controller: c, life: self.controllers[c].life });
        if self.controllers[c].run.is_none() {
            let none_runs = self.controllers.iter().all(|other| other.run.is_none());
            let controller = &self.controllers[c];
            let now = self.clock(c);
            if controller.may_open && (controller.must_open || none_runs && now >= controller.retry_ns) {
                self.open_volume(c);
            }
            return;
        }
        self.advance(c);
        if self.rng.coin() {
            self.ask_voters(c);
        }
        self.force_if_stuck(c);
    }

    fn open_volume(&mut self, c: usize) {
        let uuid = Uuid::from_u64_pair(0xc0 + c as u64, self.rng.bits() | 1);
        self.look_up_voters(c, self.now_ns > self.parameters.faults_ns);
        let opening = Opening::new(self.controllers[c].known_voters, uuid, self.rng.bits() | 1);
        self.controllers[c].list_version = self.controllers[c].known_voters.version;
        self.event(format_args!("{c} opens as {uuid}"));
        self.counters.add("controller", "openings begun", 1);
        self.begin_run(c, uuid, opening, false);
    }

    /// Begins a run with this opening.
    pub fn begin_run(&mut self, c: usize, uuid: Uuid, opening: Opening, forced: bool) {
        let now = self.clock(c);
        let nodes = self.nodes.len();
        let controller = &mut self.controllers[c];
        controller.must_open = false;
        controller.run = Some(Run {
            uuid,
            epoch: opening.epoch(),
            raised: Voters::NONE,
            since: BTreeMap::new(),
            lease: Lease::default(),
            asks: BTreeMap::new(),
            peers: (0..nodes).map(|_| Peer::default()).collect(),
            phase: Phase::Opening(Box::new(opening), None),
            begun_ns: now,
            forced,
            refusals: 0,
            rolls_back: None,
            fenced_ns: None,
        });
        self.ask_voters(c);
    }

    /// Ends a controller's run: the controller has died, was fenced, or must start again.
    pub fn stop(&mut self, c: usize, why: &'static str) {
        let Some(run) = self.controllers[c].run.take() else { return };
        self.event(format_args!("{c} stops: {why}"));
        self.counters.add("stopped", why, 1);
        for (node, peer) in run.peers.iter().enumerate() {
            if let Some(id) = peer.connection
                && !self.rng.chance(300_000)
            {
                self.send(c, node, ToNode::Close(id));
            }
        }
        // A controller that never served may release its epoch, too: that says nothing about the controller that did.
        if matches!(run.phase, Phase::Opening(..)) && self.controllers[c].up && self.rng.coin() {
            for node in 0..self.nodes.len() {
                let number = self.number();
                let release = VoterRequest::Release { epoch: run.epoch, controller: run.uuid };
                self.send(c, node, ToNode::Ask(number, release));
            }
        }
        let later = self.rng.between(100, 8000) * MS;
        self.controllers[c].retry_ns = self.clock(c) + later;
        self.abandon_clients(c);
    }

    /// Sends each voter the requests that are due.
    pub fn ask_voters(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let (epoch, controller) = (run.epoch, run.uuid);
        let beat = VoterRequest::Heartbeat { epoch, controller };
        let mut asks: Vec<(VoterId, VoterRequest)> = Vec::new();
        match &run.phase {
            Phase::Opening(opening, _) => {
                asks.extend(opening.unraised().iter().map(|voter| (voter, opening.raise_request())));
                if let OpeningStep::Cast(vote, voters) = opening.next(now) {
                    let cast = |voter| VoterRequest::Cast { epoch, controller, vote, boot: opening.boot(voter) };
                    asks.extend(voters.iter().map(|voter| (voter, cast(voter))));
                }
            }
            Phase::Serving(serving) => {
                let raise = VoterRequest::Raise { epoch, controller };
                let all = serving.membership.config().all();
                asks.extend(all.without(run.raised).iter().map(|voter| (voter, raise)));
                if let MembershipAction::Cast(vote, voters) = serving.membership.next_action() {
                    let cast =
                        |voter| VoterRequest::Cast { epoch, controller, vote, boot: serving.membership.boot(voter) };
                    asks.extend(voters.and(run.raised).iter().map(|voter| (voter, cast(voter))));
                }
            }
        }
        asks.extend(run.raised.iter().map(|voter| (voter, beat)));
        // A reply that has not come for this long never will.
        run.asks.retain(|_, (_, _, sent_at)| *sent_at + 60 * SECOND > now);
        for (voter, ask) in asks {
            if let VoterRequest::Cast { vote, .. } = ask {
                self.note_list(c, &vote.config);
            }
            let number = self.number();
            if let Some(run) = &mut self.controllers[c].run {
                run.asks.insert(number, (voter, ask, now));
            }
            self.send(c, usize::from(voter.0), ToNode::Ask(number, ask));
        }
    }

    /// Handles a message to a controller.
    pub fn handle_at_controller(&mut self, c: usize, voter: VoterId, what: ToController) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let node = usize::from(voter.0);
        match what {
            ToController::Answer(number, answer) => {
                let Some((voter, ask, sent_at)) = run.asks.remove(&number) else { return };
                self.handle_answer(c, voter, ask, sent_at, answer);
            }
            ToController::Admitted(id, boot) => {
                let peer = &mut run.peers[node];
                if peer.connection != Some(id) {
                    return;
                }
                (peer.admitted, peer.last_message_ns, peer.boot) = (true, now, boot);
                let failed = match &mut run.phase {
                    Phase::Opening(opening, _) => opening.boot(voter) != boot,
                    Phase::Serving(serving) => {
                        let before = serving.membership.in_sync();
                        serving.membership.connected(voter, boot);
                        before != serving.membership.in_sync()
                            || serving.membership.next_action() == MembershipAction::Frozen
                    }
                };
                if failed {
                    self.counters.add("controller", "reboots noticed", 1);
                    self.fail_replica(c, voter, "it has rebooted");
                }
                self.resend(c, voter);
            }
            ToController::Done { id, io, value, dirty, listed, boot } => {
                let peer = &mut run.peers[node];
                if peer.connection != Some(id) {
                    return;
                }
                (peer.progress_ns, peer.last_message_ns) = (now, now);
                if let Some((io, purpose)) = peer.outstanding.remove(&io) {
                    self.done(c, voter, purpose, IoReply { io, value, dirty, listed, boot });
                }
            }
            ToController::Closed(id) => {
                if run.peers[node].connection == Some(id) {
                    self.disconnect(c, voter, false);
                }
            }
        }
        self.advance(c);
    }

    fn handle_answer(
        &mut self,
        c: usize,
        voter: VoterId,
        ask: VoterRequest,
        sent_at: u64,
        answer: Result<VoterReply, VoterRefusal>,
    ) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let epoch = match ask {
            VoterRequest::Raise { epoch, .. }
            | VoterRequest::Cast { epoch, .. }
            | VoterRequest::Heartbeat { epoch, .. }
            | VoterRequest::Release { epoch, .. } => epoch,
        };
        if epoch != run.epoch {
            return;
        }
        match answer {
            Err(VoterRefusal { epoch: other }) if other < epoch => {
                if !is_active(Bug::MovedCounted) {
                    run.raised.remove(voter);
                    self.check_replaced(c, voter);
                    self.voter_replaced(c, voter);
                }
            }
            Err(VoterRefusal { epoch: other }) => {
                self.counters.add("controller", "refusals", 1);
                run.raised.remove(voter);
                match &mut run.phase {
                    Phase::Opening(opening, copying) => {
                        opening.refused(other);
                        if run.epoch != opening.epoch() {
                            (run.epoch, run.raised, *copying) = (opening.epoch(), Voters::NONE, None);
                            run.lease = Lease::default();
                            run.refusals += 1;
                            run.rolls_back = None;
                            let nodes = run.peers.len();
                            run.peers = (0..nodes).map(|_| Peer::default()).collect();
                        }
                        if run.refusals > 4 {
                            self.stop(c, "others are faster");
                        }
                    }
                    Phase::Serving(_) => drop(run.fenced_ns.get_or_insert(now)),
                }
                return;
            }
            Ok(answer) => {
                // A voter holds the member list of its vote, and sends it along.
                if let VoterReply::Raised { before, .. } = answer
                    && self.learn_list(c, before.vote.config.version).has(voter)
                {
                    return;
                }
                let Some(run) = &mut self.controllers[c].run else { return };
                run.lease.replied(voter, if is_active(Bug::LeaseFromAnswer) { now } else { sent_at });
                if let VoterReply::Raised { before, boot } = answer {
                    run.raised.insert(voter);
                    run.since.insert(voter.0, before.added_in_version);
                    if let Phase::Opening(opening, _) = &mut run.phase {
                        opening.raised(voter, epoch, before, boot, now);
                        self.aim_at_node(usize::from(voter.0));
                    }
                }
                let Some(run) = &mut self.controllers[c].run else { return };
                if let (VoterReply::Cast, VoterRequest::Cast { vote, .. }) = (answer, ask) {
                    match &mut run.phase {
                        Phase::Opening(opening, _) => opening.cast(voter, epoch),
                        Phase::Serving(serving) => {
                            let before = *serving.membership.settled();
                            serving.membership.cast(voter, vote.order());
                            let after = *serving.membership.settled();
                            if before != after {
                                let opened = serving.opened();
                                self.event(format_args!("{c} has votes for {after:?}"));
                                if !before.in_sync.without(after.in_sync).is_empty() {
                                    self.history.drops.push((self.now_ns, opened));
                                }
                                let promoted = after.in_sync.without(before.in_sync);
                                promoted.iter().for_each(|voter| self.history.promoted(opened, usize::from(voter.0)));
                                let kind = match (before.in_sync.count(), after.in_sync.count()) {
                                    (before, after) if before > after => "drops",
                                    (before, after) if before < after => "promotions",
                                    _ if after.config.is_joint() => "changes of voters",
                                    _ => "voters changed",
                                };
                                self.counters.add("votes", kind, 1);
                                self.note_effective_vote(after);
                                self.aim(c);
                                if before.config != after.config {
                                    self.voters_changed(c, &after.config);
                                }
                            }
                        }
                    }
                }
            }
        }
        self.advance(c);
    }

    /// Advances everything that can advance.
    pub fn advance(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &self.controllers[c].run else { return };
        if matches!(run.phase, Phase::Opening(..)) {
            self.advance_opening(c, now);
        }
        self.check_connections(c, now);
        let Some(run) = &self.controllers[c].run else { return };
        let fenced = run.fenced_ns.is_some_and(|since| now > since + 8 * SECOND);
        if !matches!(run.phase, Phase::Serving(_)) {
            return;
        }
        if fenced {
            return self.stop(c, "another one is answered");
        }
        if self.serve(c) == MembershipAction::Frozen {
            self.stop(c, "no replica is left");
        }
    }

    fn advance_opening(&mut self, c: usize, now: u64) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let forced = run.forced;
        let Phase::Opening(opening, copying) = &mut run.phase else { return };
        if now > run.begun_ns + 25 * SECOND {
            return self.stop(c, "it cannot be opened");
        }
        match opening.next(now) {
            OpeningStep::Ask(..) | OpeningStep::Cast(..) => {}
            OpeningStep::Wait(_, _, until) => {
                if now + LEASE_NS < until {
                    self.counters.add("opening", "waits for a lease", 1);
                }
            }
            OpeningStep::Missing(..) => self.counters.add("opening", "replicas are missing", 1),
            OpeningStep::Resync(chosen) => match copying {
                None => {
                    let uses_older = self.uses_older_copies(c, chosen);
                    if !self.roll_back_first(c, chosen) {
                        return;
                    }
                    let Some(run) = &mut self.controllers[c].run else { return };
                    let Phase::Opening(opening, _) = &mut run.phase else { return };
                    opening.choose(chosen);
                    let number = self.number();
                    let mut copies = ReplicaCopy::equal(number, chosen);
                    if uses_older {
                        copies = copies.with_all_blocks(self.parameters.blocks);
                    }
                    self.event(format_args!("{c} makes {chosen:?} equal"));
                    if let Some(Run { phase: Phase::Opening(_, copying), .. }) = &mut self.controllers[c].run {
                        *copying = Some(copies);
                    }
                    self.ask_voters(c);
                }
                Some(_) => {
                    if let Some(equal) = self.advance_resync(c) {
                        let Some(run) = &mut self.controllers[c].run else { return };
                        let Phase::Opening(opening, copying) = &mut run.phase else { return };
                        opening.resynced(equal);
                        let of_all = copying.take().is_some_and(|copying| copying.is_of_all());
                        if run.epoch != opening.epoch() {
                            return self.stop(c, "what it copied from has failed");
                        }
                        if of_all {
                            self.begin_lineage(equal);
                        }
                        self.ask_voters(c);
                    }
                }
            },
            OpeningStep::Open => {
                let Some(opened) = opening.opened() else { return };
                self.event(format_args!("{c} has opened {:?}", opened.vote));
                self.counters.add("controller", "openings", 1);
                if forced {
                    self.counters.add("force", "openings", 1);
                }
                self.history.opened.push((self.now_ns, opened.vote.epoch));
                self.note_effective_vote(opened.vote);
                let number = self.history.opened.len() as u64;
                let lineage = self.rng.bits() | 1;
                let mut serving = Serving::new(&self.parameters, &opened, number, lineage);
                self.record_voters(c, &opened.vote.config);
                if let Some(run) = &mut self.controllers[c].run {
                    // Sessions continue: a replica outside the in-sync set may have been admitted under another boot
                    // than it was raised under.
                    let met = run.peers.iter().enumerate().filter(|(_, peer)| peer.admitted);
                    met.for_each(|(node, peer)| serving.membership.connected(VoterId(node as u8), peer.boot));
                    run.phase = Phase::Serving(Box::new(serving));
                }
                self.aim(c);
            }
        }
    }

    /// Fails replicas that make no progress, and connects those that are not connected.
    fn check_connections(&mut self, c: usize, now: u64) {
        for node in 0..self.nodes.len() {
            let voter = VoterId(node as u8);
            let Some(run) = &self.controllers[c].run else { return };
            let peer = &run.peers[node];
            let waits = !peer.outstanding.is_empty();
            if waits && now > peer.progress_ns + PROGRESS_NS {
                self.counters.add("controller", "replicas without progress", 1);
                self.fail_replica(c, voter, "it makes no progress");
                self.disconnect(c, voter, true);
            } else if peer.connection.is_some()
                && (waits || !peer.admitted)
                && now > peer.last_message_ns.max(peer.connected_ns) + STALL_NS
            {
                self.disconnect(c, voter, true);
            }
            let Some(run) = &mut self.controllers[c].run else { return };
            let used = match &run.phase {
                Phase::Opening(_, Some(copying)) => copying.has(voter),
                Phase::Opening(_, None) => run.rolls_back == Some(voter),
                Phase::Serving(serving) => {
                    serving.membership.config().replicas.has(voter) || serving.membership.in_sync().has(voter)
                }
            };
            let peer = &mut run.peers[node];
            if peer.connection.is_none() && used && run.raised.has(voter) && now >= peer.retry_ns {
                // Attempts alternate between a new session and another connection of the same session.
                peer.attempt += 1;
                peer.session += peer.attempt % 2;
                let Peer { session, attempt, .. } = *peer;
                let caller =
                    ConnectionOrigin { epoch: run.epoch, controller: run.uuid, session, connection: 0, attempt };
                let id = ConnectionId(self.number());
                if let Some(run) = &mut self.controllers[c].run {
                    let peer = &mut run.peers[node];
                    (peer.connection, peer.admitted, peer.connected_ns) = (Some(id), false, now);
                }
                self.send(c, node, ToNode::Hello { id, caller });
            }
        }
    }

    /// Drops a connection. The outstanding I/Os are sent again on the next one.
    fn disconnect(&mut self, c: usize, voter: VoterId, tell: bool) {
        let later = self.clock(c) + self.rng.between(1, 300) * MS;
        let notify = tell && self.rng.coin();
        let Some(run) = &mut self.controllers[c].run else { return };
        let peer = &mut run.peers[usize::from(voter.0)];
        let Some(id) = peer.connection.take() else { return };
        (peer.admitted, peer.retry_ns) = (false, later);
        self.counters.add("controller", "connections lost", 1);
        if notify {
            self.send(c, usize::from(voter.0), ToNode::Close(id));
        }
        self.disconnect_in_copy(c, voter);
    }

    /// Requests an I/O of a replica. It is sent now, or once the connection is admitted.
    pub fn request_io(&mut self, c: usize, voter: VoterId, io: Io, purpose: IoPurpose) {
        let (number, now) = (self.number(), self.clock(c));
        let Some(run) = &mut self.controllers[c].run else { return };
        let peer = &mut run.peers[usize::from(voter.0)];
        if peer.outstanding.is_empty() {
            (peer.progress_ns, peer.last_message_ns) = (now, now);
        }
        peer.outstanding.insert(number, (io.clone(), purpose));
        if let (true, Some(id)) = (peer.admitted, peer.connection) {
            self.send(c, usize::from(voter.0), ToNode::Io(id, number, io));
        }
    }

    fn resend(&mut self, c: usize, voter: VoterId) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let peer = &mut run.peers[usize::from(voter.0)];
        // The note that blocks are clean is dropped rather than sent late.
        peer.outstanding.retain(|_, (io, _)| !matches!(io, Io::Clean(_)));
        let Some(id) = peer.connection else { return };
        let all: Vec<(u64, Io)> = peer.outstanding.iter().map(|(number, (io, _))| (*number, io.clone())).collect();
        if !all.is_empty() {
            self.counters.add("controller", "I/O sent again", all.len() as u64);
        }
        for (number, io) in all {
            self.send(c, usize::from(voter.0), ToNode::Io(id, number, io));
        }
    }

    /// Handles the failure of a replica: its outstanding I/Os are dropped.
    pub fn fail_replica(&mut self, c: usize, voter: VoterId, why: &'static str) {
        self.event(format_args!("{c} gives {voter:?} up: {why}"));
        let Some(run) = &mut self.controllers[c].run else { return };
        run.peers[usize::from(voter.0)].outstanding.clear();
        if let Phase::Serving(serving) = &mut run.phase {
            let before = serving.membership.in_sync();
            serving.membership.fail(voter);
            serving.round += 1;
            if before != serving.membership.in_sync() {
                serving.note_drop(voter, run.peers[usize::from(voter.0)].boot);
                self.aim(c);
            }
        }
        self.fail_in_copy(c, voter);
    }
}
