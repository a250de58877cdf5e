//! A disk of a pool that accepts a write and never completes it: requests to it fail at their limit, others go on, and no durable data are lost.

use std::time::Duration;

use crate::pools::{BLOCK, check, client, export, write};
use crate::support::*;

#[test]
fn a_hanging_disk_under_a_pool_delays_only_its_own_requests_and_is_named() {
    let mut daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    let b = daemon.folder.sparse("b.img", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &a, &format!("faulty({b},write-hang@60M-61M*1)")]);
    daemon.braid(&["volume", "create", "tank/bad", "80M", "--place", "on=1"]);
    daemon.braid(&["volume", "create", "tank/good", "64M", "--place", "on=0"]);
    export(&daemon, "tank/bad");
    export(&daemon, "tank/good");
    let (mut bad, mut good) = (client(&daemon, "tank/bad"), client(&daemon, "tank/good"));
    let limit_ms = daemon.json(&["status"])["limits"]["disk_timeout_ms"].as_u64().expect("a limit");
    write(&mut bad, 0..100, 1);
    write(&mut good, 0..100, 1);
    bad.flush().expect("it is durable");

    // From some block on, the volume's blocks are in the hanging range of the disk.
    bad.stream.set_read_timeout(Some(Duration::from_millis(limit_ms) + PATIENCE)).expect("a socket has that limit");
    let hung = std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| (100..1200).find(|block| bad.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_err()));
        let reported =
            || daemon.events().lines().find(|line| line.contains("disk_hangs") && line.contains(&b)).map(drop);
        wait_for("an event that names the disk", reported);
        // Other clients go on, and their data are made durable.
        write(&mut good, 100..150, 2000);
        good.flush().expect("the other disk answers");
        check(&mut good, 0..100, 1);
        // A snapshot contains every write that had begun before it, and no later one: while the disk has a write in
        // flight it waits, and then fails with that reason.
        let refused = daemon.refused(1, &["snapshot", "create", "tank/good@during"]);
        assert!(refused.contains("hangs"), "{refused}");
        writer.join().expect("it does not panic").expect("one of the writes hangs")
    });
    assert_eq!(daemon.json(&["pool", "show", "tank"])["state"], "active");

    // The disk may still write the block that timed out: nothing newer goes there until it has. The volume's other blocks go on.
    assert!(bad.write(hung * BLOCK, &noise(BLOCK, 1 + hung)).is_err());
    write(&mut bad, hung + 1..hung + 20, 1);
    bad.flush().expect("it is durable");
    check(&mut bad, (0..hung).chain(hung + 1..hung + 20), 1);

    // The daemon ends although the disk never completes the write, and the next daemon has all data.
    drop((bad, good));
    daemon.running.terminate();
    let status = daemon.running.wait_within(Duration::from_secs(60));
    let log = daemon.running.log();
    assert!(!log.contains("panicked"), "{status}: {log}");
    assert!(log.contains("has not answered"), "{status}: {log}");
    daemon.start_again();
    let (mut bad, mut good) = (client(&daemon, "tank/bad"), client(&daemon, "tank/good"));
    check(&mut bad, (0..hung).chain(hung + 1..hung + 20), 1);
    check(&mut good, 0..100, 1);
    check(&mut good, 100..150, 2000);
    // Nothing is in flight now.
    daemon.braid(&["snapshot", "create", "tank/good@after"]);
    export(&daemon, "tank/good@after");
    check(&mut client(&daemon, "tank/good@after"), 0..100, 1);
}

/// A write that the disk still has in flight does not count for the next pool, whose first snapshot would wait for it.
#[test]
fn a_pool_is_deleted_while_a_disk_hangs_and_the_next_pool_is_not_affected() {
    let daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    let c = daemon.folder.sparse("c.img", 96 * MIB);
    daemon.braid(&["pool", "create", "old", &format!("faulty({a},write-hang@20M-40M*1)")]);
    daemon.braid(&["volume", "create", "old/v", "80M"]);
    export(&daemon, "old/v");
    let mut hanging = client(&daemon, "old/v");
    let limit_ms = daemon.json(&["status"])["limits"]["disk_timeout_ms"].as_u64().expect("a limit");
    hanging.stream.set_read_timeout(Some(Duration::from_millis(limit_ms) + PATIENCE)).expect("a socket has that limit");
    std::thread::scope(|scope| {
        scope.spawn(move || (0..1200).find(|block| hanging.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_err()));
        let reported =
            || daemon.events().lines().find(|line| line.contains("disk_hangs") && line.contains(&a)).map(drop);
        wait_for("an event that names the disk", reported);
        daemon.braid(&["export", "remove", "old/v"]);
        // The pool stops serving long before its disk is released.
        let deleted = scope.spawn(|| daemon.braid(&["pool", "delete", "old", "--force", "--yes"]));
        let gone = || daemon.json(&["pool", "list"])["pools"].as_array().is_some_and(Vec::is_empty).then_some(());
        wait_for("the pool to be gone", gone);
        daemon.braid(&["pool", "create", "new", &c]);
        daemon.braid(&["volume", "create", "new/v", "64M"]);
        export(&daemon, "new/v");
        let mut client = client(&daemon, "new/v");
        write(&mut client, 0..100, 1);
        daemon.braid(&["snapshot", "create", "new/v@one"]);
        write(&mut client, 0..100, 7);
        daemon.braid(&["snapshot", "delete", "new/v@one", "--yes"]);
        daemon.braid(&["snapshot", "create", "new/v@two"]);
        deleted.join().expect("it is deleted");
        check(&mut client, 0..100, 7);
    });
}
