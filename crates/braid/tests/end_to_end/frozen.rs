//! Snapshots of mounted file systems: frozen while the snapshot is taken, thawed after any failure, and mountable with
//! the right options.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::replicated::Cluster;
use crate::support::*;

/// A daemon with a pool, and two mount points. Dropping it thaws and unmounts what is left.
struct Rig {
    daemon: Daemon,
    at: String,
    beside: String,
}

impl Rig {
    fn new() -> Rig {
        need_root();
        let daemon = Daemon::start();
        let disk = daemon.folder.sparse("a.img", 3 << 30);
        daemon.braid(&["pool", "create", "tank", &disk, "--yes"]);
        let [at, beside] = ["at", "beside"].map(|name| daemon.folder.join(name));
        fs::create_dir(&at).and_then(|()| fs::create_dir(&beside)).expect("folders can be made");
        Rig { daemon, at, beside }
    }

    /// Creates a volume with a mounted file system.
    fn with(kind: &str) -> Rig {
        let rig = Rig::new();
        rig.daemon.braid(&["volume", "create", "tank/db", "512M"]);
        rig.daemon.braid(&["mount", "tank/db", &rig.at, "--mkfs", "--fs", kind]);
        rig
    }

    /// Mounts a snapshot by its name alone. Returns the file's content and the mount's JSON.
    fn content(&self, snapshot: &str, file: &str) -> (Option<Vec<u8>>, Value) {
        let mounted = self.daemon.json(&["mount", snapshot, &self.beside]);
        let content = fs::read(format!("{}/{file}", self.beside)).ok();
        self.daemon.braid(&["umount", &self.beside]);
        (content, mounted)
    }

    fn consistency(&self, snapshot: &str) -> String {
        let shown = self.daemon.json(&["snapshot", "show", snapshot]);
        shown["consistency"].as_str().expect("it is a word").to_owned()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for at in [&self.at, &self.beside] {
            if fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(at)) {
                let _ = command("fsfreeze").args(["--unfreeze", at]).output();
                // Removes the device and the export with it, where the daemon still can.
                if !self.daemon.any(&["umount", at]).status.success() {
                    let _ = command("umount").args(["-l", at]).output();
                }
            }
        }
    }
}

/// Returns whether a file system is frozen, by trying to freeze it: a write to a frozen one would block forever.
fn is_frozen(at: &str) -> bool {
    let out = run_any("fsfreeze", &["--freeze", at]);
    if out.status.success() {
        run("fsfreeze", &["--unfreeze", at]);
        return false;
    }
    assert!(said(&out).contains("busy"), "{}", said(&out));
    true
}

fn wait_for_thaw(at: &str) {
    wait_for("the thaw", || (!is_frozen(at)).then_some(()));
}

#[test]
fn a_snapshot_of_a_mounted_file_system_has_all_writes_and_mounts_by_its_name() {
    for (kind, option) in [("ext4", "noload"), ("xfs", "norecovery"), ("btrfs", "rescue=nologreplay")] {
        let rig = Rig::with(kind);
        let (daemon, at) = (&rig.daemon, rig.at.as_str());
        let file = |name: &str| format!("{at}/{name}");
        // No process flushes anything.
        let one = noise(3 << 20, 1);
        fs::write(file("one"), &one).expect("it can be written");
        let taken = daemon.json(&["snapshot", "create", "tank/db@one"]);
        assert_eq!(taken["snapshots"][0]["consistency"], "frozen", "{kind}: {taken}");
        assert_eq!((&taken["frozen"][0], &taken["not_frozen"]), (&at.into(), &Value::Array(Vec::new())), "{taken}");
        assert!(!is_frozen(at), "{kind}");
        let (content, mounted) = rig.content("tank/db@one", "one");
        assert!(content == Some(one), "{kind}: the file is not whole: {mounted}");
        // The file system's log needs a replay that a read-only device does not allow. It is tested with a flushed file
        // and with one in the page cache.
        fs::write(file("two"), noise(1 << 20, 2)).expect("it can be written");
        fs::File::open(file("two")).and_then(|two| two.sync_all()).expect("it can be flushed");
        fs::write(file("three"), noise(1 << 20, 3)).expect("it can be written");
        let text = daemon.braid(&["snapshot", "create", "tank/db@two", "--no-freeze"]);
        assert_eq!(text, "created snapshot tank/db@two (crash-consistent)\n");
        let (_, mounted) = rig.content("tank/db@two", "two");
        let options = mounted["options"].as_str().expect("a text");
        assert!(options.split(',').any(|one| one == option), "{kind}: {mounted}");
        // An option that the user gives already is not added twice.
        let own = daemon.json(&["mount", "tank/db@two", &rig.beside, "-o", &format!("noatime,{option}")]);
        let options = own["options"].as_str().expect("a text");
        assert_eq!((options.matches(option).count(), options.contains("noatime")), (1, true), "{own}");
        daemon.braid(&["umount", &rig.beside]);
        assert_eq!((rig.consistency("tank/db@one"), rig.consistency("tank/db@two")), ("frozen".into(), "crash".into()));
    }
}

#[test]
fn each_snapshot_reports_its_consistency_also_after_a_restart() {
    let mut rig = Rig::with("ext4");
    rig.daemon.braid(&["volume", "create", "tank/raw", "64M"]);
    let text = rig.daemon.braid(&["snapshot", "create", "tank/raw@a", "tank/db@a"]);
    let frozen = format!("created snapshot tank/db@a (the file system at {} was frozen)\n", rig.at);
    assert!(text.contains(&frozen) && text.contains("created snapshot tank/raw@a (crash-consistent)\n"), "{text}");
    // By UUIDs it is the same volume; a policy's snapshot is crash-consistent.
    let uuid = rig.daemon.json(&["volume", "show", "tank/db"])["uuid"].as_str().expect("one").to_owned();
    let taken = rig.daemon.json(&["snapshot", "create", &format!("tank/{uuid}@b")]);
    assert_eq!(taken["snapshots"][0]["consistency"], "frozen", "{taken}");
    rig.daemon.braid(&["snapshot", "policy", "tank/db", "--every", "1h", "--keep", "2"]);
    let automatic = wait_for("a snapshot of the policy", || {
        let list = rig.daemon.json(&["snapshot", "list", "tank/db"]);
        let all = list["snapshots"].as_array().expect("a list").clone();
        all.into_iter().find(|one| one["name"].as_str().is_some_and(|name| name.contains("@auto-")))
    });
    assert_eq!(automatic["consistency"], "crash", "{automatic}");
    // A snapshot of an unmounted volume needs no freeze.
    rig.daemon.braid(&["umount", &rig.at]);
    let text = rig.daemon.braid(&["snapshot", "create", "tank/db@c"]);
    assert_eq!(text, "created snapshot tank/db@c (crash-consistent)\n");
    rig.daemon.braid(&["snapshot", "rename", "tank/db@b", "d"]);
    rig.daemon.restart(true);
    let known = ["tank/db@a", "tank/raw@a", "tank/db@d", "tank/db@c"].map(|name| rig.consistency(name));
    assert_eq!(known, ["frozen", "crash", "frozen", "crash"]);
    let list = rig.daemon.braid(&["snapshot", "list", "tank/db"]);
    assert!(list.contains("FROZEN") && list.contains(" yes "), "{list}");
}

#[test]
fn a_file_system_behind_another_device_is_frozen_when_named() {
    let rig = Rig::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    daemon.braid(&["volume", "create", "tank/db", "128M"]);
    let file = daemon.folder.join("file");
    daemon.braid(&["export", "add", "tank/db", "--fuse", &file]);
    run("mkfs.ext4", &["-q", "-F", &file]);
    // A device upon the device, as encryption creates: nothing links the mount to the export.
    let attach = |on: &str| run("losetup", &["--find", "--show", on]).trim().to_owned();
    let lower = attach(&file);
    let upper = attach(&lower);
    run("mount", &[&upper, at]);
    fs::create_dir(format!("{at}/sub")).expect("it can be made");
    fs::write(format!("{at}/file"), "written").expect("it can be written");
    let crash = daemon.json(&["snapshot", "create", "tank/db@a", "--no-freeze"]);
    assert_eq!(crash["snapshots"][0]["consistency"], "crash", "{crash}");
    // Any folder of the file system names it.
    let taken = daemon.json(&["snapshot", "create", "tank/db@b", "--freeze", &format!("{at}/sub")]);
    assert_eq!(taken["snapshots"][0]["consistency"], "frozen", "{taken}");
    assert!(!is_frozen(at));
    let (content, _) = rig.content("tank/db@b", "file");
    assert_eq!(content.as_deref(), Some(&b"written"[..]));
    // A file system that cannot be frozen, or is not the daemon's to thaw: a snapshot that requires the freeze is refused.
    let refused = daemon.refused(3, &["snapshot", "create", "tank/db@c", "--freeze", "/not/there"]);
    assert!(refused.contains("/not/there"), "{refused}");
    let refused = daemon.refused_any(&["snapshot", "create", "tank/db@c", "--freeze", at, "--freeze", "/proc"]);
    assert!(refused.contains("/proc cannot be frozen") && refused.contains("--no-freeze"), "{refused}");
    assert!(!is_frozen(at), "the other one is thawed");
    // The file system with the daemon's state and disks: the daemon would wait for itself.
    let own = daemon.folder.path().to_str().expect("a path in UTF-8");
    let refused = daemon.refused(2, &["snapshot", "create", "tank/db@c", "--freeze", own]);
    assert!(refused.contains("which the daemon writes to"), "{refused}");
    run("fsfreeze", &["--freeze", at]);
    let refused = daemon.refused(4, &["snapshot", "create", "tank/db@c", "--freeze", at]);
    assert!(refused.contains("is frozen already"), "{refused}");
    assert!(is_frozen(at), "what another process froze stays frozen");
    run("fsfreeze", &["--unfreeze", at]);
    daemon.refused(3, &["snapshot", "show", "tank/db@c"]);
    // A refused snapshot leaves nothing frozen.
    daemon.refused_any(&["snapshot", "create", "tank/db@b", "--freeze", at]);
    assert!(!is_frozen(at));
    run("umount", &[at]);
    run("losetup", &["--detach", &upper]);
    run("losetup", &["--detach", &lower]);
    wait_for("the end of the export", || daemon.any(&["export", "remove", "tank/db"]).status.success().then_some(()));
}

#[test]
fn a_snapshot_without_a_freeze_reports_the_reason() {
    let rig = Rig::with("ext4");
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    run("fsfreeze", &["--freeze", at]);
    let text = daemon.braid(&["snapshot", "create", "tank/db@a"]);
    assert!(text.contains("(crash-consistent, as the file system at") && text.contains("is frozen already"), "{text}");
    assert!(is_frozen(at));
    run("fsfreeze", &["--unfreeze", at]);
    assert_eq!(rig.consistency("tank/db@a"), "crash");
}

/// A proxy between a command and the daemon, which holds back snapshot requests.
struct Relay {
    socket: String,
    seen: Receiver<()>,
    go: Sender<()>,
}

impl Relay {
    fn start(daemon: &Daemon) -> Relay {
        let (socket, to) = (daemon.folder.join("relay.sock"), daemon.folder.join("api.sock"));
        let listener = UnixListener::bind(&socket).expect("a socket can be made");
        let (says, seen) = channel();
        let (go, waits) = channel();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                pass(client, &to, &says, &waits);
            }
        });
        Relay { socket, seen, go }
    }

    /// Starts a snapshot command and waits until its request reaches the proxy.
    fn begin(&self, daemon: &Daemon, arguments: &[&str]) -> Running {
        let name = arguments.iter().map(|argument| argument.replace('/', "-")).collect::<String>();
        let mut command = daemon.command(&["snapshot", "create", "--json"]);
        command.args(arguments).env("BRAID_SOCKET", &self.socket);
        let running =
            Running::start_apart(&daemon.folder, &name, &mut command, &daemon.folder.join(&format!("{name}.out")));
        self.seen.recv().expect("the relay is there");
        running
    }

    fn go_on(&self) {
        self.go.send(()).expect("the relay is there");
    }
}

/// Connects to the daemon and copies its replies to the client.
fn connect(to: &str, client: &UnixStream) -> UnixStream {
    let server = UnixStream::connect(to).expect("the daemon is there");
    let twice = |socket: &UnixStream| socket.try_clone().expect("a socket can be had twice");
    let (mut back, mut down) = (twice(&server), twice(client));
    thread::spawn(move || std::io::copy(&mut back, &mut down));
    server
}

/// Forwards requests, one connection after the other.
fn pass(mut client: UnixStream, to: &str, says: &Sender<()>, waits: &Receiver<()>) {
    let mut server = connect(to, &client);
    let mut bytes = [0; 64 << 10];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        if bytes.starts_with(b"POST /v1/snapshots ") {
            if says.send(()).is_err() || waits.recv().is_err() {
                break;
            }
            // The daemon closes connections that are idle for long.
            server = connect(to, &client);
        }
        if server.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}

/// Returns the guard process of a command.
fn guard(of: &Running) -> rustix::process::Pid {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", of.id())).expect("it runs");
    let guard = children.split_whitespace().next().expect("it has a guard").parse().expect("a number");
    let line = fs::read_to_string(format!("/proc/{guard}/cmdline")).expect("it runs");
    assert!(line.contains("freeze-guard"), "{line:?}");
    rustix::process::Pid::from_raw(guard).expect("no 0")
}

#[test]
fn nothing_stays_frozen_after_any_kill() {
    let rig = Rig::with("ext4");
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    let relay = Relay::start(daemon);
    // Kills the command in the middle.
    for (signal, name) in [(Signal::KILL, "tank/db@killed"), (Signal::INT, "tank/db@interrupted")] {
        let mut command = relay.begin(daemon, &[name]);
        assert!(is_frozen(at));
        command.signal(signal);
        command.wait();
        wait_for_thaw(at);
        relay.go_on();
    }
    // The snapshot of a killed command exists nevertheless, and is not reported as frozen.
    wait_for("the snapshot", || daemon.try_json(&["snapshot", "show", "tank/db@killed"]).ok());
    assert_eq!(rig.consistency("tank/db@killed"), "crash");
    // Kills the guard: the command thaws. Terminates the guard: the guard thaws.
    for (signal, name) in [(Signal::KILL, "tank/db@one"), (Signal::TERM, "tank/db@two")] {
        let mut command = relay.begin(daemon, &[name]);
        assert!(is_frozen(at));
        rustix::process::kill_process(guard(&command), signal).expect("it runs");
        relay.go_on();
        assert!(command.wait().success(), "{}", command.log());
        assert!(!is_frozen(at), "{signal:?}");
        assert_eq!(rig.consistency(name), "crash", "{signal:?}");
    }
    // The daemon dies during the request.
    let mut command = relay.begin(daemon, &["tank/db@three", "--freeze", at]);
    assert!(is_frozen(at));
    fs::remove_file(&relay.socket).expect("it is there");
    drop(relay);
    assert!(!command.wait().success());
    assert!(!is_frozen(at));
    fs::write(Path::new(at).join("file"), "all is well").expect("it can be written");
}

#[test]
fn a_freeze_that_takes_too_long_is_thawed_and_not_reported_as_frozen() {
    let rig = Rig::with("xfs");
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    let relay = Relay::start(daemon);
    for (name, more, status) in [("tank/db@a", None, 0), ("tank/db@b", Some(["--freeze", at]), 5)] {
        let mut arguments = vec![name];
        arguments.extend(more.into_iter().flatten());
        let mut command = relay.begin(daemon, &arguments);
        assert!(is_frozen(at));
        // The guard's time limit.
        wait_for_thaw(at);
        relay.go_on();
        assert_eq!(command.wait().code(), Some(status), "{}", command.log());
        assert_eq!(rig.consistency(name), "crash");
    }
}

#[test]
fn a_snapshot_of_a_replicated_volume_reports_its_consistency() {
    need_root();
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let folder = Folder::new();
    let (image, at) = (folder.sparse("fs.img", 64 << 20), folder.join("at"));
    fs::create_dir(&at).expect("a folder can be made");
    run("mkfs.ext4", &["-q", "-F", &image]);
    run("mount", &["-o", "loop", &image, &at]);
    let taken = cluster.nodes[0].json(&["snapshot", "create", "db@a", "--freeze", &at]);
    cluster.nodes[0].braid(&["snapshot", "create", "db@b"]);
    run("umount", &["-d", &at]);
    assert_eq!(taken["snapshots"][0]["consistency"], "frozen", "{taken}");
    cluster.nodes[0].restart(true);
    let consistency = |name: &str| {
        let shown = cluster.nodes[0].try_json(&["snapshot", "show", name]).ok()?;
        Some(shown["consistency"].as_str()?.to_owned())
    };
    assert_eq!(wait_for("the snapshot", || consistency("db@a")), "frozen");
    assert_eq!(consistency("db@b").as_deref(), Some("crash"));
}
