//! The manager of pools.
//!
//! What it is: [`PoolManager`] finds, creates, opens, closes, grows and checks pools, and has their volumes, snapshots,
//! schedules and background jobs. A pool stands on devices: active arrays, and disks, each of which becomes a device of
//! its own. While the pool serves, one shard is its home, and every operation on the pool is a call to that shard.
//! What it guarantees: changes of one pool are serialized, and a pool that hangs does not delay another.
//! What it never does: I/O of clients. What it needs of replication it asks of [`ReplicationProvider`].
//!
//! Locks: a component that needs the lock of listening addresses takes it before the `work` lock of a pool.

#![forbid(unsafe_code)]

mod abandoned;
mod add;
mod awaited;
mod check;
mod close;
mod compact;
mod create;
mod diff;
mod disks;
mod errors;
mod exported;
mod find;
mod flatten;
mod jobs;
mod labels;
mod level;
mod limits;
mod listing;
mod locate;
mod maintenance;
mod manager;
mod measure;
mod members;
mod memory_logs;
mod names;
mod no_space;
mod on_replicated;
mod open;
mod placement;
mod policies;
mod provider;
mod remove;
mod replica_snapshots;
mod replica_volumes;
mod returns;
mod rollback;
mod sessions;
mod shrink;
mod sizes;
mod snapshots;
mod space;
mod start;
mod unassigned_volumes;
mod unix_time;
mod view;
mod volumes;

pub use manager::PoolManager;
pub use names::{check_controller_snapshot_name, is_controller_snapshot};
pub use no_space::OpenRetries;
pub use provider::ReplicationProvider;
pub use replica_snapshots::ReplicaData;
pub use replica_volumes::NewReplicaVolume;
pub use returns::ReappearanceWatch;
pub use sizes::check_block;
pub use view::attention;
