//! The checkpoint of a member's log ring: from which batch on recovery reads the ring, and what the tables held when
//! the checkpoint was written.
//!
//! Two slots are written alternately, so that a torn write leaves the previous checkpoint intact.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{RING_BLOCKS_MAX, offsets, pool_tag};
use crate::limits::Side;
use crate::{BLOCK_BYTES, MEMBERS_MAX};

const MAGIC: u32 = u32::from_le_bytes(*b"BRPS");
/// Size of a checkpoint, in bytes: one block.
pub const CHECKPOINT_BYTES: usize = BLOCK_BYTES as usize;
/// Maximum number of missing members that a pool can run without.
pub const MISSING_MAX: usize = 70;

/// A checkpoint, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCheckpoint {
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
    before: U64,
    parts: [U64; MEMBERS_MAX],
    absent: [RawMissingMember; MISSING_MAX],
    settled: U128,
    /// Zero.
    reserved: [u8; 184],
}

/// A missing member, little-endian. All zeros: none.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct RawMissingMember {
    member: u8,
    /// Zero.
    reserved: [u8; 7],
    run: U64,
    other: U64,
    commit: U64,
    needs: U64,
}

offsets!(RawCheckpoint: magic 0, crc 4, tag 8, position 12, session 16, run 24, sequence 32, commit 40, mark 48, generation 56,
    before 64, parts 72, absent 1096, settled 3896, reserved 3912);
offsets!(RawMissingMember: member 0, reserved 1, run 8, other 16, commit 24, needs 32);
const _: () = assert!(size_of::<RawMissingMember>() == 40);
const _: () = assert!(size_of::<RawCheckpoint>() == CHECKPOINT_BYTES);
/// Where the checksum is.
const CRC: std::ops::Range<usize> = 4..8;

/// A checkpoint of a member's log ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Checkpoint {
    /// The pool ([`super::pool_tag`]).
    pub pool_tag: u32,
    /// The number of the pool's session (from an open to the next) in which it was written, from 1.
    pub session: u64,
    /// Random id of the run of the ring's batches; never 0.
    pub run: u64,
    /// The sequence number of the first batch that recovery reads, from 1.
    pub sequence: u64,
    /// The position of that batch in the ring, in blocks.
    pub position: u32,
    /// The last commit that the tables hold; 0: none.
    pub commit: u64,
    /// The number of the last unit that this commit covers, in the pool's sequence of units; 0: none.
    pub mark: u64,
    /// Increases with every checkpoint; from 1. The checkpoint with the highest generation is current.
    pub generation: u64,
    /// The run before `run`, while some members may have no checkpoint of `run` yet; 0: all have one.
    pub previous_run: u64,
    /// For each member, the last commit, up to `commit`, that has batches on it; 0: none.
    pub last_commits: [u64; MEMBERS_MAX],
    /// The missing members, which the pool runs without.
    pub missing: MissingMembers,
    /// Meaningful if `previous_run` is not 0. Bit *i*: member *i* holds the outcome of the recovery that began this
    /// run, and the pool makes no commit in this run before member *i* has a checkpoint of it. So if such a member has
    /// none, nothing was committed in this run.
    pub hold_outcome: u128,
}

/// A decision of recovery about a missing member, which applies when the member returns: which checkpoint it must have,
/// and which commits of its ring are accepted. A member that does not match is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MissingMember {
    /// The member's number.
    pub member: u8,
    /// The run that the member's newest checkpoint must be of, unless it is of `alternative_run`; never 0.
    pub run: u64,
    /// Another run that the member's newest checkpoint may be of; 0: none.
    pub alternative_run: u64,
    /// The last accepted commit of `run`; [`COUNTER_MAX`](crate::limits::COUNTER_MAX): all its commits are accepted.
    pub commit: u64,
    /// The last accepted commit with batches on the member; 0: none. The member's tables or its ring must hold this
    /// commit.
    pub required_commit: u64,
}

/// The missing members of a pool, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MissingMembers {
    list: [MissingMember; MISSING_MAX],
    len: usize,
}

impl MissingMembers {
    /// No member is missing.
    pub const NONE: MissingMembers = MissingMembers {
        list: [MissingMember { member: 0, run: 0, alternative_run: 0, commit: 0, required_commit: 0 }; MISSING_MAX],
        len: 0,
    };

    /// Creates a list of these members, which must be in ascending order. `None` when there are more than
    /// [`MISSING_MAX`].
    pub fn new(of: &[MissingMember]) -> Option<MissingMembers> {
        let mut absences = MissingMembers { len: of.len(), ..MissingMembers::NONE };
        absences.list.get_mut(..of.len())?.copy_from_slice(of);
        Some(absences)
    }

    /// Returns the missing members.
    pub fn list(&self) -> &[MissingMember] {
        &self.list[..self.len]
    }

    /// Returns the entry of this member, if it is missing.
    pub fn get(&self, member: u8) -> Option<&MissingMember> {
        self.list().iter().find(|absence| absence.member == member)
    }

    fn problem(&self, side: Side) -> Option<&'static str> {
        let problems = [
            (!self.list().is_sorted_by(|a, b| a.member < b.member), "its absent members are in no order"),
            (self.list().iter().any(|absence| usize::from(absence.member) >= MEMBERS_MAX), "it speaks of no member"),
            (self.list().iter().any(|absence| absence.run == 0), "an absent member has no run"),
            (
                self.list().iter().any(|absence| absence.commit.max(absence.required_commit) > side.counter_max()),
                "a commit of an absent member is beyond all that Braid counts",
            ),
        ];
        problems.into_iter().find_map(|(wrong, problem)| wrong.then_some(problem))
    }
}

impl std::fmt::Debug for MissingMembers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

/// Why bytes are not a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is no checkpoint.
    #[error("there is no ring start here")]
    NoMagic,
    /// The bytes changed after they were written, or were written in part.
    #[error("the ring start's checksum is wrong")]
    Checksum,
    /// The checksum is right, but a field is invalid.
    #[error("the ring start makes no sense: {0}")]
    Invalid(&'static str),
}

impl CheckpointError {
    /// Returns whether the checksum is right, so that a torn write cannot be the cause.
    pub const fn is_invalid(&self) -> bool {
        matches!(self, CheckpointError::Invalid(_))
    }
}

/// Returns the slot to write a checkpoint of this generation to, 0 or 1: the one that does not hold the previous
/// generation.
pub const fn checkpoint_slot(generation: u64) -> u64 {
    generation % 2
}

impl Checkpoint {
    /// Returns the first checkpoint of every member of a new pool; `run` is random, the same on all members, and not 0.
    pub fn first(pool: &Uuid, run: u64) -> Checkpoint {
        Checkpoint {
            pool_tag: pool_tag(pool),
            session: 1,
            run,
            sequence: 1,
            position: 0,
            commit: 0,
            mark: 0,
            // An even generation is in the first slot.
            generation: 2,
            previous_run: 0,
            last_commits: [0; MEMBERS_MAX],
            missing: MissingMembers::NONE,
            hold_outcome: 0,
        }
    }

    fn problem(&self, side: Side) -> Option<&'static str> {
        let numbers = [self.sequence, self.generation, self.commit, self.mark, self.session];
        let problems = [
            (self.run == 0, "its run is 0"),
            (self.sequence == 0 || self.generation == 0, "a number is 0"),
            (
                numbers.iter().any(|number| *number > side.counter_max()),
                "its number, generation, commit, mark or session is beyond all that Braid counts",
            ),
            (self.position >= RING_BLOCKS_MAX, "its place is in no ring"),
            (
                self.last_commits.iter().any(|commit| *commit > self.commit),
                "a member has a part in a commit that is to come",
            ),
        ];
        let wrong = problems.into_iter().find_map(|(wrong, problem)| wrong.then_some(problem));
        wrong.or_else(|| self.missing.problem(side))
    }

    /// Returns whether decoding would accept the checkpoint.
    pub fn is_sound(&self) -> bool {
        self.problem(Side::Read).is_none()
    }

    /// Encodes the checkpoint.
    ///
    /// # Panics
    /// When the checkpoint is not sound.
    pub fn encode(&self) -> [u8; CHECKPOINT_BYTES] {
        let problem = self.problem(Side::Write);
        assert!(problem.is_none(), "a ring start that cannot be read back: {problem:?}: {self:?}");
        let raw = RawCheckpoint {
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
            before: U64::new(self.previous_run),
            parts: self.last_commits.map(U64::new),
            absent: self.missing.list.map(|absence| RawMissingMember {
                member: absence.member,
                reserved: [0; 7],
                run: U64::new(absence.run),
                other: U64::new(absence.alternative_run),
                commit: U64::new(absence.commit),
                needs: U64::new(absence.required_commit),
            }),
            settled: U128::new(self.hold_outcome),
            reserved: [0; 184],
        };
        let mut bytes: [u8; CHECKPOINT_BYTES] = zerocopy::transmute!(raw);
        let crc = crc32c::crc32c(&bytes[CRC.end..]);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a checkpoint. The caller checks that it is of this pool.
    ///
    /// # Errors
    /// When there is no checkpoint, or it is damaged or invalid.
    pub fn decode(bytes: &[u8; CHECKPOINT_BYTES]) -> Result<Checkpoint, CheckpointError> {
        let raw: &RawCheckpoint = zerocopy::transmute_ref!(bytes);
        if raw.magic.get() != MAGIC {
            return Err(CheckpointError::NoMagic);
        }
        if raw.crc.get() != crc32c::crc32c(&bytes[CRC.end..]) {
            return Err(CheckpointError::Checksum);
        }
        let start = Checkpoint {
            pool_tag: raw.tag.get(),
            session: raw.session.get(),
            run: raw.run.get(),
            sequence: raw.sequence.get(),
            position: raw.position.get(),
            commit: raw.commit.get(),
            mark: raw.mark.get(),
            generation: raw.generation.get(),
            previous_run: raw.before.get(),
            last_commits: raw.parts.map(|commit| commit.get()),
            missing: absences(&raw.absent),
            hold_outcome: raw.settled.get(),
        };
        let none = RawMissingMember::new_zeroed();
        let unused = raw.absent[start.missing.len..].iter().any(|absence| *absence != none)
            || raw.absent.iter().any(|absence| absence.reserved != [0; 7]);
        match start.problem(Side::Read) {
            Some(problem) => Err(CheckpointError::Invalid(problem)),
            None if unused || raw.reserved != [0; 184] => {
                Err(CheckpointError::Invalid("its unused bytes are not zero"))
            }
            None => Ok(start),
        }
    }
}

/// Returns the entries up to the first empty one.
fn absences(raw: &[RawMissingMember; MISSING_MAX]) -> MissingMembers {
    let none = RawMissingMember::new_zeroed();
    let len = raw.iter().position(|absence| *absence == none).unwrap_or(MISSING_MAX);
    let list = raw.map(|absence| MissingMember {
        member: absence.member,
        run: absence.run.get(),
        alternative_run: absence.other.get(),
        commit: absence.commit.get(),
        required_commit: absence.needs.get(),
    });
    MissingMembers { list, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Edit<'a> = &'a dyn Fn(&mut RawCheckpoint);

    const START: Checkpoint = Checkpoint {
        pool_tag: u32::from_le_bytes(*b"brai"),
        session: 4,
        run: 0x1122_3344_5566_7788,
        sequence: 12,
        position: RING_BLOCKS_MAX - 1,
        commit: 7,
        mark: 99,
        generation: 3,
        previous_run: 5,
        last_commits: {
            let mut parts = [0; MEMBERS_MAX];
            (parts[0], parts[127]) = (7, 1);
            parts
        },
        missing: MissingMembers::NONE,
        hold_outcome: 1 << 127 | 1,
    };

    fn absence(member: u8) -> MissingMember {
        MissingMember { member, run: 9, alternative_run: u64::from(member), commit: 6, required_commit: 5 }
    }

    #[test]
    fn checkpoints_round_trip() {
        let first = Checkpoint::first(&Uuid::from_u128(7), 3);
        let all: Vec<MissingMember> = (58..128).map(absence).collect();
        let lacks = |of: &[MissingMember]| Checkpoint { missing: MissingMembers::new(of).unwrap(), ..START };
        let starts = [START, first, lacks(&all[..1]), lacks(&all)];
        for start in starts.into_iter().chain([Checkpoint { mark: 1 << 62, session: 1 << 62, ..START }]) {
            assert_eq!(Checkpoint::decode(&start.encode()), Ok(start));
        }
        assert_eq!(Checkpoint::decode(&[0; CHECKPOINT_BYTES]), Err(CheckpointError::NoMagic));
        assert_eq!(MissingMembers::new(&(0..71).map(absence).collect::<Vec<_>>()), None);
        let two = MissingMembers::new(&[absence(3), absence(9)]).unwrap();
        assert_eq!((two.get(9), two.get(8), two.list().len()), (Some(&absence(9)), None, 2));
        assert_eq!((checkpoint_slot(1), checkpoint_slot(2), checkpoint_slot(3)), (1, 0, 1));
    }

    #[test]
    fn every_changed_bit_is_detected() {
        let mut bytes = START.encode();
        for bit in 0..CHECKPOINT_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Checkpoint::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_torn_checkpoint_is_detected() {
        let (old, new) = (Checkpoint { generation: 1, sequence: 1, ..START }.encode(), START.encode());
        for old in [[0; CHECKPOINT_BYTES], old] {
            for n in 0..8 {
                let mut torn = old;
                torn[..n * 512].copy_from_slice(&new[..n * 512]);
                // Only the first sector differs.
                let whole = torn == old || torn == new;
                assert!(whole || Checkpoint::decode(&torn).is_err(), "{n} sectors written");
            }
        }
    }

    #[test]
    fn invalid_checkpoints_are_refused() {
        let refused = |change: &dyn Fn(&mut RawCheckpoint)| {
            let mut bytes = START.encode();
            change(RawCheckpoint::mut_from_bytes(&mut bytes).unwrap());
            let crc = crc32c::crc32c(&bytes[8..]);
            bytes[CRC].copy_from_slice(&crc.to_le_bytes());
            Checkpoint::decode(&bytes).err()
        };
        assert_eq!(refused(&|_| ()), None);
        let absent = |raw: &mut RawCheckpoint, at: usize, member: u8| {
            (raw.absent[at].member, raw.absent[at].run) = (member, U64::new(1));
        };
        let cases: [(Edit<'_>, &str); 16] = [
            (&|raw| raw.parts[5].set(8), "a part in a commit"),
            (&|raw| absent(raw, 0, 128), "no member"),
            (&|raw| raw.absent[0].member = 1, "has no run"),
            (&|raw| [(0, 4), (1, 4)].into_iter().for_each(|(at, member)| absent(raw, at, member)), "no order"),
            (&|raw| (absent(raw, 0, 4), raw.absent[0].needs.set(u64::MAX)).0, "commit of an absent"),
            (&|raw| (absent(raw, 0, 4), raw.absent[0].commit.set(u64::MAX)).0, "commit of an absent"),
            (&|raw| (absent(raw, 0, 4), raw.absent[0].reserved[6] = 1).0, "unused"),
            (&|raw| absent(raw, 1, 4), "unused"),
            (&|raw| raw.run.set(0), "run"),
            (&|raw| raw.sequence.set(0), "number"),
            (&|raw| raw.sequence.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.generation.set(0), "number"),
            (&|raw| raw.generation.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.commit.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.position.set(RING_BLOCKS_MAX), "place"),
            (&|raw| raw.reserved[183] = 1, "unused"),
        ];
        for (k, (change, reason)) in cases.into_iter().enumerate() {
            match refused(change) {
                Some(CheckpointError::Invalid(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
    }
}
