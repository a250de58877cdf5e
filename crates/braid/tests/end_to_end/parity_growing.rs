//! Redundant arrays grow by further disks, which form zones of their own: existing data stay in place, and old and new members may fail.

use std::thread;
use std::time::Duration;

use crate::growing::{enlarge, size};
use crate::mirror_crashes::{bring_back, out};
use crate::mirrors::*;
use crate::nbd::Client;
use crate::support::*;

/// Returns the members of each zone, from the output of `array show` or of `array grow`.
fn zones(of: &serde_json::Value) -> Vec<Vec<u64>> {
    let members = |zone: &serde_json::Value| {
        let members = zone["members"].as_array().expect("a list");
        members.iter().map(|member| member.as_u64().expect("a number")).collect()
    };
    of["zones"].as_array().expect("a list").iter().map(members).collect()
}

fn fail(daemon: &Daemon, roles: &[u64]) {
    roles.iter().for_each(|role| drop(daemon.braid(&["array", "fail", "data", &role.to_string()])));
}

/// Level, number of its disks, number of further disks, and the members that fail afterwards: as many of the old and of
/// the new ones as a zone tolerates.
const GROWTHS: [(&str, usize, usize, &[u64]); 3] =
    [("raid5", 3, 2, &[1, 4]), ("raid6", 4, 3, &[0, 3, 4, 6]), ("raid1", 2, 2, &[0, 3])];

#[test]
fn further_disks_become_a_zone_of_their_own_under_fio() {
    for (level, old, new, lost) in GROWTHS {
        let mut daemon = Daemon::start();
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let disks = files(&daemon, &names[..old + new]);
        let spare = daemon.folder.sparse("spare", 80 * MIB);
        let before: Vec<&str> = disks[..old].iter().map(String::as_str).collect();
        let mut client = create(&daemon, level, &before, &["--spare", &spare]);
        let small = size(&daemon);
        // Beyond the area that fio writes; the region of the last block extends into the new zone.
        let (first, last) = (40 * MIB / BLOCK, small / BLOCK - 1);
        write(&mut client, first..first + 100, 1);
        write(&mut client, [last], 1);

        let mut fio = command("fio");
        let uri = format!("--uri={}", daemon.uri("data"));
        fio.args(["--name=load", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=16M"]);
        fio.args(["--io_size=24M", "--verify=crc32c", "--do_verify=1"]);
        let mut fio = Running::start(&daemon.folder, "fio", fio.current_dir(daemon.folder.path()));
        wait_for("fio to write", || {
            let members = show(&daemon)["members"].clone();
            let written: u64 = members.as_array()?.iter().filter_map(|m| m["stats"]["written_bytes"].as_u64()).sum();
            (written > 12 * MIB || fio.ended().is_some()).then_some(())
        });
        let mut grow = vec!["array", "grow", "data"];
        grow.extend(disks[old..].iter().map(String::as_str));
        let planned = daemon.json(&[&grow[..], &["--dry-run"]].concat());
        assert_eq!((size(&daemon), &planned["dry_run"]), (small, &true.into()), "{planned}");
        let grown = daemon.json(&grow);
        assert_eq!((&planned["size_bytes"], &planned["zones"]), (&grown["size_bytes"], &grown["zones"]));
        assert_eq!(grown["advice"].to_string().contains("another array"), level != "raid1", "{grown}");
        let large = size(&daemon);
        let roles = |range: std::ops::Range<usize>| range.map(|role| role as u64).collect::<Vec<_>>();
        assert_eq!(zones(&show(&daemon)), [roles(0..old), roles(old..old + new)]);
        let shown = show(&daemon);
        assert_eq!(shown["members"][old + new]["disk"].as_str(), Some(&*spare), "{shown}");
        assert_eq!(
            (shown["members"][old + new]["state"].as_str(), health(&daemon)),
            (Some("spare"), "whole".to_owned())
        );
        assert!(daemon.events().contains("array_grown"), "{}", daemon.events());
        assert!(fio.wait().success(), "{level}: {}", fio.log());
        daemon.braid(&["array", "remove", "data", &(old + new).to_string()]);

        // The new space reads as zeros from its first byte on, also where the border lies within a block.
        let mut client = self::client(&daemon);
        for at in [small, small + 4096, large - MIB] {
            let len = MIB.min(large - at) as usize;
            assert!(client.read(at, len).expect("it reads").iter().all(|byte| *byte == 0), "{level}: {at}");
        }
        // Writes across the border.
        let border = noise(200 * KIB, 7);
        client.write(small - 100 * KIB, &border).expect("it writes");
        let new_blocks = [small.div_ceil(BLOCK) + 3, (small + large) / 2 / BLOCK, large / BLOCK - 1];
        write(&mut client, new_blocks, 3);
        let whole = |daemon: &Daemon| {
            let mut client = self::client(daemon);
            check(&mut client, first..first + 100, 1);
            check(&mut client, new_blocks, 3);
            assert!(client.read(small - 100 * KIB, 200 * 1024).expect("it reads") == border, "{level}: the border");
        };
        whole(&daemon);
        // As many old and new members as a zone tolerates fail at once; then the daemon is killed.
        fail(&daemon, lost);
        whole(&daemon);
        write(&mut client, [first, new_blocks[0]], 50);
        drop(client);
        daemon.kill();
        let missing: Vec<&String> = lost.iter().map(|role| &disks[*role as usize]).collect();
        missing.iter().for_each(|disk| hide(&daemon, disk));
        daemon.start_again();
        assert_eq!(out(&daemon), lost.iter().map(|role| *role as usize).collect::<Vec<_>>());
        check(&mut self::client(&daemon), [first, new_blocks[0]], 50);
        write(&mut self::client(&daemon), [first], 1);
        write(&mut self::client(&daemon), [new_blocks[0]], 3);
        whole(&daemon);
        for disk in missing {
            unhide(&daemon, disk);
            // The disk may have been found already.
            drop(daemon.any(&["array", "add", "data", disk]));
        }
        wait_for_health(&daemon, "whole");
        // The members that returned hold all of the data.
        let others: Vec<u64> = match level {
            "raid6" => vec![1, 2, 5],
            "raid5" => vec![0, 3],
            _ => vec![1, 2],
        };
        fail(&daemon, &others);
        whole(&daemon);
        others.iter().for_each(|role| bring_back(&daemon, &disks[*role as usize]));
        wait_for_health(&daemon, "whole");
        let checked = daemon.any(&["array", "check", "data", "--wait"]);
        assert_eq!(checked.status.code(), Some(0), "{level}: {}", said(&checked));
        // The array grows again, into the space that its disks gained: old and new ones together.
        disks.iter().for_each(|disk| enlarge(disk, 120 * MIB));
        daemon.braid(&["array", "grow", "data"]);
        assert_eq!(zones(&show(&daemon)).last(), Some(&roles(0..old + new)));
        assert!(size(&daemon) > large, "{level}");
        whole(&daemon);
    }
}

#[test]
fn too_few_further_disks_are_refused_with_a_remedy() {
    let daemon = Daemon::start();
    let [a, b, c, d, e] = &files(&daemon, &["a", "b", "c", "d", "e"])[..] else { panic!("five files") };
    drop(create(&daemon, "raid6", &[a, b, c], &[]));
    let small = size(&daemon);
    let refused = |disks: &[&str], words: &[&str]| {
        let said = daemon.refused(2, &[&["array", "grow", "data"], disks].concat());
        assert!(words.iter().all(|word| said.contains(word)), "{disks:?}: {said}");
        assert_eq!((size(&daemon), health(&daemon)), (small, "whole".to_owned()));
    };
    let help = ["needs 3 members", "name 3 or more further disks", "array replace", "array spare", "another array"];
    refused(&[d], &help);
    refused(&[d, e], &help);
    refused(&[d, e, "--dry-run"], &help);
    // The disks hold nothing: another array can use them.
    let small_disk = daemon.folder.sparse("small", 16 * MIB);
    daemon.braid(&["array", "create", "other", "--level", "raid5", d, e, &small_disk]);
    // Disks under 1 GiB have a small journal.
    let large: Vec<String> = (0..3).map(|i| daemon.folder.sparse(&format!("large{i}"), 1 << 30)).collect();
    daemon.braid(&["array", "create", "large", "--level", "raid5", &large[0], &large[1], &large[2]]);
    let almost = ["p", "q"].map(|name| daemon.folder.sparse(name, 1020 * MIB));
    let said = daemon.refused(2, &["array", "grow", "large", &almost[0], &almost[1]]);
    assert!(said.contains("take a disk of 1 GiB or more"), "{said}");
    // A file that was to be created for the array is removed again.
    let made = daemon.folder.join("made");
    daemon.refused(2, &["array", "grow", "data", &format!("file:{made},size=80M")]);
    assert!(std::fs::metadata(&made).is_err(), "the file is still there");
}

/// The disks are slow, so that growing takes a while; the daemon is killed in the middle of it.
#[test]
fn a_daemon_killed_while_an_array_grows_by_disks_finds_the_old_or_the_new_size() {
    let (mut smaller, mut larger) = (0, 0);
    for (level, old, new, _) in GROWTHS {
        let mut daemon = Daemon::start();
        let slow =
            |daemon: &Daemon, name: &str| format!("throttled({},latency=15ms)", daemon.folder.sparse(name, 32 * MIB));
        let disks: Vec<String> = (0..old).map(|at| slow(&daemon, &format!("old{at}"))).collect();
        let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
        let mut client = create(&daemon, level, &disks, &[]);
        write(&mut client, 0..40, 1);
        client.flush().expect("it flushes");
        for round in 0..5u64 {
            let before = size(&daemon);
            let further: Vec<String> = (0..new).map(|at| slow(&daemon, &format!("new{round}-{at}"))).collect();
            let mut arguments = vec!["array", "grow", "data"];
            arguments.extend(further.iter().map(String::as_str));
            let mut growing = Running::start(&daemon.folder, &format!("grow{round}"), &mut daemon.command(&arguments));
            thread::sleep(Duration::from_millis(110 * round));
            daemon.kill();
            growing.wait();
            daemon.start_again();
            client = wait_for("the export", || Client::open(&daemon.nbd_socket("data"), "data").ok());
            let now = size(&daemon);
            assert!(now >= before, "{level}, round {round}: {before} {now}");
            *(if now == before { &mut smaller } else { &mut larger }) += 1;
            check(&mut client, 0..40, 1);
            let calm = || !matches!(&*health(&daemon), "resyncing" | "rebuilding");
            wait_for("the array to be calm", || calm().then_some(()));
            assert_eq!(health(&daemon), "whole", "{level}, round {round}: {}", show(&daemon));
            // If the array has the smaller size, it can grow now; a disk that was partly added needs `--force`.
            if now == before {
                daemon.braid(&[&arguments[..], &["--force"]].concat());
                assert!(size(&daemon) > before);
            }
            let end = size(&daemon) / BLOCK - 1;
            let mut fresh = self::client(&daemon);
            write(&mut fresh, [end], round);
            check(&mut fresh, [end], round);
        }
        let members = show(&daemon)["members"].as_array().map(Vec::len);
        assert_eq!(members, Some(old + 5 * new), "{level}");
    }
    println!("{smaller} times the smaller one, {larger} times the larger one");
    assert!(smaller > 0 && larger + smaller == 15, "{smaller} {larger}");
}
