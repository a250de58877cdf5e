//! The process of a node, which ends and begins without its node; and disks that are exchanged for older copies of themselves meanwhile.
//!
//! A process that is killed leaves behind what it has acknowledged: its disk's kernel has it, or the shared memory of its pool, unless that is gone, too.
//! The boot stays, then, and all that was under way has ended, or never will, before the next process begins. One that ends in order has flushed
//! everything, and its labels are clean.
//!
//! What the node notes of the session that its labels bear is the daemon's table (`pools/sessions.rs`), each line durable before the next step. By that it
//! knows an older copy, and its replica shows a boot that says so, until a vote names that with the replica in sync. What was promised stands in a file
//! beside the disk. What nobody can know is not done: a copy that was made while the pool served is not put back in that same session, unless
//! that has ended in order.

use braid_engine::replica::{
    ConnectionId, Planted, Register, Vote, VoterId, Voters, boot_of_older_copy, boot_of_original, planted,
};
use braid_format::Uuid;

use super::controller::{Phase, Run};
use super::faults::End;
use super::nature::{MS, SECOND};
use super::net::{Io, ToController};
use super::node::{Place, Store, boot_id};
use super::world::{Event, World};

/// What the labels of a pool say.
#[derive(Clone, Copy, Default)]
struct Label {
    session: u64,
    clean: bool,
}

/// What the node has noted of them.
#[derive(Clone, Copy, Default)]
struct Noted {
    session: u64,
    /// That may stand there instead.
    next: Option<u64>,
    closed: bool,
}

impl Noted {
    fn fits(&self, found: Label) -> bool {
        let of_session = found.session == self.session && (found.clean || !self.closed);
        of_session || self.next == Some(found.session)
    }
}

/// A copy of a disk.
struct Copy {
    places: [Place; 2],
    store: Store,
    label: Label,
    /// Of which serving of the pool it is, or of the time after it.
    serving: u64,
    /// It was made after the end in order of that.
    of_end: bool,
}

/// A node's process, with what it has noted and what its disk's label says.
#[derive(Default)]
pub struct Process {
    /// It notes things beside its disk.
    pub notes: bool,
    /// What it keeps has data.
    pub is_replica: bool,
    /// Counted up with each end of a process.
    pub life: u64,
    /// There is power and no process.
    pub is_down: bool,
    since_ns: u64,
    label: Label,
    noted: Noted,
    /// The last number of a session that was used.
    sessions: u64,
    /// The shared memory of the session in which the pool served last is gone.
    memory_lost: bool,
    /// Noted: what the disk has is an older copy.
    older: bool,
    copy: Option<Copy>,
    /// How often the pool has begun to serve, and whether the last time has ended in order.
    servings: u64,
    ended_in_order: bool,
    /// What only this world knows: its disk is an older copy that nobody has filled, or voted for, since.
    pub exchanged: bool,
}

impl Process {
    /// That of a replica, or of a witness.
    pub fn of(is_replica: bool) -> Process {
        Process { is_replica, ..Process::default() }
    }

    /// Under which boot its replica is shown; `number`: that of the node.
    pub fn boot_of(&self, number: Uuid, register: &Register) -> Uuid {
        let older = boot_of_older_copy(number);
        if self.older || register.boot == older { older } else { boot_of_original(number) }
    }

    /// A vote says that its replica is in sync under the boot that it shows.
    pub fn is_believed(&mut self) {
        (self.older, self.exchanged) = (false, false);
    }

    /// What it keeps is somebody else's from now on, or nobody's.
    pub fn forget_copies(&mut self) {
        (self.older, self.exchanged, self.copy) = (false, false, None);
    }

    /// Its node loses power: when it lost what it had acknowledged.
    pub fn loses_power(&mut self, now_ns: u64) -> u64 {
        let lost_ns = if self.memory_lost { self.since_ns } else { now_ns };
        (self.memory_lost, self.is_down, self.since_ns) = (false, false, now_ns);
        self.life += 1;
        lost_ns
    }
}

impl World {
    /// The process of a node ends, or its disk is copied.
    pub fn end_of_process(&mut self) {
        let next = self.now_ns + self.of_older.between(self.nature.calm_ns / 4, 2 * self.nature.calm_ns);
        if next < self.nature.faults_ns {
            self.queue.push(next, Event::End(End::OfProcess));
        }
        let node = self.of_older.index(self.nodes.len());
        let host = &self.nodes[node];
        if !host.exists || !host.up {
            return;
        }
        if self.of_older.below(5) == 0 {
            return self.copy_disk(node);
        }
        let in_order = self.of_older.coin();
        self.stop_process(node, in_order);
        if self.of_older.coin() {
            self.copy_disk(node);
        }
        let most = *self.of_older.pick(&[20 * MS, SECOND, 8 * SECOND]);
        self.restarts(node, most);
        // It serves, too.
        if node < self.controllers.len() && self.of_older.coin() {
            self.die(node);
        }
    }

    fn restarts(&mut self, node: usize, most: u64) {
        let at = self.now_ns + self.of_older.between(MS, most);
        self.queue.push(at, Event::End(End::Power(node)));
    }

    fn stop_process(&mut self, node: usize, in_order: bool) {
        let how = if in_order { "ends in order" } else { "is killed" };
        self.event(format_args!("the process of node {node} {how}"));
        self.counters.add("fault", if in_order { "processes ended in order" } else { "processes killed" }, 1);
        let further = self.nature.seating.further;
        let host = &mut self.nodes[node];
        (host.up, host.fence) = (false, None);
        host.asked_by.clear();
        let connections = std::mem::take(&mut host.connections);
        for under in std::mem::take(&mut host.under).into_values() {
            // What the disk has of it is done; some it never got.
            let reached = in_order || self.of_older.coin();
            match under.io {
                Io::Write(block, value) if reached && planted(Planted::KilledUndrained) && !in_order => {
                    let at = self.now_ns + self.of_older.between(MS, 2 * SECOND);
                    self.queue.push(at, Event::End(End::LateWrite(node, block, value)));
                }
                Io::Write(block, value) if reached => host.store.write(block, value),
                Io::Snapshot(what) if reached => drop(host.store.snapshot(what)),
                _ => {}
            }
        }
        if let Some(mut writing) = host.writing.take() {
            let reached = if in_order { usize::MAX } else { self.of_older.index(2) };
            for place in writing.left.drain(..).rev().take(reached) {
                *host.places[place] = writing.register.encode();
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
            // It may be killed before it has noted that.
            let noted = self.of_older.below(8) > 0;
            (process.noted.closed, process.ended_in_order) = (noted, noted);
        } else if self.of_older.below(4) == 0 {
            process.memory_lost = true;
            host.store.cut(std::iter::empty(), &mut self.of_older);
        }
        for (id, controller) in connections {
            self.reply(controller, node, ToController::Closed(ConnectionId(id)));
        }
    }

    /// What stands on a disk now, as it is found after a loss of power.
    fn copy_disk(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let mut store = host.store.clone();
        store.cut(std::iter::empty(), &mut self.of_older);
        let Process { label, servings, ended_in_order, .. } = host.process;
        let places = [host.places[0].clone(), host.places[1].clone()];
        host.process.copy = Some(Copy { places, store, label, serving: servings, of_end: ended_in_order });
        self.event(format_args!("the disk of node {node} is copied"));
    }

    /// A copy takes the place of a disk whose node is down, sometimes.
    fn exchange(&mut self, node: usize) {
        let host = &self.nodes[node];
        let Some(copy) = &host.process.copy else { return };
        let (is_ours, is_calm) = (host.exists && host.process.is_replica, self.now_ns >= self.nature.faults_ns);
        let is_unknowable = copy.serving == host.process.servings && (copy.of_end || !host.process.ended_in_order);
        if is_calm || !is_ours || is_unknowable || self.of_older.coin() {
            return;
        }
        if !self.may_lose && !self.others_know_better(Some(node)) {
            return;
        }
        self.event(format_args!("the disk of node {node} is exchanged for an older copy"));
        self.counters.add("fault", "disks exchanged for older copies", 1);
        let host = &mut self.nodes[node];
        let Some(copy) = &host.process.copy else { return };
        [host.places[0], host.places[1]] = copy.places.clone();
        (host.store, host.process.label, host.process.exchanged) = (copy.store.clone(), copy.label, true);
    }

    /// Under which boot a replica is shown, if its node is there.
    fn shown(&self, node: usize) -> Option<Uuid> {
        let host = &self.nodes[node];
        Some(host.process.boot_of(boot_id(node, host.boot), &host.written()?))
    }

    /// A replica has been filled, from this one: so says its label. Whatever it was, it has all that it has answered since, under this boot.
    pub fn is_filled(&mut self, c: usize, source: VoterId, target: VoterId) {
        let Some(run) = &self.controllers[c].run else { return };
        let (node, boot) = (usize::from(target.0), run.peers[usize::from(target.0)].boot());
        if self.shown(node) == Some(boot) {
            self.nodes[node].store.line = self.nodes[usize::from(source.0)].store.line;
            self.nodes[node].process.exchanged = false;
        }
    }

    /// Whether a disk is an older copy, which was not filled since, and which no vote has called in sync.
    fn is_older(&self, node: usize) -> bool {
        let host = &self.nodes[node];
        let is_named =
            |register: &Register| register.vote.in_sync.has(host.of.voter) && Some(register.boot) == self.shown(node);
        host.process.exchanged && !host.written().is_some_and(|register| is_named(&register))
    }

    /// Whether those that are in sync by any vote that may count have everything without older copies, and without this one.
    fn others_know_better(&self, without: Option<usize>) -> bool {
        let is_older = |voter: &VoterId| {
            let node = usize::from(voter.0);
            without == Some(node) || self.is_older(node)
        };
        let count = |vote: &Vote| vote.in_sync.iter().filter(|voter| !is_older(voter)).count();
        let written = self.nodes.iter().filter_map(|node| node.written()).map(|register| register.vote);
        let mut may_count = written.filter(|vote| vote.order() >= self.counted.order()).chain([self.counted]);
        may_count.all(|vote| count(&vote) >= vote.seating.least())
    }

    /// What a replica shows from now on is another boot.
    fn begins_boot(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        host.boot += 1;
        self.history.cuts[node].push(host.process.since_ns);
    }

    /// The process of a node begins, and opens its pool. False: it was killed on its way.
    pub fn opens_pool(&mut self, node: usize) -> bool {
        self.exchange(node);
        let is_calm = self.now_ns >= self.nature.faults_ns;
        let killed_at = if is_calm || self.of_older.below(6) > 0 { 4 } else { self.of_older.below(4) };
        let process = &mut self.nodes[node].process;
        (process.is_down, process.sessions) = (true, process.sessions + 1);
        let (found, next, missed) = (process.label, process.sessions, process.memory_lost);
        let fits = process.noted.fits(found);
        // Until another one stands there, the one that has ended in order has.
        let closed = found.clean && !planted(Planted::EndForgotten);
        process.noted = Noted { session: found.session, next: Some(next), closed };
        if planted(Planted::OlderMarkForgotten) {
            process.older = false;
        }
        if !fits && process.is_replica && !planted(Planted::OlderBelieved) {
            process.older = true;
            self.begins_boot(node);
            self.counters.add("older", "copies known", 1);
            self.event(format_args!("node {node} finds an older copy"));
        }
        if killed_at == 0 {
            return self.killed_at_start(node);
        }
        self.nodes[node].process.label = Label { session: next, clean: false };
        if killed_at == 1 {
            return self.killed_at_start(node);
        }
        if missed && !planted(Planted::LossNotedLate) {
            self.notes_loss(node);
        }
        self.nodes[node].process.noted = Noted { session: next, next: None, closed: false };
        if killed_at == 2 {
            return self.killed_at_start(node);
        }
        // From here on what it misses is of this session.
        let process = &mut self.nodes[node].process;
        (process.memory_lost, process.ended_in_order) = (false, false);
        process.servings += 1;
        if killed_at == 3 {
            return self.killed_at_start(node);
        }
        if missed && planted(Planted::LossNotedLate) {
            self.notes_loss(node);
        }
        self.nodes[node].process.is_down = false;
        true
    }

    fn notes_loss(&mut self, node: usize) {
        self.begins_boot(node);
        self.counters.add("older", "losses noted", 1);
    }

    fn killed_at_start(&mut self, node: usize) -> bool {
        self.counters.add("older", "starts that were killed", 1);
        self.nodes[node].process.life += 1;
        self.restarts(node, SECOND);
        false
    }

    /// What an earlier process had asked for is done after all.
    pub fn late_write(&mut self, node: usize, block: u16, value: u64) {
        self.nodes[node].store.write(block, value);
    }

    /// An opening is about to go by these: whether older copies are among them. That may be only where nobody knows better; what clients had written
    /// before may be lost then, all of it.
    pub fn goes_by_older(&mut self, c: usize, chosen: Voters) -> bool {
        let Some(Run { phase: Phase::Opening(opening, _), .. }) = &self.controllers[c].run else { return false };
        let is_older = |voter: &VoterId| {
            let node = usize::from(voter.0);
            self.is_older(node) && self.shown(node) == Some(opening.boot(*voter))
        };
        let older: Voters = chosen.iter().filter(is_older).collect();
        if older.is_empty() {
            return false;
        }
        let epoch = opening.epoch();
        if self.others_know_better(None) {
            let mut written = self.nodes.iter().filter_map(|node| node.written());
            if written.any(|register| register.epoch > epoch) {
                // Somebody has come since: it does not know that they were voted for, and is refused by them.
                return false;
            }
            let why = format!("controller {c} goes by older copies, {older:?} of {chosen:?}, where others know better");
            self.violation.get_or_insert(why);
        }
        self.event(format_args!("{c} goes by older copies: {older:?}"));
        self.counters.add("older", "openings by them", 1);
        self.history.begins_anew(self.now_ns);
        self.controllers.iter_mut().for_each(|controller| controller.rolls_back = None);
        true
    }

    /// A vote has counted for somebody.
    pub fn counts(&mut self, vote: Vote) {
        if vote.order() > self.counted.order() {
            self.counted = vote;
        }
    }

    /// These hold the same, and nobody else does: what is dirty says nothing of others.
    pub fn draws_line(&mut self, equal: Voters) {
        let line = self.number();
        equal.iter().for_each(|voter| self.nodes[usize::from(voter.0)].store.line = line);
    }
}
