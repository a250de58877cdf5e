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
mod commit_ring;
mod compact;
mod damage;
mod damaged;
mod defined_blocks;
mod device;
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
mod open_pool;
mod owners;
mod pool_io;
mod present_members;
mod read_ahead;
mod records;
mod recount;
mod recovery;
mod remove_member;
mod reserves;
mod shared;
mod shrink;
mod space;
mod starved;
mod state;
mod thick;
mod units;
mod walk;
mod walked;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_format::Uuid;
use braid_format::pool::Change;

use build::Build;
use commit::Commits;
use compact::Compaction;
use flatten::Flatten;
use int_map::IntMap;
use merge::Merge;
use moves::Moves;
use space::{Free, Freed, Spread};

/// The on-disk format.
pub use braid_format::pool as on_disk;

pub use accounting::{Accounts, Usage, usage};
pub use add_member::AddError;
pub use admin::AdminError;
pub use audit::Audit;
pub use damage::Damaged;
pub use device::{MemberLayout, PoolDevice};
pub use diff::{Changed, ChangedRun, Difference, NotRelated};
pub use discard::DiscardOutcome;
pub(crate) use discard::unmapped_blocks;
pub use flatten::FlattenStep;
pub use log_memory::LogMemory;
pub use map::{BlockLocation, MapWriter, PackedBlock, Piece, Visible, VolumeMap};
pub use memory_log::{MemoryLog, log_bytes};
pub use merge::MergeStep;
pub use moves::MoveStep;
pub use open::{log_units_for, log_units_of_ring, open};
pub use open_pool::{OpenError, OpenPool};
pub use owners::{OwnerId, Owners};
pub use pool_io::{BUFFERS, PoolIo, PoolMemory, PoolOp};
pub use records::{LOGICAL_PACKED, OWNER_HELD, Records};
pub use remove_member::MemberRemoval;
pub use shared::{BlockAllocation, PoolShared, Reservation, VolumeId, VolumeShared};
pub use space::MemberSpace;
pub use starved::CommitFailed;
pub use state::{NO_BLOCK, PoolTables};
pub use units::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId, MEMBERS_MAX, RecordId};
pub use walk::Walk;
pub use walked::{ExtentDefinition, Watch, ZeroRange};

/// A volume or snapshot whose map is in memory.
struct Volume {
    pub owner: OwnerId,
    pub writer: MapWriter,
    pub shared: Arc<VolumeShared>,
    /// A snapshot, or a volume with blocks in doubt: nothing of it changes.
    pub read_only: bool,
}

/// The packed extent that an owner's next packed blocks go to.
#[derive(Clone, Copy)]
struct OpenPacked {
    pub extent: ExtentId,
    pub next: u32,
}

/// Free space of one member.
struct Room {
    pub free: Free,
    pub freed: Freed,
    /// No new allocations: the member is being removed.
    pub closed: bool,
}

/// An open pool.
pub struct Pool {
    uuid: Uuid,
    state: PoolTables,
    shared: Arc<PoolShared>,
    log: MemoryLog,
    rooms: Vec<Room>,
    spread: Spread,
    volumes: BTreeMap<VolumeId, Volume>,
    next_volume: u32,
    /// Allocations that are not mapped yet, by extent.
    pending: IntMap<u32>,
    /// The same by the owner for which they were made.
    pending_by_owner: IntMap<u32>,
    /// Newly allocated extents in which nothing is mapped yet, by owner and logical extent.
    opening: IntMap<u64>,
    /// Memory for the changes of one [`Pool::map_allocation`].
    change_buffer: Vec<(u8, u32, Change)>,
    open_packed: BTreeMap<OwnerId, OpenPacked>,
    commits: Commits,
    /// See [`Pool::progress`].
    progress: u64,
    /// Empty extents that could not be freed because the log had no room.
    empties: Vec<ExtentId>,
    view: Visible,
    /// Owners deleted by log units that may not be committed.
    deleted: Vec<(u64, OwnerId)>,
    /// Owners without blocks that stay to keep their number from being reused.
    ended: Vec<OwnerId>,
    merge: Option<Merge>,
    moves: Moves,
    /// Maps that are being built.
    builds: Vec<Build>,
    compaction: Option<Compaction>,
    flatten: Option<Flatten>,
    /// Owners whose flattening is paused.
    flattening_held: BTreeSet<OwnerId>,
    /// Blocks that flattening has copied since the pool was opened.
    copied: u64,
}
