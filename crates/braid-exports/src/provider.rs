//! What the manager of exports needs of the managers above it.

use braid_api::ErrorDetail;
use braid_engine::DeviceId;
use braid_export::{Allocation, Differences};
use braid_format::pool::OwnerKind;
use braid_ring::Throttle;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use uuid::Uuid;

/// The future of a method of a trait object, for methods that are called seldom.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Proof that [`ExportManager::listening_lock`](crate::ExportManager::listening_lock) is held, which serializes changes
/// of listening addresses and exports.
pub type ListeningGuard<'a> = tokio::sync::MutexGuard<'a, ()>;

/// The device behind an export.
pub struct ExportSource {
    /// The device.
    pub device: DeviceId,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
    /// It cannot be written.
    pub read_only: bool,
    /// Its description, for clients.
    pub description: String,
    /// Its allocation map, if it has one.
    pub allocation: Option<Arc<dyn Allocation>>,
    /// The snapshots that it can be compared with.
    pub differences: Option<Arc<dyn Differences>>,
    /// The throttle that all of its exports share.
    pub throttle: Option<Arc<Throttle>>,
}

/// Volumes, snapshots and replicated volumes, as far as their exports need them.
///
/// The managers of pools and of replication are above the manager of exports and implement this together: the daemon
/// combines them in one type (`crates/braid-daemon/src/managers.rs`) and gives it to [`ExportManager::set_provider`]
/// when all managers exist.
///
/// The manager of exports calls these methods with [`ExportManager::listening_lock`] held and the tables of the
/// inventory unlocked. So an implementation may lock the tables, and must not take the listening lock, nor call a
/// method of [`ExportManager`] that takes it.
///
/// [`ExportManager::set_provider`]: crate::ExportManager::set_provider
/// [`ExportManager::listening_lock`]: crate::ExportManager::listening_lock
/// [`ExportManager`]: crate::ExportManager
pub trait VolumeProvider: Send + Sync {
    /// Finds a volume or snapshot by its full name or UUID, and returns its pool, its identity and its full name.
    ///
    /// # Errors
    /// There is none, or its pool does not serve.
    fn find_owner<'a>(
        &'a self,
        text: &'a str,
        kind: OwnerKind,
    ) -> BoxFuture<'a, Result<(Uuid, Uuid, String), ErrorDetail>>;

    /// Serves a volume or snapshot for an export, and returns its device. None: its pool does not serve, and the export
    /// waits.
    ///
    /// # Errors
    /// It cannot be served.
    fn serve_volume(&self, pool: Uuid, volume: Uuid) -> BoxFuture<'_, Result<Option<ExportSource>, ErrorDetail>>;

    /// Stops serving a volume or snapshot if it has no export any more.
    fn release_volume<'a>(&'a self, listening: &'a ListeningGuard<'a>, pool: Uuid, volume: Uuid) -> BoxFuture<'a, ()>;

    /// Refuses to export a replicated volume that is a member of a pool: its clients would overwrite the pool. Accepts
    /// every device that is no replicated volume, without examining it.
    ///
    /// # Errors
    /// The volume bears a pool's label, or its label cannot be read.
    fn refuse_export_under_label(&self, volume: Uuid, device: DeviceId) -> BoxFuture<'_, Result<(), ErrorDetail>>;

    /// Finds a replicated volume of the cluster, whichever node serves it, by name or UUID, and returns its UUID and
    /// name. `None`: there is no such volume, it is still being created, or the cluster cannot be queried.
    fn find_replicated_in_cluster<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Option<(Uuid, String)>>;
}
