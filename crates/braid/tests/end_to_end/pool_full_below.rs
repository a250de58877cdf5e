//! Pools on files whose file system is full: the pool does not fail, and goes on without a restart when there is space.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use braid_format::pool::{PoolLabel, RECORD_BYTES, Record, RecordKind};

use crate::nbd::{Client, TRIM};
use crate::parity_crashes::Small;
use crate::pool_faults::{attention, has_event};
use crate::pools::{BLOCK, check, client, export};
use crate::support::*;

const ENOSPC: i32 = 28;

/// Parts of these blocks are discarded.
const DISCARDED: std::ops::Range<u64> = 100..160;

/// Offset and length in bytes of the ring of a member of 64 MiB.
const RING: (&str, &str) = ("12288", "262144");

/// Offset and length in bytes of its two checkpoint records.
const CHECKPOINTS: (&str, &str) = ("4096", "8192");

/// Creates a pool on one file of 64 MiB in a file system of 24 MiB, with the volume `tank/db`, exported.
fn pool(daemon: &Daemon) -> (Small, String) {
    let small = Small::mount(daemon.folder.join("small"), 24 << 20);
    let file = format!("{}/0.img", small.0);
    run("truncate", &["-s", "64M", &file]);
    daemon.braid(&["pool", "create", "tank", &file]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(daemon, "tank/db");
    (small, file)
}

/// Creates the same pool in the state that an earlier build leaves: its ring has no space allocated until it is written.
fn older_pool(daemon: &mut Daemon) -> (Small, String) {
    let (small, file) = pool(daemon);
    daemon.stop();
    // Everything is in the tables.
    run("fallocate", &["--punch-hole", "--offset", RING.0, "--length", RING.1, &file]);
    daemon.start_again();
    (small, file)
}

/// Writes new blocks until there is no space, not even for the smallest write. Returns how many blocks were written.
fn fill(db: &mut Client, small: &Small) -> u64 {
    let mut done = 0;
    let error = loop {
        match db.write(done * BLOCK, &noise(BLOCK, 1 + done)) {
            Ok(()) => done += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
    assert!(done > 200, "{done} blocks are few");
    // The space of the last block may be freed.
    let mut rest = std::fs::File::create(format!("{}/rest", small.0)).expect("a file can be made");
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(200));
        while rest.write_all(&[1; 4096]).is_ok() {}
    }
    done
}

/// Discards most of these blocks in small pieces, which takes only log entries; as many as the in-memory log has room for.
fn discard(db: &mut Client, blocks: impl Iterator<Item = u64>) {
    for piece in blocks.flat_map(|block| (0..14).map(move |piece| block * BLOCK + piece * 4096)) {
        db.call(0, TRIM, piece, 4096, &[]).expect("a discard is a hint");
    }
}

#[track_caller]
fn check_kept(db: &mut Client, blocks: u64) {
    check(db, 0..1, 1);
    check(db, 1..2, 5000);
    check(db, 2..DISCARDED.start, 1);
    check(db, DISCARDED.end..blocks, 1);
}

#[test]
fn a_full_file_system_below_does_not_fail_the_pool_and_recovers_by_itself() {
    need_root();
    let mut daemon = Daemon::start();
    let (small, file) = older_pool(&mut daemon);
    let mut db = client(&daemon, "tank/db");
    let blocks = fill(&mut db, &small);
    discard(&mut db, DISCARDED.take(1));
    for _ in 0..3 {
        let refused = db.flush().expect_err("there is no space for it");
        assert_eq!(refused.raw_os_error(), Some(ENOSPC), "{refused}");
    }
    wait_for("the pool to tell of it", || has_event(&daemon, "pool_lacks_space").then_some(()));
    let said = attention(&daemon);
    assert!(said.starts_with("active: ") && said.contains("no space") && said.contains(&file), "{said}");
    assert!(!has_event(&daemon, "pool_failed"));
    let status = daemon.any(&["status"]);
    // The status wraps its lines.
    let text = String::from_utf8_lossy(&status.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("df -h") && text.contains("continues automatically"), "{text}");
    // Allocated blocks are read and written as always; changes that have to be durable are refused, and leave nothing.
    db.write(BLOCK, &noise(BLOCK, 5001)).expect("it has a place");
    check_kept(&mut db, blocks);
    let refused = daemon.refused_any(&["volume", "create", "tank/other", "1G"]);
    assert!(refused.contains("no space below"), "{refused}");
    assert_eq!(db.flush().expect_err("as before").raw_os_error(), Some(ENOSPC));
    small.enlarge(1 << 30);
    db.flush().expect("there is space");
    wait_for("the pool to be well", || has_event(&daemon, "pool_finds_space").then_some(()));
    assert_eq!(attention(&daemon), "active: ");
    daemon.braid(&["volume", "create", "tank/other", "1G"]);
    drop(db);
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    check_kept(&mut db, blocks);
    db.flush().expect("it is durable");
}

#[test]
fn a_pool_without_space_at_its_start_opens_by_itself_when_there_is_some() {
    need_root();
    let mut daemon = Daemon::start();
    let (small, file) = older_pool(&mut daemon);
    let mut db = client(&daemon, "tank/db");
    let blocks = fill(&mut db, &small);
    // So many discards that the commit needs part of the ring that was never written.
    discard(&mut db, DISCARDED);
    assert_eq!(db.flush().expect_err("there is no space").raw_os_error(), Some(ENOSPC));
    db.write(BLOCK, &noise(BLOCK, 5001)).expect("it has a place");
    drop(db);
    daemon.restart(true);
    let said = wait_for("the pool to be looked at", || Some(attention(&daemon)).filter(|said| said.len() > 8));
    assert!(said.starts_with("failed: ") && said.contains(&file) && said.contains("no space"), "{said}");
    let status = daemon.any(&["status"]);
    let text = String::from_utf8_lossy(&status.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("df -h") && text.contains("retried automatically"), "{text}");
    // The pool retries the start, and reports the failure once.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!(daemon.events().matches("\"pool_failed\"").count(), 1, "{}", daemon.events());
    small.enlarge(1 << 30);
    wait_for("the pool to be open", || attention(&daemon).starts_with("active").then_some(()));
    let mut db = client(&daemon, "tank/db");
    check_kept(&mut db, blocks);
    db.flush().expect("there is space");
}

#[test]
fn a_pool_allocates_space_for_its_own_writes_at_creation() {
    need_root();
    let mut daemon = Daemon::start();
    let (small, _) = pool(&daemon);
    let mut db = client(&daemon, "tank/db");
    let blocks = fill(&mut db, &small);
    for block in DISCARDED {
        discard(&mut db, std::iter::once(block));
        db.flush().expect("its ring has space");
    }
    db.write(BLOCK, &noise(BLOCK, 5001)).expect("it has a place");
    daemon.braid(&["snapshot", "create", "tank/db@full"]);
    assert!(!has_event(&daemon, "pool_lacks_space"));
    drop(db);
    daemon.restart(true);
    check_kept(&mut client(&daemon, "tank/db"), blocks);
    daemon.restart(false);
    check_kept(&mut client(&daemon, "tank/db"), blocks);
}

/// Takes the remaining space.
fn take_the_rest(small: &Small) {
    let mut rest = std::fs::File::create(format!("{}/rest", small.0)).expect("a file can be made");
    while rest.write_all(&[1; 4096]).is_ok() {}
}

/// Returns the offset in bytes of the first record that is in use in a member's file.
fn record_in_use(file: &str) -> u64 {
    let bytes = std::fs::read(file).expect("it is a file");
    let label = PoolLabel::decode(&bytes[..4096]).expect("it bears a label");
    let places = &label.layout;
    let images = bytes[places.table.start as usize..].as_chunks::<RECORD_BYTES>().0;
    let is_used = |(index, image): &(u32, &[u8; RECORD_BYTES])| {
        Record::decode(image, label.member, *index).is_ok_and(|record| record.kind != RecordKind::Free)
    };
    let (index, _) = (0..places.extents).zip(images).find(is_used).expect("a record is in use");
    places.table.start + u64::from(index) * RECORD_BYTES as u64
}

/// Flips a bit of a file.
fn flip_bit(file: &str, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).expect("it is a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it can be read");
    file.write_all_at(&[byte[0] ^ 4], at).expect("it can be written");
    file.sync_all().expect("it is there");
}

/// A repair that finds no space is no fault of a disk; a clean stop uses the space that exists by then.
#[test]
fn a_repair_without_space_says_so_and_a_stop_retries_it() {
    need_root();
    let mut daemon = Daemon::start();
    let (small, file) = pool(&daemon);
    let mut db = client(&daemon, "tank/db");
    for block in 0..8 {
        db.write(block * BLOCK, &noise(BLOCK, 1 + block)).expect("there is space");
    }
    db.flush().expect("there is space");
    drop(db);
    // The record is in the table.
    daemon.restart(false);
    let at = record_in_use(&file);
    let (offset, bytes) = CHECKPOINTS;
    run("fallocate", &["--punch-hole", "--offset", offset, "--length", bytes, &file]);
    take_the_rest(&small);
    for options in [&["--repair"][..], &["--repair", "--json"]] {
        flip_bit(&file, at + 5);
        let output = daemon.any(&[&["pool", "check", "tank"], options].concat());
        let text = said(&output).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("no space below pool tank") && !text.contains("dmesg"), "{text}");
    }
    assert!(!has_event(&daemon, "pool_failed"));
    small.enlarge(1 << 30);
    // The stop succeeds.
    daemon.stop();
    daemon.start_again();
    assert_eq!(attention(&daemon), "active: ");
    assert_eq!(daemon.json(&["pool", "check", "tank"])["damaged"], 0);
    check(&mut client(&daemon, "tank/db"), 0..8, 1);
}

/// Members of the pool `upper` are arrays on volumes of the pool `lower`: `base` has its space, `more` gets some when there is some.
#[test]
fn a_new_member_without_space_is_refused_and_the_pool_goes_on_unchanged() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("a.img", 256 * MIB);
    daemon.braid(&["pool", "create", "lower", &disk]);
    daemon.braid(&["volume", "create", "lower/base", "96M", "--thick"]);
    daemon.braid(&["volume", "create", "lower/more", "96M"]);
    daemon.braid(&["volume", "create", "lower/rest", "1G"]);
    daemon.braid(&["array", "create", "base", "--level", "concat", "lower/base"]);
    daemon.braid(&["array", "create", "more", "--level", "concat", "lower/more"]);
    daemon.braid(&["pool", "create", "upper", "base"]);
    daemon.braid(&["volume", "create", "upper/db", "64M"]);
    for volume in ["lower/rest", "upper/db"] {
        export(&daemon, volume);
    }
    let (mut rest, mut db) = (client(&daemon, "lower/rest"), client(&daemon, "upper/db"));
    let mut done = 0;
    while rest.write(done * BLOCK, &noise(BLOCK, done)).is_ok() {
        done += 1;
    }
    assert!(done > 1000, "{done} blocks are few");
    rest.flush().expect("its own ring has space");
    db.write(0, &noise(BLOCK, 1)).expect("its space is kept");
    // One extent is free, enough for the start of the new member's ring and not for its tables.
    rest.call(0, TRIM, 0, 4 * BLOCK as u32, &[]).expect("a discard is a hint");
    rest.flush().expect("its own ring has space");
    let refused = daemon.refused_any(&["pool", "add", "upper", "more"]);
    let refused = refused.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(refused.contains("more was not added to pool upper: there is no space below it"), "{refused}");
    // Nothing waits for the new member.
    db.write(BLOCK, &noise(BLOCK, 2)).expect("its space is kept");
    db.flush().expect("its space is kept");
    daemon.braid(&["volume", "create", "upper/other", "16M"]);
    daemon.braid(&["snapshot", "create", "upper/db@now"]);
    let shown = daemon.json(&["pool", "show", "upper"]);
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(1), "{shown}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    let shown = daemon.json(&["pool", "show", "upper"]);
    assert_eq!(shown["attention"].to_string(), "[]", "{shown}");
    assert!(!has_event(&daemon, "pool_member_removed") && !has_event(&daemon, "pool_failed"), "{}", daemon.events());
    for kill in [true, false] {
        drop((rest, db));
        daemon.restart(kill);
        (rest, db) = (client(&daemon, "lower/rest"), client(&daemon, "upper/db"));
        check(&mut db, 0..2, 1);
    }
    // With space the new member is added as any other.
    rest.call(0, TRIM, 4 * BLOCK, 256 * BLOCK as u32, &[]).expect("a discard is a hint");
    rest.flush().expect("its own ring has space");
    daemon.braid(&["pool", "add", "upper", "more"]);
    let shown = daemon.json(&["pool", "show", "upper"]);
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(2), "{shown}");
    drop((rest, db));
    daemon.restart(true);
    check(&mut client(&daemon, "upper/db"), 0..2, 1);
}
