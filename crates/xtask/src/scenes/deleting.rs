//! Deletion of a snapshot of a large volume, and the memory that pools use.

use std::time::Instant;

use anyhow::Context as _;
use braid_engine::pool::{EXTENT_BLOCKS, EXTENT_BYTES, MergeStep};
use braid_engine::{PoolKey, PoolNext};

use super::rig::{Rig, resident_bytes};
use super::snapshots::{changed_since, used_extents};
use super::{Bound, Figure, Pace};
use crate::pool::BenchPool;

const TIB_EXTENTS: u64 = (1 << 40) / EXTENT_BYTES;
/// Blocks that are changed after the snapshot.
const CHANGED: u64 = 4_000_000;
/// Records of one merge step, as in the daemon.
const MERGE_RECORDS: u32 = 500;
/// Volumes without data, as many as it takes to measure the memory of one.
const EMPTY: u64 = 8;

/// Takes a snapshot of a volume of 1 TiB, changes 4 million blocks, and deletes the snapshot.
pub fn measure(_pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    const NAMES: [&str; EMPTY as usize] = ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"];
    let mut rig = Rig::start()?;
    let below = rig.device("raid0(null:500G,null:500G,null:500G)")?;
    let pool = rig.wait(BenchPool::make(&rig.handle, PoolKey(0), &[(below.id, below.bytes)], false))?;
    let one = |measure: &str, bound, value: f64, detail: String| Figure {
        measure: measure.to_owned(),
        bound,
        a: vec![value],
        b: Vec::new(),
        detail,
    };
    let before = resident_bytes()?;
    for name in NAMES {
        rig.wait(pool.volume(name, TIB_EXTENTS, None))?;
    }
    let empty = (resident_bytes()? - before) as f64 / 1e6 / EMPTY as f64;
    let megabytes = "growth of this process when the volume is served, in MB";
    figures.push(one(
        "memory per TiB of a volume that was never written",
        Bound::AtMost(1.0),
        empty,
        megabytes.to_owned(),
    ));
    // Memory that a pool uses once, independent of its contents, is not counted per TiB.
    let first = rig.wait(pool.volume("first", TIB_EXTENTS / 16, None))?;
    rig.wait(pool.fill(&first))?;
    let made = rig.wait(pool.volume("bench", TIB_EXTENTS, None))?;
    let before = resident_bytes()?;
    rig.wait(pool.fill(&made))?;
    let dense = (resident_bytes()? - before) as f64 / 1e6;
    figures.push(one("memory per TiB allocated, dense", Bound::AtMost(110.0), dense, "the same".to_owned()));

    let full = rig.wait(pool.call(|pool| (PoolNext::Done, used_extents(pool))))?;
    let before = resident_bytes()?;
    let of = TIB_EXTENTS * u64::from(EXTENT_BLOCKS);
    let snapshot = changed_since(&rig, &pool, made.id, (CHANGED, of))?;
    let used = rig.wait(pool.call(|pool| (PoolNext::Done, used_extents(pool))))?;
    let worst = (resident_bytes()? - before) as f64 / 1e6 * TIB_EXTENTS as f64 / (used - full) as f64;
    let detail =
        "4 million single blocks after a snapshot, each in another extent of the volume: the worst case".to_owned();
    figures.push(one("memory per TiB allocated, scattered blocks only", Bound::Shown, worst, detail));

    let written = rig.written_bytes();
    let begun = Instant::now();
    let deleted = rig.wait(pool.call(move |pool| (PoolNext::Commit, pool.delete_snapshot(snapshot))))?;
    let command = begun.elapsed();
    deleted.context("deleting the snapshot")?;
    let (mut steps, mut longest) = (0u64, std::time::Duration::ZERO);
    loop {
        let step = Instant::now();
        let merged = rig.wait(pool.call(|pool| {
            let merged = pool.merge_step(MERGE_RECORDS);
            if merged == MergeStep::LogFull {
                pool.request_commit();
            }
            (PoolNext::Done, merged)
        }))?;
        steps += 1;
        longest = longest.max(step.elapsed());
        match merged {
            MergeStep::Nothing => break,
            MergeStep::LogFull => rig.wait(pool.call(|_| (PoolNext::Commit, ())))?,
            _ => {}
        }
    }
    rig.wait(pool.call(|_| (PoolNext::Commit, ())))?;
    let all = begun.elapsed();
    let written = rig.written_bytes() - written;
    let now = rig.wait(pool.call(|pool| (PoolNext::Done, used_extents(pool))))?;
    figures.push(one(
        "deleting a snapshot of 1 TiB with 4 million changed blocks, ms until the command ends",
        Bound::AtMost(50.0),
        command.as_secs_f64() * 1e3,
        "on null disks".to_owned(),
    ));
    figures.push(one(
        "the same, s until the merge is finished and committed",
        Bound::Shown,
        all.as_secs_f64(),
        format!(
            "{} MiB of records and batches written, no data; {steps} steps, the longest {:.1} ms; {} extents in use before, {} after: overwritten single blocks leave free space in their extents",
            written >> 20,
            longest.as_secs_f64() * 1e3,
            used,
            now
        ),
    ));
    Ok(())
}
