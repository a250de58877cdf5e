//! Blocks that say who they are, so that one that went astray names itself.
//!
//! Every 512 bytes of a device are a unit: the byte offset of the unit on the device, the run's seed, then words that both
//! determine. The seed counts a block's writes, so that each puts something else there. A unit of another place, of another
//! run, of an earlier write, torn or overwritten is told from the right one.

use std::fmt;

/// Bytes of one unit.
pub const UNIT_BYTES: usize = 512;

/// The bits of a seed that tell runs apart; those above are the number of the run's load, then the count of a block's
/// writes by that load.
const RUN: u64 = (1 << LOAD_SHIFT) - 1;
const LOAD_SHIFT: u32 = 40;
const GENERATION_SHIFT: u32 = 56;

/// A number for a run that none before it had: the number of the process is not enough, as in a container every run may have
/// the same, and would take for right what another one wrote.
pub fn new_run() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let mut mixed = std::hash::RandomState::new().build_hasher();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    mixed.write_u128(now.as_nanos());
    mixed.write_u32(std::process::id());
    mixed.finish() & RUN
}

/// The seed of the blocks of one load of a run. Each load counts a block's writes from 1: without a number of its own, what an
/// earlier load wrote would pass for a write of this one that was lost.
#[inline]
pub fn seed_of_load(run: u64, load: u32) -> u64 {
    run & RUN | u64::from(load as u16) << LOAD_SHIFT
}

/// The seed of a block that was written so many times by the load of this seed, whose upper eight bits are 0.
#[inline]
pub fn seed_of(load: u64, generation: u8) -> u64 {
    load | u64::from(generation) << GENERATION_SHIFT
}

/// What a wrong unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Byte offset on the device at which the unit was read.
    pub offset: u64,
    /// What it says of itself.
    pub found: Found,
}

/// What a unit that is not the expected one says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Only zeros.
    Zeros,
    /// Whole, but of this other offset of the same run: it went astray.
    OtherPlace(u64),
    /// Whole, and what this run wrote here earlier: a later write was lost.
    Older,
    /// Whole, but of another run.
    OtherRun,
    /// Its beginning is right, and word number `.0` is not.
    Torn(usize),
    /// Nothing that this wrote.
    Foreign,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: ", self.offset)?;
        match self.found {
            Found::Zeros => write!(f, "zeros where written data should be"),
            Found::OtherPlace(place) => write!(f, "the data of byte {place}"),
            Found::Older => write!(f, "what stood here before a write that was answered"),
            Found::OtherRun => write!(f, "data of an earlier run"),
            Found::Torn(word) => write!(f, "torn from byte {} on", word * 8),
            Found::Foreign => write!(f, "data that was not written here"),
        }
    }
}

#[inline]
fn word(seed: u64, offset: u64, index: usize) -> u64 {
    match index {
        0 => offset,
        1 => seed,
        _ => (offset ^ seed.rotate_left(17)).wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// Fills `data` with the units that belong at `offset` in the run of `seed`.
///
/// # Panics
/// When the length is no multiple of [`UNIT_BYTES`].
pub fn fill(data: &mut [u8], offset: u64, seed: u64) {
    assert_eq!(data.len() % UNIT_BYTES, 0, "whole units only");
    for (unit, place) in data.chunks_exact_mut(UNIT_BYTES).zip((offset..).step_by(UNIT_BYTES)) {
        for (index, bytes) in unit.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&word(seed, place, index).to_le_bytes());
        }
    }
}

/// The first unit of `data`, read at `offset`, that is not what [`fill`] puts there.
pub fn check(data: &[u8], offset: u64, seed: u64) -> Option<Mismatch> {
    for (unit, place) in data.chunks_exact(UNIT_BYTES).zip((offset..).step_by(UNIT_BYTES)) {
        let read =
            |index: usize| u64::from_le_bytes(unit[index * 8..][..8].try_into().expect("eight bytes are eight bytes"));
        let fits = |seed, place| (0..UNIT_BYTES / 8).find(|&index| read(index) != word(seed, place, index));
        let Some(bad_word) = fits(seed, place) else { continue };
        let found = if unit.iter().all(|&byte| byte == 0) {
            Found::Zeros
        } else if fits(read(1), read(0)).is_none() {
            match read(1) {
                same if same & RUN == seed & RUN && read(0) != place => Found::OtherPlace(read(0)),
                same if same & RUN == seed & RUN => Found::Older,
                _ => Found::OtherRun,
            }
        } else if bad_word >= 2 {
            Found::Torn(bad_word)
        } else {
            Found::Foreign
        };
        return Some(Mismatch { offset: place, found });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(offset: u64, seed: u64) -> Vec<u8> {
        let mut data = vec![0; 4096];
        fill(&mut data, offset, seed);
        data
    }

    #[test]
    fn a_lost_write_leaves_what_stood_there_before() {
        let older = block(8192, seed_of(5, 1));
        assert_eq!(check(&older, 8192, seed_of(5, 1)), None);
        assert_eq!(check(&older, 8192, seed_of(5, 2)).map(|m| m.found), Some(Found::Older));
        assert_eq!(check(&older, 4096, seed_of(5, 2)).map(|m| m.found), Some(Found::OtherPlace(8192)));
        assert_eq!(check(&older, 8192, seed_of(6, 1)).map(|m| m.found), Some(Found::OtherRun));
    }

    #[test]
    fn a_write_that_a_later_load_lost_does_not_pass_for_its_own() {
        let before = block(8192, seed_of(seed_of_load(5, 0), 1));
        let found = |seed: u64| check(&before, 8192, seed).map(|m| m.found);
        assert_eq!(found(seed_of(seed_of_load(5, 0), 1)), None);
        assert_eq!(found(seed_of(seed_of_load(5, 1), 1)), Some(Found::Older));
        assert_eq!(found(seed_of(seed_of_load(6, 0), 1)), Some(Found::OtherRun));
    }

    #[test]
    fn no_two_runs_have_the_same_number() {
        assert_ne!(new_run(), new_run());
        assert_eq!(new_run() >> LOAD_SHIFT, 0);
    }

    #[test]
    fn a_right_block_is_right_and_each_kind_of_wrong_one_is_named() {
        let right = block(8192, 5);
        assert_eq!(check(&right, 8192, 5), None);
        let found = |data: &[u8]| check(data, 8192, 5).map(|m| (m.offset, m.found));
        assert_eq!(found(&[0; 4096]), Some((8192, Found::Zeros)));
        assert_eq!(found(&block(4096, 5)), Some((8192, Found::OtherPlace(4096))));
        assert_eq!(found(&block(8192, 4)), Some((8192, Found::OtherRun)));
        assert_eq!(found(&[7; 4096]), Some((8192, Found::Foreign)));
        let mut torn = right.clone();
        torn[512 + 256..1024].fill(0);
        assert_eq!(found(&torn), Some((8704, Found::Torn(32))));
    }
}
