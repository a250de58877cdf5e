//! How a shard is reached from other threads: the mailbox for messages of the control plane.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::pool::Pool;
use braid_engine::{DeviceCounters, DeviceId, DeviceLayout, LeafId, PoolCall, PoolKey, RegionCall, ShardId};

use crate::core::AddLevel;
use crate::disk::Disk;
use crate::meta_requests::MetaRequest;
use crate::parts::PartJob;
use crate::pending::ReplySender;
use crate::pools::PoolToServe;
use crate::port::ForwardedIo;
use crate::requests::DeviceRequest;
use crate::stats::LeafCounters;
use crate::wake::Wake;

/// Calls a function when all shards have arrived. It runs on the thread that arrives last: a shard's, or the sender's
/// if the remaining shards have ended.
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

/// A message of the control plane to a shard.
pub(crate) enum Control {
    AddLeaf {
        id: LeafId,
        disk: Arc<Disk>,
        counters: Arc<LeafCounters>,
    },
    /// Add one more stack level.
    AddLevel(Box<AddLevel>),
    RemoveLeaf {
        id: LeafId,
        gone: Arc<Countdown>,
    },
    /// Adopt the current size of a disk.
    ResizeLeaf {
        id: LeafId,
        known: Arc<Countdown>,
    },
    /// Replace the layout of a device. The shard arrives at `drained` when no request by an earlier layout is in
    /// flight.
    Publish {
        device: DeviceId,
        layout: Option<Arc<DeviceLayout>>,
        drained: Arc<Countdown>,
    },
    Post {
        frontend: usize,
        message: Box<dyn Any + Send>,
    },
    /// An I/O of another shard to execute, or the result of one that another shard executed.
    Forwarded(ForwardedIo),
    /// Make an I/O of the control plane on a disk that is a leaf at this stack level.
    Meta(usize, Box<MetaRequest>),
    Request(Box<DeviceRequest>),
    /// Begin and complete no request of a device until its next layout.
    Freeze {
        device: DeviceId,
        frozen: Arc<Countdown>,
    },
    /// The lease was renewed after replies had been held back.
    LeaseRenewed {
        device: DeviceId,
    },
    Part(Box<PartJob>),
    Call {
        device: DeviceId,
        call: RegionCall,
        done: ReplySender<()>,
    },
    Sleep {
        until_ns: u64,
        done: ReplySender<()>,
    },
    /// Send requests of a pool's volumes to this home from now on.
    KnowPool {
        key: PoolKey,
        home: ShardId,
        done: ReplySender<()>,
    },
    ServePool(Box<PoolToServe>),
    CallPool {
        key: PoolKey,
        call: PoolCall,
        done: ReplySender<bool>,
    },
    /// Stop serving a pool. `done` gets the pool at once; `ended` is for the time when none of its I/O is in flight.
    LeavePool {
        key: PoolKey,
        done: ReplySender<Option<Box<Pool>>>,
        ended: ReplySender<()>,
    },
    Counters {
        device: DeviceId,
        reply: ReplySender<DeviceCounters>,
    },
    Stop,
}

/// The side of a shard that other threads see.
pub(crate) struct Link {
    pub(crate) wake: Arc<Wake>,
    /// Whether the queue may have messages that the shard has not taken.
    pending: AtomicBool,
    /// `None` once the shard has ended and reads no more messages.
    queue: Mutex<Option<Vec<Control>>>,
    /// Turns of the shard's loop since start, and those of them in which it slept.
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

    /// Sends a message. Returns false if the shard has ended.
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

    /// Takes the messages in exchange for an empty vector.
    pub(crate) fn take_mail(&self, empty: &mut Vec<Control>) {
        debug_assert!(empty.is_empty());
        self.pending.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = queue.as_mut() {
            std::mem::swap(open, empty);
        }
    }

    /// Handles the end of the shard. The messages in the mailbox are dropped, which fails the calls that wait for them.
    /// A message to all shards counts as handled by this one.
    pub(crate) fn close(&self) {
        let rest = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        for control in rest.into_iter().flatten() {
            match control {
                Control::RemoveLeaf { gone: countdown, .. }
                | Control::ResizeLeaf { known: countdown, .. }
                | Control::Publish { drained: countdown, .. }
                | Control::Freeze { frozen: countdown, .. } => countdown.arrive(),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_the_mailbox_completes_its_countdowns() {
        let link = Link::new(Wake::new().expect("an eventfd"));
        let (sender, outcome) = std::sync::mpsc::channel();
        for device in 0..2 {
            let sender = sender.clone();
            let drained = Countdown::new(1, Box::new(move || sender.send(device).expect("the test waits")));
            assert_eq!(link.send(Control::Publish { device: DeviceId(device), layout: None, drained }), device == 0);
            link.close();
        }
        assert_eq!(outcome.try_recv(), Ok(0));
    }
}
