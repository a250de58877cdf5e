//! Nodes: several daemons on one machine, each with a folder of its own, that know each other.

use serde_json::Value;

use crate::support::*;

/// A daemon that is node NAME, on a port that the kernel has given.
fn first(name: &str) -> Daemon {
    let daemon = Daemon::start();
    daemon.braid(&["node", "init", name, "--listen", "127.0.0.1:0", "--data", "127.0.0.1:1"]);
    daemon
}

fn invitation(of: &Daemon) -> String {
    of.braid(&["node", "invite"]).trim().to_owned()
}

/// One more node, by an invitation of `of`.
fn another(of: &Daemon, name: &str) -> Daemon {
    let daemon = Daemon::start();
    let token = invitation(of);
    daemon.braid(&["node", "join", &token, "--name", name, "--listen", "127.0.0.1:0", "--data", "127.0.0.1:1"]);
    daemon
}

/// The nodes that this one knows, with how they do.
fn known(daemon: &Daemon) -> Vec<(String, String)> {
    let list = daemon.json(&["node", "list"]);
    let text = |node: &Value, key: &str| node[key].as_str().expect("text").to_owned();
    let nodes = list["nodes"].as_array().expect("a list");
    nodes.iter().map(|node| (text(node, "name"), text(node, "state"))).collect()
}

#[track_caller]
fn wait_until_known(daemon: &Daemon, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
    let mut found = Vec::new();
    let start = std::time::Instant::now();
    while start.elapsed() < PATIENCE {
        found = known(daemon);
        if found == expected {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{expected:?} is not what is known: {found:?}\n{}", daemon.any(&["node", "list", "--json"]).status);
}

#[test]
fn nodes_join_and_know_each_other_and_who_is_away() {
    let one = first("one");
    assert_eq!(known(&one), [("one".to_owned(), "here".to_owned())]);
    let mut two = another(&one, "two");
    // By an invitation of the second: the third is told to the first by it.
    let three = another(&two, "three");
    for daemon in [&one, &two, &three] {
        wait_until_known(daemon, &[("one", "here"), ("three", "here"), ("two", "here")]);
    }
    let status = one.json(&["status"]);
    assert_eq!(status["node"], "one");
    assert_eq!(status["attention"], serde_json::json!([]), "{status}");

    // One that dies is away for the others, and here again when it is.
    two.running.kill();
    for daemon in [&one, &three] {
        wait_until_known(daemon, &[("one", "here"), ("three", "here"), ("two", "away")]);
        let shown = daemon.json(&["node", "show", "two"]);
        assert!(shown["reason"].as_str().expect("why").contains("nobody listens there"), "{shown}");
        let out = daemon.any(&["status", "--check"]);
        assert!(out.status.code() == Some(5) && said(&out).contains("node two is away"), "{}", said(&out));
    }
    // Without it the others go on: one more joins, and it learns that when it comes.
    let four = another(&three, "four");
    let Daemon { running, folder, .. } = two;
    drop(running);
    let two = Daemon::start_in(folder, &[]);
    for daemon in [&one, &two, &three, &four] {
        wait_until_known(daemon, &[("four", "here"), ("one", "here"), ("three", "here"), ("two", "here")]);
    }
    let events = one.events();
    assert!(events.contains("node_away") && events.contains("node_here") && events.contains("node_joined"), "{events}");
    wait_for("nothing to need attention", || (one.any(&["status", "--check"]).status.code() == Some(0)).then_some(()));
}
