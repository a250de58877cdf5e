//! A range that is reported as a hole reads as zeros: by the holes of the disks, or by what was ever written.

use std::sync::Arc;

use crate::support::*;
use braid_engine::allocation::{AllocationRun, extents};
use braid_engine::*;
use braid_format::Uuid;
use braid_geometry::{Geometry, Level, Spec};

const MIB: u64 = 1 << 20;

/// The clock of a device without a lease.
fn no_lease() -> u64 {
    unreachable!("nothing is leased")
}

/// Returns whether a byte is in a hole, for disks of which every other `grain` bytes are a hole, starting with data on
/// even disks.
fn is_hole(leaf: u32, offset: u64, grain: u64) -> bool {
    (offset / grain + u64::from(leaf)) % 2 == 1
}

#[test]
fn runs_agree_with_every_single_block() {
    let disks = [2 * MIB, 3 * MIB, 3 * MIB];
    for (grain, chunk) in [(65536, 65536), (4096, 65536), (1 << 20, 4096), (12288, 8192)] {
        for node in [raid0(chunk, &disks), concat(chunk, &disks)] {
            let layout = DeviceLayout::new(1, 512, &node);
            let mut probed = 0;
            let mut probe = |leaf: LeafId, offset: u64, _| {
                probed += 1;
                AllocationRun { len: grain - offset % grain, hole: is_hole(leaf.0, offset, grain) }
            };
            let mut random = Random(grain ^ chunk);
            for _ in 0..50 {
                let len = 512 * (1 + random.below(4000));
                let offset = 512 * random.below((node.size_bytes() - len) / 512);
                let mut at = offset;
                let mut last = None;
                extents(&layout, offset, len, no_lease, &mut probe, &mut |run| {
                    assert_ne!(last, Some(run.hole), "neighbouring runs differ");
                    last = Some(run.hole);
                    for byte in (at..at + run.len).step_by(512) {
                        let mut one = None;
                        let single = &mut |leaf: LeafId, offset: u64, _| {
                            one = Some(is_hole(leaf.0, offset, grain));
                            AllocationRun { len: 1, hole: false }
                        };
                        extents(&layout, byte, 1, no_lease, single, &mut |_| true);
                        assert_eq!(one, Some(run.hole), "grain {grain} chunk {chunk} byte {byte}");
                    }
                    at += run.len;
                    true
                });
                assert_eq!(at, offset + len, "the runs cover the range");
            }
            assert!(probed > 0);
        }
    }
}

#[test]
fn an_empty_array_is_one_hole_and_each_disk_is_probed_once() {
    let disks = [50 << 30, 100 << 30, 100 << 30];
    let layout = DeviceLayout::new(1, 512, &raid0(65536, &disks));
    let (mut probed, mut runs) = (0, Vec::new());
    let probe = &mut |leaf: LeafId, offset: u64, _| {
        probed += 1;
        AllocationRun { len: disks[leaf.0 as usize] - offset, hole: true }
    };
    extents(&layout, 0, 4 << 30, no_lease, probe, &mut |run| {
        runs.push(run);
        true
    });
    assert_eq!(runs, [AllocationRun { len: 4 << 30, hole: true }]);
    assert_eq!(probed, 3);
}

#[test]
fn the_reader_may_stop() {
    let layout = DeviceLayout::new(1, 512, &leaf(0, MIB));
    let mut runs = 0;
    let mut probe = |_, offset: u64, _| AllocationRun { len: 4096, hole: (offset / 4096).is_multiple_of(2) };
    extents(&layout, 0, MIB, no_lease, &mut probe, &mut |_| {
        runs += 1;
        runs < 3
    });
    assert_eq!(runs, 3);
}

/// Disks may have smaller blocks than the device: a block is a hole if all of it is.
#[test]
fn a_block_of_which_a_part_is_stored_is_no_hole() {
    let layout = DeviceLayout::new(1, 4096, &leaf(0, MIB));
    // Data only in bytes 4608 to 5120 and 16384 to 16896.
    let data = [(4608, 5120), (16384, 16896)];
    let probe = &mut |_, offset: u64, _| {
        let next = data.iter().find(|(_, end)| *end > offset).copied().unwrap_or((MIB, MIB));
        match offset >= next.0 {
            true => AllocationRun { len: next.1 - offset, hole: false },
            false => AllocationRun { len: next.0 - offset, hole: true },
        }
    };
    let mut runs = Vec::new();
    extents(&layout, 0, MIB, no_lease, probe, &mut |run| {
        runs.push((run.len, run.hole));
        true
    });
    assert_eq!(runs, [(4096, true), (4096, false), (8192, true), (4096, false), (MIB - 20480, true)]);
}

/// One query does bounded work, whatever the layout of the disks; what it reports is true, and the next query
/// continues.
#[test]
fn a_query_that_takes_too_long_ends_early() {
    let disks = [1 << 30, 1 << 30];
    let layout = DeviceLayout::new(1, 512, &raid0(4096, &disks));
    // Locations: a new one every 4 KiB, and each disk's answer covers the whole disk.
    let known = &mut |leaf: LeafId, offset: u64, _| AllocationRun { len: disks[leaf.0 as usize] - offset, hole: true };
    let reported = &mut 0;
    extents(&layout, 0, 2 << 30, no_lease, known, &mut |run| {
        *reported += run.len;
        true
    });
    assert_eq!(*reported, 65536 * 4096);
    // Probes of the disks: a new one for every block.
    let (mut probed, mut reported) = (0u64, 0);
    let probe = &mut |_, offset: u64, _| {
        probed += 1;
        AllocationRun { len: 4096, hole: (offset / 4096).is_multiple_of(3) }
    };
    extents(&layout, 0, 2 << 30, no_lease, probe, &mut |run| {
        reported += run.len;
        true
    });
    assert_eq!((probed, reported), (1024, 1024 * 4096));
}

/// Returns a redundant array whose regions have these bits.
fn redundant(geometry: &Geometry, region_bytes: u32, written: &[u64], roles: &[MemberRole]) -> MirrorNode {
    let (size, sizes) = (geometry.size_bytes(), geometry.member_data_bytes());
    let level = geometry.spec().level;
    let member = |role: usize| MirrorMember {
        leaf: LeafId(role as u32),
        start: 0,
        len: sizes[role],
        bitmap_start: 1 << 40,
        role: roles.get(role).copied().unwrap_or(MemberRole::InSync),
        write_mostly: false,
    };
    let regions = RegionMap::new(ShardId(0), Uuid::from_u128(1), size, region_bytes, (written, &[]), true);
    MirrorNode {
        geometry: geometry.clone(),
        members: (0..sizes.len()).map(member).collect(),
        successors: Vec::new(),
        regions: Arc::new(regions),
        parity: (level.parity() > 0).then(|| ParityNode {
            array: Uuid::from_u128(1),
            run: 1,
            rings: vec![2 << 40; sizes.len()],
            ring_blocks: 64,
            ring_blocks_min: 64,
            ring_location: RingState::Members,
            generation: 1,
            lost_stripes: Arc::default(),
            marks: Arc::default(),
        }),
        failed: false,
    }
}

/// Returns for each block of 4 KiB of `[offset, offset + len)` whether it is reported as a hole. The queries continue
/// where the last one ended, as a client's do.
fn holes_of(
    layout: &DeviceLayout,
    offset: u64,
    len: u64,
    probe: &mut impl FnMut(LeafId, u64, u64) -> AllocationRun,
) -> Vec<bool> {
    let (mut at, end, mut blocks) = (offset, offset + len, Vec::new());
    while at < end {
        let before = at;
        extents(layout, at, end - at, no_lease, probe, &mut |run| {
            blocks.extend((at..at + run.len).step_by(4096).map(|_| run.hole));
            at += run.len;
            true
        });
        assert!(before < at && at <= end, "each answer covers something, and no more than was requested");
    }
    blocks
}

/// Returns the region that a write of this byte marks, computed independently: at levels with parity whole stripes are
/// zeroed, marked and resynced, and belong to the region of their first byte. Stripes are counted from the beginning of
/// their zone.
fn region_by_hand(geometry: &Geometry, at: u64, region_bytes: u64) -> usize {
    let spec = geometry.spec();
    let zone = geometry.zones().iter().find(|zone| (zone.array_start..zone.array_end()).contains(&at)).unwrap();
    let parity = usize::from(spec.level.parity());
    let stripe = (zone.members.len() - parity) as u64 * spec.chunk_bytes;
    let first = if parity == 0 { at } else { at - (at - zone.array_start) % stripe };
    (first / region_bytes) as usize
}

/// Returns geometries of up to eight members: all redundant levels, chunks smaller and larger than regions, members of
/// mixed sizes, grown arrays.
fn geometries(random: &mut Random) -> Vec<Geometry> {
    let mut all = Vec::new();
    for level in [Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6] {
        for members in 2..=8 {
            for chunk in [4096, 20480, 65536, 262_144] {
                let spec = Spec { chunk_bytes: chunk, ..Spec::new(level) };
                let mut sizes: Vec<u64> = (0..members).map(|_| (2 + random.below(4)) * chunk).collect();
                if random.below(3) == 0 {
                    sizes.fill(5 * chunk);
                }
                let Ok(geometry) = Geometry::plan(spec, &sizes) else { continue };
                sizes.iter_mut().for_each(|size| *size += random.below(3) * chunk);
                sizes.extend((0..random.below(1 + 8 - members as u64)).map(|_| (2 + random.below(6)) * chunk));
                all.extend(geometry.grown(&sizes));
                all.push(geometry);
            }
        }
    }
    all
}

/// What a write has marked as written is no hole, and what no write has marked is one: for every geometry, every region
/// size, and random writes.
#[test]
fn holes_are_what_no_write_has_marked() {
    let mut random = Random(25);
    let (mut holes, mut data, mut apart) = (0u64, 0u64, 0u64);
    for geometry in geometries(&mut random) {
        let size = geometry.size_bytes();
        let roles: Vec<MemberRole> = (0..geometry.member_data_bytes().len())
            .map(|_| {
                [MemberRole::InSync, MemberRole::InSync, MemberRole::Rebuilding, MemberRole::Failed]
                    [random.below(4) as usize]
            })
            .collect();
        for region_bytes in [4096, 16384, 65536, 131_072, 1 << 20, 4 << 20] {
            for writes in [0, 1, 2, 9] {
                let mut written = vec![0u64; size.div_ceil(region_bytes).div_ceil(64) as usize];
                for _ in 0..writes {
                    let at = random.below(size / 4096) * 4096;
                    let most = [1, 16, 256][random.below(3) as usize];
                    let len = (1 + random.below(most)) * 4096;
                    for block in (at..(at + len).min(size)).step_by(4096) {
                        let region = region_by_hand(&geometry, block, region_bytes);
                        written[region / 64] |= 1 << (region % 64);
                        apart += u64::from(region as u64 != block / region_bytes);
                    }
                }
                let node = redundant(&geometry, region_bytes as u32, &written, &roles);
                let layout = DeviceLayout::new(1, 4096, &Node::Mirrored(Box::new(node)));
                let from = random.below(size / 4096) * 4096;
                let len = (1 + random.below((size - from) / 4096)) * 4096;
                for (from, len) in [(0, size), (from, len)] {
                    let mut probe = |_, _, _| unreachable!("no member is probed");
                    let reported = holes_of(&layout, from, len, &mut probe);
                    for (is_hole, at) in reported.into_iter().zip((from..).step_by(4096)) {
                        let region = region_by_hand(&geometry, at, region_bytes);
                        let is_written = written[region / 64] & 1 << (region % 64) != 0;
                        let zones = geometry.zones();
                        assert_eq!(is_hole, !is_written, "{at} in regions of {region_bytes}: {zones:?}");
                        *if is_hole { &mut holes } else { &mut data } += 1;
                    }
                }
            }
        }
    }
    assert!(
        holes > 100_000 && data > 100_000 && apart > 10_000,
        "{holes} holes, {data} data, {apart} of another region"
    );
}

/// An array that has failed, and one under an expired lease, report no holes: the former cannot be read, and another
/// controller may have written to the latter.
#[test]
fn what_may_not_be_read_has_no_holes() {
    let geometry = Geometry::plan(Spec::new(Level::Raid5), &[1 << 20; 3]).unwrap();
    let size = geometry.size_bytes();
    let node = |failed| Node::Mirrored(Box::new(MirrorNode { failed, ..redundant(&geometry, 65536, &[], &[]) }));
    let mut probe = |_, _, _| unreachable!("no member is probed");
    for failed in [false, true] {
        let reported = holes_of(&DeviceLayout::new(1, 4096, &node(failed)), 0, size, &mut probe);
        assert!(reported.iter().all(|is_hole| *is_hole != failed), "failed: {failed}");
    }
    let leased = DeviceLayout::new(1, 4096, &node(false)).replicated(Arc::new(DeviceLease::new(100)));
    for (now, expected) in [(99, true), (100, false)] {
        let mut runs = Vec::new();
        extents(&leased, 0, size, || now, &mut probe, &mut |run| {
            runs.push(run);
            true
        });
        assert_eq!(runs, [AllocationRun { len: size, hole: expected }], "at {now}");
    }
}

/// A client may have connected when the device was larger.
#[test]
fn what_is_beyond_the_end_is_data() {
    let geometry = Geometry::plan(Spec::new(Level::Raid1), &[1 << 20; 2]).unwrap();
    let node = Node::Mirrored(Box::new(redundant(&geometry, 65536, &[], &[])));
    let layout = DeviceLayout::new(1, 4096, &node);
    let size = layout.size_bytes();
    let mut probe = |_, _, _| unreachable!("no member is probed");
    for (from, len, holes) in [(0, 2 * size, size / 4096), (size, 4096, 0), (5 * size, 8192, 0)] {
        let reported = holes_of(&layout, from, len, &mut probe);
        assert_eq!(reported.iter().filter(|is_hole| **is_hole).count() as u64, holes);
        assert_eq!(reported.len() as u64, len / 4096);
    }
}

/// Of an md array, of which it is unknown what was written, the members are probed: all those that are read, because
/// copies that md has not resynced may differ.
#[test]
fn members_of_a_foreign_array_are_probed_as_they_are_read() {
    let geometry = |level| Geometry::plan(Spec::new(level), &[1 << 20; 3]).unwrap();
    let layout = |geometry: &Geometry, roles: &[MemberRole], steady| {
        let node = redundant(geometry, 1 << 20, &[u64::MAX], roles);
        DeviceLayout::new(1, 4096, &Node::Mirrored(Box::new(node))).read_only(steady)
    };
    // A new member is all holes until it is rebuilt, and a lost one may hold anything: neither determines what the
    // array holds.
    for role in [MemberRole::Failed, MemberRole::Rebuilding] {
        let raid5 = geometry(Level::Raid5);
        let layout = layout(&raid5, &[MemberRole::InSync, role, MemberRole::InSync], false);
        let mut probe = |leaf: LeafId, _, len| {
            assert_ne!(leaf, LeafId(1), "{role:?}");
            AllocationRun { len, hole: true }
        };
        let reported = holes_of(&layout, 0, raid5.size_bytes(), &mut probe);
        for (is_hole, at) in reported.into_iter().zip((0..).step_by(4096)) {
            assert_eq!(is_hole, raid5.locate(at).member != 1, "{role:?}: {at}");
        }
    }
    // Three copies, each with data of its own.
    let raid1 = geometry(Level::Raid1);
    let data = |leaf: LeafId, at: u64| (at / 4096) % 4 == u64::from(leaf.0);
    for (roles, steady) in [
        ([MemberRole::InSync; 3], false),
        ([MemberRole::InSync; 3], true),
        ([MemberRole::InSync, MemberRole::Failed, MemberRole::InSync], true),
    ] {
        let layout = layout(&raid1, &roles, steady);
        let mut probe = |leaf: LeafId, at: u64, _| AllocationRun { len: 4096 - at % 4096, hole: !data(leaf, at) };
        let reported = holes_of(&layout, 0, raid1.size_bytes(), &mut probe);
        for (is_hole, at) in reported.into_iter().zip((0..).step_by(4096)) {
            let stored = (0..3).any(|leaf| roles[leaf as usize] == MemberRole::InSync && data(LeafId(leaf), at));
            assert_eq!(is_hole, !stored, "{at}, {roles:?}");
        }
    }
}
