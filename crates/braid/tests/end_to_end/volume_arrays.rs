//! Volumes as members of arrays, and pools on those arrays: assembled from the lowest stack level up, stopped from the highest down, never cyclic.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::nbd::WRITE;
use crate::patient::PatientFio;
use crate::pools::{check, check_zeros, client, export, socket, write};
use crate::support::*;

/// Creates pools of one file each, with a volume of 48 MiB in each.
fn volumes(daemon: &Daemon, disks: &[(&str, &str)]) {
    for (pool, disk) in disks {
        daemon.braid(&["pool", "create", pool, disk]);
        daemon.braid(&["volume", "create", &format!("{pool}/v"), "48M"]);
    }
}

fn states(daemon: &Daemon, array: &str) -> Vec<(String, String)> {
    let shown = daemon.json(&["array", "show", array]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members = shown["members"].as_array().expect("a list");
    members.iter().map(|member| (text(&member["disk"]), text(&member["state"]))).collect()
}

fn in_sync(daemon: &Daemon, array: &str) -> Option<()> {
    let array = daemon.json(&["array", "show", array]);
    let all = array["members"].as_array()?.iter().all(|member| member["state"] == "in_sync");
    (all && array["state"] == "active").then_some(())
}

#[test]
fn a_mirror_of_volumes_of_two_pools_is_assembled_through_kills_under_fio() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    volumes(&daemon, &[("tank", &disks[0]), ("other", &disks[1])]);
    daemon.braid(&["array", "create", "data", "--level", "raid1", "tank/v", "other/v"]);
    let members = [("volume:tank/v", "in_sync"), ("volume:other/v", "in_sync")];
    assert_eq!(states(&daemon, "data"), members.map(|(disk, state)| (disk.to_owned(), state.to_owned())));
    export(&daemon, "data");
    let uri = format!("nbd+unix:///data?socket={}", socket(&daemon));
    let mut writer = PatientFio::start(&daemon, &uri);
    let written =
        |daemon: &Daemon| daemon.json(&["export", "show", "data"])["stats"]["writes"].as_u64().expect("a count");
    let (mut kills, fio) = (0, &mut writer.fio);
    while fio.ended().is_none() && kills < 4 {
        let before = written(&daemon);
        wait_for("writes", || (written(&daemon) > before + 60 || fio.ended().is_some()).then_some(()));
        daemon.kill();
        kills += 1;
        daemon.start_again();
    }
    assert!(kills >= 3, "it was over after {kills} kills: it is too fast for this test");
    writer.succeeds();
    wait_for("both to be equal again", || in_sync(&daemon, "data"));

    // A clean stop, too; and both members have the same data.
    let mut data = client(&daemon, "data");
    write(&mut data, 0..64, 5);
    data.flush().expect("it flushes");
    drop(data);
    daemon.restart(false);
    assert!(daemon.events().contains("array data is active") && !daemon.events().contains("resync"));
    check(&mut client(&daemon, "data"), 0..64, 5);
    daemon.braid(&["array", "check", "data", "--wait"]);
    daemon.braid(&["array", "stop", "data", "--force"]);
    for volume in ["tank/v", "other/v"] {
        daemon.braid(&["export", "add", volume, "--read-only", "--nbd", &format!("unix:{}", socket(&daemon))]);
    }
    let whole = |name: &str| client(&daemon, name).read(4 * MIB, 32 << 20).expect("it reads");
    assert!(whole("tank/v") == whole("other/v"));
}

#[test]
fn a_pool_that_loses_its_disk_fails_a_member_and_another_volume_replaces_it() {
    let daemon = Daemon::start();
    let bad = format!("faulty({},gone-after=900)", daemon.folder.sparse("a.img", 96 * MIB));
    let disks = ["b.img", "c.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    volumes(&daemon, &[("tank", &bad), ("other", &disks[0]), ("third", &disks[1])]);
    daemon.braid(&["array", "create", "data", "--level", "raid1", "tank/v", "other/v"]);
    export(&daemon, "data");
    let mut data = client(&daemon, "data");
    for round in 0..40 {
        write(&mut data, 0..200, round * 1000);
        data.flush().expect("the other volume is there");
        if states(&daemon, "data")[0].1 != "in_sync" {
            break;
        }
    }
    wait_for("the member to be left out", || (states(&daemon, "data")[0].1 == "failed").then_some(()));
    write(&mut data, 0..200, 77_000);
    data.flush().expect("it goes on");
    check(&mut data, 0..200, 77_000);
    assert!(daemon.braid(&["status"]).contains("array data"));

    daemon.braid(&["array", "add", "data", "third/v", "--wait"]);
    wait_for("the new member to be filled", || in_sync(&daemon, "data"));
    check(&mut data, 0..200, 77_000);
    // Without the other member, reads return what the new member was rebuilt with.
    daemon.braid(&["array", "fail", "data", "volume:other/v"]);
    check(&mut data, 0..200, 77_000);
    check_zeros(&mut data, 400..500);
    // The dropped volume is no member any more, and its pool can be deleted; its failing disk may keep labels.
    let refused = daemon.refused(1, &["pool", "delete", "tank", "--force", "--yes"]);
    assert!(refused.contains("may bear labels of it still"), "{refused}");
}

#[test]
fn pools_on_arrays_on_volumes_start_from_the_lowest_level_and_are_never_cyclic() {
    let mut daemon = Daemon::start();
    let [a, b, c, d] = ["a.img", "b.img", "c.img", "d.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    volumes(&daemon, &[("tank", &a), ("other", &b)]);
    // A volume and a disk: a start waits for the volume, and does not start the array degraded.
    daemon.braid(&["array", "create", "lower", "--level", "raid1", "tank/v", &c, "--start-degraded", "auto"]);
    daemon.braid(&["pool", "create", "middle", "lower"]);
    daemon.braid(&["volume", "create", "middle/v", "32M"]);
    daemon.braid(&["array", "create", "upper", "--level", "concat", "middle/v", "other/v"]);
    daemon.braid(&["pool", "create", "top", "upper"]);
    daemon.braid(&["volume", "create", "top/db", "40M"]);
    export(&daemon, "top/db");
    write(&mut client(&daemon, "top/db"), 0..300, 9);
    for kill in [true, false, true] {
        daemon.restart(kill);
        assert!(!daemon.events().contains("degraded"), "{}", daemon.events());
        check(&mut client(&daemon, "top/db"), 0..300, 9);
        wait_for("the array at the bottom to be whole", || in_sync(&daemon, "lower"));
    }
    let mut db = client(&daemon, "top/db");
    daemon.braid(&["snapshot", "create", "top/db@monday"]);
    write(&mut db, 100..200, 50_000);
    db.flush().expect("it flushes");

    // No array or pool may stand on itself, whichever command adds the member.
    let refused = daemon.refused(4, &["pool", "add", "tank", "upper", "--force"]);
    assert!(refused.contains("is member 0 of pool top"), "{refused}");
    daemon.braid(&["volume", "create", "middle/w", "8M"]);
    daemon.braid(&["array", "create", "other-upper", "--level", "concat", "middle/w"]);
    for pool in ["tank", "middle"] {
        let refused = daemon.refused(2, &["pool", "add", pool, "other-upper", "--force"]);
        assert!(
            refused.contains(&format!("stands on a volume of pool {pool}, which would stand on itself")),
            "{refused}"
        );
    }
    daemon.braid(&["volume", "create", "top/w", "8M"]);
    let refused = daemon.refused(2, &["array", "spare", "lower", "top/w"]);
    assert!(refused.contains("stands on array lower, which would stand on itself"), "{refused}");
    let refused = daemon.refused(2, &["array", "replace", "lower", "0", "top/w"]);
    assert!(refused.contains("would stand on itself"), "{refused}");
    let refused = daemon.refused(2, &["array", "grow", "other-upper", "top/w"]);
    assert!(refused.contains("cannot change it while it serves"), "{refused}");
    let refused = daemon.refused(2, &["pool", "add", "top", "middle/w"]);
    assert!(refused.contains("a volume of a pool, which cannot be a member of another pool"), "{refused}");
    // A fourth stack level is refused.
    daemon.braid(&["array", "create", "attic", "--level", "concat", "top/w"]);
    daemon.braid(&["pool", "create", "roof", "attic"]);
    daemon.braid(&["volume", "create", "roof/v", "1M"]);
    let refused = daemon.refused(4, &["array", "create", "sky", "--level", "concat", "roof/v"]);
    assert!(refused.contains("stand on each other 3 deep"), "{refused}");
    daemon.braid(&["array", "spare", "lower", &d]);
    daemon.restart(true);
    let mut db = client(&daemon, "top/db");
    check(&mut db, 0..100, 9);
    check(&mut db, 100..200, 50_000);
    assert_eq!(daemon.json(&["status"])["pools"]["serving"], 5);
}

#[test]
fn a_member_volume_cannot_be_used_otherwise_and_grows_with_its_array() {
    let daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 160 * MIB));
    volumes(&daemon, &[("tank", &disks[0]), ("other", &disks[1])]);
    export(&daemon, "tank/v");
    let refused = daemon.refused(4, &["array", "create", "data", "--level", "raid1", "tank/v", "other/v"]);
    assert!(refused.contains("exported as tank/v") && refused.contains("export remove tank/v"), "{refused}");
    daemon.braid(&["export", "remove", "tank/v"]);
    daemon.braid(&["snapshot", "create", "tank/v@empty"]);
    let refused = daemon.refused(2, &["array", "create", "data", "--level", "raid1", "volume:tank/v@empty", "other/v"]);
    assert!(refused.contains("is a snapshot"), "{refused}");
    daemon.refused(3, &["array", "create", "data", "--level", "raid1", "tank/nothing", "other/v"]);
    let refused = daemon.refused(4, &["array", "create", "data", "--level", "raid1", "tank/v", "tank/v"]);
    assert!(refused.contains("volume tank/v is being made a member"), "{refused}");
    daemon.braid(&["array", "create", "data", "--level", "raid1", "tank/v", "other/v"]);

    let commands: [&[&str]; 8] = [
        &["volume", "delete", "other/v", "--force", "--yes"],
        &["volume", "rename", "other/v", "w"],
        &["volume", "resize", "other/v", "32M", "--force", "--yes"],
        &["volume", "rollback", "tank/v", "@empty", "--yes"],
        &["array", "create", "more", "--level", "concat", "tank/v"],
        &["pool", "delete", "tank", "--force", "--yes"],
        &["pool", "rename", "tank", "tonk"],
        &["export", "add", "tank/v", "--nbd", "unix:/nowhere/n.sock"],
    ];
    for command in commands {
        let refused = daemon.refused(4, command);
        assert!(refused.contains("member") && refused.contains("of array data"), "{command:?}: {refused}");
    }
    export(&daemon, "data");
    let mut data = client(&daemon, "data");
    write(&mut data, 0..64, 3);
    data.flush().expect("it flushes");

    // Snapshots and clones of a member work as for any volume.
    daemon.braid(&["snapshot", "create", "tank/v@used"]);
    daemon.braid(&["snapshot", "delete", "tank/v@used", "--yes"]);
    let before = daemon.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");
    daemon.braid(&["volume", "resize", "tank/v", "64M"]);
    daemon.braid(&["volume", "resize", "other/v", "64M"]);
    daemon.braid(&["array", "grow", "data"]);
    let after = daemon.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");
    assert_eq!(after - before, 16 * MIB);
    check(&mut data, 0..64, 3);
    drop(data);

    // While the array is stopped its volumes stay reserved: only `--force` deletes or changes one.
    daemon.braid(&["array", "stop", "data", "--force"]);
    let nbd = format!("unix:{}", crate::pools::socket(&daemon));
    let commands: [&[&str]; 4] = [
        &["volume", "delete", "other/v", "--yes"],
        &["volume", "resize", "other/v", "32M", "--yes"],
        &["volume", "rollback", "tank/v", "@empty", "--yes"],
        &["export", "add", "tank/v", "--nbd", &nbd],
    ];
    for command in commands {
        let refused = daemon.refused(4, command);
        assert!(refused.contains("seen last as a member of array data"), "{command:?}: {refused}");
        assert!(refused.contains("--force"), "{command:?}: {refused}");
    }
    daemon.braid(&["export", "add", "tank/v", "--nbd", &nbd, "--read-only"]);
    daemon.braid(&["export", "remove", "tank/v"]);
    daemon.braid(&["export", "add", "tank/v", "--nbd", &nbd, "--force"]);
    daemon.braid(&["export", "remove", "tank/v"]);
    daemon.braid(&["array", "assemble", "data"]);
    check(&mut client(&daemon, "data"), 0..64, 3);
    daemon.braid(&["array", "delete", "data", "--force", "--yes"]);
    daemon.braid(&["volume", "delete", "other/v", "--yes"]);
    // A path that exists is a file, and a deleted volume is no disk.
    let folder = daemon.folder.join("tank");
    fs::create_dir(&folder).expect("a folder can be made");
    daemon.refused(3, &["array", "create", "data", "--level", "concat", "other/v"]);
}

#[test]
fn a_pool_whose_arrays_are_no_longer_on_one_stack_level_still_opens() {
    let mut daemon = Daemon::start();
    let [a, b, c, d, e] =
        ["a.img", "b.img", "c.img", "d.img", "e.img"].map(|name| daemon.folder.sparse(name, 192 * MIB));
    volumes(&daemon, &[("tank", &a), ("other", &b)]);
    daemon.braid(&["volume", "create", "tank/w", "32M"]);
    daemon.braid(&["array", "create", "x", "--level", "raid1", "tank/v", "other/v"]);
    daemon.braid(&["array", "create", "y", "--level", "concat", "tank/w"]);
    // The disk makes the member depths equal: a disk of its own counts like the arrays.
    daemon.braid(&["pool", "create", "top", "x", "y", &e]);
    daemon.braid(&["volume", "create", "top/db", "80M"]);
    export(&daemon, "top/db");
    write(&mut client(&daemon, "top/db"), 0..400, 9);
    for (member, disk) in [("0", &c), ("1", &d)] {
        daemon.braid(&["array", "replace", "x", member, disk, "--wait"]);
    }
    wait_for("the disks to be members", || {
        (in_sync(&daemon, "x").is_some() && states(&daemon, "x").iter().all(|(disk, _)| disk.starts_with('/')))
            .then_some(())
    });
    check(&mut client(&daemon, "top/db"), 0..400, 9);
    for kill in [false, true, false] {
        daemon.restart(kill);
        assert_eq!(daemon.json(&["pool", "show", "top"])["state"], "active", "{}", daemon.events());
        let mut db = client(&daemon, "top/db");
        check(&mut db, 0..400, 9);
        write(&mut db, 400..500, 7);
        db.flush().expect("it flushes");
        check(&mut db, 400..500, 7);
        wait_for("the mirror to be whole", || in_sync(&daemon, "x"));
    }
    assert!(!daemon.events().contains("was dropped"), "{}", daemon.events());
    daemon.braid(&["array", "check", "x", "--wait"]);
}

#[test]
fn a_stopped_array_finds_its_volumes_by_new_names_and_by_those_in_the_command() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    volumes(&daemon, &[("tank", &disks[0]), ("other", &disks[1])]);
    daemon.braid(&["array", "create", "data", "--level", "raid1", "tank/v", "other/v", "--start-degraded", "auto"]);
    export(&daemon, "data");
    let mut data = client(&daemon, "data");
    write(&mut data, 0..64, 3);
    data.flush().expect("it flushes");
    drop(data);
    daemon.braid(&["array", "stop", "data", "--force"]);
    daemon.braid(&["volume", "rename", "tank/v", "w"]);
    daemon.braid(&["pool", "rename", "other", "second"]);
    for volume in ["tank/w", "second/v"] {
        let refused = daemon.refused(4, &["volume", "delete", volume, "--yes"]);
        assert!(refused.contains("seen last as a member of array data"), "{refused}");
    }
    let refused = daemon.refused(4, &["pool", "delete", "second", "--yes"]);
    assert!(refused.contains("volume second/v of pool second was seen last as a member of array data"), "{refused}");
    daemon.restart(true);
    daemon.braid(&["array", "assemble", "data"]);
    let members = [("volume:tank/w", "in_sync"), ("volume:second/v", "in_sync")];
    let members = members.map(|(disk, state)| (disk.to_owned(), state.to_owned()));
    assert_eq!(states(&daemon, "data"), members);
    check(&mut client(&daemon, "data"), 0..64, 3);

    // A disk named in the command takes precedence over the recorded one.
    daemon.braid(&["array", "stop", "data", "--force"]);
    daemon.kill();
    let path = daemon.folder.join("state/state.json");
    let state = fs::read_to_string(&path).expect("it is there");
    assert!(state.contains("volume:tank/w"), "{state}");
    fs::write(&path, state.replace("volume:tank/w", "volume:tank/x")).expect("it can be written");
    daemon.start_again();
    daemon.braid(&["array", "assemble", "data", "--disk", "tank/w"]);
    assert_eq!(states(&daemon, "data"), members);
    assert!(!daemon.events().contains("degraded"), "{}", daemon.events());
    check(&mut client(&daemon, "data"), 0..64, 3);
}

#[test]
fn a_pool_below_an_array_that_does_not_stop_is_left_open_when_the_daemon_stops() {
    let mut daemon = Daemon::start();
    let bad = format!("faulty({},write-hang@32M-90M)", daemon.folder.sparse("a.img", 96 * MIB));
    let disks = ["b.img", "c.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    volumes(&daemon, &[("tank", &bad), ("other", &disks[0]), ("third", &disks[1])]);
    daemon.braid(&["array", "create", "data", "--level", "raid1", "tank/v", "other/v"]);
    export(&daemon, "data");
    let mut data = client(&daemon, "data");
    // The pool allocates low blocks first: some write reaches the range where the disk hangs.
    for at in 0..160 {
        data.send(0, WRITE, at * 256 * KIB, 256 * KIB as u32, &noise(256 * KIB, at)).expect("sent");
        let is_answered = || daemon.json(&["export", "show", "data"])["stats"]["writes"].as_u64() == Some(at + 1);
        let until = Instant::now() + Duration::from_secs(2);
        while !is_answered() && Instant::now() < until {}
        if !is_answered() {
            break;
        }
        assert!(at < 159, "nothing hangs");
    }
    daemon.running.terminate();
    let status = daemon.running.wait_within(Duration::from_secs(45));
    let log = daemon.running.log();
    assert_eq!(status.code(), Some(1), "something was left: {log}");
    for pool in ["tank", "other"] {
        let left = format!("pool {pool} was not closed: a volume of it is a disk of an array that has not ended");
        assert!(log.contains(&left), "{log}");
    }
    assert!(!log.contains("pool third was not"), "{log}");
    assert!(!log.contains("was dropped"), "{log}");
    daemon.start_again();
    assert!(states(&daemon, "data").iter().all(|(_, state)| state == "in_sync"), "{}", daemon.events());
}

#[test]
fn an_array_on_a_volume_of_a_locked_pool_starts_when_the_pool_is_unlocked() {
    let daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 160 * MIB));
    volumes(&daemon, &[("tank", &format!("faulty({},write-hang@100M-101M*1)", disks[0])), ("other", &disks[1])]);
    daemon.braid(&["volume", "create", "tank/bad", "128M"]);
    daemon.braid(&["array", "create", "data", "--level", "raid1", "tank/v", "other/v"]);
    wait_for("both to be equal", || in_sync(&daemon, "data"));
    export(&daemon, "data");
    write(&mut client(&daemon, "data"), 0..100, 1);
    let mut daemon = daemon;
    daemon.stop();
    let hidden_path = daemon.folder.join("away");
    fs::rename(&disks[1], &hidden_path).expect("it is a file");
    daemon.start_again();
    let state = |daemon: &Daemon| daemon.json(&["array", "show", "data"])["state"].clone();
    assert_eq!(state(&daemon), "incomplete");
    export(&daemon, "tank/bad");
    let mut bad = client(&daemon, "tank/bad");
    let limit_ms = daemon.json(&["status"])["limits"]["disk_timeout_ms"].as_u64().expect("a limit");
    bad.stream.set_read_timeout(Some(Duration::from_millis(limit_ms) + PATIENCE)).expect("a socket has that limit");
    std::thread::scope(|scope| {
        let (daemon, disk) = (&daemon, &disks[0]);
        scope.spawn(|| {
            let hung = (0..2000).find(|k| bad.write(k * 64 * KIB, &noise(64 * KIB, *k)).is_err());
            hung.expect("one of the writes hangs")
        });
        let hangs =
            || daemon.events().lines().find(|line| line.contains("disk_hangs") && line.contains(disk)).map(drop);
        wait_for("the disk to hang", hangs);
        // The snapshot waits for writes that began before it, and locks its pool for that time.
        let snapshot = scope.spawn(|| daemon.refused(1, &["snapshot", "create", "tank/bad@during"]));
        std::thread::sleep(Duration::from_millis(500));
        fs::rename(&hidden_path, &disks[1]).expect("it is a file");
        daemon.any(&["array", "assemble", "--disk", &disks[1]]);
        assert!(!snapshot.is_finished(), "the pool was free too early for this test");
        // The other pool is active, and with it half of the mirror, which does not start degraded by itself.
        assert_eq!(daemon.json(&["pool", "show", "other"])["state"], "active");
        assert_eq!(state(daemon), "incomplete");
        snapshot.join().expect("it does not panic");
    });
    wait_for("the array to be started by itself", || in_sync(&daemon, "data"));
    check(&mut client(&daemon, "data"), 0..100, 1);
}
