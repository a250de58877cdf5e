//! Every command over objects in every state: its text, its `--json` output, its exit status and the API's reply agree.
//!
//! The command line talks to the daemon through a proxy that records the traffic, so that the API's replies are those
//! to the very requests. A command that changed the object gets a new object in the same state. Replicated volumes are
//! in `every_state_cluster.rs`, nodes in `every_state_nodes.rs`, mounts in `every_state_mounts.rs`; all use the checker
//! of this file.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

use braid_api::Kind;
use serde_json::Value;

use crate::nbd::Client;
use crate::support::*;
use crate::{every_state_cluster, every_state_mounts, every_state_nodes};

/// Commands that this test leaves out, and why.
const LEFT_OUT: [(&str, &str); 10] = [
    ("serve", "is the daemon"),
    ("top", "is a screen; with --json it is held against its schema in json.rs"),
    ("bench", "measures"),
    ("demo", "has a daemon of its own"),
    ("completions", "needs no daemon"),
    ("man", "needs no daemon"),
    ("schema", "needs no daemon"),
    ("plan", "needs no daemon"),
    ("explain", "needs no daemon"),
    ("doctor", "looks at the machine; doctor.rs tests it"),
];

/// Command lines for an object of a kind. `{}` is its name, `{disk}` a new disk, `{new}` a new name, `{path}` a new
/// socket. Commands without an object run with every object, as they list all of them. Destructive commands come last.
const COMMANDS: [(&str, &[&str]); 5] = [
    (
        "array",
        &[
            "array list",
            "array show {}",
            "status",
            "status --check",
            "disk list",
            "job list",
            "events",
            "node list",
            "export list",
            "array assemble {}",
            "array check {}",
            "array repair {}",
            "array grow {} --dry-run",
            "array grow {} {disk}",
            "array spare {} {disk}",
            "array fail {} 0",
            "array remove {} 0",
            "array replace {} 0 {disk} --no-wait",
            "array add {} {disk}",
            "array journal {} {disk}",
            "array journal {} --members",
            "array create {} --level raid0 {disk}",
            "array import-md --name {} {disk}",
            "array rename {} {new}",
            "export add {} --nbd unix:{path}",
            "export repair --dry-run",
            "pool create {new} {}",
            "disk examine {member}",
            "disk wipe {member} --yes",
            "array stop {}",
            "array delete {}",
            "array delete {} --yes",
        ],
    ),
    (
        "pool",
        &[
            "pool list",
            "pool show {}",
            "status",
            "status --check",
            "disk list",
            "pool check {}",
            "pool dump {member}",
            "pool start {}",
            "pool add {} {disk}",
            "pool remove {} 0",
            "pool create {} {disk}",
            "pool rename {} {new}",
            "volume create {}/{new} 16M",
            "volume list {}",
            "pool delete {}",
            "pool delete {} --yes",
        ],
    ),
    (
        "volume",
        &[
            "volume list",
            "volume show {}",
            "snapshot list {}",
            "status",
            "status --check",
            "replica list",
            "volume set {} --limit iops=3000",
            "volume resize {} 32M",
            "volume move {} --place spread",
            "volume compact {}",
            "volume flatten {}",
            "volume attach {}",
            "volume detach {}",
            "volume create {} 16M",
            "snapshot create {}@{new}",
            "snapshot policy {} --every 1h --keep 24",
            "export add {} --nbd unix:{path}",
            "volume rename {} {new}",
            "volume rollback {} @none --yes",
            "volume delete {}",
            "volume delete {} --yes",
        ],
    ),
    (
        "snapshot",
        &[
            "snapshot list",
            "snapshot show {}",
            "snapshot diff {}",
            "snapshot create {}",
            "export add {} --nbd unix:{path}",
            "volume clone {} tank/{new}",
            "snapshot rename {} {new}",
            "snapshot delete {}",
            "snapshot delete {} --yes",
        ],
    ),
    (
        "export",
        &[
            "export list",
            "export show {}",
            "status",
            "status --check",
            "export set {} --max-connections 8",
            "export rename {} {new}",
            "export remove {}",
        ],
    ),
];

/// The same for jobs, which have names of their own.
const JOBS: [&str; 7] = [
    "job list",
    "array show {array}",
    "job pause {}",
    "job limit {} 2M",
    "job resume {}",
    "job cancel {}",
    "job watch {}",
];

/// Objects by kind, and the states that they are created in.
const STATES: [(&str, &[&str]); 5] = [
    (
        "array",
        &[
            "plain",
            "exported",
            "whole",
            "with a spare",
            "degraded",
            "shrunk",
            "rebuilding",
            "parity",
            "parity degraded",
            "stopped",
            "lacking a disk",
            "absent",
        ],
    ),
    ("pool", &["empty", "with volumes", "lacking a member", "waiting", "absent"]),
    ("volume", &["thin", "thick", "written", "with a snapshot", "clone", "exported", "absent", "of no pool"]),
    ("snapshot", &["plain", "cloned", "exported", "absent"]),
    ("export", &["serving", "waiting", "absent"]),
];

/// One request and its reply.
struct Exchange {
    path: String,
    status: u16,
    body: Vec<u8>,
}

/// The bytes sent and received over one connection.
type Bytes = (Vec<u8>, Vec<u8>);

/// A proxy between the command line and the API's socket.
struct Recorder {
    socket: String,
    seen: Arc<Mutex<Vec<Bytes>>>,
}

impl Recorder {
    fn start(daemon: &Daemon) -> Recorder {
        let (socket, behind) = (daemon.folder.join("recorded.sock"), daemon.folder.join("api.sock"));
        let listener = UnixListener::bind(&socket).expect("a socket can be made");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // The daemon may be restarting.
                let Ok(server) = UnixStream::connect(&behind) else { continue };
                let number = {
                    let mut all = all.lock().expect("unpoisoned");
                    all.push((Vec::new(), Vec::new()));
                    all.len() - 1
                };
                let both = |stream: &UnixStream| stream.try_clone().expect("a socket can be had twice");
                let (up, down) = ((both(&client), both(&server)), (server, client));
                for ((mut from, mut to), is_reply) in [(up, false), (down, true)] {
                    let all = Arc::clone(&all);
                    thread::spawn(move || {
                        let mut buffer = vec![0; 1 << 16];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            if let Some(pair) = all.lock().expect("unpoisoned").get_mut(number) {
                                let kept = if is_reply { &mut pair.1 } else { &mut pair.0 };
                                kept.extend_from_slice(&buffer[..count]);
                            }
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Write);
                    });
                }
            }
        });
        Recorder { socket, seen }
    }

    /// Returns the exchanges since the last call.
    fn take(&self) -> Vec<Exchange> {
        let pairs = std::mem::take(&mut *self.seen.lock().expect("unpoisoned"));
        pairs.iter().flat_map(|(sent, received)| exchanges(sent, received)).collect()
    }
}

/// Pairs the requests of one connection with their replies. Incomplete messages are left out.
fn exchanges(mut sent: &[u8], mut received: &[u8]) -> Vec<Exchange> {
    let mut all = Vec::new();
    while let (Some((request, _, rest)), Some((head, body, left))) = (message(sent), message(received)) {
        (sent, received) = (rest, left);
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        all.push(Exchange { path, status, body });
    }
    all
}

/// Splits off the first message: its head, its body, and the rest.
fn message(bytes: &[u8]) -> Option<(String, Vec<u8>, &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let rest = &bytes[end + 4..];
    let original = String::from_utf8_lossy(&bytes[..end]).into_owned();
    if head.contains("transfer-encoding: chunked") {
        let (mut body, mut at) = (Vec::new(), 0);
        loop {
            let line = rest[at..].windows(2).position(|two| two == b"\r\n")?;
            let len = usize::from_str_radix(std::str::from_utf8(&rest[at..at + line]).ok()?.trim(), 16).ok()?;
            body.extend_from_slice(rest.get(at + line + 2..at + line + 2 + len)?);
            at += line + 4 + len;
            if len == 0 {
                return Some((original, body, rest.get(at..)?));
            }
        }
    }
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
    Some((original, rest.get(..len)?.to_vec(), &rest[len..]))
}

/// An object: its name, and a disk of it where it has one.
#[derive(Clone)]
struct Object {
    name: String,
    member: String,
}

struct Walk {
    daemon: Daemon,
    checker: CommandChecker,
    made: u64,
}

impl Walk {
    fn new() -> Walk {
        let daemon = Daemon::start();
        let checker = CommandChecker::of(&daemon);
        let tank = daemon.folder.sparse("tank.img", 512 * MIB);
        daemon.braid(&["pool", "create", "tank", &tank]);
        Walk { daemon, checker, made: 0 }
    }

    fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    fn disk(&mut self) -> String {
        let number = self.number();
        self.daemon.folder.sparse(&format!("d{number}.img"), 16 * MIB)
    }

    fn make(&mut self, kind: &str, state: &str) -> Object {
        match kind {
            "array" => self.array(state),
            "pool" => self.pool(state),
            "volume" | "snapshot" => self.volume(kind, state),
            _ => self.export(state),
        }
    }

    fn array(&mut self, state: &str) -> Object {
        let name = format!("a{}", self.number());
        let (one, two, three) = (self.disk(), self.disk(), self.disk());
        let member = one.clone();
        let create = |walk: &Walk, level: &str, more: &[&str]| {
            let arguments = [&["array", "create", &name, "--level", level], more].concat();
            walk.daemon.braid(&arguments);
        };
        match state {
            "absent" => {}
            "plain" => create(self, "concat", &[&one]),
            "exported" => {
                create(self, "concat", &[&one]);
                self.daemon.export(&name);
            }
            "with a spare" => create(self, "raid1", &[&one, &two, "--spare", &three]),
            "parity" | "parity degraded" => create(self, "raid5", &[&one, &two, &three]),
            "stopped" | "lacking a disk" => create(self, "raid0", &[&one, &two]),
            _ => create(self, "raid1", &[&one, &two]),
        }
        match state {
            "degraded" | "parity degraded" => drop(self.daemon.braid(&["array", "fail", &name, "1"])),
            "shrunk" => {
                self.daemon.braid(&["array", "fail", &name, "1"]);
                self.daemon.braid(&["array", "remove", &name, "1"]);
            }
            "rebuilding" => {
                self.daemon.export(&name);
                let mut client = Client::open(&self.daemon.nbd_socket(&name), &name).expect("it is served");
                client.write(0, &noise(8 * MIB, 1)).expect("it writes");
                drop(client);
                self.daemon.braid(&["export", "remove", &name]);
                self.daemon.braid(&["array", "fail", &name, "1"]);
                self.daemon.braid(&["array", "remove", &name, "1"]);
                let slow = format!("throttled({three},bw=256K)");
                self.daemon.braid(&["array", "add", &name, &slow]);
            }
            "stopped" | "lacking a disk" => {
                self.daemon.braid(&["array", "stop", &name]);
                if state == "lacking a disk" {
                    std::fs::rename(&two, format!("{two}.away")).expect("it is a file");
                    self.daemon.any(&["array", "assemble", &name]);
                }
            }
            _ => {}
        }
        Object { name, member }
    }

    fn pool(&mut self, state: &str) -> Object {
        let name = format!("p{}", self.number());
        let (one, two) = (self.disk(), self.disk());
        let member = one.clone();
        match state {
            "absent" => {}
            "empty" | "with volumes" => drop(self.daemon.braid(&["pool", "create", &name, &one])),
            _ => drop(self.daemon.braid(&["pool", "create", &name, &one, &two])),
        }
        match state {
            "with volumes" => {
                self.daemon.braid(&["volume", "create", &format!("{name}/db"), "16M"]);
                self.daemon.braid(&["snapshot", "create", &format!("{name}/db@one")]);
            }
            "waiting" | "lacking a member" => {
                self.daemon.stop();
                std::fs::rename(&two, format!("{two}.away")).expect("it is a file");
                self.daemon.start_again();
                if state == "lacking a member" {
                    self.daemon.any(&["pool", "start", &name, "--force"]);
                }
            }
            _ => {}
        }
        Object { name, member }
    }

    fn volume(&mut self, kind: &str, state: &str) -> Object {
        let name = format!("tank/v{}", self.number());
        let snapshot = format!("{name}@one");
        let pick = if kind == "snapshot" { &snapshot } else { &name };
        let mut object = Object { name: pick.clone(), member: String::new() };
        match state {
            "absent" => return object,
            "of no pool" => return Object { name: "nowhere/db".to_owned(), ..object },
            "thick" => drop(self.daemon.braid(&["volume", "create", &name, "16M", "--thick"])),
            _ => drop(self.daemon.braid(&["volume", "create", &name, "16M"])),
        }
        if kind == "snapshot" || matches!(state, "with a snapshot" | "clone") {
            self.daemon.braid(&["snapshot", "create", &snapshot]);
        }
        let clone = format!("tank/c{}", self.made);
        match (kind, state) {
            ("volume", "clone") => {
                self.daemon.braid(&["volume", "clone", &snapshot, &clone]);
                object.name = clone;
            }
            ("snapshot", "cloned") => drop(self.daemon.braid(&["volume", "clone", &snapshot, &clone])),
            ("volume", "written" | "exported") | ("snapshot", "exported") => {
                let socket = self.daemon.nbd_socket(&format!("v{}", self.made));
                let export = format!("e{}", self.made);
                let add = ["export", "add", pick, "--nbd", &format!("unix:{socket}"), "--name", &export];
                self.daemon.braid(&add);
                if state == "written" {
                    let mut client = Client::open(&socket, &export).expect("it is served");
                    client.write(0, &noise(MIB, 1)).expect("it writes");
                    drop(client);
                    self.daemon.braid(&["export", "remove", &export]);
                }
            }
            _ => {}
        }
        object
    }

    fn export(&mut self, state: &str) -> Object {
        let object = self.array(if state == "absent" { "absent" } else { "exported" });
        if state == "waiting" {
            self.daemon.braid(&["array", "stop", &object.name, "--force"]);
        }
        object
    }

    /// Starts a job that runs for a while. Returns it and its array.
    fn job(&mut self) -> (String, String) {
        let array = self.array("rebuilding").name;
        let jobs = self.daemon.json(&["job", "list"]);
        let of = |job: &&Value| job["name"].as_str().is_some_and(|id| id.starts_with(&format!("{array}:")));
        let job = jobs["jobs"].as_array().expect("a list").iter().find(of).expect("it is being rebuilt");
        (job["name"].as_str().expect("a name").to_owned(), array)
    }

    /// Runs and checks a command. Returns whether the command was carried out and changed something.
    fn check(&mut self, state: &str, typed: &str) -> bool {
        self.checker.check(&self.daemon, state, typed).changed
    }

    /// Lists, shows and the status agree about an array or pool.
    fn assert_consistent(&self, kind: &str, object: &Object, state: &str) {
        if !matches!(kind, "array" | "pool") {
            return;
        }
        let list = self.daemon.json(&[kind, "list"]);
        let listed = list[format!("{kind}s")].as_array().expect("a list");
        let listed = listed.iter().find(|one| one["name"] == *object.name);
        let shown = self.daemon.try_json(&[kind, "show", &object.name]).ok();
        assert_eq!(listed.is_some(), shown.is_some(), "{kind} {}, {state}: listed {listed:?}", object.name);
        let (Some(listed), Some(shown)) = (listed, shown) else { return };
        for field in ["uuid", "state", "level", "size_bytes"] {
            assert_eq!(listed[field], shown[field], "{kind} {}, {state}: {field}", object.name);
        }
        let status = self.daemon.json(&["status"]);
        let subject = format!("{kind} {}", object.name);
        let attention = status["attention"].as_array().expect("a list");
        let named = attention.iter().any(|one| flat(&one.to_string()).contains(&subject));
        let well = match kind {
            "array" => {
                let health = shown["redundancy"]["health"].as_str().unwrap_or("whole");
                matches!(shown["state"].as_str(), Some("active" | "stopped")) && health == "whole"
            }
            _ => {
                shown["state"] == "active"
                    && shown["members"]
                        .as_array()
                        .is_none_or(|all| all.iter().all(|one| one["state"] == "active" || one["state"].is_null()))
            }
        };
        assert!(well || named, "{subject}, {state}: the status says nothing of it: {attention:?}\n{shown:#}");
        let check = self.daemon.any(&["status", "--check"]).status.code();
        assert_eq!(check != Some(0), !attention.is_empty(), "{state}: the status of {check:?} beside {attention:?}");
    }
}

/// The outcome of a command.
pub struct Outcome {
    /// The command line, and the state in which it ran.
    pub context: String,
    pub status: i32,
    /// Its output with `--json`.
    pub document: Value,
    /// Its text output; empty where the command changed something, and was not run again.
    pub text: String,
    /// Whether it was carried out and changed something.
    pub changed: bool,
}

impl Outcome {
    /// Returns the error, if it was refused.
    pub fn error(&self) -> Option<&Value> {
        error_of(&self.document)
    }
}

fn error_of(document: &Value) -> Option<&Value> {
    document.get("error").filter(|error| error["kind"].is_string())
}

/// Runs commands through a recorder, and compares their text, their JSON and the API's replies with each other.
pub struct CommandChecker {
    recorder: Recorder,
    /// How many commands were carried out, and refused: neither may be zero.
    pub done: u64,
    pub refused: u64,
}

impl CommandChecker {
    /// Creates a checker for a daemon once its disk scan has ended: an unresponsive device of another test may delay
    /// the scan.
    pub fn of(daemon: &Daemon) -> CommandChecker {
        wait_for("the search to end", || (daemon.json(&["status"])["starting"] == false).then_some(()));
        CommandChecker { recorder: Recorder::start(daemon), done: 0, refused: 0 }
    }

    /// Runs a command with `--json`, and as text where it changed nothing. Compares both.
    pub fn check(&mut self, daemon: &Daemon, state: &str, typed: &str) -> Outcome {
        let arguments: Vec<&str> = typed.split(' ').collect();
        let socket = self.recorder.socket.clone();
        let run = |more: &[&str]| {
            let all = [&arguments[..], more].concat();
            daemon.command(&all).env("BRAID_SOCKET", &socket).output().expect("braid can be started")
        };
        let context = format!("braid {typed}, {state}");
        self.recorder.take();
        let out = run(&["--json"]);
        let exchanges = self.recorder.take();
        let status = out.status.code().unwrap_or(-1);
        assert!(matches!(status, 0..=7), "{context}: {}", said(&out));
        let document: Value = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|error| panic!("{context}: no JSON, {error}: {}", said(&out)));
        if let Some(error) = error_of(&document) {
            self.refused += 1;
            matches_api_error(&context, error, status, exchanges.last());
            let people = run(&[]);
            let text = said(&people);
            let words = flat(&text);
            assert_eq!(people.status.code(), Some(status), "{context}: as JSON {error}, as text {words}");
            for part in ["message", "remedy"] {
                let part = flat(error[part].as_str().unwrap_or_default());
                assert!(words.contains(&part), "{context}: {part:?} is missing in the text: {words}");
            }
            return Outcome { context, status, document, text, changed: false };
        }
        // `job watch` fails for a cancelled job.
        let may_fail = arguments.starts_with(&["job", "watch"]) && status == 1;
        assert!(may_fail || matches!(status, 0 | 5 | 7), "{context}: status {status} of what is no error: {document}");
        self.done += 1;
        if !is_read(&arguments) {
            return Outcome { context, status, document, text: String::new(), changed: true };
        }
        matches_api_reply(&context, &arguments, &document, &exchanges);
        let people = run(&[]);
        let text = said(&people);
        let words = flat(&text);
        assert_eq!(people.status.code(), Some(status), "{context}: as JSON {document}, as text {words}");
        text_contains_json(&context, &document, &words);
        Outcome { context, status, document, text, changed: false }
    }
}

/// Checks that an error has the exit status of its kind, and equals the API's error.
fn matches_api_error(context: &str, error: &Value, status: i32, last: Option<&Exchange>) {
    let kind: Kind = serde_json::from_value(error["kind"].clone()).expect("a kind");
    assert_eq!(i32::from(kind.exit_status()), status, "{context}: {error}");
    assert!(!matches!(kind, Kind::Internal | Kind::Unknown), "{context}: {error}");
    assert!(!error["message"].as_str().unwrap_or_default().is_empty(), "{context}: {error}");
    if let Some(last) = last.filter(|last| last.status >= 400) {
        let reply: Value = serde_json::from_slice(&last.body).expect("the API replies in JSON");
        assert_eq!(last.status, kind.http_status(), "{context}: {}", last.path);
        assert_eq!(reply["error"], *error, "{context}: {}", last.path);
    }
}

/// Returns whether a command changes nothing.
fn is_read(arguments: &[&str]) -> bool {
    let mut reads = ["list", "show", "status", "diff", "events", "dump", "examine"].iter();
    reads.any(|word| arguments.iter().take(2).any(|argument| argument == word)) || arguments.contains(&"--dry-run")
}

/// Checks that a list or a show prints the API's reply.
fn matches_api_reply(context: &str, arguments: &[&str], document: &Value, exchanges: &[Exchange]) {
    // Beside the disks in use, this command lists those of the machine.
    let is_joined = arguments.starts_with(&["disk", "list"]);
    let is_shown = !is_joined && matches!(arguments.get(1), Some(&"show" | &"list"));
    let Some(last) = exchanges.last().filter(|_| is_shown) else { return };
    let reply: Value = serde_json::from_slice(&last.body).expect("the API replies in JSON");
    assert_eq!(last.status, 200, "{context}: {}", last.path);
    let is_one = reply == *document || document.as_object().is_some_and(|of| of.values().any(|it| *it == reply));
    assert!(is_one || exchanges.len() > 1, "{context}: {} returned {reply}, and {document} was printed", last.path);
}

/// Removes line breaks and columns from a text, as tables and long sentences are wrapped.
pub fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Removes the numbers as well, as progress changes between two commands.
pub fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for part in flat(text).split_inclusive(|c: char| !c.is_ascii_digit()) {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out
}

/// Checks that the text contains the names, states and sentences of the JSON.
fn text_contains_json(context: &str, document: &Value, text: &str) {
    let mut wanted = Vec::new();
    for list in ["arrays", "pools", "volumes", "snapshots", "exports", "replicated", "replicas", "nodes"] {
        for one in document[list].as_array().into_iter().flatten() {
            let is_with_state = matches!(list, "arrays" | "replicated" | "replicas" | "nodes");
            wanted.extend(one["name"].as_str());
            wanted.extend(one["state"].as_str().filter(|_| is_with_state));
            wanted.extend(one["redundancy"]["health"].as_str().filter(|health| *health != "whole"));
        }
    }
    wanted.extend(document["name"].as_str());
    wanted.extend(document["redundancy"]["health"].as_str());
    for one in document["attention"].as_array().into_iter().flatten() {
        wanted.extend(one.as_str());
        wanted.extend(["subject", "message", "remedy"].iter().filter_map(|part| one[*part].as_str()));
        wanted.extend(one["commands"].as_array().into_iter().flatten().filter_map(Value::as_str));
    }
    let plain = without_numbers(text);
    for word in wanted {
        let is_contained =
            if word.contains('%') { plain.contains(&without_numbers(word)) } else { text.contains(&flat(word)) };
        assert!(is_contained, "{context}: {word:?} of the JSON is missing in the text: {text}");
    }
}

/// Fills an object's names into a template.
fn typed(walk: &mut Walk, template: &str, object: &Object) -> String {
    let mut text = template.replace("{}", &object.name).replace("{member}", &object.member);
    if text.contains("{disk}") {
        text = text.replace("{disk}", &walk.disk());
    }
    let number = walk.number();
    let socket = walk.daemon.folder.join(&format!("s{number}.nbd"));
    text.replace("{new}", &format!("n{number}")).replace("{path}", &socket)
}

fn walk(kind: &str) {
    let mut walk = Walk::new();
    let commands = COMMANDS.iter().find(|(of, _)| *of == kind).expect("commands").1;
    let states = STATES.iter().find(|(of, _)| *of == kind).expect("states").1;
    for state in states {
        let mut object = walk.make(kind, state);
        walk.assert_consistent(kind, &object, state);
        let has_member = !object.member.is_empty();
        for template in commands.iter().filter(|template| has_member || !template.contains("{member}")) {
            let typed = typed(&mut walk, template, &object);
            if walk.check(&format!("{kind} {state}"), &typed) {
                walk.assert_consistent(kind, &object, &format!("{state}, after {typed}"));
                object = walk.make(kind, state);
            }
        }
    }
    let CommandChecker { done, refused, .. } = walk.checker;
    assert!(done > 10 && refused > 2, "{done} carried out, {refused} refused");
}

#[test]
fn every_command_agrees_about_arrays_in_every_state() {
    walk("array");
}

#[test]
fn every_command_agrees_about_pools_in_every_state() {
    walk("pool");
}

#[test]
fn every_command_agrees_about_volumes_in_every_state() {
    walk("volume");
}

#[test]
fn every_command_agrees_about_snapshots_and_exports_in_every_state() {
    walk("snapshot");
    walk("export");
}

#[test]
fn every_command_agrees_about_jobs_in_every_state() {
    let mut walk = Walk::new();
    for before in ["", "job pause", "job cancel"] {
        let (mut job, mut array) = walk.job();
        let prepare = |walk: &Walk, job: &str| {
            if !before.is_empty() {
                let arguments: Vec<&str> = before.split(' ').chain([job]).collect();
                walk.daemon.braid(&arguments);
            }
        };
        prepare(&walk, &job);
        for template in JOBS.iter().filter(|template| !template.contains("watch") || before == "job cancel") {
            let typed = template.replace("{}", &job).replace("{array}", &array);
            if walk.check(&format!("job after {before:?}"), &typed) {
                (job, array) = walk.job();
                prepare(&walk, &job);
            }
        }
    }
}

/// Every command is in this test or in the list of exceptions.
#[test]
fn every_command_is_covered() {
    let daemon = Daemon::start();
    let all: Value = serde_json::from_str(&daemon.braid(&["schema"])).expect("it is JSON");
    let plain = |command: &&String| !command.contains(" --");
    let all = all["commands"].as_object().expect("commands").keys();
    let all: BTreeSet<String> = all.filter(plain).cloned().collect();
    let templates = COMMANDS.iter().flat_map(|(_, commands)| commands.iter().copied()).chain(JOBS);
    let templates = templates.chain(every_state_cluster::templates());
    let templates = templates.chain(every_state_nodes::templates()).chain(every_state_mounts::templates());
    let is_of = |template: &str, command: &str| template == command || template.starts_with(&format!("{command} "));
    let templates: Vec<&str> = templates.collect();
    for command in &all {
        let walked = templates.iter().any(|template| is_of(template, command));
        let left_out = LEFT_OUT.iter().any(|(name, _)| name == command);
        assert!(walked != left_out, "{command}: walked {walked}, left out {left_out}");
    }
}
