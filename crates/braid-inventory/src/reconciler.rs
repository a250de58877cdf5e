//! Handles of the reconcilers of arrays: how the daemon gives them orders, and reads what they report.

use crate::job_table::JobTable;
use braid_array_admin::reconciler::{Order, OrderResult, Reconciler, StoppedArray};
use braid_engine::{RegionMap, UnreadableBlocks};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// The reconciler of one array, which runs in a task of its own.
pub struct ReconcilerHandle {
    /// Orders to the reconciler.
    orders: mpsc::Sender<PendingOrder>,
    /// Receives what the reconciler leaves when it has ended; closed without a value if the reconciler panicked.
    ended: Mutex<Option<oneshot::Receiver<StoppedArray>>>,
    /// Replaced by another map when the array has grown.
    regions: Mutex<Arc<RegionMap>>,
    /// Size of a region, in bytes.
    region_bytes: u64,
    /// More members have failed than the array tolerates.
    failed: AtomicBool,
    /// The jobs that the reconciler has reported.
    pub(crate) jobs: Mutex<JobTable>,
    /// Of an array with parity: the blocks that cannot be read until they are written again.
    pub(crate) unreadable: Option<UnreadableBlocks>,
    /// Unreadable blocks were reported, and it was not reported yet that all of them were written again.
    unreadable_reported: AtomicBool,
    /// The former disk of the journal, until a command sets the location of the journal after the loss.
    lost_journal: Mutex<Option<String>>,
}

/// An order, and the channel for its result.
pub struct PendingOrder {
    /// The order.
    pub order: Order,
    /// Receives the result; `None`: nothing waits for it.
    pub reply: Option<oneshot::Sender<OrderResult>>,
}

impl ReconcilerHandle {
    /// Creates the handle of a reconciler that has been started and does not run yet. The task that runs it takes
    /// orders from `orders`, and sends what the reconciler leaves to `ended`. `lost_journal` is the lost disk of the
    /// array's journal, if that loss still waits for an operator.
    pub fn new(
        reconciler: &Reconciler,
        orders: mpsc::Sender<PendingOrder>,
        ended: oneshot::Receiver<StoppedArray>,
        lost_journal: Option<String>,
    ) -> ReconcilerHandle {
        ReconcilerHandle {
            orders,
            ended: Mutex::new(Some(ended)),
            regions: Mutex::new(Arc::clone(reconciler.regions())),
            region_bytes: u64::from(reconciler.array().label().region_bytes),
            failed: AtomicBool::new(false),
            // Jobs that begin later are reported through the I/O interface.
            jobs: Mutex::new(reconciler.jobs().cloned().collect()),
            unreadable: reconciler.unreadable_blocks(),
            unreadable_reported: AtomicBool::new(false),
            lost_journal: Mutex::new(lost_journal),
        }
    }

    /// Gives an order, and waits for its result. `None`: the reconciler has ended.
    pub async fn order(&self, order: Order) -> Option<OrderResult> {
        let (reply, replied) = oneshot::channel();
        self.orders.send(PendingOrder { order, reply: Some(reply) }).await.ok()?;
        replied.await.ok()
    }

    /// Ends the reconciler: when this returns, nothing is in flight on the array. `None`: the reconciler has panicked
    /// or was stopped before.
    pub async fn stop(&self) -> Option<StoppedArray> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // If it has ended already, its result is in the channel.
        let _ = self.orders.send(PendingOrder { order: Order::Stop, reply: None }).await;
        ended.await.ok()
    }

    /// Returns true if more members have failed than the array tolerates.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Records that more members have failed than the array tolerates. It stays so until the array is started again.
    pub fn set_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Returns the map of the array's regions, as of its last growth.
    pub fn regions(&self) -> Arc<RegionMap> {
        Arc::clone(&self.regions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the array's regions after it has grown.
    pub fn set_regions(&self, regions: &Arc<RegionMap>) {
        *self.regions.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(regions);
    }

    /// Returns the size of a region in bytes.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the lost disk that the journal was on, until a command sets the location of the journal; `None`: no
    /// loss waits for an operator.
    pub fn lost_journal(&self) -> Option<String> {
        self.lost_journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the loss of the disk of the journal; `None`: clears it.
    pub fn set_lost_journal(&self, disk: Option<String>) {
        *self.lost_journal.lock().unwrap_or_else(PoisonError::into_inner) = disk;
    }

    /// Records that the unreadable blocks of the array were reported.
    pub fn note_unreadable_reported(&self) {
        self.unreadable_reported.store(true, Ordering::Relaxed);
    }

    /// Returns true once per report of unreadable blocks: when all of them were written again.
    pub fn take_unreadable_repaired(&self) -> bool {
        self.unreadable.as_ref().is_some_and(|blocks| blocks.is_empty())
            && self.unreadable_reported.swap(false, Ordering::Relaxed)
    }
}
