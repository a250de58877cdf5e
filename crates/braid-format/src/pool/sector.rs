//! The address sector of a packed extent: which block of its owner each of its 64 slots holds.
//!
//! A slot's word has the address in its low 48 bits: the number of the block in its owner. The high 16 bits are a
//! checksum of the address, the member, the extent, the slot and the extent's life number. So decoding refuses an
//! address that a crash left over from an earlier use of the extent.

use super::{Aligned, EXTENT_BLOCKS, VOLUME_BLOCKS_MAX};

/// Size of an address sector, in bytes: 64 words, little-endian.
pub const ADDRESS_SECTOR_BYTES: usize = EXTENT_BLOCKS as usize * size_of::<u64>();
/// The word of an empty slot.
pub const NO_ADDRESS: u64 = u64::MAX;
const _: () = assert!(ADDRESS_SECTOR_BYTES == 512);

/// Number of bits of a word that hold the address.
const ADDRESS_BITS: u32 = 48;

/// A word is not an address of this slot in this life of the extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the word {word:#018x} is no address of this slot")]
pub struct AddressError {
    /// The word.
    pub word: u64,
}

/// Returns the word of a slot that holds block `block` of the extent's owner.
///
/// # Panics
/// When no volume has this block, or no extent has this slot.
pub fn encode_address(member: u8, extent: u32, slot: u8, block: u64, life: u16) -> u64 {
    assert!(block < VOLUME_BLOCKS_MAX && u32::from(slot) < EXTENT_BLOCKS, "no address: block {block}, slot {slot}");
    block | check(member, extent, slot, block, life) << ADDRESS_BITS
}

/// Returns the block that a slot holds; `None` if it is empty.
///
/// # Errors
/// When the word is damaged, or was written for another slot or in another life of the extent.
pub fn decode_address(word: u64, member: u8, extent: u32, slot: u8, life: u16) -> Result<Option<u64>, AddressError> {
    if word == NO_ADDRESS {
        return Ok(None);
    }
    let block = word & ((1 << ADDRESS_BITS) - 1);
    let sound = block < VOLUME_BLOCKS_MAX && word >> ADDRESS_BITS == check(member, extent, slot, block, life);
    if sound { Ok(Some(block)) } else { Err(AddressError { word }) }
}

/// Returns the checksum: the low 16 bits of a CRC-32C.
fn check(member: u8, extent: u32, slot: u8, block: u64, life: u16) -> u64 {
    let mut aligned = Aligned([0; 16]);
    let bytes = &mut aligned.0;
    bytes[0] = member;
    bytes[1..5].copy_from_slice(&extent.to_le_bytes());
    bytes[5] = slot;
    bytes[6..14].copy_from_slice(&block.to_le_bytes());
    bytes[14..].copy_from_slice(&life.to_le_bytes());
    u64::from(crc32c::crc32c(bytes) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_only_for_their_slot() {
        for block in [0, 1, 0x12_3456_7890, VOLUME_BLOCKS_MAX - 1] {
            let word = encode_address(5, 1000, 63, block, 9);
            assert_eq!(word & 0xffff_ffff_ffff, block);
            assert_eq!(decode_address(word, 5, 1000, 63, 9), Ok(Some(block)));
            let refused = Err(AddressError { word });
            assert_eq!(decode_address(word, 4, 1000, 63, 9), refused);
            assert_eq!(decode_address(word, 5, 1001, 63, 9), refused);
            assert_eq!(decode_address(word, 5, 1000, 62, 9), refused);
            assert_eq!(decode_address(word, 5, 1000, 63, 10), refused);
        }
        assert_eq!(decode_address(NO_ADDRESS, 0, 0, 0, 0), Ok(None));
    }

    #[test]
    fn every_changed_bit_is_detected() {
        for block in [0, 0x2a_aaaa_aaaa, VOLUME_BLOCKS_MAX - 1] {
            let word = encode_address(5, 1000, 63, block, 9);
            for bit in 0..64 {
                assert!(decode_address(word ^ 1 << bit, 5, 1000, 63, 9).is_err(), "bit {bit}");
                assert!(decode_address(NO_ADDRESS ^ 1 << bit, 5, 1000, 63, 9).is_err(), "bit {bit} of none");
            }
        }
        // Changes of what the address applies to are detected as well.
        let word = encode_address(5, 1000, 63, 77, 9);
        for bit in 0..32 {
            assert!(decode_address(word, 5, 1000 ^ 1 << bit, 63, 9).is_err());
            assert!(decode_address(word, 5 ^ 1 << (bit % 8), 1000, 63, 9).is_err());
            assert!(decode_address(word, 5, 1000, 63 ^ 1 << (bit % 6), 9).is_err());
            assert!(decode_address(word, 5, 1000, 63, 9 ^ 1 << (bit % 16)).is_err());
        }
    }

    #[test]
    fn blocks_beyond_every_volume_are_refused() {
        for block in [VOLUME_BLOCKS_MAX, 1 << 38, (1 << 48) - 2] {
            let word = block | check(1, 2, 3, block, 4) << 48;
            assert_eq!(decode_address(word, 1, 2, 3, 4), Err(AddressError { word }));
        }
    }

    /// Computed by hand, as `docs/internals/format/pools.md` says: 5, 1000, 63, 77 and 9 in 1, 4, 1, 8 and 2 bytes.
    #[test]
    fn the_checksum_covers_these_bytes() {
        let bytes = [5, 0xe8, 3, 0, 0, 63, 77, 0, 0, 0, 0, 0, 0, 0, 9, 0];
        let crc = crc32c::crc32c(&bytes);
        assert_eq!(encode_address(5, 1000, 63, 77, 9), u64::from(crc & 0xffff) << 48 | 77);
    }
}
