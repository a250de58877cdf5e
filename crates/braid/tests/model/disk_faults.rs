//! Faults of an array's disks besides crashes: corruption, truncated files, full file systems, and disks lost at the
//! moment of a crash.

use std::fs;
use std::os::unix::fs::FileExt as _;

use crate::arrays::{ArrayScenario, NAME, path_of, wait_for_or};
use crate::client::Op;
use crate::oracle::{BLOCK, Content};
use crate::support::*;
use crate::world::{World, move_file};

impl ArrayScenario {
    /// Corrupts a block of a member. A check finds it, whatever happens meanwhile, until it is repaired.
    pub fn corrupt_a_block(&mut self) {
        if self.world.without("rot") {
            return;
        }
        self.wait_until_whole();
        self.world.compare(0);
        let show = self.show();
        let member = self.some_member_of(&show);
        let Some(path) = show["members"][member]["disk"].as_str().and_then(path_of) else { return };
        let start = show["members"][member]["data_offset_bytes"].as_u64().expect("it is here");
        // The first blocks of the member's data are in the array's first stripes, where most of the I/O goes.
        let at = start + self.world.dice.below(8) * BLOCK as u64;
        let file = fs::File::options().read(true).write(true).open(&path).expect("the member's file");
        let mut right = [0; BLOCK];
        file.read_exact_at(&mut right, at).expect("it reads");
        if right.iter().all(|byte| *byte == 0) {
            return;
        }
        self.world.record(format!("rot at {at} of {path}"));
        self.world.counts.faults += 1;
        let put = |bytes: &[u8]| file.write_all_at(bytes, at).and_then(|()| file.sync_all()).expect("it writes");
        put(&[0x5a; BLOCK]);
        let (status, text) = self.world.braid(&["array", "check", NAME, "--wait"]);
        assert_eq!(status, 7, "a check finds what has rotted: {text}");
        let alarm = |world: &World| said(&world.daemon.any(&["status"])).contains("damage");
        assert!(alarm(&self.world), "what a check has found is reported");
        let nothing_left = self.level == "raid5" || (self.level == "raid1" && self.members().len() == 2);
        if nothing_left && self.world.dice.one_in(2) && !self.world.without("degraded-checks") {
            // With nothing to compare, a check cannot report that all data are right.
            let other = self.members().into_iter().find(|other| *other != member).expect("another one");
            let disk = self.show()["members"][other]["disk"].as_str().expect("it has a disk").to_owned();
            self.world.must(&["array", "fail", NAME, &other.to_string()]);
            let (status, text) = self.world.braid(&["array", "check", NAME, "--wait"]);
            assert!(alarm(&self.world), "a check with nothing to compare ended the alarm (status {status}): {text}");
            put(&right);
            self.world.must(&["array", "add", NAME, &disk]);
            self.wait_until_whole();
        }
        // Restores the block: with a single parity or two copies no check could tell which block is wrong.
        put(&right);
        let (status, text) = self.world.braid(&["array", "repair", NAME, "--wait"]);
        assert_eq!(status, 0, "a repair of what is right: {text}");
        let (status, text) = self.world.braid(&["array", "check", NAME, "--wait"]);
        assert_eq!(status, 0, "what was made right: {text}");
        assert!(!alarm(&self.world), "the alarm ends with what it was about");
    }

    /// Truncates a member's file while it is in use. Its data are read from other members, or are an error: never zeros.
    pub fn truncate_a_member(&mut self) {
        if self.world.without("cuts") || (self.is_redundant() && !self.is_whole()) {
            return;
        }
        let show = self.show();
        let member = self.some_member_of(&show);
        let Some(path) = show["members"][member]["disk"].as_str().and_then(path_of) else { return };
        let start = show["members"][member]["data_offset_bytes"].as_u64().expect("it is here");
        let len = start + self.world.dice.below(32) * BLOCK as u64;
        self.world.counts.faults += 1;
        self.world.record(format!("{path} is cut to {len}"));
        let file = fs::File::options().write(true).open(&path).expect("the member's file");
        file.set_len(len).expect("it can be cut");
        if !self.is_redundant() {
            // Its data are lost, which is an error. The scenario ends here.
            self.world.lenient = Some("a disk was truncated");
            self.world.compare(0);
            self.world.burst(0);
            self.world.compare(0);
            self.is_over = true;
            return;
        }
        self.world.burst(0);
        self.world.compare(0);
        self.world.burst(0);
        wait_for_or(
            "the member that was cut to be left out",
            || {
                matches!(self.show()["members"][member]["state"].as_str(), Some("failed" | "vacant" | "missing"))
                    .then_some(())
            },
            || format!("{:#}", self.show()),
        );
        self.world.compare(0);
        let fresh = self.world.new_file(self.member_mib + 8);
        let number = member.to_string();
        self.world.must(&["array", "remove", NAME, &number]);
        self.world.must(&["array", "add", NAME, &fresh]);
        self.wait_until_whole();
    }

    /// Fills the file system below for a while. Acknowledged writes survive, also a kill.
    pub fn fill_up(&mut self) {
        let Some(small) = self.small.clone() else { return };
        if self.world.without("fills") || (self.is_redundant() && !self.is_whole()) {
            return;
        }
        self.world.drain(0);
        self.world.counts.faults += 1;
        let left = self.world.dice.below(64) * 16 * KIB;
        self.world.record(format!("{small} is full, but for {left} bytes"));
        let filler = format!("{small}/filler");
        let stat = rustix::fs::statvfs(small.as_str()).expect("a file system");
        let bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        let file = fs::File::create(&filler).expect("a file can be made");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).expect("it fits");
        drop(file);
        self.world.lenient = Some("the file system below is full");
        for _ in 0..self.world.dice.within(2, 8) {
            self.world.burst(0);
        }
        self.world.drain(0);
        self.world.record("there is room again");
        fs::remove_file(&filler).expect("it is there");
        let kill = !self.world.dice.one_in(3);
        if kill {
            self.world.kill();
        } else {
            self.world.stop_any();
        }
        self.world.start();
        self.start_by_remedies("");
        self.world.lenient = None;
        self.world.compare(0);
        // Members that ran out of space were left out; they are healthy again.
        self.add_all_again();
        self.wait_until_whole();
    }

    /// Crashes during full-stripe writes and loses members at the same moment. Stripes that were being written may be
    /// lost: reading them fails until they are rewritten, as the status recommends.
    pub fn crash_and_lose(&mut self) {
        let parity = matches!(self.level, "raid5" | "raid6");
        if !parity || self.world.without("lost-stripes") || !self.is_whole() {
            return;
        }
        let members = self.members();
        let lost: Vec<String> =
            members.iter().rev().take(self.tolerates).filter_map(|member| self.path(*member)).collect();
        for _ in 0..self.world.dice.within(1, 3) {
            self.world.burst(0);
            let (first, count) = self.world.range(0, 320);
            let at = self.world.connection(0);
            let content = Content::Data { device: self.world.devices[0].number, version: self.world.oracle.number() };
            self.world.send(0, at, Op::Write(content), first, count);
        }
        self.world.kill();
        self.world.counts.faults += lost.len() as u64;
        for path in &lost {
            self.world.record(format!("{path} is hidden"));
            move_file(path, &self.world.hidden_path(path)).expect("files can be moved");
        }
        self.world.start();
        self.start_by_remedies(lost.first().map_or("", String::as_str));
        self.world.lenient = Some("stripes may be lost");
        self.world.compare(0);
        for round in 0.. {
            let show = self.show();
            let ranges = show["redundancy"]["unreadable"].as_array().cloned().unwrap_or_default();
            if show["redundancy"]["unreadable_bytes"] == 0 {
                break;
            }
            assert!(round < 8, "the remedy for unreadable stripes does not help: {:#}", show["redundancy"]);
            for range in ranges {
                let (first, bytes) = (&range["offset_bytes"], &range["bytes"]);
                let (first, bytes) = (first.as_u64().expect("a place"), bytes.as_u64().expect("a length"));
                let (first, count) = (first / BLOCK as u64, bytes.div_ceil(BLOCK as u64));
                let at = self.world.connection(0);
                let content = match self.world.dice.one_in(2) {
                    true => Content::Zero,
                    false => {
                        Content::Data { device: self.world.devices[0].number, version: self.world.oracle.number() }
                    }
                };
                self.world.record(format!("unreadable: {first}+{count} is written with {content:?}"));
                self.world.send(0, at, Op::Write(content), first, count);
                // The administrator's own work is interrupted as well.
                if round < 2 && self.world.dice.one_in(4) {
                    self.world.restart(true);
                    self.start_by_remedies("");
                    break;
                }
                self.world.drain(0);
            }
        }
        self.world.lenient = None;
        self.world.compare(0);
        for path in &lost {
            self.world.record(format!("{path} is back"));
            move_file(&self.world.hidden_path(path), path).expect("files can be moved");
            // A forced start may have given its slot away.
            if self.health() == "degraded" {
                self.remedies(path);
            }
        }
        self.add_all_again();
        self.wait_until_whole();
    }
}
