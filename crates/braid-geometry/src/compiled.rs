//! The precomputed form of a zone, from which locations are calculated.
//!
//! The same arithmetic serves all levels. A zone is a grid of cells of one chunk each: it is `width` slots wide and has one
//! row for each chunk of its height. Without parity, array chunk *c* with *k* copies occupies the *k* cells from cell
//! *c · k* on, counted along the rows: raid0 has *k* = 1, raid10 near any *k*, raid1 *k* = width. With parity, a row is one
//! stripe: it holds `width - parity` array chunks, and the slot of the first one rotates from row to row.
//!
//! If the data does not alternate between slots (one member, or as many copies as members), each slot of the zone is a
//! single cell of the zone's height. [`SlotLocation::len`] then extends to the end of the zone, and the same arithmetic
//! needs no additional branch.

use crate::cell::Cell;
use crate::foreign::{Foreign, RowOrder};
use crate::{Layout, Spec, Zone};

/// Value of `cell_shift` if the chunk size is not a power of two.
const NO_SHIFT: u32 = u32::MAX;

/// A small constant divisor that divides by one multiplication.
///
/// With r = ceil(2^63 / d), floor(x · r / 2^63) = floor(x / d) if x · d < 2^63. In this module x is a number of cells,
/// at most 2^62 / 4096 = 2^50, and d is a number of members, at most 2^7.
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

    /// Returns the quotient and the remainder of `x`.
    #[inline]
    fn divide(self, x: u64) -> (u64, u64) {
        let quotient = ((u128::from(x) * u128::from(self.reciprocal)) >> 63) as u64;
        (quotient, x.wrapping_sub(quotient.wrapping_mul(self.value)))
    }
}

/// A location within a zone, by slot: the member is not looked up yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLocation {
    /// Index into the slot table of the geometry.
    pub slot_index: usize,
    /// Bytes from the start of the member's data area.
    pub member_offset: u64,
    /// Bytes to the end of the cell, or to the end of the zone if that comes first.
    pub len: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct CompiledZone {
    pub array_start: u64,
    pub array_bytes: u64,
    pub member_start: u64,
    /// Size of a cell, in bytes.
    pub cell_bytes: u64,
    /// The base-2 logarithm of `cell_bytes`; [`NO_SHIFT`] if that is no power of two. 63 if each slot is a single cell:
    /// each offset is then in the first cell of its slot.
    cell_shift: u32,
    /// Number of parity chunks in each stripe: 0, 1 or 2.
    parity: u32,
    copies: u64,
    /// Set if the layout is one that Braid reads but does not create.
    foreign: Option<Foreign>,
    /// Number of cells without parity at one height: the divisor that gives the row of a cell number or, with parity,
    /// of a chunk number.
    per_row: Divisor,
    width: Divisor,
    /// Index of the zone's first member in the slot table.
    pub slots_start: usize,
    /// Number of rows of cells.
    pub rows: u64,
    /// Number of rows of chunks in all preceding zones: the stripe number of row 0.
    pub first_stripe: u64,
}

impl CompiledZone {
    /// Compiles a validated zone, and appends its members to the slot table.
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
            // This layout selects the slot by the chunk's number in the whole array, not in the zone. Rotating the
            // members in the slot table once has the same effect.
            let rotation = (zone.array_start / spec.chunk_bytes) % width as u64;
            slots[slots_start..].rotate_left(rotation as usize);
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

    /// Returns the number of members of the zone.
    pub fn width(&self) -> u64 {
        self.width.value
    }

    /// Returns the number of cells in a row that are not parity.
    pub fn chunks_per_row(&self) -> u64 {
        self.per_row.value
    }

    /// Returns the number of copies of each chunk.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Returns the number of parity chunks in each row: 0, 1 or 2.
    pub fn parity(&self) -> u32 {
        self.parity
    }

    /// Splits an offset within the zone into the cell-sized chunk's number and the offset within that chunk.
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

    /// Returns the offset of row `row` from the start of the zone on each member, in bytes.
    #[inline]
    fn row_offset(&self, row: u64) -> u64 {
        if self.cell_shift != NO_SHIFT { row << self.cell_shift } else { row.wrapping_mul(self.cell_bytes) }
    }

    /// Returns the location of copy `copy` of the byte at `zone_offset`.
    #[inline]
    pub fn locate(&self, zone_offset: u64, copy: u64) -> SlotLocation {
        let (chunk, within) = self.split(zone_offset);
        let (row, slot) = if self.foreign.is_some() {
            self.locate_foreign(chunk, copy)
        } else if self.parity == 0 {
            self.per_row.divide(chunk * self.copies + copy)
        } else {
            let (row, index) = self.per_row.divide(chunk);
            (row, self.slot_after(self.parity_slot(row), u64::from(self.parity) + index))
        };
        SlotLocation {
            slot_index: self.slots_start + slot as usize,
            member_offset: self.member_start + self.row_offset(row) + within,
            // If the last chunk is truncated, the zone ends before the cell does.
            len: self.cell_bytes.wrapping_sub(within).min(self.array_bytes.saturating_sub(zone_offset)),
        }
    }

    /// Returns the row and the slot of a chunk's copy in a layout that Braid only reads.
    #[cold]
    fn locate_foreign(&self, chunk: u64, copy: u64) -> (u64, u64) {
        if let Some(copies @ Foreign::Copies { .. }) = self.foreign {
            return copies.copy_at(chunk, copy, self.width.value);
        }
        let (row, index) = self.per_row.divide(chunk);
        let slot = self.row_order(row).map_or(0, |row_order| row_order.data(index as u16));
        (row, u64::from(slot))
    }

    /// Returns the roles of a row's slots if the layout has parity and Braid only reads it.
    #[inline]
    pub fn row_order(&self, row: u64) -> Option<RowOrder> {
        match self.foreign {
            Some(Foreign::Parity(layout)) => Some(RowOrder::of(layout, self.parity, self.width.value, row)),
            _ => None,
        }
    }

    /// Returns whether Braid only reads this layout.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Returns, for a zone with parity, the row of a byte, the index of its chunk among the row's data, and its offset within
    /// the chunk.
    #[inline]
    pub fn row_of(&self, zone_offset: u64) -> (u64, u64, u64) {
        let (chunk, within) = self.split(zone_offset);
        let (row, index) = self.per_row.divide(chunk);
        (row, index, within)
    }

    /// Returns the slot of P in a row of the layout left-symmetric: P starts in the last slot and moves one slot to the
    /// left with each row. For layouts that Braid only reads the result has no meaning.
    #[inline]
    pub fn parity_slot(&self, row: u64) -> u64 {
        let (_, rotation) = self.width.divide(row);
        self.width.value - 1 - rotation
    }

    /// Returns the slot that is `steps` slots to the right of `slot`, wrapping around. In the layout left-symmetric, P
    /// is followed by Q (with raid6) and then by the data. `steps` is at most the width.
    #[inline]
    pub fn slot_after(&self, slot: u64, steps: u64) -> u64 {
        let sum = slot + steps;
        if sum >= self.width.value { sum - self.width.value } else { sum }
    }

    /// Returns the content of a cell.
    pub fn cell(&self, slot: u64, row: u64) -> Cell {
        if let Some(copies @ Foreign::Copies { .. }) = self.foreign {
            let chunks = self.array_bytes / self.cell_bytes;
            return copies.cell_of_copies(slot, row, self.width.value, chunks, self.cell_bytes);
        }
        if let Some(row_order) = self.row_order(row) {
            return match row_order.index(slot as u16) {
                Some(index) => Cell::Data {
                    chunk: row * self.per_row.value + u64::from(index),
                    copy: 0,
                    data_bytes: self.cell_bytes,
                },
                None if u64::from(row_order.p()) == slot => Cell::P,
                None => Cell::Q,
            };
        }
        if self.parity == 0 {
            let cell_number = row * self.width.value + slot;
            let chunk = cell_number / self.copies;
            let remaining_bytes = self.array_bytes.saturating_sub(chunk * self.cell_bytes);
            if remaining_bytes == 0 {
                return Cell::Unused;
            }
            let data_bytes = remaining_bytes.min(self.cell_bytes);
            return Cell::Data { chunk, copy: (cell_number % self.copies) as u16, data_bytes };
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

    /// Returns the number of leading rows without unused bytes, which [`crate::Geometry::runs_strided`] compresses; 0
    /// for layouts that Braid only reads.
    pub fn full_rows(&self) -> u64 {
        if self.is_foreign() {
            // The period of these layouts is not computed. Their maps are listed run by run.
            return 0;
        }
        if self.parity > 0 {
            return self.rows;
        }
        self.array_bytes / self.cell_bytes * self.copies / self.width.value
    }

    /// Returns the number of rows after which the pattern of a slot's cells repeats.
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
    fn division_by_multiplication_is_exact() {
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
            for distance in 0..1000 {
                check(largest - distance);
                check(distance);
            }
        }
    }
}
