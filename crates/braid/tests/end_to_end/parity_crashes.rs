//! Arrays with parity: `kill -9` while members fail and return, and a crash that coincides with the loss of a member.

use crate::mirror_crashes::story;
use crate::mirrors::*;
use crate::nbd::{Client, WRITE_ZEROES};
use crate::support::*;

/// Data bytes of one stripe of a raid5 of three.
const STRIPE: u64 = 2 * BLOCK;

#[test]
fn raid5_survives_kills_while_its_members_fail_and_return() {
    story("raid5", 3, 3, &[]);
}

#[test]
fn raid6_survives_kills_while_its_members_fail_and_return() {
    story("raid6", 4, 3, &["--chunk", "16K"]);
}

/// A file system of the given size, mounted on a folder.
pub struct Small(pub String);

impl Small {
    pub fn mount(folder: String, bytes: u64) -> Small {
        std::fs::create_dir(&folder).expect("a folder can be made");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "braid-test", &folder]);
        Small(folder)
    }

    pub fn enlarge(&self, bytes: u64) {
        run("mount", &["-o", &format!("remount,size={bytes}"), &self.0]);
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").args(["-l", &self.0]).output();
    }
}

/// Full stripes that were acknowledged and not flushed survive a kill, although members were dropped because their file system was full.
#[test]
fn a_full_file_system_loses_no_acknowledged_write() {
    need_root();
    for level in ["raid5", "raid6"] {
        let mut daemon = Daemon::start();
        let small = Small::mount(daemon.folder.join("small"), 40 << 20);
        let disks: Vec<String> = (0..4).map(|number| format!("{}/{number}.img", small.0)).collect();
        disks.iter().for_each(|disk| drop(run("truncate", &["-s", "64M", disk])));
        let names: Vec<&str> = disks.iter().map(String::as_str).collect();
        let mut client = create(&daemon, level, &names, &[]);
        let (stripe, mut done) = (6 * BLOCK, 0);
        while client.write(done * stripe, &noise(stripe, done)).is_ok() {
            done += 1;
        }
        assert!(done > 10, "{done} writes are few");
        small.enlarge(1 << 30);
        daemon.kill();
        daemon.start_again();
        let mut client = self::client(&daemon);
        for number in 0..done {
            let back = client.read(number * stripe, stripe as usize).expect("what was acknowledged can be read");
            assert!(back == noise(stripe, number), "write {number}");
        }
        assert_eq!(show(&daemon)["redundancy"]["unreadable_bytes"], 0, "{level}");
    }
}

/// A full file system below an array is reported as such: the disk is not reported as failed, and is healthy again once there is space.
#[test]
fn a_full_file_system_below_is_not_reported_as_a_failed_disk() {
    need_root();
    let daemon = Daemon::start();
    let small = Small::mount(daemon.folder.join("small"), 24 << 20);
    let disk = format!("{}/0.img", small.0);
    run("truncate", &["-s", "64M", &disk]);
    daemon.array("data", "concat", &[&disk]);
    let mut client = self::client(&daemon);
    let mut done = 0;
    while client.write(done * MIB, &noise(MIB, done)).is_ok() {
        done += 1;
    }
    let said = wait_for("the status to tell of it", || {
        // The status wraps its lines.
        let text = daemon.braid(&["status"]).split_whitespace().collect::<Vec<_>>().join(" ");
        text.contains("found no space").then_some(text)
    });
    assert!(said.contains("df -h") && !said.contains("dmesg"), "{said}");
    small.enlarge(1 << 30);
    wait_for("the disk to be well", || {
        client.write(done * MIB, &noise(MIB, done)).expect("there is space");
        daemon.any(&["status", "--check"]).status.success().then_some(())
    });
}

#[test]
fn a_crash_together_with_a_lost_member_gives_errors_and_no_wrong_data() {
    let mut daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &[]);
    // These stripes are written and flushed completely.
    for stripe in 0..16 {
        client.write(stripe * STRIPE, &noise(STRIPE, stripe)).expect("it writes");
    }
    client.flush().expect("it flushes");
    // Partial stripe writes are in the journal, with their parity; full-stripe writes only have dirty bits until a flush.
    for stripe in 16..24 {
        client.write(stripe * STRIPE, &noise(BLOCK, stripe)).expect("it writes");
    }
    for stripe in 24..40 {
        client.write(stripe * STRIPE, &noise(STRIPE, stripe)).expect("it writes");
    }
    daemon.kill();
    hide(&daemon, b);
    daemon.start_again();
    let mut client = self::client(&daemon);
    assert_eq!(health(&daemon), "degraded");
    for stripe in 0..16 {
        let back = client.read(stripe * STRIPE, STRIPE as usize).expect("a stripe that was flushed can be read");
        assert!(back == noise(STRIPE, stripe), "stripe {stripe}");
    }
    for stripe in 16..24 {
        let back = client.read(stripe * STRIPE, STRIPE as usize).expect("a stripe that was logged can be read");
        assert!(back == [noise(BLOCK, stripe), vec![0; BLOCK as usize]].concat(), "stripe {stripe}");
    }
    let mut lost = Vec::new();
    for cell in 48..80 {
        match client.read(cell * BLOCK, BLOCK as usize) {
            Ok(back) => assert!(
                back == noise(STRIPE, cell / 2)[(cell % 2 * BLOCK) as usize..][..BLOCK as usize],
                "cell {cell}: neither what was written nor an error"
            ),
            Err(_) => lost.push(cell),
        }
    }
    // Of every three stripes, two have a cell on the lost member.
    assert!(lost.len() >= 10, "only {lost:?} cannot be read: are whole stripes logged now?");
    let shown = show(&daemon);
    let ranges: Vec<(u64, u64)> = shown["redundancy"]["unreadable"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|range| (range["offset_bytes"].as_u64().expect("bytes"), range["bytes"].as_u64().expect("bytes")))
        .collect();
    let within = |cell: &u64| ranges.iter().any(|(from, bytes)| (*from..from + bytes).contains(&(cell * BLOCK)));
    assert!(lost.iter().all(within), "{lost:?} are not all in {shown}");
    let bytes: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(shown["redundancy"]["unreadable_bytes"], bytes, "{shown}");
    assert_eq!(bytes, lost.len() as u64 * BLOCK, "the lost cells, and nothing else");
    assert!(daemon.braid(&["array", "show", "data"]).contains("unreadable"));
    assert!(daemon.events().contains("\"unreadable\""), "{}", daemon.events());
    let metrics = run("curl", &["-s", "--unix-socket", &daemon.folder.join("api.sock"), "http://braid/metrics"]);
    assert!(metrics.contains(&format!("braid_array_unreadable_bytes{{array=\"data\"}} {bytes}")), "{metrics}");
    let status = daemon.any(&["status", "--check"]);
    assert_eq!(status.status.code(), Some(5), "{}", said(&status));
    assert!(said(&status).contains("rewrite these ranges"), "{}", said(&status));
    // A neighbouring cell in the same stripe is still writable, and writing it makes nothing else readable.
    client.write((lost[0] ^ 1) * BLOCK, &noise(4096, 1)).expect("a cell that can be read is written");
    client.read(lost[0] * BLOCK, BLOCK as usize).expect_err("it is not known by that");

    // Neither a restart nor the member's return makes a lost cell readable.
    drop(client);
    daemon.restart(true);
    let mut client = self::client(&daemon);
    for cell in &lost {
        client.read(cell * BLOCK, BLOCK as usize).expect_err("it is still not known");
    }
    assert_eq!(show(&daemon)["redundancy"]["unreadable_bytes"], bytes);
    unhide(&daemon, b);
    wait_for_health(&daemon, "whole");
    client.read(lost[0] * BLOCK, BLOCK as usize).expect_err("the member was missing: the content is unknown");
    // Lost cells become readable when they are rewritten: some with their whole stripe, others one by one, in halves and the second half first.
    let (with_stripes, alone) = lost[1..].split_at(lost.len() / 2);
    for cell in with_stripes {
        client.write(cell / 2 * STRIPE, &noise(STRIPE, 7 + cell / 2)).expect("a whole stripe is taken");
    }
    let half = BLOCK as usize / 2;
    for cell in alone.iter().rev() {
        let new = noise(BLOCK, *cell);
        client.write(cell * BLOCK + half as u64, &new[half..]).expect("a half of what is named is taken");
        client.read(cell * BLOCK, half).expect_err("the other half is not known");
        client.write(cell * BLOCK, &new[..half]).expect("so is the other");
        assert!(client.read(cell * BLOCK, BLOCK as usize).expect("it reads") == new, "{cell}");
        client.write(cell / 2 * STRIPE, &noise(STRIPE, 7 + cell / 2)).expect("it is written as any stripe");
    }
    let stripe = lost[0] / 2;
    client.call(0, WRITE_ZEROES, stripe * STRIPE, STRIPE as u32, &[]).expect("zeros will do as well");
    assert!(client.read(stripe * STRIPE, STRIPE as usize).expect("it reads") == vec![0; STRIPE as usize]);
    client.write(stripe * STRIPE, &noise(STRIPE, 7 + stripe)).expect("it writes");
    for cell in &lost {
        assert!(
            client.read(cell / 2 * STRIPE, STRIPE as usize).expect("it reads") == noise(STRIPE, 7 + cell / 2),
            "{cell}"
        );
    }
    assert_eq!(show(&daemon)["redundancy"]["unreadable_bytes"], 0);
    wait_for("the news", || daemon.events().contains("unreadable_repaired").then_some(()));
    client.flush().expect("it flushes");
    daemon.restart(true);
    assert_eq!(show(&daemon)["redundancy"]["unreadable_bytes"], 0);
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
    let checked = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
}

#[test]
fn full_stripes_need_no_dirty_regions_after_a_clean_stop_or_when_idle() {
    let mut daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &[]);
    let lose = |daemon: &mut Daemon, client: Client, lost: &str, end: fn(&mut Daemon), stripes: u64| {
        drop(client);
        end(daemon);
        hide(daemon, lost);
        daemon.start_again();
        let shown = show(daemon);
        assert_eq!(
            (health(daemon), &shown["redundancy"]["unreadable_bytes"]),
            ("degraded".to_owned(), &0.into()),
            "{shown}"
        );
        let mut client = self::client(daemon);
        for stripe in 0..stripes {
            let back = client.read(stripe * STRIPE, STRIPE as usize).expect("it reads");
            assert!(back == noise(STRIPE, stripe), "stripe {stripe}");
        }
        unhide(daemon, lost);
        wait_for_health(daemon, "whole");
        client
    };
    // The client never flushes.
    for stripe in 0..30 {
        client.write(stripe * STRIPE, &noise(STRIPE, stripe)).expect("it writes");
    }
    let mut client = lose(&mut daemon, client, b, Daemon::stop, 30);
    for stripe in 30..60 {
        client.write(stripe * STRIPE, &noise(STRIPE, stripe)).expect("it writes");
    }
    wait_for("the array to be idle", || (show(&daemon)["redundancy"]["regions_dirty"] == 0).then_some(()));
    lose(&mut daemon, client, c, Daemon::kill, 60);
}

/// Destroys the journals of the disks: overwrites everything from the end of the bitmap to the start of the data.
fn destroy_journals(disks: &[String]) {
    for disk in disks {
        let file = std::fs::File::options().write(true).open(disk).expect("a member's file");
        std::os::unix::fs::FileExt::write_all_at(&file, &noise(768 * KIB, 9), 256 * KIB).expect("it can be written");
    }
}

/// A torn write reached its data and neither parity: compared with two parities, the newer data look wrong.
#[test]
fn after_a_forced_start_of_raid6_data_win_over_both_parities() {
    let mut daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c", "d", "e"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid6", &names, &[]);
    write(&mut client, 0..40, 1);
    client.flush().expect("it flushes");
    // In the first stripe, block 0 of the array is on the member whose data area begins with it.
    let first = client.read(0, 4096).expect("it reads");
    drop(client);
    daemon.kill();
    destroy_journals(&disks);
    let holder = (0..5).find(|at| {
        let mut bytes = vec![0; 4096];
        let file = std::fs::File::open(&disks[*at]).expect("a member's file");
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, MIB).expect("it can be read");
        bytes == first
    });
    let holder = holder.expect("one member holds block 0");
    let newer = noise(4096, 99);
    let file = std::fs::File::options().write(true).open(&disks[holder]).expect("a member's file");
    std::os::unix::fs::FileExt::write_all_at(&file, &newer, MIB).expect("it can be written");
    daemon.start_again();
    assert!(daemon.refused(1, &["array", "assemble", "data"]).contains("--force"));
    daemon.braid(&["array", "assemble", "data", "--force"]);
    let ended = |kind: &str| {
        wait_for("the job", || {
            let jobs = daemon.json(&["job", "list"])["jobs"].as_array().cloned().expect("a list");
            jobs.into_iter().find(|job| job["kind"] == kind && job["state"] == "done")
        })
    };
    // The array starts a check by itself, which changes nothing; the status offers the repair.
    let checked = ended("check");
    assert_eq!(checked["findings"]["differing_blocks"], 1, "{checked}");
    let status = said(&daemon.any(&["status"]));
    assert!(status.contains("braid array repair data --from-data") && status.contains("journal"), "{status}");
    let block = |daemon: &Daemon| self::client(daemon).read(0, 4096).expect("it reads");
    assert!(block(&daemon) == newer, "a check has changed something");
    let repaired = daemon.any(&["array", "repair", "data", "--from-data", "--wait"]);
    assert_eq!(repaired.status.code(), Some(0), "{}", said(&repaired));
    let repaired = ended("repair");
    assert_eq!(
        (&repaired["findings"]["repaired_blocks"], repaired["findings"]["wrong_members"].as_array().map(Vec::len)),
        (&1.into(), Some(0)),
        "{repaired}"
    );
    let again = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
    assert!(block(&daemon) == newer, "the newer data are gone");
    check(&mut self::client(&daemon), 1..40, 1);
    // The block is the same when it is computed from the other members.
    daemon.braid(&["array", "fail", "data", &holder.to_string()]);
    daemon.braid(&["array", "fail", "data", &((holder + 2) % 5).to_string()]);
    assert!(block(&daemon) == newer, "the parities are of before");
    check(&mut self::client(&daemon), 1..40, 1);
    // Arrays of copies have no parity.
    let more = files(&daemon, &["x", "y"]);
    daemon.braid(&["array", "create", "copies", "--level", "raid1", &more[0], &more[1]]);
    let refused = daemon.refused(2, &["array", "repair", "copies", "--from-data"]);
    assert!(refused.contains("no parity"), "{refused}");
}

#[test]
fn an_array_without_its_journal_starts_only_by_force() {
    let mut daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid5", &names, &[]);
    write(&mut client, 0..40, 1);
    client.flush().expect("it flushes");
    daemon.kill();
    destroy_journals(&disks);
    // A torn write: the parity of stripe 0 does not match its data.
    let file = std::fs::File::options().write(true).open(&disks[2]).expect("a member's file");
    std::os::unix::fs::FileExt::write_all_at(&file, &noise(4096, 9), MIB).expect("it can be written");
    daemon.start_again();
    let shown = show(&daemon);
    assert!(shown["state"] == "failed" && shown["attention"].to_string().contains("journal"), "{shown}");
    assert!(!shown["attention"].to_string().contains("array data"), "its name stands before it: {shown}");
    assert_eq!(said(&daemon.any(&["status"])).matches("array data").count(), 1, "{}", said(&daemon.any(&["status"])));
    assert!(daemon.refused(1, &["array", "assemble", "data"]).contains("--force"));
    daemon.braid(&["array", "assemble", "data", "--force"]);
    check(&mut self::client(&daemon), 0..40, 1);
    // The array checks its parity by itself.
    let repair = wait_for("the repair", || {
        let jobs = daemon.json(&["job", "list"])["jobs"].as_array().cloned().expect("a list");
        jobs.into_iter().find(|job| job["kind"] == "repair" && job["state"] == "done")
    });
    assert_eq!(repair["findings"]["differing_blocks"], 1, "{repair}");
    let checked = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
}
