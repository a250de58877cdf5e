//! Snapshots that a replica lacks, where the serving node has no replica of its own: they are copied from another replica.

use std::time::Duration;

use crate::nbd::{Client, WRITE_ZEROES};
use crate::replicated::*;
use crate::replicated_snapshots::{content_in as of_snapshot, on_node};
use crate::support::*;

/// A cluster whose serving node has no replica; the three other nodes have one, the first of them in a pool of its own.
struct RemoteReplicas {
    cluster: Cluster,
    pools: [String; 3],
}

impl RemoteReplicas {
    fn new(cluster: Cluster, first: &str) -> RemoteReplicas {
        let replicas = format!("two/{first},three/tank,four/tank");
        cluster.create(&replicas, &[]);
        cluster.nodes[0].export("db");
        RemoteReplicas { cluster, pools: [first.to_owned(), "tank".to_owned(), "tank".to_owned()] }
    }

    /// Creates a cluster in which each read from the first replica takes `delay`.
    fn slow(delay: &str) -> RemoteReplicas {
        let cluster = Cluster::plain(&["one", "two", "three", "four"]);
        let two = &cluster.nodes[1];
        let file = two.folder.sparse("slow.img", 512 * MIB);
        two.braid(&["pool", "create", "slow", &format!("faulty({file},read-delay={delay})")]);
        RemoteReplicas::new(cluster, "slow")
    }

    fn replicas(&self) -> impl Iterator<Item = (&Daemon, &str)> {
        self.cluster.nodes[1..].iter().zip(self.pools.iter().map(String::as_str))
    }

    fn snapshot(&self, own: &str) {
        self.cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]);
    }

    /// Checks that each replica has these snapshots in this order, with the same content.
    #[track_caller]
    fn have_the_same_snapshots(&self, expected: &[&str]) {
        let first = on_node(&self.cluster.nodes[1]);
        let names: Vec<&str> = first.iter().filter_map(|(_, name)| name.as_deref()).collect();
        assert_eq!(names, expected);
        for (node, _) in self.replicas() {
            assert_eq!(on_node(node), first);
        }
        for own in expected {
            let mut all = self.replicas().map(|(node, pool)| of_snapshot(node, pool, own));
            let first = all.next().expect("the first one");
            for (k, other) in all.enumerate() {
                let differs =
                    (0..first.len()).step_by(4096).find(|at| first[*at..*at + 4096] != other[*at..*at + 4096]);
                assert_eq!(differs, None, "where snapshot {own} of replica {} differs", k + 1);
            }
        }
    }

    /// Checks that all replicas have the same content. The volume is served by this node so far.
    #[track_caller]
    fn have_the_same(&self, server: usize) {
        let _not_exported = self.cluster.nodes[server].any(&["export", "remove", "db"]);
        self.cluster.nodes[server].braid(&["volume", "detach", "db"]);
        let mut all = self.replicas().map(|(node, pool)| content_in(node, pool, SIZE));
        let first = all.next().expect("the first one");
        for (k, other) in all.enumerate() {
            assert!(first == other, "replica {} differs", k + 1);
        }
    }

    /// Takes two snapshots of a full volume while the fourth node is down.
    fn take_two_without_the_last(&mut self) -> Client {
        let mut client = self.cluster.client(0);
        // Few requests, as a disk with slow reads has slow writes, too.
        for at in (0..SIZE / MIB).step_by(16) {
            client.write(at * MIB, &noise(16 * MIB, at)).expect("it is written");
        }
        self.cluster.nodes[3].kill();
        client.write(4 * MIB, &noise(2 * MIB, 100)).expect("the two others have it");
        self.cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
        // The snapshots hold zeros where the replica of the missing node has data.
        client.call(0, WRITE_ZEROES, 20 * MIB, 3 * MIB as u32, &[]).expect("it is zeros");
        self.snapshot("one");
        client.write(4 * MIB + 8 * KIB, &noise(16 * KIB, 101)).expect("it is written");
        client.write(50 * MIB, &vec![0; MIB as usize]).expect("it is written");
        self.snapshot("two");
        client.write(9 * MIB, &noise(MIB, 102)).expect("it is written");
        client.flush().expect("it is flushed");
        client
    }

    /// Starts the fourth node, and waits until it copies from the first replica.
    fn wait_for_a_copy(&mut self) {
        self.cluster.nodes[3].start_again();
        let two = &self.cluster.nodes[1];
        wait_for("a snapshot to be read", || two.running.log().contains("uses export snapshot:").then_some(()));
        assert_eq!(on_node(&self.cluster.nodes[3]), [], "the first snapshot is being copied");
    }
}

/// Returns the refusal of an export on the listener for replication, for a client without a certificate.
fn refusal(daemon: &Daemon, name: &str) -> String {
    let shown = daemon.json(&["node", "list"]);
    let nodes = shown["nodes"].as_array().expect("a list").clone();
    let own = nodes.iter().find(|node| node["local"] == true).unwrap_or_else(|| panic!("{shown}"));
    let address = own["data"].as_str().unwrap_or_else(|| panic!("{shown}"));
    let name = name.replace(':', "%3A").replace('?', "%3F");
    let out = run_any("nbdinfo", &["--size", &format!("nbd://{address}/{name}")]);
    assert!(!out.status.success(), "{}", said(&out));
    said(&out)
}

#[test]
fn a_returning_replica_gets_its_snapshots_from_another_one() {
    let mut remote = RemoteReplicas::new(Cluster::of(&["one", "two", "three", "four"]), "tank");
    let mut client = remote.take_two_without_the_last();
    remote.cluster.nodes[3].start_again();
    remote.cluster.wait_for_states(0, &WHOLE);
    client.write(63 * MIB, &noise(MIB, 103)).expect("all three have it");
    remote.snapshot("last");
    remote.have_the_same_snapshots(&["one", "two", "last"]);
    let shown = remote.cluster.nodes[0].json(&["snapshot", "show", "db@one"]);
    assert!(
        shown["replicas"].as_array().expect("a list").iter().all(|replica| replica["has_snapshot"] == true),
        "{shown}"
    );
    let (one, two) = (&remote.cluster.nodes[0], &remote.cluster.nodes[1]);
    assert_eq!(one.events().matches("snapshot_copied").count(), 2, "{}", one.events());
    // The replica got no more than the data written since.
    let log = one.running.log();
    assert!(log.contains("bytes written since its newest snapshot"), "{log}");
    assert!(two.running.log().contains("uses export snapshot:"), "it was read there");

    // A client without a certificate of the cluster cannot read any of it.
    let register = two.json(&["replica", "show", "db"])["register"].clone();
    let snapshot = on_node(two)[0].0.clone();
    let volume = two.json(&["replica", "show", "db"])["volume"].as_str().expect("it has one").to_owned();
    let name = format!(
        "snapshot:{volume}:{snapshot}?epoch={}&controller={}",
        register["epoch"],
        register["controller"].as_str().expect("it has one")
    );
    let refused = refusal(two, &name);
    assert!(refused.to_lowercase().contains("tls"), "{refused}");

    // A rebuilt replica has no snapshots, and gets all of them.
    one.braid(&["replica", "rebuild", "db", "four", "--yes"]);
    remote.cluster.wait_for_states(0, &WHOLE);
    remote.have_the_same_snapshots(&["one", "two", "last"]);
    // No reader holds the snapshots anywhere.
    one.braid(&["snapshot", "delete", "db@one", "--yes"]);
    remote.have_the_same_snapshots(&["two", "last"]);
    drop(client);
    remote.have_the_same(0);
}

#[test]
fn the_source_replica_dies_while_snapshots_are_copied() {
    let mut remote = RemoteReplicas::slow("300ms");
    let client = remote.take_two_without_the_last();
    remote.wait_for_a_copy();
    remote.cluster.nodes[1].kill();
    // Only the replica that reads from the dead one notices its death.
    wait_for("the snapshots to come from the other one", || {
        (on_node(&remote.cluster.nodes[3]) == on_node(&remote.cluster.nodes[2])).then_some(())
    });
    remote.cluster.wait_for_states(0, &["failed", "in_sync", "in_sync"]);
    let log = remote.cluster.nodes[0].running.log();
    assert!(log.contains("snapshot one could not be copied to replica four/tank: replica two/slow"), "{log}");
    remote.cluster.nodes[1].start_again();
    remote.cluster.wait_for_states(0, &WHOLE);
    remote.have_the_same_snapshots(&["one", "two"]);
    drop(client);
    remote.have_the_same(0);
}

#[test]
fn another_node_takes_the_volume_over_while_snapshots_are_copied() {
    let mut remote = RemoteReplicas::slow("300ms");
    let client = remote.take_two_without_the_last();
    remote.wait_for_a_copy();
    drop(client);
    let three = &remote.cluster.nodes[2];
    three.json(&["volume", "attach", "db"]);
    // Offers of the former controller are withdrawn.
    let two = &remote.cluster.nodes[1];
    let volume = two.json(&["replica", "show", "db"])["volume"].as_str().expect("it has one").to_owned();
    let snapshot = on_node(two)[0].0.clone();
    wait_within(Duration::from_secs(10), "the snapshot to be offered no more", || {
        let refused = refusal(two, &format!("snapshot:{volume}:{snapshot}?epoch=1&controller={volume}"));
        refused.contains("no export named").then_some(())
    });
    remote.cluster.wait_for_states(2, &WHOLE);
    remote.have_the_same_snapshots(&["one", "two"]);
    remote.have_the_same(2);
}

#[test]
fn a_replica_of_the_serving_node_gets_its_snapshots_from_another_one() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    for (at, own) in [(0, "monday"), (1, "tuesday")] {
        client.write_fua(at * MIB, &noise(MIB, at)).expect("it is written");
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]);
    }
    cluster.nodes[0].braid(&["replica", "rebuild", "db", "one", "--yes"]);
    cluster.wait_for_states(0, &WHOLE);
    assert_eq!(on_node(&cluster.nodes[0]), on_node(&cluster.nodes[1]));
    for own in ["monday", "tuesday"] {
        let [one, two] = [0, 1].map(|node| of_snapshot(&cluster.nodes[node], "tank", own));
        assert!(one == two, "snapshot {own} differs");
    }
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 0));
}
