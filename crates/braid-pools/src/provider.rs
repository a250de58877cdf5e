//! What the manager of pools needs of replication, which is above it: the interface.

use braid_api::{ErrorDetail, ReplicatedList, Snapshot, SnapshotConsistency, SnapshotList};
use braid_exports::BoxFuture;
use uuid::Uuid;

/// Replicated volumes and replicas, as far as pools need them: commands on snapshots name either kind of volume, and a
/// pool that opens may have replicas. The daemon implements it on its managers, and passes it to
/// [`PoolManager::set_provider`](crate::PoolManager::set_provider).
pub trait ReplicationProvider: Send + Sync {
    /// Takes snapshots of a replicated volume.
    ///
    /// # Errors
    /// This node does not serve the volume; the name is taken; a replica did not take its snapshot in time.
    fn create_replicated_snapshots<'a>(
        &'a self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<SnapshotList, ErrorDetail>>;

    /// Lists the snapshots of a replicated volume.
    ///
    /// # Errors
    /// This node does not serve the volume.
    fn replicated_snapshots<'a>(&'a self, volume: &'a str) -> BoxFuture<'a, Result<SnapshotList, ErrorDetail>>;

    /// Returns a snapshot of a replicated volume.
    ///
    /// # Errors
    /// This node does not serve the volume, or there is no such snapshot.
    fn replicated_snapshot<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>>;

    /// Renames a snapshot of a replicated volume.
    ///
    /// # Errors
    /// As [`ReplicationProvider::replicated_snapshot`]; the name is taken.
    fn rename_replicated_snapshot<'a>(
        &'a self,
        text: &'a str,
        new: &'a str,
    ) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>>;

    /// Records the consistency of a snapshot of a replicated volume.
    ///
    /// # Errors
    /// As [`ReplicationProvider::replicated_snapshot`].
    fn change_replicated_snapshot<'a>(
        &'a self,
        text: &'a str,
        consistency: SnapshotConsistency,
    ) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>>;

    /// Deletes a snapshot of a replicated volume.
    ///
    /// # Errors
    /// As [`ReplicationProvider::replicated_snapshot`].
    fn delete_replicated_snapshot<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>>;

    /// Opens the replicas of a pool that has just begun to serve.
    fn open_replicas_of(&self, pool: Uuid) -> BoxFuture<'_, ()>;

    /// Lists the replicated volumes that this node knows.
    fn replicated_volumes(&self) -> ReplicatedList;
}
