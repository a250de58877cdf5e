//! Volumes of pools, on a shard: requests are carried out on the pool's members, and, on the pool's home shard, so is
//! the pool's own work.
//!
//! A request to a volume finds its blocks by the volume's map. A range at one location of a member without redundancy
//! is submitted directly; everything else becomes *parts*: slots of their own on the members, which are devices like
//! any other. For blocks that the volume's owner has no mapping of yet, the request asks the home for an allocation,
//! and tells it when the data has been written. Only then the request continues.
//!
//! To reuse an extent, the home must know that no request uses it any more. Each shard counts requests to a pool's
//! volumes by the *period* in which they began. For a *barrier* the home starts another period on all shards, and each
//! shard reports when all requests of the previous one have ended. A request that waits for the end of a barrier must
//! not be counted, or the barrier would wait for the request: the request releases what it holds, is not counted, and
//! starts again when the home says so.

mod fast_path;
mod home;
mod parts;
mod prefetch;
mod volume;
mod withdraw;

use std::sync::Arc;

use super::pool_state::{PoolHome, PoolReply};
use super::slots::{NO_POOL, UNCOUNTED};
use super::{Shard, ShardMessage};
use crate::io::{LeafSink, ShardId};
use crate::pool::Pool;
use crate::volume::{PoolKey, PoolMembers};

pub use prefetch::UpcomingRequest;

/// Returns the wait key of requests that wait until the home of a pool lets them retry.
fn again_key(key: PoolKey) -> u64 {
    3 << 62 | 1 << 45 | u64::from(key.0)
}

impl Shard {
    /// Makes this shard the home of an opened pool. On the other shards, [`Shard::set_pool_home`] must be called before
    /// any of its volumes is published.
    pub fn serve_pool(&mut self, key: PoolKey, pool: Box<Pool>, members: Arc<PoolMembers>, sink: &mut impl LeafSink) {
        self.prepare_scratch(sink);
        if self.pools.staging.is_empty() {
            self.pools.staging = vec![0; 64 << 10].into();
        }
        self.set_pool_home(key, self.id);
        self.pools.sides[key.index()].home = Some(Box::new(PoolHome::new(pool, members, self.shared.shards)));
        self.drive_pool(key, sink);
    }

    /// Sets the home shard of a pool.
    pub fn set_pool_home(&mut self, key: PoolKey, home: ShardId) {
        self.pools.sides[key.index()].home_shard = home;
    }

    /// Returns the next call of [`Shard::pool_call`] that has ended, and whether it succeeded, including its commit if
    /// it requested one. False also if there is no such pool.
    pub fn pop_pool_call(&mut self) -> Option<(u64, bool)> {
        self.pools.calls_done.pop_front()
    }

    /// Counts a request to a volume.
    #[inline]
    pub(super) fn enter_volume(&mut self, index: u32, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        side.users[usize::from(side.period)] += 1;
        let slot = &mut self.slots[index];
        (slot.pool, slot.period) = (key.0, side.period);
    }

    /// Stops counting a request that has ended and of which the kernel has no I/O.
    #[inline]
    pub(super) fn exit_volume(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let key = PoolKey(std::mem::replace(&mut slot.pool, NO_POOL));
        let period = std::mem::replace(&mut slot.period, UNCOUNTED);
        self.leave_period(key, period);
    }

    /// Stops counting a request that uses no extent.
    #[inline]
    fn stop_counting_now(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let period = std::mem::replace(&mut slot.period, UNCOUNTED);
        let key = PoolKey(slot.pool);
        self.pools.sides[key.index()].users[usize::from(UNCOUNTED)] += 1;
        self.leave_period(key, period);
    }

    /// Stops counting a request that has begun nothing: it waits for a request that may wait for the end of all counted
    /// ones.
    #[cold]
    pub(super) fn stop_counting(&mut self, index: u32) {
        if self.slots[index].period != UNCOUNTED {
            self.stop_counting_now(index);
        }
    }

    /// Counts a request again that was not counted.
    fn count_again(&mut self, index: u32) {
        let key = PoolKey(self.slots[index].pool);
        self.pools.sides[key.index()].users[usize::from(UNCOUNTED)] -= 1;
        self.enter_volume(index, key);
    }

    #[inline]
    fn leave_period(&mut self, key: PoolKey, period: u8) {
        let side = &mut self.pools.sides[key.index()];
        let users = &mut side.users[usize::from(period)];
        *users -= 1;
        if *users == 0 && (side.draining.is_some() || side.report_end_to.is_some()) {
            self.period_is_empty(key, period);
        }
    }

    #[cold]
    fn period_is_empty(&mut self, key: PoolKey, period: u8) {
        if period != UNCOUNTED && period != self.pools.sides[key.index()].period {
            self.period_has_ended(key);
        }
        self.may_have_ended(key);
    }

    /// Lets a request wait until the home lets it retry. It is not counted and holds no range: no request waits for it,
    /// not even those that it waits for.
    #[cold]
    fn wait_for_retry(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        debug_assert!(slot.out == 0 && slot.pool != NO_POOL);
        if slot.held.0 < slot.held.1 {
            super::ranges::release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        let key = again_key(PoolKey(slot.pool));
        self.waiting.park(&mut self.slots, index, key);
        self.stop_counting_now(index);
    }

    /// Wakes the requests that wait to retry.
    pub(super) fn pool_retry(&mut self, key: PoolKey) {
        self.woken.push_back((again_key(key), None));
    }

    fn notify_retry(&mut self, key: PoolKey, shard: ShardId) {
        if shard == self.id {
            self.pool_retry(key);
        } else {
            self.outbox.push_back((shard, ShardMessage::PoolRetry { key }));
        }
    }

    /// Reports to the home whether the kernel still has I/O that may change the blocks of a request that has ended.
    #[cold]
    pub(super) fn report_pool_late(&mut self, index: u32, late: bool) {
        let key = PoolKey(self.slots[index].pool);
        let home = self.pools.sides[key.index()].home_shard;
        if home == self.id {
            self.pool_is_late(key, late);
        } else {
            self.outbox.push_back((home, ShardMessage::PoolLate { key, late }));
        }
    }

    /// Begins another period: the home waits until everything that has begun on this shard has ended.
    pub(super) fn pool_begin_period(&mut self, key: PoolKey, home: ShardId, number: u64) {
        let side = &mut self.pools.sides[key.index()];
        side.home_shard = home;
        let before = side.period;
        side.period ^= 1;
        side.draining = Some(number);
        if side.users[usize::from(before)] == 0 {
            self.period_has_ended(key);
        }
    }

    #[cold]
    fn period_has_ended(&mut self, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        let Some(number) = side.draining.take() else { return };
        let home = side.home_shard;
        if home == self.id {
            self.pool_period_ended(key, number);
        } else {
            self.outbox.push_back((home, ShardMessage::PoolPeriodEnded { key, number }));
        }
    }

    /// Advances a slot with no I/O in flight at the end of the call: for callers that have no sink, or would recurse
    /// without bound.
    pub(super) fn resume(&mut self, index: u32) {
        self.pools.resumed.push_back(index);
    }

    /// Advances all slots and pools that may continue. Every earlier reply has been processed when a request is woken
    /// to retry.
    #[cold]
    pub(super) fn process_pools(&mut self, sink: &mut impl LeafSink) {
        loop {
            while let Some((index, generation, reply)) = self.pools.replies.pop_front() {
                let slot = &mut self.slots[index];
                if slot.generation != generation {
                    continue;
                }
                slot.out -= 1;
                self.pools.works[index as usize].reply = Some(reply);
                self.advance(index, sink);
            }
            while let Some(index) = self.pools.resumed.pop_front() {
                self.advance(index, sink);
            }
            while let Some((key, number)) = self.pools.copies.pop_front() {
                self.write_copy(key, number, sink);
            }
            while let Some((key, number)) = self.pools.period_starts.pop_front() {
                self.pool_begin_period(key, self.id, number);
            }
            let Some(key) = self.pools.driven.pop_front() else { break };
            self.drive_pool(key, sink);
        }
    }

    /// Delivers a reply to the requesting slot.
    pub(super) fn reply_pool(&mut self, (from, slot, generation): (ShardId, u32, u32), reply: PoolReply) {
        if from == self.id {
            self.pools.replies.push_back((slot, generation, reply));
        } else {
            self.outbox.push_back((from, ShardMessage::PoolReply { slot, generation, told: reply }));
        }
    }

    /// Receives a reply from another shard.
    pub(super) fn pool_replied(&mut self, slot: u32, generation: u32, reply: PoolReply) {
        self.pools.replies.push_back((slot, generation, reply));
    }
}
