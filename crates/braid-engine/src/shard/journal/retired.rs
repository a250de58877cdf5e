//! Marks are retired, as a member is about to be left out: see [`crate::parity::ParityNode::marks`].
//!
//! The device is frozen on all shards. What a slot has submitted of a marked row is waited for; then the row is in place on all
//! members but those that failed. What it has not submitted stays out: with a mark that is retired it is logged.

use super::Waiter;
use crate::io::{DeviceId, LeafId, ShardId};
use crate::layout::DeviceLayout;
use crate::planted::{Planted, planted};
use crate::shard::{Shard, ShardMessage};

/// The home waits for all shards to have nothing of a marked row under way.
pub(super) struct Stilling {
    pub(super) call: u64,
    left: u16,
    failed: Vec<LeafId>,
}

/// A shard that was asked for that, and has something under way.
pub(in crate::shard) struct Asked {
    device: DeviceId,
    home: ShardId,
    call: u64,
}

impl Shard {
    /// Retires the marks of a journal: all of them, once nothing of a marked row is under way; or, where that is not to be waited for,
    /// those of rows that are known to be in place on all members. A call that waited may have retired all just before: the disks that it
    /// found to have failed a row stay noted.
    pub(in crate::shard) fn journal_retire_marks(&mut self, call: u64, device: DeviceId, wait: bool) {
        let shards = self.shared.shards();
        let Some(journal) = self.journals.of(device) else { return self.tell_called(call) };
        let before = journal.stilling.take();
        if wait {
            journal.stilling = Some(Stilling { call, left: shards, failed: Vec::new() });
        } else {
            let (run, batch) = (journal.node.run, journal.in_place());
            journal.node.marks.retire(run, batch, &[]);
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
        let mut failed = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.device != device.0 || !self.has_marked_out(index) {
                continue;
            }
            if slot.out > 0 && !planted(Planted::MarksRetiredEarly) {
                return;
            }
            failed.extend(self.disks_failed(index));
        }
        while let Some(at) = self.asked_still.iter().position(|asked| asked.device == device) {
            let Asked { home, call, .. } = self.asked_still.swap_remove(at);
            if home == self.id {
                self.journal_is_still(device, call, &failed);
            } else {
                self.outbox.push_back((home, ShardMessage::IsStill { device, call, failed: failed.clone() }));
            }
        }
    }

    /// The disks that failed some of what a slot has submitted, and that serve in the layout of now. The slot's numbers are those of its own
    /// layout, which may be older: a successor may have the number of a member that is out by now.
    fn disks_failed(&self, index: u32) -> Vec<LeafId> {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        let current = device.current.as_deref().and_then(DeviceLayout::mirror);
        match (device.layout(slot.version).mirror(), current) {
            (Some(own), Some(current)) => own.disks_in(slot.failed, current).collect(),
            _ => Vec::new(),
        }
    }

    /// A shard has nothing of a marked row under way. These disks failed some of what it had.
    pub(in crate::shard) fn journal_is_still(&mut self, device: DeviceId, call: u64, failed: &[LeafId]) {
        let Some(journal) = self.journals.of(device) else { return };
        let Some(stilling) = journal.stilling.as_mut().filter(|stilling| stilling.call == call) else { return };
        stilling.left -= 1;
        stilling.failed.extend_from_slice(failed);
        if stilling.left > 0 {
            return;
        }
        let failed = std::mem::take(&mut stilling.failed);
        journal.stilling = None;
        journal.node.marks.retire(journal.node.run, journal.next - 1, &failed);
        self.tell_called(call);
    }

    /// The journal goes, or the array has failed: nobody is to wait for it.
    pub(super) fn forget_stilling(&mut self, device: DeviceId) {
        if let Some(stilling) = self.journals.of(device).and_then(|journal| journal.stilling.take()) {
            self.tell_waiter(Waiter::Call(stilling.call), Ok(()));
        }
    }
}
