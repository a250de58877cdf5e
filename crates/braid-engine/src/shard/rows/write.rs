//! Data and parities are written in place.

use super::super::{Shard, slots};
use super::Stage;
use super::row::Row;
use crate::io::{Flags, LeafIo, LeafSink, Op};
use crate::mirror::Role;
use crate::planted::{self, Planted, planted};

impl Shard {
    /// Writes data and parities in place. True: the step is begun anew.
    pub(super) fn write_rows(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let marks = &mirror.parity.as_deref().expect("an array with parity").node.marks;
        let work = &mut self.works.list[slot.work as usize];
        work.stage = Stage::Write;
        for op in &mut work.ops[..work.count] {
            let may_mark = || marks.counts(op.sequence) && Row::new(mirror, op.row).is_whole();
            op.submitted |= op.sequence > 0 && (op.logged || may_mark());
        }
        let (ops, count) = (work.ops, work.count);
        let mut out = 0;
        for op in ops[..count].iter().filter(|op| op.submitted && !op.done) {
            let row = Row::new(mirror, op.row);
            let memory = self.memory_of(&row, op);
            for cell in 0..row.cells() {
                let buf = match cell.checked_sub(row.data()) {
                    None if op.covers(cell) => self.new_data(&slot, &row, op, cell),
                    None => continue,
                    Some(parity) => memory.parity(parity),
                };
                let holder = row.member(cell);
                let successors = mirror.successors.iter().filter(|s| usize::from(s.role) == holder);
                for member in std::iter::once(holder).chain(successors.map(|s| usize::from(s.member))) {
                    let member = &mirror.members[member];
                    if member.role == Role::Out {
                        continue;
                    }
                    let at = member.start + row.stripe.member_offset + op.column(row.parity);
                    let cookie = slots::cookie(index, slot.generation, member.leaf);
                    let is_last = cell + 1 == row.cells() && out > 0;
                    let cookie = planted::cookie_of_cell(cookie, is_last);
                    sink.submit(&LeafIo::simple(member.leaf, Op::Write, Flags::NONE, at, op.len(), buf, cookie));
                    out += u32::from(!(is_last && planted(Planted::RowAnsweredEarly)));
                }
            }
        }
        self.slots[index].out = out;
        out == 0 && self.log_bare(index, sink)
    }

    /// All that was submitted is in place. True: that was the whole step, or it is begun anew.
    pub(super) fn rows_written(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        let mut left = false;
        for number in 0..self.works.list[work].count {
            let op = &mut self.works.list[work].ops[number];
            if op.submitted && !op.done {
                op.done = true;
                let (op, sequence) = (*op, std::mem::take(&mut op.sequence));
                self.note_mended(index, &op);
                self.tell_in_place(index, sequence, sink);
            }
            left |= !self.works.list[work].ops[number].done;
        }
        if left {
            return self.write_rows(index, sink);
        }
        let to = self.works.list[work].to;
        self.drop_work(index, sink);
        self.slots[index].cursor = to;
        true
    }
}
