//! Mirrors: queue depth, members of different speeds, the write-intent bitmap, rebuilds with and without a load, and delta resync.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use braid_bench::daemon::Daemon;
use braid_bench::process::{CLIENT_CORE, Folder, SERVER_CORE, wait_for};
use braid_bench::statistics::{median, ratio_of_medians};

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

/// The queue depths of the sweep.
const DEPTHS: [&str; 8] = ["1", "2", "4", "8", "16", "32", "64", "128"];
/// Limits of the members of rebuilt arrays: 3,000 IOPS, 125 MiB/s, 600 µs.
pub const MEMBER: &str = "iops=3000,bw=125M,latency=600us";
const MEMBER_BYTES: u64 = 768 << 20;
/// The bandwidth of such a member.
pub const MEMBER_BYTES_PER_S: f64 = 125.0 * 1048576.0;
const WRITTEN: u64 = 640 << 20;
/// How long a load runs before a rebuild beside it is measured.
const SETTLING: Duration = Duration::from_secs(2);

/// Measures random I/O at depths 1, 2, 4 … 128 on two throttled disks with latency, and reports the worst step.
pub fn depths(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let disk = "throttled(null:64G,iops=20000,bw=500M,latency=600us)";
    let slice = time(effort.throttled_slice / 2);
    for op in ["read", "write"] {
        let mut iops: Vec<Vec<f64>> = vec![Vec::new(); DEPTHS.len()];
        for _ in 0..effort.pairs.div_ceil(2) {
            for (depth, iops) in DEPTHS.iter().zip(&mut iops) {
                let load = ["--op", op, "--depth", depth, "--time", &slice, "--level", "raid1", disk, disk];
                iops.push(bench(SERVER_CORE, &load)?.iops);
            }
        }
        let steps = iops.windows(2).map(|pair| ratio_of_medians(&pair[1], &pair[0]));
        let worst = steps.enumerate().min_by(|a, b| a.1.value.total_cmp(&b.1.value));
        let (at, ratio) = worst.context("there is more than one depth")?;
        let all: Vec<String> = iops.iter().map(|iops| format!("{:.0}", median(iops))).collect();
        found(Measurement {
            measure: format!(
                "raid1 of two throttled disks, random {op}, IOPS at a depth / at half of it: the worst step"
            ),
            ratio,
            target: Target::AtLeast(1.0),
            detail: format!("from {} to {}; IOPS {}", DEPTHS[at], DEPTHS[at + 1], all.join(", ")),
        });
    }
    Ok(())
}

/// Measures a mirror of a fast disk and one ten times slower, against the fast disk alone.
pub fn different_speeds(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let fast = "throttled(null:64G,iops=20000,bw=500M,latency=200us)";
    let slow = "throttled(null:64G,iops=2000,bw=50M,latency=2ms)";
    let slice = time(effort.throttled_slice);
    let load = ["--op", "read", "--depth", "32", "--time", &slice];
    let (mut both, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..effort.pairs {
        both.push(bench(SERVER_CORE, &[&load[..], &["--level", "raid1", fast, slow]].concat())?.iops);
        alone.push(bench(SERVER_CORE, &[&load[..], &[fast]].concat())?.iops);
    }
    let detail = format!("{:.0} against {:.0} IOPS", median(&both), median(&alone));
    let measure = "raid1 of a fast disk and one ten times slower, random read, depth 32 / the fast one";
    found(Measurement::of_pairs(measure, Target::AtLeast(1.0), &both, &alone, detail));
    Ok(())
}

/// Measures writes to clean regions, whose bits are set first, against writes to regions that are dirty already.
pub fn bitmap(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let slice = time(effort.throttled_slice);
    for (name, disk) in
        [("memory", "mem:1200M"), ("throttled", "throttled(mem:1200M,iops=20000,bw=500M,latency=200us)")]
    {
        let daemon = Daemon::start()?;
        let uri = array(&daemon, &["--level", "raid1", disk, disk])?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let load = ["--op", "write", "--depth", "32", "--span", "1G", "--time", &slice];
        // The first write to a region of a new array zeroes it: that is no cost of the bitmap.
        let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", "1024", "--depth", "4"];
        bench(CLIENT_CORE, &[&fill[..], &["--span", "1G", &uri]].concat())?;
        for _ in 0..effort.pairs.div_ceil(2) {
            // All regions are clean, so the first write to each sets its bit.
            wait_for_clean(&daemon)?;
            with.push(bench(CLIENT_CORE, &[&load[..], &[&uri]].concat())?.iops);
            // All regions are dirty now, and stay dirty.
            without.push(bench(CLIENT_CORE, &[&load[..], &[&uri]].concat())?.iops);
        }
        let detail = format!("{:.0} against {:.0} IOPS over NBD", median(&with), median(&without));
        let measure =
            format!("bitmap, all regions clean before / all dirty before: random write, depth 32, {name} disks");
        found(Measurement::of_pairs(measure, Target::AtLeast(0.97), &with, &without, detail));
    }
    Ok(())
}

/// Measures rebuilds without a load, which are as fast as the member, and beside half of the load that the source can carry.
pub fn rebuild(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    // All blocks of the files are allocated: the first touch of a page costs the shard more than an I/O.
    let folder = Folder::below(Path::new("/dev/shm"))?;
    let files = ["a", "b", "c"].map(|name| folder.join(name));
    for file in &files {
        written(file, MEMBER_BYTES)?;
    }
    let disks = files.each_ref().map(|file| format!("throttled(file:{file},{MEMBER})"));
    let daemon = Daemon::start()?;
    let uri = array(&daemon, &["--level", "raid1", &disks[0], &disks[1]])?;
    let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", "640", "--depth", "4"];
    bench(CLIENT_CORE, &[&fill[..], &["--span", "640M", &uri]].concat())?;
    let (mut idle, mut beside, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // The rebuild must last longer than the slice.
    let slice = (effort.throttled_slice * 2).min(Duration::from_secs(8));
    // Half of the reads that the remaining member can serve.
    let load = |slice: Duration| -> anyhow::Result<f64> {
        let slice = time(slice);
        let load = ["--op", "read", "--depth", "32", "--rate", "1500", "--span", "640M", "--time", &slice, &uri];
        Ok(bench(CLIENT_CORE, &load)?.latency.p99_ns as f64)
    };
    for round in 0..effort.pairs.div_ceil(3) {
        let (member, next) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        daemon.cli(&["array", "fail", "data", "1"])?;
        without.push(load(slice)?);
        // The rebuild begins beside a load, and is measured once it has slowed down for it.
        std::thread::scope(|scope| {
            let before = scope.spawn(|| load(SETTLING));
            std::thread::sleep(SETTLING / 2);
            daemon.cli(&["array", "add", "data", &disks[next]])?;
            before.join().expect("nothing panics there")
        })?;
        let (begun, before) = (Instant::now(), rebuilt_bytes(&daemon)?);
        with.push(load(slice)?);
        let (done, took) = (rebuilt_bytes(&daemon)? - before, begun.elapsed());
        beside.push(done as f64 / took.as_secs_f64() / MEMBER_BYTES_PER_S);
        // The rest runs without a load, and is measured once the rebuild has noticed.
        std::thread::sleep(Duration::from_millis(700));
        let (begun, before) = (Instant::now(), rebuilt_bytes(&daemon)?);
        wait_until("the rebuild", || (health(&daemon).ok()? == "whole").then_some(()))?;
        idle.push((WRITTEN - before) as f64 / begun.elapsed().as_secs_f64() / MEMBER_BYTES_PER_S);
        daemon.cli(&["disk", "wipe", &files[member], "--yes"])?;
    }
    let detail = format!("{:.0} MiB/s of 125", 125.0 * median(&idle));
    found(Measurement::of_one(
        "rebuild of throttled disks, idle, share of the member's bandwidth",
        Target::AtLeast(0.95),
        &idle,
        detail,
    ));
    let detail = format!("{:.0} MiB/s of 125, beside 1,500 random reads a second", 125.0 * median(&beside));
    found(Measurement::of_one(
        "rebuild beside half a load, share of the bandwidth",
        Target::AtLeast(0.2),
        &beside,
        detail,
    ));
    let detail = format!("p99 {:.2} against {:.2} ms", median(&with) / 1e6, median(&without) / 1e6);
    found(Measurement::of_pairs(
        "random reads at half load, p99: beside a rebuild / without",
        Target::AtMost(1.5),
        &with,
        &without,
        detail,
    ));
    Ok(())
}

/// Measures how much is copied to a member that returns after it missed writes.
pub fn delta_resync(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    let disks = ["a", "b"].map(|name| format!("file:{},size=1200M", daemon.join(name)));
    let uri = array(&daemon, &["--level", "raid1", &disks[0], &disks[1]])?;
    let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", "1024", "--depth", "4"];
    bench(CLIENT_CORE, &[&fill[..], &["--span", "1G", &uri]].concat())?;
    let missing = time((effort.throttled_slice * 5).min(Duration::from_secs(10)));
    let (mut ratios, mut left) = (Vec::new(), 0);
    let mut writes = 0;
    for _ in 0..effort.pairs.div_ceil(3) {
        wait_for_clean(&daemon)?;
        daemon.cli(&["array", "fail", "data", "1"])?;
        let load = ["--op", "write", "--depth", "4", "--rate", "5", "--span", "1G", "--time", &missing, &uri];
        let report = bench(CLIENT_CORE, &load)?;
        writes = report.ios;
        let shown = show(&daemon)?;
        let of = |field: &str| shown["redundancy"][field].as_u64().unwrap_or(0);
        let (dirty, region) = (of("regions_dirty"), of("region_bytes"));
        if dirty > writes + 1 {
            bail!("{writes} blocks were written, and {dirty} regions are dirty");
        }
        daemon.cli(&["array", "add", "data", &disks[1]])?;
        wait_until("the member to be in sync", || (health(&daemon).ok()? == "whole").then_some(()))?;
        let copied = written_bytes(&daemon)?;
        ratios.push(copied as f64 / (dirty * region) as f64);
        wait_for_clean(&daemon)?;
        left = show(&daemon)?["redundancy"]["regions_dirty"].as_u64().unwrap_or(u64::MAX);
    }
    let detail =
        format!("{writes} blocks of 4 KiB written meanwhile, in at most as many regions; {left} dirty in the end");
    let measure = "delta resync of a member: bytes written to it / bytes of dirty regions";
    found(Measurement::of_one(measure, Target::AtMost(1.05), &ratios, detail));
    Ok(())
}

/// Creates a file of this size with all blocks allocated.
pub fn written(file: &str, bytes: u64) -> anyhow::Result<()> {
    let disk = format!("file:{file},size={bytes},alloc=full");
    let count = (bytes >> 20).to_string();
    let load = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--count", &count, &disk];
    bench(SERVER_CORE, &load).map(drop)
}

/// Creates the array `data`, exports it over NBD, and returns its URI.
pub fn array(daemon: &Daemon, arguments: &[&str]) -> anyhow::Result<String> {
    daemon.cli(&[&["array", "create", "data"], arguments].concat())?;
    Ok(format!("nbd+unix:///data?socket={}", daemon.export("data")?))
}

/// Returns the document of `braid array show`.
pub fn show(daemon: &Daemon) -> anyhow::Result<serde_json::Value> {
    daemon.json(&["array", "show", "data"])
}

/// Returns the health of the array.
pub fn health(daemon: &Daemon) -> anyhow::Result<String> {
    let shown = show(daemon)?;
    Ok(shown["redundancy"]["health"].as_str().context("the array has no health")?.to_owned())
}

/// Returns the bytes that the last rebuild has copied so far.
fn rebuilt_bytes(daemon: &Daemon) -> anyhow::Result<u64> {
    let listed = daemon.json(&["job", "list"])?;
    let jobs = listed["jobs"].as_array().context("the list of jobs is missing")?;
    let job = jobs.iter().rev().find(|job| job["kind"] == "rebuild").context("there is no rebuild")?;
    job["progress"]["done_bytes"].as_u64().context("the rebuild has no progress")
}

/// Returns the bytes written to member 1 since its disk was opened; 0 while it is missing.
fn written_bytes(daemon: &Daemon) -> anyhow::Result<u64> {
    let shown = show(daemon)?;
    Ok(shown["members"][1]["stats"]["written_bytes"].as_u64().unwrap_or(0))
}

/// Polls `done` every 50 ms, for up to a minute: often enough, and at little cost.
pub fn wait_until(what: &str, mut done: impl FnMut() -> Option<()>) -> anyhow::Result<()> {
    wait_for(what, || {
        let found = done();
        if found.is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        found
    })
}

fn wait_for_clean(daemon: &Daemon) -> anyhow::Result<()> {
    wait_until("all regions to be clean", || {
        (show(daemon).ok()?["redundancy"]["regions_dirty"].as_u64() == Some(0)).then_some(())
    })
}
