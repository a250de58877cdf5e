//! Every bound of the engine, in one place.

use crate::io::META_BLOCKS;

/// Bounds that a shard is built with. All memory is taken at start from these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in flight on one shard; at most [`SLOTS_MAX`]. One more is refused with `Busy`.
    pub slots: u32,
    /// Devices: arrays and bare disks.
    pub devices: u32,
    /// Words of the range table, as a power of two.
    pub range_table_bits: u32,
}

/// Parts of jobs on one shard at a time; one more is refused with `Busy`.
pub const SYNCS_MAX: u32 = 64;

/// I/Os of journals on one shard at a time: batches and flushes of all arrays with parity that it is home to.
pub const JOURNAL_IOS_MAX: u32 = 64;

/// Steps of requests to arrays with parity on one shard at a time; further ones wait.
pub const ROW_STEPS_MAX: u32 = 512;

/// Writes on one shard at a time that stand for several that lie one after the other, on arrays with parity; what comes while
/// there are so many goes on as it came.
pub const GATHERS_MAX: u32 = 64;

/// Parts of requests to volumes on one shard at a time that all pools share. A part is a request to a member of a pool.
pub const SHARED_PARTS_MAX: u32 = 288;

/// A pool takes a further part while it holds fewer than this many times the shared parts that are free. One pool alone holds 257 parts, and
/// leaves 32 shared ones.
pub const PARTS_PER_FREE: u32 = 8;

/// Parts on one shard at a time: those that all pools share, and one for each pool. Requests that need a further one wait.
pub const PARTS_MAX: u32 = SHARED_PARTS_MAX + POOLS_MAX as u32;

/// I/Os of pools' own (rings, tables) on one shard at a time.
pub const POOL_IOS_MAX: u32 = 64;

/// Most pools that are served at a time.
pub const POOLS_MAX: usize = 256;

/// Most slots for requests: a cookie names 4,096, and the engine keeps one for each metadata block, each part of a job,
/// each I/O of a journal, each gather, each part of a volume's request and each I/O of a pool.
pub const SLOTS_MAX: u32 =
    (1 << 12) - META_BLOCKS - SYNCS_MAX - JOURNAL_IOS_MAX - GATHERS_MAX - PARTS_MAX - POOL_IOS_MAX;

/// Most leaves that a cookie can name.
pub const LEAVES_MAX: u32 = 1 << 20;

/// Requests of one device on one shard that were answered by their time limit and that the kernel still has: with so many,
/// further ones are refused. Each keeps a slot, and a disk that hangs must not take those of all others.
pub const LATE_MAX: u32 = 64;

/// The same for the bytes of their buffers (8 MiB).
pub const LATE_BYTES_MAX: u64 = 8 << 20;

/// Leaf I/Os that one planning step may yield; longer requests go on when these are back.
pub const STEP_IOS_MAX: usize = 160;

/// Pieces that one planning step may look at, so that a step takes bounded time.
pub const STEP_PIECES_MAX: u32 = 4096;

/// Bytes that one step of an ordered write may hold in the range table (32 MiB).
pub const STEP_ORDERED_BYTES_MAX: u64 = 32 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits { slots: SLOTS_MAX, devices: 4096, range_table_bits: 16 }
    }
}
