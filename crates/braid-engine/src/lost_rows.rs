//! Rows of an array with parity of which something cannot be read, until it is written again.
//!
//! A recovery lists them. While the array serves, lines only leave: whoever writes all cells of a line and has them in place
//! says so, on any shard, before that write is answered. The list on the disks follows later, written by the home of the
//! array's journal: until then the journal holds what was written.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use braid_format::journal::LostRow;

/// The rows, shared by all shards and the keeper.
#[derive(Debug, Default)]
pub struct LostRows {
    /// As they were when the array was started, ascending, each with the lines that are left of it.
    rows: Box<[(LostRow, AtomicU16)]>,
    /// Rows with lines left.
    left: AtomicU32,
    /// How often lines have left.
    changes: AtomicU64,
}

impl LostRows {
    /// These rows, ascending.
    pub fn new(rows: &[LostRow]) -> LostRows {
        let rows: Box<[_]> = rows.iter().map(|row| (*row, AtomicU16::new(row.lines))).collect();
        LostRows { left: AtomicU32::new(rows.len() as u32), rows, changes: AtomicU64::new(0) }
    }

    /// Whether all can be read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Lines of a row of which something cannot be read: bit *i* for line *i*.
    #[inline]
    pub fn lines(&self, row: u64) -> u16 {
        if self.is_empty() { 0 } else { self.of(row).map_or(0, |(_, lines)| lines.load(Ordering::Acquire)) }
    }

    /// Whether a data cell of a row cannot be read over any of these lines.
    pub fn covers(&self, row: u64, cell: u8, lines: u16) -> bool {
        let left = lines & self.lines(row);
        left != 0 && self.of(row).is_some_and(|(lost, _)| lost.covers(cell, left))
    }

    /// All cells of these lines of a row have been written, and are in place.
    pub fn rewritten(&self, row: u64, lines: u16) {
        let Some((_, left)) = self.of(row) else { return };
        let before = left.fetch_and(!lines, Ordering::AcqRel);
        if before & lines == 0 {
            return;
        }
        if before & !lines == 0 {
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// How often lines have left. Whoever asks for it first and then for the list, has a list with all these changes.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How many rows there were at first.
    pub fn capacity(&self) -> usize {
        self.rows.len()
    }

    /// Those that are left now, ascending.
    pub fn iter(&self) -> impl Iterator<Item = LostRow> {
        let left =
            |(row, lines): &(LostRow, AtomicU16)| LostRow::new(row.row, lines.load(Ordering::Acquire), row.cells());
        self.rows.iter().filter_map(left)
    }

    fn of(&self, row: u64) -> Option<&(LostRow, AtomicU16)> {
        let at = self.rows.binary_search_by_key(&row, |(lost, _)| lost.row).ok()?;
        self.rows.get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_leave_and_rows_with_the_last_of_them() {
        let rows = [LostRow::new(3, 0b111, &[0, 2]).unwrap(), LostRow::new(9, 1, &[1]).unwrap()];
        let lost = LostRows::new(&rows);
        assert!(lost.covers(3, 2, 0b100) && !lost.covers(3, 1, 0b100) && !lost.covers(4, 0, 1));
        lost.rewritten(3, 0b101);
        assert_eq!((lost.lines(3), lost.lines(9), lost.lines(4), lost.changes()), (0b10, 1, 0, 1));
        assert!(!lost.covers(3, 2, 0b101) && lost.covers(3, 2, 0b10));
        lost.rewritten(3, 0b101);
        assert_eq!(lost.changes(), 1, "they had left before");
        lost.rewritten(9, 0xffff);
        assert_eq!(lost.iter().collect::<Vec<_>>(), [LostRow::new(3, 0b10, &[0, 2]).unwrap()]);
        assert!(!lost.is_empty());
        lost.rewritten(3, 0b10);
        assert!(lost.is_empty() && lost.iter().next().is_none());
        assert_eq!((lost.changes(), lost.capacity()), (3, 2));
    }
}
