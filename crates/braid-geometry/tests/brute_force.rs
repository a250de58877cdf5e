//! Thousands of small arrays, each compared block by block, in every direction, with the model of md's rules.

mod common;

use braid_geometry::{BLOCK_BYTES, Geometry, Kind, Layout, Level, Place, Spec, ZonePolicy};
use common::{Content, Numbers, Table, UNUSED, expand, model};

fn content(place: Place) -> (Content, u64) {
    match place {
        Place::Data { array_offset, len, .. } => ((Kind::Data, array_offset / BLOCK_BYTES), len),
        Place::Parity { stripe, q, len } => ((if q { Kind::Q } else { Kind::P }, stripe), len),
        Place::Unused { len } => (UNUSED, len),
    }
}

/// The inverse: every block of every member holds what the model says, and its `len` is true.
fn check_places(geometry: &Geometry, table: &Table) {
    for (member, blocks) in table.members.iter().enumerate() {
        for (block, expected) in blocks.iter().enumerate() {
            let offset = block as u64 * BLOCK_BYTES;
            let (found, len) = content(geometry.place(member as u16, offset));
            assert_eq!(found, *expected, "member {member} block {block} of {geometry:?}");
            assert!(len >= BLOCK_BYTES && offset + len <= geometry.members()[member]);
            for step in 0..len / BLOCK_BYTES {
                let further = if expected.0 == Kind::Data { expected.1 + step } else { expected.1 };
                assert_eq!(blocks[block + step as usize], (expected.0, further), "{len} at {member}:{block}");
            }
        }
    }
}

/// The forward map: `locate` and `copies` find all places that hold a block of the array and no others.
fn check_locate(geometry: &Geometry, table: &Table, numbers: &mut Numbers) {
    let mut holders: Vec<Vec<(u16, u64)>> = vec![Vec::new(); table.array_blocks as usize];
    for (member, blocks) in table.members.iter().enumerate() {
        for (block, (kind, number)) in blocks.iter().enumerate() {
            if *kind == Kind::Data {
                holders[*number as usize].push((member as u16, block as u64));
            }
        }
    }
    for (number, expected) in holders.iter().enumerate() {
        let within = numbers.below(BLOCK_BYTES);
        let offset = number as u64 * BLOCK_BYTES + within;
        let mut found = Vec::new();
        geometry.copies(offset, &mut |piece| {
            if found.is_empty() {
                assert_eq!(piece, geometry.locate(offset));
            }
            found.push((piece.member, piece.member_offset / BLOCK_BYTES));
            assert_eq!(piece.member_offset % BLOCK_BYTES, within);
            let zone = &geometry.zones()[usize::from(piece.zone)];
            assert!(offset >= zone.array_start && offset + piece.len <= zone.array_end());
            assert!(piece.len >= 1 && (piece.len + within).is_multiple_of(BLOCK_BYTES));
            let last = table.members[usize::from(piece.member)]
                [((piece.member_offset + piece.len - 1) / BLOCK_BYTES) as usize];
            assert_eq!(last, (Kind::Data, (offset + piece.len - 1) / BLOCK_BYTES), "the end of {piece:?}");
            match geometry.place(piece.member, piece.member_offset) {
                Place::Data { array_offset, copy, len } => {
                    assert_eq!((array_offset, usize::from(copy), len), (offset, found.len() - 1, piece.len));
                }
                other => panic!("{other:?} where {piece:?} is"),
            }
        });
        found.sort_unstable();
        assert_eq!(found, *expected, "block {number} of {geometry:?}");
    }
}

/// Every stripe has each of its zone's members once: P, Q and the data in the order of the array.
fn check_stripes(geometry: &Geometry, table: &Table) {
    let parity = usize::from(geometry.spec().level.parity());
    if parity == 0 {
        assert_eq!(geometry.stripe(0), None);
        assert_eq!(geometry.stripe_of(0), None);
        return;
    }
    let mut next_data = 0;
    for number in 0..geometry.stripes() {
        let stripe = geometry.stripe(number).expect("it is below the count");
        let at = |member: u16| table.members[usize::from(member)][(stripe.member_offset / BLOCK_BYTES) as usize];
        assert_eq!(stripe.array_start, next_data * BLOCK_BYTES);
        assert_eq!(at(stripe.p()), (Kind::P, number));
        assert_eq!(stripe.q().map(at), (parity == 2).then_some((Kind::Q, number)));
        let mut members = vec![stripe.p()];
        members.extend(stripe.q());
        for index in 0..stripe.data_chunks() {
            assert_eq!(at(stripe.data(index)), (Kind::Data, next_data));
            assert_eq!(geometry.stripe_of(next_data * BLOCK_BYTES + 1), Some(stripe));
            members.push(stripe.data(index));
            next_data += stripe.chunk_bytes / BLOCK_BYTES;
        }
        members.sort_unstable();
        assert_eq!(members, stripe.members, "each member once");
    }
    assert_eq!(next_data, table.array_blocks, "the stripes hold the whole array");
    assert_eq!(geometry.stripe(geometry.stripes()), None);
    assert_eq!(geometry.stripe_of(geometry.size_bytes()), None);
}

fn check(spec: Spec, sizes: &[u64], numbers: &mut Numbers) {
    let blocks: Vec<usize> = sizes.iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect();
    let geometry = Geometry::plan(spec, sizes).unwrap_or_else(|error| panic!("{spec:?} over {sizes:?}: {error}"));
    let table = model(&spec, &blocks);
    assert_eq!(geometry.size_bytes(), table.array_blocks * BLOCK_BYTES, "{spec:?} over {sizes:?}");
    check_places(&geometry, &table);
    check_locate(&geometry, &table, numbers);
    check_stripes(&geometry, &table);
    assert_eq!(expand(geometry.runs(), &blocks), table.members, "runs of {spec:?} over {sizes:?}");
    let strided = geometry.runs_strided().flat_map(|row| row.expand());
    assert_eq!(expand(strided, &blocks), table.members, "strided runs of {spec:?} over {sizes:?}");
    let again = Geometry::from_zones(spec, sizes, geometry.zones().to_vec()).expect("what was planned is valid");
    assert_eq!(again.zones(), geometry.zones());
}

/// All that can be asked for over so many members.
fn specs(chunk_bytes: u64, members: usize, numbers: &mut Numbers) -> Vec<Spec> {
    let mut specs = Vec::new();
    for level in Level::ALL {
        for &layout in level.layouts() {
            let copies = 2 + numbers.below((members as u64).max(2) - 1) as u16;
            let zones = if numbers.below(4) == 0 { ZonePolicy::Single } else { ZonePolicy::All };
            let spec = Spec { level, layout, chunk_bytes, copies, zones };
            if members >= spec.members_min() {
                specs.push(spec);
            }
        }
    }
    specs
}

/// Sizes of which some are equal, some equal but for a part of a chunk, some very different.
fn sizes(members: usize, chunk_bytes: u64, chunks_max: u64, numbers: &mut Numbers) -> Vec<u64> {
    let common = 1 + numbers.below(chunks_max);
    (0..members)
        .map(|_| {
            let chunks = if numbers.below(2) == 0 { common } else { 1 + numbers.below(chunks_max) };
            let rest = if numbers.below(2) == 0 { 0 } else { numbers.below(chunk_bytes) };
            chunks * chunk_bytes + rest
        })
        .collect()
}

#[test]
fn thousands_of_random_sets_of_sizes() {
    let mut numbers = Numbers(20);
    for round in 0..3000 {
        let members = 1 + numbers.below(7) as usize;
        let chunk_bytes = BLOCK_BYTES * (1 + numbers.below(if round % 10 == 0 { 33 } else { 6 }));
        let sizes = sizes(members, chunk_bytes, 11, &mut numbers);
        for spec in specs(chunk_bytes, members, &mut numbers) {
            check(spec, &sizes, &mut numbers);
        }
    }
}

#[test]
fn many_members_and_many_zones() {
    let mut numbers = Numbers(21);
    for members in [8, 9, 10, 16, 31, 64, 128] {
        for chunk_blocks in [1, 3] {
            let chunk_bytes = BLOCK_BYTES * chunk_blocks;
            let sizes = sizes(members, chunk_bytes, 24, &mut numbers);
            for spec in specs(chunk_bytes, members, &mut numbers) {
                check(spec, &sizes, &mut numbers);
            }
        }
    }
}

/// Every size of chunk there is, on a pair of members of one and two chunks.
#[test]
fn every_chunk() {
    let mut numbers = Numbers(22);
    for chunk_blocks in 1..=16_384u64 {
        let chunk_bytes = chunk_blocks * BLOCK_BYTES;
        let sizes = [3 * chunk_bytes, chunk_bytes + BLOCK_BYTES * numbers.below(chunk_blocks), 2 * chunk_bytes];
        for spec in specs(chunk_bytes, sizes.len(), &mut numbers) {
            let geometry = Geometry::plan(spec, &sizes).expect("three members suit every level");
            // The first and last byte of every chunk; the rest of a chunk is between them.
            for chunk in 0..geometry.size_bytes() / chunk_bytes {
                for within in [0, chunk_bytes - 1] {
                    check_round_trip(&geometry, chunk * chunk_bytes + within);
                }
            }
        }
    }
}

/// A byte's copies are on different members, inside, and the inverse brings each back.
fn check_round_trip(geometry: &Geometry, offset: u64) {
    let mut members = Vec::new();
    geometry.copies(offset, &mut |piece| {
        assert!(piece.len > 0 && piece.member_offset + piece.len <= geometry.members()[usize::from(piece.member)]);
        let expected = Place::Data { array_offset: offset, copy: members.len() as u16, len: piece.len };
        assert_eq!(geometry.place(piece.member, piece.member_offset), expected, "{offset} of {:?}", geometry.spec());
        assert!(!members.contains(&piece.member), "two copies on one member");
        members.push(piece.member);
    });
}

#[test]
fn huge_members() {
    let mut numbers = Numbers(23);
    for round in 0..100 {
        let members = if round % 20 == 0 { 128 } else { 1 + numbers.below(9) as usize };
        let chunk_bytes = numbers.pick(&[4 << 10, 64 << 10, 96 << 10, 512 << 10, 64 << 20, (64 << 20) - 4096]);
        let sizes: Vec<u64> = (0..members).map(|_| (1 + numbers.below(300)) << (38 + numbers.below(7))).collect();
        for spec in specs(chunk_bytes, members, &mut numbers) {
            let geometry = Geometry::plan(spec, &sizes).expect("it is below the bound");
            for zone in geometry.zones() {
                check_round_trip(&geometry, zone.array_start);
                check_round_trip(&geometry, zone.array_end() - 1);
            }
            for _ in 0..50 {
                check_round_trip(&geometry, numbers.below(geometry.size_bytes()));
            }
            check_strided_totals(&geometry);
        }
    }
}

/// Few rows, however large the members; they cover all members, hold the array `copies` times, and agree with `place`.
fn check_strided_totals(geometry: &Geometry) {
    let mut data_blocks: u128 = 0;
    let mut covered = vec![0u64; geometry.members().len()];
    let mut rows = 0;
    for row in geometry.runs_strided() {
        rows += 1;
        covered[usize::from(row.first.member)] += row.first.length_blocks * row.count;
        data_blocks += if row.first.kind == Kind::Data { u128::from(row.first.length_blocks * row.count) } else { 0 };
        let last = row.count - 1;
        let offset = (row.first.member_start_block + last * row.member_step_blocks) * BLOCK_BYTES;
        let expected = (row.first.kind, row.first.array_start_block + last * row.array_step);
        assert_eq!(content(geometry.place(row.first.member, offset)).0, expected, "{row:?}");
    }
    let blocks: Vec<u64> = geometry.members().iter().map(|bytes| bytes / BLOCK_BYTES).collect();
    assert_eq!(covered, blocks, "{:?}", geometry.spec());
    let expected: u128 = geometry
        .zones()
        .iter()
        .map(|zone| {
            u128::from(zone.array_bytes / BLOCK_BYTES) * geometry.spec().copies_over(zone.members.len()) as u128
        })
        .sum();
    assert_eq!(data_blocks, expected);
    let cells: usize =
        geometry.zones().iter().map(|zone| zone.members.len()).map(|width| width * (2 * width + 2)).sum();
    assert!(rows <= cells + 2 * covered.len(), "{rows} rows for {:?}", geometry.spec());
}

#[test]
fn original_and_alternate_differ_only_where_a_zone_starts_off_its_turn() {
    let sizes = |a: u64| [a * 65_536, 20 * 65_536, 20 * 65_536];
    let plan =
        |layout, a| Geometry::plan(Spec { layout, ..Spec::new(Level::Raid0) }, &sizes(a)).expect("three members");
    for a in 1..20 {
        let same = plan(Layout::Original, a).runs().eq(plan(Layout::Alternate, a).runs());
        assert_eq!(same, a % 2 == 0, "the second zone, over two, begins with chunk {}", 3 * a);
    }
}
