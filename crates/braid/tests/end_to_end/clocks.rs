//! Nodes whose clocks are wrong: `libfaketime` sets the time of each daemon.

use std::path::PathBuf;
use std::process::Command;

use crate::replicated::*;
use crate::replicated_snapshots::on_node;
use crate::support::*;

/// Returns the path of the library, wherever the system keeps it.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").expect("/usr/lib is there").flatten();
    let mut places = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    places.find(|path| path.exists()).expect("libfaketime is installed (scripts/install-tools.sh test)")
}

/// Builds `braid serve` with a clock that is so many hours ahead, or behind. A zero offset leaves the clock unchanged.
fn serve_at(folder: &Folder, hours: i32) -> Command {
    let mut command = serve(folder, &["--shards".to_owned(), "1".to_owned()]);
    command
        .env("LD_PRELOAD", library())
        .env("FAKETIME", format!("{hours:+}h"))
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

fn start(folder: Folder, hours: i32) -> Daemon {
    let mut command = serve_at(&folder, hours);
    Daemon::start_with(folder, &mut command)
}

#[test]
fn nodes_with_clocks_hours_apart_serve_lose_nothing_and_report_the_skew() {
    let hours = [0, 7, -9];
    let again = |daemon: &mut Daemon, node: usize| {
        let mut command = serve_at(&daemon.folder, hours[node]);
        daemon.start_again_by(&mut command);
    };
    let place = |_| on_loopback(&[]);
    let mut cluster = Cluster::made_by(&["one", "two", "three"], |node, folder| start(folder, hours[node]), place);
    for (node, says) in
        [(0, ["node two", "node three"]), (1, ["node one", "node three"]), (2, ["node one", "node two"])]
    {
        wait_for("the clocks to be named", || {
            let status = cluster.nodes[node].json(&["status"]).to_string();
            says.iter()
                .all(|name| status.contains(&format!("the clocks of {name} and of this one differ")))
                .then_some(())
        });
    }
    cluster.create("one/tank,two/tank,three/tank", &[]);
    cluster.nodes[0].export("db");
    let mut client = cluster.client(0);
    client.write_fua(0, &noise(4 * MIB, 1)).expect("it is written");
    cluster.nodes[0].braid(&["snapshot", "create", "db@first"]);
    // Later snapshots have later times, whatever the clocks are: a clock that lags catches up.
    for away in [2, 1] {
        cluster.nodes[away].kill();
        client.write_fua(8 * MIB, &noise(4 * MIB, 10 + away as u64)).expect("the two others have it");
        cluster.nodes[0].braid(&["snapshot", "create", &format!("db@without{away}")]);
        again(&mut cluster.nodes[away], away);
        cluster.wait_for_states(0, &WHOLE);
    }
    for node in &cluster.nodes[1..] {
        assert_eq!(on_node(node), on_node(&cluster.nodes[0]), "the snapshots of a node");
    }
    for node in &cluster.nodes {
        node.braid(&["node", "renew"]);
    }
    // The node whose clock is hours behind takes over, and from it the node whose clock is hours ahead.
    drop(client);
    let mut last = noise(4 * MIB, 11);
    for (from, to) in [(0, 2), (2, 1)] {
        cluster.nodes[from].kill();
        let taken = cluster.nodes[to].json(&["volume", "attach", "db"]);
        assert_eq!(taken["state"], "serving", "{taken}");
        cluster.nodes[to].export("db");
        let mut client = cluster.client(to);
        assert!(client.read(0, 4 * MIB as usize).expect("it is read") == noise(4 * MIB, 1), "what node {to} reads");
        assert!(client.read(8 * MIB, 4 * MIB as usize).expect("it is read") == last, "what node {to} reads");
        last = noise(4 * MIB, 20 + to as u64);
        client.write_fua(8 * MIB, &last).expect("it is written");
        again(&mut cluster.nodes[from], from);
        cluster.wait_for_states(to, &WHOLE);
    }
}

#[test]
fn a_node_with_a_clock_days_behind_blames_the_clocks() {
    let one = Daemon::start_in(Folder::new(), &["--shards", "1"]);
    let four = start(Folder::new(), -72);
    let place = on_loopback(&[]);
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    one.braid(&[&["node", "init", "one"], &place[..]].concat());
    let token = one.braid(&["node", "invite"]).trim().to_owned();
    let place = on_loopback(&[]);
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let refused = four.refused_any(&[&["node", "join", &token, "--name", "four"], &place[..]].concat());
    assert!(refused.contains("clock"), "{refused}");
}
