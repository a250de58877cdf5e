//! Processes of a measurement: ended by their own id, pinned to their core.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use serde::Deserialize;

use crate::scenes::Figure;

/// The core of servers, and of what is measured in one process.
pub const SERVER_CORE: u32 = 0;
/// The core of clients.
pub const CLIENT_CORE: u32 = 1;

/// A folder for one part of the table, gone afterwards.
pub struct Folder(PathBuf);

impl Folder {
    /// A new folder below `parent`.
    ///
    /// # Errors
    /// It cannot be made there.
    pub fn below(parent: &Path) -> anyhow::Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = parent.join(format!("braid-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Folder(path))
    }

    /// A new folder among the temporary files.
    ///
    /// # Errors
    /// It cannot be made there.
    pub fn new() -> anyhow::Result<Folder> {
        Folder::below(&std::env::temp_dir())
    }

    /// The path of `name` in it.
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A command pinned to a core, if there is more than one.
pub fn pinned(core: u32, program: &str) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = if cores < 2 {
        Command::new(program)
    } else {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), program]);
        command
    };
    command.stdin(Stdio::null());
    command
}

/// This very program.
///
/// # Errors
/// The system does not say where it is.
pub fn braid() -> anyhow::Result<String> {
    Ok(std::env::current_exe().context("where this program is")?.to_string_lossy().into_owned())
}

/// What one slice found.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// I/Os answered.
    pub ios: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second; 0 of no-operations.
    #[serde(default)]
    pub bytes_per_second: f64,
    /// Processor time of the bench for each I/O, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// How long they took.
    #[serde(default)]
    pub latency: Latency,
}

/// How long I/Os took.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Latency {
    /// Of a hundred, the longest but one, in nanoseconds.
    pub p99_ns: u64,
    /// The longest, in nanoseconds.
    #[serde(default)]
    pub max_ns: u64,
}

/// Runs `braid bench` with these arguments on a core, as one slice, and gives what it found.
///
/// # Errors
/// It failed, or met I/O errors.
pub fn bench(core: u32, arguments: &[&str]) -> anyhow::Result<Report> {
    bench_by(pinned(core, &braid()?), arguments)
}

/// The same wherever the scheduler wants it to run.
///
/// # Errors
/// As [`bench`].
pub fn bench_anywhere(arguments: &[&str]) -> anyhow::Result<Report> {
    let mut command = Command::new(braid()?);
    command.stdin(Stdio::null());
    bench_by(command, arguments)
}

fn bench_by(mut command: Command, arguments: &[&str]) -> anyhow::Result<Report> {
    let out = command.args(["bench", "--json", "--slices", "1"]).args(arguments).output()?;
    if !out.status.success() {
        bail!("braid bench {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    let mut document: serde_json::Value = serde_json::from_slice(&out.stdout).context("the report of braid bench")?;
    // No-operations have no targets, and are a report themselves.
    let report = match document.pointer_mut("/results/0") {
        Some(result) => result.take(),
        None => document,
    };
    serde_json::from_value(report).context("the report of braid bench")
}

/// Runs a scene on a core, and gives its figures.
///
/// # Errors
/// It cannot be measured here.
pub fn scene(core: u32, arguments: &[&str]) -> anyhow::Result<Vec<Figure>> {
    let out = pinned(core, &braid()?).args(["bench", "--scene"]).args(arguments).output()?;
    if !out.status.success() {
        bail!("braid bench --scene {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    serde_json::from_slice(&out.stdout).context("the figures of a scene")
}

/// A duration as `--time` reads it.
pub fn time(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// A process that is ended with this value.
pub struct Server(Child);

impl Server {
    /// Starts it. What it prints is thrown away.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> anyhow::Result<Server> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Server(child.with_context(|| format!("starting {command:?}"))?))
    }

    /// Its process. `taskset` becomes the program, so this is the program's own.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `done` gives something, a minute at most.
///
/// # Errors
/// It did not.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(value) = done() {
            return Ok(value);
        }
        if begun.elapsed() > Duration::from_secs(60) {
            bail!("waited a minute for {what}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
