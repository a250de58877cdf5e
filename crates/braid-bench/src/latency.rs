//! Histograms of latencies, whose memory is allocated once.

use hdrhistogram::Histogram;

/// Returns a histogram for latencies up to an hour with three significant digits. All of its memory is allocated now.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are in order")
}

/// Histograms of the latencies of reads and of writes, in nanoseconds.
#[derive(Clone)]
pub struct Latencies {
    /// Latencies of reads.
    pub reads: Histogram<u64>,
    /// Latencies of writes.
    pub writes: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// Returns empty histograms.
    pub fn new() -> Latencies {
        Latencies { reads: latency_histogram(), writes: latency_histogram() }
    }

    /// Returns the histogram of reads, or that of writes.
    #[inline]
    pub fn side(&mut self, read: bool) -> &mut Histogram<u64> {
        if read { &mut self.reads } else { &mut self.writes }
    }

    /// Adds all latencies of `other`.
    pub fn add(&mut self, other: &Latencies) {
        self.reads.add(&other.reads).expect("all histograms have the same bounds");
        self.writes.add(&other.writes).expect("all histograms have the same bounds");
    }

    /// Returns a histogram of reads and writes together.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = self.reads.clone();
        all.add(&self.writes).expect("all histograms have the same bounds");
        all
    }
}
