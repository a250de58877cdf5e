//! A raw file read and written by Braid, against fio's io_uring engine on the same file, on tmpfs and on disk.

use std::path::PathBuf;

use anyhow::Context as _;
use braid_bench::process::{Folder, SERVER_CORE, pinned};
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::fio::{Load, fio};
use super::{Effort, Measurement, Target};

const FILE_BYTES: u64 = 1 << 30;

/// Measures all loads on both file systems.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    for (place, parent) in [("tmpfs", PathBuf::from("/dev/shm")), ("disk", disk_folder())] {
        let folder = Folder::below(&parent)?;
        let file = folder.join("raw");
        write_all(&file)?;
        for (pattern, block, depth) in
            [("random", "4k", 1), ("random", "4k", 32), ("random", "4k", 128), ("sequential", "1m", 8)]
        {
            for op in ["read", "write"] {
                let line = pairs(effort, &file, pattern, op, block, depth).with_context(|| format!("on {place}"))?;
                found(Measurement { measure: format!("raw file on {place}, {}", line.measure), ..line });
            }
        }
    }
    Ok(())
}

/// Returns a folder on a disk: the folder of temporary files may be in memory.
fn disk_folder() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    target.unwrap_or_else(|| PathBuf::from("."))
}

/// Writes the whole file, so that the file system allocates no blocks while it is measured.
fn write_all(file: &str) -> anyhow::Result<()> {
    let size = format!("file:{file},size={FILE_BYTES},alloc=full");
    let count = (FILE_BYTES >> 20).to_string();
    bench(
        SERVER_CORE,
        &["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--count", &count, &size],
    )?;
    Ok(())
}

fn pairs(effort: &Effort, file: &str, pattern: &str, op: &str, block: &str, depth: u32) -> anyhow::Result<Measurement> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut our_cpu, mut their_cpu) = (Vec::new(), Vec::new());
    for pair in 0..effort.pairs {
        // The order within a pair alternates, too.
        for ours_now in [pair % 2 == 0, pair % 2 != 0] {
            if ours_now {
                let (depth, slice) = (depth.to_string(), time(effort.slice));
                let load = ["--pattern", pattern, "--op", op, "--block", block, "--depth", &depth, "--time", &slice];
                let report = bench(SERVER_CORE, &[&load[..], &[file]].concat())?;
                ours.push(report.iops);
                our_cpu.push(report.cpu_ns_per_io);
            } else {
                let load = Load { pattern, op, block, depth };
                let slice = fio(pinned(SERVER_CORE, "fio"), effort.slice, file, FILE_BYTES, &load)?;
                theirs.push(slice.iops);
                their_cpu.push(slice.cpu_ns_per_io);
            }
        }
    }
    let detail = format!(
        "{:.0} against {:.0} IOPS, {:.2} against {:.2} µs of CPU",
        median(&ours),
        median(&theirs),
        median(&our_cpu) / 1e3,
        median(&their_cpu) / 1e3
    );
    let measure = format!("{block} {pattern} {op}, depth {depth}: Braid / fio");
    Ok(Measurement::of_pairs(measure, Target::AtLeast(0.97), &ours, &theirs, detail))
}
