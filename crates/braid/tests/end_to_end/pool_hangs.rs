//! A disk of a pool that takes a write and never answers: who waits for it is answered for, others go on, and nothing that was durable is lost.

use std::time::Duration;

use crate::pools::{BLOCK, check, client, export, write};
use crate::support::*;

#[test]
fn a_disk_that_hangs_under_a_pool_holds_up_its_own_and_is_named() {
    let mut daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    let b = daemon.folder.sparse("b.img", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &a, &format!("faulty({b},write-hang@60M-61M*1)")]);
    daemon.braid(&["volume", "create", "tank/bad", "80M", "--place", "on=1"]);
    daemon.braid(&["volume", "create", "tank/good", "64M", "--place", "on=0"]);
    export(&daemon, "tank/bad");
    export(&daemon, "tank/good");
    let (mut bad, mut good) = (client(&daemon, "tank/bad"), client(&daemon, "tank/good"));
    let limit_ms = daemon.json(&["status"])["limits"]["leaf_timeout_ms"].as_u64().expect("a limit");
    write(&mut bad, 0..100, 1);
    write(&mut good, 0..100, 1);
    bad.flush().expect("it is durable");

    // From some block on the disk has the place that hangs.
    bad.stream.set_read_timeout(Some(Duration::from_millis(limit_ms) + PATIENCE)).expect("a socket has that limit");
    let hung = std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| (100..1200).find(|block| bad.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_err()));
        let told = || daemon.events().lines().find(|line| line.contains("disk_hangs") && line.contains(&b)).map(drop);
        wait_for("an event that names the disk", told);
        // Others go on, and what they have is made durable.
        write(&mut good, 100..150, 2000);
        good.flush().expect("the other disk answers");
        check(&mut good, 0..100, 1);
        // A snapshot has all that had begun before it, and nothing may come into it later: as long as the disk has a write it waits, and says so.
        let refused = daemon.refused(1, &["snapshot", "create", "tank/good@during"]);
        assert!(refused.contains("hangs"), "{refused}");
        writer.join().expect("it does not panic").expect("one of the writes hangs")
    });
    assert_eq!(daemon.json(&["pool", "show", "tank"])["state"], "active");

    // The disk may still write where it has not answered: nothing newer goes there until it has. All else of it goes on.
    assert!(bad.write(hung * BLOCK, &noise(BLOCK, 1 + hung)).is_err());
    write(&mut bad, hung + 1..hung + 20, 1);
    bad.flush().expect("it is durable");
    check(&mut bad, (0..hung).chain(hung + 1..hung + 20), 1);

    // The daemon ends although the disk never answers, and the next one has everything.
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
    // Now nothing is under way.
    daemon.braid(&["snapshot", "create", "tank/good@after"]);
    export(&daemon, "tank/good@after");
    check(&mut client(&daemon, "tank/good@after"), 0..100, 1);
}

/// Whatever the disk still has is not counted at the next pool, which would wait for it with its first snapshot.
#[test]
fn a_pool_is_deleted_while_a_disk_hangs_and_the_next_one_has_nothing_of_it() {
    let daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    let c = daemon.folder.sparse("c.img", 96 * MIB);
    daemon.braid(&["pool", "create", "old", &format!("faulty({a},write-hang@20M-40M*1)")]);
    daemon.braid(&["volume", "create", "old/v", "80M"]);
    export(&daemon, "old/v");
    let mut hanging = client(&daemon, "old/v");
    let limit_ms = daemon.json(&["status"])["limits"]["leaf_timeout_ms"].as_u64().expect("a limit");
    hanging.stream.set_read_timeout(Some(Duration::from_millis(limit_ms) + PATIENCE)).expect("a socket has that limit");
    std::thread::scope(|scope| {
        scope.spawn(move || (0..1200).find(|block| hanging.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_err()));
        let told = || daemon.events().lines().find(|line| line.contains("disk_hangs") && line.contains(&a)).map(drop);
        wait_for("an event that names the disk", told);
        daemon.braid(&["export", "remove", "old/v"]);
        // Nothing serves it any more long before its disk is let go of.
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
