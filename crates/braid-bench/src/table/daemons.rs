//! The daemon as a whole: what it allocates, what it costs when idle, how fast it starts.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail};

use super::child::{Folder, SERVER_CORE, Server, braid, pinned, wait_for};
use super::{Effort, Row, Target};
use crate::{cpu, over_nbd};

/// A daemon with one shard in a folder of its own, on the servers' core.
pub struct Daemon {
    server: Server,
    folder: Folder,
}

impl Daemon {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// It does not start.
    pub fn start() -> anyhow::Result<Daemon> {
        let folder = Folder::new()?;
        Daemon { server: serve(&folder)?, folder }.answering()
    }

    /// The same with further arguments, made for its folder.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(arguments: impl FnOnce(&Folder) -> anyhow::Result<Vec<String>>) -> anyhow::Result<Daemon> {
        let folder = Folder::new()?;
        let arguments = arguments(&folder)?;
        let mut command = pinned(SERVER_CORE, &braid()?);
        places(&mut command, &folder);
        command.args(["serve", "--shards", "1"]).args(arguments);
        Daemon { server: Server::start(command)?, folder }.answering()
    }

    /// The same with as many shards as it takes by itself, on whichever cores.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_wide() -> anyhow::Result<Daemon> {
        let folder = Folder::new()?;
        let mut command = Command::new(braid()?);
        places(&mut command, &folder);
        command.arg("serve").stdin(Stdio::null());
        Daemon { server: Server::start(command)?, folder }.answering()
    }

    /// The same with so many shards, on whichever cores; in a network namespace, where one is named.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_anywhere(shards: usize, namespace: Option<&str>) -> anyhow::Result<Daemon> {
        let folder = Folder::new()?;
        let mut command = match namespace {
            None => Command::new(braid()?),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, &braid()?]);
                command
            }
        };
        places(&mut command, &folder);
        command.args(["serve", "--shards", &shards.to_string()]).stdin(Stdio::null());
        Daemon { server: Server::start(command)?, folder }.answering()
    }

    fn answering(self) -> anyhow::Result<Daemon> {
        let daemon = self;
        wait_for("the daemon to answer", || daemon.cli(&["status"]).ok())?;
        Ok(daemon)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Runs a command of `braid` that asks this daemon.
    ///
    /// # Errors
    /// It fails.
    pub fn cli(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(braid()?);
        places(&mut command, &self.folder);
        let out = command.args(arguments).stdin(Stdio::null()).output()?;
        if !out.status.success() {
            bail!("braid {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    /// The same with `--json`: what it prints.
    ///
    /// # Errors
    /// It fails, or prints something else.
    pub fn json(&self, arguments: &[&str]) -> anyhow::Result<serde_json::Value> {
        let mut command = Command::new(braid()?);
        places(&mut command, &self.folder);
        let out = command.args(arguments).arg("--json").stdin(Stdio::null()).output()?;
        if !out.status.success() {
            bail!("braid {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
        }
        serde_json::from_slice(&out.stdout).with_context(|| format!("what braid {} prints", arguments.join(" ")))
    }

    /// What its API answers to a question.
    ///
    /// # Errors
    /// It does not answer, or with something else.
    pub fn ask(&self, path: &str) -> anyhow::Result<serde_json::Value> {
        let mut stream = UnixStream::connect(self.folder.join("api.sock"))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: braid\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.find('{').map_or("", |at| &answer[at..]);
        serde_json::from_str(body).with_context(|| format!("what the daemon answers to {path}"))
    }

    /// A path in its folder.
    pub fn join(&self, name: &str) -> String {
        self.folder.join(name)
    }

    /// Exports an array; gives the socket's path.
    ///
    /// # Errors
    /// It fails.
    pub fn export(&self, array: &str) -> anyhow::Result<String> {
        let socket = self.folder.join(&format!("{array}.nbd"));
        self.cli(&["export", "add", array, "--nbd", &format!("unix:{socket}")])?;
        Ok(socket)
    }
}

fn places(command: &mut Command, folder: &Folder) {
    command.env("BRAID_SOCKET", folder.join("api.sock"));
    command.env("BRAID_STATE", folder.join("state"));
    command.env("BRAID_CONFIG", "/dev/null");
}

fn serve(folder: &Folder) -> anyhow::Result<Server> {
    let mut command = pinned(SERVER_CORE, &braid()?);
    places(&mut command, folder);
    command.args(["serve", "--shards", "1"]);
    Server::start(command)
}

/// CPU of a daemon with a connected client that is silent.
pub fn idle(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let daemon = Daemon::start()?;
    daemon.cli(&["array", "create", "memory", "--level", "concat", "mem:64M"])?;
    let socket = daemon.export("memory")?;
    let client = over_nbd::connect(&format!("nbd+unix:///memory?socket={socket}"))?;
    let slices = 4;
    let mut percent = Vec::new();
    for _ in 0..slices {
        let (begun, before) = (Instant::now(), cpu::of_threads(daemon.id())?);
        std::thread::sleep(effort.idle / slices);
        let used = cpu::of_threads(daemon.id())?.since(&before);
        percent.push(100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64());
    }
    drop(client);
    let detail = format!("one client connected, watched for {} s", effort.idle.as_secs());
    found(Row::of_one("idle daemon, percent of a core", Target::AtMost(0.1), &percent, detail));
    Ok(())
}

const ARRAYS: usize = 100;

/// From the start of the process until all exports of 100 arrays of file disks take connections.
pub fn start(effort: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let Daemon { mut server, folder } = Daemon::start()?;
    let cli = |arguments: &[&str]| -> anyhow::Result<()> {
        let mut command = Command::new(braid()?);
        places(&mut command, &folder);
        let out = command.args(arguments).stdin(Stdio::null()).output()?;
        if !out.status.success() {
            bail!("braid {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    };
    let sockets: Vec<String> = (0..ARRAYS).map(|i| folder.join(&format!("{i}.nbd"))).collect();
    for (i, socket) in sockets.iter().enumerate() {
        let disks = [0, 1].map(|disk| format!("file:{},size=64M", folder.join(&format!("disk{i}-{disk}"))));
        cli(&["array", "create", &format!("array{i}"), "--level", "raid0", &disks[0], &disks[1]])?;
        cli(&["export", "add", &format!("array{i}"), "--nbd", &format!("unix:{socket}")])?;
    }
    let mut seconds = Vec::new();
    for _ in 0..effort.pairs.min(9) {
        // kill -9: the start after a crash is the one that people wait for.
        drop(server);
        let begun = Instant::now();
        server = serve(&folder)?;
        let mut waiting: Vec<&String> = sockets.iter().collect();
        wait_for("all exports", || {
            waiting.retain(|socket| UnixStream::connect(socket).is_err());
            waiting.is_empty().then_some(())
        })?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    drop(server);
    let detail = format!("{ARRAYS} arrays of two file disks, after kill -9, on one core");
    found(Row::of_one("start to the last export listening, seconds", Target::AtMost(1.0), &seconds, detail));
    Ok(())
}

/// What the test `allocations` counts, in an optimised build.
pub fn allocations(_: &Effort, found: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
    let cargo = std::env::var("CARGO").context("the counting allocator is in a test: run this through `make bench`")?;
    let out = Command::new(cargo)
        .args(["test", "--locked", "--release", "--quiet", "-p", "braid", "--test", "allocations", "--", "--nocapture"])
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    for line in text.lines().filter_map(|line| line.split_once("allocations: ")) {
        // "WHAT: N in M I/Os"
        let parsed = line.1.rsplit_once(": ").and_then(|(what, counts)| {
            let mut words = counts.split_whitespace();
            let allocations: f64 = words.next()?.parse().ok()?;
            let ios: f64 = words.nth(1)?.parse().ok()?;
            Some((what, allocations, ios))
        });
        let Some((what, allocations, ios)) = parsed else { continue };
        let detail = format!("{allocations} in {ios} I/Os on the shard's thread");
        found(Row::of_one(format!("allocations per I/O, {what}"), Target::AtMost(0.0), &[allocations / ios], detail));
    }
    if !out.status.success() {
        bail!("the test `allocations` failed: {}{text}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(())
}
