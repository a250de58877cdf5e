//! Lost stripes of an array with parity: those of which some blocks cannot be read until they are rewritten.
//!
//! Recovery lists them: the lost data cells, and the lost lines of each. Their parity matches zeros there, so that
//! everything else of the stripe is read and written as usual. While the array serves, lines are only removed: a write
//! that has a line of a lost cell in place, logged with its parity, removes it, on any shard, before it is answered.
//! Each block is removed by itself, so that reported ranges can be rewritten in any order and in pieces. The list on
//! the disks follows later, written by the home of the array's journal: until then the journal holds what was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use braid_format::MEMBERS_MAX;
use braid_format::journal::{LOST_CELLS_MAX, LostStripe};
use braid_geometry::{BLOCK_BYTES, Geometry};

/// A data cell of a stripe, with its lost lines.
#[derive(Debug)]
struct LostCell {
    stripe: u64,
    cell: u8,
    lines: AtomicU16,
}

/// The lost stripes, shared by all shards and the reconciler.
#[derive(Debug, Default)]
pub struct LostStripes {
    /// The cells as they were when the array was started, ascending by stripe and cell, each with its remaining lines.
    cells: Box<[LostCell]>,
    /// Number of cells with remaining lines.
    left: AtomicU32,
    /// Number of removals of lines.
    changes: AtomicU64,
}

impl LostStripes {
    /// Creates the list of these stripes, given in any order.
    pub fn new(stripes: &[LostStripe]) -> LostStripes {
        let cell = |(stripe, cell, lines)| LostCell { stripe, cell, lines: AtomicU16::new(lines) };
        let cells: Box<[LostCell]> = cells_of(stripes).into_iter().map(cell).collect();
        LostStripes { left: AtomicU32::new(cells.len() as u32), cells, changes: AtomicU64::new(0) }
    }

    /// Returns whether everything can be read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Returns the lines of a stripe of which some block cannot be read: bit *i* for line *i*.
    #[inline]
    pub fn lines(&self, stripe: u64) -> u16 {
        if self.is_empty() {
            0
        } else {
            self.of(stripe).iter().fold(0, |all, of| all | of.lines.load(Ordering::Acquire))
        }
    }

    /// Returns whether a data cell of a stripe cannot be read over any of these lines.
    pub fn covers(&self, stripe: u64, cell: u8, lines: u16) -> bool {
        let of = |of: &LostCell| of.cell == cell && of.lines.load(Ordering::Acquire) & lines != 0;
        !self.is_empty() && self.of(stripe).iter().any(of)
    }

    /// Removes these lines of some data cells of a stripe: they have been written in place.
    pub fn remove(&self, stripe: u64, cells: std::ops::Range<u8>, lines: u16) {
        for of in self.of(stripe).iter().filter(|of| cells.contains(&of.cell)) {
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

    /// Returns the number of removals. A list that is read after this number includes all of them.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the initial number of cells: the list may need as many entries, if the lines of each cell are removed in
    /// different orders.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Returns the remaining lost stripes, ascending. A stripe is returned more than once if its cells have lost
    /// different lines.
    pub fn iter(&self) -> impl Iterator<Item = LostStripe> {
        let mut all = Vec::with_capacity(self.cells.len());
        self.list(&mut all);
        all.into_iter()
    }

    /// Appends the remaining lost stripes to a list that has room for [`LostStripes::capacity`] more.
    pub fn list(&self, out: &mut Vec<LostStripe>) {
        // Other shards remove lines meanwhile: each cell is read once.
        let mut now = [(0, 0, 0); MEMBERS_MAX];
        for of_stripe in self.cells.chunk_by(|a, b| a.stripe == b.stripe) {
            let now = &mut now[..of_stripe.len().min(MEMBERS_MAX)];
            for (now, of) in now.iter_mut().zip(of_stripe) {
                *now = (of.stripe, of.cell, of.lines.load(Ordering::Acquire));
            }
            list_stripe(now, out);
        }
    }

    fn of(&self, stripe: u64) -> &[LostCell] {
        let from = self.cells.partition_point(|of| of.stripe < stripe);
        let to = from + self.cells[from..].partition_point(|of| of.stripe == stripe);
        &self.cells[from..to]
    }
}

/// A view of the 4 KiB lines of stripes that cannot be read until they are rewritten.
#[derive(Clone, Debug)]
pub struct UnreadableBlocks {
    lost: Arc<LostStripes>,
    stripe_bytes: u64,
}

impl UnreadableBlocks {
    /// Creates a view of these stripes. The journal's unit is `stripe_bytes` high.
    pub fn new(lost: Arc<LostStripes>, stripe_bytes: u64) -> UnreadableBlocks {
        UnreadableBlocks { lost, stripe_bytes }
    }

    /// Whether everything can be read.
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    /// Returns the unreadable ranges of the array, as first byte and bytes; some may touch. Each block becomes readable
    /// as soon as it is written.
    pub fn ranges(&self, geometry: &Geometry) -> Vec<(u64, u64)> {
        let of_stripe = |lost: LostStripe| {
            let per_stripe = geometry.spec().chunk_bytes / self.stripe_bytes;
            let stripe = geometry.stripe(lost.stripe / per_stripe)?;
            let first = stripe.array_start + lost.stripe % per_stripe * self.stripe_bytes;
            let chunk_bytes = stripe.chunk_bytes;
            let lines = (0..u64::from(u16::BITS)).filter(move |line| lost.lines & (1 << line) != 0);
            let of_line = move |line| {
                let at = first + line * BLOCK_BYTES;
                let of_cell = move |cell: &u8| (at + u64::from(*cell) * chunk_bytes, BLOCK_BYTES);
                lost.cells().iter().map(of_cell).collect::<Vec<_>>()
            };
            Some(lines.flat_map(of_line))
        };
        self.lost.iter().filter_map(of_stripe).flatten().collect()
    }
}

/// Returns the cells of stripes as stripe, data cell and lines, ascending; each cell once.
pub fn cells_of(stripes: &[LostStripe]) -> Vec<(u64, u8, u16)> {
    let mut cells: Vec<(u64, u8, u16)> = stripes
        .iter()
        .flat_map(|stripe| stripe.cells().iter().map(|cell| (stripe.stripe, *cell, stripe.lines)))
        .collect();
    cells.sort_unstable();
    cells.dedup_by(|again, first| {
        let same = (again.0, again.1) == (first.0, first.1);
        first.2 |= if same { again.2 } else { 0 };
        same
    });
    cells
}

/// Returns cells as stripes: ascending, with cells of a stripe with the same lines together. `cells`: ascending.
pub fn stripes_of(cells: &[(u64, u8, u16)]) -> Vec<LostStripe> {
    let mut stripes = Vec::new();
    cells.chunk_by(|a, b| a.0 == b.0).for_each(|of_stripe| list_stripe(of_stripe, &mut stripes));
    stripes
}

/// Appends the lost cells of one stripe to a list.
fn list_stripe(of_stripe: &[(u64, u8, u16)], out: &mut Vec<LostStripe>) {
    for (at, (stripe, _, lines)) in of_stripe.iter().enumerate() {
        if of_stripe[..at].iter().any(|before| before.2 == *lines) {
            continue;
        }
        let mut alike = of_stripe[at..].iter().filter(|of| of.2 == *lines).map(|of| of.1);
        loop {
            let mut cells = [0; LOST_CELLS_MAX];
            let count = cells.iter_mut().zip(&mut alike).map(|(to, cell)| *to = cell).count();
            if count == 0 {
                break;
            }
            out.extend(LostStripe::new(*stripe, *lines, &cells[..count]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(stripe: u64, lines: u16, cells: &[u8]) -> LostStripe {
        LostStripe::new(stripe, lines, cells).unwrap()
    }

    #[test]
    fn lines_are_removed_and_stripes_with_their_last_line() {
        let stripes = LostStripes::new(&[lost(3, 0b111, &[0, 2]), lost(9, 1, &[1])]);
        assert!(stripes.covers(3, 2, 0b100) && !stripes.covers(3, 1, 0b100) && !stripes.covers(4, 0, 1));
        stripes.remove(3, 0..3, 0b101);
        assert_eq!((stripes.lines(3), stripes.lines(9), stripes.lines(4), stripes.changes()), (0b10, 1, 0, 2));
        assert!(!stripes.covers(3, 2, 0b101) && stripes.covers(3, 2, 0b10));
        stripes.remove(3, 0..3, 0b101);
        assert_eq!(stripes.changes(), 2, "they had left before");
        stripes.remove(9, 0..3, 0xffff);
        assert_eq!(stripes.iter().collect::<Vec<_>>(), [lost(3, 0b10, &[0, 2])]);
        assert!(!stripes.is_empty());
        stripes.remove(3, 0..3, 0b10);
        assert!(stripes.is_empty() && stripes.iter().next().is_none());
        assert_eq!((stripes.changes(), stripes.capacity()), (5, 3));
    }

    #[test]
    fn each_cell_is_removed_by_itself() {
        let stripes = LostStripes::new(&[lost(3, 0b111, &[0, 2]), lost(4, 0b11, &[1])]);
        stripes.remove(3, 1..2, 0b111);
        assert_eq!((stripes.lines(3), stripes.changes()), (0b111, 0), "a cell that can be read");
        stripes.remove(3, 2..3, 0b001);
        assert!(!stripes.covers(3, 2, 0b001) && stripes.covers(3, 0, 0b001) && stripes.lines(3) == 0b111);
        let left: Vec<LostStripe> = stripes.iter().collect();
        assert_eq!(left, [lost(3, 0b111, &[0]), lost(3, 0b110, &[2]), lost(4, 0b11, &[1])]);
        // As a start reads it.
        let again = LostStripes::new(&left);
        assert_eq!(again.iter().collect::<Vec<_>>(), left);
        stripes.remove(3, 0..1, 0b001);
        assert_eq!(stripes.iter().next(), Some(lost(3, 0b110, &[0, 2])), "together again");
        assert_eq!(cells_of(&[lost(1, 0b1, &[4]), lost(1, 0b100, &[3, 4])]), [(1, 3, 0b100), (1, 4, 0b101)]);
    }
}
