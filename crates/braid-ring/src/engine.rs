//! The interface of array monitors to a running ring.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_engine::{
    Compared, DeviceId, DeviceLayout, EngineIo, ErrorKind, Fault, IoError, LEAF_BYTES_MAX, LeafError, LeafId, MetaIo,
    Op, RegionCall, ShardId, SyncPart,
};

use crate::clock::clock_ns;
use crate::link::{Control, Countdown};
use crate::meta::RingMeta;
use crate::parts::PartJob;
use crate::pending::pending;
use crate::ring::{Inner, RingHandle};
use crate::stack_level::stack_level_of;

impl RingHandle {
    /// Reports that a member's disk is lost although no I/O on it has failed. The monitor of the array handles it like
    /// a failed read.
    pub fn report_lost(&self, device: DeviceId, slot: u16, leaf: LeafId) {
        let (kind, errno) = (ErrorKind::Gone, libc::ENXIO);
        let lost = Fault { device, version: 0, role: slot, leaf, op: Op::Read, kind, errno, offset: 0, len: 0 };
        self.inner.member_faults.report(lost);
    }
}

/// [`EngineIo`] over a ring, for any executor. Cheap to clone. All clones share the buffers for jobs and the faults of
/// arrays.
///
/// When the ring has stopped, no call waits: parts of jobs end with `NoDevice`, metadata I/O with `Gone`, and all other
/// calls return as if they had succeeded. The exception is [`EngineIo::next_fault`], which then waits forever: drop the
/// monitors when a ring is stopped.
#[derive(Clone)]
pub struct RingEngine {
    handle: RingHandle,
    meta: RingMeta,
}

impl RingHandle {
    /// Returns the interface for array monitors.
    pub fn engine(&self) -> RingEngine {
        RingEngine { handle: self.clone(), meta: self.meta() }
    }
}

impl RingEngine {
    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    /// Returns the handle of the ring.
    pub fn handle(&self) -> &RingHandle {
        &self.handle
    }
}

impl MetaIo for RingEngine {
    fn size_bytes(&self, leaf: LeafId) -> u64 {
        self.meta.size_bytes(leaf)
    }

    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError> {
        self.meta.read(leaf, offset, len).await
    }

    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError> {
        self.meta.write(leaf, offset, data, fua).await
    }

    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError> {
        self.meta.flush(leaf).await
    }
}

impl EngineIo for RingEngine {
    async fn freeze(&self, device: DeviceId) {
        let (sender, reply) = pending();
        let links = &self.inner().links;
        let frozen = Countdown::new(links.len(), Box::new(move || sender.send(())));
        for link in links {
            if !link.send(Control::Freeze { device, frozen: Arc::clone(&frozen) }) {
                frozen.arrive();
            }
        }
        drop(frozen);
        let _ = reply.await;
    }

    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.handle.publish(device, layout, Box::new(|| ()));
    }

    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        let _ = self.handle.publish_and_drain(device, layout).await;
    }

    /// Waits for a slot if the shard has none. `Busy` means that the device is frozen, or that no memory is available.
    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError> {
        if part.kind.memory_bytes(part.len) > LEAF_BYTES_MAX {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let inner = self.inner();
        let buffer = inner.part_buffers[stack_level_of(part.device)].take().await?;
        let (reply, ended) = pending();
        let shard = inner.next_shard.fetch_add(1, Ordering::Relaxed) % inner.links.len();
        inner.links[shard].send(Control::Part(Box::new(PartJob { part, buffer, reply })));
        ended.await.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }

    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall) {
        let Some(link) = self.inner().links.get(usize::from(home.0)) else { return };
        let (done, reply) = pending();
        link.send(Control::Call { device, call, done });
        let _ = reply.await;
    }

    async fn next_fault(&self, device: DeviceId) -> Fault {
        poll_fn(|cx| self.inner().member_faults.poll(device, cx)).await
    }

    async fn is_idle(&self, leaf: LeafId) -> bool {
        self.handle.leaf_stats(leaf).is_none_or(|stats| stats.in_flight == 0)
    }

    /// Ends early when the ring stops.
    async fn sleep(&self, ns: u64) {
        let (done, reply) = pending();
        // Every shard has the same clock.
        self.inner().links[0].send(Control::Sleep { until_ns: clock_ns().saturating_add(ns), done });
        let _ = reply.await;
    }

    fn now_ns(&self) -> u64 {
        clock_ns()
    }

    /// Requests that stopped shards have completed are missing in the sum.
    async fn requests(&self, device: DeviceId) -> u64 {
        let replies: Vec<_> =
            (0..self.handle.shards()).map(|shard| self.handle.device_counters(ShardId(shard), device)).collect();
        let mut all = 0;
        for reply in replies {
            all += reply.await.map_or(0, |counters| counters.requests());
        }
        all
    }
}
