//! Reads what the ops of a step need of their stripes; computes what cannot be read, and the parities.

use super::super::Shard;
use super::super::compute::{self, CELLS_MAX, DegradedStripe};
use super::super::ranges::release;
use super::super::slots::{self, Slot};
use super::super::stripe_work::Stage;
use super::stripe::StripeView;
use crate::io::{Buf, ErrorKind, Flags, IoError, LeafIo, LeafSink, Op};
use crate::mirror::Mirrored;
use crate::parity::{ParityMethod, StripeOp};

impl Shard {
    /// Reads what the ops of a work need.
    pub(super) fn read_stripes(&mut self, index: u32, work: u32, mirror: &Mirrored, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let of = &self.works.list[work as usize];
        let (ops, count) = (of.ops, of.count);
        let mut out = 0;
        for op in &ops[..count] {
            let row = StripeView::new(mirror, op.row);
            let memory = self.memory_of(&row, op);
            for cell in (0..row.cells()).filter(|cell| row.is_read(op, *cell, &slot)) {
                let buf = match cell.checked_sub(row.data()) {
                    None => memory.kept(row.place(op, cell)),
                    Some(parity) => memory.parity(parity),
                };
                let reader = row.reader(cell, &slot).expect("what is read can be read");
                let member = &mirror.members[reader];
                let at = member.start + row.stripe.member_offset + op.column(row.parity);
                let cookie = slots::cookie(index, slot.generation, member.leaf);
                sink.submit(&LeafIo::simple(member.leaf, Op::Read, Flags::NONE, at, op.len(), buf, cookie));
                out += 1;
            }
        }
        self.slots[index].out = out;
        if out == 0 {
            self.advance(index, sink);
        }
    }

    /// Returns whether a slot has reads for a stripe in flight.
    pub(in crate::shard) fn reads_stripes(&self, slot: &Slot) -> bool {
        slot.work != slots::NONE && self.works.list[slot.work as usize].stage == Stage::Read
    }

    /// Computes what was lost into the request's buffer.
    pub(super) fn recovered(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &self.works.list[slot.work as usize];
        let (op, to) = (work.ops[0], work.to);
        let row = StripeView::new(mirror, op.row);
        let target = slot.buf.add(slot.cursor - slot.start);
        if !self.recover_stripe(&slot, &row, &op, Some((usize::from(op.cell), target)), sink) {
            self.slots[index].error.get_or_insert(IoError::of(ErrorKind::Failed));
            return true;
        }
        self.drop_work(index, sink);
        let slot = &mut self.slots[index];
        release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        slot.cursor = to;
        true
    }

    /// Computes the data cells of a stripe that could not be read: `target` into its buffer, the others into scratch
    /// memory.
    pub(super) fn recover_stripe(
        &mut self,
        slot: &Slot,
        row: &StripeView<'_>,
        op: &StripeOp,
        target: Option<(usize, Buf)>,
        sink: &mut impl LeafSink,
    ) -> bool {
        let memory = self.memory_of(row, op);
        let mut cells = [None; CELLS_MAX];
        let (mut wanted, mut count) = ([(0, Buf::NONE); 2], 0);
        if target.is_some_and(|(cell, _)| row.is_readable(cell, slot)) {
            // Nothing would be computed into the target.
            return false;
        }
        for cell in 0..row.cells() {
            let parity = cell.checked_sub(row.data());
            if row.is_readable(cell, slot) {
                let place = parity.map_or_else(|| memory.kept(cell), |parity| memory.parity(parity));
                cells[cell] = Some(place);
            } else if parity.is_none() {
                let Some(lost) = wanted.get_mut(count) else { return false };
                *lost = match target {
                    Some((of, buf)) if of == cell => (cell, buf),
                    _ => (cell, memory.kept(cell)),
                };
                count += 1;
            }
        }
        let broken = DegradedStripe {
            data: row.data(),
            first_coefficient: row.stripe.first_coefficient(),
            cells: &cells[..row.cells()],
            wanted: &wanted[..count],
        };
        compute::recover(sink, &broken, op.len())
    }

    /// Computes the parities of all ops. Returns false if lost cells cannot be computed.
    pub(super) fn compute_parities(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &self.works.list[slot.work as usize];
        let (ops, count) = (work.ops, work.count);
        for op in &ops[..count] {
            let row = StripeView::new(mirror, op.row);
            let memory = self.memory_of(&row, op);
            if slot.op != Op::Write {
                sink.zero(memory.zeros(), op.len());
            }
            let parities = [memory.parity(0), memory.parity(1)];
            let parities = &parities[..row.parity.count];
            if op.method == ParityMethod::Modify {
                for cell in (0..row.data()).filter(|cell| op.covers(*cell)) {
                    let (old, new) = (memory.kept(row.place(op, cell)), self.new_data(&slot, &row, op, cell));
                    compute::update(sink, cell, old, new, parities, op.len());
                }
                continue;
            }
            if op.method == ParityMethod::Recover && !self.recover_stripe(&slot, &row, op, None, sink) {
                self.slots[index].error.get_or_insert(IoError::of(ErrorKind::Failed));
                return false;
            }
            let mut data = [Buf::NONE; CELLS_MAX];
            for (cell, buf) in data.iter_mut().enumerate().take(row.data()) {
                *buf = match op.covers(cell) {
                    true => self.new_data(&slot, &row, op, cell),
                    false => memory.kept(row.place(op, cell)),
                };
            }
            compute::encode(sink, &data[..row.data()], parities, op.len());
        }
        true
    }
}
