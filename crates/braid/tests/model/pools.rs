//! Scenarios of a pool: volumes, snapshots and clones are created and deleted, members too, under client I/O.

use std::time::Duration;

use serde_json::Value;

use crate::arrays::{path_of, slow, wait_for_or};
use crate::client::Op;
use crate::oracle::BLOCK;
use crate::remedies::Remedies;
use crate::support::*;
use crate::world::{Log, World, move_file};

const POOL: &str = "tank";
const ARRAY: &str = "safe";
const VOLUMES_MAX: usize = 4;
const SNAPSHOTS_MAX: usize = 8;

struct Snapshot {
    name: String,
    number: u64,
    blocks: u64,
}

pub struct PoolScenario {
    pub world: World,
    snapshots: Vec<Snapshot>,
    /// Whether its only member is an array.
    on_array: bool,
}

impl PoolScenario {
    pub fn new(on_array: bool, seed: u64, log: Log) -> PoolScenario {
        let mut world = World::new(seed, log);
        // Sometimes so small that it fills up.
        let small = world.dice.one_in(4);
        let mib = if small { 16 } else { 80 };
        let mut disks = Vec::new();
        let members = if on_array { world.dice.within(3, 4) } else { world.dice.within(1, 3) };
        for _ in 0..members {
            let mib = mib + world.dice.below(3) * 8;
            let path = world.new_file(mib);
            disks.push(slow(&mut world.dice, &path));
        }
        if on_array {
            let level = *world.dice.pick(&["raid1", "raid10", "raid5", "raid5"]);
            let mut arguments = vec!["array", "create", ARRAY, "--level", level, "--start-degraded", "auto"];
            arguments.extend(disks.iter().map(String::as_str));
            world.must(&arguments);
            disks = vec![ARRAY.to_owned()];
        }
        let mut arguments = vec!["pool", "create", POOL];
        arguments.extend(disks.iter().map(String::as_str));
        world.must(&arguments);
        world.may_fill = small;
        let mut scenario = PoolScenario { world, snapshots: Vec::new(), on_array };
        scenario.create();
        scenario
    }

    fn show(&self) -> Value {
        self.world.json(&["pool", "show", POOL])
    }

    fn create(&mut self) {
        let mib = self.world.dice.within(2, 40);
        let name = format!("{POOL}/v{}", self.world.oracle.number());
        self.world.must(&["volume", "create", &name, &format!("{mib}M")]);
        let number = self.world.oracle.device();
        self.serve(&name, number, mib * MIB / BLOCK as u64);
    }

    fn serve(&mut self, name: &str, number: u64, blocks: u64) {
        let file = self.world.dice.one_in(3);
        self.world.serve(name, number, blocks * BLOCK as u64, file);
    }

    pub fn run(mut self, steps: u64) -> World {
        for _ in 0..steps {
            self.step();
        }
        self.end();
        self.world
    }

    fn step(&mut self) {
        let device = self.world.dice.below(self.world.devices.len() as u64) as usize;
        match self.world.dice.below(100) {
            0..38 => self.world.burst(device),
            38..46 => self.world.pump(Duration::from_millis(20)),
            46..50 => self.world.drain(device),
            50..62 => self.world.break_connection(device),
            62..67 => self.world.by_file(device),
            67..69 => self.world.check_map(device),
            69..71 => self.world.compare(device),
            71..74 => {
                let kill = !self.world.dice.one_in(3);
                self.restart(kill);
            }
            74 => {
                self.world.upgrade();
                self.wait_until_active();
            }
            75..81 => self.snapshot(device),
            81..83 => self.delete_snapshot(),
            83 => self.compare_snapshot(),
            84..86 => self.clone(),
            86 => self.rollback(device),
            87 if self.world.devices.len() < VOLUMES_MAX => self.create(),
            88 => self.delete_volume(device),
            89..91 => self.resize(device),
            91 => self.move_blocks(device),
            92 => {
                let name = self.world.devices[device].name.clone();
                let verb = *self.world.dice.pick(&["flatten", "compact"]);
                let wait = *self.world.dice.pick(&["--wait", "--no-wait"]);
                self.world.braid(&["volume", verb, &name, wait]);
            }
            93 | 94 if self.on_array => self.lose_and_return(),
            93 => self.change_members(),
            94 => self.start_without_a_member(),
            95 if !self.on_array => self.restore_an_old_copy(),
            96 => {
                let (status, text) = self.world.braid(&["pool", "check", POOL]);
                assert_eq!(status, 0, "nothing is damaged: {text}");
            }
            _ => self.world.burst(device),
        }
    }

    fn restart(&mut self, kill: bool) {
        self.world.restart(kill);
        self.wait_until_active();
    }

    fn wait_until_active(&mut self) {
        wait_for_or(
            "the pool to serve",
            || {
                self.world
                    .daemon
                    .try_json(&["pool", "show", POOL])
                    .is_ok_and(|pool| pool["state"] == "active")
                    .then_some(())
            },
            || said(&self.world.daemon.any(&["status"])),
        );
    }

    /// Takes a snapshot during I/O: it has all, some, or none of the blocks of requests in flight.
    fn snapshot(&mut self, device: usize) {
        if self.snapshots.len() >= SNAPSHOTS_MAX {
            return;
        }
        self.world.burst(device);
        let mut of = vec![device];
        if self.world.devices.len() > 1 && self.world.dice.one_in(3) {
            of.push((device + 1) % self.world.devices.len());
        }
        let number = self.world.oracle.number();
        let names: Vec<String> = of.iter().map(|of| format!("{}@s{number}", self.world.devices[*of].name)).collect();
        let mut arguments = vec!["snapshot", "create"];
        arguments.extend(names.iter().map(String::as_str));
        let begun = self.world.oracle.now();
        let (status, text) = self.world.braid(&arguments);
        assert!(status == 0 || self.world.may_fill, "snapshot create: {text}");
        if status != 0 {
            return;
        }
        for (of, name) in of.into_iter().zip(names) {
            let (volume, blocks) = (self.world.devices[of].number, self.world.devices[of].blocks);
            let number = self.world.oracle.snapshot(volume, begun);
            self.snapshots.push(Snapshot { name, number, blocks });
        }
    }

    fn some_snapshot(&mut self) -> Option<usize> {
        (!self.snapshots.is_empty()).then(|| self.world.dice.below(self.snapshots.len() as u64) as usize)
    }

    fn delete_snapshot(&mut self) {
        let Some(at) = self.some_snapshot() else { return };
        let one = self.snapshots.remove(at);
        self.world.must(&["snapshot", "delete", &one.name, "--yes"]);
    }

    fn compare_snapshot(&mut self) {
        let Some(at) = self.some_snapshot() else { return };
        let (name, number, blocks) =
            (self.snapshots[at].name.clone(), self.snapshots[at].number, self.snapshots[at].blocks);
        self.world.serve(&name, number, blocks * BLOCK as u64, false);
        let device = self.world.devices.len() - 1;
        self.world.compare(device);
        self.world.unserve(device);
    }

    fn clone(&mut self) {
        if self.world.devices.len() >= VOLUMES_MAX {
            return;
        }
        let Some(at) = self.some_snapshot() else { return };
        let (of, number, blocks) =
            (self.snapshots[at].name.clone(), self.snapshots[at].number, self.snapshots[at].blocks);
        let name = format!("{POOL}/v{}", self.world.oracle.number());
        let (status, text) = self.world.braid(&["volume", "clone", &of, &name]);
        assert!(status == 0 || self.world.may_fill, "volume clone: {text}");
        if status == 0 {
            let begun = self.world.oracle.now();
            let number = self.world.oracle.snapshot(number, begun);
            self.serve(&name, number, blocks);
        }
    }

    fn rollback(&mut self, device: usize) {
        let own = format!("{}@", self.world.devices[device].name);
        let Some(at) = self.snapshots.iter().position(|one| one.name.starts_with(&own)) else { return };
        let (of, number, blocks) =
            (self.snapshots[at].name.clone(), self.snapshots[at].number, self.snapshots[at].blocks);
        let name = self.world.devices[device].name.clone();
        self.world.unserve(device);
        self.world.must(&["volume", "rollback", &name, &of, "--yes"]);
        let begun = self.world.oracle.now();
        let number = self.world.oracle.snapshot(number, begun);
        self.serve(&name, number, blocks);
    }

    fn delete_volume(&mut self, device: usize) {
        if self.world.devices.len() < 2 {
            return;
        }
        let name = self.world.devices[device].name.clone();
        self.world.unserve(device);
        let own = format!("{name}@");
        while let Some(at) = self.snapshots.iter().position(|one| one.name.starts_with(&own)) {
            let one = self.snapshots.remove(at);
            self.world.must(&["snapshot", "delete", &one.name, "--yes"]);
        }
        self.world.must(&["volume", "delete", &name, "--yes"]);
    }

    fn resize(&mut self, device: usize) {
        let blocks = self.world.devices[device].blocks;
        let (name, number) = (self.world.devices[device].name.clone(), self.world.devices[device].number);
        if self.world.dice.one_in(2) {
            let more = blocks + 256 * self.world.dice.within(1, 8);
            self.world.must(&["volume", "resize", &name, &(more * BLOCK as u64).to_string()]);
            self.world.resized(device, more);
            return;
        }
        // Clients that know the larger size would get errors.
        self.world.unserve(device);
        let less = (blocks / 2).max(256).min(blocks);
        self.world.must(&["volume", "resize", &name, &(less * BLOCK as u64).to_string(), "--force", "--yes"]);
        self.world.oracle.truncate(number, less);
        self.serve(&name, number, less);
    }

    fn move_blocks(&mut self, device: usize) {
        let name = self.world.devices[device].name.clone();
        let disks = self.disks().len() as u64;
        let place = match self.world.dice.below(3) {
            0 => "spread".to_owned(),
            1 => "single".to_owned(),
            _ if disks == 0 => "spread".to_owned(),
            _ => format!("on={}", self.world.dice.below(disks)),
        };
        let wait = *self.world.dice.pick(&["--wait", "--no-wait"]);
        self.world.braid(&["volume", "move", &name, "--place", &place, wait]);
    }

    /// Returns the members that are disks, by their names in the pool.
    fn disks(&self) -> Vec<String> {
        let members = self.show()["members"].as_array().cloned().unwrap_or_default();
        members.iter().filter_map(|member| member["disk"].as_str()).map(str::to_owned).collect()
    }

    fn change_members(&mut self) {
        let disks = self.disks();
        if disks.len() < 4 && self.world.dice.one_in(2) {
            let fresh = self.world.new_file(64);
            let disk = slow(&mut self.world.dice, &fresh);
            self.world.must(&["pool", "add", POOL, &disk]);
            return;
        }
        if disks.len() > 1 {
            let disk = self.world.dice.pick(&disks).clone();
            let wait = *self.world.dice.pick(&["--wait", "--no-wait"]);
            let (status, _) = self.world.braid(&["pool", "remove", POOL, &disk, wait]);
            if status == 0 && self.world.dice.one_in(3) {
                self.world.braid(&["pool", "remove", POOL, &disk, "--cancel"]);
            }
        }
    }

    /// Fails a member of the array below, and adds it again.
    fn lose_and_return(&mut self) {
        let show = self.world.json(&["array", "show", ARRAY]);
        if show["redundancy"]["health"] != "whole" {
            return;
        }
        let members = show["members"].as_array().expect("a list");
        let member = self.world.dice.below(members.len() as u64);
        let Some(disk) = members[member as usize]["disk"].as_str().map(str::to_owned) else { return };
        self.world.counts.faults += 1;
        self.world.must(&["array", "fail", ARRAY, &member.to_string()]);
        for _ in 0..self.world.dice.below(6) {
            let device = self.world.dice.below(self.world.devices.len() as u64) as usize;
            self.world.burst(device);
        }
        if self.world.dice.one_in(3) {
            self.restart(true);
        }
        let show = self.world.json(&["array", "show", ARRAY]);
        if show["redundancy"]["health"] == "degraded" {
            Remedies { disk: &disk, force: true }.run(&mut self.world);
        }
    }

    /// Hides a member during a start: the pool waits, and starts when the member is back.
    fn start_without_a_member(&mut self) {
        let disks: Vec<String> = self.disks().iter().filter_map(|disk| path_of(disk)).collect();
        if disks.is_empty() {
            return;
        }
        let path = self.world.dice.pick(&disks).clone();
        let kill = self.world.dice.one_in(2);
        if kill {
            self.world.kill()
        } else {
            self.world.stop()
        }
        self.world.counts.faults += 1;
        let hidden = self.world.hidden_path(&path);
        move_file(&path, &hidden).expect("files can be moved");
        self.world.record(format!("{path} is hidden"));
        self.world.start();
        let shown = said(&self.world.daemon.any(&["status"]));
        let state = self.world.daemon.try_json(&["pool", "show", POOL]).map(|pool| pool["state"].clone());
        assert!(!state.is_ok_and(|state| state == "active"), "a pool without a member serves: {shown}");
        self.world.record(format!("{path} is back"));
        move_file(&hidden, &path).expect("files can be moved");
        if self.world.dice.one_in(2) {
            self.world.braid(&["pool", "start", POOL]);
        } else {
            self.world.restart(false);
        }
        self.wait_until_active();
    }

    /// Puts an older copy of one of several members in its place.
    fn restore_an_old_copy(&mut self) {
        if self.world.without("old-copies") {
            return;
        }
        let disks: Vec<String> = self.disks().iter().filter_map(|disk| path_of(disk)).collect();
        if disks.len() < 2 {
            return;
        }
        let path = self.world.dice.pick(&disks).clone();
        let kill = self.world.dice.one_in(2);
        if kill {
            self.world.kill()
        } else {
            self.world.stop()
        }
        let old = self.world.hidden_path(&path);
        run("cp", &["--sparse=always", &path, &old]);
        self.world.record(format!("a copy of {path}"));
        self.world.start();
        self.wait_until_active();
        for _ in 0..3 {
            self.world.burst(0);
        }
        self.world.drain(0);
        let at = self.world.connect(0);
        self.world.call(0, at, Op::Flush, 0, 0);
        let kill = self.world.dice.one_in(2);
        if kill {
            self.world.kill()
        } else {
            self.world.stop()
        }
        self.world.counts.faults += 1;
        let kept = format!("{old}.kept");
        move_file(&path, &kept).and_then(|()| move_file(&old, &path)).expect("files can be moved");
        self.world.record(format!("the copy in the place of {path}"));
        self.world.start();
        let shown = said(&self.world.daemon.any(&["status", "--check"]));
        if self.world.daemon.try_json(&["pool", "show", POOL]).is_ok_and(|pool| pool["state"] == "active") {
            (0..self.world.devices.len()).for_each(|device| self.world.compare(device));
        }
        assert!(!shown.is_empty(), "an old copy is not reported");
        self.world.stop();
        move_file(&kept, &path).expect("files can be moved");
        self.world.record(format!("{path} is as it was"));
        self.world.start();
        self.wait_until_active();
        (0..self.world.devices.len()).for_each(|device| self.world.compare(device));
    }

    fn end(&mut self) {
        self.world.record("the end");
        (0..self.world.devices.len()).for_each(|device| self.world.compare(device));
        self.restart(true);
        (0..self.world.devices.len()).for_each(|device| self.world.compare(device));
        while !self.snapshots.is_empty() {
            self.compare_snapshot();
            self.delete_snapshot();
        }
        while self.world.devices.len() > 1 {
            self.delete_volume(0);
        }
        self.world.compare(0);
        let (status, text) = self.world.braid(&["pool", "check", POOL]);
        assert_eq!(status, 0, "at the end nothing is damaged: {text}");
    }
}
