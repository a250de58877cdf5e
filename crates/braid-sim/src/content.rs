//! Sectors that identify themselves.
//!
//! Every sector of 512 bytes that the workload writes names the device, the block, the sector within the block and the
//! version. The rest of the sector is a pattern computed from these. So a stray or torn sector, or one of another
//! block, is recognized, and no other content passes for data by chance.

use crate::rng::mix;

/// Size in bytes of the smallest unit that a disk writes atomically.
pub const SECTOR_BYTES: usize = 512;
/// Size in bytes of a block, the unit of the workload's requests.
pub const BLOCK_BYTES: usize = 4096;
/// Number of sectors in a block.
pub const BLOCK_SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

const MAGIC_DATA: u64 = u64::from_le_bytes(*b"simdata1");
const MAGIC_JUNK: u64 = u64::from_le_bytes(*b"simjunk1");
/// The byte that fills simulated memory that was never written.
pub const POISON: u8 = 0xdb;

/// The write that a sector comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The workload's number of the device. A run never reuses it.
    pub device: u64,
    /// The block on that device.
    pub block: u64,
    /// The version of the block. A run never reuses it.
    pub version: u64,
}

/// The content found in a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sector {
    /// All zeros.
    Zero,
    /// Data of the workload, whole and at the right sector of its block.
    Data(Identity),
    /// Data of the workload, with wrong bytes.
    Damaged(Identity),
    /// The initial content of a new disk.
    Junk,
    /// Poison of memory that was never written.
    Poison,
    /// Anything else (a label, for example).
    Other,
}

fn header(id: &Identity, sector: usize) -> [u64; 6] {
    let sum = mix(id.device ^ mix(id.block ^ mix(id.version ^ mix(sector as u64))));
    [MAGIC_DATA, id.device, id.block, id.version, sector as u64, sum]
}

fn fill(words: &[u64], out: &mut [u8]) {
    let (head, rest) = out.split_at_mut(words.len() * 8);
    for (bytes, word) in head.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    let mut x = words[words.len() - 1];
    for bytes in rest.as_chunks_mut().0 {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *bytes = x.to_le_bytes();
    }
}

/// Fills one block of memory with the given version.
pub fn write_block(id: &Identity, out: &mut [u8]) {
    assert_eq!(out.len(), BLOCK_BYTES);
    for (sector, bytes) in out.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        fill(&header(id, sector), bytes);
    }
}

/// Fills one sector of a disk that was never written.
pub fn write_junk(disk: u64, sector: u64, out: &mut [u8]) {
    fill(&[MAGIC_JUNK, disk, sector, mix(disk ^ mix(sector))], out);
}

/// Identifies the content of a sector that was read as number `sector` of a block.
pub fn read_sector(bytes: &[u8], sector: usize) -> Sector {
    assert_eq!(bytes.len(), SECTOR_BYTES);
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("a slice of 8 bytes"));
    match word(0) {
        0 if bytes.iter().all(|b| *b == 0) => Sector::Zero,
        MAGIC_DATA => {
            let id = Identity { device: word(1), block: word(2), version: word(3) };
            let mut expect = [0; SECTOR_BYTES];
            fill(&header(&id, sector), &mut expect);
            if expect == bytes { Sector::Data(id) } else { Sector::Damaged(id) }
        }
        MAGIC_JUNK => Sector::Junk,
        _ if bytes.iter().all(|b| *b == POISON) => Sector::Poison,
        _ => Sector::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_identify_themselves() {
        let id = Identity { device: 3, block: 17, version: 99 };
        let mut block = vec![0; BLOCK_BYTES];
        write_block(&id, &mut block);
        for (s, bytes) in block.chunks(SECTOR_BYTES).enumerate() {
            assert_eq!(read_sector(bytes, s), Sector::Data(id));
            assert_eq!(read_sector(bytes, (s + 1) % BLOCK_SECTORS), Sector::Damaged(id), "a sector out of its place");
        }
        for at in [40, 48, 300, 511] {
            let mut bad = block[..SECTOR_BYTES].to_vec();
            bad[at] ^= 1;
            assert_eq!(read_sector(&bad, 0), Sector::Damaged(id), "byte {at}");
        }
        assert_eq!(read_sector(&[0; SECTOR_BYTES], 0), Sector::Zero);
        assert_eq!(read_sector(&[POISON; SECTOR_BYTES], 0), Sector::Poison);
        assert_eq!(read_sector(&[1; SECTOR_BYTES], 0), Sector::Other);
        let mut junk = [0; SECTOR_BYTES];
        write_junk(1, 5, &mut junk);
        assert_eq!(read_sector(&junk, 0), Sector::Junk);
    }
}
