//! Levels with parity in a layout: stripes, and how a request is cut into ops on them.
//!
//! This module calls the journal's unit a *stripe*: a slice, at most 64 KiB high, of a stripe of the geometry.
//! Identifiers with `row` mean this unit. A *cell* is the part of a stripe in one chunk: of data, of P, or of Q. Cells
//! are counted in the order of the coefficients: data first, then P, then Q. A *line* is the blocks of all cells at one
//! height. Requests lock lines of a stripe; the journal marks a stripe, or logs a part of it. A [`StripeOp`] is what
//! one request does to one stripe: it changes all blocks between two heights, in neighbouring data cells.

use std::sync::Arc;

use braid_format::journal::stripe_bytes;
use braid_format::{MemberId, Uuid};
use braid_geometry::{BLOCK_BYTES, Geometry, Stripe};

use crate::io::LeafId;
use crate::lost_stripes::LostStripes;
use crate::marks::Marks;

/// Maximum number of ops of one step of a request.
pub(crate) const OPS_MAX: usize = 16;

/// Maximum number of blocks that one op logs in the journal: with the header a batch is one leaf I/O.
pub const LOGGED_BLOCKS_MAX: u64 = 255;

/// What an array with parity needs besides its members: the location of its journal.
#[derive(Clone, Debug)]
pub struct ParityNode {
    /// The array's identity, which the journal's batches contain.
    pub array: Uuid,
    /// The journal's run: only its batches count. A run begins when the journal is recovered at start, and when the
    /// ring moves.
    pub run: u64,
    /// The offset of the journal's ring on each member's disk, in bytes, in the order of the members.
    pub rings: Vec<u64>,
    /// Blocks of 4096 bytes in the ring, the same on all members.
    pub ring_blocks: u64,
    /// Blocks of the smallest ring that the array may use while it serves: an op that is cut for one ring may be logged
    /// in another.
    pub ring_blocks_min: u64,
    /// The generation of the journal's head that is on the members when the run begins.
    pub generation: u64,
    /// Lost stripes: some of their blocks cannot be read until they are rewritten.
    pub lost_stripes: Arc<LostStripes>,
    /// The location of the ring.
    pub ring_location: RingState,
    /// The retired marks.
    pub marks: Arc<Marks>,
}

/// The location of the journal's ring in a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingState {
    /// On the members.
    Members,
    /// On a disk of its own.
    Disk(RingDisk),
    /// Nowhere: the ring is about to move. Nothing is logged. Entries that were acknowledged are written in place and
    /// made durable there.
    Moving,
}

/// The disk of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingDisk {
    /// The disk.
    pub leaf: LeafId,
    /// Its index in the table of members, beyond those of members.
    pub role: u16,
    /// The offset of the ring, in bytes.
    pub ring: u64,
    /// Its identity, for the head.
    pub id: MemberId,
    /// Blocks of the ring that all members have room for, for the head.
    pub member_blocks: u16,
}

impl ParityNode {
    /// Returns the disk of the ring, if that is no member.
    pub fn ring_disk(&self) -> Option<&RingDisk> {
        if let RingState::Disk(disk) = &self.ring_location { Some(disk) } else { None }
    }
}

/// A [`ParityNode`], compiled.
#[derive(Debug)]
pub(crate) struct Parity {
    pub node: ParityNode,
    /// Number of parities of each stripe: 1 or 2.
    pub count: usize,
    /// Height of a stripe of the journal, in bytes.
    pub row_bytes: u64,
    /// Stripes of the journal in each stripe of the geometry.
    pub per_stripe: u64,
    /// Maximum number of blocks that one op logs in the journal, unless a single block of each cell is more.
    pub logged_blocks_max: u64,
}

impl Parity {
    pub fn new(geometry: &Geometry, node: &ParityNode) -> Parity {
        let chunk = geometry.spec().chunk_bytes;
        let height = u64::from(stripe_bytes(chunk as u32));
        let count = usize::from(geometry.spec().level.parity());
        // The ring must have room for several batches.
        let logged_blocks_max = LOGGED_BLOCKS_MAX.min(node.ring_blocks_min / 3);
        Parity { node: node.clone(), count, row_bytes: height, per_stripe: chunk / height, logged_blocks_max }
    }

    /// Returns whether the journal has no room for an op's data: it can only be marked.
    pub fn is_too_large(&self, op: &StripeOp) -> bool {
        let blocks = (u64::from(op.cells) + self.count as u64) * u64::from(op.blocks);
        blocks > self.logged_blocks_max && op.blocks > 1
    }

    /// Returns whether a data cell of a stripe of the geometry is lost at `column`, and up to which column that holds.
    /// Columns are in bytes from the top of the chunk.
    pub fn lost_at(&self, stripe: &Stripe<'_>, cell: usize, column: u64) -> (bool, u64) {
        let row = stripe.number * self.per_stripe + column / self.row_bytes;
        let row_end = (column / self.row_bytes + 1) * self.row_bytes;
        if self.node.lost_stripes.lines(row) == 0 {
            return (false, row_end);
        }
        let line = column % self.row_bytes / BLOCK_BYTES;
        let lost = self.node.lost_stripes.covers(row, cell as u8, 1 << line);
        (lost, column - column % BLOCK_BYTES + BLOCK_BYTES)
    }

    /// Returns the stripe of the geometry that contains a stripe of the journal, and the offset of the latter in each
    /// chunk.
    pub fn geometry_stripe_of<'a>(&self, geometry: &'a Geometry, row: u64) -> (Stripe<'a>, u64) {
        let stripe = geometry.stripe(row / self.per_stripe).expect("a stripe of the array");
        (stripe, row % self.per_stripe * self.row_bytes)
    }
}

impl Parity {
    /// Returns a range in the range table of which every write to `[start, end)` of the array holds a part: the lines
    /// of these bytes if they are in one chunk, else all lines of their stripes.
    pub fn written_under(&self, geometry: &Geometry, start: u64, end: u64) -> (u64, u64) {
        let (first, last) = match (geometry.stripe_of(start), geometry.stripe_of(end.max(start + 1) - 1)) {
            (Some(first), Some(last)) => (first, last),
            _ => return (0, 0),
        };
        let (from, to) = (start - first.array_start, end.max(start + 1) - 1 - last.array_start);
        let of_one = first.number == last.number && from / first.chunk_bytes == to / first.chunk_bytes;
        if !of_one {
            return (
                stripe_range(first.number * self.per_stripe).0,
                stripe_range((last.number + 1) * self.per_stripe).0,
            );
        }
        let line = |at: u64| {
            let at = at % first.chunk_bytes;
            let (row, _) = stripe_range(first.number * self.per_stripe + at / self.row_bytes);
            row + at % self.row_bytes / BLOCK_BYTES * BLOCK_BYTES
        };
        (line(from), line(to) + BLOCK_BYTES)
    }
}

/// Returns the range of a stripe in the range table: a block for each of its lines, at most 16, so that a stripe is one
/// word of the table.
pub(crate) fn stripe_range(row: u64) -> (u64, u64) {
    const ROW_SHIFT: u32 = 16;
    (row << ROW_SHIFT, (row + 1) << ROW_SHIFT)
}

/// What must be read to compute the parity of an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ParityMethod {
    /// Nothing: all data cells are written.
    Full,
    /// The data that is overwritten, and the parities (read-modify-write).
    Modify,
    /// The data that is not overwritten.
    Reconstruct,
    /// Every cell that can be read: a cell that is not overwritten cannot.
    Recover,
}

/// What one request does to one stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StripeOp {
    pub row: u64,
    /// First block within the stripe's height, and number of blocks.
    pub first: u16,
    pub blocks: u16,
    /// First data cell, and number of data cells.
    pub cell: u16,
    pub cells: u16,
    pub method: ParityMethod,
    /// Its data is logged in the journal; otherwise it is only marked there.
    pub logged: bool,
    /// The batch of the journal that holds its entry; 0 if there is none yet, or if the entry was reported as in place.
    pub sequence: u64,
    /// First page of its scratch memory.
    pub page: u32,
    /// Its write in place was submitted.
    pub submitted: bool,
    /// Its write in place has completed.
    pub done: bool,
}

impl StripeOp {
    pub const NONE: StripeOp = StripeOp {
        row: 0,
        first: 0,
        blocks: 0,
        cell: 0,
        cells: 0,
        method: ParityMethod::Full,
        logged: false,
        sequence: 0,
        page: 0,
        submitted: false,
        done: false,
    };

    /// Returns the bytes of each of its cells.
    pub fn len(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Returns its lines: bit *i* for block *i* of the stripe's height.
    pub fn lines(&self) -> u16 {
        (((1u32 << self.blocks) - 1) << self.first) as u16
    }

    /// Returns the range of its lines in the range table.
    pub fn locked(&self) -> (u64, u64) {
        let (start, _) = stripe_range(self.row);
        let first = start + u64::from(self.first) * BLOCK_BYTES;
        (first, first + self.len())
    }

    /// Returns whether it covers this data cell.
    pub fn covers(&self, cell: usize) -> bool {
        (usize::from(self.cell)..usize::from(self.cell + self.cells)).contains(&cell)
    }

    /// Returns its offset in each chunk of the geometry's stripe.
    pub fn column(&self, parity: &Parity) -> u64 {
        self.row % parity.per_stripe * parity.row_bytes + u64::from(self.first) * BLOCK_BYTES
    }

    /// Returns the array offset of its part of a data cell.
    pub fn array_offset(&self, parity: &Parity, stripe: &Stripe<'_>, cell: usize) -> u64 {
        stripe.array_start + cell as u64 * stripe.chunk_bytes + self.column(parity)
    }
}

/// Cuts `[start, end)` of the array, both multiples of 4096, into at most [`OPS_MAX`] ops. Returns the number of ops,
/// and the array offset up to which they cover the range without a gap. With `marks`, a stripe that is covered entirely
/// is one op even if the journal has no room for its data: a mark suffices for it.
pub(crate) fn cut(
    geometry: &Geometry,
    parity: &Parity,
    marks: bool,
    start: u64,
    end: u64,
    ops: &mut [StripeOp; OPS_MAX],
) -> (usize, u64) {
    let (mut count, mut at) = (0, start);
    while at < end {
        let stripe = geometry.stripe_of(at).expect("inside the array");
        let data = stripe.data_chunks() as u64 * stripe.chunk_bytes;
        let mut part = Part { from: at - stripe.array_start, to: (end - stripe.array_start).min(data) };
        let mut reached = cut_stripe(&stripe, parity, marks, part, ops, count);
        if reached.is_err() && count == 0 && part.first(&stripe) != part.last(&stripe) {
            // Too much for one step: the first cell alone.
            part.to = (part.first(&stripe) + 1) * stripe.chunk_bytes;
            reached = cut_stripe(&stripe, parity, marks, part, ops, count);
        }
        match reached {
            Ok(ops) => {
                count = ops;
                at = stripe.array_start + part.to;
            }
            // Of a single cell, as much as had room.
            Err((ops, to)) if count == 0 => return (ops, stripe.array_start + to),
            Err(_) => break,
        }
    }
    (count, at)
}

/// A part of the data of a stripe of the geometry, in bytes from its start.
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

/// Appends the ops of a part of one stripe of the geometry. `Err`: there was no room for all; the number of ops now,
/// and, if the part lies in one cell, the offset up to which they reach.
fn cut_stripe(
    stripe: &Stripe<'_>,
    parity: &Parity,
    marks: bool,
    part: Part,
    ops: &mut [StripeOp; OPS_MAX],
    mut count: usize,
) -> Result<usize, (usize, u64)> {
    let chunk = stripe.chunk_bytes;
    let (first, last) = (part.first(stripe), part.last(stripe));
    // The start of the covered part of the first cell, and the end of that of the last one.
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
            ops[count] = StripeOp {
                row,
                first: first_block as u16,
                blocks: ((next - at) / BLOCK_BYTES) as u16,
                cell: low as u16,
                cells: (high - low + 1) as u16,
                ..StripeOp::NONE
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
            ring_blocks_min: 2048,
            ring_location: RingState::Members,
            generation: 1,
            lost_stripes: Arc::default(),
            marks: Arc::default(),
        };
        Parity::new(geometry, &node)
    }

    /// Every block of a request is in exactly one op, at its own location, and ops of one stripe keep within it.
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
                        let mut ops = [StripeOp::NONE; OPS_MAX];
                        let (count, to) = cut(&geometry, &parity, marks, at, end, &mut ops);
                        assert!(at < to && to <= end, "{at}..{end} came to {to}");
                        let mut seen = BTreeMap::new();
                        for op in &ops[..count] {
                            let (stripe, _) = parity.geometry_stripe_of(&geometry, op.row);
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

    /// A request that covers a whole stripe of the geometry is one op with all its cells, if the journal's stripe is as
    /// high.
    #[test]
    fn a_whole_stripe_is_one_op() {
        let geometry = Geometry::plan(Spec::new(Level::Raid5), &[1 << 20; 4]).unwrap();
        let parity = parity(&geometry);
        let mut ops = [StripeOp::NONE; OPS_MAX];
        let stripe = 3 * (64 << 10);
        let (count, to) = cut(&geometry, &parity, true, stripe, 3 * stripe, &mut ops);
        assert_eq!((count, to), (2, 3 * stripe));
        assert!(ops[..2].iter().all(|op| (op.first, op.blocks, op.cell, op.cells) == (0, 16, 0, 3)));
        let (count, _) = cut(&geometry, &parity, true, 4096, stripe, &mut ops);
        // The first block of the first cell is missing: the other blocks of its height, and the rest.
        assert_eq!(count, 2);
        assert_eq!((ops[0].first, ops[0].blocks, ops[0].cell, ops[0].cells), (0, 1, 1, 2));
        assert_eq!((ops[1].first, ops[1].blocks, ops[1].cell, ops[1].cells), (1, 15, 0, 3));
    }
}
