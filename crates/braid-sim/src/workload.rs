//! Clients: connections that read, write, zero, discard and flush, each on a random shard.
//!
//! Several connections of one device write the same few hot spots, so that their writes overlap, and flush each
//! other's writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_engine::io::{Buf, Completion, DeviceId, ErrorKind, Flags, Op, Request};

use crate::content::{self, BLOCK_BYTES, Identity, SECTOR_BYTES};
use crate::edges::Edges;
use crate::host::Host;
use crate::oracle::{ALL, Content, Ending, Oracle, Violation, WriteToken};
use crate::rng::Rng;
use crate::world::{World, WorldEvent};

/// Longest pause of a client that was refused, in nanoseconds.
const PAUSE_NS_MAX: u64 = 300_000_000;

/// The load that a scenario requests from its clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientLoad {
    /// Number of clients.
    pub clients: u64,
    /// Maximum number of requests of each client; the minimum is half of it.
    pub requests: u64,
    /// The clients flush.
    pub flushes: bool,
    /// The clients read.
    pub reads: bool,
    /// Longest pause between two requests, in nanoseconds.
    pub think_ns_max: u64,
    /// Maximum number of blocks of a usual request.
    pub blocks_max: u64,
    /// Upper limit of the chance in a million that a request goes to a hot spot.
    pub hot: u32,
    /// Chance in a million of a full-stripe write.
    pub stripes: u32,
    /// Chance in a million that a write carries FUA; `None` keeps the drawn one.
    pub fua: Option<u32>,
}

/// The behaviour of a client, drawn once for each.
#[derive(Clone, Copy, Debug)]
pub struct ClientHabits {
    /// Weights of reads, writes, zeroings, discards and flushes.
    pub weights: [u32; 5],
    /// Chance in a million that a write or zeroing carries FUA.
    pub fua: u32,
    /// Chance in a million that a request goes to a hot spot.
    pub hot: u32,
    /// Maximum number of requests in flight.
    pub depth: u32,
    /// Longest pause between two requests, in nanoseconds.
    pub think_ns_max: u64,
    /// Maximum number of blocks of a usual request.
    pub blocks_max: u64,
}

impl ClientHabits {
    /// Draws the behaviour of an ordinary client.
    pub fn draw(rng: &mut Rng) -> ClientHabits {
        let mut weights = [0; 5];
        while weights.iter().sum::<u32>() == 0 {
            weights = [rng.below(100), rng.below(100), rng.below(20), rng.below(10), rng.below(20)].map(|w| w as u32);
        }
        ClientHabits {
            weights,
            fua: if rng.below(4) == 0 { rng.between(100_000, 1_000_000) as u32 } else { rng.probability(500_000) },
            hot: rng.between(0, 1_000_000) as u32,
            depth: rng.between(1, 12) as u32,
            think_ns_max: rng.between(1, 400_000),
            blocks_max: *rng.pick(&[1, 4, 16, 40]),
        }
    }
}

/// One client connection.
pub struct Client {
    /// The oracle's number of the device.
    pub device: u64,
    /// The engine's number of the device in this life.
    pub id: DeviceId,
    /// Its shard.
    pub shard: u16,
    /// Requests that are not answered yet, or whose buffer is not free yet.
    pub in_flight: u32,
    /// Requests in flight that were answered with an error while the kernel still holds their buffer.
    late: u32,
    /// The client sends no more requests.
    pub stopped: bool,
    armed: bool,
    habits: ClientHabits,
    hot: [u64; 3],
    /// Number of data blocks of a full stripe, and the chance in a million of a full-stripe write.
    stripes: (u64, u32),
    /// The blocks that the client uses: first block and number of blocks.
    area: (u64, u64),
    /// Number of requests that the client will still send.
    left: u32,
    /// Number of consecutive wake-ups at which the client could not send: the shard refused the request, or as many
    /// requests were in flight as the client may have. Each doubles the maximum pause before the next one.
    refused: u32,
    /// Set for a verifier, a client that reads every block of the device once, in ascending order: the next block to
    /// read.
    verifies: Option<u64>,
    /// Queued requests, which the client sends before or between random ones: operation, first block and number of
    /// blocks.
    todo: VecDeque<(Op, u64, u64)>,
    /// The client sends only queued requests.
    only_todo: bool,
    /// How many of the queued requests are pieces of one write. The client sends these one after the other without a
    /// pause.
    pieces: usize,
    /// Number of late writes that the client will still retry. The limit ends clients nearly all of whose writes are
    /// late.
    patience: u32,
}

enum RequestKind {
    Read { first: u64, begun: u64 },
    Write(WriteToken),
    Flush { begun: u64 },
}

struct Outstanding {
    client: usize,
    /// Operation, first block and number of blocks.
    op_range: (Op, u64, u64),
    kind: RequestKind,
    buf: Buf,
    bytes: usize,
    answered: bool,
    /// The request was answered while the kernel still held its buffer.
    late: bool,
    /// The sectors of its first and last block that the request does not cover.
    edges: Edges,
}

impl Outstanding {
    /// Returns a function from a block number to the bit mask of the sectors that the request covers there.
    fn sectors(&self) -> impl Fn(u64) -> u8 + use<> {
        sectors_of(self.op_range, self.edges)
    }
}

/// Returns a function from a block number to the bit mask of the sectors that the request changes or reads there. A
/// discard leaves blocks that it covers only in part as they are: for these the mask is 0.
fn sectors_of((op, first, count): (Op, u64, u64), edges: Edges) -> impl Fn(u64) -> u8 {
    move |block| match edges.sectors_of(block, (first, count)) {
        sectors if sectors != ALL && op == Op::Discard => 0,
        sectors => sectors,
    }
}

/// All clients of one life of the process.
pub struct Workload {
    /// The clients; their index identifies them.
    pub clients: Vec<Client>,
    out: BTreeMap<u64, Outstanding>,
    next_tag: u64,
    rng: Rng,
    /// Randomness for the edges of sector requests: a stream of its own, so that devices of whole blocks see the same
    /// requests.
    edges: Rng,
    failed_writes: BTreeSet<u64>,
    stopping: BTreeSet<u64>,
    /// Reads that failed because a stripe in their range is unreadable: client, first block and number of blocks. Each
    /// is repeated block by block.
    unreadable_reads: Vec<(usize, u64, u64)>,
}

impl Workload {
    /// Creates a workload without clients.
    pub fn new(rng: Rng) -> Workload {
        Workload {
            clients: Vec::new(),
            out: BTreeMap::new(),
            next_tag: 0,
            edges: Rng::new(rng.clone().bits() ^ 0x6564_6765),
            rng,
            failed_writes: BTreeSet::new(),
            stopping: BTreeSet::new(),
            unreadable_reads: Vec::new(),
        }
    }

    /// Connects a client to a device, for `requests` requests.
    pub fn connect(&mut self, device: u64, id: DeviceId, shard: u16, blocks: u64, requests: u32) {
        let habits = ClientHabits::draw(&mut self.rng);
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
            stripes: (0, 0),
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

    /// Makes the last connected client send no flushes, and more writes instead.
    pub fn never_flush(&mut self) {
        let client = self.clients.last_mut().expect("just connected");
        client.habits.weights[4] = 0;
        client.habits.weights[1] += 50;
    }

    /// Makes the last connected client send full-stripe writes at times; a stripe has `blocks` blocks.
    pub fn write_stripes(&mut self, blocks: u64, chance: u32) {
        let client = self.clients.last_mut().expect("just connected");
        client.stripes = (blocks, if blocks > 0 { chance } else { 0 });
        if client.stripes.1 > 0 {
            client.habits.weights[4] *= 3;
        }
    }

    /// Connects a client that only writes.
    pub fn connect_writer(&mut self, device: u64, id: DeviceId, shard: u16, blocks: u64, requests: u32) {
        self.connect(device, id, shard, blocks, requests);
        let client = self.clients.last_mut().expect("just connected");
        client.habits.weights = [0, 8, 2, 0, 2];
    }

    /// Connects a client with the load of a scenario.
    pub fn connect_for(&mut self, device: u64, id: DeviceId, shard: u16, area: (u64, u64), work: &ClientLoad) {
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

    /// Makes the last connected client write these blocks, one by one.
    pub fn write_blocks(&mut self, blocks: &[u64]) {
        let client = self.clients.last_mut().expect("just connected");
        client.todo = blocks.iter().map(|block| (Op::Write, *block, 1)).collect();
        client.only_todo = true;
    }

    /// Connects a client that writes these ranges, each a first block and a number of blocks.
    pub fn connect_overwriter(&mut self, device: u64, id: DeviceId, shard: u16, what: &[(u64, u64)]) {
        self.connect(device, id, shard, 1, what.len() as u32);
        let client = self.clients.last_mut().expect("just connected");
        client.todo = what.iter().map(|(first, count)| (Op::Write, *first, *count)).collect();
        client.only_todo = true;
    }

    /// Makes the last connected client send its requests one after the other, and a flush in the end.
    pub fn then_flush(&mut self) {
        let client = self.clients.last_mut().expect("just connected");
        client.todo.push_back((Op::Flush, 0, 0));
        client.left += 1;
        client.habits.depth = 1;
    }

    /// Connects a client that reads the whole device once.
    pub fn connect_verifier(&mut self, device: u64, id: DeviceId, shard: u16) {
        self.connect(device, id, shard, 1, u32::MAX);
        let client = self.clients.last_mut().expect("just connected");
        client.verifies = Some(0);
        client.habits.depth = 4;
        client.habits.think_ns_max = 1000;
    }

    /// Returns whether all clients of this device have ended and none of their requests is in flight.
    pub fn is_finished(&self, device: u64) -> bool {
        self.clients.iter().all(|c| c.device != device || (c.in_flight == 0 && (c.stopped || c.left == 0)))
    }

    /// Records that the device is about to be stopped while clients use it. From now on its requests may fail because
    /// the device is gone.
    pub fn expect_stop(&mut self, device: u64) {
        self.stopping.insert(device);
    }

    /// Stops all clients of this device.
    pub fn stop(&mut self, device: u64) {
        for client in self.clients.iter_mut().filter(|c| c.device == device) {
            client.stopped = true;
        }
    }

    /// Returns whether a write to this device failed in this life: its copies may differ.
    pub fn had_failed_writes(&self, device: u64) -> bool {
        self.failed_writes.contains(&device)
    }

    /// Returns whether no request to this device is in flight.
    pub fn is_idle(&self, device: u64) -> bool {
        self.clients.iter().all(|c| c.device != device || c.in_flight == 0)
    }

    /// For each read that failed because of an unreadable stripe, connects a client that reads the same blocks one by
    /// one.
    fn read_block_by_block(&mut self) {
        for (index, first, count) in std::mem::take(&mut self.unreadable_reads) {
            let Client { device, id, shard, verifies, .. } = self.clients[index];
            if verifies.is_some() && count > 1 {
                self.connect(device, id, shard, 1, count as u32);
                let client = self.clients.last_mut().expect("just connected");
                client.todo = (first..first + count).map(|block| (Op::Read, block, 1)).collect();
                client.only_todo = true;
            }
        }
    }

    /// Schedules the next request of each client that has requests left and none scheduled.
    pub fn arm(&mut self, world: &mut World) {
        self.read_block_by_block();
        let idle = |c: &Client| !c.armed && !c.stopped && c.left > 0;
        for (index, client) in self.clients.iter_mut().enumerate().filter(|(_, c)| idle(c)) {
            client.armed = true;
            world.after(self.rng.below(client.habits.think_ns_max), WorldEvent::Wake(index as u64));
        }
    }

    /// Wakes a client. It sends a request if fewer are in flight than its depth allows, and schedules its next wake-up.
    pub fn wake(&mut self, index: usize, world: &mut World, host: &mut Host, oracle: &mut Oracle) {
        let client = &mut self.clients[index];
        if client.stopped || client.left == 0 {
            client.armed = false;
            return;
        }
        let think_ns = client.habits.think_ns_max;
        let pause_ns = (think_ns << client.refused.min(20)).min(think_ns.max(PAUSE_NS_MAX));
        world.after(1 + self.rng.below(pause_ns), WorldEvent::Wake(index as u64));
        if client.in_flight - client.late < client.habits.depth {
            self.send_request(index, world, host, oracle);
            self.send_pieces(index, world, host, oracle);
        } else {
            // The client may wait for a hanging disk: frequent polling would take most of a run.
            client.refused += 1;
        }
    }

    /// Sends the next small writes at once, if the client has begun a stream of them.
    fn send_pieces(&mut self, index: usize, world: &mut World, host: &mut Host, oracle: &mut Oracle) {
        loop {
            let client = &self.clients[index];
            let pieces = client.pieces;
            if pieces == 0 || client.left == 0 || client.in_flight - client.late >= client.habits.depth {
                return;
            }
            self.send_request(index, world, host, oracle);
            if self.clients[index].pieces == pieces {
                return;
            }
        }
    }

    /// Splits a write into small ones, which the client sends one after the other. Returns the first one.
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

    /// Chooses the next request of a client: operation, first block and number of blocks.
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
        if op == Op::Write && self.clients[index].stripes.1 > 0 && self.rng.chance(self.clients[index].stripes.1) {
            let stripe = self.clients[index].stripes.0;
            let stripes = (blocks / stripe).max(1);
            let first = self.rng.below(stripes);
            let count = self.rng.between(1, (stripes - first).min(3));
            let count = (count * stripe).min(all - before - first * stripe);
            if self.clients[index].todo.is_empty() && count <= 64 && self.rng.below(3) == 0 {
                return self.cut(index, before + first * stripe, count);
            }
            return (op, before + first * stripe, count);
        }
        let spot = if self.rng.chance(habits.hot) { *self.rng.pick(&hot) } else { self.rng.below(blocks) };
        (op, before + (spot + self.rng.below(4)).min(blocks - count), count)
    }

    /// Records that a request was accepted.
    fn accepted(&mut self, index: usize, blocks: u64, op_range: (Op, u64, u64)) {
        let client = &mut self.clients[index];
        if client.todo.front() == Some(&op_range) {
            client.todo.pop_front();
            client.pieces = client.pieces.saturating_sub(1);
        }
        client.in_flight += 1;
        client.left -= 1;
        client.refused = 0;
        if let Some(next) = &mut client.verifies {
            *next += op_range.2;
            if *next == blocks {
                client.left = 0;
            }
        }
    }

    fn send_request(&mut self, index: usize, world: &mut World, host: &mut Host, oracle: &mut Oracle) {
        let Client { device, id, shard, habits, verifies, .. } = self.clients[index];
        let (blocks, is_redundant) = (oracle.blocks(device), oracle.is_redundant(device));
        let (op, first, count) = self.choose(index, blocks);
        let carries = matches!(op, Op::Read | Op::Write);
        let bytes = if carries { count as usize * BLOCK_BYTES } else { 0 };
        let buf = if carries {
            // If memory is short, the client waits for its next turn.
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
        let mut begin =
            |content| RequestKind::Write(oracle.write_begun_in(device, (first, count), &sectors, content, fua));
        let kind = match op {
            Op::Write => begin(Content::Data),
            Op::WriteZeroes => begin(Content::Zero),
            Op::Discard if is_redundant => begin(Content::Zero),
            Op::Discard => begin(Content::MaybeZero),
            Op::Read => RequestKind::Read { first, begun: oracle.read_begun(device) },
            Op::Flush => RequestKind::Flush { begun: oracle.flush_begun() },
        };
        if let (Op::Write, RequestKind::Write(token)) = (op, &kind) {
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
                let op_range = (op, first, count);
                let outstanding =
                    Outstanding { client: index, op_range, kind, buf, bytes, answered: false, late: false, edges };
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
                    RequestKind::Write(token) => oracle.write_refused(token),
                    RequestKind::Read { first, begun } => {
                        oracle.read_ended(device, *begun, *first, None).expect("an error shows nothing");
                    }
                    RequestKind::Flush { .. } => {}
                }
                if carries {
                    world.memory.free(buf, bytes);
                }
                self.clients[index].refused += 1;
                // The device was withdrawn: this client does not retry.
                self.clients[index].stopped |= error.kind == ErrorKind::NoDevice;
            }
        }
    }

    /// Handles the reply to a request.
    ///
    /// # Errors
    /// A read returned content that must not be there, or a request failed without a reason.
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
            // The shard had not planned the request when the array was stopped.
            let stopped = error.kind.is_unsettled() && self.stopping.contains(&device);
            let of_serving = matches!(
                error.kind,
                ErrorKind::Gone | ErrorKind::TimedOut | ErrorKind::Failed | ErrorKind::FlushFailed
            );
            if of_serving && oracle.is_leased(device) {
                let why = format!("request {tag} failed with {error}, although the next session settles it");
                return Err(Violation(why));
            }
            // A redundant array always has a healthy member: no request may fail, except a read into memory that a
            // hanging disk may still fill.
            let is_late = matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unsettled);
            let is_read = matches!(out.kind, RequestKind::Read { .. });
            // A write of part of a block is a read-modify-write: it reads into memory of the shard, which a hanging
            // disk may still fill.
            let hangs = is_late && (is_read && out.late || !out.edges.is_whole());
            let unreadable = match &out.kind {
                RequestKind::Read { begun, .. } | RequestKind::Write(WriteToken { begun, .. })
                    if error.kind == ErrorKind::Io && (is_read || !out.edges.is_whole()) =>
                {
                    oracle.may_be_unreadable(device, *begun, out.op_range.1, out.op_range.2)
                }
                _ => false,
            };
            if unreadable {
                world.counters.add("failed", "as no copy can be read");
            }
            let since = match &out.kind {
                RequestKind::Read { begun, .. }
                | RequestKind::Write(WriteToken { begun, .. })
                | RequestKind::Flush { begun } => *begun,
            };
            // An unreadable stripe excuses failed reads only: writes to it must succeed.
            let broken = error.kind == ErrorKind::Unreadable
                && matches!(out.kind, RequestKind::Read { .. })
                && oracle.is_stripe_unreadable(device, since, out.op_range.1, out.op_range.2);
            if broken {
                world.counters.add("failed", "as a stripe is unreadable");
            }
            let excused = unreadable || broken || world.had_faults() && (hangs || oracle.fails(device));
            if let (true, RequestKind::Read { first, .. }, None) =
                (broken, &out.kind, self.clients[out.client].todo.front())
            {
                self.unreadable_reads.push((out.client, *first, out.op_range.2));
            }
            if !stopped && !excused {
                return Err(Violation(format!("request {tag} failed without a reason: {error}")));
            }
        }
        match (&out.kind, completion.result.is_ok()) {
            (RequestKind::Read { first, begun }, ok) => {
                let data = ok.then(|| world.memory.slice(out.buf, out.bytes));
                oracle.read_ended_in(device, *begun, *first, &out.sectors(), data)?;
            }
            (RequestKind::Write(token), true) => oracle.write_ended(token, Ending::Done),
            (RequestKind::Write(token), false) => {
                oracle.write_ended(token, Ending::Failed);
                self.failed_writes.insert(device);
                let client = &mut self.clients[out.client];
                if completion.buffer_busy && client.patience > 0 {
                    // The failed write may still land. The client retries it at once and sends all further random
                    // requests near it, so that a late landing would destroy newer data.
                    client.patience -= 1;
                    client.todo.push_back(out.op_range);
                    client.left = client.left.saturating_add(8);
                    client.hot = [token.first_block() - client.area.0; 3];
                    client.habits.hot = 1_000_000;
                }
            }
            (RequestKind::Flush { begun }, true) => oracle.flush_done(device, *begun),
            (RequestKind::Flush { .. }, false) => {}
        }
        if !completion.buffer_busy {
            self.release(tag, world);
        }
        Ok(())
    }

    /// Frees the buffer of a request that was answered before.
    pub fn release(&mut self, tag: u64, world: &mut World) {
        let out = self.out.remove(&tag).expect("each buffer is released once");
        assert!(out.answered, "a buffer is released before the answer");
        if out.bytes > 0 {
            world.memory.free(out.buf, out.bytes);
        }
        let client = &mut self.clients[out.client];
        client.in_flight -= 1;
        client.late -= u32::from(out.late);
        if out.late && matches!(out.kind, RequestKind::Write(_)) {
            // No disk has the late write any more, so that it landed before now or never will. The client reads the
            // blocks: newer data must still be there.
            let (_, first, count) = out.op_range;
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
