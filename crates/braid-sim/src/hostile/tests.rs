use super::array::{self, starts};
use super::edits::{Edit, Target, random_edits};
use super::pool::{self, openings, use_pool};
use crate::rng::Rng;

const ALL: u8 = 0x80;

fn set(kind: u8, index: u16, offset: u16, width: u8, value: u64) -> Vec<u8> {
    Edit { kind, which: ALL, index, offset, width, adds: false, value }.bytes().to_vec()
}

#[test]
fn a_sound_pool_opens_and_opens_again() {
    assert_eq!(openings(&[]), 2);
}

/// Found by hand: a commit of 2^63 - 1 was accepted, and the first write panicked.
#[test]
fn pool_counters_near_their_limit_are_refused() {
    // Fields of the checkpoints: session, sequence, commit, mark, generation.
    for offset in [16, 32, 40, 48, 56] {
        for value in [u64::MAX, u64::MAX / 2, 1 << 62 | 1] {
            assert_eq!(openings(&set(1, 0, offset, 8, value)), 0, "the field at byte {offset} is {value}");
        }
    }
    // The largest accepted value leaves room for a session.
    for offset in [16, 40, 48] {
        assert!(openings(&set(1, 0, offset, 8, (1 << 62) - (1 << 20))) <= 2, "the field at byte {offset}");
    }
}

#[test]
fn a_sound_array_starts_and_starts_again() {
    assert_eq!(starts(&[]), 2);
}

/// Regions whose size is no power of two or 0, or that are too many to have a number or a place; counters of labels
/// and journal heads at their maximum.
#[test]
fn array_numbers_near_their_limit_are_refused() {
    for (kind, offset, width, value) in [
        (0, 148, 4, 12288),
        (0, 148, 4, 0),
        (0, 152, 8, 1 << 60),
        (0, 56, 8, u64::MAX),
        (0, 56, 8, u64::MAX / 2),
        (0, 56, 8, 1 << 62),
        (0, 248, 8, u64::MAX),
        (2, 24, 8, u64::MAX / 2),
        (2, 40, 8, u64::MAX),
    ] {
        assert!(starts(&set(kind, 0, offset, width, value)) < 2, "structure {kind}, byte {offset}: {value}");
    }
}

#[test]
fn hostile_arrays_are_refused_or_used() {
    try_many(array::TARGETS, starts);
}

#[test]
fn hostile_pools_are_refused_or_used() {
    try_many(pool::TARGETS, openings);
    use_pool(&[]);
}

/// `BRAID_HOSTILE_SEEDS=N` tries N seeds.
fn try_many(targets: &[Target], openings: fn(&[u8]) -> u32) {
    let seeds = std::env::var("BRAID_HOSTILE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1500u64);
    let mut opened = [0u32; 3];
    for seed in 0..seeds {
        let data = random_edits(&mut Rng::new(seed), targets);
        let used = std::panic::catch_unwind(|| openings(&data));
        let used = used.unwrap_or_else(|_| panic!("seed {seed}: {:x?}", Edit::all(&data).collect::<Vec<_>>()));
        opened[used as usize] += 1;
    }
    // Many inputs of each kind: otherwise the test proves nothing.
    println!("{opened:?}");
    assert!(u64::from(opened[0]) > seeds / 10 && u64::from(opened[2]) > seeds / 10, "{opened:?}");
}
