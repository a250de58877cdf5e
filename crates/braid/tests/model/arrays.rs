//! Lives of an array of each level: what its administrator does, and what happens to its disks.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::dice::Dice;
use crate::remedies::Remedies;
use crate::support::*;
use crate::world::{Log, World, move_file};

pub const LEVELS: [&str; 6] = ["concat", "raid0", "raid1", "raid10", "raid5", "raid6"];
pub const NAME: &str = "data";

pub struct ArrayLife {
    pub world: World,
    pub level: &'static str,
    pub member_mib: u64,
    /// How many members may be lost.
    pub tolerates: usize,
    /// The small file system that its disks are on, where they are.
    pub small: Option<String>,
    /// Nothing more can be told of it.
    pub over: bool,
}

impl ArrayLife {
    pub fn new(level: &'static str, seed: u64, log: Log) -> ArrayLife {
        let mut world = World::new(seed, log);
        let members = match level {
            "concat" | "raid0" | "raid1" => world.dice.within(2, 3),
            "raid10" => world.dice.within(2, 5),
            "raid5" => world.dice.within(3, 5),
            _ => world.dice.within(4, 6),
        };
        let member_mib = world.dice.within(3, 6) * 8;
        let small = world.dice.one_in(4) && !world.without("fills");
        let small = if small { world.mount_small() } else { None };
        let mut specs = Vec::new();
        for _ in 0..members {
            // Members of different sizes, but never smaller than those that take their places.
            let mib = member_mib + if world.dice.one_in(3) { 8 } else { 0 };
            let path = world.new_file(mib);
            specs.push(slow(&mut world.dice, &path));
        }
        let chunk = *world.dice.pick(&["16K", "64K", "64K", "128K"]);
        let mut arguments = vec!["array", "create", NAME, "--level", level, "--chunk", chunk];
        if world.dice.one_in(2) && is_redundant(level) {
            arguments.extend(["--start-degraded", "auto"]);
        }
        arguments.extend(specs.iter().map(String::as_str));
        world.must(&arguments);
        let tolerates = world.json(&["array", "show", NAME])["redundancy"]["tolerates"].as_u64().unwrap_or(0) as usize;
        let mut life = ArrayLife { world, level, member_mib, tolerates, small, over: false };
        let size = life.show()["size_bytes"].as_u64().expect("a size");
        let number = life.world.oracle.device();
        let file = life.world.dice.one_in(2);
        life.world.serve(NAME, number, size, file);
        life
    }

    pub fn show(&self) -> Value {
        self.world.json(&["array", "show", NAME])
    }

    pub fn health(&self) -> String {
        self.show()["redundancy"]["health"].as_str().unwrap_or("none").to_owned()
    }

    pub fn is_redundant(&self) -> bool {
        is_redundant(self.level)
    }

    /// The file of a member, by number.
    pub fn path(&self, member: usize) -> Option<String> {
        path_of(self.show()["members"][member]["disk"].as_str()?)
    }

    /// Members that hold data, in sync.
    pub fn members(&self) -> Vec<usize> {
        in_sync(&self.show())
    }

    pub fn some_member(&mut self) -> usize {
        self.some_member_of(&self.show())
    }

    /// One of the members that were in sync at that look.
    pub fn some_member_of(&mut self, show: &Value) -> usize {
        *self.world.dice.pick(&in_sync(show))
    }

    pub fn wait_until_whole(&mut self) {
        if self.is_redundant() {
            self.world.say("wait until it is whole");
            self.world.drain_all();
            wait_for_or(
                "the array to be whole",
                || self.is_whole().then_some(()),
                || format!("{:#}\n{}", self.show(), said(&self.world.daemon.any(&["status"]))),
            );
        }
    }

    pub fn is_whole(&self) -> bool {
        let show = self.show();
        // A successor that is in sync takes its number a moment later: until then one look differs from the next.
        let is_filling = |one: &Value| one["state"] == "filling" || !one["replaces"].is_null();
        let filling = show["members"].as_array().is_some_and(|members| members.iter().any(is_filling));
        // After a start by force all parity is looked at by itself, and no other check begins beside that.
        let is_in_doubt = |one: &Value| one.as_str().is_some_and(|said| said.starts_with("its parity may be"));
        let in_doubt = show["attention"].as_array().is_some_and(|said| said.iter().any(is_in_doubt));
        show["redundancy"]["health"] == "whole" && !filling && !in_doubt
    }

    /// After a start: it serves by itself, or as the status says how.
    fn wait_until_active(&mut self) {
        wait_for_or(
            "the array to serve",
            || (self.show()["state"] == "active").then_some(()),
            || format!("{:#}\n{}", self.show(), said(&self.world.daemon.any(&["status"]))),
        );
    }

    pub fn run(mut self, steps: u64) -> World {
        for _ in 0..steps {
            self.step();
            if self.over {
                return self.world;
            }
        }
        self.end();
        self.world
    }

    fn step(&mut self) {
        match self.world.dice.below(100) {
            0..48 => self.world.burst(0),
            48..58 => self.world.pump(Duration::from_millis(20)),
            58..64 => self.world.drain(0),
            64..76 => self.world.break_connection(0),
            76..82 => self.world.by_file(0),
            82..84 => self.world.check_map(0),
            84..86 => self.world.compare(0),
            86..89 => {
                let kill = !self.world.dice.one_in(3);
                self.world.restart(kill);
                self.wait_until_active();
            }
            89 => {
                self.world.upgrade();
                self.wait_until_active();
            }
            90 | 91 => self.kill_and_bring_an_old_copy_back(),
            92 => self.swap(),
            93 => self.fill_up(),
            94 => self.grow(),
            95 if !self.is_redundant() && self.world.dice.one_in(4) => self.cut(),
            _ if self.is_redundant() => self.administer(),
            _ => {
                // What only redundant arrays can is refused by others, and harms nothing.
                let verb = *self.world.dice.pick(&["check", "repair", "grow", "show"]);
                self.world.braid(&["array", verb, NAME]);
            }
        }
    }

    fn administer(&mut self) {
        match self.world.dice.below(8) {
            0 => self.lose_and_return(),
            1 => self.replace(),
            2 => self.check(),
            3 => self.rot(),
            4 => self.start_without_a_member(),
            5 => self.cut(),
            6 => self.crash_and_lose(),
            _ => self.new_spare(),
        }
    }

    /// A member is failed by command, and returns, or another disk takes its place.
    fn lose_and_return(&mut self) {
        if !self.is_whole() {
            return;
        }
        let member = self.some_member();
        let disk = self.show()["members"][member]["disk"].as_str().expect("it has a disk").to_owned();
        let number = member.to_string();
        self.world.counts.faults += 1;
        // What is being written while it is lost, and while the daemon is killed, may become unreadable: see `crash_and_lose`.
        self.world.drain(0);
        // A replacement may end in between, and numbers with it.
        if self.world.braid(&["array", "fail", NAME, &number]).0 != 0 {
            return;
        }
        for _ in 0..self.world.dice.below(6) {
            self.world.burst(0);
        }
        match self.world.dice.below(4) {
            0 => self.world.restart(true),
            1 => self.world.compare(0),
            _ => {}
        }
        self.wait_until_active();
        if self.health() == "degraded" {
            if self.world.dice.one_in(2) {
                self.remedies(&disk);
            } else {
                let fresh = self.world.new_file(self.member_mib + 8);
                self.world.must(&["array", "remove", NAME, &number]);
                self.world.must(&["array", "add", NAME, &fresh]);
            }
        }
        // Sometimes all goes on while it is filled.
        if self.world.dice.one_in(2) {
            self.wait_until_whole();
        }
    }

    /// It becomes larger, by as many disks as its level needs.
    fn grow(&mut self) {
        if self.world.without("growth") || (self.is_redundant() && !self.is_whole()) || self.members().len() > 8 {
            return;
        }
        let copies = self.show()["redundancy"]["copies"].as_u64();
        let needs = match self.level {
            "concat" | "raid0" => 1,
            "raid5" => 2,
            "raid6" => 3,
            _ => copies.expect("it has copies"),
        };
        let fresh: Vec<String> = (0..needs).map(|_| self.world.new_file(self.member_mib)).collect();
        let mut arguments = vec!["array", "grow", NAME];
        arguments.extend(fresh.iter().map(String::as_str));
        let (status, text) = self.world.braid(&arguments);
        if status != 0 {
            // Disks of other sizes: what is new would survive fewer losses than what is there.
            assert!(text.contains("what is new would have"), "array grow: {text}");
            return;
        }
        let blocks = self.show()["size_bytes"].as_u64().expect("a size") / crate::oracle::BLOCK as u64;
        self.world.grown(0, blocks);
    }

    /// Members that are out and whose disks are well are added again.
    pub fn add_all_again(&mut self) {
        if !self.is_redundant() {
            return;
        }
        let start = std::time::Instant::now();
        while self.health() == "degraded" {
            assert!(start.elapsed() < PATIENCE, "members do not return: {:#}", self.show());
            let members = self.show()["members"].as_array().cloned().unwrap_or_default();
            for member in members.iter().filter(|member| member["state"] == "out" || member["state"] == "missing") {
                if let Some(disk) = member["disk"].as_str() {
                    self.world.braid(&["array", "add", NAME, disk]);
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn replace(&mut self) {
        if !self.is_whole() {
            return;
        }
        let member = self.some_member().to_string();
        let fresh = self.world.new_file(self.member_mib + 8);
        let (status, text) = self.world.braid(&["array", "replace", NAME, &member, &fresh]);
        assert!(status == 0 || text.contains("job"), "array replace: {text}");
        self.world.burst(0);
        if self.world.dice.one_in(2) {
            self.wait_until_whole();
        }
    }

    fn new_spare(&mut self) {
        let fresh = self.world.new_file(self.member_mib + 8);
        let (status, _) = self.world.braid(&["array", "spare", NAME, &fresh]);
        if status == 0 {
            self.world.burst(0);
            // It may have taken a place in between.
            self.world.braid(&["array", "spare", NAME, &fresh, "--remove"]);
        }
    }

    /// Nothing has rotted: nothing differs.
    fn check(&mut self) {
        if !self.is_whole() {
            return;
        }
        let verb = *self.world.dice.pick(&["check", "repair"]);
        self.world.burst(0);
        let (status, text) = self.world.braid(&["array", verb, NAME, "--wait"]);
        assert_ne!(status, 7, "nothing has rotted: {text}");
    }

    /// A copy of one member is taken between two lives of the daemon, and is found in its place at a later start. What it has is old.
    fn kill_and_bring_an_old_copy_back(&mut self) {
        if self.world.without("old-copies") {
            return;
        }
        self.wait_until_whole();
        self.world.kill();
        self.world.start();
        self.wait_until_active();
        self.wait_until_whole();
        let member = self.some_member();
        let Some(path) = self.path(member) else { return };
        if self.world.dice.one_in(2) {
            self.world.kill();
        } else {
            self.world.stop();
        }
        self.world.say(format!("a copy of {path}"));
        let old = self.world.away(&path);
        run("cp", &["--sparse=always", &path, &old]);
        self.world.start();
        self.wait_until_active();
        for _ in 0..self.world.dice.within(1, 4) {
            self.world.burst(0);
        }
        self.world.drain(0);
        let at = self.world.connect(0);
        self.world.call(0, at, crate::client::Op::Flush, 0, 0);
        if self.world.dice.one_in(2) {
            self.world.kill();
        } else {
            self.world.stop();
        }
        self.world.counts.faults += 1;
        self.world.say(format!("the copy in the place of {path}"));
        // Where it is found, or where it is not.
        let beside = self.world.dice.one_in(3);
        let kept = if beside { format!("{path}.kept") } else { format!("{old}.kept") };
        move_file(&path, &kept).and_then(|()| move_file(&old, &path)).expect("files can be moved");
        self.world.start();
        if self.is_redundant() {
            self.start_by_remedies(&path);
            self.world.compare(0);
            self.wait_until_whole();
            let used = (0..self.show()["members"].as_array().map_or(0, Vec::len))
                .any(|member| self.path(member).as_ref() == Some(&kept));
            if used {
                // A copy beside its member hinders no start. Without the other members nothing could tell which of the two is the copy: the
                // administrator takes it away, as the event says that it is one.
                let killed = self.world.dice.one_in(2);
                self.world.restart(killed);
                self.wait_until_active();
                self.world.compare(0);
            }
            fs::remove_file(if used { &path } else { &kept }).expect("it is there");
            return;
        }
        // Without redundancy it waits for the right one: if it serves, it has to be right.
        let show = self.show();
        if show["state"] == "active" {
            self.world.compare(0);
        }
        let found = beside && show["state"] == "active";
        let told = !said(&self.world.daemon.any(&["status", "--check"])).is_empty();
        assert!(found || told, "an old copy is not told: {show:#}");
        self.world.stop();
        self.world.say(format!("{path} is as it was"));
        move_file(&kept, &path).expect("files can be moved");
        self.world.start();
        self.wait_until_active();
        self.world.compare(0);
    }

    /// Two members have each other's names: they are found by what stands on them.
    fn swap(&mut self) {
        let members = self.members();
        let (Some(one), Some(other)) = (self.path(members[0]), self.path(members[members.len() - 1])) else { return };
        let kill = self.world.dice.one_in(2);
        if kill {
            self.world.kill()
        } else {
            self.world.stop()
        }
        self.world.say(format!("{one} and {other} change places"));
        self.world.counts.faults += 1;
        let between = format!("{one}.between");
        let change = move_file(&one, &between).and_then(|()| move_file(&other, &one));
        change.and_then(|()| move_file(&between, &other)).expect("files can be moved");
        self.world.start();
        self.wait_until_active();
    }

    /// A member is not there at a start, and is there again later.
    fn start_without_a_member(&mut self) {
        if !self.is_whole() {
            return;
        }
        let member = self.some_member();
        let Some(path) = self.path(member) else { return };
        let kill = self.world.dice.one_in(2);
        // A crash together with a loss may make rows unreadable that were being written: not here.
        self.world.drain(0);
        if kill {
            let at = self.world.connect(0);
            self.world.call(0, at, crate::client::Op::Flush, 0, 0);
        }
        if kill {
            self.world.kill()
        } else {
            self.world.stop()
        }
        self.world.counts.faults += 1;
        self.world.say(format!("{path} is away"));
        let away = self.world.away(&path);
        move_file(&path, &away).expect("files can be moved");
        self.world.start();
        self.start_by_remedies(&path);
        self.world.burst(0);
        self.world.compare(0);
        self.world.say(format!("{path} is back"));
        move_file(&away, &path).expect("files can be moved");
        if self.health() == "degraded" {
            self.remedies(&path);
        }
        self.wait_until_whole();
    }

    /// Does what the status says until the array serves.
    pub fn start_by_remedies(&mut self, disk: &str) {
        let start = std::time::Instant::now();
        while self.show()["state"] != "active" {
            assert!(
                start.elapsed() < PATIENCE,
                "the remedies do not start it: {}",
                said(&self.world.daemon.any(&["status"]))
            );
            self.remedies(disk);
        }
        if self.health() == "degraded" && std::path::Path::new(disk).exists() {
            self.remedies(disk);
        }
    }

    pub fn remedies(&mut self, disk: &str) {
        Remedies { disk, force: self.is_redundant() }.run(&mut self.world);
    }

    /// All is well at the end, and all is there.
    fn end(&mut self) {
        self.world.say("the end");
        self.wait_until_whole();
        self.world.compare(0);
        if self.is_redundant() {
            // A check of the life may still be under way.
            let text = wait_for("a check of its own", || {
                let (status, text) = self.world.braid(&["array", "check", NAME, "--wait"]);
                (status != 4 || !text.contains("gone over already")).then_some((status, text))
            });
            assert_eq!(text.0, 0, "at the end: {}", text.1);
        }
        self.world.restart(false);
        self.wait_until_active();
        self.world.compare(0);
        let status = self.world.daemon.any(&["status", "--check"]);
        assert_eq!(status.status.code(), Some(0), "at the end all is well: {}", said(&status));
    }
}

/// Members that hold data, in sync.
fn in_sync(show: &Value) -> Vec<usize> {
    let members = show["members"].as_array().expect("a list").iter();
    let in_sync = members.filter(|member| member["state"] == "in_sync");
    in_sync.filter_map(|member| member["role"].as_u64()).map(|role| role as usize).collect()
}

fn is_redundant(level: &str) -> bool {
    level.starts_with("raid") && level != "raid0"
}

/// A file as a disk, which sometimes takes its time.
pub fn slow(dice: &mut Dice, path: &str) -> String {
    let seed = dice.below(1000);
    match dice.below(3) {
        0 => format!("faulty({path},write-delay=700ms:0.02,seed={seed})"),
        1 => format!("faulty({path},delay=20ms:0.05,write-delay=300ms:0.03,seed={seed})"),
        _ => path.to_owned(),
    }
}

/// The file in a disk's name.
pub fn path_of(disk: &str) -> Option<String> {
    let disk = disk.strip_prefix("faulty(").unwrap_or(disk);
    let disk = disk.strip_prefix("file:").unwrap_or(disk);
    let path = disk.split([',', ')']).next()?;
    path.starts_with('/').then(|| path.to_owned())
}

/// Waits, and says more if that is in vain.
pub fn wait_for_or(what: &str, mut done: impl FnMut() -> Option<()>, more: impl Fn() -> String) {
    let start = std::time::Instant::now();
    while done().is_none() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}: {}", more());
        std::thread::sleep(Duration::from_millis(20));
    }
}
