//! The layouts that md makes and Braid only reads, against a transcript of the kernel's own arithmetic, chunk by chunk.
//!
//! The transcript keeps the kernel's names and its way of counting, so that it can be held beside `raid5_compute_sector` and
//! `raid6_idx_to_slot` in drivers/md/raid5.c, and `__raid10_find_phys` and `raid10_size` in raid10.c.

use braid_geometry::{Geometry, Layout, Level, Place, Spec, StripeRole};

const CHUNK: u64 = 8192;

/// Where chunk `r_sector` of the array is: row, member, member of P, member of Q.
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

/// The coefficient that each member's data take: `raid6_d0` says where to begin, `raid6_idx_to_slot` counts on.
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
fn rows_with_parity() {
    let mut chunks = 0;
    for level in [Level::Raid5, Level::Raid6] {
        for &layout in [level.layouts(), level.layouts_of_md()].concat().iter() {
            let narrowest = if level == Level::Raid5 { 2 } else { 4 };
            for disks in narrowest..=9u64 {
                let rows = 3 * disks + 1;
                let spec = Spec { layout, chunk_bytes: CHUNK, ..Spec::new(level) };
                let members = vec![rows * CHUNK + 4096; disks as usize];
                let geometry = Geometry::imported(spec, &members).expect("md can lay it out");
                let data_disks = disks - u64::from(level.parity());
                assert_eq!(geometry.size_bytes(), rows * data_disks * CHUNK);
                for chunk in 0..rows * data_disks {
                    let what = format!("{level} {layout} over {disks}: chunk {chunk}");
                    let (row, dd, pd, qd) = raid5_compute_sector(layout, level, disks, chunk);
                    let at = chunk * CHUNK + 512;
                    let piece = geometry.locate(at);
                    let place = (u64::from(piece.member), piece.member_offset, piece.len);
                    assert_eq!(place, (dd, row * CHUNK + 512, CHUNK - 512), "{what}");
                    let stripe = geometry.stripe_of(at).expect("it has parity");
                    assert_eq!((stripe.row, u64::from(stripe.p())), (row, pd), "{what}");
                    assert_eq!(stripe.q().map(u64::from), qd, "{what}");
                    let index = (chunk % data_disks) as usize;
                    assert_eq!(u64::from(stripe.data(index)), dd, "{what}");
                    assert_eq!(stripe.role(dd as u16), Some(StripeRole::Data(index as u16)), "{what}");
                    assert_eq!(stripe.role(pd as u16), Some(StripeRole::P), "{what}");
                    assert!(stripe.roles().all(|(role, member)| stripe.role(member) == Some(role)), "{what}");
                    assert_eq!(stripe.roles().count() as u64, disks, "{what}");
                    let back = Place::Data { array_offset: at, copy: 0, len: CHUNK - 512 };
                    assert_eq!(geometry.place(piece.member, piece.member_offset), back, "{what}");
                    let p = Place::Parity { stripe: row, q: false, len: CHUNK };
                    assert_eq!(geometry.place(pd as u16, row * CHUNK), p, "{what}");
                    if let Some(qd) = qd {
                        assert_eq!(stripe.role(qd as u16), Some(StripeRole::Q), "{what}");
                        let q = Place::Parity { stripe: row, q: true, len: CHUNK };
                        assert_eq!(geometry.place(qd as u16, row * CHUNK), q, "{what}");
                        let coefficient = (index + stripe.first_coefficient()) % stripe.data_chunks();
                        assert_eq!(coefficients(disks, pd, qd)[dd as usize], Some(coefficient), "{what}");
                    } else {
                        assert_eq!(stripe.first_coefficient(), 0, "{what}");
                    }
                    chunks += 1;
                }
            }
        }
    }
    assert!(chunks > 10_000, "{chunks}");
}

/// Where the copies of a chunk are: member, and chunk on it.
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
fn copies_far_away() {
    let mut chunks = 0;
    for layout in [Layout::Far, Layout::Offset] {
        for (disks, copies) in (2..=7u64).flat_map(|disks| (2..=disks).map(move |copies| (disks, copies))) {
            for rows in copies..4 * copies {
                let spec = Spec { layout, chunk_bytes: CHUNK, copies: copies as u16, ..Spec::new(Level::Raid10) };
                let members = vec![rows * CHUNK; disks as usize];
                let geometry = Geometry::imported(spec, &members).expect("md can lay it out");
                // raid10_size, and calc_sectors for the stride.
                let size = rows / copies * disks;
                assert_eq!(geometry.size_bytes(), size * CHUNK);
                let stride = if layout == Layout::Offset { 1 } else { (size * copies).div_ceil(disks) / copies };
                let mut used = 0;
                for chunk in 0..size {
                    let what = format!("{layout} {copies} over {disks} of {rows}: chunk {chunk}");
                    let expected = raid10_find_phys(layout == Layout::Offset, copies, disks, stride, chunk);
                    let (at, mut found) = (chunk * CHUNK + 512, Vec::new());
                    geometry.copies(at, &mut |piece| {
                        assert_eq!((piece.member_offset % CHUNK, piece.len), (512, CHUNK - 512), "{what}");
                        let copy = found.len() as u16;
                        let back = Place::Data { array_offset: at, copy, len: CHUNK - 512 };
                        assert_eq!(geometry.place(piece.member, piece.member_offset), back, "{what}");
                        found.push((u64::from(piece.member), piece.member_offset / CHUNK));
                    });
                    assert_eq!(found, expected, "{what}");
                    used += found.len() as u64;
                    chunks += 1;
                }
                let all = (0..disks as u16).flat_map(|member| (0..rows).map(move |row| (member, row)));
                let unused =
                    all.filter(|(member, row)| matches!(geometry.place(*member, row * CHUNK), Place::Unused { .. }));
                assert_eq!(unused.count() as u64, disks * rows - used, "{layout} {copies} over {disks}");
            }
        }
    }
    assert!(chunks > 5_000, "{chunks}");
}

/// What only md makes can neither be planned nor stand in a label.
#[test]
fn nobody_makes_them_here() {
    for level in Level::ALL {
        for &layout in level.layouts_of_md() {
            let spec = Spec { layout, ..Spec::new(level) };
            assert!(Geometry::plan(spec, &[1 << 20; 6]).is_err(), "{level} {layout}");
            let made = Geometry::imported(spec, &[1 << 20; 6]).expect("it can be read");
            assert!(Geometry::from_zones(spec, &[1 << 20; 6], made.zones().to_vec()).is_err(), "{level} {layout}");
            assert!(layout.name().parse::<Layout>().is_err(), "{layout}");
        }
    }
}

/// Mirrors and concats of md end with a sector, not with a block.
#[test]
fn odd_sizes() {
    let mirror = Geometry::imported(Spec::new(Level::Raid1), &[1_000_448; 2]).expect("a mirror");
    assert_eq!(mirror.size_bytes(), 1_000_448);
    let spec = Spec { chunk_bytes: 4096, ..Spec::new(Level::Concat) };
    let concat = Geometry::imported(spec, &[1_000_448, 512, 70_144]).expect("a concat");
    assert_eq!(concat.size_bytes(), 1_000_448 + 512 + 70_144);
    let piece = concat.locate(1_000_448);
    assert_eq!((piece.member, piece.member_offset, piece.len), (1, 0, 512));
    let spec = Spec { layout: Layout::Far, copies: 3, ..Spec::new(Level::Raid10) };
    assert!(Geometry::imported(spec, &[2 * 65_536; 4]).is_err(), "fewer rows than copies");
}
