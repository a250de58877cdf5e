//! Blocks that no member can read, and regions that were never written.

use crate::mirrors::*;
use crate::support::*;

#[test]
fn a_rebuilt_member_lacks_unreadable_blocks_until_they_are_rewritten() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let c = &daemon.folder.sparse("c", 80 * MIB);
    // Bad sectors: two of the array's blocks of 4 KiB, at 2 MiB of the disk.
    let bad = format!("faulty({a},bad@2M-2056K)");
    let mut client = create(&daemon, "raid1", &[&bad, b], &[]);
    write(&mut client, 0..64, 1);
    client.flush().expect("it flushes");
    let data_start = show(&daemon)["members"][0]["data_offset_bytes"].as_u64().expect("its place is known");
    let place = 2 * MIB - data_start;
    drop(client);
    // Blocks that were just written are readable. After a restart of the array they are not, as the fault rules begin anew.
    daemon.braid(&["array", "stop", "data", "--force"]);
    daemon.braid(&["array", "assemble", "data"]);
    daemon.braid(&["array", "fail", "data", "1"]);
    daemon.braid(&["array", "remove", "data", "1"]);
    daemon.braid(&["array", "add", "data", c]);
    wait_for("the event", || daemon.events().contains("unreadable").then_some(()));
    let events = daemon.events();
    assert!(events.contains(&format!("at byte {place} of array data")) && events.contains("bad@2M"), "{events}");
    // The status reports the blocks, and how to repair them.
    let status = wait_for("the status", || {
        let out = daemon.any(&["status", "--check", "--json"]);
        said(&out).contains("2 blocks cannot be read").then_some(out)
    });
    assert_eq!(status.status.code(), Some(5));
    assert!(said(&status).contains(&place.to_string()) && said(&status).contains("rewrite these ranges"));
    let job = daemon.json(&["job", "list"])["jobs"][0].clone();
    assert_eq!((&job["findings"]["unreadable_blocks"], &job["state"]), (&2.into(), &"running".into()), "{job}");
    assert_eq!(job["findings"]["offsets_bytes"], serde_json::json!([place, place + 4096]));
    assert_eq!((health(&daemon).as_str(), member_state(&daemon, 1).as_str()), ("rebuilding", "rebuilding"));
    assert!(show(&daemon)["redundancy"]["damaged_blocks"].as_u64().is_some_and(|blocks| blocks == 2));

    // Other blocks are served, and reads of the bad ones give errors, however often: the array does not fail because of them.
    let mut client = self::client(&daemon);
    check(&mut client, 0..place / BLOCK, 1);
    for _ in 0..80 {
        client.read(place, 4096).expect_err("no member can read it");
    }
    assert_eq!(health(&daemon), "rebuilding");
    check(&mut client, place / BLOCK + 1..64, 1);
    // The rebuild completes once the blocks are rewritten.
    write(&mut client, place / BLOCK..place / BLOCK + 1, 1);
    wait_for_health(&daemon, "whole");
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5), "a disk that gave errors is still named");
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, 0..64, 1);
}

#[test]
fn unwritten_regions_are_holes_on_every_member() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    // The content of the disks does not matter: the array has never written it.
    for path in [a, b] {
        std::fs::write(path, noise(80 * MIB, 3)).expect("a file can be written");
    }
    let mut client = create(&daemon, "raid1", &[a, b], &["--force", "--yes"]);
    let region = show(&daemon)["redundancy"]["region_bytes"].as_u64().expect("a size");
    let size = client.size_bytes;
    let map = |daemon: &Daemon| {
        let map = run("nbdinfo", &["--map", "--json", &daemon.uri("data")]);
        let map: serde_json::Value = serde_json::from_str(&map).expect("it is JSON");
        let runs = map.as_array().expect("a list").iter();
        let run = |run: &serde_json::Value| {
            (run["offset"].as_u64().unwrap_or(0), run["length"].as_u64().unwrap_or(0), run["type"].as_u64())
        };
        runs.map(run).collect::<Vec<_>>()
    };
    // Type 3 is a hole that reads as zeros.
    assert_eq!(map(&daemon), [(0, size, Some(3))]);
    client.write(2 * region + 4096, &noise(4096, 1)).expect("it writes");
    client.write(5 * region - 4096, &noise(8192, 2)).expect("it writes");
    let some = [
        (0, 2 * region, Some(3)),
        (2 * region, region, Some(0)),
        (3 * region, region, Some(3)),
        (4 * region, 2 * region, Some(0)),
        (6 * region, size - 6 * region, Some(3)),
    ];
    assert_eq!(map(&daemon), some);
    assert!(client.read(7 * region, 65536).expect("it reads").iter().all(|byte| *byte == 0));
    assert!(client.read(2 * region, 4096).expect("it reads").iter().all(|byte| *byte == 0));
    drop(client);
    daemon.restart(true);
    self::client(&daemon);
    assert_eq!(map(&daemon), some, "the same after a crash");
    // A rebuild copies the written data, and no more.
    let copy = daemon.folder.join("copy");
    run("nbdcopy", &[&daemon.uri("data"), &copy]);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&copy).expect("the copy is there"));
    assert!(blocks * 512 <= 4 * region, "{blocks}");
}

#[test]
fn top_shows_the_state_of_mirrors() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &["--spare", &format!("throttled({c},bw=1M)")]);
    write(&mut client, 0..200, 1);
    let once = || daemon.braid(&["top", "--once", "--interval", "100ms"]);
    assert!(once().contains("(spare)"), "{}", once());
    daemon.braid(&["array", "fail", "data", "0"]);
    let text = once();
    assert!(text.contains("data (rebuilding ") && text.contains("(rebuilding)"), "{text}");
    let rates = daemon.json(&["top", "--interval", "100ms"]);
    assert_eq!(
        (&rates["arrays"][0]["health"], &rates["disks"][0]["member"]),
        (&"rebuilding".into(), &"rebuilding".into())
    );
}
