//! A disk that returns errors, vanishes or hangs: its own clients get errors, the disk is named, and no other array is
//! harmed.

use crate::nbd::{self, Client};
use crate::support::*;

/// Creates an array `bad` on one faulty and one good disk, and an array `good`, with a client on each.
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
fn a_disk_with_errors_is_named_and_harms_no_other_array() {
    let (daemon, file, mut bad, mut good) = two_arrays("read-error@24M-32M,write-error@32M-40M");
    assert_eq!(bad.read(25 * MIB, 4096).expect_err("that range fails").raw_os_error(), Some(nbd::EIO as i32));
    let error = bad.write(36 * MIB, &[1; 4096]).expect_err("that range fails").raw_os_error();
    assert_eq!(error, Some(nbd::EIO as i32));
    // The rest of the disk and of the array still works.
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
fn a_vanished_disk_is_named_and_harms_no_other_array() {
    // The disk fails after enough I/Os for labels and state.
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
fn requests_to_a_hanging_disk_fail_within_the_limit_and_no_other_array_is_harmed() {
    let (daemon, file, mut bad, mut good) = two_arrays("read-hang@24M-32M");
    let limit_ms = daemon.json(&["status"])["limits"]["disk_timeout_ms"].as_u64().expect("a limit");
    bad.send(0, nbd::READ, 25 * MIB, 4096, &[]).expect("sent");
    // Meanwhile the other array, and other ranges of the same one, work.
    works(&mut good);
    let mut second = Client::open(&daemon.nbd_socket("bad"), "bad").expect("it is served");
    second.write(0, &[1; 4096]).expect("the rest of the disk works");
    bad.stream
        .set_read_timeout(Some(std::time::Duration::from_millis(limit_ms) + PATIENCE))
        .expect("a socket has that limit");
    let (error, _) = nbd::reply(&mut bad.stream).expect("a reply arrives");
    assert_ne!(error, 0);
    works(&mut good);
    wait_for("an event that names the disk", || daemon.events().contains(&file).then_some(()));
    // The daemon exits although the disk never answers, and names the disk.
    let mut daemon = daemon;
    daemon.running.terminate();
    let status = daemon.running.wait_within(std::time::Duration::from_secs(45));
    assert_eq!(status.code(), Some(1), "{}", daemon.running.log());
    assert!(daemon.running.log().contains("has not answered"), "{}", daemon.running.log());
}

#[test]
fn slow_disks_lose_nothing() {
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
fn a_failed_flush_stays_failed() {
    let (_daemon, _, mut bad, mut good) = two_arrays("flush-error*0,flush-error:1@0-64M");
    bad.write(0, &[1; 4096]).expect("it writes");
    assert!(bad.flush().is_err(), "the disk cannot flush");
    assert!(bad.flush().is_err(), "and a second try does not make it durable");
    works(&mut good);
}

/// Returns the status in one line, as sentences wrap at a terminal's width.
fn unwrapped_status(daemon: &Daemon) -> String {
    daemon.braid(&["status"]).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cut(file: &str, bytes: u64) {
    std::fs::File::options().write(true).open(file).and_then(|f| f.set_len(bytes)).expect("it can be cut");
}

/// Checks that a read returns either what was written or an error.
#[track_caller]
fn right_or_errors(client: &mut Client, blocks: u64) -> u64 {
    let mut errors = 0;
    for block in 0..blocks {
        match client.read(block * 64 * KIB, 64 * KIB as usize) {
            Ok(data) => assert!(data == noise(64 * KIB, block), "block {block} is not what was written"),
            Err(_) => errors += 1,
        }
    }
    errors
}

#[test]
fn a_truncated_file_gives_errors_never_zeros_and_status_reports_it() {
    for level in ["concat", "raid0"] {
        let daemon = Daemon::start();
        let files = ["one", "two"].map(|name| daemon.folder.sparse(name, 64 * MIB));
        daemon.array("data", level, &[&files[0], &files[1]]);
        let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
        let blocks = client.size_bytes / (64 * KIB);
        (0..blocks).for_each(|n| client.write(n * 64 * KIB, &noise(64 * KIB, n)).expect("it writes"));
        cut(&files[0], 32 * MIB);
        // A write beyond the new end makes the file longer again; the range before it is not read as zeros afterwards.
        let place = if level == "concat" { 50 * MIB } else { 100 * MIB };
        // The write uses the same data: of a failed write, another disk may keep its part.
        let data: Vec<u8> = (0..4).flat_map(|n| noise(64 * KIB, place / (64 * KIB) + n)).collect();
        assert!(client.write(place, &data).is_err(), "{level}: a disk that was cut takes no writes");
        let errors = right_or_errors(&mut client, blocks);
        assert!(errors > blocks / 3 && errors < blocks * 2 / 3, "{level}: {errors} of {blocks}");
        assert!(client.flush().is_err(), "{level}: a flush must fail after the file was cut");
        assert!(std::fs::metadata(&files[0]).expect("it is there").len() < 64 * MIB, "{level}: nothing made it whole");
        wait_for("the status", || {
            let status = unwrapped_status(&daemon);
            let named = status.contains(&files[0]) && status.contains("it is shorter than its label says: ");
            (named && status.contains("of 64M are left") && status.contains("truncate -s")).then_some(())
        });
        assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    }
}

/// The good copies serve, and the member is left out, even without I/O to it.
#[test]
fn a_redundant_array_leaves_a_truncated_file_out_and_loses_nothing() {
    for (level, idle) in [("raid1", false), ("raid1", true), ("raid5", false), ("raid6", false), ("raid10", false)] {
        let daemon = Daemon::start();
        let files: Vec<String> = (0..4).map(|n| daemon.folder.sparse(&format!("disk{n}"), 64 * MIB)).collect();
        daemon.array("data", level, &files.iter().map(String::as_str).collect::<Vec<_>>());
        let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
        let blocks = client.size_bytes / (64 * KIB);
        (0..blocks).for_each(|n| client.write(n * 64 * KIB, &noise(64 * KIB, n)).expect("it writes"));
        client.flush().expect("it flushes");
        cut(&files[1], 8 * MIB);
        if !idle {
            // Rewriting blocks that a member cannot return must not make its file longer.
            assert_eq!(right_or_errors(&mut client, blocks), 0, "{level}");
        }
        wait_for("the member to be left out", || {
            (daemon.json(&["array", "show", "data"])["members"][1]["state"] == "failed").then_some(())
        });
        let why = "it is shorter than its label says: ";
        wait_for("the event", || {
            daemon.events().lines().any(|l| l.contains("dropped") && l.contains(why)).then_some(())
        });
        assert_eq!(right_or_errors(&mut client, blocks), 0, "{level}");
        client.write(0, &noise(64 * KIB, 0)).expect("it goes on");
        client.flush().expect("it goes on");
        assert!(std::fs::metadata(&files[1]).expect("it is there").len() < 64 * MIB, "{level}: nothing made it whole");
        if level != "raid1" {
            continue;
        }
        // Extended again by hand, the file is no member for a delta resync: the lost range would be trusted.
        cut(&files[1], 64 * MIB);
        let refused = daemon.refused_any(&["array", "add", "data", &files[1]]);
        assert!(refused.contains("--force"), "{refused}");
        daemon.braid(&["array", "add", "data", &files[1], "--force"]);
        wait_for("it to be filled", || {
            (daemon.json(&["array", "show", "data"])["redundancy"]["health"] == "whole").then_some(())
        });
        [0, 2, 3].into_iter().for_each(|role| drop(daemon.braid(&["array", "fail", "data", &role.to_string()])));
        assert_eq!(right_or_errors(&mut client, blocks), 0, "all of it was copied");
    }
}

#[test]
fn a_truncated_file_of_a_pool_gives_errors_never_zeros() {
    let daemon = Daemon::start();
    let files = ["one", "two"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &files[0], &files[1]]);
    daemon.braid(&["volume", "create", "tank/data", "100M"]);
    crate::pools::export(&daemon, "tank/data");
    let mut client = crate::pools::client(&daemon, "tank/data");
    let blocks = 64 * MIB / (64 * KIB);
    (0..blocks).for_each(|n| client.write(n * 64 * KIB, &noise(64 * KIB, n)).expect("it writes"));
    client.flush().expect("it flushes");
    cut(&files[0], 16 * MIB);
    let _ = client.write(32 * MIB, &noise(64 * KIB, 32 * MIB / (64 * KIB)));
    let errors = right_or_errors(&mut client, blocks);
    assert!(errors > 0 && errors < blocks, "{errors} of {blocks}: the other member gives what it has");
    wait_for("the status", || {
        let status = unwrapped_status(&daemon);
        (status.contains(&files[0]) && status.contains("it is shorter than its label says: ")).then_some(())
    });
    assert!(std::fs::metadata(&files[0]).expect("it is there").len() < 96 * MIB, "nothing made it whole");
}

#[test]
fn a_file_deleted_in_use_is_named() {
    let daemon = Daemon::start();
    let file = daemon.folder.sparse("disk", 64 * MIB);
    daemon.array("data", "concat", &[&file]);
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    std::fs::remove_file(&file).expect("it is there");
    wait_for("the status", || unwrapped_status(&daemon).contains("its file was deleted").then_some(()));
    client.write(MIB, &[2; 4096]).expect("it works as long as it is open");
    assert_eq!(client.read(MIB, 4096).expect("it reads"), [2; 4096]);
}

/// A file system of this size in memory. Its disks outlive the daemon's use of them.
struct Full(String);

impl Full {
    fn mount(folder: String, bytes: u64) -> Full {
        std::fs::create_dir(&folder).expect("a folder can be made");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "braid-test", &folder]);
        Full(folder)
    }

    fn enlarge(&self, bytes: u64) {
        run("mount", &["-o", &format!("remount,size={bytes}"), &self.0]);
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").args(["-l", &self.0]).output();
    }
}

/// A write that fails for want of space below is no fault of the disk: the status recommends to make room, and with
/// room the disk is healthy.
#[test]
fn a_full_file_system_below_is_not_reported_as_a_broken_disk() {
    need_root();
    let daemon = Daemon::start();
    let full = Full::mount(daemon.folder.join("full"), 16 * MIB);
    let file = format!("{}/disk", full.0);
    run("truncate", &["-s", "64M", &file]);
    daemon.array("data", "concat", &[&file]);
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    let mut done = 0;
    while client.write(done * MIB, &noise(MIB, done)).is_ok() {
        done += 1;
    }
    assert!((1..16).contains(&done), "{done} writes found space");
    wait_for("the status", || {
        let status = unwrapped_status(&daemon);
        let is_reported = status.contains("found no space on the file system that its file is on");
        (is_reported && status.contains("free space on the file system")).then_some(())
    });
    assert!(!unwrapped_status(&daemon).contains("copy off"), "{}", unwrapped_status(&daemon));
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    full.enlarge(128 * MIB);
    wait_for("the disk to be well", || {
        client.write(done * MIB, &noise(MIB, done)).expect("there is space");
        (daemon.any(&["status", "--check"]).status.code() == Some(0)).then_some(())
    });
    for block in 0..=done {
        assert!(client.read(block * MIB, MIB as usize).expect("it reads") == noise(MIB, block), "{block}");
    }
}

/// A write over allocated space succeeds on a full file system, and does not end the report that it is full.
#[test]
fn a_write_over_allocated_space_does_not_end_the_report_of_a_full_file_system() {
    need_root();
    let daemon = Daemon::start();
    let full = Full::mount(daemon.folder.join("full"), 16 * MIB);
    let (file, filler) = (format!("{}/disk", full.0), format!("{}/filler", full.0));
    run("truncate", &["-s", "64M", &file]);
    daemon.array("data", "concat", &[&file]);
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    client.write(0, &noise(MIB, 0)).expect("there is space");
    let mut rest = std::fs::File::create(&filler).expect("there is space");
    while std::io::Write::write_all(&mut rest, &[1; 4096]).is_ok() {}
    drop(rest);
    client.write(8 * MIB, &noise(MIB, 8)).expect_err("there is none left");
    let is_reported = || unwrapped_status(&daemon).contains("found no space on the file system that its file is on");
    wait_for("the status", || is_reported().then_some(()));
    // Longer than several monitor intervals.
    for _ in 0..30 {
        client.write(0, &noise(4096, 0)).expect("its place is there");
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(is_reported(), "{}", unwrapped_status(&daemon));
    }
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    std::fs::remove_file(&filler).expect("it is there");
    wait_for("the disk to be well", || {
        client.write(0, &noise(4096, 0)).expect("it writes");
        (daemon.any(&["status", "--check"]).status.code() == Some(0)).then_some(())
    });
    assert!(client.read(0, MIB as usize).expect("it reads") == noise(MIB, 0));
}
