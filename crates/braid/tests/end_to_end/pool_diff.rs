//! Differences between snapshots, volumes and clones: by the command, and by NBD's `braid:diff:SNAPSHOT`.

use serde_json::Value;
use std::io::{Read, Write};

use crate::pools::{client, export, pool, socket, write};
use crate::support::*;

/// Returns the ranges of a diff, in blocks of 64 KiB, and whether they are zeros.
fn ranges(diff: &Value) -> Vec<(u64, u64, bool)> {
    let number = |range: &Value, key: &str| range[key].as_u64().expect("a number") / (64 * KIB);
    let list = diff["ranges"].as_array().expect("a list").iter();
    list.map(|range| (number(range, "offset_bytes"), number(range, "length_bytes"), range["zeros"] == true)).collect()
}

#[test]
fn changes_are_reported_range_by_range() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..100, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    assert_eq!(ranges(&daemon.json(&["snapshot", "diff", "tank/db@monday"])), []);
    write(&mut db, 90..110, 1000);
    let uri = format!("nbd+unix:///tank%2Fdb?socket={}", socket(&daemon));
    run("qemu-io", &["-f", "raw", "-c", "discard 1M 1M", &uri]);
    daemon.braid(&["snapshot", "create", "tank/db@tuesday"]);
    write(&mut db, 20..22, 2000);
    db.write(500 * 64 * KIB + 4096, &noise(4096, 1)).expect("it writes");

    let look = |daemon: &Daemon| {
        let diff = daemon.json(&["snapshot", "diff", "tank/db@monday", "tank/db@tuesday"]);
        assert_eq!((&diff["from"], &diff["to"]), (&"tank/db@monday".into(), &"tank/db@tuesday".into()));
        assert_eq!(ranges(&diff), [(16, 16, true), (90, 20, false)], "{diff}");
        assert_eq!(diff["changed_bytes"], 36 * 64 * KIB);
        // In either direction, and by short names.
        let back = daemon.json(&["snapshot", "diff", "tank/db@tuesday", "@monday"]);
        assert_eq!(ranges(&back), [(16, 16, false), (90, 20, false)], "{back}");
        let now = daemon.json(&["snapshot", "diff", "tank/db@tuesday"]);
        let [first, last] = [0, 1].map(|at| now["ranges"][at].clone());
        assert_eq!((&first["offset_bytes"], &first["length_bytes"]), (&(20 * 64 * KIB).into(), &(128 * KIB).into()));
        assert_eq!((&last["offset_bytes"], &last["length_bytes"]), (&(500 * 64 * KIB + 4096).into(), &4096.into()));
        assert!(now["next_offset_bytes"].is_null() && now["to"] == "tank/db", "{now}");
    };
    look(&daemon);
    daemon.restart(true);
    look(&daemon);
    let text = daemon.braid(&["snapshot", "diff", "tank/db@monday", "@tuesday"]);
    assert!(text.contains("2.25 MiB") && text.contains("zeros") && text.contains("OFFSET"), "{text}");

    // A clone, compared with its origin and with another snapshot.
    daemon.braid(&["volume", "clone", "tank/db@monday", "tank/trial"]);
    assert_eq!(ranges(&daemon.json(&["snapshot", "diff", "tank/db@monday", "tank/trial"])), []);
    let from_tuesday = daemon.json(&["snapshot", "diff", "tank/db@tuesday", "tank/trial"]);
    assert_eq!(ranges(&from_tuesday), [(16, 16, false), (90, 20, false)]);
    // A snapshot between the two is deleted: the difference stays the same.
    daemon.braid(&["snapshot", "create", "tank/db@wednesday"]);
    let before = daemon.json(&["snapshot", "diff", "tank/db@monday", "@wednesday"]);
    daemon.braid(&["snapshot", "delete", "tank/db@tuesday", "--yes"]);
    for _ in 0..5 {
        assert_eq!(daemon.json(&["snapshot", "diff", "tank/db@monday", "@wednesday"]), before);
    }

    daemon.braid(&["volume", "create", "tank/other", "64M"]);
    let refused = daemon.refused(2, &["snapshot", "diff", "tank/db@monday", "tank/other"]);
    assert!(refused.contains("nothing in common"), "{refused}");
    daemon.refused(3, &["snapshot", "diff", "tank/db@tuesday"]);
    daemon.refused(3, &["snapshot", "diff", "tank/db@monday", "tank/db@no"]);
    daemon.refused(2, &["snapshot", "diff", "tank/db"]);
}

/// Returns the changed ranges that `nbdinfo` prints, in blocks of 64 KiB with their states.
fn map(daemon: &Daemon, name: &str, context: &str) -> Vec<(u64, u64, u64)> {
    let uri = format!("nbd+unix:///{}?socket={}", name.replace('/', "%2F"), socket(daemon));
    let text = run("nbdinfo", &["--json", &format!("--map={context}"), &uri]);
    let map: Value = serde_json::from_str(&text).expect("it is JSON");
    let number = |extent: &Value, key: &str| extent[key].as_u64().expect("a number");
    let extents = map.as_array().expect("a list").iter();
    let extents =
        extents.map(|e| (number(e, "offset") / (64 * KIB), number(e, "length") / (64 * KIB), number(e, "type")));
    extents.filter(|extent| extent.2 != 0).collect()
}

#[test]
fn nbd_clients_get_the_changes_since_a_snapshot() {
    let daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..100, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    write(&mut db, 90..110, 1000);
    let uri = format!("nbd+unix:///tank%2Fdb?socket={}", socket(&daemon));
    run("qemu-io", &["-f", "raw", "-c", "discard 1M 1M", &uri]);
    daemon.braid(&["snapshot", "create", "tank/db@tuesday"]);
    write(&mut db, 20..22, 2000);
    export(&daemon, "tank/db@tuesday");
    assert_eq!(map(&daemon, "tank/db@tuesday", "braid:diff:monday"), [(16, 16, 3), (90, 20, 1)]);
    assert_eq!(map(&daemon, "tank/db", "braid:diff:tuesday"), [(20, 2, 1)]);
    assert_eq!(map(&daemon, "tank/db", "braid:diff:db@monday"), [(16, 4, 3), (20, 2, 1), (22, 10, 3), (90, 20, 1)]);
    // The context describes the current content at each request.
    write(&mut db, 200..201, 1);
    assert_eq!(map(&daemon, "tank/db", "braid:diff:tuesday"), [(20, 2, 1), (200, 1, 1)]);
    let listed = run("nbdinfo", &["--json", &uri]);
    assert!(listed.contains("braid:diff:monday") && listed.contains("braid:diff:tuesday"), "{listed}");
    // A snapshot that does not exist is not offered.
    let failed = run_any("nbdinfo", &["--map=braid:diff:sunday", &uri]);
    assert!(!failed.status.success());
    // An incremental backup: changed blocks are read from tuesday's export, all others are as on monday.
    let mut tuesday = client(&daemon, "tank/db@tuesday");
    for (start, len, state) in map(&daemon, "tank/db@tuesday", "braid:diff:monday") {
        let back = tuesday.read(start * 64 * KIB, (len * 64 * KIB) as usize).expect("it reads");
        assert_eq!(back.iter().all(|byte| *byte == 0), state == 3);
    }
}

#[test]
fn holes_and_changes_come_in_one_reply() {
    let daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..4, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    write(&mut db, 2..3, 5);
    let mut stream = crate::nbd::connect(&socket(&daemon)).expect("it connects");
    crate::nbd::greet(&mut stream).expect("it greets");
    let string = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    stream.write_all(&crate::nbd::option(8, &[])).expect("sent");
    assert_eq!(crate::nbd::option_reply(&mut stream).expect("answered").0, 1);
    let contexts = ["braid:diff:monday", "base:allocation"].map(string).concat();
    let data = [&string("tank/db")[..], &2u32.to_be_bytes(), &contexts].concat();
    stream.write_all(&crate::nbd::option(10, &data)).expect("sent");
    let mut ids = Vec::new();
    loop {
        let (kind, data) = crate::nbd::option_reply(&mut stream).expect("answered");
        if kind == 1 {
            break;
        }
        ids.push((u32::from_be_bytes(data[..4].try_into().unwrap()), String::from_utf8(data[4..].to_vec()).unwrap()));
    }
    assert_eq!(ids, [(1, "base:allocation".to_owned()), (2, "braid:diff:monday".to_owned())]);
    stream.write_all(&crate::nbd::option_go("tank/db")).expect("sent");
    while crate::nbd::option_reply(&mut stream).expect("answered").0 != 1 {}
    stream.write_all(&crate::nbd::request(0, 7, 77, 0, 512 << 10)).expect("sent");
    let mut extents = Vec::new();
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).expect("a chunk");
        let field = |from: usize| u32::from_be_bytes(head[from..from + 4].try_into().unwrap());
        assert_eq!((field(0), &head[6..8], &head[8..16]), (0x668e_33ef, &[0, 5][..], &77u64.to_be_bytes()[..]));
        let mut data = vec![0; field(16) as usize];
        stream.read_exact(&mut data).expect("its data");
        let words: Vec<u32> = data.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        extents.push(words);
        if head[5] == 1 {
            break;
        }
    }
    let k64 = |blocks: u32| blocks << 16;
    assert_eq!(extents, [vec![1, k64(4), 0, k64(4), 3], vec![2, k64(2), 0, k64(1), 1, k64(5), 0]]);
}
