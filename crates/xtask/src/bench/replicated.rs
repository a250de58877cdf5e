//! Replicated volumes: daemons on loopback, each with a pool on files in memory.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::bail;
use braid_bench::cluster::{Cluster, POOL, loopback};
use braid_bench::cpu;
use braid_bench::process::{Folder, Report, bench_anywhere};
use braid_bench::statistics::median;

use super::child::time;
use super::client::fio_on;
use super::{Effort, Measurement, Target};

/// The size of each volume.
const SIZE: &str = "256M";
/// How long a replica is stopped.
const STALL: Duration = Duration::from_secs(2);
/// Reads and writes use one half of the volume each.
const HALF: &str = "128M";

/// The result of one slice.
#[derive(Clone, Copy)]
struct Slice {
    iops: f64,
    /// CPU time of all daemons per I/O, in µs.
    cpu_us: f64,
}

/// Runs a load on an export, and measures the CPU time of the daemons.
fn slice(daemons: &[u32], load: &[&str], uri: &str) -> anyhow::Result<Slice> {
    let used = || -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for daemon in daemons {
            sum += cpu::of_process(*daemon)?;
        }
        Ok(sum)
    };
    let before = used()?;
    let report = bench_anywhere(&[load, &[uri]].concat())?;
    Ok(Slice { iops: report.iops, cpu_us: (used()? - before).as_secs_f64() * 1e6 / report.ios.max(1) as f64 })
}

/// Writes every block of an export once.
fn fill(uri: &str) -> anyhow::Result<()> {
    let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--count", "256"];
    bench_anywhere(&[&fill[..], &["--force", uri]].concat()).map(drop)
}

fn of(slices: &[Slice], what: fn(&Slice) -> f64) -> Vec<f64> {
    slices.iter().map(what).collect()
}

/// Measures CPU time and IOPS of volumes with one replica and with three, beside an array over NBD and a plain volume.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let memory = Folder::below(Path::new("/dev/shm"))?;
    let cluster =
        Cluster::start(3, false, |number| vec![format!("file:{},size=1G", memory.join(&format!("disk{number}")))])?;
    let node = cluster.node(0);
    node.cli(&["array", "create", "memory", "--level", "concat", "mem:256M"])?;
    node.cli(&["volume", "create", &format!("{POOL}/plain"), SIZE])?;
    let exports = [
        cluster.export("memory")?,
        cluster.export(&format!("{POOL}/plain"))?,
        cluster.volume("local", SIZE, &[0])?,
        cluster.volume("one", SIZE, &[1])?,
        cluster.volume("three", SIZE, &[0, 1, 2])?,
    ];
    for uri in &exports {
        fill(uri)?;
    }
    let all = cluster.ids();
    for op in ["read", "write"] {
        let length = time(effort.slice);
        let load = ["--op", op, "--block", "4K", "--depth", "128", "--time", &length, "--force"];
        let mut slices: [Vec<Slice>; 5] = Default::default();
        for _ in 0..effort.pairs {
            for (uri, slices) in exports.iter().zip(&mut slices) {
                slices.push(slice(&all, &load, uri)?);
            }
        }
        let [alone, plain, local, one, three] = &slices;
        let cpu = |slices: &[Slice]| of(slices, |slice| slice.cpu_us);
        let iops = |slices: &[Slice]| of(slices, |slice| slice.iops);
        let words = |name: &str, slices: &[Slice]| {
            format!("{name} {:.2} µs at {:.0}/s", median(&cpu(slices)), median(&iops(slices)))
        };
        let what = format!("4 KiB random {op}, depth 128");
        let beside = [words("one replica", one), words("NBD alone on memory", alone), words("plain volume", plain)];
        found(Measurement::of_one(
            format!("{what}: CPU of all daemons, one replica on another node, µs"),
            Target::AtMost(14.0),
            &cpu(one),
            beside.join("; "),
        ));
        let target = if op == "write" { Target::AtMost(2.2) } else { Target::Shown };
        found(Measurement::of_pairs(
            format!("{what}: CPU of all daemons, three replicas / one"),
            target,
            &cpu(three),
            &cpu(one),
            [words("three", three), words("one", one)].join("; "),
        ));
        found(Measurement::of_pairs(
            format!("{what}: IOPS, one replica on the node that serves it / plain volume"),
            Target::AtLeast(0.97),
            &iops(local),
            &iops(plain),
            [words("replica", local), words("plain", plain)].join("; "),
        ));
    }
    stalls(effort, &cluster, (&exports[4], "three replicas, one of them local"), found)?;
    let far = cluster.volume_with("far", SIZE, &[1, 2], &["--witness", "n1"])?;
    fill(&far)?;
    stalls(effort, &cluster, (&far, "two replicas, none of them local"), found)
}

/// Measures the longest write and read while the node of a replica is stopped (SIGSTOP) for 2 s.
fn stalls(
    effort: &Effort,
    cluster: &Cluster,
    (uri, what): (&str, &str),
    found: &mut dyn FnMut(Measurement),
) -> anyhow::Result<()> {
    let (mut writes, mut more) = (Vec::new(), Vec::new());
    for _ in 0..effort.pairs.min(3) {
        let (_, quiet) = beside(uri, || Ok(()))?;
        let last = cluster.node(2).id();
        let (write, read) = beside(uri, || {
            std::thread::sleep(Duration::from_secs(1));
            signal(last, "-STOP")?;
            std::thread::sleep(STALL);
            signal(last, "-CONT")
        })?;
        writes.push(write.latency.max_ns as f64 / 1e9);
        more.push((read.latency.max_ns as f64 - quiet.latency.max_ns as f64) / 1e6);
    }
    let detail = format!("4 KiB at random, depth 16 on either half of a volume with {what}");
    found(Measurement::of_one(
        format!("a replica stopped for 2 s, {what}: longest write, s"),
        Target::AtMost(2.3),
        &writes,
        detail.clone(),
    ));
    found(Measurement::of_one(
        format!("a replica stopped for 2 s, {what}: longest read, ms more than without"),
        Target::AtMost(50.0),
        &more,
        detail,
    ));
    Ok(())
}

/// Writes one half of the volume and reads the other half while `happens` runs.
fn beside(uri: &str, happens: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<(Report, Report)> {
    let load = |op: &'static str, from: &'static str| {
        let uri = uri.to_owned();
        std::thread::spawn(move || {
            let load = ["--from", from, "--span", HALF, "--block", "4K", "--depth", "16", "--time", "5s", "--force"];
            bench_anywhere(&[&["--op", op], &load[..], &[&uri]].concat())
        })
    };
    let (writes, reads) = (load("write", "0"), load("read", HALF));
    let happened = happens();
    let joined = |load: std::thread::JoinHandle<anyhow::Result<Report>>| {
        load.join().unwrap_or_else(|_| bail!("the load ended unexpectedly"))
    };
    let (writes, reads) = (joined(writes), joined(reads));
    happened?;
    Ok((writes?, reads?))
}

fn signal(process: u32, signal: &str) -> anyhow::Result<()> {
    let sent = Command::new("kill").args([signal, &process.to_string()]).stdin(Stdio::null()).status()?;
    if !sent.success() {
        bail!("kill {signal} {process}: {sent}");
    }
    Ok(())
}

/// Measures a volume with one replica in memory over TCP against fio's nbd engine on an export of that node, TLS against unencrypted
/// connections, and the best number of connections.
pub fn over_tcp(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let disk = |_: usize| vec!["mem:1G".to_owned()];
    let (plain, tls) = (Cluster::start(2, false, disk)?, Cluster::start(2, true, disk)?);
    let uri = plain.volume("one", SIZE, &[1])?;
    let encrypted = tls.volume("one", SIZE, &[1])?;
    let far = plain.node(1);
    far.cli(&["volume", "create", &format!("{POOL}/straight"), SIZE])?;
    let address = loopback()?;
    let straight = format!("{POOL}/straight");
    far.cli(&["export", "add", &straight, "--name", "straight", "--nbd", &format!("tcp:{address}")])?;
    let straight = format!("nbd://{address}/straight");
    for uri in [&uri, &encrypted, &straight] {
        fill(uri)?;
    }
    let connections = [1, 2, 4, 6];
    let mut arrays = Vec::new();
    for count in connections {
        let export = format!("c{count}");
        let (at, name) = (loopback()?, format!("{POOL}/{export}"));
        far.cli(&["volume", "create", &name, "64M"])?;
        far.cli(&["export", "add", &name, "--name", &export, "--nbd", &format!("tcp:{at}")])?;
        let disk = format!("nbd://{at}/{export}?connections={count}");
        plain.node(0).cli(&["array", "create", &export, "--level", "concat", &disk])?;
        let uri = plain.export(&export)?;
        let fill = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--count", "62"];
        bench_anywhere(&[&fill[..], &["--force", &uri]].concat())?;
        arrays.push(uri);
    }
    for op in ["read", "write"] {
        let length = time(effort.slice);
        let load = ["--op", op, "--block", "4K", "--depth", "128", "--time", &length, "--force"];
        let (mut ours, mut fios, mut encrypted_slices) = (Vec::new(), Vec::new(), Vec::new());
        let mut by_count: [Vec<f64>; 4] = Default::default();
        for _ in 0..effort.pairs {
            ours.push(slice(&plain.ids(), &load, &uri)?);
            fios.push(fio_on(effort.slice, &straight, op)?);
            encrypted_slices.push(slice(&tls.ids(), &load, &encrypted)?);
            for (uri, values) in arrays.iter().zip(&mut by_count) {
                values.push(slice(&plain.ids(), &load, uri)?.iops);
            }
        }
        let iops = |slices: &[Slice]| of(slices, |slice| slice.iops);
        let what = format!("4 KiB random {op}, depth 128");
        found(Measurement::of_pairs(
            format!(
                "{what}: IOPS, volume with one replica in memory over TCP / fio's nbd engine on an export of that node"
            ),
            Target::AtLeast(1.0),
            &iops(&ours),
            &fios,
            format!("{:.0} against {:.0}", median(&iops(&ours)), median(&fios)),
        ));
        found(Measurement::of_pairs(
            format!("{what}: IOPS, replica over TLS / unencrypted"),
            Target::Shown,
            &iops(&encrypted_slices),
            &iops(&ours),
            format!(
                "{:.1} against {:.1} µs of CPU",
                median(&of(&encrypted_slices, |slice| slice.cpu_us)),
                median(&of(&ours, |slice| slice.cpu_us))
            ),
        ));
        let medians: Vec<f64> = by_count.iter().map(|values| median(values)).collect();
        let best = (0..medians.len()).max_by(|a, b| medians[*a].total_cmp(&medians[*b])).unwrap_or(0);
        let words: Vec<String> =
            connections.iter().zip(&medians).map(|(count, iops)| format!("{count}: {iops:.0}")).collect();
        found(Measurement::of_pairs(
            format!(
                "{what}: IOPS, one connection for each shard (the default) / the best number ({})",
                connections[best]
            ),
            Target::AtLeast(0.95),
            &by_count[0],
            &by_count[best],
            words.join(", "),
        ));
    }
    Ok(())
}
