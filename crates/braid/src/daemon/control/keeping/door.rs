//! What a keeper needs of this daemon: the ring's door to the shards, and orders, numbers and notes.

use super::super::Control;
use super::super::replicated::{Voters, agree};
use braid_engine::keeper::{EngineIo, Order, OrderResult, ReconcilerEvent, ReconcilerIo, SyncPart};
use braid_engine::lifecycle::{Array, LifecycleError};
use braid_engine::{
    Compared, DeviceId, DeviceLayout, IoError, LeafError, LeafId, MetaIo, RegionCall, RegionMap, ShardId, Trouble,
};
use braid_ring::RingEngine;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// An order, and where what comes of it is to go.
pub(super) struct Asked {
    pub(super) order: Order,
    pub(super) answer: Option<oneshot::Sender<OrderResult>>,
}

/// The door of the keeper of one array.
pub(super) struct Door {
    engine: RingEngine,
    control: Arc<Control>,
    uuid: Uuid,
    /// Locked while the keeper waits for the next; nobody else does.
    asked: tokio::sync::Mutex<mpsc::Receiver<Asked>>,
    answers: Mutex<(u64, BTreeMap<u64, oneshot::Sender<OrderResult>>)>,
    /// Who decides beside its labels, where its members are replicas.
    voters: Option<Arc<Voters>>,
}

impl Door {
    pub(super) fn new(control: &Arc<Control>, uuid: Uuid, asked: mpsc::Receiver<Asked>) -> Door {
        Door {
            engine: control.ring.engine(),
            control: Arc::clone(control),
            uuid,
            asked: tokio::sync::Mutex::new(asked),
            answers: Mutex::default(),
            voters: control.voters_of(uuid),
        }
    }
}

impl Door {
    /// Whether what is known of the array is of this keeper: one whose disks hang may outlive its end, and another one may keep the
    /// same array by then, on another device.
    fn is_served_by(&self, device: DeviceId) -> bool {
        let tables = self.control.read();
        tables.arrays.get(&self.uuid).and_then(|entry| entry.active()).is_some_and(|active| active.device == device)
    }
}

impl MetaIo for Door {
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

    async fn agree(&self, in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
        agree(self.voters.as_deref(), in_sync).await
    }
}

impl EngineIo for Door {
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

    async fn next_fault(&self, device: DeviceId) -> Trouble {
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

impl ReconcilerIo for Door {
    fn next_version(&self, _device: DeviceId) -> u32 {
        self.control.write().next_version()
    }

    /// Given up in the middle, it has taken nothing.
    async fn order(&self, _device: DeviceId) -> (u64, Order) {
        let asked = self.asked.lock().await.recv().await;
        let Some(asked) = asked else {
            // Nobody can order anything any more: the control plane has forgotten the array, or is gone.
            return (0, Order::Stop);
        };
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.0 += 1;
        let id = answers.0;
        answers.1.extend(asked.answer.map(|answer| (id, answer)));
        (id, asked.order)
    }

    fn report_result(&self, id: u64, result: OrderResult) {
        let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&id);
        if let Some(answer) = answer {
            // Whoever asked may have gone away.
            let _ = answer.send(result);
        }
    }

    fn report(&self, device: DeviceId, note: ReconcilerEvent) {
        if self.is_served_by(device) {
            self.control.on_note(self.uuid, note);
        }
    }

    fn grown(&self, device: DeviceId, regions: &Arc<RegionMap>) {
        if !self.is_served_by(device) {
            return;
        }
        let _ = self.control.with_keeping(self.uuid, |keeping| keeping.set_regions(regions));
    }

    fn labels_recorded(&self, device: DeviceId, array: &Array) {
        if self.is_served_by(device) {
            self.control.on_recorded(self.uuid, array);
        }
    }
}

/// Whether the reason is that the array has too few members left.
pub(super) fn is_beyond(error: &LifecycleError) -> bool {
    matches!(error, LifecycleError::BeyondTolerance { .. })
}
