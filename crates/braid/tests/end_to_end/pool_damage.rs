//! Pools whose tables rot: nobody reads what was never written there, and who has nothing to do with it goes on.

use braid_format::pool::{PoolLabel, RECORD_BYTES, Record, RecordKind};

use crate::pools::{check, check_zeros, client, export, write};
use crate::support::*;

/// Of `write` and `check`; four are an extent.
const BLOCK: u64 = 64 * KIB;

/// Records of a member's table that are in use.
fn in_use(path: &str) -> Vec<(u64, Record)> {
    let bytes = std::fs::read(path).expect("it is a file");
    let label = PoolLabel::decode(&bytes[..4096]).expect("it bears a label");
    let places = &label.places;
    let table = &bytes[places.table.start as usize..];
    let images = (0..places.extents).zip(table.as_chunks::<RECORD_BYTES>().0);
    let records = images.filter_map(|(index, image)| {
        let record = Record::decode(image, label.member, index).ok()?;
        (record.kind != RecordKind::Free).then_some((places.table.start + u64::from(index) * 32, record))
    });
    records.collect()
}

/// Turns a bit of a file over.
fn spoil(path: &str, at: u64) {
    let mut bytes = std::fs::read(path).expect("it is a file");
    bytes[at as usize] ^= 4;
    std::fs::write(path, &bytes).expect("it can be written");
}

fn attention(daemon: &Daemon) -> String {
    daemon.json(&["pool", "show", "tank"])["attention"].to_string()
}

#[test]
fn a_damaged_record_is_an_error_to_read_until_it_is_whole_again_and_others_go_on() {
    let mut daemon = Daemon::start();
    let (a, b) = (daemon.folder.sparse("a.img", 96 * MIB), daemon.folder.sparse("b.img", 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &a, &b]);
    for (volume, disk) in [("tank/db", &a), ("tank/log", &b)] {
        daemon.braid(&["volume", "create", volume, "64M", "--place", &format!("on={disk}")]);
        export(&daemon, volume);
        // Two extents of each.
        let mut client = client(&daemon, volume);
        write(&mut client, [0, 1, 4], 1);
        client.flush().expect("it is durable");
    }
    daemon.stop();
    let (at, _) = *in_use(&a).iter().find(|(_, record)| record.logical == 1).expect("block 4 stands there");
    spoil(&a, at + 5);
    daemon.start_again();
    assert!(daemon.events().contains("\"pool_damaged\""));
    assert!(attention(&daemon).contains("1 record of the tables"), "{}", attention(&daemon));
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1], 1);
    for block in [2, 4, 5, 100] {
        assert!(db.read(block * BLOCK, BLOCK as usize).is_err(), "nobody knows what block {block} is");
    }
    assert!(db.write(0, &noise(BLOCK, 9)).is_err(), "it is read-only");
    let refused = daemon.refused(7, &["snapshot", "create", "tank/db@now"]);
    assert!(refused.contains("damaged"), "{refused}");
    // Whoever has nothing there does not notice.
    let mut log = client(&daemon, "tank/log");
    check(&mut log, [0, 1, 4], 1);
    check_zeros(&mut log, [2, 5]);
    write(&mut log, [3, 200], 1);
    daemon.braid(&["snapshot", "create", "tank/log@now"]);
    log.flush().expect("it is durable");
    drop((db, log));
    // What stood there was not touched: it comes again.
    daemon.stop();
    spoil(&a, at + 5);
    daemon.start_again();
    assert_eq!(attention(&daemon), "[]");
    let mut db = client(&daemon, "tank/db");
    check(&mut db, [0, 1, 4], 1);
    check_zeros(&mut db, [2, 5]);
    write(&mut db, [2], 1);
    check(&mut client(&daemon, "tank/log"), [0, 1, 3, 4, 200], 1);
}
