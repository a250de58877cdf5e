//! First touch: a region takes its first write only after its bit is durable.
//!
//! The bits stand in blocks of 4 KiB, 32,768 regions each, at the same relative place on every
//! copy. Any shard reads a bit with one load; only the map's home shard sets one, after the block
//! that holds it is durable on every copy. This is the trial of the slow path, and the ground on
//! which the write-intent bitmap stands.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::{LeafId, ShardId};

/// Regions whose bits share one 4 KiB block.
pub const REGIONS_PER_BLOCK: u32 = 4096 * 8;

/// Which regions of a device have been touched, and where that is recorded.
#[derive(Debug)]
pub struct TouchMap {
    home: ShardId,
    region_shift: u32,
    regions: u32,
    durable: Box<[AtomicU64]>,
    places: Box<[(LeafId, u64)]>,
}

impl TouchMap {
    /// A map for `size_bytes` in regions of `region_bytes` (a power of two, at least 4096), with
    /// no region touched. `places` says where the first block of bits stands on each copy.
    ///
    /// # Panics
    /// When `region_bytes` is no such power of two, or there are more than 2^32 regions.
    pub fn new(home: ShardId, size_bytes: u64, region_bytes: u64, places: Vec<(LeafId, u64)>) -> TouchMap {
        assert!(region_bytes.is_power_of_two() && region_bytes >= 4096, "region of {region_bytes} bytes");
        let regions = u32::try_from(size_bytes.div_ceil(region_bytes)).expect("fewer than 2^32 regions");
        TouchMap {
            home,
            region_shift: region_bytes.trailing_zeros(),
            regions,
            durable: (0..u64::from(regions).div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            places: places.into(),
        }
    }

    /// Takes over bits that were read back from a disk, block `index` of them. Every bit set there counts as durable.
    pub fn load_block(&self, index: u32, bytes: &[u8; 4096]) {
        let first = index as usize * (REGIONS_PER_BLOCK as usize / 64);
        for (k, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            if let Some(bits) = self.durable.get(first + k) {
                bits.fetch_or(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    /// The shard that alone may set bits.
    pub fn home(&self) -> ShardId {
        self.home
    }

    /// Where the first block of bits stands on each copy.
    pub fn places(&self) -> &[(LeafId, u64)] {
        &self.places
    }

    /// Blocks of 4 KiB that hold the bits.
    pub fn blocks(&self) -> u32 {
        self.regions.div_ceil(REGIONS_PER_BLOCK)
    }

    /// Whether every byte below `size_bytes` has a region.
    pub fn covers(&self, size_bytes: u64) -> bool {
        size_bytes <= u64::from(self.regions) << self.region_shift
    }

    /// The region that holds this byte.
    #[inline]
    pub fn region_of(&self, offset: u64) -> u32 {
        (offset >> self.region_shift) as u32
    }

    /// The first byte after the region that holds `offset`.
    #[inline]
    pub fn region_end(&self, offset: u64) -> u64 {
        ((offset >> self.region_shift) + 1) << self.region_shift
    }

    /// Whether the region's bit is durable on every copy.
    #[inline]
    pub fn is_durable(&self, region: u32) -> bool {
        // Acquire: pairs with the home shard's release, so that who sees the bit also sees what went before it.
        self.durable[region as usize / 64].load(Ordering::Acquire) & (1 << (region % 64)) != 0
    }

    /// Fills `bytes` with block `index` as it is durable now, with the bits of `more` added.
    pub(crate) fn image(&self, index: u32, more: &[u64], bytes: &mut [u8; 4096]) {
        let first = index as usize * (REGIONS_PER_BLOCK as usize / 64);
        for (k, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let bits = self.durable.get(first + k).map_or(0, |w| w.load(Ordering::Relaxed));
            *word = (bits | more[k]).to_le_bytes();
        }
    }

    /// Marks the bits of `more` in block `index` as durable. Called by the home shard alone.
    pub(crate) fn set_durable(&self, index: u32, more: &[u64]) {
        let first = index as usize * (REGIONS_PER_BLOCK as usize / 64);
        for (k, bits) in more.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            self.durable[first + k].fetch_or(*bits, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_survive_an_image() {
        let map = TouchMap::new(ShardId(0), 1 << 30, 1 << 16, vec![(LeafId(0), 4096)]);
        assert_eq!(map.blocks(), 1);
        let mut more = [0u64; 512];
        more[3] = 1 << 7;
        assert!(!map.is_durable(3 * 64 + 7));
        map.set_durable(0, &more);
        assert!(map.is_durable(3 * 64 + 7));
        let mut bytes = [0u8; 4096];
        map.image(0, &[0; 512], &mut bytes);
        let other = TouchMap::new(ShardId(0), 1 << 30, 1 << 16, vec![(LeafId(0), 4096)]);
        other.load_block(0, &bytes);
        assert!(other.is_durable(199) && !other.is_durable(198) && !other.is_durable(200));
    }

    #[test]
    fn regions_cover_the_last_byte() {
        let map = TouchMap::new(ShardId(0), (1 << 16) + 1, 1 << 16, vec![]);
        assert!(map.covers((1 << 16) + 1) && map.covers(2 << 16) && !map.covers((2 << 16) + 1));
        assert_eq!((map.region_of(65535), map.region_of(65536), map.region_end(65535)), (0, 1, 65536));
    }
}
