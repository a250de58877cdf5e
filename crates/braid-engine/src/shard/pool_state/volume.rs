//! The state of a request to a volume.

use super::{PoolReply, Reservations};

/// The stage of a request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::shard) enum Stage {
    #[default]
    Start,
    /// An allocation was requested.
    Placing,
    /// Parts are in flight: reads, or overwrites of the owner's own extents.
    Parts,
    /// Parts to new allocations are in flight.
    New,
    /// The home was asked to map the new allocations.
    Binding,
    /// The home was asked to unmap blocks.
    Discarding,
    /// The home was asked to commit.
    Committing,
    /// The request waits for a lease.
    Kept,
}

/// The state of a request to a volume besides its slot.
#[derive(Clone, Copy, Default)]
pub(in crate::shard) struct VolumeWork {
    pub(in crate::shard) stage: Stage,
    pub(in crate::shard) reply: Option<PoolReply>,
    pub(in crate::shard) new: Reservations,
    /// A commit is needed before it is answered.
    pub(in crate::shard) commit: bool,
    /// Zeros are written, because the blocks could not be unmapped.
    pub(in crate::shard) writes_zeros: bool,
}
