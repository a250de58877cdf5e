//! Shards over an array with parity on in-memory disks; leaf I/Os complete in an order drawn from a seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::META_BLOCKS;
use braid_engine::*;
use braid_format::Uuid;
use braid_format::journal::{LostStripe, RING_OFFSET_BYTES};
use braid_geometry::{Geometry, Level, Spec};

use super::ring_moves::{JOURNAL, JOURNAL_BLOCKS, JOURNAL_RING, Ring};
use super::unreadable::Watch;

pub const BLOCK: u64 = 4096;
/// Memory of requests; behind it, for each shard, scratch memory.
pub(super) const REQUESTS_BYTES: u64 = 32 << 20;
pub(super) const META_ADDR: u64 = 1 << 40;
/// Blocks of the journal's ring, as on small disks, so that it wraps around.
pub(super) const RING_BLOCKS: u64 = 176;

/// A small random number generator: a seed determines a run.
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
    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut ComputeFn<'_>) {
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

/// An event on a disk.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    pub fua: bool,
}

/// Which writes a hanging disk does not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hangs {
    Journal,
    InPlace,
    Bits,
}

/// A request that has not been answered.
pub(super) struct PendingRequest {
    pub(super) device: u32,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) buf: u64,
    pub(super) expected: Result<(), ErrorKind>,
}

pub struct Rig {
    pub(super) shape: Shape,
    pub geometry: Geometry,
    pub(super) regions: Arc<RegionMap>,
    pub(super) shards: Vec<(Shard, Sink)>,
    pub(super) disks: Vec<Vec<u8>>,
    pub(super) lost: Arc<LostStripes>,
    pub(super) marks: Arc<Marks>,
    /// What is checked while stripes are unreadable.
    pub(super) watch: Option<Watch>,
    pub(super) memory: Rc<RefCell<Vec<u8>>>,
    /// The expected bytes of the array.
    pub(super) model: Vec<u8>,
    pub log: Vec<Event>,
    pub(super) random: Random,
    pub(super) roles: Vec<MemberRole>,
    /// Members that replace others; their disks and roles are behind those of all members.
    pub(super) successors: Vec<Successor>,
    /// A role whose successor, by the number of its disk, has taken its slot.
    pub(super) taken_over: Option<(usize, usize)>,
    pub(super) failing: Option<u32>,
    /// Failing members are not dropped automatically: the test does that.
    is_unattended: bool,
    /// The disk that hangs, in which writes, and what it has not returned: shard, I/O and bytes.
    pub(super) hanging: Option<(u32, Hangs)>,
    stalled: bool,
    /// The disks complete no I/O of this shard.
    paused: Option<usize>,
    hung: Vec<(usize, Cookie, u64)>,
    /// The content of the disk that the ring of the journal is on now and then.
    pub(super) journal: Vec<u8>,
    /// The location of the ring, and its run.
    pub ring_on: Ring,
    /// The current or last location.
    pub(super) ring_was: Ring,
    pub(super) run_number: u64,
    /// The location that the ring is about to move to.
    pub(super) moves_to: Option<Ring>,
    pub(super) version: u32,
    pub(super) pending: BTreeMap<u64, PendingRequest>,
    pub(super) next: u64,
    /// A description of the run, for failure messages.
    pub(super) run: String,
}

impl Rig {
    pub fn new(shape: Shape, shards: u16, seed: u64) -> Rig {
        Rig::with_lost(shape, shards, seed, &[])
    }

    /// Creates a rig with an array of which these stripes are unreadable. If there are some, all of it was written
    /// before.
    pub fn with_lost(shape: Shape, shards: u16, seed: u64, lost: &[LostStripe]) -> Rig {
        Rig::made(shape, shards, seed, lost, 1 << 16)
    }

    /// Creates a rig with an array with regions of this size in bytes.
    pub fn with_regions(shape: Shape, shards: u16, seed: u64, region_bytes: u32) -> Rig {
        Rig::made(shape, shards, seed, &[], region_bytes)
    }

    fn made(shape: Shape, shards: u16, seed: u64, lost: &[LostStripe], region_bytes: u32) -> Rig {
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
        let regions = RegionMap::new(ShardId(shards - 1), Uuid::from_u128(9), size, region_bytes, bits, true);
        let mut noise = Random(seed ^ 77);
        let disk_bytes = sizes.iter().max().expect("members") + BLOCK + RING_OFFSET_BYTES + RING_BLOCKS * BLOCK;
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
            // The initial content of the disks must not be seen.
            disks: sizes.iter().map(|_| (0..disk_bytes).map(|_| noise.below(256) as u8).collect()).collect(),
            memory,
            model: vec![0; size as usize],
            lost: Arc::new(LostStripes::new(lost)),
            marks: Arc::default(),
            watch: None,
            log: Vec::new(),
            random: Random(seed),
            roles: vec![MemberRole::InSync; sizes.len()],
            successors: Vec::new(),
            taken_over: None,
            failing: None,
            is_unattended: false,
            hanging: None,
            stalled: false,
            paused: None,
            hung: Vec::new(),
            journal: vec![0xdb; (JOURNAL_RING + JOURNAL_BLOCKS * BLOCK) as usize],
            ring_on: Ring::Members,
            ring_was: Ring::Members,
            run_number: 5,
            moves_to: None,
            version: 0,
            pending: BTreeMap::new(),
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

    /// Returns the members that hold, or are to hold, the data of a role: its own member, then its successors.
    pub(super) fn holders(&self, role: usize) -> impl Iterator<Item = usize> {
        let successors = self.successors.iter().filter(move |s| usize::from(s.role) == role);
        std::iter::once(role).chain(successors.map(|s| usize::from(s.member)))
    }

    pub(super) fn data_bytes(&self, member: usize) -> u64 {
        let successor = self.successors.iter().find(|s| usize::from(s.member) == member);
        self.shape.blocks[successor.map_or(member, |s| usize::from(s.role))] * BLOCK
    }

    pub fn stripe_bytes(&self, number: u64) -> u64 {
        let stripe = self.geometry.stripe(number).expect("a stripe");
        stripe.data_chunks() as u64 * stripe.chunk_bytes
    }

    pub fn is_journal(&self, offset: u64) -> bool {
        offset >= self.ring()
    }

    /// Returns the offset of the ring on every disk: behind the largest data area, a block for the bitmap, and the
    /// heads.
    pub(super) fn ring(&self) -> u64 {
        *self.shape.blocks.iter().max().expect("members") * BLOCK + BLOCK + RING_OFFSET_BYTES
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

    /// Stalls all writes to the journal of the first array.
    pub fn stall(&mut self) {
        self.stalled = true;
    }

    pub fn stop_stalling(&mut self) {
        self.stalled = false;
    }

    /// From now on failing members are dropped by the test only.
    pub fn leave_unattended(&mut self) {
        self.is_unattended = true;
    }

    /// Runs until a write in place is in flight.
    pub fn run_until_in_place(&mut self) {
        let bits = self.ring() - RING_OFFSET_BYTES - BLOCK;
        let goes = |io: &LeafIo| io.op == Op::Write && io.offset < bits;
        while !self.shards.iter().any(|(_, sink)| sink.queue.iter().any(goes)) {
            assert!(self.step(), "nothing is written in place");
        }
    }

    /// Lets the failing disk work again.
    pub fn heal(&mut self) {
        self.failing = None;
    }

    /// Stops or resumes completions of all disks for a shard.
    pub fn pause(&mut self, shard: Option<usize>) {
        self.paused = shard;
    }

    fn is_stalled(&self, io: &LeafIo) -> bool {
        let is_member = (io.leaf.0 as usize) < self.roles.len();
        self.stalled && (io.leaf == JOURNAL && io.op == Op::Write || is_member && self.is_journal(io.offset))
    }

    fn publish_as(&mut self, device: u32, regions: &Arc<RegionMap>) {
        // A successor that has its slot has the index of its role, and no further one.
        let disk = |number: usize| self.taken_over.filter(|(role, _)| *role == number).map_or(number, |(_, disk)| disk);
        let numbers = if self.taken_over.is_some() { self.shape.blocks.len() } else { self.roles.len() };
        let member = |number: usize| MirrorMember {
            leaf: LeafId(disk(number) as u32 + device * self.roles.len() as u32),
            start: 0,
            len: self.data_bytes(number),
            bitmap_start: self.ring() - RING_OFFSET_BYTES - BLOCK,
            role: self.roles[disk(number)],
            write_mostly: false,
        };
        let lost = (0..self.shape.blocks.len())
            .filter(|role| self.holders(*role).all(|m| self.roles[m] == MemberRole::Failed))
            .count();
        let node = MirrorNode {
            geometry: self.geometry.clone(),
            members: (0..numbers).map(member).collect(),
            successors: self.successors.clone(),
            regions: Arc::clone(regions),
            parity: Some(ParityNode {
                array: Uuid::from_u128(9),
                run: self.run_number,
                rings: vec![self.ring(); self.roles.len()],
                ring_blocks: if self.ring_was == Ring::Disk { JOURNAL_BLOCKS } else { RING_BLOCKS },
                ring_blocks_min: RING_BLOCKS,
                ring_location: self.ring_place(),
                generation: self.run_number,
                lost_stripes: Arc::clone(&self.lost),
                marks: Arc::clone(&self.marks),
            }),
            failed: lost > self.tolerance(),
        };
        let layout = Arc::new(DeviceLayout::new(self.version, 4096, &Node::Mirrored(Box::new(node))));
        for (shard, sink) in &mut self.shards {
            shard.publish(DeviceId(device), Some(Arc::clone(&layout)), sink);
        }
    }

    /// Drops members; members that were dropped before are in sync again, as nothing was written meanwhile.
    pub fn lose(&mut self, lost: &[usize]) {
        for (member, role) in self.roles.iter_mut().enumerate() {
            *role = if lost.contains(&member) { MemberRole::Failed } else { MemberRole::InSync };
        }
        self.publish();
        self.settle();
    }

    /// Drops one more member, whatever is in flight.
    pub fn drop_member(&mut self, member: usize) {
        self.roles[member] = MemberRole::Failed;
        self.publish();
    }

    /// Freezes: nothing is answered or begun until the next layout, as when a member has failed.
    pub fn freeze(&mut self) {
        for (shard, sink) in &mut self.shards {
            shard.freeze(DeviceId(0), sink);
        }
    }

    /// Makes a member in sync.
    pub fn promote(&mut self, member: usize) {
        self.roles[member] = MemberRole::InSync;
        self.publish();
    }

    /// Returns every set of members that may be lost.
    pub fn tolerated(&self) -> Vec<Vec<usize>> {
        let members = self.shape.blocks.len();
        let mut sets: Vec<Vec<usize>> = (0..members).map(|a| vec![a]).collect();
        if self.tolerance() == 2 {
            sets.extend((0..members).flat_map(|a| (a + 1..members).map(move |b| vec![a, b])));
        }
        sets
    }

    /// From now on this disk fails all I/O.
    pub fn fail(&mut self, member: u32) {
        self.failing = Some(member);
    }

    /// From now on this disk does not complete writes to its journal, until it is dropped.
    pub fn hang(&mut self, member: u32) {
        self.hanging = Some((member, Hangs::Journal));
    }

    /// From now on this disk does not complete writes in place, until it is dropped.
    pub fn hang_in_place(&mut self, member: u32) {
        self.hanging = Some((member, Hangs::InPlace));
    }

    /// From now on this disk does not complete bitmap writes, until it is dropped.
    pub fn hang_in_bits(&mut self, member: u32) {
        self.hanging = Some((member, Hangs::Bits));
    }

    /// Returns the bytes that disks have kept.
    pub fn hung_bytes(&self) -> u64 {
        self.hung.iter().map(|(_, _, bytes)| bytes).sum()
    }

    /// Returns all I/Os that disks have kept.
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
        let bits = self.ring() - RING_OFFSET_BYTES - BLOCK;
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
        let is_journal = io.leaf == JOURNAL;
        let out = !is_journal && self.roles[io.leaf.0 as usize % self.roles.len()] == MemberRole::Failed;
        assert!(
            !out || self.failing.is_some() || self.hanging.is_some() || io.op == Op::Flush,
            "a dropped member gets {io:?}"
        );
        let disk = if is_journal { &mut self.journal } else { &mut self.disks[io.leaf.0 as usize] };
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

    /// Delivers messages, completes one leaf I/O, acts as the reconciler. Returns false if nothing is left.
    pub fn step(&mut self) -> bool {
        let moved = self.step_but_calls();
        self.finish_move() || moved
    }

    /// Runs a step without reporting calls that are done.
    pub(super) fn step_but_calls(&mut self) -> bool {
        let mut moved = false;
        for from in 0..self.shards.len() {
            while let Some((to, message)) = self.shards[from].0.pop_message() {
                let (shard, sink) = &mut self.shards[usize::from(to.0)];
                shard.handle_message(message, sink);
                moved = true;
            }
        }
        for (shard, sink) in &mut self.shards {
            // Now and then late: more may arrive until then.
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
        let faults: Vec<Fault> =
            self.shards.iter_mut().flat_map(|(shard, _)| std::iter::from_fn(|| shard.pop_fault())).collect();
        if faults.iter().any(|fault| fault.leaf == JOURNAL) && self.moves_to != Some(Ring::Members) {
            self.begin_move(Ring::Members);
        }
        let is_attended = !self.is_unattended;
        let members = faults.iter().filter(|fault| fault.leaf != JOURNAL && is_attended);
        if let Some(member) = members.map(|t| t.leaf.0 as usize).find(|m| self.roles[*m] != MemberRole::Failed) {
            for (shard, sink) in &mut self.shards {
                shard.freeze(DeviceId(0), sink);
            }
            self.roles[member] = MemberRole::Failed;
            self.publish();
            moved = true;
        }
        moved
    }

    pub fn settle(&mut self) {
        while self.step() {}
        assert!(
            self.pending.is_empty(),
            "{} requests were never answered ({:?}), {}",
            self.pending.len(),
            self.pending.values().map(|a| (a.op, a.offset, a.len)).collect::<Vec<_>>(),
            self.run
        );
        for (shard, _) in self.shards.iter().filter(|_| self.hung.is_empty()) {
            assert_eq!((shard.in_flight(), shard.slots_in_use()), (0, 0));
        }
    }

    /// Runs until all requests are answered; disks that hang may keep their I/O.
    pub fn settle_but_hung(&mut self) {
        while self.step() {}
        assert!(self.pending.is_empty(), "{} requests were never answered, {}", self.pending.len(), self.run);
    }
}
