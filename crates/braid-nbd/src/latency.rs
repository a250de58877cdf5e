//! How long an export's requests take: counted by all shards, read by whoever asks.
//!
//! The buckets are those of the disks' latencies. A request's latency begins with the turn of the shard's loop that takes
//! its header in, and ends with the turn that hands its reply to the socket (over TLS: to be encrypted). No clock is read
//! for it. A WRITE's payload that is slow to come is in it, and so is a reply that waits for the one before it to be sent.
//! What a request waits for before it is taken in is not: the export's limits, those of the connection, memory for what a
//! READ brings. What is answered within one turn, as disks in memory do, takes 0 ns.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_ring::Histogram;
use braid_ring::stats::{BUCKETS, bucket_of};

/// Requests that have a histogram of their own.
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
    /// All of them.
    pub const ALL: [RequestClass; 3] = [RequestClass::Read, RequestClass::Write, RequestClass::Other];
}

const CLASSES: usize = RequestClass::ALL.len();

/// Latencies of one export, all shards together: 3,744 bytes.
pub(crate) struct Latencies([[AtomicU64; BUCKETS]; CLASSES]);

impl Latencies {
    pub fn new() -> Latencies {
        Latencies(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Those of one class up to now.
    pub fn read(&self, class: RequestClass) -> Histogram {
        let counts = &self.0[class as usize];
        Histogram { counts: std::array::from_fn(|bucket| counts[bucket].load(Ordering::Relaxed)) }
    }

    /// For the replies of one batch.
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

/// Replies of one class, one after another, in one bucket.
#[derive(Clone, Copy, Default)]
struct Run {
    bucket: usize,
    count: u64,
}

/// Latencies of one batch of replies. Neighbours mostly fall into one bucket, and all shards share the counts: so there
/// is one addition for each run of them, the last when this is dropped.
pub struct Batch<'a> {
    to: &'a Latencies,
    runs: [Run; CLASSES],
}

impl Batch<'_> {
    /// One more request of this class was answered, after so long.
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
