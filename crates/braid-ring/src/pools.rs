//! Pools, from the control plane: served by a shard, asked and changed by calls.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::pool::Pool;
use braid_engine::{PoolCall, PoolKey, PoolMembers, PoolNext, Shard, ShardId};

use crate::link::Control;
use crate::pending::{Pending, Promise, pending};
use crate::port::Port;
use crate::ring::RingHandle;

/// Why a call to a pool has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolCallError {
    /// The pool is not served, or the shards have stopped.
    NotServed,
    /// A member of the pool has failed, or there is no space below it, so that the change could not be made durable. Whether it was made is
    /// seen when the pool is opened again, or when there is space.
    NotCommitted,
}

impl fmt::Display for PoolCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolCallError::NotServed => "the pool is not served",
            PoolCallError::NotCommitted => {
                "a member of the pool has failed or has no space, and nothing can be made durable"
            }
        })
    }
}

impl std::error::Error for PoolCallError {}

/// A pool that a shard is to be the home of.
pub(crate) struct Served {
    pub(crate) key: PoolKey,
    pub(crate) pool: Box<Pool>,
    pub(crate) members: Arc<PoolMembers>,
    pub(crate) done: Promise<()>,
}

/// Calls that are under way on one shard.
#[derive(Default)]
pub(crate) struct PoolCalls {
    calls: VecDeque<(u64, Promise<bool>)>,
    next: u64,
    /// Pools that have left, of which something is out.
    leaving: Vec<(PoolKey, Promise<()>)>,
}

impl PoolCalls {
    pub(crate) fn call(
        &mut self,
        (engine, port): (&mut Shard, &mut Port),
        key: PoolKey,
        call: PoolCall,
        done: Promise<bool>,
    ) {
        self.next += 1;
        self.calls.push_back((self.next, done));
        engine.pool_call(self.next, key, call, port);
    }

    pub(crate) fn leaves(&mut self, key: PoolKey, ended: Promise<()>) {
        self.leaving.push((key, ended));
    }

    /// Tells of those that have ended. Called once a turn.
    pub(crate) fn end(&mut self, engine: &mut Shard) {
        while let Some((id, good)) = engine.pop_pool_call() {
            if let Some(at) = self.calls.iter().position(|call| call.0 == id)
                && let Some((_, done)) = self.calls.remove(at)
            {
                done.keep(good);
            }
        }
        while let Some(key) = engine.pop_pool_ended() {
            if let Some(at) = self.leaving.iter().position(|(of, _)| *of == key) {
                self.leaving.swap_remove(at).1.keep(());
            }
        }
    }
}

impl RingHandle {
    /// Makes a shard the home of a pool that was opened, and tells the others. Returns when all know it: its volumes may be published then.
    ///
    /// # Panics
    /// When there is no such shard.
    pub async fn serve_pool(&self, key: PoolKey, home: ShardId, pool: Box<Pool>, members: Arc<PoolMembers>) {
        let mut known = Vec::new();
        for link in &self.inner.links {
            let (done, answer) = pending();
            link.send(Control::KnowPool { key, home, done });
            known.push(answer);
        }
        for answer in known {
            let _ = answer.await;
        }
        let (done, answer) = pending();
        self.inner.links[usize::from(home.0)].send(Control::ServePool(Box::new(Served { key, pool, members, done })));
        let _ = answer.await;
    }

    /// Calls a pool at its home. What the call returns beside the answer says what the answer waits for; with [`PoolNext::Again`] it is made once
    /// more when something was committed.
    ///
    /// # Errors
    /// See [`PoolCallError`].
    pub async fn pool_call<R: Send + 'static>(
        &self,
        key: PoolKey,
        home: ShardId,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> Result<R, PoolCallError> {
        let answer = Arc::new(Mutex::new(None));
        let into = Arc::clone(&answer);
        let call: PoolCall = Box::new(move |pool| {
            let (next, value) = call(pool);
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            next
        });
        let (done, ended) = pending();
        let link = self.inner.links.get(usize::from(home.0)).ok_or(PoolCallError::NotServed)?;
        link.send(Control::CallPool { key, call, done });
        let good = ended.await.map_err(|_| PoolCallError::NotServed)?;
        let value = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (value, good) {
            (None, _) => Err(PoolCallError::NotServed),
            (Some(_), false) => Err(PoolCallError::NotCommitted),
            (Some(value), true) => Ok(value),
        }
    }

    /// Takes a pool away from its home. Its volumes are published no more. The second ends when nothing of it is out on any shard: while a disk
    /// hangs that takes as long as that. Until then nothing may be served under its key, and what it has begun to write is written.
    pub async fn leave_pool(&self, key: PoolKey, home: ShardId) -> Option<(Box<Pool>, Pending<()>)> {
        let (done, answer) = pending();
        let (ended, end) = pending();
        self.inner.links.get(usize::from(home.0))?.send(Control::LeavePool { key, done, ended });
        Some((answer.await.ok().flatten()?, end))
    }
}
