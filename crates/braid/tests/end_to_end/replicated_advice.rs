//! What nodes say is to be done about volumes of several nodes: no advice for arrays, and none to add what returns by itself.

use serde_json::Value;

use crate::replicated::*;
use crate::support::*;

/// What needs attention on a node, of subjects that begin so.
fn attention(daemon: &Daemon, subject: &str) -> Vec<Value> {
    let status = daemon.json(&["status"]);
    let all = status["attention"].as_array().expect("a list").clone();
    all.into_iter().filter(|item| item["subject"].as_str().is_some_and(|of| of.starts_with(subject))).collect()
}

/// All that is said of what needs attention, in the words for people and in those of the JSON, without advice for arrays.
#[track_caller]
fn status_without_arrays(daemon: &Daemon) -> String {
    let shown = [daemon.json(&["status"])["attention"].to_string(), said(&daemon.any(&["status", "--check"]))].concat();
    for word in ["braid array", "DISK", "array db", "attach its disks", "attach the disk"] {
        assert!(!shown.contains(word), "{word:?} is said of a volume: {shown}");
    }
    shown
}

#[test]
fn a_replica_that_returns_by_itself_is_told_so_and_nothing_is_to_be_added() {
    let mut cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write(0, &noise(MIB, 1)).expect("it is written");
    assert_eq!(cluster.nodes[0].json(&["status"])["attention"], serde_json::json!([]));

    cluster.nodes[2].kill();
    client.write(MIB, &noise(MIB, 2)).expect("the two others have it");
    cluster.wait_for_states(0, &["in_sync", "in_sync", "out"]);
    let item = wait_for("what is said of the replica", || {
        let items = attention(&cluster.nodes[0], "volume db");
        items.into_iter().find(|item| item.to_string().contains("does not answer"))
    });
    let text = item.to_string();
    assert!(text.contains("replica three/tank is out"), "{text}");
    assert!(text.contains("returns by itself when node three answers"), "{text}");
    assert!(!text.contains("replica add") && !text.contains("rebuild"), "{text}");
    let shown = status_without_arrays(&cluster.nodes[0]);
    assert!(shown.contains("returns by itself when node three answers"), "{shown}");
    assert_eq!(cluster.nodes[0].any(&["status", "--check"]).status.code(), Some(5));
    for command in [["volume", "show", "db"], ["array", "show", "db"]] {
        let shown = cluster.nodes[0].braid(&command);
        assert!(shown.contains("returns by itself when node three answers"), "{shown}");
        assert!(!shown.contains("array add"), "{shown}");
    }

    // It does what was promised, and nobody has done anything.
    cluster.nodes[2].start_again();
    cluster.wait_for_states(0, &WHOLE);
    wait_for("nothing to need attention", || attention(&cluster.nodes[0], "volume").is_empty().then_some(()));

    // Too few voters: what is waited for, and what is to be done.
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
fn after_a_move_the_first_node_gives_advice_for_a_volume() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].braid(&["pool", "create", "deep", "db"]);
    cluster.nodes[0].braid(&["volume", "create", "deep/inner", "8M"]);
    let taken = cluster.nodes[1].json(&["volume", "attach", "db"]);
    assert_eq!(taken["pool"], "deep", "{taken}");
    wait_for("the first one to let go", || {
        (cluster.nodes[0].json(&["volume", "show", "db"])["state"] == "detached").then_some(())
    });

    // The pool that has gone with it.
    let items = wait_for("the pool to be missed", || {
        Some(attention(&cluster.nodes[0], "pool deep")).filter(|items| !items.is_empty())
    });
    let text = items[0].to_string();
    assert!(text.contains("braid volume attach db"), "{text}");
    status_without_arrays(&cluster.nodes[0]);
    // The array that the volume was here is none to look for.
    for command in [["array", "show", "db"], ["array", "stop", "db"], ["array", "check", "db"]] {
        let refused = cluster.nodes[0].refused(3, &command);
        assert!(refused.contains("volume of several nodes"), "{refused}");
        assert!(refused.contains("braid volume attach db") && !refused.contains("braid array"), "{refused}");
    }
    // Nor on a node that has a replica of it, and has never served it.
    let refused = cluster.nodes[2].refused(3, &["array", "show", "db"]);
    assert!(refused.contains("braid volume attach db") && !refused.contains("braid array"), "{refused}");
    // Where it is served it is none to be changed.
    let refused = cluster.nodes[1].refused_any(&["array", "stop", "db"]);
    assert!(refused.contains("braid volume detach db") && !refused.contains("braid array"), "{refused}");

    // What the status names works: the pool is here again.
    let commands = items[0]["commands"].as_array().expect("commands");
    let named = commands.iter().filter_map(Value::as_str).find(|named| named.contains("attach")).expect("one attaches");
    let words: Vec<&str> = named.split_whitespace().skip(1).collect();
    cluster.nodes[0].braid(&words);
    wait_for("the pool to be served", || {
        (cluster.nodes[0].json(&["pool", "show", "deep"])["state"] == "active").then_some(())
    });
    assert!(attention(&cluster.nodes[0], "pool").is_empty());
}

/// A refusal has this status and says this, and it neither calls the volume an array or a pool nor gives advice for those.
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
fn refusals_say_that_it_is_a_volume_of_several_nodes_and_what_can_be_done() {
    let cluster = Cluster::plain(&["one", "two", "three"]);
    cluster.create("one/tank,two/tank", &["--witness", "three"]);
    let [one, two, three] = &cluster.nodes[..] else { panic!("three nodes") };
    one.export("db");

    // Where it is served.
    for typed in ["array create db --level raid1 mem:16M mem:16M", "volume create db 64M --replicas 2"] {
        refused_of_volume(one, 4, typed, &["there is a volume db already", "choose another name"]);
    }
    let typed = "export add db --nbd unix:/nowhere/db.sock";
    refused_of_volume(one, 4, typed, &["there is an export db already, of volume db"]);
    for typed in ["array delete db", "array delete db --yes"] {
        refused_of_volume(one, 4, typed, &["db is a volume of several nodes", "braid volume delete db"]);
    }

    // Where something of it is kept, and it was never served.
    let remedies = ["braid volume list --all", "braid volume attach db"];
    for (node, kept) in [(two, "a replica"), (three, "a witness")] {
        let message = format!("volume db is not served by this node, which keeps {kept} of it");
        let wanted = [&[message.as_str()][..], &remedies].concat();
        for typed in ["volume show db", "volume detach db", "snapshot list db", "snapshot create db@one"] {
            refused_of_volume(node, 3, typed, &wanted);
        }
        refused_of_volume(node, 3, "replica remove db one --yes", &wanted);
        for typed in ["volume resize db 128M", "volume rename db other", "volume set db --limit iops=100"] {
            refused_of_volume(
                node,
                1,
                typed,
                &["volume db is kept on several nodes", "docs/replication.md says what can"],
            );
        }
    }
    // What is no volume at all is none that another node serves.
    assert!(two.refused(3, &["volume", "show", "none"]).contains("knows no volume none of several nodes"));
    assert!(two.refused(3, &["snapshot", "list", "none"]).contains("there is no pool none"));
    // Asked again the same is said, whenever the other controller was heard of.
    let force = || two.refused(4, &["volume", "attach", "db", "--force", "--yes"]);
    let said = force();
    assert!(said.contains(" has heard of another controller, which serves volume db"), "{said}");
    assert_eq!(force(), said);

    // An export that is prepared does not make it one that is served.
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
