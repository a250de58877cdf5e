//! A controller: it opens the volume and serves it. Here are its questions to voters and its connections to replicas.

use std::collections::BTreeMap;

use braid_engine::replica::{
    Answer, Ask, Caller, ConnectionId, LEASE_NS, Lease, Next, Opening, Planted, Refused, Seating, VoterId, Voters,
    Wanted, planted,
};
use braid_format::Uuid;

use super::copying::Copying;
use super::nature::{MS, SECOND};
use super::net::{Io, ToController, ToNode};
use super::rollback::Rollback;
use super::serving::{Found, Serving};
use super::world::{Event, World};

/// A replica that has not answered anything for so long is dropped.
const PROGRESS_NS: u64 = 5 * SECOND;
/// A connection on which nothing comes for so long is given up for another one.
const STALL_NS: u64 = 2 * SECOND;

/// What somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// A request of a client.
    Client(usize),
    /// The flush of survivors, in this round of failures.
    Survivors(u64),
    /// A copy of this number.
    Copy(u64),
    /// A change of snapshots of this number.
    Snapshot(u64),
    /// Snapshots that are brought, under this number.
    Bringing(u64),
    /// A rollback of this number.
    Rollback(u64),
    /// Nobody.
    Nobody,
}

/// A replica, as a controller sees it.
#[derive(Default)]
pub struct Peer {
    connection: Option<ConnectionId>,
    /// I/O may be sent.
    met: bool,
    /// Under which boot of its node.
    boot: Uuid,
    session: u64,
    /// Counts its connections.
    attempt: u64,
    retry_ns: u64,
    connected_ns: u64,
    /// Everything that waits for an answer, in the order in which it was asked.
    waiting: BTreeMap<u64, (Io, For)>,
    /// When something was answered last, or was first waited for.
    progress_ns: u64,
    /// When anything came on the connection, or it began.
    heard_ns: u64,
}

impl Peer {
    /// Whether I/O is carried out.
    pub fn is_met(&self) -> bool {
        self.met
    }

    /// Under which boot of its node it was met.
    pub fn boot(&self) -> Uuid {
        self.boot
    }

    /// Nothing is waited for any more.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }

    /// Whether something is waited for on behalf of this.
    pub fn waits_for(&self, whom: For) -> bool {
        self.waiting.values().any(|(_, waits)| *waits == whom)
    }
}

/// What a controller is about with its epoch.
pub enum Phase {
    /// It opens the volume; the copies that make replicas equal.
    Opening(Box<Opening>, Option<Copying>),
    /// It serves it.
    Serving(Box<Serving>),
}

/// From the first question to the end of serving.
pub struct Run {
    /// Random.
    pub uuid: Uuid,
    pub epoch: u64,
    /// Who answers this epoch.
    pub raised: Voters,
    /// With which list each of them had come.
    pub since: BTreeMap<u8, u64>,
    pub lease: Lease,
    /// What was asked: of whom, what, and when by its own clock.
    pub asks: BTreeMap<u64, (VoterId, Ask, u64)>,
    pub peers: Vec<Peer>,
    pub phase: Phase,
    pub begun_ns: u64,
    /// It was opened by force, or is to be.
    pub forced: bool,
    refusals: u32,
    /// This replica is being rolled back.
    pub rolls_back: Option<VoterId>,
    /// Since when it knows of a higher epoch.
    fenced_ns: Option<u64>,
}

/// One controller.
pub struct Controller {
    pub up: bool,
    /// Counted up with each death.
    pub life: u64,
    pub paused_until_ns: u64,
    /// Of a million nanoseconds its clock shows so many more, or less; and what it shows at the beginning.
    pub rate: i64,
    pub offset_ns: u64,
    pub run: Option<Run>,
    /// When it tries to open, with nobody else there.
    pub retry_ns: u64,
    /// It is to open, whoever else may serve.
    pub told: bool,
    /// It may open at all.
    pub wanted: bool,
    /// Who votes, as it remembers.
    pub known: Seating,
    /// The newest list of places that it has heard of.
    pub list: u64,
    /// What is to be done at the next opening.
    pub rolls_back: Option<Rollback>,
}

impl Controller {
    /// What serves, if it does.
    pub fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.run {
            Some(Run { phase: Phase::Serving(serving), .. }) => Some(serving),
            _ => None,
        }
    }
}

impl World {
    /// A controller's clock, which nobody sets.
    pub fn clock(&self, c: usize) -> u64 {
        let controller = &self.controllers[c];
        let skew = (i128::from(self.now_ns) * i128::from(controller.rate) / 1_000_000) as i64;
        (controller.offset_ns + self.now_ns).saturating_add_signed(skew)
    }

    /// Time passes for a controller.
    pub fn tick(&mut self, c: usize) {
        let next = self.now_ns + self.rng.between(50, 150) * MS;
        self.queue.push(next, Event::Tick { controller: c, life: self.controllers[c].life });
        if self.controllers[c].run.is_none() {
            let nobody = self.controllers.iter().all(|other| other.run.is_none());
            let controller = &self.controllers[c];
            let now = self.clock(c);
            if controller.wanted && (controller.told || nobody && now >= controller.retry_ns) {
                self.open(c);
            }
            return;
        }
        self.advance(c);
        if self.rng.coin() {
            self.ask_voters(c);
        }
        self.force_if_stuck(c);
    }

    fn open(&mut self, c: usize) {
        let uuid = Uuid::from_u64_pair(0xc0 + c as u64, self.rng.bits() | 1);
        self.look_for_seats(c, self.now_ns > self.nature.faults_ns);
        let opening = Opening::new(self.controllers[c].known, uuid, self.rng.bits() | 1);
        self.controllers[c].list = self.controllers[c].known.version;
        self.event(format_args!("{c} opens as {uuid}"));
        self.counters.add("controller", "openings begun", 1);
        self.begin_run(c, uuid, opening, false);
    }

    /// Begins an opening.
    pub fn begin_run(&mut self, c: usize, uuid: Uuid, opening: Opening, forced: bool) {
        let now = self.clock(c);
        let nodes = self.nodes.len();
        let controller = &mut self.controllers[c];
        controller.told = false;
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

    /// A controller stops what it does: it is dead, or has been cut off, or has to begin anew.
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
        // Who never served may let go, too: it says nothing of whoever did.
        if matches!(run.phase, Phase::Opening(..)) && self.controllers[c].up && self.rng.coin() {
            for node in 0..self.nodes.len() {
                let number = self.number();
                let release = Ask::Release { epoch: run.epoch, controller: run.uuid };
                self.send(c, node, ToNode::Ask(number, release));
            }
        }
        let later = self.rng.between(100, 8000) * MS;
        self.controllers[c].retry_ns = self.clock(c) + later;
        self.abandon_clients(c);
    }

    /// Asks each voter what is to be asked of it now.
    pub fn ask_voters(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let (epoch, controller) = (run.epoch, run.uuid);
        let beat = Ask::Beat { epoch, controller };
        let mut asks: Vec<(VoterId, Ask)> = Vec::new();
        match &run.phase {
            Phase::Opening(opening, _) => {
                asks.extend(opening.unraised().iter().map(|voter| (voter, opening.ask())));
                if let Next::Cast(vote, voters) = opening.next(now) {
                    let cast = |voter| Ask::Cast { epoch, controller, vote, boot: opening.boot(voter) };
                    asks.extend(voters.iter().map(|voter| (voter, cast(voter))));
                }
            }
            Phase::Serving(serving) => {
                let raise = Ask::Raise { epoch, controller };
                let all = serving.membership.seating().all();
                asks.extend(all.without(run.raised).iter().map(|voter| (voter, raise)));
                if let Wanted::Cast(vote, voters) = serving.membership.wanted() {
                    let cast = |voter| Ask::Cast { epoch, controller, vote, boot: serving.membership.boot(voter) };
                    asks.extend(voters.and(run.raised).iter().map(|voter| (voter, cast(voter))));
                }
            }
        }
        asks.extend(run.raised.iter().map(|voter| (voter, beat)));
        // What was not answered for long never will be.
        run.asks.retain(|_, (_, _, asked)| *asked + 60 * SECOND > now);
        for (voter, ask) in asks {
            if let Ask::Cast { vote, .. } = ask {
                self.note_list(c, &vote.seating);
            }
            let number = self.number();
            if let Some(run) = &mut self.controllers[c].run {
                run.asks.insert(number, (voter, ask, now));
            }
            self.send(c, usize::from(voter.0), ToNode::Ask(number, ask));
        }
    }

    /// A message has come to a controller.
    pub fn at_controller(&mut self, c: usize, voter: VoterId, what: ToController) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let node = usize::from(voter.0);
        match what {
            ToController::Answer(number, answer) => {
                let Some((voter, ask, asked)) = run.asks.remove(&number) else { return };
                self.answered(c, voter, ask, asked, answer);
            }
            ToController::Met(id, boot) => {
                let peer = &mut run.peers[node];
                if peer.connection != Some(id) {
                    return;
                }
                (peer.met, peer.heard_ns, peer.boot) = (true, now, boot);
                let failed = match &mut run.phase {
                    Phase::Opening(opening, _) => opening.boot(voter) != boot,
                    Phase::Serving(serving) => {
                        let before = serving.membership.in_sync();
                        serving.membership.met(voter, boot);
                        before != serving.membership.in_sync() || serving.membership.wanted() == Wanted::Frozen
                    }
                };
                if failed {
                    self.counters.add("controller", "reboots noticed", 1);
                    self.failed(c, voter, "it has rebooted");
                }
                self.send_again(c, voter);
            }
            ToController::Done { id, io, value, dirty, listed, boot } => {
                let peer = &mut run.peers[node];
                if peer.connection != Some(id) {
                    return;
                }
                (peer.progress_ns, peer.heard_ns) = (now, now);
                if let Some((io, whom)) = peer.waiting.remove(&io) {
                    self.done(c, voter, whom, Found { io, value, dirty, listed, boot });
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

    fn answered(&mut self, c: usize, voter: VoterId, ask: Ask, asked: u64, answer: Result<Answer, Refused>) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let epoch = match ask {
            Ask::Raise { epoch, .. }
            | Ask::Cast { epoch, .. }
            | Ask::Beat { epoch, .. }
            | Ask::Release { epoch, .. } => epoch,
        };
        if epoch != run.epoch {
            return;
        }
        match answer {
            Err(Refused { epoch: other }) if other < epoch => {
                if !planted(Planted::MovedCounted) {
                    run.raised.remove(voter);
                    self.is_another(c, voter);
                    self.moved(c, voter);
                }
            }
            Err(Refused { epoch: other }) => {
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
                // Whoever has a vote has the list that it goes by, and sends it along.
                if let Answer::Raised { before, .. } = answer
                    && self.learn_list(c, before.vote.seating.version).has(voter)
                {
                    return;
                }
                let Some(run) = &mut self.controllers[c].run else { return };
                run.lease.heard(voter, if planted(Planted::LeaseFromAnswer) { now } else { asked });
                if let Answer::Raised { before, boot } = answer {
                    run.raised.insert(voter);
                    run.since.insert(voter.0, before.since);
                    if let Phase::Opening(opening, _) = &mut run.phase {
                        opening.raised(voter, epoch, before, boot, now);
                        self.aim_at_node(usize::from(voter.0));
                    }
                }
                let Some(run) = &mut self.controllers[c].run else { return };
                if let (Answer::Cast, Ask::Cast { vote, .. }) = (answer, ask) {
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
                                    _ if after.seating.is_joint() => "changes of voters",
                                    _ => "voters changed",
                                };
                                self.counters.add("votes", kind, 1);
                                self.counts(after);
                                self.aim(c);
                                if before.seating != after.seating {
                                    self.changed_seats(c, &after.seating);
                                }
                            }
                        }
                    }
                }
            }
        }
        self.advance(c);
    }

    /// Whatever can go on goes on.
    pub fn advance(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &self.controllers[c].run else { return };
        if matches!(run.phase, Phase::Opening(..)) {
            self.advance_opening(c, now);
        }
        self.connections(c, now);
        let Some(run) = &self.controllers[c].run else { return };
        let fenced = run.fenced_ns.is_some_and(|since| now > since + 8 * SECOND);
        if !matches!(run.phase, Phase::Serving(_)) {
            return;
        }
        if fenced {
            return self.stop(c, "another one is answered");
        }
        if self.serve(c) == Wanted::Frozen {
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
            Next::Ask(..) | Next::Cast(..) => {}
            Next::Wait(_, _, until) => {
                if now + LEASE_NS < until {
                    self.counters.add("opening", "waits for a lease", 1);
                }
            }
            Next::Missing(..) => self.counters.add("opening", "replicas are missing", 1),
            Next::MakeEqual(chosen) => match copying {
                None => {
                    let by_older = self.goes_by_older(c, chosen);
                    if !self.is_rolled_back(c, chosen) {
                        return;
                    }
                    let Some(run) = &mut self.controllers[c].run else { return };
                    let Phase::Opening(opening, _) = &mut run.phase else { return };
                    opening.choose(chosen);
                    let number = self.number();
                    let mut copies = Copying::equal(number, chosen);
                    if by_older {
                        copies = copies.wholly(self.nature.blocks);
                    }
                    self.event(format_args!("{c} makes {chosen:?} equal"));
                    if let Some(Run { phase: Phase::Opening(_, copying), .. }) = &mut self.controllers[c].run {
                        *copying = Some(copies);
                    }
                    self.ask_voters(c);
                }
                Some(_) => {
                    if let Some(equal) = self.advance_equal(c) {
                        let Some(run) = &mut self.controllers[c].run else { return };
                        let Phase::Opening(opening, copying) = &mut run.phase else { return };
                        opening.equal(equal);
                        let of_all = copying.take().is_some_and(|copying| copying.is_of_all());
                        if run.epoch != opening.epoch() {
                            return self.stop(c, "what it copied from has failed");
                        }
                        if of_all {
                            self.draws_line(equal);
                        }
                        self.ask_voters(c);
                    }
                }
            },
            Next::Open => {
                let Some(opened) = opening.opened() else { return };
                self.event(format_args!("{c} has opened {:?}", opened.vote));
                self.counters.add("controller", "openings", 1);
                if forced {
                    self.counters.add("force", "openings", 1);
                }
                self.history.opened.push((self.now_ns, opened.vote.epoch));
                self.counts(opened.vote);
                let number = self.history.opened.len() as u64;
                let lineage = self.rng.bits() | 1;
                let mut serving = Serving::new(&self.nature, &opened, number, lineage);
                self.remember_seats(c, &opened.vote.seating);
                if let Some(run) = &mut self.controllers[c].run {
                    // Sessions that go on: one that was left out may have been met under another boot than it was raised.
                    let met = run.peers.iter().enumerate().filter(|(_, peer)| peer.met);
                    met.for_each(|(node, peer)| serving.membership.met(VoterId(node as u8), peer.boot));
                    run.phase = Phase::Serving(Box::new(serving));
                }
                self.aim(c);
            }
        }
    }

    /// Whoever has made no progress has failed; whoever is not connected is connected.
    fn connections(&mut self, c: usize, now: u64) {
        for node in 0..self.nodes.len() {
            let voter = VoterId(node as u8);
            let Some(run) = &self.controllers[c].run else { return };
            let peer = &run.peers[node];
            let waits = !peer.waiting.is_empty();
            if waits && now > peer.progress_ns + PROGRESS_NS {
                self.counters.add("controller", "replicas without progress", 1);
                self.failed(c, voter, "it makes no progress");
                self.disconnect(c, voter, true);
            } else if peer.connection.is_some()
                && (waits || !peer.met)
                && now > peer.heard_ns.max(peer.connected_ns) + STALL_NS
            {
                self.disconnect(c, voter, true);
            }
            let Some(run) = &mut self.controllers[c].run else { return };
            let used = match &run.phase {
                Phase::Opening(_, Some(copying)) => copying.has(voter),
                Phase::Opening(_, None) => run.rolls_back == Some(voter),
                Phase::Serving(serving) => {
                    serving.membership.seating().replicas.has(voter) || serving.membership.in_sync().has(voter)
                }
            };
            let peer = &mut run.peers[node];
            if peer.connection.is_none() && used && run.raised.has(voter) && now >= peer.retry_ns {
                // In turn another session, and another connection of the same one.
                peer.attempt += 1;
                peer.session += peer.attempt % 2;
                let Peer { session, attempt, .. } = *peer;
                let caller = Caller { epoch: run.epoch, controller: run.uuid, session, lane: 0, attempt };
                let id = ConnectionId(self.number());
                if let Some(run) = &mut self.controllers[c].run {
                    let peer = &mut run.peers[node];
                    (peer.connection, peer.met, peer.connected_ns) = (Some(id), false, now);
                }
                self.send(c, node, ToNode::Hello { id, caller });
            }
        }
    }

    /// A connection is given up, or was closed. What waits is sent again on the next one.
    fn disconnect(&mut self, c: usize, voter: VoterId, tell: bool) {
        let later = self.clock(c) + self.rng.between(1, 300) * MS;
        let told = tell && self.rng.coin();
        let Some(run) = &mut self.controllers[c].run else { return };
        let peer = &mut run.peers[usize::from(voter.0)];
        let Some(id) = peer.connection.take() else { return };
        (peer.met, peer.retry_ns) = (false, later);
        self.counters.add("controller", "connections lost", 1);
        if told {
            self.send(c, usize::from(voter.0), ToNode::Close(id));
        }
        self.lost_while_copied(c, voter);
    }

    /// Asks a replica for an I/O, now or once it is met.
    pub fn ask_io(&mut self, c: usize, voter: VoterId, io: Io, whom: For) {
        let (number, now) = (self.number(), self.clock(c));
        let Some(run) = &mut self.controllers[c].run else { return };
        let peer = &mut run.peers[usize::from(voter.0)];
        if peer.waiting.is_empty() {
            (peer.progress_ns, peer.heard_ns) = (now, now);
        }
        peer.waiting.insert(number, (io.clone(), whom));
        if let (true, Some(id)) = (peer.met, peer.connection) {
            self.send(c, usize::from(voter.0), ToNode::Io(id, number, io));
        }
    }

    fn send_again(&mut self, c: usize, voter: VoterId) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let peer = &mut run.peers[usize::from(voter.0)];
        // That blocks are clean is forgotten rather than said late.
        peer.waiting.retain(|_, (io, _)| !matches!(io, Io::Clean(_)));
        let Some(id) = peer.connection else { return };
        let all: Vec<(u64, Io)> = peer.waiting.iter().map(|(number, (io, _))| (*number, io.clone())).collect();
        if !all.is_empty() {
            self.counters.add("controller", "I/O sent again", all.len() as u64);
        }
        for (number, io) in all {
            self.send(c, usize::from(voter.0), ToNode::Io(id, number, io));
        }
    }

    /// A replica has failed: nothing is waited for any more that it was asked.
    pub fn failed(&mut self, c: usize, voter: VoterId, why: &'static str) {
        self.event(format_args!("{c} gives {voter:?} up: {why}"));
        let Some(run) = &mut self.controllers[c].run else { return };
        run.peers[usize::from(voter.0)].waiting.clear();
        if let Phase::Serving(serving) = &mut run.phase {
            let before = serving.membership.in_sync();
            serving.membership.fail(voter);
            serving.round += 1;
            if before != serving.membership.in_sync() {
                serving.note_absence(voter, run.peers[usize::from(voter.0)].boot);
                self.aim(c);
            }
        }
        self.failed_while_copied(c, voter);
    }
}
