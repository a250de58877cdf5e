//! Replicas and witnesses are added and removed while the volume is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::replicated::{Cluster, SIZE, WHOLE, content, content_in, on_loopback};
use crate::replicated_snapshots::content_in as of_snapshot;
use crate::support::*;

/// A client that writes and reads back all the time; no request may fail.
struct Load {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Load {
    fn start(cluster: &Cluster, of: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut client = cluster.client(of);
        let thread = thread::spawn(move || {
            let mut round = 0;
            while !stopped.load(Ordering::Relaxed) {
                round += 1;
                let at = 32 * MIB + round % 64 * 64 * KIB;
                client.write(at, &noise(64 * KIB, round)).expect("it is written");
                assert!(client.read(at, 64 * KIB as usize).expect("it is read") == noise(64 * KIB, round));
            }
            round
        });
        Load { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().expect("nothing failed") > 10);
    }
}

/// Returns the nodes of the voters, in the order of their numbers.
pub fn nodes_of(shown: &Value) -> Vec<String> {
    let voters = shown["voters"].as_array().expect("voters");
    voters.iter().map(|voter| voter["node"].as_str().expect("a node").to_owned()).collect()
}

/// Checks that all of these nodes have the same content, and returns it by MiB.
pub fn the_same_everywhere(cluster: &Cluster, of: &[usize]) -> Vec<Vec<u8>> {
    let first = content(&cluster.nodes[of[0]]);
    for node in &of[1..] {
        assert!(content(&cluster.nodes[*node]) == first, "node {node}");
    }
    first
}

#[test]
fn a_volume_of_one_node_moves_to_three_others_under_its_clients() {
    let cluster = Cluster::plain(&["one", "two", "three", "four"]);
    let one = &cluster.nodes[0];
    cluster.create("one/tank", &[]);
    one.export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    one.braid(&["snapshot", "create", "db@monday"]);
    client.write_fua(MIB, &noise(MIB, 2)).expect("it is written");
    let load = Load::start(&cluster, 0);
    for (place, states) in [("two/tank", &WHOLE[..2]), ("three/tank", &WHOLE[..])] {
        let said = one.braid(&["replica", "add", "db", place]);
        assert!(said.contains(&format!("{place} is being rebuilt")), "{said}");
        cluster.wait_for_states(0, states);
    }
    // Adds a witness.
    let shown = one.json(&["replica", "add", "db", "--witness", "four"]);
    assert_eq!(
        (nodes_of(&shown), &shown["voters"][3]["state"]),
        (["one", "two", "three", "four"].map(str::to_owned).to_vec(), &"witness".into())
    );
    let shown = one.json(&["replica", "remove", "db", "four", "--yes"]);
    assert_eq!(nodes_of(&shown), ["one", "two", "three"]);
    load.end();
    drop(client);

    // Another node serves the volume, and the replica of the first node is removed.
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!((&taken["state"], nodes_of(&taken).len()), (&"serving".into(), 3), "{taken}");
    cluster.nodes[1].export("db");
    let mut client = cluster.client(1);
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    let load = Load::start(&cluster, 1);
    let two = &cluster.nodes[1];
    two.braid(&["replica", "add", "db", "four/tank"]);
    cluster.wait_for_states(1, &["in_sync"; 4]);
    one.braid(&["export", "remove", "db"]);
    let said = two.braid(&["replica", "remove", "db", "one", "--yes"]);
    assert!(said.contains("was removed") && !said.contains("one/tank"), "{said}");
    assert_eq!(nodes_of(&two.json(&["volume", "show", "db"])), ["two", "three", "four"]);
    assert!(one.json(&["replica", "list"])["replicas"].as_array().expect("a list").is_empty());
    load.end();

    // All remaining replicas have all data, and the snapshot.
    let snapshot = two.json(&["snapshot", "show", "db@monday"]);
    let has = snapshot["replicas"].as_array().expect("replicas").iter().all(|replica| replica["has_snapshot"] == true);
    assert!(has, "{snapshot}");
    client.flush().expect("it is flushed");
    drop(client);
    two.braid(&["export", "remove", "db"]);
    two.braid(&["volume", "detach", "db"]);
    let now = the_same_everywhere(&cluster, &[1, 2, 3]);
    assert!(now[0] == noise(MIB, 1) && now[1] == noise(MIB, 2));
    // The first node may serve the volume again, without a replica of its own: it receives the membership.
    let again = one.json(&["volume", "attach", "db"]);
    assert_eq!(
        (&again["state"], nodes_of(&again)),
        (&"serving".into(), ["two", "three", "four"].map(str::to_owned).to_vec())
    );
}

#[test]
fn a_permanently_lost_node_is_replaced_and_does_not_vote_when_it_returns() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    cluster.nodes[1].kill();
    cluster.wait_for_states(0, &["in_sync", "failed"]);
    // The replica is removed from the volume, and its data stay on its node.
    let said = cluster.nodes[0].refused(6, &["replica", "remove", "db", "two", "--yes"]);
    assert!(said.contains("is removed from volume db") && said.contains("braid replica delete db"), "{said}");
    cluster.nodes[0].braid(&["replica", "add", "db", "three/tank"]);
    cluster.wait_for_states(0, &["in_sync", "in_sync"]);
    client.write_fua(MIB, &noise(MIB, 2)).expect("it is written");
    drop(client);
    // The first node dies, too. The third one attaches the volume only with the first: a quorum of two needs both, and the old replica is no voter.
    cluster.nodes[1].start_again();
    cluster.nodes[0].kill();
    let said = cluster.nodes[2].refused_any(&["volume", "attach", "db"]);
    assert!(said.contains("one/tank"), "{said}");
    cluster.nodes[0].start_again();
    cluster.nodes[0].braid(&["volume", "attach", "db"]);
    cluster.wait_for_states(0, &["in_sync", "in_sync"]);
    assert_eq!(nodes_of(&cluster.nodes[0].json(&["volume", "show", "db"])), ["one", "three"]);
    // The serving node deletes the old replica once its node replies.
    wait_for("the old replica to be removed", || {
        cluster.nodes[1].json(&["replica", "list"])["replicas"].as_array()?.is_empty().then_some(())
    });
    cluster.nodes[0].braid(&["replica", "add", "db", "--witness", "two"]);
    cluster.nodes[0].kill();
    let taken = cluster.nodes[2].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    cluster.nodes[2].export("db");
    let mut client = cluster.client(2);
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    assert!(client.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
}

#[test]
fn a_replica_whose_disk_is_lost_is_rebuilt_with_its_snapshots() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    for (block, name) in [(0, "monday"), (1, "tuesday")] {
        client.write_fua(block * MIB, &noise(MIB, block)).expect("it is written");
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{name}")]);
    }
    // The disk is gone with all of the pool; another disk takes its place.
    cluster.nodes[2].kill();
    let (disk, kept) = (cluster.nodes[2].folder.join("disk.img"), cluster.nodes[2].folder.join("kept.img"));
    std::fs::rename(&disk, &kept).expect("it is there");
    cluster.nodes[2].folder.sparse("new.img", 512 * MIB);
    cluster.nodes[2].start_again();
    let three = &cluster.nodes[2];
    three.braid(&["pool", "create", "fresh", &three.folder.join("new.img")]);
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    let one = &cluster.nodes[0];
    let load = Load::start(&cluster, 0);
    let said = one.braid(&["replica", "rebuild", "db", "three", "--pool", "fresh", "--yes"]);
    assert!(said.contains("the replica on three is being rebuilt"), "{said}");
    cluster.wait_for_states(0, &WHOLE);
    load.end();
    // A replica in sync is rebuilt in place, too.
    one.braid(&["replica", "rebuild", "db", "two", "--yes"]);
    cluster.wait_for_states(0, &WHOLE);
    for name in ["db@monday", "db@tuesday"] {
        let snapshot = one.json(&["snapshot", "show", name]);
        let has =
            snapshot["replicas"].as_array().expect("replicas").iter().all(|replica| replica["has_snapshot"] == true);
        assert!(has, "{snapshot}");
    }
    drop(client);
    one.braid(&["export", "remove", "db"]);
    one.braid(&["volume", "detach", "db"]);
    let first = the_same_everywhere(&cluster, &[0, 1]);
    assert!(first[0] == noise(MIB, 0) && first[1] == noise(MIB, 1));
    // If the old disk comes back, the node has no replica on it.
    cluster.nodes[2].kill();
    std::fs::rename(&kept, &disk).expect("it is there");
    cluster.nodes[2].start_again();
    let three = &cluster.nodes[2];
    wait_for("the old pool to be empty", || {
        three.json(&["volume", "list", "tank"])["volumes"].as_array()?.is_empty().then_some(())
    });
    assert_eq!(three.json(&["replica", "show", "db"])["pool"], "fresh");
}

#[test]
fn impossible_membership_changes_are_refused() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    let one = &cluster.nodes[0];
    assert!(one.refused(2, &["replica", "add", "db", "three"]).contains("NODE/POOL"));
    assert!(one.refused(3, &["replica", "add", "db", "nine/tank"]).contains("no node nine"));
    assert!(one.refused(4, &["replica", "add", "db", "two/tank"]).contains("has a voter"));
    assert!(one.refused(3, &["replica", "remove", "db", "nine", "--yes"]).contains("no replica and no witness"));
    assert!(one.refused(2, &["replica", "rebuild", "db", "three", "--yes"]).contains("is a witness"));
    assert!(
        cluster.nodes[1].refused_any(&["replica", "remove", "db", "one", "--yes"]).contains("not served by this node")
    );
    one.braid(&["replica", "remove", "db", "two", "--yes"]);
    let said = one.refused_any(&["replica", "remove", "db", "one", "--yes"]);
    assert!(said.contains("no other replica of volume db holds everything"), "{said}");
    one.braid(&["replica", "remove", "db", "three", "--yes"]);
    assert!(one.refused(4, &["replica", "remove", "db", "one", "--yes"]).contains("last voter"));
    // A pool that does not exist: the refusal leaves nothing behind and changes nothing.
    let roles = || one.json(&["array", "show", "db"])["members"].as_array().expect("members").len();
    let before = roles();
    one.refused_any(&["replica", "add", "db", "two/nothing"]);
    assert_eq!(roles(), before);
    assert_eq!(nodes_of(&one.json(&["volume", "show", "db"])), ["one"]);
    one.braid(&["replica", "add", "db", "two/tank"]);
    cluster.wait_for_states(0, &["in_sync", "in_sync"]);
}

#[test]
fn a_replica_is_removed_while_snapshots_are_copied_to_another() {
    let start = |_: usize, folder: Folder| Daemon::start_in(folder, &["--shards", "2"]);
    let cluster = Cluster::made_by(&["one", "two", "three"], start, |_| on_loopback(&["--data-plain"]));
    let three = &cluster.nodes[2];
    three.folder.sparse("slow.img", 512 * MIB);
    let slow = format!("throttled({},bw=2M)", three.folder.join("slow.img"));
    three.braid(&["pool", "create", "slow", &slow]);
    cluster.create("one/tank,two/tank", &[]);
    let one = &cluster.nodes[0];
    one.export("db");
    let mut client = cluster.client(0);
    client.write(0, &noise(12 * MIB, 1)).expect("it is written");
    one.braid(&["snapshot", "create", "db@monday"]);
    one.braid(&["replica", "add", "db", "three/slow"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    one.braid(&["replica", "remove", "db", "two", "--yes"]);
    assert!(!one.events().contains("received snapshot"), "it was copied before");
    assert_eq!(nodes_of(&one.json(&["volume", "show", "db"])), ["one", "three"]);
    client.write(MIB / 2, &noise(3 * MIB, 2)).expect("it is written");
    // The copy of the snapshot continues from the other replica.
    wait_for("the snapshot to be copied", || one.events().contains("received snapshot").then_some(()));
    // The new replica is not compared in full: its content is that of the newest snapshot, and later writes are known.
    let is_logged = || one.running.log().contains("bytes written since its newest snapshot").then_some(());
    wait_for("what it lacks to be known", is_logged);
    cluster.wait_for_states(0, &WHOLE[..2]);
    drop(client);
    one.braid(&["export", "remove", "db"]);
    one.braid(&["volume", "detach", "db"]);
    assert!(of_snapshot(one, "tank", "monday") == of_snapshot(three, "slow", "monday"), "the snapshots differ");
    assert!(content(one) == content_in(three, "slow", SIZE), "the replicas differ");
}
