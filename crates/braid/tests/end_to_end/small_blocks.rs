//! Volumes with blocks of 512 bytes: writes to parts of the pool's blocks that hold data.

use std::fs;

use crate::nbd::{Client, TRIM, WRITE, WRITE_ZEROES, reply};
use crate::pools::{self, export, socket};
use crate::support::*;

const SECTOR: u64 = 512;

/// Creates a pool with an exported volume of such blocks.
fn volume(daemon: &Daemon) {
    let disks = ["a.img", "b.img"].map(|name| daemon.folder.sparse(name, 100 * MIB));
    daemon.braid(&["pool", "create", "tank", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/disk", "16M", "--block-size", "512"]);
    export(daemon, "tank/disk");
}

fn client(daemon: &Daemon) -> Client {
    pools::client(daemon, "tank/disk")
}

/// Returns the content that a writer puts into a sector, different for each writer.
fn content(writer: u64, round: u64, sector: u64) -> Vec<u8> {
    noise(SECTOR, writer << 40 | round << 32 | sector)
}

/// Two clients write to sectors of the same blocks in turn, many requests at a time: no client overwrites the other's data, and no kill loses any.
#[test]
fn two_clients_write_to_parts_of_the_same_blocks_and_lose_nothing() {
    const SECTORS: u64 = 512;
    let mut daemon = Daemon::start();
    volume(&daemon);
    for round in 1..=3 {
        let write = |writer: u64| {
            let mut client = client(&daemon);
            let own: Vec<u64> = (0..SECTORS).filter(|sector| sector % 2 == writer).collect();
            // Some sectors are written in new blocks, others over existing data.
            for sectors in own.chunks(32) {
                for sector in sectors {
                    let data = content(writer, round, *sector);
                    client.send(0, WRITE, sector * SECTOR, SECTOR as u32, &data).expect("it is sent");
                }
                for _ in sectors {
                    let (error, _) = reply(&mut client.stream).expect("it is answered");
                    assert_eq!(error, 0);
                }
            }
            client.flush().expect("it is durable");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| write(0));
            scope.spawn(|| write(1));
        });
        let found = client(&daemon).read(0, (SECTORS * SECTOR) as usize).expect("it can be read");
        for (sector, found) in (0..).zip(found.chunks_exact(SECTOR as usize)) {
            assert!(found == content(sector % 2, round, sector), "round {round}, sector {sector}");
        }
        daemon.restart(true);
        let found = client(&daemon).read(SECTOR, (SECTORS * SECTOR - 2 * SECTOR) as usize).expect("it can be read");
        for (sector, found) in (1..).zip(found.chunks_exact(SECTOR as usize)) {
            assert!(found == content(sector % 2, round, sector), "after a kill, round {round}, sector {sector}");
        }
    }
}

/// Every operation, at every offset within a block, against a copy in memory.
#[test]
fn every_operation_changes_only_its_sectors() {
    let daemon = Daemon::start();
    volume(&daemon);
    let mut client = client(&daemon);
    let mut copy = vec![0; 1 << 20];
    let mut state = 25u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..1500 {
        let from = draw(2048) * SECTOR;
        let most = if draw(10) == 0 { 600 } else { 20 };
        let to = (from + (1 + draw(most)) * SECTOR).min(1 << 20);
        let range = from as usize..to as usize;
        let len = (to - from) as u32;
        let fua = if draw(8) == 0 { 1 } else { 0 };
        match draw(10) {
            0..5 => {
                let data = noise(to - from, step);
                client.call(fua, WRITE, from, len, &data).expect("it is written");
                copy[range].copy_from_slice(&data);
            }
            5 | 6 => {
                client.call(fua | u16::from(draw(2) == 0) << 1, WRITE_ZEROES, from, len, &[]).expect("it is zeroed");
                copy[range].fill(0);
            }
            7 => {
                client.call(fua, TRIM, from, len, &[]).expect("it is taken");
                // A discard is a hint: each sector reads as before or as zeros.
                let found = client.read(from, len as usize).expect("it can be read");
                for (old, new) in copy[range].chunks_exact_mut(512).zip(found.chunks_exact(512)) {
                    assert!(new == old || new.iter().all(|byte| *byte == 0), "step {step}: a discard of {from}+{len}");
                    old.copy_from_slice(new);
                }
            }
            _ => assert!(client.read(from, len as usize).expect("it can be read") == copy[range], "step {step}"),
        }
    }
    assert!(client.read(0, copy.len()).expect("it can be read") == copy);
    let refused = client.read(100, 512).expect_err("no sector begins there");
    assert_eq!(refused.raw_os_error(), Some(22));
}

/// The block size belongs to the volume: it is reported everywhere, inherited by snapshots and clones, and persistent.
#[test]
fn the_block_size_is_reported_and_persists() {
    let mut daemon = Daemon::start();
    volume(&daemon);
    let uri = |daemon: &Daemon, name: &str| {
        format!("nbd+unix:///{}?socket={}", name.replace('/', "%2F").replace('@', "%40"), socket(daemon))
    };
    let smallest = |daemon: &Daemon, name: &str| {
        let info = run("nbdinfo", &["--json", &uri(daemon, name)]);
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        info["exports"][0]["block_size_minimum"].as_u64().expect("a number")
    };
    assert_eq!(smallest(&daemon, "tank/disk"), 512);
    assert!(daemon.braid(&["volume", "show", "tank/disk"]).contains("blocks      of 512 bytes"));
    client(&daemon).write(512, &noise(512, 1)).expect("it is written");
    daemon.braid(&["snapshot", "create", "tank/disk@one"]);
    assert!(daemon.braid(&["snapshot", "show", "tank/disk@one"]).contains("blocks      of 512 bytes"));
    daemon.braid(&["volume", "clone", "tank/disk@one", "tank/copy"]);
    daemon.braid(&["volume", "create", "tank/usual", "16M"]);
    for name in ["tank/disk@one", "tank/copy", "tank/usual"] {
        export(&daemon, name);
    }
    daemon.braid(&["volume", "rename", "tank/disk", "renamed"]);
    daemon.braid(&["volume", "resize", "tank/renamed", "32M"]);
    for again in [false, true] {
        for name in ["tank/renamed", "tank/copy"] {
            let shown = daemon.json(&["volume", "show", name]);
            assert_eq!(shown["block_bytes"], 512, "{shown}");
        }
        assert_eq!(daemon.json(&["snapshot", "show", "tank/renamed@one"])["block_bytes"], 512);
        assert_eq!(daemon.json(&["volume", "show", "tank/usual"])["block_bytes"], 4096);
        // Exports keep their names.
        let all = ["tank/disk", "tank/disk@one", "tank/copy", "tank/usual"].map(|name| smallest(&daemon, name));
        assert_eq!(all, [512, 512, 512, 4096]);
        let mut reader = pools::client(&daemon, "tank/disk@one");
        assert!(reader.read(512, 512).expect("it can be read") == noise(512, 1));
        let refused = reader.call(0, TRIM, 512, 512, &[]).expect_err("a snapshot stays as it is");
        assert_eq!(refused.raw_os_error(), Some(1));
        if !again {
            daemon.restart(true);
        }
    }
    // A rollback takes the block size of the snapshot together with its content.
    daemon.braid(&["export", "remove", "tank/usual"]);
    daemon.braid(&["volume", "rollback", "tank/usual", "tank/renamed@one", "--yes"]);
    assert_eq!(daemon.json(&["volume", "show", "tank/usual"])["block_bytes"], 512);
    let refused = daemon.refused(2, &["volume", "create", "tank/odd", "16M", "--block-size", "1024"]);
    assert!(refused.contains("write 512 or 4096"), "{refused}");
}

/// Disk images of other machines are copied unchanged: partitions, and file systems with small blocks, are used directly.
#[test]
fn images_of_disks_with_small_sectors_are_mounted_unchanged() {
    need_root();
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk.img", 2 << 30);
    daemon.braid(&["pool", "create", "tank", &disk, "--yes"]);
    let at = daemon.folder.join("at");
    fs::create_dir(&at).expect("a folder can be made");
    let (file, text) = (format!("{at}/precious"), noise(3 << 20, 7));
    for (program, arguments, kind) in
        [("mkfs.ext4", &["-q", "-b", "1024"][..], "ext4"), ("mkfs.xfs", &["-q", "-s", "size=512"][..], "xfs")]
    {
        let (image, name) = (daemon.folder.sparse(kind, 320 << 20), format!("tank/{kind}"));
        run(program, &[arguments, &[&image]].concat());
        daemon.braid(&["volume", "create", &name, "320M", "--block-size", "512"]);
        export(&daemon, &name);
        let uri = format!("nbd+unix:///tank%2F{kind}?socket={}", socket(&daemon));
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]);
        daemon.braid(&["export", "remove", &name]);
        let mounted = daemon.json(&["mount", &name, &at]);
        assert_eq!((&mounted["fs"], &mounted["sector_bytes"]), (&kind.into(), &512.into()), "{mounted}");
        fs::write(&file, &text).expect("it can be written");
        for piece in 1..40 {
            fs::write(format!("{at}/{piece}"), noise(1000 * piece, piece)).expect("it can be written");
        }
        daemon.braid(&["umount", &at]);
        daemon.braid(&["mount", &name, &at]);
        assert!(fs::read(&file).expect("it can be read") == text, "{kind}");
        for piece in 1..40 {
            let read = fs::read(format!("{at}/{piece}")).expect("it can be read");
            assert!(read == noise(1000 * piece, piece), "{kind}: {piece}");
        }
        daemon.braid(&["umount", &at]);
    }
}
