//! Repeated `kill -9` while members fail, are missing, return and resync: all acknowledged writes survive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::mirrors::*;
use crate::nbd::Client;
use crate::patient::PatientFio;
use crate::support::*;

/// Size of a unit, whose bytes identify it.
const UNIT: u64 = 4096;
/// Distance between units, so that many regions are touched.
const STRIDE: u64 = 28 * KIB;
/// Units of one writer.
const UNITS: u64 = 640;
const WRITERS: u64 = 3;

/// How many writes of a unit were acknowledged, and sent. A crash may leave any content between the two.
#[derive(Clone, Copy, Default)]
struct Written {
    acknowledged: u64,
    sent: u64,
}

/// A client that writes its own units one after the other, and tracks their content.
struct Writer {
    number: u64,
    units: Vec<Written>,
    random: u64,
}

/// Returns the `generation`th content of a unit.
fn content(place: u64, generation: u64) -> Vec<u8> {
    let mut bytes = noise(UNIT, place ^ generation << 40);
    bytes[..8].copy_from_slice(&place.to_le_bytes());
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    bytes
}

impl Writer {
    fn new(number: u64) -> Writer {
        Writer { number, units: vec![Written::default(); UNITS as usize], random: 77 + number }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn place(&self, unit: u64) -> u64 {
        (unit * WRITERS + self.number) * STRIDE
    }

    /// Reads a unit and returns its generation; 0 is zeros, as before the first write. It must be a possible one.
    #[track_caller]
    fn read(&self, client: &mut Client, unit: u64) -> u64 {
        let (place, known) = (self.place(unit), self.units[unit as usize]);
        let bytes = client.read(place, UNIT as usize).unwrap_or_else(|error| panic!("byte {place}: {error}"));
        let generation = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        let whole =
            if generation == 0 { bytes.iter().all(|byte| *byte == 0) } else { bytes == content(place, generation) };
        assert!(whole, "byte {place}: not what was written at any time; it says {generation}");
        let may_be = known.acknowledged..=known.sent;
        assert!(may_be.contains(&generation), "byte {place}: written for the {generation}th time, of {may_be:?}");
        generation
    }

    /// Reads all units. Later reads must return what this one found.
    fn verify(&mut self, client: &mut Client) {
        for unit in 0..UNITS {
            let generation = self.read(client, unit);
            self.units[unit as usize] = Written { acknowledged: generation, sent: generation };
        }
    }

    /// Writes, flushes and reads until the daemon is killed.
    fn work(mut self, socket: &str, done: &AtomicU64, killed: &AtomicBool) -> Writer {
        let mut client = wait_for("the export", || Client::open(socket, "data").ok());
        loop {
            let unit = self.draw(UNITS);
            let (place, generation) = (self.place(unit), self.units[unit as usize].sent + 1);
            self.units[unit as usize].sent = generation;
            let mut result = client.write(place, &content(place, generation));
            if result.is_ok() {
                self.units[unit as usize].acknowledged = generation;
                if self.draw(32) == 0 {
                    result = client.flush();
                }
            }
            if let Err(error) = result {
                assert!(killed.load(Ordering::Acquire), "an error while the daemon lives: {error}");
                return self;
            }
            // A read may fail as well after the kill.
            let other = self.draw(UNITS);
            if other.is_multiple_of(4) && !killed.load(Ordering::Acquire) {
                let place = self.place(other);
                if client.read(place, UNIT as usize).is_err() {
                    assert!(killed.load(Ordering::Acquire), "byte {place} cannot be read while the daemon lives");
                    return self;
                }
            }
            done.fetch_add(1, Ordering::Release);
        }
    }
}

/// Adds a disk to the array again. Retries while the disk's release is still in progress.
pub fn bring_back(daemon: &Daemon, disk: &str) {
    wait_for("the disk to be taken", || daemon.any(&["array", "add", "data", disk]).status.success().then_some(()));
}

/// Returns the numbers of the failed members.
pub fn out(daemon: &Daemon) -> Vec<usize> {
    let members = show(daemon)["members"].as_array().cloned().unwrap_or_default();
    members.iter().enumerate().filter(|(_, member)| member["state"] == "failed").map(|(role, _)| role).collect()
}

/// In each round clients write while a member fails by a rule of `faulty`, is missing during the kill, or resyncs. In
/// `more`, `{}` is the folder.
pub fn story(level: &str, disks: u64, rounds: u64, more: &[&str]) {
    let mut daemon = Daemon::start();
    let paths: Vec<String> = (0..disks).map(|i| daemon.folder.sparse(&format!("d{i}"), 80 * MIB)).collect();
    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
    let more: Vec<String> = more.iter().map(|argument| argument.replace("{}", &daemon.folder.join("."))).collect();
    drop(create(&daemon, level, &names, &more.iter().map(String::as_str).collect::<Vec<_>>()));
    let socket = daemon.nbd_socket("data");
    let mut writers: Vec<Writer> = (0..WRITERS).map(Writer::new).collect();
    let (mut dropped, mut resynced) = (0, 0);
    for round in 0..rounds {
        let (done, killed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let work = |writer: Writer| {
            let (socket, done, killed) = (socket.clone(), Arc::clone(&done), Arc::clone(&killed));
            thread::spawn(move || writer.work(&socket, &done, &killed))
        };
        let going: Vec<_> = writers.into_iter().map(work).collect();
        let until = |count: u64| {
            let from = done.load(Ordering::Acquire);
            wait_for("some writes", || (done.load(Ordering::Acquire) >= from + count).then_some(()));
        };
        until(200);
        let victim = (round % disks) as usize;
        if round % 3 == 1 {
            // The member is removed, returns with a rule that fails it soon, and is missing when the daemon dies.
            wait_for("all members", || {
                out(&daemon).iter().for_each(|role| drop(daemon.any(&["array", "add", "data", &paths[*role]])));
                (health(&daemon) == "whole").then_some(())
            });
            daemon.braid(&["array", "fail", "data", &victim.to_string()]);
            until(100);
            bring_back(&daemon, &format!("faulty({},gone-after={})", paths[victim], 400 + 50 * round));
            wait_for("the member to fail", || (out(&daemon) == [victim]).then_some(()));
            dropped += 1;
            until(100);
        } else if round % 3 == 2 {
            // The missing member resyncs, and the daemon dies during that, or soon after.
            for role in out(&daemon) {
                bring_back(&daemon, &paths[role]);
            }
            until(20);
        }
        killed.store(true, Ordering::Release);
        daemon.kill();
        writers = going.into_iter().map(|writer| writer.join().expect("it found nothing wrong")).collect();
        daemon.start_again();
        let mut client = self::client(&daemon);
        writers.iter_mut().for_each(|writer| writer.verify(&mut client));
        resynced += u64::from(daemon.events().contains("resyncing"));
    }
    assert_eq!(dropped, rounds / 3, "members that failed");
    // With parity, the journal restores consistency after the crash before the array serves.
    assert!(
        resynced * 2 >= rounds || level == "raid5" || level == "raid6",
        "{resynced} starts brought together what differed"
    );

    // All members are in sync again, and equal.
    wait_for("all members", || {
        out(&daemon).iter().for_each(|role| drop(daemon.any(&["array", "add", "data", &paths[*role]])));
        (health(&daemon) == "whole").then_some(())
    });
    let mut client = self::client(&daemon);
    let check = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    for role in 0..disks {
        // Reads each copy by itself.
        let name = role.to_string();
        daemon.braid(&["array", "fail", "data", &name]);
        writers.iter_mut().for_each(|writer| writer.verify(&mut client));
        bring_back(&daemon, &paths[role as usize]);
        wait_for_health(&daemon, "whole");
    }
}

#[test]
fn a_mirror_survives_kills_while_members_fail_and_return() {
    story("raid1", 2, 6, &[]);
}

#[test]
fn raid10_survives_kills_while_members_fail_and_return() {
    story("raid10", 4, 6, &["--chunk", "64K"]);
}

#[test]
fn fio_verifies_its_writes_through_kills_and_failed_members() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    drop(create(&daemon, "raid1", &[a, b], &[]));
    let mut writer = PatientFio::start(&daemon, &daemon.uri("data"));
    let fio = &mut writer.fio;
    let written = |daemon: &Daemon| show(daemon)["members"][0]["stats"]["writes"].as_u64().unwrap_or(0);
    let mut kills = 0;
    while fio.ended().is_none() && kills < 4 {
        wait_for("writes", || (written(&daemon) > 150 || fio.ended().is_some()).then_some(()));
        if kills == 1 {
            daemon.braid(&["array", "fail", "data", "1"]);
            bring_back(&daemon, &format!("faulty({b},gone-after=150)"));
            wait_for("the member to fail", || (out(&daemon) == [1] || fio.ended().is_some()).then_some(()));
        } else if kills == 2 {
            out(&daemon).iter().for_each(|_| bring_back(&daemon, b));
        }
        if fio.ended().is_none() {
            daemon.kill();
            kills += 1;
            daemon.start_again();
        }
    }
    assert!(kills >= 3, "it was over after {kills} kills: it is too fast for this test");
    writer.succeeds();
    wait_for("all members", || {
        out(&daemon).iter().for_each(|_| drop(daemon.any(&["array", "add", "data", b])));
        (health(&daemon) == "whole").then_some(())
    });
    let check = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
}
