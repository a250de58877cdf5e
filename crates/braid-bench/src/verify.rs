//! Blocks of self-describing content, which identifies misdirected, lost and torn writes.
//!
//! Every 512 bytes of a device are a unit: the byte offset of the unit on the device, the seed, then words that both determine. The seed
//! contains the number of the block's write, so that each write has other content. A unit of another offset, of another run or of an earlier
//! write, a torn unit and an overwritten unit are distinguished from the expected one.

use std::fmt;

/// The size of a unit in bytes.
pub const UNIT_BYTES: usize = 512;

/// The bits of a seed that identify the run. The bits above are the number of the load in the run, then the number of the block's write by
/// that load.
const RUN: u64 = (1 << LOAD_SHIFT) - 1;
const LOAD_SHIFT: u32 = 40;
const GENERATION_SHIFT: u32 = 56;

/// Returns a random number for a run. A process id would not do: in a container every run may have the same one, and would accept what
/// another run wrote.
pub fn new_run() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    let mut mixed = std::hash::RandomState::new().build_hasher();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    mixed.write_u128(now.as_nanos());
    mixed.write_u32(std::process::id());
    mixed.finish() & RUN
}

/// Returns the seed of one load of a run. Each load numbers the writes of a block from 1: without the number of the load, a block that an earlier
/// load wrote would be accepted in place of a lost write of this load.
#[inline]
pub fn seed_of_load(run: u64, load: u32) -> u64 {
    run & RUN | u64::from(load as u16) << LOAD_SHIFT
}

/// Returns the seed of write number `generation` of a block, given the seed of the load, whose upper eight bits are 0.
#[inline]
pub fn seed_of(load: u64, generation: u8) -> u64 {
    load | u64::from(generation) << GENERATION_SHIFT
}

/// A unit whose content is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Byte offset on the device at which the unit was read.
    pub offset: u64,
    /// What the unit holds instead.
    pub found: UnitContent,
}

/// What a mismatching unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitContent {
    /// Only zeros.
    Zeros,
    /// A whole unit of this other offset, of the same run: a misdirected write or read.
    OtherPlace(u64),
    /// A whole unit that this run wrote here earlier: a later write was lost.
    Older,
    /// A whole unit of another run.
    OtherRun,
    /// A unit whose beginning is right, up to word number `.0`: a torn write.
    Torn(usize),
    /// Content that was not written by this generator.
    Foreign,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: ", self.offset)?;
        match self.found {
            UnitContent::Zeros => write!(f, "zeros where written data should be"),
            UnitContent::OtherPlace(place) => write!(f, "the data of byte {place}"),
            UnitContent::Older => write!(f, "the content before a completed write"),
            UnitContent::OtherRun => write!(f, "data of an earlier run"),
            UnitContent::Torn(word) => write!(f, "torn from byte {} on", word * 8),
            UnitContent::Foreign => write!(f, "data that was not written here"),
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

/// Fills `data` with the units of `offset` and `seed`.
///
/// # Panics
/// The length is not a multiple of [`UNIT_BYTES`].
pub fn fill(data: &mut [u8], offset: u64, seed: u64) {
    assert_eq!(data.len() % UNIT_BYTES, 0, "whole units only");
    for (unit, place) in data.chunks_exact_mut(UNIT_BYTES).zip((offset..).step_by(UNIT_BYTES)) {
        for (index, bytes) in unit.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&word(seed, place, index).to_le_bytes());
        }
    }
}

/// Returns the first unit of `data`, read at `offset`, that differs from what [`fill`] writes.
pub fn check(data: &[u8], offset: u64, seed: u64) -> Option<Mismatch> {
    for (unit, place) in data.chunks_exact(UNIT_BYTES).zip((offset..).step_by(UNIT_BYTES)) {
        let read =
            |index: usize| u64::from_le_bytes(unit[index * 8..][..8].try_into().expect("eight bytes are eight bytes"));
        let fits = |seed, place| (0..UNIT_BYTES / 8).find(|&index| read(index) != word(seed, place, index));
        let Some(bad_word) = fits(seed, place) else { continue };
        let found = if unit.iter().all(|&byte| byte == 0) {
            UnitContent::Zeros
        } else if fits(read(1), read(0)).is_none() {
            match read(1) {
                same if same & RUN == seed & RUN && read(0) != place => UnitContent::OtherPlace(read(0)),
                same if same & RUN == seed & RUN => UnitContent::Older,
                _ => UnitContent::OtherRun,
            }
        } else if bad_word >= 2 {
            UnitContent::Torn(bad_word)
        } else {
            UnitContent::Foreign
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
    fn a_lost_write_leaves_the_older_content() {
        let older = block(8192, seed_of(5, 1));
        assert_eq!(check(&older, 8192, seed_of(5, 1)), None);
        assert_eq!(check(&older, 8192, seed_of(5, 2)).map(|m| m.found), Some(UnitContent::Older));
        assert_eq!(check(&older, 4096, seed_of(5, 2)).map(|m| m.found), Some(UnitContent::OtherPlace(8192)));
        assert_eq!(check(&older, 8192, seed_of(6, 1)).map(|m| m.found), Some(UnitContent::OtherRun));
    }

    #[test]
    fn a_write_of_an_earlier_load_does_not_hide_a_lost_write() {
        let before = block(8192, seed_of(seed_of_load(5, 0), 1));
        let found = |seed: u64| check(&before, 8192, seed).map(|m| m.found);
        assert_eq!(found(seed_of(seed_of_load(5, 0), 1)), None);
        assert_eq!(found(seed_of(seed_of_load(5, 1), 1)), Some(UnitContent::Older));
        assert_eq!(found(seed_of(seed_of_load(6, 0), 1)), Some(UnitContent::OtherRun));
    }

    #[test]
    fn no_two_runs_have_the_same_number() {
        assert_ne!(new_run(), new_run());
        assert_eq!(new_run() >> LOAD_SHIFT, 0);
    }

    #[test]
    fn a_right_block_passes_and_each_kind_of_mismatch_is_named() {
        let right = block(8192, 5);
        assert_eq!(check(&right, 8192, 5), None);
        let found = |data: &[u8]| check(data, 8192, 5).map(|m| (m.offset, m.found));
        assert_eq!(found(&[0; 4096]), Some((8192, UnitContent::Zeros)));
        assert_eq!(found(&block(4096, 5)), Some((8192, UnitContent::OtherPlace(4096))));
        assert_eq!(found(&block(8192, 4)), Some((8192, UnitContent::OtherRun)));
        assert_eq!(found(&[7; 4096]), Some((8192, UnitContent::Foreign)));
        let mut torn = right.clone();
        torn[512 + 256..1024].fill(0);
        assert_eq!(found(&torn), Some((8704, UnitContent::Torn(32))));
    }
}
