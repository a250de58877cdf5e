//! Volumes of pools against the array below.

use std::path::Path;

use braid_bench::process::{Folder, SERVER_CORE};
use braid_bench::statistics::median;

use super::child::{scene, time, xtask_load};
use super::mirrors::written;
use super::{Effort, Measurement, Target};
use crate::scenes::{self, Bound, Figure};

/// One of three disks: the volume on them has nearly 64 GiB.
const NULL: &str = "null:22G";

/// Measures all lines.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    cpu(effort, found)?;
    against_the_array(effort, found)?;
    let pairs = effort.pairs.to_string();
    let slice = time(effort.short_slice);
    for name in scenes::names() {
        for figure in scene(SERVER_CORE, &[name, "--slices", &pairs, "--time", &slice])? {
            found(line_of(figure));
        }
    }
    Ok(())
}

/// Returns the line of a scene's figure.
fn line_of(figure: Figure) -> Measurement {
    let Figure { measure, bound, a, b, detail } = figure;
    let target = match bound {
        Bound::AtMost(most) => Target::AtMost(most),
        Bound::AtLeast(least) => Target::AtLeast(least),
        Bound::Shown => Target::Shown,
    };
    match b.is_empty() {
        true => Measurement::of_one(measure, target, &a, detail),
        false => Measurement::of_pairs(measure, target, &a, &b, detail),
    }
}

/// Measures the CPU time of the path through the pool.
fn cpu(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let slice = time(effort.short_slice);
    for op in ["read", "write"] {
        let (mut ours, mut nops) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            nops.push(xtask_load(SERVER_CORE, &["--nop", "--depth", "128", "--time", &slice])?.cpu_ns_per_io);
            let load = ["--op", op, "--block", "4K", "--depth", "128", "--time", &slice];
            let device = ["--volume", "full", "--level", "raid0", NULL, NULL, NULL];
            ours.push(xtask_load(SERVER_CORE, &[&load[..], &device].concat())?.cpu_ns_per_io);
        }
        let name = if op == "read" { "read" } else { "overwrite" };
        let detail = format!("{:.1} ns against {:.1} ns", median(&ours), median(&nops));
        let measure = format!("CPU per 4 KiB random {name}, depth 128, volume on raid0 of 3 null / NOP");
        found(Measurement::of_pairs(measure, Target::AtMost(0.6), &ours, &nops, detail));
    }
    Ok(())
}

/// Measures, on files in memory, a volume against the array below, and first writes against overwrites.
fn against_the_array(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let folder = Folder::below(Path::new("/dev/shm"))?;
    let files: Vec<String> = (0..3).map(|disk| folder.join(&format!("disk{disk}"))).collect();
    for file in &files {
        written(file, 512 << 20)?;
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let slice = time(effort.short_slice);
    let run = |load: &[&str], volume: &[&str]| -> anyhow::Result<f64> {
        let device = [&["--time", &slice, "--force", "--level", "raid0"], &files[..]].concat();
        Ok(xtask_load(SERVER_CORE, &[load, volume, &device].concat())?.iops)
    };
    for (name, load) in [
        ("4 KiB random read, depth 32", &["--op", "read", "--block", "4K", "--depth", "32"][..]),
        ("4 KiB random overwrite, depth 32", &["--op", "write", "--block", "4K", "--depth", "32"]),
        (
            "1 MiB sequential read, depth 4",
            &["--pattern", "sequential", "--op", "read", "--block", "1M", "--depth", "4"],
        ),
        (
            "1 MiB sequential write, depth 4",
            &["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "4"],
        ),
    ] {
        let (mut ours, mut below) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            below.push(run(load, &[])?);
            ours.push(run(load, &["--volume", "full"])?);
        }
        let detail = format!("{:.0} against {:.0} IOPS", median(&ours), median(&below));
        let measure = format!("volume / raid0 of 3 files in memory below it, {name}");
        found(Measurement::of_pairs(measure, Target::AtLeast(0.97), &ours, &below, detail));
    }
    for depth in ["1", "32"] {
        let load = ["--op", "write", "--block", "4K", "--depth", depth];
        let (mut first, mut over) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            over.push(run(&load, &["--volume", "full"])?);
            first.push(run(&load, &["--volume", "thin"])?);
        }
        let detail = format!("{:.0} against {:.0} IOPS", median(&first), median(&over));
        let measure = format!("first 4 KiB random write to a thin volume / overwrite, files in memory, depth {depth}");
        found(Measurement::of_pairs(measure, Target::AtLeast(0.95), &first, &over, detail));
    }
    Ok(())
}
