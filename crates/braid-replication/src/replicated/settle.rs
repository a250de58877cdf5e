//! Settles snapshots that only some replicas in sync have: each is completed on all of them, or removed (`outcome`).
//!
//! Snapshots are settled at an opening before clients are served, before each operation on snapshots while some may be
//! unsettled, and while the volume is served after an operation failed.

use crate::ReplicationManager;
use crate::attached::{AttachedVolume, ServedVolume};
use crate::replicated::outcome::{SnapshotLists, change_for};
use crate::replicated::replica_requests::CHANGE_MAX;
use crate::voters::VolumeVoters;
use braid_api::{ErrorDetail, Kind, ReplicaChange};
use braid_inventory::SavedReplicated;
use braid_tasks as tasks;
use std::sync::Arc;
use std::time::Duration;

/// After this time, a change that a replica did not acknowledge in time was made or never will be: the snapshots are
/// settled once more.
const LATE_MAX: Duration = Duration::from_secs(30);

impl ReplicationManager {
    /// Returns the snapshots, with all of them settled.
    pub(crate) async fn settled_snapshots(&self, serving: &ServedVolume) -> Result<SnapshotLists, ErrorDetail> {
        if serving.attached.is_unsettled() {
            return self.settle_snapshots(serving).await;
        }
        self.list_all(&serving.volume, &self.slots_in_sync(&serving.volume)).await
    }

    /// As [`ReplicationManager::settled_snapshots`], with one retry: a replica that does not reply is soon dropped, or
    /// replies again.
    pub(crate) async fn settled_snapshots_retrying(
        &self,
        serving: &ServedVolume,
    ) -> Result<SnapshotLists, ErrorDetail> {
        match self.settled_snapshots(serving).await {
            Err(error) if matches!(error.kind, Kind::Unreachable | Kind::TimedOut | Kind::Fenced) => {
                self.flush_replicas(&serving.volume).await;
                self.settled_snapshots(serving).await
            }
            listed => listed,
        }
    }

    /// Settles every snapshot that exists on some replicas only. The caller holds the lock of the snapshots.
    pub(crate) async fn settle_snapshots(&self, serving: &ServedVolume) -> Result<SnapshotLists, ErrorDetail> {
        let slots = self.slots_in_sync(&serving.volume);
        let settled = self.settle_on(serving, &slots).await;
        if settled.is_err() {
            // A replica whose daemon has restarted is reconnected only at the next request, and accepts no change
            // before.
            self.flush_replicas(&serving.volume).await;
        }
        settled
    }

    /// Settles the snapshots on these replicas.
    async fn settle_on(&self, serving: &ServedVolume, slots: &[u16]) -> Result<SnapshotLists, ErrorDetail> {
        let listed = self.list_all(&serving.volume, slots).await?;
        let mut changed = false;
        for snapshot in listed.snapshots() {
            let outcome = listed.outcome(snapshot);
            for slot in slots {
                if let Some(change) = change_for(&outcome, &listed.state_on(*slot, snapshot), snapshot) {
                    self.change_one(serving, *slot, &change, CHANGE_MAX).await?;
                    changed = true;
                }
            }
        }
        let listed = if changed { self.list_all(&serving.volume, slots).await? } else { listed };
        serving.attached.set_unsettled(false);
        serving.attached.set_snapshots(listed.count());
        Ok(listed)
    }

    /// Settles the snapshots at an opening, on the replicas in sync, before clients are served. What fails then is
    /// retried later.
    pub(crate) async fn settle_at_opening(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
        slots: &[u16],
    ) {
        attached.set_unsettled(true);
        let serving =
            ServedVolume { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
        // The previous epoch's task may still hold the lock.
        let settled = tokio::time::timeout(CHANGE_MAX, async {
            let _one_at_a_time = attached.snapshot_lock.lock().await;
            self.settle_on(&serving, slots).await
        });
        let why = match settled.await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.message,
            Err(_) => format!("that took more than {} s", CHANGE_MAX.as_secs()),
        };
        tracing::warn!("volume {}: its snapshots are looked at again later: {why}", volume.name);
    }

    /// Settles what was left undecided, while the volume is served.
    pub(crate) async fn settle_later(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
    ) {
        let serving =
            ServedVolume { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
        let _one_at_a_time = attached.snapshot_lock.lock().await;
        if attached.is_unsettled()
            && let Err(error) = self.settle_snapshots(&serving).await
        {
            tracing::info!("volume {}: {}", volume.name, error.message);
        }
    }

    /// Removes from a replica that rejoins, and takes no writes yet, the snapshots that those in sync do not have. The
    /// caller holds the lock of the snapshots.
    pub(crate) async fn remove_extra_snapshots(&self, serving: &ServedVolume, slot: u16) -> Result<(), ErrorDetail> {
        let listed = self.settled_snapshots_retrying(serving).await?;
        for own in self.list_one(&serving.volume, slot).await? {
            let stays = own.name.is_some() && listed.named(&own.uuid).is_some();
            if stays {
                continue;
            }
            let snapshot = own.uuid.clone();
            if own.name.is_some() {
                let hide = ReplicaChange::Hide { snapshot: snapshot.clone() };
                self.change_one(serving, slot, &hide, CHANGE_MAX).await?;
            }
            self.change_one(serving, slot, &ReplicaChange::Remove { snapshot }, CHANGE_MAX).await?;
        }
        Ok(())
    }
}

/// Settles the snapshots once more later: a replica that did not reply in time may still make the change.
pub(crate) fn settle_again_later(attached: &Arc<AttachedVolume>) {
    let attached = Arc::downgrade(attached);
    tasks::spawn(async move {
        tokio::time::sleep(LATE_MAX).await;
        if let Some(attached) = attached.upgrade() {
            attached.set_unsettled(true);
        }
    });
}
