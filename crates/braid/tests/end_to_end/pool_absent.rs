//! Pools that go on without a lost member, and take it back.

use crate::nbd::Client;
use crate::pools::{check, client, export, write};
use crate::support::*;

const BLOCK: u64 = 64 * KIB;

fn attention(daemon: &Daemon) -> String {
    let shown = daemon.json(&["pool", "show", "tank"]);
    format!("{}: {}", shown["state"].as_str().expect("a word"), shown["attention"])
}

fn in_doubt(daemon: &Daemon, volume: &str) -> bool {
    daemon.json(&["volume", "show", volume])["in_doubt"].as_bool().expect("a truth")
}

/// Creates a pool of three disks, and three volumes with the given number of blocks: one on the first disk, one on the second, and one on all.
fn three_disks(daemon: &Daemon, blocks: u64) -> [String; 3] {
    let disks = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1], &disks[2]]);
    for (name, place) in [("here", "on=0"), ("lost", "on=1"), ("wide", "spread")] {
        let name = format!("tank/{name}");
        daemon.braid(&["volume", "create", &name, "1G", "--place", place]);
        export(daemon, &name);
        let mut client = client(daemon, &name);
        write(&mut client, 0..blocks, 1);
        client.flush().expect("it is durable");
    }
    disks
}

/// Returns how many of the blocks read as they were written, and how many as errors. Any other content fails the test.
fn read_counts(client: &mut Client, blocks: std::ops::Range<u64>, seed: u64) -> (u64, u64) {
    let (mut good, mut errors) = (0, 0);
    for block in blocks {
        match client.read(block * BLOCK, BLOCK as usize) {
            Ok(back) => {
                assert!(back == noise(BLOCK, seed + block), "block {block} is neither what was written nor an error");
                good += 1;
            }
            Err(_) => errors += 1,
        }
    }
    (good, errors)
}

#[test]
fn a_pool_goes_on_without_a_lost_member_and_takes_it_back() {
    for kill in [false, true] {
        let mut daemon = Daemon::start();
        let disks = three_disks(&daemon, 300);
        daemon.braid(&["snapshot", "create", "tank/wide@monday"]);
        write(&mut client(&daemon, "tank/wide"), 100..110, 5000);
        export(&daemon, "tank/wide@monday");
        let refused = daemon.refused(4, &["pool", "start", "tank", "--force"]);
        assert!(refused.contains("pool tank is active already"), "{refused}");
        if kill {
            daemon.kill()
        } else {
            daemon.stop()
        }
        let hidden_path = daemon.folder.join("away");
        std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
        daemon.start_again();
        let said = attention(&daemon);
        assert!(said.starts_with("incomplete") && said.contains("member 1"), "{said}");
        let refused = daemon.refused(1, &["pool", "start", "tank"]);
        assert!(refused.contains("member 1") && refused.contains("braid pool start tank --force"), "{refused}");

        daemon.braid(&["pool", "start", "tank", "--force"]);
        let without = |daemon: &Daemon| {
            let said = attention(daemon);
            assert!(said.starts_with("active") && said.contains("member 1 is missing"), "{said}");
            assert!(daemon.events().contains("goes on without member 1"), "{}", daemon.events());
            assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
            assert_eq!(
                ["here", "lost", "wide"].map(|name| in_doubt(daemon, &format!("tank/{name}"))),
                [false, true, true]
            );
            check(&mut client(daemon, "tank/here"), 0..300, 1);
            assert_eq!(read_counts(&mut client(daemon, "tank/lost"), 0..300, 1), (0, 300));
            let (good, errors) = read_counts(&mut client(daemon, "tank/wide@monday"), 0..300, 1);
            assert!(good > 0 && errors > 0, "{good} and {errors}");
            // The volume's view of its snapshot might have been overwritten on the absent member.
            let (good, errors) = read_counts(&mut client(daemon, "tank/wide"), 0..100, 1);
            assert_eq!((good, errors), (0, 100));
        };
        without(&daemon);
        let shown = daemon.braid(&["volume", "show", "tank/lost"]);
        assert!(shown.contains("reads as errors"), "{shown}");
        // Volumes without data on the absent member work fully, and so do new ones.
        write(&mut client(&daemon, "tank/here"), 200..400, 9000);
        daemon.braid(&["snapshot", "create", "tank/here@now"]);
        daemon.braid(&["volume", "create", "tank/new", "1G", "--place", "on=2"]);
        let refused = daemon.refused(4, &["pool", "remove", "tank", "1"]);
        assert!(refused.contains("member 1 of pool tank is missing, and may return"), "{refused}");
        let refused = daemon.refused(3, &["pool", "remove", "tank", "1", "--cancel"]);
        assert!(refused.contains("1 is no member of pool tank that is there"), "{refused}");
        // The absence was accepted before: no confirmation is needed again.
        daemon.restart(!kill);
        let said = attention(&daemon);
        assert!(said.starts_with("active") && said.contains("member 1 is missing"), "{said}");
        check(&mut client(&daemon, "tank/here"), 200..400, 9000);

        // The member is present again: the pool notices it while it serves, and a start takes it back.
        std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
        daemon.any(&["array", "assemble", "--disk", &disks[1]]);
        assert!(daemon.events().contains("is member 1 of pool tank, which goes on without it"), "{}", daemon.events());
        daemon.restart(kill);
        assert_eq!(attention(&daemon), "active: []");
        assert!(daemon.events().contains("member 1 of pool tank is back"));
        for (name, expected) in [("here", 0..200), ("lost", 0..300), ("wide", 0..100), ("wide", 110..300)] {
            assert!(!in_doubt(&daemon, &format!("tank/{name}")));
            check(&mut client(&daemon, &format!("tank/{name}")), expected, 1);
        }
        check(&mut client(&daemon, "tank/here"), 200..400, 9000);
        check(&mut client(&daemon, "tank/wide@monday"), 0..300, 1);
        write(&mut client(&daemon, "tank/wide"), 0..300, 20_000);
        daemon.restart(true);
        assert_eq!(attention(&daemon), "active: []");
        check(&mut client(&daemon, "tank/wide"), 0..300, 20_000);
    }
}

/// Returns the exit status of a check, and its findings.
fn checked(daemon: &Daemon) -> (Option<i32>, serde_json::Value) {
    let output = daemon.any(&["pool", "check", "tank", "--json"]);
    let document = serde_json::from_slice(&output.stdout);
    (output.status.code(), document.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

#[test]
fn a_check_reports_which_members_it_skipped() {
    let mut daemon = Daemon::start();
    let disks = three_disks(&daemon, 10);
    assert_eq!(checked(&daemon).0, Some(0));
    let hidden_path = daemon.folder.join("away");
    daemon.stop();
    std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
    daemon.start_again();
    daemon.braid(&["pool", "start", "tank", "--force"]);
    let (status, shown) = checked(&daemon);
    assert_eq!((status, &shown["damaged"], &shown["unknown"]), (Some(5), &0.into(), &0.into()), "{shown}");
    assert_eq!(shown["members_missing"], serde_json::json!([1]), "{shown}");
    assert_eq!(shown["in_doubt_missing"], serde_json::json!(["lost", "wide"]), "{shown}");
    let text = said(&daemon.any(&["pool", "check", "tank"]));
    assert!(text.contains("not checked: missing members (1)") && text.contains("lost, wide"), "{text}");
    assert!(text.contains("braid pool start tank") && !text.contains("nothing is damaged"), "{text}");
    // A check does not give up a member that may come back.
    assert_eq!(daemon.any(&["pool", "check", "tank", "--give-up", "--yes"]).status.code(), Some(5));
    std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
    daemon.braid(&["pool", "start", "tank"]);
    let (status, shown) = checked(&daemon);
    assert_eq!((status, &shown["members_missing"]), (Some(0), &serde_json::json!([])), "{shown}");
    assert!(daemon.braid(&["pool", "check", "tank"]).contains("nothing is damaged"));
}

#[test]
fn a_returning_member_is_taken_back_without_a_restart() {
    let mut daemon = Daemon::start();
    let disks = three_disks(&daemon, 300);
    let hidden_path = daemon.folder.join("away");
    daemon.stop();
    std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
    daemon.start_again();
    daemon.braid(&["pool", "start", "tank", "--force"]);
    let refused = daemon.refused(1, &["pool", "start", "tank"]);
    assert!(refused.contains("is active without member 1, and none of that is here"), "{refused}");
    write(&mut client(&daemon, "tank/here"), 200..400, 9000);
    let mut user = client(&daemon, "tank/here");

    // The pool notices the member by itself, and reports it with a remedy.
    std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
    let back = || attention(&daemon).contains(&format!("it is here again, as disk {}", disks[1])).then_some(());
    wait_for("it to be named", back);
    let status = daemon.any(&["status"]);
    assert!(said(&status).contains("braid pool start tank"), "{}", said(&status));
    assert!(daemon.events().contains("braid pool start tank takes it back"), "{}", daemon.events());
    // A volume in use is not interrupted.
    let refused = daemon.refused(4, &["pool", "start", "tank"]);
    assert!(refused.contains("used by 1 client, of tank/here"), "{refused}");
    check(&mut user, 200..400, 9000);
    assert!(attention(&daemon).starts_with("active: [\"member 1 is missing"), "{}", attention(&daemon));
    drop(user);
    let started = || daemon.any(&["pool", "start", "tank"]).status.success().then_some(());
    wait_for("the client to be gone, and the pool to be reopened", started);

    assert_eq!(attention(&daemon), "active: []");
    assert!(daemon.events().contains("member 1 of pool tank is back"), "{}", daemon.events());
    for (name, expected) in [("here", 0..200), ("lost", 0..300), ("wide", 0..300)] {
        assert!(!in_doubt(&daemon, &format!("tank/{name}")));
        check(&mut client(&daemon, &format!("tank/{name}")), expected, 1);
    }
    check(&mut client(&daemon, "tank/here"), 200..400, 9000);
    write(&mut client(&daemon, "tank/lost"), 0..300, 7000);
    daemon.braid(&["snapshot", "create", "tank/wide@monday"]);
    let refused = daemon.refused(4, &["pool", "start", "tank"]);
    assert!(refused.contains("active already"), "{refused}");
    daemon.restart(true);
    assert_eq!(attention(&daemon), "active: []");
    check(&mut client(&daemon, "tank/lost"), 0..300, 7000);
    check(&mut client(&daemon, "tank/wide"), 0..300, 1);
}

#[test]
fn a_pool_on_an_array_reopens_with_a_disk_or_with_the_array() {
    let mut daemon = Daemon::start();
    let files = ["a.img", "b.img", "c.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    daemon.braid(&["array", "create", "safe", "--level", "raid1", &files[0], &files[1]]);
    daemon.braid(&["pool", "create", "tank", "safe", &files[2]]);
    for (name, place) in [("safe", "on=0"), ("disk", "on=1"), ("wide", "spread")] {
        let name = format!("tank/{name}");
        daemon.braid(&["volume", "create", &name, "1G", "--place", place]);
        export(&daemon, &name);
        write(&mut client(&daemon, &name), 0..100, 1);
    }
    let all_there = |daemon: &Daemon| {
        assert_eq!(attention(daemon), "active: []");
        ["safe", "disk", "wide"].iter().for_each(|name| check(&mut client(daemon, &format!("tank/{name}")), 0..100, 1));
    };
    // The daemon looks for members of arrays in the folder where they were.
    let elsewhere = daemon.folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    let hidden_path = |file: &str| format!("{elsewhere}/{}", file.rsplit('/').next().expect("a name"));
    let moved = |from: &str, to: &str| std::fs::rename(from, to).expect("it is a file");
    for gone in [&files[2..], &files[..2]] {
        daemon.stop();
        gone.iter().for_each(|file| moved(file, &hidden_path(file)));
        daemon.start_again();
        daemon.braid(&["pool", "start", "tank", "--force"]);
        assert!(attention(&daemon).contains("is missing"), "{}", attention(&daemon));
        gone.iter().for_each(|file| moved(&hidden_path(file), file));
        // An array is present when it is active.
        daemon.braid(&["array", "assemble"]);
        assert!(attention(&daemon).contains("it is here again, as"), "{}", attention(&daemon));
        daemon.braid(&["pool", "start", "tank"]);
        all_there(&daemon);
        let refused = daemon.refused(4, &["array", "stop", "safe"]);
        assert!(refused.contains("is member 0 of pool tank"), "{refused}");
    }
    daemon.restart(true);
    all_there(&daemon);
}

#[test]
fn a_pool_goes_on_without_a_returning_member_that_does_not_match() {
    let mut daemon = Daemon::start();
    let disks = three_disks(&daemon, 100);
    daemon.stop();
    let old = daemon.folder.join("old");
    std::fs::copy(&disks[1], &old).expect("it can be copied");
    daemon.start_again();
    write(&mut client(&daemon, "tank/lost"), 0..100, 5000);
    daemon.stop();
    std::fs::remove_file(&disks[1]).expect("it is a file");
    daemon.start_again();
    daemon.braid(&["pool", "start", "tank", "--force"]);
    std::fs::rename(&old, &disks[1]).expect("it is a file");
    let refused = daemon.refused(1, &["pool", "start", "tank"]);
    assert!(refused.contains("does not open with disk") && refused.contains("goes on without as before"), "{refused}");
    assert!(attention(&daemon).starts_with("active: [\"member 1 is missing"), "{}", attention(&daemon));
    check(&mut client(&daemon, "tank/here"), 0..100, 1);
    assert_eq!(read_counts(&mut client(&daemon, "tank/lost"), 0..100, 5000), (0, 100));
    write(&mut client(&daemon, "tank/here"), 0..100, 3000);
    std::fs::remove_file(&disks[1]).expect("it is a file");
    daemon.restart(true);
    check(&mut client(&daemon, "tank/here"), 0..100, 3000);
}

#[test]
fn an_old_copy_of_a_member_is_not_taken_back() {
    let mut daemon = Daemon::start();
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    daemon.braid(&["volume", "create", "tank/here", "1G", "--place", "on=0"]);
    export(&daemon, "tank/db");
    export(&daemon, "tank/here");
    write(&mut client(&daemon, "tank/db"), 0..100, 1);
    daemon.stop();
    let old = daemon.folder.join("old");
    std::fs::copy(&disks[1], &old).expect("it can be copied");
    daemon.start_again();
    write(&mut client(&daemon, "tank/db"), 0..100, 5000);
    daemon.stop();
    let hidden_path = daemon.folder.join("away");
    std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
    std::fs::rename(&old, daemon.folder.path().join("elsewhere")).expect("it is a file");
    daemon.start_again();
    daemon.any(&["pool", "start", "tank", "--force"]);
    write(&mut client(&daemon, "tank/here"), 0..100, 1);
    daemon.stop();
    // The returning copy lacks committed changes from before the member was lost.
    std::fs::rename(daemon.folder.path().join("elsewhere"), &disks[1]).expect("it is a file");
    daemon.start_again();
    let said = attention(&daemon);
    assert!(said.starts_with("failed") && said.contains("member 1"), "{said}");
    assert!(said.contains("old copy") || said.contains("lacks"), "{said}");
    // Without the old copy the pool goes on as before; with the right disk it is complete.
    std::fs::remove_file(&disks[1]).expect("it is a file");
    daemon.braid(&["pool", "start", "tank"]);
    check(&mut client(&daemon, "tank/here"), 0..100, 1);
    daemon.stop();
    std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
    daemon.start_again();
    assert_eq!(attention(&daemon), "active: []");
    check(&mut client(&daemon, "tank/db"), 0..100, 5000);
    check(&mut client(&daemon, "tank/here"), 0..100, 1);
}

#[test]
fn a_member_lost_for_good_is_given_up_and_refused_when_it_returns() {
    for kill in [false, true] {
        let mut daemon = Daemon::start();
        let disks = three_disks(&daemon, 100);
        // A member that is present cannot be given up.
        let refused = daemon.refused(2, &["pool", "remove", "tank", "1", "--force"]);
        assert!(refused.contains("is there"), "{refused}");
        daemon.restart(!kill);
        daemon.stop();
        let hidden_path = daemon.folder.join("away");
        std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
        daemon.start_again();
        daemon.braid(&["pool", "start", "tank", "--force"]);
        let shown = daemon.json(&["pool", "show", "tank"]);
        let in_doubt = shown["space"]["in_doubt_bytes"].as_u64().expect("a number");
        let wide = daemon.json(&["volume", "show", "tank/wide"])["space"]["in_doubt_bytes"].as_u64().expect("a number");
        assert_eq!(in_doubt, 1024 * MIB + wide, "{shown}");
        let (good, errors) = read_counts(&mut client(&daemon, "tank/wide"), 0..100, 1);
        assert_eq!(wide, 1024 * MIB - good * BLOCK, "{good} and {errors}");

        // The refusal lists what would be lost; a member that is present cannot be given up.
        let refused = daemon.refused(4, &["pool", "remove", "tank", "1"]);
        assert!(
            refused.contains("missing") && refused.contains("lost, wide") && refused.contains("--force"),
            "{refused}"
        );
        std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
        let refused = daemon.refused(4, &["pool", "remove", "tank", "1", "--force"]);
        assert!(refused.contains("is there") && refused.contains("b.img"), "{refused}");
        std::fs::rename(&disks[1], &hidden_path).expect("it is a file");
        daemon.braid(&["pool", "remove", "tank", "1", "--force"]);
        daemon.braid(&["pool", "remove", "tank", &disks[1], "--force"]);
        let said = attention(&daemon);
        assert!(said.contains("member 1 was given up"), "{said}");
        assert!(daemon.braid(&["pool", "show", "tank"]).contains("given_up"));
        let as_before = |daemon: &Daemon| {
            check(&mut client(daemon, "tank/here"), 0..100, 1);
            assert_eq!(read_counts(&mut client(daemon, "tank/lost"), 0..100, 1), (0, 100));
            assert_eq!(read_counts(&mut client(daemon, "tank/wide"), 0..100, 1), (good, errors));
        };
        as_before(&daemon);

        // The member returns: while the pool serves, and at a start.
        daemon.restart(kill);
        as_before(&daemon);
        std::fs::rename(&hidden_path, &disks[1]).expect("it is a file");
        daemon.any(&["array", "assemble", "--disk", &disks[1]]);
        assert!(daemon.events().contains("was member 1 of pool tank, and was given up"), "{}", daemon.events());
        daemon.restart(kill);
        assert!(daemon.events().contains("braid disk wipe"), "{}", daemon.events());
        let said = attention(&daemon);
        assert!(said.starts_with("active") && said.contains("member 1 was given up"), "{said}");
        as_before(&daemon);

        // What the member held is given up as damage is.
        let (status, checked) = checked(&daemon);
        assert_eq!((status, &checked["members_lost"]), (Some(5), &serde_json::json!([1])), "{checked}");
        assert_eq!(checked["in_doubt"].as_array().expect("a list").len(), 2, "{checked}");
        let refused = daemon.refused(4, &["pool", "check", "tank", "--give-up", "--yes"]);
        assert!(refused.contains("exported"), "{refused}");
        for name in ["lost", "wide"] {
            daemon.braid(&["export", "remove", &format!("tank/{name}")]);
        }
        daemon.refused(4, &["pool", "check", "tank", "--give-up"]);
        daemon.braid(&["pool", "check", "tank", "--give-up", "--yes"]);
        let whole = |daemon: &Daemon| {
            assert_eq!(attention(daemon), "active: []");
            let shown = daemon.json(&["pool", "show", "tank"]);
            assert_eq!(shown["members"].as_array().expect("a list").len(), 2, "{shown}");
            assert_eq!(shown["space"]["in_doubt_bytes"].as_u64(), Some(0), "{shown}");
            assert!(!in_doubt_of(daemon));
        };
        whole(&daemon);
        daemon.restart(kill);
        whole(&daemon);
        // A volume that was placed on the lost member alone is placed on any member now.
        let place = daemon.json(&["volume", "show", "tank/lost"])["place"].clone();
        assert_eq!(place, "spread");
        for name in ["lost", "wide"] {
            export(&daemon, &format!("tank/{name}"));
        }
        let mut wide = client(&daemon, "tank/wide");
        let zeros = vec![0; BLOCK as usize];
        let mut lost = 0;
        for block in 0..100 {
            let back = wide.read(block * BLOCK, BLOCK as usize).expect("nothing is in doubt");
            lost += u64::from(back == zeros);
            assert!(back == zeros || back == noise(BLOCK, 1 + block), "block {block}");
        }
        assert_eq!(lost, errors, "what was certain is there still");
        for name in ["lost", "wide"] {
            write(&mut client(&daemon, &format!("tank/{name}")), 0..200, 7000);
            daemon.braid(&["snapshot", "create", &format!("tank/{name}@now")]);
        }
        daemon.restart(kill);
        whole(&daemon);
        check(&mut client(&daemon, "tank/lost"), 0..200, 7000);
        check(&mut client(&daemon, "tank/wide"), 0..200, 7000);
        // The disk is still no member, and may be used otherwise.
        daemon.any(&["array", "assemble", "--disk", &disks[1]]);
        assert!(daemon.events().contains("which it was removed from or given up"), "{}", daemon.events());
        daemon.braid(&["disk", "wipe", &disks[1], "--yes"]);
        daemon.braid(&["pool", "add", "tank", &disks[1], "--yes"]);
        assert_eq!(daemon.json(&["pool", "show", "tank"])["members"].as_array().expect("a list").len(), 3);
    }
}

fn in_doubt_of(daemon: &Daemon) -> bool {
    ["here", "lost", "wide"].iter().any(|name| in_doubt(daemon, &format!("tank/{name}")))
}
