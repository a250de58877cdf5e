//! Claims: overlapping writes to a device execute in arrival order, on every level and over all shards.
//!
//! A request that changes a device claims its whole range before its first step. It releases the claim when it has
//! ended and the kernel has returned its I/O. If the kernel keeps an I/O beyond its time limit, the request first
//! enters the list of late ranges ([`crate::late`]), and then releases its claim. So a delayed write of a closed
//! connection never lands after a later, acknowledged write to the same block: the later write waits for it, or fails.
//!
//! **Uncontended claims.** A granule is 64 KiB, sixteen blocks of 4 KiB. Each granule of each device hashes to one
//! word. A request claims blocks of a granule by one compare-and-swap:
//!
//! ```text
//! bits 63..18  granule (device and number), 46 bits      bit 16  a request waits      bits 15..0  claimed blocks
//! ```
//!
//! **Contended claims.** A request joins a queue if its blocks are claimed, if an earlier request in the queue overlaps
//! it, if another granule occupies the word, or if its range is longer than [`HELD_BYTES_MAX`]. The queue compares
//! ranges exactly: a request never waits for an unrelated one, whose disk may hang. The queue grants a range when no
//! earlier request in it overlaps and no word holds any of its blocks. A request that has taken words checks the queue
//! afterwards, and gives the words back if it would overtake a queued request.
//!
//! The range table ([`crate::overlap`]) serves another purpose: there a step of a write excludes jobs and the steps of
//! other requests, and a request releases its range while it waits. Lock order: a claim is taken before a range; a
//! request that holds a range never waits for a claim.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::DeviceId;
use crate::overlap::{Bucket, HELD, TAG_MASK, TAG_SHIFT, WAITING, granule_part, refuses, tag};

/// The longest range in bytes that words hold; a longer one joins the queue at once.
pub const HELD_BYTES_MAX: u64 = 1 << 20;

const GRANULE_SHIFT: u32 = 16;
/// Number of counters of queued requests. A request in the queue counts in the counter of each granule of its range, by
/// hash; a long one counts in `Claims::long` instead. If all these counters are 0 for a request, it overlaps nothing in
/// the queue, and need not lock it.
const HINTS: usize = 1024;
/// Mark a [`Bucket`] that names a word of this table, or, with `OF_QUEUE` too, a request in the queue. A bucket without
/// these bits names a word of a range table.
const OF_CLAIMS: u32 = 1 << 30;
const OF_QUEUE: u32 = 1 << 29;

/// The state of a request's claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Claim {
    /// The request has no claim and needs none.
    #[default]
    No,
    /// The request must claim its range before it begins.
    Wanted,
    /// The request waits in the queue under this number.
    Queued(u32),
    /// Words hold the range.
    Held,
    /// The queue has granted the range.
    Granted(u32),
}

impl Claim {
    /// Returns whether the request may not begin yet.
    #[inline]
    pub fn is_wanted(self) -> bool {
        matches!(self, Claim::Wanted | Claim::Queued(_))
    }
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    device: DeviceId,
    start: u64,
    end: u64,
    number: u32,
    /// Whether the range was longer than [`HELD_BYTES_MAX`] when the request joined. Shortening the range does not
    /// change this: the request leaves the counter in which it was counted.
    long: bool,
}

impl Queued {
    fn overlaps(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.device == device && self.start < end && start < self.end
    }
}

#[derive(Debug)]
struct Queue {
    list: Vec<Queued>,
    /// The number of the request that joined last. Numbers wrap around.
    last: u32,
}

/// The claims of all devices and shards.
#[derive(Debug)]
pub struct Claims {
    words: Box<[AtomicU64]>,
    /// The length of the queue's list, readable without its lock.
    queued: AtomicU32,
    /// Number of long queued requests, which no hint counts.
    long: AtomicU32,
    hints: Box<[AtomicU32]>,
    queue: Mutex<Queue>,
}

impl Claims {
    /// Creates an empty table of `2^bits` words, with memory for a queue of `most` requests.
    ///
    /// # Panics
    /// When `bits` is 0 or over 24.
    pub fn new(bits: u32, most: usize) -> Claims {
        assert!((1..=24).contains(&bits), "a table of 2^{bits} words");
        Claims {
            words: (0..1u32 << bits).map(|_| AtomicU64::new(0)).collect(),
            queued: AtomicU32::new(0),
            long: AtomicU32::new(0),
            hints: (0..HINTS).map(|_| AtomicU32::new(0)).collect(),
            queue: Mutex::new(Queue { list: Vec::with_capacity(most), last: 0 }),
        }
    }

    /// Claims `[start, end)` of the device in the words, rounded outwards to blocks of 4 KiB. Returns false, and claims
    /// nothing, if another request has claimed or awaits any of these blocks, if another granule occupies one of the
    /// words, or if the range spans granules and is longer than [`HELD_BYTES_MAX`]. Calls `woken` for each word that
    /// this call took and gave back, if another request began to wait on the word meanwhile.
    #[inline]
    pub fn hold(&self, device: DeviceId, start: u64, end: u64, woken: &mut impl FnMut(Bucket)) -> bool {
        let (tag, mask, next) = granule_part(device, start, end);
        let held = if next >= end {
            self.take(self.word(tag), tag, mask)
        } else {
            end - start <= HELD_BYTES_MAX && self.take_all(device, start, end, woken)
        };
        // Sequentially consistent, like the compare-and-swap before it: if one request takes words while another joins
        // the queue, at least one of them sees the other.
        if held && self.is_queued(device, start, end) {
            self.release(device, start, end, woken);
            return false;
        }
        held
    }

    /// Releases what [`Claims::hold`] claimed. Calls `woken` for each word on which a request waits.
    #[inline]
    pub fn release(&self, device: DeviceId, start: u64, end: u64, woken: &mut impl FnMut(Bucket)) {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            let word = self.word(tag);
            if self.give(word, mask) {
                woken(Bucket(OF_CLAIMS | word as u32));
            }
            at = next;
        }
    }

    /// Joins the queue for `[start, end)`. Returns the request's number in the queue.
    #[cold]
    pub fn join(&self, device: DeviceId, start: u64, end: u64) -> u32 {
        let mut queue = self.lock();
        queue.last = queue.last.wrapping_add(1);
        let number = queue.last;
        let long = end - start > HELD_BYTES_MAX;
        let queued = Queued { device, start, end, number, long };
        self.counters_of(&queued, |counter| counter.fetch_add(1, Ordering::SeqCst));
        queue.list.push(queued);
        self.queued.store(queue.list.len() as u32, Ordering::SeqCst);
        number
    }

    /// Tries to grant the range to request `number` of the queue.
    ///
    /// # Errors
    /// Returns the key to wait on if an earlier request of the queue overlaps, or a word holds blocks of the range.
    #[cold]
    pub fn try_grant(&self, device: DeviceId, start: u64, end: u64, number: u32) -> Result<(), Bucket> {
        let ahead = |other: &Queued| number.wrapping_sub(other.number);
        let before = |other: &&Queued| (1..1 << 31).contains(&ahead(other)) && other.overlaps(device, start, end);
        // Wait for the latest of the earlier requests: each release wakes few waiters.
        let last = self.lock().list.iter().filter(before).min_by_key(|other| ahead(other)).map(|other| other.number);
        if let Some(last) = last {
            return Err(queue_bucket(last));
        }
        fence(Ordering::SeqCst);
        // A request that takes words from now on sees this one in the queue, and gives them back: no block of the range
        // is claimed by words any more that was not claimed before. A long range goes through the whole table instead
        // of looking up the word of each granule: looking up 65,536 granules (4 GiB) took 340 µs, going through a table
        // of as many words less than 100 µs (2 cores of AMD EPYC).
        if (end - start) >> GRANULE_SHIFT < self.words.len() as u64 / 8 {
            let mut at = start;
            while at < end {
                let (tag, mask, next) = granule_part(device, at, end);
                self.wait_on(self.word(tag), |seen| seen >> TAG_SHIFT == tag && seen & mask != 0)?;
                at = next;
            }
            return Ok(());
        }
        let first = tag(device, start >> GRANULE_SHIFT);
        let held = |seen: u64| {
            let ahead = (seen >> TAG_SHIFT).wrapping_sub(first) & TAG_MASK;
            let granule = (start >> GRANULE_SHIFT) + ahead;
            let inside = seen & HELD != 0 && granule <= (end - 1) >> GRANULE_SHIFT;
            inside && seen & granule_part(device, start.max(granule << GRANULE_SHIFT), end).1 != 0
        };
        (0..self.words.len()).try_for_each(|word| self.wait_on(word, held))
    }

    /// Releases the part before `start` of a granted range. Returns the wait key of requests behind this one in the
    /// queue, which the caller wakes.
    #[cold]
    pub fn shorten(&self, number: u32, start: u64) -> Bucket {
        if let Some(queued) = self.lock().list.iter_mut().find(|queued| queued.number == number) {
            queued.start = start;
        }
        queue_bucket(number)
    }

    /// Removes a request from the queue. Returns the wait key of requests behind it, which the caller wakes.
    #[cold]
    pub fn leave_queue(&self, number: u32) -> Bucket {
        let mut queue = self.lock();
        if let Some(at) = queue.list.iter().position(|queued| queued.number == number) {
            let queued = queue.list.swap_remove(at);
            self.counters_of(&queued, |counter| counter.fetch_sub(1, Ordering::SeqCst));
        }
        self.queued.store(queue.list.len() as u32, Ordering::SeqCst);
        queue_bucket(number)
    }

    /// Returns whether a request of the queue overlaps `[start, end)`.
    #[inline]
    pub fn is_queued(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.queued.load(Ordering::SeqCst) > 0 && self.is_queued_for(device, start, end)
    }

    /// Returns whether no request has claimed or awaits any of `[start, end)`, which is at most [`HELD_BYTES_MAX`]
    /// long. Returns false also if another granule occupies one of the words.
    #[inline]
    pub fn is_free(&self, device: DeviceId, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            if refuses(self.words[self.word(tag)].load(Ordering::SeqCst), tag, mask) {
                return false;
            }
            at = next;
        }
        !self.is_queued(device, start, end)
    }

    /// Returns whether there is no claim at all: for tests.
    pub fn is_empty(&self) -> bool {
        self.lock().list.is_empty() && self.words.iter().all(|word| word.load(Ordering::Relaxed) & HELD == 0)
    }

    #[cold]
    fn is_queued_for(&self, device: DeviceId, start: u64, end: u64) -> bool {
        let mut granules = start >> GRANULE_SHIFT..=(end - 1) >> GRANULE_SHIFT;
        let hinted = |granule| self.hints[self.hint(device, granule)].load(Ordering::SeqCst) > 0;
        let may = self.long.load(Ordering::SeqCst) > 0 || end - start > HELD_BYTES_MAX || granules.any(hinted);
        may && self.overlaps_queued(device, start, end)
    }

    /// Calls `change` for each counter that counts this request.
    fn counters_of(&self, queued: &Queued, change: impl Fn(&AtomicU32) -> u32) {
        if queued.long {
            change(&self.long);
            return;
        }
        for granule in queued.start >> GRANULE_SHIFT..=(queued.end - 1) >> GRANULE_SHIFT {
            change(&self.hints[self.hint(queued.device, granule)]);
        }
    }

    fn hint(&self, device: DeviceId, granule: u64) -> usize {
        self.word(tag(device, granule)) % HINTS
    }

    #[cold]
    fn overlaps_queued(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.lock().list.iter().any(|queued| queued.overlaps(device, start, end))
    }

    #[inline(never)]
    fn take_all(&self, device: DeviceId, start: u64, end: u64, woken: &mut impl FnMut(Bucket)) -> bool {
        let mut at = start;
        while at < end {
            let (tag, mask, next) = granule_part(device, at, end);
            if !self.take(self.word(tag), tag, mask) {
                self.release(device, start, at, woken);
                return false;
            }
            at = next;
        }
        true
    }

    #[inline]
    fn take(&self, word: usize, tag: u64, mask: u64) -> bool {
        let word = &self.words[word];
        let mut seen = word.load(Ordering::Relaxed);
        while !refuses(seen, tag, mask) {
            let new = tag << TAG_SHIFT | seen & (WAITING | HELD) | mask;
            match word.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Releases blocks of a word. Returns whether a request waits on it.
    #[inline]
    fn give(&self, word: usize, mask: u64) -> bool {
        let word = &self.words[word];
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            debug_assert!(seen & mask == mask, "blocks are given back that were not held");
            let left = seen & HELD & !mask;
            let new = if left == 0 { 0 } else { seen >> TAG_SHIFT << TAG_SHIFT | left };
            match word.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return seen & WAITING != 0,
                Err(now) => seen = now,
            }
        }
    }

    /// Sets the waiting bit if the word holds what is awaited, and returns the key to wait on as the error.
    fn wait_on(&self, word: usize, held: impl Fn(u64) -> bool) -> Result<(), Bucket> {
        let mut seen = self.words[word].load(Ordering::SeqCst);
        while held(seen) {
            match self.words[word].compare_exchange_weak(seen, seen | WAITING, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Err(Bucket(OF_CLAIMS | word as u32)),
                Err(now) => seen = now,
            }
        }
        Ok(())
    }

    #[inline]
    fn word(&self, tag: u64) -> usize {
        let hash = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - self.words.len().trailing_zeros())) as usize
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No holder of the lock panics; and the list is whole after each of its operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the wait key of the requests behind this one in the queue.
fn queue_bucket(number: u32) -> Bucket {
    Bucket(OF_CLAIMS | OF_QUEUE | number & (OF_QUEUE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: DeviceId = DeviceId(3);
    const K: u64 = 4096;

    fn hold(claims: &Claims, start: u64, end: u64) -> bool {
        claims.hold(D, start, end, &mut |_| panic!("no request waits"))
    }

    fn give_back(claims: &Claims, start: u64, end: u64) -> Vec<Bucket> {
        let mut woken = Vec::new();
        claims.release(D, start, end, &mut |bucket| woken.push(bucket));
        woken
    }

    #[test]
    fn blocks_are_held_by_one_and_neighbours_by_others() {
        let claims = Claims::new(16, 4);
        assert!(hold(&claims, 0, K) && hold(&claims, K, 5 * 65536) && !hold(&claims, 4 * 65536, 6 * 65536));
        assert!(!hold(&claims, 0, 512) && !claims.is_free(D, 512, 1024) && claims.is_free(D, 5 * 65536, 6 * 65536));
        assert!(claims.hold(DeviceId(4), 0, K, &mut |_| ()), "another device is something else");
        assert!(give_back(&claims, 0, K).is_empty() && hold(&claims, 0, 512));
        give_back(&claims, 0, 512);
        give_back(&claims, K, 5 * 65536);
        claims.release(DeviceId(4), 0, K, &mut |_| ());
        assert!(claims.is_empty());
    }

    #[test]
    fn a_queued_request_precedes_later_ones() {
        let claims = Claims::new(16, 4);
        assert!(hold(&claims, 0, K));
        let second = claims.join(D, 0, 2 * K);
        let word = claims.try_grant(D, 0, 2 * K, second).unwrap_err();
        // Free, but an earlier request wants it, too.
        let mut woken = Vec::new();
        assert!(!claims.hold(D, K, 2 * K, &mut |bucket| woken.push(bucket)) && claims.is_queued(D, K, 2 * K));
        assert_eq!((woken, claims.try_grant(D, 0, 2 * K, second)), (vec![word], Err(word)), "it looks again");
        let third = claims.join(D, K, 2 * K);
        assert_eq!(claims.try_grant(D, K, 2 * K, third), Err(queue_bucket(second)));
        assert_eq!(give_back(&claims, 0, K), [word]);
        assert_eq!(claims.try_grant(D, 0, 2 * K, second), Ok(()));
        assert!(claims.try_grant(D, K, 2 * K, third).is_err());
        assert_eq!(claims.leave_queue(second), queue_bucket(second));
        assert_eq!(claims.try_grant(D, K, 2 * K, third), Ok(()));
        claims.leave_queue(third);
        assert!(hold(&claims, 0, 2 * K));
    }

    #[test]
    fn an_unrelated_granule_of_the_same_word_delays_no_queued_request() {
        let claims = Claims::new(1, 4);
        let mut granules = (0..64u64).map(|granule| granule << 16).filter(|at| claims.word(tag(D, at >> 16)) == 0);
        let (one, other) = (granules.next().unwrap(), granules.next().unwrap());
        assert!(hold(&claims, one, one + K) && !hold(&claims, other, other + K));
        let number = claims.join(D, other, other + K);
        assert_eq!(claims.try_grant(D, other, other + K, number), Ok(()));
        claims.leave_queue(number);
    }

    #[test]
    fn a_range_of_the_whole_device_waits_for_held_blocks_and_releases_what_is_done() {
        let claims = Claims::new(6, 4);
        let (start, end) = (K, 1 << 50);
        assert!(hold(&claims, 1 << 40, (1 << 40) + K) && hold(&claims, 0, K));
        let number = claims.join(D, start, end);
        claims.try_grant(D, start, end, number).unwrap_err();
        assert_eq!(give_back(&claims, 1 << 40, (1 << 40) + K).len(), 1);
        assert_eq!(claims.try_grant(D, start, end, number), Ok(()), "what lies beside it does not count");
        assert!(!hold(&claims, 1 << 30, (1 << 30) + K));
        assert_eq!(claims.shorten(number, 1 << 35), queue_bucket(number));
        assert!(hold(&claims, 1 << 30, (1 << 30) + K) && !hold(&claims, 1 << 45, (1 << 45) + K));
    }

    /// Threads write to blocks that they have claimed: two writers of one block would be noticed.
    #[test]
    fn claims_exclude_between_threads() {
        let claims = Claims::new(4, 64);
        let blocks: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for seed in 1..=4u64 {
                let (claims, blocks) = (&claims, &blocks);
                scope.spawn(move || {
                    let mut x = seed;
                    for _ in 0..10_000 {
                        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let start = (x >> 33) % 64;
                        let end = (start + 1 + (x >> 50) % 20).min(64);
                        let (from, to) = (start << 12, end << 12);
                        let held = claims.hold(D, from, to, &mut |_| ());
                        let number = if held { 0 } else { claims.join(D, from, to) };
                        while !held && claims.try_grant(D, from, to, number).is_err() {
                            std::thread::yield_now();
                        }
                        for block in &blocks[start as usize..end as usize] {
                            assert_eq!(block.fetch_add(1, Ordering::Relaxed), 0, "two have one block");
                        }
                        for block in &blocks[start as usize..end as usize] {
                            block.fetch_sub(1, Ordering::Relaxed);
                        }
                        if held {
                            claims.release(D, from, to, &mut |_| ());
                        } else {
                            claims.leave_queue(number);
                        }
                    }
                });
            }
        });
        assert!(claims.is_empty());
    }
}
