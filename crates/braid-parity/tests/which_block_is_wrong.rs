//! A row of raid6 names the one block of it that is wrong, and one of raid5 that there is one.

mod common;

use braid_parity::{Damage, Parity};
use common::{Numbers, naive_pq, power, slices, times};

fn row(numbers: &mut Numbers, width: usize, len: usize) -> (Vec<Vec<u8>>, Vec<u8>, Vec<u8>) {
    let data = numbers.blocks(width, len);
    let (p, q) = naive_pq(&data, len);
    (data, p, q)
}

/// Changes some bytes: one, a few, or all.
fn damage(numbers: &mut Numbers, block: &mut [u8]) {
    let changes = [1, 2 + numbers.below(5), block.len()][numbers.below(3)];
    let from = numbers.below(block.len() - changes.min(block.len()) + 1);
    for byte in block[from..].iter_mut().take(changes) {
        *byte ^= 1 + numbers.below(255) as u8;
    }
}

#[test]
fn any_single_block_is_named() {
    for parity in Parity::available() {
        let mut numbers = Numbers(21);
        for width in (1..=12).chain([31, 64, 126, 254, 255]) {
            for len in [1, 31, 33, 512, 700, 4096] {
                let (mut data, mut p, mut q) = row(&mut numbers, width, len);
                assert_eq!(parity.check(&p, &q, &slices(&data)), Damage::None);
                assert!(parity.agrees(&p, &slices(&data)));

                let i = numbers.below(width);
                let good = data[i].clone();
                damage(&mut numbers, &mut data[i]);
                assert_eq!(parity.check(&p, &q, &slices(&data)), Damage::Data(i), "{parity:?}: {width} of {len}");
                assert!(!parity.agrees(&p, &slices(&data)));
                data[i] = good;

                let good = p.clone();
                damage(&mut numbers, &mut p);
                assert_eq!(parity.check(&p, &q, &slices(&data)), Damage::P, "{parity:?}: {width} of {len}");
                assert!(!parity.agrees(&p, &slices(&data)));
                p = good;

                damage(&mut numbers, &mut q);
                assert_eq!(parity.check(&p, &q, &slices(&data)), Damage::Q, "{parity:?}: {width} of {len}");
            }
        }
    }
}

/// What stands in a row where a block is absent is zeros, for the check as for P and Q.
#[test]
fn empty_blocks_are_zeros_and_never_wrong() {
    for parity in Parity::available() {
        let mut numbers = Numbers(22);
        let mut data = numbers.blocks(6, 333);
        data[1].clear();
        data[5].clear();
        let (p, q) = naive_pq(&data, 333);
        assert_eq!(parity.check(&p, &q, &slices(&data)), Damage::None);
        damage(&mut numbers, &mut data[4]);
        assert_eq!(parity.check(&p, &q, &slices(&data)), Damage::Data(4));
    }
}

/// P and Q, both wrong, as if a block were that the row does not have, or has as zeros: no block is named.
#[test]
fn a_block_that_is_not_there_is_never_named() {
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
                assert_eq!(found, Damage::Several, "{wrong} of {width}");
            }
        }
    }
}

/// Two wrong blocks: never called right; and with many wrong bytes never blamed on one.
#[test]
fn two_wrong_blocks_are_seen() {
    for parity in Parity::available() {
        let mut numbers = Numbers(23);
        let (mut blamed, rounds) = (0, 3000);
        for round in 0..rounds {
            let width = 2 + numbers.below(8);
            let (mut data, mut p, mut q) = row(&mut numbers, width, 96);
            let (a, b) = (numbers.below(width + 2), numbers.below(width + 2));
            if a == b {
                continue;
            }
            // In even rounds a single byte, which can be mistaken; in odd ones all of the block.
            let at = numbers.below(96);
            for i in [a, b] {
                let change = 1 + numbers.below(255) as u8;
                let block = data.iter_mut().chain([&mut p, &mut q]).nth(i).expect("a block of the row");
                let range = if round % 2 == 0 { at..at + 1 } else { 0..96 };
                for (k, byte) in block[range].iter_mut().enumerate() {
                    *byte ^= if k == 0 { change } else { 1 + numbers.below(255) as u8 };
                }
            }
            let found = parity.check(&p, &q, &slices(&data));
            assert_ne!(found, Damage::None, "round {round}");
            if round % 2 == 1 {
                assert_eq!(found, Damage::Several, "round {round}: {a} and {b} of {width}");
            }
            blamed += u32::from(found != Damage::Several);
        }
        // About one in 255 / 6 of the even rounds, and there must be some: else this test would not know the danger.
        assert!((5..150).contains(&blamed), "{blamed} of {rounds}");
    }
}

/// Each block is wrong at one byte of its own: no single one explains it.
#[test]
fn damage_at_different_places_of_two_blocks_is_several() {
    for parity in Parity::available() {
        let mut numbers = Numbers(24);
        let (data, p, q) = row(&mut numbers, 5, 4096);
        for (a, b) in (0..7).flat_map(|a| (0..7).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let (mut data, mut p, mut q) = (data.clone(), p.clone(), q.clone());
            for (i, at) in [(a, 17), (b, 4000)] {
                let block = data.iter_mut().chain([&mut p, &mut q]).nth(i).expect("a block of the row");
                block[at] ^= 0x80;
            }
            let found = parity.check(&p, &q, &slices(&data));
            assert_eq!(found, Damage::Several, "{a} and {b}");
        }
    }
}
