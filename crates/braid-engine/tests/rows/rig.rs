//! Shards over an array with parity on disks in memory; leaf I/Os are answered in an order drawn from a seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::META_BLOCKS;
use braid_engine::*;
use braid_format::Uuid;
use braid_format::journal::{LostRow, RING_START_BYTES};
use braid_geometry::{Geometry, Level, Spec};
use braid_parity::Parity;

use super::unreadable::{Sees, Watch};

pub const BLOCK: u64 = 4096;
/// Memory of requests; behind it, of each shard, scratch memory.
const REQUESTS_BYTES: u64 = 32 << 20;
pub(super) const META_ADDR: u64 = 1 << 40;
/// Blocks of the journal's ring: small, so that it comes around.
pub(super) const RING_BLOCKS: u64 = 300;

/// A small generator of numbers, so that a seed tells a run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// An array: level, chunk, and the members' data areas in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub level: Level,
    pub chunk_blocks: u64,
    pub blocks: &'static [u64],
}

pub(super) struct Sink {
    queue: VecDeque<LeafIo>,
    pub(super) meta: Vec<[u8; 4096]>,
    memory: Rc<RefCell<Vec<u8>>>,
    scratch: u64,
}

impl LeafSink for Sink {
    fn submit(&mut self, io: &LeafIo) {
        self.queue.push_back(*io);
    }
    fn zero(&mut self, buf: Buf, len: u64) {
        self.memory.borrow_mut()[buf.addr as usize..][..len as usize].fill(0);
    }
    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool {
        let memory = self.memory.borrow();
        memory[a.addr as usize..][..len as usize] == memory[b.addr as usize..][..len as usize]
    }
    fn scratch(&mut self) -> (Buf, u64) {
        (Buf { addr: self.scratch, region: Buf::UNREGISTERED }, SCRATCH_BYTES_MIN)
    }
    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut RowWork<'_>) {
        let mut memory = self.memory.borrow_mut();
        let range = |buf: &Buf| buf.addr as usize..(buf.addr + len) as usize;
        let read: Vec<Vec<u8>> = inputs.iter().map(|buf| memory[range(buf)].to_vec()).collect();
        let mut changed: Vec<Vec<u8>> = outputs.iter().map(|buf| memory[range(buf)].to_vec()).collect();
        let read: Vec<&[u8]> = read.iter().map(Vec::as_slice).collect();
        work(&read, &mut changed.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        outputs.iter().zip(changed).for_each(|(buf, bytes)| memory[range(buf)].copy_from_slice(&bytes));
    }
    fn meta_block(&mut self, index: u32) -> (Buf, &mut [u8; 4096]) {
        let buf = Buf { addr: META_ADDR + u64::from(index) * BLOCK, region: Buf::UNREGISTERED };
        (buf, &mut self.meta[index as usize])
    }
}

/// What happened on a disk.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    pub fua: bool,
}

/// Which writes a disk that hangs does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hangs {
    Journal,
    InPlace,
    Bits,
}

/// A request that has not been answered.
pub(super) struct Asked {
    op: Op,
    offset: u64,
    len: u64,
    buf: u64,
    expected: Result<(), ErrorKind>,
}

pub struct Rig {
    pub(super) shape: Shape,
    pub geometry: Geometry,
    pub(super) regions: Arc<RegionMap>,
    pub(super) shards: Vec<(Shard, Sink)>,
    pub(super) disks: Vec<Vec<u8>>,
    pub(super) lost: Arc<LostRows>,
    /// What is looked at while rows are unreadable.
    pub(super) watch: Option<Watch>,
    pub(super) memory: Rc<RefCell<Vec<u8>>>,
    /// The array's bytes as they ought to be.
    pub(super) model: Vec<u8>,
    pub log: Vec<Event>,
    pub(super) random: Random,
    pub(super) roles: Vec<Role>,
    pub(super) failing: Option<u32>,
    /// Whose disk hangs, in which writes, and what it has not given back: shard, I/O and bytes.
    hanging: Option<(u32, Hangs)>,
    stalled: bool,
    /// The disks answer nothing that this shard has asked them.
    paused: Option<usize>,
    hung: Vec<(usize, Cookie, u64)>,
    pub(super) version: u32,
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) next: u64,
    /// Which run this is, for whoever reads of its failure.
    pub(super) run: String,
}

impl Rig {
    pub fn new(shape: Shape, shards: u16, seed: u64) -> Rig {
        Rig::with_lost(shape, shards, seed, &[])
    }

    /// An array of which these rows are unreadable. Where there are some, all of it was written before.
    pub fn with_lost(shape: Shape, shards: u16, seed: u64, lost: &[LostRow]) -> Rig {
        let limits = Limits { slots: 64, devices: 2, range_table_bits: 6 };
        let shared = Arc::new(Shared::new(shards, &limits));
        let bytes = REQUESTS_BYTES + u64::from(shards) * SCRATCH_BYTES_MIN;
        let memory = Rc::new(RefCell::new(vec![0xdb; bytes as usize]));
        let sizes: Vec<u64> = shape.blocks.iter().map(|blocks| blocks * BLOCK).collect();
        let spec = Spec { chunk_bytes: shape.chunk_blocks * BLOCK, ..Spec::new(shape.level) };
        let geometry = Geometry::plan(spec, &sizes).expect("a plan");
        let size = geometry.size_bytes();
        let all = vec![u64::MAX; if lost.is_empty() { 0 } else { size.div_ceil(64 << 16) as usize }];
        let bits = (&all[..], &[][..]);
        let regions = RegionMap::new(ShardId(shards - 1), Uuid::from_u128(9), size, 1 << 16, bits, true);
        let mut noise = Random(seed ^ 77);
        let disk_bytes = sizes.iter().max().expect("members") + BLOCK + RING_START_BYTES + RING_BLOCKS * BLOCK;
        let mut rig = Rig {
            shape,
            geometry,
            regions: Arc::new(regions),
            shards: (0..shards)
                .map(|id| {
                    let scratch = REQUESTS_BYTES + u64::from(id) * SCRATCH_BYTES_MIN;
                    let meta = vec![[0; 4096]; META_BLOCKS as usize];
                    let sink = Sink { queue: VecDeque::new(), meta, memory: Rc::clone(&memory), scratch };
                    (Shard::new(ShardId(id), &limits, Arc::clone(&shared)), sink)
                })
                .collect(),
            // What stood on the disks before is not to be seen.
            disks: sizes.iter().map(|_| (0..disk_bytes).map(|_| noise.below(256) as u8).collect()).collect(),
            memory,
            model: vec![0; size as usize],
            lost: Arc::new(LostRows::new(lost)),
            watch: None,
            log: Vec::new(),
            random: Random(seed),
            roles: vec![Role::InSync; sizes.len()],
            failing: None,
            hanging: None,
            stalled: false,
            paused: None,
            hung: Vec::new(),
            version: 0,
            asked: BTreeMap::new(),
            next: 0,
            run: format!("seed {seed}, {shape:?}"),
        };
        if !lost.is_empty() {
            rig.fill_with_lost(lost);
        }
        rig.publish();
        rig
    }

    pub fn tolerance(&self) -> usize {
        usize::from(self.shape.level.parity())
    }

    pub fn stripe_bytes(&self, number: u64) -> u64 {
        let stripe = self.geometry.stripe(number).expect("a stripe");
        stripe.data_chunks() as u64 * stripe.chunk_bytes
    }

    pub fn is_journal(&self, offset: u64) -> bool {
        offset >= self.ring()
    }

    /// Where the ring begins on every disk: behind the largest data area, a block for the bitmap, and the heads.
    pub(super) fn ring(&self) -> u64 {
        *self.shape.blocks.iter().max().expect("members") * BLOCK + BLOCK + RING_START_BYTES
    }

    pub(super) fn publish(&mut self) {
        self.version += 1;
        self.publish_as(0, &Arc::clone(&self.regions));
    }

    /// Serves a second array on the same shards, on disks of its own.
    pub fn publish_twin(&mut self) {
        let (size, home) = (self.geometry.size_bytes(), self.regions.home());
        let regions = RegionMap::new(home, Uuid::from_u128(9), size, 1 << 16, (&[], &[]), true);
        self.disks.extend_from_within(..);
        self.publish_as(1, &Arc::new(regions));
    }

    /// Nothing that is written to the journal of the first array is answered.
    pub fn stall(&mut self) {
        self.stalled = true;
    }

    /// Begins a write with FUA of one of the arrays. What is written does not matter.
    pub fn begin(&mut self, device: u32, offset: u64, len: u64) -> u64 {
        self.next += 1;
        self.asked.insert(self.next, Asked { op: Op::Write, offset, len, buf: 0, expected: Ok(()) });
        let buf = Buf { addr: 0, region: Buf::UNREGISTERED };
        let device = DeviceId(device);
        let request = Request { device, op: Op::Write, flags: Flags::FUA, offset, len, buf, tag: self.next };
        let (shard, sink) = &mut self.shards[0];
        shard.submit(&request, sink).expect("room for a request");
        self.next
    }

    /// Goes on until nothing moves. Whether this request was answered.
    pub fn ends(&mut self, tag: u64) -> bool {
        while self.step() {}
        !self.asked.contains_key(&tag)
    }

    /// The disks answer nothing that a shard asks them, or do so again.
    pub fn pause(&mut self, shard: Option<usize>) {
        self.paused = shard;
    }

    fn is_stalled(&self, io: &LeafIo) -> bool {
        self.stalled && (io.leaf.0 as usize) < self.roles.len() && self.is_journal(io.offset)
    }

    fn publish_as(&mut self, device: u32, regions: &Arc<RegionMap>) {
        let member = |(k, role): (usize, &Role)| MirrorMember {
            leaf: LeafId(k as u32 + device * self.roles.len() as u32),
            start: 0,
            len: self.shape.blocks[k] * BLOCK,
            bitmap_start: self.ring() - RING_START_BYTES - BLOCK,
            role: *role,
            write_mostly: false,
        };
        let lost = self.roles.iter().filter(|role| **role == Role::Out).count();
        let node = MirrorNode {
            geometry: self.geometry.clone(),
            members: self.roles.iter().enumerate().map(member).collect(),
            successors: Vec::new(),
            regions: Arc::clone(regions),
            parity: Some(ParityNode {
                array: Uuid::from_u128(9),
                run: 5,
                rings: vec![self.ring(); self.roles.len()],
                ring_blocks: RING_BLOCKS,
                ring_on: RingPlace::Members,
                generation: 1,
                lost: Arc::clone(&self.lost),
            }),
            failed: lost > self.tolerance(),
        };
        let layout = Arc::new(DeviceLayout::new(self.version, 4096, &Node::Mirrored(Box::new(node))));
        for (shard, sink) in &mut self.shards {
            shard.publish(DeviceId(device), Some(Arc::clone(&layout)), sink);
        }
    }

    /// Leaves members out, and whoever was out before is in again: nothing was written meanwhile.
    pub fn lose(&mut self, lost: &[usize]) {
        for (member, role) in self.roles.iter_mut().enumerate() {
            *role = if lost.contains(&member) { Role::Out } else { Role::InSync };
        }
        self.publish();
        self.settle();
    }

    /// One more member is out, whatever is under way.
    pub fn leave_out(&mut self, member: usize) {
        self.roles[member] = Role::Out;
        self.publish();
    }

    /// Goes on as far as it can.
    pub fn go_on(&mut self) {
        while self.step() {}
    }

    /// Every set of members that may be lost.
    pub fn tolerated(&self) -> Vec<Vec<usize>> {
        let members = self.roles.len();
        let mut sets: Vec<Vec<usize>> = (0..members).map(|a| vec![a]).collect();
        if self.tolerance() == 2 {
            sets.extend((0..members).flat_map(|a| (a + 1..members).map(move |b| vec![a, b])));
        }
        sets
    }

    /// From now on this disk fails whatever it is asked.
    pub fn fail(&mut self, member: u32) {
        self.failing = Some(member);
    }

    /// From now on this disk does not answer what is written to its journal, until it is left out.
    pub fn hang(&mut self, member: u32) {
        self.hanging = Some((member, Hangs::Journal));
    }

    /// The same of what is written in place.
    pub fn hang_in_place(&mut self, member: u32) {
        self.hanging = Some((member, Hangs::InPlace));
    }

    /// The same of the bits of its regions.
    pub fn hang_in_bits(&mut self, member: u32) {
        self.hanging = Some((member, Hangs::Bits));
    }

    /// Bytes that disks have kept.
    pub fn hung_bytes(&self) -> u64 {
        self.hung.iter().map(|(_, _, bytes)| bytes).sum()
    }

    /// They give all of it back.
    pub fn give_back(&mut self) {
        for (shard, cookie, _) in std::mem::take(&mut self.hung) {
            let (shard, sink) = &mut self.shards[shard];
            shard.leaf_returned(cookie, sink);
        }
        self.settle();
    }

    fn answer(&mut self, shard: usize, at: usize) {
        let io = self.shards[shard].1.queue.remove(at).expect("a leaf I/O is there");
        self.log.push(Event { op: io.op, offset: io.offset, len: io.len, fua: io.flags.has(Flags::FUA) });
        let bits = self.ring() - RING_START_BYTES - BLOCK;
        let hangs = self.hanging.filter(|(member, _)| *member == io.leaf.0).is_some_and(|(_, hangs)| match hangs {
            Hangs::Journal => self.is_journal(io.offset),
            Hangs::InPlace => io.offset < bits,
            Hangs::Bits => io.offset == bits,
        });
        if hangs && io.op == Op::Write {
            self.hung.push((shard, io.cookie, io.len));
            let (shard, sink) = &mut self.shards[shard];
            return shard.leaf_late(io.cookie, sink);
        }
        let result = self.perform(shard, &io);
        let (shard, sink) = &mut self.shards[shard];
        shard.leaf_done(io.cookie, result, sink);
    }

    fn perform(&mut self, shard: usize, io: &LeafIo) -> LeafResult {
        if self.failing == Some(io.leaf.0) {
            return Err(LeafError { kind: ErrorKind::Io, errno: 5 });
        }
        self.watch_io(shard, io);
        let out = self.roles[io.leaf.0 as usize % self.roles.len()] == Role::Out;
        assert!(
            !out || self.failing.is_some() || self.hanging.is_some() || io.op == Op::Flush,
            "a member that is out is asked {io:?}"
        );
        let disk = &mut self.disks[io.leaf.0 as usize];
        let mut at = io.offset as usize;
        match io.op {
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes => disk[at..at + io.len as usize].fill(0),
            Op::Read | Op::Write => {
                for k in 0..io.pieces() {
                    let (buf, len) = io.piece(k);
                    let bytes = &mut disk[at..at + len as usize];
                    let mut memory = self.memory.borrow_mut();
                    let memory = if buf.addr >= META_ADDR {
                        &mut self.shards[shard].1.meta[((buf.addr - META_ADDR) / BLOCK) as usize][..len as usize]
                    } else {
                        &mut memory[buf.addr as usize..][..len as usize]
                    };
                    match io.op {
                        Op::Read => memory.copy_from_slice(bytes),
                        _ => bytes.copy_from_slice(memory),
                    }
                    at += len as usize;
                }
            }
        }
        Ok(())
    }

    /// Delivers messages, answers one leaf I/O, does what a keeper does. False: nothing is left.
    fn step(&mut self) -> bool {
        let mut moved = false;
        for from in 0..self.shards.len() {
            while let Some((to, message)) = self.shards[from].0.pop_message() {
                let (shard, sink) = &mut self.shards[usize::from(to.0)];
                shard.message(message, sink);
                moved = true;
            }
        }
        for (shard, sink) in &mut self.shards {
            // Now and then late: more may come until then.
            moved |= shard.is_turn_open();
            if shard.is_turn_open() && self.random.below(4) > 0 {
                shard.end_turn(sink);
            }
        }
        let busy = |s: &usize| self.shards[*s].1.queue.iter().any(|io| !self.is_stalled(io));
        let paused = self.paused;
        let busy: Vec<usize> = (0..self.shards.len()).filter(|s| paused != Some(*s)).filter(busy).collect();
        if !busy.is_empty() {
            let shard = busy[self.random.below(busy.len() as u64) as usize];
            let at = loop {
                let at = self.random.below(self.shards[shard].1.queue.len() as u64) as usize;
                if !self.is_stalled(&self.shards[shard].1.queue[at]) {
                    break at;
                }
            };
            self.answer(shard, at);
            moved = true;
        }
        self.take_done();
        let troubles: Vec<Trouble> =
            self.shards.iter_mut().flat_map(|(shard, _)| std::iter::from_fn(|| shard.pop_trouble())).collect();
        if let Some(member) = troubles.iter().map(|t| t.leaf.0 as usize).find(|m| self.roles[*m] != Role::Out) {
            for (shard, sink) in &mut self.shards {
                shard.freeze(DeviceId(0), sink);
            }
            self.roles[member] = Role::Out;
            self.publish();
            moved = true;
        }
        moved
    }

    pub fn settle(&mut self) {
        while self.step() {}
        assert!(
            self.asked.is_empty(),
            "{} requests were never answered ({:?}), {}",
            self.asked.len(),
            self.asked.values().map(|a| (a.op, a.offset, a.len)).collect::<Vec<_>>(),
            self.run
        );
        for (shard, _) in self.shards.iter().filter(|_| self.hung.is_empty()) {
            assert_eq!((shard.in_flight(), shard.slots_in_use()), (0, 0));
        }
    }

    /// All requests are answered; disks that hang may keep what they have.
    pub fn settle_but_hung(&mut self) {
        while self.step() {}
        assert!(self.asked.is_empty(), "{} requests were never answered, {}", self.asked.len(), self.run);
    }

    fn take_done(&mut self) {
        for at in 0..self.shards.len() {
            let mut done = Vec::new();
            self.shards[at].0.swap_done(&mut done);
            for completion in done {
                let asked = self.asked.remove(&completion.tag).expect("answered once");
                let what =
                    format!("{:?} of {}+{}, {}, roles {:?}", asked.op, asked.offset, asked.len, self.run, self.roles);
                assert_eq!(completion.result.map_err(|error| error.kind), asked.expected, "{what}");
                if asked.expected.is_err() {
                    continue;
                }
                let range = asked.offset as usize..(asked.offset + asked.len) as usize;
                match asked.op {
                    Op::Read => {
                        let memory = self.memory.borrow();
                        let got = &memory[asked.buf as usize..][..asked.len as usize];
                        let wrong = got.iter().zip(&self.model[range]).position(|(a, b)| a != b);
                        assert_eq!(wrong, None, "{what}");
                    }
                    Op::Write | Op::WriteZeroes | Op::Discard | Op::Flush => {}
                }
            }
        }
    }

    /// Begins a request: its tag.
    pub fn submit(&mut self, shard: usize, op: Op, offset: u64, len: u64, flags: Flags) -> u64 {
        self.submit_expecting(shard, op, offset, len, flags, Ok(()));
        self.next
    }

    /// Whether a request that was begun has been answered.
    pub fn is_answered(&self, tag: u64) -> bool {
        !self.asked.contains_key(&tag)
    }

    pub(super) fn submit_expecting(
        &mut self,
        shard: usize,
        op: Op,
        offset: u64,
        len: u64,
        flags: Flags,
        expected: Result<(), ErrorKind>,
    ) {
        self.next += 1;
        let place = |slot: u64| slot * (REQUESTS_BYTES / 8);
        let is_free = |slot: &u64| self.asked.values().all(|asked| asked.buf != place(*slot));
        let buf = place((0..7).find(is_free).expect("memory for a request"));
        let tag = self.next;
        let range = offset as usize..(offset + len) as usize;
        match op {
            Op::Write => {
                let mut random = Random(tag);
                for byte in &mut self.memory.borrow_mut()[buf as usize..][..len as usize] {
                    *byte = random.below(256) as u8;
                }
                if expected.is_ok() {
                    self.model[range].copy_from_slice(&self.memory.borrow()[buf as usize..][..len as usize]);
                }
            }
            Op::WriteZeroes | Op::Discard if expected.is_ok() => self.model[range].fill(0),
            _ => {}
        }
        self.asked.insert(tag, Asked { op, offset, len, buf, expected });
        let buf = Buf { addr: buf, region: Buf::UNREGISTERED };
        let request = Request { device: DeviceId(0), op, flags, offset, len, buf, tag };
        let (shard, sink) = &mut self.shards[shard];
        shard.submit(&request, sink).expect("room for a request");
    }

    /// One request, to its end.
    pub fn run(&mut self, shard: usize, op: Op, offset: u64, len: u64, flags: Flags) -> Result<(), IoError> {
        let shard = shard % self.shards.len();
        self.submit(shard, op, offset, len, flags);
        self.settle();
        Ok(())
    }

    /// Writes every byte of the array once.
    pub fn write_all(&mut self) {
        let size = self.geometry.size_bytes();
        for at in (0..size).step_by(1 << 20) {
            self.submit(0, Op::Write, at, (size - at).min(1 << 20), Flags::NONE);
            self.settle();
        }
    }

    /// Requests at random, some at a time; those under way never overlap.
    pub fn requests(&mut self, count: u32) {
        let blocks = self.geometry.size_bytes() / BLOCK;
        for _ in 0..count {
            let (offset, len) = loop {
                let most = [1, 4, 20, 60][self.random.below(4) as usize];
                let len = 1 + self.random.below(most.min(blocks));
                let offset = match self.random.below(3) {
                    // Whole stripes are met more often than by chance.
                    0 => {
                        let stripe =
                            self.geometry.stripe(self.random.below(self.geometry.stripes())).expect("a stripe");
                        stripe.array_start / BLOCK
                    }
                    _ => self.random.below(blocks),
                };
                let len = match self.random.below(4) {
                    0 => self.stripe_bytes(0) / BLOCK,
                    _ => len,
                };
                let (offset, len) = (offset * BLOCK, len.min(blocks - offset) * BLOCK);
                let free = |a: &Asked| a.offset + a.len <= offset || offset + len <= a.offset;
                if len > 0 && self.asked.values().all(free) {
                    break (offset, len);
                }
                self.step();
            };
            let op = match self.random.below(10) {
                0..5 => Op::Write,
                5..8 => Op::Read,
                8 => [Op::WriteZeroes, Op::Discard][self.random.below(2) as usize],
                _ => Op::Flush,
            };
            let flags = if op == Op::Write && self.random.below(5) == 0 { Flags::FUA } else { Flags::NONE };
            let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
            let shard = self.random.below(self.shards.len() as u64) as usize;
            match self.sees_lost(op, offset, len) {
                Sees::Nothing => drop(self.submit(shard, op, offset, len, flags)),
                // Some of a longer one may be written.
                Sees::Refusal if op == Op::Read || len == BLOCK => {
                    self.submit_expecting(shard, op, offset, len, flags, Err(ErrorKind::Unreadable));
                }
                Sees::Refusal => {}
            }
            while self.asked.len() > 6 || self.random.below(3) == 0 {
                if !self.step() {
                    assert!(self.asked.len() <= 6, "nothing moves");
                    break;
                }
            }
        }
    }

    /// Writes a part of the array in pieces one after the other, all of which come before the driver's turn ends.
    pub fn stream(&mut self, shard: usize, offset: u64, pieces: &[u64]) {
        let pieces: Vec<_> = pieces.iter().map(|len| (*len, Ok(()))).collect();
        self.stream_expecting(shard, offset, &pieces);
    }

    /// The same, with what each piece is to be answered.
    pub fn stream_expecting(&mut self, shard: usize, offset: u64, pieces: &[(u64, Result<(), ErrorKind>)]) {
        let mut at = offset;
        for (len, expected) in pieces {
            self.submit_expecting(shard, Op::Write, at, *len, Flags::NONE, *expected);
            at += len;
        }
        let (shard, sink) = &mut self.shards[shard];
        shard.end_turn(sink);
    }

    /// Writes a part of the array in pieces, each in a turn of the driver of its own.
    pub fn trickle(&mut self, shard: usize, offset: u64, pieces: &[u64]) {
        let mut at = offset;
        for len in pieces {
            self.submit(shard, Op::Write, at, *len, Flags::NONE);
            let (shard, sink) = &mut self.shards[shard];
            shard.end_turn(sink);
            at += len;
        }
    }

    /// Goes on by one answer of a disk. Whether something moved.
    pub fn settles_some(&mut self) -> bool {
        self.step()
    }

    /// Goes on until nothing moves. Whether everything was answered.
    pub fn settles(&mut self) -> bool {
        while self.step() {}
        self.asked.is_empty()
    }

    /// A member that holds something else is filled row by row, while requests go on.
    pub fn refill(&mut self, member: usize) {
        self.hanging = None;
        let mut noise = Random(member as u64 + 1);
        let data = self.shape.blocks[member] * BLOCK;
        self.disks[member][..data as usize].fill_with(|| noise.below(256) as u8);
        self.roles[member] = Role::Filling;
        self.publish();
        let to = Roles::NONE.with(member);
        for row in 0..self.rows() {
            let (data, cells) = self.cells_of_row(row);
            self.sync(row, SyncKind::Restore { to, avoid: Roles::NONE, data, cells });
            if row % 3 == 0 {
                self.requests(1);
            }
        }
        self.settle();
        self.roles[member] = Role::InSync;
        self.publish();
        self.settle();
    }

    pub fn rows_of_stripe(&self) -> u64 {
        let chunk = self.shape.chunk_blocks * BLOCK;
        chunk / u64::from(braid_format::journal::row_bytes(chunk as u32))
    }

    pub fn rows(&self) -> u64 {
        self.geometry.stripes() * self.rows_of_stripe()
    }

    pub fn cells_of_row(&self, row: u64) -> (u16, u16) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        (stripe.data_chunks() as u16, stripe.members.len() as u16)
    }

    /// A part of a job on a whole row, to its end: which of its blocks differed.
    pub fn sync(&mut self, row: u64, kind: SyncKind) -> u64 {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let (data, height) = (stripe.data_chunks() as u64, stripe.chunk_bytes / self.rows_of_stripe());
        let offset = stripe.array_start + row % self.rows_of_stripe() * height * data;
        let buf = Buf { addr: REQUESTS_BYTES - (1 << 20), region: Buf::UNREGISTERED };
        let shard = self.random.below(self.shards.len() as u64) as usize;
        let request = SyncRequest { device: DeviceId(0), offset, len: height * data, kind, buf, tag: row };
        let (of, sink) = &mut self.shards[shard];
        of.sync(&request, sink).expect("a part that is sound");
        loop {
            if let Some(done) = self.shards[shard].0.pop_sync_done() {
                assert_eq!((done.tag, done.result), (row, Ok(())));
                return done.compared.differing;
            }
            assert!(self.step(), "a part of a job was never answered");
        }
    }

    /// Begins to compare a row with its parity, on the first shard.
    pub fn begin_verify(&mut self, row: u64) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let (data, height) = (stripe.data_chunks() as u64, stripe.chunk_bytes / self.rows_of_stripe());
        let offset = stripe.array_start + row % self.rows_of_stripe() * height * data;
        let buf = Buf { addr: REQUESTS_BYTES - (1 << 20), region: Buf::UNREGISTERED };
        let kind = SyncKind::Verify { data: data as u16, cells: stripe.members.len() as u16 };
        let request = SyncRequest { device: DeviceId(0), offset, len: height * data, kind, buf, tag: row };
        let (shard, sink) = &mut self.shards[0];
        shard.sync(&request, sink).expect("a part that is sound");
    }

    /// Whether that has ended since.
    pub fn verified(&mut self) -> bool {
        self.shards[0].0.pop_sync_done().is_some_and(|done| done.result == Ok(()) && done.compared.differing == 0)
    }

    /// Changes a byte of a block of a cell of a row, as rot would. Cells are data first, then P, then Q.
    pub fn rot(&mut self, row: u64, cell: u16, block: u64) {
        let (member, at) = self.place_of(row, cell, block);
        self.disks[member][at + 77] ^= 0x5a;
    }

    /// A block of a cell as it stands on its disk.
    pub fn block_of(&self, row: u64, cell: u16, block: u64) -> Vec<u8> {
        let (member, at) = self.place_of(row, cell, block);
        self.disks[member][at..at + BLOCK as usize].to_vec()
    }

    fn place_of(&self, row: u64, cell: u16, block: u64) -> (usize, usize) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let member = match usize::from(cell).checked_sub(stripe.data_chunks()) {
            None => stripe.data(usize::from(cell)),
            Some(0) => stripe.p(),
            Some(_) => stripe.q().expect("a second parity"),
        };
        let height = stripe.chunk_bytes / self.rows_of_stripe();
        let at = stripe.member_offset + row % self.rows_of_stripe() * height + block * BLOCK;
        (usize::from(member), at as usize)
    }

    /// Reads all of it, piece by piece.
    pub fn read_all(&mut self) {
        let size = self.geometry.size_bytes();
        let pieces = [17 * BLOCK, 3 * BLOCK];
        let (mut at, mut turn) = (0, 0);
        while at < size {
            let len = pieces[turn % 2].min(size - at);
            self.submit(turn % self.shards.len(), Op::Read, at, len, Flags::NONE);
            self.settle();
            (at, turn) = (at + len, turn + 1);
        }
    }

    /// Every row of every region that was written agrees with its parity, as far as its cells are here.
    pub fn check_parity(&self) {
        let mut rows = 0;
        for number in 0..self.geometry.stripes() {
            let stripe = self.geometry.stripe(number).expect("a stripe");
            let region = self.regions.region_of(stripe.array_start);
            let here = stripe.members.iter().all(|member| self.roles[usize::from(*member)] == Role::InSync);
            if !here || !self.regions.written.has(region) {
                continue;
            }
            let cell = |member: u16| {
                &self.disks[usize::from(member)][stripe.member_offset as usize..][..stripe.chunk_bytes as usize]
            };
            let data: Vec<&[u8]> = (0..stripe.data_chunks()).map(|index| cell(stripe.data(index))).collect();
            let (mut p, mut q) = (vec![0; cell(stripe.p()).len()], vec![0; cell(stripe.p()).len()]);
            Parity::best().pq(&mut p, &mut q, &data);
            assert!(p == cell(stripe.p()), "P of stripe {number}, {}", self.run);
            if let Some(member) = stripe.q() {
                assert!(q == cell(member), "Q of stripe {number}, {}", self.run);
            }
            rows += 1;
        }
        assert!(rows > 0 || self.roles.contains(&Role::Out), "no row was looked at");
    }
}
