//! Images of members of arrays that Linux md wrote, read back by Braid's own arithmetic: the location of each block,
//! and its recovery when a member is lost.
//!
//! The images are in `tests/golden/md-layouts/images`, and the README beside them describes their content. `xz` unpacks
//! them.

use std::path::PathBuf;
use std::process::Command;

use braid_geometry::{BLOCK_BYTES, Geometry, Level, Spec, Stripe, StripeRole, ZonePolicy};
use braid_parity::{BlockRole, Parity};

const BLOCK: usize = BLOCK_BYTES as usize;

/// The offset of the data areas of these md arrays.
const DATA_OFFSET_BYTES: usize = 1 << 20;

/// The data areas of the members of an array.
struct Members {
    images: Vec<Vec<u8>>,
}

impl Members {
    /// Unpacks `name.member0.img.xz` and so on. `sizes`: of the data areas, in bytes.
    fn unpack(name: &str, sizes: &[u64]) -> Members {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/md-layouts/images");
        let unpack = |(member, size): (usize, &u64)| {
            let path = folder.join(format!("{name}.member{member}.img.xz"));
            let out = Command::new("xz").args(["--decompress", "--stdout"]).arg(&path).output();
            let out = out.expect("xz runs (package xz-utils; scripts/install-tools.sh test installs it)");
            assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
            let mut image = out.stdout;
            image.drain(..DATA_OFFSET_BYTES);
            image.truncate(usize::try_from(*size).expect("an image fits the memory"));
            assert_eq!(image.len() as u64, *size);
            image
        };
        Members { images: sizes.iter().enumerate().map(unpack).collect() }
    }

    fn bytes(&self, member: u16, offset: u64, len: u64) -> &[u8] {
        &self.images[usize::from(member)][offset as usize..(offset + len) as usize]
    }
}

/// Returns the content of block `number` of each array, as the README describes.
fn pattern(number: u64) -> [u8; BLOCK] {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let mut block = [0; BLOCK];
    for (word, place) in block.chunks_exact_mut(8).enumerate() {
        let value = if word % 64 == 0 { number | (word as u64 / 64) << 56 } else { z };
        place.copy_from_slice(&value.to_le_bytes());
    }
    block
}

/// Checks that every block of the array is where the geometry says, in every copy. Returns the number of copies
/// checked.
fn read_back(geometry: &Geometry, members: &Members) -> u64 {
    let mut looked = 0;
    for number in 0..geometry.size_bytes() / BLOCK_BYTES {
        let expected = pattern(number);
        geometry.copies(number * BLOCK_BYTES, &mut |piece| {
            let found = members.bytes(piece.member, piece.member_offset, BLOCK_BYTES);
            assert!(found == expected, "block {number} at {} of member {}", piece.member_offset, piece.member);
            looked += 1;
        });
    }
    looked
}

fn planned(level: Level, sizes: &[u64], zones: ZonePolicy, md_size_bytes: u64) -> Geometry {
    let geometry = Geometry::plan(Spec { zones, ..Spec::new(level) }, sizes).expect("md could lay it out");
    assert_eq!(geometry.size_bytes(), md_size_bytes, "as md offered it");
    geometry
}

#[test]
fn raid0_with_two_zones() {
    let sizes = [40_960_000, 82_837_504, 82_837_504];
    let geometry = planned(Level::Raid0, &sizes, ZonePolicy::All, 206_635_008);
    let members = Members::unpack("raid0_x40k64_80_80_alt", &sizes);
    assert_eq!(read_back(&geometry, &members), 206_635_008 / BLOCK_BYTES);
}

#[test]
fn raid10_of_three_without_any_one_member() {
    let sizes = [32_505_856; 3];
    let geometry = planned(Level::Raid10, &sizes, ZonePolicy::Single, 48_758_784);
    let members = Members::unpack("raid10_n2_3", &sizes);
    assert_eq!(read_back(&geometry, &members), 2 * 48_758_784 / BLOCK_BYTES);
    // All copies are right, so that it is enough that each block keeps one.
    for lost in 0..3 {
        for offset in (0..geometry.size_bytes()).step_by(BLOCK) {
            let mut left = 0;
            geometry.copies(offset, &mut |piece| left += u32::from(piece.member != lost));
            assert!(left > 0, "{offset} without {lost}");
        }
    }
}

/// Returns the data and P of a stripe at an offset on its members, without one member.
fn row<'a>(members: &'a Members, stripe: Stripe<'_>, lost: Option<u16>) -> (Vec<&'a [u8]>, &'a [u8]) {
    let left = |member: u16| match lost {
        Some(lost) if lost == member => &[],
        _ => members.bytes(member, stripe.member_offset, stripe.chunk_bytes),
    };
    ((0..stripe.data_chunks()).map(|index| left(stripe.data(index))).collect(), left(stripe.p()))
}

#[test]
fn raid5_of_four_without_any_one_member() {
    let sizes = [24_117_248; 4];
    let geometry = planned(Level::Raid5, &sizes, ZonePolicy::Single, 72_351_744);
    let members = Members::unpack("raid5_ls_4", &sizes);
    assert_eq!(read_back(&geometry, &members), 72_351_744 / BLOCK_BYTES);
    let stripes = || (0..geometry.stripes()).map(|number| geometry.stripe(number).expect("below the count"));
    assert_eq!(stripes().count(), 368);
    let mut place = vec![0; geometry.spec().chunk_bytes as usize];
    for parity in Parity::available() {
        for stripe in stripes() {
            let (data, p) = row(&members, stripe, None);
            assert!(parity.agrees(p, &data), "{parity:?}: P of stripe {}", stripe.number);
            for lost in 0..4 {
                let role = match stripe.role(lost).expect("all four are in each stripe") {
                    StripeRole::Data(index) => BlockRole::Data(usize::from(index)),
                    StripeRole::P => BlockRole::P,
                    StripeRole::Q => unreachable!("raid5 has none"),
                };
                let (data, p) = row(&members, stripe, Some(lost));
                parity.recover(&data, p, &[], &mut [(role, &mut place)]).expect("one may be lost");
                let held = members.bytes(lost, stripe.member_offset, stripe.chunk_bytes);
                assert!(place == held, "{parity:?}: member {lost} in stripe {}", stripe.number);
            }
        }
    }
}

/// With Braid's Q added to md's data and md's P, any two data chunks of a stripe are recovered: md's P is the P that Q
/// goes with.
#[test]
fn md_data_with_q_survives_two_losses() {
    let sizes = [24_117_248; 4];
    let geometry = planned(Level::Raid5, &sizes, ZonePolicy::Single, 72_351_744);
    let members = Members::unpack("raid5_ls_4", &sizes);
    let parity = Parity::best();
    let chunk = geometry.spec().chunk_bytes as usize;
    for number in 0..geometry.stripes() {
        let stripe = geometry.stripe(number).expect("below the count");
        let (data, p) = row(&members, stripe, None);
        let mut q = vec![0; chunk];
        parity.pq(&mut [], &mut q, &data);
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let mut left = data.clone();
            (left[a], left[b]) = (&[], &[]);
            let (mut out_a, mut out_b) = (vec![0; chunk], vec![0; chunk]);
            let mut wanted = [(BlockRole::Data(a), &mut out_a[..]), (BlockRole::Data(b), &mut out_b[..])];
            parity.recover(&left, p, &q, &mut wanted).expect("two may be lost");
            assert!(out_a == data[a] && out_b == data[b], "{a} and {b} of stripe {number}");
        }
    }
}
