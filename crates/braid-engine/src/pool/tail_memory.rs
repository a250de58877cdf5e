//! Where the tail of a pool stands.

use std::sync::atomic::AtomicU64;

/// Memory that outlives the process that writes to it, but no power cut: the tail of a pool is written there, without any I/O.
///
/// A store is seen, however the process ends, by the next one that opens this memory; so are all stores before one with
/// [`std::sync::atomic::Ordering::Release`], once that one is seen. New memory is all zeros.
pub trait TailMemory: Send + Sync {
    /// All of it, at the same place until it is dropped.
    fn words(&self) -> &[AtomicU64];
}
