//! Replicas behind links of 1 Gbit/s: nodes in network namespaces, with a bridge that limits the traffic to each node.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use braid_bench::cluster::Cluster;
use braid_bench::process::{Server, bench_anywhere, wait_for};
use braid_bench::statistics::median;

use super::child::time;
use super::{Effort, Measurement, Target};

/// Nodes: one that serves the volume, and three with replicas behind slow links.
const NODES: usize = 4;
/// Writes per second while a replica is missing.
const RATE: u64 = 2000;
/// How long the replica is missing.
const MISSING: Duration = Duration::from_secs(10);
const VOLUME_MIB: u64 = 512;
/// The rebuilt volume: its number of snapshots, and how much is written before each.
const SNAPSHOTS: u64 = 5;
const BETWEEN_MIB: u64 = 410;

/// The network namespaces, deleted when this is dropped.
struct Net(String);

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    let out = command.args(arguments).stdin(Stdio::null()).output().with_context(|| program.to_owned())?;
    if !out.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

impl Net {
    fn new() -> anyhow::Result<Net> {
        let net = Net(format!("braid-bench-{}", std::process::id()));
        let switch = net.switch();
        run("ip", &["netns", "add", &switch]).context("network namespaces need root, and iproute2")?;
        run("ip", &["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
        run("ip", &["-n", &switch, "link", "set", "bridge", "up"])?;
        for node in 0..NODES {
            let (own, port) = (net.of_node(node), format!("port{node}"));
            run("ip", &["netns", "add", &own])?;
            run("ip", &["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &own])?;
            run("ip", &["-n", &switch, "link", "set", &port, "master", "bridge", "up"])?;
            run("ip", &["-n", &own, "address", "add", &format!("{}/24", address(node)), "dev", "eth0"])?;
            run("ip", &["-n", &own, "link", "set", "eth0", "up"])?;
            run("ip", &["-n", &own, "link", "set", "lo", "up"])?;
            if node > 0 {
                let shape = ["root", "tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"];
                run("tc", &[&["-n", &switch, "qdisc", "add", "dev", &port], &shape[..]].concat())?;
            }
        }
        Ok(net)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.0)
    }

    fn of_node(&self, node: usize) -> String {
        format!("{}-{node}", self.0)
    }

    fn link(&self, node: usize, way: &str) -> anyhow::Result<()> {
        run("ip", &["-n", &self.switch(), "link", "set", &format!("port{node}"), way]).map(drop)
    }

    /// Measures the TCP throughput to a node with iperf3, in bytes per second.
    fn iperf(&self, to: usize, seconds: u64) -> anyhow::Result<f64> {
        let mut server = Command::new("ip");
        server.args(["netns", "exec", &self.of_node(to), "iperf3", "-s", "-1"]);
        let server = Server::start(server)?;
        std::thread::sleep(Duration::from_millis(300));
        let length = seconds.to_string();
        let arguments = ["netns", "exec", &self.of_node(0), "iperf3", "-J", "-c", &address(to), "-t", &length];
        let output = run("ip", &arguments).context("iperf3")?;
        drop(server);
        let report: serde_json::Value = serde_json::from_str(&output).context("reading the output of iperf3")?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3's figure")?;
        Ok(bits / 8.0)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in (0..NODES).map(|node| self.of_node(node)).chain([self.switch()]) {
            let _ = run("ip", &["netns", "del", &name]);
        }
    }
}

fn address(node: usize) -> String {
    format!("10.78.0.{}", node + 1)
}

/// Measures sequential writes to three replicas, delta resync of a replica that was missing, and a rebuild.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let net = Net::new()?;
    let cluster = Cluster::start_in(
        NODES,
        false,
        |_| vec!["mem:4G".to_owned()],
        |node| Some((net.of_node(node), address(node))),
    )?;
    let uri = cluster.volume("db", &format!("{VOLUME_MIB}M"), &[1, 2, 3])?;
    let count = VOLUME_MIB.to_string();
    let stream = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "16", "--force"];
    bench_anywhere(&[&stream[..], &["--count", &count, &uri]].concat())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let seconds = effort.slice.as_secs().max(2);
    let length = time(Duration::from_secs(seconds));
    for _ in 0..effort.pairs {
        ours.push(bench_anywhere(&[&stream[..], &["--time", &length, &uri]].concat())?.bytes_per_second);
        theirs.push(net.iperf(1, seconds)?);
    }
    let detail = format!("{:.1} against {:.1} MB/s", median(&ours) / 1e6, median(&theirs) / 1e6);
    let what = "1 MiB sequential write, depth 16, to three replicas over links of 1 Gbit/s / iperf3 on one of them";
    found(Measurement::of_pairs(what, Target::AtLeast(0.95), &ours, &theirs, detail));
    delta_resync(effort, &net, &cluster, &uri, found)?;
    rebuild(effort, &net, &cluster, found)
}

fn state_of(cluster: &Cluster, volume: &str, voter: usize, expected: &str) -> Option<()> {
    let shown = cluster.node(0).json(&["volume", "show", volume]).ok()?;
    (shown["voters"][voter]["state"] == expected).then_some(())
}

/// Returns the bytes written to a replica since its connection was established.
fn written(cluster: &Cluster, replica: &str, volume: &str) -> anyhow::Result<f64> {
    let activity = cluster.node(0).get("/v1/activity")?;
    let disks = activity["disks"].as_array().context("the activity has no disks")?;
    let is_replica = |disk: &&serde_json::Value| disk["name"] == replica && disk["array"] == volume;
    let disk = disks.iter().find(is_replica).context("the replica is not among the disks")?;
    disk["stats"]["written_bytes"].as_f64().context("the replica has no count of written bytes")
}

/// Measures the rebuild of a replica of 10 GiB behind its link, of which 2 GiB are allocated in five snapshots.
fn rebuild(effort: &Effort, net: &Net, cluster: &Cluster, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let uri = cluster.volume("big", "10G", &[0, 1])?;
    for round in 0..SNAPSHOTS {
        let (from, span) = (format!("{}M", round * BETWEEN_MIB), format!("{BETWEEN_MIB}M"));
        let count = BETWEEN_MIB.to_string();
        let stream = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--force"];
        bench_anywhere(&[&stream[..], &["--from", &from, "--span", &span, "--count", &count, &uri]].concat())?;
        cluster.node(0).cli(&["snapshot", "create", &format!("big@s{round}")])?;
    }
    let allocated = ((SNAPSHOTS * BETWEEN_MIB) << 20) as f64;
    let (mut ratios, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.pairs.min(3) {
        cluster.node(0).cli(&["replica", "rebuild", "big", "n2", "--yes"])?;
        let begun = Instant::now();
        wait_for("the replica to be rebuilt", || state_of(cluster, "big", 1, "in_sync"))?;
        let seconds = begun.elapsed().as_secs_f64();
        let sent = written(cluster, "n2/tank", "big")?;
        ratios.push(sent / allocated);
        ours.push(sent / seconds);
        theirs.push(net.iperf(1, effort.slice.as_secs().max(2))?);
    }
    let words = format!("{:.1} against {:.1} MB/s", median(&ours) / 1e6, median(&theirs) / 1e6);
    let what = "rebuild of a replica of 10 GiB with 2 GiB in 5 snapshots: bytes written to it / allocated";
    found(Measurement::of_one(what, Target::AtMost(1.03), &ratios, format!("of {:.0} MB", allocated / 1e6)));
    let what = "the same over a link of 1 Gbit/s: bytes a second / iperf3 on it";
    found(Measurement::of_pairs(what, Target::AtLeast(0.9), &ours, &theirs, words));
    Ok(())
}

/// Measures the bytes that are sent to a replica after its link was down.
fn delta_resync(
    effort: &Effort,
    net: &Net,
    cluster: &Cluster,
    uri: &str,
    found: &mut dyn FnMut(Measurement),
) -> anyhow::Result<()> {
    let state = |expected: &str| state_of(cluster, "db", 2, expected);
    let mut ratios = Vec::new();
    let mut words = String::new();
    for _ in 0..effort.pairs.min(3) {
        net.link(3, "down")?;
        let (rate, length) = (RATE.to_string(), time(MISSING));
        let load = ["--op", "write", "--block", "4K", "--depth", "32", "--rate", &rate, "--time", &length, "--force"];
        let report = bench_anywhere(&[&load[..], &[uri]].concat())?;
        wait_for("the replica to be missing", || state("failed"))?;
        net.link(3, "up")?;
        wait_for("the replica to be in sync", || state("in_sync"))?;
        // The counters of a disk start at 0 with its connection.
        let sent = written(cluster, "n4/tank", "db")?;
        let blocks = (VOLUME_MIB << 8) as f64;
        let changed = blocks * (1.0 - (-(report.ios as f64) / blocks).exp()) * 4096.0;
        ratios.push(sent / changed);
        words = format!("{:.1} MB for {:.1} MB changed in {} s", sent / 1e6, changed / 1e6, MISSING.as_secs());
    }
    let what = "delta resync of a replica that missed 10 s of random 4 KiB writes: bytes written to it / bytes changed";
    found(Measurement::of_one(what, Target::AtMost(1.1), &ratios, words));
    Ok(())
}
