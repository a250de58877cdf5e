//! Arrays are assembled from their labels, and disks in other use are refused.

use std::fs;

use crate::nbd::Client;
use crate::support::*;

fn disks(daemon: &Daemon, names: &[&str]) -> Vec<String> {
    names.iter().enumerate().map(|(i, name)| daemon.folder.sparse(name, (24 + 8 * i as u64) * MIB)).collect()
}

fn create(daemon: &Daemon, name: &str, disks: &[String]) {
    let mut arguments = vec!["array", "create", name, "--level", "raid0"];
    arguments.extend(disks.iter().map(String::as_str));
    daemon.braid(&arguments);
}

fn state(daemon: &Daemon, array: &str) -> String {
    daemon.json(&["array", "show", array])["state"].as_str().expect("a state").to_owned()
}

#[test]
fn another_daemon_assembles_an_array_in_any_order_and_from_any_paths() {
    let mut first = Daemon::start();
    let files = disks(&first, &["a", "b", "c"]);
    create(&first, "data", &files);
    let uuid = first.json(&["array", "show", "data"])["uuid"].clone();
    first.export("data");
    let mut client = Client::open(&first.nbd_socket("data"), "data").expect("it is served");
    let data = noise(4 * MIB, 1);
    client.write(0, &data).expect("it writes");
    first.stop();

    // Another machine, in effect: no state, other names, another order.
    let second = Daemon::start();
    let moved: Vec<String> = ["z", "y", "x"].iter().map(|name| second.folder.join(name)).collect();
    for (from, to) in files.iter().zip(&moved) {
        fs::copy(from, to).expect("a disk can be copied");
        fs::remove_file(from).expect("and moved");
    }
    second.braid(&["array", "assemble", "--disk", &moved[0], "--disk", &moved[2], "--disk", &moved[1]]);
    let array = second.json(&["array", "show", "data"]);
    assert_eq!((&array["uuid"], array["state"].as_str()), (&uuid, Some("active")));
    second.export("data");
    let mut client = Client::open(&second.nbd_socket("data"), "data").expect("it is served");
    assert_eq!(client.read(0, data.len()).expect("it reads"), data);
}

#[test]
fn arrays_and_exports_are_back_after_a_restart() {
    let mut daemon = Daemon::start();
    for (name, files) in [("one", ["a", "b"]), ("two", ["c", "d"])] {
        create(&daemon, name, &disks(&daemon, &files));
        daemon.export(name);
    }
    daemon.braid(&["array", "rename", "two", "deux"]);
    let before = daemon.json(&["array", "list"]);
    for kill in [true, false] {
        daemon.restart(kill);
        for array in before["arrays"].as_array().expect("a list") {
            let name = array["name"].as_str().expect("a name");
            let now = daemon.json(&["array", "show", name]);
            for field in ["uuid", "size_bytes", "zones", "level", "chunk_bytes", "exports"] {
                assert_eq!(now[field], array[field], "{name}: {field}");
            }
            assert_eq!(now["state"], "active", "{name}");
        }
        Client::open(&daemon.nbd_socket("one"), "one").expect("it is served again");
    }
}

#[test]
fn a_missing_member_is_named_and_the_array_starts_when_it_returns() {
    let mut daemon = Daemon::start();
    let files = disks(&daemon, &["a", "b", "c"]);
    create(&daemon, "data", &files);
    daemon.export("data");
    let absent = daemon.json(&["array", "show", "data"])["members"][1]["uuid"].as_str().expect("a UUID").to_owned();
    daemon.stop();
    // In another folder: the daemon finds files in the folders of known disks by itself.
    fs::create_dir(daemon.folder.join("elsewhere")).expect("a folder can be made");
    let hidden = daemon.folder.join("elsewhere/b");
    fs::rename(&files[1], &hidden).expect("a file can be renamed");
    daemon.start_again();

    let array = daemon.json(&["array", "show", "data"]);
    assert_eq!(array["state"], "incomplete");
    assert_eq!(array["members"][1]["state"], "missing");
    let shown = daemon.braid(&["array", "show", "data"]);
    assert!(shown.contains("missing") && shown.contains(&absent), "{shown}");
    // The last known path of the missing member is shown.
    assert!(shown.contains(&files[1]), "{shown}");
    // The status reports it, and so does its exit status.
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(5));
    assert!(Client::open(&daemon.nbd_socket("data"), "data").is_err(), "nothing is served with a hole in it");

    daemon.braid(&["array", "assemble", "--disk", &hidden]);
    assert_eq!(state(&daemon, "data"), "active");
    wait_for("its export", || Client::open(&daemon.nbd_socket("data"), "data").ok());
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
}

#[test]
fn stop_and_assemble_and_delete() {
    let daemon = Daemon::start();
    let files = disks(&daemon, &["a", "b"]);
    create(&daemon, "data", &files);
    daemon.braid(&["array", "stop", "data"]);
    assert_eq!(state(&daemon, "data"), "stopped");
    daemon.braid(&["array", "assemble", "data"]);
    assert_eq!(state(&daemon, "data"), "active");
    // Deleting needs `--yes`.
    daemon.refused(4, &["array", "delete", "data"]);
    assert_eq!(state(&daemon, "data"), "active");
    daemon.braid(&["array", "delete", "data", "--yes"]);
    daemon.refused(3, &["array", "show", "data"]);
    // Its disks are free again.
    create(&daemon, "again", &files);
}

#[test]
fn a_foreign_disk_is_refused_with_what_was_found() {
    let daemon = Daemon::start();
    let makers: [(&str, &[&str], &str); 4] = [
        ("ext4", &["mkfs.ext4", "-q", "-F"], "ext4"),
        ("xfs", &["mkfs.xfs", "-q", "-f"], "xfs"),
        ("btrfs", &["mkfs.btrfs", "-q", "-f"], "btrfs"),
        ("vfat", &["mkfs.vfat"], "fat"),
    ];
    for (name, mkfs, word) in makers {
        let file = daemon.folder.sparse(name, 320 * MIB);
        run(mkfs[0], &[&mkfs[1..], &[&file]].concat());
        let before = checksum(&file);
        let refusal = daemon.refused(4, &["array", "create", "data", "--level", "concat", &file]);
        assert!(refusal.to_lowercase().contains(word) && refusal.contains(&file), "{name}: {refusal}");
        assert_eq!(checksum(&file), before, "{name}: a refused disk is not written to");
        fs::remove_file(&file).expect("a file can be removed");
    }
    // A partition table.
    let file = daemon.folder.sparse("parted", 64 * MIB);
    let mut sfdisk = std::process::Command::new("bash");
    sfdisk.args(["-c", &format!("echo , | PATH=$PATH:/usr/sbin:/sbin sfdisk -q --label gpt {file}")]);
    assert!(sfdisk.status().expect("bash runs").success());
    let refusal = daemon.refused(4, &["array", "create", "data", "--level", "concat", &file]);
    assert!(refusal.to_lowercase().contains("partition"), "{refusal}");
    // `--force` overrides that check.
    daemon.braid(&["array", "create", "data", "--level", "concat", &file, "--force"]);
    // A member of a Braid array is in use, too.
    daemon.refused(4, &["array", "create", "more", "--level", "concat", &file]);
    // Also one whose array is stopped.
    daemon.braid(&["array", "stop", "data"]);
    let refusal = daemon.refused(4, &["array", "create", "more", "--level", "concat", &file]);
    assert!(refusal.contains("data"), "the array is named: {refusal}");
}

#[test]
fn wipe_removes_braids_labels_and_nothing_else() {
    let daemon = Daemon::start();
    let files = disks(&daemon, &["a", "b"]);
    create(&daemon, "data", &files);
    daemon.export("data");
    let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
    client.write(0, &noise(MIB, 1)).expect("it writes");
    drop(client);
    // A disk in use is refused.
    daemon.refused(4, &["disk", "wipe", &files[0], "--yes"]);
    daemon.braid(&["export", "remove", "data"]);
    daemon.braid(&["array", "stop", "data"]);

    let before = fs::read(&files[0]).expect("it can be read");
    daemon.refused(4, &["disk", "wipe", &files[0]]);
    daemon.braid(&["disk", "wipe", &files[0], "--yes"]);
    let after = fs::read(&files[0]).expect("it can be read");
    assert_eq!(before.len(), after.len());
    let changed: Vec<usize> =
        (0..before.len() / 4096).filter(|&i| before[i * 4096..][..4096] != after[i * 4096..][..4096]).collect();
    // The two copies of the label are all that differs, and are zeros now.
    assert_eq!(changed.len(), 2, "blocks {changed:?}");
    for block in changed {
        assert!(before[block * 4096..].starts_with(b"BRAIDLB1"), "block {block} was no label");
        assert!(!after[block * 4096..].starts_with(b"BRAIDLB1"), "block {block} is still a label");
    }
    // Content that is not Braid's is not touched.
    let foreign = daemon.folder.sparse("foreign", 64 * MIB);
    run("mkfs.ext4", &["-q", "-F", &foreign]);
    let sum = checksum(&foreign);
    daemon.any(&["disk", "wipe", &foreign, "--yes"]);
    assert_eq!(checksum(&foreign), sum);
}

#[test]
fn examine_reads_intact_and_damaged_labels_without_a_daemon() {
    let mut daemon = Daemon::start();
    let files = disks(&daemon, &["a", "b"]);
    create(&daemon, "data", &files);
    let uuid = daemon.json(&["array", "show", "data"])["uuid"].as_str().expect("a UUID").to_owned();
    daemon.stop();
    let shown = daemon.braid(&["disk", "examine", &files[0]]);
    assert!(shown.contains("data") && shown.contains(&uuid), "{shown}");
    daemon.json(&["disk", "examine", &files[0]]);

    // One bit of the first copy is wrong: the copy at the end is intact, and the damage is reported.
    use std::os::unix::fs::FileExt as _;
    let bytes = fs::read(&files[0]).expect("it can be read");
    let first = bytes.chunks(4096).position(|block| block.starts_with(b"BRAIDLB1")).expect("there is a label");
    let file = fs::File::options().write(true).open(&files[0]).expect("it can be written");
    let at = first * 4096 + 100;
    file.write_all_at(&[bytes[at] ^ 4], at as u64).expect("it can be written");
    let out = daemon.any(&["disk", "examine", &files[0]]);
    assert_eq!(out.status.code(), Some(7), "damage found:\n{}", said(&out));
    assert!(said(&out).contains(&uuid), "the good copy is shown: {}", said(&out));
    // The array still starts, from the copy.
    daemon.start_again();
    wait_for("the array to be assembled", || (state(&daemon, "data") == "active").then_some(()));
}

#[test]
fn examine_reports_a_disk_without_a_braid_label() {
    let daemon = Daemon::start();
    let file = daemon.folder.sparse("empty", 8 * MIB);
    let out = daemon.any(&["disk", "examine", &file]);
    assert!(!out.status.success(), "{}", said(&out));
    assert!(said(&out).to_lowercase().contains("no braid label"), "{}", said(&out));
    daemon.refused(3, &["disk", "examine", &daemon.folder.join("absent")]);
}

/// As after a kill, when the kernel still completes the I/O of the dead daemon: a disk stays locked for a while.
#[test]
fn a_start_waits_for_a_disk_that_is_still_locked() {
    // Shorter than the search for disks at a start, and longer.
    for held_ms in [1000, 4000] {
        let mut daemon = Daemon::start();
        let files = disks(&daemon, &["a", "b"]);
        create(&daemon, "data", &files);
        daemon.export("data");
        let mut client = Client::open(&daemon.nbd_socket("data"), "data").expect("it is served");
        let data = noise(MIB, 1);
        client.write(0, &data).expect("it writes");
        daemon.kill();

        let held = fs::File::open(&files[1]).expect("it is there");
        wait_for("the kernel to let go of the dead daemon's disk", || {
            rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()
        });
        let holder = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(held_ms));
            drop(held);
        });
        daemon.start_again();
        wait_for("the array", || (state(&daemon, "data") == "active").then_some(()));
        let mut client = wait_for("the export", || Client::open(&daemon.nbd_socket("data"), "data").ok());
        assert_eq!(client.read(0, data.len()).expect("it reads"), data);
        holder.join().expect("it only sleeps");
        // The item that needed attention for a while is gone.
        assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0), "{}", daemon.braid(&["status"]));
    }
}

/// Copying clients skip ranges that are reported as holes.
#[test]
fn holes_of_a_file_that_took_a_members_name_are_not_reported() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 24 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    fs::rename(&disk, daemon.folder.join("moved")).expect("a file that is open can be moved");
    daemon.folder.sparse("disk", 24 * MIB);
    let uri = daemon.export("data");
    let size = run("nbdinfo", &["--size", &uri]).trim().parse().expect("a size");
    let source = daemon.folder.noise("source", size, 5);
    run("nbdcopy", &["--flush", &source, &uri]);
    let back = daemon.folder.join("back");
    run("nbdcopy", &[&uri, &back]);
    assert_eq!(checksum(&back), checksum(&source));
}
