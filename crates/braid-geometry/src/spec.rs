//! The specification of an array: level, layout, chunk size, copies and zone policy.

use crate::{BLOCK_BYTES, CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, GeometryError, Layout, Level, MEMBERS_MAX, ZonePolicy};

/// The requested properties of an array, without its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The RAID level.
    pub level: Level,
    /// One of [`Level::layouts`].
    pub layout: Layout,
    /// The chunk size: the number of contiguous bytes on one member, a multiple of 4 KiB up to 64 MiB. Concat uses it
    /// only to round down the size of each member. Raid1 does not use it, but it must be valid there, too.
    pub chunk_bytes: u64,
    /// Raid10: the number of copies of each chunk, at least 2. Raid1 always has a copy on each member; the value 1
    /// permits a raid1 array with a single member. The other levels do not use it.
    pub copies: u16,
    /// Whether the array uses capacity that only some of its members have.
    pub zones: ZonePolicy,
}

impl Spec {
    /// Returns the specification of a level with default properties: its first layout, 64 KiB chunks, 2 copies, all zones.
    #[must_use]
    pub const fn new(level: Level) -> Spec {
        Spec { level, layout: level.layouts()[0], chunk_bytes: CHUNK_BYTES_DEFAULT, copies: 2, zones: ZonePolicy::All }
    }

    /// Returns the minimum number of members of a zone that gives the level's guarantees.
    #[must_use]
    pub const fn min_members(&self) -> usize {
        match self.level {
            Level::Concat | Level::Raid0 => 1,
            // With `copies` 1 the user has requested a mirror of one member, to which members may be added later.
            Level::Raid1 if self.copies == 1 => 1,
            Level::Raid1 | Level::Raid5 => 2,
            Level::Raid10 => self.copies as usize,
            Level::Raid6 => 3,
        }
    }

    /// Returns the unit to which the size of each member is rounded down, in bytes.
    #[must_use]
    pub const fn unit_bytes(&self) -> u64 {
        match self.level {
            Level::Raid1 => BLOCK_BYTES,
            _ => self.chunk_bytes,
        }
    }

    /// Returns the number of copies of each byte in a zone over `width` members.
    #[must_use]
    pub const fn copies_over(&self, width: usize) -> usize {
        match self.level {
            Level::Raid1 => width,
            Level::Raid10 => self.copies as usize,
            _ => 1,
        }
    }

    /// Returns the size in the array, in bytes, of a zone over `width` members that takes `height_bytes` of each.
    ///
    /// `None` if the size overflows, if raid10 has 0 copies, or if there are fewer members than parity chunks. Raid10 may leave a
    /// part of the last rows unused, because it holds whole chunks.
    #[must_use]
    pub fn zone_bytes(&self, width: usize, height_bytes: u64) -> Option<u64> {
        let width_count = width as u64;
        match self.level {
            Level::Concat | Level::Raid0 => height_bytes.checked_mul(width_count),
            Level::Raid1 => Some(height_bytes),
            // The rows are divided into as many equal parts as there are copies.
            Level::Raid10 if matches!(self.layout, Layout::Far | Layout::Offset) => {
                let rows = (height_bytes / self.chunk_bytes).checked_div(u64::from(self.copies))?;
                rows.checked_mul(width_count)?.checked_mul(self.chunk_bytes)
            }
            Level::Raid10 => {
                let cells = (height_bytes / self.chunk_bytes).checked_mul(width_count)?;
                cells.checked_div(u64::from(self.copies))?.checked_mul(self.chunk_bytes)
            }
            Level::Raid5 | Level::Raid6 => {
                height_bytes.checked_mul(width_count.checked_sub(u64::from(self.level.parity()))?)
            }
        }
    }

    /// Returns the number of bytes that a raid0 member with `rounded_bytes` of whole chunks contributes to the size of the array.
    ///
    /// It contributes all of them if the chunk size is a power of two. For other chunk sizes Linux md clears the bits
    /// of `chunk_bytes - 512` in the member's size instead of dividing (`raid0_size` in the kernel's `raid0.c`, as the
    /// arrays with 96 KiB chunks in `tests/golden/md-layouts` show). The array then ends up to one chunk per member
    /// earlier. Braid does the same, so that md and Braid give an array the same size, whichever of them created it.
    #[must_use]
    pub const fn raid0_end_bytes(&self, rounded_bytes: u64) -> u64 {
        const SECTOR_BYTES: u64 = 512;
        rounded_bytes & !(self.chunk_bytes - SECTOR_BYTES)
    }

    /// Returns the maximum number of bytes by which the last zone of an array of `members` members may be shorter than
    /// [`Spec::zone_bytes`]: 0, except for raid0 with a chunk size that is not a power of two (see [`Spec::raid0_end_bytes`]).
    #[must_use]
    pub const fn truncated_bytes_max(&self, members: usize) -> u64 {
        match self.level {
            Level::Raid0 if !self.chunk_bytes.is_power_of_two() => self.chunk_bytes * members as u64 - 1,
            _ => 0,
        }
    }

    /// Validates everything that does not depend on the sizes of the members.
    ///
    /// # Errors
    /// Too few or too many members; an invalid chunk size, number of copies or layout.
    pub fn check(&self, members: usize) -> Result<(), GeometryError> {
        if !self.level.layouts().contains(&self.layout) {
            return Err(GeometryError::UnsupportedLayout { level: self.level, layout: self.layout });
        }
        self.check_numbers(members)
    }

    /// Validates the same as [`Spec::check`], and also accepts the layouts of [`Level::md_only_layouts`].
    pub(crate) fn check_imported(&self, members: usize) -> Result<(), GeometryError> {
        let known = [self.level.layouts(), self.level.md_only_layouts()].concat();
        if !known.contains(&self.layout) {
            return Err(GeometryError::UnsupportedLayout { level: self.level, layout: self.layout });
        }
        self.check_numbers(members)
    }

    fn check_numbers(&self, members: usize) -> Result<(), GeometryError> {
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(BLOCK_BYTES) || self.chunk_bytes > CHUNK_BYTES_MAX
        {
            return Err(GeometryError::BadChunk { chunk_bytes: self.chunk_bytes });
        }
        if members > MEMBERS_MAX {
            return Err(GeometryError::TooManyMembers { given: members });
        }
        if self.level == Level::Raid10 && (self.copies < 2 || usize::from(self.copies) > members && members >= 2) {
            return Err(GeometryError::BadCopies { copies: self.copies, members });
        }
        if members < self.min_members() {
            return Err(GeometryError::TooFewMembers { level: self.level, given: members, needed: self.min_members() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raid10_without_copies_has_no_size() {
        let spec = |copies| Spec { copies, ..Spec::new(Level::Raid10) };
        assert_eq!((spec(2).zone_bytes(4, 1 << 20), spec(0).zone_bytes(4, 1 << 20)), (Some(2 << 20), None));
    }
}
