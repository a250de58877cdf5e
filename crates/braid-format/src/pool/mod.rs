//! What pools write on their members, one file for each structure.
//!
//! - [`record`](Record): what an extent holds, or which range of a volume reads as zeros; 32 bytes, in the table.
//! - [`sector`](encode_address): the addresses of the 64 blocks of a packed extent.
//! - [`owner`](Owner): a volume, a snapshot, or what is left of one.
//! - [`entry`](Entry): one change of those, as it stands in the tail in shared memory and in batches.
//! - [`batch`](BatchHeader): the entries of a commit, as they stand in a member's ring.
//! - [`start`](RingStart): from where on a ring's batches count.
//! - [`places`](PoolPlaces): where all of this is on a member.
//! - [`label`](PoolLabel): the 4 KiB that mark a member as a pool's.
//!
//! Promises: but for the label nothing here allocates, and decoding never panics, whatever the bytes. What is accepted is consistent in itself and encodes
//! to the same bytes. Encoding what decoding would refuse panics: nobody could read it back.

mod batch;
mod check;
mod entry;
mod label;
mod owner;
mod places;
mod raw;
mod record;
mod sector;
mod start;

pub use batch::{
    BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_UNITS_MAX, BatchError, BatchHeader, Composer, Entries, batch_blocks,
    entries, open, seal,
};
pub(crate) use check::every_problem;
pub use entry::{
    Change, ENTRY_UNITS_MAX, Entry, EntryError, OWNER_UNITS, UNIT_BYTES, UNIT_WORDS, from_words, to_words,
};
pub use label::{POOL_MAGIC, POOL_VERSION, PoolHeader, PoolLabel, PoolMember, PoolMemberState, PoolState, Reserved};
pub use owner::{OWNER_BYTES, Owner, OwnerError, OwnerKind, OwnerName, Placing, Policy};
pub use places::{MEMBER_BYTES_MAX, OWNER_SLOTS_MAX, OWNER_SLOTS_MIN, PoolPlaceError, PoolPlaces, owner_slots_for};
pub use raw::{POOL_FIELDS, RawPoolLabel, RawPoolMember};
pub use record::{RECORD_BYTES, Record, RecordError, RecordKind};
pub use sector::{ADDRESS_SECTOR_BYTES, AddressError, NO_ADDRESS, decode_address, encode_address};
pub use start::{ABSENT_MAX, Absence, Absences, RING_START_BYTES, RingStart, StartError, start_slot};

use uuid::Uuid;

use crate::BLOCK_BYTES;

/// Blocks of an extent: as many as a word has bits.
pub const EXTENT_BLOCKS: u32 = 64;
/// Bytes of an extent.
pub const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * BLOCK_BYTES;
/// The largest number of an owner: the top bit is free for whoever packs numbers.
pub const OWNER_ID_MAX: u32 = u32::MAX >> 1;
/// The largest index of a logical extent.
pub const LOGICAL_MAX: u32 = u32::MAX - 1;
/// The largest volume, in blocks.
pub const VOLUME_BLOCKS_MAX: u64 = (LOGICAL_MAX as u64 + 1) * EXTENT_BLOCKS as u64;
/// The largest volume, in bytes: 1 PiB less an extent.
pub const VOLUME_BYTES_MAX: u64 = VOLUME_BLOCKS_MAX * BLOCK_BYTES;
/// The smallest ring, in blocks (256 KiB).
pub const RING_BLOCKS_MIN: u32 = 64;
/// The largest ring, in blocks (64 MiB): a start reads all of it.
pub const RING_BLOCKS_MAX: u32 = 16 << 10;

/// The first four bytes of a pool's UUID, as they stand in batches and ring starts.
pub fn pool_tag(pool: &Uuid) -> u32 {
    crate::bitmap::tag(pool)
}

/// CRC-32C of several pieces in a row.
fn crc_of(pieces: &[&[u8]]) -> u32 {
    pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece))
}

/// Bytes of which a checksum is made often: where words begin at words, it is made eight bytes at a time.
#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

/// Checks the place of each field at compile time.
macro_rules! offsets {
    ($type:ident: $($field:ident $offset:literal),* $(,)?) => {
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}
use offsets;
