//! The locations of all copies of a byte of a mirror, in the form that is fastest to compute.
//!
//! The result is that of [`Geometry::copies`], for the layouts that serve nearly all small requests: few zones, and cells
//! whose size is a power of two (or the whole zone). The copies of a chunk are in consecutive cells: one multiplication
//! finds the first copy, and one step each further copy.

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
    /// As in [`crate::SingleCopyMap`]: ceil(2^64 / width) for cell numbers below 2^50; 0 if the zone is a single row.
    reciprocal: u64,
    cell_shift: u32,
    width: u32,
    copies: u32,
    slots_start: u32,
}

/// The fast form of a geometry with copies. Immutable.
#[derive(Clone, Debug)]
pub struct MirrorMap {
    /// The ends of all zones but the last. Unused entries hold [`u64::MAX`], which no offset reaches.
    ends: [u64; COUNTED_ENDS],
    zones: Box<[CopyZone]>,
}

/// An iterator over the locations of one byte, the first copy first. An item is an index into [`Geometry::slots`], which gives
/// the member, and the offset in the member's data area, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct CopyLocations {
    /// Whether the whole range is in one cell on each member.
    pub is_contiguous: bool,
    remaining: u32,
    width: u32,
    slot: u32,
    slots_start: u32,
    cell_bytes: u64,
    member_offset: u64,
}

impl MirrorMap {
    /// Returns the fast form of `geometry`; `None` for a geometry without copies, with a layout that Braid only reads, with more
    /// than five zones, or with a chunk size that is not a power of two (unless each zone has as many copies as members).
    #[must_use]
    pub fn new(geometry: &Geometry) -> Option<MirrorMap> {
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
        Some(MirrorMap { ends, zones: zones.collect::<Option<_>>()? })
    }

    /// Returns the locations of the byte at `array_offset`, and whether all `len` bytes from there on are in the same cells.
    ///
    /// `array_offset` must be below [`Geometry::size_bytes`]. Beyond it the locations are undefined.
    #[must_use]
    #[inline(always)]
    pub fn locate(&self, array_offset: u64, len: u64) -> CopyLocations {
        let index: usize = self.ends.iter().map(|&end| usize::from(array_offset >= end)).sum();
        let zone = &self.zones[index];
        let zone_offset = array_offset - zone.array_start;
        let within = zone_offset & ((1u64 << zone.cell_shift) - 1);
        let cell = (zone_offset >> zone.cell_shift) * u64::from(zone.copies);
        let row = ((u128::from(cell) * u128::from(zone.reciprocal)) >> 64) as u64;
        let slot = cell.wrapping_sub(row.wrapping_mul(u64::from(zone.width)));
        CopyLocations {
            // If the last chunk is truncated, the zone ends before the cell does.
            is_contiguous: within + len <= zone.cell_bytes && zone_offset + len <= zone.array_bytes,
            remaining: zone.copies,
            width: zone.width,
            slot: slot as u32,
            slots_start: zone.slots_start,
            cell_bytes: zone.cell_bytes,
            member_offset: zone.member_start + (row << zone.cell_shift) + within,
        }
    }
}

impl CopyLocations {
    /// Returns all remaining copies if they are in one row of cells, as they mostly are: their indices into
    /// [`Geometry::slots`], and the offset in the data area of each of these members, in bytes. Else `None`.
    #[must_use]
    #[inline(always)]
    pub fn in_one_stripe(&self) -> Option<(Range<usize>, u64)> {
        let first = (self.slots_start + self.slot) as usize;
        (self.slot + self.remaining <= self.width)
            .then_some((first..first + self.remaining as usize, self.member_offset))
    }
}

impl Iterator for CopyLocations {
    type Item = (usize, u64);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, u64)> {
        self.remaining = self.remaining.checked_sub(1)?;
        let location = ((self.slots_start + self.slot) as usize, self.member_offset);
        self.slot += 1;
        if self.slot == self.width {
            // The next copy is in the next row.
            self.slot = 0;
            self.member_offset = self.member_offset.wrapping_add(self.cell_bytes);
        }
        Some(location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;

    /// Compares every sector, and ranges of several lengths, with [`Geometry::copies`], which the brute-force test verifies.
    #[test]
    fn fast_form_agrees_with_geometry() {
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
                let Some(fast) = MirrorMap::new(&geometry) else {
                    assert!(geometry.zones().len() > COUNTED_ENDS + 1 || chunk == 3, "{level} over {sizes:?}");
                    continue;
                };
                for at in (0..geometry.size_bytes()).step_by(512) {
                    let mut expected = Vec::new();
                    geometry.copies(at, &mut |range| expected.push(range));
                    for len in [512, 4096, 16 * k] {
                        let found = fast.locate(at, len);
                        assert_eq!(found.is_contiguous, expected.iter().all(|range| range.len >= len), "{at} {len}");
                        if let Some((slots, offset)) = found.in_one_stripe() {
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
        assert!(MirrorMap::new(&Geometry::plan(Spec::new(Level::Raid0), &[1 << 20; 2]).unwrap()).is_none());
    }
}
