//! Slots whose I/O ran into its time limit: they are answered, and kept until the kernel gives the I/O back.

use super::ranges::release;
use super::slots::State;
use super::{Shard, mutates, slots};
use crate::io::{Cookie, DeviceId, ErrorKind, LeafError, LeafSink};
use crate::planted::{Planted, planted};

impl Shard {
    /// A leaf I/O ran into its time limit: it counts as failed, but the kernel still has it.
    pub fn leaf_late(&mut self, cookie: Cookie, sink: &mut impl LeafSink) {
        if let Some((index, _)) = self.slots.find(cookie) {
            self.slots[index].late += 1;
            self.works.note_late(self.slots[index].work);
            self.partial_step_is_late(index);
            self.leaf_done(cookie, Err(LeafError::of(ErrorKind::TimedOut)), sink);
        }
    }

    /// The kernel gave a late leaf I/O back. Its result no longer matters.
    pub fn leaf_returned(&mut self, cookie: Cookie, sink: &mut impl LeafSink) {
        let Some((index, _)) = self.slots.find(cookie) else { return };
        let slot = &mut self.slots[index];
        debug_assert!(slot.late > 0, "an I/O returned that was not late");
        slot.late -= 1;
        if slot.late > 0 || slot.state != State::Late {
            return;
        }
        if let Some(io) = self.slots.journal_io(index) {
            self.journal_let_go(io, index);
            self.journals_go(sink);
            return self.work_off(sink);
        }
        match self.slots.reserved_block(index) {
            Some(block) => self.home_free(block, index, sink),
            None => {
                if let Some(number) = self.slots.part(index) {
                    self.part_returned(index, number);
                    return self.work_off(sink);
                }
                let slot = &self.slots[index];
                if slot.sync == slots::NONE && self.slots.gather(index).is_none() && slot.keeps_memory() {
                    self.released.push_back(slot.tag);
                }
                self.let_go(index);
            }
        }
        self.work_off(sink);
    }

    /// The tag of a request, answered before, whose buffer the kernel has given back since.
    #[inline]
    pub fn pop_released(&mut self) -> Option<u64> {
        self.released.pop_front()
    }

    /// The buffer stays quarantined until the kernel gives the I/O back, and who wants to write there is refused. The
    /// range itself is given back: others, whose words in the table are the same by chance, must not wait for a disk
    /// that hangs.
    #[cold]
    pub(super) fn become_late(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        slot.state = State::Late;
        let device = self.devices.at_mut(slot.device);
        // What a member of a redundant array does late harms nobody: it is left out, and comes back only after that. Of a volume's
        // request its parts have told.
        let to_volume = slot.pool != slots::NO_POOL;
        let layout = device.layout(slot.version);
        let is_redundant = layout.mirror().is_some() || layout.volume().is_some();
        slot.barred |= !to_volume && !is_redundant || slot.below.0 != slots::NONE;
        if slot.barred {
            device.enter_late(slot.memory_bytes());
            if mutates(slot.op) {
                self.shared.late.enter(DeviceId(slot.device), slot.start, slot.end);
            }
            if slot.below.0 != slots::NONE {
                // As if it were a part of its own.
                self.devices.at_mut(slot.below.0).enter_late(slot.memory_bytes());
                if mutates(slot.op) {
                    let (start, end) = (slot.step, slot.step + slot.end - slot.start);
                    self.shared.late.enter(DeviceId(slot.below.0), start, end);
                }
            }
        } else {
            // So that the layout without it need not wait for it.
            self.devices.leave(slot.device, slot.version);
        }
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        self.give_up_claim(index);
        let slot = &self.slots[index];
        if to_volume && slot.barred && mutates(slot.op) && !planted(Planted::LateUncounted) {
            self.tell_pool_late(index, true);
        } else if to_volume {
            // Its places may be given away.
            self.exit_volume(index);
        }
    }
}
