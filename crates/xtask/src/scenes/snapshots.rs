//! Volumes with many snapshots, and writes while a snapshot is taken.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use braid_bench::Random;
use braid_bench::process::Folder;
use braid_bench::statistics::median;
use braid_engine::pool::{EXTENT_BLOCKS, EXTENT_BYTES, MoveStep, OwnerId, VolumeId};
use braid_engine::{PoolKey, PoolNext};

use super::rig::{Device, Job, Rig, resident_bytes};
use super::{Bound, Figure, Pace};
use crate::pool::{BenchPool, BenchVolume};

/// Null disks for a pool with a volume of 64 GiB and as much in snapshots.
const RAID0: &str = "raid0(null:60G,null:60G,null:60G)";
const VOLUME_EXTENTS: u64 = (64 << 30) / EXTENT_BYTES;
const SNAPSHOTS: u32 = 100;
/// Records of one compaction step, as in the daemon.
const COMPACT_RECORDS: u32 = 2000;

/// Measures a volume with 100 snapshots, 1 % of its blocks changed after each, against one without: on sparse files in memory, and on null
/// disks.
pub fn hundred(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let folder = Folder::below(Path::new("/dev/shm"))?;
    let mut below = Vec::new();
    for side in ["a", "b"] {
        let names: Vec<String> = (0..3).map(|disk| folder.join(&format!("{side}{disk}"))).collect();
        for name in &names {
            File::create(name)?.set_len(60 << 30).context("a sparse file of 60 GiB")?;
        }
        below.push(format!("raid0({})", names.join(",")));
    }
    hundred_on(pace, ("files in memory", Bound::AtLeast(0.95), true), [&below[0], &below[1]], figures)?;
    hundred_on(pace, ("null disks", Bound::Shown, false), [RAID0, RAID0], figures)
}

fn hundred_on(
    pace: Pace,
    (on, bound, keeps_data): (&str, Bound, bool),
    below: [&str; 2],
    figures: &mut Vec<Figure>,
) -> anyhow::Result<()> {
    let mut rig = Rig::start()?;
    let (_, _, plain) = volume(&mut rig, 0, below[0], keeps_data)?;
    let (pool, made, with) = volume(&mut rig, 1, below[1], keeps_data)?;
    let blocks = VOLUME_EXTENTS * u64::from(EXTENT_BLOCKS);
    let before = resident_bytes()?;
    let mut random = Random::new(7);
    let mut changed: Vec<u32> = Vec::new();
    for number in 0..SNAPSHOTS {
        rig.wait(pool.snapshot(made.id, number))?;
        changed = (0..blocks / 100).map(|_| random.below(blocks) as u32).collect();
        rig.wait(pool.allocate(made.id, changed.iter().map(|block| (u64::from(*block), 1))))?;
    }
    let mut distinct = changed.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let memory = (resident_bytes()? - before) as f64 / 1e6;
    // Each round changes about as many distinct blocks as the last one.
    let versions = blocks + u64::from(SNAPSHOTS) * distinct.len() as u64;
    let changed: Arc<[u32]> = changed.into();
    for compacted in [false, true] {
        let what = if compacted {
            let begun = Instant::now();
            compact(&rig, &pool)?;
            format!("compacted in {:.1} s", begun.elapsed().as_secs_f64())
        } else {
            "not compacted".to_owned()
        };
        let used = rig.wait(pool.call(|pool| (PoolNext::Done, used_extents(pool))))?;
        if keeps_data {
            figures.push(Figure {
                measure: format!("64 GiB with 100 snapshots, 1 % changed after each, {what}: space / distinct blocks"),
                bound: Bound::AtMost(1.1),
                a: vec![(used * u64::from(EXTENT_BLOCKS)) as f64 / versions as f64],
                b: Vec::new(),
                detail: format!("{} GiB; the snapshots take {memory:.0} MB of memory", (used * EXTENT_BYTES) >> 30),
            });
        }
        let depth = if keeps_data { 32 } else { 128 };
        for (name, reads, only) in
            [("random read", 100, None), ("overwrite of changed blocks", 0, Some(Arc::clone(&changed)))]
        {
            let (mut ours, mut others) = (Vec::new(), Vec::new());
            for _ in 0..pace.pairs {
                for (device, into) in [(plain, &mut others), (with, &mut ours)] {
                    let job = Job { only: only.clone(), ..Job::random(device, reads, depth) };
                    into.push(rig.run(&[job], pace.slice)?.iops);
                }
            }
            figures.push(Figure {
                measure: format!("64 GiB on {on}, 100 snapshots / none, {what}: 4 KiB {name}, depth {depth}"),
                bound,
                detail: format!("{:.0} against {:.0} IOPS", median(&ours), median(&others)),
                a: ours,
                b: others,
            });
        }
    }
    Ok(())
}

/// Measures the p99.9 latency of writes in seconds with a snapshot in the middle against seconds without.
pub fn beside(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let mut rig = Rig::start()?;
    let (pool, made, device) = volume(&mut rig, 0, RAID0, false)?;
    // In seconds of both kinds, every write is the first of its block after a snapshot.
    rig.wait(pool.snapshot(made.id, 0))?;
    let job = Job::random(device, 0, 32);
    rig.run(std::slice::from_ref(&job), Duration::from_secs(1))?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for number in 1..=2 * pace.pairs as u32 {
        let begun = rig.begin(std::slice::from_ref(&job), Duration::from_secs(1));
        thread::sleep(Duration::from_millis(500));
        if number % 2 == 0 {
            rig.wait(pool.snapshot(made.id, number))?;
        }
        let ran = rig.end(1, begun)?;
        let p999 = ran.latency.writes.value_at_quantile(0.999) as f64 / 1e3;
        if number % 2 == 0 { with.push(p999) } else { without.push(p999) }
    }
    figures.push(Figure {
        measure: "random 4 KiB writes at depth 32, null disks: p99.9 in the second around a snapshot / without"
            .to_owned(),
        bound: Bound::AtMost(1.2),
        detail: format!("{:.1} against {:.1} µs", median(&with), median(&without)),
        a: with,
        b: without,
    });
    Ok(())
}

/// Creates a pool on the target `below`, with a volume of 64 GiB, all of it allocated.
pub fn volume(
    rig: &mut Rig,
    key: u16,
    below: &str,
    keeps_data: bool,
) -> anyhow::Result<(BenchPool, BenchVolume, Device)> {
    let device = rig.device(below)?;
    let pool = rig.wait(BenchPool::make(&rig.handle, PoolKey(key), &[(device.id, device.bytes)], keeps_data))?;
    let made = rig.wait(pool.volume("bench", VOLUME_EXTENTS, None))?;
    rig.wait(pool.fill(&made))?;
    let device = rig.publish(Arc::clone(&made.layout), made.bytes);
    Ok((pool, made, device))
}

/// Returns the number of allocated extents of a pool.
pub fn used_extents(pool: &braid_engine::pool::Pool) -> u64 {
    let all: u64 = pool.state().members().map(|(_, extents)| u64::from(extents)).sum();
    all - pool.free_extents()
}

/// Compacts all volumes and snapshots of a pool, and commits.
fn compact(rig: &Rig, pool: &BenchPool) -> anyhow::Result<()> {
    rig.wait(pool.call(|pool| {
        let owners = pool.state().owners.iter().map(|owner| owner.id).collect();
        pool.compact(owners);
        (PoolNext::Done, ())
    }))?;
    while rig.wait(pool.call(|pool| (PoolNext::Done, pool.compact_step(COMPACT_RECORDS))))? == MoveStep::Some {}
    rig.wait(pool.call(|_| (PoolNext::Commit, ())))
}

/// Takes a snapshot of a volume, then allocates `blocks` random blocks out of its first `of`, and returns the snapshot.
pub fn changed_since(rig: &Rig, pool: &BenchPool, id: VolumeId, (blocks, of): (u64, u64)) -> anyhow::Result<OwnerId> {
    let snapshot = rig.wait(pool.snapshot(id, 0))?;
    let mut random = Random::new(11);
    rig.wait(pool.allocate(id, (0..blocks).map(move |_| (random.below(of), 1))))?;
    Ok(snapshot)
}
