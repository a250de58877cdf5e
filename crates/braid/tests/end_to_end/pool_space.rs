//! The space used by volumes and snapshots of a pool, as the commands report it.

use serde_json::Value;

use crate::nbd::Client;
use crate::pools::{check, client, export, pool, write};
use crate::support::*;

fn space(shown: &Value) -> [u64; 3] {
    ["data_bytes", "exclusive_bytes", "shared_bytes"].map(|key| shown["space"][key].as_u64().expect("it was counted"))
}

#[test]
fn exclusive_and_shared_space_of_volumes_and_snapshots_is_counted() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    // One block is 64 KiB: monday has 100 of them, tuesday 110, the volume 120.
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
        // Shared: monday's 90 in all three and tuesday's 15 in two; exclusive: the sums above.
        assert_eq!((&all["shared_bytes"], &all["exclusive_bytes"]), (&k64(105).into(), &k64(30).into()), "{shown}");
        assert_eq!((&all["stored_bytes"], &all["freeing_bytes"]), (&k64(135).into(), &0.into()), "{shown}");
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

    // A clone shares everything; zeros over data of a snapshot take no space.
    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/trial"]);
    assert_eq!(space(&daemon.json(&["volume", "show", "tank/trial"])), [k64(100), 0, k64(100)]);
    assert_eq!(space(&daemon.json(&["snapshot", "show", "tank/db@monday"])), [k64(100), 0, k64(100)]);
    export(&daemon, "tank/trial");
    let uri = format!("nbd+unix:///tank%2Ftrial?socket={}", crate::pools::socket(&daemon));
    run("qemu-io", &["-f", "raw", "-c", "discard 0 1M", &uri]);
    assert_eq!(space(&daemon.json(&["volume", "show", "tank/trial"])), [k64(84), 0, k64(84)]);
    let zeros = daemon.json(&["pool", "show", "tank"])["space"]["zero_ranges"].as_u64().expect("a number");
    assert!(zeros > 0, "zeros are counted");

    // The exclusive space of a deleted snapshot becomes free, and nothing else.
    daemon.braid(&["snapshot", "delete", "tank/db@tuesday", "--yes"]);
    wait_for("tuesday's blocks to be gone", || {
        (daemon.json(&["pool", "show", "tank"])["space"]["stored_bytes"] == k64(130)).then_some(())
    });
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 90..105, 1000);
    check(&mut db, 105..120, 2000);
    // The reply to a change has no space counts.
    assert!(daemon.json(&["volume", "rename", "tank/trial", "test"])["space"].is_null());
}

/// Writes blocks of 64 KiB from `first` on until there is no space. Returns the number of the block that failed.
fn fill(client: &mut Client, first: u64) -> u64 {
    let full = (first..).find(|block| {
        let error = client.write(block * 64 * KIB, &noise(64 * KIB, *block)).err();
        error.is_some_and(|error| {
            assert_eq!(error.raw_os_error(), Some(28), "{error}");
            true
        })
    });
    full.expect("it becomes full")
}

#[test]
fn a_thick_volume_has_its_space_whatever_other_volumes_take() {
    let mut daemon = Daemon::start();
    let mut thin = pool(&daemon);
    let show = |daemon: &Daemon| {
        let (pool, db) = (daemon.json(&["pool", "show", "tank"]), daemon.json(&["volume", "show", "tank/safe"]));
        let of = |shown: &Value, key: &str| shown[key].as_u64().expect("a size") / MIB;
        [of(&pool, "free_bytes"), of(&pool, "reserved_bytes"), of(&pool, "allocated_bytes"), of(&db, "reserved_bytes")]
    };
    daemon.braid(&["volume", "create", "tank/safe", "100M", "--thick"]);
    let [free, ..] = show(&daemon);
    assert_eq!(show(&daemon), [free, 100, 0, 100]);
    let text = daemon.braid(&["volume", "show", "tank/safe"]) + &daemon.braid(&["pool", "show", "tank"]);
    assert!(text.contains("are reserved for it") && text.contains("for thick volumes"), "{text}");
    // A thick volume cannot exceed the free space, neither at creation nor by growing; a refusal leaves nothing behind.
    let more = format!("{}M", free + 1);
    let refused = daemon.refused(1, &["volume", "create", "tank/more", &more, "--thick"]);
    assert!(refused.contains("less space is free") && refused.contains("braid pool add"), "{refused}");
    daemon.refused(1, &["volume", "resize", "tank/safe", &format!("{}M", free + 101)]);
    daemon.braid(&["volume", "create", "tank/more", "1M", "--thick"]);
    daemon.braid(&["volume", "delete", "tank/more", "--yes"]);

    export(&daemon, "tank/safe");
    let mut safe = client(&daemon, "tank/safe");
    write(&mut safe, 0..160, 5000);
    assert_eq!(show(&daemon), [free, 90, 10, 90]);
    let filled = fill(&mut thin, 0);
    assert!(filled >= (free - 1) * 16, "{filled} of {free} MiB");
    assert_eq!(show(&daemon)[0], 0);
    // Every block of the thick volume can be written, also in any order.
    for block in (160..1600).step_by(4) {
        write(&mut safe, [block], 5000);
    }
    drop((safe, thin));
    daemon.restart(true);
    let (mut safe, mut thin) = (client(&daemon, "tank/safe"), client(&daemon, "tank/db"));
    assert_eq!(fill(&mut thin, filled), filled, "nothing has become free by a start");
    (160..1600).filter(|block| block % 4 != 0).for_each(|block| write(&mut safe, [block], 5000));
    check(&mut safe, 0..1600, 5000);
    assert_eq!(show(&daemon)[1], 0, "all of it is written");

    // Space that the volume discards stays reserved for it.
    safe.call(0, crate::nbd::TRIM, 50 * MIB, 20 * MIB as u32, &[]).expect("it discards");
    assert_eq!(show(&daemon)[3], 20);
    assert_eq!(fill(&mut thin, filled), filled);
    write(&mut safe, 800..1120, 9000);

    // Overwriting blocks of a snapshot needs new space, which is not reserved; the reservation for blocks without data stays.
    safe.call(0, crate::nbd::TRIM, 90 * MIB, 10 * MIB as u32, &[]).expect("it discards");
    daemon.braid(&["snapshot", "create", "tank/safe@monday"]);
    let error = safe.write(0, &noise(64 * KIB, 1)).expect_err("there is no space");
    assert_eq!(error.raw_os_error(), Some(28));
    write(&mut safe, 1440..1600, 7000);
    daemon.braid(&["snapshot", "delete", "tank/safe@monday", "--yes"]);
    wait_for("its blocks to be the volume's own again", || safe.write(0, &noise(64 * KIB, 5000)).ok());
    check(&mut safe, 0..800, 5000);
    check(&mut safe, 800..1120, 9000);
    check(&mut safe, 1120..1440, 5000);
    check(&mut safe, 1440..1600, 7000);
    // Deleting the volume frees its reservation.
    drop(safe);
    daemon.braid(&["volume", "delete", "tank/safe", "--yes", "--force"]);
    assert!(fill(&mut thin, filled) >= filled + 99 * 16);
}

#[test]
fn a_member_whose_space_is_reserved_for_a_thick_volume_stays() {
    let daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 128 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    // Larger than one member, and without data.
    daemon.braid(&["volume", "create", "tank/safe", "150M", "--thick"]);
    let refused = daemon.refused(1, &["pool", "remove", "tank", "1"]);
    assert!(refused.contains("150.00 MiB are kept for thick volumes"), "{refused}");
    let shown = daemon.json(&["pool", "show", "tank"]);
    assert!(shown["members"][1]["removing"] != true, "{shown}");
    export(&daemon, "tank/safe");
    let mut safe = client(&daemon, "tank/safe");
    write(&mut safe, 0..2400, 1);
    check(&mut safe, 0..2400, 1);
    drop(safe);

    // When the reservation fits, the volume can be written to its last block, also while others take all they can get.
    daemon.braid(&["volume", "delete", "tank/safe", "--yes", "--force"]);
    daemon.braid(&["volume", "create", "tank/safe", "90M", "--thick"]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/safe");
    export(&daemon, "tank/db");
    let mut safe = client(&daemon, "tank/safe");
    write(&mut safe, 0..100, 1);
    wait_for("the member to be removable", || {
        daemon.any(&["pool", "remove", "tank", "1"]).status.success().then_some(())
    });
    fill(&mut client(&daemon, "tank/db"), 0);
    write(&mut safe, 100..1440, 1);
    check(&mut safe, 0..1440, 1);
    wait_for("the member to be gone", || {
        let members = daemon.json(&["pool", "show", "tank"])["members"].as_array().expect("members").len();
        (members == 1).then_some(())
    });
    check(&mut safe, 0..1440, 1);
}
