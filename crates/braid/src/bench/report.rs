//! What a run found, for people and for programs.

use std::fmt::Write as _;

use braid_geometry::units::{format_rate, format_size};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// One run. Latencies are from the loop in which an I/O was submitted to the loop in which it was answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was measured, as on the command line.
    pub what: String,
    /// How the kernel was asked.
    pub driver: String,
    /// `random` or `sequential`.
    pub pattern: String,
    /// `read`, `write` or `mixed`.
    pub op: String,
    /// Bytes of each I/O.
    pub block_bytes: u64,
    /// I/Os in flight on each shard.
    pub depth: u32,
    /// Shards.
    pub shards: u16,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
    /// I/Os that were answered.
    pub ios: u64,
    /// I/Os that failed, among them.
    pub errors: u64,
    /// The first error.
    pub first_error: Option<String>,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Processor time of this process, in nanoseconds.
    pub cpu_ns: u64,
    /// The same for each I/O.
    pub cpu_ns_per_io: f64,
    /// Latency: the mean.
    pub latency_ns_mean: f64,
    /// Latency: half of the I/Os took no longer.
    pub latency_ns_p50: u64,
    /// Latency: nine of ten.
    pub latency_ns_p90: u64,
    /// Latency: 99 of 100.
    pub latency_ns_p99: u64,
    /// Latency: 999 of 1000.
    pub latency_ns_p999: u64,
    /// The longest.
    pub latency_ns_max: u64,
    /// Bytes that were read and compared with what ought to stand there.
    pub verified_bytes: u64,
    /// Wrong ones, in words; at most the first few.
    pub mismatches: Vec<String>,
    /// How many there were.
    pub mismatch_count: u64,
}

/// What every way of running counts.
pub struct Counts {
    /// I/Os answered.
    pub ios: u64,
    /// Those that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
    /// From first to last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Processor time in nanoseconds.
    pub cpu_ns: u64,
}

impl Report {
    /// Puts counts into a report on `what`.
    pub fn new(what: String, driver: String, args: &super::BenchArgs, counts: &Counts) -> Report {
        let seconds = counts.elapsed_ns.max(1) as f64 / 1e9;
        let latency = &counts.latency;
        Report {
            what,
            driver,
            pattern: format!("{:?}", args.pattern).to_lowercase(),
            op: format!("{:?}", args.op).to_lowercase(),
            block_bytes: args.block,
            depth: args.depth,
            shards: args.shards,
            elapsed_ns: counts.elapsed_ns,
            ios: counts.ios,
            errors: counts.errors,
            first_error: counts.first_error.clone(),
            iops: counts.ios as f64 / seconds,
            bytes_per_second: counts.ios as f64 * args.block as f64 / seconds,
            cpu_ns: counts.cpu_ns,
            cpu_ns_per_io: counts.cpu_ns as f64 / counts.ios.max(1) as f64,
            latency_ns_mean: latency.mean(),
            latency_ns_p50: latency.value_at_quantile(0.5),
            latency_ns_p90: latency.value_at_quantile(0.9),
            latency_ns_p99: latency.value_at_quantile(0.99),
            latency_ns_p999: latency.value_at_quantile(0.999),
            latency_ns_max: latency.max(),
            verified_bytes: 0,
            mismatches: Vec::new(),
            mismatch_count: 0,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{label:<12}{value}");
        };
        line("device", self.what.clone());
        let shards = if self.shards == 1 { String::new() } else { format!(" on each of {} shards", self.shards) };
        let block = format_size(self.block_bytes);
        line("load", format!("{} {} of {block}, {} in flight{shards}", self.pattern, self.op, self.depth));
        line("driver", self.driver.clone());
        line("time", format!("{:.2} s, {} I/Os", self.elapsed_ns as f64 / 1e9, self.ios));
        line("rate", format!("{:.0} IOPS, {}", self.iops, format_rate(self.bytes_per_second as u64)));
        line("cpu", format!("{} an I/O", time(self.cpu_ns_per_io)));
        let at = |ns: u64| time(ns as f64);
        line(
            "latency",
            format!(
                "mean {}, half {}, 90% {}, 99% {}, 99.9% {}, longest {}",
                time(self.latency_ns_mean),
                at(self.latency_ns_p50),
                at(self.latency_ns_p90),
                at(self.latency_ns_p99),
                at(self.latency_ns_p999),
                at(self.latency_ns_max)
            ),
        );
        if self.errors > 0 {
            let first = self.first_error.as_deref().unwrap_or("unknown");
            line("errors", format!("{}; the first: {first}", self.errors));
        }
        if self.verified_bytes > 0 || self.mismatch_count > 0 {
            line("verified", format_size(self.verified_bytes));
        }
        for mismatch in &self.mismatches {
            line("WRONG", mismatch.clone());
        }
        if self.mismatch_count > self.mismatches.len() as u64 {
            line("WRONG", format!("{} blocks in all", self.mismatch_count));
        }
        text
    }
}

/// A time for people.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}
