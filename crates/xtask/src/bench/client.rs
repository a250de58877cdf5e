//! NBD client and server together on a null disk: Braid's client and server against fio's nbd engine and nbdkit's null plugin. And the gain
//! of more connections.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use braid_bench::cpu;
use braid_bench::daemon::Daemon;
use braid_bench::process::{CLIENT_CORE, Folder, Report, SERVER_CORE, Server, bench_anywhere, pinned, wait_for};
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

/// The result of one slice.
struct Slice {
    iops: f64,
    /// CPU time of client and server together.
    cpu_ns_per_io: f64,
}

/// Measures IOPS and CPU time, for reads and for writes.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let folder = Folder::temporary()?;
    let daemon = Daemon::start()?;
    daemon.cli(&["array", "create", "null", "--level", "concat", "null:1T"])?;
    let uri = format!("nbd+unix:///null?socket={}", daemon.export("null")?);
    let socket = folder.join("nbdkit.sock");
    let mut command = pinned(SERVER_CORE, "nbdkit");
    command.args(["-f", "-U", &socket, "null", "1T"]);
    let nbdkit = Server::start(command)?;
    wait_for("nbdkit's socket", || std::fs::metadata(&socket).ok())?;
    let slice = time(effort.slice);
    for op in ["read", "write"] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            let load = ["--op", op, "--depth", "128", "--time", &slice, &uri];
            ours.push(both(daemon.id(), || {
                let Report { ios, iops, cpu_ns_per_io, .. } = bench(CLIENT_CORE, &load)?;
                Ok((ios as f64, iops, cpu_ns_per_io * ios as f64))
            })?);
            theirs.push(both(nbdkit.id(), || fio(effort.slice, &format!("nbd+unix:///?socket={socket}"), op))?);
        }
        let side = |slices: &[Slice], of: fn(&Slice) -> f64| slices.iter().map(of).collect::<Vec<f64>>();
        let iops = [&ours, &theirs].map(|slices| side(slices, |slice| slice.iops));
        let cpus = [&ours, &theirs].map(|slices| side(slices, |slice| slice.cpu_ns_per_io));
        let measure = format!("client and server on a null disk, 4 KiB random {op}, depth 128");
        let detail = format!("{:.0} against {:.0} IOPS", median(&iops[0]), median(&iops[1]));
        found(Measurement::of_pairs(
            format!("{measure}, IOPS: Braid / fio on nbdkit"),
            Target::AtLeast(2.0),
            &iops[0],
            &iops[1],
            detail,
        ));
        let detail = format!("{:.2} against {:.2} µs", median(&cpus[0]) / 1e3, median(&cpus[1]) / 1e3);
        found(Measurement::of_pairs(
            format!("{measure}, CPU of both: Braid / fio on nbdkit"),
            Target::AtMost(0.4),
            &cpus[0],
            &cpus[1],
            detail,
        ));
    }
    Ok(())
}

/// Runs a client, which returns its I/Os, IOPS and CPU time, and adds the CPU time of the server.
fn both(server: u32, client: impl FnOnce() -> anyhow::Result<(f64, f64, f64)>) -> anyhow::Result<Slice> {
    let before = cpu::of_process(server)?;
    let (ios, iops, client_ns) = client()?;
    let server: Duration = cpu::of_process(server)? - before;
    Ok(Slice { iops, cpu_ns_per_io: (server.as_nanos() as f64 + client_ns) / ios.max(1.0) })
}

/// Runs one slice of fio's nbd engine on the clients' core, and returns its I/Os, IOPS and CPU time in nanoseconds.
fn fio(slice: Duration, uri: &str, op: &str) -> anyhow::Result<(f64, f64, f64)> {
    fio_by(pinned(CLIENT_CORE, "fio"), slice, uri, op)
}

/// Runs one slice of fio's nbd engine on an export, on any core, and returns its IOPS.
///
/// # Errors
/// fio fails.
pub fn fio_on(slice: Duration, uri: &str, op: &str) -> anyhow::Result<f64> {
    Ok(fio_by(Command::new("fio"), slice, uri, op)?.1)
}

fn fio_by(mut command: Command, slice: Duration, uri: &str, op: &str) -> anyhow::Result<(f64, f64, f64)> {
    let out = command
        .stdin(Stdio::null())
        .args([
            "--name=nbd",
            "--ioengine=nbd",
            "--norandommap",
            "--randrepeat=0",
            "--time_based",
            "--output-format=json",
        ])
        .args([format!("--uri={uri}"), format!("--rw=rand{op}"), "--bs=4k".to_owned()])
        .args(["--iodepth=128".to_owned(), format!("--runtime={}ms", slice.as_millis())])
        .output()
        .context("fio")?;
    if !out.status.success() {
        bail!("fio: {}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    // The nbd engine prints a line before the JSON document.
    let json: serde_json::Value =
        serde_json::from_str(text.find('{').map_or("", |at| &text[at..])).context("fio's JSON")?;
    let job = &json["jobs"][0];
    let ios = job[op]["total_ios"].as_f64().context("fio's count")?;
    let share = (job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0)) / 100.0;
    let ms = job[op]["runtime"].as_f64().context("fio's time")?;
    Ok((ios, job[op]["iops"].as_f64().context("fio's IOPS")?, share * ms * 1e6))
}

/// The fewest cores on which four connections can gain: clients and servers share them.
const CORES: usize = 4;

/// Measures four connections against one, on a daemon with its default number of shards.
pub fn connections(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let daemon = Daemon::start_wide()?;
    daemon.cli(&["array", "create", "null", "--level", "concat", "null:1T"])?;
    let uri = format!("nbd+unix:///null?socket={}", daemon.export("null")?);
    let slice = time(effort.slice);
    for op in ["read", "write"] {
        let (mut four, mut one) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            let with =
                |jobs: &str| bench_anywhere(&["--op", op, "--depth", "128", "--jobs", jobs, "--time", &slice, &uri]);
            four.push(with("4")?.iops);
            one.push(with("1")?.iops);
        }
        let enough = if cores >= CORES { "" } else { "; too few cores for a target" };
        let target = if cores >= CORES { Target::AtLeast(1.5) } else { Target::Shown };
        let detail = format!(
            "{:.0} against {:.0} IOPS on {cores} cores for clients and server{enough}",
            median(&four),
            median(&one)
        );
        let measure = format!("four connections / one, null, 4 KiB random {op}, depth 128 each");
        found(Measurement::of_pairs(measure, target, &four, &one, detail));
    }
    Ok(())
}
