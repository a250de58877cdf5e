//! Mirrors: members fail, are left out, return and rebuild, and no data are lost.

use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::nbd::Client;
use crate::support::*;

pub const BLOCK: u64 = 64 * KIB;

pub fn files(daemon: &Daemon, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| daemon.folder.sparse(name, 80 * MIB)).collect()
}

pub fn create(daemon: &Daemon, level: &str, disks: &[&str], more: &[&str]) -> Client {
    let mut arguments = vec!["array", "create", "data", "--level", level];
    arguments.extend(more);
    arguments.extend(disks);
    daemon.braid(&arguments);
    daemon.export("data");
    client(daemon)
}

pub fn client(daemon: &Daemon) -> Client {
    wait_for("the export", || Client::open(&daemon.nbd_socket("data"), "data").ok())
}

pub fn show(daemon: &Daemon) -> Value {
    daemon.json(&["array", "show", "data"])
}

pub fn health(daemon: &Daemon) -> String {
    show(daemon)["redundancy"]["health"].as_str().unwrap_or("none").to_owned()
}

pub fn wait_for_health(daemon: &Daemon, health: &str) {
    wait_for(&format!("the array to be {health}"), || (self::health(daemon) == health).then_some(()));
}

pub fn member_state(daemon: &Daemon, role: usize) -> String {
    show(daemon)["members"][role]["state"].as_str().expect("a state").to_owned()
}

/// Returns the content of the data area of a member's file.
pub fn data_of(daemon: &Daemon, role: usize, path: &str, len: usize) -> Vec<u8> {
    let start = show(daemon)["members"][role]["data_offset_bytes"].as_u64().expect("its place is known");
    let mut data = vec![0; len];
    File::open(path).and_then(|file| file.read_exact_at(&mut data, start)).expect("the member's file can be read");
    data
}

/// Writes blocks whose content follows from their seeds.
pub fn write(client: &mut Client, blocks: impl IntoIterator<Item = u64>, seed: u64) {
    for block in blocks {
        client.write(block * BLOCK, &noise(BLOCK, seed + block)).expect("it writes");
    }
}

#[track_caller]
pub fn check(client: &mut Client, blocks: impl IntoIterator<Item = u64>, seed: u64) {
    for block in blocks {
        let back = client.read(block * BLOCK, BLOCK as usize).expect("it reads");
        assert!(back == noise(BLOCK, seed + block), "block {block} is not what was written");
    }
}

#[test]
fn a_failed_member_is_left_out_and_resyncs_when_added_again() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    // The member fails after the I/Os of the creation, and some more.
    let faulty = format!("faulty({b},gone-after=150)");
    let mut client = create(&daemon, "raid1", &[a, &faulty], &[]);
    assert_eq!(health(&daemon), "whole");
    write(&mut client, 0..400, 1);
    wait_for_health(&daemon, "degraded");
    let shown = show(&daemon);
    assert_eq!((&shown["state"], &shown["members"][1]["state"]), (&"active".into(), &"failed".into()), "{shown}");
    check(&mut client, 0..400, 1);
    assert!(daemon.events().contains("member_dropped"), "{}", daemon.events());
    let status = daemon.any(&["status", "--check"]);
    assert_eq!(status.status.code(), Some(5), "{}", said(&status));
    assert!(said(&status).contains("braid array add data DISK"), "{}", said(&status));

    // The disk works again.
    daemon.braid(&["array", "add", "data", b]);
    write(&mut client, 400..450, 1);
    wait_for_health(&daemon, "whole");
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
    client.flush().expect("it flushes");
    let len = 450 * BLOCK as usize;
    let (one, other) = (data_of(&daemon, 0, a, len), data_of(&daemon, 1, b, len));
    assert!(one == other, "the members differ");
    // Reads from that member alone: both what it missed and what it had.
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, 0..450, 1);
}

#[test]
fn a_kill_under_writes_loses_nothing_and_the_members_are_resynced() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    let mut done = 0;
    for round in 0..3u64 {
        write(&mut client, done..done + 60, 1);
        done += 60;
        for i in 0..8 {
            let block = 700 + i;
            client
                .send(0, crate::nbd::WRITE, block * BLOCK, BLOCK as u32, &noise(BLOCK, round * 100 + i))
                .expect("sent");
        }
        daemon.kill();
        daemon.start_again();
        client = self::client(&daemon);
        check(&mut client, 0..done, 1);
        wait_for_health(&daemon, "whole");
    }
    client.flush().expect("it flushes");
    let len = 708 * BLOCK as usize;
    let (one, other) = (data_of(&daemon, 0, a, len), data_of(&daemon, 1, b, len));
    assert!(one == other, "the members differ");
    // After an orderly stop no resync runs.
    drop(client);
    daemon.restart(false);
    assert!(!daemon.events().contains("resyncing"), "{}", daemon.events());
    check(&mut self::client(&daemon), 0..done, 1);
}

#[test]
fn a_spare_takes_over_automatically() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &["--spare", c]);
    assert_eq!(member_state(&daemon, 2), "spare");
    write(&mut client, 0..100, 1);
    daemon.braid(&["array", "fail", "data", a]);
    wait_for_health(&daemon, "whole");
    let shown = show(&daemon);
    assert_eq!(
        (shown["members"][0]["disk"].as_str(), shown["members"].as_array().map(Vec::len)),
        (Some(&**c), Some(2))
    );
    client.flush().expect("it flushes");
    let len = 100 * BLOCK as usize;
    assert!(data_of(&daemon, 0, c, len) == data_of(&daemon, 1, b, len), "the members differ");
    daemon.braid(&["array", "fail", "data", b]);
    check(&mut client, 0..100, 1);
    // The last member cannot be failed by command.
    let said = daemon.refused(4, &["array", "fail", "data", "0"]);
    assert!(said.contains("would be lost"), "{said}");
}

pub fn away(path: &str) {
    std::fs::rename(path, format!("{path}.away")).expect("a file can be moved");
}

pub fn back(path: &str) {
    std::fs::rename(format!("{path}.away"), path).expect("a file can be moved");
}

/// Moves a member to another folder, where the daemon does not search.
pub fn hide(daemon: &Daemon, path: &str) {
    let hidden = daemon.folder.join("hidden");
    std::fs::create_dir_all(&hidden).expect("a folder can be made");
    let name = path.rsplit('/').next().expect("a path has a name");
    std::fs::rename(path, format!("{hidden}/{name}")).expect("a file can be moved");
}

pub fn unhide(daemon: &Daemon, path: &str) {
    let name = path.rsplit('/').next().expect("a path has a name");
    std::fs::rename(daemon.folder.join(&format!("hidden/{name}")), path).expect("a file can be moved");
}

#[test]
fn half_a_mirror_waits_unless_started_degraded_and_diverged_halves_are_refused() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..10, 1);
    drop(client);
    daemon.stop();
    hide(&daemon, b);
    daemon.start_again();
    let shown = show(&daemon);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    let said = daemon.refused(1, &["array", "assemble", "data"]);
    assert!(said.contains("member 1") && said.contains("--degraded"), "{said}");
    daemon.braid(&["array", "assemble", "data", "--degraded"]);
    assert_eq!(health(&daemon), "degraded");
    let mut one = self::client(&daemon);
    check(&mut one, 0..10, 1);
    write(&mut one, 10..20, 1);
    drop(one);
    daemon.stop();

    // The other half, alone: it has no record of the degraded start.
    hide(&daemon, a);
    unhide(&daemon, b);
    daemon.start_again();
    assert_eq!(show(&daemon)["state"], "incomplete");
    daemon.braid(&["array", "assemble", "data", "--degraded"]);
    let mut other = self::client(&daemon);
    check(&mut other, 0..10, 1);
    write(&mut other, 20..30, 7);
    drop(other);
    daemon.stop();

    unhide(&daemon, a);
    daemon.start_again();
    let shown = show(&daemon);
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown["attention"].to_string().contains("used apart"), "{shown}");
    daemon.braid(&["array", "assemble", "data", "--force"]);
    assert_eq!(health(&daemon), "degraded");
    let given_up = if show(&daemon)["members"][0]["state"] == "in_sync" { b } else { a };
    let said = daemon.refused(4, &["array", "add", "data", given_up]);
    assert!(said.contains("--force"), "{said}");
    daemon.braid(&["array", "add", "data", given_up, "--force"]);
    wait_for_health(&daemon, "whole");
    check(&mut self::client(&daemon), 0..10, 1);
}

#[test]
fn with_the_policy_auto_a_mirror_starts_degraded_and_a_disk_that_appears_returns() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &["--start-degraded", "auto"]);
    write(&mut client, 0..50, 1);
    drop(client);
    daemon.stop();
    hide(&daemon, b);
    daemon.start_again();
    assert_eq!(health(&daemon), "degraded");
    let mut client = self::client(&daemon);
    write(&mut client, 50..100, 1);
    unhide(&daemon, b);
    wait_for_health(&daemon, "whole");
    client.flush().expect("it flushes");
    let len = 100 * BLOCK as usize;
    assert!(data_of(&daemon, 0, a, len) == data_of(&daemon, 1, b, len), "the members differ");
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, 0..100, 1);
}

#[test]
fn a_pulled_disk_returns_when_it_reappears() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let faulty = format!("faulty({b},gone-after=400)");
    let mut client = create(&daemon, "raid1", &[a, &faulty], &[]);
    write(&mut client, 0..20, 1);
    away(b);
    let mut block = 20;
    wait_for("the member to be left out", || {
        write(&mut client, block..block + 40, 1);
        block += 40;
        (health(&daemon) == "degraded").then_some(())
    });
    wait_for("the reason", || show(&daemon)["attention"].to_string().contains("has disappeared").then_some(()));
    back(b);
    wait_for_health(&daemon, "whole");
    check(&mut client, 0..block, 1);
    client.flush().expect("it flushes");
    let len = (block * BLOCK) as usize;
    assert!(data_of(&daemon, 0, a, len) == data_of(&daemon, 1, b, len), "the members differ");
}

#[test]
fn beyond_tolerance_reads_fail_and_flushed_data_survive() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let faulty = |path: &str, after: u32| format!("faulty({path},gone-after={after})");
    // The fault rules count anew when the disks return: the writes until then must fit into what the second rule
    // allows, twice over.
    let mut client = create(&daemon, "raid1", &[&faulty(a, 600), &faulty(b, 500)], &[]);
    write(&mut client, 0..50, 1);
    client.flush().expect("it flushes");
    let mut block = 50;
    while client.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_ok() {
        block += 1;
        assert!(block < 1100, "both disks are gone, and it still writes");
    }
    wait_for_health(&daemon, "failed");
    let shown = show(&daemon);
    assert_eq!(shown["state"], "failed", "{shown}");
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    // One event reports it, and none says that the array goes on.
    let events = daemon.events();
    assert!(events.contains("array_failed") && !events.contains("array_fault"), "{events}");
    drop(client);
    // The disks return, all at once.
    daemon.braid(&["array", "assemble", "data"]);
    wait_for_health(&daemon, "whole");
    check(&mut self::client(&daemon), 0..50, 1);
}

#[test]
fn unreadable_blocks_are_repaired_from_another_member() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let faulty = format!("faulty({b},read-error@2M-3M*40)");
    // Reads from the second member alone.
    let mut client = create(&daemon, "raid1", &[a, &faulty], &["--write-mostly", a]);
    write(&mut client, 0..64, 1);
    check(&mut client, 0..64, 1);
    wait_for("the repair", || daemon.events().contains("read_repaired").then_some(()));
    assert_eq!(health(&daemon), "whole");
    check(&mut client, 0..64, 1);
}

#[test]
fn raid10_over_uneven_disks_survives_a_kill_and_a_loss() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> = (0..4).map(|i| daemon.folder.sparse(&format!("d{i}"), (40 + 8 * i) * MIB)).collect();
    let [a, b, c, d] = &disks[..] else { panic!("four files") };
    let mut client = create(&daemon, "raid10", &[a, b, c, d], &["--chunk", "64K"]);
    write(&mut client, 0..200, 1);
    daemon.kill();
    daemon.start_again();
    let mut client2 = self::client(&daemon);
    check(&mut client2, 0..200, 1);
    wait_for_health(&daemon, "whole");
    daemon.braid(&["array", "fail", "data", c]);
    check(&mut client2, 0..200, 1);
    write(&mut client2, 200..300, 1);
    daemon.braid(&["array", "add", "data", c]);
    wait_for_health(&daemon, "whole");
    check(&mut client2, 0..300, 1);
    client.flush().expect_err("that connection ended with the daemon");
}

#[test]
fn invalid_commands_are_refused_with_a_reason_and_a_remedy() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let small = daemon.folder.sparse("small", 16 * MIB);
    let create = |arguments: &[&str]| {
        let mut all = vec!["array", "create", "data"];
        all.extend(arguments);
        daemon.refused(2, &all)
    };
    let check = |said: String, words: &str| assert!(said.contains(words), "{said}");
    check(create(&["--level", "raid1", a]), "needs 2 disks or more");
    check(create(&["--level", "raid1", "--copies", "3", a, b]), "only raid10");
    check(create(&["--level", "raid0", "--spare", b, a]), "no redundancy");
    check(create(&["--level", "raid1", a, b, "--spare", &small]), "room for");
    check(create(&["--level", "raid1", a, b, "--write-mostly", &small]), "no member");
    check(create(&["--level", "raid10", "--copies", "3", a, b]), "copies");
    daemon.braid(&["array", "create", "data", "--level", "raid1", a, b]);
    check(daemon.refused(3, &["array", "fail", "data", "7"]), "has no member 7");
    check(daemon.refused(4, &["array", "remove", "data", "1"]), "braid array fail data 1");
    check(daemon.refused(2, &["array", "spare", "data", &small]), "room for");
    check(daemon.refused(4, &["array", "add", "data", a]), "member 0");
    daemon.braid(&["array", "fail", "data", "1"]);
    check(daemon.refused(4, &["array", "fail", "data", "0"]), "would be lost");
    check(daemon.refused(2, &["array", "fail", "data", "1"]), "has failed already");
    daemon.braid(&["array", "remove", "data", "1"]);
    assert_eq!(member_state(&daemon, 1), "vacant");
    // After its removal the disk is a foreign one.
    check(daemon.refused(4, &["array", "add", "data", b]), "--force");
    daemon.braid(&["array", "add", "data", b, "--force"]);
    wait_for_health(&daemon, "whole");
    daemon.braid(&["array", "create", "plain", "--level", "raid0", "mem:32M"]);
    check(daemon.refused(2, &["array", "fail", "plain", "0"]), "no redundancy");
}

#[test]
fn a_waiting_mirror_starts_when_the_other_half_appears() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..10, 1);
    drop(client);
    daemon.stop();
    hide(&daemon, b);
    daemon.start_again();
    assert_eq!(show(&daemon)["state"], "incomplete");
    // The daemon has seen the disk as missing at least once.
    wait_for("a look or two", || {
        let uptime = daemon.json(&["status"])["uptime_ms"].as_u64()?;
        (uptime > 3000).then_some(())
    });
    unhide(&daemon, b);
    wait_for_health(&daemon, "whole");
    check(&mut self::client(&daemon), 0..10, 1);
}

#[test]
fn a_rebuild_is_a_job_that_can_be_paused_resumed_and_cancelled() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..400, 1);
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.braid(&["array", "remove", "data", "1"]);
    daemon.braid(&["array", "add", "data", &format!("throttled({c},bw=2M)")]);
    let job = wait_for("the job", || daemon.json(&["job", "list"])["jobs"].get(0).cloned());
    assert_eq!((job["kind"].as_str(), job["member"].as_u64()), (Some("rebuild"), Some(1)), "{job}");
    assert_eq!(health(&daemon), "rebuilding");
    let name = job["name"].as_str().expect("a name");
    daemon.braid(&["job", "pause", name]);
    assert!(daemon.json(&["job", "list"])["jobs"][0]["paused"].as_bool().expect("a word"));
    assert!(show(&daemon)["attention"].to_string().contains("is paused"));
    // The array serves meanwhile, and the new member receives all writes.
    write(&mut client, 400..410, 1);
    daemon.braid(&["job", "limit", name, "64M"]);
    daemon.braid(&["job", "resume", name]);
    wait_for("some progress", || {
        let job = daemon.json(&["job", "list"])["jobs"].get(0).cloned()?;
        (job["progress"]["done_bytes"].as_u64()? > 0).then_some(())
    });
    daemon.braid(&["job", "cancel", name]);
    assert_eq!(health(&daemon), "degraded");
    assert!(daemon.refused(3, &["job", "pause", name]).contains("no job"));
    check(&mut client, 0..410, 1);
    daemon.braid(&["array", "add", "data", c]);
    wait_for_health(&daemon, "whole");
    client.flush().expect("it flushes");
    let len = 410 * BLOCK as usize;
    assert!(data_of(&daemon, 0, a, len) == data_of(&daemon, 1, c, len), "the members differ");
}
