//! Withdraws a pool from the shards: its home stops serving it at once; its key is free when none of its I/O is in
//! flight any more.
//!
//! A disk that hangs may keep requests and the pool's own I/Os for any time. When they return, only the pool's key
//! identifies their pool. If another pool were served under the same key, it would take them for its own: its barriers
//! would wait for requests that it never had, and its I/Os would end before they have completed. Messages between two
//! shards are delivered in order: when the last message of each has arrived, so have all earlier ones.

use crate::io::{ErrorKind, LeafSink, ShardId};
use crate::pool::Pool;
use crate::shard::pool_state::{PoolReply, PoolRequest};
use crate::shard::{Shard, ShardMessage};
use crate::volume::PoolKey;

impl Shard {
    /// Withdraws a pool from its home. No layout of its volumes may be published any more. Requests that wait for it
    /// are refused; a copy that has only been read so far is not written. [`Shard::pop_pool_drained`] returns the key
    /// when none of the pool's I/O is in flight on any shard: until then no other pool may be served under it.
    pub fn withdraw_pool(&mut self, key: PoolKey, sink: &mut impl LeafSink) -> Option<Box<Pool>> {
        let home = self.pools.sides[key.index()].home.take()?;
        for called in home.calls {
            self.pools.calls_done.push_back((called.id, false));
        }
        let requesters = home
            .waiting
            .iter()
            .filter(|(_, ask)| !matches!(ask, PoolRequest::Release(_)))
            .map(|(requester, _)| *requester);
        for requester in requesters.chain(home.commits.iter().map(|(_, requester)| *requester)) {
            self.reply_pool(requester, PoolReply::Failed(ErrorKind::NoDevice));
        }
        self.pools.period_starts.retain(|(of, _)| *of != key);
        self.pools.sides[key.index()].shards_in_use += u32::from(self.shared.shards);
        for shard in (0..self.shared.shards).map(ShardId) {
            self.notify_retry(key, shard);
            if shard != self.id {
                self.outbox.push_back((shard, ShardMessage::PoolWithdrawn { key, home: self.id }));
            }
        }
        self.pool_withdrawn(key, self.id);
        self.process_woken(sink);
        Some(home.pool)
    }

    /// Returns the key of a withdrawn pool of which no I/O is in flight on any shard: the key is free. Called at the
    /// pool's home.
    pub fn pop_pool_drained(&mut self) -> Option<PoolKey> {
        self.pools.ended.pop_front()
    }

    /// Processes the home's last message about a pool.
    pub(in super::super) fn pool_withdrawn(&mut self, key: PoolKey, home: ShardId) {
        let side = &mut self.pools.sides[key.index()];
        side.report_end_to = Some(home);
        self.may_have_ended(key);
    }

    /// Reports to the home that none of a withdrawn pool's I/O is in flight here, if that is so.
    pub(super) fn may_have_ended(&mut self, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        let Some(home) = side.report_end_to else { return };
        if side.users != [0; 3] || side.ios > 0 {
            return;
        }
        (side.report_end_to, side.draining) = (None, None);
        if home == self.id {
            self.pool_ended(key);
        } else {
            self.outbox.push_back((home, ShardMessage::PoolDrained { key }));
        }
    }

    /// Processes a shard's report that none of a pool's I/O is in flight there any more.
    pub(in super::super) fn pool_ended(&mut self, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        side.shards_in_use -= 1;
        if side.shards_in_use == 0 {
            self.pools.ended.push_back(key);
        }
    }
}
