//! Levels with parity in a layout: rows, and how a request is cut into them.
//!
//! A *row* is a stripe cut into equal heights: what is locked, marked and logged at a time. An [`RowOp`] is what one request
//! does to one row: all blocks between two heights, of neighbouring data cells. Cells are counted in the order of the
//! coefficients: data first, then P, then Q.

use std::sync::Arc;

use braid_format::journal::stripe_bytes;
use braid_format::{MemberId, Uuid};
use braid_geometry::{BLOCK_BYTES, Geometry, Stripe};

use crate::io::LeafId;
use crate::lost_rows::LostRows;
use crate::marks::Marks;

/// Ops of one step of a request.
pub(crate) const OPS_MAX: usize = 16;

/// Most blocks that one op puts into the journal: with the header a batch is one leaf I/O.
pub(crate) const LOGGED_BLOCKS_MAX: u64 = 255;

/// What an array with parity needs beside its members: the place of its journal.
#[derive(Clone, Debug)]
pub struct ParityNode {
    /// The array's identity, which the journal's batches bear.
    pub array: Uuid,
    /// The run whose batches count.
    pub run: u64,
    /// Where the journal's ring begins on each member's disk, in bytes, in the order of the members.
    pub rings: Vec<u64>,
    /// Blocks of 4096 bytes in the ring, the same on all.
    pub ring_blocks: u64,
    /// Blocks of the smallest ring that it may have to do with while the array serves: what is cut for one may move to another.
    pub least_ring_blocks: u64,
    /// The generation of the journal's head that is on the members when the run begins.
    pub generation: u64,
    /// Rows of which something cannot be read until all of it is written again.
    pub lost: Arc<LostRows>,
    /// Where the ring is.
    pub ring_on: RingPlace,
    /// Marks that do not count any more.
    pub marks: Arc<Marks>,
}

/// Where the ring of the journal is in a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingPlace {
    /// On the members.
    Members,
    /// On a disk of its own.
    Disk(RingDisk),
    /// Nowhere: it is about to move. Nothing is logged; what was, is put in place and made durable there.
    Moving,
}

/// The disk of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingDisk {
    /// The disk.
    pub leaf: LeafId,
    /// Its number in the table of members, beyond those of members.
    pub role: u16,
    /// Where the ring begins, in bytes.
    pub ring: u64,
    /// Its identity, for the head.
    pub id: MemberId,
    /// Blocks of the ring that all members have room for, for the head.
    pub member_blocks: u16,
}

impl ParityNode {
    /// The disk that the ring is on, where that is no member.
    pub fn ring_disk(&self) -> Option<&RingDisk> {
        if let RingPlace::Disk(disk) = &self.ring_on { Some(disk) } else { None }
    }
}

/// The same, compiled.
#[derive(Debug)]
pub(crate) struct Parity {
    pub node: ParityNode,
    /// Parities of each stripe: 1 or 2.
    pub count: usize,
    pub row_bytes: u64,
    /// Rows of each stripe.
    pub per_stripe: u64,
    /// Most blocks that one op puts into the journal, unless a single block of each cell is more.
    pub logged_blocks_max: u64,
}

impl Parity {
    pub fn new(geometry: &Geometry, node: &ParityNode) -> Parity {
        let chunk = geometry.spec().chunk_bytes;
        let height = u64::from(stripe_bytes(chunk as u32));
        let count = usize::from(geometry.spec().level.parity());
        // Several batches are to have room in the ring.
        let logged_blocks_max = LOGGED_BLOCKS_MAX.min(node.least_ring_blocks / 3);
        Parity { node: node.clone(), count, row_bytes: height, per_stripe: chunk / height, logged_blocks_max }
    }

    /// Whether the journal has no room for what an op writes: it can be marked alone.
    pub fn is_too_large(&self, op: &RowOp) -> bool {
        let blocks = (u64::from(op.cells) + self.count as u64) * u64::from(op.blocks);
        blocks > self.logged_blocks_max && op.blocks > 1
    }

    /// Of a data cell of a stripe, `column` bytes below its top: whether it can be read there, and up to which column that holds.
    pub fn lost_at(&self, stripe: &Stripe<'_>, cell: usize, column: u64) -> (bool, u64) {
        let row = stripe.number * self.per_stripe + column / self.row_bytes;
        let row_end = (column / self.row_bytes + 1) * self.row_bytes;
        if self.node.lost.lines(row) == 0 {
            return (false, row_end);
        }
        let line = column % self.row_bytes / BLOCK_BYTES;
        let lost = self.node.lost.covers(row, cell as u8, 1 << line);
        (lost, column - column % BLOCK_BYTES + BLOCK_BYTES)
    }

    /// The stripe of a row, and where the row begins in each of its chunks.
    pub fn stripe_of_row<'a>(&self, geometry: &'a Geometry, row: u64) -> (Stripe<'a>, u64) {
        let stripe = geometry.stripe(row / self.per_stripe).expect("a row of the array");
        (stripe, row % self.per_stripe * self.row_bytes)
    }
}

impl Parity {
    /// What of the range table those hold at least who write something of these bytes of the array: lines of a cell, or all rows of stripes.
    pub fn written_under(&self, geometry: &Geometry, start: u64, end: u64) -> (u64, u64) {
        let (first, last) = match (geometry.stripe_of(start), geometry.stripe_of(end.max(start + 1) - 1)) {
            (Some(first), Some(last)) => (first, last),
            _ => return (0, 0),
        };
        let (from, to) = (start - first.array_start, end.max(start + 1) - 1 - last.array_start);
        let of_one = first.number == last.number && from / first.chunk_bytes == to / first.chunk_bytes;
        if !of_one {
            return (row_locked(first.number * self.per_stripe).0, row_locked((last.number + 1) * self.per_stripe).0);
        }
        let line = |at: u64| {
            let at = at % first.chunk_bytes;
            let (row, _) = row_locked(first.number * self.per_stripe + at / self.row_bytes);
            row + at % self.row_bytes / BLOCK_BYTES * BLOCK_BYTES
        };
        (line(from), line(to) + BLOCK_BYTES)
    }
}

/// What of the range table a row is: a block for each of its lines, at most 16, so that a row is one word of the table.
pub(crate) fn row_locked(row: u64) -> (u64, u64) {
    const ROW_SHIFT: u32 = 16;
    (row << ROW_SHIFT, (row + 1) << ROW_SHIFT)
}

/// What must be read before the parity of an op is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// Nothing: all data cells are written.
    Full,
    /// The data that is overwritten, and the parities.
    Modify,
    /// The data that is not overwritten.
    Reconstruct,
    /// Every cell that can be read: one that is not overwritten cannot.
    Recover,
}

/// What one request does to one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowOp {
    pub row: u64,
    /// First block within the row's height, and blocks.
    pub first: u16,
    pub blocks: u16,
    /// First data cell, and how many.
    pub cell: u16,
    pub cells: u16,
    pub how: How,
    /// Its data go into the journal; else it is only marked there.
    pub logged: bool,
    /// The batch of the journal that has it; 0: none yet.
    pub sequence: u64,
    /// First page of its scratch memory.
    pub page: u32,
    /// It is being written in place, or is.
    pub submitted: bool,
    /// It is in place.
    pub done: bool,
}

impl RowOp {
    pub const NONE: RowOp = RowOp {
        row: 0,
        first: 0,
        blocks: 0,
        cell: 0,
        cells: 0,
        how: How::Full,
        logged: false,
        sequence: 0,
        page: 0,
        submitted: false,
        done: false,
    };

    /// Bytes of each of its cells.
    pub fn len(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Its lines: bit *i* for block *i* of the row's height.
    pub fn lines(&self) -> u16 {
        (((1u32 << self.blocks) - 1) << self.first) as u16
    }

    /// What of the range table its lines are.
    pub fn locked(&self) -> (u64, u64) {
        let (start, _) = row_locked(self.row);
        let first = start + u64::from(self.first) * BLOCK_BYTES;
        (first, first + self.len())
    }

    /// Whether it covers this data cell.
    pub fn covers(&self, cell: usize) -> bool {
        (usize::from(self.cell)..usize::from(self.cell + self.cells)).contains(&cell)
    }

    /// Where it begins in each chunk of its stripe.
    pub fn column(&self, parity: &Parity) -> u64 {
        self.row % parity.per_stripe * parity.row_bytes + u64::from(self.first) * BLOCK_BYTES
    }

    /// Where its part of a data cell begins in the array.
    pub fn array_offset(&self, parity: &Parity, stripe: &Stripe<'_>, cell: usize) -> u64 {
        stripe.array_start + cell as u64 * stripe.chunk_bytes + self.column(parity)
    }
}

/// Cuts `[start, end)` of the array into ops, as many as there is room for. How many there are, and up to which byte they
/// cover everything. Both ends are multiples of 4096. `marks`: rows that are covered stay whole, as a mark is enough for them,
/// also where the journal would have no room for their data.
pub(crate) fn cut(
    geometry: &Geometry,
    parity: &Parity,
    marks: bool,
    start: u64,
    end: u64,
    ops: &mut [RowOp; OPS_MAX],
) -> (usize, u64) {
    let (mut count, mut at) = (0, start);
    while at < end {
        let stripe = geometry.stripe_of(at).expect("inside the array");
        let data = stripe.data_chunks() as u64 * stripe.chunk_bytes;
        let mut part = Part { from: at - stripe.array_start, to: (end - stripe.array_start).min(data) };
        let mut reached = cut_stripe(&stripe, parity, marks, part, ops, count);
        if reached.is_err() && count == 0 && part.first(&stripe) != part.last(&stripe) {
            // Too much of it for one step: the first cell alone.
            part.to = (part.first(&stripe) + 1) * stripe.chunk_bytes;
            reached = cut_stripe(&stripe, parity, marks, part, ops, count);
        }
        match reached {
            Ok(ops) => {
                count = ops;
                at = stripe.array_start + part.to;
            }
            // Of a single cell whatever had room.
            Err((ops, to)) if count == 0 => return (ops, stripe.array_start + to),
            Err(_) => break,
        }
    }
    (count, at)
}

/// A part of a stripe's data, in bytes from its start.
#[derive(Clone, Copy)]
struct Part {
    from: u64,
    to: u64,
}

impl Part {
    fn first(&self, stripe: &Stripe<'_>) -> u64 {
        self.from / stripe.chunk_bytes
    }

    fn last(&self, stripe: &Stripe<'_>) -> u64 {
        (self.to - 1) / stripe.chunk_bytes
    }
}

/// Appends the ops of a part of one stripe. `Err`: there was no room for all; how many there are now, and, if the part lies in one
/// cell, up to where they reach.
fn cut_stripe(
    stripe: &Stripe<'_>,
    parity: &Parity,
    marks: bool,
    part: Part,
    ops: &mut [RowOp; OPS_MAX],
    mut count: usize,
) -> Result<usize, (usize, u64)> {
    let chunk = stripe.chunk_bytes;
    let (first, last) = (part.first(stripe), part.last(stripe));
    // Where the first cell begins to be covered, and where the last one ends to be.
    let (from, to) = (part.from - first * chunk, part.to - last * chunk);
    let (mut at, end) = if first == last { (from, to) } else { (0, chunk) };
    let width = (stripe.data_chunks() + parity.count) as u64;
    let height_max = (parity.logged_blocks_max / width).max(1) * BLOCK_BYTES;
    while at < end {
        let row_end = (at / parity.row_bytes + 1) * parity.row_bytes;
        // All its data cells are covered, from its top to its end.
        let whole = first == 0 && last + 1 == stripe.data_chunks() as u64 && from <= at && (last == 0 || row_end <= to);
        let whole = marks && whole && at % parity.row_bytes == 0 && row_end <= end;
        let height_max = if whole { parity.row_bytes } else { height_max };
        let mut next = row_end.min(at + height_max).min(end);
        for edge in [from, to] {
            if at < edge {
                next = next.min(edge);
            }
        }
        let low = if first == last || at >= from { first } else { first + 1 };
        let high = if first == last || next <= to { last } else { last - 1 };
        if low <= high {
            if count == OPS_MAX {
                return Err((count, first * chunk + at));
            }
            let row = stripe.number * parity.per_stripe + at / parity.row_bytes;
            let first_block = at % parity.row_bytes / BLOCK_BYTES;
            ops[count] = RowOp {
                row,
                first: first_block as u16,
                blocks: ((next - at) / BLOCK_BYTES) as u16,
                cell: low as u16,
                cells: (high - low + 1) as u16,
                ..RowOp::NONE
            };
            count += 1;
        }
        at = next;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use braid_geometry::{Geometry, Level, Spec};

    use super::*;

    fn parity(geometry: &Geometry) -> Parity {
        let node = ParityNode {
            array: Uuid::nil(),
            run: 1,
            rings: Vec::new(),
            ring_blocks: 2048,
            least_ring_blocks: 2048,
            ring_on: RingPlace::Members,
            generation: 1,
            lost: Arc::default(),
            marks: Arc::default(),
        };
        Parity::new(geometry, &node)
    }

    /// Every block of a request is in exactly one op, at its own place, and ops of one row keep within it.
    #[test]
    fn every_block_is_in_one_op() {
        let mut steps = 0;
        for (level, chunk_blocks, sizes) in [
            (Level::Raid5, 1, &[4, 4, 4][..]),
            (Level::Raid5, 2, &[6, 10, 10]),
            (Level::Raid5, 16, &[32, 48, 48, 64]),
            (Level::Raid5, 24, &[48, 48]),
            (Level::Raid6, 4, &[12, 12, 12, 20]),
            (Level::Raid6, 40, &[80; 6]),
            (Level::Raid6, 16, &[16; 40]),
        ] {
            let sizes: Vec<u64> = sizes.iter().map(|blocks| blocks * BLOCK_BYTES).collect();
            let spec = Spec { chunk_bytes: chunk_blocks * BLOCK_BYTES, ..Spec::new(level) };
            let geometry = Geometry::plan(spec, &sizes).unwrap();
            let parity = parity(&geometry);
            let blocks = geometry.size_bytes() / BLOCK_BYTES;
            for start in 0..blocks.min(60) {
                let ends = [start + 1, start + 2, start + 7, start + 33, start + 200, blocks];
                for (end, marks) in ends.into_iter().flat_map(|end| [(end, false), (end, true)]) {
                    let (start, end) = (start * BLOCK_BYTES, end.min(blocks) * BLOCK_BYTES);
                    let mut at = start;
                    while at < end {
                        let mut ops = [RowOp::NONE; OPS_MAX];
                        let (count, to) = cut(&geometry, &parity, marks, at, end, &mut ops);
                        assert!(at < to && to <= end, "{at}..{end} came to {to}");
                        let mut seen = BTreeMap::new();
                        for op in &ops[..count] {
                            let (stripe, _) = parity.stripe_of_row(&geometry, op.row);
                            assert!((u64::from(op.first) + u64::from(op.blocks)) * BLOCK_BYTES <= parity.row_bytes);
                            let width = stripe.data_chunks() + parity.count;
                            let whole = op.len() == parity.row_bytes && usize::from(op.cells) == stripe.data_chunks();
                            let small = op.blocks == 1 || u64::from(op.blocks) * width as u64 <= LOGGED_BLOCKS_MAX;
                            assert!(small || marks && whole);
                            for cell in (0..stripe.data_chunks()).filter(|cell| op.covers(*cell)) {
                                let first = op.array_offset(&parity, &stripe, cell);
                                for block in 0..u64::from(op.blocks) {
                                    let offset = first + block * BLOCK_BYTES;
                                    assert!(seen.insert(offset, op.row).is_none(), "twice");
                                    let place = geometry.locate(offset);
                                    assert_eq!(place.member, stripe.data(cell));
                                    let column = op.column(&parity) + block * BLOCK_BYTES;
                                    assert_eq!(place.member_offset, stripe.member_offset + column);
                                }
                            }
                        }
                        let expected: Vec<u64> = (at..to).step_by(BLOCK_BYTES as usize).collect();
                        assert_eq!(seen.keys().copied().collect::<Vec<_>>(), expected);
                        (at, steps) = (to, steps + 1);
                    }
                }
            }
        }
        assert!(steps > 1000, "{steps} steps");
    }

    /// What covers a whole stripe is one op with all its cells, where a stripe is one row.
    #[test]
    fn a_whole_stripe_is_one_op() {
        let geometry = Geometry::plan(Spec::new(Level::Raid5), &[1 << 20; 4]).unwrap();
        let parity = parity(&geometry);
        let mut ops = [RowOp::NONE; OPS_MAX];
        let stripe = 3 * (64 << 10);
        let (count, to) = cut(&geometry, &parity, true, stripe, 3 * stripe, &mut ops);
        assert_eq!((count, to), (2, 3 * stripe));
        assert!(ops[..2].iter().all(|op| (op.first, op.blocks, op.cell, op.cells) == (0, 16, 0, 3)));
        let (count, _) = cut(&geometry, &parity, true, 4096, stripe, &mut ops);
        // The first block of the first cell is missing: the others of its height, and the rest.
        assert_eq!(count, 2);
        assert_eq!((ops[0].first, ops[0].blocks, ops[0].cell, ops[0].cells), (0, 1, 1, 2));
        assert_eq!((ops[1].first, ops[1].blocks, ops[1].cell, ops[1].cells), (1, 15, 0, 3));
    }
}
