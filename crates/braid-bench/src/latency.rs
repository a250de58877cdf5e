//! Latencies, counted in memory that is taken once.

use hdrhistogram::Histogram;

/// A histogram for latencies up to an hour with three digits, whose memory is taken now.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are in order")
}

/// Latencies of reads and of writes, in nanoseconds.
#[derive(Clone)]
pub struct Latencies {
    /// Of reads.
    pub reads: Histogram<u64>,
    /// Of writes.
    pub writes: Histogram<u64>,
}

impl Latencies {
    /// None yet.
    pub fn new() -> Latencies {
        Latencies { reads: latency_histogram(), writes: latency_histogram() }
    }

    /// Those of reads, or those of writes.
    #[inline]
    pub fn side(&mut self, read: bool) -> &mut Histogram<u64> {
        if read { &mut self.reads } else { &mut self.writes }
    }

    /// Adds others'.
    pub fn add(&mut self, other: &Latencies) {
        self.reads.add(&other.reads).expect("all histograms have the same bounds");
        self.writes.add(&other.writes).expect("all histograms have the same bounds");
    }

    /// Reads and writes together.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.reads.clone();
        all.add(&self.writes).expect("all histograms have the same bounds");
        all
    }
}
