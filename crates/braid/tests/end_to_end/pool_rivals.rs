//! Concurrent commands, and arrays under pools: no command gets or overwrites what another one uses.

use std::time::Duration;

use crate::pools::{BLOCK, check, client, export, free, names, pool, socket, write};
use crate::support::*;

/// Checks that the volume or array of every listening export exists.
#[track_caller]
fn check_exports(daemon: &Daemon) {
    let mut there = names(&daemon.json(&["volume", "list"]), "volumes");
    there.extend(names(&daemon.json(&["array", "list"]), "arrays"));
    let list = daemon.json(&["export", "list"]);
    for export in list["exports"].as_array().expect("a list") {
        let of = export["array"].as_str().expect("a name").to_owned();
        assert!(there.contains(&of) || export["state"] != "listening", "{export} of what is not there: {there:?}");
    }
}

#[test]
fn an_export_never_outlives_its_volume_or_pool() {
    let daemon = Daemon::start();
    drop(pool(&daemon));
    let at = format!("unix:{}", socket(&daemon));
    let mut outcomes = [0; 2];
    for round in 0..24 {
        daemon.braid(&["volume", "create", "tank/short", "64M"]);
        let add = ["export", "add", "tank/short", "--nbd", &at];
        let force = ["volume", "delete", "tank/short", "--yes", "--force"];
        let delete = if round % 2 == 0 { &force[..] } else { &force[..4] };
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| daemon.any(&add));
            let deleting = scope.spawn(|| daemon.any(delete));
            let (added, deleted) = (adding.join().unwrap(), deleting.join().unwrap());
            outcomes[0] += u32::from(added.status.success());
            outcomes[1] += u32::from(deleted.status.success());
        });
        check_exports(&daemon);
        // If the export was added first, the deletion was refused, or removed the export too.
        daemon.any(&force);
    }
    assert!(outcomes[1] > 0, "{outcomes:?}");
    let spare = daemon.folder.sparse("spare.img", 64 * MIB);
    for _ in 0..8 {
        daemon.braid(&["pool", "create", "brief", &spare, "--force", "--yes"]);
        daemon.braid(&["volume", "create", "brief/one", "1G"]);
        let add = ["export", "add", "brief/one", "--nbd", &at];
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| daemon.any(&add));
            let deleted = daemon.any(&["pool", "delete", "brief", "--yes", "--force"]);
            assert!(deleted.status.success(), "{deleted:?}");
            adding.join().unwrap();
        });
        check_exports(&daemon);
        daemon.any(&["export", "remove", "brief/one"]);
    }
    write(&mut client(&daemon, "tank/db"), 0..4, 1);
}

#[test]
fn an_array_of_a_waiting_pool_still_belongs_to_the_pool() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> = ["a", "b", "c"].map(|name| daemon.folder.sparse(name, 96 * MIB)).into();
    daemon.braid(&["array", "create", "one", "--level", "raid0", &disks[0]]);
    daemon.braid(&["array", "create", "two", "--level", "raid0", &disks[1]]);
    daemon.braid(&["pool", "create", "tank", "one", "two"]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    write(&mut client(&daemon, "tank/db"), 0..100, 1);
    daemon.kill();
    std::fs::create_dir(daemon.folder.join("elsewhere")).expect("it can be made");
    let hidden_path = daemon.folder.join("elsewhere/away");
    std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
    daemon.start_again();
    let shown = daemon.json(&["pool", "show", "tank"]);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    assert!(shown["attention"][0].as_str().expect("a sentence").contains("array two"), "{shown}");
    // An export of the array, or its use by another pool, would overwrite the data of the pool.
    let refused = |arguments: &[&str]| {
        let said = daemon.refused(4, arguments);
        assert!(said.contains("member 0 of pool tank, which is incomplete"), "{said}");
    };
    refused(&["export", "add", "one", "--nbd", &format!("unix:{}", socket(&daemon))]);
    refused(&["array", "delete", "one", "--yes", "--force"]);
    refused(&["pool", "create", "other", "one", "--force", "--yes"]);
    daemon.refused(4, &["array", "create", "tank", "--level", "raid0", &disks[2]]);
    // Stopping the array changes nothing on it; the pool is remembered even when none of its members is present.
    daemon.braid(&["array", "stop", "one"]);
    daemon.restart(false);
    let shown = daemon.json(&["pool", "show", "tank"]);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(2), "{shown}");
    daemon.refused(4, &["pool", "create", "tank", &disks[2]]);
    std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
    daemon.braid(&["array", "assemble", "one"]);
    daemon.braid(&["array", "assemble"]);
    check(&mut client(&daemon, "tank/db"), 0..100, 1);
    assert!(free(&daemon) > 0);
}

/// Only the deletion waits for requests that a slow disk has in flight.
#[test]
fn deleting_a_pool_with_a_slow_disk_delays_no_other_export() {
    let daemon = Daemon::start();
    let slow = format!("throttled({},bw=2M)", daemon.folder.sparse("slow.img", 96 * MIB));
    let other = daemon.folder.sparse("other.img", 96 * MIB);
    for (pool, disk) in [("tank", &slow), ("other", &other)] {
        daemon.braid(&["pool", "create", pool, disk]);
        daemon.braid(&["volume", "create", &format!("{pool}/v"), "64M"]);
    }
    export(&daemon, "tank/v");
    let mut slow = client(&daemon, "tank/v");
    // About ten seconds in flight; the client is disconnected, and its requests continue.
    let writing = std::thread::spawn(move || slow.write(0, &noise(24 * MIB, 1)));
    wait_for("requests in flight on the slow disk", || {
        let api = daemon.folder.join("api.sock");
        let metrics = run("curl", &["-sSf", "--unix-socket", &api, "http://braid/metrics"]);
        let of_slow = |line: &&str| line.starts_with("braid_disk_in_flight{") && line.contains("slow.img");
        metrics.lines().find(of_slow).filter(|line| !line.ends_with(" 0")).map(drop)
    });
    let delete = ["pool", "delete", "tank", "--force", "--yes"];
    let mut deletion = Running::start(&daemon.folder, "deletion", &mut daemon.command(&delete));
    std::thread::sleep(Duration::from_millis(500));
    export(&daemon, "other/v");
    let over = deletion.ended().is_some();
    client(&daemon, "other/v").write(0, &noise(BLOCK, 3)).expect("it writes");
    let refused = daemon.any(&["export", "add", "tank/v", "--nbd", &format!("unix:{}", socket(&daemon))]);
    assert!(!refused.status.success(), "a volume that is being deleted cannot be exported");
    assert!(!over, "the other pool was used while it waited");
    assert!(deletion.wait().success(), "{}", deletion.log());
    let _ = writing.join();
    assert_eq!(daemon.json(&["status"])["pools"]["total"], 1);
}
