//! Memory for the parts of jobs, and the requests that carry parts to a shard.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::{Buf, Compared, ErrorKind, IoError, LEAF_BYTES_MAX, SyncPart, SyncRequest};

use crate::map::Map;
use crate::pending::{ReplySender, pending};

/// Maximum number of parts of jobs (resync, rebuild, scrub) that hold memory at a time, counted over all arrays of one
/// stack level. Further parts wait. Each part has a buffer of [`LEAF_BYTES_MAX`] bytes.
pub const PARTS_MAX: usize = 16;

struct State {
    /// Buffers that are free.
    free: Vec<Map>,
    /// Number of buffers in use.
    lent: usize,
    waiting: VecDeque<ReplySender<PartBuffer>>,
}

/// The buffers for parts of jobs of one stack level: at most [`PARTS_MAX`], mapped on first use and then reused.
pub(crate) struct BufferPool(Mutex<State>);

impl BufferPool {
    pub(crate) fn new() -> Arc<BufferPool> {
        Arc::new(BufferPool(Mutex::new(State { free: Vec::new(), lent: 0, waiting: VecDeque::new() })))
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a buffer for one part as soon as one is free; first come, first served.
    ///
    /// # Errors
    /// `Busy` when the operating system has no memory.
    pub(crate) async fn take(self: &Arc<BufferPool>) -> Result<PartBuffer, IoError> {
        let (sender, buffer) = pending();
        self.with(|state| state.waiting.push_back(sender));
        self.hand_out();
        buffer.await.map_err(|_| IoError { errno: libc::ENOMEM, ..IoError::of(ErrorKind::Busy) })
    }

    /// Hands free buffers to the waiting callers.
    fn hand_out(self: &Arc<BufferPool>) {
        loop {
            let next = self.with(|state| {
                if state.lent >= PARTS_MAX {
                    return None;
                }
                let sender = state.waiting.pop_front()?;
                let map = state.free.pop().or_else(|| Map::new(LEAF_BYTES_MAX as usize).ok());
                state.lent += usize::from(map.is_some());
                Some((sender, map))
            });
            // Outside the lock: if the receiver no longer waits, the buffer is dropped and returns to the pool inside
            // this call.
            match next {
                None => return,
                Some((sender, Some(map))) => sender.send(PartBuffer { map: Some(map), pool: Arc::clone(self) }),
                Some((sender, None)) => drop(sender),
            }
        }
    }

    #[cfg(test)]
    fn counts(&self) -> (usize, usize, usize) {
        self.with(|state| (state.free.len(), state.lent, state.waiting.len()))
    }
}

/// Memory for one part. Returns to the pool when it is dropped.
pub(crate) struct PartBuffer {
    map: Option<Map>,
    pool: Arc<BufferPool>,
}

impl PartBuffer {
    /// Returns the address.
    fn buf(&self) -> Buf {
        Buf { addr: self.map.as_ref().map_or(0, Map::addr), region: Buf::UNREGISTERED }
    }

    /// Leaks the memory instead of returning it to the pool, because the kernel may still access it. The pool may map
    /// another buffer in its place.
    pub(crate) fn leak(mut self) {
        std::mem::forget(self.map.take());
    }
}

impl Drop for PartBuffer {
    fn drop(&mut self) {
        let map = self.map.take();
        self.pool.with(|state| {
            state.lent -= 1;
            state.free.extend(map);
        });
        self.pool.hand_out();
    }
}

/// A part of a job, its memory, and where its result goes.
pub(crate) struct PartJob {
    pub(crate) part: SyncPart,
    pub(crate) buffer: PartBuffer,
    pub(crate) reply: ReplySender<Result<Compared, IoError>>,
}

impl PartJob {
    /// Returns the request to the engine.
    pub(crate) fn request(&self, tag: u64) -> SyncRequest {
        let SyncPart { device, offset, len, kind } = self.part;
        SyncRequest { device, offset, len, kind, buf: self.buffer.buf(), tag }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn buffers_are_reused_and_their_number_is_bounded() {
        let pool = BufferPool::new();
        let mut held: Vec<PartBuffer> = (0..PARTS_MAX).map(|_| poll(pin!(pool.take())).unwrap().unwrap()).collect();
        let addresses: std::collections::BTreeSet<u64> = held.iter().map(|buffer| buffer.buf().addr).collect();
        assert_eq!(addresses.len(), PARTS_MAX);
        assert!(addresses.iter().all(|addr| addr % 4096 == 0));
        {
            let (mut first, mut given_up) = (pin!(pool.take()), Box::pin(pool.take()));
            let mut last = pin!(pool.take());
            assert!(
                poll(first.as_mut()).is_none() && poll(given_up.as_mut()).is_none() && poll(last.as_mut()).is_none()
            );
            drop(given_up);
            held.truncate(PARTS_MAX - 2);
            let first = poll(first).expect("a returned buffer goes to the longest waiting caller").unwrap();
            assert!(addresses.contains(&first.buf().addr));
            // The abandoned request did not keep the next one waiting.
            assert!(poll(last).is_some());
        }
        assert_eq!(pool.counts(), (2, PARTS_MAX - 2, 0));
        let leaked = held.pop().unwrap();
        let addr = leaked.buf().addr;
        leaked.leak();
        let again: Vec<PartBuffer> = (0..3).map(|_| poll(pin!(pool.take())).unwrap().unwrap()).collect();
        assert!(again.iter().all(|buffer| buffer.buf().addr != addr), "leaked memory is not used again");
        drop((again, held));
        assert_eq!(pool.counts(), (PARTS_MAX, 0, 0));
    }
}
