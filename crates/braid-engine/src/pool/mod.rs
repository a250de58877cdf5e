//! Pools: how space is allocated to volumes and their snapshots.
//!
//! The state of a pool in memory. [`Records`] has what is known of each extent of each member, [`VolumeMap`] where each
//! block of a volume is. All shards read them; only the pool's home shard changes them.

mod accept_loss;
mod accounting;
mod add_member;
mod admin;
mod audit;
mod build;
mod checkpoint;
mod commit;
mod compact;
mod damage;
mod defined_blocks;
mod diff;
mod discard;
mod flatten;
mod flatten_copy;
mod fragmentation;
mod freeing;
mod home;
mod int_map;
mod jobs;
mod load;
mod log_memory;
mod log_rings;
mod map;
mod memory_log;
mod merge;
mod moves;
mod one_move;
mod open;
mod owners;
mod present_members;
mod read_ahead;
mod records;
mod recount;
mod recovery;
mod remove_member;
mod reserves;
mod shrink;
mod space;
mod starved;
mod state;
mod thick;
mod units;
mod walk;

/// The on-disk format.
pub use braid_format::pool as on_disk;

pub use accounting::{Accounts, Usage, usage};
pub use add_member::AddError;
pub use admin::AdminError;
pub use audit::Audit;
pub use checkpoint::MemberLayout;
pub use commit::{BUFFERS, PoolIo, PoolMemory, PoolOp};
pub use damage::Damaged;
pub use diff::{Changed, ChangedRun, Difference, NotRelated};
pub use discard::DiscardOutcome;
pub(crate) use discard::unmapped_blocks;
pub use flatten::FlattenStep;
pub use home::{BlockAllocation, Pool, PoolShared, Reservation, VolumeId, VolumeShared};
pub use log_memory::LogMemory;
pub use map::{BlockLocation, MapWriter, PackedBlock, Piece, Visible, VolumeMap};
pub use memory_log::{MemoryLog, log_bytes};
pub use merge::MergeStep;
pub use moves::MoveStep;
pub use open::{OpenError, OpenPool, PoolDevice, log_units_for, log_units_of_ring, open};
pub use owners::{OwnerId, Owners};
pub use records::{LOGICAL_PACKED, OWNER_HELD, Records};
pub use remove_member::MemberRemoval;
pub use space::MemberSpace;
pub use starved::CommitFailed;
pub use state::{NO_BLOCK, PoolTables, RecordId};
pub use units::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX};
pub use walk::{ExtentDefinition, Walk, Watch, ZeroRange};
