//! Logs ops in the journal, which the array's home shard keeps: the requests of this shard, and the replies.

use braid_format::journal::{EntryKind, JournalEntry};

use super::super::journal_state::{InJournal, LogRequest};
use super::super::slots::{self, SlotState};
use super::super::stripe_work::Stage;
use super::super::waiting::log_key;
use super::super::{Shard, ShardMessage};
use super::stripe::StripeView;
use crate::io::{DeviceId, ErrorKind, IoError, LeafSink, Op};
use crate::parity::StripeOp;

impl Shard {
    /// Requests that these ops be logged, and waits for that.
    pub(super) fn log_ops(&mut self, index: u32, which: impl Fn(&StripeOp) -> bool, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let device = DeviceId(slot.device);
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &mut self.works.list[slot.work as usize];
        let (ops, count) = (work.ops, work.count);
        let requested = ops[..count].iter().filter(|op| which(op)).count();
        (work.stage, work.unlogged) = (Stage::Log, requested as u32);
        // From here on a reply may arrive within a call.
        self.waiting.park(&mut self.slots, index, log_key(device));
        let home = mirror.regions.home();
        let mut left = requested;
        for (number, op) in ops[..count].iter().enumerate().filter(|(_, op)| which(op)) {
            left -= 1;
            let row = StripeView::new(mirror, op.row);
            let entry = JournalEntry {
                stripe: op.row,
                first: op.first,
                blocks: op.blocks,
                cell: op.cell as u8,
                cells: op.cells as u8,
                parities: row.parity.count as u8,
                kind: EntryKind::Data,
            };
            let stride = if slot.op == Op::Write { row.stripe.chunk_bytes } else { 0 };
            let request = LogRequest {
                from: self.id,
                slot: index,
                generation: slot.generation,
                op: number as u8,
                entry,
                mark: !op.logged,
                last: left == 0,
                data: self.new_data(&slot, &row, op, usize::from(op.cell)),
                stride,
                parity: self.memory_of(&row, op).parity(0),
            };
            if home == self.id {
                self.journal_log(device, request, sink);
            } else {
                self.outbox.push_back((home, ShardMessage::Log { device, request }));
            }
        }
    }

    /// Logs the first op that was to be marked and may not be any more, because a member was dropped since. Called when
    /// every op of the step that was submitted is in place. The marks of the remaining ops are released first. Returns
    /// true if the journal has no room for the data of one of these ops: the step is begun again.
    #[cold]
    pub(super) fn log_unmarked(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        let count = self.works.list[work].count;
        let number = self.works.list[work].ops[..count].iter().position(|op| !op.submitted).expect("an op is left");
        // Marks of the other ops are released as well: a slot that holds space in the journal must not wait for more.
        for bare in number..count {
            let op = &mut self.works.list[work].ops[bare];
            let sequence = if op.submitted { 0 } else { std::mem::take(&mut op.sequence) };
            if sequence > 0 {
                self.report_in_place(index, sequence, sink);
            }
        }
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let too_large = |op: &StripeOp| !op.done && layout.parity().is_some_and(|parity| parity.is_too_large(op));
        if self.works.list[work].ops[..count].iter().any(too_large) {
            // What is in place already is written once more.
            self.drop_work(index, sink);
            return true;
        }
        let op = &mut self.works.list[work].ops[number];
        op.logged = true;
        let page = op.page;
        self.log_ops(index, |op| op.page == page, sink);
        false
    }

    /// Processes the journal's reply for an op: it is logged, or cannot be.
    pub(in crate::shard) fn op_logged(
        &mut self,
        index: u32,
        generation: u32,
        op: u8,
        result: Result<InJournal, ErrorKind>,
    ) {
        let slot = &mut self.slots[index];
        debug_assert!(
            slot.generation == generation && slot.work != slots::NONE,
            "a slot waits for the journal's replies"
        );
        let work = &mut self.works.list[slot.work as usize];
        match result {
            Ok(place) => {
                work.ops[usize::from(op)].sequence = place.sequence;
                slot.alone |= place.alone;
            }
            Err(kind) => drop(slot.error.get_or_insert(IoError { offset: slot.start, ..IoError::of(kind) })),
        }
        work.unlogged -= 1;
        if work.unlogged == 0 {
            self.replies.push_back(index);
        }
    }

    /// Advances slots for which all replies of the journal have arrived.
    pub(in crate::shard) fn process_replies(&mut self, sink: &mut impl LeafSink) {
        while let Some(index) = self.replies.pop_front() {
            let slot = &self.slots[index];
            let ready = slot.state == SlotState::Waiting && slot.wait_key == log_key(DeviceId(slot.device));
            // A slot that waits for the end of a freeze continues then.
            if ready {
                self.waiting.unpark(&mut self.slots, index);
                self.move_to_current(index);
                self.advance(index, sink);
            }
        }
    }

    /// Returns whether replies of the journal are pending for the slot: until they arrive its memory may be read, and
    /// it must not end.
    pub(in crate::shard) fn is_being_logged(&self, index: u32) -> bool {
        let work = self.slots[index].work;
        work != slots::NONE && self.works.list[work as usize].unlogged > 0
    }

    /// Returns whether the slot has submitted writes to a stripe that is only marked and is not known to be in place.
    pub(in crate::shard) fn has_marked_in_flight(&self, index: u32) -> bool {
        let work = self.slots[index].work;
        let Some(work) = self.works.list.get(work as usize).filter(|_| work != slots::NONE) else { return false };
        let is_out = |op: &StripeOp| op.submitted && !op.done && !op.logged;
        work.stage == Stage::Write && work.ops[..work.count].iter().any(is_out)
    }

    pub(super) fn report_in_place(&mut self, index: u32, sequence: u64, sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let device = DeviceId(slot.device);
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(mirror) = layout.mirror() else { return };
        let (home, run) = (mirror.regions.home(), mirror.parity.as_deref().map_or(0, |parity| parity.node.run));
        if home == self.id {
            self.journal_in_place(device, run, sequence, sink);
        } else {
            self.outbox.push_back((home, ShardMessage::EntryInPlace { device, run, sequence }));
        }
    }

    /// Sends a flush of an array with parity to the journal. Returns false if it is done.
    pub(in crate::shard) fn settle_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        if slot.cursor > 1 {
            return false;
        }
        let (device, generation, requested) = (DeviceId(slot.device), slot.generation, slot.cursor == 1);
        slot.cursor = 1;
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let Some(mirror) = layout.mirror().filter(|mirror| !mirror.failed) else {
            self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
            return false;
        };
        self.waiting.park(&mut self.slots, index, log_key(device));
        if requested {
            return true;
        }
        let home = mirror.regions.home();
        if home == self.id {
            self.journal_settle(device, (self.id, index, generation), sink);
        } else {
            let from = self.id;
            self.outbox.push_back((home, ShardMessage::FlushJournal { device, from, slot: index, generation }));
        }
        true
    }

    /// Processes the journal's reply to a flush.
    pub(in crate::shard) fn flush_settled(&mut self, index: u32, generation: u32, result: Result<(), ErrorKind>) {
        let slot = &mut self.slots[index];
        if slot.generation != generation || slot.state == SlotState::Free || !slot.flushing {
            return;
        }
        match result {
            Ok(()) => slot.cursor = 2,
            Err(kind) => drop(slot.error.get_or_insert(IoError::of(kind))),
        }
        self.replies.push_back(index);
    }
}
