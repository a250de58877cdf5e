//! raid5 and raid6 do what mirrors do: lose members, serve degraded, take members back, replace them and grow.

use crate::growing::{enlarge, size};
use crate::mirror_crashes::{bring_back, out};
use crate::mirrors::*;
use crate::replacing::wait_for_the_disk;
use crate::support::*;

#[test]
fn raid5_over_disks_of_mixed_sizes_has_the_zones_that_plan_shows() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> =
        [50, 100, 100].iter().zip(0..).map(|(gib, i)| daemon.folder.sparse(&format!("d{i}"), gib << 30)).collect();
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    let planned = daemon.json(&["plan", "--level", "raid5", "50G", "100G", "100G"]);
    let mut client = create(&daemon, "raid5", &disks, &[]);
    let shown = show(&daemon);
    assert_eq!(
        (&shown["size_bytes"], shown["redundancy"]["tolerates"].as_u64()),
        (&planned["levels"][0]["array_size_bytes"], Some(1)),
        "{shown}"
    );
    let zones = shown["zones"].as_array().expect("a list");
    let members: Vec<usize> = zones.iter().map(|zone| zone["members"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(members, [3, 2], "{shown}");
    assert!(shown["size_bytes"].as_u64() > Some((150 << 30) - 100 * MIB), "{shown}");
    // Writes across the border of the zones, in pieces that are no multiple of a chunk.
    let border = zones[1]["array_start_bytes"].as_u64().expect("bytes");
    let last = shown["size_bytes"].as_u64().expect("bytes") - 3 * 4096;
    let places = [(0, 200 * KIB), (border - 100 * KIB, 300 * KIB), (last, 3 * 4096), (5 * BLOCK + 4096, 8192)];
    for (at, bytes) in places {
        client.write(at, &noise(bytes, at + 1)).expect("it writes");
    }
    let read_back = |daemon: &Daemon| {
        let mut client = self::client(daemon);
        for (at, bytes) in places.iter().skip(1).copied() {
            let back = client.read(at, bytes as usize).expect("it reads");
            assert!(back == noise(bytes, at + 1), "byte {at}");
        }
    };
    read_back(&daemon);
    drop(client);
    daemon.restart(false);
    assert_eq!(health(&daemon), "whole");
    read_back(&daemon);
    for disk in disks {
        daemon.braid(&["array", "fail", "data", disk]);
        read_back(&daemon);
        bring_back(&daemon, disk);
        wait_for_health(&daemon, "whole");
    }
}

#[test]
fn every_two_members_of_a_raid6_of_six_may_fail() {
    let daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c", "d", "e", "f"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid6", &names, &["--chunk", "16K"]);
    const BLOCKS: u64 = 60;
    write(&mut client, 0..BLOCKS, 1);
    let mut written = vec![1; BLOCKS as usize];
    let mut pairs = 0;
    for (one, other) in (0..6usize).flat_map(|one| (0..one).map(move |other| (one, other))) {
        for role in [one, other] {
            daemon.braid(&["array", "fail", "data", &role.to_string()]);
        }
        for (block, seed) in written.iter().enumerate() {
            check(&mut client, [block as u64], *seed);
        }
        // Some of the blocks are rewritten while both members are missing.
        pairs += 1;
        for block in (pairs % 7..BLOCKS).step_by(7) {
            write(&mut client, [block], 100 * pairs);
            written[block as usize] = 100 * pairs;
        }
        let third = (0..6).find(|role| ![one, other].contains(role)).expect("there are six");
        let refused = daemon.refused(4, &["array", "fail", "data", &third.to_string()]);
        assert!(refused.contains("would be lost"), "{refused}");
        for role in [one, other] {
            bring_back(&daemon, &disks[role]);
        }
        wait_for_health(&daemon, "whole");
    }
    assert_eq!(pairs, 15);
    for (block, seed) in written.iter().enumerate() {
        check(&mut client, [block as u64], *seed);
    }
    let checked = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
}

#[test]
fn fio_verifies_its_data_after_a_member_is_lost_under_load() {
    let daemon = Daemon::start();
    let [a, b, c, d] = &files(&daemon, &["a", "b", "c", "d"])[..] else { panic!("four files") };
    drop(create(&daemon, "raid5", &[a, &format!("faulty({b},gone-after=2000)"), c, d], &[]));
    let fio = |more: &[&str]| {
        let uri = format!("--uri={}", daemon.uri("data"));
        let always =
            ["--name=writer", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=16M"];
        let verify = ["--randseed=5", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
        let said = run("fio", &[&always[..], &verify, more].concat());
        assert!(said.contains("err= 0"), "{said}");
    };
    fio(&["--do_verify=1"]);
    assert_eq!((health(&daemon), out(&daemon)), ("degraded".to_owned(), vec![1]), "{}", daemon.events());
    assert!(daemon.events().contains("member_dropped"), "{}", daemon.events());
    bring_back(&daemon, b);
    wait_for_health(&daemon, "whole");
    // Blocks that were written while member 1 was missing are read from it now.
    daemon.braid(&["array", "fail", "data", "0"]);
    fio(&["--verify_only=1"]);
}

#[test]
fn a_spare_takes_over_a_disk_fills_a_slot_and_the_array_grows() {
    let mut daemon = Daemon::start();
    let [a, b, c, d, e] = &files(&daemon, &["a", "b", "c", "d", "e"])[..] else { panic!("five files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &["--spare", d]);
    write(&mut client, 0..120, 1);
    daemon.braid(&["array", "fail", "data", a]);
    wait_for_health(&daemon, "whole");
    assert_eq!(show(&daemon)["members"][0]["disk"].as_str(), Some(&**d), "the spare has the role");
    check(&mut client, 0..120, 1);
    // A disk is replaced while the array serves.
    daemon.braid(&["array", "replace", "data", "1", e]);
    write(&mut client, 120..130, 1);
    wait_for_the_disk(&daemon, 1, e);
    daemon.braid(&["array", "fail", "data", "2"]);
    check(&mut client, 0..130, 1);
    // The vacant slot goes to a disk that was never a member, or is one no longer.
    daemon.braid(&["array", "remove", "data", "2"]);
    assert_eq!(member_state(&daemon, 2), "vacant");
    daemon.braid(&["array", "add", "data", a, "--force", "--wait"]);
    wait_for_health(&daemon, "whole");

    // Two of the three disks become larger: a zone of two members would follow the others.
    let small = size(&daemon);
    let refused = daemon.refused(2, &["array", "grow", "data", b]);
    assert!(refused.contains("name 2 or more further disks") && refused.contains("another array"), "{refused}");
    assert!(daemon.refused(2, &["array", "grow", "data"]).contains("no capacity would be gained"));
    enlarge(d, 120 * MIB);
    enlarge(e, 120 * MIB);
    let said = daemon.braid(&["array", "grow", "data"]);
    let large = size(&daemon);
    assert!(said.contains("has grown") && large > small + 39 * MIB && large < small + 41 * MIB, "{said}");
    let mut client = self::client(&daemon);
    let new = small.div_ceil(BLOCK);
    assert!(client.read(new * BLOCK, BLOCK as usize).expect("it reads").iter().all(|byte| *byte == 0));
    write(&mut client, new..new + 100, 1);
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, (0..130).chain(new..new + 100), 1);
    drop(client);

    // The degraded array starts by itself: the absent member cannot have served alone.
    daemon.stop();
    hide(&daemon, d);
    daemon.start_again();
    assert_eq!((health(&daemon), out(&daemon)), ("degraded".to_owned(), vec![0]));
    check(&mut self::client(&daemon), (0..130).chain(new..new + 100), 1);
    unhide(&daemon, d);
    bring_back(&daemon, d);
    wait_for_health(&daemon, "whole");
}

#[test]
fn a_raid_starts_without_one_member_that_was_not_marked_failed_and_waits_without_two() {
    let mut daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &[]);
    write(&mut client, 0..40, 1);
    drop(client);
    daemon.stop();
    hide(&daemon, b);
    daemon.start_again();
    assert_eq!(health(&daemon), "degraded");
    let mut client = self::client(&daemon);
    check(&mut client, 0..40, 1);
    write(&mut client, 40..60, 1);
    drop(client);
    daemon.stop();
    hide(&daemon, c);
    daemon.start_again();
    let shown = show(&daemon);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    unhide(&daemon, b);
    unhide(&daemon, c);
    // The failed member is an old copy: it is resynced before it counts as in sync.
    daemon.any(&["array", "assemble", "data"]);
    wait_for_health(&daemon, "whole");
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut self::client(&daemon), 0..60, 1);
}

#[test]
fn an_array_fails_beyond_its_tolerance_and_keeps_flushed_data() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let faulty = |path: &str, after: u32| format!("faulty({path},gone-after={after})");
    let mut client = create(&daemon, "raid5", &[a, &faulty(b, 1500), &faulty(c, 1000)], &[]);
    write(&mut client, 0..50, 1);
    client.flush().expect("it flushes");
    let mut writes = 0;
    while client.write((50 + writes % 500) * BLOCK, &noise(BLOCK, writes)).is_ok() {
        writes += 1;
        assert!(writes < 20_000, "two disks are gone, and it still writes");
    }
    wait_for_health(&daemon, "failed");
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    drop(client);
    daemon.braid(&["array", "assemble", "data"]);
    wait_for_health(&daemon, "whole");
    check(&mut self::client(&daemon), 0..50, 1);
}

#[test]
fn impossible_requests_are_refused_with_a_reason_and_a_remedy() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let create = |arguments: &[&str]| {
        let mut all = vec!["array", "create", "data", "--level"];
        all.extend(arguments);
        daemon.refused(2, &all)
    };
    let check = |said: String, words: &str| assert!(said.contains(words), "{said}");
    check(create(&["raid5", a]), "needs 2 disks or more");
    check(create(&["raid6", a, b]), "needs 3 disks or more");
    check(create(&["raid5", "--copies", "2", a, b, c]), "only raid10");
    check(create(&["raid5", "--write-mostly", a, a, b, c]), "leave --write-mostly out");
    check(create(&["raid5", "--chunk", "5000", a, b, c]), "multiple of 4.00 KiB");
    check(create(&["raid5", "--chunk", "64M", a, b, "mem:32M"]), "room for");
    // Disks under 1 GiB have a small journal: a disk with enough data space still cannot replace one that has a larger journal.
    let large: Vec<String> = (0..3).map(|i| daemon.folder.sparse(&format!("large{i}"), 1 << 30)).collect();
    daemon.braid(&["array", "create", "large", "--level", "raid5", &large[0], &large[1], &large[2]]);
    let almost = daemon.folder.sparse("almost", 1020 * MIB);
    check(daemon.refused(2, &["array", "spare", "large", &almost]), "take a disk of 1 GiB or more");
    let small = daemon.folder.sparse("small", 16 * MIB);
    check(create(&["raid5", a, b, "--spare", &small]), "room for");
    daemon.braid(&["array", "create", "data", "--level", "raid5", a, b, c]);
    daemon.braid(&["array", "fail", "data", "1"]);
    check(daemon.refused(4, &["array", "fail", "data", "0"]), "would be lost");
}
