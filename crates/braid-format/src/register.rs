//! The register of a voter: its persistent state for one replicated volume.
//!
//! Two slots of 4 KiB hold the same register. A change is written to one slot and flushed, then to the other and
//! flushed, and only then does the voter reply. A torn write leaves the previous register, and no reply has reported
//! that it is superseded; damage to one slot loses nothing.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::BLOCK_BYTES;
use crate::limits::{COUNTER_MAX, EPOCH_MAX};

const MAGIC: u32 = u32::from_le_bytes(*b"BRRG");
/// Size of each of the two slots, in bytes.
pub const REGISTER_BYTES: usize = BLOCK_BYTES as usize;
/// Maximum number of voters of a volume: replicas and witnesses.
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
    extra_replicas: u8,
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
    replicas 120, extra_replicas 122, reserved 123);
const _: () = assert!(size_of::<RawRegister>() == REGISTER_BYTES);
/// Where the checksum is.
const CRC: std::ops::Range<usize> = 4..8;

/// The persistent state of a voter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoredRegister {
    /// The volume; never nil.
    pub volume: Uuid,
    /// This voter's number among the volume's voters.
    pub voter: u8,
    /// Increases with every change, from 1. Of two registers the one with the higher generation is current.
    pub generation: u64,
    /// The epoch of the controller whose requests this voter accepts, to the exclusion of all others; 0: there has been
    /// none.
    pub epoch: u64,
    /// The controller of that epoch; nil: there has been none.
    pub controller: Uuid,
    /// The controller has released the volume: it stopped cleanly.
    pub released: bool,
    /// The boot id of the voter's node under which the controller that cast the vote trusted its replica; nil: it did
    /// not. After another boot the replica may lack writes that were acknowledged and not flushed.
    pub boot_id: Uuid,
    /// The epoch of the vote; 0: the initial vote, from the volume's creation.
    pub vote_epoch: u64,
    /// The vote's number in its epoch, from 1; 0 if `vote_epoch` is 0.
    pub vote_sequence: u64,
    /// The lineage of the replicas that the vote is for.
    pub lineage: u64,
    /// Bit *i*: voter *i* is an in-sync replica. Never 0.
    pub in_sync: u16,
    /// Version of the voter list that the vote is under; 0: the initial list, from the volume's creation.
    pub voters_version: u64,
    /// Bit *i*: voter *i* is in the current voter list. Never 0.
    pub voters: u16,
    /// Bit *i*: voter *i* is in the previous voter list, during a membership change (joint configuration); else 0.
    pub previous_voters: u16,
    /// Bit *i*: voter *i* of either list is a replica, so has data.
    pub replicas: u16,
    /// How many in-sync replicas beyond one are needed to have all data; 0: each replica is a full copy.
    pub extra_replicas: u8,
    /// Version of the voter list with which this voter was added; 0: at the volume's creation.
    pub added_in_version: u64,
}

/// Why bytes are not a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is no register.
    #[error("there is no register here")]
    NoMagic,
    /// The bytes changed after they were written, or were written in part.
    #[error("the register's checksum is wrong")]
    Checksum,
    /// The checksum is right, but a field is invalid.
    #[error("the register makes no sense: {0}")]
    Invalid(&'static str),
}

/// Returns the slot that is written first for this generation. The slots alternate, so that a torn write does not
/// always hit the same one.
pub const fn register_slot(generation: u64) -> usize {
    (generation % 2) as usize
}

impl StoredRegister {
    fn problem(&self) -> Option<&'static str> {
        let all = self.voters | self.previous_voters;
        let problems = [
            (self.volume.is_nil(), "it is of no volume"),
            (self.voters == 0, "nobody votes"),
            (usize::from(self.voter) >= VOTERS_MAX, "its number is none"),
            (self.generation == 0, "its generation is 0"),
            (
                [self.generation, self.vote_sequence, self.voters_version, self.added_in_version]
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
            (u32::from(self.extra_replicas) >= self.in_sync.count_ones(), "it takes more replicas than are in sync"),
        ];
        problems.into_iter().find_map(|(wrong, problem)| wrong.then_some(problem))
    }

    /// Returns whether decoding would accept the register.
    pub fn is_sound(&self) -> bool {
        self.problem().is_none()
    }

    /// Encodes the register.
    ///
    /// # Panics
    /// When the register is not sound.
    pub fn encode(&self) -> [u8; REGISTER_BYTES] {
        let problem = self.problem();
        assert!(problem.is_none(), "a register that cannot be read back: {problem:?}: {self:?}");
        let mut raw = RawRegister::new_zeroed();
        raw.magic.set(MAGIC);
        raw.volume = self.volume.into_bytes();
        (raw.voter, raw.released) = (self.voter, u8::from(self.released));
        raw.in_sync.set(self.in_sync);
        raw.voters.set(self.voters);
        raw.before.set(self.previous_voters);
        raw.replicas.set(self.replicas);
        raw.extra_replicas = self.extra_replicas;
        raw.version.set(self.voters_version);
        raw.since.set(self.added_in_version);
        raw.generation.set(self.generation);
        raw.epoch.set(self.epoch);
        raw.controller = self.controller.into_bytes();
        raw.boot = self.boot_id.into_bytes();
        raw.vote_epoch.set(self.vote_epoch);
        raw.vote_sequence.set(self.vote_sequence);
        raw.lineage.set(self.lineage);
        raw.crc.set(crc32c::crc32c(&raw.as_bytes()[CRC.end..]));
        zerocopy::transmute!(raw)
    }

    /// Decodes a register.
    ///
    /// # Errors
    /// When there is none, or it is damaged or invalid.
    pub fn decode(bytes: &[u8; REGISTER_BYTES]) -> Result<StoredRegister, RegisterError> {
        let raw: &RawRegister = zerocopy::transmute_ref!(bytes);
        if raw.magic.get() != MAGIC {
            return Err(RegisterError::NoMagic);
        }
        if crc32c::crc32c(&bytes[CRC.end..]) != raw.crc.get() {
            return Err(RegisterError::Checksum);
        }
        if raw.reserved != [0; 3973] || raw.released > 1 {
            return Err(RegisterError::Invalid("what is unused is not zero"));
        }
        let register = StoredRegister {
            volume: Uuid::from_bytes(raw.volume),
            voter: raw.voter,
            generation: raw.generation.get(),
            epoch: raw.epoch.get(),
            controller: Uuid::from_bytes(raw.controller),
            released: raw.released == 1,
            boot_id: Uuid::from_bytes(raw.boot),
            vote_epoch: raw.vote_epoch.get(),
            vote_sequence: raw.vote_sequence.get(),
            lineage: raw.lineage.get(),
            in_sync: raw.in_sync.get(),
            voters_version: raw.version.get(),
            voters: raw.voters.get(),
            previous_voters: raw.before.get(),
            replicas: raw.replicas.get(),
            extra_replicas: raw.extra_replicas,
            added_in_version: raw.since.get(),
        };
        register.problem().map_or(Ok(register), |problem| Err(RegisterError::Invalid(problem)))
    }

    /// Returns the current register, given both slots. The caller must write it to both slots before it replies to any
    /// request: the other slot may be older or damaged, and what was read may still be in a volatile cache.
    ///
    /// # Errors
    /// When neither slot holds a valid register: the voter's persistent votes are lost, and it must not vote again.
    pub fn newest(slots: [&[u8; REGISTER_BYTES]; 2]) -> Result<StoredRegister, RegisterError> {
        match slots.map(StoredRegister::decode) {
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
        boot_id: Uuid::from_bytes(*b"braid-this--boot"),
        vote_epoch: 4,
        vote_sequence: 3,
        lineage: 0x0102_0304_0506_0708,
        in_sync: 0b011,
        voters_version: 0x0304,
        voters: 0b111,
        previous_voters: 0b1011,
        replicas: 0b1011,
        extra_replicas: 1,
        added_in_version: 0x0304,
    };

    /// An edit of a register's bytes.
    type Edit<'a> = &'a dyn Fn(&mut RawRegister);

    fn changed(change: Edit<'_>) -> Result<StoredRegister, RegisterError> {
        let mut bytes = REGISTER.encode();
        change(RawRegister::mut_from_bytes(&mut bytes).unwrap());
        let crc = crc32c::crc32c(&bytes[CRC.end..]);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        StoredRegister::decode(&bytes)
    }

    #[test]
    fn registers_round_trip() {
        assert_eq!(StoredRegister::decode(&REGISTER.encode()), Ok(REGISTER));
        let first = StoredRegister {
            generation: 1,
            epoch: 0,
            controller: Uuid::nil(),
            released: false,
            boot_id: Uuid::nil(),
            vote_epoch: 0,
            vote_sequence: 0,
            voters_version: 0,
            voters: 0xffff,
            previous_voters: 0,
            replicas: 0xffff,
            extra_replicas: 15,
            added_in_version: 0,
            in_sync: 0xffff,
            ..REGISTER
        };
        assert_eq!(StoredRegister::decode(&first.encode()), Ok(first));
    }

    #[test]
    fn every_changed_bit_is_detected() {
        let good = REGISTER.encode();
        for bit in 0..8 * REGISTER_BYTES {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(StoredRegister::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn invalid_registers_are_refused() {
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
            (&|raw| raw.extra_replicas = 2, "more replicas than are in sync"),
            (&|raw| raw.released = 2, "unused"),
            (&|raw| raw.reserved[3972] = 1, "unused"),
            (&|raw| (raw.epoch.set(0), raw.controller = [0; 16]).0, "let go"),
        ];
        for (k, (change, reason)) in cases.into_iter().enumerate() {
            match changed(change) {
                Err(RegisterError::Invalid(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_newest_valid_register_is_current() {
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
    fn golden_registers_decode_and_encode_alike() {
        let of_copies = StoredRegister { extra_replicas: 0, ..REGISTER };
        let golden = [
            (of_copies, include_bytes!("../../../tests/golden/register/register.bin")),
            (REGISTER, include_bytes!("../../../tests/golden/register/parity.bin")),
        ];
        for (register, bytes) in golden {
            assert_eq!(StoredRegister::decode(bytes), Ok(register));
            assert!(register.encode() == *bytes, "it encodes to other bytes");
        }
    }
}
