//! Opening a pool with 4 TiB allocated.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use braid_bench::Order;
use braid_bench::cpu;
use braid_bench::process::Folder;
use braid_bench::statistics::median;
use braid_engine::pool::EXTENT_BYTES;
use braid_engine::{PoolKey, PoolNext, ShardId};

use super::rig::{Device, Job, Rig};
use super::{Bound, Figure, Pace};
use crate::pool::{BenchPool, begin, member, open_members};

const ALLOCATED_EXTENTS: u64 = (4 << 40) / EXTENT_BYTES;
const FILE_BYTES: u64 = (4 << 40) + (64 << 30);
/// How often the pool is opened on each disk.
const TIMES: usize = 3;

/// Measures opening a pool, whose tables the pool itself wrote to a sparse file, by direct I/O as the daemon opens it, against sequential reads
/// of the same bytes.
pub fn measure(_pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let folder = Folder::temporary()?;
    let path = folder.join("pool.img");
    File::create(&path)?.set_len(FILE_BYTES).context("a sparse file of 4 TiB")?;
    let mut rig = Rig::start()?;
    let disk = rig.device(&path)?;
    let own = member(0, disk.id, disk.bytes)?;
    let devices = rig.handle.devices();
    let begun = rig.wait(begin(&devices, &[own], false))?;
    let pool = rig.wait(BenchPool::serve(&rig.handle, PoolKey(0), &[own], begun));
    let made = rig.wait(pool.volume("bench", ALLOCATED_EXTENTS, None))?;
    rig.wait(pool.fill(&made))?;
    let number = rig.wait(pool.call(|pool| (PoolNext::Commit, pool.request_checkpoint())))?;
    while !rig.wait(pool.call(move |pool| (PoolNext::Done, pool.is_checkpointed(number))))? {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some((_, ended)) = rig.wait(rig.handle.stop_pool(PoolKey(0), ShardId(0))) {
        rig.wait(ended)?;
    }
    drop(rig);

    for (bandwidth, bound) in [(Some("500M"), Bound::AtLeast(0.8)), (None, Bound::Shown)] {
        let name = bandwidth.map_or(path.clone(), |most| format!("throttled({path},bw={most})"));
        let mut rig = Rig::start()?;
        let disk = rig.device(&name)?;
        let (tables, opened, read, cpu_ns) = open_and_read(&mut rig, disk)?;
        let on = bandwidth.map_or("the disk without a limit".to_owned(), |most| format!("a disk of {most}/s"));
        figures.push(Figure {
            measure: format!("open a pool with 4 TiB allocated, {on}: bytes of tables per second / sequential reads"),
            bound,
            detail: format!(
                "{} MiB of records; {:.0} against {:.0} MB/s",
                tables >> 20,
                median(&opened),
                median(&read)
            ),
            a: opened,
            b: read,
        });
        if bandwidth.is_none() {
            figures.push(Figure {
                measure: "the same: CPU time per record, ns".to_owned(),
                bound: Bound::AtMost(40.0),
                detail: "all threads, in user space and in the kernel".to_owned(),
                a: cpu_ns,
                b: Vec::new(),
            });
        }
    }
    Ok(())
}

/// Bytes of the tables; the rates of opening and of sequential reads, in MB/s; CPU time per record, in nanoseconds.
type Opened = (u64, Vec<f64>, Vec<f64>, Vec<f64>);

fn open_and_read(rig: &mut Rig, disk: Device) -> anyhow::Result<Opened> {
    let own = member(0, disk.id, disk.bytes)?;
    let devices = rig.handle.devices();
    let table_bytes = own.layout.addresses - own.layout.table;
    let (mut opened, mut read, mut cpu_ns) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..TIMES {
        let (begun, before) = (Instant::now(), cpu::own());
        let pool = rig.wait(open_members(&devices, &[own], 4 + run as u64))?;
        opened.push(table_bytes as f64 / begun.elapsed().as_secs_f64() / 1e6);
        cpu_ns.push((cpu::own() - before).as_nanos() as f64 / f64::from(own.extents));
        anyhow::ensure!(
            pool.free_extents() == u64::from(own.extents) - ALLOCATED_EXTENTS,
            "the pool has another number of free extents"
        );
        drop(pool);
        // The same bytes, sequentially.
        let first = Device { bytes: table_bytes, ..disk };
        let job = Job { order: Order::Sequential, block_bytes: 1 << 20, ..Job::random(first, 100, 4) };
        read.push(rig.run(&[job], Duration::from_secs(2))?.iops * f64::from(1u32 << 20) / 1e6);
    }
    Ok((table_bytes, opened, read, cpu_ns))
}
