//! Pools whose tables are corrupted: no read returns data that were never written there, and unaffected volumes go on.

use std::os::unix::fs::FileExt;

use braid_format::pool::{PoolLabel, RECORD_BYTES, Record, RecordKind};

use crate::pools::{check, check_zeros, client, export, write};
use crate::support::*;

/// Block size of `write` and `check`; four are an extent.
const BLOCK: u64 = 64 * KIB;

/// Returns the records of a member's table that are in use, with their offsets.
fn in_use(path: &str) -> Vec<(u64, Record)> {
    let bytes = std::fs::read(path).expect("it is a file");
    let label = PoolLabel::decode(&bytes[..4096]).expect("it bears a label");
    let places = &label.layout;
    let table = &bytes[places.table.start as usize..];
    let images = (0..places.extents).zip(table.as_chunks::<RECORD_BYTES>().0);
    let records = images.filter_map(|(index, image)| {
        let record = Record::decode(image, label.member, index).ok()?;
        (record.kind != RecordKind::Free).then_some((places.table.start + u64::from(index) * 32, record))
    });
    records.collect()
}

/// Flips a bit of a file.
fn flip_bit(path: &str, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("it is a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it can be read");
    file.write_all_at(&[byte[0] ^ 4], at).expect("it can be written");
    file.sync_all().expect("it is there");
}

fn attention(daemon: &Daemon) -> String {
    daemon.json(&["pool", "show", "tank"])["attention"].to_string()
}

/// Creates a pool of two disks, each with a volume that has two extents, and stops the daemon. Returns the first disk.
fn two_extents_each(daemon: &mut Daemon) -> String {
    let (a, b) = (daemon.folder.sparse("a.img", 96 * MIB), daemon.folder.sparse("b.img", 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &a, &b]);
    for (volume, disk) in [("tank/db", &a), ("tank/log", &b)] {
        daemon.braid(&["volume", "create", volume, "64M", "--place", &format!("on={disk}")]);
        export(daemon, volume);
        let mut client = client(daemon, volume);
        write(&mut client, [0, 1, 4], 1);
        client.flush().expect("it is durable");
    }
    daemon.stop();
    a
}

#[test]
fn a_damaged_record_reads_as_errors_until_it_is_intact_again_and_other_volumes_go_on() {
    let mut daemon = Daemon::start();
    let a = two_extents_each(&mut daemon);
    let (at, _) = *in_use(&a).iter().find(|(_, record)| record.logical == 1).expect("block 4 is in use");
    // `pool dump` reads a disk without a daemon, intact or damaged.
    let dump = |disk: &str| {
        let output = command(BRAID).args(["pool", "dump", disk, "--records", "--json"]).output().expect("it runs");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
        (output.status.code(), document)
    };
    let (status, whole) = dump(&a);
    assert_eq!((status, &whole["pool"], &whole["member"]), (Some(0), &"tank".into(), &0.into()));
    assert_eq!(
        (&whole["whole_records"], &whole["damaged"], &whole["clean"]),
        (&2.into(), &[(); 0][..].into(), &true.into())
    );
    assert_eq!(whole["records"].as_array().expect("a list").len(), 2);
    let names: Vec<_> = whole["owners"].as_array().expect("a list").iter().map(|owner| &owner["name"]).collect();
    assert_eq!(names, ["db", "log"]);
    assert!(whole["ring_starts"][0]["run"].as_u64() > Some(0), "{whole}");
    flip_bit(&a, at + 5);
    let (status, spoilt) = dump(&a);
    assert_eq!((status, spoilt["damaged"].as_array().expect("a list").len()), (Some(7), 1), "{spoilt}");
    assert_eq!((&spoilt["damaged"][0]["what"], &spoilt["whole_records"]), (&"record".into(), &1.into()));
    daemon.start_again();
    assert!(daemon.events().contains("\"pool_damaged\""));
    assert!(attention(&daemon).contains("1 record of the tables"), "{}", attention(&daemon));
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1], 1);
    for block in [2, 4, 5, 100] {
        assert!(db.read(block * BLOCK, BLOCK as usize).is_err(), "the content of block {block} is unknown");
    }
    assert!(db.write(0, &noise(BLOCK, 9)).is_err(), "it is read-only");
    let refused = daemon.refused(7, &["snapshot", "create", "tank/db@now"]);
    assert!(refused.contains("damaged"), "{refused}");
    // A volume without data there is not affected.
    let mut log = client(&daemon, "tank/log");
    check(&mut log, [0, 1, 4], 1);
    check_zeros(&mut log, [2, 5]);
    write(&mut log, [3, 200], 1);
    daemon.braid(&["snapshot", "create", "tank/log@now"]);
    log.flush().expect("it is durable");
    drop((db, log));
    // The damaged record was not overwritten: flipping the bit back restores it.
    daemon.stop();
    flip_bit(&a, at + 5);
    daemon.start_again();
    assert_eq!(attention(&daemon), "[]");
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1, 4], 1);
    check_zeros(&mut db, [2, 5]);
    write(&mut db, [2], 1);
    check(&mut client(&daemon, "tank/log"), [0, 1, 3, 4, 200], 1);
}

#[test]
fn an_unreadable_page_of_tables_is_overwritten_only_by_command() {
    let mut daemon = Daemon::start();
    let a = two_extents_each(&mut daemon);
    let (at, _) = *in_use(&a).iter().find(|(_, record)| record.logical == 1).expect("block 4 is in use");
    daemon.start_again();
    // This record is committed to the ring, and not yet written to the table.
    let mut db = client(&daemon, "tank/db");
    write(&mut db, [2], 1);
    db.flush().expect("it is durable");
    drop(db);
    daemon.kill();
    let file = daemon.folder.join("moved.img");
    std::fs::rename(&a, &file).expect("it is a file");
    daemon.start_again();
    let page = at / 4096 * 4;
    let faulty = format!("faulty({file},read-error@{page}K-{}K)", page + 4);
    daemon.any(&["array", "assemble", "--disk", &faulty]);
    assert!(attention(&daemon).contains("all else that stands in them would be lost"), "{}", attention(&daemon));
    for options in [&["--force"][..], &[]] {
        let output = daemon.any(&[&["pool", "start", "tank"], options].concat());
        assert!(!output.status.success(), "{output:?}");
        assert!(said(&output).contains("braid pool start tank --give-up"), "{output:?}");
    }
    let look = |daemon: &Daemon| {
        let mut db = client(daemon, "tank/db");
        check(&mut db, [0, 1, 2], 1);
        assert!(db.read(4 * BLOCK, BLOCK as usize).is_err(), "its content is unknown");
        check(&mut client(daemon, "tank/log"), [0, 1, 4], 1);
        assert!(attention(daemon).contains("127 records of the tables"), "{}", attention(daemon));
    };
    daemon.braid(&["pool", "start", "tank", "--give-up"]);
    look(&daemon);
    // The records stay given up, also when the disk can read the page again.
    daemon.stop();
    std::fs::rename(&file, &a).expect("it is a file");
    daemon.start_again();
    daemon.braid(&["array", "assemble", "--disk", &a]);
    look(&daemon);
    for volume in ["tank/db", "tank/log"] {
        daemon.braid(&["export", "remove", volume]);
    }
    daemon.braid(&["pool", "check", "tank", "--give-up", "--yes"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1, 2], 1);
    check_zeros(&mut db, [4]);
    write(&mut db, [4], 7);
    check(&mut db, [4], 7);
}

fn checked(daemon: &Daemon, options: &[&str]) -> (Option<i32>, serde_json::Value) {
    let output = daemon.any(&[&["pool", "check", "tank", "--json"], options].concat());
    let document = serde_json::from_slice(&output.stdout);
    (output.status.code(), document.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

#[test]
fn a_check_reports_damage_and_unknown_records_can_be_given_up() {
    let mut daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &a]);
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    write(&mut db, [0, 1, 4], 1);
    db.flush().expect("it is durable");
    drop(db);
    daemon.braid(&["snapshot", "create", "tank/db@old"]);
    write(&mut client(&daemon, "tank/db"), [4], 50);
    let (status, shown) = checked(&daemon, &[]);
    assert_eq!((status, &shown["damaged"], &shown["problems_found"]), (Some(0), &0.into(), &0.into()), "{shown}");
    // The newer of two records is damaged: the data of the snapshot must not show through.
    daemon.stop();
    let records = in_use(&a);
    let (at, newer) = records.iter().max_by_key(|(_, record)| record.owner).expect("it was written again");
    assert_eq!(newer.kind, RecordKind::Packed, "a small write over a snapshot");
    flip_bit(&a, *at + 17);
    daemon.start_again();
    let mut db = client(&daemon, "tank/db");
    assert!(db.read(4 * BLOCK, BLOCK as usize).is_err(), "its content is unknown");
    let (status, shown) = checked(&daemon, &["--repair"]);
    let damage = &shown["damage"][0];
    assert_eq!((status, &shown["damaged"], &damage["known"]), (Some(7), &1.into(), &false.into()), "{shown}");
    assert!(damage["hint"].as_str().is_some_and(|hint| hint.contains("scattered blocks of db")), "{shown}");
    assert_eq!(shown["in_doubt"].as_array().map(Vec::len), Some(2), "{shown}");
    let refused = daemon.refused(4, &["pool", "check", "tank", "--give-up"]);
    assert!(refused.contains("--yes"), "{refused}");
    let refused = daemon.refused(4, &["pool", "check", "tank", "--give-up", "--yes"]);
    assert!(refused.contains("exported") && refused.contains("db"), "{refused}");
    drop(db);
    daemon.braid(&["export", "remove", "tank/db"]);
    let (status, shown) = checked(&daemon, &["--give-up", "--yes"]);
    assert_eq!((status, &shown["given_up"], &shown["damaged"]), (Some(0), &1.into(), &0.into()), "{shown}");
    assert!(daemon.events().contains("\"pool_damage_given_up\""));
    assert_eq!(attention(&daemon), "[]");
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    // The lost write stays lost: the block has the content of the snapshot.
    check(&mut db, [0, 1, 4], 1);
    write(&mut db, [4, 9], 70);
    daemon.kill();
    daemon.start_again();
    check(&mut client(&daemon, "tank/db"), [4, 9], 70);
    assert_eq!(checked(&daemon, &[]).0, Some(0));
    // Damage that occurs while the pool serves: the pool still has the record in memory.
    let (at, _) = *in_use(&a).last().expect("something is in use");
    flip_bit(&a, at + 3);
    let (status, shown) = checked(&daemon, &[]);
    assert_eq!((status, &shown["damage"][0]["known"]), (Some(7), &true.into()), "{shown}");
    check(&mut client(&daemon, "tank/db"), [4, 9], 70);
    let (status, shown) = checked(&daemon, &["--repair"]);
    assert_eq!((status, &shown["repaired"]), (Some(0), &1.into()), "{shown}");
    daemon.restart(false);
    assert_eq!(attention(&daemon), "[]");
    check(&mut client(&daemon, "tank/db"), [4, 9], 70);
}

#[test]
fn a_dump_reports_a_corrupted_batch_and_a_corrupted_label() {
    let mut daemon = Daemon::start();
    let a = daemon.folder.sparse("a.img", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &a]);
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    for block in [0, 4, 8] {
        write(&mut db, [block], 1);
        db.flush().expect("it is durable");
    }
    daemon.kill();
    let label = PoolLabel::decode(&std::fs::read(&a).expect("a file")[..4096]).expect("it bears a label");
    let dump = || {
        let output = command(BRAID).args(["pool", "dump", &a, "--json"]).output().expect("it runs");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
        (output.status.code(), document)
    };
    let (status, whole) = dump();
    assert_eq!((status, &whole["damaged"]), (Some(0), &[(); 0][..].into()), "{whole}");
    let starts = whole["ring_starts"].as_array().expect("a list").clone();
    let start = starts.into_iter().max_by_key(|start| start["generation"].as_u64()).expect("there is one");
    let batches = whole["batches"].as_array().expect("a list");
    let counts = |batch: &&serde_json::Value| {
        batch["run"] == start["run"] && batch["sequence"].as_u64() >= start["sequence"].as_u64()
    };
    assert!(batches.iter().filter(counts).count() >= 3, "one for each flush: {whole}");
    let first = start["position"].as_u64().expect("a number");
    let spoilt_at = |at: u64| {
        flip_bit(&a, at);
        let (status, found) = dump();
        flip_bit(&a, at);
        (status, found["damaged"].clone())
    };
    let only = |what: &str, index: u64| (Some(7), serde_json::json!([{ "what": what, "index": index }]));
    assert_eq!(spoilt_at(label.layout.ring.start + first * 4096 + 200), only("batch", first));
    assert_eq!(spoilt_at(label.layout.label_start + 700), only("label", 0));
    assert_eq!(spoilt_at(label.layout.copy_start + 700), only("label", 1));
    assert_eq!(dump().0, Some(0));
}

#[test]
fn misread_records_are_reported_not_given_up_and_read_again_after_a_restart() {
    let mut daemon = Daemon::start();
    let a = two_extents_each(&mut daemon);
    let (at, _) = *in_use(&a).first().expect("two are in use");
    let file = daemon.folder.join("moved.img");
    std::fs::rename(&a, &file).expect("it is a file");
    daemon.start_again();
    // The read of the table fails, and that of the page alone. Every later read succeeds.
    let page = at / 4096 * 4;
    let faulty = format!("faulty({file},read-error@{page}K-{}K*2)", page + 4);
    daemon.any(&["array", "assemble", "--disk", &faulty]);
    assert!(attention(&daemon).contains("128 records of the tables"), "{}", attention(&daemon));
    let mut db = client(&daemon, "tank/db");
    assert!(db.read(0, BLOCK as usize).is_err(), "the pool does not know what it is");
    drop(db);
    let (status, shown) = checked(&daemon, &[]);
    assert_eq!((status, &shown["damaged"]), (Some(7), &0.into()), "{shown}");
    assert_eq!((&shown["unknown"], &shown["misread"]), (&128.into(), &128.into()), "{shown}");
    let damage = shown["damage"].as_array().expect("a list");
    assert_eq!(damage.len(), 128, "{shown}");
    assert!(damage.iter().all(|one| one["reads"] == true && one["known"] == false && one["what"] == "record"));
    assert_eq!(shown["in_doubt"], serde_json::json!(["db"]), "{shown}");
    let text = said(&daemon.any(&["pool", "check", "tank"]));
    assert!(text.contains("restart the daemon") && !text.contains("nothing is damaged"), "{text}");
    // Giving up is refused only because the records can be read.
    daemon.braid(&["export", "remove", "tank/db"]);
    for options in [&["--give-up"][..], &["--give-up", "--yes"]] {
        let refused = daemon.refused(4, &[&["pool", "check", "tank"], options].concat());
        assert!(refused.contains("can be read now") && refused.contains("restart the daemon"), "{refused}");
    }
    let socket = daemon.folder.join("api.sock");
    let (json, body, url) =
        ("content-type: application/json", r#"{"give_up":true}"#, "http://braid/v1/pools/tank/check");
    let answer = run("curl", &["-s", "--unix-socket", &socket, "-H", json, "-d", body, url]);
    assert!(answer.contains("\"in_use\"") && answer.contains("can be read now"), "{answer}");
    assert!(!daemon.events().contains("\"pool_damage_given_up\""));
    // The restart that the command advised.
    daemon.stop();
    std::fs::rename(&file, &a).expect("it is a file");
    daemon.start_again();
    daemon.any(&["array", "assemble", "--disk", &a]);
    assert_eq!(attention(&daemon), "[]");
    let (status, shown) = checked(&daemon, &[]);
    assert_eq!((status, &shown["unknown"], &shown["misread"]), (Some(0), &0.into(), &0.into()), "{shown}");
    assert!(daemon.braid(&["pool", "check", "tank"]).contains("nothing is damaged"));
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1, 4], 1);
    write(&mut db, [2], 1);
}

#[test]
fn damage_is_given_up_only_when_no_record_beside_it_was_misread() {
    let mut daemon = Daemon::start();
    let a = two_extents_each(&mut daemon);
    let records = in_use(&a);
    let (rotten, _) = *records.iter().find(|(_, record)| record.logical == 1).expect("block 4 is in use");
    flip_bit(&a, rotten + 5);
    let file = daemon.folder.join("moved.img");
    std::fs::rename(&a, &file).expect("it is a file");
    daemon.start_again();
    let page = rotten / 4096 * 4;
    let faulty = format!("faulty({file},read-error@{page}K-{}K*2)", page + 4);
    daemon.any(&["array", "assemble", "--disk", &faulty]);
    let (status, shown) = checked(&daemon, &[]);
    assert_eq!((status, &shown["damaged"]), (Some(7), &1.into()), "{shown}");
    assert_eq!((&shown["unknown"], &shown["misread"]), (&128.into(), &127.into()), "{shown}");
    daemon.braid(&["export", "remove", "tank/db"]);
    daemon.refused(4, &["pool", "check", "tank", "--give-up", "--yes"]);
    daemon.stop();
    std::fs::rename(&file, &a).expect("it is a file");
    daemon.start_again();
    daemon.any(&["array", "assemble", "--disk", &a]);
    let (status, shown) = checked(&daemon, &[]);
    assert_eq!((status, &shown["unknown"], &shown["misread"]), (Some(7), &1.into(), &0.into()), "{shown}");
    let (status, shown) = checked(&daemon, &["--give-up", "--yes"]);
    assert_eq!((status, &shown["given_up"], &shown["unknown"]), (Some(0), &1.into(), &0.into()), "{shown}");
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1], 1);
    check_zeros(&mut db, [4]);
}
