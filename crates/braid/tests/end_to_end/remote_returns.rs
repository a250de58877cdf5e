//! Disk servers that come back: their members return by themselves, unless the server may still carry out writes of unknown outcome.

use crate::nbd::Client;
use crate::remote_disks::{Server, succeeds, writer, written};
use crate::support::*;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

fn state(daemon: &Daemon) -> String {
    daemon.json(&["array", "show", "data"])["members"][1]["state"].as_str().expect("a state").to_owned()
}

fn mirror(daemon: &Daemon, server: &Server) -> String {
    let local = daemon.folder.sparse("local", 40 * MIB);
    daemon.array("data", "raid1", &[&local, &server.uri()])
}

/// Returns the array data in a member's file.
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
        wait_for("the member to be left out", || (state(&daemon) == "failed").then_some(()));
        server.start_again(&daemon.folder);
        wait_for("the member to return", || (state(&daemon) == "in_sync").then_some(()));
    }
    succeeds(fio);
    daemon.stop();
    assert!(content(&daemon.folder.join("local")) == content(&server.file), "both hold the same");
}

#[test]
fn a_member_failed_by_command_or_with_writes_in_flight_stays_failed() {
    let daemon = Daemon::start();
    let server = Server::start(&daemon.folder, "server", 40 * MIB);
    mirror(&daemon, &server);
    daemon.braid(&["array", "fail", "data", "1"]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(state(&daemon), "failed");
    daemon.braid(&["array", "add", "data", &server.uri()]);
    wait_for("the member to be filled", || (state(&daemon) == "in_sync").then_some(()));
    // Only writes, to a region that is dirty already: flushes and reads leave nothing that the server could still do.
    let done = AtomicBool::new(false);
    let socket = daemon.nbd_socket("data");
    let write = || {
        let mut client = Client::open(&socket, "data").expect("the export is served");
        let mut writes = 0;
        while !done.load(Relaxed) {
            client.write(0, &noise(4096, writes)).expect("it is written");
            writes += 1;
        }
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(write);
        let before = written(&daemon);
        wait_for("data to flow", || (written(&daemon) > before + MIB).then_some(()));
        server.running.signal(Signal::STOP);
        wait_for("the member to be left out", || (state(&daemon) == "failed").then_some(()));
        server.running.signal(Signal::CONT);
        std::thread::sleep(Duration::from_secs(4));
        let events = daemon.braid(&["events"]).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(state(&daemon), "failed", "{events}");
        assert!(events.contains("did not answer writes in time"), "{events}");
        done.store(true, Relaxed);
        writer.join().expect("all its writes were answered");
    });
}

/// A member whose reads have failed before, and were served by the other member, stays failed when a command failed it.
#[test]
fn a_member_with_errors_that_was_failed_by_command_stays_failed() {
    let daemon = Daemon::start();
    let file = daemon.folder.sparse("server.img", 40 * MIB);
    let (socket, trigger) = (daemon.folder.join("server.sock"), daemon.folder.join("fails"));
    let mut nbdkit = command("nbdkit");
    nbdkit.args(["-f", "-U", &socket, "--filter=error", "file", &file, "error-pread=EIO", "error-pread-rate=100%"]);
    nbdkit.arg(format!("error-file={trigger}"));
    let _server = Running::start(&daemon.folder, "server", &mut nbdkit);
    wait_for("nbdkit's socket", || std::fs::metadata(&socket).ok());
    let local = daemon.folder.sparse("local", 40 * MIB);
    daemon.array("data", "raid1", &[&local, &format!("nbd+unix:///?socket={socket}")]);
    let exported = daemon.nbd_socket("data");
    let mut client = Client::open(&exported, "data").expect("the export is served");
    client.write(0, &noise(1 << 20, 1)).expect("it is written");
    client.flush().expect("it is durable");
    std::fs::write(&trigger, "").expect("it can be written");
    let errors = || daemon.json(&["array", "show", "data"])["members"][1]["stats"]["errors"].as_u64().unwrap_or(0);
    wait_for("a read to fail", || {
        for block in 0..64 {
            client.read(block * 4096, 4096).expect("the other has it");
        }
        (errors() > 0 || state(&daemon) == "failed").then_some(())
    });
    std::fs::remove_file(&trigger).expect("it can be removed");
    assert_eq!(state(&daemon), "in_sync", "an error that was repaired is no reason to leave it out");
    daemon.braid(&["array", "fail", "data", "1"]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(state(&daemon), "failed", "{}", daemon.braid(&["events"]));
}

#[test]
fn an_array_that_waits_for_a_server_starts_with_it() {
    let mut daemon = Daemon::start();
    // The daemon scans the folders of its disks: in the same folder it would find the labels.
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
