//! The engine of Braid: slots, layouts, planning, arrays; sans-I/O.
//!
//! What it is: everything that decides which bytes of which disk a request touches, in which
//! order, and when it may be answered. A [`Shard`] takes [`Request`]s in, gives [`LeafIo`]s to a
//! [`LeafSink`] and takes their results back.
//!
//! What it promises: the same calls in the same order do the same. Each request is answered
//! exactly once. Nothing is allocated between start and stop by anything on the data path.
//!
//! What it never does: read a clock, a random source, a file or the environment; start a thread;
//! iterate over anything of unstable order. It drives no I/O: `braid-ring` does that with the
//! kernel, `braid-sim` with simulated disks.
#![forbid(unsafe_code)]

pub mod allocation;
pub mod claims;
mod device_lease;
pub mod io;
pub mod keeper;
pub mod late;
pub mod layout;
pub mod lifecycle;
pub mod limits;
mod lost_rows;
mod marks;
pub mod mirror;
mod missed;
pub mod overlap;
mod parity;
pub mod plan;
mod planted;
pub mod pool;
pub mod regions;
pub mod replica;
pub mod shard;
pub mod trouble;
mod volume;

pub use braid_format::Uuid;
pub use device_lease::DeviceLease;
pub use io::*;
pub use layout::{DeviceLayout, Node};
pub use limits::Limits;
pub use lost_rows::LostRows;
pub use marks::Marks;
pub use mirror::{MirrorMember, MirrorNode, Role, Roles, Successor};
pub use missed::{Blocks, Missed};
pub use parity::{ParityNode, RingDisk, RingPlace};
#[cfg(feature = "planted")]
pub use planted::{Planted, is_planted, plant};
pub use regions::RegionMap;
pub use shard::sync::{COMPARE_BLOCK_BYTES, COMPARE_BYTES_MAX, Compared, SyncDone, SyncKind, SyncRequest};
pub use shard::{
    DeviceCounters, PoolAsk, PoolCall, PoolNext, PoolTold, RegionCall, Reservations, SCRATCH_BYTES, SCRATCH_BYTES_MIN,
    Shard, ShardMessage, Shared, Soon,
};
pub use trouble::Trouble;
pub use volume::{PoolKey, PoolMembers, PoolPlace, VolumeNode};
