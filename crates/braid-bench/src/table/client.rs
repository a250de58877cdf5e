//! Client and server of NBD together, on a disk that does nothing: Braid's both, against fio's nbd engine on nbdkit's null plugin.
//! And what more connections give.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::child::{CLIENT_CORE, Folder, Report, SERVER_CORE, Server, bench, bench_anywhere, pinned, time, wait_for};
use super::daemons::Daemon;
use super::{Effort, Row, Target};
use crate::cpu;
use crate::statistics::median;

/// What one slice showed.
struct Slice {
    iops: f64,
    /// Of client and server.
    cpu_ns_per_io: f64,
}

/// Both rows for reads and writes.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let folder = Folder::new()?;
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
        let measure = format!("client and server on null, 4 KiB random {op}, depth 128");
        let detail = format!("{:.0} against {:.0} IOPS", median(&iops[0]), median(&iops[1]));
        found(Row::of_pairs(
            format!("{measure}, IOPS: Braid / fio on nbdkit"),
            Target::AtLeast(2.0),
            &iops[0],
            &iops[1],
            detail,
        ));
        let detail = format!("{:.2} against {:.2} µs", median(&cpus[0]) / 1e3, median(&cpus[1]) / 1e3);
        found(Row::of_pairs(
            format!("{measure}, CPU of both: Braid / fio on nbdkit"),
            Target::AtMost(0.4),
            &cpus[0],
            &cpus[1],
            detail,
        ));
    }
    Ok(())
}

/// Adds the server's processor time to what the client says: I/Os, IOPS, its own processor time.
fn both(server: u32, client: impl FnOnce() -> anyhow::Result<(f64, f64, f64)>) -> anyhow::Result<Slice> {
    let before = cpu::of_process(server)?;
    let (ios, iops, client_ns) = client()?;
    let server: Duration = cpu::of_process(server)? - before;
    Ok(Slice { iops, cpu_ns_per_io: (server.as_nanos() as f64 + client_ns) / ios.max(1.0) })
}

/// One slice of fio's nbd engine; a process of its own, so that its time is all of its own.
fn fio(slice: Duration, uri: &str, op: &str) -> anyhow::Result<(f64, f64, f64)> {
    fio_by(pinned(CLIENT_CORE, "fio"), slice, uri, op)
}

/// What fio's nbd engine does on an export in a slice, wherever the scheduler wants it to run: I/Os a second.
///
/// # Errors
/// It fails.
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
    // The engine prints a line of its own before the document.
    let json: serde_json::Value =
        serde_json::from_str(text.find('{').map_or("", |at| &text[at..])).context("fio's JSON")?;
    let job = &json["jobs"][0];
    let ios = job[op]["total_ios"].as_f64().context("fio's count")?;
    let share = (job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0)) / 100.0;
    let ms = job[op]["runtime"].as_f64().context("fio's time")?;
    Ok((ios, job[op]["iops"].as_f64().context("fio's IOPS")?, share * ms * 1e6))
}

/// Cores that it takes until four connections have anywhere to go: clients and servers both use them.
const CORES: usize = 4;

/// Four connections against one, on a daemon with as many shards as it takes by itself.
pub fn connections(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
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
        found(Row::of_pairs(measure, target, &four, &one, detail));
    }
    Ok(())
}
