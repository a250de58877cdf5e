//! Replicas whose disks fail, are full, or come back with what they had long ago.

use crate::replicated::*;
use crate::support::*;

/// Three nodes, of which the last one has its replica in a pool of its own on this disk.
fn with_third(disk: impl Fn(&Folder) -> String) -> Cluster {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    let third = &cluster.nodes[2];
    third.braid(&["pool", "create", "odd", &disk(&third.folder)]);
    cluster.create("one/tank,two/tank,three/odd", &[]);
    cluster.nodes[0].export("db");
    cluster
}

/// What all have is the same, and this.
fn all_have(cluster: &Cluster, expected: impl Fn(u64) -> u64) {
    cluster.wait_for_states(0, &WHOLE);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    for (node, pool) in cluster.nodes.iter().zip(["tank", "tank", "odd"]) {
        let content = content_in(node, pool, SIZE);
        for (at, had) in content.iter().enumerate() {
            assert!(*had == noise(MIB, expected(at as u64)), "MiB {at} in {pool}");
        }
    }
}

#[test]
fn a_replica_whose_disk_fails_writes_is_left_out_and_taken_back_when_it_takes_them() {
    let cluster = with_third(|folder| {
        let file = folder.sparse("odd.img", 512 * MIB);
        format!("faulty({file},write-error@40M-44M*3)")
    });
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("the two others have it");
    }
    client.flush().expect("it is flushed");
    wait_for("the replica to be left out", || cluster.nodes[0].events().contains("member_dropped").then_some(()));
    all_have(&cluster, |at| at);
}

#[test]
fn a_replica_whose_pool_is_full_is_left_out_until_there_is_room() {
    let cluster = with_third(|folder| folder.sparse("odd.img", 64 * MIB));
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("the two others have it");
    }
    client.flush().expect("it is flushed");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "out"]);
    let third = &cluster.nodes[2];
    let more = third.folder.sparse("more.img", 128 * MIB);
    third.braid(&["pool", "add", "odd", &more]);
    all_have(&cluster, |at| at);
}

#[test]
fn a_replica_whose_disk_comes_back_as_it_was_long_ago_is_not_believed() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("all three have it");
    }
    client.flush().expect("it is flushed");
    // Its node is away for so long that the others go on without it, and somebody copies the disk.
    let disk = cluster.nodes[2].folder.join("odd.img");
    let copy = cluster.nodes[2].folder.join("copy.img");
    cluster.nodes[2].stop();
    client.write(0, &noise(MIB, 50)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "out"]);
    run("cp", &["--sparse=always", &disk, &copy]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    for at in 0..SIZE / MIB / 2 {
        client.write(at * MIB, &noise(MIB, 100 + at)).expect("all three have it");
    }
    client.flush().expect("it is flushed");
    // Much later, and the other two forget nothing.
    cluster.nodes[2].stop();
    client.write(SIZE - MIB, &noise(MIB, 200)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "out"]);
    run("cp", &["--sparse=always", &copy, &disk]);
    cluster.nodes[2].start_again();
    drop(client);
    all_have(&cluster, |at| match at {
        63 => 200,
        at if at < SIZE / MIB / 2 => 100 + at,
        at => at,
    });
}
