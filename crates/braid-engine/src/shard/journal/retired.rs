//! Marks are retired, as a member is about to be left out: see [`crate::parity::ParityNode::marks`].
//!
//! The device is frozen on all shards. What a slot has submitted of a marked row is waited for; then the row is in place on all
//! members but those that failed. What it has not submitted stays out: with a mark that is retired it is logged.

use super::Waiter;
use crate::io::{DeviceId, ShardId};
use crate::mirror::Roles;
use crate::planted::{Planted, planted};
use crate::shard::{Shard, ShardMessage};

/// The home waits for all shards to have nothing of a marked row under way.
pub(super) struct Stilling {
    pub(super) call: u64,
    left: u16,
    failed: Roles,
}

/// A shard that was asked for that, and has something under way.
pub(in crate::shard) struct Asked {
    device: DeviceId,
    home: ShardId,
    call: u64,
}

impl Shard {
    /// Retires the marks of a journal: all of them, once nothing of a marked row is under way; or, where that is not to be waited for,
    /// those of which it is known.
    pub(in crate::shard) fn journal_retire_marks(&mut self, call: u64, device: DeviceId, wait: bool) {
        let shards = self.shared.shards();
        let Some(journal) = self.journals.of(device) else { return self.tell_called(call) };
        let before = journal.stilling.take();
        if wait {
            journal.stilling = Some(Stilling { call, left: shards, failed: Roles::NONE });
        } else {
            let (run, batch) = (journal.node.run, journal.in_place());
            journal.node.marks.retire(run, batch, Roles::NONE);
            self.tell_called(call);
        }
        if let Some(before) = before {
            self.tell_called(before.call);
        }
        for shard in (0..shards).map(ShardId).filter(|_| wait) {
            if shard == self.id {
                self.still(device, shard, call);
            } else {
                self.outbox.push_back((shard, ShardMessage::Still { device, home: self.id, call }));
            }
        }
    }

    /// The home of a journal wants to hear when this shard has nothing of a marked row under way.
    pub(in crate::shard) fn still(&mut self, device: DeviceId, home: ShardId, call: u64) {
        self.asked_still.push(Asked { device, home, call });
        self.look_still(device);
    }

    /// Something of the device has come back.
    #[cold]
    pub(in crate::shard) fn look_still(&mut self, device: DeviceId) {
        if self.asked_still.iter().all(|asked| asked.device != device) {
            return;
        }
        let mut failed = Roles::NONE;
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.device != device.0 || !self.has_marked_out(index) {
                continue;
            }
            if slot.out > 0 && !planted(Planted::MarksRetiredEarly) {
                return;
            }
            failed = Roles(failed.0 | slot.failed.0);
        }
        while let Some(at) = self.asked_still.iter().position(|asked| asked.device == device) {
            let Asked { home, call, .. } = self.asked_still.swap_remove(at);
            if home == self.id {
                self.journal_is_still(device, call, failed);
            } else {
                self.outbox.push_back((home, ShardMessage::IsStill { device, call, failed }));
            }
        }
    }

    /// A shard has nothing of a marked row under way. These members failed some of what it had.
    pub(in crate::shard) fn journal_is_still(&mut self, device: DeviceId, call: u64, failed: Roles) {
        let Some(journal) = self.journals.of(device) else { return };
        let Some(stilling) = journal.stilling.as_mut().filter(|stilling| stilling.call == call) else { return };
        stilling.left -= 1;
        stilling.failed = Roles(stilling.failed.0 | failed.0);
        if stilling.left > 0 {
            return;
        }
        let failed = stilling.failed;
        journal.stilling = None;
        journal.node.marks.retire(journal.node.run, journal.next - 1, failed);
        self.tell_called(call);
    }

    /// The journal goes, or the array has failed: nobody is to wait for it.
    pub(super) fn forget_stilling(&mut self, device: DeviceId) {
        if let Some(stilling) = self.journals.of(device).and_then(|journal| journal.stilling.take()) {
            self.tell_waiter(Waiter::Call(stilling.call), Ok(()));
        }
    }
}
