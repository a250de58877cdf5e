//! What the manager of arrays needs of the managers above it.

use crate::Votes;
use crate::scan_results::ScanResults;
use braid_api::{ErrorDetail, Job, SetJob};
use braid_exports::BoxFuture;
use braid_inventory::{ActiveArray, SavedReplicated};
use braid_ring::{Disk, DiskSpec};
use std::sync::Arc;
use uuid::Uuid;

/// The users of arrays: pools, whose members arrays may be and whose volumes may be disks of arrays, and replication,
/// whose volumes are arrays over replicas.
///
/// The managers of pools and of replication are above the manager of arrays and implement this together: the daemon
/// combines them in one type (`crates/braid-daemon/src/managers.rs`) and gives it to [`ArrayManager::set_users`] when
/// all managers exist.
///
/// The manager of arrays calls these methods with the tables of the inventory unlocked, except
/// [`ArrayUsers::replica_reports`]. During a scan it holds [`ArrayManager::scan_lock`], and during a change of an array
/// its claim: an implementation must not wait for either.
///
/// [`ArrayManager::set_users`]: crate::ArrayManager::set_users
/// [`ArrayManager::scan_lock`]: crate::ArrayManager::scan_lock
pub trait ArrayUsers: Send + Sync {
    /// Waits briefly until the pool of a volume can be queried for it. Returns at once for a disk that is no volume.
    ///
    /// # Errors
    /// The pool is still being changed. When that has ended, members are searched for again.
    fn await_pool_of<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<(), ErrorDetail>>;

    /// Starts or lists the pools whose labels a scan has found. Called during a scan, after its arrays were started.
    fn evaluate_pools<'a>(&'a self, found: &'a mut ScanResults) -> BoxFuture<'a, ()>;

    /// Opens a volume as a disk, and returns it with the identity of the volume. While it is open, no other component
    /// writes to it.
    ///
    /// # Errors
    /// There is no such volume, its pool does not serve, it is in use, or it cannot be written.
    fn open_volume<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<(Disk, Uuid), ErrorDetail>>;

    /// Closes a volume that was a disk. Called after the shards have released the disk.
    fn close_volume(&self, volume: Uuid) -> BoxFuture<'_, ()>;

    /// Returns the jobs of all pools.
    fn pool_jobs(&self) -> Vec<Job>;

    /// Returns a pool's job by its name. None: no pool has a job of this name.
    fn pool_job(&self, name: &str) -> Option<Job>;

    /// Changes a pool's job. None: no pool has a job of this name.
    fn set_pool_job<'a>(&'a self, name: &'a str, request: &'a SetJob) -> BoxFuture<'a, Option<Job>>;

    /// Cancels a pool's job. None: no pool has a job of this name.
    fn cancel_pool_job<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Result<Job, ErrorDetail>>>;

    /// Opens the registers of witnesses, which are on no disk of an array. Called once, before the first scan.
    fn open_witnesses(&self) -> BoxFuture<'_, ()>;

    /// Returns the votes of an array whose members are replicas, as long as this node serves it or is about to. None:
    /// its members are disks.
    fn votes_of(&self, array: Uuid) -> Option<Arc<dyn Votes>>;

    /// Returns the member of an array that is a replica on this node.
    fn local_replica(&self, array: Uuid) -> Option<u16>;

    /// Returns the faults of the replicas of a volume that this node serves, one sentence each.
    ///
    /// Called with the tables read-locked, because `volume` and `active` are in them. An implementation must not lock
    /// the tables: the lock lets no reader pass a waiting writer, so that a second lock of the same thread can
    /// deadlock.
    fn replica_reports(&self, volume: &SavedReplicated, active: &ActiveArray) -> Vec<String>;
}
