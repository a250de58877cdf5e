//! Ops are put into the journal, which the array's home keeps: what this shard asks of it, and the answers.

use braid_format::journal::{EntryKind, JournalEntry};

use super::super::journal::{InJournal, LogRequest};
use super::super::slots::{self, State};
use super::super::waiting::log_key;
use super::super::{Shard, ShardMessage};
use super::Stage;
use super::row::Row;
use crate::io::{DeviceId, ErrorKind, IoError, LeafSink, Op};
use crate::parity::RowOp;

impl Shard {
    /// Asks for these ops to be put into the journal, and waits for that.
    pub(super) fn log_rows(&mut self, index: u32, which: impl Fn(&RowOp) -> bool, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let device = DeviceId(slot.device);
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &mut self.works.list[slot.work as usize];
        let (ops, count) = (work.ops, work.count);
        let asked = ops[..count].iter().filter(|op| which(op)).count();
        (work.stage, work.unlogged) = (Stage::Log, asked as u32);
        // From here on an answer may come within a call.
        self.waiting.park(&mut self.slots, index, log_key(device));
        let home = mirror.regions.home();
        let mut left = asked;
        for (number, op) in ops[..count].iter().enumerate().filter(|(_, op)| which(op)) {
            left -= 1;
            let row = Row::new(mirror, op.row);
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

    /// A member was lost since ops were marked: the first of those that are left is logged, now that nothing of the step is in
    /// the journal and not in place. True: the journal has no room for one of them, and the step is begun anew.
    #[cold]
    pub(super) fn log_bare(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        let count = self.works.list[work].count;
        let number = self.works.list[work].ops[..count].iter().position(|op| !op.submitted).expect("an op is left");
        // Marks of the others as well: who holds something of the journal must not wait for it.
        for bare in number..count {
            let op = &mut self.works.list[work].ops[bare];
            let sequence = if op.submitted { 0 } else { std::mem::take(&mut op.sequence) };
            if sequence > 0 {
                self.tell_in_place(index, sequence, sink);
            }
        }
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let too_large = |op: &RowOp| !op.done && layout.parity().is_some_and(|parity| parity.is_too_large(op));
        if self.works.list[work].ops[..count].iter().any(too_large) {
            // What is in place already is written once more.
            self.drop_work(index, sink);
            return true;
        }
        let op = &mut self.works.list[work].ops[number];
        op.logged = true;
        let page = op.page;
        self.log_rows(index, |op| op.page == page, sink);
        false
    }

    /// The journal has an op, or cannot take it.
    pub(in crate::shard) fn row_logged(
        &mut self,
        index: u32,
        generation: u32,
        op: u8,
        result: Result<InJournal, ErrorKind>,
    ) {
        let slot = &mut self.slots[index];
        debug_assert!(slot.generation == generation && slot.work != slots::NONE, "who asked the journal waits for it");
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

    /// Slots whose ops the journal has answered for go on.
    pub(in crate::shard) fn work_off_replies(&mut self, sink: &mut impl LeafSink) {
        while let Some(index) = self.replies.pop_front() {
            let slot = &self.slots[index];
            let ready = slot.state == State::Waiting && slot.wait_key == log_key(DeviceId(slot.device));
            // One that waits for the end of a freeze goes on then.
            if ready {
                self.waiting.unpark(&mut self.slots, index);
                self.move_to_current(index);
                self.advance(index, sink);
            }
        }
    }

    /// Whether the journal has still to answer for the slot: until then its memory may be read, and it must not end.
    pub(in crate::shard) fn is_being_logged(&self, index: u32) -> bool {
        let work = self.slots[index].work;
        work != slots::NONE && self.works.list[work as usize].unlogged > 0
    }

    /// Whether some of what a slot has submitted is of a row that is only marked, and is not known to be in place.
    pub(in crate::shard) fn has_marked_out(&self, index: u32) -> bool {
        let work = self.slots[index].work;
        let Some(work) = self.works.list.get(work as usize).filter(|_| work != slots::NONE) else { return false };
        let is_out = |op: &RowOp| op.submitted && !op.done && !op.logged;
        work.stage == Stage::Write && work.ops[..work.count].iter().any(is_out)
    }

    pub(super) fn tell_in_place(&mut self, index: u32, sequence: u64, sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let device = DeviceId(slot.device);
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(mirror) = layout.mirror() else { return };
        let (home, run) = (mirror.regions.home(), mirror.parity.as_deref().map_or(0, |parity| parity.node.run));
        if home == self.id {
            self.journal_in_place(device, run, sequence, sink);
        } else {
            self.outbox.push_back((home, ShardMessage::InPlace { device, run, sequence }));
        }
    }

    /// A flush of an array with parity asks the journal. False: it is done.
    pub(in crate::shard) fn settle_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        if slot.cursor > 1 {
            return false;
        }
        let (device, generation, asked) = (DeviceId(slot.device), slot.generation, slot.cursor == 1);
        slot.cursor = 1;
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let Some(mirror) = layout.mirror().filter(|mirror| !mirror.failed) else {
            self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
            return false;
        };
        self.waiting.park(&mut self.slots, index, log_key(device));
        if asked {
            return true;
        }
        let home = mirror.regions.home();
        if home == self.id {
            self.journal_settle(device, (self.id, index, generation), sink);
        } else {
            let from = self.id;
            self.outbox.push_back((home, ShardMessage::Settle { device, from, slot: index, generation }));
        }
        true
    }

    /// The journal has settled what a flush waits for.
    pub(in crate::shard) fn row_settled(&mut self, index: u32, generation: u32, result: Result<(), ErrorKind>) {
        let slot = &mut self.slots[index];
        if slot.generation != generation || slot.state == State::Free || !slot.flushing {
            return;
        }
        match result {
            Ok(()) => slot.cursor = 2,
            Err(kind) => drop(slot.error.get_or_insert(IoError::of(kind))),
        }
        self.replies.push_back(index);
    }
}
