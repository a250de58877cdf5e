//! Block devices, through loop devices: exclusive use, naming the current user, and every operation. Needs the
//! privilege to create loop devices and to mount; without it (not root), the tests say so and test nothing.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::common::{Folder, Random, TestBed, starting_children, without_other_children};
use braid_engine::{ErrorKind, Flags, Op};
use braid_ring::{Disk, DiskSpec, DriverKind, OpenOptions, RingConfig, RingErrorKind};

/// A loop device over a new file of this size. Detached on drop.
struct Loop(String);

impl Loop {
    fn new(folder: &Folder, name: &str, mib: u64) -> Option<Loop> {
        let path = folder.path(name);
        std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show", "--direct-io=off", &path]).output().ok()?;
        if !made.status.success() {
            eprintln!("no loop devices here: {}", String::from_utf8_lossy(&made.stderr).trim());
            return None;
        }
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Write protection outlives the image: the next user of this loop device would inherit it.
        let _ = Command::new("blockdev").args(["--setrw", &self.0]).status();
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn attempt(name: &str, options: OpenOptions) -> Result<Disk, braid_ring::RingError> {
    Disk::open(&DiskSpec::parse(name).unwrap(), options)
}

#[test]
fn a_block_device_has_one_user() {
    let _alone = without_other_children();
    let folder = Folder::new("loop");
    let Some(device) = Loop::new(&folder, "image", 64) else { return };
    let held = attempt(&device.0, OpenOptions::default()).unwrap();
    assert!(held.is_block_device() && held.is_direct() && held.size_bytes() == 64 << 20);
    assert_eq!(held.logical_block_bytes(), 512);
    let error = attempt(&device.0, OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind, RingErrorKind::InUse);
    assert!(error.to_string().contains(&format!("{} is in use by", device.0)), "{error}");
    attempt(&device.0, OpenOptions { exclusive: false, write: false }).expect("looking is free");
    drop(held);
    attempt(&device.0, OpenOptions::default()).expect("free again");
}

#[test]
fn a_mounted_device_is_refused_with_its_mount_point() {
    let _children = starting_children();
    let folder = Folder::new("mounted");
    let Some(device) = Loop::new(&folder, "image", 64) else { return };
    let mount_point = folder.path("place");
    std::fs::create_dir(&mount_point).unwrap();
    let run = |program: &str, args: &[&str]| Command::new(program).args(args).output().unwrap().status.success();
    assert!(run("mkfs.ext4", &["-q", &device.0]));
    if !run("mount", &[&device.0, &mount_point]) {
        eprintln!("mounting is not permitted here");
        return;
    }
    let error = attempt(&device.0, OpenOptions::default()).unwrap_err();
    assert!(run("umount", &[&mount_point]));
    assert_eq!(error.kind, RingErrorKind::InUse);
    assert!(error.to_string().contains(&format!("the file system mounted on {mount_point}")), "{error}");
    assert!(error.remedy.contains("unmount"), "{error}");
}

#[test]
fn a_write_protected_device_is_refused_for_writing() {
    let _alone = without_other_children();
    let folder = Folder::new("protected");
    let Some(device) = Loop::new(&folder, "image", 8) else { return };
    assert!(Command::new("blockdev").args(["--setro", &device.0]).status().unwrap().success());
    let error = attempt(&device.0, OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind, RingErrorKind::Permission);
    assert!(error.to_string().contains("read-only"), "{error}");
    attempt(&device.0, OpenOptions { exclusive: true, write: false }).expect("readable");
}

#[test]
fn every_operation_works_on_every_driver() {
    let _children = starting_children();
    let folder = Folder::new("blockio");
    for driver in DriverKind::ALL {
        let name = driver.name();
        let Some(device) = Loop::new(&folder, name, 32) else { return };
        let mut bed = TestBed::new(&RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() });
        let (id, _) = bed.bare(&device.0);
        let data = Random(1).bytes(16 << 20);
        bed.write(0, id, Flags::NONE, 0, &data);
        bed.write(1, id, Flags::FUA, 16 << 20, &data);
        bed.call(0, id, Op::Flush, Flags::NONE, 0, 0, &[]).result.unwrap();
        assert!(bed.read(1, id, 0, 16 << 20) == data, "{name}");
        let zero = |flags, at| bed.call(0, id, Op::WriteZeroes, flags, at, 1 << 20, &[]).result;
        zero(Flags::NONE, 0).unwrap();
        zero(Flags::NO_UNMAP, 1 << 20).unwrap();
        assert!(bed.read(0, id, 0, 2 << 20).iter().all(|&b| b == 0), "{name}");
        assert!(bed.read(0, id, 2 << 20, 4096) == data[2 << 20..(2 << 20) + 4096]);
        let kept = zero(Flags::NO_UNMAP.with(Flags::FAST_ZERO), 4 << 20);
        assert_eq!(kept.unwrap_err().kind, ErrorKind::Unsupported, "the kernel might write, which is not fast");
        let space = || std::fs::metadata(folder.path(name)).unwrap().blocks() * 512;
        let before = space();
        bed.call(0, id, Op::Discard, Flags::NONE, 16 << 20, 8 << 20, &[]).result.unwrap();
        assert!(space() <= before - (7 << 20), "{name}: a discard reaches the device: {before}, then {}", space());
        bed.ring.stop();
    }
}
