//! A run on a ring of our own, in this process.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use anyhow::{Context as _, bail};
use braid_engine::{DeviceId, ShardId};
use braid_ring::{DriverKind, Frontend, Ring, RingConfig, RingHandle};

use super::device::{self, Shape};
use super::frontend::{Load, LoadFrontend, MISMATCHES_KEPT, Phase, PhaseDone, in_words};
use super::latency::latency_histogram;
use super::pattern::Order;
use super::report::{Counts, Report};
use super::{BenchArgs, cpu};

const DEVICE: DeviceId = DeviceId(0);

/// Opens what the arguments name, runs the load, and reports.
///
/// # Errors
/// Whatever keeps the run from being one; I/O errors are counted in the report instead.
pub fn run(args: &BenchArgs) -> anyhow::Result<Report> {
    let disks = device::open(args)?;
    let (sender, done) = sync_channel(usize::from(args.shards));
    let seed = if args.verify { u64::from(std::process::id()) << 32 | 0x5eed } else { 0x5eed };

    let shape = Shape::plan(args, &disks)?;
    let (first_byte, span_bytes) = args.part(shape.size_bytes(&disks))?;
    let loads = loads(args, first_byte, span_bytes, seed)?;

    let config = RingConfig {
        shards: args.shards,
        driver: args.driver.as_deref().map(str::parse::<DriverKind>).transpose().map_err(anyhow::Error::msg)?,
        arena_bytes: arena_bytes(args),
        ..RingConfig::default()
    };
    let ring = Ring::start(&config, |shard: ShardId| {
        let load = loads[usize::from(shard.0)].clone();
        vec![Box::new(LoadFrontend::new(load, sender.clone())) as Box<dyn Frontend>]
    })?;
    let handle = ring.handle();
    let layout = shape.build(&handle, &disks)?;
    handle.publish(DEVICE, Some(layout), Box::new(|| {}));
    let driver = handle.driver(ShardId(0)).kind.to_string();

    let report = measure(args, &handle, &done, driver);
    ring.stop();
    report
}

/// Each shard's part: all of it when blocks are drawn at random, its own share when they come in order or are verified
/// (a block is then written by one shard only).
fn loads(args: &BenchArgs, first_byte: u64, span_bytes: u64, seed: u64) -> anyhow::Result<Vec<Load>> {
    let shards = u64::from(args.shards);
    let split = shards > 1 && (args.verify || args.pattern == Order::Sequential);
    let share = if split { span_bytes / args.block / shards * args.block } else { span_bytes };
    if share == 0 {
        bail!("{} shards are more than there are blocks", args.shards);
    }
    let load = |shard: u64| Load {
        device: DEVICE,
        depth: args.depth,
        block_bytes: args.block,
        first_byte: if split { first_byte + shard * share } else { first_byte },
        span_bytes: share,
        seed: seed.wrapping_add(if args.verify { 0 } else { shard }),
        verify: args.verify,
    };
    Ok((0..shards).map(load).collect())
}

/// Room for every place in flight, in the powers of two that the arena hands out.
fn arena_bytes(args: &BenchArgs) -> usize {
    let each = (args.block as usize).next_power_of_two().max(4096);
    (each * args.depth as usize).max(32 << 20).next_multiple_of(32 << 20)
}

fn measure(
    args: &BenchArgs,
    handle: &RingHandle,
    done: &Receiver<PhaseDone>,
    driver: String,
) -> anyhow::Result<Report> {
    let phase = |phase: Phase| -> anyhow::Result<Vec<PhaseDone>> {
        for shard in 0..args.shards {
            handle.post(ShardId(shard), 0, Box::new(phase.clone()));
        }
        (0..args.shards).map(|_| done.recv().context("a shard ended in the middle of the run")).collect()
    };
    let mut before = Vec::new();
    if args.verify && args.reads_percent() > 0 {
        before = phase(Phase::Fill)?;
    }

    let time_ns = if args.count.is_some() { u64::MAX } else { args.time.as_nanos() as u64 };
    // A count is shared out; the first shards take what does not divide.
    let ios = args.count.map_or(u64::MAX, |count| count.div_ceil(u64::from(args.shards)));
    let cpu_before = cpu::own();
    let run = phase(Phase::Run { order: args.pattern, reads_percent: args.reads_percent(), ios, time_ns })?;
    let cpu_ns = (cpu::own() - cpu_before).as_nanos() as u64;

    let mut after = Vec::new();
    if args.verify && args.reads_percent() < 100 {
        after = phase(Phase::ReadBack)?;
    }
    let mut counts =
        Counts { ios: 0, errors: 0, first_error: None, latency: latency_histogram(), elapsed_ns: 0, cpu_ns };
    let begun = run.iter().map(|done| done.begun_ns).min().unwrap_or(0);
    let ended = run.iter().map(|done| done.ended_ns).max().unwrap_or(0);
    counts.elapsed_ns = ended - begun;
    for done in &run {
        counts.ios += done.ios;
        counts.latency.add(&done.latency).context("all histograms have the same bounds")?;
    }
    for done in before.iter().chain(&run).chain(&after) {
        counts.errors += done.errors;
        if counts.first_error.is_none() {
            counts.first_error = done.first_error.map(in_words);
        }
    }
    let mut report = Report::new(what(args), driver, args, &counts);
    for done in before.iter().chain(&run).chain(&after) {
        report.verified_bytes += done.verified_bytes;
        report.mismatch_count += done.mismatch_count;
        let room = MISMATCHES_KEPT - report.mismatches.len();
        report.mismatches.extend(done.mismatches.iter().take(room).map(ToString::to_string));
    }
    Ok(report)
}

/// What was measured, in the words of the command line.
fn what(args: &BenchArgs) -> String {
    match &args.level {
        None => args.disks.join(" "),
        Some(level) => {
            format!("{level} of {}, chunk {}", args.disks.join(" + "), braid_geometry::units::format_size(args.chunk))
        }
    }
}

/// What one of the kernel's no-operations costs at this depth, as a report.
///
/// # Errors
/// There is no io_uring here.
pub fn nop(args: &BenchArgs) -> anyhow::Result<Report> {
    // A bounded number at a time, so that a time limit is kept to within milliseconds.
    const STEP: u64 = 1 << 16;
    let mut counts =
        Counts { ios: 0, errors: 0, first_error: None, latency: latency_histogram(), elapsed_ns: 0, cpu_ns: 0 };
    let (begun, cpu_before) = (Instant::now(), cpu::own());
    loop {
        let step = args.count.map_or(STEP, |count| STEP.min(count - counts.ios));
        braid_ring::nop_bench(args.depth, step)?;
        counts.ios += step;
        let over = args.count.map_or(begun.elapsed() >= args.time, |count| counts.ios >= count);
        if over {
            break;
        }
    }
    counts.elapsed_ns = begun.elapsed().as_nanos() as u64;
    counts.cpu_ns = (cpu::own() - cpu_before).as_nanos() as u64;
    Ok(Report::new("no-operations of the kernel's ring".to_owned(), DriverKind::Uring.to_string(), args, &counts))
}
