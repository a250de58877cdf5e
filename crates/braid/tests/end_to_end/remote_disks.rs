//! Exports of other NBD servers as disks: nbdkit, and another Braid.

use crate::pools;
use crate::support::*;
use rustix::process::Signal;
use std::process::Command;

/// An NBD server that serves a file, and can be killed and started again.
pub struct Server {
    pub running: Running,
    pub socket: String,
    pub file: String,
}

fn nbdkit(socket: &str, file: &str) -> Command {
    // Removes the socket that a killed server leaves behind.
    let _ = std::fs::remove_file(socket);
    let mut nbdkit = command("nbdkit");
    nbdkit.args(["-f", "-U", socket, "file", file]);
    nbdkit
}

impl Server {
    pub fn start(folder: &Folder, name: &str, bytes: u64) -> Server {
        let (socket, file) = (folder.join(&format!("{name}.sock")), folder.sparse(&format!("{name}.img"), bytes));
        let running = Running::start(folder, name, &mut nbdkit(&socket, &file));
        wait_for("nbdkit's socket", || std::fs::metadata(&socket).ok());
        Server { running, socket, file }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }

    pub fn start_again(&mut self, folder: &Folder) {
        self.running = Running::start(folder, "again", &mut nbdkit(&self.socket, &self.file));
    }
}

/// Starts fio that writes and verifies, several times each block, for some seconds.
pub fn writer(folder: &Folder, uri: &str) -> Running {
    let mut fio = command("fio");
    fio.args(["--name=writer", "--ioengine=nbd", &format!("--uri={uri}"), "--rw=randwrite", "--iodepth=8"]);
    fio.args(["--bssplit=4k/70:16k/20:256k/10", "--size=24M", "--io_size=100M", "--rate_iops=2000"]);
    fio.args(["--norandommap", "--randseed=5", "--fsync=64", "--serialize_overlap=1", "--verify=crc32c"]);
    fio.args(["--verify_fatal=1", "--verify_state_save=0", "--verify_backlog=128", "--do_verify=1"]);
    Running::start(folder, "fio", &mut fio)
}

#[track_caller]
pub fn succeeds(mut fio: Running) {
    assert!(fio.wait().success() && fio.log().contains("err= 0"), "{}", fio.log());
}

pub fn written(daemon: &Daemon) -> u64 {
    daemon.json(&["array", "show", "data"])["members"][0]["stats"]["written_bytes"].as_u64().expect("bytes")
}

#[test]
fn requests_that_wait_for_a_server_complete_when_it_is_back() {
    let mut daemon = Daemon::start();
    let mut server = Server::start(&daemon.folder, "server", 40 * MIB);
    let local = daemon.folder.sparse("local", 24 * MIB);
    let uri = daemon.array("data", "raid0", &[&format!("{}&connections=3", server.uri()), &local]);
    let mut fio = writer(&daemon.folder, &uri);
    let mut kills = 0;
    while kills < 3 && fio.ended().is_none() {
        let before = written(&daemon);
        wait_for("data to flow", || (written(&daemon) > before + MIB || fio.ended().is_some()).then_some(()));
        server.running.kill();
        std::thread::sleep(std::time::Duration::from_millis(400));
        server.start_again(&daemon.folder);
        kills += 1;
    }
    assert_eq!(kills, 3, "fio was over before");
    succeeds(fio);
    let member = &daemon.json(&["array", "show", "data"])["members"][0];
    assert_eq!((&member["state"], &member["stats"]["errors"]), (&"in_sync".into(), &0.into()), "{member}");
    let shown = daemon.json(&["array", "show", "data"]);
    assert_eq!((&shown["members"][0]["unfenced"], &shown["members"][1]["unfenced"]), (&true.into(), &false.into()));
    assert!(daemon.braid(&["array", "show", "data"]).contains("(unfenced)"));
    // A restart finds the label at the same address.
    daemon.stop();
    daemon.start_again();
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "active");
}

#[test]
fn data_written_to_another_braid_read_back_unchanged() {
    let far = Daemon::start();
    let disk = far.folder.sparse("disk", 60 * MIB);
    far.array("far", "concat", &[&disk]);
    let port = far.export_tcp("far", "over-tcp");
    let near = Daemon::start();
    let uri = near.array("data", "concat", &[&format!("nbd://127.0.0.1:{port}/over-tcp")]);
    let size = near.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");
    let source = near.folder.noise("source", size, 3);
    run("nbdcopy", &["--connections=4", "--requests=64", "--flush", &source, &uri]);
    let back = near.folder.join("back");
    run("nbdcopy", &["--connections=4", "--requests=64", &uri, &back]);
    assert_eq!(checksum(&back), checksum(&source));
    // A disk has one user: neither this daemon nor another array of it may use it twice.
    let again = format!("nbd://127.0.0.1:{port}/over-tcp");
    assert!(near.refused(4, &["array", "create", "more", "--level", "concat", &again]).contains("in use"));
}

#[test]
fn a_daemon_refuses_its_own_export_as_a_disk() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 40 * MIB);
    let uri = daemon.array("data", "concat", &[&disk]);
    let port = daemon.export_tcp("data", "over-tcp");
    for uri in [uri, format!("nbd://127.0.0.1:{port}/over-tcp")] {
        let said = daemon.refused(2, &["array", "create", "cycle", "--level", "concat", &uri]);
        assert!(said.contains("an export of this very process"), "{said}");
    }
    let said = daemon.refused(3, &["array", "create", "none", "--level", "concat", "nbd+unix:///?socket=/nowhere"]);
    assert!(said.contains("check its address"), "{said}");
}

/// A mirror of a local and a remote disk, with fio in mid-write; `signal` stops the server. Tests in virtual time check
/// how soon the mirror drops the member.
fn mirror_without_its_server(signal: Signal) {
    let daemon = Daemon::start();
    let server = Server::start(&daemon.folder, "server", 40 * MIB);
    let local = daemon.folder.sparse("local", 40 * MIB);
    let uri = daemon.array("data", "raid1", &[&local, &server.uri()]);
    let fio = writer(&daemon.folder, &uri);
    wait_for("data to flow", || (written(&daemon) > 2 * MIB).then_some(()));
    server.running.signal(signal);
    wait_for("the member to be left out", || {
        (daemon.json(&["array", "show", "data"])["members"][1]["state"] == "failed").then_some(())
    });
    succeeds(fio);
    let events = daemon.events();
    assert!(events.contains(": its server "), "{events}");
}

#[test]
fn a_mirror_drops_a_server_that_died_in_mid_write() {
    mirror_without_its_server(Signal::KILL);
}

#[test]
fn a_mirror_drops_a_silent_server() {
    mirror_without_its_server(Signal::STOP);
}

/// Starts qemu-nbd, which accepts one connection at a time.
fn qemu_for_one(folder: &Folder, socket: &str, file: &str) -> Running {
    let _ = std::fs::remove_file(socket);
    let mut qemu = command("qemu-nbd");
    qemu.args(["--persistent", "--discard=unmap", "--format=raw", "--socket", socket, file]);
    let running = Running::start(folder, "qemu", &mut qemu);
    wait_for("qemu-nbd's socket", || std::fs::metadata(socket).ok());
    running
}

#[test]
fn all_shards_use_a_server_that_accepts_one_connection() {
    let mut daemon = Daemon::start_in(Folder::new(), &["--shards", "3"]);
    let (socket, file) = (daemon.folder.join("qemu.sock"), daemon.folder.sparse("qemu.img", 40 * MIB));
    let mut qemu = qemu_for_one(&daemon.folder, &socket, &file);
    let server = format!("nbd+unix:///?socket={socket}");
    let local = daemon.folder.sparse("local", 40 * MIB);
    let two = format!("{server}&connections=2");
    let said = daemon.refused(1, &["array", "create", "two", "--level", "concat", &two]);
    assert!(said.contains("used with one"), "{said}");
    let uri = daemon.array("data", "raid0", &[&server, &local]);
    let size = daemon.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");
    // More client connections than shards: each shard serves some of them.
    let source = daemon.folder.noise("source", size, 3);
    run("nbdcopy", &["--connections=6", "--requests=16", "--flush", &source, &uri]);
    // The server is killed; requests that wait for it complete when it is back.
    qemu.kill();
    let mut client = crate::nbd::Client::open(&daemon.nbd_socket("data"), "data").expect("it is exported");
    let (changed, rest) = (noise(4 * MIB, 4), 4 * MIB as usize);
    let late = std::thread::scope(|scope| {
        let writes = scope.spawn(|| client.write_fua(0, &changed));
        std::thread::sleep(std::time::Duration::from_millis(300));
        let waits = !writes.is_finished();
        qemu = qemu_for_one(&daemon.folder, &socket, &file);
        writes.join().expect("it ends").expect("it is written");
        waits
    });
    assert!(late, "it was written without a server");
    assert!(client.read(0, rest).expect("it is read") == changed);
    let source = std::fs::read(&source).expect("it is read");
    for at in (rest..size as usize).step_by(MIB as usize) {
        let end = (at + MIB as usize).min(size as usize);
        assert!(client.read(at as u64, end - at).expect("it is read") == source[at..end], "byte {at}");
    }
    drop(client);
    // Each of several such disks has a shard of its own; a released disk is not held: the next user finds its connection free.
    daemon.restart(false);
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "active");
    daemon.braid(&["export", "remove", "data"]);
    daemon.braid(&["array", "delete", "data", "--yes"]);
    daemon.braid(&["array", "create", "again", "--level", "concat", "--force", "--yes", &server]);
    drop(qemu);
}

#[test]
fn a_pool_works_on_an_export_of_qemu() {
    let mut daemon = Daemon::start();
    let (socket, file) = (daemon.folder.join("qemu.sock"), daemon.folder.sparse("qemu.img", 128 * MIB));
    let mut qemu = command("qemu-nbd");
    qemu.args(["--persistent", "--shared=8", "--format=raw", "--socket", &socket, &file]);
    let _qemu = Running::start(&daemon.folder, "qemu", &mut qemu);
    wait_for("qemu-nbd's socket", || std::fs::metadata(&socket).ok());
    daemon.braid(&["pool", "create", "tank", &format!("nbd+unix:///?socket={socket}")]);
    assert!(daemon.braid(&["pool", "show", "tank"]).contains("(unfenced)"));
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    pools::export(&daemon, "tank/db");
    let mut client = pools::client(&daemon, "tank/db");
    pools::write(&mut client, 0..64, 7);
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    pools::write(&mut client, 32..96, 1000);
    client.flush().expect("it flushes");
    for kill in [false, true] {
        daemon.restart(kill);
        let mut client = pools::client(&daemon, "tank/db");
        pools::check(&mut client, 0..32, 7);
        pools::check(&mut client, 32..96, 1000);
        pools::check_zeros(&mut client, 96..128);
    }
}

/// Returns the number of bytes that were read from a server, by its log.
fn read_from(log: &str) -> u64 {
    let log = std::fs::read_to_string(log).expect("a log");
    let reads = log.lines().filter(|line| line.contains(" Read id="));
    let counts = reads.filter_map(|line| line.split("count=0x").nth(1)?.split(' ').next());
    counts.map(|count| u64::from_str_radix(count, 16).expect("a count")).sum()
}

#[test]
fn a_rebuild_from_a_server_skips_its_holes() {
    let daemon = Daemon::start();
    let (socket, log) = (daemon.folder.join("server.sock"), daemon.folder.join("server.log"));
    let mut nbdkit = command("nbdkit");
    let file = daemon.folder.sparse("server.img", 64 * MIB);
    nbdkit.args(["-f", "-U", &socket, "--filter=log", "file", &file, &format!("logfile={log}")]);
    let _server = Running::start(&daemon.folder, "server", &mut nbdkit);
    wait_for("nbdkit's socket", || std::fs::metadata(&socket).ok());
    let [lost, new] = ["lost", "new"].map(|name| daemon.folder.sparse(name, 64 * MIB));
    daemon.array("data", "raid1", &[&lost, &format!("nbd+unix:///?socket={socket}")]);
    // Writes to all of its regions, and little of each.
    let mut client = crate::nbd::Client::open(&daemon.nbd_socket("data"), "data").expect("it is exported");
    let mut expected = vec![0; client.size_bytes as usize];
    let mut written = 0;
    for at in (0..client.size_bytes - MIB).step_by(512 << 10) {
        let data = noise(48 * KIB, at + 1);
        client.write(at + 100 * KIB, &data).expect("it is written");
        expected[(at + 100 * KIB) as usize..][..data.len()].copy_from_slice(&data);
        written += 48 * KIB;
    }
    client.flush().expect("it is flushed");
    daemon.braid(&["array", "fail", "data", "0"]);
    let before = read_from(&log);
    daemon.braid(&["array", "add", "data", &new]);
    wait_for("it to be filled", || {
        (daemon.json(&["array", "show", "data"])["members"][0]["state"] == "in_sync").then_some(())
    });
    let read = read_from(&log) - before;
    assert!(read >= written && read * 4 <= written * 5, "{read} bytes were read, {written} were written");
    // The rebuilt member holds the right data: it serves all reads now.
    daemon.braid(&["array", "fail", "data", "1"]);
    for (at, part) in expected.chunks(MIB as usize).enumerate() {
        let got = client.read(at as u64 * MIB, part.len()).expect("it is read");
        assert!(got == part, "MiB {at}");
    }
}
