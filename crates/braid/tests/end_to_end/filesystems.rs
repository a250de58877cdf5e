//! Kernel file systems on an export: nbdfuse shows the export as a file, a loop device as a disk.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::*;

/// Longest that the exit of a daemon may take: a service manager kills it after that.
const ENDED: Duration = Duration::from_secs(45);

/// An export as a block device, taken down in reverse order.
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

    /// Creates the device with sectors of this size, for exports whose smallest block is larger than 512 bytes.
    pub fn with_sectors(daemon: &Daemon, uri: &str, bytes: u64) -> Block {
        Block::within(&daemon.folder, uri, bytes)
    }

    /// Creates the device in a folder that belongs to no daemon.
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
            // A child process that another test is starting holds our open files until it executes: the kernel reports
            // EBUSY.
            wait_for("umount", || {
                command("umount").arg(&at).output().expect("it can be started").status.success().then_some(())
            });
            // A process with a copy of the mount namespace, as `ip -n` has for a moment, keeps the file system mounted
            // until it ends.
            let alone = || fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&self.device).ok();
            wait_for("the file system to let its device go", || alone().map(drop));
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Each step runs even after the one before has failed.
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
fn a_loop_device_with_a_hanging_file_system_delays_neither_start_nor_exit() {
    need_root();
    let folder = Folder::new();
    let socket = folder.join("kit.sock");
    let mut kit = command("nbdkit");
    kit.args(["-f", "-U", &socket, "memory", "64M"]);
    let _kit = Running::start(&folder, "nbdkit", &mut kit);
    wait_for("nbdkit to listen", || fs::metadata(&socket).ok());
    let block = Block::within(&folder, &format!("nbd+unix:///?socket={socket}"), 512);
    block.nbdfuse.signal(rustix::process::Signal::STOP);
    // The kernel drops what it knows about the files after a second.
    std::thread::sleep(Duration::from_millis(1200));
    let mut listing = command(BRAID);
    listing.args(["disk", "list", "--json"]);
    places(&mut listing, &folder);
    let listed = folder.join("listed");
    // Runs beside the start, as other tests see this device, too.
    let mut listing = Running::start_apart(&folder, "listing", &mut listing, &listed);
    let mut daemon = Daemon::start();
    // Processes that still wait for that device end when this value is dropped.
    let continue_on_drop = ContinueOnDrop(&block.nbdfuse);
    let disk = daemon.folder.sparse("disk", 64 * MIB);
    daemon.array("data", "concat", &[&disk]);
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "active");
    daemon.running.terminate();
    let status = daemon.running.wait_within(ENDED);
    assert!(status.success(), "{}", daemon.running.log());
    assert!(listing.wait_within(ENDED).success(), "{}", listing.log());
    drop(continue_on_drop);
    // The list of disks reports the device instead of waiting for it.
    let listed = fs::read_to_string(listed).expect("it was written");
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("it is JSON");
    let device = listed["disks"].as_array().expect("a list").iter().find(|disk| disk["path"] == block.device.as_str());
    let reason = device.expect("it is listed")["reason"].to_string();
    assert!(reason.contains("did not reply"), "{reason}");
    // The next daemon is not blocked by the one before.
    daemon.start_again();
    assert_eq!(daemon.json(&["array", "show", "data"])["state"], "active");
}

/// The search for members reads the folders of known members, where another program may have mounted a file.
#[test]
fn a_hanging_file_beside_the_members_does_not_delay_a_start() {
    need_root();
    let other = Daemon::start();
    let disk = other.folder.sparse("disk", 64 * MIB);
    other.array("other", "concat", &[&disk]);
    let mut daemon = Daemon::start();
    let disks = ["a", "b"].map(|name| daemon.folder.sparse(name, 32 * MIB));
    daemon.array("data", "raid1", &[&disks[0], &disks[1]]);
    let file = Mounted(daemon.folder.join("file"));
    other.braid(&["export", "add", "other", "--fuse", &file.0, "--name", "file"]);
    // With a member missing, the daemon reads all files beside the other member.
    daemon.stop();
    fs::remove_file(&disks[1]).expect("it is an ordinary file");
    let continue_on_drop = ContinueOnDrop(&other.running);
    other.running.signal(rustix::process::Signal::STOP);
    daemon.start_again();
    assert_eq!(daemon.json(&["array", "list"])["arrays"][0]["name"], "data");
    daemon.running.terminate();
    let status = daemon.running.wait_within(ENDED);
    assert!(status.success(), "{}", daemon.running.log());
    drop(continue_on_drop);
    other.braid(&["export", "remove", "file"]);
}

/// A mount point of a file. Dropping it unmounts what is left there.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        if fs::read_to_string("/proc/mounts").unwrap_or_default().contains(&self.0) {
            let _ = command("umount").args(["-l", &self.0]).output();
        }
    }
}

/// Continues a stopped process when dropped.
struct ContinueOnDrop<'a>(&'a Running);

impl Drop for ContinueOnDrop<'_> {
    fn drop(&mut self) {
        self.0.signal(rustix::process::Signal::CONT);
    }
}

/// Runs mkfs, mount, write, unmount, fsck, mount again, compare.
fn filesystem_scenario(kind: &str, mkfs: &[&str], fsck: &[&str]) {
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
        // Small files, large files, and files with holes.
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
fn ext4_works_on_an_export() {
    filesystem_scenario("ext4", &["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]);
}

#[test]
fn xfs_works_on_an_export() {
    filesystem_scenario("xfs", &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);
}

#[test]
fn btrfs_works_on_an_export() {
    filesystem_scenario("btrfs", &["mkfs.btrfs", "-q", "-f"], &["btrfs", "check", "--readonly"]);
}
