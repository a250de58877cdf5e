//! Pools: how space is handed out to volumes and their snapshots.
//!
//! What it is: the memory image of a pool. [`Records`] is what is known of each extent of each member, [`VolumeMap`] where
//! each block of a volume is. All shards read them, and the pool's home shard alone changes them.

mod accounting;
mod admin;
mod ahead;
mod audit;
mod build;
mod checkpoint;
mod commit;
mod compact;
mod copied;
mod damage;
mod diff;
mod discard;
mod flatten;
mod fold;
mod grow;
mod home;
mod jobs;
mod keyed;
mod leaving;
mod load;
mod lost;
mod map;
mod moves;
mod one_move;
mod open;
mod owners;
mod records;
mod recount;
mod regained;
mod reserves;
mod rings;
mod scattered;
mod seats;
mod shrink;
mod space;
mod starts;
mod starved;
mod state;
mod stated;
mod statements;
mod tail;
mod tail_memory;
mod thick;
mod units;

/// What of it stands on disks.
pub use braid_format::pool as on_disk;

pub use accounting::{Accounts, Usage, usage};
pub use admin::AdminError;
pub use audit::Audit;
pub use checkpoint::MemberPlaces;
pub use commit::{BUFFERS, PoolIo, PoolMemory, PoolOp};
pub use damage::Damaged;
pub use diff::{Changed, Difference, NotRelated, Run};
pub use discard::Discarded;
pub(crate) use discard::unmapped_blocks;
pub use flatten::Flattened;
pub use fold::Folded;
pub use grow::AddError;
pub use home::{Placement, Pool, PoolShared, Reservation, VolumeId, VolumeShared};
pub use leaving::Leaving;
pub use map::{Found, MapWriter, PackedBlock, Piece, Visible, VolumeMap};
pub use moves::Moving;
pub use open::{OpenError, OpenPool, PoolDevice, open, tail_units_for, tail_units_of_ring};
pub use owners::{OwnerId, Owners};
pub use records::{LOGICAL_PACKED, OWNER_HELD, Records};
pub use space::MemberSpace;
pub use starved::CommitFailed;
pub use state::{NO_BLOCK, RecordId, State};
pub use statements::{Statement, Walk, Watch, ZeroRange};
pub use tail::{Tail, tail_bytes};
pub use tail_memory::TailMemory;
pub use units::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX};
