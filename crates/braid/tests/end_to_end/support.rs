//! What the stories share: a folder, processes that end with the test, a daemon in that folder.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// Longest that anything here is waited for: far above what it takes, so that a slow machine fails nothing.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A folder of one test, short enough for socket addresses; gone with the test, mounts in it included.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("braid-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the folder of temporary files can be written");
        // A configuration that says nothing, so that this machine's own is not read.
        fs::write(path.join("braid.toml"), "").expect("a file can be written");
        Folder { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in here, as text.
    pub fn join(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("temporary folders have UTF-8 names").to_owned()
    }

    /// A sparse file of `bytes`, and its path.
    pub fn sparse(&self, name: &str, bytes: u64) -> String {
        let path = self.join(name);
        fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a sparse file can be made");
        path
    }

    /// A file of `bytes` that do not repeat and do not compress, different for each `seed`.
    pub fn noise(&self, name: &str, bytes: u64, seed: u64) -> String {
        let path = self.join(name);
        fs::write(&path, noise(bytes, seed)).expect("a file can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// `bytes` that do not repeat, different for each `seed`.
pub fn noise(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(bytes as usize + 8);
    while (data.len() as u64) < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    data.truncate(bytes as usize);
    data
}

/// Waits until `done` gives something.
#[track_caller]
pub fn wait_for<T>(what: &str, done: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, done)
}

/// The same with another limit.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Says why a test cannot run here; there is no silent skip.
#[track_caller]
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts file systems and makes loop devices: run it as root (for example in a container), as CI does"
    );
}

/// A command of `program` that dies with the thread that starts it, also when the test is killed.
pub fn command(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    // Administrators' programs are not on every user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    command
}

/// Runs a program to its end and gives what it printed; it has to succeed.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let out = run_any(program, arguments);
    assert!(out.status.success(), "{program} {}: {}\n{}", arguments.join(" "), out.status, said(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs a program to its end, whichever that is. One that does not end within minutes is killed.
#[track_caller]
pub fn run_any(program: &str, arguments: &[&str]) -> Output {
    let mut full = vec!["--signal=KILL", "300", program];
    full.extend(arguments);
    command("timeout")
        .args(full)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; `make tools` installs what the tests need"))
}

/// Everything that a program printed.
pub fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A process that ends with this value: by its own id, whatever happened.
pub struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Starts `command`; what it prints goes to `NAME.log` in the folder, and is shown if the test fails.
    #[track_caller]
    pub fn start(folder: &Folder, name: &str, command: &mut Command) -> Running {
        let log = folder.path().join(format!("{name}.log"));
        let file = fs::File::options().create(true).append(true).open(&log).expect("a log can be written");
        let second = file.try_clone().expect("a file can be opened twice");
        let child = command.stdout(file).stderr(second).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name}: {error}; `make tools` installs what the tests need"));
        Running { child, name: name.to_owned(), log }
    }

    /// The same, with its standard output in `out` and the rest in its log.
    #[track_caller]
    pub fn start_apart(folder: &Folder, name: &str, command: &mut Command, out: &str) -> Running {
        let log = folder.path().join(format!("{name}.log"));
        let file = fs::File::options().create(true).append(true).open(&log).expect("a log can be written");
        let out = fs::File::create(out).expect("a file can be written");
        let child = command.stdout(out).stderr(file).spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Running { child, name: name.to_owned(), log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(PATIENCE)
    }

    /// The same with another limit.
    #[track_caller]
    pub fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let name = self.name.clone();
        wait_within(limit, &format!("the end of {name}"), || self.ended())
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// As Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(rustix::process::Signal::INT);
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.id() as i32).expect("a process has an id");
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("---- {} said:\n{}", self.name, self.log());
            return;
        }
        // A thread of a daemon that panics may leave the rest of it going: no story would notice.
        assert!(!has_panicked(&self.log()), "{} panicked:\n{}", self.name, self.log());
    }
}

/// Returns whether a thread of a daemon has panicked, whatever its name, apart from shards: those end the daemon, and some tests
/// have them do so.
fn has_panicked(log: &str) -> bool {
    let names = log.split("thread ").skip(1).filter_map(|rest| rest.split_once(" panicked"));
    names.map(|(name, _)| name).any(|name| !name.contains(' ') && !name.starts_with("shard-"))
}

/// The program under test.
pub const BRAID: &str = env!("CARGO_BIN_EXE_braid");

/// `braid serve` in a folder of its own, and the command line that talks to it.
pub struct Daemon {
    // Dropped in this order: the log lies in the folder.
    pub running: Running,
    pub folder: Folder,
    arguments: Vec<String>,
}

impl Daemon {
    #[track_caller]
    pub fn start() -> Daemon {
        Daemon::start_in(Folder::new(), &[])
    }

    /// Starts it in `folder`, with further arguments for `serve`, and waits until it answers.
    #[track_caller]
    pub fn start_in(folder: Folder, arguments: &[&str]) -> Daemon {
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        let running = Running::start(&folder, "daemon", &mut serve(&folder, &arguments));
        let mut daemon = Daemon { folder, running, arguments };
        daemon.wait_until_ready();
        daemon
    }

    /// Starts it by a command of the test's own, and waits until it answers.
    #[track_caller]
    pub fn start_with(folder: Folder, command: &mut Command) -> Daemon {
        let running = Running::start(&folder, "daemon", command);
        let mut daemon = Daemon { folder, running, arguments: Vec::new() };
        daemon.wait_until_ready();
        daemon
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        wait_for("the daemon to answer", || {
            if let Some(status) = self.running.ended() {
                panic!("the daemon ended at once: {status}\n{}", self.running.log());
            }
            let status = self.try_json(&["status"]).ok()?;
            status["start_ms"].is_u64().then_some(())
        });
    }

    /// A command line of `braid` that talks to this daemon.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(BRAID);
        command.args(arguments);
        places(&mut command, &self.folder);
        command
    }

    /// Runs `braid ARGUMENTS` to its end, whichever that is.
    #[track_caller]
    pub fn any(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("braid can be started")
    }

    /// Runs `braid ARGUMENTS`, which has to succeed, and gives what it printed.
    #[track_caller]
    pub fn braid(&self, arguments: &[&str]) -> String {
        let out = self.any(arguments);
        assert!(out.status.success(), "braid {}: {}\n{}", arguments.join(" "), out.status, said(&out));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The same, and it has to fail with `status`; gives what it said on standard error.
    #[track_caller]
    pub fn refused(&self, status: i32, arguments: &[&str]) -> String {
        let out = self.any(arguments);
        assert_eq!(out.status.code(), Some(status), "braid {}:\n{}", arguments.join(" "), said(&out));
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    /// The same, with whichever status.
    pub fn refused_any(&self, arguments: &[&str]) -> String {
        let out = self.any(arguments);
        assert!(!out.status.success(), "braid {}:\n{}", arguments.join(" "), said(&out));
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    pub fn try_json(&self, arguments: &[&str]) -> Result<Value, String> {
        let out = self.command(arguments).arg("--json").output().map_err(|error| error.to_string())?;
        if !out.status.success() {
            return Err(said(&out));
        }
        serde_json::from_slice(&out.stdout).map_err(|error| format!("{error} in {}", said(&out)))
    }

    /// Runs `braid ARGUMENTS --json` and gives the answer.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        self.try_json(arguments).unwrap_or_else(|error| panic!("braid {} --json: {error}", arguments.join(" ")))
    }

    /// Creates an array of `disks` and exports it on a Unix socket; gives the URI for NBD clients.
    #[track_caller]
    pub fn array(&self, name: &str, level: &str, disks: &[&str]) -> String {
        let mut arguments = vec!["array", "create", name, "--level", level];
        arguments.extend(disks);
        self.braid(&arguments);
        self.export(name)
    }

    /// Exports the array on a Unix socket in the folder; gives the URI for NBD clients.
    #[track_caller]
    pub fn export(&self, name: &str) -> String {
        self.braid(&["export", "add", name, "--nbd", &format!("unix:{}", self.nbd_socket(name))]);
        self.uri(name)
    }

    /// Exports the array by a name on a free port of loopback; gives the port.
    #[track_caller]
    pub fn export_tcp(&self, array: &str, name: &str) -> u16 {
        // Port 0 would be nobody's to know: take a free one, and another if it was taken in between.
        wait_for("a free port", || {
            let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let port = free.expect("loopback is there").port();
            let address = format!("tcp:127.0.0.1:{port}");
            let out = self.any(&["export", "add", array, "--nbd", &address, "--name", name]);
            out.status.success().then_some(port)
        })
    }

    pub fn nbd_socket(&self, name: &str) -> String {
        self.folder.join(&format!("{name}.nbd"))
    }

    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.nbd_socket(name))
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.running.kill();
    }

    /// Starts it again after it was killed or has ended.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.start_again_by(&mut serve(&self.folder, &self.arguments));
    }

    /// The same by a command of the test's own.
    #[track_caller]
    pub fn start_again_by(&mut self, command: &mut Command) {
        self.running = Running::start(&self.folder, "daemon", command);
        self.wait_until_ready();
    }

    /// Ends the daemon, by a kill or by a clean stop, and starts it again.
    pub fn restart(&mut self, kill: bool) {
        if kill {
            self.kill();
        } else {
            self.stop();
        }
        self.start_again();
    }

    /// Ends it as a service manager would; it has to end well.
    #[track_caller]
    pub fn stop(&mut self) {
        self.running.terminate();
        let status = self.running.wait();
        assert!(status.success(), "the daemon ended with {status}\n{}", self.running.log());
    }

    /// What the daemon's events say, one line each.
    #[track_caller]
    pub fn events(&self) -> String {
        let events = self.json(&["events"]);
        let mut text = String::new();
        for event in events["events"].as_array().expect("a list of events") {
            writeln!(text, "{} {} {}", event["severity"], event["kind"], event["message"]).expect("text grows");
        }
        text
    }
}

/// The places of one folder, so that nothing outside of it is touched.
pub fn places(command: &mut Command, folder: &Folder) {
    command
        .env("BRAID_SOCKET", folder.join("api.sock"))
        .env("BRAID_STATE", folder.join("state"))
        .env("BRAID_SHARED_MEMORY", folder.join("shared"))
        .env("BRAID_CONFIG", folder.join("braid.toml"));
}

/// `braid serve` in this folder, not yet started.
pub fn serve(folder: &Folder, arguments: &[String]) -> Command {
    let mut command = command(BRAID);
    command.arg("serve").args(arguments);
    places(&mut command, folder);
    command
}

/// A checksum of everything in a file.
pub fn checksum(path: &str) -> u64 {
    let mut file = fs::File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = file.read(&mut buffer).unwrap_or_else(|error| panic!("{path}: {error}"));
        if n == 0 {
            return sum;
        }
        for &byte in &buffer[..n] {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
