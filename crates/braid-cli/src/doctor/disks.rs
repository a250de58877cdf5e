//! The disks of this machine.

use super::Subject;
use super::system::System;
use braid_api::{Disk, DoctorCheck, DoctorGroup, HostDisk};
use braid_geometry::units::format_size;
use braid_host::host::BlockDevice;
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of disks that one check names.
const NAMED_MAX: usize = 8;

/// Returns a list in words, cut to [`NAMED_MAX`] items.
fn list(items: &[String]) -> String {
    match items.len() {
        0..=NAMED_MAX => items.join(", "),
        more => format!("{}, and {} more", items[..NAMED_MAX].join(", "), more - NAMED_MAX),
    }
}

/// Returns the device file of an open disk of the daemon; `None` if it is not a device.
pub fn device_of(name: &str) -> Option<PathBuf> {
    let spec = DiskSpec::parse(name).ok()?;
    let path = spec.path()?;
    // The file system of device files is in memory, and never hangs.
    path.starts_with("/dev").then(|| path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

/// Shows disks without a user, and what is on them.
pub fn unused(disks: &[HostDisk]) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Disks, "unused disks");
    let unused: Vec<String> = disks
        .iter()
        .filter(|disk| disk.used_by.is_empty())
        .map(|disk| {
            let content = match disk.content.as_deref() {
                None => "not read",
                Some("") => "empty",
                Some(content) => content,
            };
            format!("{} ({}, {content})", disk.path, format_size(disk.size_bytes))
        })
        .collect();
    let used = disks.len() - unused.len();
    match unused.is_empty() {
        true => subject.ok(format!("none of {}", disks.len())),
        false => subject.ok(format!("{}; {used} in use", list(&unused))),
    }
}

/// Checks that every disk can be read. `is_root`: this user may read all of them.
pub fn readable(disks: &[HostDisk], is_root: bool) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Disks, "disks that answer");
    let silent: Vec<String> =
        disks.iter().filter(|disk| disk.content.is_none()).map(|disk| disk.path.clone()).collect();
    if silent.is_empty() {
        return subject.ok(format!("all {}", disks.len()));
    }
    let found = format!("{} of {} cannot be read: {}", silent.len(), disks.len(), list(&silent));
    if !is_root {
        return subject.skipped(format!("{found}; only root may read every disk"));
    }
    let impact = "Braid finds no array on them and cannot use them; I/O to a disk that hangs waits for 30 s.";
    subject.warning(found, impact, ["braid disk list".to_owned(), "dmesg --level err,warn | tail".to_owned()])
}

/// Checks properties of disks: read-only, zoned, rotational, the logical block.
pub fn properties(system: &System, disks: &[HostDisk]) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Disks, "properties of disks");
    let whole: Vec<&HostDisk> = disks.iter().filter(|disk| disk.kind == "disk").collect();
    let name = |disk: &HostDisk| disk.path.rsplit('/').next().unwrap_or_default().to_owned();
    let is_zoned = |disk: &&&HostDisk| {
        system.sys_text(&format!("block/{}/queue/zoned", name(disk))).is_some_and(|zoned| zoned == "host-managed")
    };
    let paths = |which: Vec<&&HostDisk>| which.iter().map(|disk| disk.path.clone()).collect::<Vec<String>>();
    let zoned = paths(whole.iter().filter(is_zoned).collect());
    let read_only = paths(whole.iter().filter(|disk| disk.read_only).collect());
    if !zoned.is_empty() {
        let impact = "Zoned disks take no writes in any order: Braid cannot use them.";
        let found = format!("zoned (host-managed): {}", list(&zoned));
        return subject.warning(found, impact, [format!("blkzone report {} | head", zoned[0])]);
    }
    if !read_only.is_empty() {
        let found = format!("read-only: {}", list(&read_only));
        let command = format!("blockdev --setrw {}", read_only[0]);
        return subject.warning(found, "Braid cannot use a disk that takes no writes.", [command]);
    }
    let rotational = whole.iter().filter(|disk| disk.rotational).count();
    let mut blocks: BTreeMap<u32, usize> = BTreeMap::new();
    whole.iter().for_each(|disk| *blocks.entry(disk.logical_block_bytes).or_default() += 1);
    let blocks: Vec<String> =
        blocks.iter().map(|(bytes, count)| format!("{count} with blocks of {bytes} bytes")).collect();
    subject.ok(match whole.len() {
        0 => "no whole disk".to_owned(),
        count => {
            format!("{count} disk{}: {rotational} rotational; {}", if count == 1 { "" } else { "s" }, blocks.join(", "))
        }
    })
}

/// Checks that no disk has members of several arrays or pools. `open` are the disks of the daemon; `None`: no daemon
/// answers.
pub fn shared(devices: &[BlockDevice], open: Option<&[Disk]>) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Disks, "disks of several arrays");
    let Some(open) = open else { return subject.skipped("no daemon answers") };
    let at = |path: &Path| devices.iter().find(|device| device.path == path);
    let whole = |device: &'_ BlockDevice| {
        let parent = device.parent.as_ref().and_then(|parent| devices.iter().find(|other| other.number == *parent));
        parent.map_or_else(|| device.path.clone(), |parent| parent.path.clone())
    };
    let mut users: BTreeMap<PathBuf, BTreeSet<&str>> = BTreeMap::new();
    for disk in open {
        if let Some(device) = device_of(&disk.name).and_then(|path| at(&path)) {
            users.entry(whole(device)).or_default().insert(&disk.array);
        }
    }
    let shared: Vec<String> = users
        .iter()
        .filter(|(_, users)| users.len() > 1)
        .map(|(path, users)| {
            format!("{} by {}", path.display(), users.iter().copied().collect::<Vec<_>>().join(" and "))
        })
        .collect();
    if shared.is_empty() {
        return subject.ok(format!("none of {}", users.len()));
    }
    let impact = "A failure of such a disk degrades all of its arrays at once, and they share its speed.";
    let found = format!("shared: {}", list(&shared));
    subject.warning(found, impact, ["braid status", "braid array replace ARRAY SLOT DISK"])
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::{DiskStats, DoctorState};
    use serde_json::json;

    fn disk(path: &str, content: Option<&str>, used_by: &[&str]) -> HostDisk {
        HostDisk {
            path: path.to_owned(),
            kind: "disk".to_owned(),
            size_bytes: 1 << 30,
            logical_block_bytes: 512,
            model: None,
            serial: None,
            rotational: false,
            read_only: false,
            content: content.map(str::to_owned),
            used_by: used_by.iter().map(|user| (*user).to_owned()).collect(),
            usable: false,
            reason: None,
        }
    }

    #[test]
    fn unused_disks_are_shown_with_their_content() {
        let disks = [
            disk("/dev/sda", Some("ext4"), &["mounted on /"]),
            disk("/dev/sdb", Some(""), &[]),
            disk("/dev/sdc", Some("ext4"), &[]),
        ];
        let check = unused(&disks);
        assert_eq!(check.state, DoctorState::Ok);
        assert_eq!(check.found, "/dev/sdb (1.00 GiB, empty), /dev/sdc (1.00 GiB, ext4); 1 in use");
        assert_eq!(unused(&disks[..1]).found, "none of 1");
    }

    #[test]
    fn disks_that_do_not_answer_are_warned_of() {
        let disks = [disk("/dev/sda", Some(""), &[]), disk("/dev/sdb", None, &[])];
        assert_eq!(readable(&disks[..1], true).state, DoctorState::Ok);
        let check = readable(&disks, true);
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("/dev/sdb"), "{check:?}");
        assert_eq!(readable(&disks, false).state, DoctorState::Skipped);
    }

    #[test]
    fn read_only_and_zoned_disks_are_warned_of() {
        let machine =
            Machine::new(&[("sys/block/sdb/queue/zoned", "host-managed\n"), ("sys/block/sda/queue/zoned", "none\n")]);
        let system = machine.system();
        let spinning = HostDisk { rotational: true, logical_block_bytes: 4096, ..disk("/dev/sda", Some(""), &[]) };
        let check = properties(&system, &[spinning]);
        assert_eq!(check.state, DoctorState::Ok);
        assert_eq!(check.found, "1 disk: 1 rotational; 1 with blocks of 4096 bytes");
        let check = properties(&system, &[disk("/dev/sdb", Some(""), &[])]);
        assert_eq!(check.state, DoctorState::Warning);
        assert!(check.found.contains("zoned") && check.found.contains("/dev/sdb"), "{check:?}");
        let read_only = HostDisk { read_only: true, ..disk("/dev/sda", Some(""), &[]) };
        let check = properties(&system, &[read_only]);
        assert_eq!(check.commands, ["blockdev --setrw /dev/sda"]);
        assert_eq!(properties(&system, &[]).state, DoctorState::Ok);
    }

    fn device(name: &str, number: &str, parent: Option<&str>) -> BlockDevice {
        BlockDevice {
            path: Path::new("/dev/braid-doctor-test").join(name),
            number: number.to_owned(),
            kind: "disk",
            parent: parent.map(str::to_owned),
            size_bytes: 1 << 30,
            logical_block_bytes: 512,
            model: None,
            serial: None,
            rotational: false,
            read_only: false,
            holders: Vec::new(),
            slaves: Vec::new(),
            backing_file: None,
            backing: None,
            partitions: 0,
        }
    }

    #[test]
    fn disks_of_several_arrays_are_warned_of() {
        let devices = [device("a", "8:0", None), device("a1", "8:1", Some("8:0")), device("a2", "8:2", Some("8:0"))];
        let open = |name: &str, array: &str| -> Disk {
            let disk = json!({
                "name": format!("/dev/braid-doctor-test/{name}"), "size_bytes": 1 << 29, "logical_block_bytes": 512,
                "array": array, "slot": 0, "state": "ok", "persistent": true, "stats": DiskStats::default(),
            });
            serde_json::from_value(disk).expect("it is a disk")
        };
        assert_eq!(shared(&devices, None).state, DoctorState::Skipped);
        let one = [open("a1", "fast"), open("a2", "fast")];
        assert_eq!(shared(&devices, Some(&one)).state, DoctorState::Ok);
        let two = [open("a1", "fast"), open("a2", "slow")];
        let check = shared(&devices, Some(&two));
        assert_eq!(check.state, DoctorState::Warning);
        assert_eq!(check.found, "shared: /dev/braid-doctor-test/a by fast and slow");
    }
}
