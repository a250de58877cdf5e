//! Compares small arrays with layouts written by hand, chunk by chunk.

use braid_geometry::{Geometry, Layout, Level, MemberContent, Spec};

const K: u64 = 1024;

/// Checks a layout. Each string is one member, with a character for each 4 KiB chunk: the number of the array's chunk in base 36
/// ("0-9a-z"), `P`, `Q`, or `.` for unused.
fn check(spec: Spec, members: &[&str]) {
    let chunk = spec.chunk_bytes;
    let sizes: Vec<u64> = members.iter().map(|cells| cells.len() as u64 * chunk).collect();
    let geometry = Geometry::plan(spec, &sizes).expect("it can be laid out");
    let digit = |number: u64| char::from_digit(number as u32, 36).expect("few chunks");
    for (member, cells) in members.iter().enumerate() {
        let actual: String = (0..cells.len() as u64)
            .map(|cell| match geometry.content_at(member as u16, cell * chunk) {
                MemberContent::Data { array_offset, .. } => digit(array_offset / chunk),
                MemberContent::Parity { q, .. } => {
                    if q {
                        'Q'
                    } else {
                        'P'
                    }
                }
                MemberContent::Unused { .. } => '.',
            })
            .collect();
        assert_eq!(&actual, cells, "member {member} of {spec:?}");
    }
    for number in 0..geometry.size_bytes() / chunk {
        let mut found = Vec::new();
        geometry.copies(number * chunk, &mut |range| found.push((range.member, range.member_offset / chunk)));
        let mut expected = Vec::new();
        for (member, cells) in members.iter().enumerate() {
            let cells = cells.chars().enumerate().filter(|(_, cell)| *cell == digit(number));
            expected.extend(cells.map(|(cell, _)| (member as u16, cell as u64)));
        }
        let first = geometry.locate(number * chunk + 1);
        assert_eq!((first.member, first.member_offset), (found[0].0, found[0].1 * chunk + 1), "{spec:?}");
        found.sort_unstable();
        assert_eq!(found, expected, "chunk {number} of {spec:?}");
    }
}

fn spec(level: Level) -> Spec {
    Spec { chunk_bytes: 4 * K, ..Spec::new(level) }
}

#[test]
fn concat() {
    check(spec(Level::Concat), &["01", "2345", "678"]);
}

#[test]
fn raid0_continues_on_the_larger_members() {
    check(spec(Level::Raid0), &["03", "1468", "2579"]);
    check(spec(Level::Raid0), &["0369", "147a", "258b"]);
    check(spec(Level::Raid0), &["02", "13456"]);
    // Three members, then two, then one.
    check(spec(Level::Raid0), &["035", "1", "24678"]);
}

#[test]
fn raid0_original_selects_members_by_array_chunk_number() {
    let original = Spec { layout: Layout::Original, ..spec(Level::Raid0) };
    // The second zone starts with chunk 3. 3 mod 2 is 1, so that the zone starts with its second member.
    check(original, &["0", "146", "235"]);
    // The second zone starts with chunk 6: both layouts agree.
    check(original, &["03", "1468", "2579"]);
}

#[test]
fn raid1_mirrors_to_the_second_largest_member() {
    check(spec(Level::Raid1), &["01", "0123", "0123"]);
    check(spec(Level::Raid1), &["01", "01..", "01"]);
}

#[test]
fn raid10_near() {
    check(spec(Level::Raid10), &["0134", "0235", "1245"]);
    // Nine cells are four pairs and one unused cell.
    check(spec(Level::Raid10), &["013", "023", "12."]);
    // The odd cell of the first zone stays unused. The second zone is a mirror.
    check(spec(Level::Raid10), &["013", "02345", "12.45"]);
    check(Spec { copies: 3, ..spec(Level::Raid10) }, &["012", "013", "023", "123"]);
}

#[test]
fn raid5_left_symmetric() {
    check(spec(Level::Raid5), &["03P69P", "1P47Pa", "P25P8b"]);
    // The layout of the figure in docs/internals/layouts.md.
    check(spec(Level::Raid5), &["048Pc", "15P9d", "2P6ae", "P37bP"]);
    // The second zone, over two members, is effectively a mirror.
    check(spec(Level::Raid5), &["03P", "1P46P8", "P25P7P"]);
}

#[test]
fn raid6_left_symmetric() {
    // The layout of the figure in docs/internals/layouts.md.
    check(spec(Level::Raid6), &["Q37bP", "048PQ", "15PQc", "2PQ9d", "PQ6ae"]);
    check(spec(Level::Raid6), &["Q25P", "03PQ", "1PQ6", "PQ47"]);
}
