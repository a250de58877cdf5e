//! Compares the layouts that md creates and Braid only reads with a transcript of the kernel's arithmetic, chunk by chunk.
//!
//! The transcript keeps the kernel's names and numbering, so that it can be compared with `raid5_compute_sector` and
//! `raid6_idx_to_slot` in drivers/md/raid5.c, and with `__raid10_find_phys` and `raid10_size` in raid10.c.

use braid_geometry::{Geometry, Layout, Level, MemberContent, Spec, StripeRole};

const CHUNK: u64 = 8192;

/// Returns the location of chunk `r_chunk` of the array: stripe, member, member of P, member of Q.
fn raid5_compute_sector(
    algorithm: Layout,
    level: Level,
    raid_disks: u64,
    r_chunk: u64,
) -> (u64, u64, u64, Option<u64>) {
    let max_degraded = if level == Level::Raid6 { 2 } else { 1 };
    let data_disks = raid_disks - max_degraded;
    let stripe = r_chunk / data_disks;
    let mut dd_idx = r_chunk % data_disks;
    let pd_idx;
    let mut qd_idx;
    if level == Level::Raid5 {
        match algorithm {
            Layout::LeftAsymmetric => {
                pd_idx = data_disks - stripe % raid_disks;
                if dd_idx >= pd_idx {
                    dd_idx += 1;
                }
            }
            Layout::RightAsymmetric => {
                pd_idx = stripe % raid_disks;
                if dd_idx >= pd_idx {
                    dd_idx += 1;
                }
            }
            Layout::LeftSymmetric => {
                pd_idx = data_disks - stripe % raid_disks;
                dd_idx = (pd_idx + 1 + dd_idx) % raid_disks;
            }
            Layout::RightSymmetric => {
                pd_idx = stripe % raid_disks;
                dd_idx = (pd_idx + 1 + dd_idx) % raid_disks;
            }
            Layout::ParityFirst => {
                pd_idx = 0;
                dd_idx += 1;
            }
            Layout::ParityLast => pd_idx = data_disks,
            other => panic!("{other} at raid5"),
        }
        return (stripe, dd_idx, pd_idx, None);
    }
    match algorithm {
        Layout::LeftAsymmetric | Layout::RightAsymmetric => {
            let turn = stripe % raid_disks;
            pd_idx = if algorithm == Layout::LeftAsymmetric { raid_disks - 1 - turn } else { turn };
            qd_idx = pd_idx + 1;
            if pd_idx == raid_disks - 1 {
                dd_idx += 1;
                qd_idx = 0;
            } else if dd_idx >= pd_idx {
                dd_idx += 2;
            }
        }
        Layout::LeftSymmetric | Layout::RightSymmetric => {
            let turn = stripe % raid_disks;
            pd_idx = if algorithm == Layout::LeftSymmetric { raid_disks - 1 - turn } else { turn };
            qd_idx = (pd_idx + 1) % raid_disks;
            dd_idx = (pd_idx + 2 + dd_idx) % raid_disks;
        }
        Layout::ParityFirst => {
            pd_idx = 0;
            qd_idx = 1;
            dd_idx += 2;
        }
        Layout::ParityLast => {
            pd_idx = data_disks;
            qd_idx = data_disks + 1;
        }
        Layout::LeftAsymmetric6 | Layout::RightAsymmetric6 => {
            let turn = stripe % (raid_disks - 1);
            pd_idx = if algorithm == Layout::LeftAsymmetric6 { data_disks - turn } else { turn };
            if dd_idx >= pd_idx {
                dd_idx += 1;
            }
            qd_idx = raid_disks - 1;
        }
        Layout::LeftSymmetric6 | Layout::RightSymmetric6 => {
            let turn = stripe % (raid_disks - 1);
            pd_idx = if algorithm == Layout::LeftSymmetric6 { data_disks - turn } else { turn };
            dd_idx = (pd_idx + 1 + dd_idx) % (raid_disks - 1);
            qd_idx = raid_disks - 1;
        }
        Layout::ParityFirst6 => {
            pd_idx = 0;
            dd_idx += 1;
            qd_idx = raid_disks - 1;
        }
        other => panic!("{other} at raid6"),
    }
    (stripe, dd_idx, pd_idx, Some(qd_idx))
}

/// Returns the exponent of the Q coefficient of each member's data: `raid6_d0` gives the first member, and `raid6_idx_to_slot`
/// counts from there.
fn coefficients(raid_disks: u64, pd_idx: u64, qd_idx: u64) -> Vec<Option<usize>> {
    let mut coefficients = vec![None; raid_disks as usize];
    let mut i = if qd_idx == raid_disks - 1 { 0 } else { qd_idx + 1 };
    let mut count = 0;
    for _ in 0..raid_disks {
        if i != pd_idx && i != qd_idx {
            coefficients[i as usize] = Some(count);
            count += 1;
        }
        i = (i + 1) % raid_disks;
    }
    coefficients
}

#[test]
fn layouts_with_parity() {
    let mut chunks = 0;
    for level in [Level::Raid5, Level::Raid6] {
        for &layout in [level.layouts(), level.md_only_layouts()].concat().iter() {
            let disks_min = if level == Level::Raid5 { 2 } else { 4 };
            for disks in disks_min..=9u64 {
                let rows = 3 * disks + 1;
                let spec = Spec { layout, chunk_bytes: CHUNK, ..Spec::new(level) };
                let members = vec![rows * CHUNK + 4096; disks as usize];
                let geometry = Geometry::imported(spec, &members).expect("md can lay it out");
                let data_disks = disks - u64::from(level.parity());
                assert_eq!(geometry.size_bytes(), rows * data_disks * CHUNK);
                for chunk in 0..rows * data_disks {
                    let context = format!("{level} {layout} over {disks}: chunk {chunk}");
                    let (row, dd, pd, qd) = raid5_compute_sector(layout, level, disks, chunk);
                    let at = chunk * CHUNK + 512;
                    let range = geometry.locate(at);
                    let place = (u64::from(range.member), range.member_offset, range.len);
                    assert_eq!(place, (dd, row * CHUNK + 512, CHUNK - 512), "{context}");
                    let stripe = geometry.stripe_of(at).expect("it has parity");
                    assert_eq!((stripe.index_in_zone, u64::from(stripe.p())), (row, pd), "{context}");
                    assert_eq!(stripe.q().map(u64::from), qd, "{context}");
                    let index = (chunk % data_disks) as usize;
                    assert_eq!(u64::from(stripe.data(index)), dd, "{context}");
                    assert_eq!(stripe.role(dd as u16), Some(StripeRole::Data(index as u16)), "{context}");
                    assert_eq!(stripe.role(pd as u16), Some(StripeRole::P), "{context}");
                    assert!(stripe.roles().all(|(role, member)| stripe.role(member) == Some(role)), "{context}");
                    assert_eq!(stripe.roles().count() as u64, disks, "{context}");
                    let expected_content = MemberContent::Data { array_offset: at, copy: 0, len: CHUNK - 512 };
                    assert_eq!(geometry.content_at(range.member, range.member_offset), expected_content, "{context}");
                    let p = MemberContent::Parity { stripe: row, q: false, len: CHUNK };
                    assert_eq!(geometry.content_at(pd as u16, row * CHUNK), p, "{context}");
                    if let Some(qd) = qd {
                        assert_eq!(stripe.role(qd as u16), Some(StripeRole::Q), "{context}");
                        let q = MemberContent::Parity { stripe: row, q: true, len: CHUNK };
                        assert_eq!(geometry.content_at(qd as u16, row * CHUNK), q, "{context}");
                        let coefficient = (index + stripe.first_coefficient()) % stripe.data_chunks();
                        assert_eq!(coefficients(disks, pd, qd)[dd as usize], Some(coefficient), "{context}");
                    } else {
                        assert_eq!(stripe.first_coefficient(), 0, "{context}");
                    }
                    chunks += 1;
                }
            }
        }
    }
    assert!(chunks > 10_000, "{chunks}");
}

/// Returns the locations of the copies of a chunk: the member, and the chunk on it.
fn raid10_find_phys(far_offset: bool, far_copies: u64, raid_disks: u64, stride: u64, chunk: u64) -> Vec<(u64, u64)> {
    let near_copies = 1;
    let mut stripe = chunk * near_copies;
    let dev = stripe % raid_disks;
    stripe /= raid_disks;
    if far_offset {
        stripe *= far_copies;
    }
    let (mut d, mut s) = (dev, stripe);
    let mut copies = vec![(d, s)];
    for _ in 1..far_copies {
        d = (d + near_copies) % raid_disks;
        s += stride;
        copies.push((d, s));
    }
    copies
}

#[test]
fn raid10_far_and_offset() {
    let mut chunks = 0;
    for layout in [Layout::Far, Layout::Offset] {
        for (disks, copies) in (2..=7u64).flat_map(|disks| (2..=disks).map(move |copies| (disks, copies))) {
            for rows in copies..4 * copies {
                let spec = Spec { layout, chunk_bytes: CHUNK, copies: copies as u16, ..Spec::new(Level::Raid10) };
                let members = vec![rows * CHUNK; disks as usize];
                let geometry = Geometry::imported(spec, &members).expect("md can lay it out");
                // The size as in raid10_size, and the stride as in calc_sectors.
                let size = rows / copies * disks;
                assert_eq!(geometry.size_bytes(), size * CHUNK);
                let stride = if layout == Layout::Offset { 1 } else { (size * copies).div_ceil(disks) / copies };
                let mut used = 0;
                for chunk in 0..size {
                    let context = format!("{layout} {copies} over {disks} of {rows}: chunk {chunk}");
                    let expected = raid10_find_phys(layout == Layout::Offset, copies, disks, stride, chunk);
                    let (at, mut found) = (chunk * CHUNK + 512, Vec::new());
                    geometry.copies(at, &mut |range| {
                        assert_eq!((range.member_offset % CHUNK, range.len), (512, CHUNK - 512), "{context}");
                        let copy = found.len() as u16;
                        let expected_content = MemberContent::Data { array_offset: at, copy, len: CHUNK - 512 };
                        assert_eq!(
                            geometry.content_at(range.member, range.member_offset),
                            expected_content,
                            "{context}"
                        );
                        found.push((u64::from(range.member), range.member_offset / CHUNK));
                    });
                    assert_eq!(found, expected, "{context}");
                    used += found.len() as u64;
                    chunks += 1;
                }
                let all = (0..disks as u16).flat_map(|member| (0..rows).map(move |row| (member, row)));
                let unused = all.filter(|(member, row)| {
                    matches!(geometry.content_at(*member, row * CHUNK), MemberContent::Unused { .. })
                });
                assert_eq!(unused.count() as u64, disks * rows - used, "{layout} {copies} over {disks}");
            }
        }
    }
    assert!(chunks > 5_000, "{chunks}");
}

/// Layouts that Braid only reads can neither be planned nor read from a label.
#[test]
fn md_only_layouts_are_not_created() {
    for level in Level::ALL {
        for &layout in level.md_only_layouts() {
            let spec = Spec { layout, ..Spec::new(level) };
            assert!(Geometry::plan(spec, &[1 << 20; 6]).is_err(), "{level} {layout}");
            let made = Geometry::imported(spec, &[1 << 20; 6]).expect("it can be read");
            assert!(Geometry::from_zones(spec, &[1 << 20; 6], made.zones().to_vec()).is_err(), "{level} {layout}");
            assert!(layout.name().parse::<Layout>().is_err(), "{layout}");
        }
    }
}

/// Mirrors and concats of md end on a sector boundary that need not be a block boundary.
#[test]
fn sizes_that_are_not_a_multiple_of_a_block() {
    let mirror = Geometry::imported(Spec::new(Level::Raid1), &[1_000_448; 2]).expect("a mirror");
    assert_eq!(mirror.size_bytes(), 1_000_448);
    let spec = Spec { chunk_bytes: 4096, ..Spec::new(Level::Concat) };
    let concat = Geometry::imported(spec, &[1_000_448, 512, 70_144]).expect("a concat");
    assert_eq!(concat.size_bytes(), 1_000_448 + 512 + 70_144);
    let range = concat.locate(1_000_448);
    assert_eq!((range.member, range.member_offset, range.len), (1, 0, 512));
    let spec = Spec { layout: Layout::Far, copies: 3, ..Spec::new(Level::Raid10) };
    assert!(Geometry::imported(spec, &[2 * 65_536; 4]).is_err(), "fewer rows than copies");
}
