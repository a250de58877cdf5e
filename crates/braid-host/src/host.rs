//! The block devices of the machine and their users, from `/sys` and `/proc`.
//!
//! Read only. All access goes through [`SystemRoots`], so that tests can substitute a fake machine.

use super::probe::Probe;
use super::probe_process::{self, ProbeRequest, ProbeResult};
use braid_api::HostDisk;
use braid_ring::mounts;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use super::identity::{FileSystemEntry, Identity};

/// Maximum time to wait for the identities of files behind loop devices.
const BACKING_MAX: Duration = Duration::from_secs(2);
/// Maximum time to wait for disks whose content is listed. A disk without a reply is listed as not usable.
const LISTED_MAX: Duration = Duration::from_secs(2);

/// The mount points of the kernel's file systems.
pub struct SystemRoots {
    sys: PathBuf,
    proc: PathBuf,
    dev: PathBuf,
}

impl Default for SystemRoots {
    fn default() -> SystemRoots {
        SystemRoots { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

impl SystemRoots {
    /// Returns the roots of a machine whose file systems of the kernel are at these folders.
    pub fn at(sys: PathBuf, proc: PathBuf, dev: PathBuf) -> SystemRoots {
        SystemRoots { sys, proc, dev }
    }
}

/// A block device as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// The device file.
    pub path: PathBuf,
    /// The major and minor number, such as `259:0`.
    pub number: String,
    /// `disk`, `partition` or `loop`.
    pub kind: &'static str,
    /// The major and minor number of a partition's whole disk.
    pub parent: Option<String>,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The minimum unit of reads and writes, in bytes.
    pub logical_block_bytes: u32,
    /// The model, as the kernel reports it.
    pub model: Option<String>,
    /// The serial number, as the kernel reports it.
    pub serial: Option<String>,
    /// Whether the device is rotational.
    pub rotational: bool,
    /// Whether the kernel rejects all writes to the device.
    pub read_only: bool,
    /// The names of the devices on top of it.
    pub holders: Vec<String>,
    /// The names of the devices beneath it.
    pub slaves: Vec<String>,
    /// The file behind a loop device.
    pub backing_file: Option<PathBuf>,
    /// The identity of the backing file, if its file system responds.
    pub backing: Option<Identity>,
    /// The number of partitions on the device.
    pub partitions: usize,
}

/// Sets the identities of the files behind loop devices. A file system may hang, and one on the daemon's own exports may wait for the
/// daemon to start or to stop. Identities are therefore taken from the kernel's cache, and the probe process queries the others. The
/// identity of a file without a result in time stays unset.
fn find_backing_files(devices: &mut [BlockDevice]) {
    let (mut indices, mut questions) = (Vec::new(), Vec::new());
    for (at, device) in devices.iter_mut().enumerate() {
        let Some(file) = &device.backing_file else { continue };
        match Identity::in_memory(file) {
            Ok(id) => device.backing = Some(id),
            Err(Errno::NOENT) => {}
            Err(_) => {
                indices.push(at);
                questions.push(ProbeRequest::Identity(file.clone()));
            }
        }
    }
    for (number, answer) in probe_process::probe_all(questions, BACKING_MAX) {
        if let ProbeResult::Identity(id) = answer {
            devices[indices[number]].backing = Some(id);
        }
    }
}

/// Returns whether the block device of this name is served from user space, by Linux' ublk driver.
fn is_ublk(name: &str) -> bool {
    name.starts_with("ublkb")
}

/// Removes devices on top of ublk devices, directly or indirectly (logical volumes, md arrays). A read of them can
/// block as a read of a ublk device can.
fn remove_devices_on_ublk(devices: &mut Vec<BlockDevice>) {
    let mut removed: BTreeSet<String> = BTreeSet::new();
    loop {
        let before = devices.len();
        devices.retain(|device| {
            let on_ublk = device.slaves.iter().any(|name| is_ublk(name) || removed.contains(name));
            if on_ublk {
                removed.extend(device.path.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
            !on_ublk
        });
        if devices.len() == before {
            return;
        }
    }
}

impl SystemRoots {
    /// Returns the identities of a disk and of everything beneath it: underlying devices, and the files behind loop devices.
    pub fn underlying_devices(&self, path: &Path, devices: &[BlockDevice]) -> BTreeSet<Identity> {
        let mut all = BTreeSet::new();
        let mut queue = vec![path.to_owned()];
        while let Some(path) = queue.pop() {
            let Some(id) = Identity::of(&path) else { continue };
            if !all.insert(id) {
                continue;
            }
            if let Some(device) = devices.iter().find(|device| Identity::of(&device.path) == Some(id)) {
                all.extend(device.backing);
                queue.extend(device.slaves.iter().map(|name| self.dev.join(name)));
            }
        }
        all
    }

    /// Returns what uses a disk: a mount, swap space, a device on top of it, or a loop device over a file. Opening the
    /// disk exclusively fails for some of these users only, and names none. `users` are the result of
    /// [`SystemRoots::users`].
    pub fn user_of(
        &self,
        path: &Path,
        devices: &[BlockDevice],
        users: &BTreeMap<String, Vec<String>>,
    ) -> Option<String> {
        let id = Identity::of(path)?;
        if let Some(device) = devices.iter().find(|device| Identity::of(&device.path) == Some(id)) {
            return users.get(&device.number).and_then(|users| users.first().cloned());
        }
        let is_backed = |device: &&BlockDevice| device.backing == Some(id);
        if let Some(device) = devices.iter().find(is_backed) {
            return Some(format!("{} is a loop device over it", device.path.display()));
        }
        let swapped = self.swaps().iter().any(|swap| Identity::of(swap) == Some(id));
        swapped.then(|| "swap space in use".to_owned())
    }

    /// Returns every block device with a nonzero size, sorted by path: disks, partitions and loop devices. RAM disks, ublk devices and
    /// devices on top of ublk devices are omitted.
    pub fn block_devices(&self) -> Vec<BlockDevice> {
        let mut devices = Vec::new();
        for name in names(&self.sys.join("block")) {
            // A ublk device may wait for this daemon itself: a read of it by the daemon would then never return.
            if name.starts_with("ram") || name.starts_with("zram") || is_ublk(&name) {
                continue;
            }
            let folder = self.sys.join("block").join(&name);
            let partitions: Vec<String> =
                names(&folder).into_iter().filter(|child| folder.join(child).join("partition").exists()).collect();
            let Some(whole) = self.device(&folder, &name, None, partitions.len()) else { continue };
            for child in &partitions {
                devices.extend(self.device(&folder.join(child), child, Some((&whole, &folder)), 0));
            }
            devices.push(whole);
        }
        remove_devices_on_ublk(&mut devices);
        devices.sort_by(|a, b| a.path.cmp(&b.path));
        find_backing_files(&mut devices);
        devices
    }

    fn device(
        &self,
        folder: &Path,
        name: &str,
        parent: Option<(&BlockDevice, &Path)>,
        partitions: usize,
    ) -> Option<BlockDevice> {
        // The kernel gives this size in units of 512 bytes, whatever the device's block size.
        let size_bytes = number(&folder.join("size"))?.checked_mul(512)?;
        if size_bytes == 0 {
            return None;
        }
        let queue = parent.map_or(folder, |(_, whole)| whole).join("queue");
        let is_loop = name.starts_with("loop") && parent.is_none();
        Some(BlockDevice {
            // In /sys the kernel replaces the slash of a name such as cciss/c0d0 by an exclamation mark.
            path: self.dev.join(name.replace('!', "/")),
            number: text(&folder.join("dev"))?,
            kind: if parent.is_some() {
                "partition"
            } else if is_loop {
                "loop"
            } else {
                "disk"
            },
            parent: parent.map(|(whole, _)| whole.number.clone()),
            size_bytes,
            logical_block_bytes: number(&queue.join("logical_block_size")).unwrap_or(512) as u32,
            model: parent.map_or_else(|| text(&folder.join("device/model")), |(whole, _)| whole.model.clone()),
            serial: text(&folder.join("device/serial")).or_else(|| text(&folder.join("serial"))),
            rotational: number(&queue.join("rotational")) == Some(1),
            read_only: number(&folder.join("ro")) == Some(1),
            holders: names(&folder.join("holders")),
            slaves: names(&folder.join("slaves")),
            backing_file: text(&folder.join("loop/backing_file")).map(PathBuf::from),
            backing: None,
            partitions,
        })
    }

    /// Returns the users of each device, by device number: mount points, swap and holders. The users of a partition are also users of
    /// its disk.
    pub fn users(&self, devices: &[BlockDevice]) -> BTreeMap<String, Vec<String>> {
        let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |device: &BlockDevice, what: String| {
            users.entry(device.number.clone()).or_default().insert(what.clone());
            if let Some(parent) = &device.parent {
                let of = device.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                users.entry(parent.clone()).or_default().insert(format!("{what} ({of})"));
            }
        };
        let mounts = mounts::parse(&fs::read(self.proc.join("self/mountinfo")).unwrap_or_default());
        let swaps = self.swaps();
        for device in devices {
            for mount in &mounts {
                // File systems on several devices (btrfs) have their own device numbers, so the source is compared as well.
                if mount.device == device.number || mount.source == device.path {
                    add(device, format!("mounted on {}", mount.mount_point.display()));
                }
            }
            if swaps.contains(&device.path) {
                add(device, "swap space in use".to_owned());
            }
            for holder in &device.holders {
                add(device, format!("held by {holder}"));
            }
        }
        users.into_iter().map(|(number, users)| (number, users.into_iter().collect())).collect()
    }

    /// Returns the devices and files in use as swap space.
    pub fn swaps(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        text.lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .map(|path| mounts::unescaped(path.as_bytes()))
            .collect()
    }

    /// Returns the machine's disks with their content, and whether Braid may use them. `ours` returns the name of the daemon's array
    /// that a path belongs to.
    pub fn list(&self, ours: &dyn Fn(&Path) -> Option<String>) -> Vec<HostDisk> {
        let devices = self.block_devices();
        let users = self.users(&devices);
        let responsive =
            probe_process::responsive_paths(devices.iter().map(|device| device.path.clone()).collect(), LISTED_MAX);
        let is_responsive = |device: &BlockDevice| responsive.contains(&device.path);
        devices.iter().map(|device| describe(device, is_responsive(device), users.get(&device.number), ours)).collect()
    }
}

/// Describes a device. `responsive` says that the device can be read without blocking.
fn describe(
    device: &BlockDevice,
    responsive: bool,
    users: Option<&Vec<String>>,
    ours: &dyn Fn(&Path) -> Option<String>,
) -> HostDisk {
    let mut used_by = users.cloned().unwrap_or_default();
    let array = ours(&device.path);
    if let Some(array) = &array {
        used_by.insert(0, format!("array {array}"));
    }
    let probed = if responsive {
        Probe::open(&device.path).and_then(|probe| probe.identify())
    } else {
        Err(io::Error::other(format!("it did not reply within {} s", LISTED_MAX.as_secs())))
    };
    let (content, fault) = match &probed {
        Ok(None) => (Some(String::new()), None),
        Ok(Some(found)) => (Some(found.to_string()), None),
        Err(error) => (None, Some(format!("it cannot be read: {error}"))),
    };
    let reason = if let Some(user) = used_by.first() {
        Some(format!("in use: {user}"))
    } else if device.partitions > 0 {
        Some(format!("it has {} partition{}", device.partitions, if device.partitions == 1 { "" } else { "s" }))
    } else if device.read_only {
        Some("it is read-only".to_owned())
    } else if let Some(fault) = fault {
        Some(fault)
    } else if let Some(found) = content.as_deref().filter(|content| !content.is_empty()) {
        Some(format!("not empty: {found}"))
    } else if braid_format::DiskLayout::for_device(device.size_bytes).is_err() {
        Some("it is too small".to_owned())
    } else {
        None
    };
    HostDisk {
        path: device.path.display().to_string(),
        kind: device.kind.to_owned(),
        size_bytes: device.size_bytes,
        logical_block_bytes: device.logical_block_bytes,
        model: device.model.clone(),
        serial: device.serial.clone(),
        rotational: device.rotational,
        read_only: device.read_only,
        content,
        used_by,
        usable: reason.is_none(),
        reason,
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

/// Decodes the octal escapes of `/proc`: `\040` is a space.
#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a fake machine, in a temporary folder.
    struct FakeMachine(PathBuf);

    impl FakeMachine {
        fn new(name: &str, files: &[(&str, &str)]) -> FakeMachine {
            let root = std::env::temp_dir().join(format!("braid-host-{}-{name}", std::process::id()));
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("files have folders")).expect("it can be written");
                fs::write(path, content).expect("it can be written");
            }
            FakeMachine(root)
        }

        fn roots(&self) -> SystemRoots {
            SystemRoots { sys: self.0.join("sys"), proc: self.0.join("proc"), dev: "/nowhere".into() }
        }
    }

    impl Drop for FakeMachine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn machine(name: &str) -> FakeMachine {
        FakeMachine::new(
            name,
            &[
                ("sys/block/sda/size", "2097152\n"),
                ("sys/block/sda/dev", "8:0\n"),
                ("sys/block/sda/device/model", "Spinning Rust \n"),
                ("sys/block/sda/queue/rotational", "1\n"),
                ("sys/block/sda/queue/logical_block_size", "4096\n"),
                ("sys/block/sda/sda1/partition", "1\n"),
                ("sys/block/sda/sda1/size", "1048576\n"),
                ("sys/block/sda/sda1/dev", "8:1\n"),
                ("sys/block/sdb/size", "4194304\n"),
                ("sys/block/sdb/dev", "8:16\n"),
                ("sys/block/sdb/holders/dm-0", ""),
                ("sys/block/sdc/size", "4194304\n"),
                ("sys/block/sdc/dev", "8:32\n"),
                ("sys/block/loop0/size", "0\n"),
                ("sys/block/loop0/dev", "7:0\n"),
                ("sys/block/loop1/size", "8\n"),
                ("sys/block/loop1/dev", "7:1\n"),
                ("sys/block/loop1/loop/backing_file", "/data/a.img\n"),
                ("sys/block/ram0/size", "8192\n"),
                ("sys/block/ram0/dev", "1:0\n"),
                (
                    "proc/self/mountinfo",
                    "36 35 8:1 / /mnt/with\\040blank rw,noatime shared:1 - ext4 /dev/sda1 rw\nbroken\n",
                ),
                ("proc/swaps", "Filename Type Size Used Priority\n/nowhere/sdc partition 1 0 -2\n"),
            ],
        )
    }

    #[test]
    fn devices_are_read_from_sys() {
        let machine = machine("devices");
        let devices = machine.roots().block_devices();
        let short: Vec<_> = devices.iter().map(|d| (d.path.to_str().expect("ASCII"), d.kind, d.size_bytes)).collect();
        assert_eq!(
            short,
            [
                ("/nowhere/loop1", "loop", 4096),
                ("/nowhere/sda", "disk", 1 << 30),
                ("/nowhere/sda1", "partition", 512 << 20),
                ("/nowhere/sdb", "disk", 2 << 30),
                ("/nowhere/sdc", "disk", 2 << 30),
            ]
        );
        assert_eq!(devices[0].backing_file.as_deref(), Some(Path::new("/data/a.img")));
        assert_eq!(devices[1].model.as_deref(), Some("Spinning Rust"));
        assert!(devices[1].rotational && devices[2].rotational);
        assert_eq!((devices[1].logical_block_bytes, devices[2].logical_block_bytes), (4096, 4096));
        assert_eq!(devices[2].parent.as_deref(), Some("8:0"));
    }

    #[test]
    fn ublk_devices_and_devices_on_them_are_omitted() {
        let mut files = vec![];
        let names = ["ublkb0", "dm-0", "dm-1", "dm-2", "sda"];
        let texts: Vec<(String, String)> = names
            .iter()
            .enumerate()
            .flat_map(|(nth, name)| {
                [("size", "2048\n".to_owned()), ("dev", format!("252:{nth}\n"))]
                    .map(|(file, text)| (format!("sys/block/{name}/{file}"), text))
            })
            .collect();
        files.extend(texts.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        // A logical volume on a partition of the ublk device, another one on that volume, and one on a disk.
        files.push(("sys/block/dm-1/slaves/ublkb0p1", ""));
        files.push(("sys/block/dm-0/slaves/dm-1", ""));
        files.push(("sys/block/dm-2/slaves/sda", ""));
        let machine = FakeMachine::new("served", &files);
        let devices = machine.roots().block_devices();
        let paths: Vec<_> = devices.iter().map(|device| device.path.to_str().expect("ASCII")).collect();
        assert_eq!(paths, ["/nowhere/dm-2", "/nowhere/sda"]);
    }

    #[test]
    fn mounts_swap_and_holders_are_users() {
        let machine = machine("users");
        let roots = machine.roots();
        let users = roots.users(&roots.block_devices());
        assert_eq!(users["8:1"], ["mounted on /mnt/with blank"]);
        assert_eq!(users["8:0"], ["mounted on /mnt/with blank (sda1)"]);
        assert_eq!(users["8:16"], ["held by dm-0"]);
        assert_eq!(users["8:32"], ["swap space in use"]);
        assert!(!users.contains_key("7:1"));
    }

    #[test]
    fn a_mount_point_that_is_not_utf8_hides_no_mount() {
        let machine = machine("bytes");
        let table = b"36 35 8:1 / /mnt/\xff rw - ext4 /dev/sda1 rw\n37 35 0:50 / /mnt/b rw - btrfs /nowhere/sdb rw\n";
        fs::write(machine.0.join("proc/self/mountinfo"), table).expect("it can be written");
        let roots = machine.roots();
        let users = roots.users(&roots.block_devices());
        assert_eq!(users["8:1"], ["mounted on /mnt/\u{fffd}"]);
        assert_eq!(users["8:16"], ["held by dm-0", "mounted on /mnt/b"]);
    }

    #[test]
    fn disks_in_use_are_not_usable_and_have_a_reason() {
        let machine = machine("usable");
        let disks = machine.roots().list(&|path| path.ends_with("sdb").then(|| "fast".to_owned()));
        assert!(disks.iter().all(|disk| !disk.usable && disk.reason.is_some()));
        let reason =
            |path: &str| disks.iter().find(|d| d.path == path).and_then(|d| d.reason.clone()).expect("it is listed");
        assert_eq!(reason("/nowhere/sda"), "in use: mounted on /mnt/with blank (sda1)");
        assert_eq!(reason("/nowhere/sdb"), "in use: array fast");
        assert!(reason("/nowhere/loop1").contains("cannot be read"));
    }
}
