//! The engine that the simulator runs, on real drivers and two shards, as a mirror. The members stay equal, the first
//! write to a region prepares it on both disks, a failed member is dropped while the array continues, and parts of jobs
//! copy data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Folder, Random, Reply, TestBed, block_on};
use braid_engine::{
    DeviceId, DeviceLayout, ErrorKind, Fault, Flags, LeafId, MemberRole, MemberSet, MirrorMember, MirrorNode, Node, Op,
    RegionCall, RegionMap, ShardId, Uuid,
};
use braid_engine::{EngineIo, SyncKind, SyncPart};
use braid_geometry::{Geometry, Level, Spec};
use braid_ring::{DriverKind, FaultRules, PARTS_MAX, RingConfig};

const SIZE: u64 = 8 << 20;
const REGION: u64 = 64 << 10;
const REGIONS: u64 = SIZE / REGION;
const IN_SYNC: [MemberRole; 2] = [MemberRole::InSync; 2];
/// Longer than anything that is expected to happen.
const LONG: Duration = Duration::from_secs(60);

fn bed(driver: DriverKind, disk_timeout_ms: u64) -> TestBed {
    let bed = TestBed::new(&RingConfig { shards: 2, driver: Some(driver), disk_timeout_ms, ..RingConfig::default() });
    assert_eq!(bed.handle.driver(ShardId(1)).kind, driver);
    bed
}

/// Runs a test on two files, two memory disks, and one of each. The write-intent bitmap is behind the data, so a disk
/// is a little larger.
fn on_both(driver: DriverKind, test: impl Fn(&mut TestBed, [LeafId; 2])) {
    // Several tests run in parallel.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = Folder::new(&format!("one-engine-{driver}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    let mut bed = bed(driver, 30_000);
    let file = |name: &str| format!("file:{},size=9M", folder.path(name));
    let mem = || "mem:9M".to_string();
    for names in [[file("a"), file("b")], [mem(), mem()], [file("c"), mem()], [mem(), file("d")]] {
        let leaves = names.map(|n| bed.leaf(&n));
        test(&mut bed, leaves);
    }
    bed.ring.stop();
}

/// Runs a test on two files, of which the second is `faulty`.
fn with_a_faulty_member(driver: DriverKind, rules: &str, test: impl Fn(&mut TestBed, [LeafId; 2])) {
    let folder = Folder::new(&format!("bad-one-{driver}-{}", rules.split(['=', '@']).next().unwrap()));
    let mut bed = bed(driver, 1_000);
    let file = |name: &str| format!("file:{},size=9M", folder.path(name));
    let leaves = [file("a"), format!("faulty({},{rules})", file("b"))].map(|n| bed.leaf(&n));
    test(&mut bed, leaves);
    bed.ring.stop();
}

/// Regions with no bit or with every bit set.
fn regions(all: bool) -> Arc<RegionMap> {
    let bits = if all { [u64::MAX; 2] } else { [0; 2] };
    Arc::new(RegionMap::new(ShardId(1), Uuid::from_u128(7), SIZE, REGION as u32, (&bits, &bits), true))
}

fn mirror(leaves: [LeafId; 2], roles: [MemberRole; 2], regions: &Arc<RegionMap>) -> Node {
    let member =
        |(leaf, role)| MirrorMember { leaf, start: 0, len: SIZE, bitmap_start: SIZE, role, write_mostly: false };
    let members = leaves.into_iter().zip(roles).map(member).collect();
    let geometry = Geometry::plan(Spec::new(Level::Raid1), &[SIZE; 2]).unwrap();
    Node::Mirrored(Box::new(MirrorNode {
        geometry,
        members,
        successors: Vec::new(),
        regions: Arc::clone(regions),
        parity: None,
        failed: false,
    }))
}

fn layout(version: u32, node: &Node) -> Option<Arc<DeviceLayout>> {
    Some(Arc::new(DeviceLayout::new(version, 512, node)))
}

fn content(bed: &mut TestBed, leaf: LeafId, start: u64, len: u64) -> Vec<u8> {
    let device = bed.publish(&Node::Leaf { leaf, start: 0, len: SIZE + 4096 });
    bed.read(0, device, start, len)
}

fn fill(bed: &mut TestBed, leaf: LeafId, byte: u8) {
    let device = bed.publish(&Node::Leaf { leaf, start: 0, len: SIZE });
    bed.write(0, device, Flags::NONE, 0, &vec![byte; SIZE as usize]);
}

fn next_fault(bed: &TestBed, device: DeviceId) -> Fault {
    block_on(bed.handle.engine().next_fault(device))
}

fn ended(reply: &std::sync::mpsc::Receiver<Reply>) -> Reply {
    reply.recv_timeout(LONG).expect("each request completes")
}

/// Makes overlapping writes from both shards at once, including the first writes to regions. Both members apply them in
/// the same order.
fn members_stay_equal(driver: DriverKind) {
    on_both(driver, |bed, leaves| {
        for leaf in leaves {
            fill(bed, leaf, 0x55);
        }
        let device = bed.publish(&mirror(leaves, IN_SYNC, &regions(false)));
        let mut random = Random(7);
        for _ in 0..20 {
            let writes: Vec<_> = (0..48u16)
                .map(|k| {
                    let len = 512 * (1 + random.below(64));
                    let offset = 512 * random.below(600);
                    bed.begin(k % 2, device, Op::Write, Flags::NONE, offset, len, &random.bytes(len))
                })
                .collect();
            for write in writes {
                ended(&write).result.expect("a write succeeds");
            }
        }
        let [a, b] = leaves.map(|leaf| content(bed, leaf, 0, REGION * 6));
        assert!(a == b, "the members have diverged");
        assert!(bed.read(1, device, 0, REGION * 6) == a);
        assert!(bed.read(0, device, REGION * 6, SIZE - REGION * 6).iter().all(|&b| b == 0), "never written: zeros");
    });
}

/// By the time the first write to a region completes, its bits are on both disks, and so are zeros around the written
/// data.
fn first_writes_prepare_regions(driver: DriverKind) {
    on_both(driver, |bed, leaves| {
        for leaf in leaves {
            fill(bed, leaf, 0xee);
        }
        let map = regions(false);
        let device = bed.publish(&mirror(leaves, IN_SYNC, &map));
        let touched = [0, 3, 77, 127];
        for region in touched {
            assert!(!map.written.has(region as u32));
            assert_eq!(bed.read(0, device, region * REGION, 8192), [0; 8192], "never written: zeros");
            let writes: Vec<_> = (0..8u16)
                .map(|k| {
                    let offset = region * REGION + u64::from(k) * 4096;
                    bed.begin(k % 2, device, Op::Write, Flags::NONE, offset, 4096, &[k as u8 + 1; 4096])
                })
                .collect();
            for write in writes {
                ended(&write).result.expect("a write succeeds");
                for leaf in leaves {
                    // The first sector: a header of 16 bytes, then 31 words of each plane.
                    let sector = content(bed, leaf, SIZE, 512);
                    for plane in [16, 16 + 31 * 8] {
                        let byte = sector[plane + region as usize / 8];
                        assert!(byte & 1 << (region % 8) != 0, "region {region} is marked on both");
                    }
                }
            }
            for leaf in leaves {
                let on_disk = content(bed, leaf, region * REGION, REGION);
                for (k, block) in on_disk.chunks(4096).enumerate() {
                    let expected = if k < 8 { k as u8 + 1 } else { 0 };
                    assert!(block.iter().all(|&b| b == expected), "block {k} of region {region}");
                }
            }
        }
        let count = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
        let sector = content(bed, leaves[0], SIZE, 512);
        assert_eq!((count(&sector[16..264]), count(&sector[264..])), (4, 4), "nothing else is marked");
        assert_eq!((map.written.count(), map.dirty.count()), (4, 4));
        let untouched = content(bed, leaves[1], REGION, REGION);
        assert!(untouched.iter().all(|&b| b == 0xee), "an unwritten region is not touched");
    });
}

/// A write that fails on a member does not complete, on any shard, before a layout without the member is published.
fn a_failed_member_is_dropped(driver: DriverKind) {
    for all in [true, false] {
        with_a_faulty_member(driver, "write-error@1M-2M", |bed, leaves| {
            let map = regions(all);
            let device = bed.publish(&mirror(leaves, IN_SYNC, &map));
            bed.write(0, device, Flags::NONE, 4096, &[1; 4096]);
            let data = Random(1).bytes(64 << 10);
            let write = bed.begin(0, device, Op::Write, Flags::NONE, 1 << 20, 64 << 10, &data);
            let fault = next_fault(bed, device);
            assert_eq!((fault.role, fault.leaf, fault.kind, fault.op), (1, leaves[1], ErrorKind::Io, Op::Write));
            assert!(fault.freezes_device() && fault.version == 1);
            let engine = bed.handle.engine();
            block_on(engine.freeze(device));
            let held = [
                bed.begin(0, device, Op::Read, Flags::NONE, 4096, 4096, &[]),
                bed.begin(1, device, Op::Write, Flags::NONE, 2 << 20, 512, &[5; 512]),
                bed.begin(1, device, Op::Flush, Flags::NONE, 0, 0, &[]),
            ];
            std::thread::sleep(Duration::from_millis(100));
            assert!(write.try_recv().is_err() && held.iter().all(|h| h.try_recv().is_err()), "nothing completes");
            let part = SyncPart {
                device,
                offset: 0,
                len: 4096,
                kind: SyncKind::Copy { from: 0, to: MemberSet::NONE.with(1) },
            };
            assert_eq!(block_on(engine.sync(part)).unwrap_err().kind, ErrorKind::Busy, "a part fails");
            block_on(
                engine.publish(device, layout(2, &mirror(leaves, [MemberRole::InSync, MemberRole::Failed], &map))),
            );
            ended(&write).result.expect("it is on the remaining member");
            for held in held {
                ended(&held).result.expect("all continue");
            }
            assert!(bed.read(1, device, 1 << 20, 64 << 10) == data);
            assert_eq!(bed.read(1, device, 2 << 20, 512), [5; 512]);
            bed.handle.remove_leaf(leaves[1]).wait().expect("nothing of it is in flight");
            bed.write(1, device, Flags::FUA, 5 << 20, &[6; 4096]);
            assert!(map.writable.has(5 << 20 >> 16));
        });
    }
}

/// A member that does not respond is dropped like one that fails. I/O that the kernel still has blocks no other
/// request.
fn a_hung_member_is_dropped(driver: DriverKind) {
    with_a_faulty_member(driver, "write-hang", |bed, leaves| {
        let map = regions(true);
        let device = bed.publish(&mirror(leaves, IN_SYNC, &map));
        let writes = [0, 1]
            .map(|shard| bed.begin(shard, device, Op::Write, Flags::NONE, u64::from(shard) << 20, 4096, &[9; 4096]));
        let fault = next_fault(bed, device);
        assert_eq!((fault.role, fault.kind, fault.op), (1, ErrorKind::TimedOut, Op::Write));
        let engine = bed.handle.engine();
        block_on(engine.freeze(device));
        let without = mirror(leaves, [MemberRole::InSync, MemberRole::Failed], &map);
        block_on(engine.publish(device, layout(2, &without)));
        for write in &writes {
            let reply = ended(write);
            assert!(
                reply.result.is_ok() && reply.buffer_busy,
                "done, but the kernel may still read the buffer: {reply:?}"
            );
        }
        // Neither the next layout nor any other request waits for it; only the removal of the disk does.
        block_on(engine.publish(device, layout(3, &without)));
        let disk = bed.handle.disk(leaves[1]).unwrap();
        let (sender, gone) = std::sync::mpsc::channel();
        let removal = bed.handle.remove_leaf(leaves[1]);
        std::thread::spawn(move || sender.send(removal.wait()));
        for k in 0..200u64 {
            bed.write((k % 2) as u16, device, Flags::NONE, k * 4096, &[k as u8; 4096]);
        }
        assert_eq!(bed.read(0, device, 7 * 4096, 4096), [7; 4096]);
        assert!(writes.iter().all(|w| w.try_recv().is_err()), "the buffers stay in quarantine");
        assert!(gone.try_recv().is_err(), "the kernel has I/Os of it");
        disk.set_faults(&FaultRules::parse(&[]).unwrap()).unwrap();
        assert!(writes.iter().all(|w| ended(w).released));
        gone.recv_timeout(LONG).expect("now it is gone").unwrap();
    });
}

/// A read from a hung member is lost to that request only.
fn a_hung_read_blocks_no_other_request(driver: DriverKind) {
    with_a_faulty_member(driver, "read-hang", |bed, leaves| {
        let map = regions(true);
        let roles = [MemberRole::InSync, MemberRole::InSync];
        // Reads go to the hung member until the fault is known.
        let mut node = mirror(leaves, roles, &map);
        if let Node::Mirrored(mirror) = &mut node {
            mirror.members[0].write_mostly = true;
        }
        let device = bed.publish(&node);
        bed.write(0, device, Flags::NONE, 0, &[8; 4096]);
        let hung = bed.begin(0, device, Op::Read, Flags::NONE, 0, 4096, &[]);
        let fault = next_fault(bed, device);
        assert_eq!((fault.role, fault.kind, fault.op), (1, ErrorKind::TimedOut, Op::Read));
        assert!(fault.is_fatal() && !fault.freezes_device());
        let reply = ended(&hung);
        assert_eq!((reply.result.unwrap_err().kind, reply.buffer_busy), (ErrorKind::TimedOut, true));
        bed.write(1, device, Flags::NONE, 0, &[9; 4096]);
        let without = mirror(leaves, [MemberRole::InSync, MemberRole::Failed], &map);
        block_on(bed.handle.engine().publish(device, layout(2, &without)));
        assert_eq!(bed.read(0, device, 0, 4096), [9; 4096]);
        assert!(hung.try_recv().is_err());
        let disk = bed.handle.disk(leaves[1]).unwrap();
        disk.set_faults(&FaultRules::parse(&[]).unwrap()).unwrap();
        assert!(ended(&hung).released);
    });
}

/// Parts of jobs rebuild a member during concurrent writes.
fn parts_copy_to_a_rebuilding_member(driver: DriverKind) {
    on_both(driver, |bed, leaves| {
        let source = Random(11).bytes(SIZE);
        let device = bed.publish(&Node::Leaf { leaf: leaves[0], start: 0, len: SIZE });
        bed.write(0, device, Flags::NONE, 0, &source);
        fill(bed, leaves[1], 0x33);
        let map = regions(true);
        let device = bed.publish(&mirror(leaves, [MemberRole::InSync, MemberRole::Rebuilding], &map));
        let part_bytes = 128 << 10;
        let parts = SIZE / part_bytes;
        assert!(parts as usize > 2 * PARTS_MAX, "some have to wait for memory");
        let engine = bed.handle.engine();
        let mut random = Random(12);
        std::thread::scope(|scope| {
            let copies: Vec<_> = (0..parts)
                .map(|k| {
                    let engine = engine.clone();
                    let to = MemberSet::NONE.with(1);
                    let part = SyncPart {
                        device,
                        offset: k * part_bytes,
                        len: part_bytes,
                        kind: SyncKind::Copy { from: 0, to },
                    };
                    scope.spawn(move || block_on(engine.sync(part)))
                })
                .collect();
            for k in 0..100u16 {
                let len = 512 * (1 + random.below(64));
                let offset = 512 * random.below((SIZE - len) / 512);
                bed.write(k % 2, device, Flags::NONE, offset, &random.bytes(len));
            }
            for copy in copies {
                copy.join().unwrap().expect("a part succeeds");
            }
        });
        let [a, b] = leaves.map(|leaf| content(bed, leaf, 0, SIZE));
        assert!(a == b && a != source, "the new member holds what the old one holds");
        block_on(engine.call(device, ShardId(1), RegionCall::Rewrite));
        let [a, b] = leaves.map(|leaf| content(bed, leaf, SIZE, 4096));
        assert!(a == b && a[16..16 + REGIONS as usize / 8].iter().all(|&b| b == 0xff), "and the bits");
        let too_long =
            SyncPart { device, offset: 0, len: 2 << 20, kind: SyncKind::Copy { from: 0, to: MemberSet::NONE.with(1) } };
        assert_eq!(block_on(engine.sync(too_long)).unwrap_err().kind, ErrorKind::Invalid);
    });
}

#[test]
fn a_stopped_ring_ends_all_waits() {
    let mut bed = bed(DriverKind::Uring, 30_000);
    let leaves = ["mem:9M", "mem:9M"].map(|n| bed.leaf(n));
    let device = bed.publish(&mirror(leaves, IN_SYNC, &regions(true)));
    let engine = bed.handle.engine();
    let sleeper = std::thread::spawn({
        let engine = engine.clone();
        move || block_on(engine.sleep(u64::MAX))
    });
    let begun = std::time::Instant::now();
    block_on(engine.sleep(20_000_000));
    assert!(begun.elapsed() >= std::time::Duration::from_millis(20));
    assert!(!sleeper.is_finished());
    bed.ring.stop();
    sleeper.join().unwrap();
    let part = SyncPart { device, offset: 0, len: 4096, kind: SyncKind::Copy { from: 0, to: MemberSet::NONE.with(1) } };
    assert_eq!(block_on(engine.sync(part)).unwrap_err().kind, ErrorKind::NoDevice);
    block_on(engine.freeze(device));
    block_on(engine.publish(device, None));
    block_on(engine.call(device, ShardId(0), RegionCall::Rewrite));
    block_on(engine.call(device, ShardId(99), RegionCall::Rewrite));
    block_on(engine.sleep(u64::MAX));
}

macro_rules! on_each_driver {
    ($($test:ident: $uring:ident $libaio:ident $threads:ident;)*) => {$(
        #[test]
        fn $uring() {
            $test(DriverKind::Uring);
        }
        #[test]
        fn $libaio() {
            $test(DriverKind::Libaio);
        }
        #[test]
        fn $threads() {
            $test(DriverKind::Threads);
        }
    )*};
}

on_each_driver! {
    members_stay_equal: equal_on_uring equal_on_libaio equal_on_threads;
    first_writes_prepare_regions: prepared_on_uring prepared_on_libaio prepared_on_threads;
    a_failed_member_is_dropped: failed_on_uring failed_on_libaio failed_on_threads;
    a_hung_member_is_dropped: hung_on_uring hung_on_libaio hung_on_threads;
    a_hung_read_blocks_no_other_request: hung_read_on_uring hung_read_on_libaio hung_read_on_threads;
    parts_copy_to_a_rebuilding_member: parts_on_uring parts_on_libaio parts_on_threads;
}
