//! Zeroing and discarding: what reads as zeros, what keeps its space, and the behaviour on a file system that lacks an
//! operation. A program of its own, because one test measures the memory of the process.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::MetadataExt;

use braid_engine::{ErrorKind, Flags, Op};
use braid_ring::{DriverKind, RingConfig};
use common::{Folder, Random, TestBed};

const MIB: u64 = 1 << 20;

/// Returns the disk space of a file in bytes.
fn space(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Returns whether the file system of this folder can zero a range and keep it allocated.
fn zeroes_ranges(folder: &Folder) -> bool {
    let file = std::fs::File::create(folder.path("probe")).unwrap();
    file.set_len(MIB).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::ZERO_RANGE, 0, MIB).is_ok()
}

fn check(folder: &Folder, driver: DriverKind) {
    let path = folder.path(driver.name());
    let mut bed = TestBed::new(&RingConfig { driver: Some(driver), ..RingConfig::default() });
    let (device, _) = bed.bare(&format!("file:{path},size=16M,alloc=full"));
    let data = Random(1).bytes(16 * MIB);
    let fill = |bed: &TestBed| bed.write(0, device, Flags::NONE, 0, &data);
    let zero = |bed: &TestBed, flags, offset, len| bed.call(0, device, Op::WriteZeroes, flags, offset, len, &[]).result;
    let read = |bed: &TestBed, offset, len| bed.read(0, device, offset, len);

    fill(&bed);
    let full = space(&path);
    assert!(full >= 16 * MIB);
    zero(&bed, Flags::NO_UNMAP, MIB, 4 * MIB + 512).unwrap();
    assert!(read(&bed, MIB, 4 * MIB + 512).iter().all(|&b| b == 0));
    assert!(read(&bed, 0, MIB) == data[..MIB as usize], "what stands before is untouched");
    let after = (5 * MIB + 512) as usize;
    assert!(read(&bed, 5 * MIB + 512, 512) == data[after..after + 512], "what stands behind is untouched");
    assert!(space(&path) >= 16 * MIB, "NO_UNMAP keeps the space");

    zero(&bed, Flags::NONE, 8 * MIB, 4 * MIB).unwrap();
    assert!(read(&bed, 8 * MIB, 4 * MIB).iter().all(|&b| b == 0));
    assert!(space(&path) <= full - 3 * MIB, "without, it is given back");

    let fast = Flags::FAST_ZERO.with(Flags::NO_UNMAP);
    let reply = zero(&bed, fast, 0, MIB);
    if zeroes_ranges(folder) {
        reply.unwrap();
        assert!(read(&bed, 0, MIB).iter().all(|&b| b == 0));
    } else {
        assert_eq!(reply.unwrap_err().kind, ErrorKind::Unsupported, "writing zeros is not fast");
        assert!(read(&bed, 0, MIB) == data[..MIB as usize], "and nothing was written");
    }
    zero(&bed, Flags::FAST_ZERO, 6 * MIB, MIB).unwrap();

    fill(&bed);
    let before = space(&path);
    bed.call(0, device, Op::Discard, Flags::NONE, 0, 8 * MIB, &[]).result.unwrap();
    assert!(space(&path) <= before - 7 * MIB, "a discard gives space back");
    assert!(read(&bed, 8 * MIB, MIB) == data[(8 * MIB) as usize..(9 * MIB) as usize]);

    // With FUA, and of length 0.
    zero(&bed, Flags::FUA, 9 * MIB, MIB).unwrap();
    zero(&bed, Flags::NONE, 0, 0).unwrap();
    bed.ring.stop();
}

#[test]
fn on_the_temporary_file_system() {
    let folder = Folder::new("zero");
    DriverKind::ALL.into_iter().for_each(|driver| check(&folder, driver));
}

#[test]
fn on_tmpfs_which_cannot_zero_a_range() {
    let folder = Folder::at("/dev/shm", "zero");
    assert!(!zeroes_ranges(&folder), "if this file system has learned it, another is needed to test without");
    DriverKind::ALL.into_iter().for_each(|driver| check(&folder, driver));
}

#[test]
fn memory_disks_release_their_pages() {
    let mut bed = TestBed::new(&RingConfig::default());
    let (device, _) = bed.bare("mem:256M");
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let data = Random(2).bytes(16 * MIB);
    (0..16).for_each(|n| bed.write(0, device, Flags::NONE, n * 16 * MIB, &data));
    let full = resident();
    let reply = bed.call(0, device, Op::WriteZeroes, Flags::NONE, 4096 + 512, 256 * MIB - 8192, &[]);
    reply.result.unwrap();
    assert!(resident() < full - 200 * MIB, "{full} bytes before, {} after", resident());
    assert!(bed.read(0, device, 128 * MIB, MIB).iter().all(|&b| b == 0));
    let edge = bed.read(0, device, 4096, 1024);
    assert!(edge[..512] == data[4096..4608] && edge[512..] == [0; 512], "the edges are exact");
    bed.ring.stop();
}
