//! Mirrors: depth, members of unlike speed, rebuilds alone and beside users, and members that were away.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::child::{CLIENT_CORE, Folder, SERVER_CORE, bench, time, wait_for};
use super::daemons::Daemon;
use super::{Effort, Row, Target};
use crate::statistics::{median, ratio_of_medians};

/// Depths of the sweep.
const DEPTHS: [&str; 8] = ["1", "2", "4", "8", "16", "32", "64", "128"];
/// Members of the arrays that are rebuilt: 125 MiB/s and 3,000 IOPS, answered in 600 µs.
pub const MEMBER: &str = "iops=3000,bw=125M,latency=600us";
const MEMBER_BYTES: u64 = 768 << 20;
pub const MEMBER_BYTES_PER_S: f64 = 125.0 * 1048576.0;
const WRITTEN: u64 = 640 << 20;
/// Users ask for so long before a rebuild beside them is measured.
const SETTLING: Duration = Duration::from_secs(2);

/// Random I/O at depths 1, 2, 4 … 128 on two throttled disks with latency: the worst step.
pub fn depths(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
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
        found(Row {
            measure: format!("raid1 of two throttled disks, random {op}, deeper / before: the worst step"),
            ratio,
            target: Target::AtLeast(1.0),
            detail: format!("from {} to {}; IOPS {}", DEPTHS[at], DEPTHS[at + 1], all.join(", ")),
        });
    }
    Ok(())
}

/// A fast disk and one ten times slower, against the fast one alone.
pub fn unlike(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
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
    found(Row::of_pairs(measure, Target::AtLeast(1.0), &both, &alone, detail));
    Ok(())
}

/// Regions that are marked and cleared as they are used, against ones that always are.
pub fn bitmap(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let slice = time(effort.throttled_slice);
    for (name, disk) in
        [("memory", "mem:1200M"), ("throttled", "throttled(mem:1200M,iops=20000,bw=500M,latency=200us)")]
    {
        let daemon = Daemon::start()?;
        let uri = array(&daemon, &["--level", "raid1", disk, disk])?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let load = ["--op", "write", "--depth", "32", "--span", "1G", "--time", &slice];
        // The first writes to a region zero it: that is of an array that is new, not of the bitmap.
        let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", "1024", "--depth", "4"];
        bench(CLIENT_CORE, &[&fill[..], &["--span", "1G", &uri]].concat())?;
        for _ in 0..effort.pairs.div_ceil(2) {
            // All clean, so that each region's first write has to mark it.
            wait_for_clean(&daemon)?;
            with.push(bench(CLIENT_CORE, &[&load[..], &[&uri]].concat())?.iops);
            // All of them are marked now, and stay so.
            without.push(bench(CLIENT_CORE, &[&load[..], &[&uri]].concat())?.iops);
        }
        let detail = format!("{:.0} against {:.0} IOPS over NBD", median(&with), median(&without));
        let measure =
            format!("bitmap, all regions clean before / all marked before: random write, depth 32, {name} disks");
        found(Row::of_pairs(measure, Target::AtLeast(0.97), &with, &without, detail));
    }
    Ok(())
}

/// Rebuilds: as fast as the member, when nobody uses the array; and beside half a load.
pub fn rebuild(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    // Files whose blocks are all there: a page that is touched for the first time costs the shard more than any I/O does.
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
    // The rebuild is to last longer.
    let slice = (effort.throttled_slice * 2).min(Duration::from_secs(8));
    // Half of what the one that is left can read.
    let load = |slice: Duration| -> anyhow::Result<f64> {
        let slice = time(slice);
        let load = ["--op", "read", "--depth", "32", "--rate", "1500", "--span", "640M", "--time", &slice, &uri];
        Ok(bench(CLIENT_CORE, &load)?.latency.p99_ns as f64)
    };
    for round in 0..effort.pairs.div_ceil(3) {
        let (member, next) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        daemon.cli(&["array", "fail", "data", "1"])?;
        without.push(load(slice)?);
        // It begins beside users, and is measured from when it knows of them.
        std::thread::scope(|scope| {
            let before = scope.spawn(|| load(SETTLING));
            std::thread::sleep(SETTLING / 2);
            daemon.cli(&["array", "add", "data", &disks[next]])?;
            before.join().expect("nothing panics there")
        })?;
        let (begun, before) = (Instant::now(), filled_bytes(&daemon)?);
        with.push(load(slice)?);
        let (done, took) = (filled_bytes(&daemon)? - before, begun.elapsed());
        beside.push(done as f64 / took.as_secs_f64() / MEMBER_BYTES_PER_S);
        // The rest of it, alone: from when it has noticed that nobody asks any more.
        std::thread::sleep(Duration::from_millis(700));
        let (begun, before) = (Instant::now(), filled_bytes(&daemon)?);
        wait_until("the rebuild", || (health(&daemon).ok()? == "whole").then_some(()))?;
        idle.push((WRITTEN - before) as f64 / begun.elapsed().as_secs_f64() / MEMBER_BYTES_PER_S);
        daemon.cli(&["disk", "wipe", &files[member], "--yes"])?;
    }
    let detail = format!("{:.0} MiB/s of 125", 125.0 * median(&idle));
    found(Row::of_one(
        "rebuild of throttled disks, idle, part of the member's bandwidth",
        Target::AtLeast(0.95),
        &idle,
        detail,
    ));
    let detail = format!("{:.0} MiB/s of 125, beside 1,500 random reads a second", 125.0 * median(&beside));
    found(Row::of_one("rebuild beside half a load, part of the bandwidth", Target::AtLeast(0.2), &beside, detail));
    let detail = format!("p99 {:.2} against {:.2} ms", median(&with) / 1e6, median(&without) / 1e6);
    found(Row::of_pairs(
        "random reads at half load, p99: beside a rebuild / without",
        Target::AtMost(1.5),
        &with,
        &without,
        detail,
    ));
    Ok(())
}

/// A member that is away for a while: what is copied when it returns.
pub fn away(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    let disks = ["a", "b"].map(|name| format!("file:{},size=1200M", daemon.join(name)));
    let uri = array(&daemon, &["--level", "raid1", &disks[0], &disks[1]])?;
    let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", "1024", "--depth", "4"];
    bench(CLIENT_CORE, &[&fill[..], &["--span", "1G", &uri]].concat())?;
    let away = time((effort.throttled_slice * 5).min(Duration::from_secs(10)));
    let (mut ratios, mut left) = (Vec::new(), 0);
    let mut writes = 0;
    for _ in 0..effort.pairs.div_ceil(3) {
        wait_for_clean(&daemon)?;
        daemon.cli(&["array", "fail", "data", "1"])?;
        let load = ["--op", "write", "--depth", "4", "--rate", "5", "--span", "1G", "--time", &away, &uri];
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
    let detail = format!(
        "{writes} blocks of 4 KiB written meanwhile, each in a region of its own or less; {left} dirty in the end"
    );
    let measure = "member away: bytes written to it when it returns / in dirty regions";
    found(Row::of_one(measure, Target::AtMost(1.05), &ratios, detail));
    Ok(())
}

/// Makes a file of this size all of whose blocks are there.
pub fn written(file: &str, bytes: u64) -> anyhow::Result<()> {
    let disk = format!("file:{file},size={bytes},alloc=full");
    let count = (bytes >> 20).to_string();
    let load = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--count", &count, &disk];
    bench(SERVER_CORE, &load).map(drop)
}

/// Makes an array `data`, exports it, and gives its URI.
pub fn array(daemon: &Daemon, arguments: &[&str]) -> anyhow::Result<String> {
    daemon.cli(&[&["array", "create", "data"], arguments].concat())?;
    Ok(format!("nbd+unix:///data?socket={}", daemon.export("data")?))
}

/// What the array is shown as.
pub fn show(daemon: &Daemon) -> anyhow::Result<serde_json::Value> {
    daemon.json(&["array", "show", "data"])
}

/// How it stands.
pub fn health(daemon: &Daemon) -> anyhow::Result<String> {
    let shown = show(daemon)?;
    Ok(shown["redundancy"]["health"].as_str().context("how the array stands")?.to_owned())
}

/// Bytes that a rebuild has done by now.
fn filled_bytes(daemon: &Daemon) -> anyhow::Result<u64> {
    let listed = daemon.json(&["job", "list"])?;
    let jobs = listed["jobs"].as_array().context("a list of jobs")?;
    let job = jobs.iter().rev().find(|job| job["kind"] == "rebuild").context("a rebuild")?;
    job["progress"]["done_bytes"].as_u64().context("how far it has come")
}

/// Bytes that were written to member 1 since its disk was opened; none while it is out.
fn written_bytes(daemon: &Daemon) -> anyhow::Result<u64> {
    let shown = show(daemon)?;
    Ok(shown["members"][1]["stats"]["written_bytes"].as_u64().unwrap_or(0))
}

/// Asks now and then, so that asking costs little beside what is waited for.
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
