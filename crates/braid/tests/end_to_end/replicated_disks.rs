//! Replicas whose disks fail, are full, or come back with what they had long ago.

use serde_json::Value;

use crate::nbd::Client;
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

#[test]
fn a_replica_whose_disk_is_one_of_an_epoch_before_is_left_out_and_filled_anew() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("all three have it");
    }
    drop(client);
    // Nobody is left out: while its node is away for a moment, the volume is served by nobody.
    cluster.nodes[0].braid(&["volume", "detach", "db", "--force"]);
    let disk = cluster.nodes[2].folder.join("odd.img");
    let copy = cluster.nodes[2].folder.join("copy.img");
    cluster.nodes[2].stop();
    run("cp", &["--sparse=always", &disk, &copy]);
    cluster.nodes[2].start_again();
    cluster.nodes[0].json(&["volume", "attach", "db"]);
    cluster.wait_for_states(0, &WHOLE);
    let mut client = cluster.client(0);
    for at in 0..4 {
        client.write(at * MIB, &noise(MIB, 100 + at)).expect("all three have it");
    }
    client.flush().expect("it is flushed");
    // Its node is gone for less than it takes to leave it out, and comes back with what it had in the epoch before.
    cluster.nodes[2].stop();
    run("cp", &["--sparse=always", &copy, &disk]);
    cluster.nodes[2].start_again();
    wait_for("it to be left out", || cluster.nodes[0].events().contains("member_dropped").then_some(()));
    assert!(cluster.nodes[0].events().contains("replica_forgot"), "{}", cluster.nodes[0].events());
    drop(client);
    all_have(&cluster, |at| match at {
        0..4 => 100 + at,
        at => at,
    });
}

/// Makes a node that is stopped take the volumes of each of its replicas for those of the next one in this list. Gives its state as it was.
fn exchange_replicas(daemon: &Daemon, names: &[&str]) -> (String, String) {
    let path = daemon.folder.join("state/state.json");
    let before = std::fs::read_to_string(&path).expect("it has a state");
    let mut state: Value = serde_json::from_str(&before).expect("it is JSON");
    let replicas = state["replicas"].as_array_mut().expect("replicas");
    let at = |name: &str| replicas.iter().position(|replica| replica["name"] == name).expect("it has a replica");
    let places: Vec<usize> = names.iter().map(|name| at(name)).collect();
    let volumes: Vec<[Value; 2]> =
        places.iter().map(|at| ["data", "companion"].map(|what| replicas[*at][what].clone())).collect();
    for (number, at) in places.iter().enumerate() {
        let [data, companion] = volumes[(number + 1) % volumes.len()].clone();
        (replicas[*at]["data"], replicas[*at]["companion"]) = (data, companion);
    }
    std::fs::write(&path, state.to_string()).expect("it can be written");
    (path, before)
}

#[test]
fn a_replica_that_is_another_volumes_or_has_another_size_does_not_vote_and_nobody_waits_for_it() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    let names = ["db", "other", "large"];
    for (name, size) in names.iter().zip(["64M", "64M", "128M"]) {
        cluster.nodes[0].json(&["volume", "create", name, size, "--replicas", "one/tank,two/tank,three/tank"]);
        cluster.nodes[0].export(name);
    }
    let open =
        |cluster: &Cluster, name: &str| Client::open(&cluster.nodes[0].nbd_socket(name), name).expect("exported");
    for (name, seed) in names.iter().zip(1..) {
        open(&cluster, name).write_fua(0, &noise(MIB, seed)).expect("all three have it");
    }
    cluster.nodes[2].stop();
    let (path, state) = exchange_replicas(&cluster.nodes[2], &names);
    cluster.nodes[2].start_again();
    let said = ["the register is that of another volume or voter", "other sizes", "other sizes"];
    for (name, (state, why)) in names.iter().zip(["lost", "failed", "failed"].into_iter().zip(said)) {
        let shown = wait_for("it to be found", || {
            let shown = cluster.nodes[2].json(&["replica", "show", name]);
            (shown["reason"].is_string()).then_some(shown)
        });
        let reason = shown["reason"].as_str().expect("it says why");
        assert!(shown["state"] == state && reason.contains(why), "{shown}");
    }
    assert!(cluster.nodes[2].events().contains("replica_failed"));
    // The two others are enough, and say what is the matter.
    for (name, seed) in names.iter().zip(11..) {
        open(&cluster, name).write_fua(MIB, &noise(MIB, seed)).expect("two are enough");
        wait_for("it to be left out", || {
            let shown = cluster.nodes[0].json(&["volume", "show", name]);
            (shown["state"] == "serving" && shown["voters"][2]["state"] != "in_sync").then_some(())
        });
    }
    // Nothing was written to what is another's.
    cluster.nodes[2].stop();
    std::fs::write(path, state).expect("it can be written");
    cluster.nodes[2].start_again();
    for (name, seed) in names.iter().zip(1..) {
        wait_for("it to be in sync", || {
            let shown = cluster.nodes[0].json(&["volume", "show", name]);
            (shown["voters"][2]["state"] == "in_sync").then_some(())
        });
        let mut client = open(&cluster, name);
        for (at, seed) in [(0, seed), (MIB, seed + 10)] {
            assert!(client.read(at, MIB as usize).expect("it is read") == noise(MIB, seed), "{name} {at}");
        }
    }
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    assert!(content(&cluster.nodes[2]) == first, "a replica differs");
}
