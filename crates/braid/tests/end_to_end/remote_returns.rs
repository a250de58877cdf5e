//! Servers of disks that come back: their members return by themselves, unless nobody can know what the servers may do yet.

use crate::remote_disks::{Server, succeeds, writer, written};
use crate::support::*;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

fn state(daemon: &Daemon) -> String {
    daemon.json(&["array", "show", "data"])["members"][1]["state"].as_str().expect("a state").to_owned()
}

fn mirror(daemon: &Daemon, server: &Server) -> String {
    let local = daemon.folder.sparse("local", 40 * MIB);
    daemon.array("data", "raid1", &[&local, &server.uri()])
}

/// Of a member's file, what its array holds.
fn content(file: &str) -> Vec<u8> {
    let mut data = vec![0; 24 * MIB as usize];
    File::open(file).expect("a file").read_exact_at(&mut data, MIB).expect("it is that long");
    data
}

#[test]
fn a_member_returns_with_its_server() {
    let mut daemon = Daemon::start();
    let mut server = Server::start(&daemon.folder, "server", 40 * MIB);
    let uri = mirror(&daemon, &server);
    let mut fio = writer(&daemon.folder, &uri);
    for _ in 0..2 {
        let before = written(&daemon);
        wait_for("data to flow", || (written(&daemon) > before + MIB || fio.ended().is_some()).then_some(()));
        assert!(fio.ended().is_none(), "it was over before");
        server.running.kill();
        wait_for("the member to be left out", || (state(&daemon) == "out").then_some(()));
        server.start_again(&daemon.folder);
        wait_for("the member to return", || (state(&daemon) == "in_sync").then_some(()));
    }
    succeeds(fio);
    daemon.stop();
    assert!(content(&daemon.folder.join("local")) == content(&server.file), "both hold the same");
}

#[test]
fn a_member_that_was_left_out_by_command_or_with_writes_under_way_stays_out() {
    let daemon = Daemon::start();
    let server = Server::start(&daemon.folder, "server", 40 * MIB);
    let uri = mirror(&daemon, &server);
    daemon.braid(&["array", "fail", "data", "1"]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(state(&daemon), "out");
    daemon.braid(&["array", "add", "data", &server.uri()]);
    wait_for("the member to be filled", || (state(&daemon) == "in_sync").then_some(()));
    let fio = writer(&daemon.folder, &uri);
    let before = written(&daemon);
    wait_for("data to flow", || (written(&daemon) > before + MIB).then_some(()));
    server.running.signal(Signal::STOP);
    wait_for("the member to be left out", || (state(&daemon) == "out").then_some(()));
    server.running.signal(Signal::CONT);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(state(&daemon), "out");
    succeeds(fio);
}

#[test]
fn an_array_that_waits_for_a_server_starts_with_it() {
    let mut daemon = Daemon::start();
    // The daemon looks at the files beside its disks: it would find the labels there.
    let far = Folder::new();
    let mut server = Server::start(&far, "server", 40 * MIB);
    let local = daemon.folder.sparse("local", 24 * MIB);
    daemon.array("data", "raid0", &[&server.uri(), &local]);
    let mut other = Server::start(&far, "other", 40 * MIB);
    daemon.array("alone", "concat", &[&other.uri()]);
    daemon.stop();
    server.running.kill();
    other.running.kill();
    daemon.start_again();
    let serves = |daemon: &Daemon, array: &str| {
        let all = daemon.json(&["array", "list"]);
        let found = all["arrays"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|one| one["name"] == array && one["state"] == "active");
        found.then_some(())
    };
    assert_eq!((serves(&daemon, "data"), serves(&daemon, "alone")), (None, None));
    server.start_again(&far);
    other.start_again(&far);
    wait_for("the arrays to start", || serves(&daemon, "data").and(serves(&daemon, "alone")));
}
