//! Pools: how space is handed out to volumes and their snapshots.
//!
//! What it is: the memory image of a pool. [`Records`] is what is known of each extent of each member, [`VolumeMap`] where
//! each block of a volume is. All shards read them, and the pool's home shard alone changes them.

mod map;
mod records;
mod tail_memory;
mod units;

pub use map::{Found, MapWriter, PackedBlock, Piece, Visible, VolumeMap};
pub use records::{LOGICAL_PACKED, OWNER_HELD, Records};
pub use tail_memory::TailMemory;
pub use units::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX};
