//! The keeper's door to a running ring.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_engine::keeper::{EngineIo, SyncPart};
use braid_engine::{
    Compared, DeviceId, DeviceLayout, ErrorKind, IoError, LEAF_BYTES_MAX, LeafError, LeafId, MetaIo, Op, RegionCall,
    ShardId, Trouble,
};

use crate::link::{Control, Countdown};
use crate::meta::RingMeta;
use crate::parts::PartJob;
use crate::pending::pending;
use crate::ring::{Inner, RingHandle};
use crate::shard::clock_ns;
use crate::tier::tier_of;

impl RingHandle {
    /// A member's disk was found to be lost although nothing was asked of it: whoever keeps the array learns it as if a read
    /// had failed.
    pub fn tell_lost(&self, device: DeviceId, role: u16, leaf: LeafId) {
        let (kind, errno) = (ErrorKind::Gone, libc::ENXIO);
        let lost = Trouble { device, version: 0, role, leaf, op: Op::Read, kind, errno, offset: 0, len: 0 };
        self.inner.troubles.tell(lost);
    }
}

/// [`EngineIo`] over a ring, for any executor. Cheap to clone; all clones share memory for jobs and the troubles of arrays.
///
/// When the ring has stopped, nothing waits any more: parts of jobs end with `NoDevice`, everything else as if it were done;
/// but [`EngineIo::trouble`] has nothing to tell, ever. Whoever stops a ring drops the keepers.
#[derive(Clone)]
pub struct RingEngine {
    handle: RingHandle,
    meta: RingMeta,
}

impl RingHandle {
    /// The door for code that keeps redundant arrays.
    pub fn engine(&self) -> RingEngine {
        RingEngine { handle: self.clone(), meta: self.meta() }
    }
}

impl RingEngine {
    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    /// The ring behind it.
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
        let (promise, answer) = pending();
        let links = &self.inner().links;
        let frozen = Countdown::new(links.len(), Box::new(move || promise.keep(())));
        for link in links {
            if !link.send(Control::Freeze { device, frozen: Arc::clone(&frozen) }) {
                frozen.arrive();
            }
        }
        drop(frozen);
        let _ = answer.await;
    }

    fn post(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        self.handle.publish(device, layout, Box::new(|| ()));
    }

    async fn publish(&self, device: DeviceId, layout: Option<Arc<DeviceLayout>>) {
        let _ = self.handle.publish_and_drain(device, layout).await;
    }

    /// Waits where too much is under way: `Busy` says that the device is frozen, or that there is no memory.
    async fn sync(&self, part: SyncPart) -> Result<Compared, IoError> {
        if part.kind.memory_bytes(part.len) > LEAF_BYTES_MAX {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        let inner = self.inner();
        let loan = inner.pools[tier_of(part.device)].take().await?;
        let (answer, ended) = pending();
        let shard = inner.next_shard.fetch_add(1, Ordering::Relaxed) % inner.links.len();
        inner.links[shard].send(Control::Part(Box::new(PartJob { part, loan, answer })));
        ended.await.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }

    async fn call(&self, device: DeviceId, home: ShardId, call: RegionCall) {
        let Some(link) = self.inner().links.get(usize::from(home.0)) else { return };
        let (done, answer) = pending();
        link.send(Control::Call { device, call, done });
        let _ = answer.await;
    }

    async fn trouble(&self, device: DeviceId) -> Trouble {
        poll_fn(|cx| self.inner().troubles.poll(device, cx)).await
    }

    async fn is_idle(&self, leaf: LeafId) -> bool {
        self.handle.leaf_stats(leaf).is_none_or(|stats| stats.in_flight == 0)
    }

    /// Ends early when the ring stops.
    async fn sleep(&self, ns: u64) {
        let (done, answer) = pending();
        // Any shard has a clock. The first one is as good as another.
        self.inner().links[0].send(Control::Sleep { until_ns: clock_ns().saturating_add(ns), done });
        let _ = answer.await;
    }

    fn now_ns(&self) -> u64 {
        clock_ns()
    }

    /// Of shards that have stopped, none.
    async fn requests(&self, device: DeviceId) -> u64 {
        let asked: Vec<_> =
            (0..self.handle.shards()).map(|shard| self.handle.device_counters(ShardId(shard), device)).collect();
        let mut all = 0;
        for answer in asked {
            all += answer.await.map_or(0, |counters| counters.requests());
        }
        all
    }
}
