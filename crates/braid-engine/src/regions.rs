//! The state of the regions of a redundant array: unwritten, clean or dirty, and what I/O they allow.
//!
//! A shard needs one load to check a region: a read needs a region that is *readable* (written, and equal on all
//! members), a write one that is *writable* (readable, and its dirty bit is durable on all members). Only the map's
//! home shard changes the map. The bits on the disks are described in [`braid_format::bitmap`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::Uuid;
use braid_format::bitmap::{self, BitmapBlock, REGIONS_PER_BLOCK, WORDS_PER_BLOCK};
use braid_geometry::{Geometry, Stripe};

use crate::io::ShardId;

/// A bit for each region. A clone shares the bits.
#[derive(Clone, Debug)]
pub struct RegionBits(Arc<[AtomicU64]>);

impl RegionBits {
    fn new(regions: u32) -> RegionBits {
        RegionBits((0..u64::from(regions).div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns whether the region's bit is set.
    #[inline]
    pub fn has(&self, region: u32) -> bool {
        // Acquire: pairs with the home shard's release, so that a shard that sees the bit also sees what preceded it.
        self.0[region as usize / 64].load(Ordering::Acquire) & (1 << (region % 64)) != 0
    }

    /// Returns the bits of 64 regions; 0 beyond the end.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Returns a longer plane with the same bits; those of further regions are clear.
    fn longer(&self, regions: u32) -> RegionBits {
        RegionBits((0..u64::from(regions).div_ceil(64)).map(|word| AtomicU64::new(self.word(word as usize))).collect())
    }

    fn add(&self, word: usize, bits: u64) {
        if bits != 0 {
            self.0[word].fetch_or(bits, Ordering::Release);
        }
    }

    fn remove(&self, word: usize, bits: u64) {
        if bits != 0 {
            // A request that loaded the bit before may still act on it: see `RegionCall::Close`.
            self.0[word].fetch_and(!bits, Ordering::AcqRel);
        }
    }

    /// Returns the number of set bits.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Returns the first region with a set bit, from `region` on.
    pub fn next(&self, region: u32) -> Option<u32> {
        let first = region as usize / 64;
        for (k, word) in self.0.iter().enumerate().skip(first) {
            let mut bits = word.load(Ordering::Acquire);
            if k == first {
                bits &= u64::MAX << (region % 64);
            }
            if bits != 0 {
                return Some(k as u32 * 64 + bits.trailing_zeros());
            }
        }
        None
    }

    /// Returns the first region with a clear bit, from `region` on, below `regions`.
    fn next_clear(&self, region: u32, regions: u32) -> Option<u32> {
        let first = region as usize / 64;
        for (k, word) in self.0.iter().enumerate().skip(first) {
            let mut bits = !word.load(Ordering::Acquire);
            if k == first {
                bits &= u64::MAX << (region % 64);
            }
            if bits != 0 {
                return Some(k as u32 * 64 + bits.trailing_zeros()).filter(|clear| *clear < regions);
            }
        }
        None
    }
}

/// All regions of one array, while it serves.
#[derive(Debug)]
pub struct RegionMap {
    home: ShardId,
    array: Uuid,
    shift: u32,
    regions: u32,
    size_bytes: u64,
    /// Written since the array was created, as recorded durably on all members.
    pub written: RegionBits,
    /// The dirty bit is durable on all members.
    pub dirty: RegionBits,
    /// May be read: written and equal.
    pub readable: RegionBits,
    /// May be written without asking the home shard.
    pub writable: RegionBits,
    /// Dirty since before this run, and not equal yet: it must not be read.
    pub unequal: RegionBits,
    /// A request waits for it to become equal.
    pub wanted: RegionBits,
}

impl RegionMap {
    /// Creates the map of an array of `size_bytes` in regions of `region_bytes`. `bits` are the members' *written* bits
    /// and *dirty* bits, one for each region. A written region that is dirty starts as unequal. With `equal` it does
    /// not: it is known to be equal and durable on all members, and may be read and written at once.
    ///
    /// # Panics
    /// If `region_bytes` is no power of two of at least 4096, or there are 2^32 regions or more.
    pub fn new(
        home: ShardId,
        array: Uuid,
        size_bytes: u64,
        region_bytes: u32,
        bits: (&[u64], &[u64]),
        equal: bool,
    ) -> RegionMap {
        assert!(region_bytes.is_power_of_two() && region_bytes >= 4096, "region of {region_bytes} bytes");
        let regions = u32::try_from(size_bytes.div_ceil(u64::from(region_bytes))).expect("fewer than 2^32 regions");
        let plane = || RegionBits::new(regions);
        let map = RegionMap {
            home,
            array,
            shift: region_bytes.trailing_zeros(),
            regions,
            size_bytes,
            written: plane(),
            dirty: plane(),
            readable: plane(),
            writable: plane(),
            unequal: plane(),
            wanted: plane(),
        };
        for word in 0..map.written.0.len() {
            let inside = match regions as usize - word * 64 {
                64.. => u64::MAX,
                rest => (1 << rest) - 1,
            };
            let of = |bits: &[u64]| bits.get(word).copied().unwrap_or(0) & inside;
            let (written, dirty) = (of(bits.0), of(bits.1));
            map.written.add(word, written);
            map.dirty.add(word, dirty);
            let unsettled = if equal { 0 } else { written & dirty };
            map.unequal.add(word, unsettled);
            map.readable.add(word, written & !unsettled);
            map.writable.add(word, written & dirty & !unsettled);
        }
        map
    }

    /// Returns the map of the same array after growth: the state of its regions is kept, further ones are unwritten.
    /// This map must not change any more: the device is frozen.
    ///
    /// # Panics
    /// If there are 2^32 regions or more.
    pub fn grown(&self, size_bytes: u64) -> RegionMap {
        let regions = u32::try_from(size_bytes.div_ceil(1 << self.shift)).expect("fewer than 2^32 regions");
        let longer = |plane: &RegionBits| plane.longer(regions.max(self.regions));
        RegionMap {
            home: self.home,
            array: self.array,
            shift: self.shift,
            regions: regions.max(self.regions),
            size_bytes: size_bytes.max(self.size_bytes),
            written: longer(&self.written),
            dirty: longer(&self.dirty),
            readable: longer(&self.readable),
            writable: longer(&self.writable),
            unequal: longer(&self.unequal),
            wanted: longer(&self.wanted),
        }
    }

    /// Returns the only shard that changes it.
    pub fn home(&self) -> ShardId {
        self.home
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Returns the number of 4 KiB blocks that hold the bits on each member.
    pub fn blocks(&self) -> u32 {
        self.regions.div_ceil(REGIONS_PER_BLOCK)
    }

    /// Returns whether every byte below `size_bytes` has a region.
    pub fn covers(&self, size_bytes: u64) -> bool {
        size_bytes <= self.size_bytes
    }

    /// Returns the region that holds this byte.
    #[inline]
    pub fn region_of(&self, offset: u64) -> u32 {
        (offset >> self.shift) as u32
    }

    /// Returns the region that a stripe of the geometry belongs to: the one that holds its first byte. A stripe is
    /// zeroed, marked and resynced as a whole, so that one region's bits apply to all of it, including the part in
    /// later regions.
    #[inline]
    pub fn region_of_stripe(&self, stripe: &Stripe<'_>) -> u32 {
        self.region_of(stripe.array_start)
    }

    /// Returns the region whose bits apply to a byte of an array of this geometry.
    #[inline]
    pub fn region_at(&self, geometry: &Geometry, at: u64) -> u32 {
        geometry.stripe_of(at).map_or_else(|| self.region_of(at), |stripe| self.region_of_stripe(&stripe))
    }

    /// Returns whether the array may hold data at a byte, and the first later byte for which this may be different: the
    /// inverse of [`RegionMap::region_at`], for runs. Where it holds no data, reads return zeros, whatever is on its
    /// members. A concurrent write may be reported as before or as after it.
    pub fn run_at(&self, geometry: &Geometry, at: u64) -> (bool, u64) {
        let region = self.region_at(geometry, at);
        let is_written = self.written.has(region);
        let other = match is_written {
            true => self.written.next_clear(region + 1, self.regions),
            false => self.written.next(region + 1),
        };
        let end = other.map_or(u64::MAX, |other| {
            let start = u64::from(other) << self.shift;
            // The stripe across the boundary of two regions belongs to the former.
            geometry.stripe_of(start).filter(|stripe| stripe.array_start < start).map_or(start, |s| s.array_end())
        });
        (is_written, end.min(geometry.size_bytes()))
    }

    /// Returns the base-2 logarithm of the size of a region in bytes.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns the first byte of a region, and the byte after its last.
    pub fn range(&self, region: u32) -> (u64, u64) {
        let start = u64::from(region) << self.shift;
        (start, (start + (1 << self.shift)).min(self.size_bytes))
    }

    /// Returns the first byte after the region that holds `offset`.
    #[inline]
    pub fn region_end(&self, offset: u64) -> u64 {
        ((offset >> self.shift) + 1) << self.shift
    }

    /// Returns the block's durable bits.
    pub(crate) fn bits(&self, block: u32) -> BitmapBlock {
        let first = block as usize * WORDS_PER_BLOCK;
        let mut bits = BitmapBlock::EMPTY;
        for k in 0..WORDS_PER_BLOCK {
            bits.written[k] = self.written.word(first + k);
            bits.dirty[k] = self.dirty.word(first + k);
        }
        bits
    }

    /// Fills `bytes` with a block that has these bits.
    pub(crate) fn encode(&self, block: u32, bits: &BitmapBlock, bytes: &mut [u8; 4096]) {
        bitmap::encode(&self.array, block, bits, bytes);
    }

    /// Notes that the *dirty* bits in `marked` and the *written* bits in `fresh` are durable on all members. Regions in
    /// `fresh` are zeroed, and equal on all members. All these regions become readable and writable, if they are
    /// written and not unequal.
    pub(crate) fn marked(&self, block: u32, marked: &Bits, fresh: &Bits) {
        let first = block as usize * WORDS_PER_BLOCK;
        for (k, (marked, fresh)) in marked.iter().zip(fresh).enumerate().filter(|(_, (m, f))| **m | **f != 0) {
            self.dirty.add(first + k, *marked);
            self.written.add(first + k, *fresh);
            let unsettled = self.unequal.word(first + k);
            let open = (marked | fresh) & self.written.word(first + k) & !unsettled;
            self.readable.add(first + k, open);
            self.writable.add(first + k, open);
        }
    }

    /// Notes that these *dirty* bits are no longer set on the members.
    pub(crate) fn cleared(&self, block: u32, bits: &Bits) {
        let first = block as usize * WORDS_PER_BLOCK;
        for (k, bits) in bits.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            self.dirty.remove(first + k, *bits);
        }
    }

    /// Notes that a region is equal on all members, durably: it may be read and written.
    pub(crate) fn mark_equal(&self, region: u32) {
        let (word, bit) = (region as usize / 64, 1 << (region % 64));
        self.unequal.remove(word, bit);
        self.wanted.remove(word, bit);
        self.readable.add(word, bit & self.written.word(word));
        self.writable.add(word, bit & self.written.word(word) & self.dirty.word(word));
    }

    /// Closes a region: from now on a write there must ask the home shard first.
    pub(crate) fn close(&self, region: u32) {
        self.writable.remove(region as usize / 64, 1 << (region % 64));
    }

    /// Notes that a request waits for this region.
    pub(crate) fn want(&self, region: u32) {
        self.wanted.add(region as usize / 64, 1 << (region % 64));
    }
}

/// A bit for each region of one block.
pub(crate) type Bits = [u64; WORDS_PER_BLOCK];

/// Returns word and bit of a region within its block.
pub(crate) fn place_in_block(region: u32) -> (usize, u64) {
    let within = region % REGIONS_PER_BLOCK;
    (within as usize / 64, 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(written: u64, dirty: u64, equal: bool) -> RegionMap {
        RegionMap::new(ShardId(0), Uuid::from_u128(5), 70 << 16, 1 << 16, (&[written], &[dirty]), equal)
    }

    #[test]
    fn what_is_dirty_after_a_crash_may_not_be_read() {
        let after_a_crash = map(0b011, 0b110, false);
        let states = |m: &RegionMap, r| (m.readable.has(r), m.writable.has(r), m.unequal.has(r));
        assert_eq!(states(&after_a_crash, 0), (true, false, false), "clean");
        assert_eq!(states(&after_a_crash, 1), (false, false, true), "dirty");
        assert_eq!(states(&after_a_crash, 2), (false, false, false), "it was being prepared: unwritten again");
        after_a_crash.mark_equal(1);
        assert_eq!(states(&after_a_crash, 1), (true, true, false));
        assert_eq!(states(&map(2, 2, true), 1), (true, true, false));
    }

    #[test]
    fn regions_cover_the_last_byte_and_none_beyond() {
        let map = RegionMap::new(ShardId(0), Uuid::nil(), (1 << 16) + 512, 1 << 16, (&[u64::MAX], &[]), true);
        assert_eq!((map.regions(), map.range(1), map.written.count()), (2, (1 << 16, (1 << 16) + 512), 2));
        assert!(map.covers((1 << 16) + 512) && !map.covers((1 << 16) + 513));
        assert_eq!((map.written.next(0), map.written.next(1), map.written.next(2)), (Some(0), Some(1), None));
    }

    #[test]
    fn a_longer_map_knows_what_the_shorter_one_knew() {
        let shorter = RegionMap::new(ShardId(0), Uuid::nil(), (1 << 16) + 512, 1 << 16, (&[0b11], &[0b10]), true);
        shorter.close(1);
        let longer = shorter.grown(70 << 16);
        assert_eq!(
            (longer.regions(), longer.range(1), longer.range(69)),
            (70, (1 << 16, 2 << 16), (69 << 16, 70 << 16))
        );
        let states = |r| (longer.written.has(r), longer.dirty.has(r), longer.readable.has(r), longer.writable.has(r));
        assert_eq!((states(0), states(1)), ((true, false, true, false), (true, true, true, false)));
        assert!((2..70).all(|region| states(region) == (false, false, false, false)));
        assert_eq!((longer.covers(70 << 16), longer.covers((70 << 16) + 1)), (true, false));
    }

    /// A region may be written between any two lookups of a query: what was written before the query is found all the
    /// same.
    #[test]
    fn what_was_written_before_a_query_is_no_hole() {
        const REGIONS: u32 = 640;
        let spec =
            braid_geometry::Spec { chunk_bytes: 20_480, ..braid_geometry::Spec::new(braid_geometry::Level::Raid5) };
        let geometry = Geometry::plan(spec, &[4 << 20; 4]).expect("a plan");
        let map = RegionMap::new(ShardId(0), Uuid::nil(), geometry.size_bytes(), 16_384, (&[], &[]), true);
        // Every region once, far from the previous one.
        let order = |k: u32| k * 269 % REGIONS;
        let answered = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for k in 0..REGIONS {
                    let mut fresh = [0; WORDS_PER_BLOCK];
                    let (word, bit) = place_in_block(order(k));
                    fresh[word] = bit;
                    map.marked(0, &fresh, &fresh);
                    answered.store(k + 1, Ordering::Release);
                    std::thread::yield_now();
                }
            });
            loop {
                let before = answered.load(Ordering::Acquire);
                let (mut at, mut holes) = (0, Vec::new());
                while at < geometry.size_bytes() {
                    let (is_written, end) = map.run_at(&geometry, at);
                    assert!(end > at, "it gets on");
                    if !is_written {
                        holes.push((at, end));
                    }
                    at = end;
                }
                for region in (0..before).map(order) {
                    let start = u64::from(region) << map.shift;
                    let own = geometry.stripe_of(start).map_or(start, |stripe| stripe.array_start);
                    let first = if own < start { start.next_multiple_of(61_440) } else { start };
                    assert!(
                        !holes.iter().any(|(at, end)| (*at..*end).contains(&first))
                            || map.region_at(&geometry, first) != region,
                        "{region}"
                    );
                }
                if before == REGIONS {
                    break;
                }
            }
        });
    }

    #[test]
    fn bits_survive_a_block() {
        let map = map(0, 0, true);
        let (mut marked, mut fresh) = ([0; WORDS_PER_BLOCK], [0; WORDS_PER_BLOCK]);
        (marked[1], fresh[1]) = (0b11, 0b10);
        map.marked(0, &marked, &fresh);
        assert!(map.dirty.has(64) && !map.written.has(64) && !map.writable.has(64));
        assert!(map.writable.has(65) && map.readable.has(65));
        let bits = map.bits(0);
        assert_eq!((bits.written[1], bits.dirty[1]), (0b10, 0b11));
        let mut bytes = [0; 4096];
        map.encode(0, &bits, &mut bytes);
        assert_eq!(bitmap::decode(&Uuid::from_u128(5), 0, &bytes).bits, bits);
        map.close(65);
        assert!(!map.writable.has(65) && map.readable.has(65));
        map.cleared(0, &fresh);
        assert!(!map.dirty.has(65) && map.dirty.has(64));
    }
}
