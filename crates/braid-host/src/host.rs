//! The block devices of the machine, from `/sys` and `/proc`: which there are and who uses them.
//!
//! Reads only. Everything goes through [`Roots`], so that tests bring a machine of their own.

use super::aside::{self, Answer, Question};
use super::probe::Probe;
use braid_api::HostDisk;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, makedev, openat2, statx};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest that the file systems of files behind loop devices are waited for.
const BACKING_MAX: Duration = Duration::from_secs(2);
/// Longest that disks are waited for whose content is listed.
const LISTED_MAX: Duration = Duration::from_secs(2);
/// How often the kernel's memory is asked for a path. What is mounted elsewhere meanwhile has it look again.
const TRIES: usize = 4;

/// Where the kernel's views are mounted.
pub struct Roots {
    sys: PathBuf,
    proc: PathBuf,
    dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// A block device as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its device file.
    pub path: PathBuf,
    /// Major and minor number, as in `259:0`.
    pub number: String,
    /// `disk`, `partition` or `loop`.
    pub kind: &'static str,
    /// The whole disk of a partition.
    pub parent: Option<String>,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Smallest unit of reads and writes, in bytes.
    pub logical_block_bytes: u32,
    /// Model, as the kernel knows it.
    pub model: Option<String>,
    /// Serial number, as the kernel knows it.
    pub serial: Option<String>,
    /// Whether it has rotating platters.
    pub rotational: bool,
    /// Whether the kernel lets nobody write to it.
    pub read_only: bool,
    /// Devices built on it.
    pub holders: Vec<String>,
    /// Devices that it is built on.
    pub slaves: Vec<String>,
    /// The file behind a loop device.
    pub backing_file: Option<PathBuf>,
    /// That file, where its file system answers.
    pub backing: Option<Identity>,
    /// Number of partitions on it.
    pub partitions: usize,
}

/// What makes two paths the same disk: the device number, or file system and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A block device.
    Device(u64),
    /// A file.
    File(u64, u64),
}

impl Identity {
    /// That of the file or block device at `path`; none when there is nothing.
    pub fn of(path: &Path) -> Option<Identity> {
        fs::metadata(path).ok().map(|found| Identity::in_metadata(&found))
    }

    /// The same, as the kernel has it in memory. No file system is asked, so that this does not wait for any.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: there is nothing. Others: it is not in memory, or the kernel cannot say.
    pub(super) fn in_memory(path: &Path) -> Result<Identity, Errno> {
        let mut tries = 0;
        let at = loop {
            tries += 1;
            match openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED) {
                Err(Errno::AGAIN) if tries < TRIES => {}
                opened => break opened?,
            }
        };
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&at, "", flags, StatxFlags::TYPE | StatxFlags::INO)?;
        Ok(match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::BlockDevice => Identity::Device(makedev(found.stx_rdev_major, found.stx_rdev_minor)),
            _ => Identity::File(makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
        })
    }

    pub(super) fn in_metadata(found: &fs::Metadata) -> Identity {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        if found.file_type().is_block_device() {
            Identity::Device(found.rdev())
        } else {
            Identity::File(found.dev(), found.ino())
        }
    }
}

/// The very entry of a file system that a path leads to: a device that was pulled and plugged in again has another one, also
/// under the same name and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64, u64);

impl Entry {
    /// That at `path`; none when there is nothing.
    pub fn of(path: &Path) -> Option<Entry> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).ok().map(|found| Entry(found.dev(), found.ino()))
    }
}

/// Notes the files behind loop devices. A file system may hang, and may wait for this very daemon to start or to end, as one does that stands
/// on its exports: so it is not asked for what the kernel has in memory, and by another process for the rest. Of a file that does not
/// answer nothing is known then.
fn note_backing(devices: &mut [BlockDevice]) {
    let (mut asked, mut questions) = (Vec::new(), Vec::new());
    for (at, device) in devices.iter_mut().enumerate() {
        let Some(file) = &device.backing_file else { continue };
        match Identity::in_memory(file) {
            Ok(id) => device.backing = Some(id),
            Err(Errno::NOENT) => {}
            Err(_) => {
                asked.push(at);
                questions.push(Question::Identity(file.clone()));
            }
        }
    }
    for (number, answer) in aside::answers(questions, BACKING_MAX) {
        if let Answer::Is(id) = answer {
            devices[asked[number]].backing = Some(id);
        }
    }
}

/// Whether a block device of that name is served from user space, by Linux' ublk driver.
fn is_served(name: &str) -> bool {
    name.starts_with("ublkb")
}

/// Logical volumes and md's arrays on such devices wait as these do.
fn leave_out_what_stands_on_served(devices: &mut Vec<BlockDevice>) {
    let mut out: BTreeSet<String> = BTreeSet::new();
    loop {
        let before = devices.len();
        devices.retain(|device| {
            let waits = device.slaves.iter().any(|name| is_served(name) || out.contains(name));
            if waits {
                out.extend(device.path.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
            !waits
        });
        if devices.len() == before {
            return;
        }
    }
}

impl Roots {
    /// What a disk stands on, itself included: the devices that it is built on, the files behind loop devices.
    pub fn beneath(&self, path: &Path, devices: &[BlockDevice]) -> BTreeSet<Identity> {
        let mut all = BTreeSet::new();
        let mut wanted = vec![path.to_owned()];
        while let Some(path) = wanted.pop() {
            let Some(id) = Identity::of(&path) else { continue };
            if !all.insert(id) {
                continue;
            }
            if let Some(device) = devices.iter().find(|device| Identity::of(&device.path) == Some(id)) {
                all.extend(device.backing);
                wanted.extend(device.slaves.iter().map(|name| self.dev.join(name)));
            }
        }
        all
    }

    /// Who uses a disk in a way that its own lock does not show, or that deserves its name: mounts, swap, holders,
    /// loop devices over a file.
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
        let behind = |device: &&BlockDevice| device.backing == Some(id);
        if let Some(device) = devices.iter().find(behind) {
            return Some(format!("{} is a loop device over it", device.path.display()));
        }
        let swapped = self.swaps().iter().any(|swap| Identity::of(swap) == Some(id));
        swapped.then(|| "swap space in use".to_owned())
    }

    /// Every block device with a size, by path: disks, partitions, loop devices; no RAM disks.
    pub fn block_devices(&self) -> Vec<BlockDevice> {
        let mut devices = Vec::new();
        for name in names(&self.sys.join("block")) {
            // What is served from user space may wait for this very daemon: whoever reads it then waits for ever.
            if name.starts_with("ram") || name.starts_with("zram") || is_served(&name) {
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
        leave_out_what_stands_on_served(&mut devices);
        devices.sort_by(|a, b| a.path.cmp(&b.path));
        note_backing(&mut devices);
        devices
    }

    fn device(
        &self,
        folder: &Path,
        name: &str,
        parent: Option<(&BlockDevice, &Path)>,
        partitions: usize,
    ) -> Option<BlockDevice> {
        // The kernel counts in units of 512 bytes here, whatever the device's block.
        let size_bytes = number(&folder.join("size"))?.checked_mul(512)?;
        if size_bytes == 0 {
            return None;
        }
        let queue = parent.map_or(folder, |(_, whole)| whole).join("queue");
        let is_loop = name.starts_with("loop") && parent.is_none();
        Some(BlockDevice {
            // The kernel writes the slash of a name such as cciss/c0d0 as an exclamation mark.
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

    /// Who uses each of the devices, by device number: mount points, swap, holders; those of a partition count
    /// for its disk, too.
    pub fn users(&self, devices: &[BlockDevice]) -> BTreeMap<String, Vec<String>> {
        let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |device: &BlockDevice, what: String| {
            users.entry(device.number.clone()).or_default().insert(what.clone());
            if let Some(parent) = &device.parent {
                let of = device.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                users.entry(parent.clone()).or_default().insert(format!("{what} ({of})"));
            }
        };
        let mounts = self.mounts();
        let swaps = self.swaps();
        for device in devices {
            for (number, source, point) in &mounts {
                // File systems with several devices (btrfs) have numbers of their own: go by the source, too.
                if *number == device.number || Path::new(source) == device.path {
                    add(device, format!("mounted on {point}"));
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

    /// Device number, source and mount point of every mount.
    fn mounts(&self) -> Vec<(String, String, String)> {
        let text = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        let line = |line: &str| {
            // 36 35 98:0 /root /mnt rw,noatime shared:1 - ext3 /dev/root rw
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ');
            let number = before.nth(2)?.to_owned();
            let point = unescape(before.nth(1)?);
            let source = unescape(after.split(' ').nth(1)?);
            Some((number, source, point))
        };
        text.lines().filter_map(line).collect()
    }

    /// Devices and files that are swapped on.
    pub fn swaps(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(|p| unescape(p).into()).collect()
    }

    /// The machine's disks with what is on them and whether Braid may use them. `ours` says of a path which
    /// array of the daemon it belongs to.
    pub fn list(&self, ours: &dyn Fn(&Path) -> Option<String>) -> Vec<HostDisk> {
        let devices = self.block_devices();
        let users = self.users(&devices);
        let answering = aside::answering(devices.iter().map(|device| device.path.clone()).collect(), LISTED_MAX);
        let answers = |device: &BlockDevice| answering.contains(&device.path);
        devices.iter().map(|device| describe(device, answers(device), users.get(&device.number), ours)).collect()
    }
}

/// `answers`: it can be read without waiting for ever.
fn describe(
    device: &BlockDevice,
    answers: bool,
    users: Option<&Vec<String>>,
    ours: &dyn Fn(&Path) -> Option<String>,
) -> HostDisk {
    let mut used_by = users.cloned().unwrap_or_default();
    let array = ours(&device.path);
    if let Some(array) = &array {
        used_by.insert(0, format!("array {array}"));
    }
    let looked = if answers {
        Probe::open(&device.path).and_then(|probe| probe.identify())
    } else {
        Err(io::Error::other(format!("it has not answered within {} s", LISTED_MAX.as_secs())))
    };
    let (content, trouble) = match &looked {
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
    } else if let Some(trouble) = trouble {
        Some(trouble)
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

/// Undoes the octal escapes of `/proc`: `\040` is a blank.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on paper.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Machine {
            let root = std::env::temp_dir().join(format!("braid-host-{}-{name}", std::process::id()));
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("files have folders")).expect("it can be written");
                fs::write(path, content).expect("it can be written");
            }
            Machine(root)
        }

        fn roots(&self) -> Roots {
            Roots { sys: self.0.join("sys"), proc: self.0.join("proc"), dev: "/nowhere".into() }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn machine(name: &str) -> Machine {
        Machine::new(
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
    fn what_is_served_from_user_space_is_left_out_and_what_stands_on_it() {
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
        // A logical volume on a partition of it, another one on that, and one on a disk.
        files.push(("sys/block/dm-1/slaves/ublkb0p1", ""));
        files.push(("sys/block/dm-0/slaves/dm-1", ""));
        files.push(("sys/block/dm-2/slaves/sda", ""));
        let machine = Machine::new("served", &files);
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
    fn what_is_in_use_is_not_usable_and_says_why() {
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
