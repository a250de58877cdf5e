//! Missed writes: the blocks of an array that were written while a member was missing, one bit each, in memory. A
//! member that returns gets these blocks, and not all of every dirty region (delta resync).
//!
//! A write that a member misses is recorded before the reconciler can learn that no such write is in flight any more:
//! when it is planned without the member, or when the member is found to have failed it. The bits are lost with the
//! process; then the dirty regions determine what may differ.

use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest block that has its own bit, in bytes, as a shift.
const SHIFT_MIN: u32 = 12;
/// Maximum number of bits (32 MiB): in a larger array a bit represents a larger block.
const BITS_MAX: u64 = 1 << 28;

/// The writes that a member misses, as all shards record them.
#[derive(Debug)]
pub struct MissedWrites {
    shift: u32,
    size_bytes: u64,
    words: Box<[AtomicU64]>,
}

impl MissedWrites {
    /// Creates an empty record for an array of so many bytes.
    pub fn new(size_bytes: u64) -> MissedWrites {
        let mut shift = SHIFT_MIN;
        while size_bytes.div_ceil(1 << shift) > BITS_MAX {
            shift += 1;
        }
        let words = size_bytes.div_ceil(1 << shift).div_ceil(64);
        MissedWrites { shift, size_bytes, words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records a write to these bytes, rounded outwards to blocks. Bytes beyond the end have no bits.
    pub fn record(&self, start: u64, end: u64) {
        let end = end.min(self.size_bytes);
        if start >= end {
            return;
        }
        let (first, last) = (start >> self.shift, (end - 1) >> self.shift);
        for word in first / 64..=last / 64 {
            let mut bits = u64::MAX;
            if word == first / 64 {
                bits &= u64::MAX << (first % 64);
            }
            if word == last / 64 {
                bits &= u64::MAX >> (63 - last % 64);
            }
            let word = &self.words[word as usize];
            // Repeated writes to one block do not take the cache line from other shards.
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::Release);
            }
        }
    }

    /// Returns the blocks recorded so far.
    pub fn blocks(&self) -> BlockSet {
        let words = self.words.iter().map(|word| word.load(Ordering::Acquire)).collect();
        BlockSet { shift: self.shift, size_bytes: self.size_bytes, words }
    }
}

/// A set of blocks of an array.
#[derive(Clone, Debug)]
pub struct BlockSet {
    shift: u32,
    size_bytes: u64,
    words: Box<[u64]>,
}

impl BlockSet {
    fn has(&self, block: u64) -> bool {
        self.words.get((block / 64) as usize).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// Returns the start and the end of the first run of these blocks within `[start, end)` of the array; both are
    /// `end` if there is none.
    pub fn run(&self, start: u64, end: u64) -> (u64, u64) {
        let blocks = end.min(self.size_bytes).div_ceil(1 << self.shift);
        let mut block = start >> self.shift;
        while block < blocks && !self.has(block) {
            let word = self.words[(block / 64) as usize];
            block += if word >> (block % 64) == 0 { 64 - block % 64 } else { 1 };
        }
        if block >= blocks {
            return (end, end);
        }
        let first = block;
        while block < blocks && self.has(block) {
            block += 1;
        }
        ((first << self.shift).max(start), (block << self.shift).min(end))
    }

    /// Returns the number of bytes of these blocks within `[start, end)`.
    pub fn bytes(&self, start: u64, end: u64) -> u64 {
        let (mut at, mut bytes) = (start, 0);
        while at < end {
            let (first, last) = self.run(at, end);
            (at, bytes) = (last, bytes + last - first);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_noted_whole_and_found_in_runs() {
        let missed = MissedWrites::new(200 * 4096 + 512);
        missed.record(4095, 4097);
        missed.record(60 * 4096, 130 * 4096);
        missed.record(200 * 4096, 200 * 4096 + 512);
        missed.record(300 * 4096, 301 * 4096);
        missed.record(5, 5);
        let (blocks, end) = (missed.blocks(), 200 * 4096 + 512);
        let runs = [(0, 2 * 4096), (60 * 4096, 130 * 4096), (200 * 4096, end)];
        let mut at = 0;
        for run in runs {
            assert_eq!(blocks.run(at, end), run);
            at = run.1;
        }
        assert_eq!(blocks.run(2 * 4096, 60 * 4096), (60 * 4096, 60 * 4096), "none in between");
        assert_eq!(blocks.run(64 * 4096 + 512, 65 * 4096), (64 * 4096 + 512, 65 * 4096), "no more than was requested");
        assert_eq!(blocks.bytes(0, end), 72 * 4096 + 512);
        assert_eq!(blocks.bytes(2 * 4096, 61 * 4096), 4096);
    }

    #[test]
    fn a_large_array_has_larger_blocks() {
        let tib = 1u64 << 40;
        assert_eq!(MissedWrites::new(tib).shift, 12);
        let missed = MissedWrites::new(16 * tib);
        assert_eq!((missed.shift, missed.words.len()), (16, 1 << 22));
        missed.record(16 * tib - 512, 16 * tib);
        assert_eq!(missed.blocks().run(0, 16 * tib), (16 * tib - 65536, 16 * tib));
    }
}
