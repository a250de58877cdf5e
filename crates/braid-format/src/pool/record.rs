//! A record of a member's table: what an extent holds, or which range of a volume reads as zeros.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Aligned, LOGICAL_MAX, OWNER_ID_MAX, offsets};

/// Size of a record, in bytes.
pub const RECORD_BYTES: usize = 32;

/// A record, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecord {
    /// 0 free, 1 whole, 2 packed, 3 zeros.
    kind: u8,
    /// Zero.
    reserved: u8,
    life: U16,
    owner: U32,
    logical: U32,
    /// CRC-32C of the bytes before it and behind it, then of the member's number (one byte) and the record's index (four).
    crc: U32,
    present: U64,
    zero: U64,
}

offsets!(RawRecord: kind 0, reserved 1, life 2, owner 4, logical 8, crc 12, present 16, zero 24);
const _: () = assert!(size_of::<RawRecord>() == RECORD_BYTES);
/// Where the checksum is.
const CRC: std::ops::Range<usize> = 12..16;
/// The logical extent of a packed extent, which holds blocks of many logical extents.
const NO_LOGICAL: u32 = u32::MAX;

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordKind {
    /// A free extent.
    Free,
    /// An extent with blocks of one logical extent, each at its own position.
    Whole,
    /// An extent with 64 blocks from anywhere in a volume; their addresses are in its address sector.
    Packed,
    /// A range that reads as zeros; no extent belongs to it.
    Zeros,
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The kind.
    pub kind: RecordKind,
    /// The extent's life number, which distinguishes one use of the extent from the next: an allocation increments it,
    /// modulo 2^16. A freed extent keeps it.
    pub life: u16,
    /// The owner's number; 0 if free.
    pub owner: u32,
    /// The index in the owner of the logical extent (for zeros, of the first one); `u32::MAX` if packed, 0 if free.
    pub logical: u32,
    /// Whole: bit *i*: block *i* of the logical extent is present. Packed: bit *i*: slot *i* is in use. Zeros: the
    /// number of logical extents in the range. Free: 0.
    pub present: u64,
    /// Whole: bit *i*: block *i* reads as zeros; it is then not present. Zeros: bit *i*: block *i* reads as zeros, if
    /// the range is one logical extent; else all bits. Otherwise 0.
    pub zero: u64,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// The bytes changed after they were written, or belong to another record.
    #[error("the record's checksum is wrong")]
    Checksum,
    /// The checksum is right, but a field is invalid.
    #[error("the record makes no sense: {0}")]
    Invalid(&'static str),
}

impl Record {
    /// Returns the record of a free extent with this life number.
    pub const fn free(life: u16) -> Record {
        Record { kind: RecordKind::Free, life, owner: 0, logical: 0, present: 0, zero: 0 }
    }

    /// Returns what is wrong with the record.
    pub(super) const fn problem(&self) -> Option<&'static str> {
        let Record { kind, owner, logical, present, zero, .. } = *self;
        if let RecordKind::Free = kind {
            let nothing = owner == 0 && logical == 0 && present == 0 && zero == 0;
            return if nothing { None } else { Some("it is free, and something stands there") };
        }
        if owner == 0 || owner > OWNER_ID_MAX {
            return Some("its owner is none");
        }
        match kind {
            RecordKind::Packed if logical != NO_LOGICAL => Some("it is packed, and of one logical extent"),
            RecordKind::Packed if zero != 0 => Some("it is packed, and says what reads as zeros"),
            RecordKind::Packed => None,
            _ if logical > LOGICAL_MAX => Some("its logical extent is none"),
            RecordKind::Whole if present & zero != 0 => Some("a block is present and reads as zeros"),
            RecordKind::Zeros if present == 0 => Some("it is a range of no extents"),
            RecordKind::Zeros if present > (LOGICAL_MAX - logical) as u64 + 1 => {
                Some("its range ends beyond every volume")
            }
            RecordKind::Zeros if zero == 0 => Some("it is of zeros, and no block is"),
            RecordKind::Zeros if present > 1 && zero != u64::MAX => {
                Some("it is a range of several extents, and leaves blocks out")
            }
            _ => None,
        }
    }

    /// Returns whether decoding would accept the record.
    pub const fn is_sound(&self) -> bool {
        self.problem().is_none()
    }

    /// Encodes the record as record `index` of member `member`. A free record with life number 0 is 32 zeros, as in a
    /// table that was just zeroed.
    ///
    /// # Panics
    /// When the record is not sound.
    pub fn encode(&self, member: u8, index: u32) -> [u8; RECORD_BYTES] {
        let problem = self.problem();
        assert!(problem.is_none(), "a record that cannot be read back: {problem:?}: {self:?}");
        if *self == Record::free(0) {
            return [0; RECORD_BYTES];
        }
        let raw = RawRecord {
            kind: match self.kind {
                RecordKind::Free => 0,
                RecordKind::Whole => 1,
                RecordKind::Packed => 2,
                RecordKind::Zeros => 3,
            },
            reserved: 0,
            life: U16::new(self.life),
            owner: U32::new(self.owner),
            logical: U32::new(self.logical),
            crc: U32::ZERO,
            present: U64::new(self.present),
            zero: U64::new(self.zero),
        };
        let mut bytes: [u8; RECORD_BYTES] = zerocopy::transmute!(raw);
        let crc = crc(&bytes, member, index);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes record `index` of member `member`.
    ///
    /// # Errors
    /// When the record is damaged, belongs elsewhere, or is invalid.
    pub fn decode(bytes: &[u8; RECORD_BYTES], member: u8, index: u32) -> Result<Record, RecordError> {
        if *bytes == [0; RECORD_BYTES] {
            return Ok(Record::free(0));
        }
        let raw: &RawRecord = zerocopy::transmute_ref!(bytes);
        if raw.crc.get() != crc(bytes, member, index) {
            return Err(RecordError::Checksum);
        }
        let record = Record {
            kind: match raw.kind {
                0 => RecordKind::Free,
                1 => RecordKind::Whole,
                2 => RecordKind::Packed,
                3 => RecordKind::Zeros,
                _ => return Err(RecordError::Invalid("its kind is unknown")),
            },
            life: raw.life.get(),
            owner: raw.owner.get(),
            logical: raw.logical.get(),
            present: raw.present.get(),
            zero: raw.zero.get(),
        };
        match record.problem() {
            Some(problem) => Err(RecordError::Invalid(problem)),
            None if raw.reserved != 0 => Err(RecordError::Invalid("its reserved byte is not zero")),
            // All zeros is the only encoding of this record.
            None if record == Record::free(0) => Err(RecordError::Invalid("a free one of life 0 is all zeros")),
            None => Ok(record),
        }
    }
}

/// Returns the checksum of a record. Opening a pool computes it for every record, so the bytes are checksummed in one
/// piece, which is faster.
fn crc(bytes: &[u8; RECORD_BYTES], member: u8, index: u32) -> u32 {
    const REST: usize = RECORD_BYTES - CRC.end;
    let mut aligned = Aligned([0; CRC.start + REST + 5]);
    let of = &mut aligned.0;
    of[..CRC.start].copy_from_slice(&bytes[..CRC.start]);
    of[CRC.start..CRC.start + REST].copy_from_slice(&bytes[CRC.end..]);
    of[CRC.start + REST] = member;
    of[CRC.start + REST + 1..].copy_from_slice(&index.to_le_bytes());
    crc32c::crc32c(of)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    type Edit<'a> = &'a dyn Fn(&mut RawRecord);

    /// One of each kind, and those at the limits.
    pub(in crate::pool) fn samples() -> Vec<Record> {
        let whole = Record { kind: RecordKind::Whole, life: 7, owner: 3, logical: 9, present: 0xff00, zero: 0xf };
        vec![
            Record::free(0),
            Record::free(1),
            Record::free(u16::MAX),
            whole,
            Record { owner: OWNER_ID_MAX, logical: LOGICAL_MAX, present: 0, zero: 0, ..whole },
            Record { present: u64::MAX, zero: 0, ..whole },
            Record { kind: RecordKind::Packed, logical: u32::MAX, zero: 0, ..whole },
            Record { kind: RecordKind::Packed, logical: u32::MAX, present: 0, zero: 0, ..whole },
            Record { kind: RecordKind::Zeros, present: 1, zero: 5, ..whole },
            Record { kind: RecordKind::Zeros, present: 2, zero: u64::MAX, logical: LOGICAL_MAX - 1, ..whole },
            Record {
                kind: RecordKind::Zeros,
                present: u64::from(LOGICAL_MAX) + 1,
                zero: u64::MAX,
                logical: 0,
                ..whole
            },
        ]
    }

    #[test]
    fn records_round_trip_only_at_their_index() {
        for record in samples() {
            for (member, index) in [(0, 0), (127, u32::MAX)] {
                let bytes = record.encode(member, index);
                assert_eq!(Record::decode(&bytes, member, index), Ok(record));
                let zeros = bytes == [0; RECORD_BYTES];
                assert_eq!(zeros, record == Record::free(0));
                for elsewhere in [(member ^ 1, index), (member, index ^ 1)] {
                    let read = Record::decode(&bytes, elsewhere.0, elsewhere.1);
                    assert_eq!(read, if zeros { Ok(record) } else { Err(RecordError::Checksum) });
                }
            }
        }
    }

    #[test]
    fn every_changed_bit_is_detected() {
        for record in samples() {
            let whole = record.encode(3, 1000);
            for bit in 0..RECORD_BYTES * 8 {
                let mut bytes = whole;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Record::decode(&bytes, 3, 1000).is_err(), "bit {bit} of {record:?}");
            }
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        let whole = Record { kind: RecordKind::Whole, life: 7, owner: 3, logical: 9, present: 0xff00, zero: 0xf };
        let packed = Record { kind: RecordKind::Packed, logical: u32::MAX, zero: 0, ..whole };
        let zeros = Record { kind: RecordKind::Zeros, present: 1, ..whole };
        let refused = |sound: Record, change: &dyn Fn(&mut RawRecord)| {
            let mut bytes = sound.encode(3, 1000);
            change(RawRecord::mut_from_bytes(&mut bytes).unwrap());
            let crc = crc(&bytes, 3, 1000);
            bytes[CRC].copy_from_slice(&crc.to_le_bytes());
            match Record::decode(&bytes, 3, 1000) {
                Ok(_) => None,
                Err(RecordError::Invalid(reason)) => Some(reason),
                Err(RecordError::Checksum) => panic!("the checksum was set"),
            }
        };
        assert_eq!(refused(whole, &|_| ()), None);
        let cases: [(Record, Edit<'_>, &str); 21] = [
            (whole, &|raw| raw.kind = 4, "kind"),
            (whole, &|raw| raw.kind = 255, "kind"),
            (whole, &|raw| raw.reserved = 1, "reserved"),
            (whole, &|raw| raw.owner.set(0), "owner"),
            (whole, &|raw| raw.owner.set(1 << 31), "owner"),
            (whole, &|raw| raw.logical.set(u32::MAX), "logical"),
            (whole, &|raw| raw.zero.set(1 << 8), "present and reads as zeros"),
            (packed, &|raw| raw.owner.set(0), "owner"),
            (packed, &|raw| raw.logical.set(0), "packed"),
            (packed, &|raw| raw.zero.set(1), "packed"),
            (zeros, &|raw| raw.owner.set(0), "owner"),
            (zeros, &|raw| raw.present.set(0), "no extents"),
            (zeros, &|raw| raw.present.set(2), "several"),
            (zeros, &|raw| raw.present.set(u64::MAX), "beyond"),
            (zeros, &|raw| raw.zero.set(0), "no block"),
            (zeros, &|raw| raw.logical.set(u32::MAX), "logical"),
            (Record::free(1), &|raw| raw.owner.set(1), "free"),
            (Record::free(1), &|raw| raw.logical.set(1), "free"),
            (Record::free(1), &|raw| raw.present.set(1), "free"),
            (Record::free(1), &|raw| raw.zero.set(1), "free"),
            (Record::free(1), &|raw| raw.life.set(0), "all zeros"),
        ];
        for (k, (sound, change, reason)) in cases.into_iter().enumerate() {
            let said = refused(sound, change).unwrap_or_default();
            assert!(said.contains(reason), "case {k}: {said:?}");
        }
    }
}
