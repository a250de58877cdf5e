//! What a volume has scattered is put together while it is used.

use crate::pools::{check, client, export, pool, write};
use crate::support::*;

const EXTENT: u64 = 256 * KIB;

/// Blocks of 4 KiB that were written one by one, and what they hold.
fn scattered() -> impl Iterator<Item = (u64, u64)> {
    // Of twenty extents the first forty blocks each, in turn: neighbours of the volume are none where they stand.
    (0..40).flat_map(|block| (0..20).map(move |extent| (extent * EXTENT + block * 4096, 1 + extent * 100 + block)))
}

#[test]
fn what_is_scattered_is_put_together_under_writes_and_a_kill_ends_it() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..200, 1000);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    for (at, seed) in scattered() {
        db.write(at, &noise(4096, seed)).expect("it writes");
    }
    let shown = |daemon: &Daemon| daemon.json(&["volume", "show", "tank/db"]);
    let done = |daemon: &Daemon| wait_for("the end", || (shown(daemon)["compacts"] == false).then_some(()));
    let compare = |daemon: &Daemon| {
        let mut db = client(daemon, "tank/db");
        for (at, seed) in scattered() {
            assert!(db.read(at, 4096).expect("it reads") == noise(4096, seed), "the block at {at}");
        }
        check(&mut db, (81..119).chain(124..200), 1000);
    };
    // It may be over before it is seen, or be cut off: nothing changes what there is to read.
    let text = daemon.braid(&["volume", "compact", "tank/db"]);
    assert!(text.contains("is being put together"), "{text}");
    daemon.restart(true);
    compare(&daemon);
    done(&daemon);

    let mut db = client(&daemon, "tank/db");
    daemon.braid(&["volume", "compact", "tank/db"]);
    // Others write meanwhile, there and elsewhere.
    for block in 0..40 {
        db.write(30 * EXTENT + block * 4096, &noise(4096, 5000 + block)).expect("it writes");
        db.write(50 * 4096, &noise(4096, 7000 + block)).expect("it writes");
    }
    done(&daemon);
    compare(&daemon);
    daemon.braid(&["volume", "compact", "tank/db"]);
    done(&daemon);
    wait_for("the event", || daemon.events().contains("pool_compacted").then_some(()));
    compare(&daemon);
    for block in 0..40 {
        assert!(db.read(30 * EXTENT + block * 4096, 4096).expect("it reads") == noise(4096, 5000 + block));
    }
    assert!(db.read(50 * 4096, 4096).expect("it reads") == noise(4096, 7039));
    // Each of the twenty has an extent of its own now, and more than that is not there.
    let own = shown(&daemon)["allocated_bytes"].as_u64().expect("a size") / EXTENT;
    assert!((21..=23).contains(&own), "{own} extents");
    export(&daemon, "tank/db@monday");
    check(&mut client(&daemon, "tank/db@monday"), 0..200, 1000);
    daemon.restart(false);
    compare(&daemon);
    daemon.refused(3, &["volume", "compact", "tank/nobody"]);
}
