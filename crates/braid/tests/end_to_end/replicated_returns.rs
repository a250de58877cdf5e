//! Replicas that were away: what is sent to them when they are back.

use serde_json::Value;

use crate::api;
use crate::replicated::*;
use crate::support::*;

const BLOCK: u64 = 4 * KIB;

/// Bytes of data that the node which serves the volume has sent to a replica since it was let in last.
fn sent_to(cluster: &Cluster, replica: usize) -> u64 {
    let (status, answer) = api::ask(&cluster.nodes[0], "GET", "/v1/activity", "");
    assert_eq!(status, 200, "{answer}");
    let activity: Value = serde_json::from_str(&answer).expect("it is JSON");
    let disks = activity["disks"].as_array().expect("disks").clone();
    let of_volume: Vec<&Value> = disks.iter().filter(|disk| disk["array"] == "db").collect();
    of_volume[replica]["stats"]["written_bytes"].as_u64().expect("a count")
}

/// All replicas alone have the same.
fn all_are_equal(cluster: &Cluster) {
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs");
    }
}

#[test]
fn a_replica_that_is_back_gets_the_blocks_that_it_missed_and_no_more() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    // Everything is dirty when it dies: its regions alone would not tell what it lacks.
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
    cluster.wait_for_states(0, &["in_sync", "in_sync", "out"]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    let (sent, changed) = (sent_to(&cluster, 2), changed.len() as u64 * BLOCK);
    assert!(sent >= changed && sent * 10 <= changed * 11, "{sent} bytes were sent, {changed} were changed");
    drop(client);
    all_are_equal(&cluster);
}

#[test]
fn a_replica_that_is_made_anew_gets_what_is_allocated() {
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
    // Nobody serves it while it is made anew.
    cluster.nodes[0].kill();
    let three = &cluster.nodes[2];
    let old = three.json(&["replica", "show", "db"]);
    three.braid(&["replica", "delete", "db", "--yes", "--force"]);
    let made = serde_json::json!({"volume": old["volume"], "name": "db", "voter": 2, "voters": 3, "in_sync": 3,
        "pool": "tank", "size_bytes": SIZE, "head_bytes": old["head_bytes"], "tail_bytes": old["tail_bytes"]});
    let (status, answer) = api::ask(three, "POST", "/v1/replicas", &made.to_string());
    assert_eq!(status, 200, "{answer}");
    cluster.nodes[0].start_again();
    cluster.wait_for_states(0, &WHOLE);
    let sent = sent_to(&cluster, 2);
    assert!(sent >= allocated && sent * 100 <= allocated * 103, "{sent} bytes were sent, {allocated} are allocated");
    all_are_equal(&cluster);
}
