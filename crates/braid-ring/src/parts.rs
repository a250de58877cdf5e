//! Memory for the parts of jobs, and the parts on their way to a shard and back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::keeper::SyncPart;
use braid_engine::{Buf, Compared, ErrorKind, IoError, LEAF_BYTES_MAX, SyncRequest};

use crate::map::Map;
use crate::pending::{Promise, pending};

/// Parts of jobs that have memory at a time, of all arrays of a tier together; more wait for it. Each has [`LEAF_BYTES_MAX`] bytes.
pub const PARTS_MAX: usize = 16;

struct State {
    /// Nobody uses these.
    free: Vec<Map>,
    /// So many are lent.
    lent: usize,
    waiting: VecDeque<Promise<Loan>>,
}

/// Memory that is used again and again.
pub(crate) struct Pool(Mutex<State>);

impl Pool {
    pub(crate) fn new() -> Arc<Pool> {
        Arc::new(Pool(Mutex::new(State { free: Vec::new(), lent: 0, waiting: VecDeque::new() })))
    }

    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Memory for one part, as soon as some is free; first come, first served.
    ///
    /// # Errors
    /// `Busy` when the operating system has none.
    pub(crate) async fn take(self: &Arc<Pool>) -> Result<Loan, IoError> {
        let (promise, loan) = pending();
        self.with(|state| state.waiting.push_back(promise));
        self.serve();
        loan.await.map_err(|_| IoError { errno: libc::ENOMEM, ..IoError::of(ErrorKind::Busy) })
    }

    /// Gives those who wait what there is.
    fn serve(self: &Arc<Pool>) {
        loop {
            let next = self.with(|state| {
                if state.lent >= PARTS_MAX {
                    return None;
                }
                let promise = state.waiting.pop_front()?;
                let map = state.free.pop().or_else(|| Map::new(LEAF_BYTES_MAX as usize).ok());
                state.lent += usize::from(map.is_some());
                Some((promise, map))
            });
            // Outside the lock: a loan that nobody waits for any more comes back within the call.
            match next {
                None => return,
                Some((promise, Some(map))) => promise.keep(Loan { map: Some(map), pool: Arc::clone(self) }),
                Some((broken, None)) => drop(broken),
            }
        }
    }

    #[cfg(test)]
    fn counts(&self) -> (usize, usize, usize) {
        self.with(|state| (state.free.len(), state.lent, state.waiting.len()))
    }
}

/// Memory for one part. Goes back when it is dropped.
pub(crate) struct Loan {
    map: Option<Map>,
    pool: Arc<Pool>,
}

impl Loan {
    /// Where it is.
    fn buf(&self) -> Buf {
        Buf { addr: self.map.as_ref().map_or(0, Map::addr), region: Buf::UNREGISTERED }
    }

    /// The kernel may use it for ever: nobody else will.
    pub(crate) fn lose(mut self) {
        std::mem::forget(self.map.take());
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let map = self.map.take();
        self.pool.with(|state| {
            state.lent -= 1;
            state.free.extend(map);
        });
        self.pool.serve();
    }
}

/// A part of a job with its memory, and whom to tell of its end.
pub(crate) struct PartJob {
    pub(crate) part: SyncPart,
    pub(crate) loan: Loan,
    pub(crate) answer: Promise<Result<Compared, IoError>>,
}

impl PartJob {
    /// What the engine is asked.
    pub(crate) fn request(&self, tag: u64) -> SyncRequest {
        let SyncPart { device, offset, len, kind } = self.part;
        SyncRequest { device, offset, len, kind, buf: self.loan.buf(), tag }
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
    fn memory_is_used_again_and_its_amount_is_bounded() {
        let pool = Pool::new();
        let mut held: Vec<Loan> = (0..PARTS_MAX).map(|_| poll(pin!(pool.take())).unwrap().unwrap()).collect();
        let places: std::collections::BTreeSet<u64> = held.iter().map(|loan| loan.buf().addr).collect();
        assert_eq!(places.len(), PARTS_MAX);
        assert!(places.iter().all(|addr| addr % 4096 == 0));
        {
            let (mut first, mut given_up) = (pin!(pool.take()), Box::pin(pool.take()));
            let mut last = pin!(pool.take());
            assert!(
                poll(first.as_mut()).is_none() && poll(given_up.as_mut()).is_none() && poll(last.as_mut()).is_none()
            );
            drop(given_up);
            held.truncate(PARTS_MAX - 2);
            let first = poll(first).expect("what came back is given to who waited longest").unwrap();
            assert!(places.contains(&first.buf().addr));
            // The one who no longer waits did not keep the other.
            assert!(poll(last).is_some());
        }
        assert_eq!(pool.counts(), (2, PARTS_MAX - 2, 0));
        let lost = held.pop().unwrap();
        let addr = lost.buf().addr;
        lost.lose();
        let again: Vec<Loan> = (0..3).map(|_| poll(pin!(pool.take())).unwrap().unwrap()).collect();
        assert!(again.iter().all(|loan| loan.buf().addr != addr), "lost memory is not used again");
        drop((again, held));
        assert_eq!(pool.counts(), (PARTS_MAX, 0, 0));
    }
}
