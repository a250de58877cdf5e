//! Access to devices from outside the shards: through arrays, concurrently with other clients, and in error states.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Folder, Random, TestBed, block_on};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, ErrorKind, Flags, LeafId, Limits, LostStripes, MemberRole, MirrorMember,
    MirrorNode, Node, ParityNode, RegionMap, RingState, ShardId, Uuid,
};
use braid_geometry::{Geometry, Level, Spec};
use braid_ring::{DriverKind, FaultRules, RingConfig};

/// Layout of each member: data, the write-intent bitmap behind it, and the journal.
const MEMBER: u64 = 24 << 20;
const BITMAP: u64 = MEMBER;
const RING: u64 = MEMBER + (2 << 20);
const RING_BLOCKS: u64 = 2048;
const DISK: &str = "36M";

fn array(bed: &TestBed, level: Level, leaves: &[LeafId], roles: &[MemberRole], regions: &Arc<RegionMap>) -> Node {
    let geometry = Geometry::plan(Spec::new(level), &vec![MEMBER; leaves.len()]).unwrap();
    if level == Level::Concat {
        let member = |(leaf, len): (&LeafId, &u64)| Node::Leaf { leaf: *leaf, start: 0, len: *len };
        return Node::Striped {
            members: leaves.iter().zip(geometry.member_data_bytes()).map(member).collect(),
            geometry,
        };
    }
    assert!(leaves.iter().all(|leaf| bed.handle.disk(*leaf).unwrap().size_bytes() == 36 << 20));
    let member = |(leaf, role): (&LeafId, &MemberRole)| MirrorMember {
        leaf: *leaf,
        start: 0,
        len: MEMBER,
        bitmap_start: BITMAP,
        role: *role,
        write_mostly: false,
    };
    let parity = (level.parity() > 0).then(|| ParityNode {
        array: Uuid::from_u128(9),
        run: 1,
        rings: vec![RING; leaves.len()],
        ring_blocks: RING_BLOCKS,
        ring_blocks_min: RING_BLOCKS,
        generation: 1,
        lost_stripes: Arc::new(LostStripes::new(&[])),
        ring_location: RingState::Members,
        marks: Arc::default(),
    });
    Node::Mirrored(Box::new(MirrorNode {
        geometry,
        members: leaves.iter().zip(roles).map(member).collect(),
        successors: Vec::new(),
        regions: Arc::clone(regions),
        parity,
        failed: false,
    }))
}

/// Regions of an array that was never written.
fn regions(size_bytes: u64) -> Arc<RegionMap> {
    Arc::new(RegionMap::new(ShardId(1), Uuid::from_u128(7), size_bytes, 64 << 10, (&[], &[]), true))
}

fn two_shards(driver: DriverKind) -> TestBed {
    TestBed::new(&RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() })
}

/// Checks that written data is read back through every path, and that the device validates requests.
fn round_trip(bed: &TestBed, device: DeviceId, size_bytes: u64, block: u32) {
    let devices = bed.handle.devices();
    assert_eq!((devices.size_bytes(device), devices.block_bytes(device)), (size_bytes, block));
    let data = Random(size_bytes).bytes(3 << 20);
    let last = size_bytes - 4096;
    block_on(async {
        assert!(devices.read(device, 0, 1 << 20).await.unwrap() == vec![0; 1 << 20], "nothing was written yet");
        // Unaligned to chunks and stripes, over many stripes; and at the very end.
        devices.write(device, 12288, data.clone(), false).await.unwrap();
        devices.write(device, last, data[..4096].to_vec(), true).await.unwrap();
        devices.write(device, u64::from(block), data[..block as usize].to_vec(), true).await.unwrap();
        devices.flush(device).await.unwrap();
        for _ in 0..4 {
            assert!(devices.read(device, 12288, 3 << 20).await.unwrap() == data);
            assert!(devices.read(device, last, 4096).await.unwrap() == data[..4096]);
            let small = devices.read(device, u64::from(block), block as usize).await.unwrap();
            assert!(small == data[..block as usize]);
        }
        assert!(devices.read(device, 0, 0).await.unwrap().is_empty());
    });
    assert!(bed.read(0, device, 12288, 3 << 20) == data && bed.read(1, device, 12288, 3 << 20) == data);
    bed.write(1, device, Flags::NONE, 1 << 20, &[7; 8192]);
    assert_eq!(block_on(devices.read(device, 1 << 20, 8192)).unwrap(), [7; 8192]);
    let all = block_on(devices.read(device, 0, size_bytes as usize)).unwrap();
    assert!(all.len() as u64 == size_bytes && all[last as usize..] == data[..4096]);
    assert!(all[block as usize..][..block as usize] == data[..block as usize] && all[1 << 20..][..8192] == [7; 8192]);
    block_on(devices.discard(device, 0, size_bytes)).unwrap();
    let block = block_on(devices.read(device, 1 << 20, 4096)).unwrap();
    assert!(block == [0; 4096] || block == [7; 4096], "what is discarded reads as before or as zeros");
    let kind = |offset, len| block_on(devices.read(device, offset, len)).unwrap_err().kind;
    assert_eq!(kind(last, 8192), ErrorKind::Invalid, "over the end");
    assert_eq!(kind(0, size_bytes as usize + 4096), ErrorKind::Invalid, "over the end, and long");
    assert_eq!(kind(u64::MAX - 4095, 8192), ErrorKind::Invalid, "over the end of all numbers");
    assert_eq!(kind(100, 512), ErrorKind::Invalid, "not aligned");
    let long = block_on(devices.write(device, 0, vec![0; (32 << 20) + 4096], false));
    assert_eq!(long.unwrap_err().kind, ErrorKind::Invalid, "too long to be written at once");
    for shard in [0, 1] {
        let counters = bed.handle.device_counters(ShardId(shard), device).wait().unwrap();
        assert!(counters.reads > 3 && counters.writes + counters.flushes > 1, "every shard has its part: {counters:?}");
    }
}

fn every_device_keeps_written_data(driver: DriverKind) {
    let folder = Folder::new(&format!("devices-{driver}"));
    let mut bed = two_shards(driver);
    let mut names = 0..;
    let mut files = |bed: &TestBed, count: usize| -> Vec<LeafId> {
        let path = |n: usize| format!("file:{},size={DISK}", folder.path(&n.to_string()));
        names.by_ref().take(count).map(|n| bed.leaf(&path(n))).collect()
    };
    let leaf = files(&bed, 1)[0];
    let bare = bed.publish(&Node::Leaf { leaf, start: 1 << 20, len: 34 << 20 });
    round_trip(&bed, bare, 34 << 20, 512);
    for (level, members) in [(Level::Concat, 2), (Level::Raid1, 2), (Level::Raid5, 3)] {
        let leaves = files(&bed, members);
        let spec_size = Geometry::plan(Spec::new(level), &vec![MEMBER; members]).unwrap().size_bytes();
        let regions = regions(spec_size);
        // Arrays with parity have blocks of 4 KiB.
        let block = if level.parity() > 0 { 4096 } else { 512 };
        let device = DeviceId(100 + level as u32);
        let node = array(&bed, level, &leaves, &vec![MemberRole::InSync; members], &regions);
        let publish = |version, node| {
            let layout = Arc::new(DeviceLayout::new(version, block, node));
            bed.handle.publish_and_drain(device, Some(layout)).wait().unwrap();
        };
        publish(1, &node);
        round_trip(&bed, device, spec_size, block);
        if level == Level::Concat {
            continue;
        }
        // With a member failed, the same data is read.
        let data = Random(5).bytes(1 << 20);
        let devices = bed.handle.devices();
        block_on(devices.write(device, 4096, data.clone(), true)).unwrap();
        let mut roles = vec![MemberRole::InSync; members];
        roles[0] = MemberRole::Failed;
        publish(2, &array(&bed, level, &leaves, &roles, &regions));
        assert!(block_on(devices.read(device, 4096, 1 << 20)).unwrap() == data);
    }
    bed.ring.stop();
}

#[test]
fn written_data_is_kept_on_uring() {
    every_device_keeps_written_data(DriverKind::Uring);
}

#[test]
fn written_data_is_kept_on_libaio() {
    every_device_keeps_written_data(DriverKind::Libaio);
}

#[test]
fn written_data_is_kept_on_threads() {
    every_device_keeps_written_data(DriverKind::Threads);
}

#[test]
fn sizes_follow_the_last_layout() {
    let mut bed = TestBed::new(&RingConfig::default());
    let devices = bed.handle.devices();
    let sizes = |device| (devices.size_bytes(device), devices.block_bytes(device));
    assert_eq!(sizes(DeviceId(0)), (0, 0), "the device does not exist");
    let (device, leaf) = bed.bare("mem:8M");
    assert_eq!(sizes(device), (8 << 20, 512));
    let larger = DeviceLayout::new(2, 4096, &Node::Leaf { leaf, start: 0, len: 4 << 20 });
    bed.handle.publish_and_drain(device, Some(Arc::new(larger))).wait().unwrap();
    assert_eq!(sizes(device), (4 << 20, 4096));
    assert_eq!(block_on(devices.read(device, 512, 4096)).unwrap_err().kind, ErrorKind::Invalid, "blocks are of 4 KiB");
    bed.handle.publish_and_drain(device, None).wait().unwrap();
    assert_eq!(sizes(device), (0, 0));
    for len in [4096, 64 << 20] {
        assert_eq!(block_on(devices.read(device, 0, len)).unwrap_err().kind, ErrorKind::NoDevice);
    }
    assert_eq!(block_on(devices.flush(device)).unwrap_err().kind, ErrorKind::NoDevice);
    bed.ring.stop();
}

#[test]
fn disk_errors_are_passed_on() {
    let mut bed = TestBed::new(&RingConfig::default());
    let (device, leaf) = bed.bare("faulty(mem:4M,write-error@1M-2M,read-error@2M-3M,flush-error*1)");
    let devices = bed.handle.devices();
    let error = block_on(devices.write(device, 1 << 20, vec![1; 8192], false)).unwrap_err();
    assert_eq!((error.kind, error.leaf, error.offset), (ErrorKind::Io, Some(leaf), 1 << 20));
    let error = block_on(devices.read(device, 2 << 20, 4096)).unwrap_err();
    assert_eq!((error.kind, error.leaf), (ErrorKind::Io, Some(leaf)));
    assert!(block_on(devices.flush(device)).is_err());
    block_on(devices.write(device, 0, vec![1; 8192], false)).expect("other ranges work");
    bed.ring.stop();
}

#[test]
fn requests_without_a_slot_wait() {
    let limits = Limits { slots: 3, ..Limits::default() };
    let mut bed = TestBed::new(&RingConfig { shards: 2, limits, ..RingConfig::default() });
    let (device, _) = bed.bare("throttled(mem:8M,latency=300us)");
    let threads: Vec<_> = (0..24u64)
        .map(|t| {
            let devices = bed.handle.devices();
            std::thread::spawn(move || {
                for round in 0..20 {
                    let at = (t * 20 + round) * 4096;
                    block_on(devices.write(device, at, vec![t as u8 + 1; 4096], false)).unwrap();
                    assert_eq!(block_on(devices.read(device, at, 4096)).unwrap(), vec![t as u8 + 1; 4096]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    bed.ring.stop();
}

#[test]
fn a_hundred_hung_requests_block_no_other() {
    let mut bed = TestBed::new(&RingConfig { disk_timeout_ms: 150, ..RingConfig::default() });
    let devices = bed.handle.devices();
    let mut hung = Vec::new();
    let mut threads = Vec::new();
    // The engine refuses more than 64 late requests of a device. With two devices there are more than a shard may have
    // running.
    for _ in 0..2 {
        let (device, leaf) = bed.bare("faulty(mem:1M,write-hang)");
        hung.push((device, leaf));
        for k in 0..50u64 {
            let devices = devices.clone();
            threads.push(std::thread::spawn(move || block_on(devices.write(device, k * 4096, vec![1; 4096], false))));
        }
    }
    for thread in threads {
        assert_eq!(thread.join().unwrap().unwrap_err().kind, ErrorKind::TimedOut);
    }
    let (other, _) = bed.bare("mem:1M");
    block_on(devices.write(other, 0, vec![3; 4096], true)).unwrap();
    assert_eq!(block_on(devices.read(other, 0, 4096)).unwrap(), [3; 4096]);
    let (device, leaf) = hung[0];
    let refused = block_on(devices.write(device, 0, vec![2; 8192], false)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::TimedOut, "a late one might land over it");
    bed.handle.disk(leaf).unwrap().set_faults(&FaultRules::default()).unwrap();
    let begun = Instant::now();
    while let Err(e) = block_on(devices.write(device, 0, vec![2; 8192], false)) {
        assert!(e.kind == ErrorKind::TimedOut && begun.elapsed() < Duration::from_secs(20), "{e}");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(block_on(devices.read(device, 0, 8192)).unwrap(), [2; 8192]);
    bed.ring.stop();
}

#[test]
fn a_slow_read_is_retried_on_another_member() {
    let mut bed = TestBed::new(&RingConfig { shards: 2, disk_timeout_ms: 100, ..RingConfig::default() });
    let leaves = ["faulty(mem:36M,read-hang)", "mem:36M"].map(|name| bed.leaf(name));
    let device = bed.publish(&array(&bed, Level::Raid1, &leaves, &[MemberRole::InSync; 2], &regions(MEMBER)));
    let devices = bed.handle.devices();
    let data = Random(3).bytes(1 << 20);
    block_on(devices.write(device, 0, data.clone(), true)).unwrap();
    let begun = Instant::now();
    for k in 0..8 {
        let at = k * 8192;
        assert!(block_on(devices.read(device, at as u64, 8192)).unwrap() == data[at..at + 8192]);
    }
    assert!(begun.elapsed() >= Duration::from_millis(100), "the hung member was read as well");
    bed.ring.stop();
}

#[test]
fn a_stop_completes_all_requests() {
    for name in ["throttled(mem:8M,latency=30ms)", "faulty(mem:8M,hang)"] {
        let mut bed = TestBed::new(&RingConfig { shards: 2, disk_timeout_ms: 200, ..RingConfig::default() });
        let (device, _) = bed.bare(name);
        let devices = bed.handle.devices();
        let is_slow = name.starts_with("throttled");
        // More requests than can start at a time, so that some still wait.
        let threads: Vec<_> = (0..200u64)
            .map(|k| {
                let devices = devices.clone();
                std::thread::spawn(move || {
                    block_on(async {
                        match k % 3 {
                            0 => devices.read(device, k * 4096, 4096).await.map(drop),
                            1 => devices.write(device, k * 4096, vec![1; 4096], true).await,
                            _ => devices.flush(device).await,
                        }
                    })
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        bed.ring.stop();
        assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
        let ends: Vec<_> = threads.into_iter().map(|t| t.join().unwrap().map_err(|e| e.kind)).collect();
        let of = |end| ends.iter().filter(|e| **e == end).count();
        let began = if is_slow { of(Ok(())) } else { of(Err(ErrorKind::TimedOut)) };
        assert!(began > 0, "what had begun went on to its end: {ends:?}");
        assert_eq!(began + of(Err(ErrorKind::NoDevice)), ends.len(), "the rest was never begun: {ends:?}");
        assert_eq!(block_on(devices.read(device, 0, 4096)).unwrap_err().kind, ErrorKind::NoDevice);
        assert_eq!(devices.size_bytes(device), 0);
    }
}

#[test]
fn an_abandoned_request_still_completes() {
    let mut bed = TestBed::new(&RingConfig::default());
    let (device, _) = bed.bare("throttled(mem:8M,latency=5ms)");
    let devices = bed.handle.devices();
    for k in 0..100u64 {
        let mut abandoned = Box::pin(devices.write(device, k * 4096, vec![k as u8; 4096], false));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(abandoned.as_mut().poll(&mut context).is_pending());
    }
    // A flush ends after the writes that began before it.
    block_on(devices.flush(device)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for k in 0..100u64 {
        assert_eq!(
            block_on(devices.read(device, k * 4096, 4096)).unwrap(),
            [k as u8; 4096],
            "it was done all the same"
        );
    }
    bed.ring.stop();
}
