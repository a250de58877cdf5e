//! The range table: overlapping writes to one device happen in one order.
//!
//! A granule is 64 KiB: sixteen blocks of 4 KiB. Each granule of each device hashes to one word:
//!
//! ```text
//! bits 63..18  which granule (device and number), 46 bits      bits 15..0  blocks held
//! bit 17  who comes in turn lets it become free               bit 16  somebody waits
//! ```
//!
//! Taking a range is one compare-and-swap for each granule it touches, and so is giving it back;
//! nothing is allocated and nobody is asked. Two granules that hash to one word exclude each
//! other for a moment: that costs time, never correctness. Two granules of one range share the word
//! under the first one's name. A range is taken as a whole or not at all, so nobody holds and waits,
//! and there is no deadlock.
//!
//! Who finds the range taken sets the waiting bit and is woken when the word is given back: the
//! giver clears the bit and tells every shard. Who only waits for what is held now to be given back, and wants nothing himself,
//! does not compete with those who take it next: the giver leaves word of what became free ([`RangeTable::await_free`]).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::DeviceId;
use crate::limits::STEP_ORDERED_BYTES_MAX;

const GRANULE_SHIFT: u32 = 16;
const BLOCK_SHIFT: u32 = 12;
pub(crate) const HELD: u64 = 0xffff;
pub(crate) const WAITING: u64 = 1 << 16;
const TURN: u64 = 1 << 17;
pub(crate) const TAG_SHIFT: u32 = 18;
/// Below this the blocks that stayed held.
const GIVEN_SHIFT: u32 = 16;
pub(crate) const TAG_MASK: u64 = (1 << (64 - TAG_SHIFT)) - 1;
/// Granules of 1 PiB for each of 4,096 devices; what lies behind shares names with the next device's, which does no harm.
const DEVICE_SHIFT: u32 = 34;

/// A word of the table on which somebody may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket(pub u32);

/// Ranges being written, of all devices and shards.
#[derive(Debug)]
pub struct RangeTable {
    words: Box<[AtomicU64]>,
    /// Of each word the last time that it was given back while somebody waited: that one's number, and which blocks stayed held.
    given: Box<[AtomicU64]>,
    /// The last of these numbers.
    gives: AtomicU64,
}

/// Blocks of one granule that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// A byte of the granule.
    pub at: u64,
    /// A bit for each block of it.
    pub blocks: u16,
    /// They were all held, and the waiting bit set, when so many words had been given back.
    pub since: u64,
}

impl Awaited {
    /// Those of `[at, end)` that lie in the granule at `at`.
    pub fn first(at: u64, end: u64) -> Awaited {
        let (_, mask, _) = part(DeviceId(0), at, end);
        // Nobody has waited for them yet: what was given back before says nothing.
        Awaited { at, blocks: mask as u16, since: u64::MAX }
    }

    /// Those of the next granule; none: there are no more.
    pub fn next(&self, end: u64) -> Option<Awaited> {
        let at = ((self.at >> GRANULE_SHIFT) + 1) << GRANULE_SHIFT;
        (at < end).then(|| Awaited::first(at, end))
    }
}

impl RangeTable {
    /// A table of `2^bits` words.
    ///
    /// # Panics
    /// When `bits` is 0 or over 24.
    pub fn new(bits: u32) -> RangeTable {
        assert!((1..=24).contains(&bits), "a range table of 2^{bits} words");
        let words = || (0..1u32 << bits).map(|_| AtomicU64::new(0)).collect();
        RangeTable { words: words(), given: words(), gives: AtomicU64::new(0) }
    }

    /// Takes `[start, end)` of the device, blocks of 4 KiB rounded outwards. On a conflict takes
    /// nothing and names the word to wait on; its waiting bit is set, so the [`RangeTable::release`]
    /// that frees it will report it. `woken` is called for words that were taken for a moment, in
    /// vain, and on which somebody began to wait meanwhile.
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

    /// The same, but as soon as somebody who came by this way waits for a granule, all others who do let it become free. Else who wants
    /// all of it could wait for ever behind many who each hold a part.
    #[inline]
    pub fn acquire_in_turn(
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
            // A range that is not free as a whole is not begun with: what is taken in vain makes others wait in vain,
            // and two who wait would wake each other without end. What the look cannot see is another shard's
            // taking at this very moment; then both back out of it and look again.
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
            // The conflict passed between the two looks: look again.
        }
    }

    /// The first part of a range of several granules that somebody holds. One granule is taken at once or not at all.
    #[inline]
    fn first_taken<const IN_TURN: bool>(&self, device: DeviceId, start: u64, end: u64) -> Option<Part> {
        let (_, _, mut at) = part(device, start, end);
        if at >= end {
            return None;
        }
        at = start;
        while at < end {
            let (tag, mask, next) = part(device, at, end);
            let bucket = self.bucket(tag);
            let seen = self.words[bucket.0 as usize].load(Ordering::Relaxed);
            if refuses_now::<IN_TURN>(seen, tag, mask) {
                return Some((bucket, tag, mask));
            }
            at = next;
        }
        None
    }

    /// Takes part by part; on a conflict says how far it came, and which part was refused.
    #[inline]
    fn take_all<const IN_TURN: bool>(&self, device: DeviceId, start: u64, end: u64) -> Result<(), (u64, Part)> {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = part(device, at, end);
            let bucket = self.bucket(tag);
            if !self.take::<IN_TURN>(bucket, tag, mask) && !self.is_shared(device, start, at) {
                return Err((at, (bucket, tag, mask)));
            }
            at = next;
        }
        Ok(())
    }

    /// Whether nobody holds any of `[start, end)` of the device, nor what shares a word with it.
    #[inline]
    pub fn is_free(&self, device: DeviceId, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = part(device, at, end);
            if refuses(self.words[self.bucket(tag).0 as usize].load(Ordering::Acquire), tag, mask) {
                return false;
            }
            at = next;
        }
        true
    }

    /// The first byte of `[start, end)` of the device that somebody may hold, rounded down to its granule; `end` where nobody holds any. It takes
    /// as long as the table is large, whatever the range.
    pub fn first_held(&self, device: DeviceId, start: u64, end: u64) -> u64 {
        let granules = start >> GRANULE_SHIFT..end.div_ceil(1 << GRANULE_SHIFT);
        if granules.end >> DEVICE_SHIFT != 0 {
            // Names of granules behind those of the device are others', too.
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
                // It may stand for another granule of the range that holds it.
                return start;
            }
            if granules.contains(&at) {
                held = held.min((at << GRANULE_SHIFT).max(start));
            }
        }
        held
    }

    /// Waits, without taking anything, for blocks of one granule to have been free, each at some moment from the first call on.
    /// The word to wait on, whose release will be reported; none: all of them have been.
    pub fn await_free(&self, device: DeviceId, awaited: &mut Awaited) -> Option<Bucket> {
        let tag = tag(device, awaited.at >> GRANULE_SHIFT);
        let bucket = self.bucket(tag);
        let given = self.given[bucket.0 as usize].load(Ordering::Acquire);
        if given >> GIVEN_SHIFT > awaited.since {
            let left = given as u16;
            // What is left of another granule of the same range says nothing of this one.
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
                // After the waiting bit: whoever draws a later number gives the word back after that.
                awaited.since = self.gives.load(Ordering::Acquire);
                return Some(bucket);
            }
        }
        None
    }

    /// Whether a range may be so long that two of its granules share a word.
    fn may_share(&self) -> bool {
        self.words.len() as u64 / 4 <= STEP_ORDERED_BYTES_MAX >> GRANULE_SHIFT
    }

    /// Gives `[start, end)` back and calls `woken` for every word on which somebody waits.
    ///
    /// A range partly given back wakes all who wait on its words, also those who wait for the rest:
    /// they look again and wait again.
    #[inline]
    pub fn release(&self, device: DeviceId, start: u64, end: u64, woken: &mut impl FnMut(Bucket)) {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = part(device, at, end);
            let bucket = self.bucket(tag);
            if !self.is_shared(device, start, at) && self.give(bucket, tag, mask) {
                woken(bucket);
            }
            at = next;
        }
    }

    /// Whether no range is held at all: for tests and for a clean stop.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| w.load(Ordering::Relaxed) & HELD == 0)
    }

    #[inline]
    fn bucket(&self, tag: u64) -> Bucket {
        let hash = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Bucket((hash >> (64 - self.words.len().trailing_zeros())) as u32)
    }

    /// Whether the word of the granule at `at` is held already, for another granule of the range from `start` on. Whoever
    /// wants this granule finds the word taken, so that holding it under the first one's name excludes as well.
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
            // A waiting bit stays: those who wait are told at the next release, and look again.
            let new = (tag << TAG_SHIFT) | (seen & (WAITING | TURN)) | (if free { 0 } else { seen & HELD }) | mask;
            match word.compare_exchange_weak(seen, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back a part of a word; true when somebody waits on it, who shall look again.
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
                    // Before those who wait are told.
                    self.given[bucket.0 as usize].fetch_max(number << GIVEN_SHIFT | left, Ordering::Release);
                    return true;
                }
                Ok(_) => return false,
                Err(now) => seen = now,
            }
        }
    }

    /// A number for a word that is about to be given back. Drawn before that: who began to wait after it does not see a later one.
    #[cold]
    fn next_give(&self) -> u64 {
        self.gives.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sets the waiting bit of a word that still refuses this part; false when it no longer does.
    #[cold]
    fn wait_on<const IN_TURN: bool>(&self, (bucket, tag, mask): Part) -> bool {
        let word = &self.words[bucket.0 as usize];
        let mut seen = word.load(Ordering::Relaxed);
        while refuses_now::<IN_TURN>(seen, tag, mask) {
            // Release and acquire: whoever takes the bit away at a release sees that somebody waits, and he who waits
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

/// What a range takes of one word: the word, the granule's name, its blocks.
type Part = (Bucket, u64, u64);

/// Whether a word does not take this part now, for somebody who lets those go first who wait for it.
#[inline]
fn refuses_now<const IN_TURN: bool>(seen: u64, tag: u64, mask: u64) -> bool {
    refuses(seen, tag, mask) || (IN_TURN && seen & TURN != 0 && seen & HELD != 0)
}

/// Whether a word as it was seen has no room for these blocks of this granule.
#[inline]
pub(crate) fn refuses(seen: u64, tag: u64, mask: u64) -> bool {
    seen & HELD != 0 && (seen >> TAG_SHIFT != tag || seen & mask != 0)
}

/// The name of a granule. Neighbours have neighbouring names.
#[inline]
pub(crate) fn tag(device: DeviceId, granule: u64) -> u64 {
    (u64::from(device.0) << DEVICE_SHIFT).wrapping_add(granule) & TAG_MASK
}

/// The granule at `at`: its tag, the blocks of it below `end`, and where the next granule starts.
#[inline]
pub(crate) fn part(device: DeviceId, at: u64, end: u64) -> (u64, u64, u64) {
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
        table.acquire(D, start, end, &mut |_| panic!("nobody waits"))
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
            table.acquire(other, 0, 1 << 20, &mut |_| panic!("nobody waits")).unwrap();
            assert_eq!(table.first_held(D, 0, end), end, "another device's");
            table.release(other, 0, 1 << 20, &mut |_| panic!("nobody waits"));
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
        assert_eq!(release(&table, 1 << 20, (1 << 20) + 4096), 1, "the one who waits is told");
        release(&table, 0, 1 << 20);
        assert!(table.is_empty());
    }

    /// Who writes next, and others of the same granule that never stop, do not keep who only waits for what was held.
    #[test]
    fn whoever_waits_without_taking_waits_for_each_block_once() {
        // Where two granules of one range may share a word, and where they may not.
        for bits in [4, 16] {
            let table = RangeTable::new(bits);
            let blocks = [0, 4096, 8192].map(|at| (at, at + 4096));
            let (first, second, other) = (blocks[0], blocks[1], blocks[2]);
            blocks.iter().for_each(|(start, end)| acquire(&table, *start, *end).unwrap());
            let mut awaited = Awaited::first(0, 8192);
            assert!(table.await_free(D, &mut awaited).is_some() && awaited.next(8192).is_none());
            assert_eq!(release(&table, first.0, first.1), 1, "the one who waits is told");
            acquire(&table, first.0, first.1).unwrap();
            let bucket = table.await_free(D, &mut awaited);
            assert_eq!((bucket.is_some(), awaited.blocks), (true, if bits == 4 { 3 } else { 2 }));
            release(&table, second.0, second.1);
            acquire(&table, second.0, second.1).unwrap();
            if bits == 4 {
                // It is sure when all of the word was free.
                for (start, end) in [other, first, second] {
                    assert!(table.await_free(D, &mut awaited).is_some());
                    release(&table, start, end);
                }
                acquire(&table, first.0, second.1).unwrap();
            }
            assert!(table.await_free(D, &mut awaited).is_none());
            release(&table, first.0, first.1);
            // What was given back before somebody began to wait says nothing of what is held now.
            acquire(&table, first.0, first.1).unwrap();
            assert!(table.await_free(D, &mut Awaited::first(0, 4096)).is_some());
        }
    }

    #[test]
    fn all_blocks_of_a_range_are_awaited_granule_by_granule() {
        let table = RangeTable::new(16);
        acquire(&table, 3 << 16, (3 << 16) + 4096).unwrap();
        let (end, mut looked) = ((3 << 16) + 512, 0);
        let mut awaited = Some(Awaited::first(61440, end));
        while let Some(one) = &mut awaited {
            looked += 1;
            if table.await_free(D, one).is_some() {
                release(&table, 3 << 16, (3 << 16) + 4096);
            }
            awaited = one.next(end);
        }
        assert!(looked == 4 && table.is_empty());
    }

    /// Writers on two threads that never leave a block free for long, and one who waits for it: he is told that it was free only when
    /// the write that he has met is over.
    #[test]
    fn nobody_takes_a_write_for_ended_that_is_not() {
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
                let mut awaited = Awaited::first(0, 4096);
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
            let mut nobody = |_| panic!("nobody waits");
            for (start, end) in [(0, 4096), (4096, 8192)] {
                table.acquire(device, start, end, &mut nobody).unwrap();
            }
            let last = (u64::MAX << 13, u64::MAX << 12);
            table.acquire(device, last.0, last.1, &mut nobody).unwrap();
            table.release(device, last.0, last.1, &mut nobody);
            assert!(table.acquire(device, 0, 4096, &mut nobody).is_err());
            table.release(device, 4096, 8192, &mut |_| ());
            table.acquire(device, 4096, 8192, &mut nobody).unwrap();
        }
    }

    /// Two who wait, each on a word that the other one tries first: their tries must come to an end.
    #[test]
    fn tries_in_vain_wake_nobody_who_would_find_the_same() {
        let table = RangeTable::new(8);
        let word = |granule: u64| table.bucket(tag(D, granule));
        // Granules far apart that meet in one word, so that each range runs into the other's first word.
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
        assert_eq!(release(&table, a << 16, (a << 16) + 4096), 1, "who waits is told when there is something to find");
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

    /// Threads increment plain counters under the lock of their range; a lost update shows a hole.
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
