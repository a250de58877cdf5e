//! All places of each byte of a mirror, in the form that is quickest to compute with.
//!
//! What [`Geometry::copies`] gives, for the layouts through which nearly all small requests go: few zones, cells whose
//! length is a power of two (or the whole zone). The copies of a chunk stand in neighbouring cells, so that one
//! multiplication finds the first, and a step each further one.

use std::ops::Range;

use crate::geometry::COUNTED_ENDS;
use crate::{Geometry, Level};

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct CopyZone {
    array_start: u64,
    array_bytes: u64,
    member_start: u64,
    cell_bytes: u64,
    /// As in [`crate::SinglePlaces`]: ceil(2^64 / width) for a number of cells below 2^50; 0 where a zone is one row.
    reciprocal: u64,
    cell_shift: u32,
    width: u32,
    copies: u32,
    slots_start: u32,
}

/// The short form of a geometry with copies. Immutable.
#[derive(Clone, Debug)]
pub struct CopyPlaces {
    /// The ends of all zones but the last; the places left over hold what no offset reaches.
    ends: [u64; COUNTED_ENDS],
    zones: Box<[CopyZone]>,
}

/// The places of one byte, the first copy first: an index in [`Geometry::slots`], which names the member, and bytes from the
/// start of the member's data area.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// Whether all of the range is in one cell on each.
    pub whole: bool,
    left: u32,
    width: u32,
    slot: u32,
    slots_start: u32,
    cell_bytes: u64,
    member_offset: u64,
}

impl CopyPlaces {
    /// The short form of `geometry`; `None` if it has none: no copies, more than five zones, or a chunk that is no power of
    /// two.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Option<CopyPlaces> {
        let compiled = &geometry.compiled;
        let mirrored = matches!(geometry.spec().level, Level::Raid1 | Level::Raid10);
        if !mirrored || compiled.iter().any(|zone| zone.is_foreign()) || compiled.len() > COUNTED_ENDS + 1 {
            return None;
        }
        let mut ends = [u64::MAX; COUNTED_ENDS];
        for (end, zone) in ends.iter_mut().zip(&compiled[..compiled.len() - 1]) {
            *end = zone.array_start + zone.array_bytes;
        }
        let zones = compiled.iter().map(|zone| {
            let (cell_shift, reciprocal) = match zone.cell_bytes {
                _ if zone.width() == zone.copies() => (63, 0),
                bytes if bytes.is_power_of_two() => (bytes.trailing_zeros(), u64::MAX / zone.width() + 1),
                _ => return None,
            };
            Some(CopyZone {
                array_start: zone.array_start,
                array_bytes: zone.array_bytes,
                member_start: zone.member_start,
                cell_bytes: zone.cell_bytes,
                reciprocal,
                cell_shift,
                width: zone.width() as u32,
                copies: zone.copies() as u32,
                slots_start: zone.slots_start as u32,
            })
        });
        Some(CopyPlaces { ends, zones: zones.collect::<Option<_>>()? })
    }

    /// Where the byte at `array_offset` is, and whether the `len` bytes from there on are all in the same cells.
    ///
    /// `array_offset` must be below [`Geometry::size_bytes`]; beyond it the places mean nothing.
    #[must_use]
    #[inline(always)]
    pub fn locate(&self, array_offset: u64, len: u64) -> Copies {
        let index: usize = self.ends.iter().map(|&end| usize::from(array_offset >= end)).sum();
        let zone = &self.zones[index];
        let zone_offset = array_offset - zone.array_start;
        let within = zone_offset & ((1u64 << zone.cell_shift) - 1);
        let cell = (zone_offset >> zone.cell_shift) * u64::from(zone.copies);
        let row = ((u128::from(cell) * u128::from(zone.reciprocal)) >> 64) as u64;
        let slot = cell.wrapping_sub(row.wrapping_mul(u64::from(zone.width)));
        Copies {
            // The last chunk can be cut; then the zone ends before the cell does.
            whole: within + len <= zone.cell_bytes && zone_offset + len <= zone.array_bytes,
            left: zone.copies,
            width: zone.width,
            slot: slot as u32,
            slots_start: zone.slots_start,
            cell_bytes: zone.cell_bytes,
            member_offset: zone.member_start + (row << zone.cell_shift) + within,
        }
    }
}

impl Copies {
    /// All that are left, where they are in one row, which they mostly are: their slots, and bytes from the start of the data
    /// area of each of these members.
    #[must_use]
    #[inline(always)]
    pub fn in_one_row(&self) -> Option<(Range<usize>, u64)> {
        let first = (self.slots_start + self.slot) as usize;
        (self.slot + self.left <= self.width).then_some((first..first + self.left as usize, self.member_offset))
    }
}

impl Iterator for Copies {
    type Item = (usize, u64);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, u64)> {
        self.left = self.left.checked_sub(1)?;
        let place = ((self.slots_start + self.slot) as usize, self.member_offset);
        self.slot += 1;
        if self.slot == self.width {
            // On to the next row.
            self.slot = 0;
            self.member_offset = self.member_offset.wrapping_add(self.cell_bytes);
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    /// Against [`Geometry::copies`], which brute force has checked: every block, and ranges of several lengths.
    #[test]
    fn the_short_form_says_the_same() {
        let (k, mut seen, mut rows) = (4096u64, 0, 0);
        let all_sizes: [&[u64]; 6] = [
            &[64, 64],
            &[64, 32, 48],
            &[40, 40, 40, 40],
            &[16, 24, 40, 56, 57],
            &[33; 7],
            &[8, 16, 24, 32, 40, 48, 56],
        ];
        for sizes in all_sizes {
            let sizes: Vec<u64> = sizes.iter().map(|s| s * k).collect();
            for (level, copies, chunk) in
                [(Level::Raid1, 2, 16), (Level::Raid10, 2, 1), (Level::Raid10, 3, 4), (Level::Raid10, 2, 3)]
            {
                let spec = Spec { chunk_bytes: chunk * k, copies, ..Spec::new(level) };
                let Ok(geometry) = Geometry::plan(spec, &sizes) else { continue };
                let Some(short) = CopyPlaces::new(&geometry) else {
                    assert!(geometry.zones().len() > COUNTED_ENDS + 1 || chunk == 3, "{level} over {sizes:?}");
                    continue;
                };
                for at in (0..geometry.size_bytes()).step_by(512) {
                    let mut expected = Vec::new();
                    geometry.copies(at, &mut |piece| expected.push(piece));
                    for len in [512, 4096, 16 * k] {
                        let found = short.locate(at, len);
                        assert_eq!(found.whole, expected.iter().all(|piece| piece.len >= len), "{at} {len}");
                        if let Some((slots, offset)) = found.in_one_row() {
                            assert!(found.eq(slots.map(|slot| (slot, offset))), "{level} over {sizes:?} at {at}");
                            rows += 1;
                        }
                        let found: Vec<_> = found.map(|(slot, offset)| (geometry.slots()[slot], offset)).collect();
                        let expected: Vec<_> = expected.iter().map(|p| (p.member, p.member_offset)).collect();
                        assert_eq!(found, expected, "{level} over {sizes:?} at {at}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 5000 && rows > 2500 && rows < seen, "{seen} {rows}");
        assert!(CopyPlaces::new(&Geometry::plan(Spec::new(Level::Raid0), &[1 << 20; 2]).unwrap()).is_none());
    }
}
