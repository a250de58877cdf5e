//! The reconciler's I/O interface in this daemon: the ring's engine, orders, version numbers and events.

use crate::votes::agree;
use crate::{ArrayManager, Votes};
use braid_array_admin::lifecycle::{Array, LifecycleError};
use braid_array_admin::reconciler::{Order, OrderResult, ReconcilerEvent, ReconcilerIo};
use braid_engine::{
    Compared, DeviceId, DeviceLayout, EngineIo, Fault, IoError, LeafError, LeafId, MetaIo, RegionCall, RegionMap,
    ShardId, SyncPart,
};
use braid_inventory::PendingOrder;
use braid_ring::RingEngine;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// The I/O interface of the reconciler of one array.
pub(crate) struct DaemonReconcilerIo {
    engine: RingEngine,
    manager: Arc<ArrayManager>,
    uuid: Uuid,
    /// Locked while the reconciler waits for the next order; nothing else locks it.
    pending: tokio::sync::Mutex<mpsc::Receiver<PendingOrder>>,
    /// The number of the last order, and the senders of the results of those that are being carried out.
    replies: Mutex<(u64, BTreeMap<u64, oneshot::Sender<OrderResult>>)>,
    /// The voters that decide along with the array's labels, if its members are replicas.
    voters: Option<Arc<dyn Votes>>,
}

impl DaemonReconcilerIo {
    /// Creates the interface of the array `uuid`, which takes its orders from `pending`.
    pub(crate) fn new(
        manager: &Arc<ArrayManager>,
        uuid: Uuid,
        pending: mpsc::Receiver<PendingOrder>,
    ) -> DaemonReconcilerIo {
        DaemonReconcilerIo {
            engine: manager.ring.engine(),
            manager: Arc::clone(manager),
            uuid,
            pending: tokio::sync::Mutex::new(pending),
            replies: Mutex::default(),
            voters: manager.votes_of(uuid),
        }
    }

    /// Returns true if the array in the tables is the one that this reconciler serves. A reconciler whose disks hang
    /// may outlive its array's end, and by then another reconciler may serve the same array on another device.
    fn is_served_by(&self, device: DeviceId) -> bool {
        let tables = self.manager.inventory.read();
        tables.arrays.get(&self.uuid).and_then(|entry| entry.active()).is_some_and(|active| active.device == device)
    }
}

impl MetaIo for DaemonReconcilerIo {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.engine.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.engine.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.engine.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.engine.flush(leaf).await
    }

    async fn record_in_sync(&self, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
        agree(self.voters.as_deref(), in_sync).await
    }
}

impl EngineIo for DaemonReconcilerIo {
    async fn freeze(&self, device: DeviceId) {
        self.engine.freeze(device).await;
    }

    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.engine.post(device, layout);
    }

    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.engine.publish(device, layout).await;
    }

    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError> {
        self.engine.sync(part).await
    }

    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall) {
        self.engine.call(device, home, call).await;
    }

    async fn next_fault(&self, device: DeviceId) -> Fault {
        self.engine.next_fault(device).await
    }

    async fn is_idle(&self, leaf: LeafId) -> bool {
        self.engine.is_idle(leaf).await
    }

    async fn sleep(&self, ns: u64) {
        self.engine.sleep(ns).await;
    }

    fn now_ns(&self) -> u64 {
        self.engine.now_ns()
    }

    async fn requests(&self, device: DeviceId) -> u64 {
        self.engine.requests(device).await
    }
}

impl ReconcilerIo for DaemonReconcilerIo {
    fn next_version(&self, _device: DeviceId) -> u32 {
        self.manager.inventory.write().next_layout_version()
    }

    /// Cancel-safe: a future dropped before completion has taken no order.
    async fn order(&self, _device: DeviceId) -> (u64, Order) {
        let pending = self.pending.lock().await.recv().await;
        let Some(pending) = pending else {
            // All senders are gone: the array is not in the tables any more, or the daemon has ended.
            return (0, Order::Stop);
        };
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.0 += 1;
        let id = replies.0;
        replies.1.extend(pending.reply.map(|reply| (id, reply)));
        (id, pending.order)
    }

    fn report_result(&self, id: u64, result: OrderResult) {
        let reply = self.replies.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&id);
        if let Some(reply) = reply {
            // The requester may have gone away.
            let _ = reply.send(result);
        }
    }

    fn report(&self, device: DeviceId, event: ReconcilerEvent) {
        if self.is_served_by(device) {
            self.manager.on_reconciler_event(self.uuid, event);
        }
    }

    fn grown(&self, device: DeviceId, regions: &Arc<RegionMap>) {
        if !self.is_served_by(device) {
            return;
        }
        let _ = self.manager.with_reconciler(self.uuid, |handle| handle.set_regions(regions));
    }

    fn labels_recorded(&self, device: DeviceId, array: &Array) {
        if self.is_served_by(device) {
            self.manager.on_recorded(self.uuid, array);
        }
    }
}

/// Returns true if the error is that the array would have too few members left.
pub(crate) fn is_beyond_tolerance(error: &LifecycleError) -> bool {
    matches!(error, LifecycleError::BeyondTolerance { .. })
}
