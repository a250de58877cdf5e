//! Disks that complete I/O inline: requests to them are carried out, reported once and in order, and leave no state
//! behind.

use std::sync::Arc;

use crate::support::Random;
use braid_engine::*;
use braid_geometry::{Geometry, Layout, Level, Spec, ZonePolicy};

const LEAVES: usize = 3;
const LEAF_BYTES: u64 = 1 << 20;

/// Some of the disks complete inline; I/O to the others is queued until the test completes it.
struct Mixed {
    at_once: [bool; LEAVES],
    broken: bool,
    disks: Vec<Vec<u8>>,
    memory: Vec<u8>,
    waiting: Vec<LeafIo>,
    meta: [u8; 4096],
}

impl Mixed {
    fn new(at_once: [bool; LEAVES]) -> Mixed {
        let disks = vec![vec![0; LEAF_BYTES as usize]; LEAVES];
        Mixed { at_once, broken: false, disks, memory: vec![0; 1 << 20], waiting: Vec::new(), meta: [0; 4096] }
    }

    fn carry_out(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) {
        let disk = &mut self.disks[leaf.0 as usize][offset as usize..][..len as usize];
        let memory = &mut self.memory[buf.addr as usize..][..len as usize];
        match op {
            Op::Read => memory.copy_from_slice(disk),
            _ => disk.copy_from_slice(memory),
        }
    }
}

impl LeafSink for Mixed {
    fn submit(&mut self, io: &LeafIo) {
        self.waiting.push(*io);
    }

    fn complete_inline(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) -> Option<LeafResult> {
        if !self.at_once[leaf.0 as usize] {
            return None;
        }
        assert!(matches!(op, Op::Read | Op::Write) && len > 0, "only what moves data can be done at once");
        if self.broken {
            return Some(Err(LeafError { kind: ErrorKind::Io, errno: 5 }));
        }
        self.carry_out(leaf, op, offset, len, buf);
        Some(Ok(()))
    }

    fn zero(&mut self, _: Buf, _: u64) {}
    fn is_equal(&mut self, _: Buf, _: Buf, _: u64) -> bool {
        true
    }
    fn scratch(&mut self) -> (Buf, u64) {
        unreachable!("nothing here has parity")
    }
    fn compute(&mut self, _: &[Buf], _: &[Buf], _: u64, _: &mut ComputeFn<'_>) {
        unreachable!("nothing here has parity")
    }
    fn meta_block(&mut self, _: u32) -> (Buf, &mut [u8; 4096]) {
        (Buf::NONE, &mut self.meta)
    }
}

fn array(level: Level, layout: Layout, chunk_bytes: u64) -> Node {
    let spec = Spec { level, layout, chunk_bytes, copies: 1, zones: ZonePolicy::All };
    let sizes = [40 << 10, 80 << 10, 120 << 10];
    let member = |k: usize| Node::Leaf { leaf: LeafId(k as u32), start: 4096 * (k as u64 + 1), len: sizes[k] };
    Node::Striped { geometry: Geometry::plan(spec, &sizes).unwrap(), members: (0..LEAVES).map(member).collect() }
}

fn raid0() -> Node {
    array(Level::Raid0, Layout::Alternate, 8192)
}

/// Eight parts of three disks, each longer than the one before: as many zones.
fn many_zones(level: Level, layout: Layout) -> Node {
    let sizes: Vec<u64> = (1..=8).map(|k| k * 8192).collect();
    let spec = Spec { level, layout, chunk_bytes: 8192, copies: 1, zones: ZonePolicy::All };
    let member = |k: usize| Node::Leaf {
        leaf: LeafId((k % LEAVES) as u32),
        start: 4096 + (k / LEAVES) as u64 * (100 << 10),
        len: sizes[k],
    };
    Node::Striped { geometry: Geometry::plan(spec, &sizes).unwrap(), members: (0..8).map(member).collect() }
}

/// One layout of each kind that has its own lookup of single locations.
fn all_kinds() -> Vec<Node> {
    let odd_chunk = array(Level::Raid0, Layout::Alternate, 3 * 4096);
    let part = Node::Leaf { leaf: LeafId(1), start: 8192, len: 200 << 10 };
    let few = [raid0(), odd_chunk, array(Level::Concat, Layout::Linear, 8192), part];
    let many = [many_zones(Level::Raid0, Layout::Alternate), many_zones(Level::Concat, Layout::Linear)];
    few.into_iter().chain(many).collect()
}

fn shard(slots: u32, node: &Node) -> Shard {
    let limits = Limits { slots, devices: 1, range_table_bits: 4 };
    let mut shard = Shard::new(ShardId(0), &limits, Arc::new(Shared::new(1, &limits)));
    shard.publish(DeviceId(0), Some(Arc::new(DeviceLayout::new(1, 512, node))), &mut Mixed::new([false; LEAVES]));
    shard
}

fn request(op: Op, offset: u64, len: u64, tag: u64) -> Request {
    Request { device: DeviceId(0), op, flags: Flags::NONE, offset, len, buf: Buf { addr: 0, region: 0 }, tag }
}

fn done(shard: &mut Shard) -> Vec<Completion> {
    let mut batch = Vec::new();
    shard.swap_done(&mut batch);
    batch
}

/// Whichever disks complete inline, an array holds what was written to it.
#[test]
fn what_is_written_is_read_whichever_disks_complete_inline() {
    for (node, mask) in all_kinds().iter().flat_map(|node| (0..8u32).map(move |mask| (node, mask))) {
        let mut sink = Mixed::new([0, 1, 2].map(|k| mask >> k & 1 == 1));
        let mut shard = shard(64, node);
        let mut random = Random(u64::from(mask));
        let mut model = vec![0u8; node.size_bytes() as usize];
        for step in 0..2000u64 {
            let len = 512 * (1 + random.below(40));
            let offset = 512 * random.below((node.size_bytes() - len) / 512 + 1);
            let range = offset as usize..(offset + len) as usize;
            let op = if random.below(2) == 0 { Op::Read } else { Op::Write };
            sink.memory[..len as usize].fill(step as u8);
            shard.submit(&request(op, offset, len, step), &mut sink).unwrap();
            while let Some(io) = sink.waiting.pop() {
                let mut at = io.offset;
                for k in 0..io.pieces() {
                    let (buf, bytes) = io.piece(k);
                    sink.carry_out(io.leaf, io.op, at, u64::from(bytes), buf);
                    at += u64::from(bytes);
                }
                shard.leaf_done(io.cookie, Ok(()), &mut sink);
            }
            let done = done(&mut shard);
            assert_eq!(done.iter().map(|d| (d.tag, d.result.is_ok())).collect::<Vec<_>>(), [(step, true)]);
            if op == Op::Write {
                model[range].fill(step as u8);
            } else {
                assert!(
                    model[range] == sink.memory[..len as usize],
                    "{node:?}, mask {mask}, step {step}, {offset}+{len}"
                );
            }
        }
        let counters = shard.counters(DeviceId(0));
        assert_eq!((counters.reads + counters.writes, counters.errors), (2000, 0));
        assert_eq!((shard.in_flight(), shard.slots_in_use()), (0, 0));
    }
}

#[test]
fn an_inline_error_names_its_disk_and_is_counted() {
    let mut sink = Mixed::new([true; LEAVES]);
    let mut shard = shard(8, &raid0());
    sink.broken = true;
    shard.submit(&request(Op::Write, 8192, 4096, 7), &mut sink).unwrap();
    let done = done(&mut shard);
    let error = done[0].result.unwrap_err();
    assert_eq!((error.kind, error.leaf, error.errno, error.offset), (ErrorKind::Io, Some(LeafId(1)), 5, 8192));
    assert_eq!(shard.counters(DeviceId(0)).errors, 1);
}

/// A caller that submits without end and never fetches completions is refused, and the queue does not grow.
#[test]
fn inline_completions_are_bounded_until_they_are_fetched() {
    let mut sink = Mixed::new([true; LEAVES]);
    let mut shard = shard(8, &raid0());
    let accepted = (0..100).take_while(|tag| shard.submit(&request(Op::Read, 0, 512, *tag), &mut sink).is_ok()).count();
    assert_eq!(accepted, 16, "8 at once, and 8 that take a slot each");
    assert_eq!(sink.waiting.len(), 8);
    for io in std::mem::take(&mut sink.waiting) {
        shard.leaf_done(io.cookie, Ok(()), &mut sink);
    }
    let tags: Vec<u64> = done(&mut shard).iter().map(|d| d.tag).collect();
    assert_eq!(tags, (0..16).collect::<Vec<_>>());
    assert!(tags.len() <= shard.done_capacity());
}

/// A stopped device, and one with a late write in the range, refuse before any I/O is submitted.
#[test]
fn what_must_be_refused_is_not_completed_inline() {
    let mut sink = Mixed::new([true; LEAVES]);
    let mut shard = shard(8, &raid0());
    for (offset, len) in [(0, 513), (1, 512), (240 << 10, 512)] {
        let refused = shard.submit(&request(Op::Write, offset, len, 0), &mut sink).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
    }
    sink.at_once = [false; LEAVES];
    shard.submit(&request(Op::Write, 0, 4096, 0), &mut sink).unwrap();
    let late = sink.waiting.pop().unwrap();
    shard.leaf_late(late.cookie, &mut sink);
    sink.at_once = [true; LEAVES];
    let refused = shard.submit(&request(Op::Write, 0, 512, 0), &mut sink).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TimedOut);
    shard.leaf_returned(late.cookie, &mut sink);
    shard.publish(DeviceId(0), None, &mut sink);
    let refused = shard.submit(&request(Op::Read, 0, 512, 0), &mut sink).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoDevice);
    assert!(sink.disks.iter().flatten().all(|byte| *byte == 0));
}
