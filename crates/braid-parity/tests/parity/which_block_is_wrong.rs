//! Checks that the damaged block of a raid6 stripe is found, and that damage of a raid5 stripe is detected.

use crate::common::{Numbers, naive_pq, power, slices, times};
use braid_parity::{Parity, StripeDamage};

fn stripe(numbers: &mut Numbers, width: usize, len: usize) -> (Vec<Vec<u8>>, Vec<u8>, Vec<u8>) {
    let data = numbers.blocks(width, len);
    let (p, q) = naive_pq(&data, len);
    (data, p, q)
}

/// Changes some bytes of a block: one, a few, or all.
fn damage(numbers: &mut Numbers, block: &mut [u8]) {
    let changes = [1, 2 + numbers.below(5), block.len()][numbers.below(3)];
    let from = numbers.below(block.len() - changes.min(block.len()) + 1);
    for byte in block[from..].iter_mut().take(changes) {
        *byte ^= 1 + numbers.below(255) as u8;
    }
}

#[test]
fn single_damaged_block_is_found() {
    for parity in Parity::available() {
        let mut numbers = Numbers(21);
        for width in (1..=12).chain([31, 64, 126, 254, 255]) {
            for len in [1, 31, 33, 512, 700, 4096] {
                let (mut data, mut p, mut q) = stripe(&mut numbers, width, len);
                assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::None);
                assert!(parity.agrees(&p, &slices(&data)));

                let i = numbers.below(width);
                let good = data[i].clone();
                damage(&mut numbers, &mut data[i]);
                assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::Data(i), "{parity:?}: {width} of {len}");
                assert!(!parity.agrees(&p, &slices(&data)));
                data[i] = good;

                let good = p.clone();
                damage(&mut numbers, &mut p);
                assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::P, "{parity:?}: {width} of {len}");
                assert!(!parity.agrees(&p, &slices(&data)));
                p = good;

                damage(&mut numbers, &mut q);
                assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::Q, "{parity:?}: {width} of {len}");
            }
        }
    }
}

/// An empty data block counts as zeros in a check, as it does when P and Q are computed.
#[test]
fn empty_blocks_count_as_zeros() {
    for parity in Parity::available() {
        let mut numbers = Numbers(22);
        let mut data = numbers.blocks(6, 333);
        data[1].clear();
        data[5].clear();
        let (p, q) = naive_pq(&data, 333);
        assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::None);
        damage(&mut numbers, &mut data[4]);
        assert_eq!(parity.check(&p, &q, &slices(&data)), StripeDamage::Data(4));
    }
}

/// P and Q are damaged as if a block were damaged that is empty or does not exist in the stripe: no block is reported.
#[test]
fn empty_or_absent_block_is_never_reported() {
    for parity in Parity::available() {
        let mut numbers = Numbers(25);
        for width in 1..=40 {
            let mut data = numbers.blocks(width + 1, 200);
            data[width / 2].clear();
            for wrong in [width / 2, width, width + 1, 254] {
                let (mut p, mut q) = naive_pq(&data[..width], 200);
                for at in [3, 150] {
                    p[at] ^= 0x5a;
                    q[at] ^= times(power(wrong), 0x5a);
                }
                let found = parity.check(&p, &q, &slices(&data[..width]));
                assert_eq!(found, StripeDamage::Multiple, "{wrong} of {width}");
            }
        }
    }
}

/// Two damaged blocks are always detected, and with many damaged bytes never reported as a single one.
#[test]
fn two_damaged_blocks_are_detected() {
    for parity in Parity::available() {
        let mut numbers = Numbers(23);
        let (mut misattributed, rounds) = (0, 3000);
        for round in 0..rounds {
            let width = 2 + numbers.below(8);
            let (mut data, mut p, mut q) = stripe(&mut numbers, width, 96);
            let (a, b) = (numbers.below(width + 2), numbers.below(width + 2));
            if a == b {
                continue;
            }
            // Even rounds damage a single byte, for which a wrong block can be reported. Odd rounds damage the whole block.
            let at = numbers.below(96);
            for i in [a, b] {
                let change = 1 + numbers.below(255) as u8;
                let block = data.iter_mut().chain([&mut p, &mut q]).nth(i).expect("a block of the stripe");
                let range = if round % 2 == 0 { at..at + 1 } else { 0..96 };
                for (k, byte) in block[range].iter_mut().enumerate() {
                    *byte ^= if k == 0 { change } else { 1 + numbers.below(255) as u8 };
                }
            }
            let found = parity.check(&p, &q, &slices(&data));
            assert_ne!(found, StripeDamage::None, "round {round}");
            if round % 2 == 1 {
                assert_eq!(found, StripeDamage::Multiple, "round {round}: {a} and {b} of {width}");
            }
            misattributed += u32::from(found != StripeDamage::Multiple);
        }
        // About 6 / 255 of the even rounds report a wrong block. If none did, the test would not cover this case.
        assert!((5..150).contains(&misattributed), "{misattributed} of {rounds}");
    }
}

/// Two blocks are damaged at different byte offsets: no change of a single block makes the stripe agree.
#[test]
fn damage_at_different_offsets_of_two_blocks_is_several() {
    for parity in Parity::available() {
        let mut numbers = Numbers(24);
        let (data, p, q) = stripe(&mut numbers, 5, 4096);
        for (a, b) in (0..7).flat_map(|a| (0..7).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let (mut data, mut p, mut q) = (data.clone(), p.clone(), q.clone());
            for (i, at) in [(a, 17), (b, 4000)] {
                let block = data.iter_mut().chain([&mut p, &mut q]).nth(i).expect("a block of the stripe");
                block[at] ^= 0x80;
            }
            let found = parity.check(&p, &q, &slices(&data));
            assert_eq!(found, StripeDamage::Multiple, "{a} and {b}");
        }
    }
}
