//! Tiers: engines that stand on each other.
//!
//! An array may have volumes as members. To the engine that serves it such a volume is a disk like any other; what it is asked is a
//! request to a device of the engine below, on the same shard and with the same memory. Each tier is an engine of its own, with its own
//! slots, range table, scratch memory and places for the control plane's I/O: whoever waits for the tier below holds nothing that
//! this tier needs to go on, so that nobody waits for himself.
//!
//! A device's number says which tier it belongs to, and so does a pool's. Nothing of a tier above the first is there before its first
//! device is.

use std::sync::Arc;

use braid_engine::{Cookie, DeviceId, ErrorKind, IoError, Limits, PoolKey, Request, Shard, ShardId, Shared};

use crate::error::RingError;
use crate::jobs::Jobs;
use crate::metas::Metas;
use crate::pools::PoolCalls;
use crate::port::TierMemory;
use crate::requests::Requests;
use crate::shard::Core;

/// Tiers, at most.
pub const TIERS_MAX: usize = 4;

/// Marks the cookies of the control plane's leaf I/Os.
pub(crate) const META_COOKIE: u64 = 1 << 56;
/// Above this a cookie has its tier.
const COOKIE_SHIFT: u32 = 57;

/// The tier that a device belongs to.
pub fn tier_of(device: DeviceId) -> usize {
    (device.0 >> DeviceId::INDEX_BITS) as usize
}

/// A device of a tier.
pub fn device_of_tier(tier: usize, index: u32) -> DeviceId {
    DeviceId((tier as u32) << DeviceId::INDEX_BITS | index)
}

/// The tier that a pool belongs to.
pub fn tier_of_pool(key: PoolKey) -> usize {
    usize::from(key.0 >> PoolKey::INDEX_BITS)
}

/// A pool of a tier.
pub fn pool_of_tier(tier: usize, index: u16) -> PoolKey {
    PoolKey((tier as u16) << PoolKey::INDEX_BITS | index)
}

/// What a cookie of this tier has beside what its engine gave it.
pub(crate) fn mark_of(tier: usize) -> u64 {
    (tier as u64) << COOKIE_SHIFT
}

/// The tier of a cookie.
pub(crate) fn tier_of_cookie(cookie: Cookie) -> usize {
    (cookie.0 >> COOKIE_SHIFT) as usize
}

/// A cookie as its engine gave it.
pub(crate) fn bare(cookie: Cookie) -> Cookie {
    Cookie(cookie.0 & (META_COOKIE - 1))
}

/// What a shard does for the control plane in one tier.
pub(crate) struct Duties {
    pub(crate) jobs: Jobs,
    pub(crate) requests: Requests,
    pub(crate) pool_calls: PoolCalls,
    pub(crate) metas: Metas,
}

impl Duties {
    pub(crate) fn new(tier: usize) -> Duties {
        Duties {
            jobs: Jobs::new(),
            requests: Requests::default(),
            pool_calls: PoolCalls::default(),
            metas: Metas::new(META_COOKIE | mark_of(tier)),
        }
    }
}

/// All that a shard needs for one more tier. Made outside of it, as taking memory may fail.
pub(crate) struct Raise {
    pub(crate) tier: usize,
    shared: Arc<Shared>,
    memory: TierMemory,
    limits: Limits,
}

impl Raise {
    pub(crate) fn new(tier: usize, shared: Arc<Shared>, limits: Limits) -> Result<Raise, RingError> {
        let memory = TierMemory::new().map_err(|e| RingError::os(e, format!("taking memory for tier {tier}")))?;
        Ok(Raise { tier, shared, memory, limits })
    }
}

impl Core {
    /// Adds a tier.
    pub(crate) fn raise(&mut self, raise: Raise) {
        debug_assert_eq!(raise.tier, self.upper.len() + 1, "tiers come one after the other");
        self.port.add_tier(raise.memory, raise.limits.slots as usize);
        self.upper.push(Shard::new(ShardId(self.id.0), &raise.limits, raise.shared));
    }

    /// The engine of a tier, and the port, which is that tier's until `work` has ended. None where there is no such tier.
    pub(crate) fn on<R>(
        &mut self,
        tier: usize,
        work: impl FnOnce(&mut Shard, &mut crate::port::Port) -> R,
    ) -> Option<R> {
        if tier == 0 {
            return Some(work(&mut self.engine, &mut self.port));
        }
        let engine = self.upper.get_mut(tier - 1)?;
        self.port.set_tier(tier);
        let result = work(engine, &mut self.port);
        self.port.set_tier(0);
        Some(result)
    }

    /// The engine of a tier, to look at.
    pub(crate) fn engine_of(&self, tier: usize) -> Option<&Shard> {
        if tier == 0 { Some(&self.engine) } else { self.upper.get(tier - 1) }
    }

    /// Submits a request to a device above the first tier.
    #[cold]
    pub(crate) fn submit_above(&mut self, request: &Request) -> Result<(), IoError> {
        let submitted = self.on(tier_of(request.device), |engine, port| engine.submit(request, port));
        submitted.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }
}
