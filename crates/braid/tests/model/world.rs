//! A scenario's environment: a daemon, its exports, and their clients.

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_nbd::client::ClientConfig;
use serde_json::Value;

use crate::access::{Access, AccessChoices};
use crate::attached::Mount;
use crate::client::{Connection, Flight, Op, Progress, Refused};
use crate::counts::Counts;
use crate::dice::Dice;
use crate::manager::Manager;
use crate::oracle::{BLOCK, Content, Oracle};
use crate::support::*;

/// What happened, for readers of a failure.
pub type Log = Arc<Mutex<Vec<String>>>;

/// The error of requests that an orderly stop aborts.
const ESHUTDOWN: u32 = 108;
pub const ENOSPC: u32 = 28;
pub const EIO: u32 = 5;

/// An exported array, volume or snapshot.
pub struct Device {
    pub number: u64,
    /// Its name on the command line.
    pub name: String,
    pub blocks: u64,
    /// The ranges of most I/O: first block and number of blocks.
    hot: Vec<(u64, u64)>,
    pub connections: Vec<Connection>,
    /// The export's file, open, for one request at a time.
    pub file: Option<File>,
    /// The mount point of that file, if there is one. Unmounted after everything that has it open.
    pub mount: Option<Mount>,
}

impl Device {
    /// Returns the path of its file.
    pub fn path(&self) -> Option<String> {
        self.mount.as_ref().map(|mount| mount.0.clone())
    }

    /// Returns the name of the export of its file.
    pub fn file_export(&self) -> String {
        format!("{}-file", World::socket_name(&self.name))
    }

    pub fn is_snapshot(&self) -> bool {
        self.name.contains('@')
    }
}

/// A small file system for disks, unmounted with the scenario.
struct Small(String);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = command("umount").args(["--lazy", &self.0]).output();
    }
}

/// Moves a file, also to another file system, where it appears complete under its new name.
pub fn move_file(from: &str, to: &str) -> std::io::Result<()> {
    let result = std::fs::rename(from, to);
    let Err(error) = &result else { return result };
    if error.kind() != std::io::ErrorKind::CrossesDevices {
        return result;
    }
    let part = format!("{to}.part");
    run("cp", &["--sparse=always", from, &part]);
    std::fs::rename(&part, to)?;
    std::fs::remove_file(from)
}

/// Size of a small file system.
const SMALL_MIB: u64 = 192;

pub struct World {
    /// The file system for further files. Dropped before the folder that it lies in.
    at: Option<Small>,
    pub daemon: Daemon,
    pub dice: Dice,
    pub oracle: Oracle,
    pub devices: Vec<Device>,
    pub counts: Counts,
    /// Why requests may fail at the moment.
    pub lenient: Option<&'static str>,
    /// Whether writes may run out of space.
    pub may_fill: bool,
    /// How clients access the exports.
    pub access: AccessChoices,
    /// The daemon's service manager, if it has one.
    pub manager: Option<Manager>,
    log: Log,
    files: u64,
    /// Whether exports may be files: only the io_uring driver serves them.
    has_files: bool,
    /// Whether the daemon is stopping in order: it may answer requests that it aborts with an error.
    pub stopping: bool,
}

impl Drop for World {
    /// The daemon ends first, and its service manager closes its descriptors: requests that wait for them fail then, so
    /// that clients through files end, loop devices are detached, and mounts are removed. The folder is removed last.
    fn drop(&mut self) {
        self.daemon.running.kill();
        self.manager = None;
        self.devices.clear();
    }
}

impl World {
    pub fn new(seed: u64, log: Log) -> World {
        let (mut dice, access) = (Dice::new(seed), AccessChoices::new(seed));
        let shards = dice.within(1, 2).to_string();
        let mut driver = *dice.pick(&["io_uring", "io_uring", "libaio", "threads"]);
        if access.has_files() {
            // No other driver serves files.
            driver = "io_uring";
        }
        log.lock().expect("unpoisoned").push(format!("serve --shards {shards} --driver {driver}"));
        let arguments = ["--shards", shards.as_str(), "--driver", driver, "--buffers", "16M"];
        let folder = Folder::new();
        let manager = (access.access == Access::ServiceManager).then(|| Manager::new(&folder, &arguments));
        let daemon = match &manager {
            None => Daemon::start_in(folder, &arguments),
            Some(manager) => {
                let mut command = manager.serve(&folder);
                Daemon::start_with(folder, &mut command)
            }
        };
        World {
            daemon,
            dice,
            oracle: Oracle::default(),
            devices: Vec::new(),
            counts: Counts::default(),
            lenient: None,
            may_fill: false,
            access,
            manager,
            log,
            files: 0,
            has_files: driver == "io_uring",
            stopping: false,
            at: None,
        }
    }

    pub fn record(&self, what: impl Into<String>) {
        self.log.lock().expect("unpoisoned").push(what.into());
    }

    /// Creates a sparse file of `mib` MiB, for a disk.
    pub fn new_file(&mut self, mib: u64) -> String {
        self.files += 1;
        let folder = if self.at.is_some() { "small/" } else { "" };
        let path = self.daemon.folder.sparse(&format!("{folder}d{}.img", self.files), mib * MIB);
        self.record(format!("file {path} of {mib} MiB"));
        path
    }

    /// Puts further disks on a file system that is smaller than they are. Returns `None` where none can be mounted.
    pub fn mount_small(&mut self) -> Option<String> {
        let path = self.daemon.folder.join("small");
        std::fs::create_dir(&path).expect("a folder can be made");
        let size = format!("size={SMALL_MIB}M");
        let out = command("mount").args(["-t", "tmpfs", "-o", &size, "braid-model", &path]).output();
        if !out.is_ok_and(|out| out.status.success()) {
            self.record("nothing can be mounted here");
            return None;
        }
        self.record(format!("disks are on {path} of {SMALL_MIB} MiB"));
        self.at = Some(Small(path.clone()));
        Some(path)
    }

    /// Returns whether scenarios leave something out: `BRAID_MODEL_WITHOUT=breaks,old-copies` avoids known faults.
    pub fn without(&self, what: &str) -> bool {
        std::env::var("BRAID_MODEL_WITHOUT").is_ok_and(|given| given.split(',').any(|one| one == what))
    }

    /// Returns a path outside the daemon's search folders for the file at `path`.
    pub fn hidden_path(&self, path: &str) -> String {
        let folder = self.daemon.folder.join("away");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        format!("{folder}/{}", path.rsplit('/').next().expect("a path has a name"))
    }

    /// Runs a command with any outcome. Returns its exit status and its output. The command must not panic.
    pub fn braid(&mut self, arguments: &[&str]) -> (i32, String) {
        self.counts.commands += 1;
        let out = self.daemon.any(arguments);
        let text = said(&out);
        let status = out.status.code().unwrap_or(-1);
        self.record(format!("braid {} -> {status} {}", arguments.join(" "), text.lines().next().unwrap_or("")));
        assert!((0..100).contains(&status), "braid {} ended with {}:\n{text}", arguments.join(" "), out.status);
        assert!(!text.contains("Usage: braid"), "braid {} is not understood:\n{text}", arguments.join(" "));
        (status, text)
    }

    /// Runs a command that has to succeed.
    pub fn must(&mut self, arguments: &[&str]) -> String {
        let (status, text) = self.braid(arguments);
        assert_eq!(status, 0, "braid {}:\n{text}", arguments.join(" "));
        text
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        self.daemon.json(arguments)
    }

    fn socket_name(name: &str) -> String {
        name.replace(['/', '@'], "_")
    }

    fn uri(&self, name: &str) -> String {
        let socket = self.daemon.nbd_socket(&World::socket_name(name));
        let name = name.replace('/', "%2F").replace('@', "%40");
        format!("nbd+unix:///{name}?socket={socket}")
    }

    /// Exports an object by NBD, and perhaps as a file, and adds it for clients.
    pub fn serve(&mut self, name: &str, number: u64, bytes: u64, file: bool) {
        let socket = format!("unix:{}", self.daemon.nbd_socket(&World::socket_name(name)));
        self.must(&["export", "add", name, "--nbd", &socket]);
        let blocks = bytes / BLOCK as u64;
        let mut device = Device {
            number,
            name: name.to_owned(),
            blocks,
            hot: Vec::new(),
            connections: Vec::new(),
            file: None,
            mount: None,
        };
        for _ in 0..3 {
            let count = self.dice.within(8, 320).min(blocks);
            // More often than not at the begin or end of something.
            let first = match self.dice.below(4) {
                0 => 0,
                1 => blocks - count,
                2 => (self.dice.below(blocks) / 1024 * 1024).min(blocks - count),
                _ => self.dice.below(blocks - count + 1),
            };
            device.hot.push((first, count));
        }
        let file = self.access.adds_file(device.is_snapshot()) || file;
        if file && self.has_files {
            let path = self.daemon.folder.join(&format!("{}.file", World::socket_name(name)));
            device.mount = Some(Mount(path.clone()));
            self.must(&["export", "add", name, "--fuse", &path, "--name", &device.file_export()]);
        }
        self.devices.push(device);
    }

    /// Removes the exports of a device, after its clients have their replies and have disconnected.
    pub fn unserve(&mut self, device: usize) {
        self.drain(device);
        let mut device = self.devices.remove(device);
        for connection in device.connections.drain(..) {
            connection.end(&mut self.oracle);
        }
        device.file = None;
        self.must(&["export", "remove", &device.name]);
        if device.mount.is_some() {
            self.remove_file_export(&device);
        }
    }

    /// Records a larger size, and directs I/O to the new part.
    pub fn grown(&mut self, device: usize, blocks: u64) {
        let device = &mut self.devices[device];
        let first = device.blocks.min(blocks - 8);
        device.hot.push((first, (blocks - first).min(320)));
        device.blocks = blocks;
        // NBD clients learn the size when they connect.
        self.reconnect(0);
    }

    fn reconnect(&mut self, device: usize) {
        self.drain(device);
        let (blocks, mut at) = (self.devices[device].blocks, 0);
        while at < self.devices[device].connections.len() {
            if self.devices[device].connections[at].grows_to(blocks) {
                at += 1;
            } else {
                self.ended(device, at, "to connect again");
            }
        }
    }

    /// Returns one of the connections; connects if there is none.
    pub fn connection(&mut self, device: usize) -> usize {
        if self.devices[device].connections.is_empty() {
            return self.connect(device);
        }
        self.dice.below(self.devices[device].connections.len() as u64) as usize
    }

    /// Sends one request without waiting for its reply.
    pub fn send(&mut self, device: usize, at: usize, op: Op, first: u64, count: u64) {
        self.counts.requests += 1;
        self.record(format!("{} connection {at}: {}{first}+{count}", self.devices[device].name, word(op, false)));
        self.devices[device].connections[at].send(&mut self.oracle, op, first, count, false);
        self.pump(Duration::ZERO);
    }

    /// Returns a range within those of most I/O.
    pub fn range(&mut self, device: usize, most: u64) -> (u64, u64) {
        let hot = self.devices[device].hot.clone();
        let (first, count) = *self.dice.pick(&hot);
        let len = self.dice.within(1, most.min(count));
        (first + self.dice.below(count - len + 1), len)
    }

    /// Adds a connection.
    pub fn connect(&mut self, device: usize) -> usize {
        if self.devices[device].mount.is_some() && self.access.by_file() {
            return self.open(device);
        }
        let (name, number) = (self.devices[device].name.clone(), self.devices[device].number);
        let structured = !self.dice.one_in(4);
        let extended = structured && self.dice.one_in(2);
        let config = ClientConfig { depth: 64, structured, extended, ..ClientConfig::default() };
        let uri = self.uri(&name);
        let start = std::time::Instant::now();
        let connection = loop {
            let error = match Connection::open(&uri, config, number) {
                Ok(connection) => break connection,
                Err(error) => error,
            };
            if start.elapsed() > PATIENCE {
                let status = self.daemon.any(&["status"]);
                panic!("no connection to {name} within {PATIENCE:?}: {error}\n{}", said(&status));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.oracle.session(number);
        let device = &mut self.devices[device];
        device.blocks = connection.blocks();
        device.connections.push(connection);
        device.connections.len() - 1
    }

    /// Checks that these error replies are allowed.
    pub fn refused(&mut self, device: usize, refused: Vec<Refused>) {
        for one in refused {
            self.record(format!("  refused: {one}"));
            let no_space = one.error == ENOSPC || (one.by_loop && one.error == EIO);
            if self.stopping && one.error == ESHUTDOWN {
                self.counts.aborted += 1;
            } else if self.may_fill && no_space {
                self.counts.full += 1;
            } else if self.lenient.is_none() {
                let versions = self.oracle.describe(self.devices[device].number, one.first, one.count);
                panic!("{} returned {one}, and no fault is injected; {versions}", self.devices[device].name);
            }
        }
    }

    pub fn ended(&mut self, device: usize, connection: usize, why: &str) -> Vec<Flight> {
        self.record(format!("  connection {connection} of {} ended: {why}", self.devices[device].name));
        let connection = self.devices[device].connections.remove(connection);
        connection.end(&mut self.oracle)
    }

    /// Receives replies of all connections.
    pub fn pump(&mut self, limit: Duration) {
        for device in 0..self.devices.len() {
            let mut at = 0;
            while at < self.devices[device].connections.len() {
                let progress = self.devices[device].connections[at].poll(&mut self.oracle, limit);
                match progress.unwrap_or_else(|what| panic!("{what}")) {
                    Progress::Goes(refused) => {
                        self.refused(device, refused);
                        at += 1;
                    }
                    Progress::Ended(why) => {
                        assert!(self.lenient.is_some(), "a connection ended unexpectedly: {why}");
                        self.ended(device, at, &why);
                    }
                }
            }
        }
    }

    /// Waits until every request has its reply.
    pub fn drain(&mut self, device: usize) {
        let mut at = 0;
        while at < self.devices[device].connections.len() {
            let progress = self.devices[device].connections[at].drain(&mut self.oracle);
            match progress.unwrap_or_else(|what| panic!("{what}")) {
                Progress::Goes(refused) => {
                    self.refused(device, refused);
                    at += 1;
                }
                Progress::Ended(why) => {
                    assert!(self.lenient.is_some(), "a connection ended unexpectedly: {why}");
                    self.ended(device, at, &why);
                }
            }
        }
        self.oracle.forget(self.devices[device].number);
    }

    pub fn drain_all(&mut self) {
        (0..self.devices.len()).for_each(|device| self.drain(device));
    }

    fn some_connection(&mut self, device: usize) -> usize {
        let count = self.devices[device].connections.len();
        if count == 0 || (count < 3 && self.dice.one_in(6)) {
            return self.connect(device);
        }
        self.dice.below(count as u64) as usize
    }

    /// Sends some requests without waiting for their replies.
    pub fn burst(&mut self, device: usize) {
        let at = self.some_connection(device);
        let number = self.devices[device].number;
        let mut line = format!("{} connection {at}:", self.devices[device].name);
        for _ in 0..self.dice.within(1, 8) {
            let most = if self.dice.one_in(4) { 320 } else { 12 };
            let (first, count) = self.range(device, most);
            let fua = self.dice.one_in(8);
            let op = match self.dice.below(20) {
                0..11 => Op::Write(Content::Data { device: number, version: self.oracle.number() }),
                11 => Op::Write(Content::Zero),
                12 => Op::Trim,
                13 => Op::Flush,
                _ => Op::Read,
            };
            let fua = fua && op != Op::Read;
            if self.devices[device].connections[at].send(&mut self.oracle, op, first, count, fua) {
                self.counts.requests += 1;
                line += &format!(" {}{first}+{count}", word(op, fua));
            }
        }
        self.record(line);
        self.pump(Duration::ZERO);
    }

    /// Sends one request on one connection and waits for all replies on it.
    pub fn call(&mut self, device: usize, at: usize, op: Op, first: u64, count: u64) {
        self.counts.requests += 1;
        self.record(format!(
            "{} connection {at}: {}{first}+{count}, waiting",
            self.devices[device].name,
            word(op, false)
        ));
        self.devices[device].connections[at].send(&mut self.oracle, op, first, count, false);
        let progress = self.devices[device].connections[at].drain(&mut self.oracle);
        match progress.unwrap_or_else(|what| panic!("{what}")) {
            Progress::Goes(refused) => self.refused(device, refused),
            Progress::Ended(why) => {
                assert!(self.lenient.is_some(), "a connection ended unexpectedly: {why}");
                self.ended(device, at, &why);
            }
        }
    }

    /// Breaks a connection with requests in flight. Its client reconnects, repeats the unanswered requests, writes
    /// newer data to the same blocks, and flushes.
    pub fn break_connection(&mut self, device: usize) {
        if self.devices[device].connections.is_empty() || self.without("breaks") {
            return;
        }
        if self.devices[device].mount.is_some() && self.access.breaks_file() && !self.without("unmounts") {
            return self.unmount_by_force(device);
        }
        self.burst(device);
        // A client through a file has no connection that could break alone.
        let all = self.devices[device].connections.iter().enumerate();
        let by_nbd: Vec<usize> = all.filter(|(_, one)| !one.is_file()).map(|(at, _)| at).collect();
        if by_nbd.is_empty() {
            return;
        }
        let at = *self.dice.pick(&by_nbd);
        self.pump(Duration::ZERO);
        if self.devices[device].connections.get(at).is_none_or(Connection::is_file) {
            return;
        }
        let rest = self.ended(device, at, "by its client");
        self.counts.breaks += 1;
        let at = self.connect(device);
        let (repeats, newer, flush) = (!self.dice.one_in(4), !self.dice.one_in(3), !self.dice.one_in(3));
        if repeats {
            for flight in &rest {
                self.counts.repeats += 1;
                let connection = &mut self.devices[device].connections[at];
                connection.send(&mut self.oracle, flight.op, flight.first, flight.count, flight.fua);
            }
            self.record(format!("  {} repeated", rest.len()));
            self.drain(device);
        }
        if newer {
            let number = self.devices[device].number;
            for flight in rest.iter().filter(|flight| matches!(flight.op, Op::Write(_))) {
                if at >= self.devices[device].connections.len() {
                    return;
                }
                let op = Op::Write(Content::Data { device: number, version: self.oracle.number() });
                self.call(device, at, op, flight.first, flight.count);
            }
        }
        if flush && at < self.devices[device].connections.len() {
            self.call(device, at, Op::Flush, 0, 0);
        }
    }

    /// Reads everything that was ever written, and checks the block status against it.
    pub fn compare(&mut self, device: usize) {
        self.drain(device);
        self.record(format!("compare {}", self.devices[device].name));
        if self.devices[device].connections.is_empty() {
            self.connect(device);
        }
        let written = self.oracle.written(self.devices[device].number);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in written.into_iter().filter(|block| *block < self.devices[device].blocks) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == block && *count < 256 => *count += 1,
                _ => runs.push((block, 1)),
            }
        }
        for (first, count) in runs {
            if self.devices[device].connections.is_empty() {
                self.connect(device);
            }
            let connection = &mut self.devices[device].connections[0];
            if connection.flights.len() >= 32 {
                self.drain(device);
            }
            if let Some(connection) = self.devices[device].connections.first_mut() {
                connection.send(&mut self.oracle, Op::Read, first, count, false);
            }
        }
        self.drain(device);
        self.check_map(device);
        self.check_file_map(device);
    }

    /// Checks over NBD that blocks reported as zeros may be zeros.
    pub fn check_map(&mut self, device: usize) {
        if self.without("maps") {
            return;
        }
        self.drain(device);
        let blocks = self.devices[device].blocks;
        for connection in &mut self.devices[device].connections {
            let result = connection.check_map(&mut self.oracle, blocks);
            if let Some(zeros) = result.unwrap_or_else(|what| panic!("{what}")) {
                self.counts.maps += 1;
                self.counts.zeros += zeros;
                return;
            }
        }
    }
}

fn word(op: Op, fua: bool) -> String {
    let word = match op {
        Op::Read => "r".to_owned(),
        Op::Write(Content::Data { version, .. }) => format!("w#{version}:"),
        Op::Write(Content::Zero) => "z".to_owned(),
        Op::Trim => "t".to_owned(),
        Op::Flush => "flush".to_owned(),
    };
    if fua { format!("fua-{word}") } else { word }
}
