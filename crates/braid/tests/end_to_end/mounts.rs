//! `braid mount` and `braid umount`: file systems of volumes and arrays at mount points of this machine.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::*;

/// A daemon, a pool on it, and a mount point. Dropping it unmounts what is left.
struct Rig {
    daemon: Daemon,
    at: String,
}

impl Rig {
    fn new() -> Rig {
        need_root();
        let daemon = Daemon::start();
        let disk = daemon.folder.sparse("a.img", 2 << 30);
        daemon.braid(&["pool", "create", "tank", &disk, "--yes"]);
        let at = daemon.folder.join("at");
        fs::create_dir(&at).expect("a folder can be made");
        Rig { daemon, at }
    }

    fn file(&self) -> String {
        format!("{}/precious", self.at)
    }

    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/mounts").expect("mounts can be read").contains(&self.at)
    }

    fn exports(&self) -> usize {
        self.daemon.json(&["export", "list"])["exports"].as_array().expect("a list").len()
    }

    /// Returns whether nothing is left of what a mount creates.
    fn is_clean(&self) -> bool {
        let loops = run("losetup", &["--list", "--output=BACK-FILE"]);
        let folder = self.daemon.folder.path().display().to_string();
        !self.is_mounted()
            && self.exports() == 0
            && !loops.contains(&folder)
            && !Path::new(&(folder + "-mount")).exists()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = command("umount").args(["-l", &self.at]).output();
        }
    }
}

#[test]
fn a_file_system_is_made_once_and_mounted_many_times() {
    let rig = Rig::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    daemon.braid(&["volume", "create", "tank/db", "512M"]);
    // Without a file system and without the option to make one, the mount is refused and leaves nothing behind.
    let refused = daemon.refused(3, &["mount", "tank/db", at]);
    assert!(refused.contains("--mkfs") && rig.is_clean(), "{refused}");
    daemon.refused(3, &["mount", "tank/none", at]);
    daemon.refused(3, &["mount", "tank/db", "/not/there"]);
    for (kind, size) in [("ext4", "512M"), ("xfs", "512M"), ("btrfs", "512M")] {
        let volume = format!("tank/{kind}");
        daemon.braid(&["volume", "create", &volume, size]);
        let made = daemon.json(&["mount", &volume, at, "--mkfs", "--fs", kind, "-o", "noatime"]);
        assert_eq!((&made["made_fs"], &made["was_mounted"]), (&Value::Bool(true), &Value::Bool(false)), "{made}");
        fs::write(rig.file(), kind).expect("it can be written");
        // Mounting twice changes nothing.
        let again = daemon.json(&["mount", &volume, at, "--mkfs"]);
        assert_eq!(
            (&again["made_fs"], &again["was_mounted"], &again["fs"]),
            (&false.into(), &true.into(), &kind.into())
        );
        let refused = daemon.refused(4, &["mount", "tank/db", at, "--mkfs"]);
        assert!(refused.contains(&volume), "{refused}");
        // The mount survives an upgrade of the daemon.
        daemon.braid(&["serve", "--upgrade"]);
        assert_eq!(fs::read_to_string(rig.file()).expect("it can be read"), kind);
        let open = fs::File::open(rig.file()).expect("it can be opened");
        let refused = daemon.refused(4, &["umount", at]);
        assert!(refused.contains("fuser -vm"), "{refused}");
        drop(open);
        daemon.braid(&["umount", at]);
        daemon.braid(&["umount", at]);
        assert!(rig.is_clean());
        // An existing file system is mounted, also with the option to make one; another kind is refused.
        let other = if kind == "ext4" { "xfs" } else { "ext4" };
        let refused = daemon.refused(4, &["mount", &volume, at, "--fs", other, "--mkfs"]);
        assert!(refused.contains(kind) && rig.is_clean(), "{refused}");
        daemon.braid(&["mount", &volume, at, "--mkfs", "--read-only"]);
        assert_eq!(fs::read_to_string(rig.file()).expect("it can be read"), kind);
        assert!(fs::write(rig.file(), "x").is_err(), "it is read-only");
        daemon.braid(&["umount", at]);
        assert!(rig.is_clean());
    }
    // A snapshot is mounted read-only automatically.
    daemon.braid(&["snapshot", "create", "tank/ext4@one"]);
    daemon.braid(&["mount", "tank/ext4@one", at]);
    assert_eq!(fs::read_to_string(rig.file()).expect("it can be read"), "ext4");
    daemon.braid(&["umount", at]);
    // Mounts of other programs are left alone.
    run("mount", &["-t", "tmpfs", "none", at]);
    assert!(daemon.refused(4, &["mount", "tank/ext4", at]).contains("tmpfs"));
    assert!(daemon.refused(2, &["umount", at]).contains("no export of this daemon"));
    run("umount", &[at]);
}

/// Every spelling of a name refers to the same volume: a second device would give its file system a second mount.
#[test]
fn a_mount_is_known_by_uuids_too() {
    let rig = Rig::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    daemon.braid(&["mount", "tank/db", at, "--mkfs"]);
    fs::write(rig.file(), "db").expect("it can be written");
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    let uuid = |noun: &str, name: &str| daemon.json(&[noun, "show", name])["uuid"].as_str().expect("one").to_owned();
    let (pool, volume, snapshot) = (uuid("pool", "tank"), uuid("volume", "tank/db"), uuid("snapshot", "tank/db@one"));
    let beside = daemon.folder.join("beside");
    fs::create_dir(&beside).expect("a folder can be made");
    for spelt in [format!("tank/{volume}"), format!("{pool}/db"), format!("{pool}/{volume}")] {
        let again = daemon.json(&["mount", &spelt, at]);
        assert_eq!((&again["was_mounted"], rig.exports()), (&true.into(), 1), "{again}");
        let twice = daemon.json(&["mount", &spelt, &beside]);
        assert_eq!((twice["device"] == again["device"], rig.exports()), (true, 1), "{twice}");
        daemon.braid(&["umount", &beside]);
    }
    daemon.braid(&["mount", &format!("{pool}/db@{snapshot}"), &beside, "-o", "noload"]);
    assert_eq!(daemon.json(&["mount", "tank/db@one", &beside])["was_mounted"], true);
    daemon.braid(&["umount", &beside]);
    daemon.braid(&["umount", at]);
    assert!(rig.is_clean());
}

#[test]
fn no_file_system_is_made_over_existing_data() {
    let rig = Rig::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    let disks = [daemon.folder.sparse("b.img", 64 << 20), daemon.folder.sparse("c.img", 64 << 20)];
    daemon.braid(&["array", "create", "safe", "--level", "raid1", &disks[0], &disks[1]]);
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    for name in ["safe", "tank/db"] {
        let file = daemon.folder.join("file");
        daemon.braid(&["export", "add", name, "--fuse", &file, "--name", "other"]);
        // Swap space, then unknown bytes.
        run("mkswap", &[&file]);
        let refused = daemon.refused(4, &["mount", name, at, "--mkfs"]);
        assert!(refused.contains("swap"), "{refused}");
        run("wipefs", &["--all", &file]);
        run("dd", &["if=/dev/urandom", &format!("of={file}"), "bs=4096", "count=1", "seek=7", "conv=notrunc"]);
        let refused = daemon.refused(4, &["mount", name, at, "--mkfs"]);
        assert!(refused.contains("is not empty"), "{refused}");
        // Nor while a program has the volume open through another export.
        let open = fs::File::open(&file).expect("it can be opened");
        let refused = daemon.refused(4, &["mount", name, at, "--mkfs"]);
        assert!(refused.contains("through export other"), "{refused}");
        drop(open);
        run("fallocate", &["--punch-hole", "--offset=0", "--length=64M", "--keep-size", &file]);
        daemon.braid(&["export", "remove", "other"]);
        assert!(rig.is_clean());
        if name == "safe" {
            // One block of the file system has the size of an array's block, and not of a volume's.
            daemon.braid(&["mount", name, at, "--mkfs"]);
            daemon.braid(&["umount", at]);
            assert!(rig.is_clean());
        }
    }
}

/// File systems from disks with sectors of 512 bytes are copied to volumes unchanged.
#[test]
fn a_file_system_with_blocks_smaller_than_the_volumes_gets_a_device_with_small_sectors() {
    let rig = Rig::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    let size = 320 << 20;
    let bring = |volume: &str, image: &str| {
        daemon.braid(&["volume", "create", volume, "320M"]);
        let file = daemon.folder.join("file");
        daemon.braid(&["export", "add", volume, "--fuse", &file, "--name", "brought"]);
        run("dd", &[&format!("if={image}"), &format!("of={file}"), "bs=1M", "conv=notrunc,sparse"]);
        daemon.braid(&["export", "remove", "brought"]);
    };
    let content = noise(3 << 20, 7);
    for (program, arguments, kind, block) in [
        ("mkfs.ext4", &["-q", "-b", "1024"][..], "ext4", 1024),
        ("mkfs.xfs", &["-q", "-s", "size=512"][..], "xfs", 512),
    ] {
        let (image, volume) = (daemon.folder.sparse(kind, size), format!("tank/{kind}"));
        run(program, &[arguments, &[&image]].concat());
        run("mount", &["-o", "loop", &image, at]);
        fs::write(rig.file(), &content).expect("it can be written");
        run("umount", &[at]);
        bring(&volume, &image);
        let refused = daemon.refused_any(&["mount", &volume, at, "--sector-size", "4096"]);
        assert!(refused.contains(&format!("{kind} with blocks of {block} bytes")), "{refused}");
        assert!(refused.contains("--sector-size 512") && rig.is_clean(), "{refused}");
        daemon.refused(2, &["mount", &volume, at, "--sector-size", "512", "--via", "ublk"]);
        daemon.refused(2, &["mount", &volume, at, "--sector-size", "256"]);
        // Mounted automatically.
        let text = daemon.braid(&["mount", &volume, at]);
        assert!(text.contains("sectors of 512 bytes"), "{text}");
        let again = daemon.json(&["mount", &volume, at]);
        assert_eq!((&again["was_mounted"], &again["sector_bytes"]), (&true.into(), &512.into()), "{again}");
        assert!(fs::read(rig.file()).expect("it can be read") == content, "{kind}");
        // I/O that begins and ends within blocks of the volume.
        for piece in 1..40 {
            let part = noise(1000 * piece, piece);
            fs::write(format!("{at}/{piece}"), part).expect("it can be written");
        }
        daemon.braid(&["snapshot", "create", &format!("{volume}@one")]);
        daemon.braid(&["umount", at]);
        assert!(rig.is_clean());
        for name in [volume.clone(), format!("{volume}@one")] {
            let mounted = daemon.json(&["mount", &name, at]);
            assert_eq!((&mounted["fs"], &mounted["sector_bytes"]), (&kind.into(), &512.into()), "{mounted}");
            assert!(fs::read(rig.file()).expect("it can be read") == content, "{name}");
            for piece in 1..40 {
                let read = fs::read(format!("{at}/{piece}")).expect("it can be read");
                assert!(read == noise(1000 * piece, piece), "{name}: {piece}");
            }
            daemon.braid(&["umount", at]);
            assert!(rig.is_clean());
        }
    }
    // A file system made by `braid mount` on request; one with blocks of 4096 bytes keeps its device.
    daemon.braid(&["volume", "create", "tank/new", "320M"]);
    let made = daemon.json(&["mount", "tank/new", at, "--mkfs", "--fs", "xfs", "--sector-size", "512"]);
    assert_eq!((&made["made_fs"], &made["sector_bytes"]), (&true.into(), &512.into()), "{made}");
    daemon.braid(&["umount", at]);
    assert_eq!(daemon.json(&["mount", "tank/new", at])["sector_bytes"], 512);
    daemon.braid(&["umount", at]);
    daemon.braid(&["volume", "create", "tank/usual", "320M"]);
    assert_eq!(daemon.json(&["mount", "tank/usual", at, "--mkfs"])["sector_bytes"], 4096);
    daemon.braid(&["umount", at]);
    // File systems that this kernel may not support, and partition tables: the message names the content and a remedy.
    let vfat = daemon.folder.sparse("vfat", size);
    run("mkfs.vfat", &["-S", "512", &vfat]);
    bring("tank/vfat", &vfat);
    let refused = daemon.refused_any(&["mount", "tank/vfat", at, "--sector-size", "4096"]);
    assert!(refused.contains("vfat with blocks of 512 bytes") && rig.is_clean(), "{refused}");
    for label in ["gpt", "dos"] {
        let (image, volume) = (daemon.folder.sparse(label, size), format!("tank/{label}"));
        let script = daemon.folder.join("script");
        fs::write(&script, format!("label: {label}\nstart=2048\n")).expect("it can be written");
        run("sh", &["-c", &format!("sfdisk --quiet '{image}' < '{script}'")]);
        bring(&volume, &image);
        let refused = daemon.refused(4, &["mount", &volume, at]);
        assert!(
            refused.contains("sectors of 512 bytes") && refused.contains("--partscan --sector-size 512"),
            "{refused}"
        );
        assert!(rig.is_clean());
    }
}

/// The pool records what a volume is: a volume whose content equals its own snapshot's is no clone, and a clone is one.
#[test]
fn a_volume_with_a_snapshot_of_its_own_is_not_called_a_clone() {
    let rig = Rig::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    let refused = daemon.refused(4, &["mount", "tank/db", at, "--mkfs"]);
    assert!(refused.contains("it has snapshots") && !refused.contains("clone"), "{refused}");
    daemon.braid(&["volume", "clone", "tank/db@one", "tank/trial"]);
    let refused = daemon.refused(4, &["mount", "tank/trial", at, "--mkfs"]);
    assert!(refused.contains("it is a clone of tank/db@one"), "{refused}");
    assert!(rig.is_clean());
}
