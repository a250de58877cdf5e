//! The engine of Braid: slots, layouts, planning, pools; sans-I/O.
//!
//! What it is: everything that decides which bytes of which disk a request accesses, in which order, and when it may be
//! answered. A [`Shard`] takes [`Request`]s, submits [`LeafIo`]s to a [`LeafSink`] and takes their results.
//!
//! What it guarantees: the same calls in the same order have the same effects. Each request is answered exactly once.
//! The data path allocates nothing between start and stop.
//!
//! What it never does: read a clock, a random source, a file or the environment; start a thread; iterate over anything
//! of unstable order. It drives no I/O: `braid-ring` does that with the kernel, `braid-sim` with simulated disks.
#![forbid(unsafe_code)]

pub mod allocation;
pub mod claims;
mod device_lease;
mod engine_io;
pub mod fault;
pub mod io;
pub mod late;
pub mod layout;
pub mod limits;
pub mod lost_stripes;
mod marks;
pub mod mirror;
mod missed_writes;
pub mod overlap;
mod parity;
pub mod plan;
pub mod pool;
pub mod regions;
pub mod replica;
pub mod shard;
mod volume;

pub use braid_format::Uuid;
pub use device_lease::DeviceLease;
pub use engine_io::{EngineIo, SyncPart};
pub use fault::Fault;
pub use io::*;
pub use layout::{DeviceLayout, Node};
pub use limits::Limits;
pub use lost_stripes::{LostStripes, UnreadableBlocks};
pub use marks::Marks;
pub use mirror::{MemberRole, MemberSet, MirrorMember, MirrorNode, Successor};
pub use missed_writes::{BlockSet, MissedWrites};
pub use parity::{LOGGED_BLOCKS_MAX, ParityNode, RingDisk, RingState};
pub use regions::RegionMap;
pub use shard::sync_parts::{COMPARE_BLOCK_BYTES, COMPARE_BYTES_MAX, Compared, SyncDone, SyncKind, SyncRequest};
pub use shard::{
    DeviceCounters, PoolCall, PoolNext, PoolReply, PoolRequest, RegionCall, Reservations, SCRATCH_BYTES,
    SCRATCH_BYTES_MIN, Shard, ShardMessage, Shared, UpcomingRequest,
};
pub use volume::{PoolKey, PoolMemberLocation, PoolMembers, VolumeNode};
