//! Kernel file systems on thin volumes: a snapshot is taken while files are written, its clone is mounted beside the
//! volume, the volume is rolled back, and `fstrim` frees space.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::filesystems::Block;
use crate::mirror_filesystems::{EXT4, XFS};
use crate::pools::export;
use crate::support::*;

fn files(at: &str, names: std::ops::Range<u64>, seed: u64) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for number in names {
        let name = format!("file{number}");
        let path = format!("{at}/{name}");
        fs::write(&path, noise(1 + number % 30 * 20_000, seed + number)).expect("a file can be written");
        sums.insert(name, checksum(&path));
    }
    run("sync", &["-f", at]);
    sums
}

#[track_caller]
fn check(at: &str, sums: &BTreeMap<String, u64>) {
    for (name, sum) in sums {
        assert_eq!(checksum(&format!("{at}/{name}")), *sum, "{at}/{name}");
    }
}

fn block(daemon: &Daemon, name: &str) -> Block {
    export(daemon, name);
    let uri = format!("nbd+unix:///{}?socket={}", name.replace('/', "%2F"), crate::pools::socket(daemon));
    Block::with_sectors(daemon, &uri, 4096)
}

fn allocated(daemon: &Daemon) -> u64 {
    daemon.json(&["pool", "show", "tank"])["allocated_bytes"].as_u64().expect("a size")
}

/// `beside` holds the mount options for a second file system of the same identity.
fn snapshot_clone_rollback_and_trim([kind, mkfs, fsck]: [&[&str]; 3], beside: &str) {
    let kind = kind[0];
    let daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 300 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/db", "400M"]);
    let mut db = block(&daemon, "tank/db");
    let device = db.device.clone();
    run(mkfs[0], &[&mkfs[1..], &[&device]].concat());
    let at = db.mount(kind);
    let first = files(&at, 0..200, 1000);

    // A thread rewrites other files all the time while the snapshot is taken.
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                files(&at, 1000..1030, 5000 + rounds.fetch_add(1, Ordering::Relaxed));
            }
        });
        wait_for("files to be written", || (rounds.load(Ordering::Relaxed) > 1).then_some(()));
        daemon.braid(&["snapshot", "create", "tank/db@busy"]);
        let taken = rounds.load(Ordering::Relaxed);
        wait_for("more of them", || (rounds.load(Ordering::Relaxed) > taken + 1).then_some(()));
        stop.store(true, Ordering::Relaxed);
    });
    // The clone replays its journal, as after a loss of power at that instant.
    daemon.braid(&["volume", "clone", "tank/db@busy", "tank/trial"]);
    let mut trial = block(&daemon, "tank/trial");
    let there = trial.mount_with(kind, beside);
    check(&there, &first);
    let other = files(&there, 2000..2040, 8000);
    trial.unmount();
    run(fsck[0], &[&fsck[1..], &[&trial.device]].concat());
    trial.mount_with(kind, beside);
    check(&there, &first);
    check(&there, &other);
    trial.unmount();
    check(&at, &first);
    let second = files(&at, 100..200, 9000);
    db.unmount();
    run(fsck[0], &[&fsck[1..], &[&device]].concat());
    drop(trial);
    drop(db);

    // After the rollback the second version of the files is gone, the first is there.
    daemon.braid(&["export", "remove", "tank/db"]);
    daemon.braid(&["volume", "rollback", "tank/db", "@busy", "--yes"]);
    let mut db = block(&daemon, "tank/db");
    let at = db.mount(kind);
    check(&at, &first);
    assert!(second.iter().all(|(name, sum)| checksum(&format!("{at}/{name}")) != *sum), "nothing of it has stayed");
    daemon.braid(&["volume", "delete", "tank/trial", "--yes", "--force"]);
    daemon.braid(&["snapshot", "delete", "tank/db@busy", "--yes"]);

    // Most files are deleted; `fstrim` returns their space to the pool.
    let before = allocated(&daemon);
    for name in first.keys().filter(|name| *name != "file7") {
        fs::remove_file(format!("{at}/{name}")).expect("a file can be removed");
    }
    (1000..1030).for_each(|number| drop(fs::remove_file(format!("{at}/file{number}"))));
    run("sync", &["-f", &at]);
    wait_for("the space of removed files", || {
        run("fstrim", &[&at]);
        (allocated(&daemon) < before / 3).then_some(())
    });
    check(&at, &first.into_iter().filter(|(name, _)| name == "file7").collect());
    db.unmount();
    run(fsck[0], &[&fsck[1..], &[&db.device]].concat());
}

#[test]
fn ext4_works_on_a_volume_with_snapshots_and_clones() {
    snapshot_clone_rollback_and_trim(EXT4, "defaults");
}

#[test]
fn xfs_works_on_a_volume_with_snapshots_and_clones() {
    snapshot_clone_rollback_and_trim(XFS, "nouuid");
}
