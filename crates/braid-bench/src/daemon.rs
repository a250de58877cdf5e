//! A `braid serve` process in a folder of its own.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::process::{Folder, SERVER_CORE, Server, braid, pinned, wait_for};

/// A daemon and its folder, which holds its socket, its state and files of the measurement. The daemon is killed and the folder removed when
/// this is dropped.
pub struct Daemon {
    server: Server,
    folder: Folder,
}

impl Daemon {
    /// Starts a daemon with one shard on the servers' core, and waits until it answers.
    ///
    /// # Errors
    /// The daemon does not start.
    pub fn start() -> anyhow::Result<Daemon> {
        let folder = Folder::temporary()?;
        Daemon { server: serve(&folder)?, folder }.answering()
    }

    /// Starts a daemon as [`Daemon::start`] does, with further arguments that `arguments` returns for its folder.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(arguments: impl FnOnce(&Folder) -> anyhow::Result<Vec<String>>) -> anyhow::Result<Daemon> {
        let folder = Folder::temporary()?;
        let arguments = arguments(&folder)?;
        let mut command = pinned(SERVER_CORE, &braid()?);
        set_locations(&mut command, &folder);
        command.args(["serve", "--shards", "1"]).args(arguments);
        Daemon { server: Server::start(command)?, folder }.answering()
    }

    /// Starts a daemon with its default number of shards, on any core, and waits until it answers.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_wide() -> anyhow::Result<Daemon> {
        let folder = Folder::temporary()?;
        let mut command = Command::new(braid()?);
        set_locations(&mut command, &folder);
        command.arg("serve").stdin(Stdio::null());
        Daemon { server: Server::start(command)?, folder }.answering()
    }

    /// Starts a daemon with this number of shards, on any core, in a network namespace if one is named, and waits until it answers.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_anywhere(shards: usize, namespace: Option<&str>) -> anyhow::Result<Daemon> {
        let folder = Folder::temporary()?;
        let mut command = match namespace {
            None => Command::new(braid()?),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, &braid()?]);
                command
            }
        };
        set_locations(&mut command, &folder);
        command.args(["serve", "--shards", &shards.to_string()]).stdin(Stdio::null());
        Daemon { server: Server::start(command)?, folder }.answering()
    }

    fn answering(self) -> anyhow::Result<Daemon> {
        let daemon = self;
        wait_for("the daemon to answer", || daemon.cli(&["status"]).ok())?;
        Ok(daemon)
    }

    /// Kills the process (SIGKILL) and waits until it has ended.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts a daemon that was killed again, on its folder, with one shard on the servers' core. Returns before it answers.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.server = serve(&self.folder)?;
        Ok(())
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Runs a command of `braid` on this daemon.
    ///
    /// # Errors
    /// The command fails.
    pub fn cli(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.output_of(arguments, &[]).map(drop)
    }

    /// Runs a command of `braid` on this daemon with `--json`, and returns what it prints.
    ///
    /// # Errors
    /// The command fails, or its output is not JSON.
    pub fn json(&self, arguments: &[&str]) -> anyhow::Result<serde_json::Value> {
        let out = self.output_of(arguments, &["--json"])?;
        serde_json::from_slice(&out).with_context(|| format!("reading the output of braid {}", arguments.join(" ")))
    }

    fn output_of(&self, arguments: &[&str], options: &[&str]) -> anyhow::Result<Vec<u8>> {
        let mut command = Command::new(braid()?);
        set_locations(&mut command, &self.folder);
        let out = command.args(arguments).args(options).stdin(Stdio::null()).output()?;
        if !out.status.success() {
            bail!("braid {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(out.stdout)
    }

    /// Returns the body of the API's reply to `GET path`.
    ///
    /// # Errors
    /// The daemon cannot be reached, or the body is not JSON.
    pub fn get(&self, path: &str) -> anyhow::Result<serde_json::Value> {
        let mut stream = UnixStream::connect(self.folder.join("api.sock"))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: braid\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let body = reply.find('{').map_or("", |at| &reply[at..]);
        serde_json::from_str(body).with_context(|| format!("reading the daemon's reply to {path}"))
    }

    /// Returns the path of the file `name` in the daemon's folder.
    pub fn join(&self, name: &str) -> String {
        self.folder.join(name)
    }

    /// Exports an array over NBD, and returns the path of the socket.
    ///
    /// # Errors
    /// The command fails.
    pub fn export(&self, array: &str) -> anyhow::Result<String> {
        let socket = self.folder.join(&format!("{array}.nbd"));
        self.cli(&["export", "add", array, "--nbd", &format!("unix:{socket}")])?;
        Ok(socket)
    }
}

/// Sets the variables by which `braid` finds the socket and the state in this folder, and no configuration file.
fn set_locations(command: &mut Command, folder: &Folder) {
    command.env("BRAID_SOCKET", folder.join("api.sock"));
    command.env("BRAID_STATE", folder.join("state"));
    command.env("BRAID_CONFIG", "/dev/null");
}

/// Starts `braid serve` with one shard on the servers' core.
fn serve(folder: &Folder) -> anyhow::Result<Server> {
    let mut command = pinned(SERVER_CORE, &braid()?);
    set_locations(&mut command, folder);
    command.args(["serve", "--shards", "1"]);
    Server::start(command)
}
