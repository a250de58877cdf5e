//! Remedies that nodes report for replicated volumes: none for arrays, and none to add a replica that returns by itself.

use serde_json::Value;

use crate::replicated::*;
use crate::support::*;

/// Returns the attention items of a node whose subject begins with this text.
fn attention(daemon: &Daemon, subject: &str) -> Vec<Value> {
    let status = daemon.json(&["status"]);
    let all = status["attention"].as_array().expect("a list").clone();
    all.into_iter().filter(|item| item["subject"].as_str().is_some_and(|of| of.starts_with(subject))).collect()
}

/// Returns all attention items, as text and as JSON, and checks that none has a remedy for arrays.
#[track_caller]
fn status_without_arrays(daemon: &Daemon) -> String {
    let shown = [daemon.json(&["status"])["attention"].to_string(), said(&daemon.any(&["status", "--check"]))].concat();
    for word in ["braid array", "DISK", "array db", "attach its disks", "attach the disk"] {
        assert!(!shown.contains(word), "{word:?} is said of a volume: {shown}");
    }
    shown
}

#[test]
fn a_replica_that_returns_by_itself_is_reported_without_a_remedy() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    assert_eq!(cluster.nodes[0].json(&["status"])["attention"], serde_json::json!([]));

    cluster.nodes[2].kill();
    client.write(MIB, &noise(MIB, 2)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "failed"]);
    let item = wait_for("what is said of the replica", || {
        let items = attention(&cluster.nodes[0], "volume db");
        items.into_iter().find(|item| item.to_string().contains("does not answer"))
    });
    let text = item.to_string();
    assert!(text.contains("replica three/tank has failed"), "{text}");
    assert!(text.contains("returns automatically when node three is reachable"), "{text}");
    assert!(!text.contains("replica add") && !text.contains("rebuild"), "{text}");
    let shown = status_without_arrays(&cluster.nodes[0]);
    assert!(shown.contains("returns automatically when node three is reachable"), "{shown}");
    assert_eq!(cluster.nodes[0].any(&["status", "--check"]).status.code(), Some(5));
    for command in [["volume", "show", "db"], ["array", "show", "db"]] {
        let shown = cluster.nodes[0].braid(&command);
        assert!(shown.contains("returns automatically when node three is reachable"), "{shown}");
        assert!(!shown.contains("array add"), "{shown}");
    }

    // The replica returns as the item says, without a command.
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    wait_for("nothing to need attention", || attention(&cluster.nodes[0], "volume").is_empty().then_some(()));

    // Too few voters: the item names the missing ones and the remedy.
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let item = wait_for("the volume to wait for voters", || {
        let items = attention(&cluster.nodes[0], "volume db");
        items.into_iter().find(|item| item.to_string().contains("waits for voters"))
    });
    let text = item.to_string();
    assert!(text.contains("braid volume attach db --force") && text.contains("two/tank"), "{text}");
    status_without_arrays(&cluster.nodes[0]);
}

#[test]
fn after_a_move_the_first_node_reports_remedies_for_a_volume() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].braid(&["pool", "create", "deep", "db"]);
    cluster.nodes[0].braid(&["volume", "create", "deep/inner", "8M"]);
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["pool"], "deep", "{taken}");
    wait_for("the first one to let go", || {
        (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });

    // The pool on the volume has moved with it.
    let items = wait_for("the pool to be missed", || {
        Some(attention(&cluster.nodes[0], "pool deep")).filter(|items| !items.is_empty())
    });
    let text = items[0].to_string();
    assert!(text.contains("braid volume attach db"), "{text}");
    status_without_arrays(&cluster.nodes[0]);
    // The node no longer has an array for the volume: commands for the array are refused.
    for command in [["array", "show", "db"], ["array", "stop", "db"], ["array", "check", "db"]] {
        let refused = cluster.nodes[0].refused(3, &command);
        assert!(refused.contains("replicated volume"), "{refused}");
        assert!(refused.contains("braid volume attach db") && !refused.contains("braid array"), "{refused}");
    }
    // The same on a node that has a replica of the volume, and has never served it.
    let refused = cluster.nodes[2].refused(3, &["array", "show", "db"]);
    assert!(refused.contains("braid volume attach db") && !refused.contains("braid array"), "{refused}");
    // Where the volume is served, its array cannot be changed.
    let refused = cluster.nodes[1].refused_any(&["array", "stop", "db"]);
    assert!(refused.contains("braid volume detach db") && !refused.contains("braid array"), "{refused}");

    // The command that the status names works: the pool is back on this node.
    let commands = items[0]["commands"].as_array().expect("commands");
    let named = commands.iter().filter_map(Value::as_str).find(|named| named.contains("attach")).expect("one attaches");
    let words: Vec<&str> = named.split_whitespace().skip(1).collect();
    cluster.nodes[0].braid(&words);
    wait_for("the pool to be served", || {
        (cluster.nodes[0].json(&["pool", "show", "deep"])["state"] == "active").then_some(())
    });
    assert!(attention(&cluster.nodes[0], "pool").is_empty());
}

/// Checks that a command fails with this status and these texts, and that the message neither calls the volume an array
/// or a pool nor gives remedies for those.
#[track_caller]
fn refused_of_volume(daemon: &Daemon, status: i32, typed: &str, wanted: &[&str]) {
    let said = daemon.refused(status, &typed.split(' ').collect::<Vec<_>>());
    for words in wanted {
        assert!(said.contains(words), "{typed}: {words:?} is not said: {said}");
    }
    for words in ["braid array", "array db", "pool db", "DISK", "NAME", "--force", "is no name of", "knows no volume"] {
        assert!(!said.contains(words), "{typed}: {words:?} is said: {said}");
    }
}

#[test]
fn refusals_name_a_replicated_volume_and_its_remedies() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    let [one, two, three] = &cluster.nodes[..] else { panic!("three nodes") };
    one.export("db");

    // On the node that serves the volume.
    for typed in ["array create db --level raid1 mem:16M mem:16M", "volume create db 64M --replicas 2"] {
        refused_of_volume(one, 4, typed, &["there is a volume db already", "choose another name"]);
    }
    let typed = "export add db --nbd unix:/nowhere/db.sock";
    refused_of_volume(one, 4, typed, &["there is an export db already, of volume db"]);
    for typed in ["array delete db", "array delete db --yes"] {
        refused_of_volume(one, 4, typed, &["db is a replicated volume", "braid volume delete db"]);
    }

    // On nodes that keep a replica or a witness, and have never served the volume.
    let remedies = ["braid volume list --all", "braid volume attach db"];
    for (node, kept) in [(two, "a replica"), (three, "a witness")] {
        let message = format!("volume db is not served by this node, which keeps {kept} of it");
        let wanted = [&[message.as_str()][..], &remedies].concat();
        for typed in ["volume show db", "volume detach db", "snapshot list db", "snapshot create db@one"] {
            refused_of_volume(node, 3, typed, &wanted);
        }
        refused_of_volume(node, 3, "replica remove db one --yes", &wanted);
        for typed in ["volume resize db 128M", "volume rename db other", "volume set db --limit iops=100"] {
            refused_of_volume(node, 1, typed, &["volume db is replicated", "docs/guide/replication.md says what can"]);
        }
    }
    // A volume that does not exist is not reported as served by another node.
    assert!(two.refused(3, &["volume", "show", "none"]).contains("knows no replicated volume none"));
    assert!(two.refused(3, &["snapshot", "list", "none"]).contains("there is no pool none"));
    // Repeating the command gives the same message, however long ago the other controller was last seen.
    let force = || two.refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    let said = force();
    assert!(said.contains(" has replied to another controller, which serves volume db"), "{said}");
    assert_eq!(force(), said);

    // A prepared export does not count as served.
    two.export("db");
    refused_of_volume(two, 3, "volume detach db", &remedies);
    two.braid(&["volume", "attach", "db"]);
    wait_for("the first one to let go", || (one.json(&["volume", "show", "db"])["state"] == "detached").then_some(()));
    let wanted = [&["volume db is not served by this node"][..], &remedies].concat();
    refused_of_volume(one, 1, "volume detach db", &wanted);
    one.braid(&["export", "remove", "db"]);
    let typed = "volume delete db --yes";
    refused_of_volume(one, 4, typed, &["is served by another node", "attach it here first: braid volume attach db"]);
}
