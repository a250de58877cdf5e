//! The state of the pools on a shard: their requests, what these ask of the home, and the pools' own I/Os.

mod home;
mod volume;

use std::collections::VecDeque;

pub(super) use home::{Called, PoolHome, Requester, RetryWait, Wait};
pub use home::{PoolCall, PoolNext};
pub(super) use volume::{Stage, VolumeWork};

use super::scratch::{PageRun, Scratch};
use crate::io::{DeviceId, ErrorKind, ShardId};
use crate::limits::{PARTS_MAX, POOL_IOS_MAX, POOLS_MAX, SHARED_PARTS_MAX};
use crate::pool::{BlockAllocation, Reservation, VolumeId};
use crate::volume::PoolKey;

/// Maximum number of allocations that are requested, and mapped, at a time.
pub(super) const RUNS_MAX: usize = 4;

/// What a request to a volume asks of the pool's home.
#[derive(Clone, Copy, Debug)]
pub enum PoolRequest {
    /// Allocate these blocks, or some of them.
    Allocate {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// Number of blocks.
        blocks: u64,
    },
    /// Map these allocations: the data has been written.
    Map(Reservations),
    /// Release these allocations: the data was not written, and will not be. There is no reply.
    Release(Reservations),
    /// Make these blocks read as zeros.
    Discard {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// Number of blocks.
        blocks: u64,
    },
    /// Make everything durable that was answered before.
    Commit,
}

/// A few reservations.
pub type Reservations = [Option<Reservation>; RUNS_MAX];

/// The home's reply to a [`PoolRequest`].
#[derive(Clone, Copy, Debug)]
pub enum PoolReply {
    /// Allocations, in the order of the blocks; at least one.
    Allocated([Option<BlockAllocation>; RUNS_MAX]),
    /// The allocations are mapped, or everything is durable.
    Done,
    /// This many blocks read as zeros now.
    Zeroed(u64),
    /// This many blocks cannot be unmapped: they are as they were.
    NotZeroed(u64),
    /// Not possible now, but perhaps when counted requests have ended or a job has gone on: the request retries when
    /// the home says so.
    Retry,
    /// It failed.
    Failed(ErrorKind),
}

/// A pool, as a shard sees it.
#[derive(Default)]
pub(super) struct PoolSide {
    /// Number of requests to its volumes in each of the two counting periods, and of those that are
    /// [`super::slots::UNCOUNTED`].
    pub(super) users: [u32; 3],
    /// The period that new requests count in: 0 or 1.
    pub(super) period: u8,
    /// The home waits for the end of the other period: the number of its barrier.
    pub(super) draining: Option<u64>,
    pub(super) home_shard: ShardId,
    pub(super) home: Option<Box<PoolHome>>,
    /// The pool's own I/Os in flight, including late ones.
    pub(super) ios: u32,
    /// Parts that requests to its volumes hold, including late ones.
    pub(super) parts: u32,
    /// It is in [`Pools::wanting`].
    pub(super) wants_parts: bool,
    /// Set when the pool is withdrawn: the shard that was its home, which receives the report that none of the pool's
    /// I/O is in flight on this shard.
    pub(super) report_end_to: Option<ShardId>,
    /// At the home of a withdrawn pool: number of shards that have not reported yet.
    pub(super) shards_in_use: u32,
}

/// A pool's own I/O in flight.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnIo {
    /// Its pool: a [`PoolKey`].
    pub(super) key: u16,
    pub(super) token: u32,
    pub(super) memory: Option<PageRun>,
    pub(super) late: bool,
    /// Its end has not been reported to the pool.
    pub(super) unreported: bool,
    pub(super) copy: Copying,
}

/// The stage of a copy, which reads, then writes from the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Copying {
    #[default]
    Nothing,
    /// It reads; `len` bytes are then written to this target.
    Reads {
        to: DeviceId,
        offset: u64,
        len: u64,
    },
    Writes,
}

/// All pools on a shard.
pub(crate) struct Pools {
    pub(super) sides: Box<[PoolSide]>,
    pub(super) works: Box<[VolumeWork]>,
    pub(super) parts_free: Vec<u32>,
    /// The pool that holds each part.
    pub(super) part_pools: Box<[PoolKey]>,
    /// Number of free shared parts.
    pub(super) shared_parts_free: u32,
    /// Pools with requests that wait for a part, each once; the last request of one may have stopped waiting.
    pub(super) wanting: VecDeque<PoolKey>,
    /// A part was released since waiting requests were last woken.
    pub(super) has_returned_parts: bool,
    pub(super) ios_free: Vec<u32>,
    pub(super) ios: Box<[OwnIo]>,
    /// Memory for pools' own writes.
    pub(super) memory: Option<Scratch>,
    /// A buffer in which a write is built.
    pub(super) staging: Box<[u8]>,
    /// Replies for slots of this shard.
    pub(super) replies: VecDeque<(u32, u32, PoolReply)>,
    /// Slots all of whose parts have ended.
    pub(super) resumed: VecDeque<u32>,
    pub(super) calls_done: VecDeque<(u64, bool)>,
    /// Withdrawn pools of which no I/O is in flight any more.
    pub(super) ended: VecDeque<PoolKey>,
    /// Pools whose home has work to do.
    pub(super) driven: VecDeque<PoolKey>,
    /// Pools with a call that continues at the end of the turn.
    pub(super) continuing: VecDeque<PoolKey>,
    /// Pools that had no free entry or no memory for an I/O.
    pub(super) short: VecDeque<PoolKey>,
    /// Barriers that begin on this shard, too.
    pub(super) period_starts: VecDeque<(PoolKey, u64)>,
    /// Entries of copies that have read what they are to write.
    pub(super) copies: VecDeque<(PoolKey, u32)>,
}

impl Pools {
    pub fn new(slots: u32) -> Pools {
        Pools {
            sides: (0..POOLS_MAX).map(|_| PoolSide::default()).collect(),
            works: (0..slots).map(|_| VolumeWork::default()).collect(),
            parts_free: (0..PARTS_MAX).rev().collect(),
            part_pools: vec![PoolKey(0); PARTS_MAX as usize].into(),
            shared_parts_free: SHARED_PARTS_MAX,
            wanting: VecDeque::with_capacity(POOLS_MAX),
            has_returned_parts: false,
            ios_free: (PARTS_MAX..PARTS_MAX + POOL_IOS_MAX).rev().collect(),
            ios: vec![OwnIo::default(); POOL_IOS_MAX as usize].into(),
            memory: None,
            staging: Box::default(),
            replies: VecDeque::with_capacity(slots as usize),
            resumed: VecDeque::with_capacity(slots as usize),
            calls_done: VecDeque::with_capacity(64),
            ended: VecDeque::new(),
            driven: VecDeque::with_capacity(POOLS_MAX),
            continuing: VecDeque::new(),
            short: VecDeque::with_capacity(POOLS_MAX),
            period_starts: VecDeque::with_capacity(POOLS_MAX),
            copies: VecDeque::with_capacity(POOL_IOS_MAX as usize),
        }
    }

    /// Returns the number of requests, parts, I/Os and pages in use.
    pub fn in_use(&self) -> u32 {
        let users: u32 = self.sides.iter().flat_map(|side| side.users).sum();
        let places = PARTS_MAX as usize - self.parts_free.len() + POOL_IOS_MAX as usize - self.ios_free.len();
        users + places as u32 + self.memory.as_ref().map_or(0, Scratch::in_use)
    }

    /// Returns whether a call continues at the end of the turn.
    #[inline]
    pub fn goes_on(&self) -> bool {
        !self.continuing.is_empty()
    }

    /// Returns whether any request or pool may continue.
    #[inline]
    pub fn has_pending(&self) -> bool {
        let requests = !self.replies.is_empty() || !self.resumed.is_empty();
        let pools = !self.driven.is_empty() || !self.period_starts.is_empty() || !self.copies.is_empty();
        requests || pools || self.has_returned_parts
    }
}
