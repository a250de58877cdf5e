//! Thousands of small arrays that grow, step by step, each compared block by block: what the array has stays where it is, and
//! what is new has exactly its number of places, none of which serves two.

mod common;

use braid_geometry::{BLOCK_BYTES, Geometry, GeometryError, Kind, Level, Place, Spec, ZonePolicy};
use common::{Content, Numbers, UNUSED, expand};

/// Where every block of the array lives, all copies.
fn places(geometry: &Geometry) -> Vec<Vec<(u16, u64)>> {
    let blocks = 0..geometry.size_bytes() / BLOCK_BYTES;
    let of = |block: u64| {
        let mut found = Vec::new();
        geometry.copies(block * BLOCK_BYTES, &mut |piece| found.push((piece.member, piece.member_offset)));
        found
    };
    blocks.map(of).collect()
}

/// Where P and Q of every stripe are, and its data.
fn stripes(geometry: &Geometry) -> Vec<(u64, u16, Option<u16>, u64)> {
    (0..geometry.stripes())
        .filter_map(|number| geometry.stripe(number))
        .map(|stripe| (stripe.array_start, stripe.p(), stripe.q(), stripe.member_offset))
        .collect()
}

/// No place serves two, none lies outside its member, every block has as many copies as its zone says, on different
/// members, and the inverse finds them all, and nothing else.
fn check_whole(geometry: &Geometry) {
    let blocks: Vec<usize> = geometry.members().iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect();
    let mut table: Vec<Vec<Content>> = blocks.iter().map(|count| vec![UNUSED; *count]).collect();
    let mut put = |member: u16, at: u64, content: Content| {
        let place = &mut table[usize::from(member)][(at / BLOCK_BYTES) as usize];
        assert_eq!(*place, UNUSED, "a place is used twice in {geometry:?}");
        *place = content;
    };
    for (block, copies) in places(geometry).iter().enumerate() {
        let zone = geometry.zones().iter().find(|zone| (block as u64 * BLOCK_BYTES) < zone.array_end());
        let width = zone.expect("every block has a zone").members.len();
        let mut members: Vec<u16> = copies.iter().map(|(member, _)| *member).collect();
        members.dedup();
        assert_eq!(members.len(), geometry.spec().copies_over(width), "copies of block {block} in {geometry:?}");
        copies.iter().for_each(|(member, at)| put(*member, *at, (Kind::Data, block as u64)));
    }
    for number in 0..geometry.stripes() {
        let Some(stripe) = geometry.stripe(number) else { break };
        for at in (0..stripe.chunk_bytes).step_by(BLOCK_BYTES as usize) {
            put(stripe.p(), stripe.member_offset + at, (Kind::P, number));
            stripe.q().into_iter().for_each(|q| put(q, stripe.member_offset + at, (Kind::Q, number)));
        }
    }
    for (member, blocks) in table.iter().enumerate() {
        for (block, expected) in blocks.iter().enumerate() {
            let found = match geometry.place(member as u16, block as u64 * BLOCK_BYTES) {
                Place::Data { array_offset, .. } => (Kind::Data, array_offset / BLOCK_BYTES),
                Place::Parity { stripe, q, .. } => (if q { Kind::Q } else { Kind::P }, stripe),
                Place::Unused { .. } => UNUSED,
            };
            assert_eq!(found, *expected, "member {member} block {block} of {geometry:?}");
        }
    }
    assert_eq!(expand(geometry.runs(), &blocks), table, "runs of {geometry:?}");
    let strided = geometry.runs_strided().flat_map(|row| row.expand());
    assert_eq!(expand(strided, &blocks), table, "strided runs of {geometry:?}");
}

/// Old bytes stay where they are: data and parity.
fn check_same(before: &Geometry, after: &Geometry) {
    let (old, new) = (places(before), places(after));
    assert!(new.len() > old.len(), "it has not grown: {before:?} {after:?}");
    assert_eq!(new[..old.len()], old, "a block has moved: {before:?} {after:?}");
    let (old, new) = (stripes(before), stripes(after));
    assert_eq!(new[..old.len()], old, "a stripe has moved: {before:?} {after:?}");
    for (index, zone) in before.zones().iter().enumerate() {
        let now = &after.zones()[index];
        assert_eq!(
            (now.array_start, now.member_start, &now.members),
            (zone.array_start, zone.member_start, &zone.members)
        );
        let last = index + 1 == before.zones().len();
        assert!(now.array_bytes == zone.array_bytes || last && now.array_bytes > zone.array_bytes);
        assert!(now.member_bytes == zone.member_bytes || last && now.member_bytes > zone.member_bytes);
    }
}

fn specs(chunk_bytes: u64, members: usize, numbers: &mut Numbers) -> Vec<Spec> {
    let of = |level: Level| level.layouts().iter().map(move |layout| (level, *layout));
    let all = Level::ALL.into_iter().flat_map(of).map(|(level, layout)| {
        let copies = 2 + numbers.below((members as u64).max(2) - 1) as u16;
        let zones = if numbers.below(5) == 0 { ZonePolicy::Single } else { ZonePolicy::All };
        Spec { level, layout, chunk_bytes, copies, zones }
    });
    all.filter(|spec| members >= spec.members_min()).collect()
}

#[test]
fn thousands_of_arrays_grow_and_nothing_moves() {
    let mut numbers = Numbers(40);
    let (mut grown, mut refused, mut higher) = (0, 0, 0);
    for round in 0..1500 {
        let members = 1 + numbers.below(6) as usize;
        let chunk_bytes = BLOCK_BYTES * (1 + numbers.below(if round % 10 == 0 { 33 } else { 5 }));
        let some = |numbers: &mut Numbers| {
            let rest = if numbers.below(2) == 0 { 0 } else { numbers.below(chunk_bytes) };
            (1 + numbers.below(6)) * chunk_bytes + rest
        };
        let common = some(&mut numbers);
        let sizes: Vec<u64> =
            (0..members).map(|_| if numbers.below(2) == 0 { common } else { some(&mut numbers) }).collect();
        for spec in specs(chunk_bytes, members, &mut numbers) {
            let mut geometry = Geometry::plan(spec, &sizes).expect("it can be planned");
            for _ in 0..4 {
                let mut now = geometry.members().to_vec();
                let together = numbers.below(3) == 0;
                let more = some(&mut numbers);
                for size in &mut now {
                    *size += if together { more } else { numbers.below(3) / 2 * some(&mut numbers) };
                }
                if numbers.below(3) == 0 {
                    now.push(some(&mut numbers));
                }
                match geometry.grown(&now) {
                    Ok(after) => {
                        check_same(&geometry, &after);
                        check_whole(&after);
                        higher += u32::from(after.zones().len() == geometry.zones().len());
                        // What is left cannot be used, also not by a second attempt.
                        assert!(matches!(after.grown(&now), Err(GeometryError::NoGrowth { .. })), "{after:?}");
                        let read = Geometry::from_zones(spec, &now, after.zones().to_vec());
                        assert_eq!(read.expect("its table is one").size_bytes(), after.size_bytes());
                        geometry = after;
                        grown += 1;
                    }
                    Err(GeometryError::NoGrowth { .. }) => refused += 1,
                    Err(error) => panic!("{spec:?} over {now:?}: {error}"),
                }
            }
        }
    }
    assert!(grown > 5000 && refused > 1000 && higher > 1000, "{grown} times grown, {refused} refused, {higher} higher");
}

/// Whatever order members grow in, none that has room together with others right above what all of them hold is left out.
#[test]
fn members_of_one_size_that_become_larger_are_used_to_the_last_chunk() {
    let mut numbers = Numbers(41);
    for _ in 0..300 {
        let members = 2 + numbers.below(6) as usize;
        let chunk_bytes = BLOCK_BYTES * (1 + numbers.below(6));
        let (small, large) = (1 + numbers.below(9), 1 + numbers.below(9));
        for spec in specs(chunk_bytes, members, &mut numbers) {
            let plan =
                |chunks: u64| Geometry::plan(spec, &vec![chunks * chunk_bytes; members]).expect("it is possible");
            let after = plan(small).grown(&vec![(small + large) * chunk_bytes; members]).expect("all have grown");
            // An end that md would cut is whole here.
            let cut = spec.cut_bytes_max(members);
            let (now, fresh) = (after.size_bytes(), plan(small + large).size_bytes());
            assert!(now >= fresh && now - fresh <= cut, "{now} and {fresh} of {spec:?}");
        }
    }
}
