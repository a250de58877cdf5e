//! A snapshot of a replica's data that the replica's node offers to the controller, and its readers.
//!
//! A reader is admitted while the replica replies to the controller to which the snapshot is offered.

use braid_export::admission::{Admission, AdmissionDenied, AdmissionPass};
use braid_inventory::admission::ReplicaAdmission;
use braid_inventory::terms;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// The readers of an offered snapshot.
pub(crate) struct SnapshotReaders {
    me: Weak<SnapshotReaders>,
    /// Admission of the replica: decides which controller it replies to.
    pub(crate) admission: Arc<ReplicaAdmission>,
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

    /// Returns whether the replica still replies to the controller of these readers.
    pub(crate) fn have_current_controller(&self) -> bool {
        self.admission.replies_to(self.epoch, self.controller)
    }

    fn ended(&self, number: u64) {
        let mut inner = self.lock();
        inner.passes.remove(&number);
        self.count.send_replace(inner.passes.len());
    }

    /// Cuts off all readers; the shards notice at the next message. `is_ended`: no reader is admitted any more.
    pub(crate) fn cut(&self, is_ended: bool) {
        let mut inner = self.lock();
        inner.is_ended |= is_ended;
        let passes: Vec<Arc<AdmissionPass>> = inner.passes.values().filter_map(Weak::upgrade).collect();
        // This may drop the last reference to a pass, whose end locks `inner` again.
        drop(inner);
        passes.iter().for_each(|pass| pass.revoke());
    }

    /// Waits until no reader has been connected for `limit`.
    pub(crate) async fn idle(&self, limit: Duration) {
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

/// An offered snapshot, as the manager knows it.
pub(crate) struct OfferedSnapshot {
    /// The volume of the replica.
    pub(crate) replica: Uuid,
    pub(crate) readers: Arc<SnapshotReaders>,
    /// Notified to end the offer.
    pub(crate) stop: Arc<Notify>,
    /// Closed when nothing is left of the offer.
    pub(crate) ended: watch::Receiver<()>,
}

impl OfferedSnapshot {
    /// Requests the end of the offer. The returned channel is closed when nothing is left of it.
    pub(crate) fn stop(&self) -> watch::Receiver<()> {
        self.stop.notify_one();
        self.ended.clone()
    }
}
