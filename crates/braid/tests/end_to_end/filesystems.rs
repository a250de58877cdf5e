//! Real file systems of the real kernel on an export: nbdfuse shows it as a file, a loop device as a disk.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::*;

/// An export as a block device; taken down in reverse order.
pub struct Block {
    pub device: String,
    mounted: Option<String>,
    nbdfuse: Running,
    folder: String,
}

impl Block {
    pub fn of(daemon: &Daemon, uri: &str) -> Block {
        Block::with_sectors(daemon, uri, 512)
    }

    /// With sectors of so many bytes, as the export's smallest block is larger.
    pub fn with_sectors(daemon: &Daemon, uri: &str, bytes: u64) -> Block {
        Block::within(&daemon.folder, uri, bytes)
    }

    /// The same, in a folder that is no daemon's.
    pub fn within(place: &Folder, uri: &str, bytes: u64) -> Block {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        need_root();
        let folder = place.join(&format!("fuse{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).expect("a folder can be made");
        let file = format!("{folder}/nbd");
        let mut nbdfuse = command("nbdfuse");
        nbdfuse.args([&file, uri]);
        let nbdfuse = Running::start(place, folder.rsplit('/').next().expect("a name"), &mut nbdfuse);
        wait_for("nbdfuse to mount", || fs::metadata(&file).ok().filter(|found| found.len() > 0));
        let device =
            run("losetup", &["--find", "--show", "--direct-io=on", "--sector-size", &bytes.to_string(), &file])
                .trim()
                .to_owned();
        Block { device, mounted: None, nbdfuse, folder }
    }

    pub fn mount(&mut self, kind: &str) -> String {
        self.mount_with(kind, "defaults")
    }

    pub fn mount_with(&mut self, kind: &str, options: &str) -> String {
        let at = format!("{}-mounted", self.folder);
        fs::create_dir_all(&at).expect("a folder can be made");
        run("mount", &["-t", kind, "-o", options, &self.device, &at]);
        self.mounted = Some(at.clone());
        at
    }

    pub fn unmount(&mut self) {
        if let Some(at) = self.mounted.take() {
            // A program that another test is starting has our open files until it runs: the kernel calls that busy.
            wait_for("umount", || {
                command("umount").arg(&at).output().expect("it can be started").status.success().then_some(())
            });
            // Who has a copy of all mounts, as `ip -n` for a moment, keeps it mounted until then.
            let alone = || fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&self.device).ok();
            wait_for("the file system to let its device go", || alone().map(drop));
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Also after a failure: each step whatever the one before said.
        if let Some(at) = self.mounted.take() {
            let _ = command("umount").arg(&at).output();
        }
        let _ = command("losetup").args(["--detach", &self.device]).output();
        let _ = command("fusermount3").args(["-u", &self.folder]).output();
        self.nbdfuse.kill();
        let _ = command("umount").args(["-l", &self.folder]).output();
    }
}

/// A file system may stand on a daemon's own exports, and wait for it.
#[test]
fn a_loop_device_whose_file_system_hangs_holds_up_no_start() {
    need_root();
    let folder = Folder::new();
    let socket = folder.join("kit.sock");
    let mut kit = command("nbdkit");
    kit.args(["-f", "-U", &socket, "memory", "64M"]);
    let _kit = Running::start(&folder, "nbdkit", &mut kit);
    wait_for("nbdkit to listen", || fs::metadata(&socket).ok());
    let block = Block::within(&folder, &format!("nbd+unix:///?socket={socket}"), 512);
    block.nbdfuse.signal(rustix::process::Signal::STOP);
    // What the kernel knows of its files it forgets after a second.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let daemon = Daemon::start();
    // What it has begun on that device keeps it from ending until it goes on.
    let goes_on = GoesOn(&block.nbdfuse);
    let disk = daemon.folder.sparse("disk", 64 * MIB);
    daemon.array("data", "concat", &[&disk]);
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "active");
    drop(goes_on);
}

/// Has a process go on that was halted.
struct GoesOn<'a>(&'a Running);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.signal(rustix::process::Signal::CONT);
    }
}

/// mkfs, mount, write, unmount, fsck, mount again, compare.
fn story(kind: &str, mkfs: &[&str], fsck: &[&str]) {
    let daemon = Daemon::start();
    let disks: Vec<String> = [100, 200, 200]
        .iter()
        .enumerate()
        .map(|(i, mib)| daemon.folder.sparse(&format!("disk{i}"), mib * MIB))
        .collect();
    let uri = daemon.array("data", "raid0", &disks.iter().map(String::as_str).collect::<Vec<_>>());
    let mut block = Block::of(&daemon, &uri);
    let device = block.device.clone();
    run(mkfs[0], &[&mkfs[1..], &[&device]].concat());

    let at = block.mount(kind);
    let mut sums = Vec::new();
    for i in 0..40u64 {
        let path = format!("{at}/file{i}");
        // Small ones, large ones, and holes.
        fs::write(&path, noise(1 + i * i * 700, i)).expect("a file can be written");
        sums.push((path.clone(), checksum(&path)));
    }
    for i in (0..40).step_by(3) {
        fs::remove_file(&sums[i].0).expect("a file can be removed");
    }
    let sums: Vec<_> = sums.into_iter().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, sum)| sum).collect();
    run("sync", &["-f", &at]);
    run("fstrim", &[&at]);
    block.unmount();
    run(fsck[0], &[&fsck[1..], &[&device]].concat());

    block.mount(kind);
    for (path, sum) in &sums {
        assert_eq!(checksum(path), *sum, "{path}");
    }
    block.unmount();
    run(fsck[0], &[&fsck[1..], &[&device]].concat());
}

#[test]
fn ext4_lives_on_an_export() {
    story("ext4", &["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]);
}

#[test]
fn xfs_lives_on_an_export() {
    story("xfs", &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
}

#[test]
fn btrfs_lives_on_an_export() {
    story("btrfs", &["mkfs.btrfs", "-q", "-f"], &["btrfs", "check", "--readonly"]);
}
