//! A disk that errors, vanishes or hangs gives its own clients errors, is named, and harms no other array.

use crate::nbd::{self, Client};
use crate::support::*;

/// An array `bad` on one faulty and one good disk, and an array `good`; a client on each.
fn two_arrays(rules: &str) -> (Daemon, String, Client, Client) {
    let daemon = Daemon::start();
    let file = daemon.folder.sparse("bad0", 64 * MIB);
    let faulty = format!("faulty({file},{rules})");
    let other = daemon.folder.sparse("bad1", 64 * MIB);
    daemon.array("bad", "concat", &[&faulty, &other]);
    let disk = daemon.folder.sparse("good0", 64 * MIB);
    daemon.array("good", "concat", &[&disk]);
    let bad = Client::open(&daemon.nbd_socket("bad"), "bad").expect("it is served");
    let good = Client::open(&daemon.nbd_socket("good"), "good").expect("it is served");
    (daemon, file, bad, good)
}

#[track_caller]
fn works(client: &mut Client) {
    let data = noise(64 * KIB, 3);
    client.write(MIB, &data).expect("the other array takes writes");
    client.flush().expect("the other array flushes");
    assert_eq!(client.read(MIB, data.len()).expect("the other array reads"), data);
}

#[test]
fn a_disk_that_errors_is_named_and_harms_no_other() {
    let (daemon, file, mut bad, mut good) = two_arrays("read-error@24M-32M,write-error@32M-40M");
    assert_eq!(bad.read(25 * MIB, 4096).expect_err("that range fails").raw_os_error(), Some(nbd::EIO as i32));
    let error = bad.write(36 * MIB, &[1; 4096]).expect_err("that range fails").raw_os_error();
    assert_eq!(error, Some(nbd::EIO as i32));
    // The rest of the disk and of the array goes on.
    bad.write(0, &[2; 4096]).expect("another range of the same disk works");
    assert_eq!(bad.read(0, 4096).expect("and reads"), [2; 4096]);
    bad.write(bad.size_bytes - 4096, &[3; 4096]).expect("the other member works");
    works(&mut good);
    wait_for("an event that names the disk", || daemon.events().contains(&file).then_some(()));
    let status = daemon.braid(&["status"]);
    assert!(status.contains(&file), "{status}");
    let members = daemon.json(&["array", "show", "bad"])["members"].clone();
    assert!(members[0]["stats"]["errors"].as_u64() >= Some(2), "{members}");
    assert_eq!(members[1]["stats"]["errors"], 0, "{members}");
}

#[test]
fn a_disk_that_vanishes_is_named_and_harms_no_other() {
    // Enough I/Os for labels and state, then nothing.
    let (daemon, file, mut bad, mut good) = two_arrays("gone-after=200");
    let mut failed = false;
    for i in 0..400u64 {
        if bad.write((i % 16) * MIB, &[1; 4096]).is_err() {
            failed = true;
            break;
        }
    }
    assert!(failed, "the disk is gone after 200 I/Os");
    bad.write(bad.size_bytes - 4096, &[3; 4096]).expect("the other member works");
    works(&mut good);
    wait_for("an event that names the disk", || daemon.events().contains(&file).then_some(()));
    assert!(daemon.braid(&["status"]).contains(&file));
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
}

#[test]
fn a_disk_that_hangs_is_answered_for_within_the_limit_and_harms_no_other() {
    let (daemon, file, mut bad, mut good) = two_arrays("read-hang@24M-32M");
    let limit_ms = daemon.json(&["status"])["limits"]["leaf_timeout_ms"].as_u64().expect("a limit");
    bad.send(0, nbd::READ, 25 * MIB, 4096, &[]).expect("sent");
    // Meanwhile the other array, and the same one elsewhere, work.
    works(&mut good);
    let mut second = Client::open(&daemon.nbd_socket("bad"), "bad").expect("it is served");
    second.write(0, &[1; 4096]).expect("the rest of the disk works");
    bad.stream
        .set_read_timeout(Some(std::time::Duration::from_millis(limit_ms) + PATIENCE))
        .expect("a socket has that limit");
    let (error, _) = nbd::reply(&mut bad.stream).expect("an answer comes");
    assert_ne!(error, 0);
    works(&mut good);
    wait_for("an event that names the disk", || daemon.events().contains(&file).then_some(()));
    // The daemon ends although the disk never answers, and names it.
    let mut daemon = daemon;
    daemon.running.terminate();
    let status = daemon.running.wait_within(std::time::Duration::from_secs(45));
    assert_eq!(status.code(), Some(1), "{}", daemon.running.log());
    assert!(daemon.running.log().contains("has not answered"), "{}", daemon.running.log());
}

#[test]
fn slow_disks_are_only_slow() {
    let (_daemon, _, mut bad, mut good) = two_arrays("delay=20ms:0.2");
    for i in 0..50u64 {
        bad.write(i * 4096, &noise(4096, i)).expect("it is late, not lost");
    }
    for i in 0..50u64 {
        assert_eq!(bad.read(i * 4096, 4096).expect("it is late, not lost"), noise(4096, i));
    }
    works(&mut good);
}

#[test]
fn a_flush_that_fails_is_not_forgotten() {
    let (_daemon, _, mut bad, mut good) = two_arrays("flush-error*0,flush-error:1@0-64M");
    bad.write(0, &[1; 4096]).expect("it writes");
    assert!(bad.flush().is_err(), "the disk cannot flush");
    assert!(bad.flush().is_err(), "and a second try does not make it durable");
    works(&mut good);
}

#[test]
fn a_file_that_is_cut_short_gives_errors_not_a_crash() {
    let daemon = Daemon::start();
    let file = daemon.folder.sparse("disk", 64 * MIB);
    daemon.array("data", "concat", &[&file]);
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    client.write(40 * MIB, &[1; 4096]).expect("it writes");
    std::fs::File::options().write(true).open(&file).and_then(|f| f.set_len(32 * MIB)).expect("it can be cut");
    assert!(client.read(40 * MIB, 4096).is_err(), "what is not there any more is an error, not zeros");
    client.write(MIB, &[2; 4096]).expect("what is there works");
    assert_eq!(client.read(MIB, 4096).expect("it reads"), [2; 4096]);
}
