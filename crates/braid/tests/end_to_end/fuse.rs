//! Exports as files: any program reads and writes them, they survive a restart of the daemon, and they are removed only
//! when no program uses them.

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::support::*;

/// A daemon with a volume of 64 MiB, and the path of its file. Dropping it unmounts what is left.
struct Rig {
    file: String,
    daemon: Daemon,
}

impl Rig {
    fn new() -> Rig {
        Rig::of(Daemon::start())
    }

    fn of(daemon: Daemon) -> Rig {
        need_root();
        let disk = daemon.folder.sparse("a.img", 512 << 20);
        daemon.braid(&["pool", "create", "tank", &disk, "--yes"]);
        daemon.braid(&["volume", "create", "tank/db", "64M"]);
        Rig { file: daemon.folder.join("db"), daemon }
    }

    fn export(&self, more: &[&str]) {
        self.daemon.braid(&[&["export", "add", "tank/db", "--fuse", &self.file, "--name", "db"], more].concat());
    }

    fn open(&self) -> fs::File {
        fs::File::options().read(true).write(true).open(&self.file).expect("it can be opened")
    }

    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/mounts").expect("mounts can be read").contains(&self.file)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = command("umount").args(["-l", &self.file]).output();
        }
    }
}

/// A loop device on a file.
struct Loop(String);

impl Loop {
    fn on(file: &str) -> Loop {
        Loop(run("losetup", &["--find", "--show", "--direct-io=on", file]).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.0]).output();
    }
}

#[test]
fn a_volume_is_a_plain_file() {
    let rig = Rig::new();
    rig.export(&[]);
    let file = rig.open();
    assert_eq!(file.metadata().expect("it has attributes").len(), 64 << 20);
    // Any offset and length; neighbouring bytes stay unchanged.
    let mut model = noise(1 << 20, 7);
    file.write_all_at(&model, 0).expect("whole blocks");
    for (offset, len) in [(1, 1), (4095, 2), (10_000, 70_001), (511, 4096), (8192, 4096), (300_000, 8192)] {
        let bytes = noise(len as u64, offset as u64);
        file.write_all_at(&bytes, offset as u64).expect("any range");
        model[offset..offset + len].copy_from_slice(&bytes);
    }
    // A hole and a zeroed range read as zeros, to the byte.
    for (option, offset, len) in [("--punch-hole", 100_001, 20_000), ("--zero-range", 500_000, 7)] {
        run("fallocate", &[option, "--offset", &offset.to_string(), "--length", &len.to_string(), &rig.file]);
        model[offset..offset + len].fill(0);
    }
    file.sync_all().expect("it can be flushed");
    let mut back = vec![0; model.len()];
    rig.open().read_exact_at(&mut back, 0).expect("it can be read");
    assert!(back == model, "what was written is there, and nothing else has changed");
    let mut odd = vec![0; 12_345];
    file.read_exact_at(&mut odd, 777).expect("any range");
    assert!(odd == model[777..777 + 12_345]);
    // The file has the volume's size.
    assert!(file.write_at(&[1], 64 << 20).is_err(), "nothing is behind its end");
    assert!(file.set_len(1).is_err(), "it is not made shorter from here");
    run("dd", &["if=/dev/zero", &format!("of={}", rig.file), "bs=4096", "count=1", "oflag=direct"]);
    rig.daemon.braid(&["volume", "resize", "tank/db", "96M"]);
    wait_for("the new size", || (file.metadata().expect("attributes").len() == 96 << 20).then_some(()));
    file.write_all_at(b"more", (96 << 20) - 4).expect("there is more room");
    let shown = rig.daemon.json(&["export", "show", "db"]);
    assert_eq!((shown["state"].as_str(), shown["connections"].as_u64()), (Some("listening"), Some(1)), "{shown}");
    assert_eq!(shown["nbd"], format!("fuse:{}", rig.file));
    assert!(shown["stats"]["written_bytes"].as_u64() > Some(1 << 20) && shown["stats"]["errors"] == 1, "{shown}");
    // The export is not removed while a program has the file open, and the file cannot become a disk of the same daemon.
    let refused = rig.daemon.refused(4, &["export", "remove", "db"]);
    assert!(refused.contains("in use by process"), "{refused}");
    let refused = rig.daemon.refused_any(&["pool", "create", "other", &rig.file, "--yes"]);
    assert!(refused.contains("stand on itself"), "{refused}");
    drop(file);
    rig.daemon.braid(&["export", "remove", "db"]);
    assert!(!rig.is_mounted());
    assert_eq!(fs::metadata(&rig.file).expect("the empty file stays").len(), 0);
    // A mount hides no existing files.
    fs::write(&rig.file, "precious").expect("it is an ordinary file");
    let refused = rig.daemon.refused(4, &["export", "add", "tank/db", "--fuse", &rig.file]);
    assert!(refused.contains("8 bytes"), "{refused}");
    fs::remove_file(&rig.file).expect("it is an ordinary file");
    // A read-only export is read-only for every program; a forced unmount is reported.
    rig.export(&["--read-only"]);
    assert!(fs::File::options().write(true).open(&rig.file).is_err());
    run("umount", &["-l", &rig.file]);
    let failed = || (rig.daemon.json(&["export", "show", "db"])["state"] == "failed").then_some(());
    wait_for("the status to say so", failed);
    assert!(rig.daemon.braid(&["export", "show", "db"]).contains("unmounted"));
    rig.daemon.braid(&["export", "remove", "db"]);
}

#[test]
fn holes_are_found_and_copied() {
    let rig = Rig::new();
    rig.export(&[]);
    let file = rig.open();
    let (data, hole) = (|at| seek(&file, SeekFrom::Data(at)), |at| seek(&file, SeekFrom::Hole(at)));
    assert_eq!((hole(5), data(5)), (Ok(5), Err(Errno::NXIO)), "nothing was written");
    let (at, len) = ((32 << 20) + 8192, 12_288);
    file.write_all_at(&noise(len, 1), at).expect("it can be written");
    assert_eq!((data(0), hole(0), data(at + 5)), (Ok(at), Ok(0), Ok(at + 5)));
    assert_eq!((hole(at), data(at + len)), (Ok(at + len), Err(Errno::NXIO)));
    assert_eq!((hole(64 << 20), data(u64::MAX >> 1)), (Err(Errno::NXIO), Err(Errno::NXIO)), "there is no such place");
    // A partly written block is data as a whole; a discarded block becomes a hole.
    file.write_all_at(b"x", 10_000).expect("it can be written");
    assert_eq!((data(0), hole(8192)), (Ok(8192), Ok(12_288)));
    run("fallocate", &["--punch-hole", "--offset", &at.to_string(), "--length", "4096", &rig.file]);
    assert_eq!(data(12_288), Ok(at + 4096));
    // Tools that look for holes.
    let copy = rig.daemon.folder.join("copy");
    run("cp", &["--sparse=auto", &rig.file, &copy]);
    let copied = fs::metadata(&copy).expect("it was copied");
    assert_eq!(copied.len(), 64 << 20);
    assert!(copied.blocks() * 512 < 1 << 20, "{} sectors for three blocks", copied.blocks());
    run("cmp", &[&rig.file, &copy]);
    let map: serde_json::Value =
        serde_json::from_str(&run("qemu-img", &["map", "--output=json", "-f", "raw", &rig.file])).expect("JSON");
    let written = map.as_array().expect("runs").iter().filter(|run| run["data"] == true);
    let written: Vec<_> = written.map(|run| (run["start"].as_u64(), run["length"].as_u64())).collect();
    assert_eq!(written, [(Some(8192), Some(4096)), (Some(at + 4096), Some(8192))], "{map}");
}

#[test]
fn programs_with_a_file_wait_while_its_array_is_stopped() {
    need_root();
    let daemon = Daemon::start();
    let (disks, file) = (
        [daemon.folder.sparse("a.img", 32 << 20), daemon.folder.sparse("b.img", 32 << 20)],
        daemon.folder.join("safe"),
    );
    daemon.array("safe", "raid1", &[&disks[0], &disks[1]]);
    daemon.braid(&["export", "add", "safe", "--fuse", &file, "--name", "file"]);
    let open = fs::File::options().read(true).write(true).open(&file).expect("it can be opened");
    open.write_all_at(&[7; 4096], 0).expect("it serves");
    daemon.refused(4, &["array", "stop", "safe"]);
    for _ in 0..2 {
        daemon.braid(&["array", "stop", "safe", "--force"]);
        let ours = open.try_clone().expect("a file can be opened twice");
        let reading = std::thread::spawn(move || {
            let mut back = [0; 4096];
            ours.read_exact_at(&mut back, 0).expect("it waits, and is answered");
            back
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reading.is_finished(), "no daemon can answer it");
        daemon.braid(&["array", "assemble", "safe"]);
        assert_eq!(daemon.json(&["export", "show", "file"])["state"], "listening");
        assert_eq!(reading.join().expect("it has read"), [7; 4096]);
    }
    // Removing the array removes the file; a program that has it open gets errors.
    daemon.braid(&["array", "delete", "safe", "--yes", "--force"]);
    assert!(open.read_at(&mut [0; 512], 0).is_err());
    assert!(!fs::read_to_string("/proc/mounts").expect("mounts can be read").contains(&file));
}

#[test]
fn an_orphaned_mount_is_removed() {
    let mut dead = Rig::new();
    dead.export(&[]);
    let alive = Rig::new();
    alive.export(&[]);
    let other = Daemon::start();
    let of = |list: &serde_json::Value, file: &str| {
        list["orphans"].as_array().and_then(|all| all.iter().find(|orphan| orphan["device"] == file)).cloned()
    };
    let list = |options: &[&str]| other.json(&[&["export", "repair"], options].concat());
    let is_served = |listed: Option<serde_json::Value>| {
        let listed = listed.expect("it is listed");
        assert!(listed["removed"] == false && listed["reason"].is_string(), "{listed}");
    };
    is_served(of(&list(&["--dry-run"]), &dead.file));
    dead.daemon.kill();
    let listed = of(&list(&["--dry-run"]), &dead.file).expect("it is listed");
    assert!(listed["removed"] == false && listed["reason"].is_null() && dead.is_mounted(), "{listed}");
    let removed = list(&[]);
    assert_eq!(of(&removed, &dead.file).expect("it is listed")["removed"], true, "{removed}");
    assert!(!dead.is_mounted());
    is_served(of(&removed, &alive.file));
    assert!(alive.is_mounted());
    // A daemon's own mount is no orphan.
    assert_eq!(of(&alive.daemon.json(&["export", "repair", "--dry-run"]), &alive.file), None);
}

/// Descriptors that a service manager stores for a daemon, by name.
type Kept = Arc<Mutex<Vec<(String, OwnedFd)>>>;

/// Acts as the service manager: stores descriptors until its socket closes.
fn manager(place: &str) -> Kept {
    let socket = UnixDatagram::bind(place).expect("a socket can be made");
    let kept = Kept::default();
    let manager_kept = Arc::clone(&kept);
    std::thread::spawn(move || {
        loop {
            let mut bytes = [0u8; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let Ok(got) = recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
            else {
                return;
            };
            let text = String::from_utf8_lossy(&bytes[..got.bytes]).into_owned();
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
            let mut kept = manager_kept.lock().expect("unpoisoned");
            let is_new = !kept.iter().any(|(other, _)| *other == name);
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    // A name that is stored already is not stored twice, as in systemd.
                    files.filter(|_| is_new).for_each(|file| kept.push((name.clone(), file)));
                }
            }
            if text.starts_with("FDSTOREREMOVE=1") {
                kept.retain(|(other, _)| *other != name);
            }
        }
    });
    kept
}

/// Becomes the daemon, with descriptors of another process from number 3 on: the same open files, which opening them by
/// `/proc` would not give.
const LAUNCHER: &str = "
import ctypes, fcntl, os, sys
process = os.pidfd_open(int(sys.argv[1]))
get = lambda number: ctypes.CDLL(None).syscall(438, process, int(number), 0)
high = [fcntl.fcntl(get(number), fcntl.F_DUPFD_CLOEXEC, 100) for number in sys.argv[2].split(',') if number]
for at, number in enumerate(high):
    os.dup2(number, 3 + at)
os.environ['LISTEN_PID'] = str(os.getpid())
os.execv(sys.argv[3], sys.argv[3:])
";

/// Builds `braid serve` as a service manager starts it, with the stored descriptors.
fn managed(folder: &Folder, place: &str, kept: &Kept) -> Command {
    let kept = kept.lock().expect("unpoisoned");
    let list = |text: &dyn Fn(&(String, OwnedFd)) -> String, between: &str| {
        kept.iter().map(text).collect::<Vec<_>>().join(between)
    };
    let mut launcher = command("python3");
    launcher.args(["-c", LAUNCHER, &std::process::id().to_string()]);
    launcher.args([&list(&|(_, file)| file.as_raw_fd().to_string(), ","), BRAID, "serve"]);
    places(&mut launcher, folder);
    launcher.env("NOTIFY_SOCKET", place).env("LISTEN_FDS", kept.len().to_string());
    launcher.env("LISTEN_FDNAMES", list(&|(name, _)| name.clone(), ":"));
    launcher
}

#[test]
fn a_file_survives_a_restart_of_its_daemon() {
    need_root();
    let folder = Folder::new();
    let place = folder.join("notify");
    let kept = manager(&place);
    let mut first = managed(&folder, &place, &kept);
    let mut rig = Rig::of(Daemon::start_with(folder, &mut first));
    rig.export(&[]);
    wait_for("the manager to have it", || (!kept.lock().expect("whole").is_empty()).then_some(()));
    let device = Loop::on(&rig.file);
    let mut fio = command("fio");
    fio.args(["--name=v", "--rw=randwrite", "--bs=4k", "--iodepth=16", "--ioengine=libaio", "--direct=1"]);
    fio.args([
        "--size=48M",
        "--io_size=48M",
        "--rate_iops=4000",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_state_save=0",
    ]);
    let mut fio = Running::start(&rig.daemon.folder, "fio", fio.arg(format!("--filename={}", device.0)));
    for kill in [true, true, false] {
        std::thread::sleep(Duration::from_millis(600));
        assert!(fio.ended().is_none(), "it writes while the daemon goes: {}", fio.log());
        if kill {
            rig.daemon.kill();
        } else {
            // On a busy machine the daemon may not have reached the orderly end.
            wait_for("the daemon to have the file", || {
                rig.daemon.running.log().contains("was taken over").then_some(())
            });
            rig.daemon.stop();
        }
        let mut next = managed(&rig.daemon.folder, &place, &kept);
        rig.daemon.running = Running::start(&rig.daemon.folder, "daemon", &mut next);
    }
    let status = fio.wait();
    assert!(status.success(), "no write failed, and all is there: {}", fio.log());
    assert!(rig.daemon.running.log().contains("was taken over"), "{}", rig.daemon.running.log());
    drop(device);
    rig.daemon.braid(&["export", "remove", "db"]);
    wait_for("the manager to let go of it", || kept.lock().expect("whole").is_empty().then_some(()));
}
