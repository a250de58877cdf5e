//! An entry: one change of what a pool knows, with the whole image of what it became, so that putting it in place twice does no harm.
//!
//! Entries are units of 64 bytes; only an owner's takes five. They stand alike in the tail in shared memory, which is a slice of atomic
//! words, and in the batches of the rings. So a unit is eight words here: the words of its bytes, little-endian.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::owner::OWNER_BYTES;
use super::record::RECORD_BYTES;
use super::{Aligned, EXTENT_BLOCKS, Owner, OwnerError, Record, RecordError, RecordKind, VOLUME_BLOCKS_MAX, offsets};
use crate::MEMBERS_MAX;
use crate::limits::Side;

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 64;
/// Words of a unit.
pub const UNIT_WORDS: usize = UNIT_BYTES / size_of::<u64>();
/// Units of the entry of an owner.
pub const OWNER_UNITS: usize = 1 + OWNER_BYTES / UNIT_BYTES;
/// Most units of an entry.
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
/// Where the checksum stands.
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
        /// All of it, after the change.
        record: Record,
    },
    /// A slot of a packed extent has been given a block.
    Slot {
        /// Which.
        slot: u8,
        /// The block of the extent's owner.
        block: u64,
        /// The extent's record after the change: packed, and the slot is in use.
        record: Record,
    },
    /// A slot of the owners.
    Owner {
        /// All of it, after the change; `None`: the slot is free.
        owner: Option<Owner>,
    },
    /// Nothing: it fills room that the next entry does not fit into.
    Padding,
}

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The member; 0 for an owner and for padding, which are of none.
    pub member: u8,
    /// The record on the member, or the slot of the owners; 0 for padding.
    pub index: u32,
    /// The number of its first unit in the one sequence of the pool.
    pub sequence: u64,
    /// It counts only together with the entry after it.
    pub joined: bool,
    /// What it changes.
    pub change: Change,
}

/// Why units are no entry.
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
    /// The checksum is right, and a field makes no sense.
    #[error("the entry makes no sense: {0}")]
    Sense(&'static str),
    /// The same of its record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The same of its owner.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// The words of a unit's bytes.
pub fn to_words(bytes: &[u8; UNIT_BYTES]) -> [u64; UNIT_WORDS] {
    let (bytes, _) = bytes.as_chunks::<{ size_of::<u64>() }>();
    let mut words = [0; UNIT_WORDS];
    words.iter_mut().zip(bytes).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    words
}

/// The bytes of a unit's words.
pub fn from_words(words: &[u64; UNIT_WORDS]) -> [u8; UNIT_BYTES] {
    let mut bytes = [0; UNIT_BYTES];
    let (parts, _) = bytes.as_chunks_mut::<{ size_of::<u64>() }>();
    parts.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    bytes
}

impl Entry {
    /// How many units it takes.
    pub const fn units(&self) -> usize {
        match self.change {
            Change::Owner { .. } => OWNER_UNITS,
            _ => 1,
        }
    }

    /// What is wrong with it, its record and owner aside.
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

    /// Puts it into the first [`Entry::units`] of these units; those behind stay as they are.
    ///
    /// # Panics
    /// When there are fewer, and when decoding would refuse it.
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

    /// The same into bytes, 64 a unit.
    ///
    /// # Panics
    /// As [`Entry::encode`].
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

    /// What the units behind the first one hold, where there are some.
    fn image(&self) -> Option<[u8; OWNER_BYTES]> {
        match &self.change {
            Change::Owner { owner } => Some(owner.as_ref().map_or([0; OWNER_BYTES], |owner| owner.encode(self.index))),
            _ => None,
        }
    }

    /// The first unit; `image` is what stands in those behind it.
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

    /// Reads the entry that begins with the first of these units, and says how many units it takes.
    ///
    /// # Errors
    /// When there is none, or it is damaged or nonsense.
    pub fn decode(units: &[[u64; UNIT_WORDS]]) -> Result<(Entry, usize), EntryError> {
        let (first, rest) = units.split_first().ok_or(EntryError::Short)?;
        Entry::decode_parts(&from_words(first), || {
            let rest = rest.get(..OWNER_UNITS - 1)?;
            let mut image = [0; OWNER_BYTES];
            let (parts, _) = image.as_chunks_mut::<UNIT_BYTES>();
            parts.iter_mut().zip(rest).for_each(|(bytes, words)| *bytes = from_words(words));
            Some(image)
        })
    }

    /// Of an entry that was encoded here, by its first word: how many units it takes, and the member that it is of; none of an owner's.
    #[inline]
    pub const fn length_and_member(first: u64) -> (usize, Option<u8>) {
        let [kind, member, _, units, ..] = first.to_le_bytes();
        (units as usize, if kind == OWNER { None } else { Some(member) })
    }

    /// The same from bytes, 64 a unit.
    ///
    /// # Errors
    /// As [`Entry::decode`].
    pub fn decode_bytes(bytes: &[u8]) -> Result<(Entry, usize), EntryError> {
        let (first, rest) = bytes.split_first_chunk().ok_or(EntryError::Short)?;
        Entry::decode_parts(first, || rest.first_chunk().copied())
    }

    /// `image` gives the units behind the first one, where they are needed.
    fn decode_parts(
        first: &[u8; UNIT_BYTES],
        image: impl FnOnce() -> Option<[u8; OWNER_BYTES]>,
    ) -> Result<(Entry, usize), EntryError> {
        let raw: &RawEntry = zerocopy::transmute_ref!(first);
        let image = match (raw.kind, usize::from(raw.units)) {
            (RECORD | SLOT | PADDING, 1) => None,
            (OWNER, OWNER_UNITS) => Some(image().ok_or(EntryError::Short)?),
            (0, 0) if *first == [0; UNIT_BYTES] => return Err(EntryError::Empty),
            _ => return Err(EntryError::Sense("its kind is unknown, or has another number of units")),
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
        let entry = Entry { member, index, sequence: raw.sequence.get(), joined: flags & JOINED != 0, change };
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
            Some(problem) => Err(EntryError::Sense(problem)),
            None => Ok((entry, usize::from(raw.units))),
        }
    }
}

/// The first unit in one piece: it is asked on the path of a write.
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
    pub(in crate::pool) fn some() -> Vec<Entry> {
        let packed = Record {
            kind: RecordKind::Packed,
            life: 2,
            owner: OWNER_ID_MAX,
            logical: u32::MAX,
            present: 1 << 63 | 1,
            zero: 0,
        };
        let slot = |slot, block| Change::Slot { slot, block, record: packed };
        let padding = Entry { member: 0, index: 0, sequence: 0, joined: false, change: Change::Padding };
        let records = record::tests::some().into_iter().map(|record| Change::Record { record });
        let of_members = records.chain([slot(0, 0), slot(63, VOLUME_BLOCKS_MAX - 1)]).enumerate();
        let of_members = of_members.map(|(k, change)| Entry {
            member: 127,
            index: u32::MAX - k as u32,
            sequence: 1 << 40,
            joined: k % 2 == 0,
            change,
        });
        let owners = owner::tests::some().into_iter().map(Some).chain([None]).enumerate();
        let owners = owners.map(|(k, owner)| Entry {
            member: 0,
            index: k as u32 * 1000,
            sequence: 1 << 62,
            joined: k % 2 == 0,
            change: Change::Owner { owner },
        });
        of_members.chain(owners).chain([padding]).collect()
    }

    #[test]
    fn entries_come_back_from_words_and_from_bytes() {
        for entry in some() {
            let mut units = [[u64::MAX; UNIT_WORDS]; ENTRY_UNITS_MAX + 1];
            entry.encode(&mut units);
            assert!(units[entry.units()..].iter().all(|unit| *unit == [u64::MAX; UNIT_WORDS]));
            assert_eq!(Entry::decode(&units), Ok((entry.clone(), entry.units())));
            let mut bytes = [0xff; (ENTRY_UNITS_MAX + 1) * UNIT_BYTES];
            entry.encode_bytes(&mut bytes);
            assert_eq!(Entry::decode_bytes(&bytes), Ok((entry.clone(), entry.units())));
            assert!(units.iter().zip(bytes.as_chunks().0).all(|(unit, bytes)| from_words(unit) == *bytes));
            for fewer in 0..entry.units() {
                assert_eq!(Entry::decode(&units[..fewer]), Err(EntryError::Short));
                assert_eq!(Entry::decode_bytes(&bytes[..fewer * UNIT_BYTES]), Err(EntryError::Short));
            }
        }
        assert_eq!(Entry::decode(&[[0; UNIT_WORDS]]), Err(EntryError::Empty));
    }

    #[test]
    fn every_bit_that_changes_is_noticed() {
        for entry in some() {
            let mut whole = [[0; UNIT_WORDS]; ENTRY_UNITS_MAX];
            entry.encode(&mut whole);
            for bit in 0..entry.units() * UNIT_BYTES * 8 {
                let mut units = whole;
                units[bit / 512][bit / 64 % UNIT_WORDS] ^= 1 << (bit % 64);
                assert!(Entry::decode(&units).is_err(), "bit {bit} of {entry:?}");
            }
        }
    }

    /// Words arrive one by one: what stood there before is no part of an entry.
    #[test]
    fn an_entry_that_was_written_in_part_is_noticed() {
        let entries = some();
        let [old, new] = [&entries[3], &entries[11]];
        for (before, after) in [(None, new), (Some(old), new), (Some(new), old)] {
            let (mut from, mut to) = ([[0; UNIT_WORDS]; 1], [[0; UNIT_WORDS]; 1]);
            if let Some(before) = before {
                before.encode(&mut from);
            }
            after.encode(&mut to);
            for arrived in 1..255u32 {
                let mut torn = from;
                (0..UNIT_WORDS).filter(|word| arrived >> word & 1 == 1).for_each(|word| torn[0][word] = to[0][word]);
                assert!(torn == from || torn == to || Entry::decode(&torn).is_err(), "{arrived:b}");
            }
        }
    }

    #[test]
    fn entries_without_sense_are_refused() {
        let entries = some();
        let [record, slot, padding] = [&entries[3], &entries[11], &entries[entries.len() - 1]];
        let owner = entries.iter().find(|entry| entry.units() == OWNER_UNITS).unwrap();
        let refused = |entry: &Entry, change: &dyn Fn(&mut RawEntry)| {
            let mut bytes = [0; ENTRY_UNITS_MAX * UNIT_BYTES];
            entry.encode_bytes(&mut bytes);
            let (first, rest) = bytes.split_first_chunk_mut::<UNIT_BYTES>().unwrap();
            change(RawEntry::mut_from_bytes(first).unwrap());
            let crc = crc(first, &rest[..(entry.units() - 1) * UNIT_BYTES]);
            first[CRC].copy_from_slice(&crc.to_le_bytes());
            Entry::decode_bytes(&bytes).err()
        };
        assert_eq!(refused(slot, &|_| ()), None);
        let cases: [(&Entry, Edit<'_>, &str); 18] = [
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
                Some(EntryError::Sense(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
        // Its record is that of another place; its owner that of another slot.
        let checksum = Some(EntryError::Record(RecordError::Checksum));
        assert_eq!(refused(record, &|raw| raw.index.set(7)), checksum);
        assert_eq!(refused(record, &|raw| raw.member = 3), checksum);
        assert_eq!(refused(owner, &|raw| raw.index.set(7)), Some(EntryError::Owner(OwnerError::Checksum)));
    }

    impl Entry {
        fn change_record(&self) -> Record {
            match self.change {
                Change::Record { record } | Change::Slot { record, .. } => record,
                _ => Record::free(0),
            }
        }
    }
}
