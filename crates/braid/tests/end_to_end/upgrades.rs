//! `braid serve --upgrade`: the daemon becomes another build in its own process, and clients of its exports only wait.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::*;

/// Requests an upgrade to this program by the API alone. Returns the status and the body of the reply.
fn ask(socket: &str, binary: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    let body = serde_json::json!({ "binary": binary }).to_string();
    let head =
        format!("POST /v1/upgrade HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    (status, serde_json::from_str(body).expect("JSON"))
}

/// Waits until this upgrade is over, and returns its report.
fn over(daemon: &Daemon, number: u64) -> Value {
    wait_for("the upgrade", || {
        let upgrade = daemon.try_json(&["status"]).ok()?["upgrade"].clone();
        (upgrade["number"] == number && upgrade["pause_ms"].is_u64()).then_some(upgrade)
    })
}

/// A loop device on a file.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.0]).output();
    }
}

/// Connects and reads an NBD server's greeting, again and again. A connection is never refused: it waits while no
/// daemon accepts it. Returns the number of greetings.
fn greetings(mut connect: impl FnMut() -> std::io::Result<Box<dyn std::io::Read>>, over: &AtomicBool) -> u64 {
    let mut received = 0;
    while !over.load(Ordering::Relaxed) {
        let mut stream = connect().expect("the address is listened on at every moment");
        let mut hello = [0; 8];
        // Connections accepted just before the switch are cut off, and tried again.
        received += u64::from(stream.read_exact(&mut hello).is_ok_and(|()| &hello == b"NBDMAGIC"));
        std::thread::sleep(Duration::from_millis(2));
    }
    received
}

#[test]
fn clients_of_an_export_wait_while_the_daemon_is_upgraded() {
    need_root();
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("a.img", 512 << 20);
    daemon.braid(&["pool", "create", "tank", &disk, "--yes"]);
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    let file = daemon.folder.join("db");
    daemon.braid(&["export", "add", "tank/db", "--fuse", &file, "--name", "file"]);
    let socket = daemon.nbd_socket("db");
    daemon.braid(&["export", "add", "tank/db", "--nbd", &format!("unix:{socket}"), "--name", "db", "--read-only"]);
    let port = daemon.export_tcp("tank/db", "tcp");
    let device = Loop(run("losetup", &["--find", "--show", "--direct-io=on", &file]).trim().to_owned());
    let mut fio = command("fio");
    fio.args(["--name=v", "--rw=randwrite", "--bs=4k", "--iodepth=16", "--ioengine=libaio", "--direct=1"]);
    fio.args(["--size=48M", "--io_size=48M", "--rate_iops=6000", "--verify=crc32c", "--do_verify=1"]);
    fio.args(["--verify_state_save=0", &format!("--filename={}", device.0)]);
    let mut fio = Running::start(&daemon.folder, "fio", &mut fio);
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let at_path = std::thread::spawn(move || greetings(|| Ok(Box::new(UnixStream::connect(&socket)?)), &seen));
    let seen = Arc::clone(&over);
    let at_port =
        std::thread::spawn(move || greetings(|| Ok(Box::new(TcpStream::connect(("127.0.0.1", port))?)), &seen));
    for number in 1..=3 {
        std::thread::sleep(Duration::from_millis(300));
        assert!(fio.ended().is_none(), "it writes while the daemon is upgraded: {}", fio.log());
        let done = daemon.json(&["serve", "--upgrade"]);
        assert_eq!((done["number"].as_u64(), &done["failed"]), (Some(number), &Value::Null), "{done}");
        assert_eq!(daemon.json(&["status"])["pid"].as_u64(), Some(daemon.running.id().into()), "the process stays");
    }
    assert!(fio.wait().success(), "no write failed, and all is there: {}", fio.log());
    over.store(true, Ordering::Relaxed);
    for client in [at_path, at_port] {
        assert!(client.join().expect("no connection was refused") > 3);
    }
    let longest =
        fio.log().lines().filter(|line| line.contains("clat (")).map(str::trim).collect::<Vec<_>>().join("; ");
    println!("{}; fio: {longest}", daemon.json(&["status"])["upgrade"]);
    assert!(daemon.running.log().contains("was taken over"), "{}", daemon.running.log());
    drop(device);
    daemon.braid(&["export", "remove", "file"]);
    assert!(!fs::read_to_string("/proc/mounts").expect("mounts can be read").contains(&file));
}

#[test]
fn an_upgrade_that_would_not_start_is_refused_without_a_stop() {
    let daemon = Daemon::start();
    let api = daemon.folder.join("api.sock");
    let disks = [daemon.folder.sparse("a.img", 24 << 20), daemon.folder.sparse("b.img", 24 << 20)];
    daemon.array("safe", "raid1", &[&disks[0], &disks[1]]);
    let file = |name: &str, mode: u32| {
        let path = daemon.folder.join(name);
        // Copied by another process: a file that this process has open for writing may be inherited by another test's
        // child for a moment, and cannot be executed then.
        run("cp", &[BRAID, &path]);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode can be set");
        path
    };
    let open = file("open", 0o757);
    for (binary, status, word) in [
        ("/bin/true", 400, "is not that of a Braid that supports upgrades"),
        ("/bin/false", 400, "would not start here"),
        ("/dev/null", 400, "is no program"),
        ("bin/braid", 400, "from the root"),
        ("/not/there", 404, "cannot be opened"),
        (open.as_str(), 403, "may change"),
    ] {
        let (found, answer) = ask(&api, binary);
        assert!(found == status && answer.to_string().contains(word), "{binary}: {found} {answer}");
    }
    // A valid program, with an invalid configuration.
    fs::write(daemon.folder.join("braid.toml"), "shard = 3\n").expect("a file can be written");
    let refused = daemon.refused_any(&["serve", "--upgrade"]);
    assert!(refused.contains("no such key"), "{refused}");
    fs::write(daemon.folder.join("braid.toml"), "").expect("a file can be written");
    assert_eq!(daemon.json(&["status"])["upgrade"], Value::Null, "nothing has happened");
    // Background work continues in the new build; of two concurrent requests one comes first.
    let slow = format!("throttled({},bw=4M)", daemon.folder.sparse("c.img", 24 << 20));
    daemon.braid(&["array", "replace", "safe", "1", &slow, "--no-wait"]);
    let asking = || {
        let api = api.clone();
        std::thread::spawn(move || ask(&api, BRAID))
    };
    let both = [asking(), asking()].map(|asking| asking.join().expect("it was answered"));
    let begun = both.iter().filter(|(status, _)| *status == 200).count() as u64;
    assert!(begun >= 1 && both.iter().all(|(status, _)| [200, 409].contains(status)), "{both:?}");
    let done = over(&daemon, begun);
    assert_eq!(done["failed"], Value::Null);
    wait_for("the disk to be filled", || {
        (daemon.json(&["array", "show", "safe"])["members"][1]["disk"] == slow.as_str()
            && daemon.json(&["status"])["attention"].as_array()?.is_empty())
        .then_some(())
    });
    // A program that became unexecutable after its check: the daemon executes its own build again.
    let fickle = file("fickle", 0o755);
    let (status, answer) = ask(&api, &fickle);
    assert_eq!(status, 200, "{answer}");
    fs::set_permissions(&fickle, fs::Permissions::from_mode(0o644)).expect("its mode can be set");
    let number = answer["number"].as_u64().expect("a number");
    let done = over(&daemon, number);
    // The upgrade may have been faster than the change.
    assert!(done["failed"] == Value::Null || done["failed"].to_string().contains("fickle cannot be run"), "{done}");
    assert_eq!(daemon.json(&["status"])["pid"].as_u64(), Some(daemon.running.id().into()));
    assert_eq!(daemon.json(&["array", "show", "safe"])["state"], "active");
}
