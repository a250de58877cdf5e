//! Pools on disks that fail, are old copies, or were used apart; in-memory logs that are lost.

use braid_format::pool::PoolLabel;
use serde_json::Value;

use crate::pools::{check, client, export, names, socket, write};
use crate::support::*;

pub fn has_event(daemon: &Daemon, kind: &str) -> bool {
    daemon.events().contains(&format!("\"{kind}\""))
}

pub fn attention(daemon: &Daemon) -> String {
    let shown = daemon.json(&["pool", "show", "tank"]);
    let list = shown["attention"].as_array().expect("a list").iter().filter_map(Value::as_str);
    format!("{}: {}", shown["state"].as_str().expect("a word"), list.collect::<Vec<_>>().join("; "))
}

#[test]
fn a_failing_disk_fails_the_pool_and_a_restart_opens_it_again() {
    let mut daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    let b = format!("faulty({},gone-after=1500)", daemon.folder.sparse("b.img", 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &a, &b]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..200, 1);
    db.flush().expect("it is durable");
    // Overwrites need no log entry, so that nothing waits to be committed when the flush fails.
    let failed = (0..4000).any(|_| {
        let wrote = db.write(0, &noise(64 * KIB, 1)).is_ok();
        !(db.flush().is_ok() && wrote)
    });
    assert!(failed, "the disk is gone");
    let said = wait_for("the pool to be failed", || Some(attention(&daemon)).filter(|said| said.starts_with("failed")));
    assert!(said.contains("nothing more can be made durable"), "{said}");
    assert!(has_event(&daemon, "pool_failed"));
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    let metrics = daemon.any(&["status"]);
    assert!(String::from_utf8_lossy(&metrics.stdout).contains("tank"), "{metrics:?}");
    // Changes that have to be durable are refused, and leave nothing.
    let refused = daemon.refused(1, &["snapshot", "create", "tank/db@late"]);
    assert!(refused.contains("nothing can be made durable"), "{refused}");
    drop(db);
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..200, 1);
    assert_eq!(daemon.json(&["pool", "show", "tank"])["state"], "active");
    daemon.braid(&["snapshot", "create", "tank/db@now"]);
}

/// An array that has lost more members than it tolerates does not start under a pool that serves: the pool would go on
/// with a device that is gone.
#[test]
fn a_failed_array_under_a_serving_pool_is_refused_and_the_remedy_works() {
    let mut daemon = Daemon::start();
    let faulty = |name: &str, after: u32| {
        format!("faulty({},gone-after={after})", daemon.folder.sparse(&format!("{name}.img"), 96 * MIB))
    };
    let (a, b) = (faulty("a", 1500), faulty("b", 1400));
    daemon.braid(&["array", "create", "safe", "--level", "raid1", &a, &b]);
    daemon.braid(&["pool", "create", "tank", "safe"]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..50, 1);
    db.flush().expect("it is durable");
    let writes = |k: u64| 16 * MIB + k % 16 * 64 * KIB;
    let failed = (0..8000).any(|k| !(db.write(writes(k), &noise(64 * KIB, k)).is_ok() && db.flush().is_ok()));
    assert!(failed, "both disks are gone");
    drop(db);
    wait_for("the array to be failed", || (daemon.json(&["array", "show", "safe"])["state"] == "failed").then_some(()));
    let remedy = "restart the daemon, which starts the array and then reopens pool tank";
    let flat = |text: &[u8]| String::from_utf8_lossy(text).split_whitespace().collect::<Vec<_>>().join(" ");
    let refused = flat(daemon.refused(1, &["array", "assemble", "safe"]).as_bytes());
    assert!(refused.contains("while pool tank, which is on it, serves") && refused.contains(remedy), "{refused}");
    let status = flat(&daemon.any(&["status"]).stdout);
    assert!(status.contains(remedy), "status says the same: {status}");
    // An orderly stop reports that the pool was not closed cleanly; the start after a kill is the harder one.
    daemon.restart(true);
    assert_eq!(daemon.json(&["pool", "show", "tank"])["state"], "active");
    check(&mut client(&daemon, "tank/db"), 0..50, 1);
}

#[test]
fn a_pool_with_a_missing_disk_can_be_deleted_and_frees_the_others() {
    let daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    let b = format!("faulty({},gone-after=600)", daemon.folder.sparse("b.img", 96 * MIB));
    // The disk that fails comes first.
    daemon.braid(&["pool", "create", "tank", &b, &a]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    assert!((0..4000).any(|k| db.write(k % 1000 * 64 * KIB, &noise(64 * KIB, k)).is_err() || db.flush().is_err()));
    // A failed pool changes nothing that a command could wait for.
    wait_for("the pool to be failed", || attention(&daemon).starts_with("failed").then_some(()));
    let begun = std::time::Instant::now();
    let refused = daemon.refused(1, &["pool", "delete", "tank", "--yes", "--force"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it waited for nothing");
    assert!(refused.contains("b.img") && refused.contains("braid disk wipe"), "{refused}");
    assert_eq!(names(&daemon.json(&["pool", "list"]), "pools"), [""; 0]);
    daemon.braid(&["pool", "create", "other", &a]);
}

#[test]
fn an_in_memory_log_removed_after_a_kill_is_reported() {
    let mut daemon = Daemon::start();
    let mut db = crate::pools::pool(&daemon);
    write(&mut db, 0..10, 1);
    db.flush().expect("it is durable");
    daemon.restart(false);
    daemon.restart(true);
    assert!(attention(&daemon).starts_with("active: "), "a kill alone loses nothing");
    assert!(!has_event(&daemon, "pool_memory_log_lost"));
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 10..20, 1);
    drop(db);
    daemon.kill();
    let shared = daemon.folder.join("shared");
    std::fs::remove_dir_all(&shared).expect("it can be removed");
    daemon.start_again();
    assert!(has_event(&daemon, "pool_memory_log_lost"));
    assert!(attention(&daemon).contains("was not in shared memory"), "{}", attention(&daemon));
    check(&mut client(&daemon, "tank/db"), 0..10, 1);
    // A clean stop leaves no in-memory log, and none is reported missing.
    daemon.restart(false);
    assert_eq!(attention(&daemon), "active: ");
}

#[test]
fn nothing_is_overwritten_before_all_disks_are_known_to_be_usable() {
    let daemon = Daemon::start();
    let foreign = daemon.folder.join("foreign.img");
    let before = [&[0; 1080][..], &[0x53, 0xef], &vec![7; 64 << 20][..(64 << 20) - 1082]].concat();
    std::fs::write(&foreign, &before).expect("it can be written");
    let labelled = daemon.folder.sparse("labelled.img", 64 * MIB);
    daemon.braid(&["array", "create", "old", "--level", "raid0", &labelled]);
    daemon.braid(&["array", "stop", "old"]);
    let label = std::fs::read(&labelled).expect("it is a file");
    let small = daemon.folder.sparse("small.img", MIB / 4);
    let refused = daemon.refused(2, &["pool", "create", "tank", &foreign, &labelled, &small, "--force", "--yes"]);
    assert!(refused.contains("small.img") && refused.contains("cannot be a member"), "{refused}");
    assert!(std::fs::read(&foreign).expect("it is a file") == before, "it is as it was");
    assert!(std::fs::read(&labelled).expect("it is a file") == label, "it is as it was");
    daemon.braid(&["array", "assemble", "old"]);
}

#[test]
fn members_that_were_used_apart_are_not_combined() {
    let mut daemon = Daemon::start();
    drop(crate::pools::pool(&daemon));
    daemon.stop();
    let (a, b) = (daemon.folder.join("a.img"), daemon.folder.join("b.img"));
    let keep = |from: &str, name: &str| {
        let to = daemon.folder.join(name);
        std::fs::copy(from, &to).expect("it can be copied");
        to
    };
    let (old_a, old_b) = (keep(&a, "old-a"), keep(&b, "old-b"));
    daemon.start_again();
    daemon.stop();
    let once_a = daemon.folder.join("once-a");
    std::fs::copy(&a, &once_a).expect("it can be copied");
    for (from, to) in [(&old_a, &a), (&old_b, &b)] {
        std::fs::copy(from, to).expect("it can be copied");
    }
    daemon.start_again();
    daemon.stop();
    std::fs::copy(&once_a, &a).expect("it can be copied");
    for path in [&old_a, &old_b, &once_a] {
        std::fs::remove_file(path).expect("it can be removed");
    }
    daemon.start_again();
    let said = attention(&daemon);
    assert!(said.starts_with("failed") && said.contains("used separately"), "{said}");
    assert!(crate::nbd::Client::open(&socket(&daemon), "tank/db").is_err());
}

#[test]
fn features_that_forbid_writing_are_respected() {
    let mut daemon = Daemon::start();
    drop(crate::pools::pool(&daemon));
    daemon.stop();
    for name in ["a.img", "b.img"] {
        let path = daemon.folder.join(name);
        let mut bytes = std::fs::read(&path).expect("it is a file");
        let mut label = PoolLabel::decode(&bytes[..4096]).expect("it bears a label");
        label.features.read_only |= 1 << 40;
        let encoded = label.encode().expect("it can be one");
        for at in [label.layout.label_start, label.layout.copy_start] {
            bytes[at as usize..at as usize + encoded.len()].copy_from_slice(&encoded);
        }
        std::fs::write(&path, &bytes).expect("it can be written");
    }
    let before = std::fs::read(daemon.folder.join("a.img")).expect("it is a file");
    daemon.start_again();
    let said = attention(&daemon);
    assert!(said.starts_with("failed") && said.contains("newer version"), "{said}");
    assert!(std::fs::read(daemon.folder.join("a.img")).expect("it is a file") == before, "nothing was written");
}
