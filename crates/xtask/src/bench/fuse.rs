//! A loop device on an export's file, against a loop device on nbdfuse's file of the same array and daemon. And the longest read from an
//! export's file while the daemon is upgraded.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use braid_bench::daemon::Daemon;
use braid_bench::process::{Folder, Server, wait_for};
use braid_bench::statistics::median;

use super::fio::{Load, fio};
use super::{Effort, Measurement, Target};

/// The exported disk, which also holds a label.
const DISK: &str = "mem:320M";
/// Bytes of the disk that are read and written.
const BYTES: u64 = 256 << 20;

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    let out = command.args(arguments).stdin(Stdio::null()).output().with_context(|| program.to_owned())?;
    if !out.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// A loop device with direct I/O, detached when this is dropped.
struct Loop(String);

impl Loop {
    fn on(file: &str) -> anyhow::Result<Loop> {
        let device = run("losetup", &["--find", "--show", "--direct-io=on", file]);
        device.map(Loop).context("loop devices need root, and a kernel that has them")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

/// A file with a mount on it, unmounted when this is dropped.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        // A loop device releases its file a moment after it is detached.
        let _ = run("umount", &["--lazy", &self.0]);
    }
}

/// An export as a file of this daemon, removed when this is dropped.
struct Exported<'a> {
    daemon: &'a Daemon,
    name: &'static str,
    file: Mounted,
}

impl Exported<'_> {
    fn of<'a>(daemon: &'a Daemon, what: &str) -> anyhow::Result<Exported<'a>> {
        let (name, file) = ("file", daemon.join("file.img"));
        let added = daemon.cli(&["export", "add", what, "--fuse", &file, "--name", name]);
        added.context("files need root, /dev/fuse, and io_uring")?;
        Ok(Exported { daemon, name, file: Mounted(file) })
    }
}

impl Drop for Exported<'_> {
    fn drop(&mut self) {
        let _ = self.daemon.cli(&["export", "remove", self.name]);
    }
}

/// Starts nbdfuse on an NBD socket of the daemon.
fn nbdfuse(folder: &Folder, socket: &str, export: &str) -> anyhow::Result<(Mounted, Server)> {
    let file = folder.join("nbdfuse.img");
    File::create(&file)?;
    let mut command = Command::new("nbdfuse");
    command.args([&file, &format!("nbd+unix:///{export}?socket={socket}")]).stdin(Stdio::null());
    let server = Server::start(command)?;
    let mounted = Mounted(file.clone());
    wait_for("nbdfuse's file", || std::fs::metadata(&file).ok().filter(|found| found.len() >= BYTES))?;
    Ok((mounted, server))
}

/// Measures all lines.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    against_nbdfuse(effort, found)?;
    pause(effort, found)
}

fn against_nbdfuse(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    // Both sides have their default number of shards, connections and threads, on any core.
    let daemon = Daemon::start_wide()?;
    daemon.cli(&["array", "create", "memory", "--level", "concat", DISK])?;
    let (folder, socket) = (Folder::temporary()?, daemon.export("memory")?);
    let ours = Exported::of(&daemon, "memory")?;
    let (their_file, their_server) = nbdfuse(&folder, &socket, "memory")?;
    let devices = (Loop::on(&ours.file.0)?, Loop::on(&their_file.0)?);
    let slice = |file: &str, load: &Load<'_>| fio(Command::new("fio"), effort.slice, file, BYTES, load);
    // Every block is written once first: page faults on untouched memory are not to be measured.
    slice(&devices.0.0, &Load { pattern: "sequential", op: "write", block: "1m", depth: 8 })?;
    for (pattern, block, depth, target) in
        [("random", "4k", 32, Target::AtLeast(3.0)), ("sequential", "1m", 8, Target::Shown)]
    {
        for op in ["read", "write"] {
            let load = Load { pattern, op, block, depth };
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for pair in 0..effort.pairs {
                // The order within a pair alternates, too.
                for ours_now in [pair % 2 == 0, pair % 2 != 0] {
                    match ours_now {
                        true => ours.push(slice(&devices.0.0, &load)?.iops),
                        false => theirs.push(slice(&devices.1.0, &load)?.iops),
                    }
                }
            }
            let detail = format!("{:.0} against {:.0} IOPS", median(&ours), median(&theirs));
            let measure = format!("loop device, {}: on Braid's file / on nbdfuse", load.words());
            found(Measurement::of_pairs(measure, target, &ours, &theirs, detail));
        }
    }
    drop(devices);
    drop(their_file);
    drop(their_server);
    Ok(())
}

/// Measures the longest read of a sequential reader while the daemon is upgraded to the same program.
fn pause(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start_wide()?;
    let disk = |name: &str| format!("file:{},size=512M", daemon.join(name));
    daemon.cli(&["pool", "create", "tank", &disk("a.img"), "--yes"])?;
    daemon.cli(&["volume", "create", "tank/db", "64M"])?;
    daemon.cli(&["array", "create", "safe", "--level", "raid1", &disk("b.img"), &disk("c.img"), "--yes"])?;
    daemon.export("safe")?;
    let exported = Exported::of(&daemon, "tank/db")?;
    let file = File::options().read(true).write(true).open(&exported.file.0)?;
    file.write_all_at(&vec![7; 1 << 20], 0)?;
    let (ended, longest_ns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reader = std::thread::spawn({
        let (ended, longest_ns) = (Arc::clone(&ended), Arc::clone(&longest_ns));
        move || -> std::io::Result<()> {
            let mut block = [0; 4096];
            for at in 0u64.. {
                let begun = Instant::now();
                file.read_exact_at(&mut block, at % 256 * 4096)?;
                longest_ns.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        }
    });
    let mut pauses = Vec::new();
    let upgraded = (0..effort.pairs).try_for_each(|_| {
        std::thread::sleep(Duration::from_millis(300));
        longest_ns.store(0, Ordering::Relaxed);
        daemon.cli(&["serve", "--upgrade"])?;
        // A read that is still waiting counts, too.
        std::thread::sleep(Duration::from_millis(50));
        pauses.push(longest_ns.load(Ordering::Relaxed) as f64 / 1e6);
        anyhow::Ok(())
    });
    ended.store(true, Ordering::Relaxed);
    let read = reader.join().expect("a reader does not panic");
    upgraded?;
    read.context("reading through an upgrade")?;
    drop(exported);
    let measure = "longest read of 4 KiB from a file through braid serve --upgrade, ms";
    let detail = format!("{} upgrades of a daemon with a pool, a mirror and two exports", pauses.len());
    found(Measurement::of_one(measure, Target::AtMost(200.0), &pauses, detail));
    Ok(())
}
