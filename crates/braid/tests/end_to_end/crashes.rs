//! The daemon is killed under load: acknowledged writes stay, and waiting clients continue.

use crate::nbd::Client;
use crate::support::*;

/// Returns how many flushes each member of the array has done.
fn flushes(daemon: &Daemon, array: &str) -> Vec<u64> {
    let members = daemon.json(&["array", "show", array])["members"].clone();
    members.as_array().expect("a list").iter().map(|m| m["stats"]["flushes"].as_u64().expect("a count")).collect()
}

#[test]
fn a_flush_on_one_connection_covers_what_another_wrote() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> = (0..3).map(|i| daemon.folder.sparse(&format!("disk{i}"), 32 * MIB)).collect();
    daemon.array("data", "raid0", &disks.iter().map(String::as_str).collect::<Vec<_>>());
    let socket = daemon.nbd_socket("data");
    let mut writer = Client::open(&socket, "data").expect("it is served");
    let mut flusher = Client::open(&socket, "data").expect("a second connection is served");

    let before = flushes(&daemon, "data");
    let data = noise(MIB, 1);
    // One chunk after the other, so that every member gets its part.
    for (i, piece) in data.chunks(64 * KIB as usize).enumerate() {
        writer.write(i as u64 * 64 * KIB, piece).expect("it writes");
    }
    flusher.flush().expect("it flushes");
    // The power cut follows the flush's acknowledgement. Every disk was flushed, not only those that the flushing
    // connection had written to: it wrote to none.
    let after = flushes(&daemon, "data");
    for (member, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(after > before, "member {member} was not flushed");
    }
    daemon.kill();
    daemon.start_again();
    let mut reader = wait_for("the export", || Client::open(&socket, "data").ok());
    assert_eq!(reader.read(0, data.len()).expect("it reads"), data);
}

#[test]
fn acknowledged_writes_survive_a_kill_without_a_flush() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> = (0..3).map(|i| daemon.folder.sparse(&format!("disk{i}"), 64 * MIB)).collect();
    daemon.array("data", "raid0", &disks.iter().map(String::as_str).collect::<Vec<_>>());
    let socket = daemon.nbd_socket("data");
    let mut client = Client::open(&socket, "data").expect("it is served");
    let block = 64 * KIB;
    let mut acknowledged = 0;
    for round in 0..5u64 {
        for _ in 0..40 {
            client.write(acknowledged * block, &noise(block, acknowledged)).expect("it writes");
            acknowledged += 1;
        }
        // Some writes are in flight, with an open outcome.
        for i in 0..round {
            client.send(0, crate::nbd::WRITE, (900 + i) * block, block as u32, &noise(block, 1000 + i)).expect("sent");
        }
        daemon.kill();
        daemon.start_again();
        client = wait_for("the export", || Client::open(&socket, "data").ok());
        for i in 0..acknowledged {
            let back = client.read(i * block, block as usize).expect("it reads");
            assert!(back == noise(block, i), "round {round}: block {i} is not what was acknowledged");
        }
    }
}

#[test]
fn a_reconnecting_client_survives_kills_and_restarts() {
    let mut daemon = Daemon::start();
    // Slow disks, so that the copy is still running when the daemon dies.
    let disks: Vec<String> =
        (0..3).map(|i| format!("throttled({},bw=8M)", daemon.folder.sparse(&format!("disk{i}"), 40 * MIB))).collect();
    let uri = daemon.array("data", "raid0", &disks.iter().map(String::as_str).collect::<Vec<_>>());
    let size = daemon.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");

    let between = daemon.folder.join("retry.nbd");
    let mut nbdkit = command("nbdkit");
    nbdkit.args(["-f", "-U", &between, "--filter=retry", "nbd", &format!("uri={uri}")]);
    nbdkit.args(["retries=60", "retry-delay=1", "retry-exponential=no"]);
    let _nbdkit = Running::start(&daemon.folder, "nbdkit", &mut nbdkit);
    wait_for("nbdkit's socket", || std::fs::metadata(&between).ok());

    let source = daemon.folder.noise("source", size, 6);
    let between = format!("nbd+unix:///?socket={between}");
    let mut copy = command("nbdcopy");
    copy.args(["--connections=2", "--requests=8", "--flush", &source, &between]);
    let mut copy = Running::start(&daemon.folder, "nbdcopy", &mut copy);
    let mut kills = 0;
    while copy.ended().is_none() && kills < 3 {
        // Not before some data have been written since the last restart, so that each kill hits the writing.
        wait_for("data to flow", || {
            let members = daemon.json(&["array", "show", "data"])["members"].clone();
            let written: u64 = members.as_array()?.iter().filter_map(|m| m["stats"]["written_bytes"].as_u64()).sum();
            (written > 4 * MIB || copy.ended().is_some()).then_some(())
        });
        if copy.ended().is_none() {
            daemon.kill();
            kills += 1;
            daemon.start_again();
        }
    }
    assert!(copy.wait().success(), "nbdcopy failed:\n{}", copy.log());
    assert!(kills >= 2, "the copy was over after {kills} kills: the disks are too fast for this test");
    let back = daemon.folder.join("back");
    run("nbdcopy", &[&uri, &back]);
    assert_eq!(checksum(&back), checksum(&source));
}

#[test]
fn fua_writes_and_a_clean_stop_lose_nothing() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 32 * MIB);
    daemon.array("data", "concat", &[&disk]);
    let socket = daemon.nbd_socket("data");
    let mut client = Client::open(&socket, "data").expect("it is served");
    client.write_fua(0, &noise(4096, 1)).expect("it writes");
    client.write(4096, &noise(4096, 2)).expect("it writes");
    daemon.stop();
    assert!(std::fs::metadata(&socket).is_err(), "a clean stop leaves no socket behind");
    daemon.start_again();
    let mut client = wait_for("the export", || Client::open(&socket, "data").ok());
    assert_eq!(client.read(0, 4096).expect("it reads"), noise(4096, 1));
    assert_eq!(client.read(4096, 4096).expect("it reads"), noise(4096, 2));
}
