//! The register of a voter: what it remembers of one replicated volume.
//!
//! Two places of 4 KiB hold the same. A change is written to one and flushed, then to the other and flushed, and only then is
//! anything answered: a torn write leaves the one before, which nobody was told is over, and damage to one place is no loss.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::BLOCK_BYTES;
use crate::limits::{COUNTER_MAX, EPOCH_MAX};

const MAGIC: u32 = u32::from_le_bytes(*b"BRRG");
/// Bytes of one of the two places.
pub const REGISTER_BYTES: usize = BLOCK_BYTES as usize;
/// Most voters of a volume: replicas and witnesses.
pub const VOTERS_MAX: usize = 16;

/// A register, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRegister {
    magic: U32,
    /// CRC-32C of everything behind it.
    crc: U32,
    volume: [u8; 16],
    voter: u8,
    released: u8,
    in_sync: U16,
    voters: U16,
    before: U16,
    generation: U64,
    epoch: U64,
    controller: [u8; 16],
    boot: [u8; 16],
    vote_epoch: U64,
    vote_sequence: U64,
    lineage: U64,
    version: U64,
    since: U64,
    replicas: U16,
    further: u8,
    /// Zero.
    reserved: [u8; 3973],
}

macro_rules! offsets {
    ($type:ident: $($field:ident $offset:literal),* $(,)?) => {
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}
offsets!(RawRegister: magic 0, crc 4, volume 8, voter 24, released 25, in_sync 26, voters 28, before 30,
    generation 32, epoch 40, controller 48, boot 64, vote_epoch 80, vote_sequence 88, lineage 96, version 104, since 112,
    replicas 120, further 122, reserved 123);
const _: () = assert!(size_of::<RawRegister>() == REGISTER_BYTES);
/// Where the checksum stands.
const CRC: std::ops::Range<usize> = 4..8;

/// What a voter remembers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoredRegister {
    /// Of which volume; never nil.
    pub volume: Uuid,
    /// Which of its voters this is.
    pub voter: u8,
    /// Raised with every change, from 1. Of two that differ the higher one counts.
    pub generation: u64,
    /// The epoch of the one controller that is answered; 0: none has come yet.
    pub epoch: u64,
    /// That controller; nil: none has come yet.
    pub controller: Uuid,
    /// It has stopped in order.
    pub released: bool,
    /// Under which boot of this node the replica was believed when the vote came; nil: it was not.
    pub boot: Uuid,
    /// The epoch of the vote; 0: it is the one that the volume was made with.
    pub vote_epoch: u64,
    /// The vote's number in its epoch, from 1; 0 with epoch 0.
    pub vote_sequence: u64,
    /// The line of replicas that goes on.
    pub lineage: u64,
    /// Which voters hold everything, the first one's bit the lowest; never nobody.
    pub in_sync: u16,
    /// Which list of voters the vote goes by; 0: the one that the volume was made with.
    pub version: u64,
    /// Who votes, a bit for each; never nobody.
    pub voters: u16,
    /// Who voted before, while that changes; else nobody.
    pub before: u16,
    /// Which of these have data.
    pub replicas: u16,
    /// How many of them it takes to have everything, besides one.
    pub further: u8,
    /// With which version of the list this voter came; 0: with the volume.
    pub since: u64,
}

/// Why bytes are no register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is none here.
    #[error("there is no register here")]
    NoMagic,
    /// The bytes changed after they were written, or were written in part.
    #[error("the register's checksum is wrong")]
    Checksum,
    /// The checksum is right, and a field makes no sense.
    #[error("the register makes no sense: {0}")]
    Sense(&'static str),
}

/// Which of the two places is written first when this generation is: in turn, so that a place that tears is not always the same.
pub const fn register_slot(generation: u64) -> usize {
    (generation % 2) as usize
}

impl StoredRegister {
    fn problem(&self) -> Option<&'static str> {
        let all = self.voters | self.before;
        let problems = [
            (self.volume.is_nil(), "it is of no volume"),
            (self.voters == 0, "nobody votes"),
            (usize::from(self.voter) >= VOTERS_MAX, "its number is none"),
            (self.generation == 0, "its generation is 0"),
            (
                [self.generation, self.vote_sequence, self.version, self.since]
                    .into_iter()
                    .any(|number| number > COUNTER_MAX),
                "its generation, vote or version is beyond all that Braid counts",
            ),
            (self.epoch > EPOCH_MAX, "its epoch is beyond all that Braid counts"),
            (self.controller.is_nil() != (self.epoch == 0), "its epoch has no controller, or no epoch has one"),
            (self.released && self.epoch == 0, "nobody was let go"),
            (self.vote_epoch > self.epoch, "its vote is of an epoch that is to come"),
            ((self.vote_epoch == 0) != (self.vote_sequence == 0), "its vote has an epoch or a number, not both"),
            (self.in_sync == 0, "nobody is in sync"),
            (self.in_sync & !all != 0, "somebody is in sync who is no voter"),
            (self.replicas & !all != 0, "somebody has data who is no voter"),
            (u32::from(self.further) >= self.in_sync.count_ones(), "it takes more replicas than are in sync"),
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
    pub fn encode(&self) -> [u8; REGISTER_BYTES] {
        let problem = self.problem();
        assert!(problem.is_none(), "a register that cannot be read back: {problem:?}: {self:?}");
        let mut raw = RawRegister::new_zeroed();
        raw.magic.set(MAGIC);
        raw.volume = self.volume.into_bytes();
        (raw.voter, raw.released) = (self.voter, u8::from(self.released));
        raw.in_sync.set(self.in_sync);
        raw.voters.set(self.voters);
        raw.before.set(self.before);
        raw.replicas.set(self.replicas);
        raw.further = self.further;
        raw.version.set(self.version);
        raw.since.set(self.since);
        raw.generation.set(self.generation);
        raw.epoch.set(self.epoch);
        raw.controller = self.controller.into_bytes();
        raw.boot = self.boot.into_bytes();
        raw.vote_epoch.set(self.vote_epoch);
        raw.vote_sequence.set(self.vote_sequence);
        raw.lineage.set(self.lineage);
        raw.crc.set(crc32c::crc32c(&raw.as_bytes()[CRC.end..]));
        zerocopy::transmute!(raw)
    }

    /// The register of these bytes.
    ///
    /// # Errors
    /// When there is none, or it is damaged, or makes no sense.
    pub fn decode(bytes: &[u8; REGISTER_BYTES]) -> Result<StoredRegister, RegisterError> {
        let raw: &RawRegister = zerocopy::transmute_ref!(bytes);
        if raw.magic.get() != MAGIC {
            return Err(RegisterError::NoMagic);
        }
        if crc32c::crc32c(&bytes[CRC.end..]) != raw.crc.get() {
            return Err(RegisterError::Checksum);
        }
        if raw.reserved != [0; 3973] || raw.released > 1 {
            return Err(RegisterError::Sense("what is unused is not zero"));
        }
        let register = StoredRegister {
            volume: Uuid::from_bytes(raw.volume),
            voter: raw.voter,
            generation: raw.generation.get(),
            epoch: raw.epoch.get(),
            controller: Uuid::from_bytes(raw.controller),
            released: raw.released == 1,
            boot: Uuid::from_bytes(raw.boot),
            vote_epoch: raw.vote_epoch.get(),
            vote_sequence: raw.vote_sequence.get(),
            lineage: raw.lineage.get(),
            in_sync: raw.in_sync.get(),
            version: raw.version.get(),
            voters: raw.voters.get(),
            before: raw.before.get(),
            replicas: raw.replicas.get(),
            further: raw.further,
            since: raw.since.get(),
        };
        register.problem().map_or(Ok(register), |problem| Err(RegisterError::Sense(problem)))
    }

    /// What counts of two places. It is to be written to both of them before anything is answered: the other one may be older, or damaged,
    /// and what was read may still be in a cache.
    ///
    /// # Errors
    /// When neither is a register: such a voter has forgotten what it promised, and must not vote.
    pub fn newest(places: [&[u8; REGISTER_BYTES]; 2]) -> Result<StoredRegister, RegisterError> {
        match places.map(StoredRegister::decode) {
            [Ok(first), Ok(second)] => Ok(if first.generation >= second.generation { first } else { second }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
            [Err(first), Err(_)] => Err(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTER: StoredRegister = StoredRegister {
        volume: Uuid::from_bytes(*b"braid-test-volum"),
        voter: 2,
        generation: 7,
        epoch: 5,
        controller: Uuid::from_bytes(*b"braid-controller"),
        released: true,
        boot: Uuid::from_bytes(*b"braid-this--boot"),
        vote_epoch: 4,
        vote_sequence: 3,
        lineage: 0x0102_0304_0506_0708,
        in_sync: 0b011,
        version: 0x0304,
        voters: 0b111,
        before: 0b1011,
        replicas: 0b1011,
        further: 1,
        since: 0x0304,
    };

    /// A change of a register's bytes.
    type Edit<'a> = &'a dyn Fn(&mut RawRegister);

    fn changed(change: Edit<'_>) -> Result<StoredRegister, RegisterError> {
        let mut bytes = REGISTER.encode();
        change(RawRegister::mut_from_bytes(&mut bytes).unwrap());
        let crc = crc32c::crc32c(&bytes[CRC.end..]);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        StoredRegister::decode(&bytes)
    }

    #[test]
    fn registers_come_back() {
        assert_eq!(StoredRegister::decode(&REGISTER.encode()), Ok(REGISTER));
        let first = StoredRegister {
            generation: 1,
            epoch: 0,
            controller: Uuid::nil(),
            released: false,
            boot: Uuid::nil(),
            vote_epoch: 0,
            vote_sequence: 0,
            version: 0,
            voters: 0xffff,
            before: 0,
            replicas: 0xffff,
            further: 15,
            since: 0,
            in_sync: 0xffff,
            ..REGISTER
        };
        assert_eq!(StoredRegister::decode(&first.encode()), Ok(first));
    }

    #[test]
    fn every_bit_that_changes_is_noticed() {
        let good = REGISTER.encode();
        for bit in 0..8 * REGISTER_BYTES {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(StoredRegister::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(changed(&|_| ()), Ok(REGISTER));
        let cases: [(Edit<'_>, &str); 18] = [
            (&|raw| raw.volume = [0; 16], "no volume"),
            (&|raw| raw.voters.set(0), "nobody votes"),
            (&|raw| raw.voter = 16, "its number"),
            (&|raw| raw.version.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.since.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.generation.set(0), "generation"),
            (&|raw| raw.generation.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.epoch.set(1 << 46 | 1), "epoch"),
            (&|raw| raw.controller = [0; 16], "controller"),
            (&|raw| raw.vote_epoch.set(6), "to come"),
            (&|raw| raw.vote_sequence.set(0), "not both"),
            (&|raw| raw.in_sync.set(0), "nobody is in sync"),
            (&|raw| raw.in_sync.set(0b10000), "in sync who is no voter"),
            (&|raw| raw.replicas.set(0b10000), "data who is no voter"),
            (&|raw| raw.further = 2, "more replicas than are in sync"),
            (&|raw| raw.released = 2, "unused"),
            (&|raw| raw.reserved[3972] = 1, "unused"),
            (&|raw| (raw.epoch.set(0), raw.controller = [0; 16]).0, "let go"),
        ];
        for (k, (change, reason)) in cases.into_iter().enumerate() {
            match changed(change) {
                Err(RegisterError::Sense(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_newest_whole_one_counts() {
        let older = StoredRegister { generation: 6, epoch: 4, ..REGISTER };
        let (new, old, none) = (REGISTER.encode(), older.encode(), [0; REGISTER_BYTES]);
        assert_eq!(StoredRegister::newest([&new, &old]), Ok(REGISTER));
        assert_eq!(StoredRegister::newest([&old, &new]), Ok(REGISTER));
        let mut torn = new;
        torn[512..].fill(0);
        torn[104] ^= 1;
        assert_eq!(StoredRegister::newest([&torn, &old]), Ok(older));
        assert_eq!(StoredRegister::newest([&none, &new]), Ok(REGISTER));
        assert_eq!(StoredRegister::newest([&none, &torn]), Err(RegisterError::NoMagic));
    }

    #[test]
    fn a_golden_register_means_what_it_meant() {
        let of_copies = StoredRegister { further: 0, ..REGISTER };
        let golden = [
            (of_copies, include_bytes!("../../../tests/golden/register/register.bin")),
            (REGISTER, include_bytes!("../../../tests/golden/register/parity.bin")),
        ];
        for (register, bytes) in golden {
            assert_eq!(StoredRegister::decode(bytes), Ok(register));
            assert!(register.encode() == *bytes, "it is not written alike");
        }
    }
}
