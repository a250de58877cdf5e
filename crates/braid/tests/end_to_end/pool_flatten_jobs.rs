//! Flattening a clone is a job: it pauses, is limited, is given up, and ends with whatever is done to the clone meanwhile.

use serde_json::Value;

use crate::pools::{check, check_zeros, client, export, write};
use crate::support::*;

/// Number of blocks of the volume that is cloned: three times as much as is copied at a time, so that a start needs
/// longer for the rest than until it looks at its jobs.
const ALL: u64 = 192;

fn flattening(daemon: &Daemon, volume: &str) -> Value {
    let jobs = daemon.json(&["job", "list"])["jobs"].as_array().expect("a list").clone();
    let found = jobs.into_iter().rfind(|job| job["kind"] == "flattening" && job["volume"] == volume);
    found.unwrap_or_else(|| panic!("{volume} has no job: {}", daemon.braid(&["job", "list"])))
}

fn name(job: &Value) -> String {
    job["name"].as_str().expect("a name").to_owned()
}

fn flattens(daemon: &Daemon, volume: &str) -> bool {
    daemon.json(&["volume", "show", volume])["flattening"] == true
}

fn ended(daemon: &Daemon, volume: &str, state: &str) {
    let is = || flattening(daemon, volume)["state"] == state;
    wait_for(&format!("the job of {volume} to be {state}"), || is().then_some(()));
}

/// Creates a pool slow enough to interrupt a job in the middle, a volume with a snapshot, and clones of the snapshot.
fn cloned(daemon: &Daemon, clones: &[&str]) {
    let slow = format!("throttled({},bw=8M)", daemon.folder.sparse("a.img", 200 * MIB));
    daemon.braid(&["pool", "create", "tank", &slow]);
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    export(daemon, "tank/db");
    write(&mut client(daemon, "tank/db"), 0..ALL, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    for clone in clones {
        daemon.braid(&["volume", "clone", "tank/db@monday", &format!("tank/{clone}")]);
    }
}

/// Starts flattening one clone and pauses the job in the middle, with a limit that stops all others after their first step. Returns its name.
fn held(daemon: &Daemon, volume: &str) -> String {
    daemon.braid(&["volume", "flatten", volume]);
    let job = name(&flattening(daemon, volume));
    daemon.braid(&["job", "limit", &job, "4K"]);
    let copied = || flattening(daemon, volume)["progress"]["done_bytes"].as_u64().filter(|bytes| *bytes > 0);
    wait_for("some to be copied", copied);
    assert!(flattens(daemon, volume), "it was over too early for this test");
    job
}

#[test]
fn flattening_is_paused_resumes_after_a_start_and_is_given_up() {
    let mut daemon = Daemon::start();
    cloned(&daemon, &["trial", "other"]);
    export(&daemon, "tank/trial");
    let job = held(&daemon, "tank/trial");
    daemon.braid(&["job", "pause", &job]);
    let shown = flattening(&daemon, "tank/trial");
    assert_eq!((&shown["state"], &shown["pool"]), (&Value::from("paused"), &Value::from("tank")), "{shown}");
    assert_eq!(shown["progress"]["total_bytes"], 64 * MIB, "{shown}");
    daemon.braid(&["job", "limit", &job, "0"]);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let left = flattening(&daemon, "tank/trial")["progress"].clone();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(flattening(&daemon, "tank/trial")["progress"]["done_bytes"], left["done_bytes"], "it waits");
    // A write to the clone does not wait for the job, and neither does another job.
    write(&mut client(&daemon, "tank/trial"), (0..ALL).step_by(9), 5000);
    let said = daemon.braid(&["volume", "flatten", "tank/other", "--wait"]);
    assert!(said.contains("flattening of tank/other") && said.contains("is done"), "{said}");
    assert_eq!(daemon.json(&["volume", "show", "tank/other"])["parent"], Value::Null);
    assert_eq!(flattening(&daemon, "tank/trial")["state"], "paused");

    // A start resumes the job, paused or not.
    daemon.restart(true);
    wait_for("it to be a job again", || {
        let jobs = daemon.json(&["job", "list"])["jobs"].as_array().expect("a list").clone();
        jobs.iter().any(|job| job["kind"] == "flattening").then_some(())
    });
    let job = name(&flattening(&daemon, "tank/trial"));
    let refused = daemon.any(&["job", "watch", &job]);
    assert!(refused.status.success(), "{refused:?}");
    ended(&daemon, "tank/trial", "done");
    assert!(!flattens(&daemon, "tank/trial"));

    // Given up by either command, the clone stays dependent and its content is unchanged.
    for by_job in [true, false] {
        let clone = format!("tank/late{by_job}");
        daemon.braid(&["volume", "clone", "tank/db@monday", &clone]);
        let job = held(&daemon, &clone);
        if by_job {
            daemon.braid(&["job", "cancel", &job]);
        } else {
            daemon.braid(&["volume", "flatten", &clone, "--cancel"]);
        }
        assert_eq!(flattening(&daemon, &clone)["state"], "cancelled");
        assert!(!flattens(&daemon, &clone));
        assert_eq!(daemon.json(&["volume", "show", &clone])["parent"], "tank/db@monday");
        export(&daemon, &clone);
        check(&mut client(&daemon, &clone), 0..ALL, 1);
        daemon.refused(3, &["job", "pause", &job]);
    }
    let mut trial = client(&daemon, "tank/trial");
    check(&mut trial, (0..ALL).step_by(9), 5000);
    check(&mut trial, (0..ALL).filter(|block| block % 9 != 0), 1);
    daemon.braid(&["pool", "check", "tank"]);
}

#[test]
fn a_clone_is_deleted_rolled_back_and_shrunk_in_the_middle_of_flattening() {
    for kill in [false, true] {
        let mut daemon = Daemon::start();
        cloned(&daemon, &["held", "gone", "back", "small"]);
        export(&daemon, "tank/small");
        write(&mut client(&daemon, "tank/small"), 3..5, 7000);
        export(&daemon, "tank/back");
        write(&mut client(&daemon, "tank/back"), 10..20, 8000);
        daemon.braid(&["export", "remove", "tank/back"]);
        let holds = held(&daemon, "tank/held");
        for clone in ["gone", "back", "small"] {
            daemon.braid(&["volume", "flatten", &format!("tank/{clone}")]);
        }
        // Runs each clone's job until it is in the middle of its copies, before the clone is changed.
        let some = |daemon: &Daemon, volume: &str| {
            daemon.braid(&["job", "limit", &holds, "0"]);
            let copied = || flattening(daemon, volume)["progress"]["done_bytes"].as_u64().filter(|bytes| *bytes > 0);
            wait_for("some to be copied", copied);
            daemon.braid(&["job", "limit", &holds, "4K"]);
        };
        daemon.braid(&["job", "pause", &holds]);
        some(&daemon, "tank/gone");
        daemon.braid(&["volume", "delete", "tank/gone", "--yes"]);
        ended(&daemon, "tank/gone", "cancelled");
        some(&daemon, "tank/back");
        daemon.braid(&["volume", "rollback", "tank/back", "tank/db@monday", "--yes"]);
        ended(&daemon, "tank/back", "cancelled");
        some(&daemon, "tank/small");
        daemon.braid(&["volume", "resize", "tank/small", "4M", "--force", "--yes"]);
        if kill {
            daemon.restart(true);
        } else {
            daemon.braid(&["job", "limit", &holds, "0"]);
            daemon.braid(&["job", "resume", &holds]);
        }
        for clone in ["held", "small"] {
            wait_for("the end", || (!flattens(&daemon, &format!("tank/{clone}"))).then_some(()));
        }
        // The clone began at the snapshot, and depends on it again.
        let shown = daemon.json(&["volume", "show", "tank/back"]);
        assert_eq!((&shown["parent"], &shown["flattening"]), (&Value::from("tank/db@monday"), &Value::from(false)));
        daemon.braid(&["volume", "resize", "tank/small", "64M"]);
        let others = |daemon: &Daemon| {
            for clone in ["tank/held", "tank/back"] {
                check(&mut client(daemon, clone), 0..ALL, 1);
            }
            let mut small = client(daemon, "tank/small");
            check(&mut small, 3..5, 7000);
            check(&mut small, (0..3).chain(5..64), 1);
            check_zeros(&mut small, 64..200);
        };
        for clone in ["tank/held", "tank/back"] {
            export(&daemon, clone);
        }
        others(&daemon);
        daemon.braid(&["pool", "check", "tank"]);
        // The clones are independent, except the one that was rolled back.
        for clone in ["tank/held", "tank/small"] {
            assert_eq!(daemon.json(&["volume", "show", clone])["parent"], Value::Null, "{clone}");
        }
        daemon.braid(&["snapshot", "delete", "tank/db@monday", "--yes"]);
        daemon.braid(&["export", "remove", "tank/db"]);
        daemon.braid(&["volume", "delete", "tank/db", "--yes"]);
        daemon.restart(kill);
        others(&daemon);
        daemon.braid(&["pool", "check", "tank"]);
    }
}
