//! The state that a node keeps of its replicas beside their disks: disks that are older copies of themselves, and losses that are recorded in time.

use serde_json::json;

use crate::nbd::Client;
use crate::replicas_on_a_node::{FIRST, Node, SECOND, VOLUME};
use crate::support::*;

/// Copies a disk of the node's pool.
fn copy(node: &Node, name: &str) {
    run("cp", &["--sparse=always", &node.daemon.folder.join(name), &node.daemon.folder.join(&format!("{name}.copy"))]);
}

/// Replaces the disk by that copy.
fn put_back(node: &Node, name: &str) {
    run("cp", &["--sparse=always", &node.daemon.folder.join(&format!("{name}.copy")), &node.daemon.folder.join(name)]);
}

fn open(node: &Node, epoch: u64, controller: &str, session: u64) -> Client {
    node.open(&node.name(epoch, controller, session, 0, 1)).expect("it is the controller's")
}

fn is_older(boot: &str) -> bool {
    boot.as_bytes()[14] == b'8'
}

/// Removes the recorded sessions of pools from the state file.
fn without_sessions(node: &Node) {
    let path = node.daemon.folder.join("state/state.json");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let mut state: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let sessions = state.as_object_mut().expect("an object").remove("pool_sessions").expect("they are recorded");
    assert_eq!(sessions.as_object().map(serde_json::Map::len), Some(1), "{sessions}");
    std::fs::write(&path, state.to_string()).expect("it can be written");
}

#[test]
fn a_voter_remembers_an_epoch_that_an_older_copy_of_its_disk_lacks() {
    let mut node = Node::start();
    node.create();
    node.raise(3, FIRST);
    let mut client = open(&node, 3, FIRST, 1);
    client.write(5 * MIB, &noise(MIB, 5)).expect("it is written");
    drop(client);
    node.daemon.stop();
    copy(&node, "a.img");
    node.daemon.start_again();
    let before = node.boot();
    node.raise(5, SECOND);
    node.daemon.stop();
    put_back(&node, "a.img");
    node.daemon.start_again();
    assert_eq!(node.show()["register"]["epoch"], 5, "the copy knows of 3");
    let older = node.boot();
    assert!(is_older(&older) && older != before, "{older}");
    let (status, refused) = node.ask(&json!({"request": "raise", "epoch": 4, "controller": FIRST}));
    assert_eq!((status, &refused["error"]["kind"]), (409, &json!("fenced")), "{refused}");
    let events = node.daemon.events();
    assert!(events.contains("replica_stale") && events.contains("is an older copy"), "{events}");
    // The replica keeps this boot until a controller has filled it, also when the copy is the newest one that exists.
    node.daemon.restart(true);
    node.daemon.restart(false);
    assert_eq!(node.boot(), older);

    // A controller that has filled the replica casts a vote under that boot. A replica that is not in sync is not filled.
    node.raise(6, FIRST);
    let vote = |sequence: u64, in_sync: u64| {
        json!({"request": "cast", "epoch": 6, "controller": FIRST, "boot": older, "vote": {"epoch": 6, "sequence": sequence,
            "lineage": 7, "in_sync": in_sync, "membership": {"version": 0, "voters": 7, "previous_voters": 0, "replicas": 3}}})
    };
    let older_flag = |node: &Node| {
        let text = std::fs::read_to_string(node.daemon.folder.join("state/state.json")).expect("it is there");
        serde_json::from_str::<serde_json::Value>(&text).expect("it is JSON")["replicas"][0]["older"].clone()
    };
    let cast = |node: &Node, sequence, in_sync| {
        let (status, answer) = node.ask(&vote(sequence, in_sync));
        assert_eq!(status, 200, "{answer}");
    };
    cast(&node, 1, 2);
    assert_eq!(older_flag(&node), true);
    cast(&node, 2, 3);
    wait_for("it to be recorded", || (older_flag(&node) == false).then_some(()));
    node.daemon.restart(true);
    assert_eq!(node.boot(), older, "it is believed under this boot, and goes on under it");
}

#[test]
fn a_copy_made_while_the_pool_served_is_older_than_its_clean_stop() {
    let mut node = Node::start();
    node.create();
    node.raise(3, FIRST);
    let mut client = open(&node, 3, FIRST, 1);
    client.write(5 * MIB, &noise(MIB, 5)).expect("it is written");
    client.flush().expect("it is flushed");
    copy(&node, "a.img");
    client.write(5 * MIB, &noise(MIB, 6)).expect("it is written");
    drop(client);
    node.daemon.stop();
    put_back(&node, "a.img");
    node.daemon.start_again();
    assert!(is_older(&node.boot()), "{}", node.boot());
}

#[test]
fn a_node_without_recorded_sessions_trusts_its_disks() {
    let mut node = Node::start();
    node.create();
    node.raise(3, FIRST);
    let mut client = open(&node, 3, FIRST, 1);
    client.write(5 * MIB, &noise(MIB, 5)).expect("it is written");
    drop(client);
    let before = node.boot();
    // The state of an earlier version, or of a deleted state folder.
    node.daemon.stop();
    without_sessions(&node);
    std::fs::remove_dir_all(node.daemon.folder.join("state/registers")).expect("the folder is there");
    node.daemon.start_again();
    assert_eq!((node.boot(), node.show()["register"]["epoch"].clone()), (before.clone(), json!(3)));
    let file = node.daemon.folder.join(&format!("state/registers/{VOLUME}"));
    assert_eq!(std::fs::metadata(&file).expect("it is recreated").len(), 8192);
    // A wholly damaged register holds no epoch either, and is repaired.
    node.daemon.stop();
    std::fs::write(&file, noise(8192, 1)).expect("it can be written");
    node.daemon.start_again();
    assert_eq!((node.boot(), node.show()["register"]["epoch"].clone()), (before.clone(), json!(3)));
    assert_eq!(&std::fs::read(&file).expect("it is there")[..4], b"BRRG");
    for kill in [true, false] {
        node.daemon.restart(kill);
        assert_eq!(node.boot(), before);
    }
    node.daemon.braid(&["replica", "delete", "db", "--yes", "--force"]);
    assert!(!std::path::Path::new(&file).exists());
}

#[test]
fn an_older_copy_of_one_of_two_disks_of_a_pool_is_detected() {
    let mut node = Node::start();
    let second = node.daemon.folder.sparse("b.img", 512 * MIB);
    node.daemon.braid(&["pool", "add", "tank", &second]);
    node.create();
    node.raise(3, FIRST);
    node.daemon.stop();
    copy(&node, "a.img");
    copy(&node, "b.img");
    node.daemon.start_again();
    let mut client = open(&node, 3, FIRST, 1);
    for at in 0..32 {
        client.write(at * MIB, &noise(MIB, at)).expect("it is written");
    }
    client.flush().expect("it is flushed");
    drop(client);
    let before = node.boot();
    node.daemon.stop();
    let newer = std::fs::read(node.daemon.folder.join("b.img")).expect("it can be read");
    // The pool notices that one of its disks lacks committed changes, and is not opened.
    put_back(&node, "b.img");
    node.daemon.start_again();
    let shown = node.show();
    assert_eq!(shown["state"], "waiting", "{shown}");
    let said = node.daemon.refused_any(&["pool", "start", "tank"]);
    assert!(said.contains("is an old copy of member 1"), "{said}");
    // With the right disk nothing was lost.
    node.daemon.stop();
    std::fs::write(node.daemon.folder.join("b.img"), newer).expect("it can be written");
    node.daemon.start_again();
    assert_eq!((node.show()["state"].clone(), node.boot()), (json!("ready"), before));
    // Both old copies match each other: only the node's state shows their age.
    node.daemon.stop();
    put_back(&node, "a.img");
    put_back(&node, "b.img");
    node.daemon.start_again();
    assert_eq!(node.show()["state"], "ready");
    assert!(is_older(&node.boot()));
}

/// A file system in memory for the state of a daemon.
struct Small(String);

impl Small {
    fn fill(&self) -> String {
        let path = format!("{}/filler", self.0);
        let _full = std::fs::write(&path, noise(4 * MIB, 1)).expect_err("there is no room for this");
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = command("umount").args(["--lazy", &self.0]).output();
    }
}

#[test]
fn a_loss_that_cannot_be_recorded_is_recorded_later() {
    need_root();
    let folder = Folder::new();
    let state = folder.join("state");
    std::fs::create_dir_all(&state).expect("a folder can be made");
    run("mount", &["-t", "tmpfs", "-o", "size=1M", "braid-test", &state]);
    let small = Small(state);
    let mut node = Node::start_in(folder, 512 * MIB, "");
    node.create();
    node.raise(3, FIRST);
    let mut client = open(&node, 3, FIRST, 1);
    client.write(5 * MIB, &noise(MIB, 5)).expect("it is written, and not flushed");
    let before = node.boot();
    node.daemon.kill();
    let lose = |node: &Node| {
        std::fs::remove_dir_all(node.daemon.folder.join("shared")).expect("the memory is there");
    };
    lose(&node);
    let filler = small.fill();
    node.daemon.start_again();
    // The replica is not ready while the loss is not recorded.
    let shown = node.show();
    assert_ne!(shown["state"], "ready", "{shown}");
    let events = node.daemon.events();
    assert!(events.contains("pool tank has replicas, and is opened only if its session can be recorded"), "{events}");
    node.daemon.kill();
    std::fs::remove_file(filler).expect("it is there");
    node.daemon.start_again();
    assert_eq!(node.show()["state"], "ready");
    assert_ne!(node.boot(), before, "what was not flushed is gone");

    // A failed start leaves nothing that the next start of the same daemon would take for its own.
    let lost = node.boot();
    let mut client = open(&node, 3, FIRST, 1);
    client.write(5 * MIB, &noise(MIB, 6)).expect("it is written, and not flushed");
    node.daemon.kill();
    lose(&node);
    let filler = small.fill();
    node.daemon.start_again();
    assert_ne!(node.show()["state"], "ready");
    std::fs::remove_file(filler).expect("it is there");
    node.daemon.braid(&["pool", "start", "tank"]);
    wait_for("it to vote", || (node.show()["state"] == "ready").then_some(()));
    assert_ne!(node.boot(), lost);

    // After a clean stop nothing was lost.
    let lost = node.boot();
    node.daemon.stop();
    let filler = small.fill();
    node.daemon.start_again();
    assert_ne!(node.show()["state"], "ready");
    node.daemon.kill();
    std::fs::remove_file(filler).expect("it is there");
    node.daemon.start_again();
    assert_eq!((node.show()["state"].clone(), node.boot()), (json!("ready"), lost));
}
