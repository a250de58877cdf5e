//! One step of a flush: some of the device's disks are asked.

use super::{Shard, slots};
use crate::io::{Buf, ErrorKind, Flags, IoError, LeafIo, LeafSink, Op};
use crate::limits::STEP_IOS_MAX;
use crate::planted::{self, Planted, planted};

impl Shard {
    /// The next step of a flush of any device. False: it has ended.
    pub(super) fn any_flush_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        match self.devices.at(slot.device).layout(slot.version).parity() {
            Some(_) => self.settle_step(index, sink),
            None => self.flush_step(index, sink),
        }
    }

    /// Asks every leaf of the device to flush, a bounded number at a time. False when all have answered.
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
        let some = planted::asked(some);
        slot.out = some.len() as u32;
        let generation = slot.generation;
        for leaf in some {
            let filling = |mirror: &crate::mirror::Mirrored| {
                mirror.role_of(*leaf).is_some_and(|role| mirror.members[role].role == crate::Role::Filling)
            };
            if planted(Planted::FlushSkipsFilling) && layout.mirror().is_some_and(filling) {
                slot.out -= 1;
                continue;
            }
            let cookie = slots::cookie(index, generation, *leaf);
            let cookie = planted::cookie_of_flush(cookie);
            sink.submit(&LeafIo::simple(*leaf, Op::Flush, Flags::NONE, 0, 0, Buf::NONE, cookie));
        }
        if planted(Planted::FlushTooEarly) {
            slot.out = 0;
            return false;
        }
        !some.is_empty()
    }
}
