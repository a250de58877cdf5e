//! A zone in the form in which it is computed with.
//!
//! One arithmetic serves all levels. A zone is a grid of cells, one chunk each: `width` slots wide, as many rows as
//! its height has chunks. Without parity, array chunk *c* with *k* copies takes the *k* cells from cell *c · k* on,
//! counted along the rows: raid0 is *k* = 1, raid10 near any *k*, raid1 *k* = width. With parity, each row holds
//! `width - parity` array chunks, and where they begin moves with the row.
//!
//! Where nothing alternates (one member, or as many copies as members), the whole zone is a single cell a slot, so
//! that `len` is as long as it can be and the same arithmetic needs no further branch.

use crate::foreign::{Foreign, Order};
use crate::{Layout, Spec, Zone};

/// Says that the chunk is no power of two.
const NO_SHIFT: u32 = u32::MAX;

/// Division by a small constant as one multiplication.
///
/// With r = ceil(2^63 / d), floor(x · r / 2^63) = floor(x / d) as long as x · d < 2^63. Here x is a number of
/// cells, below 2^62 / 4096 = 2^50, and d a number of members, at most 2^7.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    value: u64,
    reciprocal: u64,
}

impl Divisor {
    fn new(value: u64) -> Divisor {
        debug_assert!(value > 0 && value <= 1 << 12);
        Divisor { value, reciprocal: (1u64 << 63).div_ceil(value) }
    }

    /// Quotient and remainder.
    #[inline]
    fn divide(self, x: u64) -> (u64, u64) {
        let quotient = ((u128::from(x) * u128::from(self.reciprocal)) >> 63) as u64;
        (quotient, x.wrapping_sub(quotient.wrapping_mul(self.value)))
    }
}

/// What a cell of the grid holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Copy `copy` of the chunk `chunk` of the zone: the first `data_bytes` of the cell, the rest is unused.
    Data { chunk: u64, copy: u16, data_bytes: u64 },
    /// The parity of its row.
    P,
    /// The second parity of its row.
    Q,
    /// Nothing.
    Unused,
}

/// A place within the zone, before the member is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    /// Index into the table of slots of the geometry.
    pub slot_index: usize,
    /// Bytes from the start of the member's data area.
    pub member_offset: u64,
    /// Bytes from here to the end of the cell.
    pub len: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct CompiledZone {
    pub array_start: u64,
    pub array_bytes: u64,
    pub member_start: u64,
    /// Bytes of one cell.
    pub cell_bytes: u64,
    cell_shift: u32,
    parity: u32,
    copies: u64,
    /// How it differs from what Braid makes.
    foreign: Option<Foreign>,
    /// By what the number of a cell (with parity: of a chunk) is divided to find its row.
    per_row: Divisor,
    width: Divisor,
    /// Where the members of this zone begin in the table of slots.
    pub slots_start: usize,
    /// Rows of cells.
    pub rows: u64,
    /// Rows of chunks in all zones before: the stripe number of row 0.
    pub first_stripe: u64,
}

impl CompiledZone {
    /// Compiles a zone that was checked, and appends its members to the table of slots.
    pub fn new(spec: &Spec, zone: &Zone, first_stripe: u64, slots: &mut Vec<u16>) -> CompiledZone {
        let width = zone.members.len();
        let copies = spec.copies_over(width);
        let parity = usize::from(spec.level.parity());
        let foreign = Foreign::of(spec, zone.member_bytes / spec.chunk_bytes);
        let single_cell = copies == width && parity == 0 && foreign.is_none();
        let cell_bytes = if single_cell { zone.member_bytes } else { spec.chunk_bytes };
        let cell_shift = match cell_bytes {
            _ if single_cell => 63,
            bytes if bytes.is_power_of_two() => bytes.trailing_zeros(),
            _ => NO_SHIFT,
        };
        let slots_start = slots.len();
        slots.extend_from_slice(&zone.members);
        if spec.layout == Layout::Original {
            // The turn goes by the chunk's number in the whole array: turn the members instead, once.
            let turn = (zone.array_start / spec.chunk_bytes) % width as u64;
            slots[slots_start..].rotate_left(turn as usize);
        }
        CompiledZone {
            array_start: zone.array_start,
            array_bytes: zone.array_bytes,
            member_start: zone.member_start,
            cell_bytes,
            cell_shift,
            parity: parity as u32,
            copies: copies as u64,
            foreign,
            per_row: Divisor::new((width - parity) as u64),
            width: Divisor::new(width as u64),
            slots_start,
            rows: zone.member_bytes / cell_bytes,
            first_stripe,
        }
    }

    /// Members of the zone.
    pub fn width(&self) -> u64 {
        self.width.value
    }

    /// Array chunks in each row that is all data.
    pub fn chunks_per_row(&self) -> u64 {
        self.per_row.value
    }

    /// Copies of each chunk.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Which parities each row has: 0, 1 or 2.
    pub fn parity(&self) -> u32 {
        self.parity
    }

    /// Cuts an offset within the zone into the number of the chunk and the offset within it.
    #[inline]
    fn split(&self, zone_offset: u64) -> (u64, u64) {
        if self.cell_shift != NO_SHIFT {
            let chunk = zone_offset >> self.cell_shift;
            (chunk, zone_offset & ((1u64 << self.cell_shift) - 1))
        } else {
            let chunk = zone_offset / self.cell_bytes;
            (chunk, zone_offset - chunk * self.cell_bytes)
        }
    }

    /// The bytes above row `row`.
    #[inline]
    fn row_offset(&self, row: u64) -> u64 {
        if self.cell_shift != NO_SHIFT { row << self.cell_shift } else { row.wrapping_mul(self.cell_bytes) }
    }

    /// Where copy `copy` of the byte at `zone_offset` is.
    #[inline]
    pub fn spot(&self, zone_offset: u64, copy: u64) -> Spot {
        let (chunk, within) = self.split(zone_offset);
        let (row, slot) = if self.foreign.is_some() {
            self.foreign_spot(chunk, copy)
        } else if self.parity == 0 {
            self.per_row.divide(chunk * self.copies + copy)
        } else {
            let (row, index) = self.per_row.divide(chunk);
            (row, self.turned(self.parity_slot(row), u64::from(self.parity) + index))
        };
        Spot {
            slot_index: self.slots_start + slot as usize,
            member_offset: self.member_start + self.row_offset(row) + within,
            // The last chunk can be cut; then the zone ends before the cell does.
            len: self.cell_bytes.wrapping_sub(within).min(self.array_bytes.saturating_sub(zone_offset)),
        }
    }

    /// Row and slot in a layout that only md makes.
    #[cold]
    fn foreign_spot(&self, chunk: u64, copy: u64) -> (u64, u64) {
        if let Some(copies @ Foreign::Copies { .. }) = self.foreign {
            return copies.copy_at(chunk, copy, self.width.value);
        }
        let (row, index) = self.per_row.divide(chunk);
        let slot = self.order(row).map_or(0, |order| order.data(index as u16));
        (row, u64::from(slot))
    }

    /// What the slots of a row hold, where parity does not go as Braid has it.
    #[inline]
    pub fn order(&self, row: u64) -> Option<Order> {
        match self.foreign {
            Some(Foreign::Rows(layout)) => Some(Order::of(layout, self.parity, self.width.value, row)),
            _ => None,
        }
    }

    /// Whether the layout is one that only md makes.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// With parity: the row of a byte, the index of its chunk among the row's data, and its offset within the chunk.
    #[inline]
    pub fn row_of(&self, zone_offset: u64) -> (u64, u64, u64) {
        let (chunk, within) = self.split(zone_offset);
        let (row, index) = self.per_row.divide(chunk);
        (row, index, within)
    }

    /// The slot of P in a row. Left: it begins at the last slot and moves to the left.
    #[inline]
    pub fn parity_slot(&self, row: u64) -> u64 {
        let (_, turn) = self.width.divide(row);
        self.width.value - 1 - turn
    }

    /// `steps` slots to the right of `slot`, around the end. Symmetric: after P come Q and then the data.
    #[inline]
    pub fn turned(&self, slot: u64, steps: u64) -> u64 {
        let sum = slot + steps;
        if sum >= self.width.value { sum - self.width.value } else { sum }
    }

    /// What stands in a cell.
    pub fn cell(&self, slot: u64, row: u64) -> Cell {
        if let Some(copies @ Foreign::Copies { .. }) = self.foreign {
            let chunks = self.array_bytes / self.cell_bytes;
            return copies.cell_of_copies(slot, row, self.width.value, chunks, self.cell_bytes);
        }
        if let Some(order) = self.order(row) {
            return match order.index(slot as u16) {
                Some(index) => Cell::Data {
                    chunk: row * self.per_row.value + u64::from(index),
                    copy: 0,
                    data_bytes: self.cell_bytes,
                },
                None if u64::from(order.p()) == slot => Cell::P,
                None => Cell::Q,
            };
        }
        if self.parity == 0 {
            let number = row * self.width.value + slot;
            let chunk = number / self.copies;
            let left_bytes = self.array_bytes.saturating_sub(chunk * self.cell_bytes);
            if left_bytes == 0 {
                return Cell::Unused;
            }
            let data_bytes = left_bytes.min(self.cell_bytes);
            return Cell::Data { chunk, copy: (number % self.copies) as u16, data_bytes };
        }
        let p = self.parity_slot(row);
        let after_p = if slot >= p { slot - p } else { slot + self.width.value - p };
        match after_p {
            0 => Cell::P,
            1 if self.parity == 2 => Cell::Q,
            _ => Cell::Data {
                chunk: row * self.per_row.value + after_p - u64::from(self.parity),
                copy: 0,
                data_bytes: self.cell_bytes,
            },
        }
    }

    /// How many rows, from the first one, have no unused bytes.
    pub fn full_rows(&self) -> u64 {
        if self.is_foreign() {
            // Nothing comes again that would be worth it: nobody asks for the map of what was imported.
            return 0;
        }
        if self.parity > 0 {
            return self.rows;
        }
        self.array_bytes / self.cell_bytes * self.copies / self.width.value
    }

    /// After how many rows the pattern of the cells of a slot comes again.
    pub fn period_rows(&self) -> u64 {
        if self.parity > 0 { self.width.value } else { self.copies / gcd(self.width.value, self.copies) }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK_BYTES, MEMBERS_MAX, TOTAL_BYTES_MAX};

    #[test]
    fn dividing_by_multiplication_is_exact() {
        let largest = TOTAL_BYTES_MAX / BLOCK_BYTES;
        for value in 1..=MEMBERS_MAX as u64 {
            let divisor = Divisor::new(value);
            let check = |x: u64| assert_eq!(divisor.divide(x), (x / value, x % value), "{x} by {value}");
            for shift in 0..=50 {
                let near = (1u64 << shift) / value * value;
                for x in near.saturating_sub(2)..near + 3 {
                    check(x.min(largest));
                }
            }
            for below in 0..1000 {
                check(largest - below);
                check(below);
            }
        }
    }
}
