//! Offers snapshots of a replica's data to its controller, when none of the controller's own replicas has them.
//!
//! Each is a read-only export beside the replica's, for as long as the replica replies to that controller. No client
//! writes to it, and its content never changes: so it has no session, and a raise of the epoch does not wait for its
//! readers. The offer ends when the controller withdraws it, when the replica replies to another controller or its own
//! has released it, when the replica is closed, and when no reader has been connected for a while, since its controller
//! is then gone.

use crate::ReplicationManager;
use crate::offered::{OfferedSnapshot, SnapshotReaders};
use braid_api::{ErrorDetail, Kind, snapshot_export};
use braid_export::ExportInfo;
use braid_exports::ExportSource;
use braid_pools::ReplicaData;
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// Maximum time for which a snapshot is offered without a reader.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// An offered snapshot, as the task that ends the offer knows it. Dropped when nothing is left of the offer.
struct SnapshotOffer {
    manager: Arc<ReplicationManager>,
    export: String,
    snapshot: Uuid,
    readers: Arc<SnapshotReaders>,
    stop: Arc<Notify>,
    _ended: watch::Sender<()>,
}

impl Drop for SnapshotOffer {
    fn drop(&mut self) {
        self.manager.offered_snapshots().remove(&self.snapshot);
    }
}

impl SnapshotOffer {
    /// Ends the offer when it is due.
    async fn watch(self) {
        let mut changes = self.readers.admission.changes();
        let mut idle = Box::pin(self.readers.idle(IDLE_MAX));
        while self.readers.have_current_controller() {
            tokio::select! {
                () = self.stop.notified() => break,
                () = &mut idle => break,
                changed = changes.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
            }
        }
        drop(idle);
        self.readers.cut(true);
        self.manager.replica_exports.remove(&self.export);
        self.manager.exports.tell_exports_changed();
        self.manager.pools.close_volume(self.snapshot).await;
    }
}

impl ReplicationManager {
    fn offered_snapshots(&self) -> MutexGuard<'_, BTreeMap<Uuid, OfferedSnapshot>> {
        self.offered_snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a snapshot of a replica's data to these readers alone, instead of its earlier readers.
    ///
    /// # Errors
    /// It is no snapshot of the replica; it is just being offered or closed; the maximum number of devices is reached.
    pub(crate) async fn offer_snapshot(
        self: &Arc<Self>,
        (replica, data): (Uuid, ReplicaData),
        snapshot: Uuid,
        readers: Arc<SnapshotReaders>,
    ) -> Result<(), ErrorDetail> {
        self.pools.check_snapshot_of_data(data, snapshot).await?;
        self.withdraw_snapshot(snapshot).await;
        let export = snapshot_export(&replica.to_string(), &snapshot.to_string());
        let offer = self.begin_offer(replica, export.clone(), snapshot, Arc::clone(&readers))?;
        let source = self.serve_snapshot(data, snapshot).await?;
        let info = ExportInfo {
            read_only: true,
            block_bytes_min: source.block_bytes,
            description: format!("snapshot {snapshot} of replica {replica}"),
            allocation: source.allocation,
            tls: braid_export::ExportTls::Optional,
            uuid: Some(*snapshot.as_bytes()),
            admission: Some(readers),
            ..ExportInfo::new(export, source.device, source.size_bytes)
        };
        if let Err(error) = self.replica_exports.add(info) {
            self.pools.close_volume(snapshot).await;
            return Err(ErrorDetail::new(Kind::Internal, error.to_string()).with("snapshot", snapshot));
        }
        tasks::spawn(offer.watch());
        Ok(())
    }

    fn begin_offer(
        self: &Arc<Self>,
        replica: Uuid,
        export: String,
        snapshot: Uuid,
        readers: Arc<SnapshotReaders>,
    ) -> Result<SnapshotOffer, ErrorDetail> {
        let mut all = self.offered_snapshots();
        if all.contains_key(&snapshot) {
            return Err(ErrorDetail::new(Kind::InUse, "the snapshot is just being offered")
                .with("snapshot", snapshot)
                .remedy("try again"));
        }
        let (stop, (sender, ended)) = (Arc::new(Notify::new()), watch::channel(()));
        all.insert(
            snapshot,
            OfferedSnapshot { replica, readers: Arc::clone(&readers), stop: Arc::clone(&stop), ended },
        );
        Ok(SnapshotOffer { manager: Arc::clone(self), export, snapshot, readers, stop, _ended: sender })
    }

    /// Stops offering a snapshot. When this returns, no request on it is in flight.
    pub(crate) async fn withdraw_snapshot(&self, snapshot: Uuid) {
        let Some(mut ended) = self.offered_snapshots().get(&snapshot).map(OfferedSnapshot::stop) else { return };
        while ended.changed().await.is_ok() {}
    }

    /// Stops offering any snapshot of a replica.
    pub(crate) async fn withdraw_snapshots_of(&self, replica: Uuid) {
        let all: Vec<_> = {
            let offered = self.offered_snapshots();
            offered.values().filter(|one| one.replica == replica).map(OfferedSnapshot::stop).collect()
        };
        for mut ended in all {
            while ended.changed().await.is_ok() {}
        }
    }

    /// Cuts off the readers of all snapshots; those that are still admitted reconnect.
    pub(crate) fn sever_offered(&self) {
        let readers: Vec<_> = self.offered_snapshots().values().map(|one| Arc::clone(&one.readers)).collect();
        readers.iter().for_each(|readers| readers.cut(false));
        self.exports.tell_exports_changed();
    }

    /// Serves a snapshot as a device, until it is closed as a volume is.
    ///
    /// # Errors
    /// The snapshot is missing; its pool does not serve; the maximum number of devices is reached.
    pub(crate) async fn serve_snapshot(
        self: &Arc<Self>,
        data: ReplicaData,
        snapshot: Uuid,
    ) -> Result<ExportSource, ErrorDetail> {
        let listening = self.exports.listening_lock.lock().await;
        self.inventory.write().held_volumes.insert(snapshot, data.pool);
        let served = self.pools.serve_volume(data.pool, snapshot).await;
        drop(listening);
        match served {
            Ok(Some(source)) => return Ok(source),
            Ok(None) => self.pools.close_volume(snapshot).await,
            Err(error) => {
                self.pools.close_volume(snapshot).await;
                return Err(error);
            }
        }
        Err(ErrorDetail::new(Kind::Inactive, "the pool of the replica does not serve"))
    }
}
