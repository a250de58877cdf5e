//! Figures of the daemon as a whole: allocations, CPU when idle, time to start.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};
use braid_bench::daemon::Daemon;
use braid_bench::process::wait_for;
use braid_bench::{connect, cpu};

use super::{Effort, Measurement, Target};

/// Measures the CPU time of a daemon with one connected client that sends no requests.
pub fn idle(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    daemon.cli(&["array", "create", "memory", "--level", "concat", "mem:64M"])?;
    let socket = daemon.export("memory")?;
    let client = connect(&format!("nbd+unix:///memory?socket={socket}"))?;
    let slices = 4;
    let mut percent = Vec::new();
    for _ in 0..slices {
        let (begun, before) = (Instant::now(), cpu::of_threads(daemon.id())?);
        std::thread::sleep(effort.idle / slices);
        let used = cpu::of_threads(daemon.id())?.since(&before);
        percent.push(100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64());
    }
    drop(client);
    let detail = format!("one idle client connected, observed for {} s", effort.idle.as_secs());
    found(Measurement::of_one("idle daemon, percent of a core", Target::AtMost(0.1), &percent, detail));
    Ok(())
}

const ARRAYS: usize = 100;

/// Measures the time from the start of the process until all exports of 100 arrays of file disks accept connections.
pub fn start(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let mut daemon = Daemon::start()?;
    let sockets: Vec<String> = (0..ARRAYS).map(|i| daemon.join(&format!("{i}.nbd"))).collect();
    for (i, socket) in sockets.iter().enumerate() {
        let disks = [0, 1].map(|disk| format!("file:{},size=64M", daemon.join(&format!("disk{i}-{disk}"))));
        daemon.cli(&["array", "create", &format!("array{i}"), "--level", "raid0", &disks[0], &disks[1]])?;
        daemon.cli(&["export", "add", &format!("array{i}"), "--nbd", &format!("unix:{socket}")])?;
    }
    let mut seconds = Vec::new();
    for _ in 0..effort.pairs.min(9) {
        // The start after a crash (kill -9), which clients wait for.
        daemon.kill();
        let begun = Instant::now();
        daemon.start_again()?;
        let mut waiting: Vec<&String> = sockets.iter().collect();
        wait_for("all exports", || {
            waiting.retain(|socket| UnixStream::connect(socket).is_err());
            waiting.is_empty().then_some(())
        })?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let detail = format!("{ARRAYS} arrays of two file disks, after kill -9, on one core");
    found(Measurement::of_one("start to the last export listening, seconds", Target::AtMost(1.0), &seconds, detail));
    Ok(())
}

/// Runs the test `allocations` in an optimised build, and reports its counts.
pub fn allocations(_: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let cargo = std::env::var("CARGO").context("the counting allocator is in a test: run this through `make bench`")?;
    let out = Command::new(cargo)
        .args(["test", "--locked", "--release", "--quiet", "-p", "braid", "--test", "allocations", "--", "--nocapture"])
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    for line in text.lines().filter_map(|line| line.split_once("allocations: ")) {
        // "WHAT: N in M I/Os"
        let parsed = line.1.rsplit_once(": ").and_then(|(what, counts)| {
            let mut words = counts.split_whitespace();
            let allocations: f64 = words.next()?.parse().ok()?;
            let ios: f64 = words.nth(1)?.parse().ok()?;
            Some((what, allocations, ios))
        });
        let Some((what, allocations, ios)) = parsed else { continue };
        let detail = format!("{allocations} in {ios} I/Os on the shard's thread");
        found(Measurement::of_one(
            format!("allocations per I/O, {what}"),
            Target::AtMost(0.0),
            &[allocations / ios],
            detail,
        ));
    }
    if !out.status.success() {
        bail!("the test `allocations` failed: {}{text}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(())
}
