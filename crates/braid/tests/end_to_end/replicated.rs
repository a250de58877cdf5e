//! Replicated volumes: daemons on loopback, each a node with a pool.

use serde_json::Value;

use crate::api;
use crate::nbd::Client;
use crate::support::*;

pub const SIZE: u64 = 64 * MIB;

/// The nodes of a cluster, each with a pool `tank`.
pub struct Cluster {
    pub nodes: Vec<Daemon>,
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.expect("loopback is there").port()
}

/// Returns the arguments of a node that listens on loopback, and these further arguments.
pub fn on_loopback(more: &[&str]) -> Vec<String> {
    let (listen, data) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let place = ["--listen".to_owned(), listen, "--data".to_owned(), data];
    place.into_iter().chain(more.iter().map(|&word| word.to_owned())).collect()
}

impl Cluster {
    /// Starts nodes with these names, which replicate without TLS.
    pub fn plain(names: &[&str]) -> Cluster {
        Cluster::of_which(names, &["--data-plain"])
    }

    pub fn of(names: &[&str]) -> Cluster {
        Cluster::of_which(names, &[])
    }

    fn of_which(names: &[&str], more: &[&str]) -> Cluster {
        let start = |_: usize, folder: Folder| Daemon::start_in(folder, &["--shards", "2"]);
        Cluster::made_by(names, start, |_| on_loopback(more))
    }

    /// Starts daemons with `start`, by their numbers, and makes them nodes with the arguments of the other function.
    pub fn made_by(
        names: &[&str],
        start: impl Fn(usize, Folder) -> Daemon,
        place: impl Fn(usize) -> Vec<String>,
    ) -> Cluster {
        let mut nodes: Vec<Daemon> = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let folder = Folder::new();
            let disk = folder.sparse("disk.img", 512 * MIB);
            let daemon = start(number, folder);
            daemon.braid(&["pool", "create", "tank", &disk]);
            let place = place(number);
            let place: Vec<&str> = place.iter().map(String::as_str).collect();
            match nodes.first() {
                None => daemon.braid(&[&["node", "init", name], &place[..]].concat()),
                Some(first) => {
                    let token = first.braid(&["node", "invite"]).trim().to_owned();
                    daemon.braid(&[&["node", "join", &token, "--name", name], &place[..]].concat())
                }
            };
            nodes.push(daemon);
        }
        let cluster = Cluster { nodes };
        wait_for("all nodes to know each other", || {
            let knows = |daemon: &Daemon| {
                let list = daemon.json(&["node", "list"]);
                let nodes = list["nodes"].as_array().expect("a list");
                nodes.len() == names.len() && nodes.iter().all(|node| node["state"] == "reachable")
            };
            cluster.nodes.iter().all(knows).then_some(())
        });
        cluster
    }

    pub fn create(&self, replicas: &str, more: &[&str]) -> Value {
        self.nodes[0].json(&[&["volume", "create", "db", "64M", "--replicas", replicas], more].concat())
    }

    /// Returns the state of each voter, as reported by a node.
    pub fn states(&self, of: usize) -> Vec<String> {
        let shown = self.nodes[of].json(&["volume", "show", "db"]);
        let voters = shown["voters"].as_array().expect("voters").clone();
        voters.iter().map(|voter| voter["state"].as_str().expect("a word").to_owned()).collect()
    }

    #[track_caller]
    pub fn wait_for_states(&self, of: usize, expected: &[&str]) {
        let mut last = Vec::new();
        let start = std::time::Instant::now();
        while start.elapsed() < PATIENCE {
            last = self.states(of);
            if last == expected {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let (shown, log) = (self.nodes[of].braid(&["volume", "show", "db"]), self.nodes[of].running.log());
        panic!("{expected:?} is not what is: {last:?}\n{shown}\n{log}");
    }

    pub fn client(&self, of: usize) -> Client {
        Client::open(&self.nodes[of].nbd_socket("db"), "db").expect("it is exported")
    }
}

/// Returns the number of reads of each replica by the node that serves the volume.
fn reads_of_replicas(daemon: &Daemon) -> Vec<u64> {
    let (status, answer) = api::ask(daemon, "GET", "/v1/activity", "");
    assert_eq!(status, 200, "{answer}");
    let activity: Value = serde_json::from_str(&answer).expect("it is JSON");
    let disks = activity["disks"].as_array().expect("disks").clone();
    let of_volume = disks.iter().filter(|disk| disk["array"] == "db");
    of_volume.map(|disk| disk["stats"]["reads"].as_u64().expect("a count")).collect()
}

/// Returns the metrics of a node.
fn measures(daemon: &Daemon) -> String {
    let (status, text) = api::ask(daemon, "GET", "/metrics", "");
    assert_eq!(status, 200, "{text}");
    text
}

/// Returns the content of a node's replica, by MiB.
pub fn content(daemon: &Daemon) -> Vec<Vec<u8>> {
    content_of(daemon, SIZE)
}

/// The same for a volume of another size.
pub fn content_of(daemon: &Daemon, bytes: u64) -> Vec<Vec<u8>> {
    content_in(daemon, "tank", bytes)
}

/// The same for a replica in another pool.
pub fn content_in(daemon: &Daemon, pool: &str, bytes: u64) -> Vec<Vec<u8>> {
    let snapshot = format!("{pool}/db@all");
    daemon.braid(&["snapshot", "create", &snapshot]);
    let socket = daemon.folder.join("all.nbd");
    daemon.braid(&["export", "add", &snapshot, "--name", "all", "--nbd", &format!("unix:{socket}")]);
    let mut client = Client::open(&socket, "all").expect("it is exported");
    assert_eq!(client.size_bytes, bytes);
    (0..bytes / MIB).map(|at| client.read(at * MIB, MIB as usize).expect("it is read")).collect()
}

pub const WHOLE: [&str; 3] = ["in_sync"; 3];

#[test]
fn a_volume_of_three_nodes_goes_on_without_one_and_takes_it_back() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    let made = cluster.create("one/tank,two/tank,three/tank", &[]);
    assert_eq!((&made["state"], &made["size_bytes"]), (&"serving".into(), &SIZE.into()), "{made}");
    assert_eq!(cluster.states(0), WHOLE);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    assert_eq!(client.size_bytes, SIZE);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    client.write(SIZE - MIB, &noise(MIB, 2)).expect("it is written up to its end");
    client.flush().expect("it is flushed");

    // Reads go to the replica on the serving node itself.
    let before = reads_of_replicas(&cluster.nodes[0]);
    for block in 0..32 {
        client.read(block * 4 * KIB, 4096).expect("it is read");
    }
    let after = reads_of_replicas(&cluster.nodes[0]);
    assert!(after[0] >= before[0] + 32 && after[1..] == before[1..], "{before:?} {after:?}");
    // The local replica is used without a connection, and counts as one.
    assert_eq!(cluster.nodes[0].json(&["replica", "show", "db"])["connections"], 1);

    // One node dies, and no request fails; the replica is resynced when the node is back.
    cluster.nodes[2].kill();
    client.write(8 * MIB, &noise(MIB, 3)).expect("the two others have it");
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    let measured = measures(&cluster.nodes[0]);
    for line in ["serving{volume=\"db\"} 1", "voters{volume=\"db\"} 3", "replicas_in_sync{volume=\"db\"} 2"] {
        assert!(measured.contains(&format!("braid_replicated_{line}.0\n")), "{line}: {measured}");
    }
    assert!(!measured.contains("braid_replicated_voters_reachable{volume=\"db\"} 3"), "{measured}");
    let lease =
        measured.lines().find_map(|line| line.strip_prefix("braid_replicated_lease_left_seconds{volume=\"db\"} "));
    let lease: f64 = lease.and_then(|lease| lease.parse().ok()).unwrap_or_else(|| panic!("{measured}"));
    assert!(lease > 0.0 && lease <= 5.0, "{lease}");
    let of_replica = measures(&cluster.nodes[1]);
    assert!(of_replica.contains("braid_replica_votes{replica=\"db\",volume=\""), "{of_replica}");
    assert!(!of_replica.contains("braid_replicated_serving{"), "another node serves it: {of_replica}");
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    let measured = measures(&cluster.nodes[0]);
    assert!(measured.contains("braid_replicated_rebuild_left_bytes{volume=\"db\",node=\"three\"} 0.0\n"), "{measured}");
    client.write(9 * MIB, &noise(MIB, 4)).expect("all three have it");
    client.flush().expect("it is flushed");
    let events = cluster.nodes[0].events();
    assert!(events.contains("member_dropped") && events.contains("member_in_sync"), "{events}");
    let connects = |node: &Daemon| node.running.log().contains("uses export replica:");
    assert!(!connects(&cluster.nodes[0]) && connects(&cluster.nodes[1]));

    // Each replica by itself has all data, and nothing else.
    drop(client);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for (at, seed) in [(0, 1), (63, 2), (8, 3), (9, 4)] {
        assert!(first[at] == noise(MIB, seed), "{at}");
    }
    assert!(first[20].iter().all(|byte| *byte == 0));
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs");
    }
    // The detached volume's local replica is closed some time later, without a command.
    cluster.nodes[0].json(&["volume", "attach", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    cluster.nodes[0].stop();
    let log = cluster.nodes[0].running.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn another_node_takes_a_volume_over_and_the_first_one_releases_it() {
    let mut cluster = Cluster::of(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    client.write_fua(MIB, &noise(MIB, 2)).expect("it is written");

    // Taken over from a live node: that node stops serving, and its clients are disconnected.
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    assert!(taken["epoch"].as_u64() >= Some(2), "{taken}");
    wait_for("the first one to let go", || {
        (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    assert!(client.read(0, 4096).is_err(), "its clients are cut off");
    cluster.nodes[1].export("db");
    let mut second = cluster.client(1);
    assert!(second.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    assert!(second.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    second.write_fua(2 * MIB, &noise(MIB, 3)).expect("it is written");
    // Another node cannot delete a volume that is being served.
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    let said = cluster.nodes[0].refused(4, &["volume", "delete", "db", "--yes"]);
    assert!(said.contains("served by another node"), "{said}");
    assert!(second.read(2 * MIB, MIB as usize).expect("it is read") == noise(MIB, 3));

    // Taken over from a dead node, which learns of it when it is back.
    cluster.wait_for_states(1, &WHOLE);
    cluster.nodes[1].kill();
    let taken = cluster.nodes[2].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    cluster.nodes[2].export("db");
    let mut third = cluster.client(2);
    assert!(third.read(2 * MIB, MIB as usize).expect("it is read") == noise(MIB, 3));
    third.write_fua(3 * MIB, &noise(MIB, 4)).expect("it is written");
    cluster.nodes[1].start_again();
    wait_for("the second one to find out", || {
        (cluster.nodes[1].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    cluster.wait_for_states(2, &WHOLE);
    assert!(third.read(3 * MIB, MIB as usize).expect("it is read") == noise(MIB, 4), "no other node wrote");
}

#[test]
fn a_volume_is_served_again_after_a_restart() {
    let mut cluster = Cluster::of(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    assert_eq!(cluster.states(0), ["in_sync", "in_sync", "witness"]);
    cluster.nodes[0].export("db");
    cluster.client(0).write_fua(0, &noise(MIB, 1)).expect("it is written");
    for kill in [false, true] {
        cluster.nodes[0].restart(kill);
        cluster.wait_for_states(0, &["in_sync", "in_sync", "witness"]);
        wait_for("it to be exported", || Client::open(&cluster.nodes[0].nbd_socket("db"), "db").ok());
        // After a clean stop all replicas are in sync and equal: nothing is copied.
        let events = cluster.nodes[0].events();
        let copied = events.contains("member_rebuilding") || events.contains("resyncing");
        assert!(kill || !copied, "{events}");
        assert!(cluster.client(0).read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    }
    // All nodes are upgraded one after the other, the serving one last: clients wait until the volume is served again.
    for node in [1, 2, 0] {
        cluster.nodes[node].braid(&["serve", "--upgrade"]);
        assert!(cluster.client(0).read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
        cluster.wait_for_states(0, &["in_sync", "in_sync", "witness"]);
    }
    let events = cluster.nodes[0].events();
    assert!(!events.contains("resyncing") && !events.contains("member_rebuilding"), "{events}");
    // With a witness either of the two replicas is enough.
    cluster.nodes[0].kill();
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    cluster.nodes[1].export("db");
    assert!(cluster.client(1).read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
}

#[test]
fn the_serving_node_of_two_goes_on_after_a_failed_takeover_by_the_other() {
    let mut cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &[]);
    cluster.nodes[0].export("db");
    cluster.client(0).write_fua(0, &noise(MIB, 1)).expect("it is written");
    // A quorum of two needs both: the node raises its own voter's epoch, and no more.
    cluster.nodes[0].kill();
    let said = cluster.nodes[1].refused_any(&["volume", "attach", "db"]);
    assert!(said.contains("one"), "{said}");
    let raised = cluster.nodes[1].json(&["replica", "show", "db"]);
    assert!(raised["register"]["epoch"].as_u64() > raised["register"]["vote"]["epoch"].as_u64(), "{raised}");
    // No other node can have attached the volume: the node that is back uses a higher epoch.
    cluster.nodes[0].start_again();
    cluster.wait_for_states(0, &["in_sync", "in_sync"]);
    wait_for("it to be exported", || Client::open(&cluster.nodes[0].nbd_socket("db"), "db").ok());
    assert!(cluster.client(0).read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    let events = cluster.nodes[0].events();
    assert!(!events.contains("volume_taken_over"), "{events}");
}

#[test]
fn impossible_requests_are_refused_and_leave_nothing() {
    let mut cluster = Cluster::of(&["one", "two"]);
    let one = &cluster.nodes[0];
    let create = |places: &str| one.refused(2, &["volume", "create", "db", "64M", "--replicas", places]);
    assert!(
        one.refused(2, &["volume", "create", "db", "64M", "--replicas", "one/tank", "--witness", "two"])
            .contains("no use to one replica")
    );
    assert!(create("one/tank,one/tank").contains("named twice"));
    assert!(
        one.refused(3, &["volume", "create", "db", "64M", "--replicas", "one/tank,nobody/tank"])
            .contains("no node nobody")
    );
    assert!(one.refused(2, &["volume", "create", "tank/db", "64M", "--replicas", "2"]).contains("without a pool"));
    assert!(one.refused(2, &["volume", "create", "db", "64M"]).contains("POOL/VOLUME"));
    assert!(one.refused(2, &["volume", "create", "db", "1000", "--replicas", "2"]).contains("no size"));
    // A pool that does not exist: what was created on other nodes is removed again.
    one.refused(3, &["volume", "create", "db", "64M", "--replicas", "one/tank,two/nothing"]);
    assert_eq!(one.json(&["volume", "list"])["replicated"], serde_json::json!([]));
    assert_eq!(one.json(&["replica", "list"])["replicas"], serde_json::json!([]));
    assert_eq!(one.json(&["volume", "list"])["volumes"], serde_json::json!([]));
    // A node that does not reply.
    cluster.nodes[1].kill();
    let one = &cluster.nodes[0];
    let said = one.refused(6, &["volume", "create", "db", "64M", "--replicas", "one/tank,two/tank"]);
    assert!(said.contains("two"), "{said}");
    assert_eq!(one.json(&["volume", "list"])["replicated"].as_array().map(Vec::len), Some(1), "what is left is named");
    cluster.nodes[1].start_again();
    let one = &cluster.nodes[0];
    one.braid(&["volume", "delete", "db", "--yes"]);
    assert_eq!(one.json(&["volume", "list"])["replicated"], serde_json::json!([]));

    // The array of the replicas cannot be changed by array commands, and the data of a replica cannot be used otherwise.
    cluster.create("2", &[]);
    let one = &cluster.nodes[0];
    assert!(one.refused(4, &["array", "stop", "db"]).contains("volume detach"));
    let uuid = one.json(&["volume", "show", "db"])["uuid"].as_str().expect("it has one").to_owned();
    for words in [
        &["resize", "db", "128M"][..],
        &["resize", &uuid, "128M"],
        &["rename", "db", "other"],
        &["flatten", "db"],
        &["set", "db", "--limit", "iops=100"],
    ] {
        let said = one.refused_any(&[&["volume"], words].concat());
        assert!(said.contains("is replicated"), "{words:?}: {said}");
    }
    one.export("db");
    assert!(one.refused(4, &["volume", "detach", "db"]).contains("exported"));
    assert!(one.refused(4, &["volume", "delete", "db", "--yes"]).contains("exported"));
    assert!(one.refused(4, &["volume", "create", "db", "64M", "--replicas", "2"]).contains("already"));
    one.braid(&["volume", "delete", "db", "--force", "--yes"]);
    for node in &cluster.nodes {
        assert_eq!(node.json(&["replica", "list"])["replicas"], serde_json::json!([]));
        assert_eq!(node.json(&["volume", "list"])["volumes"], serde_json::json!([]));
    }
}

#[test]
fn writes_while_replicas_die_are_readable_and_on_all_replicas() {
    let mut cluster = Cluster::of(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let uri = cluster.nodes[0].export("db");
    let mut fio = command("fio");
    fio.args([
        "--name=replicas",
        "--verify_state_save=0",
        "--ioengine=nbd",
        "--uri",
        &uri,
        "--rw=randwrite",
        "--bsrange=4k-64k",
        "--size=64M",
    ])
    .args(["--time_based", "--runtime=15", "--loops=1000", "--iodepth=16", "--fsync=64"])
    .args(["--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1", "--randseed=7"]);
    let mut fio = Running::start(&cluster.nodes[0].folder, "fio", &mut fio);
    let mut kills = 0;
    while fio.ended().is_none() {
        cluster.nodes[1 + kills % 2].kill();
        kills += 1;
        std::thread::sleep(std::time::Duration::from_millis(1500));
        cluster.nodes[1 + (kills - 1) % 2].start_again();
        cluster.wait_for_states(0, &WHOLE);
    }
    assert!(fio.wait().success() && kills > 1, "after {kills} kills: {}", fio.log());
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs after {kills} kills");
    }
}

#[test]
fn clients_that_reconnect_after_the_serving_node_died_only_waited() {
    let mut cluster = Cluster::of(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let uri = cluster.nodes[0].export("db");
    let socket = cluster.nodes[0].folder.join("kit.sock");
    // A client that reconnects and repeats its requests, as a kernel or a virtual machine would.
    let mut kit = command("nbdkit");
    kit.args(["-f", "-U", &socket, "--filter=retry", "nbd", &format!("uri={uri}")]);
    kit.args(["retries=60", "retry-delay=1", "retry-exponential=no"]);
    let kit = Running::start(&cluster.nodes[0].folder, "nbdkit", &mut kit);
    wait_for("nbdkit to listen", || std::path::Path::new(&socket).exists().then_some(()));
    let mut fio = command("fio");
    fio.args([
        "--name=waits",
        "--verify_state_save=0",
        "--ioengine=nbd",
        "--uri",
        &format!("nbd+unix:///?socket={socket}"),
        "--rw=randwrite",
    ])
    .args(["--bsrange=4k-64k", "--size=64M", "--time_based", "--runtime=16", "--loops=1000", "--iodepth=8"])
    .args(["--fsync=64", "--verify=crc32c", "--verify_backlog=128", "--verify_fatal=1", "--randseed=11"]);
    let mut fio = Running::start(&cluster.nodes[1].folder, "fio", &mut fio);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(fio.ended().is_none(), "{}", fio.log());
    cluster.nodes[0].restart(true);
    cluster.wait_for_states(0, &WHOLE);
    assert!(fio.wait().success(), "{}", fio.log());
    drop(kit);
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let first = content(&cluster.nodes[0]);
    for node in &cluster.nodes[1..] {
        assert!(content(node) == first, "a replica differs");
    }
}

/// Edits the state of a stopped node as if it had stopped while it created its replicated volume.
fn as_if_cut_off_while_making(daemon: &Daemon) {
    let mut changed = 0;
    for entry in std::fs::read_dir(daemon.folder.join("state")).expect("the state is a folder") {
        let path = entry.expect("it is there").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let Ok(mut state) = serde_json::from_str::<Value>(&text) else { continue };
        let Some(volumes) = state.get_mut("replicated").and_then(Value::as_array_mut) else { continue };
        for volume in volumes {
            volume["creating"] = true.into();
            changed += 1;
        }
        std::fs::write(&path, state.to_string()).expect("it can be written");
    }
    assert_eq!(changed, 1, "one volume is remembered");
}

#[test]
fn a_partly_created_volume_is_removed_unless_another_node_may_have_attached_it() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    // The creating node stops and another node attaches the volume; when the creator is back, no other node is up.
    cluster.nodes[0].stop();
    as_if_cut_off_while_making(&cluster.nodes[0]);
    cluster.nodes[1].json(&["volume", "attach", "db"]);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    cluster.nodes[0].start_again();
    wait_for("it to be said", || cluster.nodes[0].events().contains("is removed once").then_some(()));
    let there = cluster.nodes[0].json(&["replica", "list"]);
    assert_eq!(there["replicas"].as_array().map(Vec::len), Some(1), "nothing is removed on a guess: {there}");
    assert!(cluster.nodes[0].refused(1, &["volume", "attach", "db"]).contains("never created completely"));
    cluster.nodes[1].start_again();
    cluster.nodes[2].start_again();
    wait_for("it to be known whose it is", || {
        cluster.nodes[0].events().contains("another node has opened it since").then_some(())
    });
    cluster.wait_for_states(1, &["in_sync", "in_sync", "witness"]);

    // A volume that no other node has attached is removed.
    cluster.nodes[1].braid(&["volume", "detach", "db"]);
    cluster.nodes[0].json(&["volume", "attach", "db"]);
    cluster.nodes[0].stop();
    as_if_cut_off_while_making(&cluster.nodes[0]);
    cluster.nodes[0].start_again();
    wait_for("it to be removed", || cluster.nodes[0].events().contains("and was removed").then_some(()));
    for node in [0, 1, 2] {
        assert_eq!(cluster.nodes[node].json(&["replica", "list"])["replicas"], serde_json::json!([]));
    }
}

#[test]
fn a_removed_node_is_disconnected_and_other_nodes_go_on() {
    let cluster = Cluster::of(&["one", "two", "three"]);
    for (node, name) in [(1, "db"), (2, "other")] {
        cluster.nodes[node].json(&["volume", "create", name, "64M", "--replicas", "one/tank"]);
        cluster.nodes[node].export(name);
    }
    let mut client = cluster.client(1);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    let mut other = Client::open(&cluster.nodes[2].nbd_socket("other"), "other").expect("it is exported");
    cluster.nodes[0].braid(&["node", "remove", "two", "--yes"]);
    // Existing connections of the removed node are closed.
    wait_for("the removed one to be cut off", || {
        (cluster.nodes[0].json(&["replica", "show", "db"])["connections"] == 0).then_some(())
    });
    for at in 0..8 {
        other.write(at * MIB, &noise(MIB, at)).expect("another one comes again");
    }
    other.flush().expect("it is flushed");
    assert_eq!(cluster.nodes[2].json(&["volume", "show", "other"])["state"], "serving");
    assert_eq!(cluster.nodes[0].json(&["replica", "show", "db"])["connections"], 0);
}

#[test]
fn a_volume_with_one_replica_waits_for_it_and_loses_nothing() {
    let mut cluster = Cluster::plain(&["one", "two"]);
    cluster.create("two/tank", &[]);
    assert_eq!(cluster.states(0), ["in_sync"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(MIB, &noise(MIB, 1)).expect("it is written");
    cluster.nodes[1].kill();
    // Requests wait meanwhile, and complete for clients that reconnect once the replica is back.
    wait_for("it to be noticed", || {
        (cluster.nodes[0].json(&["volume", "show", "db"])["state"] != "serving").then_some(())
    });
    cluster.nodes[1].start_again();
    cluster.wait_for_states(0, &["in_sync"]);
    wait_for("it to be exported", || Client::open(&cluster.nodes[0].nbd_socket("db"), "db").ok());
    assert!(cluster.client(0).read(MIB, MIB as usize).expect("it is read") == noise(MIB, 1));
    // The node with the replica takes the volume over.
    cluster.nodes[0].kill();
    cluster.nodes[1].json(&["volume", "attach", "db"]);
    cluster.nodes[1].export("db");
    assert!(cluster.client(1).read(MIB, MIB as usize).expect("it is read") == noise(MIB, 1));
    cluster.client(1).write_fua(2 * MIB, &noise(MIB, 2)).expect("it is written");
}

/// The serving node has no replica: when one of the two replicas is silent, reads are served from the other, and no replica is dropped for that.
#[test]
fn without_a_local_replica_a_read_goes_to_a_replica_that_responds() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("two/tank,three/tank", &["--witness", "one"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    for silent in [1, 2, 1, 2] {
        let server = &cluster.nodes[silent].running;
        server.signal(rustix::process::Signal::STOP);
        // One read after the other: the replica that served the last read is tried first.
        let read: Vec<_> = (0..8).map(|at| client.read(at * 64 * KIB, 4096)).collect();
        server.signal(rustix::process::Signal::CONT);
        for (at, read) in read.into_iter().enumerate() {
            assert!(read.expect("it is read")[..] == noise(MIB, 1)[at * 64 * 1024..][..4096]);
        }
    }
    let states = cluster.states(0);
    assert_eq!(states[..2], ["in_sync"; 2], "{states:?}");
    assert!(!cluster.nodes[0].events().contains("member_dropped"), "{}", cluster.nodes[0].events());
}
