//! A file or block device that becomes shorter while in use: errors, never zeros, and no write extends it again.

use std::process::Command;

use crate::common::{Folder, Random, TestBed, block_on, starting_children};
use braid_engine::{DeviceId, ErrorKind, Flags, LeafId, MetaIo, Op};
use braid_ring::{DriverKind, RingConfig};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const BLOCK: u64 = 4096;
const DRIVERS: [DriverKind; 3] = [DriverKind::Uring, DriverKind::Libaio, DriverKind::Threads];

/// A disk of two shards on a file full of data.
struct TruncatedDisk {
    bed: TestBed,
    device: DeviceId,
    leaf: LeafId,
    path: String,
    data: Vec<u8>,
}

impl TruncatedDisk {
    fn new(folder: &Folder, driver: DriverKind, name: &str) -> TruncatedDisk {
        let mut bed = TestBed::new(&RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() });
        let path = folder.path(name);
        let (device, leaf) = bed.bare(&format!("file:{path},size=16M"));
        let data = Random(7).bytes(SIZE);
        for at in (0..SIZE).step_by(4 << 20) {
            bed.write(0, device, Flags::NONE, at, &data[at as usize..(at + 4 * MIB) as usize]);
        }
        TruncatedDisk { bed, device, leaf, path, data }
    }

    fn truncate(&self, bytes: u64) {
        std::fs::File::options().write(true).open(&self.path).and_then(|file| file.set_len(bytes)).unwrap();
    }

    fn length(&self) -> u64 {
        std::fs::metadata(&self.path).unwrap().len()
    }

    fn request(&self, shard: u16, op: Op, flags: Flags, offset: u64, len: u64) -> Result<Vec<u8>, ErrorKind> {
        let data = if op == Op::Write { vec![0xab; len as usize] } else { Vec::new() };
        let reply = self.bed.call(shard, self.device, op, flags, offset, len, &data);
        reply.result.map_err(|error| error.kind)?;
        Ok(reply.data)
    }

    fn why(&self) -> String {
        self.bed.handle.disk(self.leaf).unwrap().loss_reason().unwrap_or("(it is not lost)").to_owned()
    }
}

fn on_every_driver(name: &str, check: impl Fn(&Folder, DriverKind)) {
    for driver in DRIVERS {
        let folder = Folder::new(&format!("cut-{name}-{driver}"));
        check(&folder, driver);
    }
}

/// Any first request after the truncation fails, wherever its range lies.
#[test]
fn a_truncated_file_fails_every_request() {
    let requests = [
        (Op::Read, Flags::NONE, 12 * MIB, BLOCK),
        (Op::Read, Flags::NONE, 8 * MIB - BLOCK, 2 * BLOCK),
        (Op::Read, Flags::NONE, 0, BLOCK),
        (Op::Write, Flags::NONE, 0, BLOCK),
        (Op::Write, Flags::NONE, 12 * MIB, BLOCK),
        (Op::Write, Flags::FUA, 12 * MIB, BLOCK),
        (Op::WriteZeroes, Flags::NO_UNMAP, 12 * MIB, BLOCK),
        (Op::WriteZeroes, Flags::NONE, 12 * MIB, BLOCK),
        (Op::Discard, Flags::NONE, 12 * MIB, BLOCK),
        (Op::Flush, Flags::NONE, 0, 0),
    ];
    on_every_driver("first", |folder, driver| {
        for (n, (op, flags, offset, len)) in requests.into_iter().enumerate() {
            // The second length is inside a block.
            for (m, to) in [8 * MIB, 8 * MIB + 100].into_iter().enumerate() {
                let cut = TruncatedDisk::new(folder, driver, &format!("{n}-{m}"));
                cut.truncate(to);
                let what = format!("{driver}: {op:?} at {offset} after a cut to {to}");
                assert_eq!(cut.request(0, op, flags, offset, len), Err(ErrorKind::Gone), "{what}");
                // All later requests fail, also on the other shard, and none reaches the file.
                let length = cut.length();
                for op in [Op::Read, Op::Write, Op::Flush] {
                    let len = if op == Op::Flush { 0 } else { BLOCK };
                    let start = if op == Op::Flush { 0 } else { 14 * MIB };
                    assert_eq!(
                        cut.request(1, op, Flags::NONE, start, len),
                        Err(ErrorKind::Gone),
                        "{what}, then {op:?}"
                    );
                }
                assert_eq!(cut.length(), length, "{what}: nothing more is written");
                let why = cut.why();
                assert!(why.starts_with("it is shorter than its label says: ") && why.contains("of 16M"), "{why}");
                cut.bed.ring.stop();
            }
        }
    });
}

/// A write beyond the new end extends the file. The gap before it is never read as zeros.
#[test]
fn a_write_that_extends_the_file_hides_no_loss() {
    on_every_driver("longer", |folder, driver| {
        let cut = TruncatedDisk::new(folder, driver, "file");
        cut.truncate(4 * MIB);
        // Both requests are in flight at once: whichever ends first, the read gives an error or the previous data.
        let write = cut.bed.begin(0, cut.device, Op::Write, Flags::NONE, 12 * MIB, BLOCK, &[1; BLOCK as usize]);
        let read = cut.bed.begin(1, cut.device, Op::Read, Flags::NONE, 8 * MIB, BLOCK, &[]);
        let replies = [write.recv().unwrap().result, read.recv().unwrap().result];
        assert!(replies.iter().all(|result| result.is_err_and(|e| e.kind == ErrorKind::Gone)), "{driver}: {replies:?}");
        assert!(cut.length() < SIZE, "{driver}: data never reach the last block");
        cut.bed.ring.stop();
    });
}

/// The last block holds the label: a write to it would restore the length of the file.
#[test]
fn a_label_write_does_not_extend_the_file() {
    on_every_driver("label", |folder, driver| {
        let cut = TruncatedDisk::new(folder, driver, "file");
        cut.truncate(8 * MIB);
        let meta = cut.bed.handle.meta();
        let error = block_on(meta.write(cut.leaf, SIZE - BLOCK, vec![1; BLOCK as usize], true)).unwrap_err();
        assert_eq!((error.kind, cut.length()), (ErrorKind::Gone, 8 * MIB), "{driver}");
        let error = block_on(meta.read(cut.leaf, 0, BLOCK as usize)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Gone, "{driver}");
        cut.bed.ring.stop();
    });
}

/// An idle disk is checked as well. A file that has grown, or has holes, is not an error.
#[test]
fn idle_grown_and_sparse_files() {
    on_every_driver("idle", |folder, driver| {
        let cut = TruncatedDisk::new(folder, driver, "file");
        let disk = cut.bed.handle.disk(cut.leaf).unwrap();
        cut.truncate(SIZE + 4 * MIB);
        assert_eq!(
            cut.request(0, Op::Read, Flags::NONE, 12 * MIB, BLOCK).as_deref(),
            Ok(&cut.data[12 << 20..][..4096])
        );
        cut.truncate(SIZE);
        cut.request(0, Op::WriteZeroes, Flags::NONE, MIB, MIB).unwrap();
        assert_eq!(cut.request(1, Op::Read, Flags::NONE, MIB, BLOCK), Ok(vec![0; BLOCK as usize]));
        cut.request(1, Op::Write, Flags::FUA, SIZE - BLOCK, BLOCK).unwrap();
        cut.request(1, Op::Flush, Flags::NONE, 0, 0).unwrap();
        // A renamed file is fine; it is lost when another file takes its last name.
        let moved = format!("{}.moved", cut.path);
        std::fs::rename(&cut.path, &moved).unwrap();
        assert_eq!((disk.check_size(), disk.is_deleted()), (None, false));
        std::fs::hard_link(&moved, &cut.path).unwrap();
        std::fs::write(format!("{moved}.2"), b"another one").unwrap();
        std::fs::rename(format!("{moved}.2"), &moved).unwrap();
        assert!(!disk.is_deleted(), "one name is left");
        let other = folder.path("kept");
        std::fs::rename(&cut.path, &other).unwrap();
        let cut = TruncatedDisk { path: other, ..cut };
        cut.truncate(SIZE - 1);
        assert!(disk.check_size().is_some_and(|why| why.contains("of 16M")), "{:?}", disk.check_size());
        // Extended again by another program: the truncated data is lost.
        cut.truncate(SIZE);
        assert!(disk.check_size().is_some());
        assert_eq!(cut.request(0, Op::Read, Flags::NONE, 0, BLOCK), Err(ErrorKind::Gone));
        std::fs::remove_file(&cut.path).unwrap();
        assert!(disk.is_deleted());
        cut.bed.ring.stop();
    });
}

#[test]
fn a_shrunken_block_device_has_failed() {
    let _children = starting_children();
    on_every_driver("device", |folder, driver| {
        for (n, op) in [Op::Read, Op::Write].into_iter().enumerate() {
            let path = folder.path(&format!("image-{n}"));
            std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
            let made = Command::new("losetup").args(["--find", "--show", "--direct-io=off", &path]).output().unwrap();
            if !made.status.success() {
                eprintln!("no loop devices here: {}", String::from_utf8_lossy(&made.stderr).trim());
                return;
            }
            let name = String::from_utf8(made.stdout).unwrap().trim().to_owned();
            let mut bed = TestBed::new(&RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() });
            let (device, leaf) = bed.bare(&name);
            let cut = TruncatedDisk { bed, device, leaf, path: path.clone(), data: Vec::new() };
            cut.request(0, op, Flags::NONE, 12 * MIB, BLOCK).unwrap();
            cut.truncate(8 * MIB);
            assert!(Command::new("losetup").args(["--set-capacity", &name]).status().unwrap().success());
            assert_eq!(cut.request(0, op, Flags::NONE, 12 * MIB, BLOCK), Err(ErrorKind::Gone), "{driver}: {op:?}");
            assert!(cut.why().contains("of 16M"), "{}", cut.why());
            cut.bed.ring.stop();
            Command::new("losetup").args(["--detach", &name]).status().unwrap();
        }
    });
}
