//! The range table: overlapping writes to one device are ordered.
//!
//! A granule is 64 KiB: sixteen blocks of 4 KiB. Each granule of each device hashes to one word:
//!
//! ```text
//! bits 63..18  granule (device and number), 46 bits      bits 15..0  blocks held
//! bit 17  a request that takes turns waits                bit 16  a request waits
//! ```
//!
//! A range is acquired by one compare-and-swap for each granule it touches, and released likewise; nothing is allocated
//! and no message is sent. Two granules that hash to one word exclude each other for a moment: that costs time, never
//! correctness. If two granules of one range hash to one word, the range holds the word once, under the first granule's
//! tag. A range is acquired as a whole or not at all, so that no request holds and waits, and there is no deadlock.
//!
//! A request that finds the range held sets the waiting bit of a word. The shard that releases the word clears the bit
//! and notifies every shard; the request then tries again. A request may also wait, without acquiring anything, until
//! blocks that are held now have been free once. It need not find them free itself, because other requests may acquire
//! them first: each release records which blocks stayed held, and so which became free ([`RangeTable::await_free`]).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::DeviceId;
use crate::limits::STEP_ORDERED_BYTES_MAX;

const GRANULE_SHIFT: u32 = 16;
const BLOCK_SHIFT: u32 = 12;
pub(crate) const HELD: u64 = 0xffff;
pub(crate) const WAITING: u64 = 1 << 16;
/// A request of [`RangeTable::acquire_fair`] waits on the word.
const TURN: u64 = 1 << 17;
pub(crate) const TAG_SHIFT: u32 = 18;
/// Shift of a release's number in a `given` word; below it are the blocks that stayed held.
const GIVEN_SHIFT: u32 = 16;
pub(crate) const TAG_MASK: u64 = (1 << (64 - TAG_SHIFT)) - 1;
/// Granules of 1 PiB for each of 4,096 devices; tags beyond that coincide with the next device's, which is harmless.
const DEVICE_SHIFT: u32 = 34;

/// What a request waits on: a word of a range table, or a word or a queued request of [`crate::claims`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket(pub u32);

/// Ranges being written, of all devices and shards.
#[derive(Debug)]
pub struct RangeTable {
    words: Box<[AtomicU64]>,
    /// For each word, its last release while a request waited: the release's number, and the blocks that stayed held
    /// (see [`GIVEN_SHIFT`]).
    given: Box<[AtomicU64]>,
    /// The number of the last such release, over all words.
    gives: AtomicU64,
}

/// Blocks of one granule that a request waits for.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedBlocks {
    /// A byte of the granule.
    pub at: u64,
    /// A bit for each block of it.
    pub blocks: u16,
    /// The number of releases when all these blocks were held and the waiting bit was set.
    pub since: u64,
}

impl AwaitedBlocks {
    /// Returns those of `[at, end)` in the granule at `at`.
    pub fn first(at: u64, end: u64) -> AwaitedBlocks {
        let (_, mask, _) = granule_part(DeviceId(0), at, end);
        // The wait has not begun: earlier releases do not count.
        AwaitedBlocks { at, blocks: mask as u16, since: u64::MAX }
    }

    /// Returns those of the next granule; `None` if there are no more.
    pub fn next(&self, end: u64) -> Option<AwaitedBlocks> {
        let at = ((self.at >> GRANULE_SHIFT) + 1) << GRANULE_SHIFT;
        (at < end).then(|| AwaitedBlocks::first(at, end))
    }
}

impl RangeTable {
    /// Creates a table of `2^bits` words.
    ///
    /// # Panics
    /// If `bits` is 0 or over 24.
    pub fn new(bits: u32) -> RangeTable {
        assert!((1..=24).contains(&bits), "a range table of 2^{bits} words");
        let words = || (0..1u32 << bits).map(|_| AtomicU64::new(0)).collect();
        RangeTable { words: words(), given: words(), gives: AtomicU64::new(0) }
    }

    /// Acquires `[start, end)` of the device, rounded outwards to blocks of 4 KiB. On a conflict acquires nothing and
    /// returns the word to wait on; its waiting bit is set, so the [`RangeTable::release`] that frees it reports it.
    /// `woken` is called for words that were held for a moment, in vain, and on which a request began to wait
    /// meanwhile.
    #[inline]
    pub fn acquire(
        &self,
        device: DeviceId,
        start: u64,
        end: u64,
        woken: &mut impl FnMut(Bucket),
    ) -> Result<(), Bucket> {
        self.acquire_as::<false>(device, start, end, woken)
    }

    /// Acquires a range as [`RangeTable::acquire`] does, but fairly among the callers of this function: once one of
    /// them waits for a granule, the others acquire no part of it before all of it has been free. Otherwise a request
    /// for the whole granule could wait for ever behind many that hold a part each.
    #[inline]
    pub fn acquire_fair(
        &self,
        device: DeviceId,
        start: u64,
        end: u64,
        woken: &mut impl FnMut(Bucket),
    ) -> Result<(), Bucket> {
        self.acquire_as::<true>(device, start, end, woken)
    }

    #[inline]
    fn acquire_as<const IN_TURN: bool>(
        &self,
        device: DeviceId,
        start: u64,
        end: u64,
        woken: &mut impl FnMut(Bucket),
    ) -> Result<(), Bucket> {
        loop {
            // A range that is not entirely free is not begun: words held in vain make other requests wait in vain, and
            // two waiting requests would wake each other without end. The check cannot see another shard's simultaneous
            // acquisition; then both back out and check again.
            let refused = match self.first_taken::<IN_TURN>(device, start, end) {
                Some(refused) => refused,
                None => match self.take_all::<IN_TURN>(device, start, end) {
                    Ok(()) => return Ok(()),
                    Err((at, refused)) => {
                        self.release(device, start, at, woken);
                        refused
                    }
                },
            };
            if self.wait_on::<IN_TURN>(refused) {
                return Err(refused.0);
            }
            // The conflict ended between the two checks: check again.
        }
    }

    /// Returns the first part of a range of several granules that is held. A single granule is acquired at once or not
    /// at all.
    #[inline]
    fn first_taken<const IN_TURN: bool>(&self, device: DeviceId, start: u64, end: u64) -> Option<Part> {
        let (_, _, mut at) = granule_part(device, start, end);
        if at >= end {
            return None;
        }
        at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            let bucket = self.bucket(tag);
            let seen = self.words[bucket.0 as usize].load(Ordering::Relaxed);
            if refuses_now::<IN_TURN>(seen, tag, mask) {
                return Some((bucket, tag, mask));
            }
            at = next;
        }
        None
    }

    /// Acquires part by part; on a conflict returns how far it came, and the refused part.
    #[inline]
    fn take_all<const IN_TURN: bool>(&self, device: DeviceId, start: u64, end: u64) -> Result<(), (u64, Part)> {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            let bucket = self.bucket(tag);
            if !self.take::<IN_TURN>(bucket, tag, mask) && !self.is_shared(device, start, at) {
                return Err((at, (bucket, tag, mask)));
            }
            at = next;
        }
        Ok(())
    }

    /// Returns whether no request holds any of `[start, end)` of the device, nor a granule that shares a word with it.
    #[inline]
    pub fn is_free(&self, device: DeviceId, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            if refuses(self.words[self.bucket(tag).0 as usize].load(Ordering::Acquire), tag, mask) {
                return false;
            }
            at = next;
        }
        true
    }

    /// Returns the first byte of `[start, end)` of the device that may be held, rounded down to its granule; `end` if
    /// none is. The time depends on the size of the table, not of the range.
    pub fn first_held(&self, device: DeviceId, start: u64, end: u64) -> u64 {
        let granules = start >> GRANULE_SHIFT..end.div_ceil(1 << GRANULE_SHIFT);
        if granules.end >> DEVICE_SHIFT != 0 {
            // Tags of granules beyond the device's are also other devices'.
            return start;
        }
        let mut held = end;
        for word in &self.words {
            let seen = word.load(Ordering::Acquire);
            let (at, of) = ((seen >> TAG_SHIFT) & ((1 << DEVICE_SHIFT) - 1), seen >> TAG_SHIFT >> DEVICE_SHIFT);
            if seen & HELD == 0 || of != u64::from(device.0) & (TAG_MASK >> DEVICE_SHIFT) {
                continue;
            }
            if self.may_share() {
                // It may represent another granule of the range that holds it.
                return start;
            }
            if granules.contains(&at) {
                held = held.min((at << GRANULE_SHIFT).max(start));
            }
        }
        held
    }

    /// Waits, without acquiring anything, until each of the awaited blocks has been free at some moment since the first
    /// call. Returns the word to wait on, whose release will be reported: then the caller calls again. `None`: all
    /// blocks have been free.
    pub fn await_free(&self, device: DeviceId, awaited: &mut AwaitedBlocks) -> Option<Bucket> {
        let tag = tag(device, awaited.at >> GRANULE_SHIFT);
        let bucket = self.bucket(tag);
        let given = self.given[bucket.0 as usize].load(Ordering::Acquire);
        if given >> GIVEN_SHIFT > awaited.since {
            let left = given as u16;
            // The remaining blocks of another granule of the same range say nothing of this one.
            awaited.blocks &= if left == 0 || !self.may_share() { left } else { u16::MAX };
        }
        while awaited.blocks > 0 {
            let seen = self.words[bucket.0 as usize].load(Ordering::Acquire);
            awaited.blocks = match seen & HELD {
                0 => 0,
                held if seen >> TAG_SHIFT == tag => awaited.blocks & held as u16,
                _ if self.may_share() => awaited.blocks,
                _ => 0,
            };
            if awaited.blocks > 0 && self.wait_on::<false>((bucket, tag, u64::from(awaited.blocks))) {
                // After the waiting bit was set: a release with a later number happens after that.
                awaited.since = self.gives.load(Ordering::Acquire);
                return Some(bucket);
            }
        }
        None
    }

    /// Returns whether a range may be so long that two of its granules share a word.
    fn may_share(&self) -> bool {
        self.words.len() as u64 / 4 <= STEP_ORDERED_BYTES_MAX >> GRANULE_SHIFT
    }

    /// Releases `[start, end)` and calls `woken` for every word on which a request waits.
    ///
    /// Releasing a part of a range wakes all requests that wait on its words, including those that wait for the rest:
    /// they check again and wait again.
    #[inline]
    pub fn release(&self, device: DeviceId, start: u64, end: u64, woken: &mut impl FnMut(Bucket)) {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            let bucket = self.bucket(tag);
            if !self.is_shared(device, start, at) && self.give(bucket, tag, mask) {
                woken(bucket);
            }
            at = next;
        }
    }

    /// Returns whether no range is held: for tests and for a clean stop.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| w.load(Ordering::Relaxed) & HELD == 0)
    }

    #[inline]
    fn bucket(&self, tag: u64) -> Bucket {
        let hash = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Bucket((hash >> (64 - self.words.len().trailing_zeros())) as u32)
    }

    /// Returns whether the word of the granule at `at` is held already, for another granule of the range from `start`
    /// on. A request for this granule finds the word held, so that holding it under the first one's tag excludes as
    /// well.
    #[inline]
    fn is_shared(&self, device: DeviceId, start: u64, at: u64) -> bool {
        // Neighbours are scattered evenly: n of them lie at least 1 / (n √5) of the table apart.
        let before = (at >> GRANULE_SHIFT) - (start >> GRANULE_SHIFT);
        before >= self.words.len() as u64 / 4 && self.looks_shared(device, start, at)
    }

    #[cold]
    fn looks_shared(&self, device: DeviceId, start: u64, at: u64) -> bool {
        let bucket = |granule| self.bucket(tag(device, granule));
        let own = bucket(at >> GRANULE_SHIFT);
        (start >> GRANULE_SHIFT..at >> GRANULE_SHIFT).any(|granule| bucket(granule) == own)
    }

    #[inline]
    fn take<const IN_TURN: bool>(&self, bucket: Bucket, tag: u64, mask: u64) -> bool {
        let word = &self.words[bucket.0 as usize];
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            if refuses_now::<IN_TURN>(seen, tag, mask) {
                return false;
            }
            let free = seen & HELD == 0;
            // A waiting bit stays: the waiting requests are woken at the next release, and check again.
            let new = (tag << TAG_SHIFT) | (seen & (WAITING | TURN)) | (if free { 0 } else { seen & HELD }) | mask;
            match word.compare_exchange_weak(seen, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Releases a part of a word. Returns whether a request waits on it, which must check again.
    #[inline]
    fn give(&self, bucket: Bucket, tag: u64, mask: u64) -> bool {
        let word = &self.words[bucket.0 as usize];
        let mut seen = word.load(Ordering::Relaxed);
        let mut number = 0;
        loop {
            debug_assert!(seen >> TAG_SHIFT == tag && seen & mask == mask, "a range is given back that was not held");
            let left = seen & HELD & !mask;
            let new = if left == 0 { 0 } else { (tag << TAG_SHIFT) | (seen & TURN) | left };
            let waited = seen & WAITING != 0;
            if waited && number == 0 {
                number = self.next_give();
            }
            match word.compare_exchange_weak(seen, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) if waited => {
                    // Before the waiting requests are woken.
                    self.given[bucket.0 as usize].fetch_max(number << GIVEN_SHIFT | left, Ordering::Release);
                    return true;
                }
                Ok(_) => return false,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns a number for a word that is about to be released. It is drawn before the release: a wait that begins
    /// after it sees no later number.
    #[cold]
    fn next_give(&self) -> u64 {
        self.gives.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sets the waiting bit of a word that still refuses this part. Returns false if it no longer does.
    #[cold]
    fn wait_on<const IN_TURN: bool>(&self, (bucket, tag, mask): Part) -> bool {
        let word = &self.words[bucket.0 as usize];
        let mut seen = word.load(Ordering::Relaxed);
        while refuses_now::<IN_TURN>(seen, tag, mask) {
            // Release and acquire: a release that clears the bit sees that a request waits, and a request that waits
            // afterwards sees what was done before that release.
            let waits = if IN_TURN { WAITING | TURN } else { WAITING };
            match word.compare_exchange_weak(seen, seen | waits, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
}

/// What a range acquires of one word: the word, the granule's tag, its blocks.
type Part = (Bucket, u64, u64);

/// Returns whether a word refuses this part now. With `IN_TURN`, also if part of the granule is held and another such
/// request waits on the word.
#[inline]
fn refuses_now<const IN_TURN: bool>(seen: u64, tag: u64, mask: u64) -> bool {
    refuses(seen, tag, mask) || (IN_TURN && seen & TURN != 0 && seen & HELD != 0)
}

/// Returns whether a word as seen has no room for these blocks of this granule.
#[inline]
pub(crate) fn refuses(seen: u64, tag: u64, mask: u64) -> bool {
    seen & HELD != 0 && (seen >> TAG_SHIFT != tag || seen & mask != 0)
}

/// Returns the tag of a granule. Neighbours have neighbouring tags.
#[inline]
pub(crate) fn tag(device: DeviceId, granule: u64) -> u64 {
    (u64::from(device.0) << DEVICE_SHIFT).wrapping_add(granule) & TAG_MASK
}

/// Returns the granule at `at`: its tag, its blocks below `end`, and the start of the next granule.
#[inline]
pub(crate) fn granule_part(device: DeviceId, at: u64, end: u64) -> (u64, u64, u64) {
    let granule = at >> GRANULE_SHIFT;
    let next = (at | ((1 << GRANULE_SHIFT) - 1)).saturating_add(1).min(end);
    let first = (at >> BLOCK_SHIFT) & 15;
    let last = ((next - 1) >> BLOCK_SHIFT) & 15;
    let mask = ((2u64 << last) - 1) & !((1u64 << first) - 1);
    (tag(device, granule), mask, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: DeviceId = DeviceId(3);

    fn acquire(table: &RangeTable, start: u64, end: u64) -> Result<(), Bucket> {
        table.acquire(D, start, end, &mut |_| panic!("no request waits"))
    }

    fn release(table: &RangeTable, start: u64, end: u64) -> usize {
        let mut woken = 0;
        table.release(D, start, end, &mut |_| woken += 1);
        woken
    }

    #[test]
    fn the_first_byte_that_is_held_is_found_in_any_range() {
        let end = 16 << 40;
        // A table in which no range shares a word with itself, and one in which it may.
        for (table, exact) in [(RangeTable::new(12), true), (RangeTable::new(4), false)] {
            assert_eq!(table.first_held(D, 0, end), end);
            let other = DeviceId(4);
            table.acquire(other, 0, 1 << 20, &mut |_| panic!("no request waits")).unwrap();
            assert_eq!(table.first_held(D, 0, end), end, "another device's");
            table.release(other, 0, 1 << 20, &mut |_| panic!("no request waits"));
            let at = (5 << 40) + 4096;
            acquire(&table, at, at + 4096).unwrap();
            assert_eq!(table.first_held(D, 0, end), if exact { 5 << 40 } else { 0 });
            assert_eq!(table.first_held(D, at + 4096, end), at + 4096, "of the same granule");
            if exact {
                assert_eq!(table.first_held(D, 0, 5 << 40), 5 << 40);
                assert_eq!(table.first_held(D, (5 << 40) + (1 << 16), end), end);
            }
            release(&table, at, at + 4096);
            assert_eq!(table.first_held(D, 0, end), end);
            assert_eq!(table.first_held(D, 7, u64::MAX), 7, "no name is left for what lies behind 1 PiB");
        }
    }

    #[test]
    fn neighbours_do_not_exclude_each_other() {
        let table = RangeTable::new(8);
        acquire(&table, 0, 4096).unwrap();
        acquire(&table, 4096, 65536).unwrap();
        assert!(acquire(&table, 0, 4096).is_err());
        assert_eq!(release(&table, 0, 4096), 1);
        assert_eq!(release(&table, 4096, 65536), 0);
        assert!(table.is_empty());
    }

    #[test]
    fn a_conflict_takes_nothing() {
        let table = RangeTable::new(8);
        acquire(&table, 1 << 20, (1 << 20) + 4096).unwrap();
        acquire(&table, 0, 2 << 20).unwrap_err();
        acquire(&table, 0, 1 << 20).unwrap();
        assert_eq!(release(&table, 1 << 20, (1 << 20) + 4096), 1, "the waiting request is woken");
        release(&table, 0, 1 << 20);
        assert!(table.is_empty());
    }

    /// Later writers of the block, and a continuous stream of writers of the same granule, do not delay a request that
    /// only waits for what was held.
    #[test]
    fn a_wait_without_acquiring_waits_for_each_block_once() {
        // With tables in which two granules of one range may share a word, and may not.
        for bits in [4, 16] {
            let table = RangeTable::new(bits);
            let blocks = [0, 4096, 8192].map(|at| (at, at + 4096));
            let (first, second, other) = (blocks[0], blocks[1], blocks[2]);
            blocks.iter().for_each(|(start, end)| acquire(&table, *start, *end).unwrap());
            let mut awaited = AwaitedBlocks::first(0, 8192);
            assert!(table.await_free(D, &mut awaited).is_some() && awaited.next(8192).is_none());
            assert_eq!(release(&table, first.0, first.1), 1, "the waiting request is woken");
            acquire(&table, first.0, first.1).unwrap();
            let bucket = table.await_free(D, &mut awaited);
            assert_eq!((bucket.is_some(), awaited.blocks), (true, if bits == 4 { 3 } else { 2 }));
            release(&table, second.0, second.1);
            acquire(&table, second.0, second.1).unwrap();
            if bits == 4 {
                // It is certain when all of the word was free.
                for (start, end) in [other, first, second] {
                    assert!(table.await_free(D, &mut awaited).is_some());
                    release(&table, start, end);
                }
                acquire(&table, first.0, second.1).unwrap();
            }
            assert!(table.await_free(D, &mut awaited).is_none());
            release(&table, first.0, first.1);
            // Releases before the wait began say nothing of what is held now.
            acquire(&table, first.0, first.1).unwrap();
            assert!(table.await_free(D, &mut AwaitedBlocks::first(0, 4096)).is_some());
        }
    }

    #[test]
    fn all_blocks_of_a_range_are_awaited_granule_by_granule() {
        let table = RangeTable::new(16);
        acquire(&table, 3 << 16, (3 << 16) + 4096).unwrap();
        let (end, mut looked) = ((3 << 16) + 512, 0);
        let mut awaited = Some(AwaitedBlocks::first(61440, end));
        while let Some(one) = &mut awaited {
            looked += 1;
            if table.await_free(D, one).is_some() {
                release(&table, 3 << 16, (3 << 16) + 4096);
            }
            awaited = one.next(end);
        }
        assert!(looked == 4 && table.is_empty());
    }

    /// Writers on two threads never leave a block free for long, and a request waits for it: the wait ends only when
    /// the write that it found has ended.
    #[test]
    fn a_wait_does_not_end_before_the_write_that_it_found() {
        let table = RangeTable::new(16);
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        if table.acquire(D, 0, 4096, &mut |_| ()).is_err() {
                            std::thread::yield_now();
                            continue;
                        }
                        let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                        std::thread::yield_now();
                        ended.store(number, Ordering::SeqCst);
                        table.release(D, 0, 4096, &mut |_| ());
                    }
                });
            }
            let (mut waited, mut early) = (0, false);
            while waited < 20_000 && !early {
                let met = begun.load(Ordering::SeqCst);
                let mut awaited = AwaitedBlocks::first(0, 4096);
                while table.await_free(D, &mut awaited).is_some() {
                    waited += 1;
                    std::thread::yield_now();
                }
                early = ended.load(Ordering::SeqCst) < met;
            }
            over.store(true, Ordering::Relaxed);
            assert!(!early);
        });
    }

    #[test]
    fn a_range_never_waits_for_itself() {
        for bits in 1..8 {
            let table = RangeTable::new(bits);
            for granules in 1..64u64 {
                let (start, end) = (40960, granules << 16);
                acquire(&table, start, end).unwrap();
                for at in (start..end).step_by(4096) {
                    assert!(acquire(&table, at, at + 4096).is_err(), "{bits} bits, {granules} granules, {at}");
                }
                assert!(release(&table, start, end) > 0);
                assert!(table.is_empty());
            }
        }
    }

    #[test]
    fn every_device_that_there_may_be_has_granules_of_its_own() {
        let table = RangeTable::new(16);
        for device in [0, 1023, 1024, 4095].map(DeviceId) {
            let mut no_waiter = |_| panic!("no request waits");
            for (start, end) in [(0, 4096), (4096, 8192)] {
                table.acquire(device, start, end, &mut no_waiter).unwrap();
            }
            let last = (u64::MAX << 13, u64::MAX << 12);
            table.acquire(device, last.0, last.1, &mut no_waiter).unwrap();
            table.release(device, last.0, last.1, &mut no_waiter);
            assert!(table.acquire(device, 0, 4096, &mut no_waiter).is_err());
            table.release(device, 4096, 8192, &mut |_| ());
            table.acquire(device, 4096, 8192, &mut no_waiter).unwrap();
        }
    }

    /// Two waiting requests, each on a word that the other one tries first: their tries must come to an end.
    #[test]
    fn failed_tries_wake_no_request_in_vain() {
        let table = RangeTable::new(8);
        let word = |granule: u64| table.bucket(tag(D, granule));
        // Distant granules that share a word, so that each range runs into the other's first word.
        let meet = |from: u64, with: u64| (from..).find(|g| word(*g) == word(with)).unwrap();
        let (a, b) = (0, 1000);
        let (a_end, b_end) = ((meet(a + 1, b) + 1) << 16, (meet(b + 1, a) + 1) << 16);
        assert!(a_end < b << 16);
        acquire(&table, a << 16, (a << 16) + 4096).unwrap();
        acquire(&table, b << 16, (b << 16) + 4096).unwrap();
        let mut wakes = 0;
        for _ in 0..8 {
            for (first, end) in [(a, a_end), (b, b_end)] {
                table.acquire(D, (first << 16) + 4096, end, &mut |_| wakes += 1).unwrap_err();
            }
        }
        assert_eq!(wakes, 0);
        assert_eq!(
            release(&table, a << 16, (a << 16) + 4096),
            1,
            "a waiting request is woken when the word is released"
        );
        assert_eq!(release(&table, b << 16, (b << 16) + 4096), 1);
        assert!(table.is_empty());
    }

    #[test]
    fn odd_bytes_round_outwards() {
        let table = RangeTable::new(8);
        acquire(&table, 4095, 4097).unwrap();
        assert!(acquire(&table, 0, 512).is_err());
        assert!(acquire(&table, 7680, 8192).is_err());
        acquire(&table, 8192, 8704).unwrap();
    }

    /// Threads increment plain counters under the lock of their range; a lost update would be noticed.
    #[test]
    fn ranges_exclude_between_threads() {
        use std::sync::atomic::AtomicU32;
        let table = RangeTable::new(4);
        let blocks: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for seed in 1..=4u64 {
                let (table, blocks) = (&table, &blocks);
                scope.spawn(move || {
                    let mut x = seed;
                    for _ in 0..20_000 {
                        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let start = (x >> 33) % 64;
                        let end = (start + 1 + (x >> 50) % 20).min(64);
                        while table.acquire(D, start << 12, end << 12, &mut |_| ()).is_err() {
                            std::thread::yield_now();
                        }
                        for block in &blocks[start as usize..end as usize] {
                            assert_eq!(block.fetch_add(1, Ordering::Relaxed), 0, "two holders of one block");
                        }
                        for block in &blocks[start as usize..end as usize] {
                            block.fetch_sub(1, Ordering::Relaxed);
                        }
                        table.release(D, start << 12, end << 12, &mut |_| ());
                    }
                });
            }
        });
        assert!(table.is_empty());
    }
}
