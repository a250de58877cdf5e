//! Members are added to a pool while its volumes are used.

use braid_format::LABEL_BYTES;
use braid_format::pool::{PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::nbd::Client;
use crate::pools::{check, check_zeros, client, export, socket, write};
use crate::support::*;

const BLOCK: u64 = 64 * KIB;

/// Returns the disks or arrays of the members, by their numbers.
fn members(daemon: &Daemon) -> Vec<(u64, String)> {
    let shown = daemon.json(&["pool", "show", "tank"]);
    let of = |member: &serde_json::Value| {
        let name = member["array"].as_str().or(member["disk"].as_str()).expect("a name");
        (member["number"].as_u64().expect("a number"), name.to_owned())
    };
    shown["members"].as_array().expect("members").iter().map(of).collect()
}

fn size(daemon: &Daemon) -> u64 {
    daemon.json(&["pool", "show", "tank"])["size_bytes"].as_u64().expect("a size")
}

#[test]
fn a_full_pool_goes_on_with_another_disk_and_with_an_array() {
    let mut daemon = Daemon::start();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| daemon.folder.sparse(name, 96 * MIB));
    daemon.braid(&["pool", "create", "tank", &a]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    daemon.braid(&["volume", "create", "tank/here", "1G", "--place", "single"]);
    export(&daemon, "tank/db");
    export(&daemon, "tank/here");
    let mut db = client(&daemon, "tank/db");
    let full = |db: &mut Client, from: u64| {
        let mut block = from;
        while db.write(block * BLOCK, &noise(BLOCK, 1 + block)).is_ok() {
            block += 1;
        }
        block
    };
    let first = full(&mut db, 0);
    assert!(first > 1000, "{first} blocks of 64 KiB in 96 MiB");
    let before = size(&daemon);
    let said = daemon.braid(&["pool", "add", "tank", &b]);
    assert!(said.contains("has 2 members now"), "{said}");
    assert!(daemon.events().contains("is member 1 of pool tank now"));
    assert_eq!(size(&daemon), 2 * before);
    // Connected clients can use the new space at once; volumes that are placed elsewhere cannot.
    let second = full(&mut db, first);
    assert!(second > first + 1000, "{second}");
    let mut here = client(&daemon, "tank/here");
    assert!(here.write(0, &noise(BLOCK, 1)).is_err(), "it is placed on the first");
    daemon.braid(&["array", "create", "safe", "--level", "raid1", &c, &d]);
    daemon.braid(&["pool", "add", "tank", "safe"]);
    let refused = daemon.refused(4, &["array", "stop", "safe", "--force"]);
    assert!(refused.contains("member 2 of pool tank"), "{refused}");
    daemon.braid(&["snapshot", "create", "tank/db@three"]);
    let third = full(&mut db, second);
    assert!(third > second + 1000, "{third}");
    check(&mut db, 0..third, 1);
    check_zeros(&mut db, third..third + 4);
    for kill in [true, false] {
        drop(db);
        daemon.restart(kill);
        db = client(&daemon, "tank/db");
        check(&mut db, 0..third, 1);
        assert_eq!(members(&daemon), [(0, a.clone()), (1, b.clone()), (2, "safe".to_owned())]);
    }
    // A member is removed; the next one gets a number of its own, also on the disk of the removed one.
    drop(db);
    export(&daemon, "tank/db@three");
    check(&mut client(&daemon, "tank/db@three"), 0..second, 1);
    daemon.braid(&["export", "remove", "tank/db@three"]);
    daemon.braid(&["snapshot", "delete", "tank/db@three", "--yes"]);
    run(
        "qemu-io",
        &["-f", "raw", "-c", "discard 32M 992M", &format!("nbd+unix:///tank%2Fdb?socket={}", socket(&daemon))],
    );
    wait_for("the first to be removable", || daemon.try_json(&["pool", "remove", "tank", "1"]).is_ok().then_some(()));
    wait_for("the second disk to be gone", || (members(&daemon).len() == 2).then_some(()));
    assert!(size(&daemon) < 2 * before, "what has gone is not counted");
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..512, 1);
    daemon.braid(&["pool", "add", "tank", &b]);
    assert_eq!(members(&daemon).last(), Some(&(3, b.clone())));
    write(&mut db, 600..2500, 70_000);
    drop(db);
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..512, 1);
    check(&mut db, 600..2500, 70_000);
}

#[test]
fn a_member_is_added_under_load_whenever_the_daemon_is_killed() {
    let mut daemon = Daemon::start();
    let slow = |name: &str| format!("throttled({},latency=2ms)", daemon.folder.sparse(name, 64 * MIB));
    let (first, disks) = (slow("first"), ["a", "b", "c", "d", "e", "f", "g", "h"].map(slow));
    daemon.braid(&["pool", "create", "tank", &first]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    let mut took = Duration::from_millis(200);
    let (mut next, mut joined, mut left) = (0u64, 0, 0);
    for (round, disk) in (0..).zip(&disks) {
        let mut db = client(&daemon, "tank/db");
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(next));
        // The first addition is not interrupted: it measures how long one takes.
        let wait = (round > 0).then(|| took * round / disks.len() as u32);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for block in next..next + 600 {
                    // Some writes are flushed, others only acknowledged: both survive a kill.
                    let good = db.write(block % 8192 * BLOCK, &noise(4096, block)).is_ok();
                    if !good || block % 16 == 0 && db.flush().is_err() {
                        break;
                    }
                    written.store(block + 1, Ordering::Release);
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
            let mut add = daemon.command(&["pool", "add", "tank", disk]);
            let begun = Instant::now();
            let mut adding = Running::start(&daemon.folder, "add", &mut add);
            if let Some(wait) = wait {
                std::thread::sleep(wait);
                daemon.running.signal(rustix::process::Signal::KILL);
                adding.wait();
            } else {
                assert!(adding.wait().success(), "{}", adding.log());
                took = begun.elapsed();
            }
            stop.store(true, Ordering::Release);
            writer.join().expect("it ends");
        });
        next = written.load(Ordering::Acquire);
        if wait.is_some() {
            daemon.kill();
            daemon.start_again();
        }
        let shown = daemon.json(&["pool", "show", "tank"]);
        assert_eq!(shown["state"], "active", "round {round}: {shown}");
        if members(&daemon).iter().any(|(_, name)| name == disk) {
            joined += 1;
        } else {
            // The disk has nothing of the pool: it needs no `--force`.
            left += 1;
            daemon.braid(&["pool", "add", "tank", disk]);
        }
        let mut db = client(&daemon, "tank/db");
        for block in 0..next {
            let back = db.read(block * BLOCK, 4096).expect("it reads");
            assert!(back == noise(4096, block), "round {round}: block {block} is not what was acknowledged");
        }
    }
    assert!(joined >= 1 && left >= 1, "{joined} were members after a cut, {left} were not");
    assert_eq!(members(&daemon).len(), 1 + disks.len());
    daemon.restart(false);
    let mut db = client(&daemon, "tank/db");
    for block in 0..next {
        assert!(db.read(block * BLOCK, 4096).expect("it reads") == noise(4096, block), "block {block}");
    }
}

/// Returns the label at the start of a disk.
fn label(disk: &str) -> PoolLabel {
    PoolLabel::decode(&std::fs::read(disk).expect("it is there")[..LABEL_BYTES]).expect("it has a label")
}

fn put(disk: &str, label: &PoolLabel) {
    let file = std::fs::File::options().write(true).open(disk).expect("it is there");
    let bytes = label.encode().expect("it is one");
    for offset in [label.layout.label_start, label.layout.copy_start] {
        file.write_all_at(&bytes, offset).expect("it can be written");
    }
}

fn as_joining(label: &mut PoolLabel) {
    let at = usize::from(label.member);
    label.members[at].as_mut().expect("its own").state = PoolMemberState::Joining;
}

#[test]
fn a_disk_whose_addition_was_interrupted_is_a_member_if_another_label_says_so() {
    let mut daemon = Daemon::start();
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.folder.sparse(name, 64 * MIB));
    daemon.braid(&["pool", "create", "tank", &a]);
    daemon.braid(&["volume", "create", "tank/db", "1G"]);
    export(&daemon, "tank/db");
    write(&mut client(&daemon, "tank/db"), 0..100, 1);
    daemon.braid(&["pool", "add", "tank", &b]);

    // Interrupted after the first of the other labels was written: every label names the member as joined or is one sequence behind.
    daemon.kill();
    let mut late = label(&b);
    late.sequence -= 1;
    as_joining(&mut late);
    put(&b, &late);
    daemon.start_again();
    assert_eq!(members(&daemon), [(0, a.clone()), (1, b.clone())]);
    assert!(!label(&b).is_joining());
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..100, 1);
    write(&mut db, 100..600, 1);
    drop(db);

    // Interrupted before that: no member names it, and the pool starts without it.
    daemon.stop();
    let mut left = label(&a);
    left.member = left.members.len() as u8;
    left.layout = PoolMemberLayout::new(64 * MIB, left.layout.owner_slots).expect("it is large enough");
    let (uuid, size_bytes) = (uuid::Uuid::from_u128(7), 64 * MIB);
    left.members.push(Some(PoolMember { uuid, size_bytes, state: PoolMemberState::Joining }));
    put(&c, &left);
    let examined = daemon.braid(&["disk", "examine", &c]);
    assert!(examined.contains("being added"), "{examined}");
    daemon.start_again();
    daemon.braid(&["array", "assemble", "--disk", &c]);
    let said = daemon.events();
    assert!(said.contains(&format!("disk {c} was to be added to pool tank, and that did not end")), "{said}");
    assert!(said.contains(&format!("braid pool add tank {c}")), "{said}");
    assert_eq!(members(&daemon), [(0, a.clone()), (1, b.clone())]);
    // Found while the pool waits for another member, the disk is no member either.
    daemon.kill();
    std::fs::rename(&b, daemon.folder.join("away")).expect("it is a file");
    daemon.start_again();
    daemon.any(&["array", "assemble", "--disk", &c]);
    let shown = daemon.json(&["pool", "show", "tank"]);
    assert_eq!(
        (&shown["state"], shown["members"].as_array().map(Vec::len)),
        (&"incomplete".into(), Some(2)),
        "{shown}"
    );
    std::fs::rename(daemon.folder.join("away"), &b).expect("it is a file");
    daemon.braid(&["array", "assemble"]);
    // Another pool needs `--force` for the disk; the pool that left the label there takes the disk without it.
    let refused = daemon.refused(4, &["pool", "create", "other", &c]);
    assert!(refused.contains("did not end") && refused.contains("--force"), "{refused}");
    daemon.braid(&["pool", "add", "tank", &c]);
    assert_eq!(members(&daemon)[2], (2, c.clone()));
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..600, 1);
    write(&mut db, 600..1200, 1);
    drop(db);
    daemon.restart(true);
    check(&mut client(&daemon, "tank/db"), 0..1200, 1);
}

#[test]
fn unusable_disks_are_refused_and_named() {
    let mut daemon = Daemon::start();
    let [a, b, c] = ["a", "b", "c"].map(|name| daemon.folder.sparse(name, 160 * MIB));
    daemon.braid(&["pool", "create", "tank", &a]);
    daemon.braid(&["pool", "create", "other", &b]);
    daemon.braid(&["volume", "create", "other/db", "1G"]);
    let refused = |status: i32, arguments: &[&str], words: &str| {
        let said = daemon.refused(status, &[&["pool", "add"], arguments].concat());
        assert!(said.contains(words), "braid pool add {}: {said}", arguments.join(" "));
    };
    refused(3, &["nobody", &c], "there is no pool nobody");
    refused(3, &["tank", "nobody"], "there is no array nobody");
    refused(4, &["tank", &a], "member 0 of");
    refused(4, &["tank", &b], "member 0 of");
    refused(4, &["tank", &c, &a], "member 0 of");
    refused(2, &["tank", &c, &c], "named twice");
    refused(2, &["tank", "other/db"], "a volume of a pool");
    refused(2, &["tank", "mem:160M"], "is volatile, and pool tank outlives the daemon");
    refused(2, &["tank", &daemon.folder.sparse("tiny", MIB / 4)], "cannot be a member of a pool");
    // The disk could be a member of a pool of its own, not of one that relies on a larger journal.
    let small = daemon.folder.sparse("small", 64 * MIB);
    refused(2, &["tank", &small], "its journal would be, too");
    refused(2, &["tank", &small], "a further member must have at least 160.00 MiB");
    refused(3, &["tank", "/dev/nobody"], "/dev/nobody");
    let foreign = daemon.folder.join("foreign");
    std::fs::write(&foreign, [&[0; 1080][..], &[0x53, 0xef], &vec![0; 160 << 20]].concat()).expect("it can be written");
    refused(4, &["tank", &foreign], "is not empty");
    let safe = daemon.folder.sparse("safe.img", 160 * MIB);
    daemon.braid(&["array", "create", "safe", "--level", "raid0", &safe]);
    daemon.export("safe");
    refused(4, &["tank", "safe"], "is exported as safe");
    // None of the refused commands changed anything.
    assert_eq!(members(&daemon).len(), 1);
    assert!(std::fs::read(&c).expect("it is there")[..LABEL_BYTES].iter().all(|byte| *byte == 0));
    daemon.braid(&["pool", "add", "tank", &foreign, "--force"]);
    daemon.braid(&["pool", "add", "tank", &c]);
    daemon.restart(false);
    assert_eq!(members(&daemon), [(0, a), (1, foreign), (2, c)]);
}
