//! A batch: a header of one block that lists entries, and their payload in the blocks behind it.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BATCH_BLOCKS_MAX, ENTRIES_MAX, STRIPE_LINES_MAX};
use crate::bitmap::tag;
use crate::limits::{JOURNAL_BLOCKS_MAX, STRIPE_NUMBER_MAX, Side};
use crate::{BLOCK_BYTES, MEMBERS_MAX};

const BLOCK: usize = BLOCK_BYTES as usize;
const MAGIC: u32 = u32::from_le_bytes(*b"BRJB");
/// Maximum number of parities of a stripe.
const PARITIES_MAX: u8 = 2;

/// An entry, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct RawEntry {
    /// The stripe.
    row: U64,
    /// The first line, counted from the stripe's top.
    first: U16,
    /// How many lines.
    blocks: U16,
    /// The first data cell.
    cell: u8,
    /// How many data cells follow in the payload.
    cells: u8,
    /// How many parities follow those: P, then Q.
    parities: u8,
    /// 1 data, 2 mark.
    kind: u8,
    /// Zero.
    reserved: U64,
}

/// The header, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBatch {
    /// CRC-32C of the 4092 bytes after it.
    crc: U32,
    magic: U32,
    /// The first four bytes of the array's UUID.
    tag: U32,
    /// CRC-32C of the blocks behind the header.
    payload_crc: U32,
    run: U64,
    sequence: U64,
    tail: U64,
    position: U64,
    blocks: U32,
    entry_count: U16,
    /// Zero.
    reserved: [u8; 10],
    entries: [RawEntry; ENTRIES_MAX],
}

macro_rules! offsets {
    ($type:ident: $($field:ident $offset:literal),*) => {
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}
offsets!(RawBatch: crc 0, magic 4, tag 8, payload_crc 12, run 16, sequence 24, tail 32, position 40, blocks 48, entry_count 52,
    reserved 54, entries 64);
offsets!(RawEntry: row 0, first 8, blocks 10, cell 12, cells 13, parities 14, kind 15, reserved 16);
const _: () = assert!(size_of::<RawBatch>() == BLOCK && size_of::<RawEntry>() == 24);
const CRC_BYTES: usize = size_of::<U32>();

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EntryKind {
    /// New content of some data cells over some lines, and of the parity of these lines.
    Data,
    /// A full-stripe write, which goes to the members in place without a copy in the journal. After a crash the
    /// stripe's parity may not match its data.
    Mark,
}

/// One entry of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JournalEntry {
    /// The stripe.
    pub stripe: u64,
    /// The first line, in blocks from the stripe's top; 0 for a mark.
    pub first: u16,
    /// How many lines; 0 for a mark.
    pub blocks: u16,
    /// The first data cell; 0 for a mark.
    pub cell: u8,
    /// How many data cells, from `cell` on; 0 for a mark.
    pub cells: u8,
    /// How many parities: 1 for P, 2 for P and Q; 0 for a mark.
    pub parities: u8,
    /// The kind.
    pub kind: EntryKind,
}

impl JournalEntry {
    /// Fills unused entries of tables.
    pub const NONE: JournalEntry = JournalEntry::mark(0);

    /// Returns the mark of a full-stripe write to this stripe.
    pub const fn mark(row: u64) -> JournalEntry {
        JournalEntry { stripe: row, first: 0, blocks: 0, cell: 0, cells: 0, parities: 0, kind: EntryKind::Mark }
    }

    /// Returns the number of payload blocks.
    pub const fn payload_blocks(&self) -> u32 {
        (self.cells as u32 + self.parities as u32) * self.blocks as u32
    }

    /// Returns the lines as a bit mask: bit *i* is line *i*. 0 for a mark.
    pub const fn lines(&self) -> u16 {
        let last = self.first as u32 + self.blocks as u32;
        if last > STRIPE_LINES_MAX { 0 } else { (((1u32 << last) - 1) & !((1u32 << self.first) - 1)) as u16 }
    }

    /// Returns whether the entry is consistent in itself, so that some array could have it. The caller checks it
    /// against the geometry of the actual array.
    pub const fn is_sound(&self) -> bool {
        if self.stripe > STRIPE_NUMBER_MAX {
            return false;
        }
        match self.kind {
            EntryKind::Mark => {
                self.first == 0 && self.blocks == 0 && self.cell == 0 && self.cells == 0 && self.parities == 0
            }
            EntryKind::Data => {
                self.blocks > 0
                    && self.first as u32 + self.blocks as u32 <= STRIPE_LINES_MAX
                    && self.cells > 0
                    && (self.cell as usize + self.cells as usize) < MEMBERS_MAX
                    && self.parities <= PARITIES_MAX
            }
        }
    }

    fn raw(&self) -> RawEntry {
        RawEntry {
            row: U64::new(self.stripe),
            first: U16::new(self.first),
            blocks: U16::new(self.blocks),
            cell: self.cell,
            cells: self.cells,
            parities: self.parities,
            kind: match self.kind {
                EntryKind::Data => 1,
                EntryKind::Mark => 2,
            },
            reserved: U64::ZERO,
        }
    }

    fn from_raw(raw: &RawEntry) -> Option<JournalEntry> {
        let kind = match raw.kind {
            1 => EntryKind::Data,
            2 => EntryKind::Mark,
            _ => return None,
        };
        let entry = JournalEntry {
            stripe: raw.row.get(),
            first: raw.first.get(),
            blocks: raw.blocks.get(),
            cell: raw.cell,
            cells: raw.cells,
            parities: raw.parities,
            kind,
        };
        (raw.reserved.get() == 0 && entry.is_sound()).then_some(entry)
    }
}

/// The header of a batch, without its entries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JournalBatchHeader {
    /// Random id of the ring's run that the batch belongs to; never 0.
    pub run: u64,
    /// The batch's sequence number in the run, from 1.
    pub sequence: u64,
    /// The sequence number of the oldest batch that was still needed when this one was written; its own if none was.
    pub tail: u64,
    /// The position of the header in the ring, in blocks.
    pub position: u64,
    /// Size of the batch in blocks, the header included.
    pub blocks: u32,
    /// Number of entries.
    pub entries: u16,
    /// CRC-32C of the payload; 0 if there is none.
    pub payload_crc: u32,
}

impl JournalBatchHeader {
    fn is_sound(&self, side: Side) -> bool {
        self.run != 0
            && (1..=self.sequence).contains(&self.tail)
            && self.sequence <= side.counter_max()
            && self.position <= JOURNAL_BLOCKS_MAX
            && (1..=BATCH_BLOCKS_MAX).contains(&self.blocks)
            && usize::from(self.entries) <= ENTRIES_MAX
    }
}

/// Returns the CRC-32C of a payload that is passed in several pieces: `crc` is the result for the preceding pieces, and
/// 0 for the first one.
pub fn payload_crc(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// The entries of a decoded batch, all of them valid.
#[derive(Clone, Debug)]
pub struct Entries<'a>(std::slice::Iter<'a, RawEntry>);

impl Iterator for Entries<'_> {
    type Item = JournalEntry;

    fn next(&mut self) -> Option<JournalEntry> {
        JournalEntry::from_raw(self.0.next()?)
    }
}

impl std::fmt::Debug for RawEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        JournalEntry::from_raw(self).fmt(f)
    }
}

/// Encodes the header of a batch of this array into `out`.
///
/// # Panics
/// When the header or an entry is invalid: no reader would accept the batch.
pub fn encode_batch(array: &Uuid, header: &JournalBatchHeader, entries: &[JournalEntry], out: &mut [u8; BLOCK]) {
    let payload: u32 = entries.iter().map(JournalEntry::payload_blocks).sum();
    assert!(
        header.is_sound(Side::Write)
            && entries.len() == usize::from(header.entries)
            && entries.iter().all(JournalEntry::is_sound)
            && header.blocks == 1 + payload,
        "a batch that cannot be read back: {header:?}"
    );
    out.fill(0);
    if let Ok(raw) = RawBatch::mut_from_bytes(out) {
        raw.magic.set(MAGIC);
        raw.tag.set(tag(array));
        raw.payload_crc.set(header.payload_crc);
        raw.run.set(header.run);
        raw.sequence.set(header.sequence);
        raw.tail.set(header.tail);
        raw.position.set(header.position);
        raw.blocks.set(header.blocks);
        raw.entry_count.set(header.entries);
        raw.entries.iter_mut().zip(entries).for_each(|(raw, entry)| *raw = entry.raw());
    }
    let crc = crc32c::crc32c(&out[CRC_BYTES..]);
    out[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the header of a batch of this array. `None`: the block is not a header of this array, or is damaged. The
/// caller validates the payload.
pub fn decode_batch<'a>(array: &Uuid, bytes: &'a [u8; BLOCK]) -> Option<(JournalBatchHeader, Entries<'a>)> {
    let raw = RawBatch::ref_from_bytes(bytes).ok()?;
    // The cheap checks first: recovery makes them on every block of the ring.
    if (raw.magic.get(), raw.tag.get()) != (MAGIC, tag(array)) || raw.crc.get() != crc32c::crc32c(&bytes[CRC_BYTES..]) {
        return None;
    }
    let header = JournalBatchHeader {
        run: raw.run.get(),
        sequence: raw.sequence.get(),
        tail: raw.tail.get(),
        position: raw.position.get(),
        blocks: raw.blocks.get(),
        entries: raw.entry_count.get(),
        payload_crc: raw.payload_crc.get(),
    };
    if !header.is_sound(Side::Read) || raw.reserved != [0; 10] {
        return None;
    }
    let (used, unused) = raw.entries.split_at(usize::from(header.entries));
    if unused.iter().any(|raw| raw.as_bytes().iter().any(|byte| *byte != 0)) {
        return None;
    }
    // At most 168 entries of 129 cells of 16 blocks: the sum cannot overflow.
    let payload = used.iter().map(|raw| Some(JournalEntry::from_raw(raw)?.payload_blocks())).sum::<Option<u32>>()?;
    let whole = header.blocks == 1 + payload && (payload > 0 || header.payload_crc == 0);
    whole.then_some((header, Entries(used.iter())))
}

/// Returns the checksum stored in a header's block. It is the same in all copies of a batch: header and payload
/// checksum are equal on all members.
pub fn batch_crc(bytes: &[u8; BLOCK]) -> u32 {
    let mut crc = [0; CRC_BYTES];
    crc.copy_from_slice(&bytes[..CRC_BYTES]);
    u32::from_le_bytes(crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Uuid = Uuid::from_bytes(*b"braid-test-array");

    fn data(row: u64, first: u16, blocks: u16, cell: u8, cells: u8, parities: u8) -> JournalEntry {
        JournalEntry { stripe: row, first, blocks, cell, cells, parities, kind: EntryKind::Data }
    }

    fn sample() -> (JournalBatchHeader, Vec<JournalEntry>, Vec<u8>) {
        let entries = vec![data(7, 1, 2, 0, 2, 1), JournalEntry::mark(1 << 40), data(8, 15, 1, 3, 1, 2)];
        let payload: Vec<u8> = (0..9 * 4096u32).map(|i| (i / 7) as u8).collect();
        let header = JournalBatchHeader {
            run: 0x1122_3344_5566_7788,
            sequence: 12,
            tail: 9,
            position: 100,
            blocks: 10,
            entries: 3,
            payload_crc: payload_crc(0, &payload),
        };
        (header, entries, payload)
    }

    #[test]
    fn a_batch_round_trips() {
        let (header, entries, _) = sample();
        let mut bytes = [0xff; 4096];
        encode_batch(&ARRAY, &header, &entries, &mut bytes);
        let (back, found) = decode_batch(&ARRAY, &bytes).unwrap();
        assert_eq!((back, found.collect::<Vec<_>>()), (header, entries));
        assert!(decode_batch(&Uuid::from_u128(1), &bytes).is_none(), "it belongs to another array");
        assert!(decode_batch(&ARRAY, &[0; 4096]).is_none());
    }

    #[test]
    fn an_empty_batch_and_a_full_one_round_trip() {
        let (mut header, _, _) = sample();
        let mut bytes = [0; 4096];
        for entries in
            [vec![], vec![data(STRIPE_NUMBER_MAX, 0, 1, 126, 1, 2); ENTRIES_MAX], vec![data(1, 0, 16, 0, 60, 2)]]
        {
            header.entries = entries.len() as u16;
            header.blocks = 1 + entries.iter().map(JournalEntry::payload_blocks).sum::<u32>();
            header.payload_crc = if entries.is_empty() { 0 } else { 5 };
            encode_batch(&ARRAY, &header, &entries, &mut bytes);
            let (back, found) = decode_batch(&ARRAY, &bytes).unwrap();
            assert_eq!((back, found.collect::<Vec<_>>()), (header, entries));
        }
    }

    /// Validates header and payload, as a reader does.
    fn is_valid(batch: &[u8]) -> bool {
        let (head, payload) = batch.split_first_chunk::<4096>().unwrap();
        decode_batch(&ARRAY, head).is_some_and(|(header, _)| header.payload_crc == payload_crc(0, payload))
    }

    fn whole() -> Vec<u8> {
        let (header, entries, payload) = sample();
        let mut head = [0; 4096];
        encode_batch(&ARRAY, &header, &entries, &mut head);
        [&head[..], &payload].concat()
    }

    #[test]
    fn every_changed_byte_is_detected() {
        let mut batch = whole();
        assert!(is_valid(&batch));
        for at in 0..batch.len() {
            batch[at] ^= 0x10;
            assert!(!is_valid(&batch), "byte {at}");
            batch[at] ^= 0x10;
        }
    }

    #[test]
    fn every_torn_batch_is_detected() {
        let new = whole();
        // What was there before: nothing, or an older batch of the same shape.
        let (mut header, entries, mut payload) = sample();
        (header.sequence, header.tail) = (3, 3);
        payload.iter_mut().for_each(|byte| *byte ^= 1);
        header.payload_crc = payload_crc(0, &payload);
        let mut head = [0; 4096];
        encode_batch(&ARRAY, &header, &entries, &mut head);
        for old in [vec![0; new.len()], [&head[..], &payload].concat()] {
            let sectors = new.len() / 512;
            // The first n sectors were written; all but one; only one.
            for n in 0..sectors {
                let mut torn = old.clone();
                torn[..n * 512].copy_from_slice(&new[..n * 512]);
                assert!(!is_valid(&torn) || torn == old, "{n} sectors written");
                let mut torn = new.clone();
                torn[n * 512..(n + 1) * 512].copy_from_slice(&old[n * 512..(n + 1) * 512]);
                assert!(!is_valid(&torn) || torn == new, "sector {n} is missing");
            }
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let (header, entries, _) = sample();
        let mut whole = [0; 4096];
        encode_batch(&ARRAY, &header, &entries, &mut whole);
        let refused = |change: &dyn Fn(&mut RawBatch)| {
            let mut bytes = whole;
            change(RawBatch::mut_from_bytes(&mut bytes).unwrap());
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            decode_batch(&ARRAY, &bytes).is_none()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|raw| raw.run.set(0)));
        assert!(refused(&|raw| raw.tail.set(0)));
        assert!(refused(&|raw| raw.tail.set(13)));
        assert!(refused(&|raw| raw.sequence.set(u64::MAX)));
        assert!(refused(&|raw| raw.position.set(u64::MAX)));
        assert!(refused(&|raw| raw.entries[0].row.set(u64::MAX)));
        assert!(refused(&|raw| raw.blocks.set(11)));
        assert!(refused(&|raw| raw.blocks.set(u32::MAX)));
        assert!(refused(&|raw| raw.entry_count.set(2)));
        assert!(refused(&|raw| raw.entry_count.set(169)));
        assert!(refused(&|raw| raw.reserved[9] = 1));
        assert!(refused(&|raw| raw.entries[0].blocks.set(16)));
        assert!(refused(&|raw| raw.entries[0].cells = 127));
        assert!(refused(&|raw| raw.entries[0].parities = 3));
        assert!(refused(&|raw| raw.entries[0].kind = 3));
        assert!(refused(&|raw| raw.entries[1].blocks.set(1)));
        assert!(refused(&|raw| raw.entries[1].reserved.set(1)));
        assert!(refused(&|raw| raw.entries[3].row.set(1)));
    }

    #[test]
    fn lines_as_a_bit_mask() {
        assert_eq!(data(0, 0, 16, 0, 1, 1).lines(), 0xffff);
        assert_eq!(data(0, 15, 1, 0, 1, 1).lines(), 0x8000);
        assert_eq!(data(0, 1, 2, 0, 1, 1).lines(), 0b110);
        assert_eq!(JournalEntry::mark(1).lines(), 0);
    }
}
