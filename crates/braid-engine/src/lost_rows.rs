//! Rows of an array with parity of which something cannot be read, until it is written again.
//!
//! A recovery lists them: the data cells that are lost, and over which lines. Their parity fits zeros there, so that all else of the row is
//! read and written as ever. While the array serves, lines only leave: a write that has a line of a lost cell in place, logged with its
//! parity, says so, on any shard, before it is answered. Each block leaves by itself, so that ranges that are named to somebody can be
//! written in whatever order and pieces. The list on the disks follows later, written by the home of the array's journal: until then the
//! journal holds what was written.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use braid_format::MEMBERS_MAX;
use braid_format::journal::{LOST_CELLS_MAX, LostStripe};

/// A data cell of a row, with the lines of it that are lost.
#[derive(Debug)]
struct LostCell {
    row: u64,
    cell: u8,
    lines: AtomicU16,
}

/// The rows, shared by all shards and the keeper.
#[derive(Debug, Default)]
pub struct LostRows {
    /// As they were when the array was started, ascending by row and cell, each with the lines that are left of it.
    cells: Box<[LostCell]>,
    /// Cells with lines left.
    left: AtomicU32,
    /// How often lines have left.
    changes: AtomicU64,
}

impl LostRows {
    /// These rows, in any order.
    pub fn new(rows: &[LostStripe]) -> LostRows {
        let cell = |(row, cell, lines)| LostCell { row, cell, lines: AtomicU16::new(lines) };
        let cells: Box<[LostCell]> = cells_of(rows).into_iter().map(cell).collect();
        LostRows { left: AtomicU32::new(cells.len() as u32), cells, changes: AtomicU64::new(0) }
    }

    /// Whether all can be read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Lines of a row of which something cannot be read: bit *i* for line *i*.
    #[inline]
    pub fn lines(&self, row: u64) -> u16 {
        if self.is_empty() { 0 } else { self.of(row).iter().fold(0, |all, of| all | of.lines.load(Ordering::Acquire)) }
    }

    /// Whether a data cell of a row cannot be read over any of these lines.
    pub fn covers(&self, row: u64, cell: u8, lines: u16) -> bool {
        let of = |of: &LostCell| of.cell == cell && of.lines.load(Ordering::Acquire) & lines != 0;
        !self.is_empty() && self.of(row).iter().any(of)
    }

    /// These lines of some data cells of a row have been written, and are in place.
    pub fn rewritten(&self, row: u64, cells: std::ops::Range<u8>, lines: u16) {
        for of in self.of(row).iter().filter(|of| cells.contains(&of.cell)) {
            let before = of.lines.fetch_and(!lines, Ordering::AcqRel);
            if before & lines == 0 {
                continue;
            }
            if before & !lines == 0 {
                self.left.fetch_sub(1, Ordering::AcqRel);
            }
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// How often lines have left. Whoever asks for it first and then for the list, has a list with all these changes.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How many cells there were at first: as many entries the list may need, where the lines of each leave in their own order.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Those that are left now, ascending. A row comes more than once where its cells have lost different lines.
    pub fn iter(&self) -> impl Iterator<Item = LostStripe> {
        let mut all = Vec::with_capacity(self.cells.len());
        self.list(&mut all);
        all.into_iter()
    }

    /// Puts the same into a list that has room for [`LostRows::capacity`] more.
    pub fn list(&self, out: &mut Vec<LostStripe>) {
        // Others take lines away meanwhile: each cell is looked at once.
        let mut now = [(0, 0, 0); MEMBERS_MAX];
        for of_row in self.cells.chunk_by(|a, b| a.row == b.row) {
            let now = &mut now[..of_row.len().min(MEMBERS_MAX)];
            for (now, of) in now.iter_mut().zip(of_row) {
                *now = (of.row, of.cell, of.lines.load(Ordering::Acquire));
            }
            list_row(now, out);
        }
    }

    fn of(&self, row: u64) -> &[LostCell] {
        let from = self.cells.partition_point(|of| of.row < row);
        let to = from + self.cells[from..].partition_point(|of| of.row == row);
        &self.cells[from..to]
    }
}

/// Rows as row, data cell and lines, ascending; each cell once.
pub(crate) fn cells_of(rows: &[LostStripe]) -> Vec<(u64, u8, u16)> {
    let mut cells: Vec<(u64, u8, u16)> =
        rows.iter().flat_map(|row| row.cells().iter().map(|cell| (row.stripe, *cell, row.lines))).collect();
    cells.sort_unstable();
    cells.dedup_by(|again, first| {
        let same = (again.0, again.1) == (first.0, first.1);
        first.2 |= if same { again.2 } else { 0 };
        same
    });
    cells
}

/// The same as rows: ascending, and cells of a row with the same lines together. `cells`: ascending.
pub(crate) fn rows_of(cells: &[(u64, u8, u16)]) -> Vec<LostStripe> {
    let mut rows = Vec::new();
    cells.chunk_by(|a, b| a.0 == b.0).for_each(|of_row| list_row(of_row, &mut rows));
    rows
}

/// Puts what is lost of one row into a list.
fn list_row(of_row: &[(u64, u8, u16)], out: &mut Vec<LostStripe>) {
    for (at, (row, _, lines)) in of_row.iter().enumerate() {
        if of_row[..at].iter().any(|before| before.2 == *lines) {
            continue;
        }
        let mut alike = of_row[at..].iter().filter(|of| of.2 == *lines).map(|of| of.1);
        loop {
            let mut cells = [0; LOST_CELLS_MAX];
            let count = cells.iter_mut().zip(&mut alike).map(|(to, cell)| *to = cell).count();
            if count == 0 {
                break;
            }
            out.extend(LostStripe::new(*row, *lines, &cells[..count]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(row: u64, lines: u16, cells: &[u8]) -> LostStripe {
        LostStripe::new(row, lines, cells).unwrap()
    }

    #[test]
    fn lines_leave_and_rows_with_the_last_of_them() {
        let rows = LostRows::new(&[lost(3, 0b111, &[0, 2]), lost(9, 1, &[1])]);
        assert!(rows.covers(3, 2, 0b100) && !rows.covers(3, 1, 0b100) && !rows.covers(4, 0, 1));
        rows.rewritten(3, 0..3, 0b101);
        assert_eq!((rows.lines(3), rows.lines(9), rows.lines(4), rows.changes()), (0b10, 1, 0, 2));
        assert!(!rows.covers(3, 2, 0b101) && rows.covers(3, 2, 0b10));
        rows.rewritten(3, 0..3, 0b101);
        assert_eq!(rows.changes(), 2, "they had left before");
        rows.rewritten(9, 0..3, 0xffff);
        assert_eq!(rows.iter().collect::<Vec<_>>(), [lost(3, 0b10, &[0, 2])]);
        assert!(!rows.is_empty());
        rows.rewritten(3, 0..3, 0b10);
        assert!(rows.is_empty() && rows.iter().next().is_none());
        assert_eq!((rows.changes(), rows.capacity()), (5, 3));
    }

    #[test]
    fn each_cell_leaves_by_itself() {
        let rows = LostRows::new(&[lost(3, 0b111, &[0, 2]), lost(4, 0b11, &[1])]);
        rows.rewritten(3, 1..2, 0b111);
        assert_eq!((rows.lines(3), rows.changes()), (0b111, 0), "a cell that can be read");
        rows.rewritten(3, 2..3, 0b001);
        assert!(!rows.covers(3, 2, 0b001) && rows.covers(3, 0, 0b001) && rows.lines(3) == 0b111);
        let left: Vec<LostStripe> = rows.iter().collect();
        assert_eq!(left, [lost(3, 0b111, &[0]), lost(3, 0b110, &[2]), lost(4, 0b11, &[1])]);
        // As a start finds it.
        let again = LostRows::new(&left);
        assert_eq!(again.iter().collect::<Vec<_>>(), left);
        rows.rewritten(3, 0..1, 0b001);
        assert_eq!(rows.iter().next(), Some(lost(3, 0b110, &[0, 2])), "together again");
        assert_eq!(cells_of(&[lost(1, 0b1, &[4]), lost(1, 0b100, &[3, 4])]), [(1, 3, 0b100), (1, 4, 0b101)]);
    }
}
