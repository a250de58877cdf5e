//! Arrays with parity over nodes, and a pool on top: daemons on loopback.

use crate::nbd::Client;
use crate::replicated::*;
use crate::support::*;

const PLACES: &str = "one/tank,two/tank,three/tank";

/// NBD_CMD_WRITE_ZEROES.
const WRITE_ZEROES: u16 = 6;

/// Creates nodes, three of which have replicas of a volume `db` of raid5 that the first one serves.
fn raid5(names: &[&str]) -> Cluster {
    let cluster = Cluster::plain(names);
    let made = cluster.create(PLACES, &["--level", "raid5"]);
    assert_eq!((&made["state"], &made["level"]), (&"serving".into(), &"raid5".into()), "{made}");
    cluster
}

/// Exports a volume of a pool on a node, and connects to it.
fn export(node: &Daemon, volume: &str) -> Client {
    let name = volume.replace(['/', '@'], "-");
    let socket = node.nbd_socket(&name);
    node.braid(&["export", "add", volume, "--name", &name, "--nbd", &format!("unix:{socket}")]);
    Client::open(&socket, &name).expect("it is exported")
}

#[track_caller]
fn wait_for_pool(node: &Daemon, state: &str) {
    let is_so = || {
        let pools = node.json(&["pool", "list"])["pools"].as_array().expect("a list").clone();
        pools.iter().any(|pool| pool["name"] == "deep" && pool["state"] == state).then_some(())
    };
    wait_for("the pool", is_so);
}

#[test]
fn a_pool_on_parity_over_nodes_goes_on_without_one_and_moves_to_another() {
    let mut cluster = raid5(&["one", "two", "three"]);
    let one = &cluster.nodes[0];
    // Each replica holds half of the data: three replicas take one and a half times the size.
    let replica = one.json(&["replica", "show", "db"]);
    assert_eq!(replica["size_bytes"], SIZE / 2, "{replica}");
    one.braid(&["pool", "create", "deep", "db"]);
    one.braid(&["volume", "create", "deep/v", "32M"]);
    let mut client = export(one, "deep/v");
    client.write(0, &noise(MIB, 1)).expect("it is written");
    client.write(5 * MIB + 4096, &noise(8 * KIB, 2)).expect("it is written");
    client.flush().expect("it is flushed");
    one.braid(&["snapshot", "create", "deep/v@monday"]);

    // One node dies, and no request fails.
    cluster.nodes[2].kill();
    client.write(2 * MIB, &noise(MIB, 3)).expect("the two others have it");
    client.write(4096, &noise(4 * KIB, 4)).expect("over what a snapshot has");
    let expected = |at: u64| match at {
        0 => {
            let mut first = noise(MIB, 1);
            first[4096..8192].copy_from_slice(&noise(4 * KIB, 4));
            first
        }
        _ => noise(MIB, 3),
    };
    for at in [0, 2] {
        assert!(client.read(at * MIB, MIB as usize).expect("it is read") == expected(at), "{at}");
    }
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);

    // Unflushed writes to new blocks, and zeros that only the pool records.
    client.write(9 * MIB, &noise(MIB, 5)).expect("it is written");
    client.call(0, WRITE_ZEROES, 2 * MIB, 64 * KIB as u32, &[]).expect("it is zeros");
    cluster.nodes[0].kill();
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!((&taken["state"], &taken["pool"]), (&"serving".into(), &"deep".into()), "{taken}");
    let mut second = export(&cluster.nodes[1], "deep/v");
    assert!(second.read(9 * MIB, MIB as usize).expect("it is read") == noise(MIB, 5), "it was acknowledged");
    let zeros = second.read(2 * MIB, 64 * KIB as usize).expect("it is read");
    assert!(zeros.iter().all(|byte| *byte == 0), "it was acknowledged");
    assert!(second.read(0, MIB as usize).expect("it is read") == expected(0));
    second.write(20 * MIB, &noise(MIB, 6)).expect("it is written");

    // The first node learns of the takeover, and its replica is rebuilt; then one of the others may fail.
    cluster.nodes[0].start_again();
    wait_for("the first one to find out", || {
        (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    wait_for_pool(&cluster.nodes[0], "incomplete");
    cluster.wait_for_states(1, &WHOLE);
    cluster.nodes[2].kill();
    for (at, seed) in [(9, 5), (20, 6)] {
        assert!(second.read(at * MIB, MIB as usize).expect("it is read") == noise(MIB, seed), "{at}");
    }
    let mut monday = export(&cluster.nodes[1], "deep/v@monday");
    assert!(monday.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    for node in &cluster.nodes[..2] {
        let events = node.events();
        assert!(!events.contains("pool_damaged") && !events.contains("pool_memory_log_lost"), "{events}");
        assert!(!node.running.log().contains("panicked"), "{}", node.running.log());
    }
}

#[test]
fn with_too_few_replicas_requests_wait_and_impossible_commands_are_refused() {
    let mut cluster = raid5(&["one", "two", "three", "four"]);
    let one = &cluster.nodes[0];
    let create = |more: &[&str]| one.refused(2, &[&["volume", "create", "other", "64M", "--replicas"], more].concat());
    assert!(create(&["one/tank,two/tank", "--level", "raid5"]).contains("3 replicas at least"));
    assert!(create(&[PLACES, "--level", "raid6"]).contains("4 replicas at least"));
    assert!(one.refused(2, &["snapshot", "create", "db@monday"]).contains("pool create"));
    one.braid(&["pool", "create", "deep", "db"]);
    assert!(one.refused(4, &["export", "add", "db", "--nbd", "unix:/nowhere"]).contains("pool deep"));
    assert!(one.refused(4, &["volume", "delete", "db", "--yes"]).contains("pool deep"));
    let disk = one.folder.sparse("more.img", 64 * MIB);
    assert!(one.refused(2, &["pool", "add", "deep", &disk]).contains("no other members"));
    one.braid(&["volume", "create", "deep/v", "32M"]);
    let mut client = export(one, "deep/v");
    client.write(0, &noise(MIB, 1)).expect("it is written");
    assert!(one.refused(4, &["volume", "detach", "db"]).contains("exported"));

    // With one of three replicas requests wait, and none fails; with two they complete.
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let socket = cluster.nodes[0].nbd_socket("deep-v");
    let started = std::time::Instant::now();
    let waiting = std::thread::spawn(move || {
        loop {
            if let Ok(mut client) = Client::open(&socket, "deep-v")
                && client.write(MIB, &noise(MIB, 2)).is_ok()
            {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "it is never written");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    });
    wait_for("it to stop", || (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "opening").then_some(()));
    cluster.nodes[2].start_again();
    waiting.join().expect("it is written once two are there");
    let mut client = Client::open(&cluster.nodes[0].nbd_socket("deep-v"), "deep-v").expect("it is exported");
    for (at, seed) in [(0, 1), (1, 2)] {
        assert!(client.read(at * MIB, MIB as usize).expect("it is read") == noise(MIB, seed), "{at}");
    }
    cluster.nodes[1].start_again();
    cluster.wait_for_states(0, &WHOLE);

    // A replica on another node replaces one, and is rebuilt with its data.
    let one = &cluster.nodes[0];
    assert!(one.refused(4, &["replica", "add", "db", "four/tank"]).contains("no free slot"));
    one.braid(&["replica", "remove", "db", "two", "--yes"]);
    assert!(one.refused_any(&["replica", "remove", "db", "three", "--yes"]).contains("data are lost"));
    one.braid(&["replica", "add", "db", "four/tank"]);
    cluster.wait_for_states(0, &WHOLE);

    // The pool moves by a clean detach, and has all its data.
    cluster.nodes[0].braid(&["volume", "detach", "db", "--force"]);
    wait_for_pool(&cluster.nodes[0], "incomplete");
    cluster.nodes[2].json(&["volume", "attach", "db"]);
    wait_for_pool(&cluster.nodes[2], "active");
    let mut client = export(&cluster.nodes[2], "deep/v");
    assert!(client.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    drop(client);
    cluster.nodes[2].braid(&["pool", "delete", "deep", "--yes", "--force"]);
    cluster.nodes[2].braid(&["volume", "delete", "db", "--yes"]);
    assert_eq!(cluster.nodes[2].json(&["pool", "list"])["pools"].as_array().map(Vec::len), Some(1));
}

#[test]
fn raid5_over_five_nodes_takes_a_quarter_more_space_and_any_node_may_die() {
    let mut cluster = Cluster::plain(&["one", "two", "three", "four", "five"]);
    let places = "one/tank,two/tank,three/tank,four/tank,five/tank";
    let made = cluster.create(places, &["--level", "raid5"]);
    assert_eq!((&made["state"], &made["level"]), (&"serving".into(), &"raid5".into()), "{made}");
    let sizes = cluster.nodes.iter().map(|node| node.json(&["replica", "show", "db"])["size_bytes"].as_u64());
    assert_eq!(sizes.sum::<Option<u64>>(), Some(SIZE * 5 / 4));
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("it is written");
    }
    client.flush().expect("it is flushed");

    // A replica's node dies and is resynced when it is back; then the serving node dies for good.
    cluster.nodes[4].kill();
    client.write(3 * MIB, &noise(MIB, 100)).expect("four have everything");
    let expected = |at: u64| noise(MIB, if at == 3 { 100 } else { at });
    for at in 0..8 {
        assert!(client.read(at * MIB, MIB as usize).expect("it is read") == expected(at), "MiB {at}");
    }
    cluster.nodes[4].start_again();
    cluster.wait_for_states(0, &["in_sync"; 5]);
    cluster.nodes[0].kill();
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    cluster.nodes[1].export("db");
    let mut client = cluster.client(1);
    for at in 0..SIZE / MIB {
        assert!(client.read(at * MIB, MIB as usize).expect("it is read") == expected(at), "MiB {at}");
    }
}
