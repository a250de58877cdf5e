//! A log entry: one change of a pool's metadata. It holds the complete new state of what it changes, so that replay is
//! idempotent.
//!
//! An entry is one unit of 64 bytes, or five for an owner. The in-memory log, a slice of atomic words in shared memory,
//! and the batches of the log rings have the same units. So a unit is eight words here: its bytes as little-endian
//! words.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::owner::OWNER_BYTES;
use super::record::RECORD_BYTES;
use super::{Aligned, EXTENT_BLOCKS, Owner, OwnerError, Record, RecordError, RecordKind, VOLUME_BLOCKS_MAX, offsets};
use crate::MEMBERS_MAX;
use crate::limits::Side;

/// Size of a unit, in bytes.
pub const UNIT_BYTES: usize = 64;
/// Number of words in a unit.
pub const UNIT_WORDS: usize = UNIT_BYTES / size_of::<u64>();
/// Number of units of an owner's entry.
pub const OWNER_UNITS: usize = 1 + OWNER_BYTES / UNIT_BYTES;
/// Maximum number of units of an entry.
pub const ENTRY_UNITS_MAX: usize = OWNER_UNITS;

/// The first unit of an entry, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    /// 1 record, 2 slot, 3 owner, 4 nothing.
    kind: u8,
    member: u8,
    slot: u8,
    units: u8,
    index: U32,
    sequence: U64,
    block: U64,
    record: [u8; RECORD_BYTES],
    /// CRC-32C of the bytes before it and behind it, to the end of the entry's last unit.
    crc: U32,
    /// Bit 0: joined with the entry after it.
    flags: U32,
}

offsets!(RawEntry: kind 0, member 1, slot 2, units 3, index 4, sequence 8, block 16, record 24, crc 56, flags 60);
const _: () = assert!(size_of::<RawEntry>() == UNIT_BYTES && OWNER_UNITS == 5);
/// Where the checksum is.
const CRC: std::ops::Range<usize> = 56..60;
const RECORD: u8 = 1;
const SLOT: u8 = 2;
const OWNER: u8 = 3;
const PADDING: u8 = 4;
const JOINED: u32 = 1;

/// What an entry changes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "nothing here allocates, and owners change seldom")]
pub enum Change {
    /// A record of a member's table.
    Record {
        /// The complete record after the change.
        record: Record,
    },
    /// A block was assigned to a slot of a packed extent.
    Slot {
        /// The slot.
        slot: u8,
        /// The block of the extent's owner.
        block: u64,
        /// The extent's record after the change: packed, and the slot is in use.
        record: Record,
    },
    /// A slot of the owner table.
    Owner {
        /// The complete owner after the change; `None`: the slot is free.
        owner: Option<Owner>,
    },
    /// No change: padding fills units of the in-memory log that are too few for the next entry.
    Padding,
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// The member; 0 for an owner and for padding, which belong to no member.
    pub member: u8,
    /// The index of the record on the member, or of the owner's slot; 0 for padding.
    pub index: u32,
    /// The number of the entry's first unit. A pool numbers the units of all its entries consecutively, whichever
    /// member they are for.
    pub sequence: u64,
    /// Whether recovery must accept this entry and the next one together, or neither.
    pub joined: bool,
    /// What it changes.
    pub change: Change,
}

/// Why units are not an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EntryError {
    /// All zeros: nothing was written here.
    #[error("there is no entry")]
    Empty,
    /// Its last units are missing.
    #[error("the entry ends before its last unit")]
    Short,
    /// The bytes changed after they were written, or were written in part.
    #[error("the entry's checksum is wrong")]
    Checksum,
    /// The checksum is right, but a field is invalid.
    #[error("the entry makes no sense: {0}")]
    Invalid(&'static str),
    /// Its record is invalid.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Its owner is invalid.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// Returns the words of a unit's bytes.
pub fn to_words(bytes: &[u8; UNIT_BYTES]) -> [u64; UNIT_WORDS] {
    let (bytes, _) = bytes.as_chunks::<{ size_of::<u64>() }>();
    let mut words = [0; UNIT_WORDS];
    words.iter_mut().zip(bytes).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    words
}

/// Returns the bytes of a unit's words.
pub fn from_words(words: &[u64; UNIT_WORDS]) -> [u8; UNIT_BYTES] {
    let mut bytes = [0; UNIT_BYTES];
    let (parts, _) = bytes.as_chunks_mut::<{ size_of::<u64>() }>();
    parts.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    bytes
}

impl LogEntry {
    /// Returns the number of units that it takes.
    pub const fn units(&self) -> usize {
        match self.change {
            Change::Owner { .. } => OWNER_UNITS,
            _ => 1,
        }
    }

    /// Returns what is wrong with the entry, apart from its record or owner.
    fn problem(&self, side: Side) -> Option<&'static str> {
        if self.sequence > side.counter_max() {
            return Some("its number is beyond all that Braid counts");
        }
        if usize::from(self.member) >= MEMBERS_MAX {
            return Some("its member is none");
        }
        match &self.change {
            Change::Record { .. } => None,
            Change::Slot { slot, block, record } => {
                let in_use = u32::from(*slot) < EXTENT_BLOCKS && record.present >> slot & 1 == 1;
                if record.kind != RecordKind::Packed || !in_use {
                    Some("its slot is not in use in a packed extent")
                } else if *block >= VOLUME_BLOCKS_MAX {
                    Some("its block is beyond every volume")
                } else {
                    None
                }
            }
            Change::Owner { .. } if self.member != 0 => Some("it is of an owner, and names a member"),
            Change::Padding if self.member != 0 || self.index != 0 => Some("it is nothing, and names something"),
            Change::Owner { .. } | Change::Padding => None,
        }
    }

    /// Encodes the entry into the first [`LogEntry::units`] of these units. The others stay as they are.
    ///
    /// # Panics
    /// When there are fewer units, or when decoding would refuse the entry.
    pub fn encode(&self, units: &mut [[u64; UNIT_WORDS]]) {
        let (first, rest) = units[..self.units()].split_at_mut(1);
        first[0] = to_words(&match self.image() {
            Some(image) => {
                let (images, _) = image.as_chunks::<UNIT_BYTES>();
                rest.iter_mut().zip(images).for_each(|(unit, bytes)| *unit = to_words(bytes));
                self.first(&image)
            }
            None => self.first(&[]),
        });
    }

    /// Encodes the entry into bytes, 64 a unit; see [`LogEntry::encode`].
    ///
    /// # Panics
    /// As [`LogEntry::encode`].
    pub fn encode_bytes(&self, bytes: &mut [u8]) {
        let (first, rest) = bytes[..self.units() * UNIT_BYTES].split_at_mut(UNIT_BYTES);
        first.copy_from_slice(&match self.image() {
            Some(image) => {
                rest.copy_from_slice(&image);
                self.first(&image)
            }
            None => self.first(&[]),
        });
    }

    /// Returns the content of the units behind the first one, if there are any.
    fn image(&self) -> Option<[u8; OWNER_BYTES]> {
        match &self.change {
            Change::Owner { owner } => Some(owner.as_ref().map_or([0; OWNER_BYTES], |owner| owner.encode(self.index))),
            _ => None,
        }
    }

    /// Returns the first unit; `image` is the content of those behind it.
    fn first(&self, image: &[u8]) -> [u8; UNIT_BYTES] {
        let problem = self.problem(Side::Write);
        assert!(problem.is_none(), "an entry that cannot be read back: {problem:?}: {self:?}");
        let (kind, slot, block, record) = match &self.change {
            Change::Record { record } => (RECORD, 0, 0, record.encode(self.member, self.index)),
            Change::Slot { slot, block, record } => (SLOT, *slot, *block, record.encode(self.member, self.index)),
            Change::Owner { .. } => (OWNER, 0, 0, [0; RECORD_BYTES]),
            Change::Padding => (PADDING, 0, 0, [0; RECORD_BYTES]),
        };
        let raw = RawEntry {
            kind,
            member: self.member,
            slot,
            units: self.units() as u8,
            index: U32::new(self.index),
            sequence: U64::new(self.sequence),
            block: U64::new(block),
            record,
            crc: U32::ZERO,
            flags: U32::new(if self.joined { JOINED } else { 0 }),
        };
        let mut bytes: [u8; UNIT_BYTES] = zerocopy::transmute!(raw);
        let crc = crc(&bytes, image);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the entry that begins with the first of these units. Returns it and its number of units.
    ///
    /// # Errors
    /// When there is no entry, or it is damaged or invalid.
    pub fn decode(units: &[[u64; UNIT_WORDS]]) -> Result<(LogEntry, usize), EntryError> {
        let (first, rest) = units.split_first().ok_or(EntryError::Short)?;
        LogEntry::decode_parts(&from_words(first), || {
            let rest = rest.get(..OWNER_UNITS - 1)?;
            let mut image = [0; OWNER_BYTES];
            let (parts, _) = image.as_chunks_mut::<UNIT_BYTES>();
            parts.iter_mut().zip(rest).for_each(|(bytes, words)| *bytes = from_words(words));
            Some(image)
        })
    }

    /// Returns the number of units and the member of an encoded entry, given its first word. An owner's entry has no
    /// member.
    #[inline]
    pub const fn length_and_member(first: u64) -> (usize, Option<u8>) {
        let [kind, member, _, units, ..] = first.to_le_bytes();
        (units as usize, if kind == OWNER { None } else { Some(member) })
    }

    /// Decodes the entry that begins with these bytes, 64 a unit; see [`LogEntry::decode`].
    ///
    /// # Errors
    /// As [`LogEntry::decode`].
    pub fn decode_bytes(bytes: &[u8]) -> Result<(LogEntry, usize), EntryError> {
        let (first, rest) = bytes.split_first_chunk().ok_or(EntryError::Short)?;
        LogEntry::decode_parts(first, || rest.first_chunk().copied())
    }

    /// `image` returns the units behind the first one; it is called only if they are needed.
    fn decode_parts(
        first: &[u8; UNIT_BYTES],
        image: impl FnOnce() -> Option<[u8; OWNER_BYTES]>,
    ) -> Result<(LogEntry, usize), EntryError> {
        let raw: &RawEntry = zerocopy::transmute_ref!(first);
        let image = match (raw.kind, usize::from(raw.units)) {
            (RECORD | SLOT | PADDING, 1) => None,
            (OWNER, OWNER_UNITS) => Some(image().ok_or(EntryError::Short)?),
            (0, 0) if *first == [0; UNIT_BYTES] => return Err(EntryError::Empty),
            _ => return Err(EntryError::Invalid("its kind is unknown, or has another number of units")),
        };
        if raw.crc.get() != crc(first, image.as_ref().map_or(&[], |image| &image[..])) {
            return Err(EntryError::Checksum);
        }
        let (member, index) = (raw.member, raw.index.get());
        let record = || Record::decode(&raw.record, member, index);
        let change = match (raw.kind, &image) {
            (_, Some(image)) => Change::Owner { owner: Owner::decode(image, index)? },
            (RECORD, None) => Change::Record { record: record()? },
            (SLOT, None) => Change::Slot { slot: raw.slot, block: raw.block.get(), record: record()? },
            (_, None) => Change::Padding,
        };
        let flags = raw.flags.get();
        let entry = LogEntry { member, index, sequence: raw.sequence.get(), joined: flags & JOINED != 0, change };
        let of_slot = matches!(entry.change, Change::Slot { .. });
        let of_record = of_slot || matches!(entry.change, Change::Record { .. });
        let problem = if flags & !JOINED != 0 {
            Some("its flags are unknown")
        } else if !of_slot && (raw.slot != 0 || raw.block.get() != 0) || !of_record && raw.record != [0; RECORD_BYTES] {
            Some("its unused bytes are not zero")
        } else {
            entry.problem(Side::Read)
        };
        match problem {
            Some(problem) => Err(EntryError::Invalid(problem)),
            None => Ok((entry, usize::from(raw.units))),
        }
    }
}

/// Returns the checksum of an entry. It is computed on the path of a write, so the first unit is checksummed in one
/// piece, which is faster.
fn crc(first: &[u8; UNIT_BYTES], image: &[u8]) -> u32 {
    let mut aligned = Aligned([0; UNIT_BYTES - CRC.end + CRC.start]);
    let of = &mut aligned.0;
    of[..CRC.start].copy_from_slice(&first[..CRC.start]);
    of[CRC.start..].copy_from_slice(&first[CRC.end..]);
    crc32c::crc32c_append(crc32c::crc32c(of), image)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::pool::{OWNER_ID_MAX, owner, record};

    type Edit<'a> = &'a dyn Fn(&mut RawEntry);

    /// One of each kind, with every record and owner that is at a limit.
    pub(in crate::pool) fn samples() -> Vec<LogEntry> {
        let packed = Record {
            kind: RecordKind::Packed,
            life: 2,
            owner: OWNER_ID_MAX,
            logical: u32::MAX,
            present: 1 << 63 | 1,
            zero: 0,
        };
        let slot = |slot, block| Change::Slot { slot, block, record: packed };
        let padding = LogEntry { member: 0, index: 0, sequence: 0, joined: false, change: Change::Padding };
        let records = record::tests::samples().into_iter().map(|record| Change::Record { record });
        let of_members = records.chain([slot(0, 0), slot(63, VOLUME_BLOCKS_MAX - 1)]).enumerate();
        let of_members = of_members.map(|(k, change)| LogEntry {
            member: 127,
            index: u32::MAX - k as u32,
            sequence: 1 << 40,
            joined: k % 2 == 0,
            change,
        });
        let owners = owner::tests::samples().into_iter().map(Some).chain([None]).enumerate();
        let owners = owners.map(|(k, owner)| LogEntry {
            member: 0,
            index: k as u32 * 1000,
            sequence: 1 << 62,
            joined: k % 2 == 0,
            change: Change::Owner { owner },
        });
        of_members.chain(owners).chain([padding]).collect()
    }

    #[test]
    fn entries_round_trip_as_words_and_as_bytes() {
        for entry in samples() {
            let mut units = [[u64::MAX; UNIT_WORDS]; ENTRY_UNITS_MAX + 1];
            entry.encode(&mut units);
            assert!(units[entry.units()..].iter().all(|unit| *unit == [u64::MAX; UNIT_WORDS]));
            assert_eq!(LogEntry::decode(&units), Ok((entry.clone(), entry.units())));
            let mut bytes = [0xff; (ENTRY_UNITS_MAX + 1) * UNIT_BYTES];
            entry.encode_bytes(&mut bytes);
            assert_eq!(LogEntry::decode_bytes(&bytes), Ok((entry.clone(), entry.units())));
            assert!(units.iter().zip(bytes.as_chunks().0).all(|(unit, bytes)| from_words(unit) == *bytes));
            for fewer in 0..entry.units() {
                assert_eq!(LogEntry::decode(&units[..fewer]), Err(EntryError::Short));
                assert_eq!(LogEntry::decode_bytes(&bytes[..fewer * UNIT_BYTES]), Err(EntryError::Short));
            }
        }
        assert_eq!(LogEntry::decode(&[[0; UNIT_WORDS]]), Err(EntryError::Empty));
    }

    #[test]
    fn every_changed_bit_is_detected() {
        for entry in samples() {
            let mut whole = [[0; UNIT_WORDS]; ENTRY_UNITS_MAX];
            entry.encode(&mut whole);
            for bit in 0..entry.units() * UNIT_BYTES * 8 {
                let mut units = whole;
                units[bit / 512][bit / 64 % UNIT_WORDS] ^= 1 << (bit % 64);
                assert!(LogEntry::decode(&units).is_err(), "bit {bit} of {entry:?}");
            }
        }
    }

    /// Words are written one by one: a partly overwritten entry is refused.
    #[test]
    fn a_partly_written_entry_is_detected() {
        let entries = samples();
        let [old, new] = [&entries[3], &entries[11]];
        for (before, after) in [(None, new), (Some(old), new), (Some(new), old)] {
            let (mut from, mut to) = ([[0; UNIT_WORDS]; 1], [[0; UNIT_WORDS]; 1]);
            if let Some(before) = before {
                before.encode(&mut from);
            }
            after.encode(&mut to);
            for written in 1..255u32 {
                let mut torn = from;
                (0..UNIT_WORDS).filter(|word| written >> word & 1 == 1).for_each(|word| torn[0][word] = to[0][word]);
                assert!(torn == from || torn == to || LogEntry::decode(&torn).is_err(), "{written:b}");
            }
        }
    }

    #[test]
    fn invalid_entries_are_refused() {
        let entries = samples();
        let [record, slot, padding] = [&entries[3], &entries[11], &entries[entries.len() - 1]];
        let owner = entries.iter().find(|entry| entry.units() == OWNER_UNITS).unwrap();
        let refused = |entry: &LogEntry, change: &dyn Fn(&mut RawEntry)| {
            let mut bytes = [0; ENTRY_UNITS_MAX * UNIT_BYTES];
            entry.encode_bytes(&mut bytes);
            let (first, rest) = bytes.split_first_chunk_mut::<UNIT_BYTES>().unwrap();
            change(RawEntry::mut_from_bytes(first).unwrap());
            let crc = crc(first, &rest[..(entry.units() - 1) * UNIT_BYTES]);
            first[CRC].copy_from_slice(&crc.to_le_bytes());
            LogEntry::decode_bytes(&bytes).err()
        };
        assert_eq!(refused(slot, &|_| ()), None);
        let cases: [(&LogEntry, Edit<'_>, &str); 18] = [
            (record, &|raw| raw.kind = 0, "kind"),
            (record, &|raw| raw.kind = 5, "kind"),
            (record, &|raw| raw.kind = 3, "kind"),
            (record, &|raw| raw.units = 2, "kind"),
            (owner, &|raw| raw.units = 1, "kind"),
            (record, &|raw| raw.slot = 1, "unused"),
            (record, &|raw| raw.block.set(1), "unused"),
            (owner, &|raw| raw.record[31] = 1, "unused"),
            (padding, &|raw| raw.record[0] = 1, "unused"),
            (record, &|raw| raw.flags.set(2), "flags"),
            (slot, &|raw| raw.slot = 1, "slot is not in use"),
            (slot, &|raw| raw.slot = 64, "slot is not in use"),
            (slot, &|raw| raw.block.set(VOLUME_BLOCKS_MAX), "beyond every volume"),
            (slot, &|raw| raw.record = entries[3].change_record().encode(127, raw.index.get()), "slot is not in use"),
            (owner, &|raw| raw.member = 1, "names a member"),
            (padding, &|raw| raw.member = 1, "names something"),
            (padding, &|raw| raw.index.set(1), "names something"),
            (padding, &|raw| raw.member = 128, "member is none"),
        ];
        for (k, (entry, change, reason)) in cases.into_iter().enumerate() {
            match refused(entry, change) {
                Some(EntryError::Invalid(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
        // The record belongs to another index or member; the owner to another slot.
        let checksum = Some(EntryError::Record(RecordError::Checksum));
        assert_eq!(refused(record, &|raw| raw.index.set(7)), checksum);
        assert_eq!(refused(record, &|raw| raw.member = 3), checksum);
        assert_eq!(refused(owner, &|raw| raw.index.set(7)), Some(EntryError::Owner(OwnerError::Checksum)));
    }

    impl LogEntry {
        fn change_record(&self) -> Record {
            match self.change {
                Change::Record { record } | Change::Slot { record, .. } => record,
                _ => Record::free(0),
            }
        }
    }
}
