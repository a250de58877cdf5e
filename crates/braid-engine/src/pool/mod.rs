//! Pools: how space is handed out to volumes and their snapshots.
//!
//! What it is: the memory image of a pool. [`Records`] is what is known of each extent of each member; all shards read it,
//! and the pool's home shard alone changes it.

mod records;
mod tail_memory;
mod units;

pub use records::{LOGICAL_PACKED, OWNER_HELD, Records};
pub use tail_memory::TailMemory;
pub use units::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX};
