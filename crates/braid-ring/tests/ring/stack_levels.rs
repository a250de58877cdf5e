//! Devices as disks of other devices: arrays on volumes, and further levels. Data and errors pass through the levels,
//! late buffers are returned, and even with few slots no cycle of waits forms.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, Folder, Random, TestBed, block_on};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, ErrorKind, Flags, LeafId, Limits, MemberRole, MirrorMember, MirrorNode, Node, Op,
    PoolKey, RegionMap, ShardId, Uuid,
};
use braid_geometry::{Geometry, Layout, Level, Spec, ZonePolicy};
use braid_ring::{Disk, DiskSpec, FaultRules, RingConfig, device_at_level};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

fn bed(limits: Limits, disk_timeout_ms: u64) -> TestBed {
    TestBed::new(&RingConfig { shards: 2, limits, disk_timeout_ms, ..RingConfig::default() })
}

/// Adds a device as a disk.
fn disk(bed: &TestBed, device: DeviceId) -> LeafId {
    let spec = DiskSpec::parse("volume:tank/v").unwrap();
    let size = bed.handle.devices().size_bytes(device);
    bed.handle.add_leaf(Arc::new(Disk::from_device(&spec, device, size))).unwrap()
}

fn publish(bed: &TestBed, level: usize, index: u32, root: &Node) -> DeviceId {
    bed.handle.ensure_stack_level(level).unwrap();
    let device = device_at_level(level, index);
    let layout = Arc::new(DeviceLayout::new(1, 4096, root));
    bed.handle.publish_and_drain(device, Some(layout)).wait().unwrap();
    device
}

/// The write-intent bitmap is behind the data.
fn mirror(leaves: &[LeafId], size: u64) -> Node {
    let member = |leaf: &LeafId| MirrorMember {
        leaf: *leaf,
        start: 0,
        len: size,
        bitmap_start: size,
        role: MemberRole::InSync,
        write_mostly: false,
    };
    Node::Mirrored(Box::new(MirrorNode {
        geometry: Geometry::plan(Spec::new(Level::Raid1), &vec![size; leaves.len()]).unwrap(),
        members: leaves.iter().map(member).collect(),
        successors: Vec::new(),
        regions: Arc::new(RegionMap::new(ShardId(1), Uuid::from_u128(7), size, 64 << 10, (&[], &[]), true)),
        parity: None,
        failed: false,
    }))
}

fn striped(leaves: &[LeafId], size: u64, chunk_bytes: u64) -> Node {
    let spec = Spec { level: Level::Raid0, layout: Layout::Alternate, chunk_bytes, copies: 1, zones: ZonePolicy::All };
    let members = leaves.iter().map(|leaf| Node::Leaf { leaf: *leaf, start: 0, len: size }).collect();
    Node::Striped { geometry: Geometry::plan(spec, &vec![size; leaves.len()]).unwrap(), members }
}

/// A mirror of a mirror and a file, and a raid0 of two of these: data written at the top is on every file at the
/// bottom.
#[test]
fn mirrors_on_mirrors_keep_data_with_few_slots() {
    let folder = Folder::new("levels-mirrors");
    let bed = bed(Limits { slots: 12, ..Limits::default() }, 30_000);
    let file = |name: &str| bed.leaf(&format!("file:{},size=12M", folder.path(name)));
    let bottom = [["a", "b"], ["c", "d"]].map(|pair| pair.map(file));
    let bottom = [0, 1].map(|at| publish(&bed, 0, at, &mirror(&bottom[at as usize], SIZE + MIB)));
    let middle = [0, 1].map(|at| {
        let leaves = [disk(&bed, bottom[at as usize]), file(["e", "f"][at as usize])];
        publish(&bed, 1, at, &mirror(&leaves, SIZE))
    });
    let top = publish(&bed, 2, 0, &striped(&middle.map(|device| disk(&bed, device)), SIZE, 16 << 10));
    let devices = bed.handle.devices();
    assert_eq!(devices.size_bytes(top), 2 * SIZE);

    // Long requests consist of many pieces, and far more are in flight than any engine has slots for.
    let data = Random(5).bytes(2 * SIZE);
    let part = |at: u64, len: u64| data[at as usize..(at + len) as usize].to_vec();
    let mut pending = Vec::new();
    for at in (0..2 * SIZE).step_by(64 << 10) {
        pending.push(Box::pin(devices.write(top, at, part(at, 64 << 10), at % (192 << 10) == 0)));
    }
    block_on(async {
        for (done, write) in pending.iter_mut().enumerate() {
            write.await.unwrap_or_else(|e| panic!("write {done}: {e}"));
        }
        devices.flush(top).await.unwrap();
        assert!(devices.read(top, 0, 2 * SIZE as usize).await.unwrap() == data);
    });
    drop(pending);
    let begin = |k: u64| {
        let at = (k * 192) << 10;
        (at, bed.begin((k % 2) as u16, top, Op::Read, Flags::NONE, at, 64 << 10, &[]))
    };
    let replies: Vec<_> = (0..64).map(begin).collect();
    for (at, reply) in replies {
        let reply = reply.recv().unwrap();
        match reply.result {
            Ok(()) => assert!(reply.data == part(at, 64 << 10)),
            // Refused at once if this shard has no free slot.
            Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
        }
    }
    block_on(async {
        devices.discard(top, MIB, MIB).await.unwrap();
        devices.write(top, 0, vec![9; 4096], true).await.unwrap();
        assert!(devices.read(top, MIB, MIB as usize).await.unwrap() == vec![0; MIB as usize]);
        assert!(devices.read(top, 2 * MIB, MIB as usize).await.unwrap() == part(2 * MIB, MIB));
    });
    bed.ring.stop();
    let at_bottom = |name: &str| std::fs::read(folder.path(name)).unwrap()[..SIZE as usize].to_vec();
    let first = at_bottom("a");
    assert!(first[..4096] == [9; 4096]);
    assert!(first[SIZE as usize / 2..][..4096] == data[SIZE as usize..][..4096], "every second chunk of 16 KiB");
    assert!(first == at_bottom("b") && first == at_bottom("e"));
    assert!(at_bottom("c") == at_bottom("d") && at_bottom("c") == at_bottom("f"));
}

#[test]
fn a_mirror_of_volumes_of_two_pools_keeps_data() {
    let mut bed = bed(Limits::default(), 30_000);
    let volume = |bed: &mut TestBed, key: u16| {
        let (member, _) = bed.bare("mem:64M");
        common::volume::thin(bed, PoolKey(key), member, 64 * MIB)
    };
    let volumes = [volume(&mut bed, 3), volume(&mut bed, 4)].map(|(device, _)| device);
    let top = publish(&bed, 1, 0, &mirror(&volumes.map(|device| disk(&bed, device)), SIZE));
    let data = Random(9).bytes(3 * MIB);
    bed.write(0, top, Flags::FUA, 8192, &data);
    bed.write(1, top, Flags::NONE, 4 * MIB, &data);
    block_on(bed.handle.devices().flush(top)).unwrap();
    for device in [top, volumes[0], volumes[1]] {
        assert!(bed.read(1, device, 8192, 3 * MIB) == data);
        assert!(bed.read(0, device, 4 * MIB, 3 * MIB) == data);
    }
    bed.ring.stop();
}

/// A late I/O on a disk below keeps the buffer of the request at the top.
#[test]
fn a_hung_disk_below_is_late_above_until_it_returns_the_buffer() {
    let folder = Folder::new("levels-late");
    let mut bed = bed(Limits::default(), 300);
    let (below, leaf) = bed.bare(&format!("faulty(file:{},size=8M,write-hang)", folder.path("a")));
    let hung = disk(&bed, below);
    let top = publish(&bed, 1, 0, &Node::Leaf { leaf: hung, start: 0, len: SIZE });
    let late = bed.begin(0, top, Op::Write, Flags::NONE, 0, 8192, &[1; 8192]);
    let reply = late.recv().unwrap();
    assert_eq!(reply.result.unwrap_err().kind, ErrorKind::TimedOut);
    assert!(reply.buffer_busy, "the write may still land");
    assert!(late.recv_timeout(Duration::from_millis(100)).is_err(), "the buffer stays in quarantine");
    assert_eq!(bed.handle.leaf_stats(hung).unwrap().in_flight, 1);
    bed.handle.disk(leaf).unwrap().set_faults(&FaultRules::parse(&[]).unwrap()).unwrap();
    assert!(late.recv_timeout(Duration::from_secs(5)).unwrap().released);
    bed.write(1, top, Flags::NONE, 0, &[3; 4096]);
    assert_eq!(bed.handle.leaf_stats(hung).unwrap().in_flight, 0);
    bed.ring.stop();
}

#[test]
fn errors_propagate_upward_and_a_failed_flush_sticks() {
    let mut bed = bed(Limits::default(), 30_000);
    let (below, _) = bed.bare("faulty(mem:8M,flush-error)");
    let leaf = disk(&bed, below);
    let top = publish(&bed, 1, 0, &Node::Leaf { leaf, start: 0, len: SIZE });
    let kind = |op: Op, offset: u64, len: u64| {
        let data = vec![7; if op == Op::Write { len as usize } else { 0 }];
        bed.call(0, top, op, Flags::NONE, offset, len, &data).result.err().map(|e| e.kind)
    };
    assert_eq!(kind(Op::Write, 0, 4096), None);
    assert_eq!(kind(Op::Write, 512, 4096), Some(ErrorKind::Invalid), "its blocks are of 4096 bytes");
    assert_eq!(kind(Op::Flush, 0, 0), Some(ErrorKind::Io));
    assert_eq!(kind(Op::Flush, 0, 0), Some(ErrorKind::FlushFailed), "it is unknown what is durable");
    assert!(bed.handle.disk(leaf).unwrap().has_failed_flush());
    // The device below is removed: the levels above see a missing disk.
    bed.handle.publish_and_drain(below, None).wait().unwrap();
    assert_eq!(kind(Op::Read, 0, 4096), Some(ErrorKind::NoDevice));
    bed.ring.stop();
}

#[test]
fn missing_levels_have_no_devices_and_levels_are_limited() {
    let bed = bed(Limits::default(), 30_000);
    let nowhere = device_at_level(2, 0);
    let reply = bed.call(0, nowhere, Op::Read, Flags::NONE, 0, 4096, &[]);
    assert_eq!(reply.result.unwrap_err().kind, ErrorKind::NoDevice);
    let error = block_on(bed.handle.devices().read(nowhere, 0, 4096)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoDevice);
    bed.handle.ensure_stack_level(3).unwrap();
    assert!(bed.handle.ensure_stack_level(4).is_err());
    bed.ring.stop();
}
