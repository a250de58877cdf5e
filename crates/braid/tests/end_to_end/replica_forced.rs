//! Volumes of several nodes that too few voters are left of: opened by force.

use rustix::process::Signal;
use serde_json::Value;

use crate::api;
use crate::replica_seats::{nodes_of, the_same_everywhere};
use crate::replicated::{Cluster, WHOLE};
use crate::support::*;

/// What is said of the volume on a node until this is among it.
fn wait_for_attention(daemon: &Daemon, what: &str) -> Value {
    wait_for(what, || {
        let shown = daemon.json(&["volume", "show", "db"]);
        let said = shown["attention"].as_array().expect("a list").iter().any(|said| said.to_string().contains(what));
        said.then_some(shown)
    })
}

fn detached(daemon: &Daemon) {
    daemon.braid(&["export", "remove", "db"]);
    daemon.braid(&["volume", "detach", "db"]);
}

#[test]
fn one_of_two_is_opened_by_force_and_the_other_is_out_until_it_is_taken_in_anew() {
    let mut cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    client.write(MIB, &noise(MIB, 2)).expect("it is acknowledged");
    let said = cluster.nodes[1].refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("another controller"), "{said}");
    cluster.nodes[0].kill();

    // Nobody is asked where there is no terminal; what may be lost is said all the same.
    let two = &cluster.nodes[1];
    let said = two.refused(4, &["volume", "attach", "db", "--force"]);
    for part in ["served from two/tank, in sync", "are given up: one/tank", "there are two of it", "--yes"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Nor is it opened without others than those that were named.
    let (status, answer) = api::ask(two, "POST", "/v1/replicated/db/attach?force=true&without=two", "");
    assert!(status == 409 && answer.contains("needs_confirmation"), "{answer}");
    let begun = std::time::Instant::now();
    let taken = two.json(&["volume", "attach", "db", "--force", "--yes"]);
    assert!(begun.elapsed() > std::time::Duration::from_millis(5500), "the lease of the other one was not waited for");
    assert_eq!((&taken["state"], nodes_of(&taken)), (&"serving".into(), vec!["two".to_owned()]), "{taken}");
    assert!(taken["epoch"].as_u64() > Some(1 << 32), "{taken}");
    two.export("db");
    let mut client = cluster.client(1);
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    assert!(client.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    client.write_fua(2 * MIB, &noise(MIB, 3)).expect("it is written");
    wait_for_attention(two, "one/tank was left out by force, and does not answer");
    // It is the same after a restart, by votes.
    drop(client);
    cluster.nodes[1].restart(true);
    wait_for("it to be exported", || crate::nbd::Client::open(&cluster.nodes[1].nbd_socket("db"), "db").ok());

    // The dead one is back: it serves nothing, and learns that it is out.
    cluster.nodes[0].start_again();
    let (one, two) = (&cluster.nodes[0], &cluster.nodes[1]);
    wait_for("the first one to find out", || {
        (one.json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    wait_for_attention(two, "one/tank was left out by force, and is out");
    let kept = one.json(&["replica", "show", "db"]);
    let seating = &kept["register"]["vote"]["seating"];
    assert_eq!((&kept["voter"], &seating["voters"]), (&0.into(), &0b10.into()), "{kept}");
    assert!(one.braid(&["replica", "show", "db"]).contains("votes no more"));
    assert!(one.braid(&["status"]).contains("opened by force without it"), "{}", one.braid(&["status"]));
    let mut client = cluster.client(1);
    assert!(client.read(2 * MIB, MIB as usize).expect("it is read") == noise(MIB, 3));
    client.write_fua(3 * MIB, &noise(MIB, 4)).expect("it is written");
    // What it has is not lost by a command that does not say so.
    let said = two.refused(4, &["replica", "add", "db", "one/tank"]);
    assert!(said.contains("braid replica rebuild db one"), "{said}");
    let said = two.refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("served by this node"), "{said}");
    two.braid(&["replica", "rebuild", "db", "one", "--yes"]);
    cluster.wait_for_states(1, &WHOLE[..2]);
    drop(client);
    detached(two);
    let now = the_same_everywhere(&cluster, &[0, 1]);
    for (at, seed) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert!(now[at] == noise(MIB, seed), "{at}");
    }
    // Two who vote, as before.
    one.json(&["volume", "attach", "db"]);
    cluster.wait_for_states(0, &WHOLE[..2]);
}

#[test]
fn one_of_three_that_serves_goes_on_by_force_and_the_others_come_back_as_new_ones() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    drop(client);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let one = &cluster.nodes[0];
    wait_for("the lease to have run out", || {
        let (_, measured) = api::ask(one, "GET", "/metrics", "");
        measured.contains("braid_replicated_lease_left_seconds{volume=\"db\"} 0.0\n").then_some(())
    });
    let taken = one.json(&["volume", "attach", "db", "--force", "--yes"]);
    assert_eq!((&taken["state"], nodes_of(&taken)), (&"serving".into(), vec!["one".to_owned()]), "{taken}");
    wait_for("it to be exported", || crate::nbd::Client::open(&one.nbd_socket("db"), "db").ok());
    let mut client = cluster.client(0);
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    client.write_fua(MIB, &noise(MIB, 2)).expect("it is written");

    // Both are back, and would have been enough.
    for node in [1, 2] {
        cluster.nodes[node].start_again();
    }
    let one = &cluster.nodes[0];
    wait_for_attention(one, "two/tank was left out by force, and is out");
    wait_for_attention(one, "three/tank was left out by force, and is out");
    assert_eq!(cluster.states(0), ["in_sync"]);
    // One is deleted by hand and added, the other one is forgotten.
    cluster.nodes[1].refused(4, &["replica", "delete", "db", "--yes"]);
    cluster.nodes[1].braid(&["replica", "delete", "db", "--force", "--yes"]);
    one.braid(&["replica", "add", "db", "two/tank"]);
    one.braid(&["replica", "remove", "db", "three", "--yes"]);
    assert!(cluster.nodes[2].json(&["replica", "list"])["replicas"].as_array().expect("a list").is_empty());
    cluster.wait_for_states(0, &WHOLE[..2]);
    assert_eq!(one.json(&["volume", "show", "db"])["attention"], serde_json::json!([]));
    one.braid(&["replica", "add", "db", "three/tank"]);
    cluster.wait_for_states(0, &WHOLE);
    drop(client);
    detached(one);
    let now = the_same_everywhere(&cluster, &[0, 1, 2]);
    assert!(now[0] == noise(MIB, 1) && now[1] == noise(MIB, 2));
}

#[test]
fn a_replica_that_was_left_out_is_better_than_none() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    cluster.nodes[1].kill();
    client.write_fua(MIB, &noise(MIB, 2)).expect("it is written");
    cluster.wait_for_states(0, &["in_sync", "out", "witness"]);
    drop(client);
    cluster.nodes[0].kill();
    // A witness has nothing to serve.
    let said = cluster.nodes[2].refused(1, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("three answer, and one of those"), "{said}");
    cluster.nodes[1].start_again();
    let two = &cluster.nodes[1];
    // Two of three votes, and what counts by them is lost.
    let said = two.refused(4, &["volume", "attach", "db", "--force"]);
    assert!(said.contains("not in sync by the newest vote") && said.contains("one/tank"), "{said}");
    let taken = two.json(&["volume", "attach", "db", "--force", "--yes"]);
    assert_eq!(nodes_of(&taken), ["two", "three"], "{taken}");
    two.export("db");
    let mut client = cluster.client(1);
    assert!(client.read(0, MIB as usize).expect("it is read") == noise(MIB, 1));
    assert!(client.read(MIB, MIB as usize).expect("it is read") == vec![0; MIB as usize], "that was said to be lost");
}

#[test]
fn nothing_is_forced_where_votes_allow_it_or_another_controller_is_alive() {
    let mut cluster = Cluster::plain(&["one", "two", "three", "four"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let said = cluster.nodes[0].refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("nothing needs to be forced"), "{said}");
    assert!(cluster.nodes[0].refused(3, &["volume", "attach", "nothing", "--force", "--yes"]).contains("nothing"));
    cluster.nodes[0].refused(2, &["volume", "attach", "db", "--yes"]);
    // A node without a replica serves it, and has only one voter left: it answers nobody, and may do so again at any time.
    cluster.nodes[3].json(&["volume", "attach", "db"]);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let said = cluster.nodes[0].refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("one/tank has heard") && said.contains("another controller"), "{said}");
    // Nothing has changed for it.
    cluster.nodes[1].start_again();
    wait_for("it to have enough voters again", || {
        (cluster.nodes[3].json(&["volume", "show", "db"])["voters"][1]["answers"] == true).then_some(())
    });
    assert_eq!(cluster.nodes[3].json(&["volume", "show", "db"])["state"], "serving");
}

#[test]
fn there_are_two_of_a_volume_whose_controller_was_only_cut_off_and_both_say_so() {
    let cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &[]);
    let (one, two) = (&cluster.nodes[0], &cluster.nodes[1]);
    one.export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    one.running.signal(Signal::STOP);
    let taken = two.json(&["volume", "attach", "db", "--force", "--yes"]);
    assert_eq!(taken["state"], "serving", "{taken}");
    two.export("db");
    let mut other = cluster.client(1);
    other.write_fua(MIB, &noise(MIB, 2)).expect("it is written");
    // Of two voters one is enough to go on: its own.
    one.running.signal(Signal::CONT);
    client.write_fua(MIB, &noise(MIB, 3)).expect("it is written by the other one alone");
    wait_for_attention(two, "there are two of this volume");
    assert!(client.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 3));
    assert!(other.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    // Neither is believed by a voter of the other one. Once one of the two ends, its voter hears of the other.
    drop(client);
    detached(one);
    wait_for_attention(two, "one/tank was left out by force, and is out");
    assert!(other.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    // What it had is there still, and in nobody's way: read on its node, if it is wanted.
    assert!(crate::replicated::content(one)[1] == noise(MIB, 3));
    // Whoever attaches it from now on gets the forced one, there as well.
    drop(other);
    detached(two);
    let taken = one.json(&["volume", "attach", "db"]);
    assert_eq!(nodes_of(&taken), ["two"], "{taken}");
    one.export("db");
    assert!(cluster.client(0).read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
}
