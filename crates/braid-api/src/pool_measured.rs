//! Measurements of pools, as metrics show them.

use crate::PoolState;
use std::sync::Arc;

/// A pool, as metrics show it. What is not known is absent.
#[derive(Debug)]
pub struct PoolMeasured {
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub state: PoolState,
    /// Number of items that need attention.
    pub attention: u64,
    /// Number of its members, and of those that are present.
    pub members: (u64, u64),
    /// Measurements of a pool that serves.
    pub served: Option<ServedMeasured>,
}

/// Measurements of a pool that serves.
#[derive(Debug)]
pub struct ServedMeasured {
    /// By member number: space for data, and how much of it is allocated, in bytes.
    pub members: Vec<(u8, u64, u64)>,
    /// Space that can be allocated now, in bytes.
    pub free_bytes: u64,
    /// Free space that is reserved for thick volumes, in bytes.
    pub reserved_bytes: u64,
    /// Ratio of allocated or reserved space on members that accept new blocks, from 0 to 1.
    pub used_ratio: f64,
    /// Number of zero records in use, and their maximum.
    pub zero_records: (u64, u64),
    /// Number of volumes and snapshots, including deleted ones that are not merged yet, and their maximum.
    pub owners: (u64, u64),
    /// Number of volumes and snapshots that are exported.
    pub exported: u64,
    /// Some acknowledged writes are in the in-memory log only.
    pub has_uncommitted: bool,
    /// The in-memory log was lost.
    pub has_lost_log: bool,
    /// Number of volumes with a snapshot schedule, and of those of which no snapshot can be taken.
    pub policies: (u64, u64),
    /// The contents of its volumes.
    pub contents: Arc<PoolContents>,
}

/// The contents of a volume.
#[derive(Clone, Debug)]
pub struct VolumeMeasured {
    /// Its name, without the pool's.
    pub name: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// The space that its own extents take, in bytes.
    pub allocated_bytes: u64,
    /// Number of its snapshots.
    pub snapshots: u64,
    /// The space that the extents of its snapshots take, in bytes.
    pub snapshots_allocated_bytes: u64,
    /// When the last snapshot was taken, in seconds of Unix time; 0 if there is none.
    pub newest_unix_s: u64,
}

/// The contents of a pool's volumes at the last pass.
#[derive(Clone, Debug, Default)]
pub struct PoolContents {
    /// Number of volumes.
    pub volumes: u64,
    /// The sum of their sizes, in bytes.
    pub provisioned_bytes: u64,
    /// Number of their snapshots.
    pub snapshots: u64,
    /// The first volumes, by name.
    pub each: Vec<VolumeMeasured>,
}
