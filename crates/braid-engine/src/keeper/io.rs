//! The reconciler's interface to the shards and to the outside.

use std::sync::Arc;

use crate::io::{DeviceId, IoError, LeafId, MetaIo, ShardId};
use crate::layout::DeviceLayout;
use crate::lifecycle::Array;
use crate::regions::RegionMap;
use crate::shard::RegionCall;
use crate::shard::sync::{Compared, SyncKind};
use crate::trouble::Trouble;

use super::{Order, OrderResult, ReconcilerEvent};

/// One step of a job: a contiguous piece of a redundant array, processed under the range lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncPart {
    /// The array.
    pub device: DeviceId,
    /// First byte on the array.
    pub offset: u64,
    /// Bytes, at most [`crate::io::LEAF_BYTES_MAX`] or [`crate::COMPARE_BYTES_MAX`], within one piece of the geometry.
    pub len: u64,
    /// The operation. Its memory, [`SyncKind::memory_bytes`], is at most [`crate::io::LEAF_BYTES_MAX`].
    pub kind: SyncKind,
}

/// What the reconciler needs of the driver of the shards.
#[allow(async_fn_in_trait)]
pub trait EngineIo: MetaIo {
    /// Freezes the device on every shard; returns when all are frozen.
    async fn freeze(&self, device: DeviceId);

    /// Publishes a layout on every shard, in call order, without waiting for requests of the previous layout.
    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>);

    /// Publishes a layout on every shard; returns when the last request of all previous layouts has finished on every
    /// shard.
    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>);

    /// Executes a step of a job on some shard, with its own memory. Returns [`crate::SyncDone::compared`].
    ///
    /// # Errors
    /// As in [`crate::SyncDone::result`]; also `Busy` when too much is in flight.
    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError>;

    /// Sends a request to the home shard of the device's regions; returns when it has been carried out.
    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall);

    /// Waits for the next fault of this device.
    async fn next_fault(&self, device: DeviceId) -> Trouble;

    /// Whether no I/O is in flight on this disk, including late I/O that may still land.
    async fn is_idle(&self, leaf: LeafId) -> bool;

    /// Waits for this long.
    async fn sleep(&self, ns: u64);

    /// Returns the time in nanoseconds of a monotonic clock.
    fn now_ns(&self) -> u64;

    /// Returns the number of requests to the device completed since start, on all shards. A rising number shows that
    /// the device is in use.
    async fn requests(&self, device: DeviceId) -> u64;
}

/// What the reconciler needs of the control plane.
#[allow(async_fn_in_trait)]
pub trait ReconcilerIo: EngineIo {
    /// Returns a version for a layout of this device: higher than every earlier one.
    fn next_version(&self, device: DeviceId) -> u32;

    /// Waits for the next order to this device's reconciler; returns it with its number.
    async fn order(&self, device: DeviceId) -> (u64, Order);

    /// Reports the result of an order.
    fn report_result(&self, id: u64, result: OrderResult);

    /// Reports an event.
    fn report(&self, device: DeviceId, note: ReconcilerEvent);

    /// Reports that the array has grown: these are its regions from now on.
    fn grown(&self, device: DeviceId, regions: &Arc<RegionMap>) {
        let _ = (device, regions);
    }

    /// Reports what the labels say from now on; a layout that agrees with them is on its way to the shards.
    fn labels_recorded(&self, device: DeviceId, array: &Array) {
        let _ = (device, array);
    }
}
