//! The home shard's side of first touch: blocks of bits being written, and those that want more.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::io::{DeviceId, META_BLOCKS};
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
