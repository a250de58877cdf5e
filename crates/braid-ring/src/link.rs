//! How a shard is reached from outside: the control plane's mailbox and the queues between shards.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::pool::Pool;
use braid_engine::{
    DeviceCounters, DeviceId, DeviceLayout, LeafId, LeafIo, LeafResult, Op, PoolCall, PoolKey, RegionCall, ShardId,
};

use crate::disk::Disk;
use crate::map::Map;
use crate::parts::PartJob;
use crate::pending::Promise;
use crate::pools::Served;
use crate::port::Errand;
use crate::requests::DeviceRequest;
use crate::stats::LeafCounters;
use crate::tier::Raise;
use crate::wake::Wake;

/// What is done when all shards have done their part. The last one calls it, on its own thread.
pub(crate) struct Countdown {
    left: AtomicUsize,
    done: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Countdown {
    pub(crate) fn new(shards: usize, done: Box<dyn FnOnce() + Send>) -> Arc<Countdown> {
        Arc::new(Countdown { left: AtomicUsize::new(shards), done: Mutex::new(Some(done)) })
    }

    pub(crate) fn arrive(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(done) = self.done.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            done();
        }
    }
}

/// A leaf I/O of the control plane, with the memory it works on.
pub(crate) struct MetaRequest {
    /// Its memory; `io.buf` points into it.
    pub(crate) memory: Option<Map>,
    pub(crate) io: LeafIo,
    /// Gets the memory back, unless the kernel still has it: then none is left, and the I/O is late.
    pub(crate) answer: Option<Promise<(LeafResult, Option<Map>)>>,
}

impl MetaRequest {
    /// Whether this is a late write that may still land on what `io` writes.
    pub(crate) fn may_land_on(&self, io: &LeafIo) -> bool {
        let writes = |io: &LeafIo| !matches!(io.op, Op::Read | Op::Flush);
        let end = |io: &LeafIo| io.offset.saturating_add(io.len);
        let overlap = self.io.leaf == io.leaf && self.io.offset < end(io) && io.offset < end(&self.io);
        self.answer.is_none() && overlap && writes(&self.io) && writes(io)
    }
}

/// What the control plane tells a shard.
pub(crate) enum Control {
    AddLeaf {
        id: LeafId,
        disk: Arc<Disk>,
        counters: Arc<LeafCounters>,
    },
    /// One more tier.
    Raise(Box<Raise>),
    RemoveLeaf {
        id: LeafId,
        gone: Arc<Countdown>,
    },
    ResizeLeaf {
        id: LeafId,
        known: Arc<Countdown>,
    },
    Publish {
        device: DeviceId,
        layout: Option<Arc<DeviceLayout>>,
        drained: Arc<Countdown>,
    },
    Post {
        frontend: usize,
        message: Box<dyn Any + Send>,
    },
    /// An I/O of another shard, or one of this shard that another has carried out.
    Errand(Errand),
    /// Of a disk of this tier.
    Meta(usize, Box<MetaRequest>),
    Request(Box<DeviceRequest>),
    Freeze {
        device: DeviceId,
        frozen: Arc<Countdown>,
    },
    /// Its lease was renewed after answers had been kept.
    Renewed {
        device: DeviceId,
    },
    Part(Box<PartJob>),
    Call {
        device: DeviceId,
        call: RegionCall,
        done: Promise<()>,
    },
    Sleep {
        until_ns: u64,
        done: Promise<()>,
    },
    KnowPool {
        key: PoolKey,
        home: ShardId,
        done: Promise<()>,
    },
    ServePool(Box<Served>),
    CallPool {
        key: PoolKey,
        call: PoolCall,
        done: Promise<bool>,
    },
    LeavePool {
        key: PoolKey,
        done: Promise<Option<Box<Pool>>>,
        ended: Promise<()>,
    },
    Counters {
        device: DeviceId,
        answer: Promise<DeviceCounters>,
    },
    Stop,
}

/// The outside of one shard.
pub(crate) struct Link {
    pub(crate) wake: Arc<Wake>,
    pending: AtomicBool,
    /// `None` once the shard has ended: nobody will read it.
    queue: Mutex<Option<Vec<Control>>>,
    pub(crate) turns: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

impl Link {
    pub(crate) fn new(wake: Wake) -> Link {
        Link {
            wake: Arc::new(wake),
            pending: AtomicBool::new(false),
            queue: Mutex::new(Some(Vec::with_capacity(64))),
            turns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        }
    }

    /// Hands a message over; false when the shard has ended.
    pub(crate) fn send(&self, control: Control) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = queue.as_mut() else { return false };
        open.push(control);
        drop(queue);
        self.pending.store(true, Ordering::Release);
        self.wake.wake();
        true
    }

    pub(crate) fn has_mail(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Exchanges what has arrived for an empty vector.
    pub(crate) fn take_mail(&self, empty: &mut Vec<Control>) {
        debug_assert!(empty.is_empty());
        self.pending.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = queue.as_mut() {
            std::mem::swap(open, empty);
        }
    }

    /// The shard ends: what is still in the mailbox is dropped, which breaks its promises. Where this shard is one of
    /// several that are asked, it has nothing left to do.
    pub(crate) fn close(&self) {
        let rest = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        for control in rest.into_iter().flatten() {
            match control {
                Control::RemoveLeaf { gone: told, .. }
                | Control::ResizeLeaf { known: told, .. }
                | Control::Publish { drained: told, .. }
                | Control::Freeze { frozen: told, .. } => told.arrive(),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_closed_mailbox_held_has_drained() {
        let link = Link::new(Wake::new().expect("an eventfd"));
        let (told, outcome) = std::sync::mpsc::channel();
        for device in 0..2 {
            let told = told.clone();
            let drained = Countdown::new(1, Box::new(move || told.send(device).expect("the test waits")));
            assert_eq!(link.send(Control::Publish { device: DeviceId(device), layout: None, drained }), device == 0);
            link.close();
        }
        assert_eq!(outcome.try_recv(), Ok(0));
    }
}
