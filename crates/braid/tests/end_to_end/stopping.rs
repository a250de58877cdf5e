//! The daemon stops in bounded time, whatever hangs; and it ends when it cannot go on.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::nbd::{self, Client};
use crate::support::*;

/// Upper limit of a stop. The daemon's own waits add up to half of it; a service manager kills after 45 s.
const ENDED: Duration = Duration::from_secs(45);

/// Returns whether the label of the disk records a clean stop of its array.
#[track_caller]
fn is_clean(disk: &str) -> bool {
    let text = run(BRAID, &["disk", "examine", disk, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let clean = find(&json, "clean").unwrap_or_else(|| panic!("no field `clean`: {text}"));
    match clean["value"].to_string().trim_matches('"') {
        "1" | "yes" | "true" => true,
        "0" | "no" | "false" => false,
        other => panic!("neither clean nor not: {other}"),
    }
}

/// Returns the first field of this name, at any depth.
fn find<'a>(json: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    match json {
        serde_json::Value::Object(map) => map.get(name).or_else(|| map.values().find_map(|inner| find(inner, name))),
        serde_json::Value::Array(list) => list.iter().find_map(|inner| find(inner, name)),
        _ => None,
    }
}

#[test]
fn a_hanging_disk_is_named_and_left_open_while_others_are_closed_cleanly() {
    let mut daemon = Daemon::start();
    let bad = daemon.folder.sparse("bad", 64 * MIB);
    let good = daemon.folder.sparse("good", 64 * MIB);
    daemon.array("bad", "concat", &[&format!("faulty({bad},read-hang@24M-32M)")]);
    daemon.array("good", "concat", &[&good]);
    let mut stuck = Client::open(&daemon.nbd_socket("bad"), "bad").expect("it is served");
    stuck.send(0, nbd::READ, 25 * MIB, 4096, &[]).expect("sent");
    let mut other = Client::open(&daemon.nbd_socket("good"), "good").expect("it is served");
    other.write(0, &noise(64 * KIB, 1)).expect("it writes");

    daemon.running.terminate();
    let status = daemon.running.wait_within(ENDED);
    let log = daemon.running.log();
    assert_eq!(status.code(), Some(1), "something was left: {log}");
    assert!(log.contains(&bad) && log.contains("has not answered"), "{log}");
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(!errors.iter().any(|line| line.contains("array good")) && !log.contains("panicked"), "{log}");
    assert!(is_clean(&good), "a disk that answers is closed cleanly");
    assert!(!is_clean(&bad));
    // The next start succeeds.
    daemon.start_again();
    let mut other = Client::open(&daemon.nbd_socket("good"), "good").expect("it is served");
    assert_eq!(other.read(0, 64 * KIB as usize).expect("it reads"), noise(64 * KIB, 1));
    let mut bad = Client::open(&daemon.nbd_socket("bad"), "bad").expect("it is served");
    assert_eq!(bad.read(0, 4096).expect("the rest of the disk reads"), [0; 4096]);
}

#[test]
fn clients_that_do_not_read_their_replies_do_not_delay_a_stop() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 64 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let mut deaf = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    for _ in 0..8 {
        deaf.send(0, nbd::READ, 0, 8 * MIB as u32, &[]).expect("sent");
    }
    // An API client in the middle of its request.
    let mut slow = UnixStream::connect(daemon.folder.join("api.sock")).expect("the API listens");
    slow.write_all(b"POST /v1/arrays HTTP/1.1\r\nhost: braid\r\ncontent-length: 500\r\n\r\n{").expect("it is sent");
    // The requests have arrived once the daemon has read for them.
    wait_for("the reads", || {
        let members = daemon.json(&["array", "show", "data"])["members"].clone();
        (members[0]["stats"]["read_bytes"].as_u64()? >= 8 * MIB).then_some(())
    });
    daemon.running.terminate();
    let status = daemon.running.wait_within(ENDED);
    assert_eq!(status.code(), Some(0), "no disk is in the way: {}", daemon.running.log());
    assert!(is_clean(&disk));
    drop((deaf, slow));
}

#[test]
fn a_shard_that_panics_ends_the_daemon_and_is_named() {
    let folder = Folder::new();
    let disk = folder.sparse("disk", 32 * MIB);
    let mut command = serve(&folder, &["--shards".to_owned(), "2".to_owned()]);
    command.env("BRAID_DEBUG_PANIC_SHARD", "1");
    let mut daemon = Daemon::start_with(folder, &mut command);
    daemon.array("data", "concat", &[&disk]);
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    client.write(0, &noise(64 * KIB, 1)).expect("it writes");

    let pid = rustix::process::Pid::from_raw(daemon.running.id() as i32).expect("a process has an id");
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it runs");
    let status = daemon.running.wait_within(ENDED);
    assert_eq!(status.code(), Some(1), "{}", daemon.running.log());
    let log = daemon.running.log();
    assert!(log.contains("shard 1 has panicked: a test has requested it"), "{log}");
    // As after any crash: everything is there again.
    daemon.start_again();
    let mut client = wait_for("the export", || Client::open(&daemon.nbd_socket("data"), "data").ok());
    assert_eq!(client.read(0, 64 * KIB as usize).expect("it reads"), noise(64 * KIB, 1));
}

#[test]
fn the_limit_of_open_files_is_raised_and_a_low_one_is_reported() {
    let limited = |limits: &str| {
        let folder = Folder::new();
        let plain = serve(&folder, &[]);
        let mut command = command("prlimit");
        command
            .arg(format!("--nofile={limits}"))
            .arg("--")
            .arg(BRAID)
            .args(plain.get_args().skip_while(|a| *a != "serve"));
        places(&mut command, &folder);
        Daemon::start_with(folder, &mut command)
    };
    let mut daemon = limited("256:5000");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.running.id())).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("the kernel tells it");
    assert_eq!(line.split_whitespace().nth(3), Some("5000"), "{line}");
    assert!(!daemon.running.log().contains("files may be open"), "{}", daemon.running.log());
    daemon.stop();
    let mut daemon = limited("256:1024");
    let log = daemon.running.log();
    assert!(log.contains("only 1024 files may be open") && log.contains("LimitNOFILE"), "{log}");
    daemon.stop();
}

#[test]
fn a_hangup_does_not_end_the_daemon() {
    let mut daemon = Daemon::start();
    daemon.running.signal(rustix::process::Signal::HUP);
    wait_for("the signal to be taken", || daemon.running.log().contains("SIGHUP").then_some(()));
    daemon.json(&["status"]);
    assert!(daemon.running.ended().is_none());
    daemon.stop();
}
