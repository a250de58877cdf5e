//! Limits of a volume apply to all of its exports together.

use std::time::{Duration, Instant};

use crate::nbd::Client;
use crate::pools::{client, export, pool, socket};
use crate::support::*;

/// Returns how long `count` small reads take, one after the other.
fn reads(client: &mut Client, count: u64) -> Duration {
    let begun = Instant::now();
    for at in 0..count {
        client.read(at * 4096, 4096).expect("it reads");
    }
    begun.elapsed()
}

/// Returns how long `count` reads over each of these exports take, all exports at once.
fn reads_over(daemon: &Daemon, exports: &[&str], count: u64) -> Duration {
    let clients: Vec<Client> = exports.iter().map(|name| client(daemon, name)).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || reads(&mut client, count));
        }
    });
    begun.elapsed()
}

#[test]
fn limits_of_a_volume_hold_for_all_of_its_exports_together() {
    let mut daemon = Daemon::start();
    drop(pool(&daemon));
    daemon.braid(&["volume", "create", "tank/slow", "64M", "--limit", "iops=50,bw=100M"]);
    let shown = daemon.json(&["volume", "show", "tank/slow"]);
    assert_eq!((&shown["iops_max"], &shown["bandwidth_bytes_max"]), (&50.into(), &(100 * MIB).into()), "{shown}");
    export(&daemon, "tank/slow");
    let at = format!("unix:{}", socket(&daemon));
    daemon.braid(&["export", "add", "tank/slow", "--name", "again", "--nbd", &at]);
    // 80 requests at 50 a second, except a small burst.
    let both = ["tank/slow", "again"];
    let took = reads_over(&daemon, &both, 40);
    assert!(took > Duration::from_millis(1400), "{took:?}");
    daemon.restart(true);
    let took = reads_over(&daemon, &both, 40);
    assert!(took > Duration::from_millis(1400), "kept by a kill: {took:?}");

    // The limit of one export applies in addition: 20 requests at 10 a second, while the other export keeps its share.
    daemon.braid(&["export", "set", "again", "--limit", "iops=10"]);
    let took = reads_over(&daemon, &["again"], 20);
    assert!(took > Duration::from_millis(1700), "{took:?}");
    let took = reads_over(&daemon, &["tank/slow"], 40);
    assert!(took > Duration::from_millis(600), "{took:?}");
    daemon.braid(&["export", "set", "again", "--limit", "none"]);

    // A change applies at once to connected clients, and to a request that waits already: at a byte a second each takes an hour.
    let mut one = client(&daemon, "again");
    daemon.braid(&["volume", "set", "tank/slow", "--limit", "bw=1"]);
    one.read(0, 4096).expect("it reads");
    let text = std::thread::scope(|scope| {
        let waits = scope.spawn(move || reads(&mut one, 100));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished(), "4 KiB at a byte a second");
        let text = daemon.braid(&["volume", "set", "tank/slow", "--limit", "none"]);
        let took = waits.join().expect("it reads");
        assert!(took < Duration::from_secs(30), "{took:?}");
        text
    });
    assert!(text.contains("limits of volume tank/slow") && text.contains("none"), "{text}");
    let shown = daemon.json(&["volume", "show", "tank/slow"]);
    assert!(shown["iops_max"].is_null() && shown["bandwidth_bytes_max"].is_null(), "{shown}");

    // The limit belongs to the volume and survives a rollback; snapshots have none.
    daemon.braid(&["volume", "set", "tank/slow", "--limit", "iops=20"]);
    daemon.braid(&["snapshot", "create", "tank/slow@monday"]);
    export(&daemon, "tank/slow@monday");
    let took = reads_over(&daemon, &["tank/slow@monday"], 400);
    assert!(took < Duration::from_secs(10), "{took:?}");
    let took = reads_over(&daemon, &["again"], 20);
    assert!(took > Duration::from_millis(800), "after the snapshot, too: {took:?}");
    daemon.braid(&["export", "remove", "tank/slow"]);
    daemon.braid(&["export", "remove", "again"]);
    daemon.braid(&["volume", "rollback", "tank/slow", "@monday", "--yes"]);
    assert_eq!(daemon.json(&["volume", "show", "tank/slow"])["iops_max"], 20);

    daemon.refused(2, &["volume", "set", "tank/slow", "--limit", "iops=0"]);
    daemon.refused(2, &["volume", "set", "tank/slow"]);
    daemon.refused(3, &["volume", "set", "tank/no", "--limit", "none"]);
}
