//! The progress of a phase: each job publishes its own count, and only that job writes it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The count of one job, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
pub struct LiveCell {
    ios: AtomicU64,
    latency_sum_ns: AtomicU64,
}

impl LiveCell {
    /// Publishes the I/Os completed in this phase, and the sum of their latencies in nanoseconds. Called once per turn of a loop.
    #[inline]
    pub fn show(&self, ios: u64, latency_sum_ns: u64) {
        self.ios.store(ios, Ordering::Relaxed);
        self.latency_sum_ns.store(latency_sum_ns, Ordering::Relaxed);
    }

    /// Returns the values published last.
    pub fn seen(&self) -> (u64, u64) {
        (self.ios.load(Ordering::Relaxed), self.latency_sum_ns.load(Ordering::Relaxed))
    }
}
