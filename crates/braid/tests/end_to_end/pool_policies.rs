//! Snapshots taken on a schedule.

use std::time::Duration;

use crate::pools::{check, client, export, names, pool, write};
use crate::support::*;

/// Returns the snapshots that the schedule has taken, the oldest first.
fn own(daemon: &Daemon) -> Vec<String> {
    let mut all = names(&daemon.json(&["snapshot", "list", "tank/db"]), "snapshots");
    all.retain(|name| name.starts_with("tank/db@auto-2"));
    all
}

fn newest_but(daemon: &Daemon, known: &str) -> String {
    wait_within(Duration::from_secs(40), "the next one", || own(daemon).pop().filter(|name| name != known))
}

#[test]
fn scheduled_snapshots_are_taken_and_only_those_are_deleted() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..4, 1);
    daemon.braid(&["snapshot", "create", "tank/db@mine"]);
    let set = daemon.json(&["snapshot", "policy", "tank/db", "--every", "10s", "--keep", "1"]);
    assert_eq!((&set["policy"]["every_s"], &set["policy"]["keep"]), (&10.into(), &1.into()), "{set}");
    let text = daemon.braid(&["snapshot", "policy", "tank/db"]);
    assert!(text.contains("every 10 seconds") && text.contains("newest 1"), "{text}");
    let first = newest_but(&daemon, "");
    // A snapshot in use is kept, and that is reported, once.
    export(&daemon, &first);
    write(&mut db, 0..4, 100);
    let second = newest_but(&daemon, &first);
    wait_for("that to be said", || daemon.events().contains("snapshot_kept").then_some(()));
    assert_eq!(own(&daemon), [first.clone(), second.clone()]);
    let mut old = client(&daemon, &first);
    check(&mut old, 0..4, 1);
    drop(old);
    // A snapshot that a volume was cloned from is kept, too.
    daemon.braid(&["volume", "clone", &second, "tank/trial"]);
    let third = newest_but(&daemon, &second);
    wait_for("that to be said of both", || {
        let said = daemon.json(&["events"]).to_string();
        (said.matches("snapshot_kept").count() == 2).then_some(())
    });
    daemon.braid(&["volume", "delete", "tank/trial", "--yes"]);
    daemon.braid(&["export", "remove", &first]);
    let within = Duration::from_secs(30);
    wait_within(within, "both to go", || (!own(&daemon).iter().any(|s| *s == first || *s == second)).then_some(()));

    // The schedule continues after a kill; with one a day, no missed snapshot is made up for.
    daemon.restart(true);
    newest_but(&daemon, &third);
    wait_for("one alone", || (own(&daemon).len() == 1).then_some(()));
    daemon.braid(&["snapshot", "policy", "tank/db", "--every", "1d", "--keep", "7"]);
    daemon.restart(false);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(own(&daemon).len(), 1);
    let all = names(&daemon.json(&["snapshot", "list", "tank/db"]), "snapshots");
    assert!(all.contains(&"tank/db@mine".to_owned()), "a snapshot taken by a user stays: {all:?}");

    let refused = daemon.refused(2, &["snapshot", "create", "tank/db@auto-20200101T000000Z"]);
    assert!(refused.contains("reserved for scheduled snapshots"), "{refused}");
    daemon.refused(2, &["snapshot", "rename", "tank/db@mine", "auto-20200101T000000Z"]);
    // A renamed snapshot no longer belongs to the schedule.
    let last = own(&daemon).remove(0);
    daemon.braid(&["snapshot", "rename", &last, "kept"]);
    daemon.refused(2, &["snapshot", "policy", "tank/db", "--every", "1s", "--keep", "1"]);
    daemon.refused(2, &["snapshot", "policy", "tank/db", "--every", "1h"]);
    daemon.refused(2, &["snapshot", "policy", "tank/db", "--every", "1h", "--keep", "0"]);
    daemon.refused(2, &["snapshot", "policy", "tank/db", "--every", "1h", "--keep", "10001"]);
    daemon.refused(3, &["snapshot", "policy", "tank/no", "--none"]);
    newest_but(&daemon, "");
    daemon.braid(&["snapshot", "policy", "tank/db", "--none"]);
    assert!(daemon.json(&["volume", "show", "tank/db"])["policy"].is_null());
    let all = names(&daemon.json(&["snapshot", "list", "tank/db"]), "snapshots");
    assert_eq!(all.len(), 3, "what there is stays: {all:?}");
}

#[test]
fn schedules_of_several_volumes_take_snapshots_at_one_instant() {
    let daemon = Daemon::start();
    drop(pool(&daemon));
    daemon.braid(&["volume", "create", "tank/log", "1G"]);
    for volume in ["tank/db", "tank/log"] {
        daemon.braid(&["snapshot", "policy", volume, "--every", "10s", "--keep", "100"]);
    }
    // Returns the times of the snapshots of a volume, the oldest first.
    let times = |volume: &str| -> Vec<String> {
        let own = names(&daemon.json(&["snapshot", "list", volume]), "snapshots");
        own.iter().map(|name| name.split_once('@').expect("a snapshot").1.to_owned()).collect()
    };
    wait_within(Duration::from_secs(40), "two of the same moment", || {
        let (db, log) = (times("tank/db"), times("tank/log"));
        (db.iter().filter(|time| log.contains(time)).count() >= 2).then_some(())
    });
    // Deleting a volume deletes its schedule, too.
    daemon.braid(&["snapshot", "policy", "tank/log", "--none"]);
    for time in times("tank/log") {
        daemon.braid(&["snapshot", "delete", &format!("tank/log@{time}"), "--yes"]);
    }
    daemon.braid(&["volume", "delete", "tank/log", "--yes"]);
    let known = times("tank/db").len();
    wait_within(Duration::from_secs(30), "a further one", || (times("tank/db").len() > known).then_some(()));
    assert!(!daemon.events().contains("snapshot_policy_failed"), "{}", daemon.events());
}

#[test]
fn a_snapshot_that_cannot_be_taken_is_reported_once_and_retried() {
    let daemon = Daemon::start();
    drop(pool(&daemon));
    // Fills all slots for volumes and snapshots: one for each MiB of a member, 1,024 at least.
    let volumes: Vec<String> = (0..60).map(|n| format!("tank/v{n}")).collect();
    for volume in &volumes {
        daemon.braid(&["volume", "create", volume, "1M"]);
    }
    let snapshots = |round: u64, count: usize| -> Vec<String> {
        volumes.iter().take(count).map(|volume| format!("{volume}@s{round}")).collect()
    };
    let mut all = vec!["snapshot".to_owned(), "create".to_owned()];
    all.extend(snapshots(99, 60));
    let refused = daemon.refused(4, &all.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(refused.contains("so many snapshots at one instant"), "{refused}");
    let mut left = 1024 - 61;
    for round in 0..48 {
        let taken = snapshots(round, 20);
        let mut command = vec!["snapshot", "create"];
        command.extend(taken.iter().map(String::as_str));
        daemon.braid(&command);
        left -= taken.len();
    }
    assert_eq!(left, 3);
    for name in ["tank/v0@a", "tank/v0@b", "tank/v0@c"] {
        daemon.braid(&["snapshot", "create", name]);
    }
    daemon.refused(4, &["snapshot", "create", "tank/v0@d"]);

    daemon.braid(&["snapshot", "policy", "tank/db", "--every", "10s", "--keep", "5"]);
    wait_for("that it fails", || daemon.events().contains("snapshot_policy_failed").then_some(()));
    let status = daemon.json(&["pool", "show", "tank"])["attention"].to_string();
    assert!(status.contains("no snapshot of volume tank/db could be taken by its policy"), "{status}");
    // The snapshot is retried meanwhile, and not reported again.
    std::thread::sleep(Duration::from_secs(12));
    for name in ["tank/v0@a", "tank/v0@b", "tank/v0@c", "tank/v1@s0", "tank/v2@s0", "tank/v3@s0"] {
        daemon.braid(&["snapshot", "delete", name, "--yes"]);
    }
    wait_within(Duration::from_secs(60), "one to be taken", || own(&daemon).pop());
    wait_for("that it works", || daemon.events().contains("snapshot_policy_works").then_some(()));
    let said = daemon.json(&["events"]).to_string().matches("snapshot_policy_failed").count();
    assert_eq!(said, 1, "once");
    wait_for("nothing to need attention", || {
        let pool = daemon.json(&["pool", "show", "tank"]);
        (pool["attention"].as_array()?.is_empty()).then_some(())
    });
}
