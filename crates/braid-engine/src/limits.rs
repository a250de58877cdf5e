//! Every bound of the engine, in one place.

use crate::io::META_BLOCKS;

/// The limits that a shard is built with. All memory is allocated at start from these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of requests in flight on one shard; at most [`SLOTS_MAX`]. Further ones are refused with `Busy`.
    pub slots: u32,
    /// Maximum number of devices: arrays, bare disks and volumes.
    pub devices: u32,
    /// Number of words of the range table, as a power of two: there are `2^range_table_bits`.
    pub range_table_bits: u32,
}

/// Maximum number of parts of jobs on one shard; further ones are refused with `Busy`.
pub const SYNCS_MAX: u32 = 64;

/// Maximum number of I/Os of journals on one shard: batches and flushes of all arrays with parity that it is the home
/// of.
pub const JOURNAL_IOS_MAX: u32 = 64;

/// Maximum number of steps of requests to arrays with parity on one shard; further ones wait.
pub const STRIPE_STEPS_MAX: u32 = 512;

/// Maximum number of gathers (coalesced writes to arrays with parity) on one shard; further writes are not coalesced.
pub const GATHERS_MAX: u32 = 64;

/// Maximum number of shared parts of requests to volumes on one shard. A part is a request to a member of a pool.
pub const SHARED_PARTS_MAX: u32 = 288;

/// A pool takes a further part while it holds fewer parts than this many times the number of free shared parts. A
/// single pool holds at most 257 parts, and leaves 32 shared ones.
pub const PARTS_PER_FREE: u32 = 8;

/// Maximum number of parts on one shard: shared ones, and one for each pool. Requests that need a further one wait.
pub const PARTS_MAX: u32 = SHARED_PARTS_MAX + POOLS_MAX as u32;

/// Maximum number of pools' own I/Os (rings, tables) on one shard.
pub const POOL_IOS_MAX: u32 = 64;

/// Maximum number of pools that are served.
pub const POOLS_MAX: usize = 256;

/// Maximum number of slots for requests: a cookie addresses 4,096, and the engine reserves one for each metadata block,
/// each part of a job, each I/O of a journal, each gather, each part of a volume's request and each I/O of a pool.
pub const SLOTS_MAX: u32 =
    (1 << 12) - META_BLOCKS - SYNCS_MAX - JOURNAL_IOS_MAX - GATHERS_MAX - PARTS_MAX - POOL_IOS_MAX;

/// Maximum number of leaves that a cookie can address.
pub const LEAVES_MAX: u32 = 1 << 20;

/// Maximum number of late requests of one device on one shard: they were answered at their time limit, and the kernel
/// still has their I/O. At this number, further requests to the device are refused with `TimedOut`. Each late request
/// occupies a slot, and a disk that hangs must not occupy the slots of all others.
pub const LATE_MAX: u32 = 64;

/// Maximum bytes of the buffers of late requests of one device on one shard (8 MiB); from there on, further requests
/// are refused likewise.
pub const LATE_BYTES_MAX: u64 = 8 << 20;

/// Maximum number of leaf I/Os of one planning step; longer requests continue when these have completed.
pub const STEP_IOS_MAX: usize = 160;

/// Maximum number of pieces that one planning step looks up, so that a step takes bounded time.
pub const STEP_PIECES_MAX: u32 = 4096;

/// Maximum bytes that one step of an ordered write holds in the range table (32 MiB).
pub const STEP_ORDERED_BYTES_MAX: u64 = 32 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits { slots: SLOTS_MAX, devices: 4096, range_table_bits: 16 }
    }
}
