//! Zone tables read from a label are not trusted: invalid ones are rejected, and accepted ones are laid out correctly.

use crate::common::{self, Numbers};
use braid_geometry::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, Geometry, GeometryError, Layout, Level, MemberContent, Spec, Zone, ZoneFault,
    ZonePolicy,
};

const C: u64 = 65_536;

fn planned(level: Level) -> (Spec, Vec<u64>, Vec<Zone>) {
    let spec = Spec::new(level);
    let sizes = vec![10 * C, 20 * C, 20 * C, 30 * C];
    let zones = Geometry::plan(spec, &sizes).expect("four members suit every level").zones().to_vec();
    (spec, sizes, zones)
}

/// Changes the zones of a planned array, and returns the fault for which zone `zone` is rejected.
fn fault(level: Level, zone: usize, change: impl Fn(&mut Vec<Zone>)) -> ZoneFault {
    let (spec, sizes, mut zones) = planned(level);
    change(&mut zones);
    match Geometry::from_zones(spec, &sizes, zones) {
        Err(GeometryError::BadZone { zone: found, fault }) if found == zone => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_zone_fault_is_reported() {
    let level = Level::Raid0;
    assert_eq!(fault(level, 0, Vec::clear), ZoneFault::Count);
    assert_eq!(fault(level, 256, |z| z.resize(257, z[0].clone())), ZoneFault::Count);
    let start = 40 * C;
    assert_eq!(fault(level, 1, |z| z[1].array_start += C), ZoneFault::Start { expected: start, found: start + C });
    assert_eq!(fault(level, 0, |z| drop(z.remove(0))), ZoneFault::Start { expected: 0, found: start });
    let size = 30 * C;
    assert_eq!(fault(level, 1, |z| z[1].array_bytes += C), ZoneFault::Size { expected: size, found: size + C });
    // A raid0 array whose chunk size is a power of two is not truncated.
    assert_eq!(
        fault(level, 2, |z| z[2].array_bytes -= 4096),
        ZoneFault::Size { expected: 10 * C, found: 10 * C - 4096 }
    );
    assert_eq!(fault(level, 1, |z| z[1].member_bytes += 4096), ZoneFault::Unaligned);
    assert_eq!(fault(level, 1, |z| z[1].member_start += 512), ZoneFault::Unaligned);
    assert_eq!(fault(level, 1, |z| z[1].member_bytes = 0), ZoneFault::Unaligned);
    assert_eq!(fault(level, 1, |z| z[1].members.clear()), ZoneFault::Width { found: 0 });
    assert_eq!(fault(level, 1, |z| z[1].members = vec![0; 5]), ZoneFault::Width { found: 5 });
    assert_eq!(fault(level, 1, |z| z[1].members.swap(0, 1)), ZoneFault::MemberOrder);
    assert_eq!(fault(level, 1, |z| z[1].members[1] = 1), ZoneFault::MemberOrder);
    assert_eq!(fault(level, 1, |z| z[1].members[2] = 4), ZoneFault::UnknownMember { member: 4 });
    assert_eq!(fault(level, 1, |z| z[1].members[2] = u16::MAX), ZoneFault::UnknownMember { member: u16::MAX });
    assert_eq!(fault(level, 1, |z| z[1].members[0] = 0), ZoneFault::BeyondMember { member: 0 });
    assert_eq!(fault(level, 1, |z| z[1].member_start = u64::MAX - 4095), ZoneFault::BeyondMember { member: 1 });
    assert_eq!(fault(level, 1, |z| z[1].member_bytes = u64::MAX - 65_535), ZoneFault::BeyondMember { member: 1 });
    assert_eq!(fault(level, 1, |z| z[1].member_start -= C), ZoneFault::Overlap { member: 1, other: 0 });
    assert_eq!(fault(level, 2, |z| z[2].member_start -= 10 * C), ZoneFault::Overlap { member: 3, other: 1 });
    assert_eq!(fault(Level::Concat, 1, |z| z[1].members = vec![1, 2]), ZoneFault::Width { found: 2 });
    assert_eq!(fault(Level::Raid1, 1, |z| z[1].members = vec![2]), ZoneFault::Width { found: 1 });
    assert_eq!(fault(Level::Raid6, 1, |z| z[1].members = vec![1, 2]), ZoneFault::Width { found: 2 });
}

#[test]
fn other_faults_of_a_table_are_reported() {
    let (spec, sizes, zones) = planned(Level::Raid5);
    let error = |spec: Spec, sizes: &[u64]| Geometry::from_zones(spec, sizes, zones.clone()).expect_err("a bad table");
    let chunk = |chunk_bytes| Spec { chunk_bytes, ..spec };
    for bytes in [0, 512, 4095, 4097, CHUNK_BYTES_MAX + BLOCK_BYTES, u64::MAX, 1 << 63] {
        assert_eq!(error(chunk(bytes), &sizes), GeometryError::BadChunk { chunk_bytes: bytes });
        assert_eq!(Geometry::plan(chunk(bytes), &sizes).err(), Some(GeometryError::BadChunk { chunk_bytes: bytes }));
    }
    let layout = Layout::Near;
    assert_eq!(
        error(Spec { layout, ..spec }, &sizes),
        GeometryError::UnsupportedLayout { level: Level::Raid5, layout }
    );
    assert_eq!(error(spec, &[u64::MAX, u64::MAX]), GeometryError::TooLarge);
    assert_eq!(error(spec, &[C; 129]), GeometryError::TooManyMembers { given: 129 });
    let single = Spec { zones: ZonePolicy::Single, ..spec };
    assert_eq!(error(single, &sizes), GeometryError::BadZone { zone: 1, fault: ZoneFault::Count });
    let smaller = [10 * C, 20 * C - 1, 20 * C, 30 * C];
    let beyond = ZoneFault::BeyondMember { member: 1 };
    assert_eq!(error(spec, &smaller), GeometryError::BadZone { zone: 1, fault: beyond });
}

#[test]
fn invalid_plans_are_rejected_with_a_message() {
    let error = |spec: Spec, sizes: &[u64]| Geometry::plan(spec, sizes).expect_err("it cannot be").to_string();
    for (level, needed) in [(Level::Raid1, 2), (Level::Raid10, 2), (Level::Raid5, 2), (Level::Raid6, 3)] {
        let text = error(Spec::new(level), &[C]);
        assert_eq!(text, format!("{level} needs at least {needed} members, there is 1"));
    }
    assert_eq!(error(Spec::new(Level::Concat), &[]), "concat needs at least 1 members, there are 0");
    let copies = |copies| Spec { copies, ..Spec::new(Level::Raid10) };
    for count in [0, 1, 4, u16::MAX] {
        let text = format!("{count} copies over 3 members: from 2 to the number of members, for example 2");
        assert_eq!(error(copies(count), &[C; 3]), text);
    }
    let text = "member 1 has room for 60.00 KiB of data, and needs at least 64.00 KiB";
    assert_eq!(error(Spec::new(Level::Raid0), &[C, C - 4096, C]), text);
    assert_eq!(error(Spec::new(Level::Raid0), &[1 << 61; 3]), "the members together have more than 4.00 EiB");
    assert_eq!(error(Spec::new(Level::Raid0), &[C; 129]), "too many members: 129, at most 128");
    let text = error(Spec { layout: Layout::Near, ..Spec::new(Level::Raid0) }, &[C]);
    assert_eq!(text, "raid0 has no layout near: alternate or original");
    let text = error(Spec { chunk_bytes: 1000, ..Spec::new(Level::Raid0) }, &[C]);
    assert_eq!(
        text,
        "a chunk of 1000 bytes: it must be a multiple of 4.00 KiB from 4.00 KiB to 64.00 MiB, for example 64K"
    );
}

/// A table is valid although members have grown, zones have a gap between them on a member, and a later zone is below an earlier
/// one.
#[test]
fn valid_table_may_differ_from_the_planned_one() {
    let spec = Spec { chunk_bytes: BLOCK_BYTES, ..Spec::new(Level::Raid0) };
    let b = BLOCK_BYTES;
    let zone = |array: u64, start: u64, height: u64, members: &[u16]| Zone {
        array_start: array * b,
        array_bytes: height * members.len() as u64 * b,
        member_start: start * b,
        member_bytes: height * b,
        members: members.to_vec(),
    };
    let zones = vec![zone(0, 3, 2, &[0, 1]), zone(4, 0, 1, &[1, 2]), zone(6, 6, 1, &[0, 1, 2])];
    let geometry = Geometry::from_zones(spec, &[9 * b, 7 * b, 100 * b], zones).expect("nothing overlaps");
    assert_eq!(geometry.size_bytes(), 9 * b);
    check_both_directions(&geometry);
    let unused = |member, at| geometry.content_at(member, at * b);
    assert_eq!(unused(0, 0), MemberContent::Unused { len: 3 * b });
    assert_eq!(unused(1, 1), MemberContent::Unused { len: 2 * b });
    assert_eq!(unused(2, 1), MemberContent::Unused { len: 5 * b });
    assert_eq!(unused(2, 7), MemberContent::Unused { len: 93 * b });
}

fn check_both_directions(geometry: &Geometry) {
    let blocks: Vec<usize> = geometry.member_data_bytes().iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect();
    let table = common::expand(geometry.runs(), &blocks);
    assert_eq!(table, common::expand(geometry.runs_strided().flat_map(|entry| entry.expand()), &blocks));
    let mut data_blocks = 0;
    for block in 0..geometry.size_bytes() / BLOCK_BYTES {
        geometry.copies(block * BLOCK_BYTES, &mut |range| {
            let at = (range.member_offset / BLOCK_BYTES) as usize;
            assert_eq!(table[usize::from(range.member)][at], (braid_geometry::ContentKind::Data, block));
            data_blocks += 1;
        });
    }
    let mapped = table.iter().flatten().filter(|content| content.0 == braid_geometry::ContentKind::Data).count();
    assert_eq!(mapped, data_blocks, "no other block holds data");
}

/// Randomly damaged tables cause no panic, and accepted ones map correctly in both directions.
#[test]
fn damaged_tables() {
    let mut numbers = Numbers(30);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..60_000 {
        let level = numbers.pick(&Level::ALL);
        let chunk_bytes = BLOCK_BYTES * (1 + numbers.below(3));
        let layout = numbers.pick(level.layouts());
        let spec = Spec { layout, chunk_bytes, copies: 2 + numbers.below(2) as u16, ..Spec::new(level) };
        let sizes: Vec<u64> = (0..3 + numbers.below(3)).map(|_| (1 + numbers.below(8)) * chunk_bytes).collect();
        let mut zones = Geometry::plan(spec, &sizes).expect("enough members").zones().to_vec();
        for _ in 0..numbers.below(3) {
            damage(&mut zones, chunk_bytes, &mut numbers);
        }
        match Geometry::from_zones(spec, &sizes, zones) {
            Ok(geometry) => {
                accepted += 1;
                check_both_directions(&geometry);
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 200);
            }
        }
    }
    assert!(accepted > 10_000 && refused > 10_000, "{accepted} accepted, {refused} refused");
}

fn damage(zones: &mut Vec<Zone>, chunk_bytes: u64, numbers: &mut Numbers) {
    let count = zones.len() as u64;
    if count == 0 {
        return;
    }
    let index = numbers.below(count) as usize;
    let extreme_values = [0, 1, 4096, chunk_bytes, 2 * chunk_bytes, u64::MAX, 1 << 63, u64::MAX - 4095, 1 << 40];
    let value = numbers.pick(&extreme_values);
    let zone = &mut zones[index];
    match numbers.below(9) {
        0 => zone.array_start = value,
        1 => zone.array_bytes = value,
        2 => zone.member_start = value,
        3 => zone.member_bytes = value,
        4 => zone.array_bytes = zone.array_bytes.wrapping_sub(value),
        5 => zone.member_start = zone.member_start.wrapping_sub(value),
        6 => zone.members.push(numbers.below(7) as u16),
        7 => drop(zones.remove(index)),
        _ => {
            let other = numbers.below(count) as usize;
            zones.swap(index, other);
        }
    }
}
