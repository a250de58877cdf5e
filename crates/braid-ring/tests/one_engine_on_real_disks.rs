//! The seam, tried against more than raid0: the engine that the simulator runs, on real drivers and two shards, with a
//! mirror's fan-out and a first touch.

mod common;

use std::sync::Arc;

use braid_engine::{Flags, LeafId, Node, Op, ShardId, TouchMap};
use braid_ring::{DriverKind, RingConfig};
use common::{Bed, Folder, Random};

const SIZE: u64 = 8 << 20;
const REGION: u64 = 64 << 10;

fn on_both(driver: DriverKind, test: impl Fn(&mut Bed, [LeafId; 2])) {
    let folder = Folder::new(&format!("one-engine-{driver}"));
    let mut bed = Bed::new(&RingConfig { shards: 2, driver: Some(driver), ..RingConfig::default() });
    assert_eq!(bed.handle.driver(ShardId(1)).kind, driver);
    // Bits stand behind the data, so a disk is a little longer.
    let file = |name: &str| format!("file:{},size=9M", folder.path(name));
    for names in [[file("a"), file("b")], ["mem:9M".into(), "mem:9M".into()], [file("c"), "mem:9M".into()]] {
        let leaves = names.map(|n| bed.leaf(&n));
        test(&mut bed, leaves);
    }
    bed.ring.stop();
}

fn leaf(leaf: LeafId) -> Node {
    Node::Leaf { leaf, start: 0, len: SIZE }
}

fn content(bed: &mut Bed, id: LeafId) -> Vec<u8> {
    let device = bed.publish(&leaf(id));
    bed.read(0, device, 0, SIZE)
}

/// Overlapping writes from both shards at once: whatever order they took, both members took the same.
fn members_stay_equal(driver: DriverKind) {
    on_both(driver, |bed, leaves| {
        let device = bed.publish(&Node::Mirror { members: leaves.map(leaf).to_vec() });
        bed.write(0, device, Flags::NONE, 0, &vec![0; SIZE as usize]);
        let mut random = Random(7);
        for _ in 0..20 {
            let writes: Vec<_> = (0..48u16)
                .map(|k| {
                    let len = 512 * (1 + random.below(64));
                    let offset = 512 * random.below(200);
                    bed.begin(k % 2, device, Op::Write, Flags::NONE, offset, len, &random.bytes(len))
                })
                .collect();
            for write in writes {
                write.recv().expect("each write is answered").result.expect("a write succeeds");
            }
        }
        let [a, b] = leaves.map(|l| content(bed, l));
        assert!(a == b, "the members have diverged");
        assert_eq!(bed.read(1, device, 0, SIZE), a);
    });
}

/// A region's bit is on both disks by the time the first write to it is answered, whoever asked.
fn bits_come_first(driver: DriverKind) {
    on_both(driver, |bed, leaves| {
        let places = leaves.map(|l| (l, SIZE)).to_vec();
        for id in leaves {
            let device = bed.publish(&Node::Leaf { leaf: id, start: 0, len: SIZE + 4096 });
            bed.write(0, device, Flags::NONE, SIZE, &[0; 4096]);
        }
        let map = Arc::new(TouchMap::new(ShardId(1), SIZE, REGION, places));
        let child = Box::new(Node::Mirror { members: leaves.map(leaf).to_vec() });
        let device = bed.publish(&Node::Touched { child, map: Arc::clone(&map) });
        let bits: Vec<_> =
            leaves.iter().map(|id| bed.publish(&Node::Leaf { leaf: *id, start: SIZE, len: 4096 })).collect();
        for region in [0u64, 3, 77, 127] {
            assert!(!map.is_durable(region as u32));
            let writes: Vec<_> = (0..8u16)
                .map(|k| {
                    let offset = region * REGION + u64::from(k) * 4096;
                    bed.begin(k % 2, device, Op::Write, Flags::NONE, offset, 4096, &[k as u8 + 1; 4096])
                })
                .collect();
            for write in writes {
                write.recv().expect("each write is answered").result.expect("a write succeeds");
                assert!(map.is_durable(region as u32));
                for device in &bits {
                    let block = bed.read(0, *device, 0, 4096);
                    assert!(block[region as usize / 8] & 1 << (region % 8) != 0, "region {region} is marked on both");
                }
            }
            assert_eq!(bed.read(1, device, region * REGION, 4096), [1; 4096]);
        }
        let block = bed.read(0, bits[0], 0, 4096);
        assert_eq!(block.iter().map(|b| b.count_ones()).sum::<u32>(), 4, "nothing else is marked");
    });
}

#[test]
fn members_stay_equal_on_uring() {
    members_stay_equal(DriverKind::Uring);
}

#[test]
fn members_stay_equal_on_libaio() {
    members_stay_equal(DriverKind::Libaio);
}

#[test]
fn members_stay_equal_on_threads() {
    members_stay_equal(DriverKind::Threads);
}

#[test]
fn bits_come_first_on_uring() {
    bits_come_first(DriverKind::Uring);
}

#[test]
fn bits_come_first_on_libaio() {
    bits_come_first(DriverKind::Libaio);
}

#[test]
fn bits_come_first_on_threads() {
    bits_come_first(DriverKind::Threads);
}
