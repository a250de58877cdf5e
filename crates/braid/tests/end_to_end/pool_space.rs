//! Who has how much of a pool, as the commands tell it.

use serde_json::Value;

use crate::pools::{check, client, export, pool, write};
use crate::support::*;

fn space(shown: &Value) -> [u64; 3] {
    ["data_bytes", "exclusive_bytes", "shared_bytes"].map(|key| shown["space"][key].as_u64().expect("it was counted"))
}

#[test]
fn what_volumes_and_snapshots_have_and_share_is_counted() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    // 64 KiB a block: monday has 100 of them, tuesday 110, the volume 120.
    write(&mut db, 0..100, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    write(&mut db, 90..110, 1000);
    daemon.braid(&["snapshot", "create", "tank/db@tuesday"]);
    write(&mut db, 105..120, 2000);
    let k64 = |blocks: u64| blocks * 64 * KIB;
    let look = |daemon: &Daemon| {
        assert_eq!(space(&daemon.json(&["volume", "show", "tank/db"])), [k64(120), k64(15), k64(105)]);
        assert_eq!(space(&daemon.json(&["snapshot", "show", "tank/db@monday"])), [k64(100), k64(10), k64(90)]);
        assert_eq!(space(&daemon.json(&["snapshot", "show", "tank/db@tuesday"])), [k64(110), k64(5), k64(105)]);
        let shown = daemon.json(&["pool", "show", "tank"]);
        let all = &shown["space"];
        // Monday's 90 in all three, tuesday's 15 in two; what one alone has, as above.
        assert_eq!((&all["shared_bytes"], &all["exclusive_bytes"]), (&k64(105).into(), &k64(30).into()), "{shown}");
        assert_eq!((&all["stored_bytes"], &all["unseen_bytes"]), (&k64(135).into(), &0.into()), "{shown}");
        assert_eq!(shown["raw_bytes"], 256 * MIB);
        assert_eq!(all["volumes"][0]["with_snapshots_bytes"], shown["allocated_bytes"], "{shown}");
        assert_eq!(all["snapshots"][1]["name"], "db@tuesday");
    };
    look(&daemon);
    let text = daemon.braid(&["pool", "show", "tank"]);
    assert!(text.contains("db@monday") && text.contains("6.25 MiB"), "{text}");
    assert!(daemon.braid(&["snapshot", "list"]).contains("EXCLUSIVE"));
    daemon.restart(false);
    look(&daemon);
    daemon.restart(true);
    look(&daemon);

    // A clone shares everything; zeros over what a snapshot has take no space.
    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/trial"]);
    assert_eq!(space(&daemon.json(&["volume", "show", "tank/trial"])), [k64(100), 0, k64(100)]);
    assert_eq!(space(&daemon.json(&["snapshot", "show", "tank/db@monday"])), [k64(100), 0, k64(100)]);
    export(&daemon, "tank/trial");
    let uri = format!("nbd+unix:///tank%2Ftrial?socket={}", crate::pools::socket(&daemon));
    run("qemu-io", &["-f", "raw", "-c", "discard 0 1M", &uri]);
    assert_eq!(space(&daemon.json(&["volume", "show", "tank/trial"])), [k64(84), 0, k64(84)]);
    let zeros = daemon.json(&["pool", "show", "tank"])["space"]["zero_ranges"].as_u64().expect("a number");
    assert!(zeros > 0, "somebody says so");

    // What a deleted snapshot alone had becomes free, and nothing else.
    daemon.braid(&["snapshot", "delete", "tank/db@tuesday", "--yes"]);
    wait_for("tuesday's blocks to be gone", || {
        (daemon.json(&["pool", "show", "tank"])["space"]["stored_bytes"] == k64(130)).then_some(())
    });
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 90..105, 1000);
    check(&mut db, 105..120, 2000);
    // An answer to a change was not counted.
    assert!(daemon.json(&["volume", "rename", "tank/trial", "test"])["space"].is_null());
}
