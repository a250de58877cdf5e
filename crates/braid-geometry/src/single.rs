//! The location of each byte of an array without redundancy, in the form that is fastest to compute.
//!
//! The result is that of [`Geometry::locate`], for the layouts that serve nearly all small requests: one copy, no parity,
//! and cells whose size is a power of two (or the whole zone). A zone takes one cache line, and a division is one
//! multiplication.

use crate::geometry::COUNTED_ENDS;
use crate::{Geometry, Level};

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct SingleZone {
    array_start: u64,
    array_bytes: u64,
    member_start: u64,
    cell_bytes: u64,
    /// ceil(2^64 / width), or 0 if the zone is a single cell. floor(x · this / 2^64) = floor(x / width) if x · width < 2^64.
    /// Here x is a number of cells, below 2^50, and the width is at most 2^7.
    reciprocal: u64,
    cell_shift: u32,
    width: u32,
    slots_start: u32,
}

/// The fast form of a geometry without redundancy. Immutable.
#[derive(Clone, Debug)]
pub struct SingleCopyMap {
    /// The ends of all zones but the last. Unused entries hold [`u64::MAX`], which no offset reaches.
    ends: [u64; COUNTED_ENDS],
    zones: Box<[SingleZone]>,
}

/// The location of a range, as [`SingleCopyMap::locate`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SingleCopyLocation {
    /// Index into [`Geometry::slots`], which gives the member.
    pub slot: usize,
    /// Bytes from the start of the member's data area.
    pub member_offset: u64,
    /// Whether the whole range is contiguous at this location.
    pub is_contiguous: bool,
}

impl SingleCopyMap {
    /// Returns the fast form of `geometry`; `None` for a geometry with redundancy, with more than five zones, or with a chunk
    /// size that is not a power of two (unless each zone has a single member).
    #[must_use]
    pub fn new(geometry: &Geometry) -> Option<SingleCopyMap> {
        let compiled = &geometry.compiled;
        let single = matches!(geometry.spec().level, Level::Concat | Level::Raid0);
        if !single || compiled.len() > COUNTED_ENDS + 1 {
            return None;
        }
        let mut ends = [u64::MAX; COUNTED_ENDS];
        for (end, zone) in ends.iter_mut().zip(&compiled[..compiled.len() - 1]) {
            *end = zone.array_start + zone.array_bytes;
        }
        let zones = compiled.iter().map(|zone| {
            let width = zone.width();
            let (cell_shift, reciprocal) = match zone.cell_bytes {
                _ if width == 1 => (63, 0),
                bytes if bytes.is_power_of_two() => (bytes.trailing_zeros(), u64::MAX / width + 1),
                _ => return None,
            };
            Some(SingleZone {
                array_start: zone.array_start,
                array_bytes: zone.array_bytes,
                member_start: zone.member_start,
                cell_bytes: zone.cell_bytes,
                reciprocal,
                cell_shift,
                width: width as u32,
                slots_start: zone.slots_start as u32,
            })
        });
        Some(SingleCopyMap { ends, zones: zones.collect::<Option<_>>()? })
    }

    /// Returns the location of the byte at `array_offset`, and whether all `len` bytes from there on are in the same cell.
    ///
    /// `array_offset` must be below [`Geometry::size_bytes`]. Beyond it the location is undefined.
    #[must_use]
    #[inline]
    pub fn locate(&self, array_offset: u64, len: u64) -> SingleCopyLocation {
        let index: usize = self.ends.iter().map(|&end| usize::from(array_offset >= end)).sum();
        let zone = &self.zones[index];
        let zone_offset = array_offset - zone.array_start;
        let chunk = zone_offset >> zone.cell_shift;
        let within = zone_offset & ((1u64 << zone.cell_shift) - 1);
        let row = ((u128::from(chunk) * u128::from(zone.reciprocal)) >> 64) as u64;
        let slot = chunk.wrapping_sub(row.wrapping_mul(u64::from(zone.width)));
        SingleCopyLocation {
            slot: zone.slots_start as usize + slot as usize,
            member_offset: zone.member_start + (row << zone.cell_shift) + within,
            // If the last chunk is truncated, the zone ends before the cell does.
            is_contiguous: within + len <= zone.cell_bytes && zone_offset + len <= zone.array_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Spec, ZonePolicy};

    /// Compares every sector, and ranges of several lengths, with [`Geometry::locate`], which the brute-force test verifies.
    #[test]
    fn fast_form_agrees_with_geometry() {
        let (k, mut seen) = (4096u64, 0);
        for sizes in
            [&[9, 20, 20][..], &[7], &[64, 64], &[5, 9, 13, 17, 21], &[40, 3, 3, 11], &[9, 9, 9, 30, 31, 31, 5]]
        {
            let sizes: Vec<u64> = sizes.iter().map(|blocks| blocks * k).collect();
            for level in [Level::Concat, Level::Raid0] {
                for layout in [Layout::Linear, Layout::Alternate, Layout::Original] {
                    for chunk_bytes in [k, 2 * k, 8 * k] {
                        let spec = Spec { level, layout, chunk_bytes, copies: 1, zones: ZonePolicy::All };
                        let Ok(geometry) = Geometry::plan(spec, &sizes) else { continue };
                        let Some(fast) = SingleCopyMap::new(&geometry) else { continue };
                        seen += 1;
                        for at in (0..geometry.size_bytes()).step_by(512) {
                            let range = geometry.locate(at);
                            for len in [512, k, 3 * k, 1 << 20] {
                                let location = fast.locate(at, len);
                                assert_eq!(geometry.slots()[location.slot], range.member, "{spec:?} {sizes:?} at {at}");
                                assert_eq!(location.member_offset, range.member_offset, "{spec:?} {sizes:?} at {at}");
                                assert_eq!(
                                    location.is_contiguous,
                                    len <= range.len,
                                    "{spec:?} {sizes:?} at {at}, {len}"
                                );
                            }
                        }
                    }
                }
            }
        }
        assert!(seen > 20, "{seen} layouts have a fast form");
    }

    #[test]
    fn division_is_exact_up_to_the_maximum_size() {
        for width in 2..=crate::MEMBERS_MAX as u64 {
            let reciprocal = u64::MAX / width + 1;
            let divide = |x: u64| ((u128::from(x) * u128::from(reciprocal)) >> 64) as u64;
            let largest = crate::TOTAL_BYTES_MAX / crate::BLOCK_BYTES;
            for x in
                (0..500).flat_map(|k| [k, largest - k, (largest / 2 + k) / width * width, largest / width * width - k])
            {
                assert_eq!(divide(x), x / width, "{x} by {width}");
            }
        }
    }
}
