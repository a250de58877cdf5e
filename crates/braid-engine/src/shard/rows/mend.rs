//! Rows of which something cannot be read: what is written to them, and how that makes them readable again.
//!
//! A line is one block of the row's height over all its cells. What does not write all data cells of such a line is refused: its
//! parity stands for zeros where nobody knows what was there, and nothing may make that look like data. A request that has all
//! of them, but in an order in which a step would write only some, is let write these lines first, in an op of their own.

use super::super::Shard;
use super::super::slots::Slot;
use super::row::Row;
use crate::mirror::Mirrored;
use crate::parity::{How, RowOp};
use crate::planted::{Planted, planted};

/// What unreadable rows make of the ops of a step.
pub(super) enum Mend {
    /// The step may be done as it is.
    Nothing,
    /// This op comes first.
    First(RowOp),
    /// The request has only a part of lines that cannot be read.
    Refused,
}

/// Looks at the ops of a step, whose rows are held.
pub(super) fn mend(mirror: &Mirrored, slot: &Slot, ops: &[RowOp]) -> Mend {
    let lost = mirror.parity.as_deref().map(|parity| &*parity.node.lost);
    let Some(lost) = lost.filter(|lost| !lost.is_empty()) else { return Mend::Nothing };
    let mut first = None;
    for op in ops {
        let (lines, row) = (lost.lines(op.row), Row::new(mirror, op.row));
        if lines & op.lines() == 0 || usize::from(op.cells) == row.data() {
            continue;
        }
        let whole = whole_lines(&row, op, slot);
        if lines & op.lines() & !whole != 0 {
            return if planted(Planted::PartMakesReadable) { Mend::Nothing } else { Mend::Refused };
        }
        first = first.or_else(|| Some(all_cells(&row, op, lines & whole)));
    }
    first.map_or(Mend::Nothing, Mend::First)
}

/// The lines of an op's row of which the request has all data cells.
fn whole_lines(row: &Row<'_>, op: &RowOp, slot: &Slot) -> u16 {
    let (stripe, parity) = (&row.stripe, row.parity);
    let line = |line: u16| RowOp { first: line, blocks: 1, ..*op };
    let is_whole = |op: &RowOp| {
        let last = op.array_offset(parity, stripe, row.data() - 1);
        slot.start <= op.array_offset(parity, stripe, 0) && last + op.len() <= slot.end
    };
    let lines = parity.row_bytes / line(0).len();
    (0..lines as u16).filter(|at| is_whole(&line(*at))).fold(0, |set, at| set | 1 << at)
}

/// An op of all data cells of the first of these lines that follow one another, as many as one batch of the journal takes.
fn all_cells(row: &Row<'_>, op: &RowOp, lines: u16) -> RowOp {
    let first = lines.trailing_zeros();
    let most = (row.parity.logged_blocks_max / row.cells() as u64).max(1);
    let blocks = u64::from((u32::from(lines) >> first).trailing_ones()).min(most);
    let (first, blocks) = (first as u16, blocks as u16);
    RowOp { first, blocks, cell: 0, cells: row.data() as u16, how: How::Full, logged: true, ..*op }
}

impl Shard {
    /// An op is in place: lines of which it has all data cells can be read from now on, whatever they were before.
    pub(super) fn note_mended(&mut self, index: u32, op: &RowOp) {
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(mirror) = layout.mirror() else { return };
        let Some(parity) = mirror.parity.as_deref().filter(|parity| !parity.node.lost.is_empty()) else { return };
        let is_all = usize::from(op.cells) == Row::new(mirror, op.row).data();
        if op.logged && (is_all || planted(Planted::PartMakesReadable)) {
            parity.node.lost.rewritten(op.row, op.lines());
        }
    }
}
