//! Replicas and witnesses of one node: which controllers get replies, which connections are accepted and cut off, and what survives the daemon.

use std::io::Read as _;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api;
use crate::nbd::{Client, WRITE, reply};
use crate::support::*;

pub const VOLUME: &str = "aaaaaaaa-0000-4000-8000-000000000001";
pub const FIRST: &str = "c0000000-0000-4000-8000-000000000001";
pub const SECOND: &str = "c0000000-0000-4000-8000-000000000002";
const BOOT: &str = "b0000000-0000-4000-8000-000000000001";

/// A node with a pool, which offers its replicas on a socket.
pub struct Node {
    pub daemon: Daemon,
}

/// Returns a membership of two replicas and a witness.
fn membership() -> Value {
    json!({"version": 0, "voters": 7, "previous_voters": 0, "replicas": 3})
}

impl Node {
    pub fn start() -> Node {
        Node::start_with(512 * MIB, "")
    }

    /// Starts a node with a disk of this size and with these fault rules, if any.
    fn start_with(bytes: u64, rules: &str) -> Node {
        Node::start_in(Folder::new(), bytes, rules)
    }

    /// Starts a node in this folder.
    pub fn start_in(folder: Folder, bytes: u64, rules: &str) -> Node {
        let file = folder.sparse("a.img", bytes);
        let disk = if rules.is_empty() { file } else { format!("faulty({file}{rules})") };
        let listen = format!("unix:{}", folder.join("replicas.sock"));
        let daemon = Daemon::start_in(folder, &["--shards", "2", "--replica-listen", &listen]);
        daemon.braid(&["pool", "create", "tank", &disk]);
        Node { daemon }
    }

    /// Sends one request to the API. Returns its status and the reply.
    pub fn any(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = api::ask(&self.daemon, method, path, &body);
        (status, serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")))
    }

    #[track_caller]
    pub fn right(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.any(method, path, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub fn create(&self) -> Value {
        self.create_of(64 * MIB)
    }

    fn create_of(&self, bytes: u64) -> Value {
        self.right(
            "POST",
            "/v1/replicas",
            &json!({"volume": VOLUME, "name": "db", "voter": 0, "membership": membership(), "in_sync": 3, "pool": "tank",
                "size_bytes": bytes, "head_bytes": 2 * MIB, "tail_bytes": MIB}),
        )
    }

    pub fn show(&self) -> Value {
        self.right("GET", &format!("/v1/replicas/{VOLUME}"), &Value::Null)
    }

    pub fn ask(&self, body: &Value) -> (u16, Value) {
        self.any("POST", &format!("/v1/replicas/{VOLUME}/request"), body)
    }

    pub fn raise(&self, epoch: u64, controller: &str) -> Value {
        let (status, answer) = self.ask(&raise_of(epoch, controller));
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["reply"], "raised", "{answer}");
        answer
    }

    pub fn boot(&self) -> String {
        self.show()["boot"].as_str().expect("it has one").to_owned()
    }

    pub fn name(&self, epoch: u64, controller: &str, session: u64, connection: u16, attempt: u64) -> String {
        let boot = self.boot();
        format!(
            "replica:{VOLUME}?epoch={epoch}&controller={controller}&boot={boot}&session={session}&connection={connection}&attempt={attempt}"
        )
    }

    pub fn open(&self, name: &str) -> std::io::Result<Client> {
        Client::open(&self.daemon.folder.join("replicas.sock"), name)
    }

    #[track_caller]
    fn refused(&self, name: &str, words: &str) {
        let error = self.open(name).map(|_| ()).expect_err(words).to_string();
        assert!(error.contains("0x80000002") && error.contains(words), "{error}");
    }
}

fn raise_of(epoch: u64, controller: &str) -> Value {
    json!({"request": "raise", "epoch": epoch, "controller": controller})
}

/// Returns whether the server has closed the connection.
fn is_cut(client: &mut Client) -> bool {
    matches!(client.stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

#[test]
fn a_controller_is_accepted_and_a_later_one_cuts_it_off() {
    let node = Node::start();
    let made = node.create();
    assert_eq!((&made["state"], &made["witness"]), (&json!("ready"), &json!(false)), "{made}");
    assert_eq!(made["register"]["vote"]["in_sync"], 3);
    assert_eq!(made["register"]["boot"], made["boot"]);
    node.refused(&node.name(1, FIRST, 1, 0, 1), "fenced");
    let raised = node.raise(3, FIRST);
    assert_eq!((&raised["before"]["epoch"], &raised["boot"]), (&json!(0), &made["boot"]), "{raised}");

    let mut first = node.open(&node.name(3, FIRST, 1, 0, 1)).expect("it is the controller's");
    assert_eq!(first.size_bytes, 67 * MIB);
    // Across both seams: the metadata before the data, the data, and the metadata after the data.
    for (seed, at) in [(1, 0), (2, 2 * MIB - 64 * KIB), (3, 66 * MIB - 64 * KIB), (4, 67 * MIB - 128 * KIB)] {
        first.write(at, &noise(128 * KIB, seed)).expect("it is written");
        assert!(first.read(at, 128 * KIB as usize).expect("it is read") == noise(128 * KIB, seed), "{seed}");
    }
    first.flush().expect("it is flushed");
    // The controller sees unwritten ranges as holes, in the metadata before and after the data too, and all other ranges as data.
    let name = node.name(3, FIRST, 1, 2, 1).replace(':', "%3A").replace('?', "%3F");
    let socket = node.daemon.folder.join("replicas.sock");
    let map = run("nbdinfo", &["--map", "--json", &format!("nbd+unix:///{name}?socket={socket}")]);
    let map: Value = serde_json::from_str(&map).expect("a map");
    let extents = map.as_array().expect("extents").iter().map(|extent| (&extent["offset"], &extent["type"]));
    let (data, hole) = (json!(0), json!(3));
    let expected = [
        (0, &data),
        (128 * KIB, &hole),
        (2 * MIB - 64 * KIB, &data),
        (2 * MIB + 64 * KIB, &hole),
        (66 * MIB - 64 * KIB, &data),
        (66 * MIB + 64 * KIB, &hole),
        (67 * MIB - 128 * KIB, &data),
    ];
    let expected = expected.map(|(offset, kind)| (json!(offset), kind));
    assert_eq!(extents.collect::<Vec<_>>(), expected.iter().map(|(at, kind)| (at, *kind)).collect::<Vec<_>>(), "{map}");
    // A second connection of the session, and a new attempt of the first one.
    let mut parallel = node.open(&node.name(3, FIRST, 1, 1, 1)).expect("another connection");
    let mut again = node.open(&node.name(3, FIRST, 1, 0, 2)).expect("a later attempt");
    assert!(is_cut(&mut first));
    node.refused(&node.name(3, FIRST, 1, 0, 2), "fenced");
    parallel.write(8 * MIB, &[7; 4096]).expect("it goes on");
    assert_eq!(again.read(8 * MIB, 4096).expect("it is read"), [7; 4096]);
    // A later session ends both.
    let mut later = node.open(&node.name(3, FIRST, 2, 0, 1)).expect("a later session");
    assert!(is_cut(&mut parallel) && is_cut(&mut again));
    node.refused(&node.name(3, FIRST, 1, 5, 9), "fenced");

    // No other controller gets this epoch or an older one; a later epoch ends all connections.
    let (status, refused) = node.ask(&json!({"request": "raise", "epoch": 3, "controller": SECOND}));
    assert_eq!((status, &refused["error"]["kind"]), (409, &json!("fenced")), "{refused}");
    assert_eq!(refused["error"]["context"]["epoch"], "3");
    let raised = node.raise(5, SECOND);
    assert_eq!(raised["before"]["controller"], FIRST);
    assert!(is_cut(&mut later));
    node.refused(&node.name(3, FIRST, 3, 0, 1), "epoch 5 is answered now");
    let (status, _) = node.ask(&json!({"request": "heartbeat", "epoch": 3, "controller": FIRST}));
    assert_eq!(status, 409);
    let mut second = node.open(&node.name(5, SECOND, 1, 0, 1)).expect("the new controller's");
    assert!(second.read(2 * MIB - 64 * KIB, 128 * KIB as usize).expect("it is read") == noise(128 * KIB, 2));
    let vote = json!({"epoch": 5, "sequence": 1, "lineage": 7, "in_sync": 1, "membership": membership()});
    let cast = json!({"request": "cast", "epoch": 5, "controller": SECOND, "vote": vote, "boot": node.boot()});
    assert_eq!(node.ask(&cast), (200, json!({"reply": "cast"})));
    assert_eq!(node.show()["register"]["vote"], vote);
    let release = json!({"request": "release", "epoch": 5, "controller": SECOND});
    assert_eq!(node.ask(&release), (200, json!({"reply": "released"})));
    assert_eq!(node.show()["register"]["released"], true);
}

#[test]
fn connections_with_wrong_parameters_are_refused() {
    let node = Node::start();
    node.create();
    node.raise(1, FIRST);
    let right = node.name(1, FIRST, 1, 0, 1);
    let bare = format!("replica:{VOLUME}");
    let unknown = node.open(&bare).map(|_| ()).expect_err("there is no such name").to_string();
    assert!(unknown.contains("0x80000006"), "{unknown}");
    node.refused(&format!("{bare}?"), "not known");
    node.refused(&right.replace("&connection=0", ""), "connection is missing");
    node.refused(&format!("{right}&more=1"), "not known");
    node.refused(&right.replace(&node.boot(), BOOT), "rebooted");
    node.refused(&right.replace("epoch=1", "epoch=2"), "epoch 1 is answered now");
    node.refused(&right.replace(FIRST, SECOND), "fenced");
    node.refused(&right.replace("connection=0", "connection=256"), "fenced");
    // The replica is not listed for clients without the right parameters.
    let listed =
        run("nbdinfo", &["--list", &format!("nbd+unix:///?socket={}", node.daemon.folder.join("replicas.sock"))]);
    assert!(!listed.contains("replica:"), "{listed}");
    node.open(&right).expect("the right terms do");
    for wrong in [
        json!({"request": "raise", "epoch": 0, "controller": FIRST}),
        json!({"request": "raise", "epoch": u64::MAX, "controller": FIRST}),
        json!({"request": "raise", "epoch": 9, "controller": "00000000-0000-0000-0000-000000000000"}),
        json!({"request": "cast", "epoch": 1, "controller": FIRST, "vote": {"epoch": 1, "sequence": 1, "lineage": 0, "in_sync": 8, "membership": membership()}}),
        json!({"request": "dance"}),
    ] {
        let (status, refused) = node.ask(&wrong);
        assert_eq!((status, &refused["error"]["kind"]), (400, &json!("invalid_argument")), "{wrong}: {refused}");
    }
}

#[test]
fn a_replica_survives_the_daemon_and_a_new_boot_is_reported() {
    let mut node = Node::start();
    node.create();
    node.raise(4, FIRST);
    let name = node.name(4, FIRST, 1, 0, 1);
    let mut client = node.open(&name).expect("it is the controller's");
    client.write(5 * MIB, &noise(MIB, 5)).expect("it is written");
    // Unflushed writes survive, as the machine has not failed.
    node.daemon.restart(true);
    assert_eq!((node.show()["register"]["epoch"].clone(), node.show()["state"].clone()), (json!(4), json!("ready")));
    let mut client = node.open(&name).expect("it is the same boot");
    assert!(client.read(5 * MIB, MIB as usize).expect("it is read") == noise(MIB, 5));
    drop(client);
    node.daemon.restart(false);
    node.open(&name).expect("also after an end in order");
    // Acknowledged and unflushed writes are lost with the memory that holds them, as after a loss of power.
    let mut client = node.open(&node.name(4, FIRST, 2, 0, 1)).expect("a later session");
    client.write(5 * MIB, &noise(MIB, 6)).expect("it is written");
    let before = node.boot();
    node.daemon.kill();
    let tails = node.daemon.folder.join("shared");
    std::fs::remove_dir_all(&tails).expect("the memory is there");
    node.daemon.start_again();
    assert_ne!(node.boot(), before);
    node.refused(&name.replace("session=1", "session=9"), "rebooted");
    let lost = node.boot();
    node.daemon.restart(false);
    assert_eq!(node.boot(), lost, "it is not forgotten");
}

#[test]
fn one_of_the_two_copies_of_a_register_may_be_damaged() {
    let mut node = Node::start();
    node.create();
    node.raise(6, FIRST);
    node.daemon.stop();
    let disk = node.daemon.folder.join("a.img");
    let damage_copies = |damaged: usize| {
        let mut bytes = std::fs::read(&disk).expect("it can be read");
        let found: Vec<usize> = (0..bytes.len()).step_by(4096).filter(|at| &bytes[*at..at + 4] == b"BRRG").collect();
        let volume = [0xaa, 0xaa, 0xaa, 0xaa];
        let found: Vec<usize> = found.into_iter().filter(|at| bytes[at + 8..at + 12] == volume).collect();
        assert!(found.len() >= 2, "{found:?}");
        for at in found.iter().rev().take(damaged) {
            bytes[at + 100] ^= 1;
        }
        std::fs::write(&disk, bytes).expect("it can be written");
    };
    damage_copies(1);
    node.daemon.start_again();
    assert_eq!((node.show()["state"].clone(), node.show()["register"]["epoch"].clone()), (json!("ready"), json!(6)));
    node.daemon.stop();
    // The start has repaired the damaged copy: the other copy may be damaged now. Then both are damaged.
    damage_copies(usize::MAX);
    node.daemon.start_again();
    let shown = node.show();
    assert_eq!(shown["state"], "lost", "{shown}");
    let (status, refused) = node.ask(&json!({"request": "raise", "epoch": 9, "controller": FIRST}));
    assert_eq!((status, &refused["error"]["kind"]), (422, &json!("damaged")), "{refused}");
    let events = node.daemon.events();
    assert!(events.contains("replica_failed"), "{events}");
    node.daemon.braid(&["replica", "delete", "db", "--yes"]);
    assert!(node.daemon.braid(&["volume", "list"]).contains("no volumes"));
}

#[test]
fn the_data_of_a_replica_are_not_for_other_users() {
    let node = Node::start();
    node.create();
    let daemon = &node.daemon;
    let list = daemon.json(&["volume", "list"]);
    let names: Vec<&str> =
        list["volumes"].as_array().expect("a list").iter().filter_map(|v| v["name"].as_str()).collect();
    assert_eq!(names, ["tank/db"], "replica metadata are in no list");
    assert_eq!(daemon.json(&["pool", "show", "tank"])["volumes"], 1);
    let nbd = format!("unix:{}", daemon.folder.join("others.sock"));
    for (status, words) in [
        (4, vec!["volume", "resize", "tank/db", "128M"]),
        (4, vec!["volume", "resize", "tank/db", "32M", "--force", "--yes"]),
        (4, vec!["volume", "rename", "tank/db", "other"]),
        (4, vec!["volume", "delete", "tank/db", "--force", "--yes"]),
        (4, vec!["export", "add", "tank/db", "--nbd", &nbd]),
        (4, vec!["pool", "delete", "tank", "--force", "--yes"]),
        (4, vec!["array", "create", "x", "--level", "concat", "tank/db", "--force"]),
    ] {
        let said = daemon.refused(status, &words);
        assert!(said.contains("replica db"), "{words:?}: {said}");
    }
    // Reading a snapshot of it is allowed.
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    daemon.braid(&["export", "add", "tank/db@monday", "--nbd", &nbd]);
    let said = daemon.refused(4, &["volume", "rollback", "tank/db", "@monday", "--yes"]);
    assert!(said.contains("replica db"), "{said}");
    let said = daemon.refused(4, &["replica", "delete", "db", "--yes"]);
    assert!(said.contains("snapshots"), "{said}");
    daemon.braid(&["snapshot", "delete", "tank/db@monday", "--force", "--yes"]);
    assert!(daemon.braid(&["replica", "list"]).contains("tank/db"));
    assert!(daemon.braid(&["replica", "show", "db"]).contains(VOLUME));
    daemon.braid(&["replica", "delete", "db", "--yes"]);
    daemon.braid(&["pool", "delete", "tank", "--yes"]);
}

#[test]
fn a_replica_that_has_voted_is_deleted_only_by_force() {
    let node = Node::start();
    node.create();
    node.raise(3, FIRST);
    let said = node.daemon.refused(4, &["replica", "delete", "db", "--yes"]);
    assert!(said.contains("voter 0 of 3") && said.contains("epoch 3") && said.contains("--force"), "{said}");
    assert_eq!(node.show()["state"], "ready");
    node.daemon.braid(&["replica", "delete", "db", "--yes", "--force"]);
    assert!(node.daemon.braid(&["replica", "list"]).contains("no replicas"));
}

#[test]
fn a_witness_keeps_a_register_and_nothing_else() {
    let mut node = Node::start();
    let witness = json!({"volume": VOLUME, "name": "db", "voter": 2, "membership": membership(), "in_sync": 3});
    let mut wrong = witness.clone();
    wrong["in_sync"] = json!(7);
    let (status, refused) = node.any("POST", "/v1/replicas", &wrong);
    assert_eq!(status, 400, "{refused}");
    let made = node.right("POST", "/v1/replicas", &witness);
    assert_eq!((&made["witness"], &made["export"]), (&json!(true), &Value::Null), "{made}");
    let (status, refused) = node.any("POST", "/v1/replicas", &witness);
    assert_eq!((status, &refused["error"]["kind"]), (409, &json!("exists")), "{refused}");
    node.raise(2, FIRST);
    node.daemon.restart(true);
    assert_eq!(node.show()["register"]["epoch"], 2);
    let file = node.daemon.folder.join(&format!("state/registers/{VOLUME}"));
    let damage = |places: &[usize]| {
        let mut bytes = std::fs::read(&file).expect("it is there");
        assert_eq!(bytes.len(), 8192);
        places.iter().for_each(|at| bytes[*at] ^= 0x10);
        std::fs::write(&file, bytes).expect("it can be written");
    };
    node.daemon.stop();
    damage(&[4096 + 50]);
    node.daemon.start_again();
    assert_eq!(node.show()["register"]["epoch"], 2);
    node.daemon.stop();
    damage(&[50]);
    node.daemon.start_again();
    assert_eq!(node.show()["register"]["epoch"], 2, "the start before has mended the other one");
    node.daemon.stop();
    damage(&[50, 4096 + 50]);
    node.daemon.start_again();
    assert_eq!(node.show()["state"], "lost");
    node.daemon.braid(&["replica", "delete", "db", "--yes"]);
    assert!(!std::path::Path::new(&file).exists());
}

/// A small tmpfs over a folder.
struct Small {
    at: String,
}

impl Small {
    fn over(at: String) -> Small {
        need_root();
        std::fs::create_dir_all(&at).expect("a folder can be made");
        run("mount", &["-t", "tmpfs", "-o", "size=64k", "braid-test", &at]);
        Small { at }
    }

    /// Fills the free space. Returns the file that takes it.
    fn fill(&self) -> String {
        let path = format!("{}/filler", self.at);
        let _full = std::fs::write(&path, noise(128 * KIB, 1)).expect_err("there is no room for this");
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = command("umount").args(["--lazy", &self.at]).output();
    }
}

#[test]
fn a_voter_votes_again_once_its_register_can_be_written() {
    let node = Node::start();
    let small = Small::over(node.daemon.folder.join("state/registers"));
    node.right(
        "POST",
        "/v1/replicas",
        &json!({"volume": VOLUME, "name": "db", "voter": 2, "membership": membership(), "in_sync": 3}),
    );
    node.raise(3, FIRST);
    for (slot, epoch) in [("0", 4), ("4096", 5)] {
        // Writes to one of the copies of the register fail.
        run("fallocate", &["--punch-hole", "-o", slot, "-l", "4096", &format!("{}/{VOLUME}", small.at)]);
        let filler = small.fill();
        let (status, refused) = node.ask(&raise_of(epoch, SECOND));
        assert_eq!((status, &refused["error"]["kind"]), (409, &json!("inactive")), "{refused}");
        let shown = node.show();
        assert_eq!((&shown["state"], &shown["register"]), (&json!("failed"), &Value::Null), "{shown}");
        assert!(shown["reason"].as_str().is_some_and(|why| why.contains("is retried")), "{shown}");
        let status = node.daemon.braid(&["status"]);
        assert!(status.contains("replica db"), "{status}");
        let (_, refused) = node.ask(&json!({"request": "heartbeat", "epoch": 3, "controller": FIRST}));
        assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("does not vote")), "{refused}");
        node.daemon.refused(4, &["replica", "delete", "db", "--yes"]);
        std::fs::remove_file(filler).expect("it is there");
        wait_for("it to vote again", || (node.show()["state"] == "ready").then_some(()));
        // The register holds the new epoch or the one before; no reply has confirmed either.
        let raised = node.show()["register"]["epoch"].as_u64().expect("a number");
        assert!(raised == epoch || raised == epoch - 1, "{raised}");
        node.raise(epoch, SECOND);
    }
    let events = node.daemon.events();
    assert!(events.contains("replica_failed") && events.contains("replica_votes"), "{events}");
}

/// Writes all of the data in pieces, and waits until one of them hangs at the disk and all others have replies.
fn all_but_one(client: &mut Client) {
    let pieces = 256;
    for piece in 0..pieces {
        client.send(0, WRITE, (2 + piece) * MIB, MIB as u32, &noise(MIB, piece)).expect("it is sent");
    }
    for _ in 1..pieces {
        assert_eq!(reply(&mut client.stream).expect("it is answered").0, 0);
    }
}

#[test]
fn a_raise_waits_for_writes_in_flight_at_a_disk() {
    let node = Node::start_with(1024 * MIB, ",write-delay=4s@240M-500M*1");
    node.create_of(256 * MIB);
    node.raise(1, FIRST);
    let mut first = node.open(&node.name(1, FIRST, 1, 0, 1)).expect("it is the controller's");
    all_but_one(&mut first);
    // A later attempt of the same connection waits in its handshake, and another connection does not.
    thread::scope(|scope| {
        let again = scope.spawn(|| node.open(&node.name(1, FIRST, 1, 0, 2)).expect("it is let in"));
        assert!(is_cut(&mut first), "at once");
        node.open(&node.name(1, FIRST, 1, 1, 1)).expect("another connection");
        assert!(!again.is_finished(), "the disk has a write");
        again.join().expect("it does not panic");
    });
}

#[test]
fn a_raise_gets_no_reply_while_a_disk_hangs_with_a_timed_out_write() {
    let mut node = Node::start_with(1024 * MIB, ",write-hang@240M-500M*1");
    node.create_of(256 * MIB);
    node.raise(1, FIRST);
    let limit_ms = node.daemon.json(&["status"])["limits"]["disk_timeout_ms"].as_u64().expect("a limit");
    let mut first = node.open(&node.name(1, FIRST, 1, 0, 1)).expect("it is the controller's");
    all_but_one(&mut first);
    let raise = thread::spawn({
        let socket = node.daemon.folder.join("api.sock");
        move || {
            api::ask_at(&socket, "POST", &format!("/v1/replicas/{VOLUME}/request"), &raise_of(2, SECOND).to_string())
        }
    });
    assert!(is_cut(&mut first));
    // The engine times the write out and closes the connection; the disk still has the write in flight.
    thread::sleep(Duration::from_millis(limit_ms) + Duration::from_secs(4));
    assert!(!raise.is_finished(), "it may be written yet");
    let shown = node.show();
    assert_eq!((&shown["register"]["epoch"], &shown["connections"]), (&json!(1), &json!(1)), "{shown}");
    let waits = node.open(&node.name(1, FIRST, 2, 0, 1)).map(|_| ()).expect_err("another one is coming").to_string();
    assert!(waits.contains("0x80000007"), "{waits}");
    // The write ends with the process: the next request gets a reply.
    node.daemon.running.terminate();
    node.daemon.running.wait_within(Duration::from_secs(60));
    drop(raise.join());
    node.daemon.start_again();
    assert_eq!(node.show()["register"]["epoch"], 1);
    node.raise(3, SECOND);
}
