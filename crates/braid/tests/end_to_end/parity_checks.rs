//! Bit rot on arrays with parity: a scrub finds it, and on raid6 names the member that has it.

use serde_json::{Value, json};

use crate::checks::{found, gone_over, rot};
use crate::mirrors::*;
use crate::support::*;

#[test]
fn raid6_names_a_corrupted_member_and_repairs_it_from_the_others() {
    let daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c", "d"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid6", &names, &[]);
    write(&mut client, 0..100, 1);
    client.flush().expect("it flushes");
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks")), (Some(0), 0), "{job}");
    assert!(found(&job, "compared_blocks") >= 100 * BLOCK / 4096, "{job}");

    // Stripe 0 has Q on member 0, data on 1 and 2, P on 3; stripe 1 has data on 0 and 1.
    rot(&daemon, 1, &disks[1], 4096, 100);
    rot(&daemon, 3, &disks[3], 2 * 4096, 4096);
    rot(&daemon, 0, &disks[0], 3 * 4096 + 7, 1);
    rot(&daemon, 1, &disks[1], BLOCK, 8192);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "repaired_blocks")), (Some(7), 5, 0), "{job}");
    let wrong = |member: u16, blocks: u64| json!({"member": member, "blocks": blocks});
    assert_eq!(job["findings"]["wrong_members"], json!([wrong(0, 1), wrong(1, 3), wrong(3, 1)]), "{job}");
    assert_eq!(
        job["findings"]["offsets_bytes"],
        json!([4096, 2 * 4096, 3 * 4096, 2 * BLOCK, 2 * BLOCK + 4096]),
        "{job}"
    );
    let status = daemon.any(&["status", "--check"]);
    assert!(
        status.status.code() == Some(5) && said(&status).contains("member 1 had 3 blocks wrong"),
        "{}",
        said(&status)
    );

    let (status, job) = gone_over(&daemon, "repair");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "repaired_blocks")), (Some(0), 5, 5), "{job}");
    assert!(daemon.events().contains("damage_repaired"), "{}", daemon.events());
    check(&mut client, 0..100, 1);
    assert_eq!(gone_over(&daemon, "check").0, Some(0));
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
    // The repaired data are right in every cell.
    for pair in [["1", "3"], ["0", "2"]] {
        pair.iter().for_each(|role| drop(daemon.braid(&["array", "fail", "data", role])));
        check(&mut client, 0..100, 1);
        pair.iter().for_each(|role| {
            crate::mirror_crashes::bring_back(&daemon, &disks[role.parse::<usize>().expect("a number")]);
        });
        wait_for_health(&daemon, "whole");
    }
}

#[test]
fn raid5_finds_corruption_and_makes_the_parity_agree() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &[]);
    write(&mut client, 0..60, 1);
    client.flush().expect("it flushes");
    // Corrupts the parity of stripe 0.
    rot(&daemon, 2, c, 0, 3 * 4096);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks")), (Some(7), 3), "{job}");
    assert_eq!(job["findings"]["wrong_members"], json!([]), "one parity cannot tell: {job}");
    let status = daemon.any(&["status", "--check"]);
    assert!(said(&status).contains("one parity cannot identify"), "{}", said(&status));
    let (status, job) = gone_over(&daemon, "repair");
    assert_eq!((status, found(&job, "repaired_blocks")), (Some(0), 3), "{job}");
    assert_eq!(gone_over(&daemon, "check").0, Some(0));
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, 0..60, 1);
    crate::mirror_crashes::bring_back(&daemon, a);
    wait_for_health(&daemon, "whole");

    // Blocks that cannot be read are computed and rewritten, by a user's read or by a scrub.
    daemon.braid(&["array", "fail", "data", "1"]);
    crate::mirror_crashes::bring_back(&daemon, &format!("faulty({b},read-error@1100K-1104K*3)"));
    wait_for_health(&daemon, "whole");
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "unreadable_blocks")), (Some(0), 0), "{job}");
    assert!(daemon.events().contains("read_repaired"), "{}", daemon.events());
    check(&mut client, 0..60, 1);
}

/// A raid5 without one of its members has no stripe to compare: a check is refused, and damage that was found before stays reported.
#[test]
fn a_degraded_raid5_refuses_a_check_and_keeps_reporting_earlier_damage() {
    let daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid5", &names, &[]);
    write(&mut client, 0..60, 1);
    client.flush().expect("it flushes");
    rot(&daemon, 2, &disks[2], 0, 4096);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks")), (Some(7), 1), "{job}");
    daemon.braid(&["array", "fail", "data", "0"]);
    for what in ["check", "repair"] {
        let refusal = daemon.refused(1, &["array", what, "data"]);
        assert!(refusal.contains("nothing of it can be compared, as member 0 is not in sync"), "{refusal}");
    }
    let status = daemon.any(&["status", "--check"]);
    assert!(said(&status).contains("its check found damage: "), "{}", said(&status));
}

/// Destroys the journals of the disks: overwrites everything from the end of the bitmap to the start of the data.
fn destroy_journals(disks: &[String]) {
    for disk in disks {
        let file = std::fs::File::options().write(true).open(disk).expect("a member's file");
        std::os::unix::fs::FileExt::write_all_at(&file, &noise(768 * KIB, 9), 256 * KIB).expect("it can be written");
    }
}

fn jobs(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let jobs = daemon.json(&["job", "list"])["jobs"].as_array().cloned().expect("a list");
    jobs.into_iter().filter(|job| job["kind"] == kind).collect()
}

fn repaired(daemon: &Daemon) -> Value {
    wait_for("the repair", || jobs(daemon, "repair").into_iter().find(|job| job["state"] == "done"))
}

/// Returns whether the status reports that parity may be older than the last writes.
fn is_in_doubt(daemon: &Daemon) -> bool {
    let status = daemon.any(&["status", "--check", "--json"]);
    let doubted = said(&status).contains("its parity may predate the last writes");
    assert!(!doubted || status.status.code() == Some(5), "{}", said(&status));
    doubted
}

/// A check that was running has seen stripes in their state before the crash: a start without the journal recomputes
/// all parity, from the first stripe on.
#[test]
fn a_forced_start_does_not_resume_an_earlier_check() {
    let mut daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c"]);
    let slow: Vec<String> = disks.iter().map(|disk| format!("throttled({disk},bw=6M)")).collect();
    let names: Vec<&str> = slow.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid5", &names, &[]);
    write(&mut client, 0..300, 1);
    client.flush().expect("it flushes");
    drop(client);
    let check = daemon.json(&["array", "check", "data"]);
    daemon.braid(&["job", "limit", check["name"].as_str().expect("a name"), "512K"]);
    let state = daemon.folder.join("state/state.json");
    wait_for("the check to be remembered", || {
        let text = std::fs::read_to_string(&state).ok()?;
        let saved: Value = serde_json::from_str(&text).ok()?;
        (saved["checks"][0]["position_bytes"].as_u64()? >= MIB).then_some(())
    });
    daemon.kill();
    destroy_journals(&disks);
    // A torn write in a stripe that the check has already passed: its parity does not match its data.
    let file = std::fs::File::options().write(true).open(&disks[2]).expect("a member's file");
    std::os::unix::fs::FileExt::write_all_at(&file, &noise(4096, 9), MIB).expect("it can be written");
    daemon.start_again();
    assert!(daemon.refused(1, &["array", "assemble", "data"]).contains("--force"));
    daemon.braid(&["array", "assemble", "data", "--force"]);
    assert!(jobs(&daemon, "check").is_empty(), "it goes on");
    let repair = repaired(&daemon);
    assert_eq!((found(&repair, "differing_blocks"), found(&repair, "repaired_blocks")), (1, 1), "{repair}");
    assert!(found(&repair, "compared_blocks") >= 300 * BLOCK / 4096, "{repair}");
    assert!(!is_in_doubt(&daemon));
    // The computed data are right.
    daemon.braid(&["array", "fail", "data", "0"]);
    self::check(&mut self::client(&daemon), (0..300).step_by(7), 1);
}

/// A raid5 without one of its members has no stripe to compare. The doubt about its parity persists, and the parity is
/// checked when all members are in sync.
#[test]
fn parity_in_doubt_is_checked_when_all_members_are_in_sync() {
    let mut daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid5", &names, &[]);
    write(&mut client, 0..40, 1);
    client.flush().expect("it flushes");
    drop(client);
    daemon.kill();
    destroy_journals(&disks[..2]);
    hide(&daemon, &disks[2]);
    daemon.start_again();
    daemon.braid(&["array", "assemble", "data", "--force"]);
    assert_eq!(health(&daemon), "degraded");
    assert!(is_in_doubt(&daemon), "{}", daemon.braid(&["status"]));
    assert!(daemon.events().contains("is checked when all members are in sync"), "{}", daemon.events());
    // The doubt persists across a crash and across a clean stop.
    for kill in [true, false] {
        daemon.restart(kill);
        wait_for_health(&daemon, "degraded");
        assert!(is_in_doubt(&daemon), "{}", daemon.braid(&["status"]));
        assert!(jobs(&daemon, "repair").is_empty());
    }
    unhide(&daemon, &disks[2]);
    wait_for("the member to return", || {
        daemon.any(&["array", "add", "data", &disks[2]]);
        (health(&daemon) == "whole").then_some(())
    });
    let repair = repaired(&daemon);
    assert_eq!((found(&repair, "uncompared_blocks"), found(&repair, "differing_blocks")), (0, 0), "{repair}");
    wait_for("the status", || (daemon.any(&["status", "--check"]).status.code() == Some(0)).then_some(()));
    check(&mut self::client(&daemon), 0..40, 1);
    daemon.restart(false);
    assert!(!is_in_doubt(&daemon) && jobs(&daemon, "repair").is_empty());
}
