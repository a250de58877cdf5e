//! Geometry and parity together: every geometry of raid5 and raid6 up to eight members with a few member sizes, filled
//! with data and parity, loses every combination of members that its level tolerates, and each stripe of each zone is
//! recovered byte for byte.
//!
//! A few bytes represent a block of 4 KiB, because all bytes of a block have the same location.

use braid_geometry::{BLOCK_BYTES, Geometry, Level, Spec, Stripe, StripeRole};
use braid_parity::{BlockRole, Parity, StripeDamage};

/// The size of a block's sample.
const SAMPLE: usize = 24;

type Sample = [u8; SAMPLE];

/// A splitmix64 sequence: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn sample(&mut self) -> Sample {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// The content of the members, block by block. Blocks that the array does not use are missing.
struct Disks {
    members: Vec<Vec<Option<Sample>>>,
}

impl Disks {
    fn put(&mut self, member: u16, offset: u64, sample: Sample) {
        let place = &mut self.members[usize::from(member)][(offset / BLOCK_BYTES) as usize];
        assert!(place.replace(sample).is_none(), "written twice: {offset} of {member}");
    }

    fn get(&self, member: u16, offset: u64) -> &Sample {
        self.members[usize::from(member)][(offset / BLOCK_BYTES) as usize].as_ref().expect("written")
    }

    /// Fills the array with random data, by its offsets; then with parity, stripe by stripe.
    fn filled(geometry: &Geometry, numbers: &mut Numbers) -> Disks {
        let blocks = |bytes: &u64| vec![None; bytes.div_ceil(BLOCK_BYTES) as usize];
        let mut disks = Disks { members: geometry.member_data_bytes().iter().map(blocks).collect() };
        for offset in (0..geometry.size_bytes()).step_by(BLOCK_BYTES as usize) {
            let piece = geometry.locate(offset);
            disks.put(piece.member, piece.member_offset, numbers.sample());
        }
        for (stripe, offset) in rows(geometry) {
            let (mut p, mut q) = ([0; SAMPLE], [0; SAMPLE]);
            Parity::best().pq(&mut p, &mut q, &disks.data(stripe, offset, &[]));
            disks.put(stripe.p(), offset, p);
            if let Some(member) = stripe.q() {
                disks.put(member, offset, q);
            }
        }
        disks
    }

    /// Returns the data of a stripe in the order of the coefficients, empty for lost members.
    fn data(&self, stripe: Stripe<'_>, offset: u64, lost: &[u16]) -> Vec<&[u8]> {
        (0..stripe.data_chunks()).map(|i| self.left(stripe.data(i), offset, lost)).collect()
    }

    fn left(&self, member: u16, offset: u64, lost: &[u16]) -> &[u8] {
        if lost.contains(&member) { &[] } else { self.get(member, offset) }
    }
}

/// Returns every stripe, with the offset on its members of every block of it.
fn rows(geometry: &Geometry) -> impl Iterator<Item = (Stripe<'_>, u64)> {
    (0..geometry.stripes()).filter_map(|number| geometry.stripe(number)).flat_map(|stripe| {
        let blocks = (0..stripe.chunk_bytes).step_by(BLOCK_BYTES as usize);
        blocks.map(move |within| (stripe, stripe.member_offset + within))
    })
}

fn role(of: StripeRole) -> BlockRole {
    match of {
        StripeRole::Data(index) => BlockRole::Data(usize::from(index)),
        StripeRole::P => BlockRole::P,
        StripeRole::Q => BlockRole::Q,
    }
}

/// Returns the lost cells of a stripe, with their members; `None` if too many were lost.
fn recover(disks: &Disks, stripe: Stripe<'_>, offset: u64, lost: &[u16]) -> Option<Vec<(u16, Sample)>> {
    let data = disks.data(stripe, offset, lost);
    let p = disks.left(stripe.p(), offset, lost);
    let q = stripe.q().map_or(&[][..], |member| disks.left(member, offset, lost));
    let of_row: Vec<(u16, BlockRole)> = lost.iter().filter_map(|m| Some((*m, role(stripe.role(*m)?)))).collect();
    let mut samples = vec![[0xee; SAMPLE]; of_row.len()];
    let mut out: Vec<(BlockRole, &mut [u8])> =
        of_row.iter().zip(&mut samples).map(|((_, role), sample)| (*role, &mut sample[..])).collect();
    Parity::best().recover(&data, p, q, &mut out).ok()?;
    Some(of_row.into_iter().map(|(member, _)| member).zip(samples).collect())
}

/// Returns all sets of up to `most` members.
fn losses(members: u16, most: usize) -> Vec<Vec<u16>> {
    let mut all = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..most {
        let to = all.len();
        for set in from..to {
            let next = all[set].last().map_or(0, |last: &u16| last + 1);
            for member in next..members {
                let larger = all[set].iter().copied().chain([member]).collect();
                all.push(larger);
            }
        }
        from = to;
    }
    all
}

#[derive(Default)]
struct Counts {
    geometries: u64,
    zones: u64,
    recovered: u64,
    refused: u64,
}

fn check(spec: Spec, sizes: &[u64], numbers: &mut Numbers, counts: &mut Counts) {
    let geometry = Geometry::plan(spec, sizes).unwrap_or_else(|error| panic!("{spec:?} over {sizes:?}: {error}"));
    let disks = Disks::filled(&geometry, numbers);
    let tolerated = usize::from(spec.level.parity());
    counts.geometries += 1;
    counts.zones += geometry.zones().len() as u64;
    for lost in losses(sizes.len() as u16, tolerated) {
        for (stripe, offset) in rows(&geometry) {
            let back = recover(&disks, stripe, offset, &lost).expect("the level survives it");
            for (member, sample) in back {
                assert_eq!(&sample, disks.get(member, offset), "{member} of {lost:?}, {spec:?} over {sizes:?}");
                counts.recovered += 1;
            }
        }
        // The reverse direction, as in a rebuild: every block of a lost member leads to a stripe that contains it.
        for &member in &lost {
            for (block, held) in disks.members[usize::from(member)].iter().enumerate() {
                let offset = block as u64 * BLOCK_BYTES;
                let Some(place) = geometry.stripe_at(member, offset) else {
                    assert_eq!(*held, None, "{offset} of {member} is of no stripe");
                    continue;
                };
                assert_eq!(place.stripe.member_offset + place.chunk_offset, offset);
                let back = recover(&disks, place.stripe, offset, &lost).expect("the level survives it");
                let (_, sample) = back.iter().find(|(m, _)| *m == member).expect("it belongs to the stripe");
                assert_eq!(Some(sample), held.as_ref());
            }
        }
    }
    // One more loss, among the members of the first stripe, is refused: no data is invented.
    let stripe = geometry.stripe(0).expect("there is a stripe");
    for lost in losses(sizes.len() as u16, tolerated + 1).into_iter().filter(|lost| lost.len() > tolerated) {
        let data_lost = lost.iter().filter(|m| matches!(stripe.role(**m), Some(StripeRole::Data(_)))).count();
        if lost.iter().all(|m| stripe.role(*m).is_some()) && data_lost > 0 {
            assert_eq!(recover(&disks, stripe, stripe.member_offset, &lost), None, "{lost:?} of {spec:?}");
            counts.refused += 1;
        }
    }
    check_damage(&geometry, &disks, numbers);
}

/// At raid6 each stripe identifies the member whose block is wrong.
fn check_damage(geometry: &Geometry, disks: &Disks, numbers: &mut Numbers) {
    if geometry.spec().level != Level::Raid6 {
        return;
    }
    for (stripe, offset) in rows(geometry) {
        let at = (numbers.next() % stripe.members.len() as u64) as usize;
        let mut wrong = *disks.get(stripe.members[at], offset);
        wrong[numbers.next() as usize % SAMPLE] ^= 1 << (numbers.next() % 8);
        let block = |member: u16| if member == stripe.members[at] { &wrong } else { disks.get(member, offset) };
        let data: Vec<&[u8]> = (0..stripe.data_chunks()).map(|i| &block(stripe.data(i))[..]).collect();
        let q = stripe.q().expect("raid6");
        let named = match Parity::best().check(block(stripe.p()), block(q), &data) {
            StripeDamage::P => stripe.p(),
            StripeDamage::Q => q,
            StripeDamage::Data(index) => stripe.data(index),
            other => panic!("{other:?}"),
        };
        assert_eq!(named, stripe.members[at], "{stripe:?}");
    }
}

/// Returns all sequences of `members` sizes out of `heights`.
fn sequences(members: usize, heights: &[u64]) -> Vec<Vec<u64>> {
    (0..members).fold(vec![Vec::new()], |all, _| {
        all.iter().flat_map(|s| heights.iter().map(|h| s.iter().copied().chain([*h]).collect())).collect()
    })
}

#[test]
fn every_stripe_is_recovered_after_every_tolerated_loss() {
    let (mut numbers, mut counts) = (Numbers(1), Counts::default());
    for level in [Level::Raid5, Level::Raid6] {
        let least = Spec::new(level).min_members();
        for members in least..=8 {
            // Sizes in chunks: so large that parity rotates completely, and smaller ones. With many members not in all
            // orders.
            let around = members as u64 + 1;
            let heights: &[u64] = if members <= 6 { &[1, 3, around] } else { &[2, around] };
            for (number, chunks) in sequences(members, heights).into_iter().enumerate() {
                let chunk_blocks = if number % 4 == 0 { 2 } else { 1 };
                let spec = Spec { chunk_bytes: chunk_blocks * BLOCK_BYTES, ..Spec::new(level) };
                // Some members are not a whole number of chunks.
                let odd = |(member, chunks): (usize, u64)| {
                    chunks * spec.chunk_bytes + if (number + member) % 3 == 0 { 512 } else { 0 }
                };
                let sizes: Vec<u64> = chunks.into_iter().enumerate().map(odd).collect();
                check(spec, &sizes, &mut numbers, &mut counts);
            }
        }
    }
    let Counts { geometries, zones, recovered, refused } = counts;
    println!("{geometries} geometries of {zones} zones: {recovered} blocks recovered, {refused} losses refused");
    // All sequences: of 3 sizes for 2 (raid6: 3) to 6 members, of 2 for 7 and 8.
    assert_eq!(geometries, 9 + 2 * (27 + 81 + 243 + 729 + 128 + 256));
    assert!(zones > geometries && refused > geometries, "{zones} zones, {refused} refused");
}

/// The narrowest ones: raid5 of two is a mirror, raid6 of three a triple mirror.
#[test]
fn parity_over_one_block_of_data_is_a_copy_of_it() {
    for (level, members) in [(Level::Raid5, 2), (Level::Raid6, 3)] {
        let geometry = Geometry::plan(Spec::new(level), &vec![7 << 16; members]).expect("it can be");
        let disks = Disks::filled(&geometry, &mut Numbers(2));
        for (stripe, offset) in rows(&geometry) {
            assert_eq!(stripe.data_chunks(), 1);
            for member in stripe.members {
                assert_eq!(disks.get(*member, offset), disks.get(stripe.data(0), offset));
            }
        }
    }
}
