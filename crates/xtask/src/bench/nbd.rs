//! Braid's NBD server against nbdkit's memory plugin and qemu-nbd: CPU time of the server per I/O, with the same client on the same cores.

use std::time::Duration;

use braid_bench::cpu;
use braid_bench::daemon::Daemon;
use braid_bench::process::{CLIENT_CORE, Folder, SERVER_CORE, Server, pinned, wait_for};
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

const DISK: &str = "256M";

/// A server, and the URI of its export.
struct Peer {
    name: &'static str,
    pid: u32,
    uri: String,
    _server: Option<Server>,
}

/// The result of one slice.
struct Slice {
    cpu_ns_per_io: f64,
    ios_per_second: f64,
}

/// Measures all loads.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let folder = Folder::temporary()?;
    let daemon = Daemon::start()?;
    daemon.cli(&["array", "create", "memory", "--level", "concat", &format!("mem:{DISK}")])?;
    let socket = daemon.export("memory")?;
    let ours =
        Peer { name: "braid", pid: daemon.id(), uri: format!("nbd+unix:///memory?socket={socket}"), _server: None };
    let peers = [nbdkit(&folder)?, qemu_nbd(&folder)?];
    for (block, depth, unit, bound) in [("4K", "128", "4 KiB random", 0.6), ("1M", "16", "1 MiB sequential", 0.8)] {
        for op in ["read", "write"] {
            let pattern = if block == "4K" { "random" } else { "sequential" };
            let slice = time(effort.slice);
            let load = ["--pattern", pattern, "--op", op, "--block", block, "--depth", depth, "--time", &slice];
            // Every block is written once first: page faults on untouched memory are not to be measured.
            for peer in peers.iter().chain([&ours]) {
                let fill =
                    ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "16", "--count", "256"];
                bench(CLIENT_CORE, &[&fill[..], &[&peer.uri]].concat())?;
            }
            let (mut our_slices, mut their_slices) = (Vec::new(), [Vec::new(), Vec::new()]);
            for _ in 0..effort.pairs {
                our_slices.push(one(&ours, &load)?);
                for (peer, slices) in peers.iter().zip(&mut their_slices) {
                    slices.push(one(peer, &load)?);
                }
            }
            found(compared(unit, op, bound, &our_slices, &peers, &their_slices));
        }
    }
    Ok(())
}

/// Returns the line of Braid against the peer that used less CPU time.
fn compared(
    unit: &str,
    op: &str,
    bound: f64,
    ours: &[Slice],
    peers: &[Peer; 2],
    theirs: &[Vec<Slice>; 2],
) -> Measurement {
    let cpu = |slices: &[Slice]| slices.iter().map(|slice| slice.cpu_ns_per_io).collect::<Vec<_>>();
    let words = |name: &str, slices: &[Slice]| {
        let rate = median(&slices.iter().map(|slice| slice.ios_per_second).collect::<Vec<_>>());
        format!("{name} {:.2} µs at {rate:.0}/s", median(&cpu(slices)) / 1e3)
    };
    let better = usize::from(median(&cpu(&theirs[1])) < median(&cpu(&theirs[0])));
    let detail = [words("braid", ours), words(peers[0].name, &theirs[0]), words(peers[1].name, &theirs[1])].join("; ");
    let measure = format!("server CPU per {unit} {op}, depth as in testing.md: Braid / {}", peers[better].name);
    Measurement::of_pairs(measure, Target::AtMost(bound), &cpu(ours), &cpu(&theirs[better]), detail)
}

/// Runs one slice, and measures the CPU time of the server.
fn one(peer: &Peer, load: &[&str]) -> anyhow::Result<Slice> {
    let before = cpu::of_process(peer.pid)?;
    let report = bench(CLIENT_CORE, &[load, &[&peer.uri]].concat())?;
    let used: Duration = cpu::of_process(peer.pid)? - before;
    Ok(Slice { cpu_ns_per_io: used.as_nanos() as f64 / report.ios.max(1) as f64, ios_per_second: report.iops })
}

fn nbdkit(folder: &Folder) -> anyhow::Result<Peer> {
    let socket = folder.join("nbdkit.sock");
    let mut command = pinned(SERVER_CORE, "nbdkit");
    command.args(["-f", "-U", &socket, "memory", DISK]);
    let server = Server::start(command)?;
    wait_for("nbdkit's socket", || std::fs::metadata(&socket).ok())?;
    Ok(Peer {
        name: "nbdkit memory",
        pid: server.id(),
        uri: format!("nbd+unix:///?socket={socket}"),
        _server: Some(server),
    })
}

/// Starts qemu-nbd on QEMU's null driver, which stores nothing: the least that its server can cost.
fn qemu_nbd(folder: &Folder) -> anyhow::Result<Peer> {
    let socket = folder.join("qemu.sock");
    let mut command = pinned(SERVER_CORE, "qemu-nbd");
    command.args(["-t", "-e", "4", "-k", &socket, "--image-opts", "driver=null-co,size=268435456"]);
    let server = Server::start(command)?;
    wait_for("qemu-nbd's socket", || std::fs::metadata(&socket).ok())?;
    Ok(Peer {
        name: "qemu-nbd null",
        pid: server.id(),
        uri: format!("nbd+unix:///?socket={socket}"),
        _server: Some(server),
    })
}
