//! Replicated volumes without a quorum of voters are attached by force.

use rustix::process::Signal;
use serde_json::Value;

use crate::api;
use crate::replica_membership::{nodes_of, the_same_everywhere};
use crate::replicated::{Cluster, WHOLE};
use crate::support::*;

/// Waits until a node's attention list for the volume contains this text.
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
fn one_of_two_replicas_is_attached_by_force_and_the_other_stays_out_until_it_is_rebuilt() {
    let mut cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    client.write(MIB, &noise(MIB, 2)).expect("it is acknowledged");
    let said = cluster.nodes[1].refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("another controller"), "{said}");
    cluster.nodes[0].kill();

    // Without a terminal there is no prompt; the refusal still lists what may be lost.
    let two = &cluster.nodes[1];
    let said = two.refused(4, &["volume", "attach", "db", "--force"]);
    for part in ["served from two/tank, in sync", "are given up: one/tank", "split brain", "--yes"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The request is refused if it would give up other voters than those that were named.
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
    wait_for_attention(two, "one/tank was excluded by a forced attach, and does not reply");
    // The same holds after a restart, with a normal vote.
    drop(client);
    cluster.nodes[1].restart(true);
    wait_for("it to be exported", || crate::nbd::Client::open(&cluster.nodes[1].nbd_socket("db"), "db").ok());

    // The dead node is back: it serves nothing, and learns that it is out.
    cluster.nodes[0].start_again();
    let (one, two) = (&cluster.nodes[0], &cluster.nodes[1]);
    wait_for("the first one to find out", || {
        (one.json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });
    wait_for_attention(two, "one/tank was excluded by a forced attach: its data is not used");
    let kept = one.json(&["replica", "show", "db"]);
    let membership = &kept["register"]["vote"]["membership"];
    assert_eq!((&kept["voter"], &membership["voters"]), (&0.into(), &0b10.into()), "{kept}");
    assert!(one.braid(&["replica", "show", "db"]).contains("no vote"));
    assert!(one.braid(&["status"]).contains("attached by force without it"), "{}", one.braid(&["status"]));
    let mut client = cluster.client(1);
    assert!(client.read(2 * MIB, MIB as usize).expect("it is read") == noise(MIB, 3));
    client.write_fua(3 * MIB, &noise(MIB, 4)).expect("it is written");
    // Its data are deleted only by the command that says so.
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
    // Two replicas vote, as before.
    one.json(&["volume", "attach", "db"]);
    cluster.wait_for_states(0, &WHOLE[..2]);
}

#[test]
fn the_serving_replica_of_three_goes_on_by_force_and_the_others_return_as_new_replicas() {
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

    // Both are back, and would have been a quorum.
    for node in [1, 2] {
        cluster.nodes[node].start_again();
    }
    let one = &cluster.nodes[0];
    wait_for_attention(one, "two/tank was excluded by a forced attach: its data is not used");
    wait_for_attention(one, "three/tank was excluded by a forced attach: its data is not used");
    assert_eq!(cluster.states(0), ["in_sync"]);
    // One replica is deleted by hand and added again, the other one is removed from the volume.
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
fn a_replica_out_of_sync_can_be_attached_by_force() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(MIB, 1)).expect("it is written");
    cluster.nodes[1].kill();
    client.write_fua(MIB, &noise(MIB, 2)).expect("it is written");
    cluster.wait_for_states(0, &["in_sync", "failed", "witness"]);
    drop(client);
    cluster.nodes[0].kill();
    // A witness has no data to serve.
    let said = cluster.nodes[2].refused(1, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("three answer, and one of those"), "{said}");
    cluster.nodes[1].start_again();
    let two = &cluster.nodes[1];
    // Two of three vote, and acknowledged writes are lost.
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
fn a_forced_attach_is_refused_with_a_quorum_or_a_live_controller() {
    let mut cluster = Cluster::plain(&["one", "two", "three", "four"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].braid(&["volume", "detach", "db"]);
    let said = cluster.nodes[0].refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("nothing needs to be forced"), "{said}");
    assert!(cluster.nodes[0].refused(3, &["volume", "attach", "nothing", "--force", "--yes"]).contains("nothing"));
    // A node without a replica serves the volume, and has one voter left: it serves no requests, and may resume at any time.
    cluster.nodes[3].json(&["volume", "attach", "db"]);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let said = cluster.nodes[0].refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    assert!(said.contains("one/tank has replied") && said.contains("another controller"), "{said}");
    // The controller goes on unchanged.
    cluster.nodes[1].start_again();
    wait_for("it to have enough voters again", || {
        (cluster.nodes[3].json(&["volume", "show", "db"])["voters"][1]["reachable"] == true).then_some(())
    });
    assert_eq!(cluster.nodes[3].json(&["volume", "show", "db"])["state"], "serving");
}

#[test]
fn split_brain_after_a_forced_attach_is_reported_by_both_controllers() {
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
    // With two voters, one is enough for a controller to go on: the former controller has its own.
    one.running.signal(Signal::CONT);
    client.write_fua(MIB, &noise(MIB, 3)).expect("it is written by the other one alone");
    wait_for_attention(two, "split brain");
    assert!(client.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 3));
    assert!(other.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    // Each controller ignores the voters of the other. When one of the two detaches, its voter learns of the other's epoch.
    drop(client);
    detached(one);
    wait_for_attention(two, "one/tank was excluded by a forced attach: its data is not used");
    assert!(other.read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
    // The data of the former controller are still on its node, and can be read there.
    assert!(crate::replicated::content(one)[1] == noise(MIB, 3));
    // From now on, any node that attaches the volume gets the forced one, the former node too.
    drop(other);
    detached(two);
    let taken = one.json(&["volume", "attach", "db"]);
    assert_eq!(nodes_of(&taken), ["two"], "{taken}");
    one.export("db");
    assert!(cluster.client(0).read(MIB, MIB as usize).expect("it is read") == noise(MIB, 2));
}
