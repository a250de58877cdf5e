//! Nodes in every state: without a cluster, alone, all reachable, one unreachable, one removed. Text, JSON, exit status
//! and the API's reply agree, by the checker of `every_state.rs`.

use serde_json::json;

use crate::every_state::flat;
use crate::every_state_cluster::Walk;
use crate::every_state_words::*;
use crate::replicated::Cluster;
use crate::support::*;

/// Refusals of a daemon that belongs to no cluster.
const WITHOUT_CLUSTER: &[Refusal] = &[
    (3, "belongs to no cluster", "node show one"),
    (3, "belongs to no cluster", "node invite"),
    (3, "belongs to no cluster", "node renew"),
    (3, "belongs to no cluster", "node remove one --yes"),
    (4, "one", "node remove one"),
    (2, "the invitation", "node join nowhere --name two --listen 127.0.0.1:0"),
    (2, "every address", "node init one --listen 0.0.0.0"),
];

/// Refusals of a daemon that belongs to a cluster.
const WITH_CLUSTER: &[Refusal] = &[
    (4, "node one", "node init again --listen 127.0.0.1:0"),
    (3, "nine", "node show nine"),
    (3, "nine", "node renew nine"),
    (3, "nine", "node remove nine --yes"),
    (4, "two", "node remove two"),
    (2, "30 days", "node invite --expires 31d"),
];

/// Refusals while the other node does not answer.
const WITH_ONE_AWAY: &[Refusal] = &[(6, "two", "node renew two"), (4, "two", "node remove two --yes")];

/// Returns the command lines of this file, for the list of all commands.
pub fn templates() -> Vec<&'static str> {
    [WITHOUT_CLUSTER, WITH_CLUSTER, WITH_ONE_AWAY].into_iter().flatten().map(|(.., typed)| *typed).collect()
}

/// Checks what a daemon without a cluster reports about nodes.
fn knows_no_nodes(walk: &mut Walk, node: usize) {
    for typed in ["node list", "volume list --all"] {
        let list = walk.query(node, typed);
        assert_eq!(list.document["nodes"], json!([]), "{}", list.context);
        assert!(list.text.contains("this daemon belongs to no cluster"), "{}: {}", list.context, list.text);
    }
}

#[test]
fn every_command_agrees_about_nodes_in_every_state() {
    let mut walk = Walk::of(Cluster { nodes: vec![Daemon::start(), Daemon::start()] });
    walk.enter("without a cluster", &[0]);
    knows_no_nodes(&mut walk, 0);
    walk.refused(0, WITHOUT_CLUSTER);
    let made = walk.changed(0, "node init one --listen 127.0.0.1:0");
    assert_eq!((text(&made, "name"), &made["local"]), ("one", &json!(true)), "{made}");
    walk.enter("alone", &[0]);
    walk.nodes(0, &["one"]);
    walk.attention(0, &[]);

    // Each invitation has its own secret; address and cluster are the same.
    let token = text(&walk.changed(0, "node invite"), "token").to_owned();
    let other = walk.cluster.nodes[0].braid(&["node", "invite"]);
    let (same, secret) = token.rsplit_once('/').expect("three parts");
    assert!(other.starts_with(same) && other.trim().len() == token.len() && !other.contains(secret), "{other}");
    let join = format!("node join {token} --name two --listen 127.0.0.1:0");
    let joined = walk.changed(1, &join);
    assert_eq!((text(&joined, "name"), &joined["local"]), ("two", &json!(true)), "{joined}");
    wait_for("the nodes to know each other", || {
        let here = |node: &Daemon| node.json(&["node", "list"])["nodes"].to_string().matches("\"reachable\"").count();
        walk.cluster.nodes.iter().all(|node| here(node) == 2).then_some(())
    });
    walk.enter("with both here", &[0, 1]);
    for node in [0, 1] {
        walk.nodes(node, &["one", "two"]);
        walk.attention(node, &[]);
    }
    walk.refused(0, WITH_CLUSTER);
    walk.refused_one(1, 4, "node two", &join);
    assert_eq!(walk.changed(0, "node renew two")["name"], "two");
    assert_eq!(walk.changed(0, "node renew")["name"], "one");

    walk.cluster.nodes[1].kill();
    walk.wait_until_away(&[0], "two");
    walk.enter("with one away", &[0]);
    walk.nodes(0, &["one"]);
    let said = walk.attention(0, &["node"]);
    assert!(text(&said[0], "message").contains("node two is unreachable"), "{said:?}");
    let list = walk.query(0, "volume list --all");
    let [why] = items(&list.document, "incomplete") else { panic!("{}: {}", list.context, list.document) };
    assert!(flat(&list.text).contains(&flat(why.as_str().expect("a sentence"))), "{}: {}", list.context, list.text);
    walk.refused(0, WITH_ONE_AWAY);

    walk.cluster.nodes[1].start_again();
    walk.wait_until_well(&[0, 1]);
    walk.enter("with both here again", &[0, 1]);
    walk.nodes(0, &["one", "two"]);
    assert_eq!(walk.changed(0, "node remove two --yes")["name"], "two");
    wait_for("node two to know of its removal", || {
        (walk.cluster.nodes[1].json(&["node", "list"])["nodes"] == json!([])).then_some(())
    });
    walk.enter("with one removed", &[0, 1]);
    walk.nodes(0, &["one"]);
    walk.refused_one(0, 3, "two", "node show two");
    walk.attention(0, &[]);
    knows_no_nodes(&mut walk, 1);
    let said = walk.attention(1, &["node"]);
    assert!(text(&said[0], "message").contains("was removed from its cluster"), "{said:?}");
    walk.refused_one(1, 3, "was removed from its cluster", "node invite");
}
