//! Shards over devices on in-memory disks: leaf I/Os complete in an order drawn from a seed, some fail or complete
//! late, and messages between shards are delayed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::META_BLOCKS;
use braid_engine::*;
use braid_geometry::{Geometry, Level, Spec};

use super::disk::Disk;

pub const BLOCK: u64 = 4096;
/// The longest request, and memory for as many requests.
pub const REQUEST_BYTES: u64 = 2 << 20;
pub const BUFFERS: usize = 72;
const REQUESTS_BYTES: u64 = REQUEST_BYTES * BUFFERS as u64;
const META_ADDR: u64 = 1 << 40;
const REGION_BYTES: u32 = 256 << 10;
const RING_BLOCKS: u64 = 176;

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

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// An I/O, and when it was submitted.
#[derive(Clone, Copy)]
struct Out {
    io: LeafIo,
    begun: u64,
}

pub struct Sink {
    queue: Vec<Out>,
    /// Writes submitted, of all kinds.
    writes: u64,
    meta: Vec<[u8; 4096]>,
    memory: Rc<RefCell<Vec<u8>>>,
    scratch: u64,
    clock: Rc<Cell<u64>>,
}

impl LeafSink for Sink {
    fn submit(&mut self, io: &LeafIo) {
        self.queue.push(Out { io: *io, begun: self.clock.get() });
        self.writes += u64::from(io.op == Op::Write);
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

/// The kind of a device of the rig.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Bare,
    Mirror,
    Parity,
    /// With two parities; one disk has failed and another is late with reads: stripes are read without both.
    TwoParities,
}

/// A device on disks of its own, which are used alike.
pub struct Member {
    pub kind: Kind,
    /// The first of its disks; there are as many as `roles`.
    pub first: usize,
    pub roles: Vec<MemberRole>,
    /// Its size in bytes.
    pub size: u64,
    /// From this offset on its I/Os may fail.
    pub data: u64,
    regions: Option<Arc<RegionMap>>,
    lost: Arc<LostStripes>,
    version: u32,
    /// This disk of it fails all I/O.
    failing: Option<usize>,
    /// It is frozen, until a layout without this disk is published.
    leaves: Option<usize>,
}

impl Member {
    /// Returns a disk of it that has everything.
    pub fn good(&self) -> usize {
        let good = |k: &usize| self.roles[*k] == MemberRole::InSync && self.failing != Some(*k);
        self.first + (0..self.roles.len()).find(good).expect("one disk is good")
    }

    fn data_bytes(&self) -> u64 {
        match self.kind {
            Kind::Bare | Kind::Mirror => self.size,
            Kind::Parity => self.size / (self.roles.len() as u64 - 1),
            Kind::TwoParities => self.size / (self.roles.len() as u64 - 2),
        }
    }
}

/// The frequencies of faults, one in so many; 0: never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    pub fails: u64,
    pub late: u64,
    /// A disk of a redundant array fails or hangs.
    pub leaves: u64,
    /// Pools' own writes on bare disks fail, too.
    pub own: bool,
}

enum Fate {
    Done,
    Fails,
    Late,
}

pub struct Rig {
    pub shards: Vec<(Shard, Sink)>,
    pub shared: Arc<Shared>,
    wires: Vec<VecDeque<ShardMessage>>,
    pub disks: Vec<Disk>,
    pub members: Vec<Member>,
    pub memory: Rc<RefCell<Vec<u8>>>,
    clock: Rc<Cell<u64>>,
    pub random: Random,
    pub faults: Faults,
    /// I/Os that exceeded their time limit and were not returned: shard, I/O, and whether a bare disk has it.
    hung: Vec<(usize, Out, bool)>,
    /// Number of steps in which no leaf completes I/O.
    pub stalled: u64,
    /// A disk that completes no I/O, and its I/Os: the shard, and the I/O.
    held: Option<usize>,
    kept: Vec<(usize, Out)>,
    /// Number of late I/Os, of those on bare disks, and of failures on these.
    pub late: u64,
    pub late_on_bare: u64,
    pub failed_on_bare: u64,
    pub own_failed: bool,
}

impl Rig {
    pub fn new(shards: u16, limits: &Limits, seed: u64) -> Rig {
        let shared = Arc::new(Shared::new(shards, limits));
        let bytes = REQUESTS_BYTES + u64::from(shards) * SCRATCH_BYTES_MIN;
        let memory = Rc::new(RefCell::new(vec![0; bytes as usize]));
        let clock = Rc::new(Cell::new(1));
        let sink = |id: u16| Sink {
            queue: Vec::new(),
            writes: 0,
            meta: vec![[0; 4096]; META_BLOCKS as usize],
            memory: Rc::clone(&memory),
            scratch: REQUESTS_BYTES + u64::from(id) * SCRATCH_BYTES_MIN,
            clock: Rc::clone(&clock),
        };
        Rig {
            shards: (0..shards).map(|id| (Shard::new(ShardId(id), limits, Arc::clone(&shared)), sink(id))).collect(),
            shared,
            wires: (0..shards * shards).map(|_| VecDeque::new()).collect(),
            disks: Vec::new(),
            members: Vec::new(),
            memory,
            clock,
            random: Random(seed),
            faults: Faults::default(),
            hung: Vec::new(),
            stalled: 0,
            held: None,
            kept: Vec::new(),
            late: 0,
            late_on_bare: 0,
            failed_on_bare: 0,
            own_failed: false,
        }
    }

    pub fn tick(&mut self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Adds a device, in the order of numbers, of at least so many bytes; its I/Os may fail from `data` on.
    pub fn add_member(&mut self, kind: Kind, bytes: u64, data: u64) -> DeviceId {
        let disks = match kind {
            Kind::Bare => 1,
            Kind::Mirror => 2,
            Kind::Parity => 3,
            Kind::TwoParities => 4,
        };
        let device = DeviceId(self.members.len() as u32);
        let size = bytes.next_multiple_of(u64::from(REGION_BYTES));
        let mut member = Member {
            kind,
            first: self.disks.len(),
            roles: vec![MemberRole::InSync; disks],
            size,
            data,
            regions: None,
            lost: Arc::new(LostStripes::new(&[])),
            version: 0,
            failing: None,
            leaves: None,
        };
        if kind == Kind::TwoParities {
            member.roles[0] = MemberRole::Failed;
        }
        if kind != Kind::Bare {
            let home = ShardId(self.random.below(self.shards.len() as u64) as u16);
            let map = RegionMap::new(home, Uuid::from_u128(9), size, REGION_BYTES, (&[], &[]), true);
            member.regions = Some(Arc::new(map));
        }
        let disk_bytes = member.data_bytes() + 4 * BLOCK + (RING_BLOCKS + 2) * BLOCK;
        // An array knows that what was never written to it is zeros, whatever its disks hold.
        let full_of = if kind == Kind::Bare { 0xdb } else { 0 };
        (0..disks).for_each(|_| self.disks.push(Disk::new(disk_bytes, full_of)));
        self.members.push(member);
        self.publish_member(device.0 as usize);
        device
    }

    /// Publishes a member again; without the disk that it is frozen for.
    pub fn publish_member(&mut self, at: usize) {
        let member = &mut self.members[at];
        if let Some(leaves) = member.leaves.take() {
            member.roles[leaves] = MemberRole::Failed;
            member.failing = None;
        }
        member.version += 1;
        let each = member.data_bytes();
        let leaf = |k: usize| LeafId((member.first + k) as u32);
        let node = match member.kind {
            Kind::Bare => Node::Leaf { leaf: leaf(0), start: 0, len: member.size },
            kind => {
                let of = |(k, role): (usize, &MemberRole)| MirrorMember {
                    leaf: leaf(k),
                    start: 0,
                    len: each,
                    bitmap_start: each,
                    role: *role,
                    write_mostly: false,
                };
                let level = match kind {
                    Kind::Bare | Kind::Mirror => Level::Raid1,
                    Kind::Parity => Level::Raid5,
                    Kind::TwoParities => Level::Raid6,
                };
                let spec = Spec { chunk_bytes: 64 << 10, ..Spec::new(level) };
                let parity = (kind != Kind::Mirror).then(|| ParityNode {
                    array: Uuid::from_u128(9),
                    run: 5,
                    rings: vec![each + 4 * BLOCK; member.roles.len()],
                    ring_blocks: RING_BLOCKS,
                    ring_blocks_min: RING_BLOCKS,
                    ring_location: RingState::Members,
                    generation: 5,
                    lost_stripes: Arc::clone(&member.lost),
                    marks: Arc::default(),
                });
                Node::Mirrored(Box::new(MirrorNode {
                    geometry: Geometry::plan(spec, &vec![each; member.roles.len()]).expect("a plan"),
                    members: member.roles.iter().enumerate().map(of).collect(),
                    successors: Vec::new(),
                    regions: Arc::clone(member.regions.as_ref().expect("it is redundant")),
                    parity,
                    failed: false,
                }))
            }
        };
        let layout = Arc::new(DeviceLayout::new(member.version, 4096, &node));
        for (shard, sink) in &mut self.shards {
            shard.publish(DeviceId(at as u32), Some(Arc::clone(&layout)), sink);
        }
        self.after();
    }

    fn freeze(&mut self, at: usize, disk: usize) {
        for (shard, sink) in &mut self.shards {
            shard.freeze(DeviceId(at as u32), sink);
        }
        self.members[at].leaves = Some(disk);
        self.after();
    }

    fn member_of(&self, leaf: LeafId) -> usize {
        self.members.iter().rposition(|member| member.first <= leaf.0 as usize).expect("a disk is of a member")
    }

    /// Delivers messages between shards, and handles failed members.
    pub fn after(&mut self) {
        let count = self.shards.len();
        for from in 0..count {
            while let Some((to, message)) = self.shards[from].0.pop_message() {
                self.wires[from * count + usize::from(to.0)].push_back(message);
            }
            while let Some(fault) = self.shards[from].0.pop_fault() {
                let at = fault.device.0 as usize;
                let disk = fault.leaf.0 as usize - self.members[at].first;
                let member = &self.members[at];
                if member.kind == Kind::TwoParities {
                    // The fault was not handled yet.
                    continue;
                }
                if fault.is_fatal() && member.roles[disk] == MemberRole::InSync && member.leaves.is_none() {
                    assert_eq!(member.failing, Some(disk), "only one disk fails");
                    self.freeze(at, disk);
                }
            }
        }
    }

    fn fate(&mut self, io: &LeafIo) -> Fate {
        let at = self.member_of(io.leaf);
        let disk = io.leaf.0 as usize - self.members[at].first;
        let Faults { fails, late, leaves, own } = self.faults;
        let member = &mut self.members[at];
        let mut draw = |n: u64| n > 0 && self.random.one_in(n);
        if member.kind == Kind::Bare {
            if !own && (io.offset < member.data || io.op == Op::Flush) {
                return Fate::Done;
            }
            let fate = if draw(late) && io.op != Op::Flush {
                self.late_on_bare += 1;
                Fate::Late
            } else if draw(fails) {
                Fate::Fails
            } else {
                return Fate::Done;
            };
            self.failed_on_bare += 1;
            self.own_failed |= io.offset < member.data || io.op == Op::Flush;
            return fate;
        }
        if member.kind == Kind::TwoParities {
            return if disk == 1 && io.op == Op::Read && draw(late) { Fate::Late } else { Fate::Done };
        }
        let healthy = member.roles.iter().all(|role| *role == MemberRole::InSync);
        if healthy && member.failing.is_none() && member.leaves.is_none() && io.op != Op::Read && draw(leaves) {
            member.failing = Some(disk);
        }
        match member.failing == Some(disk) {
            true if draw(2) && io.op != Op::Flush => Fate::Late,
            true => Fate::Fails,
            false => Fate::Done,
        }
    }

    fn answer(&mut self, shard: usize, at: usize) {
        let out = self.shards[shard].1.queue.swap_remove(at);
        match self.fate(&out.io) {
            Fate::Done => {
                self.perform(shard, &out);
                let (shard, sink) = &mut self.shards[shard];
                shard.leaf_done(out.io.cookie, Ok(()), sink);
            }
            Fate::Fails => {
                if self.random.one_in(2) {
                    self.perform(shard, &out);
                }
                let (shard, sink) = &mut self.shards[shard];
                shard.leaf_done(out.io.cookie, Err(LeafError { kind: ErrorKind::Io, errno: 5 }), sink);
            }
            Fate::Late => {
                self.late += 1;
                let bare = self.members[self.member_of(out.io.leaf)].kind == Kind::Bare;
                self.hung.push((shard, out, bare));
                let (shard, sink) = &mut self.shards[shard];
                shard.leaf_late(out.io.cookie, sink);
            }
        }
        self.after();
    }

    /// Returns whether a bare disk has a late I/O.
    pub fn bare_hangs(&self) -> bool {
        self.hung.iter().any(|(.., bare)| *bare)
    }

    /// Returns whether a bare disk has a late I/O that changes it.
    pub fn bare_changes_hang(&self) -> bool {
        self.hung.iter().any(|(_, out, bare)| *bare && !matches!(out.io.op, Op::Read | Op::Flush))
    }

    /// Returns the number of writes that shards have submitted, of all kinds.
    pub fn writes_begun(&self) -> u64 {
        self.shards.iter().map(|(_, sink)| sink.writes).sum()
    }

    /// Returns whether a disk has a read in flight.
    pub fn is_read(&self) -> bool {
        self.shards.iter().any(|(_, sink)| sink.queue.iter().any(|out| out.io.op == Op::Read))
    }

    pub fn hangs(&self) -> bool {
        !self.hung.is_empty()
    }

    /// Returns a late I/O of a disk; it may have been carried out.
    pub fn give_back(&mut self) {
        let at = self.random.below(self.hung.len() as u64) as usize;
        let (shard, out, _) = self.hung.swap_remove(at);
        if !self.random.one_in(3) {
            self.perform(shard, &out);
        }
        let (shard, sink) = &mut self.shards[shard];
        shard.leaf_returned(out.io.cookie, sink);
        self.after();
    }

    /// Lets the last disk of this member complete nothing from now on.
    pub fn hold(&mut self, member: usize) {
        let member = &self.members[member];
        self.held = Some(member.first + member.roles.len() - 1);
    }

    /// Lets the disk complete I/O again, including its pending I/O.
    pub fn release(&mut self) {
        self.held = None;
        for (shard, out) in std::mem::take(&mut self.kept) {
            self.shards[shard].1.queue.push(out);
        }
    }

    /// Moves I/Os of the held disk out of the queues.
    fn keep_held(&mut self) {
        let Some(held) = self.held else { return };
        for (at, (_, sink)) in self.shards.iter_mut().enumerate() {
            let kept = sink.queue.extract_if(.., |out| out.io.leaf.0 as usize == held);
            self.kept.extend(kept.map(|out| (at, out)));
        }
    }

    /// Returns whether a disk may still access this memory.
    pub fn touches(&self, addr: u64, len: u64) -> bool {
        let meets = |out: &Out| {
            matches!(out.io.op, Op::Read | Op::Write)
                && (0..out.io.pieces()).any(|k| {
                    let (buf, piece) = out.io.piece(k);
                    buf.addr < addr + len && addr < buf.addr + u64::from(piece)
                })
        };
        self.hung.iter().any(|(_, out, _)| meets(out))
            || self.kept.iter().any(|(_, out)| meets(out))
            || self.shards.iter().any(|(_, sink)| sink.queue.iter().any(meets))
    }

    fn perform(&mut self, shard: usize, out: &Out) {
        let io = &out.io;
        // A shard that receives the completion may flush at once.
        let now = self.clock.get();
        self.tick();
        let disk = &mut self.disks[io.leaf.0 as usize];
        let mut at = io.offset as usize;
        match io.op {
            Op::Flush => disk.flushed(out.begun),
            Op::WriteZeroes | Op::Discard => disk.write(now, at, &vec![0; io.len as usize], false),
            Op::Read | Op::Write => {
                for k in 0..io.pieces() {
                    let (buf, len) = io.piece(k);
                    let mut memory = self.memory.borrow_mut();
                    let memory = if buf.addr >= META_ADDR {
                        &mut self.shards[shard].1.meta[((buf.addr - META_ADDR) / BLOCK) as usize][..len as usize]
                    } else {
                        &mut memory[buf.addr as usize..][..len as usize]
                    };
                    match io.op {
                        Op::Read => memory.copy_from_slice(&disk.bytes[at..at + len as usize]),
                        _ => disk.write(now, at, memory, io.flags.has(Flags::FUA)),
                    }
                    at += len as usize;
                }
            }
        }
    }

    /// Makes one of all possible events happen. Returns false if there is none, besides the return of late I/O.
    pub fn step(&mut self) -> bool {
        self.tick();
        self.keep_held();
        self.stalled = self.stalled.saturating_sub(1);
        let wires: Vec<usize> = (0..self.wires.len()).filter(|wire| !self.wires[*wire].is_empty()).collect();
        let turns: Vec<usize> = (0..self.shards.len()).filter(|s| self.shards[*s].0.is_turn_open()).collect();
        let frozen: Vec<usize> = (0..self.members.len()).filter(|m| self.members[*m].leaves.is_some()).collect();
        let leaves = self.shards.iter().map(|(_, sink)| sink.queue.len()).sum::<usize>();
        let weights = [
            3 * wires.len() as u64,
            turns.len() as u64,
            u64::from(!frozen.is_empty()),
            if self.stalled > 0 { 0 } else { 4 * leaves.min(8) as u64 },
        ];
        let total: u64 = weights.iter().sum();
        if total == 0 {
            return std::mem::take(&mut self.stalled) > 0 || leaves > 0;
        }
        let mut draw = self.random.below(total);
        let mut which = 0;
        while draw >= weights[which] {
            draw -= weights[which];
            which += 1;
        }
        match which {
            0 => {
                let wire = wires[self.random.below(wires.len() as u64) as usize];
                let message = self.wires[wire].pop_front().expect("just seen");
                let to = wire % self.shards.len();
                let (shard, sink) = &mut self.shards[to];
                shard.handle_message(message, sink);
            }
            1 => {
                let (shard, sink) = &mut self.shards[turns[self.random.below(turns.len() as u64) as usize]];
                shard.end_turn(sink);
            }
            2 => {
                let which = self.random.below(frozen.len() as u64) as usize;
                self.publish_member(frozen[which]);
            }
            _ => {
                let mut at = self.random.below(leaves as u64) as usize;
                let mut shard = 0;
                while at >= self.shards[shard].1.queue.len() {
                    at -= self.shards[shard].1.queue.len();
                    shard += 1;
                }
                self.answer(shard, at);
            }
        }
        self.after();
        true
    }
}
