//! Clients: connections that read, write, zero, discard and flush, each on a shard of its own choice.
//!
//! Several connections of one device write the same few hot spots, so that writes overlap, and flush
//! each other's writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_engine::io::{Buf, Completion, DeviceId, ErrorKind, Flags, Op, Request};

use crate::content::{self, BLOCK_BYTES, Identity, SECTOR_BYTES};
use crate::edges::Edges;
use crate::host::Host;
use crate::oracle::{ALL, Content, Ending, Oracle, Violation, WriteToken};
use crate::rng::Rng;
use crate::world::{Happening, World};

/// Longest pause of a client that was refused, in nanoseconds.
const PAUSE_NS_MAX: u64 = 300_000_000;

/// What a drill wants of its clients.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// How many there are.
    pub clients: u64,
    /// Requests of each at most, and at least half as many.
    pub requests: u64,
    /// They ask for flushes.
    pub flushes: bool,
    /// They read, too.
    pub reads: bool,
    /// Longest pause between two requests, in nanoseconds.
    pub think_ns_max: u64,
    /// Most blocks in a usual request.
    pub blocks_max: u64,
    /// Most chances in a million to go to a hot spot.
    pub hot: u32,
    /// Chances in a million to write whole rows.
    pub rows: u32,
    /// Chances in a million that a write bears FUA, where that is not any.
    pub fua: Option<u32>,
}

/// How a client behaves: drawn once for each.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Shares of reads, writes, zeroings, discards, flushes.
    pub weights: [u32; 5],
    /// Chance in a million that a write or zeroing bears FUA.
    pub fua: u32,
    /// Chance in a million to go to a hot spot.
    pub hot: u32,
    /// Requests in flight at most.
    pub depth: u32,
    /// Longest pause between two requests, in nanoseconds.
    pub think_ns_max: u64,
    /// Most blocks in a usual request.
    pub blocks_max: u64,
}

impl Habits {
    /// Any kind of client.
    pub fn draw(rng: &mut Rng) -> Habits {
        let mut weights = [0; 5];
        while weights.iter().sum::<u32>() == 0 {
            weights = [rng.below(100), rng.below(100), rng.below(20), rng.below(10), rng.below(20)].map(|w| w as u32);
        }
        Habits {
            weights,
            fua: if rng.below(4) == 0 { rng.between(100_000, 1_000_000) as u32 } else { rng.probability(500_000) },
            hot: rng.between(0, 1_000_000) as u32,
            depth: rng.between(1, 12) as u32,
            think_ns_max: rng.between(1, 400_000),
            blocks_max: *rng.pick(&[1, 4, 16, 40]),
        }
    }
}

/// One connection.
pub struct Client {
    /// The oracle's number of the device.
    pub device: u64,
    /// The engine's number of it, in this life.
    pub id: DeviceId,
    /// Its shard.
    pub shard: u16,
    /// Requests not answered yet, or whose buffer is not free yet.
    pub in_flight: u32,
    /// Of these, answered with an error while the kernel has the buffer.
    late: u32,
    /// No more requests.
    pub stopped: bool,
    armed: bool,
    habits: Habits,
    hot: [u64; 3],
    /// Blocks of a row, and chances in a million to write some wholly.
    rows: (u64, u32),
    /// Where it goes: the first block, and how many.
    area: (u64, u64),
    /// Requests that it will still ask for.
    left: u32,
    /// Times in a row that it was refused, or had too much out to ask: it waits longer each time.
    refused: u32,
    /// Reads every block once, in order, and wants no error: the next block, where it does.
    verifies: Option<u64>,
    /// What it means to ask for soon: what, from which block on, how many.
    todo: VecDeque<(Op, u64, u64)>,
    /// And nothing else.
    only_todo: bool,
    /// So many of these it asks for at once: a stream of small writes.
    pieces: usize,
    /// Late writes after which it will still try again: where nearly all are late, it would never end.
    patience: u32,
}

enum Kind {
    Read { first: u64, begun: u64 },
    Write(WriteToken),
    Flush { begun: u64 },
}

struct Outstanding {
    client: usize,
    /// What, from which block on, how many.
    asked: (Op, u64, u64),
    kind: Kind,
    buf: Buf,
    bytes: usize,
    answered: bool,
    /// Its buffer was not free when it was answered.
    late: bool,
    /// What it leaves out of its first and its last block.
    edges: Edges,
}

impl Outstanding {
    /// Which sectors of a block it is about.
    fn sectors(&self) -> impl Fn(u64) -> u8 + use<> {
        sectors_of(self.asked, self.edges)
    }
}

/// Which sectors of a block such a request is about. A discard is a hint: blocks that it covers in part stay.
fn sectors_of((op, first, count): (Op, u64, u64), edges: Edges) -> impl Fn(u64) -> u8 {
    move |block| match edges.sectors_of(block, (first, count)) {
        sectors if sectors != ALL && op == Op::Discard => 0,
        sectors => sectors,
    }
}

/// All clients of one life of the process.
pub struct Workload {
    /// The clients; an index names one.
    pub clients: Vec<Client>,
    out: BTreeMap<u64, Outstanding>,
    next_tag: u64,
    rng: Rng,
    /// Where requests of sectors begin and end: chance of its own, so that devices of whole blocks see what they saw.
    edges: Rng,
    failed_writes: BTreeSet<u64>,
    stopping: BTreeSet<u64>,
    /// Reads of which a part cannot be read: by whom, from which block on, how many.
    ask_singly: Vec<(usize, u64, u64)>,
}

impl Workload {
    /// Nobody yet.
    pub fn new(rng: Rng) -> Workload {
        Workload {
            clients: Vec::new(),
            out: BTreeMap::new(),
            next_tag: 0,
            edges: Rng::new(rng.clone().bits() ^ 0x6564_6765),
            rng,
            failed_writes: BTreeSet::new(),
            stopping: BTreeSet::new(),
            ask_singly: Vec::new(),
        }
    }

    /// Connects one client to a device, for `requests` requests.
    pub fn connect(&mut self, device: u64, id: DeviceId, shard: u16, blocks: u64, requests: u32) {
        let habits = Habits::draw(&mut self.rng);
        let hot = std::array::from_fn(|_| self.rng.below(blocks));
        self.clients.push(Client {
            device,
            id,
            shard,
            in_flight: 0,
            late: 0,
            stopped: false,
            armed: false,
            habits,
            hot,
            rows: (0, 0),
            area: (0, blocks),
            left: requests,
            refused: 0,
            verifies: None,
            todo: VecDeque::new(),
            only_todo: false,
            pieces: 0,
            patience: 2,
        });
    }

    /// The client that was connected last asks for no flush, and for more writes instead.
    pub fn never_flush(&mut self) {
        let client = self.clients.last_mut().expect("just connected");
        client.habits.weights[4] = 0;
        client.habits.weights[1] += 50;
    }

    /// The client that was connected last writes whole rows now and then, of so many blocks.
    pub fn write_rows(&mut self, blocks: u64, chance: u32) {
        let client = self.clients.last_mut().expect("just connected");
        client.rows = (blocks, if blocks > 0 { chance } else { 0 });
        if client.rows.1 > 0 {
            client.habits.weights[4] *= 3;
        }
    }

    /// Connects one client that only writes.
    pub fn connect_writer(&mut self, device: u64, id: DeviceId, shard: u16, blocks: u64, requests: u32) {
        self.connect(device, id, shard, blocks, requests);
        let client = self.clients.last_mut().expect("just connected");
        client.habits.weights = [0, 8, 2, 0, 2];
    }

    /// Connects one client that does what a drill wants of it.
    pub fn connect_for(&mut self, device: u64, id: DeviceId, shard: u16, area: (u64, u64), work: &Work) {
        let requests = self.rng.between(work.requests.div_ceil(2), work.requests) as u32;
        self.connect(device, id, shard, area.1, requests);
        let client = self.clients.last_mut().expect("just connected");
        client.area = area;
        client.habits.weights = [if work.reads { 4 } else { 0 }, 16, 2, 1, if work.flushes { 4 } else { 0 }];
        client.habits.think_ns_max = work.think_ns_max;
        client.habits.blocks_max = work.blocks_max;
        client.habits.hot = client.habits.hot.min(work.hot);
        client.habits.fua = work.fua.unwrap_or(client.habits.fua);
    }

    /// The client that was connected last writes these blocks, one by one.
    pub fn write_these(&mut self, blocks: &[u64]) {
        let client = self.clients.last_mut().expect("just connected");
        client.todo = blocks.iter().map(|block| (Op::Write, *block, 1)).collect();
        client.only_todo = true;
    }

    /// Connects one client that writes these, each a first block and how many.
    pub fn connect_overwriter(&mut self, device: u64, id: DeviceId, shard: u16, what: &[(u64, u64)]) {
        self.connect(device, id, shard, 1, what.len() as u32);
        let client = self.clients.last_mut().expect("just connected");
        client.todo = what.iter().map(|(first, count)| (Op::Write, *first, *count)).collect();
        client.only_todo = true;
    }

    /// The client that was connected last does one thing after the other, and asks for a flush in the end.
    pub fn then_flush(&mut self) {
        let client = self.clients.last_mut().expect("just connected");
        client.todo.push_back((Op::Flush, 0, 0));
        client.left += 1;
        client.habits.depth = 1;
    }

    /// Connects one client that reads the whole device once.
    pub fn connect_verifier(&mut self, device: u64, id: DeviceId, shard: u16) {
        self.connect(device, id, shard, 1, u32::MAX);
        let client = self.clients.last_mut().expect("just connected");
        client.verifies = Some(0);
        client.habits.depth = 4;
        client.habits.think_ns_max = 1000;
    }

    /// Whether no client of this device has anything left to ask for, or to wait for.
    pub fn is_finished(&self, device: u64) -> bool {
        self.clients.iter().all(|c| c.device != device || (c.in_flight == 0 && (c.stopped || c.left == 0)))
    }

    /// The device is about to be stopped under its clients: they may be told that it is not there.
    pub fn expect_stop(&mut self, device: u64) {
        self.stopping.insert(device);
    }

    /// No client of this device asks for anything more.
    pub fn stop(&mut self, device: u64) {
        for client in self.clients.iter_mut().filter(|c| c.device == device) {
            client.stopped = true;
        }
    }

    /// Whether a write to this device failed in this life: its copies may differ.
    pub fn had_failed_writes(&self, device: u64) -> bool {
        self.failed_writes.contains(&device)
    }

    /// Whether nothing of this device is unanswered.
    pub fn is_idle(&self, device: u64) -> bool {
        self.clients.iter().all(|c| c.device != device || c.in_flight == 0)
    }

    /// What could not be read because of a part of it is asked for block by block, by somebody else.
    fn ask_block_by_block(&mut self) {
        for (index, first, count) in std::mem::take(&mut self.ask_singly) {
            let Client { device, id, shard, verifies, .. } = self.clients[index];
            if verifies.is_some() && count > 1 {
                self.connect(device, id, shard, 1, count as u32);
                let client = self.clients.last_mut().expect("just connected");
                client.todo = (first..first + count).map(|block| (Op::Read, block, 1)).collect();
                client.only_todo = true;
            }
        }
    }

    /// Sets the alarm of those who have something to ask for and none set.
    pub fn arm(&mut self, world: &mut World) {
        self.ask_block_by_block();
        let idle = |c: &Client| !c.armed && !c.stopped && c.left > 0;
        for (index, client) in self.clients.iter_mut().enumerate().filter(|(_, c)| idle(c)) {
            client.armed = true;
            world.after(self.rng.below(client.habits.think_ns_max), Happening::Wake(index as u64));
        }
    }

    /// A client's alarm went off: it asks for something, if it may.
    pub fn wake(&mut self, index: usize, world: &mut World, host: &mut Host, oracle: &mut Oracle) {
        let client = &mut self.clients[index];
        if client.stopped || client.left == 0 {
            client.armed = false;
            return;
        }
        let think_ns = client.habits.think_ns_max;
        let pause_ns = (think_ns << client.refused.min(20)).min(think_ns.max(PAUSE_NS_MAX));
        world.after(1 + self.rng.below(pause_ns), Happening::Wake(index as u64));
        if client.in_flight - client.late < client.habits.depth {
            self.ask(index, world, host, oracle);
            self.ask_for_pieces(index, world, host, oracle);
        } else {
            // Perhaps for the disk that hangs: looking all the time would be most of a run.
            client.refused += 1;
        }
    }

    /// A client that has begun a stream of small writes asks for the next ones at once.
    fn ask_for_pieces(&mut self, index: usize, world: &mut World, host: &mut Host, oracle: &mut Oracle) {
        loop {
            let client = &self.clients[index];
            let pieces = client.pieces;
            if pieces == 0 || client.left == 0 || client.in_flight - client.late >= client.habits.depth {
                return;
            }
            self.ask(index, world, host, oracle);
            if self.clients[index].pieces == pieces {
                return;
            }
        }
    }

    /// Cuts a write into small ones, which a client asks for one after the other: the first of them.
    fn cut(&mut self, index: usize, first: u64, count: u64) -> (Op, u64, u64) {
        let most = *self.rng.pick(&[1, 4, 16]);
        let mut at = first;
        while at < first + count {
            let len = self.rng.between(1, most).min(first + count - at);
            self.clients[index].todo.push_back((Op::Write, at, len));
            at += len;
        }
        let client = &mut self.clients[index];
        client.pieces = client.todo.len();
        client.todo[0]
    }

    /// What a client asks for next: what, from which block on, how many.
    fn choose(&mut self, index: usize, all: u64) -> (Op, u64, u64) {
        let Client { habits, hot, verifies, area, .. } = self.clients[index];
        if let Some(todo) = self.clients[index].todo.front()
            && (self.clients[index].only_todo || self.clients[index].pieces > 0 || self.rng.coin())
        {
            return *todo;
        }
        if let Some(next) = verifies {
            return (Op::Read, next, (all - next).min(64));
        }
        let (before, blocks) = area;
        let op = [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush][self.rng.weighted(&habits.weights)];
        let count = match self.rng.below(200) {
            0 => self.rng.between(1, blocks.min(300)),
            _ => self.rng.between(1, habits.blocks_max.min(blocks)),
        };
        if op == Op::Write && self.clients[index].rows.1 > 0 && self.rng.chance(self.clients[index].rows.1) {
            let row = self.clients[index].rows.0;
            let rows = (blocks / row).max(1);
            let first = self.rng.below(rows);
            let count = self.rng.between(1, (rows - first).min(3));
            let count = (count * row).min(all - before - first * row);
            if self.clients[index].todo.is_empty() && count <= 64 && self.rng.below(3) == 0 {
                return self.cut(index, before + first * row, count);
            }
            return (op, before + first * row, count);
        }
        let spot = if self.rng.chance(habits.hot) { *self.rng.pick(&hot) } else { self.rng.below(blocks) };
        (op, before + (spot + self.rng.below(4)).min(blocks - count), count)
    }

    /// A request was accepted.
    fn accepted(&mut self, index: usize, blocks: u64, asked: (Op, u64, u64)) {
        let client = &mut self.clients[index];
        if client.todo.front() == Some(&asked) {
            client.todo.pop_front();
            client.pieces = client.pieces.saturating_sub(1);
        }
        client.in_flight += 1;
        client.left -= 1;
        client.refused = 0;
        if let Some(next) = &mut client.verifies {
            *next += asked.2;
            if *next == blocks {
                client.left = 0;
            }
        }
    }

    fn ask(&mut self, index: usize, world: &mut World, host: &mut Host, oracle: &mut Oracle) {
        let Client { device, id, shard, habits, verifies, .. } = self.clients[index];
        let (blocks, is_redundant) = (oracle.blocks(device), oracle.is_redundant(device));
        let (op, first, count) = self.choose(index, blocks);
        let carries = matches!(op, Op::Read | Op::Write);
        let bytes = if carries { count as usize * BLOCK_BYTES } else { 0 };
        let buf = if carries {
            // When memory is short, the client just waits for its next turn.
            let Some(buf) = world.memory.alloc(bytes) else { return };
            buf
        } else {
            Buf::NONE
        };
        let mutates = !matches!(op, Op::Read | Op::Flush);
        let fua = mutates && self.rng.chance(habits.fua);
        let is_in_sectors = op != Op::Flush && verifies.is_none() && oracle.is_in_sectors(device);
        let edges = if is_in_sectors { Edges::draw(&mut self.edges, count) } else { Edges::default() };
        let sectors = sectors_of((op, first, count), edges);
        let mut begin = |content| Kind::Write(oracle.write_begun_in(device, (first, count), &sectors, content, fua));
        let kind = match op {
            Op::Write => begin(Content::Data),
            Op::WriteZeroes => begin(Content::Zero),
            Op::Discard if is_redundant => begin(Content::Zero),
            Op::Discard => begin(Content::MaybeZero),
            Op::Read => Kind::Read { first, begun: oracle.read_begun(device) },
            Op::Flush => Kind::Flush { begun: oracle.flush_begun() },
        };
        if let (Op::Write, Kind::Write(token)) = (op, &kind) {
            for (i, block) in world.memory.slice_mut(buf, bytes).chunks_exact_mut(BLOCK_BYTES).enumerate() {
                let identity = Identity { device, block: first + i as u64, version: token.version };
                content::write_block(&identity, block);
            }
        }
        let no_unmap = op == Op::WriteZeroes && self.rng.coin();
        let flags = if fua { Flags::FUA } else { Flags::NONE };
        let flags = if no_unmap { flags.with(Flags::NO_UNMAP) } else { flags };
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (first, count) };
        self.next_tag += 1;
        let (skip, cut) = (edges.skip * SECTOR_BYTES as u64, edges.cut * SECTOR_BYTES as u64);
        let request = Request {
            device: id,
            op,
            flags,
            offset: offset * BLOCK_BYTES as u64 + skip,
            len: len * BLOCK_BYTES as u64 - skip - cut,
            buf: buf.add(skip),
            tag: self.next_tag,
        };
        if !edges.is_whole() {
            world.note(format_args!("request {} leaves out {edges:?}", self.next_tag));
        }
        world.note(format_args!(
            "request {} client {index} shard {shard} device {device} {op:?} {flags:?} block {offset}+{len}",
            self.next_tag
        ));
        match host.submit(world, shard, &request) {
            Ok(()) => {
                self.accepted(index, blocks, (op, first, count));
                let asked = (op, first, count);
                let outstanding =
                    Outstanding { client: index, asked, kind, buf, bytes, answered: false, late: false, edges };
                self.out.insert(self.next_tag, outstanding);
                world.counters.add("requests", name_of(op));
                if !edges.is_whole() {
                    world.counters.add("requests", &format!("{}, in sectors", name_of(op)));
                }
                if fua {
                    world.counters.add("requests", "fua");
                }
            }
            Err(error) => {
                world.note(format_args!("request {} refused: {error}", self.next_tag));
                let why = match error.kind {
                    ErrorKind::Busy => "busy",
                    ErrorKind::NoDevice => "no device",
                    ErrorKind::TimedOut if world.had_faults() => "late write there",
                    _ => panic!("a good request was refused: {error}"),
                };
                world.counters.add("refused", why);
                match &kind {
                    Kind::Write(token) => oracle.write_refused(token),
                    Kind::Read { first, begun } => {
                        oracle.read_ended(device, *begun, *first, None).expect("an error shows nothing");
                    }
                    Kind::Flush { .. } => {}
                }
                if carries {
                    world.memory.free(buf, bytes);
                }
                self.clients[index].refused += 1;
                // The device is gone for good as far as this client knows.
                self.clients[index].stopped |= error.kind == ErrorKind::NoDevice;
            }
        }
    }

    /// A request was answered.
    ///
    /// # Errors
    /// What was read must not be there, or an error came for which there was no reason.
    pub fn done(&mut self, completion: &Completion, world: &mut World, oracle: &mut Oracle) -> Result<(), Violation> {
        let tag = completion.tag;
        let out = self.out.get_mut(&tag).expect("each request is answered once");
        self.clients[out.client].refused = 0;
        assert!(!out.answered, "request {tag} is answered twice");
        out.answered = true;
        out.late = completion.buffer_busy;
        self.clients[out.client].late += u32::from(out.late);
        world.note(format_args!("request {tag} done {:?} busy {}", completion.result, completion.buffer_busy));
        let device = self.clients[out.client].device;
        if completion.result.is_ok() {
            oracle.answered(device, world.now_ns)?;
        }
        if let Err(error) = &completion.result {
            world.counters.add("failed", &format!("{:?}", error.kind));
            // Requests that had not been planned when their array was stopped.
            let stopped = error.kind.is_unsettled() && self.stopping.contains(&device);
            let of_serving = matches!(
                error.kind,
                ErrorKind::Gone | ErrorKind::TimedOut | ErrorKind::Failed | ErrorKind::FlushFailed
            );
            if of_serving && oracle.is_leased(device) {
                let why = format!("request {tag} is told {error}, although the next session settles it");
                return Err(Violation(why));
            }
            // A redundant array has always a member that is well: nothing may fail, but for a read into memory that one which hangs
            // may yet fill.
            let is_late = matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unsettled);
            let is_read = matches!(out.kind, Kind::Read { .. });
            // What is written in sectors is read first, into memory of the shard.
            let hangs = is_late && (is_read && out.late || !out.edges.is_whole());
            let unreadable = match &out.kind {
                Kind::Read { begun, .. } | Kind::Write(WriteToken { begun, .. })
                    if error.kind == ErrorKind::Io && (is_read || !out.edges.is_whole()) =>
                {
                    oracle.may_be_unreadable(device, *begun, out.asked.1, out.asked.2)
                }
                _ => false,
            };
            if unreadable {
                world.counters.add("failed", "as no copy can be read");
            }
            let since = match &out.kind {
                Kind::Read { begun, .. } | Kind::Write(WriteToken { begun, .. }) | Kind::Flush { begun } => *begun,
            };
            // Whoever writes is never refused for it.
            let broken = error.kind == ErrorKind::Unreadable
                && matches!(out.kind, Kind::Read { .. })
                && oracle.is_broken(device, since, out.asked.1, out.asked.2);
            if broken {
                world.counters.add("failed", "as a row is unreadable");
            }
            let excused = unreadable || broken || world.had_faults() && (hangs || oracle.fails(device));
            if let (true, Kind::Read { first, .. }, None) = (broken, &out.kind, self.clients[out.client].todo.front()) {
                self.ask_singly.push((out.client, *first, out.asked.2));
            }
            if !stopped && !excused {
                return Err(Violation(format!("request {tag} failed without a reason: {error}")));
            }
        }
        match (&out.kind, completion.result.is_ok()) {
            (Kind::Read { first, begun }, ok) => {
                let data = ok.then(|| world.memory.slice(out.buf, out.bytes));
                oracle.read_ended_in(device, *begun, *first, &out.sectors(), data)?;
            }
            (Kind::Write(token), true) => oracle.write_ended(token, Ending::Done),
            (Kind::Write(token), false) => {
                oracle.write_ended(token, Ending::Failed);
                self.failed_writes.insert(device);
                let client = &mut self.clients[out.client];
                if completion.buffer_busy && client.patience > 0 {
                    // It may still land: the client tries again at once, and writes around there meanwhile.
                    client.patience -= 1;
                    client.todo.push_back(out.asked);
                    client.left = client.left.saturating_add(8);
                    client.hot = [token.first_block() - client.area.0; 3];
                    client.habits.hot = 1_000_000;
                }
            }
            (Kind::Flush { begun }, true) => oracle.flush_done(device, *begun),
            (Kind::Flush { .. }, false) => {}
        }
        if !completion.buffer_busy {
            self.release(tag, world);
        }
        Ok(())
    }

    /// The buffer of a request, answered before, is free at last.
    pub fn release(&mut self, tag: u64, world: &mut World) {
        let out = self.out.remove(&tag).expect("each buffer is released once");
        assert!(out.answered, "a buffer is released before the answer");
        if out.bytes > 0 {
            world.memory.free(out.buf, out.bytes);
        }
        let client = &mut self.clients[out.client];
        client.in_flight -= 1;
        client.late -= u32::from(out.late);
        if out.late && matches!(out.kind, Kind::Write(_)) {
            // It has landed, if it ever does: is what was written there since still there?
            let (_, first, count) = out.asked;
            client.todo.push_back((Op::Read, first, count));
            client.left = client.left.saturating_add(1);
        }
    }
}

fn name_of(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::WriteZeroes => "write zeroes",
        Op::Discard => "discard",
        Op::Flush => "flush",
    }
}
