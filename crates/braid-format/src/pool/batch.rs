//! A batch of a member's log ring: a header of two units of 64 bytes, and entries behind it.
//!
//! A commit has one or more batches on each member that takes part. Recovery accepts a commit when all of its batches
//! are valid on all of these members that are present.

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::{UNIT_BYTES, UNIT_WORDS, from_words};
use super::{EntryError, LogEntry, offsets};
use crate::BLOCK_BYTES;
use crate::limits::Side;
use crate::raw::is_zero;

const BLOCK: usize = BLOCK_BYTES as usize;
const MAGIC: u32 = u32::from_le_bytes(*b"BRPB");

/// Maximum size of a batch, in bytes: 16 blocks.
pub const BATCH_BYTES_MAX: usize = 64 << 10;
/// Size of the header, in bytes.
pub const BATCH_HEADER_BYTES: usize = 128;
/// Maximum number of units of entries in a batch.
pub const BATCH_UNITS_MAX: usize = (BATCH_BYTES_MAX - BATCH_HEADER_BYTES) / UNIT_BYTES;

/// The header, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBatch {
    magic: U32,
    /// CRC-32C of everything behind it, to the end of the batch's last block.
    crc: U32,
    /// The first four bytes of the pool's UUID.
    tag: U32,
    units: U16,
    blocks: U16,
    run: U64,
    sequence: U64,
    commit: U64,
    /// Bit *i*: member *i*.
    members: U128,
    mark: U64,
    index: U16,
    batches: U16,
    /// Zero.
    reserved: [u8; 60],
}

offsets!(RawBatch: magic 0, crc 4, tag 8, units 12, blocks 14, run 16, sequence 24, commit 32, members 40, mark 56, index 64, batches 66,
    reserved 68);
const _: () = assert!(size_of::<RawBatch>() == BATCH_HEADER_BYTES && BATCH_UNITS_MAX == 1022);
/// Where the checksum is. It covers all bytes behind it.
const CRC: std::ops::Range<usize> = 4..8;

/// The header of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LogBatchHeader {
    /// The pool ([`super::pool_tag`]).
    pub pool_tag: u32,
    /// Random id of the ring's run that the batch belongs to; never 0.
    pub run: u64,
    /// Its sequence number in the run of this member's ring, from 1.
    pub sequence: u64,
    /// The number of the commit, from 1.
    pub commit: u64,
    /// Bit *i*: member *i* has batches of this commit.
    pub members: u128,
    /// Its index among the commit's batches on this member, from 0.
    pub index: u16,
    /// Number of the commit's batches on this member.
    pub batches: u16,
    /// The number of the last unit that the commit covers, in the pool's sequence of units (see
    /// [`LogEntry::sequence`]).
    pub mark: u64,
    /// Number of units of entries.
    pub units: u16,
    /// Size in blocks: [`batch_blocks`] of its units.
    pub blocks: u16,
}

/// Why bytes are not a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// There is no batch.
    #[error("there is no batch here")]
    NoMagic,
    /// The batch extends beyond the given bytes.
    #[error("the batch ends beyond what was read")]
    Short,
    /// The bytes changed after they were written, or were written in part.
    #[error("the batch's checksum is wrong")]
    Checksum,
    /// A field is invalid. A torn batch may report this as well, because the length is validated before the checksum.
    #[error("the batch makes no sense: {0}")]
    Invalid(&'static str),
}

/// Returns the size in blocks of a batch with this many units of entries.
pub const fn batch_blocks(units: u16) -> u16 {
    (BATCH_HEADER_BYTES + units as usize * UNIT_BYTES).div_ceil(BLOCK) as u16
}

impl LogBatchHeader {
    /// Validates the length, without which the checksum cannot be computed.
    fn length_problem(&self) -> Option<&'static str> {
        if usize::from(self.units) > BATCH_UNITS_MAX {
            return Some("it has too many units");
        }
        (self.blocks != batch_blocks(self.units)).then_some("its units do not make its blocks")
    }

    fn problem(&self, side: Side) -> Option<&'static str> {
        let numbers = [self.sequence, self.commit];
        let problems = [
            (self.run == 0, "its run is 0"),
            (numbers.contains(&0), "its number, or the commit's, is 0"),
            (
                numbers.iter().chain([&self.mark]).any(|number| *number > side.counter_max()),
                "its number, the commit's or its mark is beyond all that Braid counts",
            ),
            (self.members == 0, "no member takes part"),
            (self.index >= self.batches, "it is none of the commit's batches"),
        ];
        let wrong = problems.into_iter().find_map(|(wrong, problem)| wrong.then_some(problem));
        self.length_problem().or(wrong)
    }

    /// Returns whether a reader would accept the header.
    pub fn is_sound(&self) -> bool {
        self.problem(Side::Read).is_none()
    }

    /// Returns the size of the batch, in bytes.
    pub const fn bytes(&self) -> usize {
        self.blocks as usize * BLOCK
    }
}

/// Completes a batch whose entries begin at byte 128: writes the header, zeros behind the entries, and the checksum.
///
/// # Panics
/// When the header is invalid, or `bytes` is shorter than the header says.
pub fn seal_batch(bytes: &mut [u8], header: &LogBatchHeader) {
    let problem = header.problem(Side::Write);
    assert!(problem.is_none(), "a batch that cannot be read back: {problem:?}: {header:?}");
    let bytes = &mut bytes[..header.bytes()];
    let raw = RawBatch {
        magic: U32::new(MAGIC),
        crc: U32::ZERO,
        tag: U32::new(header.pool_tag),
        units: U16::new(header.units),
        blocks: U16::new(header.blocks),
        run: U64::new(header.run),
        sequence: U64::new(header.sequence),
        commit: U64::new(header.commit),
        members: U128::new(header.members),
        mark: U64::new(header.mark),
        index: U16::new(header.index),
        batches: U16::new(header.batches),
        reserved: [0; 60],
    };
    bytes[..BATCH_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    bytes[BATCH_HEADER_BYTES + usize::from(header.units) * UNIT_BYTES..].fill(0);
    let crc = crc32c::crc32c(&bytes[CRC.end..]);
    bytes[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// Validates the batch that begins with these bytes, of which there may be more, and returns its header. The caller
/// checks that it is of this pool and the expected batch; [`batch_entries`] decodes its entries.
///
/// # Errors
/// When there is no batch, or it is damaged or invalid.
pub fn validate_batch(bytes: &[u8]) -> Result<LogBatchHeader, BatchError> {
    let (raw, _) = RawBatch::ref_from_prefix(bytes).map_err(|_| BatchError::Short)?;
    // The cheap checks first: recovery makes them on every block of the ring.
    if raw.magic.get() != MAGIC {
        return Err(BatchError::NoMagic);
    }
    let header = LogBatchHeader {
        pool_tag: raw.tag.get(),
        run: raw.run.get(),
        sequence: raw.sequence.get(),
        commit: raw.commit.get(),
        members: raw.members.get(),
        index: raw.index.get(),
        batches: raw.batches.get(),
        mark: raw.mark.get(),
        units: raw.units.get(),
        blocks: raw.blocks.get(),
    };
    if let Some(problem) = header.length_problem() {
        return Err(BatchError::Invalid(problem));
    }
    let bytes = bytes.get(..header.bytes()).ok_or(BatchError::Short)?;
    if raw.crc.get() != crc32c::crc32c(&bytes[CRC.end..]) {
        return Err(BatchError::Checksum);
    }
    if let Some(problem) = header.problem(Side::Read) {
        return Err(BatchError::Invalid(problem));
    }
    let padding = &bytes[BATCH_HEADER_BYTES + usize::from(header.units) * UNIT_BYTES..];
    if raw.reserved != [0; 60] || !is_zero(padding) {
        return Err(BatchError::Invalid("its unused bytes are not zero"));
    }
    Ok(header)
}

/// Returns the entries of the batch that begins with these bytes and that [`validate_batch`] has validated.
pub fn batch_entries<'a>(bytes: &'a [u8], header: &LogBatchHeader) -> Entries<'a> {
    let end = BATCH_HEADER_BYTES + usize::from(header.units) * UNIT_BYTES;
    Entries(bytes.get(BATCH_HEADER_BYTES..end).unwrap_or_default())
}

/// The entries of a batch, in order. The first invalid entry ends the iteration, because it hides where the next one
/// begins.
#[derive(Clone, Debug)]
pub struct Entries<'a>(&'a [u8]);

impl Iterator for Entries<'_> {
    type Item = Result<LogEntry, EntryError>;

    fn next(&mut self) -> Option<Result<LogEntry, EntryError>> {
        if self.0.is_empty() {
            return None;
        }
        let read = LogEntry::decode_bytes(self.0);
        self.0 = match &read {
            Ok((_, units)) => self.0.get(units * UNIT_BYTES..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some(read.map(|(entry, _)| entry))
    }
}

/// Builds a batch.
#[derive(Debug)]
pub struct BatchBuilder<'a> {
    bytes: &'a mut [u8],
    units: usize,
    units_max: usize,
}

impl<'a> BatchBuilder<'a> {
    /// Creates an empty batch in these bytes: whole blocks, of which up to 64 KiB are used.
    ///
    /// # Panics
    /// When `bytes` are not whole blocks, or empty.
    pub fn new(bytes: &'a mut [u8]) -> BatchBuilder<'a> {
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK), "{} bytes are not whole blocks", bytes.len());
        let units_max = (bytes.len().min(BATCH_BYTES_MAX) - BATCH_HEADER_BYTES) / UNIT_BYTES;
        BatchBuilder { bytes, units: 0, units_max }
    }

    /// Returns the number of units of its entries.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Returns the number of units that still fit.
    pub fn room(&self) -> usize {
        self.units_max - self.units
    }

    /// Adds an entry. Returns `false`, and changes nothing, when there is no room for it.
    ///
    /// # Panics
    /// When the entry is invalid (decoding would refuse it).
    #[must_use]
    pub fn push(&mut self, entry: &LogEntry) -> bool {
        let Some(bytes) = self.take(entry.units()) else { return false };
        entry.encode_bytes(bytes);
        true
    }

    /// Adds an entry given as its encoded units, as the in-memory log holds them. Returns `false`, and changes nothing,
    /// when there is no room for it. The units are copied without validation.
    #[must_use]
    pub fn push_units(&mut self, units: &[[u64; UNIT_WORDS]]) -> bool {
        let Some(bytes) = self.take(units.len()) else { return false };
        bytes.as_chunks_mut::<UNIT_BYTES>().0.iter_mut().zip(units).for_each(|(bytes, unit)| *bytes = from_words(unit));
        true
    }

    fn take(&mut self, units: usize) -> Option<&mut [u8]> {
        if units > self.room() {
            return None;
        }
        let from = BATCH_HEADER_BYTES + self.units * UNIT_BYTES;
        self.units += units;
        self.bytes.get_mut(from..from + units * UNIT_BYTES)
    }

    /// Completes the batch with this header, of which `units` and `blocks` are set here. Returns the final header.
    ///
    /// # Panics
    /// As [`seal_batch`].
    pub fn seal(self, header: LogBatchHeader) -> LogBatchHeader {
        let units = self.units as u16;
        let header = LogBatchHeader { units, blocks: batch_blocks(units), ..header };
        seal_batch(self.bytes, &header);
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Change, Record, entry};

    type Edit<'a> = &'a dyn Fn(&mut RawBatch);

    const HEADER: LogBatchHeader = LogBatchHeader {
        pool_tag: u32::from_le_bytes(*b"brai"),
        run: 0x1122_3344_5566_7788,
        sequence: 12,
        commit: 7,
        members: 1 << 127 | 3,
        index: 1,
        batches: 2,
        mark: 99,
        units: 0,
        blocks: 0,
    };

    fn composed(entries: &[LogEntry]) -> (LogBatchHeader, Vec<u8>) {
        let mut bytes = vec![0xee; BATCH_BYTES_MAX];
        let mut composer = BatchBuilder::new(&mut bytes);
        assert!(entries.iter().all(|entry| composer.push(entry)));
        let header = composer.seal(HEADER);
        bytes.truncate(header.bytes());
        (header, bytes)
    }

    fn read(bytes: &[u8]) -> Result<Vec<LogEntry>, EntryError> {
        batch_entries(bytes, &validate_batch(bytes).unwrap()).collect()
    }

    #[test]
    fn batches_round_trip() {
        let some = entry::tests::samples();
        let many: Vec<LogEntry> = some.iter().cycle().take(200).cloned().collect();
        for of in [&[][..], &some[..1], &some, &many] {
            let (header, mut bytes) = composed(of);
            assert_eq!(usize::from(header.units), of.iter().map(LogEntry::units).sum::<usize>());
            assert_eq!(validate_batch(&bytes), Ok(header));
            assert_eq!(read(&bytes).as_deref(), Ok(of));
            // Bytes behind the batch do not matter; missing bytes do.
            bytes.push(0xaa);
            assert_eq!(validate_batch(&bytes), Ok(header));
            assert_eq!(validate_batch(&bytes[..bytes.len() - 2]), Err(BatchError::Short));
        }
        assert_eq!(validate_batch(&[0; 4096]), Err(BatchError::NoMagic));
        assert_eq!(validate_batch(&[]), Err(BatchError::Short));
    }

    #[test]
    fn a_full_batch_refuses_entries() {
        let some = entry::tests::samples();
        let (record, owner) = (&some[1], some.iter().find(|entry| entry.units() == 5).unwrap());
        let mut units = [[0; UNIT_WORDS]; 5];
        owner.encode(&mut units);
        let mut bytes = vec![0; BATCH_BYTES_MAX + 4096];
        let mut composer = BatchBuilder::new(&mut bytes);
        for k in 0..203 {
            assert!(if k % 2 == 0 { composer.push(owner) } else { composer.push_units(&units) });
        }
        assert!((0..3).all(|_| composer.push(record)));
        assert_eq!((composer.units(), composer.room()), (1018, 4));
        assert!(!composer.push(owner) && !composer.push_units(&units) && composer.units() == 1018);
        assert!((0..4).all(|_| composer.push(record)) && !composer.push(record));
        let header = composer.seal(HEADER);
        assert_eq!((header.units, header.blocks), (1022, 16));
        let entries = read(&bytes).unwrap();
        assert_eq!(entries.iter().filter(|entry| *entry == owner).count(), 203);
        assert_eq!((entries.len(), &entries[209]), (210, record));
        // A batch of one block.
        let mut bytes = [0; 4096];
        let mut composer = BatchBuilder::new(&mut bytes);
        assert_eq!(composer.room(), 62);
        assert!((0..62).all(|_| composer.push(record)) && !composer.push(record));
        assert_eq!(composer.seal(HEADER).blocks, 1);
        assert_eq!((batch_blocks(0), batch_blocks(62), batch_blocks(63), batch_blocks(1022)), (1, 1, 2, 16));
    }

    #[test]
    fn every_changed_bit_is_detected() {
        let (_, mut bytes) = composed(&entry::tests::samples());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(validate_batch(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(validate_batch(&bytes).is_ok());
    }

    #[test]
    fn every_torn_batch_is_detected() {
        let some = entry::tests::samples();
        let many = |owner: u32| {
            let Change::Record { record } = some[3].change else { panic!("a record is expected") };
            let change = Change::Record { record: Record { owner, ..record } };
            vec![LogEntry { change, ..some[3].clone() }; 100]
        };
        let (header, new) = composed(&many(8));
        // What was there before: nothing, or an older batch of the same shape.
        let (_, mut older) = composed(&many(7));
        seal_batch(&mut older, &LogBatchHeader { sequence: 3, commit: 2, mark: 9, ..header });
        for old in [vec![0; new.len()], older] {
            for n in 0..new.len() / 512 {
                let mut torn = old.clone();
                torn[..n * 512].copy_from_slice(&new[..n * 512]);
                assert!(torn == old || torn == new || validate_batch(&torn).is_err(), "{n} sectors written");
                let mut torn = new.clone();
                torn[n * 512..(n + 1) * 512].copy_from_slice(&old[n * 512..(n + 1) * 512]);
                // Behind the last entry, both are zeros.
                assert!(torn == new || validate_batch(&torn).is_err(), "sector {n} is missing");
            }
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let (_, whole) = composed(&[entry::tests::samples(), entry::tests::samples()].concat());
        let refused = |change: &dyn Fn(&mut RawBatch)| {
            let mut bytes = whole.clone();
            change(RawBatch::mut_from_prefix(&mut bytes).unwrap().0);
            let crc = crc32c::crc32c(&bytes[8..]);
            bytes[CRC].copy_from_slice(&crc.to_le_bytes());
            validate_batch(&bytes).err()
        };
        assert_eq!(refused(&|_| ()), None);
        let cases: [(Edit<'_>, &str); 15] = [
            (&|raw| raw.units.set(1023), "too many"),
            (&|raw| raw.units.set(u16::MAX), "too many"),
            (&|raw| raw.units.set(0), "blocks"),
            (&|raw| raw.blocks.set(0), "blocks"),
            (&|raw| raw.blocks.set(u16::MAX), "blocks"),
            (&|raw| raw.run.set(0), "run"),
            (&|raw| raw.sequence.set(0), "number"),
            (&|raw| raw.sequence.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.commit.set(0), "number"),
            (&|raw| raw.commit.set(1 << 62 | 1), "beyond"),
            (&|raw| raw.members.set(0), "member"),
            (&|raw| raw.index.set(2), "batches"),
            (&|raw| raw.batches.set(0), "batches"),
            (&|raw| raw.reserved[59] = 1, "unused"),
            // The last entry's unit becomes padding.
            (&|raw| raw.units.set(raw.units.get() - 1), "unused"),
        ];
        for (k, (change, reason)) in cases.into_iter().enumerate() {
            match refused(change) {
                Some(BatchError::Invalid(said)) => assert!(said.contains(reason), "case {k}: {said:?}"),
                other => panic!("case {k}: {other:?}"),
            }
        }
    }

    #[test]
    fn entries_end_with_the_first_invalid_one() {
        let some = entry::tests::samples();
        let owner = some.iter().find(|entry| entry.units() == 5).unwrap();
        let (header, mut bytes) = composed(&[some[3].clone(), owner.clone()]);
        // Cut in the middle of the owner's entry.
        let header = LogBatchHeader { units: header.units - 1, ..header };
        seal_batch(&mut bytes, &header);
        let found: Vec<_> = batch_entries(&bytes, &validate_batch(&bytes).unwrap()).collect();
        assert_eq!(found, [Ok(some[3].clone()), Err(EntryError::Short)]);
        bytes[BATCH_HEADER_BYTES] = 99;
        seal_batch(&mut bytes, &header);
        let found: Vec<_> = batch_entries(&bytes, &validate_batch(&bytes).unwrap()).collect();
        assert!(matches!(found[..], [Err(EntryError::Invalid(_))]));
    }
}
