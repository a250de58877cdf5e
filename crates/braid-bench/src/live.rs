//! How a phase is going, for whoever watches: each job shows its own count, nobody else writes it.

use std::sync::atomic::{AtomicU64, Ordering};

/// One job's count, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
pub struct LiveCell {
    ios: AtomicU64,
    latency_sum_ns: AtomicU64,
}

impl LiveCell {
    /// Shows I/Os answered in this phase, and the sum of their latencies in nanoseconds. Once for each turn of a loop.
    #[inline]
    pub fn show(&self, ios: u64, latency_sum_ns: u64) {
        self.ios.store(ios, Ordering::Relaxed);
        self.latency_sum_ns.store(latency_sum_ns, Ordering::Relaxed);
    }

    /// What was shown last.
    pub fn seen(&self) -> (u64, u64) {
        (self.ios.load(Ordering::Relaxed), self.latency_sum_ns.load(Ordering::Relaxed))
    }
}
