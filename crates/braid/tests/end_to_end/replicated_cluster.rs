//! Any node reports for the whole cluster which node serves a volume, where its replicas are and in which state; and
//! what the death of the serving node means.

use serde_json::{Value, json};

use crate::replicated::*;
use crate::support::*;

/// Returns the volume as a node lists it for the whole cluster.
fn listed(daemon: &Daemon) -> Value {
    let list = daemon.json(&["volume", "list", "--all"]);
    let volumes = list["volumes"].as_array().expect("a list").clone();
    let found = volumes.into_iter().find(|volume| volume["name"] == "db");
    found.unwrap_or_else(|| panic!("db is not there: {list}"))
}

/// Returns the state of each voter, by node.
fn states(volume: &Value) -> Vec<(&str, &str)> {
    let voters = volume["voters"].as_array().expect("voters");
    voters
        .iter()
        .map(|voter| (voter["node"].as_str().expect("a node"), voter["state"].as_str().expect("a word")))
        .collect()
}

#[track_caller]
fn wait_for_listed(daemon: &Daemon, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let started = std::time::Instant::now();
    while started.elapsed() < PATIENCE {
        last = listed(daemon);
        if is(&last) {
            return last;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what} is not what is listed: {last}");
}

/// Returns the attention item of the volume on a node.
fn attention(daemon: &Daemon) -> Option<Value> {
    let status = daemon.json(&["status"]);
    let all = status["attention"].as_array().expect("a list").clone();
    all.into_iter().find(|item| item["subject"] == "volume db")
}

#[test]
fn every_node_reports_which_node_serves_a_volume_and_what_a_dead_node_means() {
    let mut cluster = Cluster::plain(&["one", "two", "three", "four"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    let whole = [("one", "in_sync"), ("two", "in_sync"), ("three", "witness")];
    // Every node reports it, also one that keeps nothing of the volume.
    for node in &cluster.nodes {
        let volume = listed(node);
        assert_eq!((&volume["service"], &volume["served_by"]), (&json!("served"), &json!("one")), "{volume}");
        assert_eq!((states(&volume), &volume["size_bytes"]), (whole.to_vec(), &json!(SIZE)), "{volume}");
    }
    let four = cluster.nodes[3].json(&["volume", "list", "--all"]);
    assert_eq!((&four["incomplete"], four["nodes"].as_array().map(Vec::len)), (&json!([]), Some(4)), "{four}");
    assert!(cluster.nodes[3].braid(&["volume", "list", "--all"]).contains("one"));
    cluster.nodes[3].refused(2, &["volume", "list", "tank", "--all"]);

    // A replica's node dies: the serving node reports its replica as absent.
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    cluster.nodes[1].kill();
    client.write(0, &noise(MIB, 1)).expect("the other one has it");
    let absent = [("one", "in_sync"), ("two", "unavailable"), ("three", "witness")];
    wait_for_listed(&cluster.nodes[3], "an absent replica", |volume| states(volume) == absent);
    let list = cluster.nodes[3].json(&["volume", "list", "--all"]);
    assert!(list["incomplete"].to_string().contains("node two does not answer"), "{list}");
    cluster.nodes[1].start_again();
    wait_for_listed(&cluster.nodes[3], "all of it", |volume| states(volume) == whole);

    // The serving node dies: each node reports that no node serves the volume, and as unknown what only the dead node knows.
    wait_for("the other nodes to be well", || {
        let is_well = |node: &Daemon| node.json(&["status"])["attention"] == json!([]);
        cluster.nodes[1..].iter().all(is_well).then_some(())
    });
    cluster.nodes[0].kill();
    let dead = [("one", "unknown"), ("two", "in_sync"), ("three", "witness")];
    for node in &cluster.nodes[1..] {
        let volume = wait_for_listed(node, "unserved", |volume| volume["service"] == "unserved");
        assert_eq!((states(&volume), &volume["served_by"]), (dead.to_vec(), &Value::Null), "{volume}");
        assert!(volume["reason"].to_string().contains("one"), "{volume}");
        assert!(volume["remedy"].to_string().contains("braid volume attach db"), "{volume}");
        let text = node.braid(&["volume", "list", "--all"]);
        assert!(text.contains("unserved") && text.contains("braid volume attach db"), "{text}");
    }
    let item = wait_for("the status of a node with a voter", || attention(&cluster.nodes[1]));
    let text = item.to_string();
    assert!(text.contains("no node serves it: node one, which served it, does not answer"), "{text}");
    assert!(text.contains("alive but unreachable"), "{text}");
    assert_eq!(cluster.nodes[1].any(&["status", "--check"]).status.code(), Some(5));
    assert!(cluster.nodes[1].events().contains("volume_unserved"));
    wait_for("the status of the witness", || attention(&cluster.nodes[2]));

    // The command that the item names restores the service.
    assert_eq!(item["commands"][0], "braid volume attach db", "{item}");
    cluster.nodes[1].braid(&["volume", "attach", "db"]);
    let named = |node: &Daemon| attention(node).is_some_and(|item| item.to_string().contains("no node serves it"));
    wait_for("nothing to be said of it", || cluster.nodes[1..].iter().all(|node| !named(node)).then_some(()));
    let served = wait_for_listed(&cluster.nodes[3], "the other node", |volume| volume["served_by"] == "two");
    assert_eq!(states(&served)[0], ("one", "unavailable"), "{served}");
    cluster.nodes[0].start_again();
    for node in &cluster.nodes {
        wait_for_listed(node, "all of it", |volume| volume["served_by"] == "two" && states(volume) == whole);
    }

    // After a detach by command no node serves the volume, and none reports it as a fault.
    cluster.nodes[1].braid(&["volume", "detach", "db"]);
    let volume = wait_for_listed(&cluster.nodes[3], "unserved", |volume| volume["service"] == "unserved");
    assert_eq!(states(&volume), whole, "{volume}");
    std::thread::sleep(std::time::Duration::from_secs(9));
    for node in &cluster.nodes {
        assert_eq!(attention(node), None);
    }
}

#[test]
fn unknown_state_is_reported_as_unknown() {
    let mut cluster = Cluster::plain(&["one", "two"]);
    cluster.create("one/tank,two/tank", &[]);
    cluster.nodes[0].kill();
    // One of two voters without a controller: the other one could go on alone.
    let item = wait_for("the status of the other node", || attention(&cluster.nodes[1]));
    let text = item.to_string();
    assert!(text.contains("it is unknown whether a node serves it"), "{text}");
    assert!(text.contains("braid volume attach db --force") && text.contains("split brain"), "{text}");
    let volume = listed(&cluster.nodes[1]);
    assert_eq!((&volume["service"], &volume["served_by"]), (&json!("unknown"), &Value::Null), "{volume}");
    assert_eq!(states(&volume), [("one", "unknown"), ("two", "unknown")], "{volume}");
    let text = cluster.nodes[1].braid(&["volume", "list", "--all"]);
    assert!(text.contains("unknown") && !text.contains("unserved"), "{text}");

    // The state is known again when the node replies, and the node serves the volume as before.
    cluster.nodes[0].start_again();
    wait_for_listed(&cluster.nodes[1], "the first node", |volume| volume["served_by"] == "one");
    wait_for("nothing to be said of it", || attention(&cluster.nodes[1]).is_none().then_some(()));
}
