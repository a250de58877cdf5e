//! Stack levels: engines on top of each other.
//!
//! An array may have volumes as members. To the engine that serves the array, such a volume is a disk like any other:
//! its leaf I/O becomes a request to a device of the engine of the level below, on the same shard and with the same
//! memory. Each stack level has an engine with its own slots, range table, scratch memory and control plane I/Os. A
//! request that waits for the level below holds nothing that the lower level needs to make progress, so no cycle of
//! waits can form.
//!
//! The number of a device contains its stack level, and so does the key of a pool. A level above the first is created
//! before its first device.

use std::sync::Arc;

use braid_engine::{Cookie, DeviceId, ErrorKind, IoError, Limits, PoolKey, Request, Shard, ShardId, Shared};

use crate::error::RingError;
use crate::jobs::Jobs;
use crate::meta_requests::MetaRequests;
use crate::pools::PoolCalls;
use crate::port::LevelMemory;
use crate::requests::Requests;
use crate::shard::Core;

/// Maximum number of stack levels.
pub const STACK_LEVELS_MAX: usize = 4;

/// Marks the cookies of the control plane's leaf I/Os.
pub(crate) const META_COOKIE: u64 = 1 << 56;
/// The stack level in a cookie is above these bits.
const COOKIE_SHIFT: u32 = 57;

/// Returns the stack level of a device.
pub fn stack_level_of(device: DeviceId) -> usize {
    (device.0 >> DeviceId::INDEX_BITS) as usize
}

/// Returns the device with this index at a stack level.
pub fn device_at_level(level: usize, index: u32) -> DeviceId {
    DeviceId((level as u32) << DeviceId::INDEX_BITS | index)
}

/// Returns the stack level of a pool.
pub fn stack_level_of_pool(key: PoolKey) -> usize {
    usize::from(key.0 >> PoolKey::INDEX_BITS)
}

/// Returns the key of the pool with this index at a stack level.
pub fn pool_at_level(level: usize, index: u16) -> PoolKey {
    PoolKey((level as u16) << PoolKey::INDEX_BITS | index)
}

/// Returns the bits that mark cookies of a stack level.
pub(crate) fn mark_of(level: usize) -> u64 {
    (level as u64) << COOKIE_SHIFT
}

/// Returns the stack level of a cookie.
pub(crate) fn level_of_cookie(cookie: Cookie) -> usize {
    (cookie.0 >> COOKIE_SHIFT) as usize
}

/// Returns a cookie as its engine created it.
pub(crate) fn bare(cookie: Cookie) -> Cookie {
    Cookie(cookie.0 & (META_COOKIE - 1))
}

/// The control plane's work on a shard at one stack level.
pub(crate) struct ControlWork {
    pub(crate) jobs: Jobs,
    pub(crate) requests: Requests,
    pub(crate) pool_calls: PoolCalls,
    pub(crate) meta_requests: MetaRequests,
}

impl ControlWork {
    pub(crate) fn new(level: usize) -> ControlWork {
        ControlWork {
            jobs: Jobs::new(),
            requests: Requests::default(),
            pool_calls: PoolCalls::default(),
            meta_requests: MetaRequests::new(META_COOKIE | mark_of(level)),
        }
    }
}

/// Everything that a shard needs for one more stack level. Created outside the shard, because allocating memory may
/// fail.
pub(crate) struct AddLevel {
    pub(crate) level: usize,
    shared: Arc<Shared>,
    memory: LevelMemory,
    limits: Limits,
}

impl AddLevel {
    pub(crate) fn new(level: usize, shared: Arc<Shared>, limits: Limits) -> Result<AddLevel, RingError> {
        let memory = LevelMemory::new().map_err(|e| RingError::os(e, format!("taking memory for tier {level}")))?;
        Ok(AddLevel { level, shared, memory, limits })
    }
}

impl Core {
    /// Adds a stack level.
    pub(crate) fn add_level(&mut self, level: AddLevel) {
        debug_assert_eq!(level.level, self.upper.len() + 1, "levels are added in order");
        self.port.add_level(level.memory, level.limits.slots as usize);
        self.upper.push(Shard::new(ShardId(self.id.0), &level.limits, level.shared));
    }

    /// Calls `work` with the engine of a stack level and the port, which is set to that level meanwhile. `None` if the
    /// level does not exist.
    pub(crate) fn on<R>(
        &mut self,
        level: usize,
        work: impl FnOnce(&mut Shard, &mut crate::port::Port) -> R,
    ) -> Option<R> {
        if level == 0 {
            return Some(work(&mut self.engine, &mut self.port));
        }
        let engine = self.upper.get_mut(level - 1)?;
        self.port.set_level(level);
        let result = work(engine, &mut self.port);
        self.port.set_level(0);
        Some(result)
    }

    /// Returns the engine of a stack level for reading.
    pub(crate) fn engine_of(&self, level: usize) -> Option<&Shard> {
        if level == 0 { Some(&self.engine) } else { self.upper.get(level - 1) }
    }

    /// Submits a request to a device above the first stack level.
    #[cold]
    pub(crate) fn submit_above(&mut self, request: &Request) -> Result<(), IoError> {
        let submitted = self.on(stack_level_of(request.device), |engine, port| engine.submit(request, port));
        submitted.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }
}
