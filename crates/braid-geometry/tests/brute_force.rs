//! Thousands of small arrays, each compared block by block, in every direction, with the model of md's rules.

mod common;

use braid_geometry::{
    BLOCK_BYTES, Geometry, Kind, Layout, Level, Place, Spec, Stripe, StripePlace, StripeRole, ZonePolicy,
};
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

/// Every stripe has each of its zone's members once: P, Q and the data in the order of the array. Every way to it finds it.
fn check_stripes(geometry: &Geometry, table: &Table, numbers: &mut Numbers) {
    let parity = usize::from(geometry.spec().level.parity());
    if parity == 0 {
        assert_eq!(geometry.stripe(0), None);
        assert_eq!(geometry.stripe_of(0), None);
        assert_eq!(geometry.stripe_place(0), None);
        assert_eq!(geometry.stripe_at(0, 0), None);
        return;
    }
    let (mut next_data, mut rows) = (0, vec![0; geometry.zones().len()]);
    for number in 0..geometry.stripes() {
        let stripe = geometry.stripe(number).expect("it is below the count");
        let at = |member: u16| table.members[usize::from(member)][(stripe.member_offset / BLOCK_BYTES) as usize];
        assert_eq!(stripe.number, number);
        assert_eq!(stripe.array_start, next_data * BLOCK_BYTES);
        assert_eq!(stripe.chunk_bytes, geometry.spec().chunk_bytes);
        assert_eq!(stripe.parity_chunks(), parity);
        let zone = &geometry.zones()[usize::from(stripe.zone)];
        assert_eq!(stripe.members, zone.members);
        assert_eq!(stripe.member_offset, zone.member_start + stripe.row * stripe.chunk_bytes);
        // Rows count from 0 in each zone.
        assert_eq!(stripe.row, rows[usize::from(stripe.zone)]);
        rows[usize::from(stripe.zone)] += 1;
        assert_eq!(at(stripe.p()), (Kind::P, number));
        assert_eq!(stripe.q().map(at), (parity == 2).then_some((Kind::Q, number)));
        let mut members = vec![stripe.p()];
        members.extend(stripe.q());
        for index in 0..stripe.data_chunks() {
            assert_eq!(at(stripe.data(index)), (Kind::Data, next_data));
            let within = numbers.below(stripe.chunk_bytes);
            let role = StripeRole::Data(index as u16);
            let place = geometry.stripe_place(next_data * BLOCK_BYTES + within);
            assert_eq!(place, Some(StripePlace { stripe, role, within }));
            assert_eq!(geometry.stripe_of(next_data * BLOCK_BYTES + within), Some(stripe));
            members.push(stripe.data(index));
            next_data += stripe.chunk_bytes / BLOCK_BYTES;
        }
        assert_eq!(stripe.array_end(), next_data * BLOCK_BYTES);
        check_roles(geometry, stripe, &members, numbers);
        check_parts(geometry, stripe, numbers);
        members.sort_unstable();
        assert_eq!(members, stripe.members, "each member once");
    }
    assert_eq!(next_data, table.array_blocks, "the stripes hold the whole array");
    assert_eq!(geometry.stripe(geometry.stripes()), None);
    assert_eq!(geometry.stripe_of(geometry.size_bytes()), None);
    for (member, blocks) in table.members.iter().enumerate() {
        for (block, content) in blocks.iter().enumerate() {
            let place = geometry.stripe_at(member as u16, block as u64 * BLOCK_BYTES);
            assert_eq!(place.is_none(), *content == UNUSED, "member {member} block {block}");
        }
        assert_eq!(geometry.stripe_at(member as u16, geometry.members()[member]), None);
    }
    assert_eq!(geometry.stripe_at(table.members.len() as u16, 0), None);
}

/// `members`: that of P, at raid6 that of Q, those of the data. Each knows its role, and its chunk leads back to the stripe.
fn check_roles(geometry: &Geometry, stripe: Stripe<'_>, members: &[u16], numbers: &mut Numbers) {
    let parities = [StripeRole::P, StripeRole::Q].into_iter().take(stripe.parity_chunks());
    let roles: Vec<StripeRole> = parities.chain((0..stripe.data_chunks() as u16).map(StripeRole::Data)).collect();
    let expected: Vec<(StripeRole, u16)> = roles.into_iter().zip(members.iter().copied()).collect();
    assert_eq!(stripe.roles().collect::<Vec<_>>(), expected);
    for (role, member) in expected {
        assert_eq!((stripe.role(member), stripe.member(role)), (Some(role), Some(member)));
        let within = numbers.below(stripe.chunk_bytes);
        let place = geometry.stripe_at(member, stripe.member_offset + within);
        assert_eq!(place, Some(StripePlace { stripe, role, within }));
    }
    assert_eq!(stripe.member(StripeRole::Data(stripe.data_chunks() as u16)), None);
    for member in (0..=geometry.members().len() as u16).filter(|member| !members.contains(member)) {
        assert_eq!(stripe.role(member), None);
    }
}

/// The parts of any range are exactly its bytes within the stripe, in their order.
fn check_parts(geometry: &Geometry, stripe: Stripe<'_>, numbers: &mut Numbers) {
    let size = geometry.size_bytes();
    for round in 0..4 {
        let (from, len) = match round {
            0 => (stripe.array_start, stripe.array_bytes()),
            1 => (0, size),
            // Around the stripe: some reach beyond it, some do not touch it.
            _ => {
                let from = (stripe.array_start + numbers.below(2 * stripe.array_bytes())).min(size - 1);
                let from = from.saturating_sub(numbers.below(stripe.array_bytes()));
                (from, numbers.below(2 * stripe.array_bytes()))
            }
        };
        let mut at = from.max(stripe.array_start);
        for part in stripe.parts(from, len) {
            assert_eq!(at, stripe.array_start + u64::from(part.index) * stripe.chunk_bytes + part.within);
            assert!(part.len > 0 && part.within + part.len <= stripe.chunk_bytes);
            let piece = geometry.locate(at);
            assert_eq!(piece.member, stripe.data(usize::from(part.index)));
            assert_eq!(piece.member_offset, stripe.member_offset + part.within);
            at += part.len;
        }
        let end = (from + len).min(stripe.array_end());
        assert_eq!(at, end.max(from.max(stripe.array_start)), "{len} from {from} of {stripe:?}");
    }
}

fn check(spec: Spec, sizes: &[u64], numbers: &mut Numbers) {
    let blocks: Vec<usize> = sizes.iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect();
    let geometry = Geometry::plan(spec, sizes).unwrap_or_else(|error| panic!("{spec:?} over {sizes:?}: {error}"));
    let table = model(&spec, &blocks);
    assert_eq!(geometry.size_bytes(), table.array_blocks * BLOCK_BYTES, "{spec:?} over {sizes:?}");
    check_places(&geometry, &table);
    check_locate(&geometry, &table, numbers);
    check_stripes(&geometry, &table, numbers);
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
