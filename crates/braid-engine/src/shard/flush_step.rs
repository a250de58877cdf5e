//! One step of a flush: submits flushes to some of the device's disks.

use super::{Shard, slots};
use crate::io::{Buf, ErrorKind, Flags, IoError, LeafIo, LeafSink, Op};
use crate::limits::STEP_IOS_MAX;

impl Shard {
    /// Begins the next step of a flush of any device. Returns false if the flush has ended.
    pub(super) fn any_flush_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        match self.devices.at(slot.device).layout(slot.version).parity() {
            Some(_) => self.settle_step(index, sink),
            None => self.flush_step(index, sink),
        }
    }

    /// Submits flushes to the leaves of the device, a bounded number at a time. Returns false when all have completed.
    pub(super) fn flush_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        if layout.mirror().is_some_and(|mirror| mirror.failed) {
            slot.error = Some(IoError::of(ErrorKind::Failed));
            return false;
        }
        let first = slot.cursor as usize;
        let some = &layout.leaves[first..layout.leaves.len().min(first + STEP_IOS_MAX)];
        slot.cursor += some.len() as u64;
        slot.out = some.len() as u32;
        let generation = slot.generation;
        for leaf in some {
            let cookie = slots::cookie(index, generation, *leaf);
            sink.submit(&LeafIo::simple(*leaf, Op::Flush, Flags::NONE, 0, 0, Buf::NONE, cookie));
        }
        !some.is_empty()
    }
}
