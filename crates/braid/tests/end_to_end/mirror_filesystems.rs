//! Kernel file systems on a mirror that loses a member, gets another one and rebuilds it, while files are written.

use std::collections::BTreeMap;
use std::fs;

use crate::filesystems::Block;
use crate::mirrors::*;
use crate::support::*;

/// How many files exist at a time, 36 MiB in total: the files written until something happens must fit on a disk of any
/// speed.
const FILES: u64 = 200;

/// Writes files until stopped, overwriting the oldest once there are [`FILES`], and remembers their content.
struct Author {
    at: String,
    written: u64,
    sums: BTreeMap<String, u64>,
}

impl Author {
    fn write(&mut self, files: u64) {
        for _ in 0..files {
            let number = self.written;
            self.written += 1;
            let path = format!("{}/file{}", self.at, number % FILES);
            fs::write(&path, noise(1 + number % 40 * 9000, number)).expect("a file can be written");
            self.sums.insert(path.clone(), checksum(&path));
        }
        run("sync", &["-f", &self.at]);
    }

    #[track_caller]
    fn check(&self) {
        for (path, sum) in &self.sums {
            assert_eq!(checksum(path), *sum, "{path}");
        }
    }
}

/// A file system's kind, its mkfs command and its fsck command.
pub const EXT4: [&[&str]; 3] = [&["ext4"], &["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]];
pub const XFS: [&[&str]; 3] = [&["xfs"], &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]];

/// Runs the scenario on an array of `disks` disks of `mib` MiB each.
pub fn story(level: &str, disks: u64, mib: u64, [kind, mkfs, fsck]: [&[&str]; 3]) {
    let kind = kind[0];
    let daemon = Daemon::start();
    let path = |name: &str| daemon.folder.sparse(name, mib * MIB);
    let (b, c) = (path("b"), path("c"));
    let mut names: Vec<String> = (0..disks).map(|i| path(&format!("d{i}"))).collect();
    names[1] = format!("faulty({b},gone-after=900)");
    // The second disk lasts for the I/O of mkfs and the first files, and some more.
    drop(create(&daemon, level, &names.iter().map(String::as_str).collect::<Vec<_>>(), &[]));
    let mut block = Block::with_sectors(
        &daemon,
        &daemon.uri("data"),
        show(&daemon)["logical_block_bytes"].as_u64().expect("bytes"),
    );
    let device = block.device.clone();
    run(mkfs[0], &[&mkfs[1..], &[&device]].concat());
    let at = block.mount(kind);
    let mut author = Author { at, written: 0, sums: BTreeMap::new() };
    wait_for("the member to fail", || {
        author.write(10);
        (health(&daemon) == "degraded").then_some(())
    });
    author.write(20);
    // Another disk takes its slot, and is rebuilt while files are written.
    daemon.braid(&["array", "remove", "data", "1"]);
    daemon.braid(&["array", "add", "data", &format!("throttled({c},bw=40M)")]);
    let mut beside = 0;
    wait_for("the new member", || {
        author.write(5);
        beside += 5;
        (health(&daemon) == "whole").then_some(())
    });
    assert!(beside >= 5 && daemon.events().contains("member_in_sync"), "{}", daemon.events());
    for (path, _) in author.sums.extract_if(.., |path, _| path.ends_with('7')) {
        fs::remove_file(&path).expect("a file can be removed");
    }
    run("fstrim", &[&author.at]);
    author.check();
    block.unmount();
    run(fsck[0], &[&fsck[1..], &[&device]].concat());
    let check = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));

    // Reads from the new member alone (at a mirror), with an empty page cache.
    daemon.braid(&["array", "fail", "data", "0"]);
    fs::write("/proc/sys/vm/drop_caches", "1").ok();
    block.mount(kind);
    author.check();
    block.unmount();
    run(fsck[0], &[&fsck[1..], &[&device]].concat());
}

#[test]
fn ext4_works_on_a_mirror_while_a_member_is_replaced() {
    story("raid1", 2, 340, EXT4);
}

#[test]
fn xfs_works_on_a_mirror_while_a_member_is_replaced() {
    story("raid1", 2, 340, XFS);
}
