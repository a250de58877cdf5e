//! Volumes that are placed on members of their pool, and move to other members while they are used.

use serde_json::Value;

use crate::pools::{check, client, export, write};
use crate::support::*;

const BLOCK: u64 = 64 * KIB;

/// Returns the bytes allocated on a member.
fn on_member(daemon: &Daemon, number: usize) -> u64 {
    daemon.json(&["pool", "show", "tank"])["members"][number]["allocated_bytes"].as_u64().expect("a size")
}

fn volume(daemon: &Daemon) -> Value {
    daemon.json(&["volume", "show", "tank/db"])
}

#[test]
fn a_volume_moves_under_its_clients_and_through_kills() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 200 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1], &disks[2]]);
    daemon.braid(&["volume", "create", "tank/db", "128M", "--place", &format!("on={}", disks[0])]);
    assert_eq!(volume(&daemon)["place"]["on"][0], disks[0].as_str());
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..1200, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    // Whole extents, and scattered blocks over the snapshot, which moves as well.
    write(&mut db, 0..64, 50_000);
    for block in 0..200u64 {
        db.write((100 + block) * BLOCK + 4096, &noise(4096, 70_000 + block)).expect("it writes");
    }
    assert_eq!((on_member(&daemon, 1), on_member(&daemon, 2)), (0, 0), "all of it is where it was placed");

    let mut places = [1, 2, 0].iter().cycle();
    for round in 0..3u64 {
        let to = *places.next().expect("endless");
        // By the path of the disk, and by the number of the member.
        let place = if round % 2 == 0 { format!("on={}", disks[to]) } else { format!("on={to}") };
        daemon.braid(&["volume", "move", "tank/db", "--place", &place]);
        // Writes during the move are not overwritten by the copy.
        let base = 100_000 * (round + 1);
        write(&mut db, 600..760, base);
        if round < 2 {
            drop(db);
            daemon.restart(round == 0);
            db = client(&daemon, "tank/db");
        }
        write(&mut db, 700..800, base);
        wait_for("the volume to have moved", || (volume(&daemon)["moving"] == false).then_some(()));
        for member in 0..3 {
            // Space is freed a little after the move.
            let expected = member == to;
            let what = format!("member {member} to be {}", if expected { "used" } else { "empty" });
            wait_for(&what, || ((on_member(&daemon, member) > 0) == expected).then_some(()));
        }
        check(&mut db, 0..64, 50_000);
        check(&mut db, 64..100, 1);
        check(&mut db, 300..600, 1);
        check(&mut db, 600..800, base);
        check(&mut db, 800..1200, 1);
        for block in 0..200u64 {
            let back = db.read((100 + block) * BLOCK + 4096, 4096).expect("it reads");
            assert!(back == noise(4096, 70_000 + block), "block {block} over the snapshot");
        }
    }
    export(&daemon, "tank/db@monday");
    check(&mut client(&daemon, "tank/db@monday"), 0..1200, 1);

    daemon.braid(&["volume", "move", "tank/db", "--place", "spread"]);
    assert_eq!((&volume(&daemon)["place"], &volume(&daemon)["moving"]), (&Value::from("spread"), &Value::from(false)));
    let text = daemon.braid(&["volume", "show", "tank/db"]);
    assert!(text.contains("spread over all members"), "{text}");
    // The pool chooses the emptiest member; a second request keeps the volume there.
    daemon.braid(&["volume", "move", "tank/db", "--place", "single"]);
    let place = volume(&daemon)["place"]["on"].clone();
    assert!(place[1].is_null() && place[0] != disks[0].as_str(), "{place}");
    daemon.braid(&["volume", "move", "tank/db", "--place", "single"]);
    assert_eq!(volume(&daemon)["place"]["on"], place);
    wait_for("the volume to have moved", || (volume(&daemon)["moving"] == false).then_some(()));
    check(&mut db, 800..1200, 1);
}

#[test]
fn invalid_places_are_refused_and_a_volume_that_does_not_fit_stays() {
    let daemon = Daemon::start();
    let (a, b) = (daemon.folder.sparse("a.img", 160 * MIB), daemon.folder.sparse("b.img", 64 * MIB));
    daemon.braid(&["pool", "create", "tank", &a, &b]);
    let refused = daemon.refused(3, &["volume", "create", "tank/db", "1G", "--place", "on=7"]);
    assert!(refused.contains("7 is no member of pool tank") && refused.contains(&a), "{refused}");
    let refused = daemon.refused(2, &["volume", "create", "tank/db", "1G", "--place", "everywhere"]);
    assert!(refused.contains("spread, single, or on=MEMBER"), "{refused}");
    assert_eq!(daemon.json(&["volume", "list"])["volumes"][0], Value::Null, "nothing was made");

    daemon.braid(&["volume", "create", "tank/db", "128M", "--place", "on=0"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..1400, 1);
    // The volume does not fit on the other member: some extents have moved, the rest wait for space, and no data are lost.
    daemon.braid(&["volume", "move", "tank/db", "--place", "on=1"]);
    let stopped = || daemon.braid(&["events"]).contains("waits for space").then_some(());
    wait_for("an event that says that there is no space", stopped);
    check(&mut db, 0..1400, 1);
    assert_eq!(volume(&daemon)["moving"], true);
    assert!(on_member(&daemon, 0) > 0 && on_member(&daemon, 1) > 0);
    daemon.braid(&["volume", "move", "tank/db", "--place", "on=0"]);
    wait_for("it to be back", || (volume(&daemon)["moving"] == false).then_some(()));
    check(&mut db, 0..1400, 1);
}

#[test]
fn a_member_leaves_under_clients_and_through_kills() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 160 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1], &disks[2]]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    daemon.braid(&["volume", "create", "tank/held", "1G", "--place", &format!("on={}", disks[0])]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..1000, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    write(&mut db, 0..100, 50_000);
    let here = |daemon: &Daemon| -> Vec<String> {
        let pool = daemon.json(&["pool", "show", "tank"]);
        let members = pool["members"].as_array().expect("members").iter();
        members.map(|member| member["disk"].as_str().expect("a disk").to_owned()).collect()
    };

    // A member is not removed if a volume can be placed nowhere else; a disk that is no member is refused.
    let refused = daemon.refused(4, &["pool", "remove", "tank", &disks[0]]);
    assert!(refused.contains("held in pool tank may have blocks on") && refused.contains("volume move"), "{refused}");
    let refused = daemon.refused(3, &["pool", "remove", "tank", "/dev/nobody"]);
    assert!(refused.contains("its members are: 0 "), "{refused}");
    daemon.braid(&["volume", "move", "tank/held", "--place", "spread"]);

    daemon.braid(&["pool", "remove", "tank", &disks[0]]);
    // No volume is placed on a leaving member, nor on a removed one.
    let place = format!("on={}", disks[0]);
    let refused = daemon.any(&["volume", "create", "tank/late", "1G", "--place", &place]);
    assert!(!refused.status.success(), "a volume was placed on a member that leaves");
    // The member may be removed by now.
    let shown = daemon.braid(&["pool", "show", "tank"]);
    assert!(shown.contains("removing") || !shown.contains(&disks[0]), "{shown}");
    write(&mut db, 900..1100, 100_000);
    drop(db);
    // The evacuation resumes after a kill.
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 1100..1150, 100_000);
    wait_for("the first member to be gone", || (here(&daemon) == disks[1..]).then_some(()));
    check(&mut db, 0..100, 50_000);
    check(&mut db, 100..900, 1);
    check(&mut db, 900..1150, 100_000);
    // The disk of the removed member can be used otherwise, and a start does not need it.
    daemon.braid(&["array", "create", "other", "--level", "concat", &disks[0]]);
    drop(db);
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..100, 50_000);
    check(&mut db, 900..1150, 100_000);
    write(&mut db, 1150..1200, 100_000);
    assert_eq!(here(&daemon), disks[1..]);

    // A member stays if its data do not fit on the others; the last member stays, too.
    write(&mut db, 1200..3000, 100_000);
    let refused = daemon.refused(1, &["pool", "remove", "tank", "1"]);
    assert!(refused.contains("the other members of pool tank have"), "{refused}");
    export(&daemon, "tank/db@monday");
    check(&mut client(&daemon, "tank/db@monday"), 0..1000, 1);
    drop(db);
    for name in ["tank/db@monday", "tank/db"] {
        let what = if name.contains('@') { "snapshot" } else { "volume" };
        daemon.braid(&[what, "delete", name, "--yes", "--force"]);
    }
    wait_for("the second member to be removable", || {
        daemon.try_json(&["pool", "remove", "tank", "1"]).is_ok().then_some(())
    });
    wait_for("the second member to be gone", || (here(&daemon) == disks[2..]).then_some(()));
    // The member disappears from the list a moment before its label is erased: a command in between waits for that.
    let out = daemon.any(&["pool", "remove", "tank", "2"]);
    let refused = said(&out);
    assert_eq!(out.status.code(), Some(2), "{refused}");
    assert!(refused.contains("is the last member of pool tank"), "{refused}");
    daemon.restart(false);
    assert_eq!(daemon.json(&["pool", "show", "tank"])["state"], "active");
}

/// From now on, writes to the label area of this disk fail at random. The returned function opens the pool with the disk, however often that fails.
fn labels_fail(daemon: &mut Daemon, disk: &str, often: f64, seed: u64) -> impl FnMut(&Daemon) + use<> {
    daemon.stop();
    let file = daemon.folder.join("moved.img");
    std::fs::rename(disk, &file).expect("it is a file");
    daemon.start_again();
    let mut tries = seed * 1000;
    move |daemon| {
        wait_for("the pool to be open", || {
            // The same seed would produce the same failures each time.
            tries += 1;
            let faulty = format!("faulty({file},write-error={often}@0-4K,seed={tries})");
            daemon.any(&["array", "assemble", "--disk", &faulty]);
            let shown = daemon.json(&["pool", "show", "tank"]);
            assert!(!shown["attention"].to_string().contains("old copy"), "seed {seed}: {shown}");
            assert!(!shown["attention"].to_string().contains("used separately"), "seed {seed}: {shown}");
            (shown["state"] == "active").then_some(())
        });
    }
}

#[test]
fn label_writes_that_fail_at_the_end_of_a_removal_are_retried_and_a_start_decides() {
    let (mut kept, mut killed) = (0, 0);
    for seed in 1.. {
        let mut daemon = Daemon::start();
        let disks = ["a.img", "b.img", "c.img", "d.img"].map(|name| daemon.folder.sparse(name, 64 * MIB));
        daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1], &disks[2], &disks[3]]);
        daemon.braid(&["volume", "create", "tank/db", "1G"]);
        export(&daemon, "tank/db");
        write(&mut client(&daemon, "tank/db"), 0..100, 1);
        let mut opens = labels_fail(&mut daemon, &disks[1], 0.4, seed);
        opens(&daemon);
        check(&mut client(&daemon, "tank/db"), 0..100, 1);
        // The label that says that the member leaves may be written only at a later try.
        wait_for("a member to leave", || daemon.any(&["pool", "remove", "tank", "0"]).status.success().then_some(()));
        let members = |daemon: &Daemon| -> Vec<u64> {
            let list = daemon.json(&["pool", "show", "tank"])["members"].as_array().expect("members").clone();
            list.iter().map(|member| member["number"].as_u64().expect("a number")).collect()
        };
        let (gone, stays) = (
            || daemon.events().contains("a.img is not in pool"),
            || daemon.events().contains("but not all labels could be written"),
        );
        let failed = wait_for("the end of it", || (gone() || stays()).then(&stays));
        if failed && killed < 2 {
            // Interrupted there: whichever label counts, no data are lost, and the member is removed in the end.
            daemon.restart(true);
            opens(&daemon);
            killed += 1;
        } else if failed {
            kept += 1;
        }
        wait_for("the member to be gone", || (members(&daemon) == [1, 2, 3]).then_some(()));
        check(&mut client(&daemon, "tank/db"), 0..100, 1);
        if failed {
            wait_for("its disk to be free, or named", || {
                let events = daemon.events();
                (events.contains("a.img is not in pool") || events.contains("which it was removed from")).then_some(())
            });
        }
        if kept >= 1 && killed >= 2 {
            break;
        }
        assert!(seed < 40, "in {seed} rounds only {kept} and {killed} failed at that moment");
    }
}

#[test]
fn a_member_stays_or_is_removed_without_data_loss_when_label_writes_fail() {
    // Counts the rounds by their outcome.
    let (mut stayed, mut went, mut cancelled) = (0, 0, 0);
    for seed in 1.. {
        let mut daemon = Daemon::start();
        let disks = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 64 * MIB));
        daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1], &disks[2]]);
        daemon.braid(&["volume", "create", "tank/db", "1G"]);
        export(&daemon, "tank/db");
        let mut opens = labels_fail(&mut daemon, &disks[1], 0.3, seed);
        opens(&daemon);
        let member = |daemon: &Daemon| {
            let shown = daemon.json(&["pool", "show", "tank"]);
            let first = shown["members"].as_array().expect("members").iter().find(|member| member["number"] == 0);
            first.map(|member| (member["removing"] == true, member["allocated_bytes"].as_u64().expect("a size")))
        };

        // The member holds no data: it would leave at once.
        let out = daemon.any(&["pool", "remove", "tank", "0"]);
        if out.status.success() {
            continue;
        }
        assert!(said(&out).contains("writing the label of member"), "seed {seed}: {}", said(&out));
        let Some((removing, _)) = member(&daemon) else {
            panic!("seed {seed}: it left, and was not to: {}", said(&out))
        };
        assert_eq!(removing, said(&out).contains("could not be taken back"), "seed {seed}: {}", said(&out));
        let removing = removing && {
            let out = if seed % 2 == 0 { Some(daemon.any(&["pool", "remove", "tank", "0", "--cancel"])) } else { None };
            cancelled += u32::from(out.is_some_and(|out| out.status.success()));
            member(&daemon).is_none_or(|(removing, _)| removing)
        };
        std::thread::sleep(std::time::Duration::from_millis(500));
        let mut db = client(&daemon, "tank/db");
        write(&mut db, 0..100, 1);
        if removing {
            wait_for("it to be gone when the labels were written", || member(&daemon).is_none().then_some(()));
            went += 1;
        } else {
            let (removing, allocated) = member(&daemon).expect("it was not to leave");
            assert!(!removing && allocated > 0, "seed {seed}: it is used: {allocated}");
            stayed += 1;
        }
        write(&mut db, 100..200, 1);
        check(&mut db, 0..200, 1);
        drop(db);
        daemon.restart(true);
        opens(&daemon);
        assert_eq!(member(&daemon).is_none(), removing, "seed {seed}");
        check(&mut client(&daemon, "tank/db"), 0..200, 1);
        if stayed >= 2 && went >= 1 && cancelled >= 1 {
            break;
        }
        assert!(seed < 60, "in {seed} rounds only {stayed}, {went} and {cancelled}");
    }
}

#[test]
fn cancelling_a_removal_names_the_volumes_that_were_placed_on_the_member() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 200 * MIB));
    // Slow enough to interrupt the evacuation in the middle, also after the next start.
    let slow = format!("throttled({},bw=4M)", disks[0]);
    daemon.braid(&["pool", "create", "tank", &slow, &disks[1], &disks[2]]);
    for (name, place) in [("db", "on=0,1"), ("logs", "on=1,2"), ("moved", "on=0,2"), ("any", "spread")] {
        daemon.braid(&["volume", "create", &format!("tank/{name}"), "64M", "--place", place]);
    }
    export(&daemon, "tank/db");
    write(&mut client(&daemon, "tank/db"), 0..640, 1);
    daemon.braid(&["pool", "remove", "tank", "0"]);
    daemon.braid(&["volume", "move", "tank/moved", "--place", "spread"]);
    daemon.restart(true);
    let stays = daemon.json(&["pool", "remove", "tank", "0", "--cancel"]);
    assert_eq!(stays["unassigned_volumes"], serde_json::json!(["tank/db"]), "{stays}");
    let event = daemon.events().lines().rfind(|line| line.contains("pool_member_not_removed")).map(str::to_owned);
    assert!(event.as_ref().is_some_and(|event| event.contains("tank/db")), "{event:?}");
    assert_eq!(daemon.json(&["volume", "show", "tank/db"])["place"], serde_json::json!({"on": [disks[1]]}));
    // No volume was placed on the member when it was removed the second time.
    daemon.braid(&["pool", "remove", "tank", "0"]);
    let text = daemon.braid(&["pool", "remove", "tank", "0", "--cancel"]);
    assert!(text.contains("stays") && !text.contains("placed"), "{text}");
    // The command that the message names places the volumes on the member again.
    daemon.braid(&["volume", "move", "tank/db", "--place", "on=0,1"]);
    daemon.braid(&["pool", "remove", "tank", "0"]);
    let text = daemon.braid(&["pool", "remove", "tank", "0", "--cancel"]);
    assert!(text.contains("no longer placed on it: tank/db ("), "{text}");
    check(&mut client(&daemon, "tank/db"), 0..640, 1);
}

fn jobs(daemon: &Daemon) -> Vec<Value> {
    daemon.json(&["job", "list"])["jobs"].as_array().expect("a list").clone()
}

#[track_caller]
fn job(daemon: &Daemon, kind: &str) -> Value {
    let found = jobs(daemon).into_iter().rfind(|job| job["kind"] == kind);
    found.unwrap_or_else(|| panic!("no job is a {kind}: {}", daemon.braid(&["job", "list"])))
}

#[test]
fn background_work_of_a_pool_is_jobs_that_can_be_paused_limited_and_given_up() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 200 * MIB));
    // Slow enough to interrupt jobs in the middle.
    let slow = format!("throttled({},bw=24M)", disks[1]);
    daemon.braid(&["pool", "create", "tank", &disks[0], &slow, &disks[2]]);
    daemon.braid(&["volume", "create", "tank/db", "128M", "--place", "on=0"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..1200, 1);
    assert!(jobs(&daemon).is_empty(), "{:?}", jobs(&daemon));

    // A limited move is interrupted in the middle, pauses, is still there after a start, and ends.
    daemon.braid(&["volume", "move", "tank/db", "--place", "on=1"]);
    let name = job(&daemon, "move")["name"].as_str().expect("a name").to_owned();
    daemon.braid(&["job", "limit", &name, "4M"]);
    daemon.braid(&["job", "pause", &name]);
    let shown = job(&daemon, "move");
    assert_eq!((&shown["state"], &shown["paused"]), (&Value::from("paused"), &Value::from(true)));
    assert_eq!((&shown["pool"], &shown["volume"]), (&Value::from("tank"), &Value::from("tank/db")));
    assert_eq!(shown["limit_bytes_per_s"], 4 * MIB);
    assert!(shown["progress"]["total_bytes"].as_u64().expect("a size") > 64 * MIB, "{shown}");
    // Copies in flight end; then nothing moves.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let there = on_member(&daemon, 0);
    assert!(there > 32 * MIB, "{there} left: the limit did not hold");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(on_member(&daemon, 0), there, "it waits");
    write(&mut db, 0..1200, 2);
    let refused = daemon.refused(2, &["job", "cancel", &name]);
    assert!(refused.contains("job pause") && refused.contains("volume move tank/db"), "{refused}");
    daemon.braid(&["job", "resume", &name]);
    wait_for("the move to go on", || (on_member(&daemon, 0) < there).then_some(()));
    assert_eq!(job(&daemon, "move")["state"], "running");
    drop(db);
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    wait_for("the move to be a job again", || jobs(&daemon).iter().any(|job| job["kind"] == "move").then_some(()));
    wait_for("the job of the move to have ended", || (job(&daemon, "move")["state"] == "done").then_some(()));
    assert_eq!(on_member(&daemon, 0), 0);
    check(&mut db, 0..1200, 2);

    // A paused evacuation; when it is given up, the member stays.
    daemon.braid(&["volume", "move", "tank/db", "--place", "spread", "--wait"]);
    daemon.braid(&["pool", "remove", "tank", "1"]);
    let name = job(&daemon, "evacuation")["name"].as_str().expect("a name").to_owned();
    daemon.braid(&["job", "pause", &name]);
    assert_eq!(job(&daemon, "evacuation")["member"], 1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let there = on_member(&daemon, 1);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(on_member(&daemon, 1), there, "it waits");
    daemon.braid(&["job", "cancel", &name]);
    assert_eq!(job(&daemon, "evacuation")["state"], "cancelled");
    // An evacuation that runs to its end, with the command waiting for it.
    let said = daemon.braid(&["pool", "remove", "tank", "1", "--wait"]);
    assert!(said.contains("evacuation of member 1") && said.contains("is done"), "{said}");
    wait_for("the member to be gone", || {
        let members = daemon.json(&["pool", "show", "tank"])["members"].as_array().expect("a list").len();
        (members == 2).then_some(())
    });
    check(&mut db, 0..1200, 2);

    // Blocks scattered over a snapshot are compacted.
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    for block in 0..600u64 {
        db.write(block * BLOCK + 4096, &noise(4096, 90_000 + block)).expect("it writes");
    }
    let said = daemon.braid(&["volume", "compact", "tank/db", "--wait"]);
    assert!(said.contains("compaction of tank/db"), "{said}");
    assert_eq!(job(&daemon, "compaction")["state"], "done");
    let listed = daemon.braid(&["job", "list"]);
    assert!(listed.contains("tank/db") && listed.contains("evacuation"), "{listed}");
    for block in 0..600u64 {
        let back = db.read(block * BLOCK + 4096, 4096).expect("it reads");
        assert!(back == noise(4096, 90_000 + block), "block {block} over the snapshot");
    }
    daemon.refused(3, &["job", "pause", "tank:99"]);
}

#[test]
fn a_compaction_given_up_while_paused_unblocks_the_next_one() {
    let daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 200 * MIB));
    let slow = format!("throttled({},bw=4M)", disks[1]);
    daemon.braid(&["pool", "create", "tank", &disks[0], &slow]);
    for name in ["db", "first", "second"] {
        daemon.braid(&["volume", "create", &format!("tank/{name}"), "64M", "--place", "on=0"]);
    }
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, 0..400, 1);

    // Part of a move is done, so that its limit delays all copies for minutes: neither compaction has begun.
    daemon.braid(&["volume", "move", "tank/db", "--place", "on=1"]);
    let held = job(&daemon, "move")["name"].as_str().expect("a name").to_owned();
    daemon.braid(&["job", "limit", &held, "4K"]);
    let done = |daemon: &Daemon| job(daemon, "move")["progress"]["done_bytes"].as_u64().filter(|bytes| *bytes > 0);
    wait_for("some of the move", || done(&daemon));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let compaction = |volume: &str| {
        let found = jobs(&daemon).into_iter().find(|job| job["kind"] == "compaction" && job["volume"] == volume);
        found.unwrap_or_else(|| panic!("{volume} has no job: {}", daemon.braid(&["job", "list"])))
    };
    let name = |job: Value| job["name"].as_str().expect("a name").to_owned();
    daemon.braid(&["volume", "compact", "tank/first"]);
    daemon.braid(&["volume", "compact", "tank/second"]);
    let first = name(compaction("tank/first"));
    daemon.braid(&["job", "pause", &first]);
    daemon.braid(&["job", "limit", &held, "0"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(compaction("tank/first")["state"], "paused");
    assert_eq!(compaction("tank/second")["state"], "running");
    daemon.braid(&["job", "cancel", &first]);
    wait_for("the second compaction", || (compaction("tank/second")["state"] == "done").then_some(()));
    assert_eq!(compaction("tank/first")["state"], "cancelled");
    check(&mut db, 0..400, 1);
}
