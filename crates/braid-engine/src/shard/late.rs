//! Slots whose I/O exceeded its time limit: their requests are answered, and the slots are kept until the kernel
//! returns the I/O.

use super::ranges::release;
use super::slots::SlotState;
use super::{Shard, mutates, slots};
use crate::io::{Cookie, DeviceId, ErrorKind, LeafError, LeafSink};

impl Shard {
    /// Reports that a leaf I/O exceeded its time limit: it counts as failed, but the kernel still has it.
    pub fn leaf_late(&mut self, cookie: Cookie, sink: &mut impl LeafSink) {
        if let Some((index, _)) = self.slots.find(cookie) {
            self.slots[index].late += 1;
            self.works.note_late(self.slots[index].work);
            self.partial_step_is_late(index);
            self.leaf_done(cookie, Err(LeafError::of(ErrorKind::TimedOut)), sink);
        }
    }

    /// Reports that the kernel returned a late leaf I/O. Its result no longer matters.
    pub fn leaf_returned(&mut self, cookie: Cookie, sink: &mut impl LeafSink) {
        let Some((index, _)) = self.slots.find(cookie) else { return };
        let slot = &mut self.slots[index];
        debug_assert!(slot.late > 0, "an I/O returned that was not late");
        slot.late -= 1;
        if slot.late > 0 || slot.state != SlotState::Late {
            return;
        }
        if let Some(io) = self.slots.journal_io(index) {
            self.journal_release_io(io, index);
            self.journals_advance(sink);
            return self.process_woken(sink);
        }
        match self.slots.reserved_block(index) {
            Some(block) => self.home_free(block, index, sink),
            None => {
                if let Some(number) = self.slots.part(index) {
                    self.part_returned(index, number);
                    return self.process_woken(sink);
                }
                let slot = &self.slots[index];
                if slot.sync == slots::NONE && self.slots.gather(index).is_none() && slot.keeps_memory() {
                    self.released.push_back(slot.tag);
                }
                self.release_slot(index);
            }
        }
        self.process_woken(sink);
    }

    /// Returns the tag of a request that was answered earlier and whose buffer the kernel has returned since.
    #[inline]
    pub fn pop_released(&mut self) -> Option<u64> {
        self.released.pop_front()
    }

    /// Keeps the slot of an answered request until the kernel returns its I/O. Its buffer stays quarantined, and writes
    /// to its range are refused. The range itself is released: requests whose words in the table collide with it must
    /// not wait for a disk that hangs.
    #[cold]
    pub(super) fn become_late(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        slot.state = SlotState::Late;
        let device = self.devices.at_mut(slot.device);
        // A late write on a member of a redundant array is harmless: the member is dropped, and returns only after the
        // I/O has. For a request to a volume, its parts have entered their ranges.
        let to_volume = slot.pool != slots::NO_POOL;
        let layout = device.layout(slot.version);
        let is_redundant = layout.mirror().is_some() || layout.volume().is_some();
        slot.barred |= !to_volume && !is_redundant || slot.below.0 != slots::NONE;
        if slot.barred {
            device.enter_late(slot.memory_bytes());
            if mutates(slot.op) {
                self.shared.late.insert(DeviceId(slot.device), slot.start, slot.end);
            }
            if slot.below.0 != slots::NONE {
                // The slot itself is the part on the pool's member, which counts it as late, too.
                self.devices.at_mut(slot.below.0).enter_late(slot.memory_bytes());
                if mutates(slot.op) {
                    let (start, end) = (slot.step, slot.step + slot.end - slot.start);
                    self.shared.late.insert(DeviceId(slot.below.0), start, end);
                }
            }
        } else {
            // The layout without the member need not wait for the slot.
            self.devices.leave(slot.device, slot.version);
        }
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        self.give_up_claim(index);
        let slot = &self.slots[index];
        if to_volume && slot.barred && mutates(slot.op) {
            self.report_pool_late(index, true);
        } else if to_volume {
            // No late I/O of the request can change its blocks: the pool may reuse them.
            self.exit_volume(index);
        }
    }
}
