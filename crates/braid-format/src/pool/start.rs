//! The start of a member's ring: from which batch on the ring counts, and what the tables held when it was written.
//!
//! Two places take turns, so that a torn one leaves the one before.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{RING_BLOCKS_MAX, offsets};
use crate::BLOCK_BYTES;
use crate::journal::NUMBER_MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"BRPS");
/// Bytes of a ring start: one block.
pub const RING_START_BYTES: usize = BLOCK_BYTES as usize;

/// A ring start, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawStart {
    magic: U32,
    /// CRC-32C of everything behind it.
    crc: U32,
    /// The first four bytes of the pool's UUID.
    tag: U32,
    position: U32,
    session: U64,
    run: U64,
    sequence: U64,
    commit: U64,
    mark: U64,
    generation: U64,
    /// Zero.
    reserved: [u8; 4032],
}

offsets!(RawStart: magic 0, crc 4, tag 8, position 12, session 16, run 24, sequence 32, commit 40, mark 48, generation 56, reserved 64);
const _: () = assert!(size_of::<RawStart>() == RING_START_BYTES);
/// Where the checksum stands.
const CRC: std::ops::Range<usize> = 4..8;

/// A ring start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingStart {
    /// Of which pool ([`super::pool_tag`]).
    pub pool_tag: u32,
    /// Of which of its sessions.
    pub session: u64,
    /// Random id of the run that the batches are of; never 0.
    pub run: u64,
    /// The number of the first batch that counts, from 1.
    pub sequence: u64,
    /// Where that batch stands in the ring, in blocks.
    pub position: u32,
    /// The last commit that the tables hold; 0: none.
    pub commit: u64,
    /// The number of the last unit of the pool's sequence that is covered by that commit; 0: none.
    pub mark: u64,
    /// Raised by one with every start that is written; from 1. The highest one counts.
    pub generation: u64,
}

/// Why bytes are no ring start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// There is none here.
    #[error("there is no ring start here")]
    NoMagic,
    /// The bytes changed after they were written, or were written in part.
    #[error("the ring start's checksum is wrong")]
    Checksum,
    /// The checksum is right, and a field makes no sense.
    #[error("the ring start makes no sense: {0}")]
    Sense(&'static str),
}

/// Which of the two places a start of this generation is written to: the one that the generation before is not in.
pub const fn start_slot(generation: u64) -> u64 {
    generation % 2
}

impl RingStart {
    fn problem(&self) -> Option<&'static str> {
        let numbers = [self.sequence, self.generation];
        let problems = [
            (self.run == 0, "its run is 0"),
            (numbers.iter().any(|number| *number == 0 || *number > NUMBER_MAX), "a number is none"),
            (self.commit > NUMBER_MAX, "its commit is none"),
            (self.position >= RING_BLOCKS_MAX, "its place is in no ring"),
        ];
        problems.into_iter().find_map(|(wrong, problem)| wrong.then_some(problem))
    }

    /// Whether decoding would accept it.
    pub fn is_sound(&self) -> bool {
        self.problem().is_none()
    }

    /// Its block.
    ///
    /// # Panics
    /// When it is not sound.
    pub fn encode(&self) -> [u8; RING_START_BYTES] {
        let problem = self.problem();
        assert!(problem.is_none(), "a ring start that cannot be read back: {problem:?}: {self:?}");
        let raw = RawStart {
            magic: U32::new(MAGIC),
            crc: U32::ZERO,
            tag: U32::new(self.pool_tag),
            position: U32::new(self.position),
            session: U64::new(self.session),
            run: U64::new(self.run),
            sequence: U64::new(self.sequence),
            commit: U64::new(self.commit),
            mark: U64::new(self.mark),
            generation: U64::new(self.generation),
            reserved: [0; 4032],
        };
        let mut bytes: [u8; RING_START_BYTES] = zerocopy::transmute!(raw);
        let crc = crc32c::crc32c(&bytes[CRC.end..]);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a block. That it is of this pool is for the caller to see.
    ///
    /// # Errors
    /// When there is none, or it is damaged or nonsense.
    pub fn decode(bytes: &[u8; RING_START_BYTES]) -> Result<RingStart, StartError> {
        let raw: &RawStart = zerocopy::transmute_ref!(bytes);
        if raw.magic.get() != MAGIC {
            return Err(StartError::NoMagic);
        }
        if raw.crc.get() != crc32c::crc32c(&bytes[CRC.end..]) {
            return Err(StartError::Checksum);
        }
        let start = RingStart {
            pool_tag: raw.tag.get(),
            session: raw.session.get(),
            run: raw.run.get(),
            sequence: raw.sequence.get(),
            position: raw.position.get(),
            commit: raw.commit.get(),
            mark: raw.mark.get(),
            generation: raw.generation.get(),
        };
        match start.problem() {
            Some(problem) => Err(StartError::Sense(problem)),
            None if raw.reserved != [0; 4032] => Err(StartError::Sense("its unused bytes are not zero")),
            None => Ok(start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Edit<'a> = &'a dyn Fn(&mut RawStart);

    const START: RingStart = RingStart {
        pool_tag: u32::from_le_bytes(*b"brai"),
        session: 4,
        run: 0x1122_3344_5566_7788,
        sequence: 12,
        position: RING_BLOCKS_MAX - 1,
        commit: 7,
        mark: 99,
        generation: 3,
    };

    #[test]
    fn starts_come_back() {
        let first = RingStart { session: 0, sequence: 1, position: 0, commit: 0, mark: 0, generation: 1, ..START };
        for start in [START, first, RingStart { mark: u64::MAX, session: u64::MAX, ..START }] {
            assert_eq!(RingStart::decode(&start.encode()), Ok(start));
        }
        assert_eq!(RingStart::decode(&[0; RING_START_BYTES]), Err(StartError::NoMagic));
        assert_eq!((start_slot(1), start_slot(2), start_slot(3)), (1, 0, 1));
    }

    #[test]
    fn every_bit_that_changes_is_noticed() {
        let mut bytes = START.encode();
        for bit in 0..RING_START_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(RingStart::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_torn_start_is_noticed() {
        let (old, new) = (RingStart { generation: 1, sequence: 1, ..START }.encode(), START.encode());
        for old in [[0; RING_START_BYTES], old] {
            for n in 0..8 {
                let mut torn = old;
                torn[..n * 512].copy_from_slice(&new[..n * 512]);
                // Only the first sector differs: the others are zeros.
                let whole = torn == old || torn == new;
                assert!(whole || RingStart::decode(&torn).is_err(), "{n} sectors arrived");
            }
        }
    }

    #[test]
    fn starts_without_sense_are_refused() {
        let refused = |change: &dyn Fn(&mut RawStart)| {
            let mut bytes = START.encode();
            change(RawStart::mut_from_bytes(&mut bytes).unwrap());
            let crc = crc32c::crc32c(&bytes[8..]);
            bytes[CRC].copy_from_slice(&crc.to_le_bytes());
            RingStart::decode(&bytes).err()
        };
        assert_eq!(refused(&|_| ()), None);
        let cases: [(Edit<'_>, &str); 8] = [
            (&|raw| raw.run.set(0), "run"),
            (&|raw| raw.sequence.set(0), "number"),
            (&|raw| raw.sequence.set(u64::MAX), "number"),
            (&|raw| raw.generation.set(0), "number"),
            (&|raw| raw.generation.set(u64::MAX), "number"),
            (&|raw| raw.commit.set(u64::MAX), "commit"),
            (&|raw| raw.position.set(RING_BLOCKS_MAX), "place"),
            (&|raw| raw.reserved[4031] = 1, "unused"),
        ];
        for (k, (change, reason)) in cases.into_iter().enumerate() {
            match refused(change) {
                Some(StartError::Sense(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
    }
}
