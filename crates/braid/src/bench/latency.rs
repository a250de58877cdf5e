//! Latencies, counted in memory that is taken once.

use hdrhistogram::Histogram;

/// A histogram for latencies up to an hour with three digits, whose memory is taken now.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are in order")
}
