//! Lives of a volume that is kept on three nodes: one of them dies at a time and comes back, and another one takes the volume over. Its
//! clients are at the node that serves it, and are told of no error.

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
const PLACES: &str = "one/tank,two/tank,three/tank";
/// What each node's pool has: room for the replica and its snapshots.
const DISK_MIB: u64 = 512;

pub struct NodesLife {
    /// Its daemon is the node that serves the volume.
    pub world: World,
    /// The other two.
    others: Vec<Daemon>,
    /// Copies, of which snapshots can be read at each node.
    has_copies: bool,
}

impl NodesLife {
    pub fn new(seed: u64, log: Log) -> NodesLife {
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
        let mut create = vec!["volume", "create", NAME, "64M", "--replicas", PLACES];
        if !has_copies {
            create.extend(["--level", "raid5"]);
        }
        world.say(format!("braid {}", create.join(" ")));
        let made = world.json(&create);
        assert_eq!(made["state"], "serving", "{made}");
        let (bytes, number) = (made["size_bytes"].as_u64().expect("a size"), world.oracle.device());
        world.serve(NAME, number, bytes, false);
        // Those that do not serve the volume have its export prepared.
        for other in &others {
            other.braid(&["export", "add", NAME, "--nbd", &format!("unix:{}", other.nbd_socket(NAME))]);
        }
        NodesLife { world, others, has_copies }
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
            90 | 91 => self.another_dies(),
            92 => {
                self.wait_until_whole();
                self.restart();
            }
            93 => {
                self.wait_until_whole();
                self.world.upgrade();
                self.wait_until_served();
            }
            94 => self.another_takes_over(),
            _ => self.world.burst(0),
        }
    }

    fn state(daemon: &Daemon) -> Value {
        // It may not know the volume yet when it has just begun.
        daemon.try_json(&["volume", "show", NAME]).map_or(Value::Null, |volume| volume["state"].clone())
    }

    fn wait_until_served(&self) {
        let daemon = &self.world.daemon;
        let is_served = || (NodesLife::state(daemon) == "serving").then_some(());
        wait_for_or("the volume to be served", is_served, || said(&daemon.any(&["volume", "show", NAME])));
    }

    /// All replicas hold everything, so that any node may be lost.
    fn wait_until_whole(&mut self) {
        self.world.say("wait until it is whole");
        let daemon = &self.world.daemon;
        let is_whole = || {
            let volume = daemon.try_json(&["volume", "show", NAME]).ok()?;
            let voters = volume["voters"].as_array()?;
            (voters.len() == 3 && voters.iter().all(|voter| voter["state"] == "in_sync")).then_some(())
        };
        wait_for_or("all replicas to be in sync", is_whole, || said(&daemon.any(&["volume", "show", NAME])));
    }

    fn restart(&mut self) {
        let kill = !self.world.dice.one_in(3);
        self.world.restart(kill);
        self.wait_until_served();
    }

    /// One that does not serve the volume dies, with requests under way, and comes back.
    fn another_dies(&mut self) {
        self.wait_until_whole();
        self.world.burst(0);
        let which = self.world.dice.below(2) as usize;
        let kill = !self.world.dice.one_in(3);
        self.world.counts.faults += 1;
        self.world.say(format!("another node ends, by a kill: {kill}"));
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
            // The two that are left are enough to open it again.
            2 => self.restart(),
            _ => {}
        }
        self.world.say("the other node is back");
        self.others[which].start_again();
        // Sometimes all goes on while its replica is filled.
        if self.world.dice.one_in(2) {
            self.wait_until_whole();
        }
    }

    /// The node that serves the volume dies, ends or lives, and another one is told to take the volume over.
    fn another_takes_over(&mut self) {
        self.wait_until_whole();
        self.world.burst(0);
        let which = self.world.dice.below(2) as usize;
        let lives = match self.world.dice.below(3) {
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
        self.attach_to(which, lives);
        for _ in 0..self.world.dice.below(6) {
            self.world.burst(0);
        }
        if self.world.dice.one_in(2) {
            self.world.compare(0);
        }
        if !lives {
            self.world.say("the node before is back");
            self.others[which].start_again();
            let before = &self.others[which];
            wait_for_or(
                "the node before to find out",
                || (NodesLife::state(before) == "detached").then_some(()),
                || said(&before.any(&["volume", "show", NAME])),
            );
        }
    }

    /// Has another node serve the volume from now on. What the one before had under way has ended when this returns.
    fn attach_to(&mut self, which: usize, lives: bool) {
        self.world.counts.moves += 1;
        self.world.say("braid volume attach, on another node");
        let taken = self.others[which].json(&["volume", "attach", NAME]);
        assert_eq!(taken["state"], "serving", "{taken}");
        if lives {
            let before = &self.world.daemon;
            wait_for_or(
                "the node before to let go",
                || (NodesLife::state(before) == "detached").then_some(()),
                || said(&before.any(&["volume", "show", NAME])),
            );
            self.world.left_alone(false);
        }
        std::mem::swap(&mut self.world.daemon, &mut self.others[which]);
    }

    /// Taken while requests are under way, on all replicas at one moment, and read as this node has it.
    fn snapshot(&mut self) {
        self.wait_until_whole();
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

    /// Each node serves the volume once, and finds in it what the others have read.
    fn end(&mut self) {
        self.world.say("the end");
        for which in 0..self.others.len() {
            self.wait_until_whole();
            self.world.compare(0);
            self.attach_to(which, true);
        }
        self.wait_until_whole();
        self.world.compare(0);
        self.world.restart(false);
        self.wait_until_served();
        self.world.compare(0);
    }
}

/// Where a node takes part, in words for the command line.
fn on_loopback() -> Vec<String> {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        format!("127.0.0.1:{}", listener.expect("loopback is there").port())
    };
    vec!["--listen".to_owned(), free(), "--data".to_owned(), free(), "--data-plain".to_owned()]
}

/// One node more, with a pool of its own.
fn join(world: &mut World, name: &str) -> Daemon {
    let shards = world.dice.within(1, 2).to_string();
    world.say(format!("node {name}: serve --shards {shards}"));
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

/// Whether a node sees all three.
fn knows_all(daemon: &Daemon) -> bool {
    let list = daemon.json(&["node", "list"]);
    let nodes = list["nodes"].as_array().expect("a list");
    nodes.len() == 3 && nodes.iter().all(|node| node["state"] == "here")
}
