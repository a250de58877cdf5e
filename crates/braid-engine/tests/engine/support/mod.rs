//! A rig of shards over in-memory disks, whose leaf I/Os complete when and in the order a test wants.
#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::META_BLOCKS;
use braid_engine::*;
use braid_format::Uuid;
use braid_geometry::{Geometry, Layout, Level, Spec, ZonePolicy};

pub const META_ADDR: u64 = 1 << 40;

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

/// A shard's sink of leaf I/Os: it only records them.
pub struct Sink {
    pub queue: VecDeque<LeafIo>,
    pub meta: Vec<[u8; 4096]>,
    /// Memory that was to be zeroed.
    pub zeroed: Vec<(u64, u64)>,
    /// The time of the clock.
    pub now_ns: u64,
    /// Memory as the disks have filled it.
    pub filled: Rc<RefCell<Vec<u8>>>,
}

impl LeafSink for Sink {
    fn submit(&mut self, io: &LeafIo) {
        self.queue.push_back(*io);
    }
    fn zero(&mut self, buf: Buf, len: u64) {
        self.zeroed.push((buf.addr, len));
    }
    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool {
        let filled = self.filled.borrow();
        let bytes = |buf: Buf| &filled[buf.addr as usize..][..len as usize];
        bytes(a) == bytes(b)
    }
    fn scratch(&mut self) -> (Buf, u64) {
        unreachable!("nothing here has parity")
    }
    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut ComputeFn<'_>) {
        assert!(outputs.is_empty(), "nothing here has parity");
        let filled = self.filled.borrow();
        let inputs: Vec<&[u8]> = inputs.iter().map(|buf| &filled[buf.addr as usize..][..len as usize]).collect();
        work(&inputs, &mut []);
    }
    fn now_ns(&self) -> u64 {
        self.now_ns
    }
    fn meta_block(&mut self, index: u32) -> (Buf, &mut [u8; 4096]) {
        let buf = Buf { addr: META_ADDR + u64::from(index) * 4096, region: Buf::UNREGISTERED };
        (buf, &mut self.meta[index as usize])
    }
}

/// An event on a leaf, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    pub leaf: u32,
    pub op: Op,
    pub offset: u64,
    pub len: u64,
    pub fua: bool,
}

pub struct Rig {
    pub shards: Vec<(Shard, Sink)>,
    pub disks: Vec<Vec<u8>>,
    pub memory: Vec<u8>,
    pub log: Rc<RefCell<Vec<Event>>>,
    pub failing: Option<u32>,
    filled: Rc<RefCell<Vec<u8>>>,
}

impl Rig {
    pub fn new(shards: u16, disks: &[u64]) -> Rig {
        Rig::with_table(shards, disks, 8)
    }

    /// Creates a rig whose range table has two to the power of `range_table_bits` words.
    pub fn with_table(shards: u16, disks: &[u64], range_table_bits: u32) -> Rig {
        let limits = Limits { slots: 256, devices: 8, range_table_bits };
        let shared = Arc::new(Shared::new(shards, &limits));
        let filled = Rc::new(RefCell::new(vec![0; 64 << 20]));
        Rig {
            shards: (0..shards)
                .map(|id| {
                    let (meta, filled) = (vec![[0; 4096]; META_BLOCKS as usize], Rc::clone(&filled));
                    let sink = Sink { queue: VecDeque::new(), meta, zeroed: vec![], now_ns: 0, filled };
                    (Shard::new(ShardId(id), &limits, Arc::clone(&shared)), sink)
                })
                .collect(),
            disks: disks.iter().map(|bytes| vec![0; *bytes as usize]).collect(),
            memory: vec![0; 64 << 20],
            log: Rc::default(),
            failing: None,
            filled,
        }
    }

    pub fn publish(&mut self, device: u32, layout: Option<DeviceLayout>) {
        let layout = layout.map(Arc::new);
        for (shard, sink) in &mut self.shards {
            shard.publish(DeviceId(device), layout.clone(), sink);
        }
    }

    pub fn submit(&mut self, shard: usize, request: Request) -> Result<(), IoError> {
        let (shard, sink) = &mut self.shards[shard];
        shard.submit(&request, sink)
    }

    /// Performs and completes the leaf I/O at `at` of this shard's queue.
    pub fn answer(&mut self, shard: usize, at: usize) {
        let io = self.shards[shard].1.queue.remove(at).expect("a leaf I/O is there");
        let result = self.perform(shard, &io);
        let (shard, sink) = &mut self.shards[shard];
        shard.leaf_done(io.cookie, result, sink);
    }

    fn perform(&mut self, shard: usize, io: &LeafIo) -> LeafResult {
        self.log.borrow_mut().push(Event {
            leaf: io.leaf.0,
            op: io.op,
            offset: io.offset,
            len: io.len,
            fua: io.flags.has(Flags::FUA),
        });
        if self.failing == Some(io.leaf.0) {
            return Err(LeafError { kind: ErrorKind::Io, errno: 5 });
        }
        let disk = &mut self.disks[io.leaf.0 as usize];
        let mut at = io.offset as usize;
        match io.op {
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes => disk[at..at + io.len as usize].fill(0),
            Op::Read | Op::Write => {
                let mut total = 0;
                for k in 0..io.pieces() {
                    let (buf, len) = io.piece(k);
                    let meta = buf.addr >= META_ADDR;
                    let memory = if meta {
                        &mut self.shards[shard].1.meta[((buf.addr - META_ADDR) / 4096) as usize][..len as usize]
                    } else {
                        &mut self.memory[buf.addr as usize..][..len as usize]
                    };
                    let bytes = &mut disk[at..at + len as usize];
                    if io.op == Op::Read {
                        memory.copy_from_slice(bytes);
                        if !meta {
                            self.filled.borrow_mut()[buf.addr as usize..][..len as usize].copy_from_slice(bytes);
                        }
                    } else {
                        bytes.copy_from_slice(memory)
                    }
                    at += len as usize;
                    total += u64::from(len);
                }
                assert_eq!(total, io.len, "the pieces add up");
            }
        }
        Ok(())
    }

    /// Delivers every message between shards. Returns whether there was one.
    pub fn deliver(&mut self) -> bool {
        let mut any = false;
        for from in 0..self.shards.len() {
            while let Some((to, message)) = self.shards[from].0.pop_message() {
                let (shard, sink) = &mut self.shards[usize::from(to.0)];
                shard.handle_message(message, sink);
                any = true;
            }
        }
        any
    }

    /// Completes everything, in an order drawn from `random`, until nothing moves.
    pub fn settle(&mut self, random: &mut Random) {
        loop {
            let busy: Vec<usize> = (0..self.shards.len()).filter(|s| !self.shards[*s].1.queue.is_empty()).collect();
            let moved = self.deliver();
            if busy.is_empty() {
                if moved {
                    continue;
                }
                return;
            }
            let shard = busy[random.below(busy.len() as u64) as usize];
            let at = random.below(self.shards[shard].1.queue.len() as u64) as usize;
            self.answer(shard, at);
        }
    }

    pub fn freeze(&mut self, device: u32) {
        for (shard, sink) in &mut self.shards {
            shard.freeze(DeviceId(device), sink);
        }
    }

    /// Returns all faults that any shard has to report.
    pub fn faults(&mut self) -> Vec<Fault> {
        self.shards.iter_mut().flat_map(|(shard, _)| std::iter::from_fn(|| shard.pop_fault())).collect()
    }

    /// Makes a call to a home shard, and checks that it is done.
    pub fn call(&mut self, shard: usize, call: RegionCall) {
        let (of, sink) = &mut self.shards[shard];
        of.begin_call(77, DeviceId(0), call, sink);
        self.settle(&mut Random(5));
        assert_eq!(self.shards[shard].0.pop_call_done(), Some(77));
    }

    pub fn done(&mut self, shard: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        self.shards[shard].0.swap_done(&mut done);
        done
    }

    /// Runs a request on shard 0 to its end.
    pub fn run(&mut self, request: Request) -> Result<(), IoError> {
        self.submit(0, request)?;
        self.settle(&mut Random(1));
        let done = self.done(0);
        assert_eq!(done.len(), 1, "exactly one answer");
        assert_eq!(done[0].tag, request.tag);
        done[0].result
    }
}

pub fn request(op: Op, offset: u64, len: u64, addr: u64) -> Request {
    let buf = Buf { addr, region: Buf::UNREGISTERED };
    Request { device: DeviceId(0), op, flags: Flags::NONE, offset, len, buf, tag: offset ^ len << 32 }
}

pub fn leaf(id: u32, len: u64) -> Node {
    Node::Leaf { leaf: LeafId(id), start: 0, len }
}

pub fn striped(level: Level, layout: Layout, chunk_bytes: u64, sizes: &[u64]) -> Node {
    let spec = Spec { level, layout, chunk_bytes, copies: 1, zones: ZonePolicy::All };
    let geometry = Geometry::plan(spec, sizes).expect("a plan");
    let members = sizes.iter().enumerate().map(|(k, bytes)| leaf(k as u32, *bytes)).collect();
    Node::Striped { geometry, members }
}

pub fn raid0(chunk_bytes: u64, sizes: &[u64]) -> Node {
    striped(Level::Raid0, Layout::Alternate, chunk_bytes, sizes)
}

pub fn concat(chunk_bytes: u64, sizes: &[u64]) -> Node {
    striped(Level::Concat, Layout::Linear, chunk_bytes, sizes)
}

/// The offset of the bitmap on each member of a mirror, after its data.
pub const BITMAP: u64 = 1 << 20;

/// Returns a map of regions of 64 KiB for a mirror of 1 MiB, with the bits of the first 16 regions.
pub fn regions(home: u16, written: u64, dirty: u64, equal: bool) -> Arc<RegionMap> {
    let bits = (&[written][..], &[dirty][..]);
    Arc::new(RegionMap::new(ShardId(home), Uuid::from_u128(9), 1 << 20, 1 << 16, bits, equal))
}

/// Returns a mirror of 1 MiB over the first disks, in these roles.
pub fn mirror(roles: &[MemberRole], regions: &Arc<RegionMap>) -> Node {
    let member = |(k, role): (usize, &MemberRole)| MirrorMember {
        leaf: LeafId(k as u32),
        start: 0,
        len: 1 << 20,
        bitmap_start: BITMAP,
        role: *role,
        write_mostly: false,
    };
    let geometry = Geometry::plan(Spec::new(Level::Raid1), &vec![1 << 20; roles.len()]).expect("a plan");
    let members = roles.iter().enumerate().map(member).collect();
    Node::Mirrored(Box::new(MirrorNode {
        geometry,
        members,
        successors: Vec::new(),
        regions: Arc::clone(regions),
        parity: None,
        failed: false,
    }))
}

/// Returns a mirror of two in which everything may be read and written at once.
pub fn open_mirror() -> Node {
    mirror(&[MemberRole::InSync; 2], &regions(0, u64::MAX, u64::MAX, true))
}
