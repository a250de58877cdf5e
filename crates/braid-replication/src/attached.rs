//! A replicated volume that this node serves or tries to serve: what the tasks that serve, change and show it share.

use crate::voters::VolumeVoters;
use crate::voters::forced::ForcedAttach;
use braid_api::ErrorDetail;
use braid_inventory::SavedReplicated;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

/// A rollback that is to be done at an opening.
pub(crate) struct Rollback {
    /// The only replica in sync.
    pub(crate) slot: u16,
    /// The identity of the snapshot.
    pub(crate) snapshot: String,
    /// Notified of the outcome.
    pub(crate) sender: oneshot::Sender<Result<(), ErrorDetail>>,
}

/// A volume that this node serves, or tries to.
pub(crate) struct AttachedVolume {
    /// The voters in the current epoch.
    voters: Mutex<Option<Arc<VolumeVoters>>>,
    /// Set to request the end of serving.
    end: watch::Sender<bool>,
    /// Set when no task serves the volume any more.
    ended: watch::Sender<bool>,
    /// The opening of the pool on the volume has ended: it is open, cannot be opened, or does not exist.
    pool_settled: watch::Sender<bool>,
    /// The last session that was begun with any replica.
    session: AtomicU64,
    /// The boot of its node under which each replica was last admitted, by number. If the boot is still the same, the
    /// replica has all writes that it acknowledged.
    boots: Mutex<BTreeMap<u8, Uuid>>,
    /// Why it is not served, in one sentence.
    fault: Mutex<Option<String>>,
    /// The session in which each replica was last opened, by its number.
    sessions: Mutex<BTreeMap<u16, u64>>,
    /// Held by every task that changes the volume's snapshots, or the replicas that take part in them.
    pub(crate) snapshot_lock: tokio::sync::Mutex<()>,
    /// Held for reading while a replica rejoins, for writing by a rollback and by the removal of a replica.
    pub(crate) rejoin_lock: tokio::sync::RwLock<()>,
    /// A rollback that is to be done at the next opening, before any replica has a connection.
    pub(crate) rollback: Mutex<Option<Rollback>>,
    /// Notified when `rollback` is set: the volume is to be opened anew.
    pub(crate) rollback_requested: tokio::sync::Notify,
    /// The voters of the first opening if it is forced; no others are asked.
    forced: Mutex<Option<ForcedAttach>>,
    /// What to report about excluded voters, one sentence each.
    excluded: Mutex<Vec<String>>,
    /// A voter was added, whose replica need not wait for the next reconciliation.
    pub(crate) voter_added: tokio::sync::Notify,
    /// Some snapshots may exist on some replicas only: they are to be settled.
    unsettled: AtomicBool,
    /// Held by every task that changes the membership.
    pub(crate) membership_lock: tokio::sync::Mutex<()>,
    /// The replica that is being removed from the volume.
    removing: Mutex<Option<u16>>,
    /// Number of tasks that interrupt copies of snapshots: while it is above 0, none goes on.
    pub(crate) copy_interrupts: AtomicU32,
    /// Number of snapshots, as far as it is known.
    snapshot_count: Mutex<Option<u64>>,
}

impl AttachedVolume {
    /// Returns a volume that no task serves yet. `forced`: the voters of the first opening, if it is forced.
    pub(crate) fn new(forced: Option<ForcedAttach>) -> AttachedVolume {
        AttachedVolume {
            voters: Mutex::default(),
            end: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            pool_settled: watch::Sender::new(false),
            session: AtomicU64::new(0),
            boots: Mutex::default(),
            fault: Mutex::default(),
            sessions: Mutex::default(),
            snapshot_lock: tokio::sync::Mutex::default(),
            rejoin_lock: tokio::sync::RwLock::default(),
            rollback: Mutex::default(),
            rollback_requested: tokio::sync::Notify::new(),
            forced: Mutex::new(forced),
            excluded: Mutex::default(),
            voter_added: tokio::sync::Notify::new(),
            unsettled: AtomicBool::new(false),
            membership_lock: tokio::sync::Mutex::default(),
            copy_interrupts: AtomicU32::new(0),
            removing: Mutex::default(),
            snapshot_count: Mutex::default(),
        }
    }

    /// Requests the end of serving.
    pub(crate) fn request_end(&self) {
        self.end.send_replace(true);
    }

    /// Waits until the end is requested.
    pub(crate) async fn end_requested(&self) {
        // Never closed as long as this lives.
        let _ = self.end.subscribe().wait_for(|end| *end).await;
    }

    /// Records that no task serves the volume any more.
    pub(crate) fn set_ended(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until no task serves the volume any more.
    pub(crate) async fn wait_ended(&self) {
        // Never closed as long as this lives.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Returns the voters of a forced opening once: later openings go by the votes again.
    pub(crate) fn take_forced(&self) -> Option<ForcedAttach> {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the voters, unless the volume is just being closed or not opened yet.
    pub(crate) fn voters(&self) -> Option<Arc<VolumeVoters>> {
        self.voters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_voters(&self, voters: Option<Arc<VolumeVoters>>) {
        *self.voters.lock().unwrap_or_else(PoisonError::into_inner) = voters;
    }

    /// Returns the replica that is to be removed: it is not taken back.
    pub(crate) fn removing(&self) -> Option<u16> {
        *self.removing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_removing(&self, removing: Option<u16>) {
        *self.removing.lock().unwrap_or_else(PoisonError::into_inner) = removing;
    }

    /// Returns why the volume is not served.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what to report about excluded voters.
    pub(crate) fn excluded(&self) -> Vec<String> {
        self.excluded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_excluded(&self, reports: Vec<String>) {
        *self.excluded.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }

    /// Returns whether it is not served any more.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub(crate) fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Returns the session in which a replica was last opened; 0: in none.
    pub(crate) fn session_of(&self, slot: u16) -> u64 {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).copied().unwrap_or(0)
    }

    /// Forgets all sessions: in this epoch none was begun yet.
    pub(crate) fn forget_sessions(&self) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn set_session(&self, slot: u16, session: u64) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, session);
    }

    /// Returns whether some snapshot may be undecided.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    pub(crate) fn set_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Ordering::Relaxed);
    }

    /// Returns the number of snapshots, if it is known.
    pub(crate) fn snapshot_count(&self) -> Option<u64> {
        *self.snapshot_count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_snapshots(&self, count: u64) {
        *self.snapshot_count.lock().unwrap_or_else(PoisonError::into_inner) = Some(count);
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.session.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Forgets a removed replica: the next one with its number has nothing of what it had.
    pub(crate) fn forget_replica(&self, slot: u16) {
        self.boots().remove(&(slot as u8));
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
    }

    pub(crate) fn boots(&self) -> MutexGuard<'_, BTreeMap<u8, Uuid>> {
        self.boots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether the opening of the pool on the volume has ended.
    pub(crate) fn set_pool_settled(&self, settled: bool) {
        self.pool_settled.send_replace(settled);
    }

    /// Waits until the opening of the pool on the volume has ended: it is open, cannot be opened, or does not exist.
    pub(crate) async fn pool_settled(&self) {
        // Never closed as long as this lives.
        let _ = self.pool_settled.subscribe().wait_for(|settled| *settled).await;
    }
}

/// A volume that this node serves.
pub(crate) struct ServedVolume {
    pub(crate) volume: SavedReplicated,
    pub(crate) attached: Arc<AttachedVolume>,
    pub(crate) voters: Arc<VolumeVoters>,
}

impl ServedVolume {
    pub(crate) fn new(
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
    ) -> ServedVolume {
        ServedVolume { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) }
    }
}
