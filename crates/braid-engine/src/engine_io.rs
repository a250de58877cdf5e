//! What the administration of arrays needs of the driver of the shards: layouts, jobs, faults and time.

use std::sync::Arc;

use crate::fault::Fault;
use crate::io::{DeviceId, IoError, LeafId, MetaIo, ShardId};
use crate::layout::DeviceLayout;
use crate::shard::RegionCall;
use crate::shard::sync_parts::{Compared, SyncKind};

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

/// What the administration of arrays needs of the driver of the shards. A reconciler works through it.
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
    async fn next_fault(&self, device: DeviceId) -> Fault;

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
