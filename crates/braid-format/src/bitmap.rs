//! The on-disk write-intent bitmap, which each member holds: two bits for each region of the array.
//!
//! | `written` | `dirty` | state of the region |
//! |---|---|---|
//! | 0 | 0 | *unwritten*: it reads as zeros, whatever the members hold |
//! | 0 | 1 | *preparing*: it is being zeroed on all members, and still reads as zeros |
//! | 1 | 1 | *dirty*: it was written, and the members may differ |
//! | 1 | 0 | *clean*: it was written, and the members agree |
//!
//! The bits are in sectors of 512 bytes, each with a checksum, its number and a tag of the array. Disks write a sector
//! atomically, so each sector is the old or the new one, and both are valid states of its regions: a bit that is set on
//! one member and not on another counts as set. A damaged sector is restored from the other members.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::BLOCK_BYTES;

/// Words of 64 regions in a sector.
pub const WORDS_PER_SECTOR: usize = 31;
/// Sectors in a block of 4 KiB.
pub const SECTORS_PER_BLOCK: usize = 8;
/// Words of 64 regions in a block.
pub const WORDS_PER_BLOCK: usize = WORDS_PER_SECTOR * SECTORS_PER_BLOCK;
/// Number of regions in a block.
pub const REGIONS_PER_BLOCK: u32 = WORDS_PER_BLOCK as u32 * 64;
/// Maximum size of a region, in bytes.
pub const REGION_BYTES_MAX: u32 = 4 << 20;
/// Maximum number of regions of an array: region numbers have 32 bits.
pub const REGIONS_MAX: u64 = u32::MAX as u64;
/// Minimum size of a region of a new array, in bytes. Labels may record smaller ones, down to 4096.
pub const REGION_BYTES_MIN: u32 = 64 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"BRBM");
const SECTOR_BYTES: usize = 512;

/// A sector, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSector {
    /// CRC-32C of the bytes after it.
    crc: U32,
    magic: U32,
    /// Its number in the bitmap, from 0.
    number: U32,
    /// The first four bytes of the array's UUID.
    tag: U32,
    written: [U64; WORDS_PER_SECTOR],
    dirty: [U64; WORDS_PER_SECTOR],
}

const _: () = assert!(size_of::<RawSector>() == SECTOR_BYTES);
const _: () = assert!(SECTORS_PER_BLOCK * SECTOR_BYTES == BLOCK_BYTES as usize);

/// The bits of a block: bit *i* of word *w* is region 64 *w* + *i*, counted from the block's first region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapBlock {
    /// Written since the array was created.
    pub written: [u64; WORDS_PER_BLOCK],
    /// The members may differ; where `written` is not set, the region is being prepared.
    pub dirty: [u64; WORDS_PER_BLOCK],
}

impl BitmapBlock {
    /// No bit set.
    pub const EMPTY: BitmapBlock = BitmapBlock { written: [0; WORDS_PER_BLOCK], dirty: [0; WORDS_PER_BLOCK] };

    /// Sets all bits that are set in `other`.
    pub fn merge(&mut self, other: &BitmapBlock) {
        self.written.iter_mut().zip(&other.written).for_each(|(all, some)| *all |= some);
        self.dirty.iter_mut().zip(&other.dirty).for_each(|(all, some)| *all |= some);
    }
}

/// A decoded block of the bitmap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodedBlock {
    /// The bits of the valid sectors; those of damaged sectors are 0.
    pub bits: BitmapBlock,
    /// Bit *i*: sector *i* of the block is damaged, or is not this sector of this array.
    pub damaged: u8,
}

/// Returns the size of a bitmap of this many regions, in bytes, a multiple of 4096.
pub fn bytes_for(regions: u64) -> u64 {
    regions.div_ceil(u64::from(REGIONS_PER_BLOCK)) * BLOCK_BYTES
}

/// Returns the region size for a new array of this size, in bytes: 1/1024 of the array, rounded up to a power of two,
/// from 64 KiB to 4 MiB.
pub fn region_bytes_for(array_bytes: u64) -> u32 {
    let wanted = (array_bytes / 1024).next_power_of_two();
    wanted.clamp(u64::from(REGION_BYTES_MIN), u64::from(REGION_BYTES_MAX)) as u32
}

pub(crate) fn tag(array: &Uuid) -> u32 {
    let [a, b, c, d, ..] = array.into_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Encodes block `block` of an array's bitmap into `bytes`.
///
/// # Panics
/// When the numbers of the block's sectors do not fit in 32 bits.
pub fn encode(array: &Uuid, block: u32, bits: &BitmapBlock, bytes: &mut [u8; BLOCK_BYTES as usize]) {
    for (k, out) in bytes.as_chunks_mut::<SECTOR_BYTES>().0.iter_mut().enumerate() {
        let words = k * WORDS_PER_SECTOR..(k + 1) * WORDS_PER_SECTOR;
        let words_of = |plane: &[u64; WORDS_PER_BLOCK]| {
            let mut raw = [U64::ZERO; WORDS_PER_SECTOR];
            raw.iter_mut().zip(&plane[words.clone()]).for_each(|(raw, word)| raw.set(*word));
            raw
        };
        let raw = RawSector {
            crc: U32::ZERO,
            magic: U32::new(MAGIC),
            number: U32::new(block * SECTORS_PER_BLOCK as u32 + k as u32),
            tag: U32::new(tag(array)),
            written: words_of(&bits.written),
            dirty: words_of(&bits.dirty),
        };
        out.copy_from_slice(raw.as_bytes());
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Decodes block `block` of an array's bitmap. A damaged sector does not affect the others.
pub fn decode(array: &Uuid, block: u32, bytes: &[u8; BLOCK_BYTES as usize]) -> DecodedBlock {
    let mut read = DecodedBlock { bits: BitmapBlock::EMPTY, damaged: 0 };
    for (k, sector) in bytes.as_chunks::<SECTOR_BYTES>().0.iter().enumerate() {
        let number = block * SECTORS_PER_BLOCK as u32 + k as u32;
        let whole = |raw: &&RawSector| {
            raw.crc.get() == crc32c::crc32c(&sector[4..])
                && (raw.magic.get(), raw.number.get(), raw.tag.get()) == (MAGIC, number, tag(array))
        };
        let Some(raw) = RawSector::ref_from_bytes(sector).ok().filter(whole) else {
            read.damaged |= 1 << k;
            continue;
        };
        for word in 0..WORDS_PER_SECTOR {
            read.bits.written[k * WORDS_PER_SECTOR + word] = raw.written[word].get();
            read.bits.dirty[k * WORDS_PER_SECTOR + word] = raw.dirty[word].get();
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_bits() -> BitmapBlock {
        let mut bits = BitmapBlock::EMPTY;
        bits.written[0] = 0x8000_0000_0000_0001;
        bits.written[WORDS_PER_BLOCK - 1] = 2;
        bits.dirty[WORDS_PER_SECTOR] = 4;
        bits
    }

    #[test]
    fn a_block_round_trips() {
        let array = Uuid::from_u128(7 << 96);
        let mut bytes = [0xff; 4096];
        encode(&array, 3, &sample_bits(), &mut bytes);
        assert_eq!(decode(&array, 3, &bytes), DecodedBlock { bits: sample_bits(), damaged: 0 });
    }

    #[test]
    fn a_misplaced_block_or_one_of_another_array_is_refused() {
        let array = Uuid::from_u128(7 << 96);
        let mut bytes = [0; 4096];
        encode(&array, 3, &sample_bits(), &mut bytes);
        for (of, block) in [(array, 2), (Uuid::from_u128(8 << 96), 3)] {
            assert_eq!(decode(&of, block, &bytes), DecodedBlock { bits: BitmapBlock::EMPTY, damaged: 0xff });
        }
        assert_eq!(decode(&array, 0, &[0; 4096]).damaged, 0xff);
    }

    #[test]
    fn damage_is_detected_and_confined_to_its_sector() {
        let array = Uuid::from_u128(7 << 96);
        let mut whole = [0; 4096];
        encode(&array, 0, &sample_bits(), &mut whole);
        for at in 0..4096 {
            let mut bytes = whole;
            bytes[at] ^= 0x10;
            let read = decode(&array, 0, &bytes);
            assert_eq!(read.damaged, 1 << (at / 512));
            let mut expected = sample_bits();
            let words = at / 512 * WORDS_PER_SECTOR..(at / 512 + 1) * WORDS_PER_SECTOR;
            expected.written[words.clone()].fill(0);
            expected.dirty[words].fill(0);
            assert_eq!(read.bits, expected);
        }
    }

    #[test]
    fn region_sizes() {
        for (bytes, region) in
            [(4096, 64 << 10), (1 << 20, 64 << 10), (1 << 30, 1 << 20), (1 << 32, 4 << 20), (1 << 50, 4 << 20)]
        {
            assert_eq!(region_bytes_for(bytes), region);
        }
        assert_eq!((bytes_for(1), bytes_for(15872), bytes_for(15873)), (4096, 4096, 8192));
    }
}
