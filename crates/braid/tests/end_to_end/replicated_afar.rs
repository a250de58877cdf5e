//! Snapshots that a replica lacks, where the node that serves the volume has no replica of its own: they come from another one.

use std::time::Duration;

use crate::nbd::{Client, WRITE_ZEROES};
use crate::replicated::*;
use crate::replicated_snapshots::{content_in as of_snapshot, on_node};
use crate::support::*;

/// The node that serves has no replica; the three others have: where the first of them keeps its own.
struct Afar {
    cluster: Cluster,
    pools: [String; 3],
}

impl Afar {
    fn new(cluster: Cluster, first: &str) -> Afar {
        let replicas = format!("two/{first},three/tank,four/tank");
        cluster.create(&replicas, &[]);
        cluster.nodes[0].export("db");
        Afar { cluster, pools: [first.to_owned(), "tank".to_owned(), "tank".to_owned()] }
    }

    /// The same, where what is read of the first replica takes so long.
    fn slow(delay: &str) -> Afar {
        let cluster = Cluster::plain(&["one", "two", "three", "four"]);
        let two = &cluster.nodes[1];
        let file = two.folder.sparse("slow.img", 512 * MIB);
        two.braid(&["pool", "create", "slow", &format!("faulty({file},read-delay={delay})")]);
        Afar::new(cluster, "slow")
    }

    fn replicas(&self) -> impl Iterator<Item = (&Daemon, &str)> {
        self.cluster.nodes[1..].iter().zip(self.pools.iter().map(String::as_str))
    }

    fn snapshot(&self, own: &str) {
        self.cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]);
    }

    /// Each replica has these snapshots in this order, and the same in each of them.
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

    /// All replicas alone have the same. The volume is served by this node so far.
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

    /// The fourth node is away while two snapshots are taken of a volume that is full.
    fn take_two_without_the_last(&mut self) -> Client {
        let mut client = self.cluster.client(0);
        // Few requests, as a disk that is slow to be read is slow to be written, too.
        for at in (0..SIZE / MIB).step_by(16) {
            client.write(at * MIB, &noise(16 * MIB, at)).expect("it is written");
        }
        self.cluster.nodes[3].kill();
        client.write(4 * MIB, &noise(2 * MIB, 100)).expect("the two others have it");
        self.cluster.wait_for_states(0, &["in_sync", "in_sync", "out"]);
        // The snapshots hold nothing there, where the one that is away has data.
        client.call(0, WRITE_ZEROES, 20 * MIB, 3 * MIB as u32, &[]).expect("it is zeros");
        self.snapshot("one");
        client.write(4 * MIB + 8 * KIB, &noise(16 * KIB, 101)).expect("it is written");
        client.write(50 * MIB, &vec![0; MIB as usize]).expect("it is written");
        self.snapshot("two");
        client.write(9 * MIB, &noise(MIB, 102)).expect("it is written");
        client.flush().expect("it is flushed");
        client
    }

    /// The fourth node is back, and reads from the first replica.
    fn wait_for_the_midst(&mut self) {
        self.cluster.nodes[3].start_again();
        let two = &self.cluster.nodes[1];
        wait_for("a snapshot to be read", || two.running.log().contains("uses export snapshot:").then_some(()));
        assert_eq!(on_node(&self.cluster.nodes[3]), [], "it is in the midst of the first one");
    }
}

/// What a node's daemon says of an export on the listener for nodes' data, to somebody who has no certificate.
fn refusal(daemon: &Daemon, name: &str) -> String {
    let shown = daemon.json(&["node", "list"]);
    let nodes = shown["nodes"].as_array().expect("a list").clone();
    let own = nodes.iter().find(|node| node["own"] == true).unwrap_or_else(|| panic!("{shown}"));
    let address = own["data"].as_str().unwrap_or_else(|| panic!("{shown}"));
    let name = name.replace(':', "%3A").replace('?', "%3F");
    let out = run_any("nbdinfo", &["--size", &format!("nbd://{address}/{name}")]);
    assert!(!out.status.success(), "{}", said(&out));
    said(&out)
}

#[test]
fn a_replica_that_is_back_gets_its_snapshots_from_another_one() {
    let mut afar = Afar::new(Cluster::of(&["one", "two", "three", "four"]), "tank");
    let mut client = afar.take_two_without_the_last();
    afar.cluster.nodes[3].start_again();
    afar.cluster.wait_for_states(0, &WHOLE);
    client.write(63 * MIB, &noise(MIB, 103)).expect("all three have it");
    afar.snapshot("last");
    afar.have_the_same_snapshots(&["one", "two", "last"]);
    let shown = afar.cluster.nodes[0].json(&["snapshot", "show", "db@one"]);
    assert!(shown["replicas"].as_array().expect("a list").iter().all(|replica| replica["has"] == true), "{shown}");
    let (one, two) = (&afar.cluster.nodes[0], &afar.cluster.nodes[1]);
    assert_eq!(one.events().matches("snapshot_brought").count(), 2, "{}", one.events());
    // It was given no more than was written since.
    let log = one.running.log();
    assert!(log.contains("bytes written since its newest snapshot"), "{log}");
    assert!(two.running.log().contains("uses export snapshot:"), "it was read there");

    // Nobody without a certificate of the table's has any of it.
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

    // One that is made anew has nothing, and gets all of them.
    one.braid(&["replica", "rebuild", "db", "four", "--yes"]);
    afar.cluster.wait_for_states(0, &WHOLE);
    afar.have_the_same_snapshots(&["one", "two", "last"]);
    // Nothing of them is held anywhere.
    one.braid(&["snapshot", "delete", "db@one", "--yes"]);
    afar.have_the_same_snapshots(&["two", "last"]);
    drop(client);
    afar.have_the_same(0);
}

#[test]
fn a_replica_from_which_snapshots_are_read_dies_in_the_midst() {
    let mut afar = Afar::slow("300ms");
    let client = afar.take_two_without_the_last();
    afar.wait_for_the_midst();
    afar.cluster.nodes[1].kill();
    // That it is dead nobody notices but who reads from it.
    wait_for("the snapshots to come from the other one", || {
        (on_node(&afar.cluster.nodes[3]) == on_node(&afar.cluster.nodes[2])).then_some(())
    });
    afar.cluster.wait_for_states(0, &["out", "in_sync", "in_sync"]);
    let log = afar.cluster.nodes[0].running.log();
    assert!(log.contains("snapshot one could not be brought to replica four/tank: replica two/slow"), "{log}");
    afar.cluster.nodes[1].start_again();
    afar.cluster.wait_for_states(0, &WHOLE);
    afar.have_the_same_snapshots(&["one", "two"]);
    drop(client);
    afar.have_the_same(0);
}

#[test]
fn another_node_takes_the_volume_while_snapshots_are_read() {
    let mut afar = Afar::slow("300ms");
    let client = afar.take_two_without_the_last();
    afar.wait_for_the_midst();
    drop(client);
    let three = &afar.cluster.nodes[2];
    three.json(&["volume", "attach", "db"]);
    // What was offered to the one before is so no more.
    let two = &afar.cluster.nodes[1];
    let volume = two.json(&["replica", "show", "db"])["volume"].as_str().expect("it has one").to_owned();
    let snapshot = on_node(two)[0].0.clone();
    wait_within(Duration::from_secs(10), "the snapshot to be offered no more", || {
        let refused = refusal(two, &format!("snapshot:{volume}:{snapshot}?epoch=1&controller={volume}"));
        refused.contains("no export named").then_some(())
    });
    afar.cluster.wait_for_states(2, &WHOLE);
    afar.have_the_same_snapshots(&["one", "two"]);
    afar.have_the_same(2);
}

#[test]
fn a_replica_of_the_node_that_serves_gets_its_snapshots_from_another_one() {
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
