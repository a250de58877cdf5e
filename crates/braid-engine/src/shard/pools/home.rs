//! The home of a pool: replies to what requests to its volumes ask, carries out calls, and does the pool's own I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::pool_state::{
    Called, Copying, OwnIo, PoolCall, PoolHome, PoolNext, PoolReply, PoolRequest, RUNS_MAX, Requester, RetryWait, Wait,
};
use super::super::scratch::Scratch;
use super::super::{Shard, ShardMessage};
use crate::io::{Buf, ErrorKind, LeafSink, Op, ShardId};
use crate::pool::{BlockAllocation, DiscardOutcome, Pool, PoolMemory, PoolOp, VolumeId};
use crate::volume::{PoolKey, PoolMembers};

/// Maximum pages of a pool's own write.
const WRITE_PAGES: u32 = 16;

/// Maximum number of extents, and runs of unmapped blocks, that one message unmaps: as many extents as a held range
/// has.
const DISCARDS_AT_ONCE: u32 = 128;

impl PoolHome {
    pub fn new(pool: Box<Pool>, members: Arc<PoolMembers>, shards: u16) -> PoolHome {
        PoolHome {
            pool,
            members,
            shards,
            waiting: VecDeque::with_capacity(64),
            commits: Vec::with_capacity(64),
            calls: Vec::new(),
            barriers: 0,
            barrier: None,
            barrier_wanted: false,
            barriers_done: 0,
            retried: 0,
            turns: 0,
            retry_waits: vec![RetryWait::default(); usize::from(shards)].into(),
            late: 0,
        }
    }

    /// Returns the reply to a request for which there is no space.
    fn no_space(&mut self, (shard, ..): Requester, volume: VolumeId) -> PoolReply {
        // No request waits for extents that a hanging disk may keep for ever, or for a commit that itself lacks space.
        let never = self.late > 0 || self.pool.has_failed() || self.pool.is_starved();
        if never || !self.pool.is_freeing_for(volume) {
            return PoolReply::Failed(ErrorKind::NoSpace);
        }
        self.retry_waits[usize::from(shard.0)].space.get_or_insert(self.pool.extents_freed());
        PoolReply::Retry
    }

    /// Returns the reply to a request for an extent that a job holds.
    fn held(&mut self, (shard, ..): Requester) -> PoolReply {
        self.retry_waits[usize::from(shard.0)].held.get_or_insert(self.pool.progress());
        PoolReply::Retry
    }

    /// Returns the next shard whose requests may retry.
    fn may_come(&self) -> Option<usize> {
        let (regained, progress) = (self.pool.extents_freed(), self.pool.progress());
        let ended = self.late > 0 || self.pool.has_failed() || self.pool.is_starved() || !self.pool.is_freeing();
        let may = |retry_waits: &RetryWait| {
            retry_waits.space.is_some_and(|then| ended || then < regained)
                || retry_waits.held.is_some_and(|then| then < progress)
        };
        self.retry_waits.iter().position(may)
    }

    /// Returns the next shard whose requests may retry, and resets its state: the caller notifies it.
    fn next_to_come(&mut self) -> Option<ShardId> {
        let shard = self.may_come()?;
        self.retry_waits[shard] = RetryWait::default();
        Some(ShardId(shard as u16))
    }

    /// Returns the reply to a request for which there is no room in the in-memory log, if room requires space in the
    /// pool's members that they do not have.
    fn no_room(&self, ask: &PoolRequest) -> Option<PoolReply> {
        if !self.pool.is_starved() {
            return None;
        }
        Some(match ask {
            PoolRequest::Discard { blocks, .. } => PoolReply::NotZeroed(*blocks),
            _ => PoolReply::Failed(ErrorKind::NoSpace),
        })
    }

    /// Replies to a request. `None`: it has to wait, or needs no reply.
    fn answer(&mut self, requester: Requester, ask: &PoolRequest) -> Option<PoolReply> {
        if let PoolRequest::Allocate { volume, .. } | PoolRequest::Discard { volume, .. } = ask
            && self.pool.volume(*volume).is_none()
        {
            return Some(PoolReply::Failed(ErrorKind::NoDevice));
        }
        if let PoolRequest::Allocate { volume, .. } | PoolRequest::Discard { volume, .. } = ask
            && self.pool.is_read_only(*volume)
        {
            return Some(PoolReply::Failed(ErrorKind::ReadOnly));
        }
        match ask {
            PoolRequest::Allocate { volume, block, blocks } => {
                let mut runs = [None; RUNS_MAX];
                let mut at = *block;
                for (k, run) in runs.iter_mut().enumerate() {
                    if at == block + blocks {
                        break;
                    }
                    let most = u32::try_from(block + blocks - at).unwrap_or(u32::MAX);
                    let placement = self.pool.allocate(*volume, at, most);
                    at += match placement {
                        BlockAllocation::New(new) => u64::from(new.blocks),
                        BlockAllocation::Own { blocks, .. } => u64::from(blocks),
                        BlockAllocation::Full if k == 0 => return Some(self.no_space(requester, *volume)),
                        BlockAllocation::Held if k == 0 => return Some(self.held(requester)),
                        BlockAllocation::LogFull if k == 0 => return None,
                        BlockAllocation::Full | BlockAllocation::LogFull | BlockAllocation::Held => break,
                    };
                    *run = Some(placement);
                }
                Some(PoolReply::Allocated(runs))
            }
            PoolRequest::Map(new) => {
                for reservation in new.iter().flatten() {
                    self.pool.map_allocation(reservation);
                }
                Some(PoolReply::Done)
            }
            PoolRequest::Release(new) => {
                for reservation in new.iter().flatten() {
                    self.pool.release_allocation(reservation);
                }
                None
            }
            PoolRequest::Discard { volume, block, blocks } => {
                // One reply for everything that can be unmapped without waiting: otherwise each extent would cost
                // another shard a round trip.
                let mut done = 0;
                for _ in 0..DISCARDS_AT_ONCE {
                    match self.pool.discard(*volume, block + done, blocks - done) {
                        DiscardOutcome::Done(some) => done += some,
                        _ if done > 0 => break,
                        DiscardOutcome::Full(blocks) => return Some(PoolReply::NotZeroed(blocks)),
                        DiscardOutcome::LogFull => return None,
                        DiscardOutcome::Held => return Some(self.held(requester)),
                    }
                    if done == *blocks {
                        break;
                    }
                }
                Some(PoolReply::Zeroed(done))
            }
            PoolRequest::Commit => {
                let number = self.pool.request_commit();
                self.commits.push((number, requester));
                None
            }
        }
    }
}

/// A buffer in which a write is built.
struct Staging<'a>(&'a mut [u8]);

impl PoolMemory for Staging<'_> {
    fn buffer(&mut self, _index: u32) -> &mut [u8] {
        self.0
    }
}

impl Shard {
    /// Processes a request to a pool whose home this shard is.
    pub(in super::super) fn pool_requested(
        &mut self,
        key: PoolKey,
        requester: Requester,
        ask: PoolRequest,
        sink: &mut impl LeafSink,
    ) {
        let Some(home) = self.pools.sides[key.index()].home.as_mut() else {
            if !matches!(ask, PoolRequest::Release(_)) {
                self.reply_pool(requester, PoolReply::Failed(ErrorKind::NoDevice));
            }
            return;
        };
        // A request that needs room in the in-memory log takes its turn behind those that wait for it.
        let needs_room = matches!(ask, PoolRequest::Allocate { .. } | PoolRequest::Discard { .. });
        let reply = if needs_room && !home.waiting.is_empty() { None } else { home.answer(requester, &ask) };
        let reply = if needs_room { reply.or_else(|| home.no_room(&ask)) } else { reply };
        match reply {
            Some(reply) => self.reply_pool(requester, reply),
            None if needs_room => {
                home.pool.commit_soon();
                home.waiting.push_back((requester, ask));
            }
            None => {}
        }
        let _ = sink;
        self.pools.driven.push_back(key);
    }

    /// Starts a call at the pool's home; [`Shard::pop_pool_call`] reports its end.
    pub fn pool_call(&mut self, id: u64, key: PoolKey, call: PoolCall, sink: &mut impl LeafSink) {
        let Some(home) = self.pools.sides[key.index()].home.as_mut() else {
            return self.pools.calls_done.push_back((id, false));
        };
        home.calls.push(Called { id, call, wait: Wait::Make(None) });
        self.pools.driven.push_back(key);
        self.process_woken(sink);
    }

    /// Ends the turn: calls that let other requests go first continue.
    #[cold]
    pub(in super::super) fn pools_go_on(&mut self, sink: &mut impl LeafSink) {
        while let Some(key) = self.pools.continuing.pop_front() {
            if let Some(home) = self.pools.sides[key.index()].home.as_mut() {
                home.turns += 1;
                self.pools.driven.push_back(key);
            }
        }
        self.process_woken(sink);
    }

    /// Processes a shard's report that all its requests from before a barrier have ended.
    pub(in super::super) fn pool_period_ended(&mut self, key: PoolKey, number: u64) {
        let Some(home) = self.pools.sides[key.index()].home.as_mut() else { return };
        if let Some((under_way, left, own)) = &mut home.barrier
            && *under_way == number
        {
            *left -= 1;
            if *left == 0 {
                let own = *own;
                home.barrier = None;
                home.barriers_done = number;
                if let Some(own) = own {
                    home.pool.barrier_done(own);
                }
                self.pools.driven.push_back(key);
            }
        }
    }

    /// Counts I/O in the kernel that may still change blocks of this pool, or discounts it.
    pub(in super::super) fn pool_is_late(&mut self, key: PoolKey, late: bool) {
        if let Some(home) = self.pools.sides[key.index()].home.as_mut() {
            home.late = if late { home.late + 1 } else { home.late - 1 };
            home.pool.note_hanging_request(home.late > 0);
            self.pools.driven.push_back(key);
        }
    }

    /// Ends a pool's own I/O.
    pub(super) fn own_io_ended(&mut self, key: PoolKey, token: u32, result: Result<(), ErrorKind>) {
        if let Some(home) = self.pools.sides[key.index()].home.as_mut() {
            home.pool.io_done(token, result);
        }
        self.pools.driven.push_back(key);
    }

    /// Does the pool's pending work, and advances requests that wait for it.
    pub(super) fn drive_pool(&mut self, key: PoolKey, sink: &mut impl LeafSink) {
        let at = key.index();
        let Some(mut home) = self.pools.sides[at].home.take() else { return };
        self.make_calls(key, &mut home);
        self.retry_waiting(&mut home);
        home.pool.commit_if_due();
        if home.retry_waits.iter().any(|retry_waits| retry_waits.space.is_some()) {
            home.pool.commit_freed();
        }
        while let Some(shard) = home.next_to_come() {
            self.notify_retry(key, shard);
        }
        loop {
            // All runs have one length, so that a run is available if enough pages are free.
            let has_room = |memory: &Scratch| memory.has(WRITE_PAGES);
            if self.pools.ios_free.is_empty() || !self.pools.memory.as_ref().is_some_and(has_room) {
                if !self.pools.short.contains(&key) {
                    self.pools.short.push_back(key);
                }
                break;
            }
            let Some(io) = home.pool.next_io(&mut Staging(&mut self.pools.staging)) else { break };
            let run = match io.op {
                PoolOp::Write { .. } | PoolOp::Copy { .. } => {
                    let taken = self.pools.memory.as_mut().and_then(|memory| memory.take(WRITE_PAGES));
                    Some(taken.expect("seen that there is some"))
                }
                PoolOp::Flush | PoolOp::Discard => None,
            };
            let mut device = home.members.of(io.member).device;
            let mut offset = io.offset;
            let mut own = OwnIo { token: io.token, ..OwnIo::default() };
            let (op, buf) = match io.op {
                PoolOp::Flush => (Op::Flush, Buf::NONE),
                PoolOp::Discard => (Op::Discard, Buf::NONE),
                PoolOp::Copy { from_member, from_offset } => {
                    own.memory = run;
                    own.copy = Copying::Reads { to: device, offset, len: io.len };
                    (device, offset) = (home.members.of(from_member).device, from_offset);
                    (Op::Read, self.own_memory(run))
                }
                PoolOp::Write { .. } => {
                    own.memory = run;
                    let buf = self.own_memory(run);
                    let staging = &self.pools.staging;
                    sink.compute(&[], &[buf], io.len, &mut |_, to| to[0].copy_from_slice(&staging[..io.len as usize]));
                    (Op::Write, buf)
                }
            };
            self.pools.sides[at].home = Some(home);
            self.begin_own_io(key, device, (offset, io.len), (op, buf), own, sink);
            home = self.pools.sides[at].home.take().expect("just put there");
        }
        self.end_commits(&mut home);
        self.begin_barrier(key, &mut home);
        // A commit or a move may have ended while its next I/O was requested.
        let waits = !home.waiting.is_empty() && home.retried != home.pool.progress();
        if waits || home.may_come().is_some() {
            self.pools.driven.push_back(key);
        }
        self.pools.sides[at].home = Some(home);
    }

    fn retry_waiting(&mut self, home: &mut PoolHome) {
        if home.retried == home.pool.progress() && !home.pool.has_failed() && !home.pool.is_starved() {
            return;
        }
        home.retried = home.pool.progress();
        while let Some((requester, ask)) = home.waiting.pop_front() {
            if home.pool.has_failed() {
                self.reply_pool(requester, PoolReply::Failed(ErrorKind::Failed));
                continue;
            }
            match home.answer(requester, &ask).or_else(|| home.no_room(&ask)) {
                Some(reply) => self.reply_pool(requester, reply),
                None => {
                    home.pool.commit_soon();
                    return home.waiting.push_front((requester, ask));
                }
            }
        }
    }

    fn end_commits(&mut self, home: &mut PoolHome) {
        let mut k = 0;
        while k < home.commits.len() {
            let reply = match home.pool.is_committed(home.commits[k].0) {
                Ok(false) => {
                    k += 1;
                    continue;
                }
                Ok(true) => PoolReply::Done,
                Err(why) => PoolReply::Failed(why.kind()),
            };
            let (_, requester) = home.commits.swap_remove(k);
            self.reply_pool(requester, reply);
        }
    }

    fn make_calls(&mut self, key: PoolKey, home: &mut PoolHome) {
        let PoolHome { pool, calls, barriers, barrier_wanted, barriers_done, turns, .. } = home;
        let mut goes_on = false;
        for called in calls.iter_mut() {
            if let Wait::Turn(turn) = called.wait
                && *turns > turn
            {
                called.wait = Wait::Make(None);
            }
            if let Wait::Make(after) = called.wait
                && (after.is_none_or(|commits| pool.commits_done() > commits) || pool.has_failed())
            {
                called.wait = match (called.call)(pool) {
                    PoolNext::Done => Wait::Ended(true),
                    PoolNext::Commit => Wait::Commit(pool.request_commit()),
                    PoolNext::DrainAndCommit => {
                        *barrier_wanted = true;
                        Wait::Barrier(*barriers + 1)
                    }
                    PoolNext::NextTurn => {
                        goes_on = true;
                        Wait::Turn(*turns)
                    }
                    PoolNext::AfterCommit if pool.has_failed() => Wait::Ended(false),
                    PoolNext::AfterCommit => {
                        pool.request_commit();
                        Wait::Make(Some(pool.commits_done()))
                    }
                };
            }
            // What it waits for requires space in the pool's members, which may never be available.
            if matches!(called.wait, Wait::Make(Some(_))) && pool.is_starved() {
                called.wait = Wait::Ended(false);
            }
            // This includes calls made just now: if the pool has failed, they would not be looked at again.
            if let Wait::Barrier(number) = called.wait
                && *barriers_done >= number
            {
                called.wait = Wait::Commit(pool.request_commit());
            }
            if let Wait::Commit(number) = called.wait
                && pool.is_committed(number) != Ok(false)
            {
                called.wait = Wait::Ended(pool.is_committed(number).is_ok());
            }
        }
        if goes_on && !self.pools.continuing.contains(&key) {
            self.pools.continuing.push_back(key);
        }
        let ended = &mut self.pools.calls_done;
        calls.retain(|called| {
            let Wait::Ended(good) = called.wait else { return true };
            ended.push_back((called.id, good));
            false
        });
    }

    fn begin_barrier(&mut self, key: PoolKey, home: &mut PoolHome) {
        if home.barrier.is_some() {
            return;
        }
        let own = home.pool.next_barrier();
        if own.is_none() && !home.barrier_wanted {
            return;
        }
        home.barrier_wanted = false;
        home.barriers += 1;
        let number = home.barriers;
        home.barrier = Some((number, home.shards, own));
        for shard in (0..home.shards).map(ShardId) {
            if shard != self.id {
                self.outbox.push_back((shard, ShardMessage::PoolBeginPeriod { key, home: self.id, number }));
            }
        }
        self.pools.period_starts.push_back((key, number));
    }
}
