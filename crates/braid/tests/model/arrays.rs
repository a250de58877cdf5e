//! Scenarios of an array of each level: what its administrator does, and what happens to its disks.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::dice::Dice;
use crate::remedies::Remedies;
use crate::support::*;
use crate::world::{Log, World, move_file};

pub const LEVELS: [&str; 6] = ["concat", "raid0", "raid1", "raid10", "raid5", "raid6"];
pub const NAME: &str = "data";

pub struct ArrayScenario {
    pub world: World,
    pub level: &'static str,
    pub member_mib: u64,
    /// How many members may be lost.
    pub tolerates: usize,
    /// The mount point of the small file system that holds its disks, if there is one.
    pub small: Option<String>,
    /// The scenario ends here: its data are lost, as expected.
    pub is_over: bool,
}

impl ArrayScenario {
    pub fn new(level: &'static str, seed: u64, log: Log) -> ArrayScenario {
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
            // Members of different sizes, but none smaller than the disks that replace them.
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
        let mut scenario = ArrayScenario { world, level, member_mib, tolerates, small, is_over: false };
        let size = scenario.show()["size_bytes"].as_u64().expect("a size");
        let number = scenario.world.oracle.device();
        let file = scenario.world.dice.one_in(2);
        scenario.world.serve(NAME, number, size, file);
        scenario
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

    /// Returns the file of a member, by slot.
    pub fn path(&self, member: usize) -> Option<String> {
        path_of(self.show()["members"][member]["disk"].as_str()?)
    }

    /// Returns the slots of the members that are in sync.
    pub fn members(&self) -> Vec<usize> {
        in_sync(&self.show())
    }

    pub fn some_member(&mut self) -> usize {
        self.some_member_of(&self.show())
    }

    /// Returns one of the members that are in sync in `show`.
    pub fn some_member_of(&mut self, show: &Value) -> usize {
        *self.world.dice.pick(&in_sync(show))
    }

    pub fn wait_until_whole(&mut self) {
        if self.is_redundant() {
            self.world.record("wait until it is whole");
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
        // A replacement that is in sync takes its slot a moment later: until then two reports differ.
        let is_rebuilding = |one: &Value| one["state"] == "rebuilding" || !one["replaces"].is_null();
        let rebuilding = show["members"].as_array().is_some_and(|members| members.iter().any(is_rebuilding));
        // After a forced start a check of all parity runs automatically, and no other check starts meanwhile.
        let is_in_doubt =
            |one: &Value| one.as_str().is_some_and(|sentence| sentence.starts_with("its parity may predate"));
        let in_doubt = show["attention"].as_array().is_some_and(|all| all.iter().any(is_in_doubt));
        show["redundancy"]["health"] == "whole" && !rebuilding && !in_doubt
    }

    /// Waits until the array serves after a start.
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
            if self.is_over {
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
            90 | 91 => self.kill_and_restore_an_old_copy(),
            92 => self.swap_members(),
            93 => self.fill_up(),
            94 => self.grow(),
            95 if !self.is_redundant() && self.world.dice.one_in(4) => self.truncate_a_member(),
            _ if self.is_redundant() => self.administer(),
            _ => {
                // Commands for redundant arrays are refused by others, and change nothing.
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
            3 => self.corrupt_a_block(),
            4 => self.start_without_a_member(),
            5 => self.truncate_a_member(),
            6 => self.crash_and_lose(),
            _ => self.new_spare(),
        }
    }

    /// Fails a member by command; it returns, or another disk replaces it.
    fn lose_and_return(&mut self) {
        if !self.is_whole() {
            return;
        }
        let member = self.some_member();
        let disk = self.show()["members"][member]["disk"].as_str().expect("it has a disk").to_owned();
        let number = member.to_string();
        self.world.counts.faults += 1;
        // Writes in flight while a member is lost and the daemon is killed may become unreadable: `crash_and_lose`
        // covers that.
        self.world.drain(0);
        // A replacement may have ended meanwhile, which changes the slots.
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
        // Sometimes I/O continues during the rebuild.
        if self.world.dice.one_in(2) {
            self.wait_until_whole();
        }
    }

    /// Grows the array by as many disks as its level needs.
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
            // With disks of other sizes the new part could tolerate fewer failures than the existing part.
            assert!(text.contains("what is new would have"), "array grow: {text}");
            return;
        }
        let blocks = self.show()["size_bytes"].as_u64().expect("a size") / crate::oracle::BLOCK as u64;
        self.world.grown(0, blocks);
    }

    /// Adds failed and missing members with healthy disks again.
    pub fn add_all_again(&mut self) {
        if !self.is_redundant() {
            return;
        }
        let start = std::time::Instant::now();
        while self.health() == "degraded" {
            assert!(start.elapsed() < PATIENCE, "members do not return: {:#}", self.show());
            let members = self.show()["members"].as_array().cloned().unwrap_or_default();
            for member in members.iter().filter(|member| member["state"] == "failed" || member["state"] == "missing") {
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
            // The disk may have taken a slot meanwhile.
            self.world.braid(&["array", "spare", NAME, &fresh, "--remove"]);
        }
    }

    /// Runs a check, which finds no difference without corruption.
    fn check(&mut self) {
        if !self.is_whole() {
            return;
        }
        let verb = *self.world.dice.pick(&["check", "repair"]);
        self.world.burst(0);
        let (status, text) = self.world.braid(&["array", verb, NAME, "--wait"]);
        assert_ne!(status, 7, "nothing has rotted: {text}");
    }

    /// Copies one member between two runs of the daemon, and puts the copy in its place before a later start. The
    /// copy's data are old.
    fn kill_and_restore_an_old_copy(&mut self) {
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
        self.world.record(format!("a copy of {path}"));
        let old = self.world.hidden_path(&path);
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
        self.world.record(format!("the copy in the place of {path}"));
        // The member lies beside the copy, where the daemon searches, or where it does not.
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
                // A copy beside its member does not block a start. Without the other members the daemon could not tell
                // which of the two is the copy: the administrator removes it, as the event reports it as a copy.
                let killed = self.world.dice.one_in(2);
                self.world.restart(killed);
                self.wait_until_active();
                self.world.compare(0);
            }
            fs::remove_file(if used { &path } else { &kept }).expect("it is there");
            return;
        }
        // Without redundancy the array waits for the right disk: if it serves, all data have to be right.
        let show = self.show();
        if show["state"] == "active" {
            self.world.compare(0);
        }
        let found = beside && show["state"] == "active";
        let is_reported = !said(&self.world.daemon.any(&["status", "--check"])).is_empty();
        assert!(found || is_reported, "an old copy is not reported: {show:#}");
        self.world.stop();
        self.world.record(format!("{path} is as it was"));
        move_file(&kept, &path).expect("files can be moved");
        self.world.start();
        self.wait_until_active();
        self.world.compare(0);
    }

    /// Swaps the paths of two members: they are found by their labels.
    fn swap_members(&mut self) {
        let members = self.members();
        let (Some(one), Some(other)) = (self.path(members[0]), self.path(members[members.len() - 1])) else { return };
        let kill = self.world.dice.one_in(2);
        if kill {
            self.world.kill()
        } else {
            self.world.stop()
        }
        self.world.record(format!("{one} and {other} change places"));
        self.world.counts.faults += 1;
        let between = format!("{one}.between");
        let change = move_file(&one, &between).and_then(|()| move_file(&other, &one));
        change.and_then(|()| move_file(&between, &other)).expect("files can be moved");
        self.world.start();
        self.wait_until_active();
    }

    /// Hides a member during a start, and returns it later.
    fn start_without_a_member(&mut self) {
        if !self.is_whole() {
            return;
        }
        let member = self.some_member();
        let Some(path) = self.path(member) else { return };
        let kill = self.world.dice.one_in(2);
        // A crash together with a lost member may make stripes with writes in flight unreadable, so there are none here.
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
        self.world.record(format!("{path} is hidden"));
        let hidden = self.world.hidden_path(&path);
        move_file(&path, &hidden).expect("files can be moved");
        self.world.start();
        self.start_by_remedies(&path);
        self.world.burst(0);
        self.world.compare(0);
        self.world.record(format!("{path} is back"));
        move_file(&hidden, &path).expect("files can be moved");
        if self.health() == "degraded" {
            self.remedies(&path);
        }
        self.wait_until_whole();
    }

    /// Runs the remedies of the status until the array serves.
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

    /// Ends the scenario: everything is healthy, and all data are there.
    fn end(&mut self) {
        self.world.record("the end");
        self.wait_until_whole();
        self.world.compare(0);
        if self.is_redundant() {
            // A check of the scenario may still be running.
            let text = wait_for("a check of its own", || {
                let (status, text) = self.world.braid(&["array", "check", NAME, "--wait"]);
                (status != 4 || !text.contains("being checked already")).then_some((status, text))
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

/// Returns the slots of the members that are in sync.
fn in_sync(show: &Value) -> Vec<usize> {
    let members = show["members"].as_array().expect("a list").iter();
    let in_sync = members.filter(|member| member["state"] == "in_sync");
    in_sync.filter_map(|member| member["slot"].as_u64()).map(|role| role as usize).collect()
}

fn is_redundant(level: &str) -> bool {
    level.starts_with("raid") && level != "raid0"
}

/// Returns the file as a disk, which sometimes delays I/O.
pub fn slow(dice: &mut Dice, path: &str) -> String {
    let seed = dice.below(1000);
    match dice.below(3) {
        0 => format!("faulty({path},write-delay=700ms:0.02,seed={seed})"),
        1 => format!("faulty({path},delay=20ms:0.05,write-delay=300ms:0.03,seed={seed})"),
        _ => path.to_owned(),
    }
}

/// Returns the file of a disk's name.
pub fn path_of(disk: &str) -> Option<String> {
    let disk = disk.strip_prefix("faulty(").unwrap_or(disk);
    let disk = disk.strip_prefix("file:").unwrap_or(disk);
    let path = disk.split([',', ')']).next()?;
    path.starts_with('/').then(|| path.to_owned())
}

/// Waits for a condition, and panics with `more` after the time limit.
pub fn wait_for_or(what: &str, mut done: impl FnMut() -> Option<()>, more: impl Fn() -> String) {
    let start = std::time::Instant::now();
    while done().is_none() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}: {}", more());
        std::thread::sleep(Duration::from_millis(20));
    }
}
