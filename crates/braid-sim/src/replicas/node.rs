//! A node: the register of a voter on two blocks, its fence, and the replica behind it. What becomes of its process, and of its disk while that is
//! down, is in `older`.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::replica::{
    ConnectionId, Fence, FenceAction, Hello, Planted, Register, RegisterOf, Vote, is_of_older_copy, planted,
};
use braid_format::Uuid;
use braid_format::register::{REGISTER_BYTES, StoredRegister, register_slot};

use super::nature::MS;
use super::net::{Io, OfSnapshot, ToController, ToNode};
use super::older::Process;
use super::rollback::rolled_back;
use super::world::{Event, World};
use crate::rng::Rng;

pub type Place = Box<[u8; REGISTER_BYTES]>;

/// A replica's blocks, one word each, and which of them are dirty.
#[derive(Clone, Default)]
pub struct Store {
    /// Each with the number of its write.
    durable: Vec<(u64, u64)>,
    cached: BTreeMap<u16, (u64, u64)>,
    writes: u64,
    /// Durable before the data are begun.
    pub dirty: BTreeSet<u16>,
    /// What its label says of whom its dirty blocks are told against: where two say something else, they say nothing.
    pub line: u64,
    /// Durable: by number, and whether it has its name.
    snapshots: BTreeMap<u64, (Vec<u64>, bool)>,
}

impl Store {
    /// What a read finds.
    pub fn read(&self, block: u16) -> u64 {
        self.cached.get(&block).unwrap_or(&self.durable[usize::from(block)]).1
    }

    /// A snapshot that has its name.
    pub fn named(&self, id: u64) -> Option<Vec<u64>> {
        self.snapshots.get(&id).filter(|(_, named)| *named).map(|(content, _)| content.clone())
    }

    /// Does what is done to a snapshot. What was done before stays so.
    pub fn snapshot(&mut self, what: OfSnapshot) -> (u64, Vec<(u64, bool)>) {
        match what {
            OfSnapshot::Take(id) => {
                let content = (0..self.durable.len() as u16).map(|block| self.read(block)).collect();
                self.snapshots.entry(id).or_insert((content, false));
            }
            OfSnapshot::Name(id) | OfSnapshot::Hide(id) => {
                if let Some((_, named)) = self.snapshots.get_mut(&id) {
                    *named = matches!(what, OfSnapshot::Name(_));
                }
            }
            OfSnapshot::Remove(id) => drop(self.snapshots.remove(&id)),
            OfSnapshot::List => {
                return (0, self.snapshots.iter().map(|(id, (_, named))| (*id, *named)).collect());
            }
            OfSnapshot::Rollback(id, mark) => {
                let there = self.snapshots.contains_key(&id);
                if there {
                    self.roll_back(mark);
                }
                return (u64::from(there), Vec::new());
            }
            OfSnapshot::Read(id, block) => {
                let content = self.snapshots.get(&id).map_or(0, |(content, _)| content[usize::from(block)]);
                return (content, Vec::new());
            }
        }
        (0, Vec::new())
    }

    /// All of it is durable in one step.
    fn roll_back(&mut self, mark: u64) {
        self.cached.clear();
        let blocks = self.durable.len() as u16;
        for block in 0..blocks {
            self.writes += 1;
            self.durable[usize::from(block)] = (self.writes, rolled_back(mark, block));
        }
        if !planted(Planted::RollbackNotDirty) {
            self.dirty = (0..blocks).collect();
        }
    }

    pub fn write(&mut self, block: u16, value: u64) {
        self.writes += 1;
        self.cached.insert(block, (self.writes, value));
    }

    /// All of it is durable.
    pub fn flush(&mut self) {
        let cached = self.cached.clone();
        self.flushed(cached);
    }

    /// What was in the cache when a flush began is durable; a later flush may have ended before.
    fn flushed(&mut self, cached: BTreeMap<u16, (u64, u64)>) {
        for (block, written) in cached {
            let durable = &mut self.durable[usize::from(block)];
            *durable = (*durable).max(written);
            if self.cached.get(&block).is_some_and(|(number, _)| *number <= written.0) {
                self.cached.remove(&block);
            }
        }
    }

    /// Power is lost: of what was not flushed, and of what was under way, some is there.
    pub fn cut(&mut self, under: impl Iterator<Item = (u16, u64)>, rng: &mut Rng) {
        under.for_each(|(block, value)| {
            if rng.coin() {
                self.write(block, value);
            }
        });
        for (block, written) in std::mem::take(&mut self.cached) {
            if rng.coin() {
                self.durable[usize::from(block)] = written;
            }
        }
    }
}

/// An I/O that a disk has.
pub struct Under {
    id: ConnectionId,
    number: u64,
    pub io: Io,
    /// What a flush is to make durable.
    cached: BTreeMap<u16, (u64, u64)>,
}

/// A change of a register.
pub struct Writing {
    pub register: StoredRegister,
    /// Where it is still to be written, the next one last: two places, and two of the file beside the disk.
    pub left: Vec<usize>,
}

/// One voter's node.
pub struct Node {
    pub of: RegisterOf,
    /// It is a voter's: else nobody is answered.
    pub exists: bool,
    /// It has power, and its process runs.
    pub up: bool,
    /// Counted up with each loss of power, and with each loss that its process has noted.
    pub boot: u64,
    /// Two on the disk, and two of the file beside it.
    pub places: [Place; 4],
    generation: u64,
    /// What is being written.
    pub writing: Option<Writing>,
    /// Its process, and what becomes of its disk.
    pub process: Process,
    /// None while it starts, or is without power.
    pub fence: Option<Fence>,
    /// The replica; a witness has one that nobody uses.
    pub store: Store,
    /// Which controller's each connection is.
    pub connections: BTreeMap<u64, usize>,
    pub under: BTreeMap<u64, Under>,
    /// Until when its disk is slow.
    pub slow_until_ns: u64,
    /// How long what it is asked then may take, in milliseconds.
    pub slow_most_ms: u64,
    /// Who asked each question.
    pub asked_by: BTreeMap<u64, usize>,
}

/// A node's boot, as it says it.
pub fn boot_id(node: usize, boot: u64) -> Uuid {
    Uuid::from_u64_pair(node as u64 + 1, boot + 1)
}

impl Node {
    /// With the register that the volume was made with.
    pub fn new(of: RegisterOf, register: &Register, blocks: u16) -> Node {
        let bytes = Box::new(register.stored(&of, 1).encode());
        let boot = boot_id(usize::from(of.voter.0), 0);
        Node {
            of,
            exists: true,
            up: true,
            boot: 0,
            places: [(); 4].map(|()| bytes.clone()),
            generation: 1,
            writing: None,
            process: Process::of(register.vote.seating.replicas.has(of.voter)),
            fence: Some(Fence::new(*register, boot)),
            store: Store { durable: vec![(0, 0); usize::from(blocks)], ..Store::default() },
            connections: BTreeMap::new(),
            under: BTreeMap::new(),
            slow_until_ns: 0,
            slow_most_ms: 9000,
            asked_by: BTreeMap::new(),
        }
    }
}

impl Node {
    /// What it remembers, while it answers.
    pub fn vote(&self) -> Option<Vote> {
        self.fence.as_ref().map(|fence| fence.register().vote)
    }

    /// With which list it has come, while it answers.
    pub fn since(&self) -> Option<u64> {
        self.fence.as_ref().map(|fence| fence.register().since)
    }

    /// What it remembers, whether it answers or not.
    pub fn written(&self) -> Option<Register> {
        Register::of_stored(&self.newest()?, &self.of)
    }

    /// What counts of all that stands on its disk, and beside it.
    fn newest(&self) -> Option<StoredRegister> {
        let [first, second, noted, other] = &self.places;
        let found = StoredRegister::newest([first, second]).ok()?;
        let noted = StoredRegister::newest([noted, other]).ok().filter(|noted| noted.generation >= found.generation);
        let is_believed = self.process.notes && !planted(Planted::PromiseForgotten);
        Some(noted.filter(|_| is_believed).unwrap_or(found))
    }

    /// There is nothing of the voter any more.
    pub fn remove(&mut self) {
        self.exists = false;
        self.connections.clear();
        self.under.clear();
        self.asked_by.clear();
        self.process.forget_copies();
    }

    /// A voter is made here, with this register and nothing else; whatever there was is gone. The node has power.
    pub fn make_anew(&mut self, register: &Register, blocks: u16) {
        self.remove();
        let boot = boot_id(usize::from(self.of.voter.0), self.boot);
        let bytes = Box::new(register.stored(&self.of, 1).encode());
        let places = [(); 4].map(|()| bytes.clone());
        (self.exists, self.places, self.generation, self.writing) = (true, places, 1, None);
        self.process.is_replica = register.vote.seating.replicas.has(self.of.voter);
        self.fence = Some(Fence::new(*register, boot));
        self.store =
            Store { durable: vec![(0, 0); usize::from(blocks)], dirty: (0..blocks).collect(), ..Store::default() };
    }
}

impl World {
    /// A message has come to a node.
    pub fn at_node(&mut self, controller: usize, node: usize, what: ToNode) {
        let host = &mut self.nodes[node];
        if !host.exists {
            if let (true, ToNode::Hello { id, .. } | ToNode::Io(id, ..)) = (host.up, what) {
                self.reply(controller, node, ToController::Closed(id));
            }
            return;
        }
        let Some(fence) = &mut host.fence else {
            if let (true, ToNode::Hello { id, .. } | ToNode::Io(id, ..)) = (host.up, what) {
                self.reply(controller, node, ToController::Closed(id));
            }
            return;
        };
        match what {
            ToNode::Ask(number, ask) => {
                host.asked_by.insert(number, controller);
                fence.ask(number, ask);
            }
            ToNode::Hello { id, caller } => match fence.hello(id, &caller) {
                Hello::Refused(_) => self.reply(controller, node, ToController::Closed(id)),
                hello => {
                    host.connections.insert(id.0, controller);
                    if hello == Hello::Admitted {
                        let boot = fence.boot();
                        self.reply(controller, node, ToController::Met(id, boot));
                    } else {
                        self.counters.add("node", "sessions that wait", 1);
                    }
                }
            },
            ToNode::Io(id, number, io) => return self.begin(controller, node, id, number, io),
            ToNode::Close(id) => {
                host.connections.remove(&id.0);
                fence.closed(id);
            }
        }
        self.do_actions(node);
    }

    fn begin(&mut self, controller: usize, node: usize, id: ConnectionId, number: u64, io: Io) {
        let host = &mut self.nodes[node];
        let begun = host.connections.contains_key(&id.0) && host.fence.as_mut().is_some_and(|fence| fence.begin(id));
        if !begun {
            return self.reply(controller, node, ToController::Closed(id));
        }
        let (slow, slowest) = (host.slow_until_ns > self.now_ns, host.slow_most_ms);
        match &io {
            Io::Write(block, _) => host.store.dirty.extend([*block]),
            Io::Clean(blocks) => host.store.dirty.retain(|block| !blocks.contains(block)),
            _ => {}
        }
        let cached = if io == Io::Flush { host.store.cached.clone() } else { BTreeMap::new() };
        let latency = match io {
            Io::Clean(_) | Io::Dirty => 0,
            _ if slow => self.rng.between(100, slowest) * MS,
            _ => self.rng.between(self.nature.disk_ns / 10, self.nature.disk_ns),
        };
        let key = self.number();
        self.nodes[node].under.insert(key, Under { id, number, io, cached });
        let boot = self.nodes[node].boot;
        self.queue.push(self.now_ns + latency, Event::IoDone { node, boot, key });
    }

    /// A disk has done what it was asked.
    pub fn io_done(&mut self, node: usize, boot: u64, key: u64) {
        let host = &mut self.nodes[node];
        let Some(under) = host.under.remove(&key).filter(|_| host.boot == boot) else { return };
        let (mut value, mut dirty, mut listed) = (0, Vec::new(), Vec::new());
        match under.io {
            Io::Read(block) => value = host.store.read(block),
            Io::Write(block, value) => {
                host.store.write(block, value);
                if self.nature.seating.further > 0 {
                    // With parity all that is written is in a journal, durable, before it is answered.
                    host.store.flush();
                }
            }
            Io::Dirty => dirty = host.store.dirty.iter().copied().collect(),
            Io::Clean(_) => {}
            Io::Snapshot(what) => (value, listed) = host.store.snapshot(what),
            Io::Flush => host.store.flushed(under.cached),
        }
        if let Some(controller) = host.connections.get(&under.id.0).copied() {
            let done = ToController::Done { id: under.id, io: under.number, value, dirty, listed, boot };
            self.reply(controller, node, done);
        } else {
            self.counters.add("node", "I/O that ended without its connection", 1);
        }
        if let Some(fence) = &mut self.nodes[node].fence {
            fence.end(under.id);
        }
        self.do_actions(node);
    }

    /// Does what a fence wants.
    pub fn do_actions(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].fence.as_mut().and_then(Fence::pop) {
            let host = &mut self.nodes[node];
            match action {
                FenceAction::Write(register) => {
                    let stored = register.stored(&host.of, host.generation + 1);
                    let slot = register_slot(stored.generation);
                    self.write_places(node, stored, vec![slot, 1 - slot]);
                }
                FenceAction::Cut(id) => {
                    if let Some(controller) = host.connections.remove(&id.0) {
                        self.counters.add("node", "connections cut", 1);
                        self.reply(controller, node, ToController::Closed(id));
                    }
                }
                FenceAction::Admit(id) => {
                    let boot = host.fence.as_ref().map(Fence::boot).unwrap_or_default();
                    if let Some(controller) = host.connections.get(&id.0).copied() {
                        self.reply(controller, node, ToController::Met(id, boot));
                    }
                }
                FenceAction::Answer(number, answer) => {
                    if let Some(controller) = host.asked_by.remove(&number) {
                        self.reply(controller, node, ToController::Answer(number, answer));
                    }
                }
            }
        }
    }

    /// A register is to stand in these places, in this order, and in the file beside them.
    fn write_places(&mut self, node: usize, register: StoredRegister, order: Vec<usize>) {
        let process = &self.nodes[node].process;
        let beside = if process.notes && process.is_replica { vec![2, 3] } else { Vec::new() };
        let left = order.into_iter().chain(beside).rev().collect();
        self.nodes[node].writing = Some(Writing { register, left });
        self.write_place(node);
    }

    fn write_place(&mut self, node: usize) {
        let at = self.now_ns + self.rng.between(self.nature.disk_ns / 5, 2 * self.nature.disk_ns);
        let life = self.nodes[node].process.life;
        self.queue.push(at, Event::PlaceWritten { node, life });
    }

    /// One of the places of a register is written, and flushed.
    pub fn place_written(&mut self, node: usize, life: u64) {
        let host = &mut self.nodes[node];
        let Some(writing) = host.writing.as_mut().filter(|_| host.process.life == life) else { return };
        if let Some(place) = writing.left.pop() {
            *host.places[place] = writing.register.encode();
        }
        if !writing.left.is_empty() {
            return self.write_place(node);
        }
        let register = writing.register;
        (host.writing, host.generation) = (None, register.generation);
        let read = Register::of_stored(&register, &host.of).expect("it is of this voter");
        match &mut host.fence {
            Some(fence) => {
                fence.written(true);
                if read.vote.in_sync.has(host.of.voter) && read.boot == fence.boot() && is_of_older_copy(read.boot) {
                    host.process.is_believed();
                }
            }
            None => {
                // It had been mended at the start.
                let boot = host.process.boot_of(boot_id(node, host.boot), &read);
                host.fence = Some(Fence::new(read, boot));
            }
        }
        self.do_actions(node);
    }

    /// A node loses power: of what was not flushed, some is there.
    pub fn cut_power(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        if !host.up && !host.process.is_down {
            return;
        }
        self.trace.event(self.now_ns, format_args!("node {node} loses power"));
        self.history.cuts[node].push(host.process.loses_power(self.now_ns));
        (host.up, host.fence) = (false, None);
        host.connections.clear();
        let under: Vec<Under> = std::mem::take(&mut host.under).into_values().collect();
        for one in &under {
            if let Io::Snapshot(what) = one.io
                && self.rng.coin()
            {
                host.store.snapshot(what);
            }
        }
        let under = under.into_iter();
        let writes = under.filter_map(|under| match under.io {
            Io::Write(block, value) => Some((block, value)),
            _ => None,
        });
        host.store.cut(writes, &mut self.rng);
        if let Some(Writing { register, left }) = host.writing.take() {
            let place = &mut host.places[left.last().copied().unwrap_or_default()];
            // Sectors are whole or not; the block may be torn.
            for (old, new) in place.chunks_mut(512).zip(register.encode().chunks(512)) {
                if self.rng.coin() {
                    old.copy_from_slice(new);
                }
            }
            // All that is said stands in one sector: the tear must be seen there, too.
            if self.rng.coin() {
                place[100] ^= 0x55;
                self.counters.add("node", "torn registers", 1);
            }
        }
        host.boot += 1;
    }

    /// A node has power again. Its register is read, and mended where the two places differ.
    pub fn start_node(&mut self, node: usize) {
        if self.is_lost(node) {
            return;
        }
        let host = &mut self.nodes[node];
        if host.up {
            return;
        }
        if self.nature.older && !self.opens_pool(node) {
            return;
        }
        let host = &mut self.nodes[node];
        host.up = true;
        self.trace.event(self.now_ns, format_args!("node {node} has power"));
        let Some(register) = host.newest() else {
            self.violation.get_or_insert(format!("node {node} has forgotten its register"));
            return;
        };
        // The other place first: it is the one that does not count.
        let counts = register.encode();
        let first = usize::from(*host.places[1] != counts);
        let first = if *host.places[0] != counts { 0 } else { first };
        host.generation = register.generation;
        // As a change whose first place is the one that is right already, written last.
        let slot = register_slot(register.generation);
        let order = if slot == first { vec![slot, 1 - slot] } else { vec![first] };
        self.write_places(node, register, order);
    }

    /// One of two places of a register rots while its node is without power.
    pub fn rot_register(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let [first, second, ..] = &host.places;
        let whole = StoredRegister::decode(first).is_ok() && StoredRegister::decode(second).is_ok();
        if !host.up && host.exists && whole {
            host.places[self.rng.index(2)][self.rng.index(512)] ^= 1;
            self.counters.add("node", "registers rotted", 1);
        }
    }
}
