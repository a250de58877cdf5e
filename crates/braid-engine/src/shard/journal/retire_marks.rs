//! Retires marks when a member is about to be dropped: see [`crate::parity::ParityNode::marks`].
//!
//! The device is frozen on all shards. The home shard waits for every write that a slot has submitted to a marked
//! stripe; then the stripe is in place on all members but those that failed. What a slot has not submitted is held
//! back: when its mark is retired it is logged.

use crate::io::{DeviceId, LeafId, ShardId};
use crate::layout::DeviceLayout;
use crate::shard::journal_state::{DrainRequest, MarkDrain, Waiter};
use crate::shard::{Shard, ShardMessage};

impl Shard {
    /// Retires the marks of a journal: with `wait` all of them, once no write to a marked stripe is in flight;
    /// otherwise those of stripes that are known to be in place on all members. An earlier call with `wait` may have
    /// retired all marks already: the disks that it found to have failed a stripe stay recorded.
    pub(in crate::shard) fn journal_retire_marks(&mut self, call: u64, device: DeviceId, wait: bool) {
        let shards = self.shared.shards();
        let Some(journal) = self.journals.of(device) else { return self.report_called(call) };
        let before = journal.mark_drain.take();
        if wait {
            journal.mark_drain = Some(MarkDrain { call, left: shards, failed: Vec::new() });
        } else {
            let (run, batch) = (journal.node.run, journal.in_place());
            journal.node.marks.retire(run, batch, &[]);
            self.report_called(call);
        }
        if let Some(before) = before {
            self.report_called(before.call);
        }
        for shard in (0..shards).map(ShardId).filter(|_| wait) {
            if shard == self.id {
                self.still(device, shard, call);
            } else {
                self.outbox.push_back((shard, ShardMessage::DrainMarked { device, home: self.id, call }));
            }
        }
    }

    /// Processes the request of a journal's home to report when this shard has no write to a marked stripe in flight.
    pub(in crate::shard) fn still(&mut self, device: DeviceId, home: ShardId, call: u64) {
        self.drain_requests.push(DrainRequest { device, home, call });
        self.check_marked_drained(device);
    }

    /// Reports to waiting home shards, if no write to a marked stripe of the device is in flight.
    #[cold]
    pub(in crate::shard) fn check_marked_drained(&mut self, device: DeviceId) {
        if self.drain_requests.iter().all(|request| request.device != device) {
            return;
        }
        let mut failed = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.device != device.0 || !self.has_marked_in_flight(index) {
                continue;
            }
            if slot.out > 0 {
                return;
            }
            failed.extend(self.disks_failed(index));
        }
        while let Some(at) = self.drain_requests.iter().position(|request| request.device == device) {
            let DrainRequest { home, call, .. } = self.drain_requests.swap_remove(at);
            if home == self.id {
                self.journal_marked_drained(device, call, &failed);
            } else {
                self.outbox.push_back((home, ShardMessage::MarkedDrained { device, call, failed: failed.clone() }));
            }
        }
    }

    /// Returns the disks that failed some of a slot's writes and that serve in the current layout. The slot's member
    /// indices are those of its own layout, which may be older: a successor may have the index of a member that was
    /// dropped meanwhile.
    fn disks_failed(&self, index: u32) -> Vec<LeafId> {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        let current = device.current.as_deref().and_then(DeviceLayout::mirror);
        match (device.layout(slot.version).mirror(), current) {
            (Some(own), Some(current)) => own.disks_in(slot.failed, current).collect(),
            _ => Vec::new(),
        }
    }

    /// Processes a shard's report that it has no write to a marked stripe in flight, and which disks failed such a
    /// write.
    pub(in crate::shard) fn journal_marked_drained(&mut self, device: DeviceId, call: u64, failed: &[LeafId]) {
        let Some(journal) = self.journals.of(device) else { return };
        let Some(mark_drain) = journal.mark_drain.as_mut().filter(|mark_drain| mark_drain.call == call) else { return };
        mark_drain.left -= 1;
        mark_drain.failed.extend_from_slice(failed);
        if mark_drain.left > 0 {
            return;
        }
        let failed = std::mem::take(&mut mark_drain.failed);
        journal.mark_drain = None;
        journal.node.marks.retire(journal.node.run, journal.next - 1, &failed);
        self.report_called(call);
    }

    /// Ends the wait when the journal is removed, or the array has failed.
    pub(super) fn end_mark_drain(&mut self, device: DeviceId) {
        if let Some(mark_drain) = self.journals.of(device).and_then(|journal| journal.mark_drain.take()) {
            self.reply_waiter(Waiter::Call(mark_drain.call), Ok(()));
        }
    }
}
