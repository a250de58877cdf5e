//! The door of the keeper to the shards and to the rest of the world.

use std::sync::Arc;

use crate::io::{DeviceId, IoError, LeafId, MetaIo, ShardId};
use crate::layout::DeviceLayout;
use crate::lifecycle::Array;
use crate::regions::RegionMap;
use crate::shard::RegionCall;
use crate::shard::sync::{Compared, SyncKind};
use crate::trouble::Trouble;

use super::{Note, Order, Ordered};

/// A part of a job: one contiguous piece of a redundant array, worked on under the range lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncPart {
    /// The array.
    pub device: DeviceId,
    /// First byte on the array.
    pub offset: u64,
    /// Bytes, at most [`crate::io::LEAF_BYTES_MAX`], or [`crate::COMPARE_BYTES_MAX`], within one piece of the geometry.
    pub len: u64,
    /// What is done. Its memory, [`SyncKind::memory_bytes`], is at most [`crate::io::LEAF_BYTES_MAX`].
    pub kind: SyncKind,
}

/// What the keeper needs of whoever drives the shards.
#[allow(async_fn_in_trait)]
pub trait EngineIo: MetaIo {
    /// Freezes the device on every shard; returns when all have.
    async fn freeze(&self, device: DeviceId);

    /// Publishes a layout on every shard, in the order of the calls, and does not wait for what the one before still does.
    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>);

    /// Publishes a layout on every shard; returns when the last request of all before has ended on all.
    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>);

    /// Does a part of a job on some shard, with memory of its own. Returns [`crate::SyncDone::compared`].
    ///
    /// # Errors
    /// As [`crate::SyncDone::result`]; `Busy` also where too much is under way.
    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError>;

    /// Asks something of the home of the device's regions; returns when it is done.
    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall);

    /// The next trouble of this device, when there is one.
    async fn trouble(&self, device: DeviceId) -> Trouble;

    /// Whether nothing is under way on this disk, late I/Os included, which may still land.
    async fn is_idle(&self, leaf: LeafId) -> bool;

    /// Lets time pass.
    async fn sleep(&self, ns: u64);

    /// Now, in nanoseconds of a clock that never goes back.
    fn now_ns(&self) -> u64;

    /// Requests to the device that were answered since start, on all shards: whoever sees it rise knows that somebody uses
    /// the device.
    async fn requests(&self, device: DeviceId) -> u64;
}

/// What the keeper needs of whoever administers arrays.
#[allow(async_fn_in_trait)]
pub trait KeeperIo: EngineIo {
    /// A number for a layout of this device that no layout of it had before, larger than those.
    fn next_version(&self, device: DeviceId) -> u32;

    /// The next order for this device's keeper, with its number, when there is one.
    async fn order(&self, device: DeviceId) -> (u64, Order);

    /// Says what came of an order.
    fn ordered(&self, id: u64, result: Ordered);

    /// Tells whoever watches.
    fn note(&self, device: DeviceId, note: Note);

    /// The array has grown: these are its regions from now on.
    fn grown(&self, device: DeviceId, regions: &Arc<RegionMap>) {
        let _ = (device, regions);
    }

    /// What the labels say from now on; a layout that says the same of the members is on its way to the shards.
    fn recorded(&self, device: DeviceId, array: &Array) {
        let _ = (device, array);
    }
}
