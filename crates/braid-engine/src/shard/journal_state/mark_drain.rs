//! Waits until no write to a marked stripe is in flight.

use crate::io::{DeviceId, LeafId, ShardId};

/// The home shard's wait until no shard has a write to a marked stripe in flight.
pub(in crate::shard) struct MarkDrain {
    pub(in crate::shard) call: u64,
    /// Number of shards that have not reported yet.
    pub(in crate::shard) left: u16,
    /// The disks that failed such a write, by the reports so far.
    pub(in crate::shard) failed: Vec<LeafId>,
}

/// A home shard's request that waits until this shard has no such write in flight.
pub(in crate::shard) struct DrainRequest {
    pub(in crate::shard) device: DeviceId,
    pub(in crate::shard) home: ShardId,
    pub(in crate::shard) call: u64,
}
