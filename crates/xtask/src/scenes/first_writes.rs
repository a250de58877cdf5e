//! First writes of blocks: with flushes, and the bytes that they write to disks.

use std::sync::Arc;
use std::time::Duration;

use braid_bench::statistics::median;
use braid_engine::{PoolKey, PoolNext};

use super::rig::{Job, Rig};
use super::snapshots::volume;
use super::{Bound, Figure, Pace};
use crate::pool::BenchPool;

/// A disk throttled like a cloud disk.
const THROTTLED: &str = "throttled(null:200G,iops=20000,bw=500M,latency=100us)";
/// A FLUSH follows this many writes.
const FLUSH_EVERY: u64 = 1000;

/// Measures first writes with a FLUSH after every 1,000 against overwrites with as many flushes, on throttled disks.
pub fn flushed(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    for depth in [1, 32] {
        let mut rig = Rig::start()?;
        let below = rig.device(&format!("raid0({THROTTLED},{THROTTLED},{THROTTLED})"))?;
        let pool = rig.wait(BenchPool::make(&rig.handle, PoolKey(0), &[(below.id, below.bytes)], false))?;
        let full = rig.wait(pool.volume("full", pool.extents / 3, None))?;
        rig.wait(pool.fill(&full))?;
        let thin = rig.wait(pool.volume("thin", pool.extents / 3, None))?;
        let (full, thin) = [full, thin].map(|made| rig.publish(Arc::clone(&made.layout), made.bytes)).into();
        let (mut first, mut over) = (Vec::new(), Vec::new());
        for _ in 0..pace.pairs {
            for (device, into) in [(full, &mut over), (thin, &mut first)] {
                let job = Job { flush_every: Some(FLUSH_EVERY), ..Job::random(device, 0, depth) };
                into.push(rig.run(&[job], pace.slice.max(Duration::from_secs(2)))?.iops);
            }
        }
        figures.push(Figure {
            measure: format!(
                "first 4 KiB random writes / overwrites, a FLUSH after every 1,000, throttled disks, depth {depth}"
            ),
            bound: Bound::AtLeast(0.85),
            detail: format!("{:.0} against {:.0} IOPS", median(&first), median(&over)),
            a: first,
            b: over,
        });
    }
    Ok(())
}

/// Measures the bytes written to all disks per byte of a first write after a snapshot.
pub fn bytes_written(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let disk = "throttled(null:60G,iops=20000,bw=500M)";
    let mut rig = Rig::start()?;
    let (pool, made, device) = volume(&mut rig, 0, &format!("raid0({disk},{disk},{disk})"), false)?;
    rig.wait(pool.snapshot(made.id, 0))?;
    let commit = |rig: &Rig| rig.wait(pool.call(|_| (PoolNext::Commit, ())));
    // Runs until tables are rewritten regularly.
    rig.run(&[Job::random(device, 0, 32)], Duration::from_secs(5))?;
    let mut factors = Vec::new();
    for _ in 0..pace.pairs {
        commit(&rig)?;
        let before = rig.written_bytes();
        let ran = rig.run(&[Job::random(device, 0, 32)], Duration::from_secs(2))?;
        commit(&rig)?;
        factors.push((rig.written_bytes() - before) as f64 / (ran.ios * 4096) as f64);
    }
    figures.push(Figure {
        measure: "bytes to disks per byte of random 4 KiB first write after a snapshot, 64 GiB, tables included"
            .to_owned(),
        bound: Bound::AtMost(1.15),
        detail: format!(
            "depth 32, 60,000 writes a second; {} slices of 2 s, each with a commit at its end",
            factors.len()
        ),
        a: factors,
        b: Vec::new(),
    });
    Ok(())
}
