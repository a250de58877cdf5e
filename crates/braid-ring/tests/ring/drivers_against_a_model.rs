//! Random requests compared with a model in memory, on each driver and each kind of disk.

use crate::common::{Folder, Random, TestBed};
use braid_engine::{DeviceId, Flags, Op};
use braid_ring::{DriverKind, RingConfig};

const SIZE: u64 = 24 << 20;

fn config(driver: DriverKind, shards: u16) -> RingConfig {
    RingConfig { shards, driver: Some(driver), ..RingConfig::default() }
}

/// Makes random requests from both shards, in order, and compares with a copy in memory.
fn drive(bed: &TestBed, device: DeviceId, size: u64, keeps: bool, seed: u64, rounds: usize) {
    let mut random = Random(seed);
    let mut model = vec![0u8; size as usize];
    // Known content first: the initial content of a disk is undefined.
    for at in (0..size).step_by(4 << 20) {
        let len = (4 << 20).min(size - at);
        let data = random.bytes(len);
        bed.write(0, device, Flags::NONE, at, &data);
        model[at as usize..(at + len) as usize].copy_from_slice(&data);
    }
    for _ in 0..rounds {
        let shard = random.below(u64::from(bed.handle.shards())) as u16;
        let longest = if random.below(8) == 0 { 3 << 20 } else { 96 << 10 };
        let len = (1 + random.below(longest / 512)) * 512;
        let offset = random.below((size - len) / 512 + 1) * 512;
        let range = offset as usize..(offset + len) as usize;
        match random.below(10) {
            0..4 => {
                let got = bed.read(shard, device, offset, len);
                assert!(!keeps || got == model[range], "{len} bytes at {offset} differ");
            }
            4..7 => {
                let data = random.bytes(len);
                let flags = if random.below(4) == 0 { Flags::FUA } else { Flags::NONE };
                bed.write(shard, device, flags, offset, &data);
                model[range].copy_from_slice(&data);
            }
            7 => {
                let flags = if random.below(2) == 0 { Flags::NO_UNMAP } else { Flags::NONE };
                let reply = bed.call(shard, device, Op::WriteZeroes, flags, offset, len, &[]);
                reply.result.expect("zeroing works everywhere");
                model[range].fill(0);
            }
            8 => {
                let reply = bed.call(shard, device, Op::Discard, Flags::NONE, offset, len, &[]);
                reply.result.expect("a discard is a hint and never fails");
                // The content after a discard is undefined.
                let data = random.bytes(len);
                bed.write(shard, device, Flags::NONE, offset, &data);
                model[range].copy_from_slice(&data);
            }
            _ => {
                bed.call(shard, device, Op::Flush, Flags::NONE, 0, 0, &[]).result.expect("a flush succeeds");
            }
        }
    }
    if keeps {
        for at in (0..size).step_by(8 << 20) {
            let len = (8 << 20).min(size - at);
            assert!(bed.read(0, device, at, len) == model[at as usize..(at + len) as usize], "after all, at {at}");
        }
    }
}

fn on_every_kind(driver: DriverKind) {
    let folder = Folder::new(&format!("kinds-{driver}"));
    let file = |name: &str| format!("file:{},size=24M", folder.path(name));
    let kinds = [
        (file("plain"), true),
        ("mem:24M".into(), true),
        ("null:24M".into(), false),
        (format!("throttled({},iops=1000000,latency=20us)", file("throttled")), true),
        ("throttled(mem:24M,bw=4G)".into(), true),
        (format!("faulty({},delay=1ms:0.05)", file("faulty")), true),
        ("faulty(mem:24M,delay=100us:0.1,seed=3)".into(), true),
    ];
    let mut bed = TestBed::new(&config(driver, 2));
    assert_eq!(bed.handle.driver(braid_engine::ShardId(1)).kind, driver);
    for (n, (name, keeps)) in kinds.iter().enumerate() {
        let (device, leaf) = bed.bare(name);
        drive(&bed, device, SIZE, *keeps, n as u64, 120);
        let stats = bed.handle.leaf_stats(leaf).unwrap();
        assert_eq!((stats.errors, stats.in_flight), (0, 0), "{name}");
        assert!(stats.reads > 0 && stats.flushes > 0 && stats.read_bytes > stats.reads * 512, "{name}: {stats:?}");
        assert_eq!(stats.read_latency.total(), stats.reads, "{name}");
    }
    bed.ring.stop();
}

fn on_stripes(driver: DriverKind) {
    let folder = Folder::new(&format!("stripes-{driver}"));
    let file = |name: &str| format!("file:{},size=12M", folder.path(name));
    let mut bed = TestBed::new(&config(driver, 2));
    for (chunk, seed) in [(4096, 1), (64 << 10, 2), (12 << 10, 3)] {
        let names = [file(&format!("a{seed}")), file(&format!("b{seed}")), "mem:20M".to_string()];
        let device = bed.striped(&names.each_ref().map(String::as_str), chunk);
        drive(&bed, device, 30 << 20, true, seed, 120);
    }
    bed.ring.stop();
}

#[test]
fn uring_keeps_every_kind() {
    on_every_kind(DriverKind::Uring);
}

#[test]
fn libaio_keeps_every_kind() {
    on_every_kind(DriverKind::Libaio);
}

#[test]
fn threads_keep_every_kind() {
    on_every_kind(DriverKind::Threads);
}

#[test]
fn uring_keeps_stripes() {
    on_stripes(DriverKind::Uring);
}

#[test]
fn libaio_keeps_stripes() {
    on_stripes(DriverKind::Libaio);
}

#[test]
fn threads_keep_stripes() {
    on_stripes(DriverKind::Threads);
}
