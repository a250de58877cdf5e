//! The end of a slot: its request is answered, and its resources are released.

use super::ranges::release;
use super::slots::{Partial, SlotState};
use super::{Shard, mutates, slots};
use crate::io::{Completion, DeviceId};

impl Shard {
    /// Answers a slot's request and releases its resources.
    #[inline]
    pub(super) fn finish(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let late = slot.late > 0;
        let result = match slot.error {
            None => Ok(()),
            Some(error) => Err(error),
        };
        if slot.sync != slots::NONE {
            self.sync_finish(index, result, late);
            return if late { self.become_late(index) } else { self.release_slot(index) };
        }
        if let Some(number) = self.slots.gather(index) {
            return self.gathered(index, number);
        }
        if self.slots[index].partial == Partial::Step {
            return self.partial_step_ended(index);
        }
        if self.slots[index].followed {
            self.wake_followers();
        }
        if let Some(number) = self.slots.part(index) {
            return self.part_finished(index, number);
        }
        let result = match result {
            Ok(()) => Ok(()),
            Err(error) => Err(self.outcome(index, error)),
        };
        if !late {
            self.give_up_claim(index);
        }
        let slot = &mut self.slots[index];
        self.done.push(Completion { tag: slot.tag, result, buffer_busy: late && slot.keeps_memory() });
        let device = self.devices.at_mut(slot.device);
        if !result.is_err_and(|error| error.kind.is_unsettled()) {
            device.counters.count(slot.op, slot.end - slot.start, result.is_err());
        }
        if late {
            self.become_late(index);
        } else if slot.held.0 < slot.held.1
            || device.version != slot.version
            || slot.pool != slots::NO_POOL && slot.below.0 == slots::NONE
        {
            self.release_slot(index);
        } else {
            device.users -= 1;
            if slot.below.0 != slots::NONE {
                self.leave_below(index);
                self.exit_volume(index);
            }
            self.in_flight -= 1;
            self.reclaim(index);
            self.slots.give(index);
        }
    }

    #[cold]
    pub(super) fn release_slot(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        if slot.state == SlotState::Late && slot.barred {
            if slot.below.0 != slots::NONE {
                self.devices.at_mut(slot.below.0).leave_late(slot.memory_bytes());
                if mutates(slot.op) {
                    let (start, end) = (slot.step, slot.step + slot.end - slot.start);
                    self.shared.late.remove(DeviceId(slot.below.0), start, end);
                }
            }
            self.devices.at_mut(slot.device).leave_late(slot.memory_bytes());
            if mutates(slot.op) {
                self.shared.late.remove(DeviceId(slot.device), slot.start, slot.end);
            }
        }
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        self.reclaim(index);
        if self.slots[index].partial == Partial::Ended {
            self.regain_partial_memory(index);
        }
        if self.slots[index].below.0 != slots::NONE {
            self.leave_below(index);
        }
        if self.slots[index].pool != slots::NO_POOL {
            if self.slots[index].state == SlotState::Late {
                self.report_pool_late(index, false);
            }
            self.exit_volume(index);
        }
        let slot = &mut self.slots[index];
        let (device, version) = (slot.device, slot.version);
        let left_before = slot.state == SlotState::Late && !slot.barred;
        if slot.sync != slots::NONE {
            self.syncs.give(slot.sync);
        }
        if let Some(number) = self.slots.gather(index) {
            self.forget_gather(number);
        }
        self.slots.give(index);
        if let Some(number) = self.slots.part(index) {
            self.part_is_free(number);
        }
        if !left_before {
            self.devices.leave(device, version);
        }
        self.in_flight -= 1;
    }
}
