//! Child processes of a measurement: the `braid` program, servers, and folders for their files.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// The core of servers, and of loads that run on disks of their own process.
pub const SERVER_CORE: u32 = 0;
/// The core of clients.
pub const CLIENT_CORE: u32 = 1;

/// The `braid` program that is run, if it is not this executable.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the `braid` program that this process runs and measures. Without it, that is this executable. Only the first call has an effect.
pub fn set_braid(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Returns the path of the `braid` program.
///
/// # Errors
/// The system does not report the path of this executable.
pub fn braid() -> anyhow::Result<String> {
    let program = match PROGRAM.get() {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("finding the path of this executable")?,
    };
    Ok(program.to_string_lossy().into_owned())
}

/// A temporary folder, removed when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder below `parent`.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn below(parent: &Path) -> anyhow::Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = parent.join(format!("braid-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Folder(path))
    }

    /// Creates a folder below the system's folder of temporary files.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn temporary() -> anyhow::Result<Folder> {
        Folder::below(&std::env::temp_dir())
    }

    /// Returns the path of the file `name` in this folder.
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a command that runs `program` pinned to a core. On a machine with one core it is not pinned.
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

/// A child process, killed when this is dropped.
pub struct Server(Child);

impl Server {
    /// Starts the process. Its output is discarded.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(mut command: Command) -> anyhow::Result<Server> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Server(child.with_context(|| format!("starting {command:?}"))?))
    }

    /// Returns the process id. `taskset` replaces itself with the program, so this is the program's own id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process (SIGKILL) and waits until it has ended.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Polls `done` until it returns a value, for up to a minute.
///
/// # Errors
/// `done` returned none within a minute; `what` names what was waited for.
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

/// The result of one slice of `braid bench`.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// I/Os completed.
    pub ios: u64,
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second; 0 for no-operations.
    #[serde(default)]
    pub bytes_per_second: f64,
    /// CPU time of the load generator's process per I/O, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// Latencies; all 0 for no-operations.
    #[serde(default)]
    pub latency: ReportLatency,
}

/// Latencies of one slice, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct ReportLatency {
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The longest.
    #[serde(default)]
    pub max_ns: u64,
}

/// Runs `braid bench` with these arguments as one slice, on any core, and returns its result.
///
/// # Errors
/// The command fails, or an I/O of the load does.
pub fn bench_anywhere(arguments: &[&str]) -> anyhow::Result<Report> {
    let mut command = Command::new(braid()?);
    command.stdin(Stdio::null()).arg("bench");
    report_of(command, arguments)
}

/// Runs a command that measures a load, as one slice, and returns its result. `command` ends with the name of the subcommand.
///
/// # Errors
/// The command fails, or an I/O of the load does.
pub fn report_of(mut command: Command, arguments: &[&str]) -> anyhow::Result<Report> {
    let out = command.args(["--json", "--slices", "1"]).args(arguments).output()?;
    if !out.status.success() {
        bail!("a load ({}) failed: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    let mut document: serde_json::Value =
        serde_json::from_slice(&out.stdout).context("reading the report of a load")?;
    // The document of no-operations has no targets: it is the result itself.
    let report = match document.pointer_mut("/results/0") {
        Some(result) => result.take(),
        None => document,
    };
    serde_json::from_value(report).context("reading the report of a load")
}
