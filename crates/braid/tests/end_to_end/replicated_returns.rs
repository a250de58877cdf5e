//! Replicas that were missing: which data are sent to them when they are back.

use serde_json::Value;

use crate::api;
use crate::nbd::{Client, WRITE_ZEROES};
use crate::replicated::*;
use crate::replicated_snapshots::{content as of_snapshot, on_node};
use crate::support::*;

const BLOCK: u64 = 4 * KIB;

/// Returns the bytes of data that the serving node has sent to a replica since that was last accepted.
fn sent_to(cluster: &Cluster, replica: usize) -> u64 {
    let (status, answer) = api::ask(&cluster.nodes[0], "GET", "/v1/activity", "");
    assert_eq!(status, 200, "{answer}");
    let activity: Value = serde_json::from_str(&answer).expect("it is JSON");
    let disks = activity["disks"].as_array().expect("disks").clone();
    let of_volume: Vec<&Value> = disks.iter().filter(|disk| disk["array"] == "db").collect();
    of_volume[replica]["stats"]["written_bytes"].as_u64().expect("a count")
}

/// Checks that all replicas have the same content.
fn all_are_equal(cluster: &Cluster) {
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs");
    }
}

/// Deletes the third replica and creates it again, empty, while no node serves the volume.
fn recreate(cluster: &mut Cluster) {
    cluster.nodes[0].kill();
    let three = &cluster.nodes[2];
    let old = three.json(&["replica", "show", "db"]);
    three.braid(&["replica", "delete", "db", "--yes", "--force"]);
    let made = serde_json::json!({"volume": old["volume"], "name": "db", "voter": 2,
        "membership": {"voters": 7, "replicas": 7}, "in_sync": 3,
        "pool": "tank", "size_bytes": SIZE, "head_bytes": old["head_bytes"], "tail_bytes": old["tail_bytes"]});
    let (status, answer) = api::ask(three, "POST", "/v1/replicas", &made.to_string());
    assert_eq!(status, 200, "{answer}");
    cluster.nodes[0].start_again();
}

#[test]
fn a_returning_replica_gets_only_the_blocks_that_it_missed() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    // Every region is dirty when the node dies: dirty regions alone would not show what the replica lacks.
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("it is written");
    }
    cluster.nodes[2].kill();
    let mut changed = std::collections::BTreeSet::new();
    for k in 0..1024u64 {
        let block = k.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / BLOCK);
        client.write(block * BLOCK, &noise(BLOCK, 1000 + k)).expect("the two others have it");
        changed.insert(block);
    }
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    let (sent, changed) = (sent_to(&cluster, 2), changed.len() as u64 * BLOCK);
    assert!(sent >= changed && sent * 10 <= changed * 11, "{sent} bytes were sent, {changed} were changed");
    drop(client);
    all_are_equal(&cluster);
}

#[test]
fn a_volume_deleted_while_a_node_was_down_is_forgotten_or_deletable_there() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("two/tank,three/tank", &[]);
    let make = ["volume", "create", "kept", "16M", "--replicas", "one/tank,two/tank,three/tank"];
    cluster.nodes[0].json(&make);
    for name in ["db", "kept"] {
        cluster.nodes[0].braid(&["volume", "detach", name]);
    }
    cluster.nodes[0].kill();
    for (name, force) in [("db", &[][..]), ("kept", &["--force"])] {
        cluster.nodes[1].json(&["volume", "attach", name]);
        cluster.nodes[1].braid(&[&["volume", "delete", name, "--yes"], force].concat());
    }
    cluster.nodes[0].start_again();
    let one = &cluster.nodes[0];
    wait_for("it to be forgotten", || one.events().contains("db was deleted by another node").then_some(()));
    let said = wait_for("the other one to be looked at", || {
        let shown = one.json(&["volume", "show", "kept"])["attention"].to_string();
        shown.contains("two/tank, three/tank have no data of it").then_some(shown)
    });
    assert!(said.contains("braid volume delete kept"), "{said}");
    assert_eq!(one.json(&["volume", "list"])["replicated"].as_array().map(Vec::len), Some(1));
    one.braid(&["volume", "delete", "kept", "--yes"]);
    assert_eq!(one.json(&["replica", "list"])["replicas"], serde_json::json!([]));
}

#[test]
fn after_an_attach_only_differing_blocks_are_sent() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("it is written");
    }
    cluster.nodes[2].kill();
    for block in (0..SIZE / BLOCK).step_by(16) {
        client.write(block * BLOCK, &noise(BLOCK, 1000 + block)).expect("the two others have it");
    }
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    drop(client);
    // No record of the missed writes is left.
    cluster.nodes[0].restart(true);
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    // Dirty regions are resynced in full to all connected replicas.
    wait_for("the two to be equal", || {
        cluster.nodes[0].events().contains("resync of array db is complete").then_some(())
    });
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    let (sent, changed) = (sent_to(&cluster, 2), SIZE / 16);
    assert!(sent >= changed && sent * 10 <= changed * 11, "{sent} bytes were sent, {changed} were changed");
    all_are_equal(&cluster);
}

#[test]
fn a_recreated_replica_gets_the_allocated_blocks() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    let mut allocated = 0;
    for at in (0..SIZE).step_by(256 << 10) {
        client.write(at + 64 * KIB, &noise(32 * KIB, at)).expect("it is written");
        allocated += 32 * KIB;
    }
    client.flush().expect("it is flushed");
    drop(client);
    // Regions that are dirty at the attach are resynced while the replica is filled, and may be sent to it twice.
    wait_for("nothing to be dirty", || {
        (cluster.nodes[0].json(&["array", "show", "db"])["redundancy"]["regions_dirty"] == 0).then_some(())
    });
    recreate(&mut cluster);
    cluster.wait_for_states(0, &WHOLE);
    let sent = sent_to(&cluster, 2);
    assert!(sent >= allocated && sent * 100 <= allocated * 103, "{sent} bytes were sent, {allocated} are allocated");
    all_are_equal(&cluster);
}

/// Checks that each node has the same snapshots in the same order, with the same content.
fn all_snapshots_are_equal(cluster: &Cluster, expected: &[&str]) {
    let first = on_node(&cluster.nodes[0]);
    let names: Vec<&str> = first.iter().filter_map(|(_, name)| name.as_deref()).collect();
    assert_eq!(names, expected);
    for node in &cluster.nodes[1..] {
        assert_eq!(on_node(node), first);
    }
    for own in expected {
        let of_first = of_snapshot(&cluster.nodes[0], own);
        for (k, node) in cluster.nodes.iter().enumerate().skip(1) {
            let other = of_snapshot(node, own);
            let differs =
                (0..of_first.len()).step_by(4096).find(|at| of_first[*at..*at + 4096] != other[*at..*at + 4096]);
            assert_eq!(differs, None, "where snapshot {own} of node {k} differs");
        }
    }
}

#[test]
fn a_returning_replica_gets_the_snapshots_that_it_missed() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    let snapshot =
        |cluster: &Cluster, own: &str| drop(cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]));
    for at in 0..32 {
        client.write(2 * at * MIB, &noise(MIB, at)).expect("it is written");
    }
    snapshot(&cluster, "zero");
    cluster.nodes[2].kill();
    client.write(4 * MIB, &noise(2 * MIB, 100)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    // The snapshots hold zeros where the missing replica has data.
    client.call(0, WRITE_ZEROES, 20 * MIB, 3 * MIB as u32, &[]).expect("it is zeros");
    snapshot(&cluster, "one");
    client.write(4 * MIB + 8 * KIB, &noise(16 * KIB, 101)).expect("it is written");
    client.write(50 * MIB, &vec![0; MIB as usize]).expect("it is written");
    snapshot(&cluster, "two");
    client.write(9 * MIB, &noise(MIB, 102)).expect("it is written");
    snapshot(&cluster, "gone");
    cluster.nodes[0].braid(&["snapshot", "delete", "db@gone", "--yes"]);
    client.write(4 * MIB, &noise(MIB, 103)).expect("it is written");
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    client.write(63 * MIB, &noise(MIB, 104)).expect("all three have it");
    snapshot(&cluster, "last");
    let shown = cluster.nodes[0].json(&["snapshot", "show", "db@one"]);
    assert!(
        shown["replicas"].as_array().expect("a list").iter().all(|replica| replica["has_snapshot"] == true),
        "{shown}"
    );
    all_snapshots_are_equal(&cluster, &["zero", "one", "two", "last"]);

    drop(client);
    all_are_equal(&cluster);
}

/// Deletes the snapshots of a node's replica, which stays in sync.
fn lose_snapshots(daemon: &Daemon) {
    let register = daemon.json(&["replica", "show", "db"])["register"].clone();
    for (snapshot, _) in on_node(daemon) {
        for what in ["hide", "remove"] {
            // Only the controller knows its current session.
            let done = (1..=16).any(|session| {
                let ask = serde_json::json!({"epoch": register["epoch"], "controller": register["controller"],
                    "session": session, "change": {"operation": what, "snapshot": snapshot}});
                api::ask(daemon, "POST", "/v1/replicas/db/snapshots", &ask.to_string()).0 == 200
            });
            assert!(done, "{what} {snapshot}");
        }
    }
    assert_eq!(on_node(daemon), []);
}

#[test]
fn earlier_writes_survive_a_snapshot_that_is_copied_to_a_replica_later() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("two/tank,three/tank", &["--witness", "one"]);
    let export = |cluster: &Cluster, of: usize| {
        cluster.nodes[of].export("db");
        cluster.client(of)
    };
    let mut client = export(&cluster, 0);
    client.write(0, &noise(4 * MIB, 1)).expect("it is written");
    cluster.nodes[2].kill();
    client.write(MIB, &noise(MIB, 2)).expect("it is written");
    cluster.wait_for_states(0, &["in_sync", "failed", "witness"]);
    cluster.nodes[0].braid(&["snapshot", "create", "db@early"]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &["in_sync", "in_sync", "witness"]);
    // The replica lacks the snapshot, as if that had been taken during its resync.
    lose_snapshots(&cluster.nodes[2]);
    client.write(MIB / 2, &noise(2 * MIB, 3)).expect("both have it");
    client.flush().expect("it is flushed");
    drop(client);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);

    // The snapshot is copied to the replica after it was missing; the snapshot is older than the replica's data.
    cluster.nodes[1].json(&["volume", "attach", "db"]);
    cluster.wait_for_states(1, &["in_sync", "in_sync", "witness"]);
    cluster.nodes[2].kill();
    let mut client = export(&cluster, 1);
    client.write(3 * MIB, &noise(MIB, 4)).expect("it is written");
    cluster.wait_for_states(1, &["in_sync", "failed", "witness"]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(1, &["in_sync", "in_sync", "witness"]);
    drop(client);
    cluster.nodes[1].braid(&["export", "remove", "db"]);
    cluster.nodes[1].braid(&["volume", "detach", "db"]);
    assert!(content(&cluster.nodes[1]) == content(&cluster.nodes[2]), "the replicas differ");
    assert!(of_snapshot(&cluster.nodes[1], "early") == of_snapshot(&cluster.nodes[2], "early"));
}

#[test]
fn a_recreated_replica_gets_all_snapshots() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(MIB, &noise(4 * MIB, 1)).expect("it is written");
    client.flush().expect("it is flushed");
    drop(client);
    // The replica is missing until there are snapshots.
    recreate(&mut cluster);
    cluster.nodes[2].kill();
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    let mut client = wait_for("it to be exported", || Client::open(&cluster.nodes[0].nbd_socket("db"), "db").ok());
    let mut allocated = 4 * MIB;
    for k in 0..3u64 {
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@s{k}")]);
        client.write((2 * k + 1) * MIB + 4 * KIB, &noise(MIB, 10 + k)).expect("it is written");
        allocated += MIB;
    }
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    drop(client);
    // Nothing is sent twice, although data of the volume are replicated beside the snapshots.
    let sent = sent_to(&cluster, 2);
    assert!(sent >= allocated && sent <= allocated + 512 * KIB, "{sent} bytes were sent, {allocated} are allocated");
    all_snapshots_are_equal(&cluster, &["s0", "s1", "s2"]);
    all_are_equal(&cluster);
}
