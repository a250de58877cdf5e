//! Compares thousands of small arrays block by block, in every direction, with the model of md's rules.

use crate::common::{Content, Numbers, Table, UNUSED, expand, model};
use braid_geometry::{
    BLOCK_BYTES, ContentKind, Geometry, Layout, Level, MemberContent, Spec, Stripe, StripePosition, StripeRole,
    ZonePolicy,
};

fn content(place: MemberContent) -> (Content, u64) {
    match place {
        MemberContent::Data { array_offset, len, .. } => ((ContentKind::Data, array_offset / BLOCK_BYTES), len),
        MemberContent::Parity { stripe, q, len } => ((if q { ContentKind::Q } else { ContentKind::P }, stripe), len),
        MemberContent::Unused { len } => (UNUSED, len),
    }
}

/// Checks the inverse map: every block of every member has the content that the model gives, for all of its `len` bytes.
fn check_places(geometry: &Geometry, table: &Table) {
    for (member, blocks) in table.members.iter().enumerate() {
        for (block, expected) in blocks.iter().enumerate() {
            let offset = block as u64 * BLOCK_BYTES;
            let (found, len) = content(geometry.content_at(member as u16, offset));
            assert_eq!(found, *expected, "member {member} block {block} of {geometry:?}");
            assert!(len >= BLOCK_BYTES && offset + len <= geometry.member_data_bytes()[member]);
            for step in 0..len / BLOCK_BYTES {
                let further = if expected.0 == ContentKind::Data { expected.1 + step } else { expected.1 };
                assert_eq!(blocks[block + step as usize], (expected.0, further), "{len} at {member}:{block}");
            }
        }
    }
}

/// Checks the forward map: `locate` and `copies` find all locations of a block of the array and no others.
fn check_locate(geometry: &Geometry, table: &Table, numbers: &mut Numbers) {
    let mut holders: Vec<Vec<(u16, u64)>> = vec![Vec::new(); table.array_blocks as usize];
    for (member, blocks) in table.members.iter().enumerate() {
        for (block, (kind, number)) in blocks.iter().enumerate() {
            if *kind == ContentKind::Data {
                holders[*number as usize].push((member as u16, block as u64));
            }
        }
    }
    for (number, expected) in holders.iter().enumerate() {
        let within = numbers.below(BLOCK_BYTES);
        let offset = number as u64 * BLOCK_BYTES + within;
        let mut found = Vec::new();
        geometry.copies(offset, &mut |range| {
            if found.is_empty() {
                assert_eq!(range, geometry.locate(offset));
            }
            found.push((range.member, range.member_offset / BLOCK_BYTES));
            assert_eq!(range.member_offset % BLOCK_BYTES, within);
            let zone = &geometry.zones()[usize::from(range.zone)];
            assert!(offset >= zone.array_start && offset + range.len <= zone.array_end());
            assert!(range.len >= 1 && (range.len + within).is_multiple_of(BLOCK_BYTES));
            let last = table.members[usize::from(range.member)]
                [((range.member_offset + range.len - 1) / BLOCK_BYTES) as usize];
            assert_eq!(last, (ContentKind::Data, (offset + range.len - 1) / BLOCK_BYTES), "the end of {range:?}");
            match geometry.content_at(range.member, range.member_offset) {
                MemberContent::Data { array_offset, copy, len } => {
                    assert_eq!((array_offset, usize::from(copy), len), (offset, found.len() - 1, range.len));
                }
                other => panic!("{other:?} where {range:?} is"),
            }
        });
        found.sort_unstable();
        assert_eq!(found, *expected, "block {number} of {geometry:?}");
    }
}

/// Checks that every stripe has each member of its zone once (P, Q and the data in the order of the array), and that every
/// lookup finds the stripe.
fn check_stripes(geometry: &Geometry, table: &Table, numbers: &mut Numbers) {
    let parity = usize::from(geometry.spec().level.parity());
    if parity == 0 {
        assert_eq!(geometry.stripe(0), None);
        assert_eq!(geometry.stripe_of(0), None);
        assert_eq!(geometry.stripe_position(0), None);
        assert_eq!(geometry.stripe_at(0, 0), None);
        return;
    }
    let (mut next_data, mut zone_stripes) = (0, vec![0; geometry.zones().len()]);
    for number in 0..geometry.stripes() {
        let stripe = geometry.stripe(number).expect("it is below the count");
        let at = |member: u16| table.members[usize::from(member)][(stripe.member_offset / BLOCK_BYTES) as usize];
        assert_eq!(stripe.number, number);
        assert_eq!(stripe.array_start, next_data * BLOCK_BYTES);
        assert_eq!(stripe.chunk_bytes, geometry.spec().chunk_bytes);
        assert_eq!(stripe.parity_chunks(), parity);
        let zone = &geometry.zones()[usize::from(stripe.zone)];
        assert_eq!(stripe.members, zone.members);
        assert_eq!(stripe.member_offset, zone.member_start + stripe.index_in_zone * stripe.chunk_bytes);
        // `row` counts from 0 in each zone.
        assert_eq!(stripe.index_in_zone, zone_stripes[usize::from(stripe.zone)]);
        zone_stripes[usize::from(stripe.zone)] += 1;
        assert_eq!(at(stripe.p()), (ContentKind::P, number));
        assert_eq!(stripe.q().map(at), (parity == 2).then_some((ContentKind::Q, number)));
        let mut members = vec![stripe.p()];
        members.extend(stripe.q());
        for index in 0..stripe.data_chunks() {
            assert_eq!(at(stripe.data(index)), (ContentKind::Data, next_data));
            let within = numbers.below(stripe.chunk_bytes);
            let role = StripeRole::Data(index as u16);
            let place = geometry.stripe_position(next_data * BLOCK_BYTES + within);
            assert_eq!(place, Some(StripePosition { stripe, role, chunk_offset: within }));
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
    assert_eq!(next_data, table.array_blocks, "the stripes cover the whole array");
    assert_eq!(geometry.stripe(geometry.stripes()), None);
    assert_eq!(geometry.stripe_of(geometry.size_bytes()), None);
    for (member, blocks) in table.members.iter().enumerate() {
        for (block, content) in blocks.iter().enumerate() {
            let place = geometry.stripe_at(member as u16, block as u64 * BLOCK_BYTES);
            assert_eq!(place.is_none(), *content == UNUSED, "member {member} block {block}");
        }
        assert_eq!(geometry.stripe_at(member as u16, geometry.member_data_bytes()[member]), None);
    }
    assert_eq!(geometry.stripe_at(table.members.len() as u16, 0), None);
}

/// Checks that each member has its role, and that its chunk maps back to the stripe. `members` are those of P, with raid6 of Q, and
/// of the data.
fn check_roles(geometry: &Geometry, stripe: Stripe<'_>, members: &[u16], numbers: &mut Numbers) {
    let parities = [StripeRole::P, StripeRole::Q].into_iter().take(stripe.parity_chunks());
    let roles: Vec<StripeRole> = parities.chain((0..stripe.data_chunks() as u16).map(StripeRole::Data)).collect();
    let expected: Vec<(StripeRole, u16)> = roles.into_iter().zip(members.iter().copied()).collect();
    assert_eq!(stripe.roles().collect::<Vec<_>>(), expected);
    for (role, member) in expected {
        assert_eq!((stripe.role(member), stripe.member(role)), (Some(role), Some(member)));
        let within = numbers.below(stripe.chunk_bytes);
        let place = geometry.stripe_at(member, stripe.member_offset + within);
        assert_eq!(place, Some(StripePosition { stripe, role, chunk_offset: within }));
    }
    assert_eq!(stripe.member(StripeRole::Data(stripe.data_chunks() as u16)), None);
    for member in (0..=geometry.member_data_bytes().len() as u16).filter(|member| !members.contains(member)) {
        assert_eq!(stripe.role(member), None);
    }
}

/// Checks that the parts of any range are exactly its bytes within the stripe, in their order.
fn check_parts(geometry: &Geometry, stripe: Stripe<'_>, numbers: &mut Numbers) {
    let size = geometry.size_bytes();
    for round in 0..4 {
        let (from, len) = match round {
            0 => (stripe.array_start, stripe.array_bytes()),
            1 => (0, size),
            // Ranges near the stripe: some extend beyond it, some do not overlap it.
            _ => {
                let from = (stripe.array_start + numbers.below(2 * stripe.array_bytes())).min(size - 1);
                let from = from.saturating_sub(numbers.below(stripe.array_bytes()));
                (from, numbers.below(2 * stripe.array_bytes()))
            }
        };
        let mut at = from.max(stripe.array_start);
        for part in stripe.parts(from, len) {
            assert_eq!(at, stripe.array_start + u64::from(part.index) * stripe.chunk_bytes + part.chunk_offset);
            assert!(part.len > 0 && part.chunk_offset + part.len <= stripe.chunk_bytes);
            let range = geometry.locate(at);
            assert_eq!(range.member, stripe.data(usize::from(part.index)));
            assert_eq!(range.member_offset, stripe.member_offset + part.chunk_offset);
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
    let strided = geometry.runs_strided().flat_map(|entry| entry.expand());
    assert_eq!(expand(strided, &blocks), table.members, "strided runs of {spec:?} over {sizes:?}");
    let reread = Geometry::from_zones(spec, sizes, geometry.zones().to_vec()).expect("what was planned is valid");
    assert_eq!(reread.zones(), geometry.zones());
}

/// Returns a specification of each level and layout that `members` members suffice for.
fn specs(chunk_bytes: u64, members: usize, numbers: &mut Numbers) -> Vec<Spec> {
    let mut specs = Vec::new();
    for level in Level::ALL {
        for &layout in level.layouts() {
            let copies = 2 + numbers.below((members as u64).max(2) - 1) as u16;
            let zones = if numbers.below(4) == 0 { ZonePolicy::Single } else { ZonePolicy::All };
            let spec = Spec { level, layout, chunk_bytes, copies, zones };
            if members >= spec.min_members() {
                specs.push(spec);
            }
        }
    }
    specs
}

/// Returns sizes of which some are equal, some equal except for a part of a chunk, and some different.
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
fn random_member_sizes() {
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

/// Checks every valid chunk size, over members of 3 chunks, 1 chunk and a part, and 2 chunks.
#[test]
fn every_chunk_size() {
    let mut numbers = Numbers(22);
    for chunk_blocks in 1..=16_384u64 {
        let chunk_bytes = chunk_blocks * BLOCK_BYTES;
        let sizes = [3 * chunk_bytes, chunk_bytes + BLOCK_BYTES * numbers.below(chunk_blocks), 2 * chunk_bytes];
        for spec in specs(chunk_bytes, sizes.len(), &mut numbers) {
            let geometry = Geometry::plan(spec, &sizes).expect("three members suit every level");
            // The first and the last byte of every chunk: the other bytes are between them.
            for chunk in 0..geometry.size_bytes() / chunk_bytes {
                for within in [0, chunk_bytes - 1] {
                    check_round_trip(&geometry, chunk * chunk_bytes + within);
                }
            }
        }
    }
}

/// Checks that the copies of a byte are within different members, and that the inverse maps each back to the byte.
fn check_round_trip(geometry: &Geometry, offset: u64) {
    let mut members = Vec::new();
    geometry.copies(offset, &mut |range| {
        assert!(
            range.len > 0 && range.member_offset + range.len <= geometry.member_data_bytes()[usize::from(range.member)]
        );
        let expected = MemberContent::Data { array_offset: offset, copy: members.len() as u16, len: range.len };
        assert_eq!(
            geometry.content_at(range.member, range.member_offset),
            expected,
            "{offset} of {:?}",
            geometry.spec()
        );
        assert!(!members.contains(&range.member), "two copies on one member");
        members.push(range.member);
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

/// Checks that the number of strided runs does not depend on the size of the members, and that the runs cover all members, hold
/// the array once per copy, and agree with `place`.
fn check_strided_totals(geometry: &Geometry) {
    let mut data_blocks: u128 = 0;
    let mut covered = vec![0u64; geometry.member_data_bytes().len()];
    let mut entries = 0;
    for entry in geometry.runs_strided() {
        entries += 1;
        covered[usize::from(entry.first.member)] += entry.first.length_blocks * entry.count;
        data_blocks +=
            if entry.first.kind == ContentKind::Data { u128::from(entry.first.length_blocks * entry.count) } else { 0 };
        let last = entry.count - 1;
        let offset = (entry.first.member_start_block + last * entry.member_step_blocks) * BLOCK_BYTES;
        let expected = (entry.first.kind, entry.first.array_start_block + last * entry.array_step);
        assert_eq!(content(geometry.content_at(entry.first.member, offset)).0, expected, "{entry:?}");
    }
    let blocks: Vec<u64> = geometry.member_data_bytes().iter().map(|bytes| bytes / BLOCK_BYTES).collect();
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
    assert!(entries <= cells + 2 * covered.len(), "{entries} entries for {:?}", geometry.spec());
}

#[test]
fn original_and_alternate_differ_only_if_a_zone_does_not_start_at_a_multiple_of_its_width() {
    let sizes = |a: u64| [a * 65_536, 20 * 65_536, 20 * 65_536];
    let plan =
        |layout, a| Geometry::plan(Spec { layout, ..Spec::new(Level::Raid0) }, &sizes(a)).expect("three members");
    for a in 1..20 {
        let equal = plan(Layout::Original, a).runs().eq(plan(Layout::Alternate, a).runs());
        assert_eq!(equal, a % 2 == 0, "the second zone, over two, begins with chunk {}", 3 * a);
    }
}
