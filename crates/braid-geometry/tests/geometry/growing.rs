//! Grows thousands of small arrays step by step, and compares each block by block: existing blocks keep their locations, new
//! blocks have the right number of copies, and no location holds two blocks.

use crate::common::{Content, Numbers, UNUSED, expand};
use braid_geometry::{BLOCK_BYTES, ContentKind, Geometry, GeometryError, Level, MemberContent, Spec, ZonePolicy};

/// Returns the locations of all copies of every block of the array.
fn locations(geometry: &Geometry) -> Vec<Vec<(u16, u64)>> {
    let blocks = 0..geometry.size_bytes() / BLOCK_BYTES;
    let of = |block: u64| {
        let mut found = Vec::new();
        geometry.copies(block * BLOCK_BYTES, &mut |range| found.push((range.member, range.member_offset)));
        found
    };
    blocks.map(of).collect()
}

/// Returns the start in the array, the member of P, the member of Q and the offset on the members of every stripe.
fn stripes(geometry: &Geometry) -> Vec<(u64, u16, Option<u16>, u64)> {
    (0..geometry.stripes())
        .filter_map(|number| geometry.stripe(number))
        .map(|stripe| (stripe.array_start, stripe.p(), stripe.q(), stripe.member_offset))
        .collect()
}

/// Checks that no location holds two blocks or is outside its member, that every block has the number of copies of its zone, on
/// different members, and that the inverse map finds exactly these locations.
fn check_whole(geometry: &Geometry) {
    let blocks: Vec<usize> = geometry.member_data_bytes().iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect();
    let mut table: Vec<Vec<Content>> = blocks.iter().map(|count| vec![UNUSED; *count]).collect();
    let mut put = |member: u16, at: u64, content: Content| {
        let block_content = &mut table[usize::from(member)][(at / BLOCK_BYTES) as usize];
        assert_eq!(*block_content, UNUSED, "a location is used twice in {geometry:?}");
        *block_content = content;
    };
    for (block, copies) in locations(geometry).iter().enumerate() {
        let zone = geometry.zones().iter().find(|zone| (block as u64 * BLOCK_BYTES) < zone.array_end());
        let width = zone.expect("every block has a zone").members.len();
        let mut members: Vec<u16> = copies.iter().map(|(member, _)| *member).collect();
        members.dedup();
        assert_eq!(members.len(), geometry.spec().copies_over(width), "copies of block {block} in {geometry:?}");
        copies.iter().for_each(|(member, at)| put(*member, *at, (ContentKind::Data, block as u64)));
    }
    for number in 0..geometry.stripes() {
        let Some(stripe) = geometry.stripe(number) else { break };
        for at in (0..stripe.chunk_bytes).step_by(BLOCK_BYTES as usize) {
            put(stripe.p(), stripe.member_offset + at, (ContentKind::P, number));
            stripe.q().into_iter().for_each(|q| put(q, stripe.member_offset + at, (ContentKind::Q, number)));
        }
    }
    for (member, blocks) in table.iter().enumerate() {
        for (block, expected) in blocks.iter().enumerate() {
            let found = match geometry.content_at(member as u16, block as u64 * BLOCK_BYTES) {
                MemberContent::Data { array_offset, .. } => (ContentKind::Data, array_offset / BLOCK_BYTES),
                MemberContent::Parity { stripe, q, .. } => (if q { ContentKind::Q } else { ContentKind::P }, stripe),
                MemberContent::Unused { .. } => UNUSED,
            };
            assert_eq!(found, *expected, "member {member} block {block} of {geometry:?}");
        }
    }
    assert_eq!(expand(geometry.runs(), &blocks), table, "runs of {geometry:?}");
    let strided = geometry.runs_strided().flat_map(|entry| entry.expand());
    assert_eq!(expand(strided, &blocks), table, "strided runs of {geometry:?}");
}

/// Checks that existing data and parity keep their locations.
fn check_unmoved(before: &Geometry, after: &Geometry) {
    let (old, new) = (locations(before), locations(after));
    assert!(new.len() > old.len(), "it has not grown: {before:?} {after:?}");
    assert_eq!(new[..old.len()], old, "a block has moved: {before:?} {after:?}");
    let (old, new) = (stripes(before), stripes(after));
    assert_eq!(new[..old.len()], old, "a stripe has moved: {before:?} {after:?}");
    for (index, zone) in before.zones().iter().enumerate() {
        let grown = &after.zones()[index];
        assert_eq!(
            (grown.array_start, grown.member_start, &grown.members),
            (zone.array_start, zone.member_start, &zone.members)
        );
        let last = index + 1 == before.zones().len();
        assert!(grown.array_bytes == zone.array_bytes || last && grown.array_bytes > zone.array_bytes);
        assert!(grown.member_bytes == zone.member_bytes || last && grown.member_bytes > zone.member_bytes);
    }
}

fn specs(chunk_bytes: u64, members: usize, numbers: &mut Numbers) -> Vec<Spec> {
    let of = |level: Level| level.layouts().iter().map(move |layout| (level, *layout));
    let all = Level::ALL.into_iter().flat_map(of).map(|(level, layout)| {
        let copies = 2 + numbers.below((members as u64).max(2) - 1) as u16;
        let zones = if numbers.below(5) == 0 { ZonePolicy::Single } else { ZonePolicy::All };
        Spec { level, layout, chunk_bytes, copies, zones }
    });
    all.filter(|spec| members >= spec.min_members()).collect()
}

#[test]
fn growth_never_moves_data() {
    let mut numbers = Numbers(40);
    let (mut grown, mut refused, mut extended) = (0, 0, 0);
    for round in 0..1500 {
        let members = 1 + numbers.below(6) as usize;
        let chunk_bytes = BLOCK_BYTES * (1 + numbers.below(if round % 10 == 0 { 33 } else { 5 }));
        let random_size = |numbers: &mut Numbers| {
            let rest = if numbers.below(2) == 0 { 0 } else { numbers.below(chunk_bytes) };
            (1 + numbers.below(6)) * chunk_bytes + rest
        };
        let common = random_size(&mut numbers);
        let sizes: Vec<u64> =
            (0..members).map(|_| if numbers.below(2) == 0 { common } else { random_size(&mut numbers) }).collect();
        for spec in specs(chunk_bytes, members, &mut numbers) {
            let mut geometry = Geometry::plan(spec, &sizes).expect("it can be planned");
            for _ in 0..4 {
                let mut grown_sizes = geometry.member_data_bytes().to_vec();
                let equally = numbers.below(3) == 0;
                let gain = random_size(&mut numbers);
                for size in &mut grown_sizes {
                    *size += if equally { gain } else { numbers.below(3) / 2 * random_size(&mut numbers) };
                }
                if numbers.below(3) == 0 {
                    grown_sizes.push(random_size(&mut numbers));
                }
                match geometry.grown(&grown_sizes) {
                    Ok(after) => {
                        check_unmoved(&geometry, &after);
                        check_whole(&after);
                        extended += u32::from(after.zones().len() == geometry.zones().len());
                        // A second attempt cannot use the remaining free space.
                        assert!(matches!(after.grown(&grown_sizes), Err(GeometryError::NoGrowth { .. })), "{after:?}");
                        let reread = Geometry::from_zones(spec, &grown_sizes, after.zones().to_vec());
                        assert_eq!(reread.expect("its zone table is valid").size_bytes(), after.size_bytes());
                        geometry = after;
                        grown += 1;
                    }
                    Err(GeometryError::NoGrowth { .. }) => refused += 1,
                    Err(error) => panic!("{spec:?} over {grown_sizes:?}: {error}"),
                }
            }
        }
    }
    assert!(
        grown > 5000 && refused > 1000 && extended > 1000,
        "{grown} times grown, {refused} refused, {extended} extended"
    );
}

/// Growing members of equal size by the same amount uses the whole capacity, as a new array over the larger members does.
#[test]
fn equal_members_that_grow_equally_are_used_to_the_last_chunk() {
    let mut numbers = Numbers(41);
    for _ in 0..300 {
        let members = 2 + numbers.below(6) as usize;
        let chunk_bytes = BLOCK_BYTES * (1 + numbers.below(6));
        let (small, large) = (1 + numbers.below(9), 1 + numbers.below(9));
        for spec in specs(chunk_bytes, members, &mut numbers) {
            let plan =
                |chunks: u64| Geometry::plan(spec, &vec![chunks * chunk_bytes; members]).expect("it is possible");
            let after = plan(small).grown(&vec![(small + large) * chunk_bytes; members]).expect("all have grown");
            // Growth does not truncate the last zone, as a new array of md's does.
            let cut = spec.truncated_bytes_max(members);
            let (grown, fresh) = (after.size_bytes(), plan(small + large).size_bytes());
            assert!(grown >= fresh && grown - fresh <= cut, "{grown} and {fresh} of {spec:?}");
        }
    }
}
