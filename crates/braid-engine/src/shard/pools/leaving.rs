//! The end of a pool on the shards: its home gives it up at once, its key is free when nothing of it is out any more.
//!
//! A disk that hangs may keep requests and the pool's own I/Os for as long as it likes. What comes back of them says whose it is by the
//! pool's key alone, so that a pool that is served under the same key would take it for its own: its barriers would wait for requests that
//! it never had, and its I/Os end before they have. Messages between two shards keep their order, and so what was sent before the last one
//! of each has arrived when that does.

use super::{PoolAsk, PoolTold};
use crate::io::{ErrorKind, LeafSink, ShardId};
use crate::planted::{Planted, planted};
use crate::pool::Pool;
use crate::shard::{Shard, ShardMessage};
use crate::volume::PoolKey;

impl Shard {
    /// Takes a pool away from its home. Its volumes are published no more. Whoever waits for it is told that it is gone; what it copies and has
    /// only read so far is not written. [`Shard::pop_pool_ended`] gives the key when nothing of it is out on any shard: until then no other
    /// pool may be served under it.
    pub fn leave_pool(&mut self, key: PoolKey, sink: &mut impl LeafSink) -> Option<Box<Pool>> {
        let home = self.pools.sides[key.index()].home.take()?;
        for called in home.calls {
            self.pools.calls_done.push_back((called.id, false));
        }
        let asked = home.waiting.iter().filter(|(_, ask)| !matches!(ask, PoolAsk::Unplace(_))).map(|(who, _)| *who);
        for who in asked.chain(home.commits.iter().map(|(_, who)| *who)) {
            self.pool_tell(who, PoolTold::Failed(ErrorKind::NoDevice));
        }
        self.pools.turning.retain(|(of, _)| *of != key);
        self.pools.sides[key.index()].unended += u32::from(self.shared.shards);
        for shard in (0..self.shared.shards).map(ShardId) {
            self.tell_again(key, shard);
            if shard != self.id {
                self.outbox.push_back((shard, ShardMessage::PoolLeft { key, home: self.id }));
            }
        }
        self.pool_left(key, self.id);
        self.work_off(sink);
        Some(home.pool)
    }

    /// A pool that has left, and of which nothing is out any more on any shard: its key is free. Given at its home.
    pub fn pop_pool_ended(&mut self) -> Option<PoolKey> {
        self.pools.ended.pop_front()
    }

    /// The home has said its last of a pool.
    pub(in super::super) fn pool_left(&mut self, key: PoolKey, home: ShardId) {
        let side = &mut self.pools.sides[key.index()];
        side.told_of_end = Some(home);
        self.may_have_ended(key);
    }

    /// Tells the home if that waits for it.
    pub(super) fn may_have_ended(&mut self, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        let Some(home) = side.told_of_end else { return };
        let is_out = side.users != [0; 3] || side.ios > 0;
        if is_out && !planted(Planted::KeyFreeAtOnce) {
            return;
        }
        (side.told_of_end, side.draining) = (None, None);
        if home == self.id {
            self.pool_ended(key);
        } else {
            self.outbox.push_back((home, ShardMessage::PoolEnded { key }));
        }
    }

    /// Nothing of a pool is out any more on one of the shards.
    pub(in super::super) fn pool_ended(&mut self, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        side.unended -= 1;
        if side.unended == 0 {
            self.pools.ended.push_back(key);
        }
    }
}
