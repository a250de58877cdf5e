//! Scenarios of a volume replicated on three nodes: one node at a time dies and returns, and another one takes the
//! volume over. Its clients connect to the serving node, and get no error.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;

use crate::arrays::wait_for_or;
use crate::oracle::BLOCK;
use crate::support::*;
use crate::world::{Log, World};

pub const KIND: &str = "three nodes";

const NAME: &str = "db";
const POOL: &str = "tank";
const REPLICAS: &str = "one/tank,two/tank,three/tank";
/// Size of each node's pool: room for the replica and its snapshots.
const DISK_MIB: u64 = 512;

pub struct NodesScenario {
    /// The daemon of this world is the node that serves the volume.
    pub world: World,
    /// The other two nodes.
    others: Vec<Daemon>,
    /// Whether the replicas are copies, whose snapshots are readable at each node.
    has_copies: bool,
}

impl NodesScenario {
    pub fn new(seed: u64, log: Log) -> NodesScenario {
        let mut world = World::new(seed, log);
        let disk = world.new_file(DISK_MIB);
        world.must(&["pool", "create", POOL, &disk]);
        let place = on_loopback();
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        world.must(&[&["node", "init", "one"][..], &place[..]].concat());
        let others: Vec<Daemon> = ["two", "three"].iter().map(|name| join(&mut world, name)).collect();
        wait_for("all nodes to know each other", || {
            std::iter::once(&world.daemon).chain(&others).all(knows_all).then_some(())
        });
        let has_copies = !world.dice.one_in(3);
        let mut create = vec!["volume", "create", NAME, "64M", "--replicas", REPLICAS];
        if !has_copies {
            create.extend(["--level", "raid5"]);
        }
        world.record(format!("braid {}", create.join(" ")));
        let made = world.json(&create);
        assert_eq!(made["state"], "serving", "{made}");
        let (bytes, number) = (made["size_bytes"].as_u64().expect("a size"), world.oracle.device());
        world.serve(NAME, number, bytes, false);
        // The other nodes have the volume's export prepared.
        for other in &others {
            other.braid(&["export", "add", NAME, "--nbd", &format!("unix:{}", other.nbd_socket(NAME))]);
        }
        NodesScenario { world, others, has_copies }
    }

    pub fn run(mut self, steps: u64) -> World {
        for _ in 0..steps {
            self.step();
        }
        self.end();
        self.world
    }

    fn step(&mut self) {
        match self.world.dice.below(100) {
            0..50 => self.world.burst(0),
            50..60 => self.world.pump(Duration::from_millis(20)),
            60..66 => self.world.drain(0),
            66..80 => self.world.break_connection(0),
            80..84 => self.world.check_map(0),
            84..88 => self.world.compare(0),
            88 | 89 if self.has_copies => self.snapshot(),
            90 | 91 => self.lose_another_node(),
            92 => {
                self.wait_until_in_sync();
                self.restart();
            }
            93 => {
                self.wait_until_in_sync();
                self.world.upgrade();
                self.wait_until_served();
            }
            94 => self.take_over(),
            _ => self.world.burst(0),
        }
    }

    fn state(daemon: &Daemon) -> Value {
        // A node that has just started may not know the volume yet.
        daemon.try_json(&["volume", "show", NAME]).map_or(Value::Null, |volume| volume["state"].clone())
    }

    fn wait_until_served(&self) {
        let daemon = &self.world.daemon;
        let is_served = || (NodesScenario::state(daemon) == "serving").then_some(());
        wait_for_or("the volume to be served", is_served, || said(&daemon.any(&["volume", "show", NAME])));
    }

    /// Waits until all replicas hold all data, so that any node may be lost.
    fn wait_until_in_sync(&mut self) {
        self.world.record("wait until it is whole");
        let daemon = &self.world.daemon;
        let is_in_sync = || {
            let volume = daemon.try_json(&["volume", "show", NAME]).ok()?;
            let voters = volume["voters"].as_array()?;
            (voters.len() == 3 && voters.iter().all(|voter| voter["state"] == "in_sync")).then_some(())
        };
        wait_for_or("all replicas to be in sync", is_in_sync, || said(&daemon.any(&["volume", "show", NAME])));
    }

    fn restart(&mut self) {
        let kill = !self.world.dice.one_in(3);
        self.world.restart(kill);
        self.wait_until_served();
    }

    /// Kills or stops a node that does not serve the volume, with requests in flight, and starts it again.
    fn lose_another_node(&mut self) {
        self.wait_until_in_sync();
        self.world.burst(0);
        let which = self.world.dice.below(2) as usize;
        let kill = !self.world.dice.one_in(3);
        self.world.counts.faults += 1;
        self.world.record(format!("another node ends, by a kill: {kill}"));
        if kill {
            self.others[which].kill();
        } else {
            self.others[which].stop();
        }
        for _ in 0..self.world.dice.below(8) {
            self.world.burst(0);
        }
        match self.world.dice.below(4) {
            0 => self.world.compare(0),
            1 => self.world.break_connection(0),
            // The two remaining nodes are enough to open the volume again.
            2 => self.restart(),
            _ => {}
        }
        self.world.record("the other node is back");
        self.others[which].start_again();
        // Sometimes I/O continues during the rebuild of its replica.
        if self.world.dice.one_in(2) {
            self.wait_until_in_sync();
        }
    }

    /// Ends the serving node or leaves it running, and makes another node take the volume over.
    fn take_over(&mut self) {
        self.wait_until_in_sync();
        self.world.burst(0);
        let which = self.world.dice.below(2) as usize;
        let keeps_running = match self.world.dice.below(3) {
            0 => {
                self.world.kill();
                false
            }
            1 => {
                self.world.stop();
                false
            }
            _ => true,
        };
        self.attach_to(which, keeps_running);
        for _ in 0..self.world.dice.below(6) {
            self.world.burst(0);
        }
        if self.world.dice.one_in(2) {
            self.world.compare(0);
        }
        if !keeps_running {
            self.world.record("the node before is back");
            self.others[which].start_again();
            let before = &self.others[which];
            wait_for_or(
                "the node before to find out",
                || (NodesScenario::state(before) == "detached").then_some(()),
                || said(&before.any(&["volume", "show", NAME])),
            );
        }
    }

    /// Attaches the volume to another node. Requests in flight at the node before have ended when this returns.
    fn attach_to(&mut self, which: usize, keeps_running: bool) {
        self.world.counts.moves += 1;
        self.world.record("braid volume attach, on another node");
        let taken = self.others[which].json(&["volume", "attach", NAME]);
        assert_eq!(taken["state"], "serving", "{taken}");
        if keeps_running {
            let before = &self.world.daemon;
            wait_for_or(
                "the node before to detach the volume",
                || (NodesScenario::state(before) == "detached").then_some(()),
                || said(&before.any(&["volume", "show", NAME])),
            );
            self.world.disconnect_clients(false);
        }
        std::mem::swap(&mut self.world.daemon, &mut self.others[which]);
    }

    /// Takes a snapshot during I/O, on all replicas at one moment, and reads it at this node.
    fn snapshot(&mut self) {
        self.wait_until_in_sync();
        self.world.burst(0);
        let number = self.world.oracle.number();
        let begun = self.world.oracle.now();
        self.world.must(&["snapshot", "create", &format!("{NAME}@s{number}")]);
        let (volume, blocks) = (self.world.devices[0].number, self.world.devices[0].blocks);
        let image = self.world.oracle.snapshot(volume, begun);
        self.world.burst(0);
        self.world.serve(&format!("{POOL}/{NAME}@s{number}"), image, blocks * BLOCK as u64, false);
        self.world.compare(1);
        self.world.unserve(1);
        self.world.must(&["snapshot", "delete", &format!("{NAME}@s{number}"), "--yes"]);
    }

    /// Ends the scenario: each node serves the volume once, and reads what the others have read.
    fn end(&mut self) {
        self.world.record("the end");
        for which in 0..self.others.len() {
            self.wait_until_in_sync();
            self.world.compare(0);
            self.attach_to(which, true);
        }
        self.wait_until_in_sync();
        self.world.compare(0);
        self.world.restart(false);
        self.wait_until_served();
        self.world.compare(0);
    }
}

/// Returns the options of a node's addresses.
fn on_loopback() -> Vec<String> {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        format!("127.0.0.1:{}", listener.expect("loopback is there").port())
    };
    vec!["--listen".to_owned(), free(), "--data".to_owned(), free(), "--data-plain".to_owned()]
}

/// Starts and joins one more node, with a pool of its own.
fn join(world: &mut World, name: &str) -> Daemon {
    let shards = world.dice.within(1, 2).to_string();
    world.record(format!("node {name}: serve --shards {shards}"));
    let folder = Folder::new();
    let disk = folder.sparse("disk.img", DISK_MIB * MIB);
    let daemon = Daemon::start_in(folder, &["--shards", &shards]);
    daemon.braid(&["pool", "create", POOL, &disk]);
    let token = world.daemon.braid(&["node", "invite"]);
    let place = on_loopback();
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    daemon.braid(&[&["node", "join", token.trim(), "--name", name][..], &place[..]].concat());
    daemon
}

/// Returns whether a node sees all three nodes.
fn knows_all(daemon: &Daemon) -> bool {
    let list = daemon.json(&["node", "list"]);
    let nodes = list["nodes"].as_array().expect("a list");
    nodes.len() == 3 && nodes.iter().all(|node| node["state"] == "reachable")
}
