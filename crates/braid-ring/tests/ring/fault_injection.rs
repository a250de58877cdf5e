//! Errors, hangs, torn writes and corruption of one disk: what its user sees, and that other disks are not affected.

use std::time::{Duration, Instant};

use crate::common::{self, Folder, Random, TestBed, without_other_children};
use braid_engine::{ErrorKind, Flags, Op};
use braid_ring::{FaultRules, RingConfig};

const MIB: u64 = 1 << 20;

fn bed(disk_timeout_ms: u64) -> TestBed {
    TestBed::new(&RingConfig { shards: 2, disk_timeout_ms, ..RingConfig::default() })
}

fn rules(text: &str) -> FaultRules {
    FaultRules::parse(&text.split(',').filter(|t| !t.is_empty()).collect::<Vec<_>>()).expect("right rules")
}

fn kind_of(
    bed: &TestBed,
    device: braid_engine::DeviceId,
    op: Op,
    flags: Flags,
    offset: u64,
    len: u64,
) -> Option<ErrorKind> {
    let data = if op == Op::Write { vec![7; len as usize] } else { vec![] };
    bed.call(0, device, op, flags, offset, len, &data).result.err().map(|e| e.kind)
}

/// Runs a test on a file and on memory.
fn on_both(name: &str, check: impl Fn(&mut TestBed, &str)) {
    let folder = Folder::new(name);
    for inner in [format!("file:{},size=8M", folder.path("disk")), "mem:8M".to_string()] {
        let mut bed = bed(30_000);
        check(&mut bed, &inner);
        bed.ring.stop();
    }
}

#[test]
fn errors_hit_what_the_rules_name() {
    on_both("errors", |bed, inner| {
        let (device, leaf) = bed.bare(&format!("faulty({inner},read-error@1M-2M,write-error@4M-5M)"));
        for (op, offset, expected) in [
            (Op::Read, 0, None),
            (Op::Read, MIB, Some(ErrorKind::Io)),
            (Op::Read, 2 * MIB, None),
            (Op::Write, MIB, None),
            (Op::Write, 4 * MIB, Some(ErrorKind::Io)),
            (Op::WriteZeroes, 4 * MIB, Some(ErrorKind::Io)),
            (Op::Read, 4 * MIB, None),
        ] {
            assert_eq!(kind_of(bed, device, op, Flags::NONE, offset, 64 << 10), expected, "{op:?} at {offset}");
        }
        let reply = bed.call(0, device, Op::Read, Flags::NONE, MIB, 4096, &[]);
        let error = reply.result.unwrap_err();
        assert_eq!((error.leaf, error.errno, reply.buffer_busy), (Some(leaf), libc::EIO, false));
        assert_eq!(bed.handle.leaf_stats(leaf).unwrap().errors, 4);
    });
}

#[test]
fn a_gone_disk_stays_gone() {
    on_both("gone", |bed, inner| {
        let (device, _) = bed.bare(&format!("faulty({inner},gone-after=2)"));
        assert_eq!(kind_of(bed, device, Op::Read, Flags::NONE, 0, 4096), None);
        assert_eq!(kind_of(bed, device, Op::Flush, Flags::NONE, 0, 0), None);
        for op in [Op::Read, Op::Write, Op::Flush] {
            let len = if op == Op::Flush { 0 } else { 4096 };
            assert_eq!(kind_of(bed, device, op, Flags::NONE, 0, len), Some(ErrorKind::Gone), "{op:?}");
        }
    });
}

#[test]
fn a_failed_flush_sticks() {
    let _alone = without_other_children();
    on_both("flush", |bed, inner| {
        let (device, leaf) = bed.bare(&format!("faulty({inner},flush-error*1)"));
        let kind =
            |bed: &TestBed, op, flags| kind_of(bed, device, op, flags, 0, if op == Op::Flush { 0 } else { 4096 });
        assert_eq!(kind(bed, Op::Flush, Flags::NONE), Some(ErrorKind::Io));
        assert!(bed.handle.disk(leaf).unwrap().has_failed_flush());
        assert_eq!(kind(bed, Op::Flush, Flags::NONE), Some(ErrorKind::FlushFailed), "the rule is used up");
        assert_eq!(kind(bed, Op::Write, Flags::FUA), Some(ErrorKind::FlushFailed));
        let other_shard = bed.call(1, device, Op::Flush, Flags::NONE, 0, 0, &[]).result.unwrap_err();
        assert_eq!(other_shard.kind, ErrorKind::FlushFailed, "on every shard");
        assert_eq!(kind(bed, Op::Read, Flags::NONE), None, "reading goes on");
        bed.handle.publish_and_drain(device, None).wait().unwrap();
        bed.handle.remove_leaf(leaf).wait().unwrap();
        let (device, _) = bed.bare(inner);
        assert_eq!(kind_of(bed, device, Op::Flush, Flags::NONE, 0, 0), None, "opened again, it is another matter");
    });
}

#[test]
fn a_torn_write_leaves_a_prefix() {
    on_both("torn", |bed, inner| {
        let (device, leaf) = bed.bare(&format!("faulty({inner},torn:0.5,seed=5)"));
        let mut random = Random(9);
        let mut torn = 0;
        for round in 0..40 {
            let (old, new) = (random.bytes(32 << 10), random.bytes(32 << 10));
            let at = round * (32 << 10);
            bed.handle.disk(leaf).unwrap().set_faults(&rules("")).unwrap();
            bed.write(0, device, Flags::NONE, at, &old);
            bed.handle.disk(leaf).unwrap().set_faults(&rules(&format!("torn:0.5,seed={round}"))).unwrap();
            bed.write(0, device, Flags::NONE, at, &new);
            let got = bed.read(1, device, at, 32 << 10);
            let kept = got.iter().zip(&new).take_while(|(a, b)| a == b).count() / 512 * 512;
            assert_eq!(got[kept..], old[kept..], "after the tear stands what was there");
            torn += usize::from(kept < new.len());
        }
        assert!((5..36).contains(&torn), "{torn} of 40 at 0.5");
    });
}

#[test]
fn corruption_flips_one_bit_of_the_read_only() {
    on_both("rot", |bed, inner| {
        let (device, leaf) = bed.bare(&format!("faulty({inner},corrupt)"));
        let data = Random(3).bytes(64 << 10);
        bed.write(0, device, Flags::NONE, 0, &data);
        for _ in 0..20 {
            let got = bed.read(0, device, 0, 64 << 10);
            let bits: u32 = got.iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!(bits, 1);
        }
        bed.handle.disk(leaf).unwrap().set_faults(&rules("")).unwrap();
        assert!(bed.read(0, device, 0, 64 << 10) == data, "the disk itself is unharmed");
    });
}

#[test]
fn a_hung_disk_times_out_and_returns_its_buffers_later() {
    on_both("hang", |_, inner| {
        let mut bed = bed(1_000);
        let (hung, leaf) = bed.bare(&format!("faulty({inner},write-hang)"));
        let (well, _) = bed.bare("mem:1M");
        let begun = Instant::now();
        let late = bed.begin(0, hung, Op::Write, Flags::NONE, 0, 4096, &[1; 4096]);
        bed.write(0, well, Flags::NONE, 0, &[2; 4096]);
        assert!(late.try_recv().is_err(), "the other disk does not wait for the hung one");
        let reply = late.recv().unwrap();
        let took = begun.elapsed();
        assert_eq!(reply.result.unwrap_err().kind, ErrorKind::TimedOut);
        assert!(reply.buffer_busy, "the write may still land");
        assert!(took >= Duration::from_millis(990), "not before its limit: {took:?}");
        let stats = bed.handle.leaf_stats(leaf).unwrap();
        assert_eq!((stats.late, stats.errors, stats.in_flight), (1, 1, 1));
        assert_eq!(bed.read(0, hung, 0, 4096).len(), 4096, "reads are not held");
        assert!(late.recv_timeout(Duration::from_millis(100)).is_err(), "the buffer stays in quarantine");
        bed.handle.disk(leaf).unwrap().set_faults(&rules("")).unwrap();
        assert!(late.recv_timeout(Duration::from_secs(5)).unwrap().released);
        assert_eq!(bed.handle.leaf_stats(leaf).unwrap().in_flight, 0);
        bed.write(1, hung, Flags::NONE, 0, &[3; 4096]);
        bed.ring.stop();
    });
}

#[test]
fn a_hang_within_the_limit_is_only_slow() {
    let mut bed = bed(20_000);
    let (device, leaf) = bed.bare("faulty(mem:1M,read-hang)");
    bed.write(0, device, Flags::NONE, 0, &[5; 4096]);
    let slow = bed.begin(0, device, Op::Read, Flags::NONE, 0, 4096, &[]);
    assert!(slow.recv_timeout(Duration::from_millis(200)).is_err());
    bed.handle.disk(leaf).unwrap().set_faults(&rules("")).unwrap();
    let reply = slow.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(reply.result.is_ok() && reply.data == [5; 4096]);
    bed.ring.stop();
}

#[test]
fn delays_apply() {
    let mut bed = bed(30_000);
    let (device, leaf) = bed.bare("faulty(mem:1M,read-delay=80ms)");
    let begun = Instant::now();
    bed.write(0, device, Flags::NONE, 0, &[0; 512]);
    bed.read(0, device, 0, 512);
    assert!(begun.elapsed() >= Duration::from_millis(80), "{:?}", begun.elapsed());
    let stats = bed.handle.leaf_stats(leaf).unwrap();
    assert!(stats.read_latency.quantile_ns(1.0) >= 80_000_000 && stats.write_latency.quantile_ns(1.0) < 80_000_000);
    bed.ring.stop();
}

#[test]
fn the_same_seed_fails_the_same_ios() {
    let pattern = || {
        let mut bed = bed(30_000);
        let (device, _) = bed.bare("faulty(null:1M,read-error=0.3,seed=11)");
        let failed: Vec<bool> =
            (0..100).map(|_| kind_of(&bed, device, Op::Read, Flags::NONE, 0, 512).is_some()).collect();
        bed.ring.stop();
        failed
    };
    let first = pattern();
    assert_eq!(first, pattern());
    assert!(first.contains(&true) && first.contains(&false));
}

#[test]
fn only_a_faulty_disk_accepts_rules() {
    let disk = common::open("mem:1M");
    let error = disk.set_faults(&rules("error")).unwrap_err().to_string();
    assert!(error.contains("mem:1M") && error.contains("faulty(mem:1M)"), "{error}");
}
