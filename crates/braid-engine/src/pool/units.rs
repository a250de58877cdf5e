//! The units of a pool, and the identifiers of extents and records.

use braid_format::pool::{ADDRESS_SECTOR_BYTES, RECORD_BYTES};

/// Bytes of a block, the smallest unit of allocation.
pub const BLOCK_BYTES: u64 = 4096;

/// Blocks of an extent: as many as a word has bits, so that one word says which of them are present.
pub const EXTENT_BLOCKS: u32 = 64;

/// Bytes of an extent.
pub const EXTENT_BYTES: u64 = BLOCK_BYTES * EXTENT_BLOCKS as u64;

/// Maximum members of a pool.
pub const MEMBERS_MAX: usize = 128;

/// An extent of a member of a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ExtentId {
    /// The member's number in the pool.
    pub member: u8,
    /// The extent's number on the member, from 0.
    pub index: u32,
}

impl ExtentId {
    /// No extent. In a map it marks a block that may be on a missing member, or in a damaged record. Its content is
    /// unknown, and reading it is an error: it must not read as zeros, nor as something older.
    pub const IN_DOUBT: ExtentId = ExtentId { member: u8::MAX, index: u32::MAX };

    /// Bits that [`ExtentId::bits`] needs.
    pub const BITS: u32 = 40;

    /// Returns the identifier in the low 40 bits of a word.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        (self.member as u64) << 32 | self.index as u64
    }

    /// Reads the identifier from the low 40 bits; the other bits do not matter.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> ExtentId {
        ExtentId { member: (bits >> 32) as u8, index: bits as u32 }
    }
}

/// Identifies a record: an extent's, or one without an extent (a zero range).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordId {
    /// The member.
    pub member: u8,
    /// Index in its table.
    pub index: u32,
}

impl RecordId {
    pub(super) fn key(self) -> u64 {
        u64::from(self.member) << 32 | u64::from(self.index)
    }
}

impl From<ExtentId> for RecordId {
    fn from(extent: ExtentId) -> RecordId {
        RecordId { member: extent.member, index: extent.index }
    }
}

/// Records in a page of a table.
pub(super) const RECORDS_EACH: u32 = (BLOCK_BYTES as usize / RECORD_BYTES) as u32;
/// Sectors of addresses in a page.
pub(super) const SECTORS_EACH: u32 = (BLOCK_BYTES as usize / ADDRESS_SECTOR_BYTES) as u32;

/// `count` bits from bit `first` on.
pub(super) fn mask(first: u32, count: u32) -> u64 {
    debug_assert!(first + count <= EXTENT_BLOCKS);
    if count == 0 { 0 } else { (u64::MAX >> (EXTENT_BLOCKS - count)) << first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_survive_their_bits() {
        for (member, index) in [(0, 0), (1, 0), (127, u32::MAX), (255, u32::MAX)] {
            let id = ExtentId { member, index };
            assert_eq!(id.bits() >> ExtentId::BITS, 0, "{id:?}");
            assert_eq!(ExtentId::from_bits(id.bits() | u64::MAX << ExtentId::BITS), id, "the other bits do not matter");
        }
        assert!(usize::from(ExtentId::IN_DOUBT.member) >= MEMBERS_MAX, "an extent of no member");
        assert!(ExtentId { member: 1, index: 0 }.bits() > ExtentId { member: 0, index: u32::MAX }.bits());
    }
}
