//! Arrays of Linux md: images that md wrote are described, served read-only, also degraded, found again after a
//! restart, and forgotten; not one byte of them is ever changed.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::mirrors::client;
use crate::nbd::Client;
use crate::support::*;

/// Unpacks the members of an array that md created.
pub fn unpack(folder: &Folder, name: &str, members: usize) -> Vec<String> {
    let golden = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/md-layouts/images");
    let one = |member: usize| {
        let packed = golden.join(format!("{name}.member{member}.img.xz"));
        let out = command("xz").args(["--decompress", "--stdout"]).arg(&packed).output().expect("xz runs");
        assert!(out.status.success(), "{}", said(&out));
        let path = folder.join(&format!("{name}.{member}"));
        fs::write(&path, out.stdout).expect("there is room");
        path
    };
    (0..members).map(one).collect()
}

/// Returns the content of a block of these arrays, as the README beside them defines it.
fn pattern(number: u64) -> [u8; 4096] {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let mut block = [0; 4096];
    for (word, place) in block.chunks_exact_mut(8).enumerate() {
        let value = if word % 64 == 0 { number | (word as u64 / 64) << 56 } else { z };
        place.copy_from_slice(&value.to_le_bytes());
    }
    block
}

/// Checks every byte of the array, in pieces that are not aligned to chunks.
fn check_all(client: &mut Client, size_bytes: u64) {
    const PIECE: u64 = 156 * 4096;
    for at in (0..size_bytes).step_by(PIECE as usize) {
        let len = PIECE.min(size_bytes - at);
        let bytes = client.read(at, len as usize).expect("it can be read");
        for (block, found) in bytes.chunks_exact(4096).zip(at / 4096..).map(|(bytes, number)| (number, bytes)) {
            assert!(found == pattern(block), "block {block}");
        }
    }
}

fn braid(daemon: &Daemon, arguments: &[&str], disks: &[String]) -> String {
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    daemon.braid(&[arguments, &disks].concat())
}

fn refused(daemon: &Daemon, arguments: &[&str], disks: &[String]) -> String {
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    daemon.refused_any(&[arguments, &disks].concat())
}

const IMPORT: &[&str] = &["array", "import-md"];
const IMPORT_DATA: &[&str] = &["array", "import-md", "--name", "data"];
const SIZE: u64 = 72_351_744;

#[test]
fn a_raid5_of_md_is_read_and_stays_unchanged() {
    let mut daemon = Daemon::start();
    let mut disks = unpack(&daemon.folder, "raid5_ls_4", 4);
    disks.swap(0, 2);
    let sums: Vec<u64> = disks.iter().map(|disk| checksum(disk)).collect();
    let described = braid(&daemon, IMPORT, &disks);
    assert!(described.contains("raid5 left-symmetric") && described.contains("clean, md 1.2"), "{described}");
    // Describing an array claims none of its disks; from one disk alone, the description names the missing members.
    let one = daemon.any(&[IMPORT, &[&*disks[1]]].concat());
    assert!(said(&one).contains("without members 0, 2, 3"), "{}", said(&one));
    assert!(refused(&daemon, IMPORT_DATA, &disks[..2]).contains("are nowhere"));
    let foreign = daemon.folder.sparse("foreign", 32 << 20);
    assert!(refused(&daemon, IMPORT_DATA, &[&disks[..], &[foreign]].concat()).contains("no superblock"));

    // Reads with all members, then without each member: the missing data are computed from parity.
    for lost in [None, Some(0), Some(1), Some(2), Some(3)] {
        let present: Vec<String> =
            disks.iter().enumerate().filter(|(at, _)| Some(*at) != lost).map(|(_, disk)| disk.clone()).collect();
        let imported = braid(&daemon, IMPORT_DATA, &present);
        assert!(imported.contains("array data is active"), "{imported}");
        daemon.export("data");
        check_all(&mut client(&daemon), SIZE);
        let shown = daemon.json(&["array", "show", "data"]);
        assert_eq!((shown["read_only"].as_bool(), shown["size_bytes"].as_u64()), (Some(true), Some(SIZE)), "{shown}");
        assert_eq!(shown["attention"].as_array().map(Vec::len), Some(usize::from(lost.is_some())), "{shown}");
        if lost.is_none() {
            // The array refuses all writes, also with a writable export, and its disks are refused to other arrays.
            assert_eq!(daemon.json(&["export", "show", "data"])["read_only"], true);
            let mut client = client(&daemon);
            client.write(0, &[7; 4096]).expect_err("it is read-only");
            client.flush().expect("there is nothing to flush");
            let taken =
                refused(&daemon, &["array", "create", "other", "--level", "raid0", "--force", "--yes"], &disks[..2]);
            assert!(taken.contains("in use") || taken.contains("member"), "{taken}");
            assert!(refused(&daemon, &["array", "import-md", "--name", "again"], &disks).contains("member"));
            for change in [&["array", "check", "data"][..], &["array", "grow", "data"], &["array", "fail", "data", "1"]]
            {
                assert!(daemon.refused_any(change).contains("only read"), "{change:?}");
            }
            assert!(daemon.refused_any(&["pool", "create", "tank", "data", "--yes"]).contains("only read"));
            daemon.braid(&["array", "rename", "data", "older"]);
            daemon.braid(&["array", "rename", "older", "data"]);
        }
        daemon.braid(&["array", "delete", "data", "--force"]);
    }
    let after: Vec<u64> = disks.iter().map(|disk| checksum(disk)).collect();
    assert_eq!(after, sums, "not one byte of them has changed");

    // The array starts again with its export, also without a member that was removed since; a stopped array stays stopped.
    braid(&daemon, IMPORT_DATA, &disks);
    daemon.export("data");
    daemon.stop();
    let moved = daemon.folder.join("elsewhere");
    fs::rename(&disks[3], &moved).expect("it can be renamed");
    daemon.start_again();
    check_all(&mut client(&daemon), SIZE);
    daemon.braid(&["array", "stop", "data", "--force"]);
    daemon.restart(false);
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "stopped");
    daemon.braid(&["array", "assemble", "data", "--disk", &moved]);
    assert_eq!(daemon.json(&["array", "show", "data"])["attention"].as_array().map(Vec::len), Some(0));
    check_all(&mut client(&daemon), SIZE);
    // Without enough members it waits, and names the missing ones.
    daemon.stop();
    fs::rename(&disks[0], daemon.folder.join("away")).expect("it can be renamed");
    fs::rename(&moved, daemon.folder.join("away too")).expect("it can be renamed");
    daemon.start_again();
    let shown = daemon.json(&["array", "show", "data"]);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    assert!(shown["attention"][0].as_str().is_some_and(|text| text.contains("are nowhere")), "{shown}");
    daemon.braid(&["array", "delete", "data", "--force"]);
    assert!(daemon.refused_any(&["array", "show", "data"]).contains("there is no array data"));
}

#[test]
fn blocks_in_mds_bad_block_list_are_read_from_other_members_or_fail() {
    let daemon = Daemon::start();
    let disks = unpack(&daemon.folder, "raid10_n2_3", 3);
    // In md's bad-block lists: on the first member its first two blocks, and 64 KiB that the third member has a copy
    // of; on the second member the second block alone.
    let note = |disk: &str, ranges: &[(u64, u64)]| {
        let file = fs::File::options().read(true).write(true).open(disk).expect("it can be opened");
        let mut superblock = vec![0; 4096];
        file.read_exact_at(&mut superblock, 4096).expect("it is there");
        superblock[8] |= 8;
        superblock[216..220].fill(0);
        let word = |word: &[u8]| word.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        let sum: u64 = superblock[..256 + 2 * 128].chunks(4).map(word).sum();
        superblock[216..220].copy_from_slice(&(((sum & 0xffff_ffff) + (sum >> 32)) as u32).to_le_bytes());
        file.write_all_at(&superblock, 4096).expect("it can be written");
        let entries: Vec<u8> = ranges.iter().flat_map(|(sector, count)| (sector << 10 | count).to_le_bytes()).collect();
        let mut log = vec![0xff; 4096];
        log[..entries.len()].copy_from_slice(&entries);
        file.write_all_at(&log, 4096 + 16 * 512).expect("it can be written");
    };
    const DATA: u64 = 2048;
    note(&disks[0], &[(DATA, 16), (DATA + 256, 128)]);
    note(&disks[1], &[(DATA + 8, 8)]);
    braid(&daemon, IMPORT_DATA, &disks);
    daemon.export("data");
    let mut client = client(&daemon);
    let mut failed = Vec::new();
    for block in 0..1000 {
        match client.read(block * 4096, 4096) {
            Ok(bytes) => assert!(bytes == pattern(block), "block {block}"),
            Err(_) => failed.push(block),
        }
    }
    // The first block is bad on one of them alone.
    assert_eq!(failed, [1]);
}
