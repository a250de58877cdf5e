//! The array as a whole: from an offset in the array to a place on a member.

use crate::compiled::CompiledZone;
use crate::{GeometryError, Spec, Zone, zones};

/// Up to one zone more than this, the right one is found by counting the ends that lie before: four comparisons and no
/// branch to be guessed wrong.
pub(crate) const COUNTED_ENDS: usize = 4;

/// A contiguous place on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The member, counted from 0.
    pub member: u16,
    /// The zone, counted from 0.
    pub zone: u16,
    /// Where it is in the member's data area, in bytes.
    pub member_offset: u64,
    /// Bytes from here on that are contiguous both on this member and in the array. At least 1.
    pub len: u64,
}

/// Where every byte of an array lives. Immutable.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The ends of the first zones, without the last one; the places left over hold what no offset reaches.
    counted_ends: [u64; COUNTED_ENDS],
    /// The ends of all zones in the array.
    ends: Vec<u64>,
    pub(crate) compiled: Vec<CompiledZone>,
    /// The members of all zones, one zone after the other.
    pub(crate) slots: Vec<u16>,
    spec: Spec,
    member_data_bytes: Vec<u64>,
    zones: Vec<Zone>,
}

impl Geometry {
    /// Lays out an array over members whose data areas have these sizes (in bytes), and derives its zones.
    ///
    /// # Errors
    /// Too few or too many members, a chunk, a number of copies or a layout that cannot be, a member too small for
    /// one chunk.
    pub fn plan(spec: Spec, member_data_bytes: &[u64]) -> Result<Geometry, GeometryError> {
        let zones = zones::plan(&spec, member_data_bytes)?;
        Ok(Geometry::compile(spec, member_data_bytes, zones))
    }

    /// Takes a table of zones that was read from a label. It may be damaged or hostile: everything is checked.
    ///
    /// The table need not be the one that [`Geometry::plan`] would derive: it is a fact. Members may be larger than
    /// what it uses.
    ///
    /// # Errors
    /// As [`Geometry::plan`], and [`GeometryError::BadZone`] for zones that do not follow one another without gap,
    /// overlap on a member, end beyond one, or are not what their members and the level give.
    pub fn from_zones(spec: Spec, member_data_bytes: &[u64], zones: Vec<Zone>) -> Result<Geometry, GeometryError> {
        zones::check(&spec, member_data_bytes, &zones)?;
        Ok(Geometry::compile(spec, member_data_bytes, zones))
    }

    /// Lays out an array that Linux md made, to be read. `member_bytes`: what md uses of each member, in bytes, and at levels with
    /// redundancy the same of all. Besides what [`Geometry::plan`] knows, the layouts are right that only md makes, and mirrors and concats
    /// need not end with a block, only with a sector.
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

    /// The array's size in bytes. Always above 0.
    #[must_use]
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The zones, in the order of the array.
    #[must_use]
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// What was asked for.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The sizes of the members' data areas, in bytes.
    #[must_use]
    pub fn members(&self) -> &[u64] {
        &self.member_data_bytes
    }

    /// The number of the zone that holds an offset of the array; the last zone for offsets beyond the end.
    #[inline]
    pub(crate) fn zone_index(&self, array_offset: u64) -> usize {
        if self.ends.len() <= COUNTED_ENDS + 1 {
            self.counted_ends.iter().map(|&end| usize::from(array_offset >= end)).sum()
        } else {
            self.ends[..self.ends.len() - 1].partition_point(|&end| array_offset >= end)
        }
    }

    /// Where the byte at `array_offset` is: its one place at concat and raid0, its first copy at raid1 and raid10, the
    /// place of the data at raid5 and raid6.
    ///
    /// `array_offset` must be below [`Geometry::size_bytes`]. Beyond it a debug build panics, and a release build
    /// gives a piece that means nothing.
    #[must_use]
    #[inline]
    pub fn locate(&self, array_offset: u64) -> Piece {
        debug_assert!(array_offset < self.size_bytes());
        let index = self.zone_index(array_offset);
        let zone = &self.compiled[index];
        self.piece(index, zone, array_offset - zone.array_start, 0)
    }

    /// Which member stands at each place: the members of all zones, one zone after the other.
    #[must_use]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    #[inline]
    fn piece(&self, index: usize, zone: &CompiledZone, zone_offset: u64, copy: u64) -> Piece {
        let spot = zone.spot(zone_offset, copy);
        Piece {
            member: self.slots[spot.slot_index],
            zone: index as u16,
            member_offset: spot.member_offset,
            len: spot.len,
        }
    }

    /// Gives every copy of the byte at `array_offset`, the first one first; a single one at levels without copies.
    ///
    /// `array_offset` as for [`Geometry::locate`].
    #[inline]
    pub fn copies(&self, array_offset: u64, out: &mut impl FnMut(Piece)) {
        debug_assert!(array_offset < self.size_bytes());
        let index = self.zone_index(array_offset);
        let zone = &self.compiled[index];
        for copy in 0..zone.copies() {
            out(self.piece(index, zone, array_offset - zone.array_start, copy));
        }
    }
}
