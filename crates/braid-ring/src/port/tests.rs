//! Tests of the port with made-up results of system calls.
#![allow(clippy::unwrap_used)]

use braid_engine::Flags;

use super::*;
use crate::disk::{Disk, OpenOptions};
use crate::driver::{DriverConfig, DriverKind, Event};
use crate::spec::DiskSpec;
use crate::tokens::LEAF_TOKEN;
use crate::wake::Wake;

const LEAF: LeafId = LeafId(0);

/// A remote disk whose carrier is the test.
struct FakeRemote;

impl crate::remote::RemoteDisk for FakeRemote {
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn logical_block_bytes(&self) -> u32 {
        512
    }
    fn set_replaceable(&self, _replaceable: bool) {}
    fn loss_reason(&self) -> Option<&str> {
        None
    }
    fn has_no_pending_effects(&self) -> bool {
        true
    }
    fn carrier(&self, _shard: u32) -> Box<dyn crate::remote::Carrier> {
        unreachable!("the port has its carrier already")
    }
}

/// Reads that another member can serve leave the queue from any position. Everything else stays in order, and every I/O
/// completes once.
#[test]
fn slow_reads_leave_the_queue_of_a_remote_disk() {
    use crate::remote::PartLimits;
    let cut = PartLimits { data_bytes: 4096, range_bytes: 4096, pieces: 4 };
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let (mut given_up, mut partly) = (0, 0);
    for _ in 0..200 {
        let mut bed = TestBed::new("far");
        let spec = DiskSpec::Remote { uri: "nbd://nowhere".into() };
        bed.port.add_leaf(
            LEAF,
            Disk::from_remote(&spec, Arc::new(FakeRemote), true).medium(),
            Arc::new(LeafCounters::new()),
        );
        bed.port.set_remote(LEAF, 0);
        let (mut submitted, mut taken, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..60 {
            bed.port.now_ns += 1;
            match below(8) {
                0..=2 if submitted.len() < 60 => {
                    let op = if below(4) == 0 { Op::Write } else { Op::Read };
                    let others = op == Op::Read && below(2) == 0;
                    let flags = if others { Flags::alternative_try(below(3) as u8) } else { Flags::NONE };
                    submitted.push((op, flags, bed.port.now_ns));
                    let cookie = Cookie(submitted.len() as u64);
                    bed.port.submit(&LeafIo::simple(LEAF, op, flags, 0, 8192, bed.at, cookie));
                }
                3..=4 => taken.extend(bed.port.take_part(0, &cut)),
                5 if !taken.is_empty() => {
                    let part = taken.swap_remove(below(taken.len() as u64) as usize);
                    bed.port.part_done(part.io, Ok(()));
                }
                6 => {
                    let (now, limit) = (bed.port.now_ns, below(10));
                    let outstanding: Vec<u32> = taken.iter().map(|part| part.io).collect();
                    if let Some(since) = bed.port.give_up_reads(0, now, limit) {
                        assert!(since <= now.saturating_sub(limit));
                        partly += u64::from(outstanding.iter().any(|io| bed.port.entries[*io].result.is_err()));
                    }
                }
                _ => {}
            }
            ended.extend(bed.port.done.drain(..).map(|done| (done.cookie.0, done.result)));
        }
        // The rest is taken in order, and ends.
        let mut last = 0;
        while let Some(part) = bed.port.take_part(0, &cut) {
            let cookie = bed.port.entries[part.io].io.cookie.0;
            assert!(cookie >= last);
            last = cookie;
            taken.push(part);
        }
        assert_eq!(bed.port.waiting_since_ns(0), None);
        taken.into_iter().for_each(|part| bed.port.part_done(part.io, Ok(())));
        ended.extend(bed.port.done.drain(..).map(|done| (done.cookie.0, done.result)));
        ended.sort_by_key(|(cookie, _)| *cookie);
        assert_eq!(
            ended.iter().map(|(cookie, _)| *cookie).collect::<Vec<_>>(),
            (1..=submitted.len() as u64).collect::<Vec<_>>()
        );
        for (cookie, result) in ended {
            if let Err(error) = result {
                let (op, flags, _) = submitted[cookie as usize - 1];
                assert_eq!((error.kind, op), (ErrorKind::Slow, Op::Read));
                assert!(flags.has(Flags::HAS_ALTERNATIVE));
                given_up += 1;
            }
        }
        assert_eq!(bed.port.leaves[0].in_flight, 0);
    }
    assert!(given_up > 300 && partly > 20, "{given_up} given up, {partly} of them partly in flight");
}

/// A port with one file as its disk. No I/O reaches the file, because [`Driver::turn`] is never called.
struct TestBed {
    port: Port,
    disk: Disk,
    path: std::path::PathBuf,
    at: Buf,
}

impl TestBed {
    fn new(name: &str) -> TestBed {
        let path = std::env::temp_dir().join(format!("braid-ring-port-{name}-{}", std::process::id()));
        let spec = DiskSpec::parse(&format!("file:{},size=1M", path.display())).unwrap();
        let disk = Disk::open(&spec, OpenOptions::default()).unwrap();
        let map = Map::new(1 << 20).unwrap();
        let wake = Arc::new(Wake::new().unwrap());
        let config = DriverConfig { depth: DEPTH, files: 1, buffers: (map.addr(), map.len()), wake };
        let (driver, _) = Driver::start(Some(DriverKind::Threads), &config).unwrap();
        let config = PortConfig { shard: ShardId(0), ios_max: 64, time_limit_ns: 1000 };
        let mut port = Port::new(driver, Arena::new(map, 0), &config).unwrap();
        port.add_leaf(LEAF, disk.medium(), Arc::new(LeafCounters::new()));
        let at = port.arena.alloc(8192).unwrap();
        TestBed { port, disk, path, at }
    }

    /// Begins an I/O. Its entry is 0 if it is the only one.
    fn begin(&mut self, op: Op, flags: Flags) {
        let len = if op == Op::Flush { 0 } else { 4096 };
        self.port.submit(&LeafIo::simple(LEAF, op, flags, 0, len, self.at, Cookie(1)));
    }

    /// Ends a system call, and returns the completion that follows, if any.
    fn end(&mut self, index: u64, result: i32) -> Option<LeafResult> {
        self.port.on_event(Event { token: LEAF_TOKEN | index, result });
        self.port.done.pop().map(|done| done.result)
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_failed_fua_write_fails_later_flushes() {
    for (op, flags, errno, doubted) in [
        (Op::Write, Flags::FUA, libc::EIO, true),
        (Op::Write, Flags::FUA, libc::ENODEV, true),
        (Op::Write, Flags::FUA, libc::ENOSPC, false),
        (Op::Write, Flags::NONE, libc::EIO, false),
        (Op::Read, Flags::NONE, libc::EIO, false),
        (Op::Flush, Flags::NONE, libc::EIO, true),
    ] {
        let mut bed = TestBed::new("fua");
        bed.begin(op, flags);
        assert!(matches!(bed.end(0, -errno), Some(Err(e)) if e.errno == errno));
        assert_eq!(bed.disk.has_failed_flush(), doubted, "{op:?} {flags:?} {errno}");
    }
}

#[test]
fn a_late_failed_fua_write_fails_later_flushes() {
    let mut bed = TestBed::new("late");
    bed.begin(Op::Write, Flags::FUA);
    bed.port.now_ns = 1000;
    bed.port.tick();
    assert_eq!(bed.port.late, [Cookie(1)]);
    assert_eq!(bed.end(0, -libc::EIO), None);
    assert_eq!(bed.port.returned, [Cookie(1)]);
    assert!(bed.disk.has_failed_flush());
}

#[test]
fn a_flush_concurrent_with_a_failed_one_fails() {
    let mut bed = TestBed::new("beside");
    bed.begin(Op::Flush, Flags::NONE);
    bed.begin(Op::Flush, Flags::NONE);
    bed.begin(Op::Write, Flags::NONE);
    assert!(matches!(bed.end(1, -libc::EIO), Some(Err(_))));
    assert_eq!(bed.end(0, 0), Some(Err(LeafError::of(ErrorKind::FlushFailed))));
    assert_eq!(bed.end(2, 4096), Some(Ok(())), "a write without FUA does not depend on the cache");
}

#[test]
fn only_jobs_in_the_kernel_hold_iovecs() {
    let mut bed = TestBed::new("iovecs");
    let one = LeafIo::simple(LEAF, Op::Write, Flags::NONE, 0, 4096, bed.at, Cookie(1));
    let two = LeafIo { len: 8192, piece_len: 4096, first_gap: 4096, ..one };
    bed.port.submit(&two);
    assert_ne!(bed.port.entries[0].iovecs, NONE);
    assert_eq!(bed.end(0, -libc::EAGAIN), None);
    assert_eq!(bed.port.entries[0].iovecs, NONE, "waiting for the retry");
    let issued = std::mem::replace(&mut bed.port.issued, DEPTH);
    bed.port.retry(0);
    assert_eq!(bed.port.entries[0].iovecs, NONE, "queued");
    bed.port.issued = issued + 1;
    // Another job ends, so this one is issued next.
    bed.begin(Op::Flush, Flags::NONE);
    assert_eq!(bed.end(1, 0), Some(Ok(())));
    assert_ne!(bed.port.entries[0].iovecs, NONE);
    assert_eq!(bed.end(0, 8192), Some(Ok(())));
}
