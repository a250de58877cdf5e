//! The result of one slice of a run, on disks or over NBD.

use super::frontend::MISMATCHES_KEPT;
use super::latency::Latencies;

/// The counters of one pass on a target.
#[derive(Clone)]
pub struct Slice {
    /// I/Os completed within the time.
    pub ios: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// The first error, as text.
    pub first_error: Option<String>,
    /// Latencies of all I/Os that completed.
    pub latency: Latencies,
    /// The measured time in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of this process, in nanoseconds.
    pub cpu_ns: u64,
    /// I/Os that were due by the schedule and had not begun when the time was over.
    pub behind: u64,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// The first mismatches, as text.
    pub mismatches: Vec<String>,
    /// The number of all mismatches.
    pub mismatch_count: u64,
}

impl Slice {
    /// Returns a slice without I/Os.
    pub fn new() -> Slice {
        Slice {
            ios: 0,
            errors: 0,
            first_error: None,
            latency: Latencies::new(),
            elapsed_ns: 0,
            cpu_ns: 0,
            behind: 0,
            verified_bytes: 0,
            mismatches: Vec::new(),
            mismatch_count: 0,
        }
    }

    /// Keeps an error, if it is the first.
    pub fn first_error(&mut self, error: Option<String>) {
        if self.first_error.is_none() {
            self.first_error = error;
        }
    }

    /// Adds errors and results of verification of another pass, but neither its I/Os nor its times.
    pub fn add_findings(&mut self, other: &Slice) {
        self.errors += other.errors;
        self.first_error(other.first_error.clone());
        self.verified_bytes += other.verified_bytes;
        self.mismatch_count += other.mismatch_count;
        self.wrong(&other.mismatches);
    }

    /// Keeps mismatches, up to the limit.
    pub fn wrong(&mut self, mismatches: &[String]) {
        let room = MISMATCHES_KEPT.saturating_sub(self.mismatches.len());
        self.mismatches.extend(mismatches.iter().take(room).cloned());
    }
}
