//! An owner of blocks: a volume, a snapshot, or a deleted one that others still depend on.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{OWNER_ID_MAX, VOLUME_BYTES_MAX, crc_of, offsets};
use crate::limits::{COUNTER_MAX, TIME_MAX_S};
use crate::name::broken_rule;
use crate::{BLOCK_BYTES, NAME_BYTES_MAX, Name};

/// Size of an owner, in bytes.
pub const OWNER_BYTES: usize = 256;

/// An owner, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawOwner {
    id: U32,
    /// 1 volume, 2 snapshot, 3 nameless, 4 being deleted.
    kind: u8,
    /// 0 spread, 1 single, 2 chosen.
    place: u8,
    /// Bit 0: thick; bit 1: being flattened; bit 2: its file system was frozen; bit 3: its logical block has 512 bytes.
    flags: u8,
    name_len: u8,
    parent: U32,
    /// Zero.
    reserved_a: U32,
    uuid: [u8; 16],
    size_bytes: U64,
    created_unix_s: U64,
    limit_iops: U64,
    limit_bytes_per_s: U64,
    /// Bit *i*: member *i*.
    on: U128,
    /// Padded with zeros.
    name: [u8; 64],
    volume: [u8; 16],
    policy_every_s: U32,
    policy_keep: U32,
    /// Bit *i*: member *i*.
    also_on: U128,
    /// Zero.
    reserved_b: [u8; 68],
    /// CRC-32C of all before it, then of the owner's slot (four bytes).
    crc: U32,
}

offsets!(RawOwner: id 0, kind 4, place 5, flags 6, name_len 7, parent 8, reserved_a 12, uuid 16, size_bytes 32, created_unix_s 40,
    limit_iops 48, limit_bytes_per_s 56, on 64, name 80, volume 144, policy_every_s 160, policy_keep 164, also_on 168, reserved_b 184,
    crc 252);
const _: () = assert!(size_of::<RawOwner>() == OWNER_BYTES);
const CRC_START: usize = 252;
const THICK: u8 = 1;
const FLATTENS: u8 = 2;
const FROZEN: u8 = 4;
const IN_SECTORS: u8 = 8;

/// The kind of an owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OwnerKind {
    /// A volume, which can be written.
    Volume,
    /// The state of a volume at one instant.
    Snapshot,
    /// A deleted snapshot that is kept because several owners read blocks from it.
    Nameless,
    /// Being deleted: merged into its child, or its space is freed.
    Deleting,
}

/// On which members an owner's new extents are allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AllocationPolicy {
    /// On all members of the pool.
    Spread,
    /// On one chosen member.
    Single,
    /// On one or more chosen members.
    Chosen,
}

/// A snapshot schedule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SnapshotSchedule {
    /// The interval between snapshots, in seconds; not 0.
    pub every_s: u32,
    /// The number of snapshots that are kept; not 0.
    pub keep: u32,
}

/// A valid name as in [`Name`], or no name; without a heap allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerName {
    bytes: [u8; NAME_BYTES_MAX + 1],
    len: u8,
}

impl OwnerName {
    /// No name.
    pub const NONE: OwnerName = OwnerName { bytes: [0; NAME_BYTES_MAX + 1], len: 0 };

    /// Returns the text as a name; an empty text is no name. `None` when the text is not a valid name ([`Name::new`]
    /// says why).
    pub fn new(text: &str) -> Option<OwnerName> {
        if text.is_empty() {
            return Some(OwnerName::NONE);
        }
        if broken_rule(text.as_bytes()).is_some() {
            return None;
        }
        let mut name = OwnerName { len: text.len() as u8, ..OwnerName::NONE };
        name.bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(name)
    }

    /// Returns the text; empty if there is no name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Returns whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn from_raw(bytes: &[u8; NAME_BYTES_MAX + 1], len: u8) -> Option<OwnerName> {
        let text = bytes.get(..usize::from(len))?;
        let padded = bytes[text.len()..].iter().all(|byte| *byte == 0);
        OwnerName::new(std::str::from_utf8(text).ok()?).filter(|_| padded)
    }
}

impl From<&Name> for OwnerName {
    fn from(name: &Name) -> OwnerName {
        OwnerName::new(name.as_str()).unwrap_or(OwnerName::NONE)
    }
}

impl std::fmt::Debug for OwnerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl std::fmt::Display for OwnerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// An owner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// The owner's number, from 1 to [`OWNER_ID_MAX`]; never reused.
    pub id: u32,
    /// The kind.
    pub kind: OwnerKind,
    /// On which members its new extents are allocated.
    pub allocation: AllocationPolicy,
    /// Bit *i*: new extents may be allocated on member *i*. No bit for [`AllocationPolicy::Spread`], one for
    /// [`AllocationPolicy::Single`], one or more for [`AllocationPolicy::Chosen`].
    pub on: u128,
    /// Bit *i*: the owner may have blocks on member *i*, besides those in `on`: its members were changed, or it took
    /// over blocks of another owner. No bit for [`AllocationPolicy::Spread`], which may have blocks on every member.
    pub also_on: u128,
    /// The pool reserves space for all of its blocks (thick provisioning).
    pub thick: bool,
    /// It is being flattened: the blocks that it reads from its parent are copied into extents of its own.
    pub flattening: bool,
    /// For a snapshot: the file system on the volume was frozen while it was taken. Otherwise the snapshot is
    /// crash-consistent.
    pub frozen: bool,
    /// Its logical block has 512 bytes, otherwise 4096. Extents hold blocks of 4096 bytes either way.
    pub sectors_of_512: bool,
    /// The number of the owner from which this one reads the blocks that it does not have itself; 0: none.
    pub parent: u32,
    /// The identity that users see.
    pub uuid: Uuid,
    /// The volume that a snapshot was taken of; nil for a volume.
    pub volume: Uuid,
    /// Its size in bytes, whole blocks.
    pub size_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Limit in operations a second; 0: no limit.
    pub limit_iops: u64,
    /// Limit in bytes a second; 0: no limit.
    pub limit_bytes_per_s: u64,
    /// Its name: volumes and snapshots have one, nameless ones have none.
    pub name: OwnerName,
    /// The snapshot schedule, if any.
    pub schedule: Option<SnapshotSchedule>,
}

/// Why bytes are not an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OwnerError {
    /// The bytes changed after they were written, or belong to another slot.
    #[error("the owner's checksum is wrong")]
    Checksum,
    /// The checksum is right, but a field is invalid.
    #[error("the owner makes no sense: {0}")]
    Invalid(&'static str),
}

impl Owner {
    /// Returns a thin volume that is spread over all members, without limits or schedule. Its number is 1 until the
    /// pool assigns one at creation.
    pub fn volume(uuid: Uuid, name: OwnerName, size_bytes: u64) -> Owner {
        Owner {
            id: 1,
            kind: OwnerKind::Volume,
            allocation: AllocationPolicy::Spread,
            on: 0,
            also_on: 0,
            thick: false,
            flattening: false,
            frozen: false,
            sectors_of_512: false,
            parent: 0,
            uuid,
            volume: Uuid::nil(),
            size_bytes,
            created_unix_s: 0,
            limit_iops: 0,
            limit_bytes_per_s: 0,
            name,
            schedule: None,
        }
    }

    /// Returns what is wrong with the owner.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let members = self.on.count_ones();
        let placed = match self.allocation {
            AllocationPolicy::Spread => members == 0,
            AllocationPolicy::Single => members == 1,
            AllocationPolicy::Chosen => members > 0,
        };
        let named = match self.kind {
            OwnerKind::Volume | OwnerKind::Snapshot => !self.name.is_empty(),
            OwnerKind::Nameless => self.name.is_empty(),
            OwnerKind::Deleting => true,
        };
        let of_volume = match self.kind {
            OwnerKind::Volume => self.volume.is_nil(),
            OwnerKind::Snapshot => !self.volume.is_nil(),
            OwnerKind::Nameless | OwnerKind::Deleting => true,
        };
        let problems = [
            (self.id == 0 || self.id > OWNER_ID_MAX, "its number is none"),
            (self.parent > OWNER_ID_MAX, "its parent's number is none"),
            (self.parent == self.id, "it is its own parent"),
            (self.uuid.is_nil(), "its identity is all zeros"),
            (self.size_bytes == 0 || self.size_bytes > VOLUME_BYTES_MAX, "its size is beyond the limits"),
            (!self.size_bytes.is_multiple_of(BLOCK_BYTES), "its size is not whole blocks"),
            (self.created_unix_s > TIME_MAX_S, "it was made at no time that will be"),
            (self.limit_iops.max(self.limit_bytes_per_s) > COUNTER_MAX, "its limit is beyond all that a disk does"),
            (!placed, "the members that it may use do not fit its kind of place"),
            (
                self.allocation == AllocationPolicy::Spread && self.also_on != 0,
                "it may use all members, and others besides",
            ),
            (!named, "its name does not fit its kind"),
            (!of_volume, "its kind does not fit whether it is of a volume"),
            (self.frozen && self.kind == OwnerKind::Volume, "it is no snapshot, and was taken of a frozen file system"),
            (self.schedule.is_some_and(|policy| policy.every_s == 0 || policy.keep == 0), "its policy does nothing"),
        ];
        problems.into_iter().find_map(|(wrong, problem)| wrong.then_some(problem))
    }

    /// Returns the members on which its new extents may be allocated.
    pub fn allocation_members(&self) -> u128 {
        if self.allocation == AllocationPolicy::Spread { u128::MAX } else { self.on }
    }

    /// Returns the members on which it may have blocks.
    pub fn block_members(&self) -> u128 {
        self.allocation_members() | self.also_on
    }

    /// Returns whether decoding would accept the owner.
    pub fn is_sound(&self) -> bool {
        self.problem().is_none()
    }

    /// Encodes the owner for owner slot `slot`.
    ///
    /// # Panics
    /// When the owner is not sound.
    pub fn encode(&self, slot: u32) -> [u8; OWNER_BYTES] {
        let problem = self.problem();
        assert!(problem.is_none(), "an owner that cannot be read back: {problem:?}: {self:?}");
        let raw = RawOwner {
            id: U32::new(self.id),
            kind: match self.kind {
                OwnerKind::Volume => 1,
                OwnerKind::Snapshot => 2,
                OwnerKind::Nameless => 3,
                OwnerKind::Deleting => 4,
            },
            place: match self.allocation {
                AllocationPolicy::Spread => 0,
                AllocationPolicy::Single => 1,
                AllocationPolicy::Chosen => 2,
            },
            flags: if self.thick { THICK } else { 0 }
                | if self.flattening { FLATTENS } else { 0 }
                | if self.frozen { FROZEN } else { 0 }
                | if self.sectors_of_512 { IN_SECTORS } else { 0 },
            name_len: self.name.len,
            parent: U32::new(self.parent),
            reserved_a: U32::ZERO,
            uuid: self.uuid.into_bytes(),
            size_bytes: U64::new(self.size_bytes),
            created_unix_s: U64::new(self.created_unix_s),
            limit_iops: U64::new(self.limit_iops),
            limit_bytes_per_s: U64::new(self.limit_bytes_per_s),
            on: U128::new(self.on),
            name: self.name.bytes,
            volume: self.volume.into_bytes(),
            policy_every_s: U32::new(self.schedule.map_or(0, |policy| policy.every_s)),
            policy_keep: U32::new(self.schedule.map_or(0, |policy| policy.keep)),
            also_on: U128::new(self.also_on),
            reserved_b: [0; 68],
            crc: U32::ZERO,
        };
        let mut bytes: [u8; OWNER_BYTES] = zerocopy::transmute!(raw);
        let crc = crc(&bytes, slot);
        bytes[CRC_START..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes owner slot `slot`; `None` if it is free, which is all zeros.
    ///
    /// # Errors
    /// When the owner is damaged, belongs elsewhere, or is invalid.
    pub fn decode(bytes: &[u8; OWNER_BYTES], slot: u32) -> Result<Option<Owner>, OwnerError> {
        if *bytes == [0; OWNER_BYTES] {
            return Ok(None);
        }
        let raw: &RawOwner = zerocopy::transmute_ref!(bytes);
        if raw.crc.get() != crc(bytes, slot) {
            return Err(OwnerError::Checksum);
        }
        let refuse = |reason| Err(OwnerError::Invalid(reason));
        if raw.reserved_a.get() != 0 || raw.reserved_b != [0; 68] {
            return refuse("its reserved bytes are not zero");
        }
        if raw.flags & !(THICK | FLATTENS | FROZEN | IN_SECTORS) != 0 {
            return refuse("its flags are unknown");
        }
        let Some(name) = OwnerName::from_raw(&raw.name, raw.name_len) else { return refuse("its name is none") };
        let owner = Owner {
            id: raw.id.get(),
            kind: match raw.kind {
                1 => OwnerKind::Volume,
                2 => OwnerKind::Snapshot,
                3 => OwnerKind::Nameless,
                4 => OwnerKind::Deleting,
                _ => return refuse("its kind is unknown"),
            },
            allocation: match raw.place {
                0 => AllocationPolicy::Spread,
                1 => AllocationPolicy::Single,
                2 => AllocationPolicy::Chosen,
                _ => return refuse("its kind of place is unknown"),
            },
            on: raw.on.get(),
            also_on: raw.also_on.get(),
            thick: raw.flags & THICK != 0,
            flattening: raw.flags & FLATTENS != 0,
            frozen: raw.flags & FROZEN != 0,
            sectors_of_512: raw.flags & IN_SECTORS != 0,
            parent: raw.parent.get(),
            uuid: Uuid::from_bytes(raw.uuid),
            volume: Uuid::from_bytes(raw.volume),
            size_bytes: raw.size_bytes.get(),
            created_unix_s: raw.created_unix_s.get(),
            limit_iops: raw.limit_iops.get(),
            limit_bytes_per_s: raw.limit_bytes_per_s.get(),
            name,
            schedule: match (raw.policy_every_s.get(), raw.policy_keep.get()) {
                (0, 0) => None,
                (every_s, keep) => Some(SnapshotSchedule { every_s, keep }),
            },
        };
        match owner.problem() {
            Some(problem) => refuse(problem),
            None => Ok(Some(owner)),
        }
    }
}

fn crc(bytes: &[u8; OWNER_BYTES], slot: u32) -> u32 {
    crc_of(&[&bytes[..CRC_START], &slot.to_le_bytes()])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    type Edit<'a> = &'a dyn Fn(&mut RawOwner);

    pub(in crate::pool) fn volume() -> Owner {
        Owner {
            id: 5,
            kind: OwnerKind::Volume,
            allocation: AllocationPolicy::Chosen,
            on: 1 << 127 | 1,
            also_on: 1 << 64,
            thick: true,
            flattening: true,
            frozen: false,
            sectors_of_512: false,
            parent: 4,
            uuid: Uuid::from_bytes(*b"braid-testvolume"),
            volume: Uuid::nil(),
            size_bytes: 100 << 30,
            created_unix_s: 1_700_000_000,
            limit_iops: 3000,
            limit_bytes_per_s: 125 << 20,
            name: OwnerName::new("db").unwrap(),
            schedule: Some(SnapshotSchedule { every_s: 3600, keep: 24 }),
        }
    }

    /// One of each kind, and those at the limits.
    pub(in crate::pool) fn samples() -> Vec<Owner> {
        let volume = volume();
        let snapshot = Owner {
            kind: OwnerKind::Snapshot,
            allocation: AllocationPolicy::Spread,
            on: 0,
            also_on: 0,
            thick: false,
            flattening: false,
            frozen: true,
            sectors_of_512: true,
            parent: 0,
            volume: Uuid::from_u128(9),
            schedule: None,
            ..volume.clone()
        };
        vec![
            volume.clone(),
            Owner { id: OWNER_ID_MAX, parent: OWNER_ID_MAX - 1, size_bytes: VOLUME_BYTES_MAX, ..volume.clone() },
            Owner { allocation: AllocationPolicy::Single, on: 1 << 64, also_on: 0, size_bytes: 4096, ..volume.clone() },
            Owner { name: OwnerName::new(&"x".repeat(63)).unwrap(), ..volume.clone() },
            snapshot.clone(),
            Owner { kind: OwnerKind::Nameless, name: OwnerName::NONE, ..snapshot.clone() },
            Owner { kind: OwnerKind::Deleting, ..snapshot.clone() },
            Owner { kind: OwnerKind::Deleting, name: OwnerName::NONE, volume: Uuid::nil(), ..snapshot },
        ]
    }

    #[test]
    fn owners_round_trip_only_in_their_slot() {
        for owner in samples() {
            let bytes = owner.encode(77);
            assert_eq!(Owner::decode(&bytes, 77), Ok(Some(owner.clone())));
            assert_eq!(Owner::decode(&bytes, 78), Err(OwnerError::Checksum));
        }
        assert_eq!(Owner::decode(&[0; OWNER_BYTES], 0), Ok(None));
    }

    #[test]
    fn every_changed_bit_is_detected() {
        for whole in [samples()[0].encode(77), samples()[4].encode(0), [0; OWNER_BYTES]] {
            for bit in 0..OWNER_BYTES * 8 {
                let mut bytes = whole;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Owner::decode(&bytes, 77).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn valid_and_invalid_names() {
        let longest = "x".repeat(63);
        for good in ["a", "9lives", "a.b_c-d", longest.as_str()] {
            let name = OwnerName::new(good).unwrap();
            assert_eq!((name.as_str(), name.is_empty()), (good, false));
            assert_eq!(OwnerName::from(&Name::new(good).unwrap()), name);
        }
        for bad in ["-a", "a b", "ä", "a\0", &"x".repeat(64)] {
            assert_eq!(OwnerName::new(bad), None, "{bad:?}");
        }
        assert_eq!(OwnerName::new(""), Some(OwnerName::NONE));
        assert_eq!(format!("{:?} {:>4}", OwnerName::new("db").unwrap(), OwnerName::new("db").unwrap()), "\"db\"   db");
    }

    #[test]
    fn invalid_owners_are_refused() {
        let [volume, snapshot, nameless] = [0, 4, 5].map(|k| samples()[k].clone());
        let cases: [(&Owner, Edit<'_>, &str); 29] = [
            (&volume, &|raw| raw.id.set(0), "number is none"),
            (&volume, &|raw| raw.id.set(1 << 31), "number is none"),
            (&volume, &|raw| raw.kind = 0, "kind is unknown"),
            (&volume, &|raw| raw.kind = 5, "kind is unknown"),
            (&volume, &|raw| raw.kind = 3, "name does not fit"),
            (&volume, &|raw| raw.kind = 2, "of a volume"),
            (&snapshot, &|raw| raw.kind = 1, "of a volume"),
            (&nameless, &|raw| raw.kind = 2, "name does not fit"),
            (&volume, &|raw| raw.place = 3, "place is unknown"),
            (&volume, &|raw| raw.place = 1, "members"),
            (&volume, &|raw| raw.place = 0, "members"),
            (&volume, &|raw| raw.on.set(0), "members"),
            (&volume, &|raw| raw.flags = 16, "flags"),
            (&volume, &|raw| raw.flags |= 4, "frozen"),
            (&volume, &|raw| raw.parent.set(u32::MAX), "parent"),
            (&volume, &|raw| raw.parent.set(5), "own parent"),
            (&volume, &|raw| raw.reserved_a.set(1), "reserved"),
            (&volume, &|raw| raw.reserved_b[67] = 1, "reserved"),
            (&volume, &|raw| raw.place = 0, "members"),
            (&volume, &|raw| raw.uuid = [0; 16], "identity"),
            (&volume, &|raw| raw.size_bytes.set(0), "size"),
            (&volume, &|raw| raw.size_bytes.set(4097), "whole blocks"),
            (&volume, &|raw| raw.size_bytes.set(1 << 50), "size"),
            (&volume, &|raw| raw.name_len = 3, "name is none"),
            (&volume, &|raw| raw.name_len = 1, "name is none"),
            (&volume, &|raw| raw.name_len = 255, "name is none"),
            (&volume, &|raw| raw.name[0] = 0xff, "name is none"),
            (&volume, &|raw| raw.policy_every_s.set(0), "policy"),
            (&volume, &|raw| raw.policy_keep.set(0), "policy"),
        ];
        for (k, (sound, change, reason)) in cases.into_iter().enumerate() {
            let mut bytes = sound.encode(77);
            change(RawOwner::mut_from_bytes(&mut bytes).unwrap());
            let crc = crc(&bytes, 77);
            bytes[CRC_START..].copy_from_slice(&crc.to_le_bytes());
            match Owner::decode(&bytes, 77) {
                Err(OwnerError::Invalid(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
    }
}
