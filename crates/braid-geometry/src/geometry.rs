//! The geometry of an array: maps an offset in the array to a location on a member.

use crate::compiled::CompiledZone;
use crate::{GeometryError, Spec, Zone, zones};

/// Number of zone ends that are compared without a branch. With at most one zone more than this, the zone of an offset is
/// the number of ends at or before it: four comparisons and no branch that could be mispredicted.
pub(crate) const COUNTED_ENDS: usize = 4;

/// A contiguous range of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRange {
    /// The member, counted from 0.
    pub member: u16,
    /// The zone, counted from 0.
    pub zone: u16,
    /// The offset of the range in the member's data area, in bytes.
    pub member_offset: u64,
    /// The number of bytes that are contiguous both on this member and in the array. At least 1.
    pub len: u64,
}

/// The location of every byte of an array. Immutable.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The ends of the first zones, without the last one. Unused entries hold [`u64::MAX`], which no offset reaches.
    counted_ends: [u64; COUNTED_ENDS],
    /// The ends of all zones, as offsets in the array.
    ends: Vec<u64>,
    pub(crate) compiled: Vec<CompiledZone>,
    /// The slot table; see [`Geometry::slots`].
    pub(crate) slots: Vec<u16>,
    spec: Spec,
    member_data_bytes: Vec<u64>,
    zones: Vec<Zone>,
}

impl Geometry {
    /// Lays out an array over members whose data areas have these sizes, in bytes, and derives its zones.
    ///
    /// # Errors
    /// Too few or too many members; an invalid chunk size, number of copies or layout; a member too small for one chunk;
    /// members that are too large together.
    pub fn plan(spec: Spec, member_data_bytes: &[u64]) -> Result<Geometry, GeometryError> {
        let zones = zones::plan(&spec, member_data_bytes)?;
        Ok(Geometry::compile(spec, member_data_bytes, zones))
    }

    /// Builds the geometry from a zone table that was read from a label. The table may be damaged or hostile: all of it is
    /// validated.
    ///
    /// The table need not be the one that [`Geometry::plan`] would derive: it records what was written. Members may be
    /// larger than what the table uses.
    ///
    /// # Errors
    /// As [`Geometry::plan`], and [`GeometryError::BadZone`] for zones that have gaps between them in the array, that
    /// overlap on a member, that end beyond a member, or whose size does not follow from their members and the level.
    pub fn from_zones(spec: Spec, member_data_bytes: &[u64], zones: Vec<Zone>) -> Result<Geometry, GeometryError> {
        zones::check(&spec, member_data_bytes, &zones)?;
        Ok(Geometry::compile(spec, member_data_bytes, zones))
    }

    /// Lays out an existing Linux md array for reading. `member_bytes` are the sizes, in bytes, that md uses of each
    /// member's data; at levels with redundancy all are the same. Besides the layouts of [`Geometry::plan`], this
    /// accepts those of [`crate::Level::md_only_layouts`]. Mirrors and concats need not end on a block boundary, only
    /// on a sector boundary. Levels with redundancy get a single zone.
    ///
    /// # Errors
    /// As [`Geometry::plan`].
    pub fn imported(spec: Spec, member_bytes: &[u64]) -> Result<Geometry, GeometryError> {
        let zones = zones::imported(&spec, member_bytes)?;
        Ok(Geometry::compile(spec, member_bytes, zones))
    }

    fn compile(spec: Spec, member_data_bytes: &[u64], zones: Vec<Zone>) -> Geometry {
        let mut compiled = Vec::with_capacity(zones.len());
        let mut slots = Vec::new();
        let mut first_stripe = 0;
        for zone in &zones {
            compiled.push(CompiledZone::new(&spec, zone, first_stripe, &mut slots));
            first_stripe += zone.member_bytes / spec.chunk_bytes;
        }
        let ends: Vec<u64> = zones.iter().map(Zone::array_end).collect();
        let mut counted_ends = [u64::MAX; COUNTED_ENDS];
        for (counted, end) in counted_ends.iter_mut().zip(&ends[..ends.len() - 1]) {
            *counted = *end;
        }
        Geometry { counted_ends, ends, compiled, slots, spec, member_data_bytes: member_data_bytes.to_vec(), zones }
    }

    /// Returns the size of the array, in bytes. Always above 0.
    #[must_use]
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the zones, in the order of the array.
    #[must_use]
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Returns the specification that the geometry was built from.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the sizes of the members' data areas, in bytes.
    #[must_use]
    pub fn member_data_bytes(&self) -> &[u64] {
        &self.member_data_bytes
    }

    /// Returns the index of the zone that holds an offset of the array; the last zone for offsets beyond the end.
    #[inline]
    pub(crate) fn zone_index(&self, array_offset: u64) -> usize {
        if self.ends.len() <= COUNTED_ENDS + 1 {
            self.counted_ends.iter().map(|&end| usize::from(array_offset >= end)).sum()
        } else {
            self.ends[..self.ends.len() - 1].partition_point(|&end| array_offset >= end)
        }
    }

    /// Returns the location of the byte at `array_offset`: its only location with concat and raid0, its first copy with raid1
    /// and raid10, the location of the data with raid5 and raid6.
    ///
    /// `array_offset` must be below [`Geometry::size_bytes`]. Beyond it a debug build panics, and a release build returns an
    /// undefined range.
    #[must_use]
    #[inline]
    pub fn locate(&self, array_offset: u64) -> MemberRange {
        debug_assert!(array_offset < self.size_bytes());
        let index = self.zone_index(array_offset);
        let zone = &self.compiled[index];
        self.member_range(index, zone, array_offset - zone.array_start, 0)
    }

    /// Returns the slot table, which has the member in each slot of every zone, in the order of the zones. Within a
    /// zone the members are in ascending order, which raid0 with [`crate::Layout::Original`] rotates.
    #[must_use]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    #[inline]
    fn member_range(&self, index: usize, zone: &CompiledZone, zone_offset: u64, copy: u64) -> MemberRange {
        let location = zone.locate(zone_offset, copy);
        MemberRange {
            member: self.slots[location.slot_index],
            zone: index as u16,
            member_offset: location.member_offset,
            len: location.len,
        }
    }

    /// Passes every copy of the byte at `array_offset` to `out`, the first copy first; a single location at levels without
    /// copies.
    ///
    /// `array_offset` must be below [`Geometry::size_bytes`], as for [`Geometry::locate`].
    #[inline]
    pub fn copies(&self, array_offset: u64, out: &mut impl FnMut(MemberRange)) {
        debug_assert!(array_offset < self.size_bytes());
        let index = self.zone_index(array_offset);
        let zone = &self.compiled[index];
        for copy in 0..zone.copies() {
            out(self.member_range(index, zone, array_offset - zone.array_start, copy));
        }
    }
}
