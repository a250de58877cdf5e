//! The control plane's work on the pools of a shard: pools that the shard is to serve, and calls in progress.

use std::collections::VecDeque;
use std::sync::Arc;

use braid_engine::pool::Pool;
use braid_engine::{PoolCall, PoolKey, PoolMembers, Shard};

use crate::pending::ReplySender;
use crate::port::Port;

/// A pool to be served by a shard as its home.
pub(crate) struct PoolToServe {
    pub(crate) key: PoolKey,
    pub(crate) pool: Box<Pool>,
    pub(crate) members: Arc<PoolMembers>,
    pub(crate) done: ReplySender<()>,
}

/// Calls in progress on one shard.
#[derive(Default)]
pub(crate) struct PoolCalls {
    /// By number: calls that have not ended. The reply says whether the call's changes were committed.
    calls: VecDeque<(u64, ReplySender<bool>)>,
    next: u64,
    /// Pools that this shard no longer serves, and whose I/O is in flight on some shard.
    leaving: Vec<(PoolKey, ReplySender<()>)>,
}

impl PoolCalls {
    pub(crate) fn call(
        &mut self,
        (engine, port): (&mut Shard, &mut Port),
        key: PoolKey,
        call: PoolCall,
        done: ReplySender<bool>,
    ) {
        self.next += 1;
        self.calls.push_back((self.next, done));
        engine.pool_call(self.next, key, call, port);
    }

    pub(crate) fn add_leaving(&mut self, key: PoolKey, ended: ReplySender<()>) {
        self.leaving.push((key, ended));
    }

    /// Replies to calls that have ended, and for pools whose last I/O has ended. Called once per turn.
    pub(crate) fn end(&mut self, engine: &mut Shard) {
        while let Some((id, committed)) = engine.pop_pool_call() {
            if let Some(at) = self.calls.iter().position(|call| call.0 == id)
                && let Some((_, done)) = self.calls.remove(at)
            {
                done.send(committed);
            }
        }
        while let Some(key) = engine.pop_pool_drained() {
            if let Some(at) = self.leaving.iter().position(|(of, _)| *of == key) {
                self.leaving.swap_remove(at).1.send(());
            }
        }
    }
}
