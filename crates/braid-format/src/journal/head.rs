//! The head of the journal: which run the ring's batches belong to, and which stripes are lost.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HEAD_BYTES, LOST_CELLS_MAX, LOST_STRIPES_MAX, STRIPE_BYTES_MAX};
use crate::limits::{JOURNAL_BLOCKS_MAX, STRIPE_NUMBER_MAX, Side};
use crate::raw::{get48, put48};
use crate::{BLOCK_BYTES, MEMBERS_MAX, MemberId};

const MAGIC: u32 = u32::from_le_bytes(*b"BRJH");
const CRC_BYTES: usize = size_of::<U32>();
/// No cell.
const NO_CELL: u8 = 0xff;

/// The head before its list of lost stripes, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    /// CRC-32C of the bytes after it, to the end of the list.
    crc: U32,
    magic: U32,
    array_uuid: [u8; 16],
    generation: U64,
    run: U64,
    ring_blocks: U64,
    row_bytes: U32,
    lost_count: U32,
    /// The dedicated disk that the ring is on; 0: the members.
    disk: [u8; 6],
    /// As in [`RingLocation::Disk`]; 0 if the ring is on the members.
    member_blocks: U16,
}

/// An entry of the list of lost stripes, little-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawLostRow {
    /// The stripe.
    row: U64,
    /// Bit *i*: line *i* of the stripe.
    lines: U16,
    /// The unreadable data cells, ascending; 0xff for none.
    cells: [u8; LOST_CELLS_MAX],
}

macro_rules! offsets {
    ($type:ident: $($field:ident $offset:literal),*) => {
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}
offsets!(RawHead: crc 0, magic 4, array_uuid 8, generation 24, run 32, ring_blocks 40, row_bytes 48, lost_count 52, disk 56, member_blocks 62);
offsets!(RawLostRow: row 0, lines 8, cells 10);
const _: () = assert!(size_of::<RawHead>() == 64 && size_of::<RawLostRow>() == 16);
const _: () = assert!(size_of::<RawHead>() + LOST_STRIPES_MAX * size_of::<RawLostRow>() <= HEAD_BYTES);

/// A head, without its list of lost stripes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct JournalHead {
    /// Incremented with every head that is written; from 1. The head with the highest generation is current.
    pub generation: u64,
    /// Random id of the run of the ring's batches; never 0. Batches of other runs are not needed.
    pub run: u64,
    /// Size of the ring, in blocks.
    pub ring_blocks: u64,
    /// The height of a stripe, in bytes.
    pub stripe_bytes: u32,
    /// The location of the ring.
    pub ring_on: RingLocation,
}

/// The location of a run's ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RingLocation {
    /// On all members.
    Members,
    /// On a dedicated disk.
    Disk {
        /// That disk's identity.
        id: MemberId,
        /// Size in blocks of the ring that every member has space for, should the journal move from the disk to the
        /// members; never 0.
        member_blocks: u16,
    },
}

impl JournalHead {
    fn is_sound(&self, side: Side) -> bool {
        let row_bytes = u64::from(self.stripe_bytes);
        (1..=side.counter_max()).contains(&self.generation)
            && self.run != 0
            && (1..=JOURNAL_BLOCKS_MAX).contains(&self.ring_blocks)
            && (1..=u64::from(STRIPE_BYTES_MAX)).contains(&row_bytes)
            && row_bytes.is_multiple_of(BLOCK_BYTES)
            && !matches!(self.ring_on, RingLocation::Disk { member_blocks: 0, .. })
    }
}

/// A lost stripe: some of its data cells are unreadable until they are rewritten. It arises when a crash interrupts a
/// full-stripe write and a member that holds some of the stripe's data is lost: parity that may not match the data
/// cannot recover it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LostStripe {
    /// The stripe.
    pub stripe: u64,
    /// Bit *i*: line *i* of the stripe, in blocks from its top. Never 0.
    pub lines: u16,
    cells: [u8; LOST_CELLS_MAX],
}

impl LostStripe {
    /// Returns a stripe with these data cells unreadable over these lines. `None`: no cell, too many cells, cells not
    /// ascending, no line, or a stripe beyond [`STRIPE_NUMBER_MAX`].
    pub fn new(row: u64, lines: u16, cells: &[u8]) -> Option<LostStripe> {
        let mut lost = LostStripe { stripe: row, lines, cells: [NO_CELL; LOST_CELLS_MAX] };
        lost.cells.get_mut(..cells.len())?.copy_from_slice(cells);
        lost.is_sound().then_some(lost)
    }

    /// Returns the unreadable data cells, ascending.
    pub fn cells(&self) -> &[u8] {
        let count = self.cells.iter().take_while(|cell| **cell != NO_CELL).count();
        &self.cells[..count]
    }

    /// Returns whether this data cell is unreadable over any of these lines.
    pub fn covers(&self, cell: u8, lines: u16) -> bool {
        self.lines & lines != 0 && cell != NO_CELL && self.cells.contains(&cell)
    }

    fn is_sound(&self) -> bool {
        let (cells, rest) = self.cells.split_at(self.cells().len());
        self.lines != 0
            && self.stripe <= STRIPE_NUMBER_MAX
            && !cells.is_empty()
            && cells.is_sorted_by(|a, b| a < b)
            && cells.iter().all(|cell| usize::from(*cell) + 1 < MEMBERS_MAX)
            && rest.iter().all(|cell| *cell == NO_CELL)
    }
}

/// Returns the slot to write a head of this generation to, 0 or 1: the one that does not hold the previous generation.
pub const fn head_slot(generation: u64) -> u64 {
    generation % 2
}

/// Encodes a head of this array into `out`. Returns how many bytes to write, a multiple of 4096.
///
/// # Panics
/// When the head or the list is invalid: stripes must be ascending, at most [`LOST_STRIPES_MAX`], and each cell of a
/// stripe in one entry.
pub fn encode_head(array: &Uuid, head: &JournalHead, lost: &[LostStripe], out: &mut [u8; HEAD_BYTES]) -> usize {
    let sound = head.is_sound(Side::Write)
        && lost.len() <= LOST_STRIPES_MAX
        && lost.iter().all(LostStripe::is_sound)
        && is_sorted(lost);
    assert!(sound, "a head that cannot be read back: {head:?}");
    let (disk, member_blocks) = match head.ring_on {
        RingLocation::Members => ([0; 6], 0),
        RingLocation::Disk { id, member_blocks } => (put48(id.get()).unwrap_or_default(), member_blocks),
    };
    let raw = RawHead {
        crc: U32::ZERO,
        magic: U32::new(MAGIC),
        array_uuid: array.into_bytes(),
        generation: U64::new(head.generation),
        run: U64::new(head.run),
        ring_blocks: U64::new(head.ring_blocks),
        row_bytes: U32::new(head.stripe_bytes),
        lost_count: U32::new(lost.len() as u32),
        disk,
        member_blocks: U16::new(member_blocks),
    };
    out.fill(0);
    let (first, list) = out.split_at_mut(size_of::<RawHead>());
    first.copy_from_slice(raw.as_bytes());
    for (out, lost) in list.as_chunks_mut::<{ size_of::<RawLostRow>() }>().0.iter_mut().zip(lost) {
        let raw = RawLostRow { row: U64::new(lost.stripe), lines: U16::new(lost.lines), cells: lost.cells };
        out.copy_from_slice(raw.as_bytes());
    }
    let used = size_of::<RawHead>() + size_of_val(lost);
    const _: () = assert!(size_of::<LostStripe>() == size_of::<RawLostRow>());
    let crc = crc32c::crc32c(&out[CRC_BYTES..used]);
    out[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    used.next_multiple_of(BLOCK_BYTES as usize)
}

/// Decodes a head of this array. `None`: there is none, or it is damaged.
pub fn decode_head(array: &Uuid, bytes: &[u8; HEAD_BYTES]) -> Option<(JournalHead, Vec<LostStripe>)> {
    let (raw, list) = RawHead::ref_from_prefix(bytes).ok()?;
    let count = usize::try_from(raw.lost_count.get()).ok().filter(|count| *count <= LOST_STRIPES_MAX)?;
    let used = size_of::<RawHead>() + count * size_of::<RawLostRow>();
    let whole = raw.magic.get() == MAGIC
        && raw.array_uuid == array.into_bytes()
        && raw.crc.get() == crc32c::crc32c(&bytes[CRC_BYTES..used]);
    if !whole {
        return None;
    }
    let ring_on = match (MemberId::new(get48(raw.disk)), raw.member_blocks.get()) {
        (None, 0) => RingLocation::Members,
        (None, _) => return None,
        (Some(id), member_blocks) => RingLocation::Disk { id, member_blocks },
    };
    let head = JournalHead {
        generation: raw.generation.get(),
        run: raw.run.get(),
        ring_blocks: raw.ring_blocks.get(),
        stripe_bytes: raw.row_bytes.get(),
        ring_on,
    };
    let stripes = list.as_chunks::<{ size_of::<RawLostRow>() }>().0.iter().take(count).map(|bytes| {
        let raw = RawLostRow::ref_from_bytes(bytes).ok()?;
        let lost = LostStripe { stripe: raw.row.get(), lines: raw.lines.get(), cells: raw.cells };
        lost.is_sound().then_some(lost)
    });
    let lost: Vec<LostStripe> = stripes.collect::<Option<_>>()?;
    (head.is_sound(Side::Read) && is_sorted(&lost)).then_some((head, lost))
}

/// Returns whether the list is sorted by stripe, then by first cell, and names each cell once. A stripe has several
/// entries if its cells have lost different lines.
fn is_sorted(lost: &[LostStripe]) -> bool {
    let apart = |a: &LostStripe, b: &LostStripe| b.cells().iter().all(|cell| !a.cells().contains(cell));
    lost.is_sorted_by(|a, b| a.stripe < b.stripe || a.stripe == b.stripe && a.cells < b.cells && apart(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Uuid = Uuid::from_bytes(*b"braid-test-array");
    const HEAD: JournalHead =
        JournalHead { generation: 3, run: 77, ring_blocks: 176, stripe_bytes: 65536, ring_on: RingLocation::Members };

    fn stripes(count: u64) -> Vec<LostStripe> {
        (0..count).map(|k| LostStripe::new(k * 3, 1 << (k % 16), &[k as u8 % 100, 101]).unwrap()).collect()
    }

    #[test]
    fn heads_round_trip() {
        let mut bytes = [0xff; HEAD_BYTES];
        for count in [0, 1, 252, 253, LOST_STRIPES_MAX as u64] {
            let lost = stripes(count);
            let used = encode_head(&ARRAY, &HEAD, &lost, &mut bytes);
            assert_eq!(used, (64 + count as usize * 16).next_multiple_of(4096));
            assert_eq!(decode_head(&ARRAY, &bytes), Some((HEAD, lost.clone())));
            assert_eq!(decode_head(&Uuid::from_u128(1), &bytes), None);
            // Whatever is behind the written blocks does not matter.
            bytes[used..].fill(0xee);
            assert_eq!(decode_head(&ARRAY, &bytes), Some((HEAD, lost)));
        }
        assert_eq!(decode_head(&ARRAY, &[0; HEAD_BYTES]), None);
        let id = MemberId::new(0x0102_0304_0506).unwrap();
        let head = JournalHead { ring_on: RingLocation::Disk { id, member_blocks: 2032 }, ..HEAD };
        encode_head(&ARRAY, &head, &stripes(2), &mut bytes);
        assert_eq!((&bytes[56..62], &bytes[62..64]), (&[6, 5, 4, 3, 2, 1][..], &2032u16.to_le_bytes()[..]));
        assert_eq!(decode_head(&ARRAY, &bytes), Some((head, stripes(2))));
    }

    #[test]
    fn every_changed_byte_is_detected() {
        let mut bytes = [0; HEAD_BYTES];
        encode_head(&ARRAY, &HEAD, &stripes(300), &mut bytes);
        for at in 0..64 + 300 * 16 {
            bytes[at] ^= 0x04;
            assert_eq!(decode_head(&ARRAY, &bytes), None, "byte {at}");
            bytes[at] ^= 0x04;
        }
    }

    #[test]
    fn generations_alternate_between_slots() {
        assert_eq!((head_slot(1), head_slot(2), head_slot(3)), (1, 0, 1));
    }

    #[test]
    fn invalid_lost_stripes_are_refused() {
        assert_eq!(LostStripe::new(1, 0, &[1]), None);
        assert_eq!(LostStripe::new(1, 1, &[]), None);
        assert_eq!(LostStripe::new(1, 1, &[2, 1]), None);
        assert_eq!(LostStripe::new(1, 1, &[127]), None);
        assert_eq!(LostStripe::new(1, 1, &[0, 1, 2, 3, 4, 5, 6]), None);
        let lost = LostStripe::new(1, 0b110, &[0, 126]).unwrap();
        assert_eq!(lost.cells(), [0, 126]);
        assert!(lost.covers(126, 2) && !lost.covers(126, 1) && !lost.covers(1, 2) && !lost.covers(0xff, 2));
        let mut bytes = [0; HEAD_BYTES];
        encode_head(&ARRAY, &HEAD, &stripes(2), &mut bytes);
        let refused = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = bytes;
            change(&mut bytes);
            let crc = crc32c::crc32c(&bytes[4..64 + 32]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            decode_head(&ARRAY, &bytes).is_none()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|bytes| bytes[80] = 0), "a stripe twice");
        assert!(refused(&|bytes| bytes[72..74].fill(0)), "no line");
        assert!(refused(&|bytes| bytes[74..80].fill(0xff)), "no cell");
        assert!(refused(&|bytes| bytes[24..32].fill(0)), "generation 0");
        assert!(refused(&|bytes| bytes[24..32].fill(0xff)), "no room for further generations");
        assert!(refused(&|bytes| bytes[48] = 1), "stripes that are not whole blocks");
        assert!(refused(&|bytes| bytes[63] = 1), "room on members without a disk");
        assert!(refused(&|bytes| bytes[56] = 1), "a disk without room on members");
    }
}
