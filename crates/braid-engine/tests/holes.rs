//! The holes of the members, put together, are the holes of the device.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod support;

use braid_engine::allocation::{Extent, extents};
use braid_engine::*;
use braid_format::Uuid;
use braid_geometry::{Geometry, Level, Spec};
use support::*;

const MIB: u64 = 1 << 20;

/// Disks of which every other `grain` bytes are a hole, starting with data on even disks.
fn is_hole(leaf: u32, offset: u64, grain: u64) -> bool {
    (offset / grain + u64::from(leaf)) % 2 == 1
}

#[test]
fn runs_agree_with_every_single_block() {
    let disks = [2 * MIB, 3 * MIB, 3 * MIB];
    for (grain, chunk) in [(65536, 65536), (4096, 65536), (1 << 20, 4096), (12288, 8192)] {
        for node in [raid0(chunk, &disks), concat(chunk, &disks)] {
            let layout = DeviceLayout::new(1, 512, &node);
            let mut asked = 0;
            let mut probe = |leaf: LeafId, offset: u64, _| {
                asked += 1;
                Extent { len: grain - offset % grain, hole: is_hole(leaf.0, offset, grain) }
            };
            let mut random = Random(grain ^ chunk);
            for _ in 0..50 {
                let len = 512 * (1 + random.below(4000));
                let offset = 512 * random.below((node.size_bytes() - len) / 512);
                let mut at = offset;
                let mut last = None;
                extents(&layout, offset, len, &mut probe, &mut |run| {
                    assert_ne!(last, Some(run.hole), "neighbouring runs differ");
                    last = Some(run.hole);
                    for byte in (at..at + run.len).step_by(512) {
                        let mut one = None;
                        let single = &mut |leaf: LeafId, offset: u64, _| {
                            one = Some(is_hole(leaf.0, offset, grain));
                            Extent { len: 1, hole: false }
                        };
                        extents(&layout, byte, 1, single, &mut |_| true);
                        assert_eq!(one, Some(run.hole), "grain {grain} chunk {chunk} byte {byte}");
                    }
                    at += run.len;
                    true
                });
                assert_eq!(at, offset + len, "the runs cover the range");
            }
            assert!(asked > 0);
        }
    }
}

#[test]
fn an_empty_array_is_one_hole_asked_once_a_disk() {
    let disks = [50 << 30, 100 << 30, 100 << 30];
    let layout = DeviceLayout::new(1, 512, &raid0(65536, &disks));
    let (mut asked, mut runs) = (0, Vec::new());
    let probe = &mut |leaf: LeafId, offset: u64, _| {
        asked += 1;
        Extent { len: disks[leaf.0 as usize] - offset, hole: true }
    };
    extents(&layout, 0, 4 << 30, probe, &mut |run| {
        runs.push(run);
        true
    });
    assert_eq!(runs, [Extent { len: 4 << 30, hole: true }]);
    assert_eq!(asked, 3);
}

#[test]
fn the_reader_may_stop() {
    let layout = DeviceLayout::new(1, 512, &leaf(0, MIB));
    let mut runs = 0;
    extents(&layout, 0, MIB, &mut |_, offset, _| Extent { len: 4096, hole: (offset / 4096) % 2 == 0 }, &mut |_| {
        runs += 1;
        runs < 3
    });
    assert_eq!(runs, 3);
}

/// Disks may have smaller blocks than the device that they are parts of: a block is a hole if all of it is.
#[test]
fn a_block_of_which_a_part_is_stored_is_no_hole() {
    let layout = DeviceLayout::new(1, 4096, &leaf(0, MIB));
    // Data in bytes 4608 to 5120 and 16384 to 16896 only.
    let data = [(4608, 5120), (16384, 16896)];
    let probe = &mut |_, offset: u64, _| {
        let next = data.iter().find(|(_, end)| *end > offset).copied().unwrap_or((MIB, MIB));
        match offset >= next.0 {
            true => Extent { len: next.1 - offset, hole: false },
            false => Extent { len: next.0 - offset, hole: true },
        }
    };
    let mut runs = Vec::new();
    extents(&layout, 0, MIB, probe, &mut |run| {
        runs.push((run.len, run.hole));
        true
    });
    assert_eq!(runs, [(4096, true), (4096, false), (8192, true), (4096, false), (MIB - 20480, true)]);
}

/// One question is bounded work, however the disks are laid out; what is told is true, and the next question goes on.
#[test]
fn a_question_that_takes_too_long_ends_early() {
    let disks = [1 << 30, 1 << 30];
    let layout = DeviceLayout::new(1, 512, &raid0(4096, &disks));
    // Places: a new one every 4 KiB, and the disks know everything at once.
    let known = &mut |leaf: LeafId, offset: u64, _| Extent { len: disks[leaf.0 as usize] - offset, hole: true };
    let told = &mut 0;
    extents(&layout, 0, 2 << 30, known, &mut |run| {
        *told += run.len;
        true
    });
    assert_eq!(*told, 65536 * 4096);
    // Questions to the disks: a new one for every block.
    let (mut asked, mut told) = (0u64, 0);
    let probe = &mut |_, offset: u64, _| {
        asked += 1;
        Extent { len: 4096, hole: (offset / 4096).is_multiple_of(3) }
    };
    extents(&layout, 0, 2 << 30, probe, &mut |run| {
        told += run.len;
        true
    });
    assert_eq!((asked, told), (1024, 1024 * 4096));
}

/// A newcomer is all holes until it is filled, and who was lost may be anything: neither says what the array holds.
#[test]
fn a_member_that_is_not_read_is_not_asked() {
    for role in [Role::Out, Role::Filling] {
        let sizes = [1 << 19; 3];
        let geometry = Geometry::plan(Spec::new(Level::Raid5), &sizes).unwrap();
        let size = geometry.size_bytes();
        let member = |leaf: u32| MirrorMember {
            leaf: LeafId(leaf),
            start: 0,
            len: sizes[leaf as usize],
            bitmap_start: BITMAP,
            role: if leaf == 1 { role } else { Role::InSync },
            write_mostly: false,
        };
        let node = Node::Mirrored(Box::new(MirrorNode {
            geometry: geometry.clone(),
            members: (0..3).map(member).collect(),
            successors: Vec::new(),
            regions: regions(0, u64::MAX, u64::MAX, true),
            parity: Some(ParityNode {
                array: Uuid::from_u128(1),
                run: 1,
                rings: vec![2 << 20; 3],
                ring_blocks: 64,
                least_ring_blocks: 64,
                ring_on: RingPlace::Members,
                generation: 1,
                lost: std::sync::Arc::default(),
            }),
            failed: false,
        }));
        let layout = DeviceLayout::new(1, 4096, &node);
        // All disks say that they have nothing but holes: only what is read from them may be believed.
        let mut probe = |leaf: LeafId, _, len| {
            assert_ne!(leaf, LeafId(1), "{role:?}");
            Extent { len, hole: true }
        };
        let mut at = 0;
        extents(&layout, 0, size, &mut probe, &mut |run| {
            for byte in (at..at + run.len).step_by(4096) {
                assert_eq!(run.hole, geometry.locate(byte).member != 1, "{role:?}: {byte}");
            }
            at += run.len;
            true
        });
        assert_eq!(at, size);
    }
}
