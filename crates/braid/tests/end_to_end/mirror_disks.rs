//! Disks of mirrors that are swapped, lost all at once, hang, or do not fit; and degraded mirrors that are deleted.

use crate::mirrors::*;
use crate::nbd;
use crate::support::*;

#[test]
fn members_are_identified_by_labels_not_by_paths() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &["--write-mostly", b]);
    write(&mut client, 0..20, 1);
    drop(client);
    daemon.stop();
    let between = format!("{a}.between");
    for (from, to) in [(a, &between), (b, a), (&between, b)] {
        std::fs::rename(from, to).expect("a file can be moved");
    }
    daemon.start_again();
    wait_for_health(&daemon, "whole");
    let members = show(&daemon)["members"].clone();
    assert_eq!((members[0]["disk"].as_str(), members[1]["disk"].as_str()), (Some(&**b), Some(&**a)), "{members}");
    assert_eq!(members[1]["write_mostly"], true);
    let mut client = self::client(&daemon);
    check(&mut client, 0..20, 1);
    // A disk of another array is no member of this one, and keeps its data.
    let [c, d] = &files(&daemon, &["c", "d"])[..] else { panic!("two files") };
    daemon.braid(&["array", "create", "other", "--level", "raid1", c, d]);
    daemon.braid(&["array", "stop", "other"]);
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.braid(&["array", "remove", "data", "1"]);
    let said = daemon.refused(4, &["array", "add", "data", c]);
    assert!(said.contains("other") && said.contains("--force"), "{said}");
    daemon.braid(&["array", "assemble", "other"]);
}

#[test]
fn all_disks_lost_at_once_return_with_all_flushed_data() {
    let daemon = Daemon::start();
    let disks: Vec<String> = (0..4).map(|i| daemon.folder.sparse(&format!("d{i}"), 80 * MIB)).collect();
    // A bus failure: all disks fail within a few I/Os.
    let faulty: Vec<String> = disks.iter().map(|path| format!("faulty({path},gone-after=700)")).collect();
    let names: Vec<&str> = faulty.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid10", &names, &[]);
    write(&mut client, 0..50, 1);
    client.flush().expect("it flushes");
    let mut block = 50;
    while client.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_ok() {
        block += 1;
        assert!(block < 2000, "all disks are gone, and it still writes");
    }
    wait_for_health(&daemon, "failed");
    assert!(daemon.events().contains("array_failed"), "{}", daemon.events());
    client.read(0, 4096).expect_err("it has failed");
    // Requests to the failed array are refused, and change nothing on the disks.
    let before: Vec<u64> = disks.iter().map(|disk| checksum(disk)).collect();
    assert!(!daemon.any(&["array", "add", "data", &disks[0]]).status.success());
    assert!(!daemon.any(&["array", "fail", "data", "0"]).status.success());
    let said = daemon.refused(1, &["array", "check", "data"]);
    assert!(said.contains("would be lost"), "{said}");
    let after: Vec<u64> = disks.iter().map(|disk| checksum(disk)).collect();
    assert_eq!(before, after);
    drop(client);
    daemon.braid(&["array", "stop", "data", "--force"]);
    for disk in &disks {
        // The fault rules end with the bus.
        daemon.any(&["array", "assemble", "--disk", disk]);
    }
    daemon.braid(&["array", "assemble", "data"]);
    wait_for("all members", || {
        let members = show(&daemon)["members"].as_array().cloned().unwrap_or_default();
        for (role, member) in members.iter().enumerate().filter(|(_, member)| member["state"] == "failed") {
            let _ = daemon.any(&["array", "add", "data", &disks[role]]);
            assert_eq!(member["slot"], role);
        }
        (health(&daemon) == "whole").then_some(())
    });
    check(&mut self::client(&daemon), 0..50, 1);
    let said = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(said.status.code(), Some(0), "{}", crate::support::said(&said));
}

#[test]
fn a_second_failure_during_a_rebuild_fails_the_array_and_loses_nothing() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[&format!("faulty({a},gone-after=700)"), b], &[]);
    write(&mut client, 0..100, 1);
    client.flush().expect("it flushes");
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.braid(&["array", "remove", "data", "1"]);
    daemon.braid(&["array", "add", "data", &format!("throttled({c},bw=6M)")]);
    let job = daemon.json(&["job", "list"])["jobs"][0].clone();
    daemon.braid(&["job", "pause", job["name"].as_str().expect("a name")]);
    assert_eq!(member_state(&daemon, 1), "rebuilding");
    let mut block = 100;
    while client.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_ok() {
        block += 1;
        assert!(block < 1100, "the only whole member is gone, and it still writes");
    }
    wait_for_health(&daemon, "failed");
    drop(client);
    // The disk is there again: the rebuild of the new member waits, and continues when it may.
    daemon.braid(&["array", "assemble", "data"]);
    assert_eq!((member_state(&daemon, 0).as_str(), member_state(&daemon, 1).as_str()), ("in_sync", "rebuilding"));
    let mut client = self::client(&daemon);
    check(&mut client, 0..block, 1);
    let jobs = daemon.json(&["job", "list"])["jobs"].as_array().cloned().expect("a list");
    let job = jobs.iter().find(|job| job["kind"] == "rebuild").expect("it goes on");
    assert_eq!(job["state"], "paused", "{job}");
    daemon.braid(&["job", "resume", job["name"].as_str().expect("a name")]);
    wait_for_health(&daemon, "whole");
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, 0..block, 1);
}

#[test]
fn a_disk_with_larger_blocks_is_refused() {
    need_root();
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    /// Detached when dropped.
    struct Loop(String);
    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = command("losetup").args(["--detach", &self.0]).output();
        }
    }
    let attach = |path: &str, sector: &str| {
        Loop(run("losetup", &["--find", "--show", "--sector-size", sector, path]).trim().to_owned())
    };
    let (large, small) = (attach(a, "4096"), attach(b, "512"));
    let said = daemon.refused(2, &["array", "create", "data", "--level", "raid1", &large.0, &small.0]);
    assert!(said.contains("4096") && said.contains("512"), "{said}");
    // Nothing was written to either disk.
    assert!([a, b].iter().all(|path| std::fs::read(path).expect("it can be read").iter().all(|byte| *byte == 0)));
    daemon.braid(&["array", "create", "data", "--level", "raid1", &small.0, c]);
    let said = daemon.refused(2, &["array", "spare", "data", &large.0]);
    assert!(said.contains("4096 bytes") && said.contains("not larger"), "{said}");
    daemon.braid(&["array", "delete", "data", "--yes"]);
    // The other way round: a disk with smaller blocks can replace one with larger blocks.
    daemon.braid(&["array", "create", "large", "--level", "concat", &large.0]);
    assert_eq!(daemon.json(&["array", "show", "large"])["logical_block_bytes"], 4096);
    daemon.braid(&["array", "delete", "large", "--yes"]);
}

#[test]
fn deleting_a_degraded_mirror_reports_the_lost_member() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..20, 1);
    drop(client);
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.refused(4, &["array", "delete", "data", "--yes"]);
    daemon.braid(&["array", "delete", "data", "--yes", "--force"]);
    assert!(daemon.events().contains("labels_left") && daemon.events().contains("member 1"), "{}", daemon.events());
    assert_eq!(daemon.json(&["array", "list"])["arrays"], serde_json::json!([]));
    // The lost member never returns by itself, not even in a disk scan; its label has to be wiped.
    daemon.any(&["array", "assemble", "--disk", b]);
    let list = daemon.json(&["array", "list"])["arrays"].clone();
    assert!(list.as_array().expect("a list").iter().all(|array| array["state"] != "active"), "{list}");
    let said = daemon.refused(4, &["array", "create", "next", "--level", "raid1", a, b]);
    assert!(said.contains(&**b), "{said}");
    daemon.braid(&["array", "create", "next", "--level", "raid1", a, b, "--force", "--yes"]);
}

#[test]
fn the_daemon_exits_in_time_while_a_member_hangs_and_restarts() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, &format!("faulty({b},write-hang@40M-41M)")], &[]);
    write(&mut client, 0..50, 1);
    client.flush().expect("it flushes");
    // A request that is never answered.
    client.send(0, nbd::WRITE, 39 * MIB, BLOCK as u32, &noise(BLOCK, 9)).expect("sent");
    wait_for("the write to be under way", || {
        show(&daemon)["members"][1]["stats"]["in_flight"].as_u64().filter(|count| *count > 0)
    });
    daemon.running.terminate();
    let status = daemon.running.wait_within(std::time::Duration::from_secs(45));
    let log = daemon.running.log();
    assert!(status.code() == Some(1) && !log.contains("panicked"), "{status}: {log}");
    // Without the rule, the next start resyncs the writes that were in flight.
    drop(client);
    daemon.start_again();
    let mut client = self::client(&daemon);
    check(&mut client, 0..50, 1);
}

#[test]
fn a_quickly_exchanged_disk_returns_automatically() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, &format!("faulty({b},gone-after=300)")], &[]);
    let mut block = 0;
    wait_for("the member to be left out", || {
        write(&mut client, block..block + 20, 1);
        block += 20;
        (health(&daemon) == "degraded").then_some(())
    });
    // The failed disk itself does not return automatically; a disk that takes its path does, as the path was never empty.
    let other = format!("{b}.other");
    std::fs::copy(b, &other).expect("a file can be copied");
    std::fs::rename(&other, b).expect("a file can be moved");
    wait_for("the member to be filled", || daemon.events().contains("member_rebuilding").then_some(()));
    wait_for("it to be done", || (member_state(&daemon, 1) != "rebuilding").then_some(()));
    check(&mut client, 0..block, 1);
}
