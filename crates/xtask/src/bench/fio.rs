//! fio on a file or a block device, as the rival or as the load.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

/// A load of fio.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// `random` or `sequential`.
    pub pattern: &'a str,
    /// `read` or `write`.
    pub op: &'a str,
    /// The block size, in fio's notation.
    pub block: &'a str,
    /// I/Os in flight.
    pub depth: u32,
}

impl Load<'_> {
    /// Formats the load: block size, pattern, operation, depth.
    pub fn words(&self) -> String {
        format!("{} {} {}, depth {}", self.block, self.pattern, self.op, self.depth)
    }

    fn rw(&self) -> &'static str {
        match (self.pattern, self.op) {
            ("random", "read") => "randread",
            ("random", _) => "randwrite",
            (_, "read") => "read",
            _ => "write",
        }
    }
}

/// The result of one slice.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// I/Os per second.
    pub iops: f64,
    /// CPU time of fio per I/O, in nanoseconds.
    pub cpu_ns_per_io: f64,
}

/// Runs one slice of fio, started by `command`, as one process: with registered buffers and files as Braid uses them, and without a map of
/// visited blocks.
///
/// # Errors
/// fio fails.
pub fn fio(mut command: Command, slice: Duration, file: &str, bytes: u64, load: &Load<'_>) -> anyhow::Result<Slice> {
    let out = command
        .args(["--name=raw", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1"])
        .args(["--norandommap", "--randrepeat=0", "--time_based", "--thread", "--output-format=json"])
        .args([format!("--rw={}", load.rw()), format!("--bs={}", load.block), format!("--iodepth={}", load.depth)])
        .args([format!("--runtime={}ms", slice.as_millis()), format!("--filename={file}"), format!("--size={bytes}")])
        .output()
        .context("fio")?;
    if !out.status.success() {
        bail!("fio: {}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    }
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).context("fio's JSON")?;
    let job = &json["jobs"][0];
    let side = &job[load.op];
    let ios = side["total_ios"].as_f64().context("fio's count")?;
    let share = (job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0)) / 100.0;
    let ms = side["runtime"].as_f64().context("fio's time")?;
    let iops = side["iops"].as_f64().context("fio's IOPS")?;
    Ok(Slice { iops, cpu_ns_per_io: share * ms * 1e6 / ios.max(1.0) })
}
