//! The units of a pool, and how one of its extents is named.

/// Bytes of a block, the smallest thing that has a place of its own.
pub const BLOCK_BYTES: u64 = 4096;

/// Blocks of an extent: as many as a word has bits, so that one word says which of them are there.
pub const EXTENT_BLOCKS: u32 = 64;

/// Bytes of an extent.
pub const EXTENT_BYTES: u64 = BLOCK_BYTES * EXTENT_BLOCKS as u64;

/// Most members of a pool.
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
    /// No extent: in a map, what stands where a block may be on a member that is absent, or in a record that is damaged. Nobody
    /// knows, and to read it is an error: it must not read as zeros, nor as something older.
    pub const IN_DOUBT: ExtentId = ExtentId { member: u8::MAX, index: u32::MAX };

    /// Bits that [`ExtentId::bits`] needs.
    pub const BITS: u32 = 40;

    /// The name in the low 40 bits of a word.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        (self.member as u64) << 32 | self.index as u64
    }

    /// Takes the name from the low 40 bits; what the others are does not matter.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> ExtentId {
        ExtentId { member: (bits >> 32) as u8, index: bits as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_their_bits() {
        for (member, index) in [(0, 0), (1, 0), (127, u32::MAX), (255, u32::MAX)] {
            let id = ExtentId { member, index };
            assert_eq!(id.bits() >> ExtentId::BITS, 0, "{id:?}");
            assert_eq!(ExtentId::from_bits(id.bits() | u64::MAX << ExtentId::BITS), id, "the other bits do not matter");
        }
        assert!(usize::from(ExtentId::IN_DOUBT.member) >= MEMBERS_MAX, "nobody's extent");
        assert!(ExtentId { member: 1, index: 0 }.bits() > ExtentId { member: 0, index: u32::MAX }.bits());
    }
}
