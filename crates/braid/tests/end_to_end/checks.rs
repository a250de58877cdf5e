//! Checks and repairs of mirrors, and jobs that clients watch.

use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::mirrors::*;
use crate::support::*;

/// Changes bytes of a member behind the daemon's back, as silent corruption does.
pub fn rot(daemon: &Daemon, role: usize, path: &str, offset: u64, bytes: u64) {
    let start = show(daemon)["members"][role]["data_offset_bytes"].as_u64().expect("its place is known");
    let file = File::options().write(true).open(path).expect("the member's file can be opened");
    file.write_all_at(&noise(bytes, 99), start + offset).and_then(|()| file.sync_all()).expect("it can be written");
}

/// Runs a check or repair to its end. Returns the exit status and the job.
#[track_caller]
pub fn gone_over(daemon: &Daemon, verb: &str) -> (Option<i32>, Value) {
    let out = daemon.any(&["array", verb, "data", "--wait", "--json"]);
    let job = serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error} in {}", said(&out)));
    (out.status.code(), job)
}

#[track_caller]
pub fn found(job: &Value, what: &str) -> u64 {
    job["findings"][what].as_u64().unwrap_or_else(|| panic!("no {what} in {job}"))
}

#[test]
fn a_check_finds_corruption_and_a_repair_mends_it() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b, c], &[]);
    write(&mut client, 0..200, 1);
    client.flush().expect("it flushes");
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, &job["state"], found(&job, "differing_blocks")), (Some(0), &"done".into(), 0), "{job}");
    // A check reads whole regions: zeroed blocks beside written ones, too.
    assert!(found(&job, "compared_blocks") >= 200 * BLOCK / 4096, "{job}");
    assert_eq!(job["progress"]["done_bytes"], job["progress"]["total_bytes"]);

    // Two blocks of one member and one of another are corrupt: two copies of each are right.
    rot(&daemon, 0, a, 40 * BLOCK, 8192);
    rot(&daemon, 2, c, 150 * BLOCK + 4096, 100);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "repaired_blocks")), (Some(7), 3, 0), "{job}");
    let places = [40 * BLOCK, 40 * BLOCK + 4096, 150 * BLOCK + 4096];
    assert_eq!(job["findings"]["offsets_bytes"], serde_json::json!(places));
    assert!(daemon.events().contains("damage_found") && daemon.events().contains(&places[2].to_string()));
    let status = daemon.any(&["status", "--check", "--json"]);
    assert_eq!(status.status.code(), Some(5), "{}", said(&status));
    assert!(said(&status).contains("braid array repair data") && said(&status).contains("3 blocks differ"));
    // The job stays in the list, with its result.
    let listed = daemon.braid(&["job", "list"]);
    assert!(listed.contains("done") && listed.contains(&places[0].to_string()), "{listed}");
    assert_eq!(daemon.any(&["job", "watch", job["name"].as_str().expect("a name")]).status.code(), Some(7));

    let (status, job) = gone_over(&daemon, "repair");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "repaired_blocks")), (Some(0), 3, 3), "{job}");
    assert!(daemon.events().contains("damage_repaired"), "{}", daemon.events());
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
    let len = 200 * BLOCK as usize;
    let copies = [(0, a), (1, b), (2, c)].map(|(role, path)| data_of(&daemon, role, path, len));
    assert!(copies[0] == copies[1] && copies[1] == copies[2], "the members differ");
    crate::mirrors::check(&mut client, 0..200, 1);
    assert_eq!(gone_over(&daemon, "check").0, Some(0));
}

#[test]
fn a_check_repairs_unreadable_blocks_and_continues() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let faulty = format!("faulty({b},read-error@2M-2049K*3)");
    let mut client = create(&daemon, "raid1", &[a, &faulty], &[]);
    write(&mut client, 0..64, 1);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "unreadable_blocks")), (Some(0), 0, 0), "{job}");
    assert!(daemon.events().contains("read_repaired"), "{}", daemon.events());
    assert_eq!(health(&daemon), "whole");
}

#[test]
fn a_check_is_a_job_that_can_be_paused_limited_and_cancelled() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let slow = |path: &str| format!("throttled({path},bw=8M)");
    let mut client = create(&daemon, "raid1", &[&slow(a), &slow(b)], &[]);
    write(&mut client, 0..300, 1);
    let begun = daemon.json(&["array", "check", "data"]);
    assert_eq!((&begun["kind"], &begun["state"]), (&"check".into(), &"running".into()), "{begun}");
    let name = begun["name"].as_str().expect("a name");
    let refused = daemon.refused(4, &["array", "repair", "data"]);
    assert!(refused.contains(name) && refused.contains("job cancel"), "{refused}");
    daemon.braid(&["job", "pause", name]);
    let job = |name: &str| {
        let jobs = daemon.json(&["job", "list"])["jobs"].clone();
        jobs.as_array().expect("a list").iter().find(|job| job["name"] == name).cloned().expect("it is listed")
    };
    assert_eq!((&job(name)["state"], &job(name)["paused"]), (&"paused".into(), &true.into()));
    // Client I/O continues.
    crate::mirrors::check(&mut client, 0..4, 1);
    daemon.braid(&["job", "limit", name, "64M"]);
    daemon.braid(&["job", "resume", name]);
    assert_eq!((&job(name)["state"], &job(name)["limit_bytes_per_s"]), (&"running".into(), &(64 * MIB).into()));
    wait_for("some progress", || (job(name)["progress"]["done_bytes"].as_u64()? > 0).then_some(()));
    daemon.braid(&["job", "cancel", name]);
    assert_eq!(job(name)["state"], "cancelled");
    assert!(daemon.refused(3, &["job", "resume", name]).contains("no job"));
    assert_eq!(daemon.any(&["job", "watch", name]).status.code(), Some(1));
    assert!(daemon.events().contains("check_ended"), "{}", daemon.events());

    // Over HTTP the job is accepted, and the reply names its location.
    let socket = daemon.folder.join("api.sock");
    let reply = run("curl", &["-si", "--unix-socket", &socket, "-X", "POST", "http://braid/v1/arrays/data/check"]);
    assert!(reply.starts_with("HTTP/1.1 202") && reply.contains("location: /v1/jobs/data:"), "{reply}");
    // Stopping an array ends its jobs.
    drop(client);
    daemon.braid(&["array", "stop", "data", "--force"]);
    assert_eq!(daemon.json(&["job", "list"])["jobs"], serde_json::json!([]));
}

/// A check that could compare only a part reports so, and does not end the alarm of an earlier check about the part
/// that it did not read.
#[test]
fn a_partial_check_reports_so_and_keeps_the_alarm() {
    let mut daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c", "d"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid10", &names, &[]);
    write(&mut client, 0..100, 1);
    client.flush().expect("it flushes");
    rot(&daemon, 2, &disks[2], 0, 4096);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "uncompared_blocks")), (Some(7), 1, 0), "{job}");

    // The alarm survives a restart and a kill of the daemon.
    drop(client);
    for kill in [false, true] {
        daemon.restart(kill);
        let status = daemon.any(&["status", "--check"]);
        assert!(said(&status).contains("its check found damage: "), "{}", said(&status));
    }
    daemon.braid(&["array", "fail", "data", "3"]);
    for what in ["check", "repair"] {
        let (status, job) = gone_over(&daemon, what);
        assert_eq!((status, found(&job, "differing_blocks")), (Some(5), 0), "{job}");
        assert!(found(&job, "compared_blocks") > 0 && found(&job, "uncompared_blocks") > 0, "{job}");
        let status = daemon.any(&["status", "--check"]);
        assert!(said(&status).contains("its check found damage: "), "{}", said(&status));
    }
    let text = daemon.any(&["array", "check", "data", "--wait"]);
    assert!(said(&text).contains("could not be compared") && text.status.code() == Some(5), "{}", said(&text));
    assert!(daemon.events().contains("check_partial"), "{}", daemon.events());
    daemon.braid(&["array", "fail", "data", "1"]);
    let refusal = daemon.refused(1, &["array", "check", "data"]);
    assert!(refusal.contains("members 1, 3 are not in sync"), "{refusal}");

    for disk in [&disks[1], &disks[3]] {
        daemon.braid(&["array", "add", "data", disk, "--wait"]);
    }
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "uncompared_blocks")), (Some(0), 0), "{job}");
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
}

/// Where nothing is written there is nothing to compare, and the check reports that.
#[test]
fn a_check_of_an_unwritten_array_reports_so() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    drop(create(&daemon, "raid1", &[a, b], &[]));
    let text = daemon.braid(&["array", "check", "data", "--wait"]);
    assert!(text.contains("nothing was ever written, and nothing was compared"), "{text}");
}

#[test]
fn a_check_is_refused_for_a_single_copy_and_for_arrays_without_redundancy() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..20, 1);
    daemon.braid(&["array", "fail", "data", "1"]);
    for what in ["check", "repair"] {
        let refusal = daemon.refused(1, &["array", what, "data"]);
        assert!(refusal.contains("nothing of it can be compared, as member 1 is not in sync"), "{refusal}");
        assert!(refusal.contains("braid array show data"), "{refusal}");
    }
    daemon.braid(&["array", "create", "plain", "--level", "raid0", "mem:32M"]);
    assert!(daemon.refused(2, &["array", "check", "plain"]).contains("no redundancy"));
    assert!(daemon.refused(3, &["array", "repair", "nowhere"]).contains("nowhere"));
    assert!(daemon.refused(3, &["job", "watch", "data:77"]).contains("no job"));
    // Adds a member and waits for its rebuild with one command.
    let out = daemon.braid(&["array", "add", "data", b, "--wait"]);
    assert!(out.contains("rebuild of member 1") && out.contains("is done"), "{out}");
    assert_eq!(health(&daemon), "whole");
}

#[test]
fn a_check_resumes_where_it_was_after_a_restart() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let slow = |path: &str| format!("throttled({path},bw=6M)");
    let mut client = create(&daemon, "raid1", &[&slow(a), &slow(b)], &[]);
    write(&mut client, 0..200, 1);
    client.flush().expect("it flushes");
    drop(client);
    rot(&daemon, 1, b, 3 * BLOCK, 4096);
    daemon.braid(&["array", "repair", "data"]);
    let job = |daemon: &Daemon| daemon.json(&["job", "list"])["jobs"][0].clone();
    let done = |job: &Value| job["progress"]["done_bytes"].as_u64().expect("bytes");
    wait_for("a good part", || (done(&job(&daemon)) > 2 * MIB).then_some(()));
    let before = done(&job(&daemon));
    daemon.restart(false);
    self::client(&daemon);
    let after = wait_for("the job", || Some(job(&daemon)).filter(Value::is_object));
    assert_eq!((&after["kind"], &after["state"]), (&"repair".into(), &"running".into()), "{after}");
    // The position is the last one reported, less a block or two.
    assert!(done(&after) + MIB > before, "{after} was at {before}");
    assert_eq!((found(&after, "differing_blocks"), found(&after, "repaired_blocks")), (1, 1), "{after}");
    // The check continues after a kill as well.
    daemon.restart(true);
    self::client(&daemon);
    // It is not the only job: the resync after the crash runs first.
    let repair = |daemon: &Daemon| {
        let jobs = daemon.json(&["job", "list"])["jobs"].as_array().cloned().expect("a list");
        jobs.into_iter().find(|job| job["kind"] == "repair")
    };
    let after = wait_for("the job", || repair(&daemon));
    assert_eq!(found(&after, "repaired_blocks"), 1, "{after}");
    let name = after["name"].as_str().expect("a name");
    daemon.braid(&["job", "cancel", name]);
    daemon.restart(true);
    self::client(&daemon);
    assert_eq!(repair(&daemon), None);
}

/// Blocks that the resync after a crash could read from no member are reported although the members are called equal,
/// and stay reported until a check reads them.
#[test]
fn blocks_that_a_resync_could_read_from_no_member_stay_reported() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    // Lost sectors at the same address of both members: two blocks of 4 KiB.
    let bad = |path: &str| format!("faulty({path},bad@2M-2056K)");
    let mut client = create(&daemon, "raid1", &[&bad(a), &bad(b)], &[]);
    write(&mut client, 0..64, 1);
    let data_start = show(&daemon)["members"][0]["data_offset_bytes"].as_u64().expect("its place is known");
    let block = (2 * MIB - data_start) / BLOCK;
    drop(client);
    // Freshly written blocks are readable. After a start they are not, as the fault rules begin anew.
    daemon.restart(true);
    let event = "the resync of array data is complete, except 2 blocks that could be read from no member";
    wait_for("the resync", || daemon.events().contains(event).then_some(()));
    let status = |daemon: &Daemon| said(&daemon.any(&["status", "--check", "--json"]));
    let reported = status(&daemon);
    assert!(reported.contains("its resync found damage: 2 blocks cannot be read, at byte "), "{reported}");
    // After an orderly stop no resync runs, and the damage is still reported.
    daemon.restart(false);
    let reported = status(&daemon);
    assert!(reported.contains("found damage: 2 blocks cannot be read, at byte "), "{reported}");
    let mut client = self::client(&daemon);
    write(&mut client, block..block + 1, 1);
    let (code, job) = gone_over(&daemon, "check");
    assert_eq!((code, found(&job, "unreadable_blocks")), (Some(0), 0), "{job}");
    let reported = status(&daemon);
    assert!(!reported.contains("found damage"), "{reported}");
    crate::mirrors::check(&mut client, 0..64, 1);
}
