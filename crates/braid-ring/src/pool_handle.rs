//! The control plane's interface to pools. One shard, the pool's home, serves the pool; the control plane reads and
//! changes the pool by functions that run on that shard.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::pool::Pool;
use braid_engine::{PoolCall, PoolKey, PoolMembers, PoolNext, ShardId};

use crate::link::Control;
use crate::pending::{Pending, pending};
use crate::pools::PoolToServe;
use crate::ring::RingHandle;

/// Why a call to a pool failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolCallError {
    /// The pool is not served, or the shards have stopped.
    NotServed,
    /// The change could not be made durable, because a member of the pool has failed, or the storage below a member has
    /// no space. The change may or may not survive: that is decided when the pool is opened again, or when a commit
    /// succeeds after space was added.
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

impl RingHandle {
    /// Makes a shard the home of an open pool, and announces that to the other shards. Returns when every shard knows
    /// the home and the home serves the pool; the pool's volumes may be published from then on.
    ///
    /// # Panics
    /// When the shard does not exist.
    pub async fn serve_pool(&self, key: PoolKey, home: ShardId, pool: Box<Pool>, members: Arc<PoolMembers>) {
        let mut known = Vec::new();
        for link in &self.inner.links {
            let (done, reply) = pending();
            link.send(Control::KnowPool { key, home, done });
            known.push(reply);
        }
        for reply in known {
            let _ = reply.await;
        }
        let (done, reply) = pending();
        self.inner.links[usize::from(home.0)].send(Control::ServePool(Box::new(PoolToServe {
            key,
            pool,
            members,
            done,
        })));
        let _ = reply.await;
    }

    /// Calls a function with the pool on its home shard, and returns its value. The [`PoolNext`] that the function
    /// returns says what the reply waits for. After [`PoolNext::AfterCommit`] the function is called again after the
    /// next commit, and after [`PoolNext::NextTurn`] after other requests had their turn; the value of the last call
    /// counts. The function runs on the shard's thread and must not block.
    ///
    /// # Errors
    /// See [`PoolCallError`].
    pub async fn pool_call<R: Send + 'static>(
        &self,
        key: PoolKey,
        home: ShardId,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> Result<R, PoolCallError> {
        let reply = Arc::new(Mutex::new(None));
        let into = Arc::clone(&reply);
        let call: PoolCall = Box::new(move |pool| {
            let (next, value) = call(pool);
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            next
        });
        let (done, ended) = pending();
        let link = self.inner.links.get(usize::from(home.0)).ok_or(PoolCallError::NotServed)?;
        link.send(Control::CallPool { key, call, done });
        let committed = ended.await.map_err(|_| PoolCallError::NotServed)?;
        let value = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (value, committed) {
            (None, _) => Err(PoolCallError::NotServed),
            (Some(_), false) => Err(PoolCallError::NotCommitted),
            (Some(value), true) => Ok(value),
        }
    }

    /// Stops serving a pool, and returns it; `None` if the shard does not serve it, or has stopped. None of its volumes
    /// may be published. The second value resolves when no I/O of the pool is in flight on any shard, which a hanging
    /// disk delays without limit. Until then no pool may be served under this key, and writes that the pool has started
    /// may still reach the disks.
    pub async fn stop_pool(&self, key: PoolKey, home: ShardId) -> Option<(Box<Pool>, Pending<()>)> {
        let (done, reply) = pending();
        let (ended, end) = pending();
        self.inner.links.get(usize::from(home.0))?.send(Control::LeavePool { key, done, ended });
        Some((reply.await.ok().flatten()?, end))
    }
}
