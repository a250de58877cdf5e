//! Serving: requests of clients, written to all that are in sync and read from one, and what becomes of replicas that fail and return.
//!
//! Requests for one block wait for each other, reads too: a read that saw a write which nobody else has yet would be taken back by
//! whoever opens the volume from another replica.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::replica::{Ask, Membership, Opened, Planted, VoterId, Voters, Wanted, is_of_older_copy, planted};
use braid_format::Uuid;

use super::controller::{For, Phase};
use super::copying::Copying;
use super::history::Request;
use super::nature::{MS, Nature};
use super::net::{Io, ToNode};
use super::rollback::Rollback;
use super::seats::Wish;
use super::snapshots::{Bringing, Change};
use super::world::{Event, World};

/// A request that was not answered yet.
struct Open {
    /// Which one in the history.
    number: usize,
    io: Io,
    client: usize,
    /// It has its block.
    begun: bool,
    sent: Voters,
    done: Voters,
    /// Under which boot each had it done.
    boots: BTreeMap<usize, u64>,
    /// What a read found.
    value: Option<u64>,
    /// For a flush: what is clean when everybody has done it.
    clean: BTreeSet<u16>,
}

/// What came of an I/O.
pub struct Found {
    pub io: Io,
    /// Of a read.
    pub value: u64,
    /// Of a question for dirty blocks.
    pub dirty: Vec<u16>,
    /// Of a question for snapshots.
    pub listed: Vec<(u64, bool)>,
    /// Under which boot of the node.
    pub boot: u64,
}

/// A replica that was in sync in this opening, and is out.
pub struct Absent {
    /// Under which boot of its node it was in sync: under the same one it has kept all that it had answered.
    boot: Uuid,
    /// The blocks that were written since, or were under way.
    missed: BTreeSet<u16>,
}

/// A volume that is open.
pub struct Serving {
    pub membership: Membership,
    /// Who is to come or to go.
    pub wish: Option<Wish>,
    /// Counts the changes of voters that were begun.
    pub changes: u16,
    /// Which opening.
    opened: u64,
    requests: Vec<Open>,
    /// Blocks that somebody writes, reads or copies.
    pub locks: BTreeSet<u16>,
    /// Counted up with each failure.
    pub round: u64,
    pub fill: Option<Copying>,
    /// What is done to snapshots on all replicas.
    pub change: Option<Change>,
    /// It is to become as a snapshot is.
    pub rollback: Option<Rollback>,
    /// Those that may catch up.
    pub absent: BTreeMap<u8, Absent>,
    /// What a replica that is back lacks of them.
    pub bringing: Option<Bringing>,
    /// What the replicas have of them was not looked at yet.
    pub unsettled: bool,
    /// When the next one is to be taken, or to be deleted.
    pub snapshot_due_ns: u64,
    /// Blocks that were written since they were last said to be clean.
    touched: BTreeSet<u16>,
    /// It takes no requests any more, and is to let go.
    pub stopping: bool,
    released: u32,
}

impl Serving {
    /// From what was opened.
    pub fn new(nature: &Nature, opened: &Opened, number: u64, lineage: u64) -> Serving {
        Serving {
            membership: Membership::new(opened, lineage),
            wish: None,
            changes: 0,
            opened: number,
            requests: Vec::new(),
            locks: BTreeSet::new(),
            round: 0,
            fill: None,
            change: None,
            rollback: None,
            absent: BTreeMap::new(),
            bringing: None,
            unsettled: nature.snapshots,
            snapshot_due_ns: 0,
            touched: (0..nature.blocks).collect(),
            stopping: false,
            released: 0,
        }
    }

    /// All replicas are in sync, and everybody knows.
    pub fn is_whole(&self) -> bool {
        let settled = self.membership.settled();
        settled.in_sync == settled.seating.replicas
            && !settled.seating.is_joint()
            && self.membership.wanted() == Wanted::Nothing
            && self.wish.is_none()
            && self.change.is_none()
            && self.rollback.is_none()
            && !self.unsettled
    }

    /// Which opening it is.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    fn targets(&self) -> Voters {
        let early = self.bringing.as_ref().map_or(Voters::NONE, Bringing::targets);
        self.membership.in_sync().or(self.fill.as_ref().map_or(Voters::NONE, Copying::targets)).or(early)
    }

    /// One is left out that was in sync, under this boot.
    pub fn note_absence(&mut self, voter: VoterId, boot: Uuid) {
        self.absent.insert(voter.0, Absent { boot, missed: self.locks.clone() });
    }

    /// No request is under way that reads or writes.
    pub fn is_held(&self) -> bool {
        !self.requests.iter().any(|open| open.begun && matches!(open.io, Io::Read(_) | Io::Write(..)))
    }
}

impl World {
    /// A client asks something, where its controller serves.
    pub fn client(&mut self, client: usize) {
        let c = client % self.controllers.len();
        let later = self.now_ns + self.rng.between(1, self.nature.think_ns);
        if self.clients[client].is_some() {
            return;
        }
        let stands = self.controllers[c].paused_until_ns > self.now_ns;
        if stands || self.controllers[c].serving().is_none_or(|serving| serving.stopping) {
            self.queue.push(later + 50 * MS, Event::Client(client));
            return;
        }
        let (any, value) =
            (self.rng.below(u64::from(self.nature.blocks)) as u16, self.history.requests.len() as u64 + 1);
        let io = match self.last_wishes.pop() {
            Some(wish) => wish.map_or(Io::Flush, Io::Read),
            None if self.rng.chance(self.nature.flushes) => Io::Flush,
            None if self.rng.chance(self.nature.writes[client]) => Io::Write(any, value),
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
        let open = Open {
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
            hopefuls: Vec::new(),
        };
        serving.requests.push(open);
        self.history.requests.push(request);
        self.clients[client] = Some(number);
        self.advance(c);
    }

    /// What clients of a controller wait for is not answered any more.
    pub fn abandon_clients(&mut self, c: usize) {
        for client in (0..self.clients.len()).filter(|client| client % self.controllers.len() == c) {
            if self.clients[client].take().is_some() {
                self.counters.add("client", "never answered", 1);
                self.queue.push(self.now_ns + 50 * MS, Event::Client(client));
            }
        }
    }

    /// Does what can be done, and says what the members want.
    pub fn serve(&mut self, c: usize) -> Wanted {
        self.survivors(c);
        self.advance_snapshots(c);
        self.begin_requests(c);
        self.end_requests(c);
        self.advance_wish(c);
        self.advance_rollback(c);
        self.begin_fill(c);
        self.advance_fill(c);
        self.let_go(c);
        self.controllers[c].serving().map_or(Wanted::Nothing, |serving| serving.membership.wanted())
    }

    fn survivors(&mut self, c: usize) {
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        if let Wanted::Flush(voters) = serving.membership.wanted() {
            let whom = For::Survivors(serving.round);
            let asked = |voter: &VoterId| run.peers[usize::from(voter.0)].waits_for(whom);
            let new: Vec<VoterId> = voters.iter().filter(|voter| !asked(voter)).collect();
            new.into_iter().for_each(|voter| self.ask_io(c, voter, Io::Flush, whom));
        }
    }

    fn begin_requests(&mut self, c: usize) {
        let Some(serving) = self.controllers[c].serving() else { return };
        let (targets, in_sync, readable) =
            (serving.targets(), serving.membership.in_sync(), serving.membership.readable());
        let holds = serving.change.as_ref().is_some_and(Change::holds);
        let beside = VoterId(c as u8);
        let (mut asks, mut written) = (Vec::new(), Vec::new());
        for open in &mut serving.requests {
            if let (false, Io::Write(block, _) | Io::Read(block)) = (open.begun, &open.io) {
                if holds || !serving.locks.insert(*block) {
                    continue;
                }
                if matches!(open.io, Io::Write(..)) {
                    serving.touched.insert(*block);
                    for absent in serving.absent.values_mut() {
                        absent.missed.insert(*block);
                    }
                    written.push(*block);
                }
            }
            open.begun = true;
            let whom = match open.io {
                Io::Write(..) => targets.without(open.sent),
                Io::Flush => in_sync.without(open.sent),
                _ if open.value.is_some() || !open.sent.and(readable).is_empty() => Voters::NONE,
                // Whom it was sent to is out: another one.
                _ if self.nature.local && readable.has(beside) => [beside].into_iter().collect(),
                _ => {
                    let all: Vec<VoterId> = readable.iter().collect();
                    if all.is_empty() { Voters::NONE } else { [*self.rng.pick(&all)].into_iter().collect() }
                }
            };
            open.sent = if matches!(open.io, Io::Read(_)) && !whom.is_empty() { whom } else { open.sent.or(whom) };
            asks.extend(whom.iter().map(|voter| (voter, open.io.clone(), For::Client(open.number))));
        }
        // A flush that is under way says nothing of what is written now.
        for open in &mut serving.requests {
            open.clean.retain(|block| !written.contains(block));
        }
        asks.into_iter().for_each(|(voter, io, whom)| self.ask_io(c, voter, io, whom));
    }

    fn end_requests(&mut self, c: usize) {
        let now = self.clock(c);
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        let holds = run.lease.holds(serving.membership.lease_sets(), now);
        let (in_sync, targets) = (serving.membership.in_sync(), serving.targets());
        // Not who is being promoted: it is in sync when that counts.
        let hold = serving.membership.readable();
        // Who is being filled is waited for as well: a later write of the block must not overtake this one there.
        let is_done = |open: &Open| match open.io {
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
        let least = serving.membership.settled().seating.least();
        if in_sync.count() < least {
            let why = format!("controller {c} answers with {} replicas, and it takes {least}", in_sync.count());
            self.violation.get_or_insert(why);
        }
        let (done, rest) = std::mem::take(&mut serving.requests).into_iter().partition(is_done);
        serving.requests = rest;
        let whole = serving.is_whole();
        let (done, mut clean): (Vec<Open>, Vec<Vec<u16>>) = (done, Vec::new());
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
            let (holders, hopefuls): (Vec<_>, Vec<_>) = had.partition(|(voter, _)| hold.has(*voter));
            let of_nodes =
                |had: Vec<(VoterId, u64)>| had.into_iter().map(|(v, boot)| (usize::from(v.0), boot)).collect();
            (request.holders, request.hopefuls) = (of_nodes(holders), of_nodes(hopefuls));
            let (block, value) = (request.block, request.value);
            self.trace.event(self.now_ns, format_args!("{c} answers {} {kind} {block:?} {value:?}", open.number));
            self.counters.add("client", kind, 1);
            self.clients[open.client] = None;
            let later = self.now_ns + self.rng.between(1, self.nature.think_ns);
            self.queue.push(later, Event::Client(open.client));
        }
        for blocks in clean {
            self.counters.add("client", "blocks clean", blocks.len() as u64);
            in_sync.iter().for_each(|voter| self.ask_io(c, voter, Io::Clean(blocks.clone()), For::Nobody));
        }
        // Others may have waited for these blocks.
        self.begin_requests(c);
    }

    /// An I/O is done.
    pub fn done(&mut self, c: usize, voter: VoterId, whom: For, found: Found) {
        match whom {
            For::Snapshot(number) => return self.snapshot_done(c, voter, number, found),
            For::Bringing(number) => return self.brought(c, voter, number, found),
            For::Rollback(mark) => return self.was_rolled_back(c, voter, mark, &found),
            _ => {}
        }
        let Found { io, value, dirty, boot, .. } = found;
        let Some(run) = &mut self.controllers[c].run else { return };
        match (&mut run.phase, whom) {
            (Phase::Serving(serving), For::Client(number)) => {
                let Some(open) = serving.requests.iter_mut().find(|open| open.number == number) else { return };
                open.done.insert(voter);
                open.boots.insert(usize::from(voter.0), boot);
                if matches!(io, Io::Read(_)) && serving.membership.readable().has(voter) {
                    open.value.get_or_insert(value);
                }
            }
            (Phase::Serving(serving), For::Survivors(round)) if round == serving.round => {
                serving.membership.flushed(voter);
                self.ask_voters(c);
            }
            (Phase::Opening(_, Some(copying)), For::Copy(number)) if copying.number == number => {
                let asks = copying.done(voter, &io, value, &dirty);
                asks.into_iter().for_each(|(voter, io)| self.ask_io(c, voter, io, whom));
            }
            (Phase::Serving(serving), For::Copy(number)) => {
                let Some(fill) = serving.fill.as_mut().filter(|fill| fill.number == number) else { return };
                let asks = fill.done(voter, &io, value, &dirty);
                asks.into_iter().for_each(|(voter, io)| self.ask_io(c, voter, io, whom));
            }
            _ => {}
        }
    }

    fn begin_fill(&mut self, c: usize) {
        let number = self.number();
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        let changes = serving.change.is_some() || serving.rollback.is_some() || serving.unsettled;
        if serving.fill.is_some() || changes || serving.membership.wanted() != Wanted::Nothing || serving.stopping {
            return;
        }
        let settled = serving.membership.settled().in_sync;
        let is_met = |voter: &VoterId| run.peers[usize::from(voter.0)].is_met();
        let replicas = serving.membership.settled().seating.replicas;
        let stays = |voter: &VoterId| serving.wish != Some(Wish::Goes(*voter));
        let mut targets = replicas.without(settled).iter().filter(stays);
        let ends = targets.find(is_met).zip(settled.iter().find(is_met));
        let Some((target, source)) = ends else {
            serving.bringing = None;
            return;
        };
        if self.nature.snapshots && !self.bring(c, source, target) {
            return;
        }
        let Some(run) = &mut self.controllers[c].run else { return };
        let Phase::Serving(serving) = &mut run.phase else { return };
        // What was asked of it before it was lost is not.
        run.peers[usize::from(target.0)].forget();
        serving.requests.iter_mut().for_each(|open| open.sent.remove(target));
        let written = serving.locks.clone();
        let boot = run.peers[usize::from(target.0)].boot();
        let is_older = is_of_older_copy(boot) && !planted(Planted::OlderCaughtUp);
        let line = |voter: VoterId| self.nodes[usize::from(voter.0)].store.line;
        serving.fill = Some(match serving.absent.get(&target.0).filter(|absent| absent.boot == boot) {
            Some(absent) => {
                self.counters.add("fill", "of what was missed", 1);
                Copying::catch_up(number, source, target, &written | &absent.missed)
            }
            // What it has differs in nobody knows what.
            None if is_older || line(source) != line(target) => {
                self.counters.add("fill", "wholly", 1);
                Copying::fill(number, source, target, written).wholly(self.nature.blocks)
            }
            None => Copying::fill(number, source, target, written),
        });
        self.event(format_args!("{c} fills {target:?} from {source:?}"));
        self.counters.add("fill", "begun", 1);
    }

    /// Who is to stop says so to the voters, once nothing is under way.
    fn let_go(&mut self, c: usize) {
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
            self.send(c, node, ToNode::Ask(number, Ask::Release { epoch, controller }));
        }
        if last {
            self.counters.add("controller", "handovers", 1);
            self.stop(c, "it was told to");
            self.closed_to_roll_back(c, rollback);
        }
    }
}
