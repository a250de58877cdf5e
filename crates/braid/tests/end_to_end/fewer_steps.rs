//! Common tasks in one command: a rollback under clients, a file system that grows with its volume, a volume that is mounted at once, an
//! export without a named way, a pool on an array of bare disks.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::every_state::flat;
use crate::pools::{self, BLOCK, check, check_zeros, client, names, pool};
use crate::support::*;

/// A daemon with a pool, and a folder to mount at. A mount that a failed test leaves is removed.
struct Mounts {
    daemon: Daemon,
    at: String,
}

impl Mounts {
    fn new() -> Mounts {
        need_root();
        let daemon = Daemon::start();
        let disk = daemon.folder.sparse("a.img", 2 << 30);
        daemon.braid(&["pool", "create", "tank", &disk]);
        let at = daemon.folder.join("at");
        fs::create_dir(&at).expect("a folder can be made");
        Mounts { daemon, at }
    }

    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/mounts").expect("mounts can be read").contains(&self.at)
    }

    fn exports(&self) -> usize {
        self.daemon.json(&["export", "list"])["exports"].as_array().expect("a list").len()
    }

    fn file_system_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.at).expect("it is mounted");
        found.f_blocks * found.f_frsize
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = command("umount").args(["-l", &self.at]).output();
        }
    }
}

#[test]
fn a_volume_is_rolled_back_while_its_clients_are_connected() {
    let mut daemon = Daemon::start();
    let mut db = pool(&daemon);
    let mut other = client(&daemon, "tank/db");
    pools::write(&mut db, 0..100, 1);
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    for round in 0..3 {
        pools::write(&mut db, 50..120, 1000 * (round + 1));
        let text = daemon.braid(&["volume", "rollback", "tank/db", "@monday", "--yes"]);
        assert!(text.contains("rolled back volume tank/db to @monday"), "{text}");
        // On connections that were open before, and on a new one.
        for client in [&mut db, &mut other, &mut client(&daemon, "tank/db")] {
            check(client, 0..100, 1);
            check_zeros(client, 100..120);
        }
        pools::write(&mut other, 120..130, 7);
        check(&mut db, 120..130, 7);
    }
    // Another size: the export has it for new clients.
    daemon.braid(&["volume", "resize", "tank/db", "2G"]);
    daemon.braid(&["volume", "rollback", "tank/db@monday", "--yes"]);
    assert_eq!(client(&daemon, "tank/db").size_bytes, 1 << 30);
    pools::write(&mut db, 0..10, 500);
    daemon.braid(&["volume", "rollback", "tank/db@monday", "--yes"]);
    daemon.restart(true);
    let mut db = client(&daemon, "tank/db");
    check(&mut db, 0..100, 1);
    check_zeros(&mut db, 100..130);
    // Refusals change nothing.
    daemon.refused(3, &["volume", "rollback", "tank/db", "@none", "--yes"]);
    daemon.braid(&["volume", "create", "tank/small", "1G", "--block-size", "512"]);
    daemon.braid(&["snapshot", "create", "tank/small@one"]);
    let refused = daemon.refused(4, &["volume", "rollback", "tank/db", "tank/small@one", "--yes"]);
    assert!(
        flat(&refused).contains("blocks of another size") && refused.contains("export remove tank/db"),
        "{refused}"
    );
    check(&mut db, 0..100, 1);
}

/// Each write is wholly before a rollback, or wholly after it.
#[test]
fn requests_during_a_rollback_wait_and_are_not_divided() {
    const LEN: u64 = MIB;
    let daemon = Daemon::start();
    let mut db = pool(&daemon);
    let before = noise(LEN, 1);
    db.write(0, &before).expect("it writes");
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    let ended = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let (mut db, ended, before) = (client(&daemon, "tank/db"), &ended, &before);
                scope.spawn(move || {
                    // The first one writes what the snapshot has; the others write where it has nothing.
                    let (at, old) = (writer * LEN, if writer == 0 { before.clone() } else { vec![0; LEN as usize] });
                    let mut rounds = 0;
                    while !ended.load(Ordering::Relaxed) {
                        rounds += 1;
                        let new = noise(LEN, 100 * writer + rounds);
                        db.write(at, &new).expect("it writes");
                        let back = db.read(at, LEN as usize).expect("it reads");
                        assert!(back == new || back == old, "writer {writer}: the write of round {rounds} is divided");
                    }
                    rounds
                })
            })
            .collect();
        for _ in 0..10 {
            daemon.braid(&["volume", "rollback", "tank/db@one", "--yes"]);
        }
        ended.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("no request fails")).min()
    });
    assert!(rounds.is_some_and(|rounds| rounds > 0));
    daemon.braid(&["volume", "rollback", "tank/db@one", "--yes"]);
    assert!(db.read(0, LEN as usize).expect("it reads") == before);
    check_zeros(&mut db, LEN / BLOCK..3 * LEN / BLOCK);
}

#[test]
fn the_users_of_a_file_see_the_content_of_the_snapshot() {
    let rig = Mounts::new();
    let daemon = &rig.daemon;
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    let path = daemon.folder.join("db");
    daemon.braid(&["export", "add", "tank/db", "--fuse", &path, "--name", "db"]);
    let file = fs::File::options().read(true).write(true).open(&path).expect("it can be opened");
    let (old, new) = (noise(MIB, 1), noise(MIB, 2));
    file.write_all_at(&old, 5000).expect("it writes");
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    file.write_all_at(&new, 9000).expect("it writes");
    daemon.braid(&["volume", "rollback", "tank/db@one", "--yes"]);
    let mut back = vec![0; MIB as usize];
    file.read_exact_at(&mut back, 5000).expect("the file is the same");
    assert!(back == old);
    file.write_all_at(&new, 9000).expect("it writes");
    file.read_exact_at(&mut back, 9000).expect("it reads");
    assert!(back == new);
    drop(file);
    daemon.braid(&["export", "remove", "db"]);
}

#[test]
fn a_mounted_volume_is_rolled_back_after_it_is_unmounted() {
    let rig = Mounts::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    daemon.braid(&["volume", "create", "tank/db", "64M"]);
    daemon.braid(&["mount", "tank/db", at, "--mkfs"]);
    let file = format!("{at}/precious");
    fs::write(&file, "old").expect("it can be written");
    daemon.braid(&["snapshot", "create", "tank/db@one"]);
    fs::write(&file, "new").expect("it can be written");
    let refused = daemon.refused(4, &["volume", "rollback", "tank/db@one", "--yes"]);
    assert!(flat(&refused).contains(&format!("braid umount '{at}'")) && refused.contains("--force"), "{refused}");
    assert_eq!(fs::read_to_string(&file).expect("it can be read"), "new");
    daemon.braid(&["umount", at]);
    daemon.braid(&["volume", "rollback", "tank/db@one", "--yes"]);
    daemon.braid(&["mount", "tank/db", at]);
    assert_eq!(fs::read_to_string(&file).expect("it can be read"), "old");
    daemon.braid(&["umount", at]);
    // Where the user says so: nothing else is kept from happening.
    daemon.braid(&["mount", "tank/db", at, "--read-only"]);
    daemon.braid(&["volume", "rollback", "tank/db@one", "--force", "--yes"]);
    daemon.braid(&["umount", at]);
}

/// Returns whether this process has CAP_SYS_RESOURCE (24).
fn may_resize_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("it has capabilities");
    u64::from_str_radix(effective.trim(), 16).expect("hexadecimal") & (1 << 24) != 0
}

#[test]
fn a_file_system_grows_with_its_volume() {
    let rig = Mounts::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    daemon.braid(&["volume", "create", "tank/none", "64M"]);
    let refused = daemon.refused(3, &["volume", "resize", "tank/none", "+64M", "--fs"]);
    assert!(flat(&refused).contains("braid mount tank/none") && refused.contains("resize2fs"), "{refused}");
    assert_eq!(daemon.json(&["volume", "show", "tank/none"])["size_bytes"], 64 * MIB);
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = format!("tank/{kind}");
        daemon.braid(&["volume", "create", &volume, "512M"]);
        // The way on which a block device grows with every kernel.
        daemon.braid(&["mount", &volume, at, "--mkfs", "--fs", kind, "--via", "fuse"]);
        let content = noise(MIB, 5);
        fs::write(format!("{at}/precious"), &content).expect("it can be written");
        let before = rig.file_system_bytes();
        if kind == "ext4" && !may_resize_ext4() {
            // Linux lets only processes with CAP_SYS_RESOURCE grow a mounted ext4: the volume grows, and the error says what is left.
            let refused = flat(&daemon.refused(1, &["volume", "resize", &volume, "+512M", "--fs"]));
            assert!(refused.contains("has 1.00 GiB now") && refused.contains("resize2fs '/dev/"), "{refused}");
            assert_eq!(daemon.json(&["volume", "show", &volume])["size_bytes"], 1024 * MIB);
            println!("ext4 was not grown: this process lacks CAP_SYS_RESOURCE; the error was checked");
            daemon.braid(&["umount", at]);
            continue;
        }
        let text = daemon.braid(&["volume", "resize", &volume, "+512M", "--fs"]);
        assert!(text.contains("has grown with it") && text.contains(at), "{text}");
        let after = rig.file_system_bytes();
        assert!(after > before + 400 * MIB, "{kind}: {before} bytes, then {after}");
        // The same size again; and what is not done.
        let resized = daemon.json(&["volume", "resize", &volume, "1G", "--fs"]);
        assert_eq!(resized["size_bytes"], 1024 * MIB, "{resized}");
        let refused = daemon.refused(2, &["volume", "resize", &volume, "-100M", "--fs"]);
        assert!(flat(&refused).contains("does not shrink"), "{refused}");
        daemon.refused(2, &["volume", "resize", &volume, "+1G", "--fs", "--force"]);
        assert!(fs::read(format!("{at}/precious")).expect("it can be read") == content);
        daemon.braid(&["umount", at]);
    }
}

#[test]
fn a_volume_is_created_with_its_file_system_and_mounted() {
    let rig = Mounts::new();
    let (daemon, at) = (&rig.daemon, rig.at.as_str());
    let made = daemon.json(&["volume", "create", "tank/home", "--size", "512M", "--mount", at, "--mkfs", "xfs"]);
    assert_eq!((&made["name"], &made["size_bytes"]), (&"tank/home".into(), &(512 * MIB).into()), "{made}");
    assert_eq!(made["exports"].as_array().map(Vec::len), Some(1), "{made}");
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts can be read");
    assert!(mounts.lines().any(|line| line.contains(at) && line.contains(" xfs ")), "{mounts}");
    fs::write(format!("{at}/file"), "x").expect("it can be written");
    let volumes = || names(&daemon.json(&["volume", "list"]), "volumes");
    // Refused before anything is created: the folder is in use, is not there, or no folder.
    fn create<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["volume", "create", "tank/more"], more].concat()
    }
    daemon.refused(4, &create(&["64M", "--mount", at]));
    daemon.refused(3, &create(&["64M", "--mount", "/not/there"]));
    daemon.refused(2, &create(&["--mount", at]));
    daemon.refused(2, &create(&["64M", "--size", "64M"]));
    daemon.refused(2, &create(&["64M", "--mkfs", "ext4"]));
    assert_eq!(volumes(), ["tank/home"]);
    daemon.braid(&["umount", at]);
    // A step fails: nothing is left. 8 MiB are too few for xfs.
    let refused = daemon.refused_any(&create(&["8M", "--mount", at, "--mkfs", "xfs"]));
    assert!(flat(&refused).contains("tank/more was not created: creating the file system failed"), "{refused}");
    assert_eq!((volumes(), rig.exports(), rig.is_mounted()), (vec!["tank/home".to_owned()], 0, false));
    let text = daemon.braid(&create(&["64M", "--mount", at]));
    assert!(text.contains("created volume tank/more") && text.contains("ext4, newly created"), "{text}");
    daemon.braid(&["umount", at]);
    assert_eq!(rig.exports(), 0);
}

#[test]
fn the_way_of_an_export_is_chosen_where_none_is_named() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 96 * MIB);
    daemon.braid(&["pool", "create", "tank", &disk]);
    for volume in ["tank/a", "tank/b"] {
        daemon.braid(&["volume", "create", volume, "16M"]);
    }
    let text = daemon.braid(&["export", "add", "tank/a"]);
    let address = daemon.json(&["export", "show", "tank/a"])["nbd"].as_str().expect("an address").to_owned();
    match Path::new("/dev/ublk-control").exists() && address.starts_with("ublk:") {
        true => assert!(text.contains("the kernel has ublk"), "{text}"),
        false => assert!(address.ends_with("/nbd.sock") && text.contains("ublk cannot be used"), "{address}: {text}"),
    }
    let added = daemon.json(&["export", "add", "tank/b", "--nbd"]);
    let address = added["nbd"].as_str().expect("an address");
    assert!(address.starts_with("unix:") && address.ends_with("/nbd.sock"), "{added}");
    let socket = address.trim_start_matches("unix:");
    assert_eq!(crate::nbd::Client::open(socket, "tank/b").expect("it listens").size_bytes, 16 * MIB);
    for wrong in
        [&["--nbd", "--ublk"][..], &["--fuse", "--ublk"], &["--nbd", "unix:/a", "--fuse", "/b"], &["--queues", "2"]]
    {
        daemon.refused(2, &[&["export", "add", "tank/a", "--name", "more"], wrong].concat());
    }
    for export in ["tank/a", "tank/b"] {
        daemon.braid(&["export", "remove", export]);
    }
}

#[test]
fn a_pool_is_created_on_an_array_of_bare_disks() {
    let daemon = Daemon::start();
    let disk = |name: &str, mib: u64| daemon.folder.sparse(name, mib * MIB);
    let (a, b, c) = (disk("a", 160), disk("b", 160), disk("c", 160));
    let arrays = || names(&daemon.json(&["array", "list"]), "arrays");
    // Refused before anything is written, or undone.
    daemon.refused(2, &["pool", "create", "tank", &a, &b, "--level", "raid7"]);
    daemon.refused_any(&["pool", "create", "tank", &a, "--level", "raid5"]);
    let small = [disk("d", 2), disk("e", 2)];
    let refused = daemon.refused_any(&["pool", "create", "tank", &small[0], &small[1], "--level", "mirror"]);
    assert_eq!(arrays(), [""; 0], "{refused}");
    let pool = daemon.json(&["pool", "create", "tank", &a, &b, &c, "--level", "5"]);
    assert_eq!((&pool["name"], pool["members"].as_array().map(Vec::len)), (&"tank".into(), Some(1)), "{pool}");
    assert_eq!(daemon.json(&["array", "show", "tank-array"])["level"], "raid5");
    daemon.braid(&["volume", "create", "tank/db", "16M"]);
    let (f, g) = (disk("f", 160), disk("g", 160));
    let refused = daemon.refused(4, &["pool", "create", "tank", &f, &g, "--level", "mirror"]);
    assert!(refused.contains("a pool tank"), "{refused}");
    assert_eq!(arrays(), ["tank-array"]);
    let text = daemon.braid(&["pool", "create", "deep", &f, &g, "--level", "mirror"]);
    assert!(text.contains("array deep-array (raid1)"), "{text}");
}
