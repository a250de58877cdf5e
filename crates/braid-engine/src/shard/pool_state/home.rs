//! The state of a pool at its home.

use std::collections::VecDeque;
use std::sync::Arc;

use super::PoolRequest;
use crate::io::ShardId;
use crate::pool::Pool;
use crate::volume::PoolMembers;

pub(in crate::shard) type Requester = (ShardId, u32, u32);

/// How a call of the control plane goes on after it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolNext {
    /// The call has ended.
    Done,
    /// The call ends with a commit that is requested now.
    Commit,
    /// The call ends when all requests that had begun on any shard have ended, and then a commit.
    DrainAndCommit,
    /// The call is made again after the next commit. If the pool has failed, the call fails.
    AfterCommit,
    /// The call is made again after other requests had their turn.
    NextTurn,
}

/// A call of the control plane, carried out at the pool's home.
pub type PoolCall = Box<dyn FnMut(&mut Pool) -> PoolNext + Send>;

/// A call of the control plane in progress.
pub(in crate::shard) struct Called {
    pub id: u64,
    pub(in crate::shard) call: PoolCall,
    pub(in crate::shard) wait: Wait,
}

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Wait {
    /// To be made at once, or when more than this many commits have ended.
    Make(Option<u64>),
    /// To be made again when more than this many turns have ended.
    Turn(u64),
    /// The call waits for this commit.
    Commit(u64),
    /// The call waits for this barrier, which may not have begun.
    Barrier(u64),
    /// The call has ended; whether it succeeded.
    Ended(bool),
}

/// A pool at its home.
pub(in crate::shard) struct PoolHome {
    pub pool: Box<Pool>,
    pub(in crate::shard) members: Arc<PoolMembers>,
    pub(in crate::shard) shards: u16,
    /// Requests that wait for room in the in-memory log, in order.
    pub waiting: VecDeque<(Requester, PoolRequest)>,
    /// Requests that wait for a commit, and its number.
    pub commits: Vec<(u64, Requester)>,
    pub calls: Vec<Called>,
    /// Number of barriers begun. A barrier ends when all requests that were counted when it began have ended, on all
    /// shards.
    pub(in crate::shard) barriers: u64,
    /// The barrier in progress: its number, the number of shards that have not reported, and the pool's own number of
    /// it, if the pool requested it.
    pub(in crate::shard) barrier: Option<(u64, u16, Option<u64>)>,
    /// A call waits for a barrier that has not begun.
    pub(in crate::shard) barrier_wanted: bool,
    /// The number of the last barrier that has ended.
    pub(in crate::shard) barriers_done: u64,
    /// [`Pool::progress`] when waiting requests were last tried again.
    pub(in crate::shard) retried: u64,
    /// Number of turns after which a call continued.
    pub(in crate::shard) turns: u64,
    /// For each shard: what its requests that were refused until later wait for, if any.
    pub(in crate::shard) retry_waits: Box<[RetryWait]>,
    /// Number of ended requests whose I/O, still in the kernel, may change their blocks, and of the pool's own late
    /// discards and copies: the barrier that frees space waits for these.
    pub(in crate::shard) late: u32,
}

/// The state of the pool when requests of a shard were told to retry later; the earliest if there were several. They
/// may retry when it has changed.
#[derive(Clone, Copy, Default)]
pub(in crate::shard) struct RetryWait {
    /// For lack of space: the number of extents freed by then.
    pub(in crate::shard) space: Option<u64>,
    /// Because a job held an extent: [`Pool::progress`] by then.
    pub(in crate::shard) held: Option<u64>,
}
