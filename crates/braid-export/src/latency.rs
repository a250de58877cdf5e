//! Request latency histograms of an export, updated by all shards.
//!
//! The buckets are those of the disk latencies. A request's latency begins in the turn of the shard's loop that takes
//! in its header, and ends in the turn that hands its reply to the socket (with TLS: to encryption). Both times are
//! those of the turns: no clock is read per request, and a request that completes within one turn, as on memory disks,
//! counts as 0 ns.
//!
//! The latency includes the time that the client takes to send a WRITE's payload, and the wait of a reply for the
//! previous send. It excludes the waits before a request is taken in: for the limits of the export and of the
//! connection, and for the memory of a READ's data.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_ring::Histogram;
use braid_ring::stats::{BUCKETS, bucket_of};

/// Classes of requests, each with its own histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestClass {
    /// READs.
    Read,
    /// WRITEs.
    Write,
    /// All others.
    Other,
}

impl RequestClass {
    /// All classes.
    pub const ALL: [RequestClass; 3] = [RequestClass::Read, RequestClass::Write, RequestClass::Other];
}

const CLASSES: usize = RequestClass::ALL.len();

/// The latencies of one export over all shards: 3,744 bytes.
pub(crate) struct Latencies([[AtomicU64; BUCKETS]; CLASSES]);

impl Latencies {
    pub fn new() -> Latencies {
        Latencies(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Returns the latencies of one class so far.
    pub fn read(&self, class: RequestClass) -> Histogram {
        let counts = &self.0[class as usize];
        Histogram { counts: std::array::from_fn(|bucket| counts[bucket].load(Ordering::Relaxed)) }
    }

    /// Returns an accumulator for one batch of replies.
    #[inline]
    pub fn batch(&self) -> Batch<'_> {
        Batch { to: self, runs: [Run::default(); CLASSES] }
    }

    #[inline]
    fn add(&self, class: usize, run: Run) {
        if run.count != 0 {
            self.0[class][run.bucket].fetch_add(run.count, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Latencies")
    }
}

/// Consecutive replies of one class in one bucket.
#[derive(Clone, Copy, Default)]
struct Run {
    bucket: usize,
    count: u64,
}

/// Accumulates the latencies of one batch of replies. All shards share the counters, and consecutive latencies mostly
/// fall into the same bucket, so each run costs one addition. Dropping the batch adds the last runs.
pub struct Batch<'a> {
    to: &'a Latencies,
    runs: [Run; CLASSES],
}

impl Batch<'_> {
    /// Records one answered request.
    #[inline]
    pub fn add(&mut self, class: RequestClass, latency_ns: u64) {
        let bucket = bucket_of(latency_ns);
        let run = &mut self.runs[class as usize];
        if run.bucket != bucket {
            let before = std::mem::replace(run, Run { bucket, count: 0 });
            self.to.add(class as usize, before);
        }
        run.count += 1;
    }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        for (class, &run) in self.runs.iter().enumerate() {
            self.to.add(class, run);
        }
    }
}
