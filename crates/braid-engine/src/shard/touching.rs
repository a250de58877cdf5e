//! The home shard's side of first touch: blocks of bits being written, and those that want more.

use std::collections::VecDeque;
use std::sync::Arc;

use super::slots::{self, State};
use super::{Shard, ShardMessage, touch_key};
use crate::io::{DeviceId, ErrorKind, Flags, LeafError, LeafIo, LeafSink, META_BLOCKS, Op, ShardId};
use crate::planted::{Planted, planted};
use crate::touch::{REGIONS_PER_BLOCK, TouchMap};

const WORDS: usize = REGIONS_PER_BLOCK as usize / 64;

/// The bits of one block.
type Bits = Box<[u64; WORDS]>;

/// One block of bits on its way to the disks. At most one write of a block is out at a time.
pub(crate) struct BlockWrite {
    pub device: DeviceId,
    pub map: Arc<TouchMap>,
    pub block: u32,
    /// Bits in the write that is out.
    pub writing: Bits,
    /// Bits asked for since; they go with the next write.
    pub wanted: Bits,
    pub more: bool,
    /// The write ran into its time limit and was answered; the kernel still has it, and the block with it.
    pub late: bool,
}

/// What a request for a bit came to.
pub(crate) enum Asked {
    /// A write must be started, from this metadata block.
    Start(u32),
    /// A write is out already, or must wait for a free metadata block.
    Joined,
    /// The kernel has held the block beyond its time limit: nobody is made to wait for a disk that hangs.
    Refused,
}

/// All blocks of bits that this shard is home to and has to do with right now.
pub(crate) struct Touching {
    blocks: Vec<Option<BlockWrite>>,
    spare: Vec<(Bits, Bits)>,
    backlog: VecDeque<(DeviceId, Arc<TouchMap>, u32)>,
}

impl Touching {
    pub fn new(waiters_max: usize) -> Touching {
        Touching {
            blocks: (0..META_BLOCKS).map(|_| None).collect(),
            spare: (0..META_BLOCKS).map(|_| (Box::new([0; WORDS]), Box::new([0; WORDS]))).collect(),
            backlog: VecDeque::with_capacity(waiters_max),
        }
    }

    /// Somebody wants the bit of `region` durable.
    pub fn ask(&mut self, device: DeviceId, map: Arc<TouchMap>, region: u32) -> Asked {
        let block = region / REGIONS_PER_BLOCK;
        let (word, bit) = ((region % REGIONS_PER_BLOCK) as usize / 64, 1u64 << (region % 64));
        let same = self.blocks.iter_mut().flatten().find(|b| b.device == device && b.block == block);
        if let Some(write) = same {
            if write.late {
                return Asked::Refused;
            }
            if write.writing[word] & bit == 0 {
                write.wanted[word] |= bit;
                write.more = true;
            }
            return Asked::Joined;
        }
        let Some(at) = self.blocks.iter().position(Option::is_none) else {
            self.backlog.push_back((device, map, region));
            return Asked::Joined;
        };
        let (mut writing, wanted) = self.spare.pop().expect("one spare for each free block");
        writing[word] |= bit;
        self.blocks[at] = Some(BlockWrite { device, map, block, writing, wanted, more: false, late: false });
        Asked::Start(at as u32)
    }

    /// The write from metadata block `at`.
    pub fn get(&mut self, at: u32) -> &mut BlockWrite {
        self.blocks[at as usize].as_mut().expect("a metadata block with a write out is taken")
    }

    /// The write from metadata block `at` has ended. True when another must be started from it.
    pub fn ended(&mut self, at: u32) -> bool {
        let write = self.get(at);
        write.writing.fill(0);
        write.late = false;
        if write.more {
            std::mem::swap(&mut write.writing, &mut write.wanted);
            write.more = false;
            return true;
        }
        let write = self.blocks[at as usize].take().expect("just seen");
        self.spare.push((write.writing, write.wanted));
        false
    }

    /// One who waits for a free metadata block.
    pub fn pop_backlog(&mut self) -> Option<(DeviceId, Arc<TouchMap>, u32)> {
        self.blocks.iter().any(Option::is_none).then(|| self.backlog.pop_front()).flatten()
    }
}

impl Shard {
    /// This shard is home to the map: sees to it that the region's bit becomes durable.
    pub(super) fn touch(&mut self, device: DeviceId, map: Arc<TouchMap>, region: u32, sink: &mut impl LeafSink) {
        let block = region / REGIONS_PER_BLOCK;
        if map.is_durable(region) {
            return self.tell_touched(device, block, None);
        }
        match self.touching.ask(device, map, region) {
            Asked::Start(at) => {
                let index = self.slots.take_reserved(at);
                self.write_block(at, index, sink);
            }
            Asked::Joined => {}
            Asked::Refused => self.tell_touched(device, block, Some(LeafError::of(ErrorKind::TimedOut))),
        }
    }

    /// The planted bug "bit after data": asks for the bit of every region of the request, and goes on at once.
    #[cfg(feature = "planted")]
    pub(super) fn touch_without_waiting(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        if !planted(Planted::BitAfterData) || !super::mutates(slot.op) {
            return;
        }
        let layout = Arc::clone(self.devices.at(slot.device).layout(slot.version));
        for map in layout
            .nodes
            .iter()
            .filter_map(|n| if let crate::layout::FlatNode::Touched { map, .. } = n { Some(map) } else { None })
        {
            for region in map.region_of(slot.start)..=map.region_of(slot.end - 1) {
                let (map, device) = (Arc::clone(map), DeviceId(slot.device));
                if map.is_durable(region) {
                } else if map.home() == self.id {
                    self.touch(device, map, region, sink);
                } else {
                    self.outbox.push_back((map.home(), ShardMessage::Touch { device, map, region }));
                }
            }
        }
    }

    /// Submits the block of bits that stands in metadata block `at` to every copy, to be durable when answered.
    fn write_block(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        let write = self.touching.get(at);
        let (buf, bytes) = sink.meta_block(at);
        write.map.image(write.block, &write.writing[..], bytes);
        let offset = u64::from(write.block) * 4096;
        let slot = &mut self.slots[index];
        slot.error = None;
        slot.single = false;
        slot.op = Op::Write;
        slot.start = offset;
        slot.out = write.map.places().len() as u32;
        let generation = slot.generation;
        for (leaf, start) in write.map.places() {
            let cookie = slots::cookie(index, generation, *leaf);
            let flags = if planted(Planted::BitNotDurable) { Flags::NONE } else { Flags::FUA };
            sink.submit(&LeafIo::simple(*leaf, Op::Write, flags, start + offset, 4096, buf, cookie));
        }
    }

    /// Every copy of a block of bits has answered.
    pub(super) fn block_written(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        let error = self.slots[index].error.map(|e| LeafError { kind: e.kind, errno: e.errno });
        let write = self.touching.get(at);
        let (device, block) = (write.device, write.block);
        if error.is_none() {
            write.map.set_durable(block, &write.writing[..]);
        }
        self.tell_touched(device, block, error);
        if self.slots[index].late > 0 {
            self.slots[index].state = State::Late;
            self.touching.get(at).late = true;
        } else {
            self.block_free(at, index, sink);
        }
    }

    /// The kernel has given a block of bits back: it is written again, or serves somebody else.
    pub(super) fn block_free(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        self.slots[index].state = State::Active;
        if self.touching.ended(at) {
            return self.write_block(at, index, sink);
        }
        self.slots.give(index);
        while let Some((device, map, region)) = self.touching.pop_backlog() {
            self.touch(device, map, region, sink);
        }
    }

    fn tell_touched(&mut self, device: DeviceId, block: u32, error: Option<LeafError>) {
        self.woken.push_back((touch_key(device, block), error));
        for shard in (0..self.shared.shards).map(ShardId).filter(|s| *s != self.id) {
            self.outbox.push_back((shard, ShardMessage::Touched { device, block, error }));
        }
    }
}
