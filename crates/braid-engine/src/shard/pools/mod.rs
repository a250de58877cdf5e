//! Volumes of pools, on a shard: requests that are carried out on the pool's members, and, where the shard is the pool's home, the pool.
//!
//! A request to a volume finds its blocks by the volume's map. What lies on one place of a member without redundancy goes there at
//! once; all else is *parts*: slots of their own on the members, which are devices like any other. What the volume's owner does not
//! state yet is asked of the home: it gives a place, and is told when the data are there. Only then the request goes on.
//!
//! Whoever gives a place away has to know that nobody has it in mind any more. Each shard counts requests to a pool's volumes by the *time*
//! in which they began; the home lets all shards begin another time, and hears from each when the one before has run out. Who waits for
//! what comes of that must not be waited for: he gives back what he holds, is not counted, and begins anew when the home says so.

mod foresight;
mod home;
mod leaving;
mod one_place;
mod parts;
mod volume;

use std::collections::VecDeque;
use std::sync::Arc;

use super::scratch::{Run, Scratch};
use super::slots::{AWAY, NO_POOL};
use super::{Shard, ShardMessage};
use crate::io::{DeviceId, ErrorKind, LeafSink, ShardId};
use crate::limits::{PARTS_MAX, POOL_IOS_MAX, POOLS_MAX, SHARED_PARTS_MAX};
use crate::planted::{Planted, planted};
use crate::pool::{BlockAllocation, Pool, Reservation, VolumeId};
use crate::volume::{PoolKey, PoolMembers};

pub use foresight::Soon;
use home::Home;
pub use home::{PoolCall, PoolNext};
use volume::VolumeWork;

/// Places that are asked for, and bound, at a time.
pub(super) const RUNS_MAX: usize = 4;

/// What a request to a volume asks of the pool's home.
#[derive(Clone, Copy, Debug)]
pub enum PoolAsk {
    /// Places for these blocks, or for some of them.
    Place {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// How many.
        blocks: u64,
    },
    /// The data are there.
    Bind(Reservations),
    /// They are not, and will not be. Not answered.
    Unplace(Reservations),
    /// These blocks are to read as zeros.
    Discard {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// How many.
        blocks: u64,
    },
    /// What was answered before is to be durable.
    Commit,
}

/// A few places.
pub type Reservations = [Option<Reservation>; RUNS_MAX];

/// What the home answers.
#[derive(Clone, Copy, Debug)]
pub enum PoolTold {
    /// Places, one after the other; at least one.
    Placed([Option<BlockAllocation>; RUNS_MAX]),
    /// It is bound, or durable.
    Done,
    /// So many blocks read as zeros now.
    Zeroed(u64),
    /// Of so many blocks that cannot be said: they are as they were.
    NotZeroed(u64),
    /// It may be possible when those have ended who are counted: to be asked again when the home says so.
    NotYet,
    /// It cannot be done.
    Failed(ErrorKind),
}

/// One pool, as a shard sees it.
#[derive(Default)]
struct Side {
    /// Requests to its volumes, by the time in which they began, and those that are [`AWAY`].
    users: [u32; 3],
    time: u8,
    /// The home waits for the other time to run out: the number of its barrier.
    draining: Option<u64>,
    home_shard: ShardId,
    home: Option<Box<Home>>,
    /// The pool's own I/Os that are out, also such as are late.
    ios: u32,
    /// Parts that requests to its volumes hold, also such as are late.
    parts: u32,
    /// It is in [`Pools::wanting`].
    wants_parts: bool,
    /// The pool has left: this shard, its home, is to be told when nothing of it is out here.
    told_of_end: Option<ShardId>,
    /// It has left from here: so many shards have not said yet that nothing of it is out.
    unended: u32,
}

/// An I/O of a pool's own that is out.
#[derive(Clone, Copy, Default)]
struct OwnIo {
    /// Whose it is: a [`PoolKey`].
    key: u16,
    token: u32,
    memory: Option<Run>,
    late: bool,
    /// The pool has not been told of its end.
    untold: bool,
    copy: Copying,
}

/// A copy reads, then writes from the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Copying {
    #[default]
    Nothing,
    /// It reads; what it has read goes there: so many bytes.
    Reads {
        to: DeviceId,
        offset: u64,
        len: u64,
    },
    Writes,
}

/// All pools on a shard.
pub(crate) struct Pools {
    sides: Box<[Side]>,
    works: Box<[VolumeWork]>,
    parts_free: Vec<u32>,
    /// The pool that holds each part.
    part_pools: Box<[PoolKey]>,
    /// Of the parts that all pools share, so many are free.
    shared_parts_free: u32,
    /// Pools with requests that wait for a part, each once; of some the last one may have stopped waiting.
    wanting: VecDeque<PoolKey>,
    /// A part was given back since those were looked at.
    has_returned_parts: bool,
    ios_free: Vec<u32>,
    ios: Box<[OwnIo]>,
    /// Memory for pools' own writes.
    pub(super) memory: Option<Scratch>,
    /// Where a write is put together.
    staging: Box<[u8]>,
    /// Answers for slots of this shard.
    told: VecDeque<(u32, u32, PoolTold)>,
    /// Slots all of whose parts have ended.
    resumed: VecDeque<u32>,
    calls_done: VecDeque<(u64, bool)>,
    /// Pools that have left, and of which nothing is out any more.
    ended: VecDeque<PoolKey>,
    driven: VecDeque<PoolKey>,
    /// Pools of which a call goes on at the end of the turn.
    going_on: VecDeque<PoolKey>,
    /// Pools that had no place or no memory for an I/O, as others had them all.
    short: VecDeque<PoolKey>,
    /// Barriers that begin on this shard, too.
    turning: VecDeque<(PoolKey, u64)>,
    /// Places of copies that have read what they are to write.
    copies: VecDeque<(PoolKey, u32)>,
}

impl Pools {
    pub fn new(slots: u32) -> Pools {
        Pools {
            sides: (0..POOLS_MAX).map(|_| Side::default()).collect(),
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
            told: VecDeque::with_capacity(slots as usize),
            resumed: VecDeque::with_capacity(slots as usize),
            calls_done: VecDeque::with_capacity(64),
            ended: VecDeque::new(),
            driven: VecDeque::with_capacity(POOLS_MAX),
            going_on: VecDeque::new(),
            short: VecDeque::with_capacity(POOLS_MAX),
            turning: VecDeque::with_capacity(POOLS_MAX),
            copies: VecDeque::with_capacity(POOL_IOS_MAX as usize),
        }
    }

    /// What is taken of all that there is.
    pub fn in_use(&self) -> u32 {
        let users: u32 = self.sides.iter().flat_map(|side| side.users).sum();
        let places = PARTS_MAX as usize - self.parts_free.len() + POOL_IOS_MAX as usize - self.ios_free.len();
        users + places as u32 + self.memory.as_ref().map_or(0, Scratch::in_use)
    }

    /// Whether a call goes on at the end of the turn.
    #[inline]
    pub fn goes_on(&self) -> bool {
        !self.going_on.is_empty()
    }

    /// Whether somebody may go on.
    #[inline]
    pub fn has_news(&self) -> bool {
        let requests = !self.told.is_empty() || !self.resumed.is_empty();
        let pools = !self.driven.is_empty() || !self.turning.is_empty() || !self.copies.is_empty();
        requests || pools || self.has_returned_parts
    }
}

/// Who waits for the home of a pool to say that he may come again.
fn again_key(key: PoolKey) -> u64 {
    3 << 62 | 1 << 45 | u64::from(key.0)
}

impl Shard {
    /// Makes this shard the home of a pool that was opened. On the others, [`Shard::know_pool`] is called before any of its volumes is published.
    pub fn serve_pool(&mut self, key: PoolKey, pool: Box<Pool>, members: Arc<PoolMembers>, sink: &mut impl LeafSink) {
        self.prepare_rows(sink);
        if self.pools.staging.is_empty() {
            self.pools.staging = vec![0; 64 << 10].into();
        }
        self.know_pool(key, self.id);
        self.pools.sides[key.index()].home = Some(Box::new(Home::new(pool, members, self.shared.shards)));
        self.drive_pool(key, sink);
    }

    /// Tells the shard where a pool's home is.
    pub fn know_pool(&mut self, key: PoolKey, home: ShardId) {
        self.pools.sides[key.index()].home_shard = home;
    }

    /// The next call of [`Shard::pool_call`] that has ended, and whether it was committed if it was to be. False also where there is no
    /// such pool.
    pub fn pop_pool_call(&mut self) -> Option<(u64, bool)> {
        self.pools.calls_done.pop_front()
    }

    /// Counts a request to a volume.
    #[inline]
    pub(super) fn enter_volume(&mut self, index: u32, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        side.users[usize::from(side.time)] += 1;
        let slot = &mut self.slots[index];
        (slot.pool, slot.time) = (key.0, side.time);
    }

    /// The request has ended, and the kernel has nothing of it.
    #[inline]
    pub(super) fn exit_volume(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let key = PoolKey(std::mem::replace(&mut slot.pool, NO_POOL));
        let time = std::mem::replace(&mut slot.time, AWAY);
        self.exit_time(key, time);
    }

    /// The request has no place in mind.
    #[inline]
    fn leave_time(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let time = std::mem::replace(&mut slot.time, AWAY);
        let key = PoolKey(slot.pool);
        self.pools.sides[key.index()].users[usize::from(AWAY)] += 1;
        self.exit_time(key, time);
    }

    /// Stops counting a request that has begun nothing: it waits for a request that may wait for the end of all counted ones.
    #[cold]
    pub(super) fn stop_counting(&mut self, index: u32) {
        if self.slots[index].time != AWAY && !planted(Planted::WaitsCounted) {
            self.leave_time(index);
        }
    }

    /// Who was away is there again.
    fn come_back(&mut self, index: u32) {
        let key = PoolKey(self.slots[index].pool);
        self.pools.sides[key.index()].users[usize::from(AWAY)] -= 1;
        self.enter_volume(index, key);
    }

    #[inline]
    fn exit_time(&mut self, key: PoolKey, time: u8) {
        let side = &mut self.pools.sides[key.index()];
        let users = &mut side.users[usize::from(time)];
        *users -= 1;
        if *users == 0 && (side.draining.is_some() || side.told_of_end.is_some()) {
            self.time_is_empty(key, time);
        }
    }

    #[cold]
    fn time_is_empty(&mut self, key: PoolKey, time: u8) {
        if time != AWAY && time != self.pools.sides[key.index()].time {
            self.time_has_run_out(key);
        }
        self.may_have_ended(key);
    }

    /// The request waits for the home to say that it may come again. Nobody waits for it, nor for its range: not those either for whom it
    /// waits.
    #[cold]
    fn go_away(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        debug_assert!(slot.out == 0 && slot.pool != NO_POOL);
        if slot.held.0 < slot.held.1 {
            super::ranges::release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        let key = again_key(PoolKey(slot.pool));
        self.waiting.park(&mut self.slots, index, key);
        if !planted(Planted::WaitsCounted) {
            self.leave_time(index);
        }
    }

    /// Who was told to come again may.
    pub(super) fn pool_again(&mut self, key: PoolKey) {
        self.woken.push_back((again_key(key), None));
    }

    fn tell_again(&mut self, key: PoolKey, shard: ShardId) {
        if shard == self.id {
            self.pool_again(key);
        } else {
            self.outbox.push_back((shard, ShardMessage::PoolAgain { key }));
        }
    }

    /// Tells the home whether the kernel still has what may change the places of a request that has ended.
    #[cold]
    pub(super) fn tell_pool_late(&mut self, index: u32, late: bool) {
        let key = PoolKey(self.slots[index].pool);
        let home = self.pools.sides[key.index()].home_shard;
        if home == self.id {
            self.pool_is_late(key, late);
        } else {
            self.outbox.push_back((home, ShardMessage::PoolLate { key, late }));
        }
    }

    /// The home wants everything that has begun on this shard to have ended.
    pub(super) fn pool_turn(&mut self, key: PoolKey, home: ShardId, number: u64) {
        let side = &mut self.pools.sides[key.index()];
        side.home_shard = home;
        let before = side.time;
        side.time ^= 1;
        side.draining = Some(number);
        if side.users[usize::from(before)] == 0 {
            self.time_has_run_out(key);
        }
    }

    #[cold]
    fn time_has_run_out(&mut self, key: PoolKey) {
        let side = &mut self.pools.sides[key.index()];
        let Some(number) = side.draining.take() else { return };
        let home = side.home_shard;
        if home == self.id {
            self.pool_turned(key, number);
        } else {
            self.outbox.push_back((home, ShardMessage::PoolTurned { key, number }));
        }
    }

    /// Advances a slot with nothing out at the end of the call: for callers that have no sink, or would recurse without bound.
    pub(super) fn resume(&mut self, index: u32) {
        self.pools.resumed.push_back(index);
    }

    /// Lets go on whoever can. Nobody is left who was told something: who is told to come again waits for that before it is said.
    #[cold]
    pub(super) fn work_off_pools(&mut self, sink: &mut impl LeafSink) {
        loop {
            while let Some((index, generation, told)) = self.pools.told.pop_front() {
                let slot = &mut self.slots[index];
                if slot.generation != generation {
                    continue;
                }
                slot.out -= 1;
                self.pools.works[index as usize].told = Some(told);
                self.advance(index, sink);
            }
            while let Some(index) = self.pools.resumed.pop_front() {
                self.advance(index, sink);
            }
            while let Some((key, number)) = self.pools.copies.pop_front() {
                self.write_copy(key, number, sink);
            }
            while let Some((key, number)) = self.pools.turning.pop_front() {
                self.pool_turn(key, self.id, number);
            }
            let Some(key) = self.pools.driven.pop_front() else { break };
            self.drive_pool(key, sink);
        }
    }

    /// Brings an answer to whoever asked.
    pub(super) fn pool_tell(&mut self, (from, slot, generation): (ShardId, u32, u32), told: PoolTold) {
        if from == self.id {
            self.pools.told.push_back((slot, generation, told));
        } else {
            self.outbox.push_back((from, ShardMessage::PoolTold { slot, generation, told }));
        }
    }

    /// An answer of another shard has come.
    pub(super) fn pool_told(&mut self, slot: u32, generation: u32, told: PoolTold) {
        self.pools.told.push_back((slot, generation, told));
    }
}
