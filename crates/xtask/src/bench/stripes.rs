//! Arrays with parity: full-stripe writes against copying the same data, small writes against the limits of the disks, reads of a missing
//! member, I/Os per write, and rebuilds.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use braid_bench::daemon::Daemon;
use braid_bench::process::{CLIENT_CORE, Folder, SERVER_CORE};
use braid_bench::statistics::{median, ratio_of_medians};

use super::child::{bench, time, xtask_load};
use super::mirrors::{MEMBER, MEMBER_BYTES_PER_S, array, health, show, wait_until, written};
use super::parity::{Memory, on_core};
use super::{Effort, Measurement, Target};

const NULL: &str = "null:1T";
/// IOPS of a throttled member.
const MEMBER_IOPS: f64 = 3000.0;

/// Measures all lines.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    full_stripes(effort, found)?;
    small_writes(effort, found)?;
    streams(effort, found)?;
    degraded_reads(effort, found)?;
    counts(found)?;
    rebuilds(effort, found)
}

/// Measures full-stripe writes of data that is in no cache.
fn full_stripes(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let slice = time(effort.short_slice);
    for (level, disks, data) in [("raid5", 3, 2), ("raid6", 5, 3)] {
        let bytes = data * (64 << 10);
        let block = bytes.to_string();
        let (mut ours, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            let load =
                ["--pattern", "sequential", "--op", "write", "--block", &block, "--depth", "32", "--time", &slice];
            let device = [&["--memory", "128M", "--level", level], &vec![NULL; disks][..]].concat();
            let report = xtask_load(SERVER_CORE, &[&load[..], &device].concat())?;
            ours.push(bytes as f64 / report.cpu_ns_per_io * 1e9 / f64::from(1 << 30));
            copies.push(on_core(|| Memory::new().copies(effort.short_slice, data))?);
        }
        let detail = format!("{:.2} against {:.2} GiB per second of CPU time", median(&ours), median(&copies));
        let measure = format!("{level} of {disks} null, full stripes of {} KiB, depth 32 / memory copy", bytes >> 10);
        let target = if level == "raid5" { Target::AtLeast(0.5) } else { Target::Shown };
        found(Measurement::of_pairs(measure, target, &ours, &copies, detail));
    }
    Ok(())
}

/// Measures random 4 KiB writes on disks of limited IOPS, against the rate at which the disks carry out only the I/Os that a write needs.
fn small_writes(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let slice = time(effort.throttled_slice);
    let disk = format!("throttled(null:64G,iops={MEMBER_IOPS},bw=500M)");
    // Member I/Os of one 4 KiB write. Of three disks the other data block is read; of more disks, the old data and the parities.
    for (level, disks, ios, journal) in
        [("raid5", 3, 3.0, false), ("raid5", 5, 4.0, false), ("raid6", 6, 6.0, false), ("raid5", 3, 3.0, true)]
    {
        let ideal = MEMBER_IOPS * disks as f64 / ios;
        let mut ratios = Vec::new();
        for _ in 0..effort.pairs.div_ceil(2) {
            let load = ["--op", "write", "--block", "4K", "--depth", "256", "--time", &slice, "--level", level];
            // A null disk for the journal.
            let further: &[&str] = if journal { &["null:1G", "--journal-last"] } else { &[] };
            let report = xtask_load(SERVER_CORE, &[&load[..], &vec![disk.as_str(); disks][..], further].concat())?;
            ratios.push(report.iops / ideal);
        }
        let (with_journal, on, target) = match journal {
            true => ("", ", journal on a disk of its own", Target::Shown),
            false => (" and the journal's", "", Target::AtLeast(0.9)),
        };
        let detail = format!("{:.0} of {ideal:.0} IOPS, {ios} I/Os a write{with_journal}", ideal * median(&ratios));
        let measure = format!("{level} of {disks} throttled disks{on}, random 4 KiB write, depth 256 / ideal");
        found(Measurement::of_one(measure, target, &ratios, detail));
    }
    Ok(())
}

/// Measures sequential writes smaller than a stripe, which are merged, against full-stripe writes of the same bytes.
fn streams(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let slice = time(effort.throttled_slice);
    let disk = format!("throttled(null:64G,iops={MEMBER_IOPS},bw=500M)");
    for (level, disks, data) in [("raid5", 3, 2), ("raid6", 6, 4)] {
        let stripe = data * (64 << 10);
        let rate = |block: u64, depth: &str| -> anyhow::Result<f64> {
            let block_text = block.to_string();
            let load = ["--pattern", "sequential", "--op", "write", "--block", &block_text, "--depth", depth];
            let device = [&["--time", &slice, "--level", level], &vec![disk.as_str(); disks][..]].concat();
            Ok(bench(SERVER_CORE, &[&load[..], &device].concat())?.iops * block as f64)
        };
        for (block, depth) in [(4 << 10, "128"), (64 << 10, "32")] {
            let (mut small, mut full) = (Vec::new(), Vec::new());
            for _ in 0..effort.pairs.div_ceil(2) {
                small.push(rate(block, depth)?);
                full.push(rate(stripe, "8")?);
            }
            let mb = |rates: &[f64]| median(rates) / 1e6;
            let detail = format!("{:.0} against {:.0} MB/s", mb(&small), mb(&full));
            let measure = format!(
                "{level} of {disks} throttled disks, sequential {} KiB write, depth {depth} / full stripes of {} KiB, depth 8",
                block >> 10,
                stripe >> 10
            );
            found(Measurement::of_pairs(measure, Target::Shown, &small, &full, detail));
        }
    }
    Ok(())
}

/// Measures the extra cost of a read of which a part is reconstructed, as a multiple of the arithmetic alone.
fn degraded_reads(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let slice = time(effort.short_slice);
    let load = ["--op", "read", "--block", "64K", "--depth", "32", "--time", &slice, "--level", "raid5"];
    let cost = |missing: &[&str]| -> anyhow::Result<f64> {
        Ok(xtask_load(SERVER_CORE, &[&load[..], missing, &[NULL; 4]].concat())?.cpu_ns_per_io)
    };
    let (mut over, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..effort.pairs {
        // One of four members is missing: a quarter of the 64 KiB reads are reconstructed from the three others.
        let (degraded, healthy) = (cost(&["--missing", "1"])?, cost(&[])?);
        over.push((degraded - healthy) * 4.0);
        let rate = on_core(|| Memory::new().xors(effort.short_slice, 3))?;
        alone.push(3.0 * f64::from(64 << 10) / (rate * f64::from(1 << 30)) * 1e9);
    }
    let ratio = ratio_of_medians(&over, &alone);
    let detail = format!("{:.1} against {:.1} µs for 64 KiB reconstructed", median(&over) / 1e3, median(&alone) / 1e3);
    let measure = "raid5 of 4 null, 64 KiB read of a missing member, beyond a present one / XOR alone".to_owned();
    found(Measurement { measure, ratio, target: Target::AtMost(1.3), detail });
    Ok(())
}

/// Counts the I/Os and bytes of the members per write, with those of the journal, the flushes and the bitmap.
fn counts(found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    const MIB: u64 = 1 << 20;
    for (level, members, stripe) in [("raid5", 3, 128u64 << 10), ("raid6", 5, 192 << 10)] {
        let daemon = Daemon::start()?;
        let uri = array(&daemon, &[&["--level", level], &vec!["mem:1200M"; members][..]].concat())?;
        // Regions of a new array are zeroed by their first write, which is not to be counted.
        let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", "480", "--depth", "4"];
        bench(CLIENT_CORE, &[&fill[..], &["--span", "480M", &uri]].concat())?;
        let stripe_text = stripe.to_string();
        let stripe_count = (256 * MIB / stripe).to_string();
        for (name, block, order, count, depth) in [
            ("full stripes in order", stripe_text.as_str(), "sequential", stripe_count.as_str(), "32"),
            ("4 KiB at random", "4K", "random", "20000", "32"),
        ] {
            let before = totals(&daemon)?;
            let load = ["--pattern", order, "--op", "write", "--block", block, "--count", count, "--depth", depth];
            let report = bench(CLIENT_CORE, &[&load[..], &["--span", "480M", &uri]].concat())?;
            let after = totals(&daemon)?;
            let each = |of: usize| (after[of] - before[of]) as f64 / report.ios as f64;
            let bytes = if block == "4K" { 4096.0 } else { stripe as f64 };
            let detail = format!(
                "{:.2} reads, {:.2} writes, {:.3} flushes; {:.2} bytes read and {:.2} written for each",
                each(0),
                each(1),
                each(2),
                each(3) / bytes,
                each(4) / bytes
            );
            let measure = format!("{level} of {members} memory disks, {name}, depth {depth}: I/Os for each write");
            found(Measurement::of_one(measure, Target::Shown, &[each(0) + each(1) + each(2)], detail));
        }
    }
    Ok(())
}

/// Returns the sums over all members of reads, writes, flushes, bytes read and bytes written.
fn totals(daemon: &Daemon) -> anyhow::Result<[u64; 5]> {
    let shown = show(daemon)?;
    let members = shown["members"].as_array().context("the members")?;
    let of = |field: &str| members.iter().map(|member| member["stats"][field].as_u64().unwrap_or(0)).sum();
    Ok(["reads", "writes", "flushes", "read_bytes", "written_bytes"].map(of))
}

/// Measures rebuilds without a load, which are as fast as the new member can be written.
fn rebuilds(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    const EACH: u64 = 320 << 20;
    for (level, members, data) in [("raid5", 3, 2), ("raid6", 4, 2)] {
        let folder = Folder::below(Path::new("/dev/shm"))?;
        let files: Vec<String> = (0..=members).map(|member| folder.join(&format!("disk{member}"))).collect();
        for file in &files {
            written(file, EACH + (64 << 20))?;
        }
        let disks: Vec<String> = files.iter().map(|file| format!("throttled(file:{file},{MEMBER})")).collect();
        let daemon = Daemon::start()?;
        let used: Vec<&str> = disks[..members].iter().map(String::as_str).collect();
        let uri = array(&daemon, &[&["--level", level], &used[..]].concat())?;
        let mib = (EACH * data) >> 20;
        let (count, span) = (mib.to_string(), format!("{mib}M"));
        let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--count", &count, "--depth", "4"];
        bench(CLIENT_CORE, &[&fill[..], &["--span", &span, &uri]].concat())?;
        let mut rates = Vec::new();
        for round in 0..effort.pairs.div_ceil(3) {
            let (member, next) = if round % 2 == 0 { (members - 1, members) } else { (members, members - 1) };
            daemon.cli(&["array", "fail", "data", &(members - 1).to_string()])?;
            daemon.cli(&["disk", "wipe", &files[member], "--yes"])?;
            let begun = Instant::now();
            daemon.cli(&["array", "add", "data", &disks[next]])?;
            wait_until("the rebuild", || (health(&daemon).ok()? == "whole").then_some(()))?;
            rates.push(EACH as f64 / begun.elapsed().as_secs_f64() / MEMBER_BYTES_PER_S);
        }
        let detail = format!("{:.0} MiB/s of 125", 125.0 * median(&rates));
        let measure = format!("{level} of {members} throttled disks, rebuild, idle, share of the member's bandwidth");
        found(Measurement::of_one(measure, Target::AtLeast(0.9), &rates, detail));
    }
    Ok(())
}
