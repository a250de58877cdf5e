//! Pools of several members.

use std::sync::Arc;
use std::time::Duration;

use braid_bench::Order;
use braid_bench::statistics::median;
use braid_engine::PoolKey;
use braid_engine::pool::EXTENT_BYTES;

use super::rig::{Device, Job, Rig};
use super::{Bound, Figure, Pace};
use crate::pool::BenchPool;

/// The length of a slice on throttled disks, which the wall clock limits.
const SLICE: Duration = Duration::from_secs(2);

/// Measures a volume over all of three disks of 50, 100 and 100 GiB against one such disk.
pub fn spread(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let mut rig = Rig::start()?;
    let disk = |size: &str| format!("throttled(null:{size},iops=3000,bw=125M)");
    let devices = ["50G", "100G", "100G"].map(disk).map(|disk| rig.device(&disk));
    let devices: Vec<(_, u64)> =
        devices.into_iter().map(|device| device.map(|device| (device.id, device.bytes))).collect::<Result<_, _>>()?;
    let raw: u64 = devices.iter().map(|(_, bytes)| *bytes).sum();
    let pool = rig.wait(BenchPool::make(&rig.handle, PoolKey(0), &devices, false))?;
    let made = rig.wait(pool.volume("bench", pool.extents, None))?;
    rig.wait(pool.fill(&made))?;
    let volume = rig.publish(Arc::clone(&made.layout), made.bytes);
    let one = rig.device(&disk("1T"))?;
    for (name, reads) in [("read", 100), ("overwrite", 0)] {
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for _ in 0..pace.pairs.div_ceil(2) {
            for (device, into) in [(volume, &mut ours), (one, &mut others)] {
                into.push(rig.run(&[Job::random(device, reads, 256)], SLICE)?.iops);
            }
        }
        figures.push(Figure {
            measure: format!("volume spread over three throttled disks 50/100/100, uniform random {name} / one"),
            bound: Bound::AtLeast(2.4),
            detail: format!(
                "{:.0} against {:.0} IOPS; the volume has {:.2} % of the disks' bytes",
                median(&ours),
                median(&others),
                made.bytes as f64 * 100.0 / raw as f64
            ),
            a: ours,
            b: others,
        });
    }
    Ok(())
}

/// Measures four volumes, each on one disk of a pool, against four bare disks, with the load of the profile `jbod`.
pub fn single(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let mut rig = Rig::start()?;
    let disk = "throttled(mem:128M,bw=125MB,latency=100us)";
    let target = format!("jbod({disk},{disk},{disk},{disk})");
    let bare = rig.devices(&target)?;
    let below = rig.devices(&target)?;
    let members: Vec<_> = below.iter().map(|device| (device.id, device.bytes)).collect();
    let pool = rig.wait(BenchPool::make(&rig.handle, PoolKey(0), &members, true))?;
    let each = (64 << 20) / EXTENT_BYTES;
    let mut volumes: Vec<Device> = Vec::new();
    for (member, name) in (0..).zip(["v0", "v1", "v2", "v3"]) {
        let made = rig.wait(pool.volume(name, each, Some(member)))?;
        rig.wait(pool.fill(&made))?;
        volumes.push(rig.publish(Arc::clone(&made.layout), made.bytes));
    }
    let jobs = |devices: &[Device]| -> Vec<Job> {
        let job = |device: &Device| Job::random(Device { bytes: each * EXTENT_BYTES, ..*device }, 50, 32);
        devices.iter().map(job).collect()
    };
    let (ours, others) = (jobs(&volumes), jobs(&bare));
    // Every block is written once first: page faults on untouched memory are not to be measured.
    for side in [&others, &ours] {
        rig.run(side, SLICE)?;
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..pace.pairs.div_ceil(2) {
        b.push(rig.run(&others, SLICE)?.iops);
        a.push(rig.run(&ours, SLICE)?.iops);
    }
    figures.push(Figure {
        measure: "four volumes, each on one of four throttled disks, together / the bare disks, mixed 4 KiB, depth 32"
            .to_owned(),
        bound: Bound::AtLeast(0.97),
        detail: format!("{:.0} against {:.0} IOPS", median(&a), median(&b)),
        a,
        b,
    });
    for (number, (ours, others)) in ours.iter().zip(&others).enumerate() {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            b.push(rig.run(std::slice::from_ref(others), SLICE / 2)?.iops);
            a.push(rig.run(std::slice::from_ref(ours), SLICE / 2)?.iops);
        }
        figures.push(Figure {
            measure: format!("the same, volume {number} alone / its disk alone"),
            bound: Bound::AtLeast(0.97),
            detail: format!("{:.0} against {:.0} IOPS", median(&a), median(&b)),
            a,
            b,
        });
    }
    Ok(())
}

/// Measures two disks as members of a pool against raid0, with the load of the profile `striping`: three jobs, one I/O in flight each.
pub fn striping(pace: Pace, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let disk = "throttled(mem:64M,bw=100MB,latency=100us)";
    let mut rig = Rig::start()?;
    let raid0 = rig.device(&format!("raid0({disk},{disk},chunk=64K)"))?;
    let below: Vec<_> = rig.devices(&format!("jbod({disk},{disk})"))?;
    let members: Vec<_> = below.iter().map(|device| (device.id, device.bytes)).collect();
    let pool = rig.wait(BenchPool::make(&rig.handle, PoolKey(0), &members, true))?;
    let made = rig.wait(pool.volume("bench", pool.extents - 8, None))?;
    rig.wait(pool.fill(&made))?;
    let volume = rig.publish(Arc::clone(&made.layout), made.bytes);
    for device in [raid0, volume] {
        rig.run(&[Job::random(device, 0, 32)], SLICE)?;
    }
    for order in [Order::Sequential, Order::Random] {
        for (name, reads) in [("write", 0), ("read", 100)] {
            let mut worst: Option<(f64, Vec<f64>, Vec<f64>)> = None;
            let mut all = Vec::new();
            for block_bytes in (12..20).map(|power| 1u64 << power) {
                let (mut ours, mut others) = (Vec::new(), Vec::new());
                for _ in 0..pace.pairs.div_ceil(2) {
                    for (device, into) in [(raid0, &mut others), (volume, &mut ours)] {
                        let share = made.bytes / 3 / block_bytes * block_bytes;
                        let job = |number: u64| Job {
                            first_byte: if order == Order::Sequential { number * share } else { 0 },
                            order,
                            block_bytes,
                            ..Job::random(Device { bytes: share, ..device }, reads, 1)
                        };
                        into.push(rig.run(&[job(0), job(1), job(2)], pace.slice)?.iops);
                    }
                }
                let ratio = median(&ours) / median(&others);
                all.push(format!("{}K {ratio:.2}", block_bytes >> 10));
                if worst.as_ref().is_none_or(|(least, ..)| ratio < *least) {
                    worst = Some((ratio, ours, others));
                }
            }
            let (_, a, b) = worst.expect("there is a block size");
            figures.push(Figure {
                measure: format!(
                    "profile striping, {} {name}, 4 KiB to 512 KiB: volume spread over two disks / raid0, the worst size",
                    order.word()
                ),
                bound: Bound::AtLeast(0.95),
                detail: all.join(", "),
                a,
                b,
            });
        }
    }
    Ok(())
}
