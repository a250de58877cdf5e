//! The sandbox of the demo: a folder, and a daemon in it.

use anyhow::Context;
use braid_api::{ErrorDetail, Kind, Status};
use braid_client::Client;
use braid_geometry::units::format_size;
use braid_terminal::output;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time that the daemon may take to start, or to end.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest path of a socket, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The folder, and the daemon once it is started.
pub struct Sandbox {
    folder: PathBuf,
    quiet: bool,
    daemon: Mutex<Option<Child>>,
}

impl Sandbox {
    /// Creates the folder, which only this user may enter.
    ///
    /// # Errors
    /// The folder cannot be created anywhere.
    pub fn new(quiet: bool) -> anyhow::Result<Sandbox> {
        let name = format!("braid-demo-{}", std::process::id());
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let parents = [Some(std::env::temp_dir()), Some(PathBuf::from("/tmp")), runtime];
        let mut reason = "no place for it has a path that is short enough".to_owned();
        for parent in parents.into_iter().flatten() {
            let folder = parent.join(&name);
            if folder.join("nbd.sock").as_os_str().len() > SOCKET_PATH_BYTES_MAX || !folder.is_absolute() {
                continue;
            }
            match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok(Sandbox { folder, quiet, daemon: Mutex::new(None) }),
                Err(error) => reason = format!("{}: {error}", folder.display()),
            }
        }
        Err(ErrorDetail::new(Kind::PermissionDenied, format!("the demo's folder cannot be made: {reason}"))
            .remedy("set TMPDIR to a folder with some space that you may write to")
            .into())
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the file `name` in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the path of the socket of the daemon's API.
    pub fn socket(&self) -> PathBuf {
        self.path("api.sock")
    }

    /// Prints text, unless the output is JSON.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            output::text(text);
        }
    }

    /// Starts the daemon and waits until it is ready.
    ///
    /// # Errors
    /// The daemon does not start. The error contains its log.
    pub fn start_daemon(&self) -> anyhow::Result<()> {
        let log = self.path("daemon.log");
        let file = File::create(&log).context("the daemon's log cannot be made")?;
        self.say("$ braid serve &\n");
        let child = Command::new(std::env::current_exe().context("this program is not found")?)
            .arg("serve")
            // The configuration of this machine's daemon is not for the demo's daemon.
            .args(["--config", "/dev/null"])
            .arg("--socket")
            .arg(self.socket())
            .arg("--state")
            .arg(self.path("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            // A process group of its own: with --keep, the daemon outlives interrupts of the terminal.
            .process_group(0)
            .spawn()
            .context("the daemon cannot be started")?;
        *self.daemon() = Some(child);
        let start = Instant::now();
        loop {
            if let Ok(status) = self.get::<Status>("/v1/status")
                && let Some(ms) = status.start_ms
            {
                self.say(&format!("(it is ready after {ms} ms)\n\n"));
                return Ok(());
            }
            let ended = self.daemon().as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || start.elapsed() > TIMEOUT {
                let logged = std::fs::read_to_string(&log).unwrap_or_default();
                anyhow::bail!("the daemon did not start; it said:\n{logged}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the process id of the daemon; 0 before it is started.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon().as_ref().map_or(0, Child::id)
    }

    /// Prints a command and runs it, with its output.
    ///
    /// # Errors
    /// The command fails.
    pub fn braid(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.say(&format!("$ braid {}\n", arguments.join(" ")));
        let mut command = Command::new(std::env::current_exe().context("this program is not found")?);
        command.args(arguments).env_remove("BRAID_HOST").env("BRAID_SOCKET", self.socket()).stdin(Stdio::null());
        if self.quiet {
            command.stdout(Stdio::null());
        }
        let status = command.status().context("a step of the demo cannot be run")?;
        anyhow::ensure!(status.success(), "this step failed ({status}): braid {}", arguments.join(" "));
        Ok(())
    }

    /// Returns the reply of the daemon's API to `GET path`.
    ///
    /// # Errors
    /// The daemon cannot be reached, or replies with an error.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Client::at_socket(&self.socket());
        Ok(runtime.block_on(client.get(path))?)
    }

    /// Returns how many bytes the demo writes: at most an eighth of the free space.
    ///
    /// # Errors
    /// There is too little free space.
    pub fn bytes_to_write(&self, min: u64, max: u64) -> anyhow::Result<u64> {
        let space = rustix::fs::statvfs(&self.folder).context("the free space cannot be found out")?;
        let free = space.f_bavail * space.f_frsize;
        // The space holds the data, its copy on the disks, and the data that is read back.
        let bytes = (free / 8).min(max) / (1 << 20) * (1 << 20);
        if bytes < min {
            return Err(ErrorDetail::new(
                Kind::NoSpace,
                format!("{} has only {} free", self.folder.display(), format_size(free)),
            )
            .remedy("make some room, or set TMPDIR to a folder with some")
            .into());
        }
        Ok(bytes)
    }

    /// Stops the daemon and removes the folder.
    pub fn clear(&self) {
        if let Some(mut child) = self.daemon().take() {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // The daemon may have ended already.
                let _ = kill_process(pid, Signal::TERM);
            }
            let start = Instant::now();
            while start.elapsed() < TIMEOUT && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            if matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            output::error_text(&format!("{} could not be removed: {error}\n", self.folder.display()));
        }
    }

    fn daemon(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
