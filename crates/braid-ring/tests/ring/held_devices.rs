//! A held device starts and completes nothing, on every shard: its members do not change until it continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TestBed, block_on};
use braid_engine::{
    DeviceId, DeviceIo, DeviceLayout, LeafId, MemberRole, MetaIo, MirrorMember, MirrorNode, Node, RegionMap, ShardId,
    Uuid,
};
use braid_geometry::{Geometry, Level, Spec};
use braid_ring::RingConfig;

const MEMBER: u64 = 4 << 20;
const DEVICE: DeviceId = DeviceId(7);
const A_WHILE: Duration = Duration::from_millis(150);

fn mirror(version: u32, leaves: [LeafId; 2], regions: &Arc<RegionMap>) -> DeviceLayout {
    let member = |leaf| MirrorMember {
        leaf,
        start: 0,
        len: MEMBER,
        bitmap_start: MEMBER,
        role: MemberRole::InSync,
        write_mostly: false,
    };
    let node = MirrorNode {
        geometry: Geometry::plan(Spec::new(Level::Raid1), &[MEMBER; 2]).unwrap(),
        members: leaves.map(member).to_vec(),
        successors: Vec::new(),
        regions: Arc::clone(regions),
        parity: None,
        failed: false,
    };
    DeviceLayout::new(version, 512, &Node::Mirrored(Box::new(node)))
}

#[test]
fn a_held_device_starts_and_completes_nothing() {
    let bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    let leaves = [bed.leaf("mem:8M"), bed.leaf("mem:8M")];
    let all = [u64::MAX];
    let regions = RegionMap::new(ShardId(1), Uuid::from_u128(7), MEMBER, 64 << 10, (&all[..], &all[..]), true);
    let regions = Arc::new(regions);
    bed.handle.publish_and_drain(DEVICE, Some(Arc::new(mirror(1, leaves, &regions)))).wait().unwrap();
    // Concurrent writers and readers, several on the same blocks.
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..8u64)
        .map(|k| {
            let (devices, done, stop) = (bed.handle.devices(), Arc::clone(&done), Arc::clone(&stop));
            std::thread::spawn(move || {
                for turn in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let at = (k / 2 * 32 + turn % 32) * 4096;
                    let ended = block_on(async {
                        match turn % 8 {
                            7 => devices.flush(DEVICE).await,
                            3 => devices.read(DEVICE, at, 8192).await.map(drop),
                            _ => devices.write(DEVICE, at, vec![(turn % 251) as u8; 8192], false).await,
                        }
                    });
                    ended.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let content = |leaf| block_on(bed.handle.meta().read(leaf, 0, 1 << 20)).unwrap();
    for version in (2..32).step_by(2) {
        let begun = done.load(Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < begun + 200 {
            std::thread::yield_now();
        }
        let held = mirror(version, leaves, &regions).held();
        bed.handle.publish_and_drain(DEVICE, Some(Arc::new(held))).wait().unwrap();
        let at_once = done.load(Ordering::Relaxed);
        let (first, second) = (content(leaves[0]), content(leaves[1]));
        assert!(first == second, "a write is on one member only");
        if version % 10 == 0 {
            std::thread::sleep(A_WHILE);
        }
        assert!(content(leaves[0]) == first && content(leaves[1]) == first, "something was written");
        // Requests that ended just before were counted by their clients a little later.
        assert!(done.load(Ordering::Relaxed) <= at_once + 8, "a request completed");
        bed.handle.publish_and_drain(DEVICE, Some(Arc::new(mirror(version + 1, leaves, &regions)))).wait().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    bed.ring.stop();
}
