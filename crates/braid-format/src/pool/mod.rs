//! The on-disk structures of pools, one file for each.
//!
//! - [`record`](Record): what an extent holds, or which range of a volume reads as zeros; 32 bytes, in the table.
//! - [`sector`](encode_address): the addresses of the 64 blocks of a packed extent.
//! - [`owner`](Owner): a volume, a snapshot, or a deleted one that is still needed.
//! - [`entry`](LogEntry): one change of these, in the in-memory log and in batches.
//! - [`batch`](LogBatchHeader): entries of a commit, in a member's log ring.
//! - [`checkpoint`](Checkpoint): from which batch on recovery reads a ring, and what the tables hold.
//! - [`layout`](PoolMemberLayout): where all of this is on a member.
//! - [`label`](PoolLabel): the 4 KiB that mark a device as a member of a pool.
//!
//! Guarantees: except for the label, nothing here allocates. Decoding never panics, whatever the bytes; a decoded value
//! is consistent in itself and encodes to the same bytes. Encoding a value that decoding would refuse panics, because no
//! reader would accept it.

mod batch;
mod checkpoint;
mod codec;
mod entry;
mod label;
mod layout;
mod owner;
mod raw;
mod record;
mod sector;
mod validate;

pub use batch::{
    BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_UNITS_MAX, BatchBuilder, BatchError, Entries, LogBatchHeader,
    batch_blocks, batch_entries, seal_batch, validate_batch,
};
pub use checkpoint::{
    CHECKPOINT_BYTES, Checkpoint, CheckpointError, MISSING_MAX, MissingMember, MissingMembers, checkpoint_slot,
};
pub use entry::{
    Change, ENTRY_UNITS_MAX, EntryError, LogEntry, OWNER_UNITS, UNIT_BYTES, UNIT_WORDS, from_words, to_words,
};
pub use label::{POOL_MAGIC, POOL_VERSION, PoolHeader, PoolLabel, PoolMember, Reserved};
pub use layout::{
    MEMBER_BYTES_MAX, OWNER_SLOTS_MAX, OWNER_SLOTS_MIN, PoolLayoutError, PoolMemberLayout, owner_slots_for,
};
pub use owner::{AllocationPolicy, OWNER_BYTES, Owner, OwnerError, OwnerKind, OwnerName, SnapshotSchedule};
pub use raw::{POOL_FIELDS, RawPoolLabel, RawPoolMember};
pub use record::{RECORD_BYTES, Record, RecordError, RecordKind};
pub use sector::{ADDRESS_SECTOR_BYTES, AddressError, NO_ADDRESS, decode_address, encode_address};
pub(crate) use validate::every_problem;

pub use crate::states::{PoolMemberState, PoolState};

use uuid::Uuid;

use crate::BLOCK_BYTES;

/// Number of blocks in an extent: one for each bit of a word.
pub const EXTENT_BLOCKS: u32 = 64;
/// Size of an extent, in bytes.
pub const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * BLOCK_BYTES;
/// The largest owner number. The top bit is free for code that packs numbers.
pub const OWNER_ID_MAX: u32 = u32::MAX >> 1;
/// The largest index of a logical extent.
pub const LOGICAL_MAX: u32 = u32::MAX - 1;
/// Maximum size of a volume, in blocks.
pub const VOLUME_BLOCKS_MAX: u64 = (LOGICAL_MAX as u64 + 1) * EXTENT_BLOCKS as u64;
/// Maximum size of a volume, in bytes: 1 PiB less an extent.
pub const VOLUME_BYTES_MAX: u64 = VOLUME_BLOCKS_MAX * BLOCK_BYTES;
/// Minimum size of a ring, in blocks (256 KiB).
pub const RING_BLOCKS_MIN: u32 = 64;
/// Maximum size of a ring, in blocks (64 MiB): a start reads all of it.
pub const RING_BLOCKS_MAX: u32 = 16 << 10;

/// Returns the first four bytes of a pool's UUID, the tag in batches and checkpoints.
pub fn pool_tag(pool: &Uuid) -> u32 {
    crate::bitmap::tag(pool)
}

/// Returns the CRC-32C of the concatenation of several pieces.
fn crc_of(pieces: &[&[u8]]) -> u32 {
    pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece))
}

/// Bytes that are checksummed often. Aligned to words, they are checksummed eight bytes at a time.
#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

/// Checks the offset of each field at compile time.
macro_rules! offsets {
    ($type:ident: $($field:ident $offset:literal),* $(,)?) => {
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}
use offsets;
