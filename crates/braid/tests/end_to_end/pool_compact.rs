//! Compaction of a volume with scattered blocks, while the volume is used.

use crate::pools::{check, client, export, pool, write};
use crate::support::*;

const EXTENT: u64 = 256 * KIB;

/// Returns blocks of 4 KiB that are written one by one, and their seeds.
fn scattered() -> impl Iterator<Item = (u64, u64)> {
    // The first forty blocks of each of twenty extents, in turn: neighbouring blocks of the volume are not neighbours on disk.
    (0..40).flat_map(|block| (0..20).map(move |extent| (extent * EXTENT + block * 4096, 1 + extent * 100 + block)))
}

#[test]
fn scattered_blocks_are_compacted_under_writes_and_a_kill_ends_it() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..200, 1000);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    for (at, seed) in scattered() {
        db.write(at, &noise(4096, seed)).expect("it writes");
    }
    let shown = |daemon: &Daemon| daemon.json(&["volume", "show", "tank/db"]);
    let done = |daemon: &Daemon| wait_for("the end", || (shown(daemon)["compacting"] == false).then_some(()));
    let compare = |daemon: &Daemon| {
        let mut db = client(daemon, "tank/db");
        for (at, seed) in scattered() {
            assert!(db.read(at, 4096).expect("it reads") == noise(4096, seed), "the block at {at}");
        }
        check(&mut db, (81..119).chain(124..200), 1000);
    };
    // The compaction may end before it is observed, or be interrupted: the data read stay the same.
    let text = daemon.braid(&["volume", "compact", "tank/db"]);
    assert!(text.contains("is being compacted"), "{text}");
    daemon.restart(true);
    compare(&daemon);
    done(&daemon);

    let mut db = client(&daemon, "tank/db");
    daemon.braid(&["volume", "compact", "tank/db"]);
    // Clients write meanwhile, to these extents and to others.
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
    // Each of the twenty now has an extent of its own, and hardly more than that is allocated.
    let own = shown(&daemon)["allocated_bytes"].as_u64().expect("a size") / EXTENT;
    assert!((21..=23).contains(&own), "{own} extents");
    export(&daemon, "tank/db@monday");
    check(&mut client(&daemon, "tank/db@monday"), 0..200, 1000);
    daemon.restart(false);
    compare(&daemon);
    daemon.refused(3, &["volume", "compact", "tank/nobody"]);
}
