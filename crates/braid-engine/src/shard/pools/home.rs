//! The home of a pool: it answers what requests to its volumes ask, carries out calls, and does the pool's own I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::scratch::Scratch;
use super::super::{Shard, ShardMessage};
use super::{Copying, OwnIo, PoolAsk, PoolTold, RUNS_MAX};
use crate::io::{Buf, ErrorKind, LeafSink, Op, ShardId};
use crate::planted::{Planted, planted};
use crate::pool::{BlockAllocation, DiscardOutcome, Pool, PoolMemory, PoolOp, VolumeId};
use crate::volume::{PoolKey, PoolMembers};

/// Pages of one write of a pool's own, at most.
const WRITE_PAGES: u32 = 16;

/// Extents, and runs of nothing, that are taken away for one message: as long as a range that is held has extents.
const DISCARDS_AT_ONCE: u32 = 128;

pub(super) type Who = (ShardId, u32, u32);

/// What a call of the control plane wants after it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolNext {
    /// It has ended.
    Done,
    /// It ends when a commit has that begins now.
    Commit,
    /// It ends when everything that had begun on any shard has ended, and then a commit.
    DrainAndCommit,
    /// It is to be made again when something was committed.
    Again,
    /// It is to be made again when others had their turn.
    GoOn,
}

/// A call of the control plane, carried out at the pool's home.
pub type PoolCall = Box<dyn FnMut(&mut Pool) -> PoolNext + Send>;

pub(super) struct Called {
    pub id: u64,
    call: PoolCall,
    wait: Wait,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// To be made, once more than so many commits have ended.
    Make(Option<u64>),
    /// To be made once more when this turn has ended.
    Turn(u64),
    Commit(u64),
    /// This barrier, which may not have begun.
    Barrier(u64),
    Ended(bool),
}

/// A pool at its home.
pub(super) struct Home {
    pub pool: Box<Pool>,
    members: Arc<PoolMembers>,
    shards: u16,
    /// Who waits for room in the tail, in order.
    pub waiting: VecDeque<(Who, PoolAsk)>,
    /// Who waits for a commit, and for which.
    pub commits: Vec<(u64, Who)>,
    pub calls: Vec<Called>,
    /// Barriers begun; the one under way, how many shards it waits for, and the pool's own number of it.
    barriers: u64,
    barrier: Option<(u64, u16, Option<u64>)>,
    barrier_wanted: bool,
    barriers_done: u64,
    retried: u64,
    /// Turns in which a call went on.
    turns: u64,
    /// For each shard how far the pool had come when somebody there was told to come again; nobody was where there is none.
    away: Box<[Away]>,
    /// Requests that have ended while the kernel still has what may change their places, and the pool's own discards: the barrier for
    /// space waits for these.
    late: u32,
}

/// Who was told to come again, and what that was at least.
#[derive(Clone, Copy, Default)]
struct Away {
    /// For want of space, when so many extents had become free.
    space: Option<u64>,
    /// As a job held an extent, at this [`Pool::progress`].
    held: Option<u64>,
}

impl Home {
    pub fn new(pool: Box<Pool>, members: Arc<PoolMembers>, shards: u16) -> Home {
        Home {
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
            away: vec![Away::default(); usize::from(shards)].into(),
            late: 0,
        }
    }

    /// What is told to whom there is no space for.
    fn no_space(&mut self, (shard, ..): Who, volume: VolumeId) -> PoolTold {
        // A disk that hangs may keep what is freed for ever: no request waits for that, nor for a commit that has no space.
        let never = self.late > 0 || self.pool.has_failed() || self.pool.is_starved();
        if never || !self.pool.is_freeing_for(volume) {
            return PoolTold::Failed(ErrorKind::NoSpace);
        }
        self.away[usize::from(shard.0)].space.get_or_insert(self.pool.extents_freed());
        PoolTold::NotYet
    }

    /// What is told to whom a job is in the way.
    fn held(&mut self, (shard, ..): Who) -> PoolTold {
        self.away[usize::from(shard.0)].held.get_or_insert(self.pool.progress());
        PoolTold::NotYet
    }

    /// The next shard on which somebody may come again.
    fn may_come(&self) -> Option<usize> {
        let (regained, progress) = (self.pool.extents_freed(), self.pool.progress());
        let ended = self.late > 0 || self.pool.has_failed() || self.pool.is_starved() || !self.pool.is_freeing();
        let may = |away: &Away| {
            away.space.is_some_and(|then| ended || then < regained) || away.held.is_some_and(|then| then < progress)
        };
        self.away.iter().position(may)
    }

    /// The same; he is to be told.
    fn next_to_come(&mut self) -> Option<ShardId> {
        let shard = self.may_come()?;
        self.away[shard] = Away::default();
        Some(ShardId(shard as u16))
    }

    /// What is told to whom there is no room for in the tail, if it gets none before there is space below.
    fn no_room(&self, ask: &PoolAsk) -> Option<PoolTold> {
        if !self.pool.is_starved() {
            return None;
        }
        Some(match ask {
            PoolAsk::Discard { blocks, .. } => PoolTold::NotZeroed(*blocks),
            _ => PoolTold::Failed(ErrorKind::NoSpace),
        })
    }

    /// Tries to answer. `None`: it has to wait.
    fn answer(&mut self, who: Who, ask: &PoolAsk) -> Option<PoolTold> {
        if let PoolAsk::Place { volume, .. } | PoolAsk::Discard { volume, .. } = ask
            && self.pool.volume(*volume).is_none()
        {
            return Some(PoolTold::Failed(ErrorKind::NoDevice));
        }
        if let PoolAsk::Place { volume, .. } | PoolAsk::Discard { volume, .. } = ask
            && self.pool.is_read_only(*volume)
        {
            return Some(PoolTold::Failed(ErrorKind::ReadOnly));
        }
        match ask {
            PoolAsk::Place { volume, block, blocks } => {
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
                        BlockAllocation::Full if k == 0 => return Some(self.no_space(who, *volume)),
                        BlockAllocation::Held if k == 0 => return Some(self.held(who)),
                        BlockAllocation::LogFull if k == 0 => return None,
                        BlockAllocation::Full | BlockAllocation::LogFull | BlockAllocation::Held => break,
                    };
                    *run = Some(placement);
                }
                Some(PoolTold::Placed(runs))
            }
            PoolAsk::Bind(new) => {
                for reservation in new.iter().flatten() {
                    self.pool.map_allocation(reservation);
                }
                Some(PoolTold::Done)
            }
            PoolAsk::Unplace(new) => {
                for reservation in new.iter().flatten() {
                    if planted(Planted::UnplacedBound) {
                        self.pool.map_allocation(reservation);
                    } else {
                        self.pool.release_allocation(reservation);
                    }
                }
                None
            }
            PoolAsk::Discard { volume, block, blocks } => {
                // One answer for all that goes on without waiting: else each extent would cost another shard a message there and back.
                let mut done = 0;
                for _ in 0..DISCARDS_AT_ONCE {
                    match self.pool.discard(*volume, block + done, blocks - done) {
                        DiscardOutcome::Done(some) => done += some,
                        _ if done > 0 => break,
                        DiscardOutcome::Full(blocks) => return Some(PoolTold::NotZeroed(blocks)),
                        DiscardOutcome::LogFull => return None,
                        DiscardOutcome::Held => return Some(self.held(who)),
                    }
                    if done == *blocks {
                        break;
                    }
                }
                Some(PoolTold::Zeroed(done))
            }
            PoolAsk::Commit => {
                let number = self.pool.request_commit();
                self.commits.push((number, who));
                None
            }
        }
    }
}

/// Where a write is put together.
struct Staging<'a>(&'a mut [u8]);

impl PoolMemory for Staging<'_> {
    fn buffer(&mut self, _index: u32) -> &mut [u8] {
        self.0
    }
}

impl Shard {
    /// Somebody asks something of a pool whose home this is.
    pub(in super::super) fn pool_asked(&mut self, key: PoolKey, who: Who, ask: PoolAsk, sink: &mut impl LeafSink) {
        let Some(home) = self.pools.sides[key.index()].home.as_mut() else {
            if !matches!(ask, PoolAsk::Unplace(_)) {
                self.pool_tell(who, PoolTold::Failed(ErrorKind::NoDevice));
            }
            return;
        };
        // Who needs room in the tail takes his turn behind those who wait for it.
        let needs_room = matches!(ask, PoolAsk::Place { .. } | PoolAsk::Discard { .. });
        let told = if needs_room && !home.waiting.is_empty() { None } else { home.answer(who, &ask) };
        let told = if needs_room { told.or_else(|| home.no_room(&ask)) } else { told };
        match told {
            Some(told) => self.pool_tell(who, told),
            None if needs_room => {
                home.pool.commit_soon();
                home.waiting.push_back((who, ask));
            }
            None => {}
        }
        let _ = sink;
        self.pools.driven.push_back(key);
    }

    /// Makes a call at the pool's home; it ends by [`Shard::pop_pool_call`].
    pub fn pool_call(&mut self, id: u64, key: PoolKey, call: PoolCall, sink: &mut impl LeafSink) {
        let Some(home) = self.pools.sides[key.index()].home.as_mut() else {
            return self.pools.calls_done.push_back((id, false));
        };
        home.calls.push(Called { id, call, wait: Wait::Make(None) });
        self.pools.driven.push_back(key);
        self.work_off(sink);
    }

    /// The turn has ended: calls that were to let others go first go on.
    #[cold]
    pub(in super::super) fn pools_go_on(&mut self, sink: &mut impl LeafSink) {
        while let Some(key) = self.pools.going_on.pop_front() {
            if let Some(home) = self.pools.sides[key.index()].home.as_mut() {
                home.turns += 1;
                self.pools.driven.push_back(key);
            }
        }
        self.work_off(sink);
    }

    /// All requests that had begun on a shard before a barrier have ended.
    pub(in super::super) fn pool_turned(&mut self, key: PoolKey, number: u64) {
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

    /// The kernel still has, or has no more, what may change places of this pool.
    pub(in super::super) fn pool_is_late(&mut self, key: PoolKey, late: bool) {
        if let Some(home) = self.pools.sides[key.index()].home.as_mut() {
            home.late = if late { home.late + 1 } else { home.late - 1 };
            home.pool.note_hanging_request(home.late > 0);
            self.pools.driven.push_back(key);
        }
    }

    /// An I/O of a pool's own has ended.
    pub(super) fn own_io_ended(&mut self, key: PoolKey, token: u32, result: Result<(), ErrorKind>) {
        if let Some(home) = self.pools.sides[key.index()].home.as_mut() {
            home.pool.io_done(token, result);
        }
        self.pools.driven.push_back(key);
    }

    /// Does what a pool wants done, and lets those go on who wait for it.
    pub(super) fn drive_pool(&mut self, key: PoolKey, sink: &mut impl LeafSink) {
        let at = key.index();
        let Some(mut home) = self.pools.sides[at].home.take() else { return };
        self.make_calls(key, &mut home);
        self.retry_waiting(&mut home);
        home.pool.commit_if_due();
        if home.away.iter().any(|away| away.space.is_some()) {
            home.pool.commit_freed();
        }
        while let Some(shard) = home.next_to_come() {
            self.tell_again(key, shard);
        }
        loop {
            // All are of one length, so that there is always room for one where enough is free.
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
        // A commit or a move may have ended while its next I/O was asked for.
        let waits = !home.waiting.is_empty() && home.retried != home.pool.progress();
        if waits || home.may_come().is_some() {
            self.pools.driven.push_back(key);
        }
        self.pools.sides[at].home = Some(home);
    }

    fn retry_waiting(&mut self, home: &mut Home) {
        if home.retried == home.pool.progress() && !home.pool.has_failed() && !home.pool.is_starved() {
            return;
        }
        home.retried = home.pool.progress();
        while let Some((who, ask)) = home.waiting.pop_front() {
            if home.pool.has_failed() {
                self.pool_tell(who, PoolTold::Failed(ErrorKind::Failed));
                continue;
            }
            match home.answer(who, &ask).or_else(|| home.no_room(&ask)) {
                Some(told) => self.pool_tell(who, told),
                None => {
                    home.pool.commit_soon();
                    return home.waiting.push_front((who, ask));
                }
            }
        }
    }

    fn end_commits(&mut self, home: &mut Home) {
        let mut k = 0;
        while k < home.commits.len() {
            let told = match home.pool.is_committed(home.commits[k].0) {
                Ok(false) => {
                    k += 1;
                    continue;
                }
                Ok(true) => PoolTold::Done,
                Err(why) => PoolTold::Failed(why.kind()),
            };
            let (_, who) = home.commits.swap_remove(k);
            self.pool_tell(who, told);
        }
    }

    fn make_calls(&mut self, key: PoolKey, home: &mut Home) {
        let Home { pool, calls, barriers, barrier_wanted, barriers_done, turns, .. } = home;
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
                    PoolNext::DrainAndCommit if planted(Planted::SnapshotNotCommitted) => Wait::Ended(true),
                    PoolNext::DrainAndCommit if planted(Planted::SnapshotNotDrained) => {
                        Wait::Commit(pool.request_commit())
                    }
                    PoolNext::Done => Wait::Ended(true),
                    PoolNext::Commit => Wait::Commit(pool.request_commit()),
                    PoolNext::DrainAndCommit => {
                        *barrier_wanted = true;
                        Wait::Barrier(*barriers + 1)
                    }
                    PoolNext::GoOn => {
                        goes_on = true;
                        Wait::Turn(*turns)
                    }
                    PoolNext::Again if pool.has_failed() => Wait::Ended(false),
                    PoolNext::Again => {
                        pool.request_commit();
                        Wait::Make(Some(pool.commits_done()))
                    }
                };
            }
            // What it waits for comes when there is space below, which may be never.
            if matches!(called.wait, Wait::Make(Some(_))) && pool.is_starved() {
                called.wait = Wait::Ended(false);
            }
            // Also what was made just now: where the pool has failed, nobody would look again.
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
        if goes_on && !self.pools.going_on.contains(&key) {
            self.pools.going_on.push_back(key);
        }
        let ended = &mut self.pools.calls_done;
        calls.retain(|called| {
            let Wait::Ended(good) = called.wait else { return true };
            ended.push_back((called.id, good));
            false
        });
    }

    fn begin_barrier(&mut self, key: PoolKey, home: &mut Home) {
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
        let waits_for = home.shards - u16::from(home.shards > 1 && planted(Planted::BarrierSkipsShard));
        home.barrier = Some((number, waits_for, own));
        for shard in (0..home.shards).map(ShardId) {
            if shard != self.id {
                self.outbox.push_back((shard, ShardMessage::PoolTurn { key, home: self.id, number }));
            }
        }
        self.pools.turning.push_back((key, number));
    }
}
