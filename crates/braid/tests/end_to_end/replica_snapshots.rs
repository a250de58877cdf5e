//! Snapshots of a replica's data that a controller takes, on one node: who may take, see and change them.

use serde_json::{Value, json};

use crate::nbd::Client;
use crate::replicas_on_a_node::{FIRST, Node, SECOND, VOLUME};
use crate::support::*;

const MONDAY: &str = "51a90000-0000-8000-8000-000000000001";
const TUESDAY: &str = "51a90000-0000-8000-8000-000000000002";
const OF_USER: &str = "51a90000-0000-4000-8000-000000000003";

impl Node {
    fn change(&self, epoch: u64, controller: &str, session: u64, change: Value) -> (u16, Value) {
        let body = json!({"epoch": epoch, "controller": controller, "session": session, "change": change});
        self.any("POST", &format!("/v1/replicas/{VOLUME}/snapshots"), &body)
    }

    /// Sends the change in the first epoch and session, and checks that it succeeds.
    #[track_caller]
    fn does(&self, change: Value) {
        let (status, answer) = self.change(1, FIRST, 1, change);
        assert_eq!(status, 200, "{answer}");
    }

    #[track_caller]
    fn refuses(&self, kind: &str, change: Value) {
        let (_, answer) = self.change(1, FIRST, 1, change.clone());
        assert_eq!(answer["error"]["kind"], kind, "{change}: {answer}");
    }

    /// Returns the identities and names of the controller's snapshots.
    fn snapshots(&self) -> Vec<(String, Value)> {
        let list = self.right("GET", &format!("/v1/replicas/{VOLUME}/snapshots"), &Value::Null);
        let of = |one: &Value| (one["uuid"].as_str().expect("it has one").to_owned(), one["name"].clone());
        list["snapshots"].as_array().expect("a list").iter().map(of).collect()
    }

    /// Returns the names of the snapshots that users see.
    fn seen(&self) -> Vec<String> {
        let list = self.daemon.json(&["snapshot", "list"]);
        let names = list["snapshots"].as_array().expect("a list").iter();
        names.map(|one| one["name"].as_str().expect("it has one").to_owned()).collect()
    }
}

fn take(snapshot: &str, name: &str) -> Value {
    json!({"operation": "take", "snapshot": snapshot, "name": name})
}

fn name(snapshot: &str, name: &str) -> Value {
    json!({"operation": "name", "snapshot": snapshot, "name": name})
}

#[test]
fn a_controllers_snapshots_are_pending_until_they_are_named() {
    let mut node = Node::start();
    node.create();
    node.raise(1, FIRST);
    node.refuses("fenced", take(MONDAY, "monday"));
    let mut client = node.open(&node.name(1, FIRST, 1, 0, 1)).expect("it is the controller's");
    client.write(2 * MIB, &noise(MIB, 1)).expect("it is written");
    for (epoch, controller, session) in [(2, FIRST, 1), (1, SECOND, 1), (1, FIRST, 2)] {
        let (status, refused) = node.change(epoch, controller, session, take(MONDAY, "monday"));
        assert_eq!((status, &refused["error"]["kind"]), (409, &json!("fenced")), "{refused}");
    }
    node.refuses("invalid_argument", take(OF_USER, "monday"));
    node.refuses("invalid_argument", take(MONDAY, "auto-20261122T140000Z"));
    node.refuses("not_found", name(MONDAY, "monday"));

    // A pending snapshot is in no list, and a snapshot of the volume by a user cannot take its name.
    node.daemon.braid(&["snapshot", "create", "tank/db@mine"]);
    node.refuses("exists", take(MONDAY, "mine"));
    node.does(take(MONDAY, "monday"));
    client.write(2 * MIB, &noise(MIB, 2)).expect("it is written");
    assert_eq!(node.snapshots(), [(MONDAY.to_owned(), Value::Null)]);
    assert_eq!(node.seen(), ["tank/db@mine"]);
    assert_eq!(node.daemon.json(&["volume", "show", "tank/db"])["snapshots"], 1);
    node.daemon.refused(3, &["snapshot", "show", MONDAY]);
    node.daemon.refused(3, &["snapshot", "show", &format!("tank/db@{MONDAY}.pending")]);
    node.daemon.refused(4, &["snapshot", "create", "tank/db@monday"]);
    node.daemon.refused(4, &["snapshot", "rename", "tank/db@mine", "monday"]);
    node.daemon.refused(2, &["snapshot", "create", &format!("tank/db@{MONDAY}.pending")]);

    // A named snapshot can be read, and nothing else.
    node.does(name(MONDAY, "monday"));
    node.does(name(MONDAY, "monday"));
    assert_eq!(node.seen(), ["tank/db@mine", "tank/db@monday"]);
    for done in [
        &["snapshot", "delete", "tank/db@monday", "--yes", "--force"][..],
        &["snapshot", "rename", "tank/db@monday", "x"],
    ] {
        let said = node.daemon.refused(4, done);
        assert!(said.contains("snapshot of volume db") && said.contains("braid snapshot list db"), "{said}");
    }
    let socket = node.daemon.folder.join("monday.nbd");
    node.daemon.braid(&["export", "add", "tank/db@monday", "--name", "monday", "--nbd", &format!("unix:{socket}")]);
    let mut reader = Client::open(&socket, "monday").expect("it is exported");
    assert!(reader.read(0, MIB as usize).expect("it is read") == noise(MIB, 1), "what was there at that time");
    reader.write(0, &[1; 4096]).expect_err("it is never writable");
    node.refuses("in_use", json!({"operation": "hide", "snapshot": MONDAY}));
    node.daemon.braid(&["export", "remove", "monday"]);

    // Both snapshots survive the daemon, and so does the pending state of the second.
    node.does(take(TUESDAY, "tuesday"));
    let both = [(MONDAY.to_owned(), json!("monday")), (TUESDAY.to_owned(), Value::Null)];
    assert_eq!(node.snapshots(), both);
    node.daemon.restart(true);
    assert_eq!(node.snapshots(), both);
    let late = node.change(1, FIRST, 1, name(TUESDAY, "tuesday"));
    assert_eq!(late.1["error"]["kind"], "fenced", "no session was let in since: {}", late.1);
    node.open(&node.name(1, FIRST, 2, 0, 1)).expect("it is the controller's");
    let does = |change| assert_eq!(node.change(1, FIRST, 2, change).0, 200);
    does(json!({"operation": "hide", "snapshot": MONDAY}));
    does(json!({"operation": "hide", "snapshot": MONDAY}));
    assert_eq!(node.seen(), ["tank/db@mine"]);
    does(json!({"operation": "remove", "snapshot": MONDAY}));
    does(json!({"operation": "remove", "snapshot": MONDAY}));
    assert_eq!(node.snapshots(), [(TUESDAY.to_owned(), Value::Null)]);
    // A controller may change only snapshots of controllers.
    let (status, refused) = node.change(1, FIRST, 2, json!({"operation": "hide", "snapshot": OF_USER}));
    assert_eq!(status, 400, "{refused}");

    // Deleting the replica by force deletes controllers' snapshots; a snapshot of a user blocks the deletion, and then nothing is deleted.
    does(name(TUESDAY, "tuesday"));
    node.daemon.refused(4, &["replica", "delete", "db", "--yes"]);
    let before = node.seen();
    assert!(before.contains(&"tank/db@tuesday".to_owned()), "{before:?}");
    node.daemon.refused(4, &["replica", "delete", "db", "--yes", "--force"]);
    assert_eq!(node.seen(), before);
    node.daemon.braid(&["snapshot", "delete", "tank/db@mine", "--yes"]);
    node.daemon.braid(&["replica", "delete", "db", "--yes", "--force"]);
    let pool = node.daemon.json(&["pool", "show", "tank"]);
    assert_eq!((&pool["volumes"], &pool["snapshots"]), (&json!(0), &json!(0)), "{pool}");
}

#[test]
fn a_snapshot_is_offered_only_to_the_current_controller() {
    let node = Node::start();
    node.create();
    node.raise(1, FIRST);
    let mut client = node.open(&node.name(1, FIRST, 1, 0, 1)).expect("it is the controller's");
    client.write(2 * MIB, &noise(MIB, 1)).expect("it is written");
    node.does(take(MONDAY, "monday"));
    node.does(name(MONDAY, "monday"));
    client.write(2 * MIB, &noise(MIB, 2)).expect("it is written");
    let of = |epoch: u64, controller: &str| format!("snapshot:{VOLUME}:{MONDAY}?epoch={epoch}&controller={controller}");
    let refused = |name: &str, words: &str| {
        let error = node.open(name).map(|_| ()).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&of(1, FIRST), "0x80000006");
    // Only the current controller may offer a snapshot, and only one of a controller.
    let offer = |snapshot: &str| json!({"operation": "offer", "snapshot": snapshot});
    let withdraw = || json!({"operation": "withdraw", "snapshot": MONDAY});
    for (epoch, controller, session) in [(2, FIRST, 1), (1, SECOND, 1), (1, FIRST, 2)] {
        let (status, said) = node.change(epoch, controller, session, offer(MONDAY));
        assert_eq!((status, &said["error"]["kind"]), (409, &json!("fenced")), "{said}");
    }
    node.refuses("not_found", offer(TUESDAY));
    node.refuses("invalid_argument", offer(OF_USER));
    node.does(offer(MONDAY));

    // The snapshot is readable only with the right epoch and controller, and never writable.
    for wrong in [of(2, FIRST), of(1, SECOND)] {
        refused(&wrong, "fenced");
    }
    refused(&format!("snapshot:{VOLUME}:{MONDAY}"), "0x80000006");
    refused(&format!("{}&session=1", of(1, FIRST)), "is not known");
    refused(&format!("snapshot:{VOLUME}:{MONDAY}?epoch=1"), "controller is missing");
    let mut reader = node.open(&of(1, FIRST)).expect("it is offered");
    assert_eq!(reader.size_bytes, 64 * MIB);
    assert!(reader.read(0, MIB as usize).expect("it is read") == noise(MIB, 1), "what was there at that time");
    reader.write(0, &[1; 4096]).expect_err("it is never writable");
    let address = |name: &str| {
        let name = name.replace(':', "%3A").replace('?', "%3F");
        format!("nbd+unix:///{name}?socket={}", node.daemon.folder.join("replicas.sock"))
    };
    let map = run("nbdinfo", &["--map", "--json", &address(&of(1, FIRST))]);
    let map: Value = serde_json::from_str(&map).expect("a map");
    let types: Vec<&Value> = map.as_array().expect("extents").iter().map(|extent| &extent["type"]).collect();
    assert_eq!(types, [&json!(0), &json!(3)], "{map}");

    // A new offer, or a withdrawal, disconnects readers.
    node.does(offer(MONDAY));
    assert!(reader.read(0, 4096).is_err());
    let mut reader = node.open(&of(1, FIRST)).expect("it is offered");
    node.does(withdraw());
    node.does(withdraw());
    assert!(reader.read(0, 4096).is_err());
    refused(&of(1, FIRST), "0x80000006");

    // Another controller ends the offer and its readers; the snapshots that it offers itself can be deleted at once.
    node.does(offer(MONDAY));
    let mut reader = node.open(&of(1, FIRST)).expect("it is offered");
    reader.read(0, 4096).expect("it is read");
    drop(client);
    node.raise(2, SECOND);
    wait_for("it to be cut off", || reader.read(0, 4096).is_err().then_some(()));
    wait_for("nothing to be left", || {
        let error = node.open(&of(1, FIRST)).map(|_| ()).expect_err("it is over").to_string();
        error.contains("0x80000006").then_some(())
    });
    refused(&of(2, SECOND), "0x80000006");
    let mut second = node.open(&node.name(2, SECOND, 1, 0, 1)).expect("it is the controller's");
    let does = |change| {
        let (status, answer) = node.change(2, SECOND, 1, change);
        assert_eq!(status, 200, "{answer}");
    };
    does(offer(MONDAY));
    let mut reader = node.open(&of(2, SECOND)).expect("it is offered");
    refused(&of(1, FIRST), "fenced");
    does(json!({"operation": "hide", "snapshot": MONDAY}));
    assert!(reader.read(0, 4096).is_err());
    does(json!({"operation": "remove", "snapshot": MONDAY}));
    assert_eq!(node.snapshots(), []);
    second.write(0, &[1; 4096]).expect("the replica is as it was");
}
