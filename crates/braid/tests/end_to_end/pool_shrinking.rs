//! A volume shrinks, and grows again.

use crate::pools::{BLOCK, check, check_zeros, client, export, pool, write};
use crate::support::*;

fn size(daemon: &Daemon) -> u64 {
    daemon.json(&["volume", "show", "tank/db"])["size_bytes"].as_u64().expect("a size")
}

#[test]
fn a_volume_shrinks_under_its_clients_and_reads_as_zeros_when_it_grows() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    write(&mut db, 0..100, 1);
    // An end that is no multiple of an extent.
    let (end, at) = (50 * BLOCK + 4 * KIB, (50 * BLOCK + 4 * KIB).to_string());
    let refused = daemon.refused(4, &["volume", "resize", "tank/db", &at]);
    assert!(refused.contains("data beyond") && refused.contains("--force"), "{refused}");
    assert_eq!(size(&daemon), 1 << 30);
    check(&mut db, 0..100, 1);
    daemon.braid(&["snapshot", "create", "tank/db@before"]);
    write(&mut db, 90..95, 500);
    // A range without data needs no `--force`.
    daemon.braid(&["volume", "resize", "tank/db", "512M"]);
    assert_eq!(size(&daemon), 512 * MIB);
    let beyond = 600 * MIB;
    assert!(db.read(beyond, 4096).is_err() && db.write(beyond, &noise(4096, 1)).is_err(), "beyond its end");
    check(&mut db, 0..90, 1);

    daemon.refused(4, &["volume", "resize", "tank/db", &at, "--force"]);
    daemon.braid(&["volume", "resize", "tank/db", &at, "--force", "--yes"]);
    assert_eq!(size(&daemon), end);
    check(&mut db, 0..50, 1);
    assert!(db.read(50 * BLOCK, 8192).is_err() && db.write(60 * BLOCK, &noise(4096, 1)).is_err());
    assert!(db.read(50 * BLOCK, 4096).expect("it reads") == noise(BLOCK, 51)[..4096]);
    // The diff ends at the end of the volume.
    let diff = daemon.json(&["snapshot", "diff", "tank/db@before"]);
    let ends = diff["ranges"].as_array().expect("ranges").iter().map(|range| {
        range["offset_bytes"].as_u64().expect("a place") + range["length_bytes"].as_u64().expect("a length")
    });
    assert!(diff["size_bytes"] == end && ends.max().unwrap_or(0) <= end, "{diff}");
    let mut again = client(&daemon, "tank/db");
    assert_eq!(again.size_bytes, end);
    write(&mut again, 0..5, 700);
    // The snapshot keeps the earlier content.
    export(&daemon, "tank/db@before");
    check(&mut client(&daemon, "tank/db@before"), 0..100, 1);

    daemon.restart(true);
    assert_eq!(size(&daemon), end);
    daemon.braid(&["snapshot", "create", "tank/db@small"]);
    daemon.braid(&["volume", "resize", "tank/db", "1G"]);
    let look = |daemon: &Daemon, volume: &str, first: u64| {
        let mut db = client(daemon, volume);
        assert_eq!(db.size_bytes, 1 << 30);
        check(&mut db, 0..5, 700);
        check(&mut db, 5..first, 1);
        assert!(db.read(50 * BLOCK, 4096).expect("it reads") == noise(BLOCK, 51)[..4096]);
        assert!(db.read(50 * BLOCK + 4096, 60 * KIB as usize).expect("it reads").iter().all(|byte| *byte == 0));
        check_zeros(&mut db, 51..120);
    };
    look(&daemon, "tank/db", 50);
    daemon.restart(false);
    look(&daemon, "tank/db", 50);
    // Reads through the smaller snapshot, and after that is deleted.
    daemon.braid(&["volume", "clone", "tank/db@small", "tank/trial"]);
    daemon.braid(&["volume", "resize", "tank/trial", "1G"]);
    export(&daemon, "tank/trial");
    look(&daemon, "tank/trial", 50);
    daemon.braid(&["snapshot", "delete", "tank/db@small", "--yes"]);
    daemon.braid(&["volume", "delete", "tank/trial", "--yes", "--force"]);
    daemon.restart(true);
    look(&daemon, "tank/db", 50);
    check(&mut client(&daemon, "tank/db@before"), 0..100, 1);

    // A volume without clients shrinks; a clone is at least as large as its origin.
    daemon.braid(&["export", "remove", "tank/db"]);
    daemon.braid(&["volume", "resize", "tank/db", "64K", "--force", "--yes"]);
    assert_eq!(size(&daemon), 64 * KIB);
    export(&daemon, "tank/db");
    let mut db = client(&daemon, "tank/db");
    assert_eq!(db.size_bytes, 64 * KIB);
    check(&mut db, 0..1, 700);
    daemon.refused(2, &["volume", "resize", "tank/db", "0"]);
    daemon.refused(2, &["volume", "resize", "tank/db", "5000"]);
    daemon.refused(3, &["volume", "resize", "tank/no", "1G", "--force", "--yes"]);
}

#[test]
fn a_client_of_a_volume_that_keeps_shrinking_gets_only_errors_or_its_data() {
    let daemon = Daemon::start();
    drop(pool(&daemon));
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mut db, ended) = (client(&daemon, "tank/db"), &ended);
        let writer = scope.spawn(move || {
            let (mut done, mut refused) = (0, 0);
            for round in 0.. {
                if ended.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let block = round * 7 % 400;
                match db.write(block * BLOCK, &noise(BLOCK, round)) {
                    Ok(()) => {
                        done += 1;
                        // Blocks below every end keep what was written.
                        if block < 40 {
                            assert!(db.read(block * BLOCK, BLOCK as usize).expect("it reads") == noise(BLOCK, round));
                        }
                    }
                    Err(_) => refused += 1,
                }
            }
            (done, refused)
        });
        for round in 0..30u64 {
            let size = if round % 2 == 0 { (40 + round * 3) * BLOCK + round * 4096 } else { 400 * BLOCK };
            daemon.braid(&["volume", "resize", "tank/db", &size.to_string(), "--force", "--yes"]);
            if round % 5 == 0 {
                daemon.braid(&["snapshot", "create", &format!("tank/db@s{round}")]);
            }
            if round % 2 == 1 {
                // The volume has its full size again: beyond its earlier end it holds only what was written since.
                assert_eq!(client(&daemon, "tank/db").size_bytes, 400 * BLOCK);
            }
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        let (done, refused) = writer.join().expect("it writes");
        assert!(done > 50 && refused > 5, "{done} written, {refused} refused");
    });
}
