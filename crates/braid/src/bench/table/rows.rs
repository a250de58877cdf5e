//! Arrays with parity: whole rows against copying the same data, small writes against what the disks could do, reads of what
//! is lost.

use super::child::{SERVER_CORE, bench, time};
use super::parity::{Memory, on_core};
use super::{Effort, Row, Target};
use crate::bench::statistics::{median, ratio_of_medians};

const NULL: &str = "null:1T";
/// I/Os a second of a throttled member.
const MEMBER_IOPS: f64 = 3000.0;

/// All of it.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    whole_rows(effort, found)?;
    small_writes(effort, found)?;
    degraded_reads(effort, found)
}

/// Whole rows: parity is computed of data that is in no cache.
fn whole_rows(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let slice = time(effort.short_slice);
    for (level, disks, data) in [("raid5", 3, 2), ("raid6", 5, 3)] {
        let bytes = data * (64 << 10);
        let block = bytes.to_string();
        let (mut ours, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            let load =
                ["--pattern", "sequential", "--op", "write", "--block", &block, "--depth", "32", "--time", &slice];
            let device = [&["--memory", "128M", "--level", level], &vec![NULL; disks][..]].concat();
            let report = bench(SERVER_CORE, &[&load[..], &device].concat())?;
            ours.push(bytes as f64 / report.cpu_ns_per_io * 1e9 / f64::from(1 << 30));
            copies.push(on_core(|| Memory::new().copies(effort.short_slice, data))?);
        }
        let detail = format!("{:.2} against {:.2} GiB for a second of processor time", median(&ours), median(&copies));
        let measure = format!("{level} of {disks} null, whole rows of {} KiB, depth 32 / memory copy", bytes >> 10);
        let target = if level == "raid5" { Target::AtLeast(0.5) } else { Target::Shown };
        found(Row::of_pairs(measure, target, &ours, &copies, detail));
    }
    Ok(())
}

/// Random 4 KiB on disks of limited IOPS, against what they could do if nothing but the I/Os of each write were done.
fn small_writes(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let slice = time(effort.throttled_slice);
    let disk = format!("throttled(null:64G,iops={MEMBER_IOPS},bw=500M)");
    // Reads and writes in place of a 4 KiB write: of three, the other data is read; of more, what is overwritten and the parities.
    for (level, disks, ios) in [("raid5", 3, 3.0), ("raid5", 5, 4.0), ("raid6", 6, 6.0)] {
        let ideal = MEMBER_IOPS * disks as f64 / ios;
        let mut ratios = Vec::new();
        for _ in 0..effort.pairs.div_ceil(2) {
            let load = ["--op", "write", "--block", "4K", "--depth", "256", "--time", &slice, "--level", level];
            let report = bench(SERVER_CORE, &[&load[..], &vec![disk.as_str(); disks][..]].concat())?;
            ratios.push(report.iops / ideal);
        }
        let detail = format!("{:.0} of {ideal:.0} IOPS, {ios} I/Os a write and the journal's", ideal * median(&ratios));
        let measure = format!("{level} of {disks} throttled disks, random 4 KiB write, depth 256 / ideal");
        found(Row::of_one(measure, Target::AtLeast(0.9), &ratios, detail));
    }
    Ok(())
}

/// What a read costs of which a part has to be computed, beyond one that has not, in units of the arithmetic alone.
fn degraded_reads(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let slice = time(effort.short_slice);
    let load = ["--op", "read", "--block", "64K", "--depth", "32", "--time", &slice, "--level", "raid5"];
    let cost = |lost: &[&str]| -> anyhow::Result<f64> {
        Ok(bench(SERVER_CORE, &[&load[..], lost, &[NULL; 4]].concat())?.cpu_ns_per_io)
    };
    let (mut over, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..effort.pairs {
        // Of 64 KiB on the lost one of four members, three others are read and put together; a quarter of all are.
        let (degraded, healthy) = (cost(&["--lost", "1"])?, cost(&[])?);
        over.push((degraded - healthy) * 4.0);
        let rate = on_core(|| Memory::new().xors(effort.short_slice, 3))?;
        alone.push(3.0 * f64::from(64 << 10) / (rate * f64::from(1 << 30)) * 1e9);
    }
    let ratio = ratio_of_medians(&over, &alone);
    let detail =
        format!("{:.1} against {:.1} µs for 64 KiB that are computed", median(&over) / 1e3, median(&alone) / 1e3);
    let measure = "raid5 of 4 null, 64 KiB read of a lost member, beyond a healthy one / XOR alone".to_owned();
    found(Row { measure, ratio, target: Target::AtMost(1.3), detail });
    Ok(())
}
