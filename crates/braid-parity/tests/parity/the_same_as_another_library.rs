//! Compares P, Q and recovered blocks with `rusty_erasure`, which computes as Intel's ISA-L does: an independent library over the
//! same field.

use crate::common::{Numbers, lengths, slices};
use braid_parity::{BlockRole, Parity, StripeDamage};
use rusty_erasure::raid::{pq_check, pq_gen, xor_gen};
use rusty_erasure::{Coder, Matrix, gf};

#[test]
fn p_and_q() {
    for parity in Parity::available() {
        let mut numbers = Numbers(31);
        for len in lengths().filter(|len| *len > 0) {
            let width = 2 + numbers.below(30);
            let data = numbers.blocks(width, len);
            let data = slices(&data);
            let (mut p, mut q, mut x) = (vec![0; len], vec![0; len], vec![0; len]);
            pq_gen(&data, &mut p, &mut q).expect("two sources and more");
            xor_gen(&data, &mut x).expect("two sources and more");
            let (mut our_p, mut our_q, mut our_x) = (vec![1; len], vec![1; len], vec![1; len]);
            parity.pq(&mut our_p, &mut our_q, &data);
            parity.xor(&mut our_x, &data);
            assert!(our_p == p && our_q == q && our_x == x, "{parity:?}: {width} of {len}");
        }
    }
}

/// The other library's check accepts this crate's stripes after updates, and this crate's check accepts its stripes.
#[test]
fn updates() {
    for parity in Parity::available() {
        let mut numbers = Numbers(32);
        for _ in 0..300 {
            let (width, len) = (2 + numbers.below(125), 1 + numbers.below(600));
            let mut data = numbers.blocks(width, len);
            let (mut p, mut q) = (vec![0; len], vec![0; len]);
            pq_gen(&slices(&data), &mut p, &mut q).expect("two sources and more");
            assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::None);
            let i = numbers.below(width);
            let new = numbers.bytes(len);
            parity.update(&mut p, &mut q, i, &data[i], &new);
            data[i] = new;
            assert_eq!(pq_check(&slices(&data), &p, &q), Ok(None), "{parity:?}: block {i} of {width}");
        }
    }
}

/// Returns the coder with the matrix of raid6: the identity, a row of ones, and a row of powers of 2.
fn coder(width: usize) -> Coder {
    let mut rows = vec![0; (width + 2) * width];
    let mut power = 1;
    for i in 0..width {
        rows[i * width + i] = 1;
        rows[width * width + i] = 1;
        rows[(width + 1) * width + i] = power;
        power = gf::mul(power, 2);
    }
    Coder::new(Matrix::from_bytes(width + 2, width, rows).expect("a matrix")).expect("a matrix of a code")
}

/// Compares recovery: the other library inverts the matrix of the surviving blocks, while this crate has a formula for each case.
#[test]
fn every_pair_of_losses() {
    let mut numbers = Numbers(33);
    for width in (1..=8).chain([15, 32, 100]) {
        let (coder, len) = (coder(width), 261);
        let data = numbers.blocks(width, len);
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        coder.encode(&slices(&data), &mut [&mut p, &mut q]).expect("a stripe");
        let stripe: Vec<&[u8]> = data.iter().chain([&p, &q]).map(Vec::as_slice).collect();
        let all_pairs = (0..stripe.len()).flat_map(|a| (0..stripe.len()).map(move |b| (a, b))).filter(|(a, b)| a != b);
        for (a, b) in all_pairs.step_by(if width > 15 { 37 } else { 1 }) {
            let surviving: Vec<Option<&[u8]>> =
                (0..stripe.len()).map(|i| (i != a && i != b).then_some(stripe[i])).collect();
            let (mut theirs_a, mut theirs_b) = (vec![0; len], vec![0; len]);
            coder.recover(&surviving, &[a, b], &mut [&mut theirs_a, &mut theirs_b]).expect("two may be lost");
            let role = |i: usize| match i - width.min(i) {
                0 if i < width => BlockRole::Data(i),
                0 => BlockRole::P,
                _ => BlockRole::Q,
            };
            let surviving: Vec<&[u8]> = surviving.into_iter().map(Option::unwrap_or_default).collect();
            for parity in Parity::available() {
                let (mut ours_a, mut ours_b) = (vec![1; len], vec![1; len]);
                let mut lost = [(role(a), &mut ours_a[..]), (role(b), &mut ours_b[..])];
                parity
                    .recover(&surviving[..width], surviving[width], surviving[width + 1], &mut lost)
                    .expect("two may be lost");
                assert!(ours_a == theirs_a && ours_b == theirs_b, "{parity:?}: {a} and {b} of {width}");
            }
        }
    }
}
