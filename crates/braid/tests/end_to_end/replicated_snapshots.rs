//! Snapshots of replicated volumes: of one moment, under one name, on all replicas, whichever node dies meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::api;
use crate::nbd::{Client, WRITE};
use crate::replicated::{Cluster, WHOLE};
use crate::support::*;

/// Number of blocks that each writer rewrites again and again.
const BLOCKS: u64 = 512;
const BLOCK: u64 = 4096;

/// Writers that count: they write the value *n* to block *n* mod [`BLOCKS`] of their own MiB once the one before is acknowledged.
struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(cluster: &Cluster, count: u64) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let write = |writer: u64| {
            let (stop, last) = (Arc::clone(&stop), Arc::clone(&acknowledged[writer as usize]));
            let mut client = cluster.client(0);
            thread::spawn(move || {
                for value in 1u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let block: Vec<u8> = value.to_le_bytes().repeat(BLOCK as usize / 8);
                    let at = (writer * BLOCKS + value % BLOCKS) * BLOCK;
                    client.write(at, &block).expect("it is written");
                    last.store(value, Ordering::SeqCst);
                }
            })
        };
        let threads = (0..count).map(write).collect();
        Writers { stop, acknowledged, threads }
    }

    fn now(&self) -> Vec<u64> {
        self.acknowledged.iter().map(|last| last.load(Ordering::SeqCst)).collect()
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("nothing failed"));
    }
}

/// Returns the last value of each writer in a snapshot, and checks that no earlier write is missing and no later one is there.
fn written(content: &[u8], writers: usize) -> Vec<u64> {
    let of = |writer: usize| {
        let value = |block: u64| {
            let at = ((writer as u64 * BLOCKS + block) * BLOCK) as usize;
            let whole = &content[at..at + BLOCK as usize];
            assert!(whole.chunks(8).all(|part| part == &whole[..8]), "half a block was written");
            u64::from_le_bytes(whole[..8].try_into().expect("eight bytes"))
        };
        let values: Vec<u64> = (0..BLOCKS).map(value).collect();
        let last = values.iter().copied().max().unwrap_or(0);
        for (block, value) in (0u64..).zip(values) {
            let behind = (last + BLOCKS - block) % BLOCKS;
            assert_eq!(value, last.saturating_sub(behind), "block {block} of writer {writer}, whose last was {last}");
        }
        last
    };
    (0..writers).map(of).collect()
}

/// Returns the content of a snapshot, as a node's replica has it.
pub fn content(daemon: &Daemon, own: &str) -> Vec<u8> {
    content_in(daemon, "tank", own)
}

/// The same for a replica in another pool.
pub fn content_in(daemon: &Daemon, pool: &str, own: &str) -> Vec<u8> {
    let socket = daemon.folder.join(&format!("{own}.nbd"));
    daemon.braid(&["export", "add", &format!("{pool}/db@{own}"), "--name", own, "--nbd", &format!("unix:{socket}")]);
    let mut client = Client::open(&socket, own).expect("it is exported");
    let whole = (0..client.size_bytes / MIB).flat_map(|at| client.read(at * MIB, MIB as usize).expect("it is read"));
    let whole = whole.collect();
    drop(client);
    daemon.braid(&["export", "remove", own]);
    whole
}

/// Returns the identities and names of the snapshots of a node's replica; without a name one is pending.
pub fn on_node(daemon: &Daemon) -> Vec<(String, Option<String>)> {
    let (status, answer) = api::ask(daemon, "GET", "/v1/replicas/db/snapshots", "");
    assert_eq!(status, 200, "{answer}");
    let list: Value = serde_json::from_str(&answer).expect("it is JSON");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let of = |one: &Value| (text(&one["uuid"]).expect("it has one"), text(&one["name"]));
    list["snapshots"].as_array().expect("a list").iter().map(of).collect()
}

fn names(list: &Value) -> Vec<String> {
    let names = list["snapshots"].as_array().expect("a list").iter();
    names.map(|one| one["name"].as_str().expect("it has one").to_owned()).collect()
}

#[test]
fn a_snapshot_is_of_one_moment_on_all_replicas_while_clients_write() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let writers = Writers::start(&cluster, 4);
    let mut moments = Vec::new();
    for number in 0..6 {
        thread::sleep(Duration::from_millis(300));
        let before = writers.now();
        let taken = cluster.nodes[0].json(&["snapshot", "create", &format!("db@s{number}")]);
        let after = writers.now();
        let one = &taken["snapshots"][0];
        assert_eq!((&one["name"], &one["volume"]), (&format!("db@s{number}").into(), &"db".into()), "{taken}");
        assert!(
            one["replicas"].as_array().expect("a list").iter().all(|replica| replica["has_snapshot"] == true),
            "{taken}"
        );
        moments.push((before, after));
    }
    thread::sleep(Duration::from_millis(300));
    let end = writers.now();
    writers.end();
    assert!(end.iter().zip(&moments[5].1).all(|(end, last)| end > last), "they have gone on");
    for (number, (before, after)) in moments.iter().enumerate() {
        let own = format!("s{number}");
        let first = content(&cluster.nodes[0], &own);
        for node in &cluster.nodes[1..] {
            assert!(content(node, &own) == first, "{own} differs");
        }
        let last = written(&first, 4);
        for writer in 0..4 {
            let (from, to) = (before[writer], after[writer] + 1);
            assert!((from..=to).contains(&last[writer]), "{own}: {} is not of {from} to {to}", last[writer]);
        }
    }
    let shown = cluster.nodes[0].json(&["volume", "show", "db"]);
    assert_eq!((&shown["snapshots"], &shown["voters"][1]["state"]), (&6.into(), &"in_sync".into()), "{shown}");
}

#[test]
fn snapshots_are_named_and_deleted_on_all_replicas() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    let one = &cluster.nodes[0];
    one.braid(&["snapshot", "create", "db@monday"]);
    assert!(one.refused(4, &["snapshot", "create", "db@monday"]).contains("already"));
    assert!(one.refused(2, &["snapshot", "create", "db@a", "db@b"]).contains("one command after the other"));
    one.refused(3, &["snapshot", "create", "nothing@a"]);
    one.refused(3, &["snapshot", "show", "db@nothing"]);
    one.refused(3, &["snapshot", "delete", "db@nothing", "--yes"]);
    // A snapshot with the name exists on one node, taken by its user.
    cluster.nodes[1].braid(&["snapshot", "create", "tank/db@own"]);
    let said = one.refused(4, &["snapshot", "create", "db@own"]);
    assert!(said.contains("two/tank") && said.contains("tank/db@own"), "{said}");
    assert_eq!(names(&one.json(&["snapshot", "list", "db"])), ["db@monday"]);
    let said = one.refused(4, &["snapshot", "rename", "db@monday", "own"]);
    assert!(said.contains("two/tank"), "{said}");
    assert_eq!(names(&one.json(&["snapshot", "list", "db"])), ["db@monday"]);
    one.braid(&["snapshot", "rename", "db@monday", "db@tuesday"]);
    one.braid(&["snapshot", "create", "db@wednesday"]);
    assert_eq!(names(&one.json(&["snapshot", "list", "db"])), ["db@tuesday", "db@wednesday"]);
    let shown = one.json(&["snapshot", "show", "db@tuesday"]);
    assert_eq!(one.json(&["snapshot", "show", &format!("db@{}", shown["uuid"].as_str().expect("one"))]), shown);
    for node in &cluster.nodes[..2] {
        let named = on_node(node).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(named, [Some("tuesday".to_owned()), Some("wednesday".to_owned())]);
        assert!(node.refused(4, &["snapshot", "delete", "tank/db@tuesday", "--yes"]).contains("snapshot list db"));
    }

    // A reader of the snapshot on one node blocks its deletion on all.
    let two = &cluster.nodes[1];
    let socket = two.folder.join("tuesday.nbd");
    two.braid(&["export", "add", "tank/db@tuesday", "--name", "tuesday", "--nbd", &format!("unix:{socket}")]);
    let said = one.refused(4, &["snapshot", "delete", "db@tuesday", "--yes"]);
    assert!(said.contains("two/tank") && said.contains("exported"), "{said}");
    assert_eq!(names(&one.json(&["snapshot", "list", "db"])), ["db@tuesday", "db@wednesday"]);
    two.braid(&["export", "remove", "tuesday"]);
    one.braid(&["snapshot", "delete", "db@tuesday", "--yes"]);
    let said = one.refused(4, &["volume", "delete", "db", "--yes"]);
    assert!(said.contains("has snapshots"), "{said}");

    // Another node serves the volume: every node lists the snapshots, and only that node changes them.
    two.refused(3, &["snapshot", "list", "db"]);
    two.braid(&["volume", "attach", "db"]);
    wait_for("the first one to let go", || (one.json(&["volume", "show", "db"])["state"] == "detached").then_some(()));
    assert_eq!(names(&two.json(&["snapshot", "list", "db"])), ["db@wednesday"]);
    assert_eq!(names(&one.json(&["snapshot", "list", "db"])), ["db@wednesday"], "who does not serve it may look");
    let said = one.refused(1, &["snapshot", "delete", "db@wednesday", "--yes"]);
    assert!(said.contains("not served by this node"), "{said}");
    two.braid(&["snapshot", "delete", "tank/db@own", "--yes"]);
    two.braid(&["snapshot", "delete", "db@wednesday", "--yes"]);
    assert_eq!(two.json(&["volume", "show", "db"])["snapshots"], 0);
    two.braid(&["volume", "delete", "db", "--yes"]);

    // Snapshots that a replica lacks are reported, and a deletion that it missed is repeated there.
    cluster.nodes[0].braid(&["volume", "list"]);
    let _ = cluster.nodes[0].any(&["volume", "delete", "db", "--yes", "--force"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].braid(&["snapshot", "create", "db@before"]);
    // No request was sent to the replica since: its absence is noticed now.
    cluster.nodes[2].kill();
    cluster.nodes[0].braid(&["snapshot", "delete", "db@before", "--yes"]);
    assert_eq!(cluster.states(0), ["in_sync", "in_sync", "failed"]);
    cluster.nodes[0].braid(&["snapshot", "create", "db@meanwhile"]);
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    assert!(on_node(&cluster.nodes[2]).iter().all(|(_, name)| name.as_deref() != Some("before")));
    assert_eq!(names(&cluster.nodes[0].json(&["snapshot", "list", "db"])), ["db@meanwhile"]);
    cluster.nodes[0].braid(&["snapshot", "delete", "db@meanwhile", "--yes"]);
    for node in &cluster.nodes {
        assert_eq!(on_node(node), []);
    }
}

#[test]
fn after_any_crash_a_snapshot_is_on_all_replicas_or_on_none() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let (mut kept, mut gone): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for round in 0..10u64 {
        let own = format!("r{round}");
        let delete = kept.first().cloned().filter(|_| round % 2 == 1);
        // The serving node dies while it takes or deletes a snapshot.
        let verb = match &delete {
            Some(old) => vec!["snapshot".to_owned(), "delete".into(), format!("db@{old}"), "--yes".into()],
            None => vec!["snapshot".to_owned(), "create".into(), format!("db@{own}")],
        };
        let arguments: Vec<&str> = verb.iter().map(String::as_str).collect();
        let mut child = cluster.nodes[0].command(&arguments).spawn().expect("it runs");
        thread::sleep(Duration::from_millis(round * 17 % 90));
        cluster.nodes[0].restart(true);
        let done = child.wait().expect("it ends").success();
        cluster.wait_for_states(0, &WHOLE);
        let listed = names(&cluster.nodes[0].json(&["snapshot", "list", "db"]));
        let there = |own: &str| listed.contains(&format!("db@{own}"));
        match delete {
            Some(old) if done || !there(&old) => {
                assert!(!there(&old), "{old} was deleted: {listed:?}");
                kept.retain(|own| *own != old);
                gone.push(old);
            }
            Some(_) => {}
            None => {
                assert!(!done || there(&own), "{own} was taken: {listed:?}");
                if there(&own) {
                    kept.push(own);
                }
            }
        }
        assert!(
            kept.iter().all(|own| there(own)) && !gone.iter().any(|own| there(own)),
            "{kept:?} {gone:?} {listed:?}"
        );
        let first = on_node(&cluster.nodes[0]);
        assert!(first.iter().all(|(_, name)| name.is_some()), "one is left pending: {first:?}");
        for node in &cluster.nodes[1..] {
            assert_eq!(on_node(node), first, "round {round}");
        }
    }
    // A replica's node dies in the middle: the snapshot is on the others, or on none.
    for round in 0..3u64 {
        let own = format!("x{round}");
        let mut child =
            cluster.nodes[0].command(&["snapshot", "create", &format!("db@{own}")]).spawn().expect("it runs");
        thread::sleep(Duration::from_millis(round * 20));
        cluster.nodes[2].kill();
        let done = child.wait().expect("it ends").success();
        cluster.nodes[2].start_again();
        cluster.wait_for_states(0, &WHOLE);
        let listed = names(&cluster.nodes[0].json(&["snapshot", "list", "db"]));
        assert!(!done || listed.contains(&format!("db@{own}")), "{own} was taken: {listed:?}");
        wait_for("nothing to be pending", || {
            cluster.nodes.iter().all(|node| on_node(node).iter().all(|(_, name)| name.is_some())).then_some(())
        });
        assert_eq!(on_node(&cluster.nodes[0]), on_node(&cluster.nodes[1]));
    }
}

/// No client writes, so that only the snapshot connects to the replica again.
#[test]
fn a_replica_whose_daemon_restarted_takes_snapshots_of_an_idle_volume() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    for round in 0..3 {
        cluster.nodes[2].restart(true);
        wait_for("the snapshot to be taken", || {
            let mut child = cluster.nodes[0].command(&["snapshot", "create", &format!("db@r{round}")]);
            child.status().expect("it runs").success().then_some(())
        });
        cluster.wait_for_states(0, &WHOLE);
        wait_for("all to have it", || {
            let on = cluster.nodes.iter().map(on_node).collect::<Vec<_>>();
            let is_whole = on[0].len() == round + 1 && on[0].iter().all(|(_, name)| name.is_some());
            (is_whole && on.iter().all(|one| *one == on[0])).then_some(())
        });
    }
}

#[test]
fn a_clone_starts_as_the_snapshot_on_the_same_nodes() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    client.write(40 * MIB, &noise(MIB, 2)).expect("it is written");
    cluster.nodes[0].braid(&["snapshot", "create", "db@monday"]);
    client.write(0, &noise(MIB, 3)).expect("it is written");
    let one = &cluster.nodes[0];
    one.refused(3, &["volume", "clone", "db@nothing", "trial"]);
    one.refused(4, &["volume", "clone", "db@monday", "db"]);
    let made = one.json(&["volume", "clone", "db@monday", "trial"]);
    let states: Vec<&Value> = made["voters"].as_array().expect("voters").iter().map(|voter| &voter["state"]).collect();
    assert_eq!(
        (&made["state"], &made["size_bytes"], states),
        (&"serving".into(), &(64 * MIB).into(), vec![&Value::from("in_sync"), &"in_sync".into(), &"witness".into()])
    );
    // The snapshot may be deleted.
    one.braid(&["snapshot", "delete", "db@monday", "--yes"]);
    let export = |cluster: &Cluster| {
        cluster.nodes[0].export("trial");
        Client::open(&cluster.nodes[0].nbd_socket("trial"), "trial").expect("it is exported")
    };
    let mut trial = export(&cluster);
    let check = |trial: &mut Client, first: u64| {
        for (at, seed) in [(0, first), (40 * MIB, 2)] {
            assert!(trial.read(at, MIB as usize).expect("it is read") == noise(MIB, seed), "{at}");
        }
        assert!(trial.read(20 * MIB, MIB as usize).expect("it is read").iter().all(|byte| *byte == 0));
    };
    check(&mut trial, 1);
    // Part of a region is written: the rest of it stays.
    trial.write(40 * MIB + 2 * MIB, &noise(MIB, 4)).expect("it is written");
    trial.write(0, &noise(MIB, 5)).expect("it is written");
    check(&mut trial, 5);
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 3), "the other volume goes on");

    // A full rebuild of a replica also copies the data of the snapshot that the clone did not write.
    cluster.nodes[1].kill();
    trial.write(8 * MIB, &noise(MIB, 6)).expect("the other one has it");
    cluster.nodes[1].start_again();
    wait_for("it to be back", || {
        let shown = cluster.nodes[0].json(&["volume", "show", "trial"]);
        (shown["voters"][1]["state"] == "in_sync").then_some(())
    });
    drop(trial);
    cluster.nodes[0].restart(false);
    wait_for("it to be served", || {
        (cluster.nodes[0].json(&["volume", "show", "trial"])["state"] == "serving").then_some(())
    });
    let mut trial = wait_for("it to be exported", || Client::open(&cluster.nodes[0].nbd_socket("trial"), "trial").ok());
    check(&mut trial, 5);
    drop(trial);
    cluster.nodes[0].braid(&["export", "remove", "trial"]);
    cluster.nodes[0].braid(&["volume", "detach", "trial"]);
    let of = |node: &Daemon| {
        node.braid(&["snapshot", "create", "tank/trial@all"]);
        let socket = node.folder.join("all.nbd");
        node.braid(&["export", "add", "tank/trial@all", "--name", "all", "--nbd", &format!("unix:{socket}")]);
        let mut client = Client::open(&socket, "all").expect("it is exported");
        (0..64).map(|at| client.read(at * MIB, MIB as usize).expect("it is read")).collect::<Vec<_>>()
    };
    assert!(of(&cluster.nodes[0]) == of(&cluster.nodes[1]), "a replica differs");
}

#[test]
fn a_rollback_applies_to_all_replicas_and_discarded_data_do_not_return() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    let write = |cluster: &Cluster, seed: u64| {
        cluster.nodes[0].export("db");
        let mut client = cluster.client(0);
        for at in [0, 8, 40] {
            client.write(at * MIB, &noise(MIB, seed + at)).expect("it is written");
        }
        client.flush().expect("it is flushed");
        drop(client);
        cluster.nodes[0].braid(&["export", "remove", "db"]);
    };
    write(&cluster, 1000);
    cluster.nodes[0].braid(&["snapshot", "create", "db@monday"]);
    write(&cluster, 2000);
    cluster.nodes[0].braid(&["snapshot", "create", "db@tuesday"]);
    write(&cluster, 3000);
    let rollback = |cluster: &Cluster, to: &str| cluster.nodes[0].any(&["volume", "rollback", "db", to, "--yes"]);
    cluster.nodes[0].export("db");
    assert_eq!(rollback(&cluster, "db@monday").status.code(), Some(4), "it is exported");
    cluster.nodes[0].braid(&["export", "remove", "db"]);
    assert_eq!(rollback(&cluster, "@nothing").status.code(), Some(3));
    cluster.nodes[0].refused(4, &["volume", "rollback", "tank/db", "tank/db@monday", "--yes"]);

    // Each replica by itself has the content of the snapshot, once all are back.
    let check = |cluster: &Cluster, own: &str, seed: u64| {
        cluster.wait_for_states(0, &WHOLE);
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]);
        let first = content(&cluster.nodes[0], own);
        for at in [0, 8, 40] {
            let from = (at * MIB) as usize;
            assert!(first[from..from + MIB as usize] == noise(MIB, seed + at), "{own} at {at}");
        }
        for node in &cluster.nodes[1..] {
            assert!(content(node, own) == first, "{own} differs");
        }
    };
    cluster.nodes[0].braid(&["volume", "rollback", "db", "db@monday", "--yes"]);
    check(&cluster, "a", 1000);
    // Forward again, to a later snapshot.
    cluster.nodes[0].braid(&["volume", "rollback", "db", "@tuesday", "--yes"]);
    check(&cluster, "b", 2000);
    write(&cluster, 4000);
    assert_eq!(names(&cluster.nodes[0].json(&["snapshot", "list", "db"])), ["db@monday", "db@tuesday", "db@a", "db@b"]);

    // The serving node dies in the middle: all replicas have the content before, or that of the snapshot.
    for round in 0..4u64 {
        write(&cluster, 4000);
        let child = cluster.nodes[0].command(&["volume", "rollback", "db", "db@monday", "--yes"]).spawn();
        let mut child = child.expect("it runs");
        thread::sleep(Duration::from_millis(12 + round * 18));
        cluster.nodes[0].restart(true);
        let done = child.wait().expect("it ends").success();
        cluster.wait_for_states(0, &WHOLE);
        let own = format!("k{round}");
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]);
        let is_back = content(&cluster.nodes[0], &own)[..MIB as usize] == noise(MIB, 1000);
        assert!(!done || is_back);
        check(&cluster, &format!("c{round}"), if is_back { 1000 } else { 4000 });
    }
}

#[test]
fn a_snapshot_after_a_crash_waits_until_the_replicas_are_equal() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    for round in 0..3u64 {
        let mut client = wait_for("it to be exported", || Client::open(&cluster.nodes[0].nbd_socket("db"), "db").ok());
        // Many writes in flight, some of which have reached some of the replicas.
        for at in 0..48 {
            client.send(0, WRITE, at * MIB, MIB as u32, &noise(MIB, 100 * round + at)).expect("it is sent");
        }
        cluster.nodes[0].restart(true);
        drop(client);
        wait_for("it to be served", || {
            (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "serving").then_some(())
        });
        let own = format!("s{round}");
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@{own}")]);
        let shown = cluster.nodes[0].json(&["snapshot", "show", &format!("db@{own}")]);
        let replicas = shown["replicas"].as_array().expect("a list").clone();
        let having: Vec<&Daemon> = cluster
            .nodes
            .iter()
            .zip(&replicas)
            .filter(|(_, replica)| replica["has_snapshot"] == true)
            .map(|(node, _)| node)
            .collect();
        assert!(having.len() > 1, "{shown}");
        let first = content(having[0], &own);
        for node in &having[1..] {
            assert!(content(node, &own) == first, "{own} differs");
        }
    }
}

#[test]
fn a_hanging_replica_delays_clients_for_seconds_and_leaves_no_pending_snapshot() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let writers = Writers::start(&cluster, 2);
    cluster.nodes[2].running.signal(Signal::STOP);
    let first = cluster.nodes[0].any(&["snapshot", "create", "db@first"]);
    // The snapshot was taken without the hanging replica, or not at all.
    let before = writers.now();
    wait_for("the writers to go on", || {
        writers.now().iter().zip(&before).all(|(now, before)| now > before).then_some(())
    });
    cluster.nodes[2].running.signal(Signal::CONT);
    cluster.wait_for_states(0, &WHOLE);
    cluster.nodes[0].braid(&["snapshot", "create", "db@second"]);
    writers.end();
    let expected: &[&str] = if first.status.success() { &["db@first", "db@second"] } else { &["db@second"] };
    assert_eq!(names(&cluster.nodes[0].json(&["snapshot", "list", "db"])), expected);
    wait_for("nothing to be pending", || {
        cluster.nodes.iter().all(|node| on_node(node).iter().all(|(_, name)| name.is_some())).then_some(())
    });
    let content_of_first = content(&cluster.nodes[0], "second");
    written(&content_of_first, 2);
    for node in &cluster.nodes[1..] {
        assert!(content(node, "second") == content_of_first, "a replica differs");
    }
}
