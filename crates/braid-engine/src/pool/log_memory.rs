//! The memory that holds a pool's in-memory log.

use std::sync::atomic::AtomicU64;

/// Memory that survives the death of the process that writes to it, but not a power failure. A pool's log is written
/// there without any I/O.
///
/// However the process ends, the next process that opens this memory sees its stores. If it sees a store with
/// [`std::sync::atomic::Ordering::Release`], it also sees all stores before that one. New memory is all zeros.
pub trait LogMemory: Send + Sync {
    /// Returns all of it, at the same address until it is dropped.
    fn words(&self) -> &[AtomicU64];
}
