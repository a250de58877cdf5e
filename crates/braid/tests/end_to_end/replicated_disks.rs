//! Replicas whose disks fail, are full, or come back as old copies.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::nbd::Client;
use crate::replicated::*;
use crate::support::*;

/// Creates a volume on three nodes; the replica of the last one is in a pool of its own on this disk.
fn with_third(disk: impl Fn(&Folder) -> String) -> Cluster {
    served_by(0, &[], disk)
}

/// The same, where node number `server` serves the volume, which is created with these further arguments.
fn served_by(server: usize, more: &[&str], disk: impl Fn(&Folder) -> String) -> Cluster {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    let third = &cluster.nodes[2];
    third.braid(&["pool", "create", "odd", &disk(&third.folder)]);
    let create = ["volume", "create", "db", "64M", "--replicas", "one/tank,two/tank,three/odd"];
    cluster.nodes[server].json(&[&create, more].concat());
    cluster.nodes[server].export("db");
    cluster
}

/// Checks that all replicas have the same content, and that it is the expected one.
fn all_have(cluster: &Cluster, expected: impl Fn(u64) -> u64) {
    all_have_by(cluster, 0, expected);
}

/// The same, where this node serves the volume.
fn all_have_by(cluster: &Cluster, server: usize, expected: impl Fn(u64) -> u64) {
    cluster.wait_for_states(server, &WHOLE);
    let _not_exported = cluster.nodes[server].any(&["export", "remove", "db"]);
    cluster.nodes[server].braid(&["volume", "detach", "db"]);
    for (node, pool) in cluster.nodes.iter().zip(["tank", "tank", "odd"]) {
        let content = content_in(node, pool, SIZE);
        for (at, had) in content.iter().enumerate() {
            assert!(*had == noise(MIB, expected(at as u64)), "MiB {at} in {pool}");
        }
    }
}

#[test]
fn a_replica_whose_disk_fails_writes_is_dropped_and_taken_back_when_writes_succeed() {
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
fn a_replica_whose_pool_is_full_is_dropped_until_there_is_space() {
    let cluster = with_third(|folder| folder.sparse("odd.img", 64 * MIB));
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("the two others have it");
    }
    client.flush().expect("it is flushed");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    let third = &cluster.nodes[2];
    let more = third.folder.sparse("more.img", 128 * MIB);
    third.braid(&["pool", "add", "odd", &more]);
    all_have(&cluster, |at| at);
}

#[test]
fn an_old_copy_of_a_replicas_disk_is_not_trusted() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("all three have it");
    }
    client.flush().expect("it is flushed");
    // The node is down until the others drop its replica, and its disk is copied.
    let disk = cluster.nodes[2].folder.join("odd.img");
    let copy = cluster.nodes[2].folder.join("copy.img");
    cluster.nodes[2].stop();
    client.write(0, &noise(MIB, 50)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    run("cp", &["--sparse=always", &disk, &copy]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    for at in 0..SIZE / MIB / 2 {
        client.write(at * MIB, &noise(MIB, 100 + at)).expect("all three have it");
    }
    client.flush().expect("it is flushed");
    // Much later the node is down again; the other two still know that they dropped it.
    cluster.nodes[2].stop();
    client.write(SIZE - MIB, &noise(MIB, 200)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
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
fn a_node_restored_to_an_earlier_epoch_is_dropped_and_rebuilt() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, at)).expect("all three have it");
    }
    drop(client);
    // The volume is detached while its node is down for a moment: no replica is dropped.
    cluster.nodes[0].braid(&["volume", "detach", "db", "--force"]);
    let [disk, copy, state, state_copy] =
        ["odd.img", "copy.img", "state", "state-copy"].map(|name| cluster.nodes[2].folder.join(name));
    cluster.nodes[2].stop();
    run("cp", &["--sparse=always", &disk, &copy]);
    run("cp", &["-r", &state, &state_copy]);
    cluster.nodes[2].start_again();
    cluster.nodes[0].json(&["volume", "attach", "db"]);
    cluster.wait_for_states(0, &WHOLE);
    let mut client = cluster.client(0);
    for at in 0..4 {
        client.write(at * MIB, &noise(MIB, 100 + at)).expect("all three have it");
    }
    client.flush().expect("it is flushed");
    // The node is down for less than the time after which it is dropped, and returns with the data of an earlier epoch
    // and the state of that time: nothing on the node shows it.
    cluster.nodes[2].stop();
    run("cp", &["--sparse=always", &copy, &disk]);
    run("rm", &["-r", &state]);
    run("mv", &[&state_copy, &state]);
    cluster.nodes[2].start_again();
    wait_for("it to be left out", || cluster.nodes[0].events().contains("member_dropped").then_some(()));
    assert!(cluster.nodes[0].events().contains("replica_epoch_lost"), "{}", cluster.nodes[0].events());
    drop(client);
    all_have(&cluster, |at| match at {
        0..4 => 100 + at,
        at => at,
    });
}

/// Exchanges the volumes of a stopped node's replicas: each gets the next one in this list. Returns the path of its state file, and the state before.
fn exchange_replicas(daemon: &Daemon, names: &[&str]) -> (String, String) {
    let path = daemon.folder.join("state/state.json");
    let before = std::fs::read_to_string(&path).expect("it has a state");
    let mut state: Value = serde_json::from_str(&before).expect("it is JSON");
    let replicas = state["replicas"].as_array_mut().expect("replicas");
    let at = |name: &str| replicas.iter().position(|replica| replica["name"] == name).expect("it has a replica");
    let places: Vec<usize> = names.iter().map(|name| at(name)).collect();
    let volumes: Vec<[Value; 2]> =
        places.iter().map(|at| ["data", "metadata"].map(|what| replicas[*at][what].clone())).collect();
    for (number, at) in places.iter().enumerate() {
        let [data, metadata] = volumes[(number + 1) % volumes.len()].clone();
        (replicas[*at]["data"], replicas[*at]["metadata"]) = (data, metadata);
    }
    std::fs::write(&path, state.to_string()).expect("it can be written");
    (path, before)
}

#[test]
fn a_replica_of_another_volume_or_size_does_not_vote_and_is_not_waited_for() {
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
    let said = ["the register is that of another volume or voter", "have changed since", "have changed since"];
    for (name, (state, why)) in names.iter().zip(["lost", "failed", "failed"].into_iter().zip(said)) {
        let shown = wait_for("it to be found", || {
            let shown = cluster.nodes[2].json(&["replica", "show", name]);
            (shown["reason"].is_string()).then_some(shown)
        });
        let reason = shown["reason"].as_str().expect("it says why");
        assert!(shown["state"] == state && reason.contains(why), "{shown}");
    }
    assert!(cluster.nodes[2].events().contains("replica_failed"));
    // The two other replicas are enough, and report the failed one.
    for (name, seed) in names.iter().zip(11..) {
        open(&cluster, name).write_fua(MIB, &noise(MIB, seed)).expect("two are enough");
        wait_for("it to be left out", || {
            let shown = cluster.nodes[0].json(&["volume", "show", name]);
            (shown["state"] == "serving" && shown["voters"][2]["state"] != "in_sync").then_some(())
        });
    }
    // No data were written to the wrong volume.
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

/// Returns the disk of the third node's replica, and the path of its copy.
fn odd_disk(cluster: &Cluster) -> [String; 2] {
    ["odd.img", "copy.img"].map(|name| cluster.nodes[2].folder.join(name))
}

/// Copies that disk during a clean stop so short that no vote takes place.
fn copy_while_it_rests(cluster: &mut Cluster) {
    let [disk, copy] = odd_disk(cluster);
    cluster.nodes[2].stop();
    run("cp", &["--sparse=always", &disk, &copy]);
    cluster.nodes[2].start_again();
}

/// Replaces the disk by the copy, while the node is stopped.
fn put_the_copy_back(cluster: &Cluster) {
    let [disk, copy] = odd_disk(cluster);
    run("cp", &["--sparse=always", &copy, &disk]);
}

/// Returns whether the node detects the copy. If it does not, the test goes on, and the content of the volume shows the consequences.
fn is_noticed(cluster: &Cluster) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let events = cluster.nodes[2].events();
        if events.contains("replica_stale") {
            assert!(events.contains("is an older copy"), "{events}");
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// Writes to all of the volume.
fn write_all(client: &mut Client, seed: u64) {
    for at in 0..SIZE / MIB {
        client.write(at * MIB, &noise(MIB, seed + at)).expect("it is written");
    }
    client.flush().expect("it is flushed");
}

/// Rewrites half of the volume, and waits until no record shows which half.
fn write_half_and_wait(client: &mut Client) {
    for at in 0..SIZE / MIB / 2 {
        client.write(at * MIB, &noise(MIB, 100 + at)).expect("it is written");
    }
    client.flush().expect("it is flushed");
    // Regions are clean some time after a flush: a delta resync from dirty regions would copy nothing.
    std::thread::sleep(Duration::from_secs(10));
}

/// Returns the seed of each MiB after that.
fn seed_after_rewrite(at: u64) -> u64 {
    if at < SIZE / MIB / 2 { 100 + at } else { at }
}

#[test]
fn an_older_copy_of_a_disk_without_a_vote_since_is_not_trusted() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    write_all(&mut client, 0);
    copy_while_it_rests(&mut cluster);
    cluster.wait_for_states(0, &WHOLE);
    write_half_and_wait(&mut client);
    if cluster.nodes[0].events().contains("member_dropped") {
        // The rest of the test holds for such a copy, too, but is easier to pass.
        println!("this machine is slow: the replica was left out while its disk was copied");
    }

    cluster.nodes[2].stop();
    put_the_copy_back(&cluster);
    cluster.nodes[2].start_again();
    let noticed = is_noticed(&cluster);
    client.write(SIZE - 2 * MIB, &noise(MIB, 200)).expect("the two others have it");
    if noticed {
        wait_for("it to be left out", || cluster.nodes[0].events().contains("member_dropped").then_some(()));
    }
    cluster.wait_for_states(0, &WHOLE);
    client.write(SIZE - MIB, &noise(MIB, 300)).expect("all three have it");
    client.flush().expect("it is flushed");

    // The replica is in sync, and no longer an older copy: it keeps its boot over restarts of its node.
    let boot = |cluster: &Cluster| cluster.nodes[2].json(&["replica", "show", "db"])["boot"].clone();
    let before = boot(&cluster);
    cluster.nodes[2].restart(false);
    cluster.nodes[2].restart(true);
    assert!(!cluster.nodes[2].events().contains("replica_stale") && boot(&cluster) == before);
    client.write(0, &noise(MIB, 400)).expect("it is written");
    drop(client);
    all_have(&cluster, |at| match at {
        0 => 400,
        62 => 200,
        63 => 300,
        at => seed_after_rewrite(at),
    });
    assert!(noticed);
}

#[test]
fn an_older_copy_of_a_dropped_disk_is_rebuilt_in_full() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    write_all(&mut client, 0);
    copy_while_it_rests(&mut cluster);
    cluster.wait_for_states(0, &WHOLE);
    write_half_and_wait(&mut client);

    cluster.nodes[2].stop();
    client.write(SIZE - MIB, &noise(MIB, 200)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    put_the_copy_back(&cluster);
    cluster.nodes[2].start_again();
    let noticed = is_noticed(&cluster);
    drop(client);
    all_have(&cluster, |at| if at == 63 { 200 } else { seed_after_rewrite(at) });
    assert!(noticed);
}

#[test]
fn an_older_copy_of_the_serving_nodes_disk_is_no_resync_source() {
    let mut cluster = served_by(2, &[], |folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(2);
    write_all(&mut client, 0);
    drop(client);
    copy_while_it_rests(&mut cluster);
    cluster.wait_for_states(2, &WHOLE);
    let connect = |cluster: &Cluster| {
        let socket = cluster.nodes[2].nbd_socket("db");
        wait_for("it to be exported", || Client::open(&socket, "db").ok())
    };
    let mut client = connect(&cluster);
    write_half_and_wait(&mut client);
    // In this range the two other replicas may differ, and the content that is read first counts.
    client.write(MIB, &noise(MIB, 500)).expect("it is written");
    drop(client);

    cluster.nodes[2].kill();
    put_the_copy_back(&cluster);
    cluster.nodes[2].start_again();
    let noticed = is_noticed(&cluster);
    let mut client = connect(&cluster);
    for at in 0..SIZE / MIB {
        let expected = if at == 1 { 500 } else { seed_after_rewrite(at) };
        assert!(client.read(at * MIB, MIB as usize).expect("it is read") == noise(MIB, expected), "MiB {at} is old");
    }
    drop(client);
    all_have_by(&cluster, 2, |at| if at == 1 { 500 } else { seed_after_rewrite(at) });
    assert!(noticed);
}

#[test]
fn a_voter_whose_disk_is_an_older_copy_keeps_its_vote() {
    let mut cluster = with_third(|folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    write_all(&mut client, 0);
    copy_while_it_rests(&mut cluster);
    cluster.wait_for_states(0, &WHOLE);
    // The second replica is dropped by the votes of the first and of the third.
    cluster.nodes[1].kill();
    write_half_and_wait(&mut client);
    cluster.wait_for_states(0, &["in_sync", "failed", "in_sync"]);
    drop(client);

    // The third node returns with its older copy, and the first one, the only one with all data, is down.
    cluster.nodes[2].stop();
    put_the_copy_back(&cluster);
    cluster.nodes[0].kill();
    cluster.nodes[2].start_again();
    cluster.nodes[1].start_again();
    let noticed = is_noticed(&cluster);
    let said = cluster.nodes[1].refused_any(&["volume", "attach", "db"]);
    assert!(said.contains("one"), "it waits for the first one: {said}");
    cluster.nodes[0].start_again();
    // The attempt of the second node has raised the epoch meanwhile.
    wait_for("it to be served", || cluster.nodes[0].any(&["volume", "attach", "db"]).status.success().then_some(()));
    all_have(&cluster, seed_after_rewrite);
    assert!(noticed);
}

#[test]
fn an_older_copy_of_a_member_with_parity_is_recomputed() {
    let mut cluster = served_by(0, &["--level", "raid5"], |folder| folder.sparse("odd.img", 512 * MIB));
    let mut client = cluster.client(0);
    write_all(&mut client, 0);
    copy_while_it_rests(&mut cluster);
    cluster.wait_for_states(0, &WHOLE);
    write_half_and_wait(&mut client);
    cluster.nodes[2].stop();
    put_the_copy_back(&cluster);
    cluster.nodes[2].start_again();
    let noticed = is_noticed(&cluster);
    client.write(SIZE - MIB, &noise(MIB, 200)).expect("the two others have everything");
    if noticed {
        wait_for("it to be left out", || cluster.nodes[0].events().contains("member_dropped").then_some(()));
    }
    cluster.wait_for_states(0, &WHOLE);
    // The cells of the second replica are computed from those of the third.
    cluster.nodes[1].kill();
    for at in 0..SIZE / MIB {
        let expected = if at == 63 { 200 } else { seed_after_rewrite(at) };
        assert!(client.read(at * MIB, MIB as usize).expect("it is read") == noise(MIB, expected), "MiB {at} is old");
    }
    assert!(noticed);
}

#[test]
fn reads_never_return_data_of_an_older_copy() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    let third = &cluster.nodes[2];
    third.braid(&["pool", "create", "odd", &third.folder.sparse("odd.img", 512 * MIB)]);
    // The serving node has no replica of its own, and reads from the replica that responds first.
    cluster.create("two/tank,three/odd", &["--witness", "one"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    write_all(&mut client, 0);
    copy_while_it_rests(&mut cluster);
    let whole = ["in_sync", "in_sync", "witness"];
    cluster.wait_for_states(0, &whole);
    write_half_and_wait(&mut client);
    cluster.nodes[2].stop();
    put_the_copy_back(&cluster);
    cluster.nodes[2].start_again();
    for round in 0..4 {
        for at in 0..SIZE / MIB {
            let read = client.read(at * MIB, MIB as usize).expect("it is read");
            assert!(read == noise(MIB, seed_after_rewrite(at)), "MiB {at} is old in round {round}");
        }
    }
    assert!(is_noticed(&cluster));
    // If a read was refused, it has shown that the replica is an older copy; otherwise the next write does.
    client.write(0, &noise(MIB, 100)).expect("the other one has it");
    wait_for("it to be left out", || cluster.nodes[0].events().contains("member_dropped").then_some(()));
    cluster.wait_for_states(0, &whole);
    // The older copy has been resynced: alone, it holds all data.
    cluster.nodes[1].kill();
    for at in 0..SIZE / MIB {
        let read = client.read(at * MIB, MIB as usize).expect("it is read");
        assert!(read == noise(MIB, seed_after_rewrite(at)), "MiB {at} is old");
    }
}
