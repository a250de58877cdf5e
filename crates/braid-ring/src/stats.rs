//! Counters and latency histograms: one set for each disk and shard, written by that shard only.
//!
//! Each counter has a single writer, so a relaxed load and store (no locked instruction) is enough. Readers sum over
//! the shards, and may see their counters a few I/Os apart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use braid_engine::Op;

/// Sub-buckets of each power of two in a [`Histogram`].
pub const SUB_BUCKETS: usize = 4;

/// Buckets of a [`Histogram`]: up to 2^40 ns (18 minutes). Longer latencies count in the last one.
pub const BUCKETS: usize = 156;

/// Returns the bucket of a latency.
#[inline]
pub fn bucket_of(latency_ns: u64) -> usize {
    if latency_ns < SUB_BUCKETS as u64 {
        return latency_ns as usize;
    }
    let exponent = 63 - latency_ns.leading_zeros() as usize;
    let sub = (latency_ns >> (exponent - 2)) as usize & (SUB_BUCKETS - 1);
    ((exponent - 1) * SUB_BUCKETS + sub).min(BUCKETS - 1)
}

/// Returns the smallest latency of `bucket` in nanoseconds.
pub fn bucket_floor_ns(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let exponent = bucket / SUB_BUCKETS + 1;
    let sub = (bucket % SUB_BUCKETS) as u64;
    (1 << exponent) + (sub << (exponent - 2))
}

/// A counter with a single writer.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[inline]
    pub(crate) fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one operation.
#[derive(Default)]
pub(crate) struct OpCounters {
    pub(crate) started: Counter,
    /// Bytes of these I/Os.
    pub(crate) bytes: Counter,
}

/// The counters of one shard for one disk.
pub(crate) struct LeafCounters {
    /// I/Os accepted, by `Op as usize`.
    pub(crate) ops: [OpCounters; OPS],
    /// I/Os that ended with an error.
    pub(crate) errors: Counter,
    /// I/Os that exceeded the time limit. They count as errors, too.
    pub(crate) late: Counter,
    pub(crate) no_space: Counter,
    /// I/Os that have not ended, including late ones that the kernel has not returned.
    pub(crate) in_flight: Counter,
    /// Latencies of timed I/Os: reads, writes, all others.
    pub(crate) latency: [[Counter; BUCKETS]; CLASSES],
}

/// Number of operations.
pub(crate) const OPS: usize = 5;
/// Classes of operations with a separate histogram.
pub(crate) const CLASSES: usize = 3;

impl LeafCounters {
    pub(crate) fn new() -> LeafCounters {
        LeafCounters {
            ops: Default::default(),
            errors: Counter::default(),
            late: Counter::default(),
            no_space: Counter::default(),
            in_flight: Counter::default(),
            latency: std::array::from_fn(|_| std::array::from_fn(|_| Counter::default())),
        }
    }

    /// Counts an I/O that was accepted.
    #[inline]
    pub(crate) fn started(&self, op: Op, bytes: u64) {
        let op = &self.ops[op as usize];
        op.started.add(1);
        op.bytes.add(bytes);
    }

    #[inline]
    pub(crate) fn record(&self, op: usize, latency_ns: u64) {
        self.latency[op.min(CLASSES - 1)][bucket_of(latency_ns)].add(1);
    }
}

/// I/Os by latency bucket; see [`bucket_floor_ns`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// I/Os in each bucket.
    pub counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Returns the number of I/Os counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the upper bound in nanoseconds of the bucket that contains the given quantile (0 to 1); 0 when empty.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let total = self.total();
        if total == 0 {
            return 0;
        }
        let rank = ((total as f64 * share).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_floor_ns(bucket + 1) - 1;
            }
        }
        bucket_floor_ns(BUCKETS) - 1
    }
}

/// Statistics of one disk since it was added, summed over the shards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeafStats {
    /// Reads accepted.
    pub reads: u64,
    /// Writes accepted.
    pub writes: u64,
    /// Zeroing requests accepted.
    pub write_zeroes: u64,
    /// Discards accepted.
    pub discards: u64,
    /// Flushes accepted.
    pub flushes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// I/Os that ended with an error.
    pub errors: u64,
    /// I/Os that exceeded the time limit. They count as errors, too.
    pub late: u64,
    /// I/Os that failed because the file system of the disk's file was full. They count as errors, too.
    pub no_space: u64,
    /// I/Os now in flight, including late ones that the kernel has not returned.
    pub in_flight: u64,
    /// Latency of reads. Reads of mem and null disks, which complete at once, count as 0 ns.
    pub read_latency: Histogram,
    /// Latency of writes.
    pub write_latency: Histogram,
    /// Latency of flushes, discards and zeroing.
    pub other_latency: Histogram,
}

impl LeafStats {
    /// Adds the counters of one shard.
    pub(crate) fn add(&mut self, c: &LeafCounters) {
        let started: [u64; OPS] = std::array::from_fn(|op| c.ops[op].started.get());
        self.reads += started[0];
        self.writes += started[1];
        self.write_zeroes += started[2];
        self.discards += started[3];
        self.flushes += started[4];
        self.read_bytes += c.ops[0].bytes.get();
        self.written_bytes += c.ops[1].bytes.get();
        self.errors += c.errors.get();
        self.late += c.late.get();
        self.no_space += c.no_space.get();
        self.in_flight += c.in_flight.get();
        for (class, into) in
            [&mut self.read_latency, &mut self.write_latency, &mut self.other_latency].into_iter().enumerate()
        {
            for (bucket, count) in into.counts.iter_mut().enumerate() {
                *count += c.latency[class][bucket].get();
            }
        }
    }

    /// Counts as 0 ns each I/O that is in no histogram yet. Called once, after all shards were added, for plain `mem`
    /// and `null` disks only: their fast path records no latency, and none of their I/Os stays in flight.
    pub(crate) fn add_untimed(&mut self) {
        let others = self.write_zeroes + self.discards + self.flushes;
        for (count, into) in [
            (self.reads, &mut self.read_latency),
            (self.writes, &mut self.write_latency),
            (others, &mut self.other_latency),
        ] {
            into.counts[0] += count.saturating_sub(into.total());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous() {
        for bucket in 0..BUCKETS - 1 {
            let (floor, next) = (bucket_floor_ns(bucket), bucket_floor_ns(bucket + 1));
            assert!(floor < next);
            assert_eq!(bucket_of(floor), bucket);
            assert_eq!(bucket_of(next - 1), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_floor_ns(BUCKETS), 1 << 40);
    }

    #[test]
    fn quantiles_bound_recorded_latencies() {
        let mut h = Histogram::default();
        for ns in [100u64, 200, 300, 10_000] {
            h.counts[bucket_of(ns)] += 1;
        }
        assert!((200..250).contains(&h.quantile_ns(0.5)));
        assert!((10_000..12_500).contains(&h.quantile_ns(1.0)));
        assert_eq!(Histogram::default().quantile_ns(0.5), 0);
    }
}
