//! Arrays with md's layouts, read through a shard: every layout, complete and with every loss that it tolerates, at
//! random offsets.
//!
//! The test fills the members by the kernel's rules for P and Q (`raid6_d0`: coefficients are assigned from the member
//! after Q on), independently of the engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::META_BLOCKS;
use braid_engine::*;
use braid_geometry::{Geometry, Level, Spec, StripeRole};
use braid_parity::Parity;

const CHUNK: u64 = 16_384;
const START: u64 = 8192;
const SCRATCH: u64 = 8 << 20;

struct Sink {
    queue: VecDeque<LeafIo>,
    meta: Vec<[u8; 4096]>,
    memory: Rc<RefCell<Vec<u8>>>,
    clock_ns: Cell<u64>,
}

impl LeafSink for Sink {
    fn submit(&mut self, io: &LeafIo) {
        assert_eq!(io.op, Op::Read, "nothing else is ever done to a member");
        self.queue.push_back(*io);
    }
    fn zero(&mut self, _: Buf, _: u64) {
        unreachable!("all of it was written");
    }
    fn is_equal(&mut self, _: Buf, _: Buf, _: u64) -> bool {
        unreachable!("nothing is compared")
    }
    fn scratch(&mut self) -> (Buf, u64) {
        (Buf { addr: SCRATCH, region: Buf::UNREGISTERED }, SCRATCH_BYTES_MIN)
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
    fn now_ns(&self) -> u64 {
        self.clock_ns.set(self.clock_ns.get() + 1000);
        self.clock_ns.get()
    }
    fn meta_block(&mut self, index: u32) -> (Buf, &mut [u8; 4096]) {
        (Buf { addr: 1 << 40, region: Buf::UNREGISTERED }, &mut self.meta[index as usize])
    }
}

struct Rig {
    shard: Shard,
    sink: Sink,
    memory: Rc<RefCell<Vec<u8>>>,
    members: Vec<Vec<u8>>,
    /// A disk whose reads fail.
    failing: Option<u32>,
    /// The disks that were read.
    read_from: Vec<u32>,
    version: u32,
}

impl Rig {
    fn new(members: Vec<Vec<u8>>) -> Rig {
        let limits = Limits { slots: 64, devices: 2, range_table_bits: 8 };
        let memory = Rc::new(RefCell::new(vec![0; (SCRATCH + SCRATCH_BYTES_MIN) as usize]));
        let sink = Sink {
            queue: VecDeque::new(),
            meta: vec![[0; 4096]; META_BLOCKS as usize],
            memory: Rc::clone(&memory),
            clock_ns: Cell::new(0),
        };
        let shard = Shard::new(ShardId(0), &limits, Arc::new(Shared::new(1, &limits)));
        Rig { shard, sink, memory, members, failing: None, read_from: Vec::new(), version: 0 }
    }

    /// Serves the array without these members.
    fn serve(&mut self, geometry: &Geometry, lost: &[usize], steady: bool) {
        self.version += 1;
        let member = |role: usize| MirrorMember {
            leaf: LeafId(role as u32),
            start: START,
            len: geometry.member_data_bytes()[role],
            bitmap_start: 0,
            role: if lost.contains(&role) { MemberRole::Failed } else { MemberRole::InSync },
            write_mostly: false,
        };
        let count = geometry.member_data_bytes().len();
        let regions = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), 1 << 30, (&[1], &[]), true);
        let parity = (geometry.spec().level.parity() > 0).then(|| ParityNode {
            array: Uuid::nil(),
            run: 1,
            rings: vec![0; count],
            ring_blocks: 176,
            ring_blocks_min: 176,
            generation: 1,
            lost_stripes: Arc::default(),
            marks: Arc::default(),
            ring_location: RingState::Members,
        });
        let node = MirrorNode {
            geometry: geometry.clone(),
            members: (0..count).map(member).collect(),
            successors: Vec::new(),
            regions: Arc::new(regions),
            parity,
            failed: false,
        };
        let block = if geometry.spec().level.parity() > 0 { 4096 } else { 512 };
        let layout = DeviceLayout::new(self.version, block, &Node::Mirrored(Box::new(node))).read_only(steady);
        self.shard.publish(DeviceId(0), Some(Arc::new(layout)), &mut self.sink);
    }

    fn request(&mut self, op: Op, offset: u64, len: u64) -> Result<(), ErrorKind> {
        let buf = Buf { addr: 0, region: Buf::UNREGISTERED };
        let request = Request { device: DeviceId(0), op, flags: Flags::NONE, offset, len, buf, tag: 9 };
        self.shard.submit(&request, &mut self.sink).map_err(|error| error.kind)?;
        while let Some(io) = self.sink.queue.pop_front() {
            self.read_from.push(io.leaf.0);
            let mut at = io.offset as usize - START as usize;
            if self.failing == Some(io.leaf.0) {
                self.shard.leaf_done(io.cookie, Err(LeafError { kind: ErrorKind::Io, errno: 5 }), &mut self.sink);
                continue;
            }
            for piece in 0..io.pieces() {
                let (buf, len) = io.piece(piece);
                let bytes = &self.members[io.leaf.0 as usize][at..at + len as usize];
                self.memory.borrow_mut()[buf.addr as usize..][..len as usize].copy_from_slice(bytes);
                at += len as usize;
            }
            self.shard.leaf_done(io.cookie, Ok(()), &mut self.sink);
        }
        while self.shard.pop_fault().is_some() {}
        let mut done = Vec::new();
        self.shard.swap_done(&mut done);
        assert_eq!(done.len(), 1, "exactly one answer");
        done[0].result.map_err(|error| error.kind)
    }

    fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, ErrorKind> {
        self.request(Op::Read, offset, len)?;
        Ok(self.memory.borrow()[..len as usize].to_vec())
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Returns the members of an array that holds `data`, filled as md does.
fn filled(geometry: &Geometry, data: &[u8]) -> Vec<Vec<u8>> {
    let mut members: Vec<Vec<u8>> =
        geometry.member_data_bytes().iter().map(|bytes| vec![0xee; *bytes as usize]).collect();
    for at in (0..data.len()).step_by(512) {
        geometry.copies(at as u64, &mut |piece| {
            let place = piece.member_offset as usize;
            members[usize::from(piece.member)][place..place + 512].copy_from_slice(&data[at..at + 512]);
        });
    }
    let parity = Parity::best();
    for number in 0..if geometry.spec().level.parity() > 0 { geometry.stripes() } else { 0 } {
        let stripe = geometry.stripe(number).expect("below the count");
        let place = stripe.member_offset as usize..(stripe.member_offset + stripe.chunk_bytes) as usize;
        let width = members.len();
        // From the member after Q on, with wrap-around; without Q the order does not matter.
        let first = stripe.q().map_or(0, |q| usize::from(q) + 1);
        let order = (0..width).map(|step| (first + step) % width);
        let is_data = |member: &usize| matches!(stripe.role(*member as u16), Some(StripeRole::Data(_)));
        let cells: Vec<Vec<u8>> = order.filter(is_data).map(|member| members[member][place.clone()].to_vec()).collect();
        let cells: Vec<&[u8]> = cells.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; stripe.chunk_bytes as usize], vec![0; stripe.chunk_bytes as usize]);
        match stripe.q() {
            None => parity.xor(&mut p, &cells),
            Some(member) => {
                parity.pq(&mut p, &mut q, &cells);
                members[usize::from(member)][place.clone()].copy_from_slice(&q);
            }
        }
        members[usize::from(stripe.p())][place].copy_from_slice(&p);
    }
    members
}

fn some_data(len: u64, random: &mut Random) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[test]
fn every_layout_without_every_member_that_it_can_lose() {
    let mut random = Random(1);
    let mut reads = 0;
    for level in [Level::Raid5, Level::Raid6, Level::Raid10, Level::Raid1] {
        for &layout in [level.layouts(), level.md_only_layouts()].concat().iter() {
            for width in [4, 5usize] {
                let spec = Spec { layout, chunk_bytes: CHUNK, ..Spec::new(level) };
                let members = vec![(2 * width as u64 + 1) * CHUNK; width];
                let geometry = Geometry::imported(spec, &members).expect("md can lay it out");
                let data = some_data(geometry.size_bytes(), &mut random);
                let mut rig = Rig::new(filled(&geometry, &data));
                let pairs = (0..width).flat_map(|a| (0..a).map(move |b| vec![a, b]));
                let tolerated = |lost: &Vec<usize>| match level {
                    Level::Raid5 => lost.len() <= 1,
                    // Neighbours have copies of the same data.
                    Level::Raid10 => lost.len() <= 1,
                    _ => true,
                };
                let losses = std::iter::once(Vec::new()).chain((0..width).map(|one| vec![one])).chain(pairs);
                for lost in losses.filter(tolerated) {
                    rig.serve(&geometry, &lost, lost.len() == 1);
                    for _ in 0..25 {
                        let unit = if level.parity() > 0 { 4096 } else { 512 };
                        let blocks = data.len() as u64 / unit;
                        let first = random.below(blocks);
                        let count = 1 + random.below((blocks - first).min(40));
                        let found = rig.read(first * unit, count * unit).expect("it can be had");
                        let (from, to) = ((first * unit) as usize, ((first + count) * unit) as usize);
                        assert!(
                            found == data[from..to],
                            "{level} {layout} over {width} without {lost:?}: {from}..{to}"
                        );
                        reads += 1;
                    }
                    // One more member fails while it is read: the data is computed, or read elsewhere, if possible.
                    let failing = (lost.first().copied().unwrap_or(0) + 1) % width;
                    if level == Level::Raid1 || (level == Level::Raid6 || lost.is_empty()) && lost.len() <= 1 {
                        rig.failing = Some(failing as u32).filter(|_| !lost.contains(&failing));
                        let found = rig.read(0, data.len() as u64 / 4096 * 4096).expect("it can be had");
                        assert!(found == data[..found.len()], "{level} {layout} over {width}: {failing} fails, too");
                        rig.failing = None;
                    }
                }
            }
        }
    }
    assert!(reads > 5_000, "{reads}");
}

#[test]
fn nothing_is_written_and_nothing_flushed() {
    let geometry = Geometry::imported(Spec::new(Level::Raid1), &[1 << 20; 2]).expect("a mirror");
    let data = some_data(1 << 20, &mut Random(2));
    let mut rig = Rig::new(filled(&geometry, &data));
    rig.serve(&geometry, &[], true);
    for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
        assert_eq!(rig.request(op, 0, 4096), Err(ErrorKind::ReadOnly), "{op:?}");
    }
    assert_eq!(rig.request(Op::Flush, 0, 0), Ok(()));
    assert_eq!(rig.read_from, [0; 0]);
    assert!(rig.read(8192, 4096).expect("it can be read") == data[8192..12_288]);
}

/// Copies of an array that was not stopped cleanly may differ: repeated reads return the same data.
#[test]
fn of_copies_that_may_differ_always_the_same_one_is_read() {
    let geometry = Geometry::imported(Spec::new(Level::Raid1), &[1 << 20; 3]).expect("a mirror");
    let data = some_data(1 << 20, &mut Random(3));
    let mut rig = Rig::new(filled(&geometry, &data));
    for (steady, lost) in [(true, &[][..]), (true, &[0]), (false, &[])] {
        rig.serve(&geometry, lost, steady);
        rig.read_from.clear();
        for _ in 0..4000 {
            rig.read(0, 4096).expect("it can be read");
        }
        let mut from = rig.read_from.clone();
        from.sort_unstable();
        from.dedup();
        match steady {
            true => assert_eq!(from, [lost.len() as u32]),
            false => assert!(from.len() > 1, "{from:?}"),
        }
    }
}
