//! Stack levels: engines on top of each other.
//!
//! An array may have volumes as members. To the engine that serves the array, such a volume is a disk like any other:
//! its leaf I/O becomes a request to a device of the engine of the level below, on the same shard and with the same
//! memory. Each stack level has an engine with its own slots, range table, scratch memory and control plane I/Os. A
//! request that waits for the level below holds nothing that the lower level needs to make progress, so no cycle of
//! waits can form.
//!
//! The upper bits of a device's number are its stack level, and so are those of a pool's key. A level above 0 must be
//! created ([`crate::RingHandle::ensure_stack_level`]) before a device or pool of that level is used.

use braid_engine::{Cookie, DeviceId, PoolKey};

/// Maximum number of stack levels. They are numbered from 0, the lowest.
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

/// Returns the bits that the port adds to a cookie of an engine of this stack level.
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
