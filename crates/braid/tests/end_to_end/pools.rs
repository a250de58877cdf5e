//! Pools: volumes, snapshots and clones, through kills, restarts and refusals.

use serde_json::Value;

use crate::nbd::Client;
use crate::support::*;

pub const BLOCK: u64 = 64 * KIB;

/// Creates a pool on two files of different sizes, with the volume `tank/db`, exported. Returns a client.
pub fn pool(daemon: &Daemon) -> Client {
    let (a, b) = (daemon.folder.sparse("a.img", 96 * MIB), daemon.folder.sparse("b.img", 160 * MIB));
    daemon.braid(&["pool", "create", "tank", &a, &b]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(daemon, "tank/db");
    client(daemon, "tank/db")
}

pub fn socket(daemon: &Daemon) -> String {
    daemon.nbd_socket("pools")
}

pub fn export(daemon: &Daemon, name: &str) {
    daemon.braid(&["export", "add", name, "--nbd", &format!("unix:{}", socket(daemon))]);
}

pub fn client(daemon: &Daemon, name: &str) -> Client {
    wait_for(&format!("export {name}"), || Client::open(&socket(daemon), name).ok())
}

pub fn write(client: &mut Client, blocks: impl IntoIterator<Item = u64>, seed: u64) {
    for block in blocks {
        client.write(block * BLOCK, &noise(BLOCK, seed + block)).expect("it writes");
    }
}

#[track_caller]
pub fn check(client: &mut Client, blocks: impl IntoIterator<Item = u64>, seed: u64) {
    for block in blocks {
        let back = client.read(block * BLOCK, BLOCK as usize).expect("it reads");
        assert!(back == noise(BLOCK, seed + block), "block {block} is not what was written");
    }
}

#[track_caller]
pub fn check_zeros(client: &mut Client, blocks: impl IntoIterator<Item = u64>) {
    for block in blocks {
        let back = client.read(block * BLOCK, BLOCK as usize).expect("it reads");
        assert!(back.iter().all(|byte| *byte == 0), "block {block} was never written");
    }
}

pub fn free(daemon: &Daemon) -> u64 {
    daemon.json(&["pool", "show", "tank"])["free_bytes"].as_u64().expect("a size")
}

pub fn names(list: &Value, key: &str) -> Vec<String> {
    let list = list[key].as_array().expect("a list");
    list.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn snapshots_keep_their_content_and_clones_and_rollbacks_start_from_it() {
    let daemon = Daemon::start();
    let mut db = pool(&daemon);
    let empty = free(&daemon);
    write(&mut db, 0..200, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    write(&mut db, 100..300, 1000);
    // Small writes over a snapshot, too: they are allocated space of their own.
    db.write(4096, &noise(4096, 7)).expect("it writes");

    export(&daemon, "tank/db@monday");
    let mut monday = client(&daemon, "tank/db@monday");
    check(&mut monday, 0..200, 1);
    check_zeros(&mut monday, 200..300);
    assert!(monday.write(0, &noise(4096, 1)).is_err(), "a snapshot cannot be written");
    drop(monday);
    check(&mut db, 1..100, 1);
    check(&mut db, 100..300, 1000);
    assert!(db.read(4096, 4096).expect("it reads") == noise(4096, 7));
    check_zeros(&mut db, 300..310);

    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/trial"]);
    export(&daemon, "tank/trial");
    let mut trial = client(&daemon, "tank/trial");
    write(&mut trial, 50..60, 2000);
    check(&mut trial, 0..50, 1);
    check(&mut trial, 50..60, 2000);
    check(&mut trial, 60..200, 1);
    check(&mut db, 50..60, 1);

    // Clients wait for a rollback; afterwards, what was written after monday is gone, on their open connections too.
    daemon.braid(&["volume", "rollback", "tank/db", "@monday", "--yes"]);
    check(&mut db, 0..200, 1);
    check_zeros(&mut db, 200..300);

    // Deleting a snapshot that has clones loses no data of them. Space without references becomes free.
    daemon.refused(4, &["snapshot", "delete", "tank/db@monday", "--yes"]);
    daemon.braid(&["snapshot", "delete", "tank/db@monday", "--yes", "--force"]);
    check(&mut db, 0..200, 1);
    check(&mut trial, 0..50, 1);
    check(&mut trial, 50..60, 2000);
    drop((db, trial));
    daemon.braid(&["volume", "delete", "tank/trial", "--yes", "--force"]);
    daemon.braid(&["volume", "delete", "tank/db", "--yes", "--force"]);
    assert_eq!(names(&daemon.json(&["volume", "list"]), "volumes"), [""; 0]);
    wait_for("all space to be free again", || (free(&daemon) == empty).then_some(()));
}

#[test]
fn acknowledged_writes_survive_kills_and_clean_stops() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    let mut done = 0;
    for round in 0..4u64 {
        write(&mut db, done..done + 60, 1);
        done += 60;
        daemon.braid(&["snapshot", "create", &format!("tank/db@round{round}")]);
        // Overwrites blocks of the snapshot, without a flush.
        write(&mut db, 0..20, 5000 + round * 100);
        // Writes in flight when the daemon ends: their outcome is unknown.
        for i in 0..8 {
            let data = noise(BLOCK, round * 100 + i);
            db.send(0, crate::nbd::WRITE, (900 + i) * BLOCK, BLOCK as u32, &data).expect("sent");
        }
        daemon.restart(round != 2);
        db = client(&daemon, "tank/db");
        check(&mut db, 0..20, 5000 + round * 100);
        check(&mut db, 20..done, 1);
    }
    export(&daemon, "tank/db@round1");
    let mut old = client(&daemon, "tank/db@round1");
    check(&mut old, 0..20, 5000);
    check(&mut old, 20..120, 1);
    check_zeros(&mut old, 120..240);
    let list = names(&daemon.json(&["snapshot", "list", "tank/db"]), "snapshots");
    assert_eq!(list, ["tank/db@round0", "tank/db@round1", "tank/db@round2", "tank/db@round3"]);
}

#[test]
fn snapshots_of_several_volumes_are_of_one_instant_and_keep_their_names_over_a_restart() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    daemon.braid(&["volume", "create", "tank/log", "64M"]);
    export(&daemon, "tank/log");
    write(&mut db, 0..10, 1);
    write(&mut client(&daemon, "tank/log"), 0..10, 100);
    let taken = daemon.json(&["snapshot", "create", "tank/db@noon", "tank/log@noon"]);
    assert_eq!(names(&taken, "snapshots"), ["tank/db@noon", "tank/log@noon"]);
    // All snapshots are taken, or none.
    daemon.refused(4, &["snapshot", "create", "tank/db@noon", "tank/log@later"]);
    assert_eq!(names(&daemon.json(&["snapshot", "list", "tank/log"]), "snapshots"), ["tank/log@noon"]);

    daemon.braid(&["volume", "rename", "tank/log", "journal"]);
    daemon.braid(&["snapshot", "rename", "tank/journal@noon", "midday"]);
    daemon.braid(&["pool", "rename", "tank", "deep"]);
    daemon.braid(&["volume", "resize", "deep/journal", "128M"]);
    daemon.restart(false);
    assert_eq!(names(&daemon.json(&["volume", "list", "deep"]), "volumes"), ["deep/db", "deep/journal"]);
    assert_eq!(daemon.json(&["volume", "show", "deep/journal"])["size_bytes"], 128 * MIB);
    let list = names(&daemon.json(&["snapshot", "list"]), "snapshots");
    assert_eq!(list, ["deep/db@noon", "deep/journal@midday"]);
    // Exports keep their names, and report the current name of their volume.
    let exported = daemon.json(&["export", "show", "tank/log"]);
    assert_eq!((&exported["array"], &exported["state"]), (&"deep/journal".into(), &"listening".into()), "{exported}");
    let mut log = client(&daemon, "tank/log");
    check(&mut log, 0..10, 100);
    log.write(100 * MIB, &noise(4096, 1)).expect("it has grown");
}

#[test]
fn a_pool_on_an_array_and_a_disk_waits_for_both() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> = ["a", "b", "c"].map(|name| daemon.folder.sparse(name, 96 * MIB)).into();
    daemon.braid(&["array", "create", "safe", "--level", "raid1", &disks[0], &disks[1]]);
    daemon.braid(&["pool", "create", "tank", "safe", &disks[2]]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..400, 1);

    let refused = daemon.refused(4, &["array", "stop", "safe", "--force"]);
    assert!(refused.contains("member 0 of pool tank"), "{refused}");
    daemon.refused(4, &["array", "delete", "safe", "--yes", "--force"]);
    let refused = daemon.refused(4, &["export", "add", "safe", "--nbd", "unix:/nowhere/x"]);
    assert!(refused.contains("would overwrite the pool"), "{refused}");
    // A member of the array fails under the pool.
    daemon.braid(&["array", "fail", "safe", "1"]);
    write(&mut db, 400..500, 1);
    check(&mut db, 0..500, 1);

    // Without its disk the pool waits, and reports which one is missing; the members that are present are not changed.
    daemon.kill();
    let hidden_path = daemon.folder.join("away");
    std::fs::rename(&disks[2], &hidden_path).expect("it is a file");
    daemon.start_again();
    let shown = daemon.json(&["pool", "show", "tank"]);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    assert!(shown["attention"][0].as_str().expect("a sentence").contains(&disks[2]), "{shown}");
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    daemon.refused(1, &["volume", "list", "tank"]);
    std::fs::rename(&hidden_path, &disks[2]).expect("it is a file");
    daemon.braid(&["array", "assemble"]);
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..500, 1);
    // Writes that the killed daemon had acknowledged and not flushed are still there.
    daemon.restart(false);
    check(&mut client(&daemon, "tank/db"), 0..500, 1);
}

#[test]
fn impossible_requests_are_refused_with_the_name_of_the_object() {
    let daemon = Daemon::start();
    let db = pool(&daemon);
    let spare = daemon.folder.sparse("spare.img", 64 * MIB);
    let a = daemon.folder.join("a.img");
    let refused = |status: i32, arguments: &[&str], words: &str| {
        let said = daemon.refused(status, arguments);
        assert!(said.contains(words), "braid {}: {said}", arguments.join(" "));
    };
    refused(4, &["pool", "create", "tank", &spare], "there is a pool tank already");
    refused(4, &["array", "create", "tank", "--level", "raid0", &spare], "there is a pool tank already");
    refused(4, &["pool", "create", "other", &a], "member 0 of");
    refused(3, &["pool", "create", "other", "nobody"], "there is no array nobody");
    refused(2, &["pool", "create", "other", &spare, &spare], "named twice");
    refused(2, &["pool", "create", "other", "tank/db"], "a volume of a pool");
    let small = daemon.folder.sparse("small.img", MIB / 4);
    refused(2, &["pool", "create", "other", &small], "cannot be a member of a pool");
    std::fs::write(daemon.folder.join("foreign.img"), [&[0; 1080][..], &[0x53, 0xef], &vec![0; 64 << 20]].concat())
        .expect("it can be written");
    refused(4, &["pool", "create", "other", &daemon.folder.join("foreign.img")], "is not empty");
    refused(3, &["pool", "show", "other"], "there is no pool other");
    refused(3, &["volume", "create", "other/x", "1G"], "there is no pool other");
    refused(4, &["volume", "create", "tank/db", "1G"], "the name is taken");
    refused(2, &["volume", "create", "db", "1G"], "POOL/VOLUME");
    refused(2, &["volume", "create", "tank/odd", "1000"], "no multiple of 4096");
    refused(2, &["volume", "create", "tank/huge", "1P"], "its size would be");
    refused(3, &["volume", "show", "tank/no"], "there is no volume tank/no");
    refused(3, &["snapshot", "create", "tank/no@x"], "there is no volume tank/no");
    refused(3, &["volume", "clone", "tank/db@no", "tank/x"], "there is no snapshot tank/db@no");
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    refused(4, &["snapshot", "create", "tank/db@one"], "the name is taken");
    refused(2, &["snapshot", "create", "tank/db@two", "tank/db@three"], "named twice");
    refused(4, &["volume", "delete", "tank/db", "--yes", "--force"], "has snapshots");
    refused(4, &["volume", "delete", "tank/db"], "--yes");
    refused(4, &["pool", "delete", "tank", "--yes"], "is exported as tank/db");
    refused(4, &["export", "add", "tank/db", "--nbd", "unix:/nowhere/x"], "there is an export tank/db already");
    refused(3, &["export", "add", "tank/db@no", "--nbd", "unix:/nowhere/x"], "there is no snapshot");
    drop(db);
    // Exports of a deleted pool are removed.
    daemon.braid(&["pool", "delete", "tank", "--yes", "--force"]);
    assert_eq!(names(&daemon.json(&["export", "list"]), "exports"), [""; 0]);
    daemon.braid(&["pool", "create", "tank", &a, &spare]);
    assert_eq!(names(&daemon.json(&["volume", "list"]), "volumes"), [""; 0]);
}

#[test]
fn real_clients_copy_volumes_and_skip_unwritten_ranges() {
    let daemon = Daemon::start();
    drop(pool(&daemon));
    let uri = format!("nbd+unix:///tank%2Fdb?socket={}", socket(&daemon));
    let image = daemon.folder.noise("image", 24 * MIB, 3);
    run("nbdcopy", &[&image, &uri]);
    let map = run("nbdinfo", &["--map", &uri]);
    let holes: Vec<&str> = map.lines().filter(|line| line.contains("hole,zero")).collect();
    assert_eq!(holes.len(), 1, "{map}");
    assert!(holes[0].split_whitespace().eq(["25165824", "1048576000", "3", "hole,zero"]), "{map}");
    // The rest is neither read nor written: the copy of a volume of 1 GiB has 24 MiB.
    let copy = daemon.folder.join("copy.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", &uri, &copy]);
    assert!(std::fs::metadata(&copy).expect("it is there").len() < 32 * MIB);
    run("qemu-img", &["compare", &copy, &uri]);
    // Discarded blocks read as zeros and are free again, except those that a snapshot has.
    let used = free(&daemon);
    run("qemu-io", &["-f", "raw", "-c", "discard 0 16M", &uri]);
    wait_for("discarded space to be free", || (free(&daemon) == used + 16 * MIB).then_some(()));
    check_zeros(&mut client(&daemon, "tank/db"), 0..256);
}
