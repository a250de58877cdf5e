//! Snapshots of a replica's data that are offered to its controller, when none of the controller's own replicas has
//! them.
//!
//! Each is a read-only export beside the replica's, for as long as the replica replies to that controller. No client
//! writes to it, and its content never changes: so it has no session, and a raise of the epoch does not wait for its
//! readers. The offer ends when the controller withdraws it, when the replica replies to another controller or its own
//! has released it, when the replica is closed, and when no reader has been connected for a while, since its controller
//! is then gone.

use crate::ReplicationManager;
use braid_api::{ErrorDetail, Kind, snapshot_export};
use braid_export::ExportInfo;
use braid_export::admission::{Admission, AdmissionDenied, AdmissionPass};
use braid_exports::ExportSource;
use braid_inventory::admission::ReplicaAdmission;
use braid_inventory::terms;
use braid_pools::ReplicaData;
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// Maximum time for which it is offered without a reader.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The readers of an offered snapshot.
pub(crate) struct SnapshotReaders {
    me: Weak<SnapshotReaders>,
    /// Admission of the replica: decides which controller it replies to.
    admission: Arc<ReplicaAdmission>,
    epoch: u64,
    controller: Uuid,
    inner: Mutex<ReadersState>,
    /// Number of readers.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct ReadersState {
    is_ended: bool,
    next: u64,
    passes: BTreeMap<u64, Weak<AdmissionPass>>,
}

impl SnapshotReaders {
    /// Returns the readers of this controller; none are connected yet.
    pub(crate) fn new(admission: Arc<ReplicaAdmission>, epoch: u64, controller: Uuid) -> Arc<SnapshotReaders> {
        let (inner, count) = (Mutex::default(), watch::Sender::new(0));
        Arc::new_cyclic(|me| SnapshotReaders { me: Weak::clone(me), admission, epoch, controller, inner, count })
    }

    fn lock(&self) -> MutexGuard<'_, ReadersState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn have_current_controller(&self) -> bool {
        self.admission.replies_to(self.epoch, self.controller)
    }

    fn ended(&self, number: u64) {
        let mut inner = self.lock();
        inner.passes.remove(&number);
        self.count.send_replace(inner.passes.len());
    }

    /// Cuts off all readers; the shards notice at the next message. `is_ended`: no reader is admitted any more.
    fn cut(&self, is_ended: bool) {
        let mut inner = self.lock();
        inner.is_ended |= is_ended;
        let passes: Vec<Arc<AdmissionPass>> = inner.passes.values().filter_map(Weak::upgrade).collect();
        // This may drop the last reference to a pass, whose end locks `inner` again.
        drop(inner);
        passes.iter().for_each(|pass| pass.revoke());
    }

    /// Waits until no reader has been connected for `limit`.
    async fn idle(&self, limit: Duration) {
        let mut counts = self.count.subscribe();
        loop {
            let is_empty = *counts.borrow_and_update() == 0;
            let changed = counts.changed();
            if !is_empty {
                let _ = changed.await;
            } else if tokio::time::timeout(limit, changed).await.is_err() {
                return;
            }
        }
    }
}

impl Admission for SnapshotReaders {
    fn request(&self, terms: &str) -> Result<Arc<AdmissionPass>, AdmissionDenied> {
        let [epoch, controller] =
            terms::values(terms, &["epoch", "controller"]).map_err(AdmissionDenied::Permanently)?;
        let is_its = epoch.parse() == Ok(self.epoch) && Uuid::try_parse(controller) == Ok(self.controller);
        if !is_its || !self.have_current_controller() {
            let why = format!(
                "fenced: the snapshot is offered to the controller of epoch {}, and the replica replies to epoch {} now",
                self.epoch,
                self.admission.register().epoch
            );
            return Err(AdmissionDenied::Permanently(why));
        }
        let mut inner = self.lock();
        if inner.is_ended {
            return Err(AdmissionDenied::Permanently("the snapshot is not offered any more".to_owned()));
        }
        inner.next += 1;
        let (number, me) = (inner.next, Weak::clone(&self.me));
        let pass = Arc::new(AdmissionPass::new(move || {
            if let Some(readers) = me.upgrade() {
                readers.ended(number);
            }
        }));
        pass.admit();
        inner.passes.insert(number, Arc::downgrade(&pass));
        self.count.send_replace(inner.passes.len());
        Ok(pass)
    }
}

/// An offered snapshot, as the daemon knows it.
pub(crate) struct OfferedSnapshot {
    replica: Uuid,
    readers: Arc<SnapshotReaders>,
    stop: Arc<Notify>,
    /// Closed when nothing is left of the offer.
    ended: watch::Receiver<()>,
}

/// An offered snapshot, as the task that ends it knows it. Dropped when nothing is left of the offer.
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

impl OfferedSnapshot {
    fn stop(&self) -> watch::Receiver<()> {
        self.stop.notify_one();
        self.ended.clone()
    }
}
