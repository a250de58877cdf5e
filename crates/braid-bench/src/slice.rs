//! What one slice of a run counted, whichever way it was run.

use super::frontend::MISMATCHES_KEPT;
use super::latency::Latencies;

/// One pass over a target.
#[derive(Clone)]
pub struct Slice {
    /// I/Os answered within the time.
    pub ios: u64,
    /// Those that failed.
    pub errors: u64,
    /// The first failure, in words.
    pub first_error: Option<String>,
    /// Latencies of all that were answered.
    pub latency: Latencies,
    /// From first to last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Processor time of this process, in nanoseconds.
    pub cpu_ns: u64,
    /// I/Os that the schedule had wanted to begin and that had not when the time was over.
    pub behind: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// The first wrong blocks, in words.
    pub mismatches: Vec<String>,
    /// All wrong blocks.
    pub mismatch_count: u64,
}

impl Slice {
    /// Nothing yet.
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

    /// Keeps a failure in words, if it is the first.
    pub fn first_error(&mut self, error: Option<String>) {
        if self.first_error.is_none() {
            self.first_error = error;
        }
    }

    /// Adds what was found wrong or right, but neither I/Os nor times: of a pass that only verifies.
    pub fn add_findings(&mut self, other: &Slice) {
        self.errors += other.errors;
        self.first_error(other.first_error.clone());
        self.verified_bytes += other.verified_bytes;
        self.mismatch_count += other.mismatch_count;
        self.wrong(&other.mismatches);
    }

    /// Keeps wrong blocks in words, as many as there is room for.
    pub fn wrong(&mut self, mismatches: &[String]) {
        let room = MISMATCHES_KEPT.saturating_sub(self.mismatches.len());
        self.mismatches.extend(mismatches.iter().take(room).cloned());
    }
}
