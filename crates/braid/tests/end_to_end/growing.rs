//! Arrays grow while they serve, by members that became larger and by further disks; existing data stay where they are.

use std::fs::File;
use std::thread;
use std::time::Duration;

use crate::mirrors::{BLOCK, check, client, create, data_of, health, show, wait_for_health, write};
use crate::nbd::Client;
use crate::support::*;

pub fn enlarge(path: &str, bytes: u64) {
    File::options().write(true).open(path).and_then(|file| file.set_len(bytes)).expect("a file can become larger");
}

pub fn size(daemon: &Daemon) -> u64 {
    show(daemon)["size_bytes"].as_u64().expect("a size")
}

/// Returns the size that a new client receives.
fn size_over_nbd(daemon: &Daemon) -> u64 {
    run("nbdinfo", &["--size", &daemon.uri("data")]).trim().parse().expect("nbdinfo prints a number")
}

#[test]
fn a_mirror_grows_with_its_disks() {
    let mut daemon = Daemon::start();
    let disks: Vec<String> = ["a", "b"].iter().map(|name| daemon.folder.sparse(name, 80 * MIB)).collect();
    let [a, b] = &disks[..] else { panic!("two files") };
    let mut before = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut before, 0..1200, 1);
    let small = size(&daemon);
    assert_eq!(size_over_nbd(&daemon), small);
    // The last block is included: its region is only half inside the array so far.
    let last = small - 4096;
    before.write(last, &noise(4096, 77)).expect("it writes");

    let nothing = daemon.refused(2, &["array", "grow", "data"]);
    assert!(
        nothing.contains("no capacity would be gained") && nothing.contains("two or more of its disks"),
        "{nothing}"
    );
    enlarge(a, 3 << 30);
    let nothing = daemon.refused(2, &["array", "grow", "data"]);
    assert!(nothing.contains("no capacity would be gained"), "{nothing}");
    // Noise in the unused part of the disks: the new capacity must not show it.
    let noisy = noise(2 * MIB, 5);
    enlarge(b, 80 * MIB + 2 * MIB);
    std::os::unix::fs::FileExt::write_at(&File::options().write(true).open(b).expect("a file"), &noisy, 80 * MIB)
        .expect("a file can be written");
    enlarge(b, 2 << 30);
    let planned = daemon.json(&["array", "grow", "data", "--dry-run"]);
    assert_eq!((size(&daemon), &planned["dry_run"]), (small, &true.into()), "{planned}");
    let said = daemon.braid(&["array", "grow", "data"]);
    assert!(said.contains("has grown from 78.99 MiB to 1.99 GiB"), "{said}");
    let large = size(&daemon);
    assert_eq!((large, size_over_nbd(&daemon)), (planned["size_bytes"].as_u64().expect("a size"), large));
    assert!(large > (2 << 30) - 3 * MIB, "{large}");
    assert!(daemon.events().contains("array_grown"), "{}", daemon.events());

    // A connected client keeps the size that it learned at the handshake, and continues.
    check(&mut before, 0..1200, 1);
    assert!(before.read(small, 4096).is_err(), "it knows of no such byte");
    let mut client = client(&daemon);
    check(&mut client, 0..1200, 1);
    assert_eq!(client.read(last, 4096).expect("it reads"), noise(4096, 77));
    for at in [small, small + 4096, small + MIB, large - MIB] {
        assert!(client.read(at, MIB.min(large - at) as usize).expect("it reads").iter().all(|byte| *byte == 0), "{at}");
    }
    let end = (large - MIB) / BLOCK;
    write(&mut client, [end, end - 7, small / BLOCK + 1], 9);
    drop((before, client));

    // The array starts with its new size, and both members hold all of it.
    daemon.kill();
    daemon.start_again();
    let mut client = self::client(&daemon);
    assert_eq!((size(&daemon), size_over_nbd(&daemon)), (large, large));
    check(&mut client, 0..1200, 1);
    check(&mut client, [end, end - 7, small / BLOCK + 1], 9);
    wait_for_health(&daemon, "whole");
    client.flush().expect("it flushes");
    let len = 1200 * BLOCK as usize;
    assert!(data_of(&daemon, 0, a, len) == data_of(&daemon, 1, b, len), "the members differ");
    let check = daemon.any(&["array", "check", "data", "--wait"]);
    assert!(check.status.success(), "{}", output_of(&check));
    for disk in [a, b] {
        let examined = daemon.any(&["disk", "examine", disk]);
        assert!(examined.status.success(), "{}", output_of(&examined));
    }
    daemon.braid(&["array", "fail", "data", "0"]);
    self::check(&mut client, [end, end - 7], 9);
}

fn output_of(out: &std::process::Output) -> String {
    said(out)
}

#[test]
fn an_array_grows_by_further_disks_while_fio_runs() {
    for level in ["concat", "raid0"] {
        let mut daemon = Daemon::start();
        let disk = |name: &str, bytes: u64| daemon.folder.sparse(name, bytes);
        let (a, b, c, d) = (disk("a", 64 * MIB), disk("b", 96 * MIB), disk("c", 128 * MIB), disk("d", 48 * MIB));
        let uri = daemon.array("data", level, &[&a, &b]);
        let small = size(&daemon);
        let mut fio = command("fio");
        fio.args(["--name=load", "--ioengine=nbd", &format!("--uri={uri}"), "--rw=randwrite", "--bs=4k"]);
        fio.args([
            "--iodepth=16",
            "--size=64M",
            "--io_size=160M",
            "--verify=crc32c",
            "--do_verify=1",
            "--time_based=0",
        ]);
        let mut fio = Running::start(&daemon.folder, "fio", fio.current_dir(daemon.folder.path()));
        wait_for("fio to write", || {
            let members = show(&daemon)["members"].clone();
            let written: u64 = members.as_array()?.iter().filter_map(|m| m["stats"]["written_bytes"].as_u64()).sum();
            (written > MIB || fio.ended().is_some()).then_some(())
        });
        let planned = daemon.json(&["array", "grow", "data", &c, &d, "--dry-run"]);
        let grown = daemon.json(&["array", "grow", "data", &c, &d]);
        assert_eq!((&planned["size_bytes"], &planned["zones"]), (&grown["size_bytes"], &grown["zones"]));
        let large = size(&daemon);
        assert!(large > small + 170 * MIB && size_over_nbd(&daemon) == large, "{small} {large}");
        // One more disk, and a member that became larger.
        enlarge(&a, 80 * MIB);
        daemon.braid(&["array", "grow", "data"]);
        let larger = size(&daemon);
        assert!(larger > large + 15 * MIB, "{large} {larger}");
        assert!(fio.wait().success(), "{level}: {}", fio.log());
        let mut client = client(&daemon);
        let blocks = [small / BLOCK, small / BLOCK + 1, large / BLOCK - 1, larger / BLOCK - 1];
        write(&mut client, blocks, 3);
        check(&mut client, blocks, 3);
        drop(client);
        // All of it is there after a stop and after a kill.
        for kill in [false, true] {
            daemon.restart(kill);
            assert_eq!((size(&daemon), size_over_nbd(&daemon)), (larger, larger));
            check(&mut self::client(&daemon), blocks, 3);
        }
        assert_eq!(show(&daemon)["members"].as_array().map(Vec::len), Some(4));
    }
}

#[test]
fn a_disk_that_cannot_become_a_member_is_refused_by_name() {
    let daemon = Daemon::start();
    let disk = |name: &str, bytes: u64| daemon.folder.sparse(name, bytes);
    let (a, b, c, d) = (disk("a", 64 * MIB), disk("b", 64 * MIB), disk("c", 64 * MIB), disk("d", 64 * MIB));
    daemon.array("data", "concat", &[&a]);
    daemon.array("other", "raid1", &[&b, &c]);
    let small = size(&daemon);
    let refused = |status: i32, disks: &[&str], words: &[&str]| {
        let mut arguments = vec!["array", "grow", "data"];
        arguments.extend(disks);
        let said = daemon.refused(status, &arguments);
        assert!(words.iter().all(|word| said.contains(word)), "{disks:?}: {said}");
        assert_eq!(size(&daemon), small);
    };
    refused(4, &[&b], &["/b", "member 0", "other"]);
    refused(4, &[&a], &["/a", "data"]);
    refused(4, &[&d, &d], &["/d"]);
    let tiny = disk("tiny", MIB);
    refused(2, &[&tiny], &["/tiny", "smallest"]);
    let missing = daemon.folder.join("missing");
    refused(3, &[&missing], &["/missing"]);
    let foreign = disk("foreign", 64 * MIB);
    run("mkfs.ext4", &["-q", &foreign]);
    refused(4, &[&foreign], &["/foreign", "ext4", "--force"]);
    refused(2, &["mem:64M"], &["mem:64M", "is volatile"]);
    refused(2, &[], &["no capacity would be gained", "name a new one"]);
    let said = daemon.refused(2, &["array", "grow", "other", &d]);
    assert!(said.contains("needs 2 members") && said.contains("name 2 or more further disks"), "{said}");
    // A file created for the growth is removed again after a failure; a disk added by force serves.
    let made = daemon.folder.join("made");
    refused(4, &[&format!("file:{made},size=64M"), &foreign], &["/foreign"]);
    assert!(std::fs::metadata(&made).is_err(), "the file is still there");
    daemon.braid(&["array", "grow", "data", &format!("file:{made},size=64M"), &foreign, "--force"]);
    assert!(size(&daemon) > small + 120 * MIB);
    // With a failed member the growth is refused: that member would lack the new part.
    daemon.braid(&["array", "fail", "other", "0"]);
    [&b, &c].into_iter().for_each(|disk| enlarge(disk, 128 * MIB));
    let said = daemon.refused(2, &["array", "grow", "other"]);
    assert!(said.contains("not all of its members are in sync"), "{said}");
}

/// Slow disks, so that a growth takes a while, and a daemon that is killed in the middle of it.
#[test]
fn a_daemon_killed_during_a_growth_finds_the_old_or_the_new_size() {
    let (mut smaller, mut larger) = (0, 0);
    for (level, new) in [("raid1", false), ("raid10", false), ("raid0", true), ("concat", false)] {
        let mut daemon = Daemon::start();
        let names = ["a", "b", "c"].map(|name| daemon.folder.sparse(name, 64 * MIB));
        let slow = names.clone().map(|path| format!("throttled({path},latency=20ms)"));
        let further = format!("throttled({},latency=20ms)", daemon.folder.sparse("d", 64 * MIB));
        let mut client = create(&daemon, level, &[&slow[0], &slow[1], &slow[2]], &[]);
        write(&mut client, 0..40, 1);
        client.flush().expect("it flushes");
        let mut bytes = 64 * MIB;
        for round in 0..6u64 {
            let before = size(&daemon);
            bytes += 8 * MIB;
            names.iter().for_each(|name| enlarge(name, bytes));
            let mut arguments = vec!["array", "grow", "data"];
            if new && round == 5 {
                arguments.push(&further);
            }
            let mut growing = Running::start(&daemon.folder, &format!("grow{round}"), &mut daemon.command(&arguments));
            thread::sleep(Duration::from_millis(60 * round));
            daemon.kill();
            growing.wait();
            daemon.start_again();
            client = wait_for("the export", || Client::open(&daemon.nbd_socket("data"), "data").ok());
            let now = size(&daemon);
            assert!(now >= before, "{level}, round {round}: {before} {now}");
            *(if now == before { &mut smaller } else { &mut larger }) += 1;
            check(&mut client, 0..40, 1);
            // The array of the old size can grow now; a disk that was half added needs force.
            if now == before {
                let mut arguments = arguments.clone();
                arguments.push("--force");
                wait_for("the array to be whole", || {
                    (health(&daemon) != "resyncing" && health(&daemon) != "rebuilding").then_some(())
                });
                daemon.braid(&arguments);
                assert!(size(&daemon) > before);
            }
            let end = size_over_nbd(&daemon) / BLOCK - 1;
            let mut fresh = self::client(&daemon);
            write(&mut fresh, [end], round);
            check(&mut fresh, [end], round);
        }
    }
    println!("{smaller} times the smaller one, {larger} times the larger one");
    assert!(smaller > 0 && larger + smaller == 24, "{smaller} {larger}");
}

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn over(path: &str) -> Loop {
        Loop(run("losetup", &["--find", "--show", "--direct-io=off", path]).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.0]).output();
    }
}

#[test]
fn a_file_system_grows_with_larger_block_devices() {
    need_root();
    let daemon = Daemon::start();
    let files: Vec<String> = ["a", "b"].iter().map(|name| daemon.folder.sparse(name, 80 * MIB)).collect();
    let loops: Vec<Loop> = files.iter().map(|file| Loop::over(file)).collect();
    let mut client = create(&daemon, "raid1", &[&loops[0].0, &loops[1].0], &[]);
    let image = daemon.folder.join("image");
    // The file system is made apart and copied, so that nothing has to be mounted.
    File::create(&image).and_then(|file| file.set_len(size(&daemon))).expect("a file can be made");
    let tree = daemon.folder.join("tree");
    std::fs::create_dir(&tree).expect("a folder can be made");
    for number in 0..20 {
        std::fs::write(format!("{tree}/{number}"), noise(MIB, number)).expect("a file can be written");
    }
    run("mkfs.ext4", &["-q", "-d", &tree, &image]);
    run("nbdcopy", &["--flush", &image, &daemon.uri("data")]);
    let before = size(&daemon);
    for (file, device) in files.iter().zip(&loops) {
        enlarge(file, 200 * MIB);
        run("losetup", &["--set-capacity", &device.0]);
    }
    daemon.braid(&["array", "grow", "data"]);
    let after = size(&daemon);
    assert!(after == before + 120 * MIB && size_over_nbd(&daemon) == after, "{before} {after}");
    assert!(client.read(0, 4096).is_ok());
    // Held all the time: a daemon of another test that scans this machine's block devices would take an unheld one.
    std::fs::remove_file(&image).expect("it is there");
    run("nbdcopy", &[&daemon.uri("data"), &image]);
    run("e2fsck", &["-fn", &image]);
    run("resize2fs", &[&image]);
    run("e2fsck", &["-fn", &image]);
    for number in 0..20 {
        let back = daemon.folder.join("back");
        run("debugfs", &["-R", &format!("dump {number} {back}"), &image]);
        assert!(std::fs::read(&back).expect("it was dumped") == noise(MIB, number), "file {number}");
    }
}
