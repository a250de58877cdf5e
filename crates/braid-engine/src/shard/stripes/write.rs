//! Writes data and parities in place.

use super::super::stripe_work::Stage;
use super::super::{Shard, slots};
use super::stripe::StripeView;
use crate::io::{Flags, LeafIo, LeafSink, Op};
use crate::mirror::MemberRole;

impl Shard {
    /// Writes data and parities in place. Returns true if the step is begun again.
    pub(super) fn write_stripes(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let marks = &mirror.parity.as_deref().expect("an array with parity").node.marks;
        let work = &mut self.works.list[slot.work as usize];
        work.stage = Stage::Write;
        for op in &mut work.ops[..work.count] {
            let may_mark = || marks.counts(op.sequence) && StripeView::new(mirror, op.row).is_whole();
            op.submitted |= op.sequence > 0 && (op.logged || may_mark());
        }
        let (ops, count) = (work.ops, work.count);
        let mut out = 0;
        for op in ops[..count].iter().filter(|op| op.submitted && !op.done) {
            let row = StripeView::new(mirror, op.row);
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
                    if member.role == MemberRole::Failed {
                        continue;
                    }
                    let at = member.start + row.stripe.member_offset + op.column(row.parity);
                    let cookie = slots::cookie(index, slot.generation, member.leaf);
                    sink.submit(&LeafIo::simple(member.leaf, Op::Write, Flags::NONE, at, op.len(), buf, cookie));
                    out += 1;
                }
            }
        }
        self.slots[index].out = out;
        out == 0 && self.log_unmarked(index, sink)
    }

    /// Continues a step whose submitted ops are all in place. Returns true if the step has ended, or is begun again.
    pub(super) fn stripes_written(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        let mut left = false;
        for number in 0..self.works.list[work].count {
            let op = &mut self.works.list[work].ops[number];
            if op.submitted && !op.done {
                op.done = true;
                let (op, sequence) = (*op, std::mem::take(&mut op.sequence));
                self.note_rewritten(index, &op);
                self.report_in_place(index, sequence, sink);
            }
            left |= !self.works.list[work].ops[number].done;
        }
        if left {
            return self.write_stripes(index, sink);
        }
        let to = self.works.list[work].to;
        self.drop_work(index, sink);
        self.slots[index].cursor = to;
        true
    }
}
