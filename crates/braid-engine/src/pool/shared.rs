//! What all shards know of a pool and its volumes, and the allocations that requests get.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::map::VolumeMap;
use super::owners::OwnerId;
use super::records::Records;
use super::units::ExtentId;

/// Identifies a volume or snapshot that is served, for as long as the pool is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u32);

/// What all shards read of a pool.
#[derive(Debug)]
pub struct PoolShared {
    /// Its records.
    pub records: Arc<Records>,
    /// Its lowest bit selects the current one of each volume's two owners. One store, so that all volumes change at one
    /// instant.
    pub(super) turn: AtomicU32,
    /// The last published unit of the in-memory log, and the last committed one.
    pub(super) published: AtomicU64,
    pub(super) committed: AtomicU64,
}

impl PoolShared {
    /// Returns whether an acknowledged change is only in the in-memory log.
    #[inline]
    pub fn is_hot(&self) -> bool {
        self.published.load(Ordering::Acquire) != self.committed.load(Ordering::Acquire)
    }
}

/// What all shards read of a volume.
#[derive(Debug)]
pub struct VolumeShared {
    /// Where its blocks are.
    pub map: Arc<VolumeMap>,
    pub(super) owners: [AtomicU32; 2],
}

impl VolumeShared {
    /// Returns the owner under which a write that begins now is made. Load it before comparing it with the extent's
    /// owner.
    #[inline]
    pub fn owner(&self, pool: &PoolShared) -> OwnerId {
        let turn = pool.turn.load(Ordering::Acquire);
        self.owners[turn as usize & 1].load(Ordering::Acquire)
    }
}

/// Space reserved for blocks whose data are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// The extent.
    pub extent: ExtentId,
    /// The first block there.
    pub position: u32,
    /// How many.
    pub blocks: u32,
    /// The first block of the volume that goes there.
    pub block: u64,
    pub(super) volume: VolumeId,
    pub(super) owner: OwnerId,
    pub(super) packed: bool,
    /// Log units that are reserved for it.
    pub(super) units: u16,
}

impl Reservation {
    /// Returns whether its blocks go to slots of a packed extent, wherever they are in the volume.
    pub fn is_packed(&self) -> bool {
        self.packed
    }
}

/// The outcome of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockAllocation {
    /// Write there, then call [`super::Pool::map_allocation`].
    New(Reservation),
    /// The volume's owner has these blocks already: overwrite them.
    Own {
        /// The extent.
        extent: ExtentId,
        /// The first block there.
        position: u32,
        /// How many blocks.
        blocks: u32,
    },
    /// The pool has no space for it.
    Full,
    /// Changes have to be committed first; call again after a commit.
    LogFull,
    /// A job holds the extent; call again when it is released.
    Held,
}
