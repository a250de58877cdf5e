//! Flattening makes a clone independent of its origin while the clone is used.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::nbd::TRIM;
use crate::patient::PatientFio;
use crate::pools::{BLOCK, check, check_zeros, client, export, free, pool, socket, write};
use crate::support::*;

/// Number of blocks of the volume that is cloned.
const ALL: u64 = 1200;

fn flattens(daemon: &Daemon, name: &str) -> bool {
    daemon.json(&["volume", "show", name])["flattening"] == true
}

fn done(daemon: &Daemon, name: &str) {
    wait_for("the end of flattening", || (!flattens(daemon, name)).then_some(()));
}

/// Creates `tank/db` with a snapshot, and a clone of the snapshot that has changed.
fn cloned(daemon: &Daemon) {
    let mut db = pool(daemon);
    write(&mut db, 0..ALL, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/trial"]);
    export(daemon, "tank/trial");
    let mut trial = client(daemon, "tank/trial");
    // The clone's own writes: partial blocks, whole ones, small ones, and zeros where the snapshot has data.
    write(&mut trial, (0..200).step_by(7), 50_000);
    let whole: Vec<u8> = (256..260).flat_map(|block| noise(BLOCK, 50_000 + block)).collect();
    trial.write(256 * BLOCK, &whole).expect("it writes");
    for block in 310..330 {
        trial.write(block * BLOCK, &noise(4096, 70_000 + block)).expect("it writes");
    }
    trial.call(0, TRIM, 280 * BLOCK, (20 * BLOCK) as u32, &[]).expect("it discards");
    trial.flush().expect("it flushes");
    daemon.braid(&["snapshot", "create", "tank/trial@early"]);
    write(&mut trial, 400..403, 60_000);
}

/// Checks the content of the clone, or of its snapshot, up to the block from which on other clients write.
fn check_trial(daemon: &Daemon, name: &str, end: u64) {
    let mut trial = client(daemon, name);
    check(&mut trial, (0..200).filter(|block| block % 7 != 0), 1);
    check(&mut trial, (0..200).step_by(7).chain(256..260), 50_000);
    check_zeros(&mut trial, 280..300);
    for block in 310..330 {
        let back = trial.read(block * BLOCK, BLOCK as usize).expect("it reads");
        let (new, old) = back.split_at(4096);
        assert!(new == noise(4096, 70_000 + block) && old == &noise(BLOCK, 1 + block)[4096..], "block {block}");
    }
    check(&mut trial, 400..403, if name.contains('@') { 1 } else { 60_000 });
    check(&mut trial, 403..end, 1);
}

#[test]
fn a_clone_becomes_independent_under_writes_and_its_parent_frees_its_space() {
    let mut daemon = Daemon::start();
    cloned(&daemon);
    let text = daemon.braid(&["volume", "flatten", "tank/db"]);
    assert!(text.contains("is independent"), "{text}");
    let ends = AtomicBool::new(false);
    let text = std::thread::scope(|threads| {
        let (daemon, ends) = (&daemon, &ends);
        let writer = threads.spawn(move || {
            let (mut trial, mut round) = (client(daemon, "tank/trial"), 0);
            while !ends.load(Ordering::Relaxed) || round == 0 {
                round += 1;
                write(&mut trial, (800..ALL).step_by(5), 100_000 * round);
            }
            round
        });
        let text = daemon.braid(&["volume", "flatten", "tank/trial"]);
        done(daemon, "tank/trial");
        ends.store(true, Ordering::Relaxed);
        let round = writer.join().expect("it writes to the end");
        let mut trial = client(daemon, "tank/trial");
        check(&mut trial, (800..ALL).step_by(5), 100_000 * round);
        check(&mut trial, (800..ALL).filter(|block| block % 5 != 0), 1);
        text
    });
    assert!(text.contains("is being flattened"), "{text}");
    wait_for("the event", || daemon.events().contains("volume_flattened").then_some(()));
    check_trial(&daemon, "tank/trial", 800);
    // The clone's own snapshot is its only ancestor.
    assert_eq!(daemon.json(&["volume", "show", "tank/trial"])["parent"], "tank/trial@early");
    let before = free(&daemon);
    daemon.braid(&["snapshot", "delete", "tank/db@monday", "--yes"]);
    daemon.braid(&["export", "remove", "tank/db"]);
    daemon.braid(&["volume", "delete", "tank/db", "--force", "--yes"]);
    wait_for("the space of the parent", || (free(&daemon) >= before + ALL * BLOCK - MIB).then_some(()));
    export(&daemon, "tank/trial@early");
    check_trial(&daemon, "tank/trial@early", ALL);
    daemon.restart(true);
    check_trial(&daemon, "tank/trial", 800);
    check_trial(&daemon, "tank/trial@early", ALL);
    daemon.restart(false);
    check_trial(&daemon, "tank/trial", 800);
    daemon.braid(&["pool", "check", "tank"]);
    // Nothing is left behind.
    for name in ["tank/trial", "tank/trial@early"] {
        daemon.braid(&["export", "remove", name]);
    }
    daemon.braid(&["snapshot", "delete", "tank/trial@early", "--yes"]);
    daemon.braid(&["volume", "delete", "tank/trial", "--force", "--yes"]);
    let allocated = || daemon.json(&["pool", "show", "tank"])["allocated_bytes"] == 0;
    wait_for("all space to be free again", || allocated().then_some(()));
}

#[test]
fn flattening_resumes_after_a_kill_and_can_be_cancelled() {
    let mut daemon = Daemon::start();
    cloned(&daemon);
    daemon.refused(3, &["volume", "flatten", "tank/nobody"]);
    daemon.refused(2, &["volume", "flatten", "tank/trial", "--cancel"]);
    daemon.braid(&["volume", "flatten", "tank/trial"]);
    daemon.restart(true);
    done(&daemon, "tank/trial");
    check_trial(&daemon, "tank/trial", ALL);
    wait_for("the event", || daemon.events().contains("volume_flattened").then_some(()));
    daemon.braid(&["snapshot", "delete", "tank/db@monday", "--yes"]);
    daemon.restart(false);
    check_trial(&daemon, "tank/trial", ALL);
}

#[test]
fn a_clone_without_space_stays_dependent() {
    let daemon = Daemon::start();
    cloned(&daemon);
    // Takes nearly all of the free space.
    let left = free(&daemon) / (256 * KIB) - 40;
    daemon.braid(&["volume", "create", "tank/rest", &(left * 256 * KIB).to_string(), "--thick"]);
    let said = daemon.refused(1, &["volume", "flatten", "tank/trial"]);
    assert!(said.contains("are free in pool tank"), "{said}");
    assert!(!flattens(&daemon, "tank/trial"));
    check_trial(&daemon, "tank/trial", ALL);
}

#[test]
fn a_thick_volume_becomes_independent_in_its_reserved_space() {
    const EXTENT: u64 = 256 * KIB;
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("a.img", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &disk]);
    daemon.braid(&["volume", "create", "tank/db", "32M"]);
    export(&daemon, "tank/db");
    // Blocks that share extents: they are written over a snapshot that is deleted since.
    let mut db = client(&daemon, "tank/db");
    for (seed, snapshot) in [(1000, "tank/db@gone"), (2000, "tank/db@scattered")] {
        for piece in 0..100 {
            db.write(piece * EXTENT, &noise(4096, seed + piece)).expect("it writes");
        }
        daemon.braid(&["snapshot", "create", snapshot]);
    }
    daemon.braid(&["snapshot", "delete", "tank/db@gone", "--yes"]);
    let allocated = || daemon.json(&["pool", "show", "tank"])["allocated_bytes"].as_u64().expect("a size");
    wait_for("unreferenced space to be free", || (allocated() <= 4 * EXTENT).then_some(()));
    daemon.braid(&["volume", "create", "tank/trial", "32M", "--thick"]);
    daemon.braid(&["volume", "rollback", "tank/trial", "tank/db@scattered", "--yes"]);
    // Only the reserved space is left.
    daemon.braid(&["volume", "create", "tank/rest", &free(&daemon).to_string(), "--thick"]);
    assert_eq!(free(&daemon), 0);
    export(&daemon, "tank/trial");
    daemon.braid(&["volume", "flatten", "tank/trial"]);
    done(&daemon, "tank/trial");
    assert!(daemon.events().contains("volume_flattened"), "{}", daemon.events());
    let shown = daemon.json(&["volume", "show", "tank/trial"]);
    assert_eq!((&shown["parent"], shown["reserved_bytes"].as_u64()), (&Value::Null, Some(28 * EXTENT)), "{shown}");
    // All reserved space can still be written.
    let mut trial = client(&daemon, "tank/trial");
    for piece in 0..128 {
        if piece < 100 {
            assert!(trial.read(piece * EXTENT, 4096).expect("it reads") == noise(4096, 2000 + piece), "piece {piece}");
        }
        trial.write(piece * EXTENT + 4096, &noise(4096, 3000 + piece)).expect("space is kept for it");
    }
    export(&daemon, "tank/rest");
    let mut rest = client(&daemon, "tank/rest");
    for piece in 0..daemon.json(&["volume", "show", "tank/rest"])["size_bytes"].as_u64().expect("a size") / EXTENT {
        rest.write(piece * EXTENT, &noise(4096, 9000 + piece)).expect("space is kept for it");
    }
    daemon.restart(true);
    let mut trial = client(&daemon, "tank/trial");
    for piece in 0..128 {
        if piece < 100 {
            assert!(trial.read(piece * EXTENT, 4096).expect("it reads") == noise(4096, 2000 + piece), "piece {piece}");
        }
        let back = trial.read(piece * EXTENT + 4096, 4096).expect("it reads");
        assert!(back == noise(4096, 3000 + piece), "piece {piece}");
    }
    daemon.braid(&["pool", "check", "tank"]);
}

#[test]
fn fio_finds_what_it_wrote_while_a_clone_becomes_independent_through_a_kill() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 100 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/db", "32M"]);
    export(&daemon, "tank/db");
    write(&mut client(&daemon, "tank/db"), 0..512, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/trial"]);
    export(&daemon, "tank/trial");
    let uri = format!("nbd+unix:///tank%2Ftrial?socket={}", socket(&daemon));
    let mut writer = PatientFio::start(&daemon, &uri);
    let written =
        |daemon: &Daemon| daemon.json(&["export", "show", "tank/trial"])["stats"]["writes"].as_u64().expect("a count");
    wait_for("writes", || (written(&daemon) > 40).then_some(()));
    daemon.braid(&["volume", "flatten", "tank/trial"]);
    daemon.restart(true);
    done(&daemon, "tank/trial");
    assert!(writer.fio.ended().is_none(), "it was over too early for this test");
    daemon.braid(&["snapshot", "delete", "tank/db@monday", "--yes"]);
    daemon.braid(&["export", "remove", "tank/db"]);
    daemon.braid(&["volume", "delete", "tank/db", "--force", "--yes"]);
    writer.succeeds();
    // Blocks that fio does not write have the content of the snapshot.
    check(&mut client(&daemon, "tank/trial"), 256..512, 1);
}
