//! A shard: one core's share of the engine. Requests in, leaf I/Os out, results back; sans-I/O.
//!
//! A shard is single-threaded and owns all it changes. What shards share is the range table and
//! the maps of touched regions (atomics); everything else they tell each other by message.
//!
//! One request is one slot. It is planned in steps; a step's leaf I/Os are all answered before the
//! next step is planned, and nearly every request is one step. A request that must wait for
//! something other than a leaf I/O (a range that is held, a bit that is not durable yet) waits in a
//! list and is planned again when that may have changed.

mod at_once;
mod claiming;
mod compute;
mod data_step;
mod devices;
mod entering;
mod failing;
mod finish;
mod flush_step;
mod gather;
mod home;
mod journal;
mod late;
mod partial;
mod pools;
mod ranges;
mod replicated;
mod row_sync;
mod rows;
mod scratch;
mod slots;
pub mod sync;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use at_once::AtOnce;
pub use devices::DeviceCounters;
use devices::Devices;
use gather::Gathers;
use home::Home;
pub use home::RegionCall;
use journal::Journals;
pub use journal::{InJournal, LogRequest};
use partial::{Partial, Partials};
use pools::Pools;
pub use pools::{PoolAsk, PoolCall, PoolNext, PoolTold, Reservations, Soon};
use rows::Works;
use scratch::Scratch;
pub use scratch::{SCRATCH_BYTES, SCRATCH_BYTES_MIN};
use slots::{Slab, State, WaitLists};
use sync::{SyncDone, Syncs};
use waiting::{log_key, range_key, region_key};

use crate::claims::{Claim, Claims};
use crate::io::{
    Buf, Completion, Cookie, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafError, LeafId, LeafIo,
    LeafResult, LeafSink, META_BLOCKS, Op, REQUEST_BYTES_MAX, Request, ShardId,
};
use crate::late::LateRanges;
use crate::layout::DeviceLayout;
use crate::limits::{GATHERS_MAX, JOURNAL_IOS_MAX, Limits, PARTS_MAX, POOL_IOS_MAX, SLOTS_MAX, SYNCS_MAX};
use crate::mirror::Loads;
use crate::overlap::{Bucket, RangeTable};
use crate::plan::{Plan, carries_data};
use crate::planted::{Planted, planted};
use crate::trouble::Trouble;
use crate::volume::PoolKey;

/// What all shards of an engine share.
#[derive(Debug)]
pub struct Shared {
    ranges: RangeTable,
    /// Of volumes. Who holds a range of a volume waits for ranges of the pool's members: had these words in common, he might wait for
    /// himself.
    volume_ranges: RangeTable,
    claims: Claims,
    late: LateRanges,
    shards: u16,
}

impl Shared {
    /// The common part of an engine of `shards` shards.
    pub fn new(shards: u16, limits: &Limits) -> Shared {
        let late = LateRanges::new(limits.slots as usize);
        let ranges = RangeTable::new(limits.range_table_bits);
        // Only while blocks get their places, or are taken away, something is held there.
        let volume_ranges = RangeTable::new(limits.range_table_bits.saturating_sub(2).max(1));
        let claims = Claims::new(limits.range_table_bits, limits.slots as usize);
        Shared { ranges, volume_ranges, claims, late, shards }
    }

    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// The claims of requests to the ranges that they change.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The table of ranges being written.
    pub fn ranges(&self) -> &RangeTable {
        &self.ranges
    }

    /// The same of volumes.
    pub fn volume_ranges(&self) -> &RangeTable {
        &self.volume_ranges
    }
}

/// What one shard tells another. Delivered in order between each two shards.
#[derive(Clone, Debug)]
pub enum ShardMessage {
    /// A word of the range table was given back.
    Released(Bucket),
    /// To the home of an array's regions: somebody wants to read or write this one.
    Need {
        /// The array.
        device: DeviceId,
        /// The region.
        region: u32,
    },
    /// From that home: something has changed for regions of this block, or cannot.
    Changed {
        /// The array.
        device: DeviceId,
        /// The block of bits.
        block: u32,
        /// Why not.
        error: Option<LeafError>,
    },
    /// To the home of an array with parity: an op is to be put into the journal.
    Log {
        /// The array.
        device: DeviceId,
        /// What and for whom.
        request: LogRequest,
    },
    /// From that home: it is durable there; or why not.
    Logged {
        /// Who asked.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// Which of its ops.
        op: u8,
        /// Where.
        result: Result<InJournal, ErrorKind>,
    },
    /// To that home: an entry of this batch is in its place.
    InPlace {
        /// The array.
        device: DeviceId,
        /// The run whose batch it is.
        run: u64,
        /// The batch.
        sequence: u64,
    },
    /// To that home: what was answered before is to be durable.
    Settle {
        /// The array.
        device: DeviceId,
        /// Who asks.
        from: ShardId,
        /// Its slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    },
    /// From that home: a member is about to be left out, and nothing of a row that is only marked is to be under way.
    Still {
        /// The array.
        device: DeviceId,
        /// Who wants to hear of it.
        home: ShardId,
        /// The call that waits for it.
        call: u64,
    },
    /// To that home: nothing is.
    IsStill {
        /// The array.
        device: DeviceId,
        /// The call.
        call: u64,
        /// The disks of members on which some of such a row is not in place.
        failed: Vec<LeafId>,
    },
    /// To the home of a pool: a request to one of its volumes asks something.
    PoolAsk {
        /// The pool.
        key: PoolKey,
        /// Who asks.
        from: ShardId,
        /// Its slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// What.
        ask: PoolAsk,
    },
    /// From that home: the answer.
    PoolTold {
        /// Who asked.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// The answer.
        told: PoolTold,
    },
    /// From that home: another time begins; when the one before has run out it is to be told.
    PoolTurn {
        /// The pool.
        key: PoolKey,
        /// Its home.
        home: ShardId,
        /// The barrier.
        number: u64,
    },
    /// From that home: who was told to come again may.
    PoolAgain {
        /// The pool.
        key: PoolKey,
    },
    /// To that home: a disk has given back, or not, what it was late with, and what a request to one of the pool's volumes may still have changed.
    PoolLate {
        /// The pool.
        key: PoolKey,
        /// It has not.
        late: bool,
    },
    /// From that home: the pool has left; when nothing of it is out any more it is to be told. The last that it says of this pool.
    PoolLeft {
        /// The pool.
        key: PoolKey,
        /// What was its home.
        home: ShardId,
    },
    /// To that home: nothing is. The last that it hears of this pool.
    PoolEnded {
        /// The pool.
        key: PoolKey,
    },
    /// To that home: it has.
    PoolTurned {
        /// The pool.
        key: PoolKey,
        /// The barrier.
        number: u64,
    },
    /// From that home: it is.
    Settled {
        /// Who asked.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// Whether it succeeded.
        result: Result<(), ErrorKind>,
    },
}

/// One core's share of the engine. See the module's page.
pub struct Shard {
    id: ShardId,
    shared: Arc<Shared>,
    slots: Slab,
    devices: Devices,
    plan: Plan,
    waiting: WaitLists,
    home: Home,
    loads: Loads,
    syncs: Syncs,
    sync_done: VecDeque<SyncDone>,
    troubles: VecDeque<Trouble>,
    done: Vec<Completion>,
    /// Of those, as many may be waiting when another request is answered at once.
    done_max: usize,
    released: VecDeque<u64>,
    outbox: VecDeque<(ShardId, ShardMessage)>,
    /// What may have changed for those who wait; worked off at the end of each call.
    woken: VecDeque<(u64, Option<LeafError>)>,
    /// Slots that the journal of an array with parity has answered.
    replies: VecDeque<u32>,
    works: Works,
    gathers: Gathers,
    journals: Journals,
    /// Homes of journals that wait for this shard to have nothing of a marked row under way.
    asked_still: Vec<journal::Asked>,
    pools: Pools,
    partials: Partials,
    /// Requests that wait for their frontend's word: see [`entering`].
    entered: Vec<u32>,
    /// Memory for rows, for batches of journals, and for gathers, from when the first array with parity is served.
    scratch: Option<Scratch>,
    journal_scratch: Option<Scratch>,
    gather_scratch: Option<Scratch>,
    in_flight: u32,
}

impl Shard {
    /// A shard with all the memory that it will ever need.
    ///
    /// # Panics
    /// When the limits exceed what a cookie can name.
    pub fn new(id: ShardId, limits: &Limits, shared: Arc<Shared>) -> Shard {
        assert!(limits.slots <= SLOTS_MAX, "more slots than a cookie can name");
        Shard {
            id,
            slots: Slab::new(
                limits.slots,
                META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX + GATHERS_MAX + PARTS_MAX + POOL_IOS_MAX,
            ),
            devices: Devices::new(limits.devices),
            plan: Plan::new(),
            waiting: WaitLists::new(),
            home: Home::new(),
            loads: Loads::new(),
            syncs: Syncs::new(),
            sync_done: VecDeque::with_capacity(SYNCS_MAX as usize),
            troubles: VecDeque::with_capacity(256),
            // What is answered at once needs no slot: as much again.
            done: Vec::with_capacity(2 * limits.slots as usize),
            done_max: limits.slots as usize,
            released: VecDeque::with_capacity(limits.slots as usize),
            outbox: VecDeque::with_capacity(4 * limits.slots as usize),
            woken: VecDeque::with_capacity(4 * limits.slots as usize),
            replies: VecDeque::with_capacity(limits.slots as usize),
            works: Works::new(),
            gathers: Gathers::new(limits.slots),
            journals: Journals::new(),
            asked_still: Vec::new(),
            pools: Pools::new(limits.slots),
            partials: Partials::default(),
            entered: Vec::with_capacity(limits.slots as usize),
            scratch: None,
            journal_scratch: None,
            gather_scratch: None,
            in_flight: 0,
            shared,
        }
    }

    /// Which shard this is.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Takes a request in. `Err` means it was refused at once and no completion follows.
    ///
    /// # Errors
    /// `NoDevice`, `Invalid` (unaligned, beyond the end, too long), `Busy` (all slots in use), `TimedOut` (a write to
    /// this place ran into its time limit, and the kernel still has it; or so many requests of the device have that the
    /// shard would run out of memory for others, see [`crate::limits::LATE_MAX`]).
    // Always: as a call of its own, saving and restoring registers was a fifth of a small request's cost.
    #[inline(always)]
    pub fn submit(&mut self, request: &Request, sink: &mut impl LeafSink) -> Result<(), IoError> {
        self.take_in::<false>(request, sink)
    }

    /// `ENTERS`: one that changes the device waits when it has its claim ([`entering`]).
    #[inline(always)]
    fn take_in<const ENTERS: bool>(&mut self, request: &Request, sink: &mut impl LeafSink) -> Result<(), IoError> {
        let device = self.devices.get_mut(request.device).ok_or(IoError::of(ErrorKind::NoDevice))?;
        let layout = device.current.as_deref().ok_or(IoError::of(ErrorKind::NoDevice))?;
        if check(request, layout).is_err() {
            return self.submit_partial(request, ENTERS, sink);
        }
        if layout.read_only && request.op != Op::Read {
            if request.op != Op::Flush {
                return Err(IoError::of(ErrorKind::ReadOnly));
            }
            if self.done.len() >= self.done_max {
                return Err(IoError::of(ErrorKind::Busy));
            }
            // Nothing was written that could be made durable.
            device.counters.count(request.op, 0, false);
            self.done.push(Completion { tag: request.tag, result: Ok(()), buffer_busy: false });
            return Ok(());
        }
        if device.late_full {
            return Err(IoError::of(ErrorKind::TimedOut));
        }
        let (start, end) = (request.offset, request.offset + request.len);
        if mutates(request.op) && self.shared.late.covers(request.device, start, end) {
            return Err(IoError::of(ErrorKind::TimedOut));
        }
        let is_entered = ENTERS && mutates(request.op);
        let small = matches!(request.op, Op::Read | Op::Write) && request.len.wrapping_sub(1) < LEAF_BYTES_MAX;
        // The short ways begin at once.
        let small = small && !is_entered;
        // A request of the queue came earlier: this one must not overtake it.
        let small = small && !(request.op == Op::Write && self.shared.claims.is_queued(request.device, start, end));
        let (mut place, mut begun) = (None, None);
        if small && layout.ordered {
            match self.mirror_at_once(request, sink) {
                AtOnce::Done => return Ok(()),
                AtOnce::No => {}
                AtOnce::Begun(claim) => begun = Some(claim),
            }
        } else if small {
            place = layout.single_place(request.offset, request.len);
            if let Some((leaf, offset)) = place
                && self.done.len() < self.done_max
                // A longer request may have I/O under way to the same blocks of a disk that answers this one within the call.
                && (request.op == Op::Read
                    || self.in_flight == 0 && self.shared.shards == 1
                    || self.shared.claims.is_free(request.device, start, end))
                && let Some(result) = sink.at_once(leaf, request.op, offset, request.len, request.buf)
            {
                // Nothing is left to wait for, so that nothing has to be kept: no slot, no cookie.
                let result =
                    result.map_err(|e| IoError { kind: e.kind, leaf: Some(leaf), errno: e.errno, offset: start });
                device.counters.count(request.op, request.len, result.is_err());
                self.done.push(Completion { tag: request.tag, result, buffer_busy: false });
                return Ok(());
            }
            if place.is_none()
                && let Some(result) = self.volume_in_one_place(request, sink)
            {
                return result;
            }
        }
        // In parts: a whole request would be put together in memory, also on the short way.
        let Request { device, op, flags, offset, len, buf, tag } = *request;
        self.submit_slot(
            device,
            (op, flags),
            (offset, len),
            (buf.addr, buf.region),
            tag,
            (place, begun, is_entered),
            sink,
        )
    }

    /// Begins a request that is one leaf I/O: no step comes after it.
    #[inline]
    fn begin_single(&mut self, index: u32, (leaf, offset): (LeafId, u64), sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        slot.cursor = slot.end;
        slot.out = 1;
        slot.single = true;
        let cookie = slots::cookie(index, slot.generation, leaf);
        sink.submit(&LeafIo::simple(leaf, slot.op, slot.flags, offset, slot.end - slot.start, slot.buf, cookie));
    }

    /// The rest of [`Shard::submit`], for a request that must be remembered until its I/O has ended.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn submit_slot(
        &mut self,
        device: DeviceId,
        (op, flags): (Op, Flags),
        (start, len): (u64, u64),
        (addr, region): (u64, u16),
        tag: u64,
        (place, begun, is_entered): (Option<(LeafId, u64)>, Option<Claim>, bool),
        sink: &mut impl LeafSink,
    ) -> Result<(), IoError> {
        let (id, buf) = (device.0, Buf { addr, region });
        let index = self.slots.take().ok_or(IoError::of(ErrorKind::Busy))?;
        let device = self.devices.at_mut(id);
        device.users += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.prepare(op, flags, start, len, buf, tag);
        slot.device = id;
        slot.version = device.version;
        if let Some(claim) = begun {
            // Part of it is written; it has its place in the order of writes, and with the claim also its range.
            slot.claim = claim;
            if claim == Claim::Held {
                slot.held = (slot.start, slot.end);
            }
        } else if mutates(op) && len > 0 {
            slot.claim = Claim::Wanted;
            if is_entered {
                slot.is_entered = true;
                self.entered.push(index);
            }
        }
        if let Some((leaf, offset)) = place
            && let Some(claim) = self.claim_of_one_place(DeviceId(id), op, start, start + len)
        {
            // Nearly every small request.
            self.slots[index].claim = claim;
            self.begin_single(index, (leaf, offset), sink);
            return Ok(());
        }
        if self.is_to_volume(DeviceId(id)) {
            self.begin_volume(index);
        }
        if self.devices.at(id).current.as_ref().is_some_and(|l| l.mirror().is_some_and(|m| m.failed)) {
            self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
        }
        self.advance(index, sink);
        if self.has_woken() {
            self.work_off(sink);
        }
        Ok(())
    }

    /// Where all of a range stands, if that is one place of one leaf and nothing has to be true before it is read: for a
    /// driver that can show the leaf's own memory instead of copying it. When it does, tell by [`Shard::count_read`].
    pub fn place_to_read(&self, device: DeviceId, offset: u64, len: u64) -> Option<(LeafId, u64)> {
        let layout = self.devices.get(device)?.current.as_deref()?;
        let request = Request { device, op: Op::Read, flags: Flags::NONE, offset, len, buf: Buf::NONE, tag: 0 };
        check(&request, layout).ok()?;
        if len == 0 { None } else { layout.single_place(offset, len) }
    }

    /// Whether what one disk of the device does not give may be had from another one.
    pub fn is_redundant(&self, device: DeviceId) -> bool {
        let layout = self.devices.get(device).and_then(|device| device.current.as_deref());
        layout.and_then(DeviceLayout::mirror).is_some_and(|mirror| !mirror.failed)
    }

    /// Counts a read of so many bytes that was answered without the engine.
    pub fn count_read(&mut self, device: DeviceId, bytes: u64) {
        if let Some(device) = self.devices.get_mut(device) {
            device.counters.count(Op::Read, bytes, false);
        }
    }

    /// A leaf I/O has ended. One that names a slot which has since moved on is ignored.
    #[inline]
    pub fn leaf_done(&mut self, cookie: Cookie, result: LeafResult, sink: &mut impl LeafSink) {
        let Some((index, leaf)) = self.slots.find(cookie) else { return };
        let slot = &mut self.slots[index];
        debug_assert!(slot.out > 0, "more results than I/Os");
        slot.out -= 1;
        if slot.balanced {
            let took_ns = sink.now_ns().saturating_sub(slot.begun_ns);
            match result {
                Err(error) if error.kind == ErrorKind::Slow => self.loads.give_up(leaf, took_ns),
                _ => self.loads.end(leaf, took_ns),
            }
        }
        if let Err(error) = result {
            self.leaf_failed(index, leaf, error);
        }
        let slot = &self.slots[index];
        if slot.out == 0 {
            if slot.single {
                self.finish(index);
                if self.has_woken() {
                    self.work_off(sink);
                }
                return;
            }
            self.answered(index, sink);
        }
    }

    /// Whether requests have ended that nobody was told of.
    #[inline]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How many requests can have ended between two calls of [`Shard::swap_done`].
    pub fn done_capacity(&self) -> usize {
        2 * self.done_max
    }

    /// Fills `batch` with the requests that have ended, in that order, and goes on with its memory: give the same vector
    /// back each time, so that nothing is allocated. What was in it is gone.
    #[inline]
    pub fn swap_done(&mut self, batch: &mut Vec<Completion>) {
        batch.clear();
        std::mem::swap(&mut self.done, batch);
    }

    /// The next message to deliver to another shard.
    #[inline]
    pub fn pop_message(&mut self) -> Option<(ShardId, ShardMessage)> {
        self.outbox.pop_front()
    }

    /// Takes a message of another shard in.
    pub fn message(&mut self, message: ShardMessage, sink: &mut impl LeafSink) {
        match message {
            ShardMessage::Released(bucket) => self.woken.push_back((range_key(bucket), None)),
            ShardMessage::Changed { device, block, error } => self.woken.push_back((region_key(device, block), error)),
            ShardMessage::Need { device, region } => self.need(device, region, sink),
            ShardMessage::Log { device, request } => self.journal_log(device, request, sink),
            ShardMessage::Logged { slot, generation, op, result } => self.row_logged(slot, generation, op, result),
            ShardMessage::InPlace { device, run, sequence } => self.journal_in_place(device, run, sequence, sink),
            ShardMessage::Settle { device, from, slot, generation } => {
                self.journal_settle(device, (from, slot, generation), sink);
            }
            ShardMessage::Still { device, home, call } => self.still(device, home, call),
            ShardMessage::IsStill { device, call, failed } => self.journal_is_still(device, call, &failed),
            ShardMessage::Settled { slot, generation, result } => self.row_settled(slot, generation, result),
            ShardMessage::PoolAsk { key, from, slot, generation, ask } => {
                self.pool_asked(key, (from, slot, generation), ask, sink);
            }
            ShardMessage::PoolTold { slot, generation, told } => self.pool_told(slot, generation, told),
            ShardMessage::PoolTurn { key, home, number } => self.pool_turn(key, home, number),
            ShardMessage::PoolTurned { key, number } => self.pool_turned(key, number),
            ShardMessage::PoolAgain { key } => self.pool_again(key),
            ShardMessage::PoolLate { key, late } => self.pool_is_late(key, late),
            ShardMessage::PoolLeft { key, home } => self.pool_left(key, home),
            ShardMessage::PoolEnded { key } => self.pool_ended(key),
        }
        self.work_off(sink);
    }

    /// Makes `layout` the one that new requests of `device` are planned with; none stops the device.
    ///
    /// Returns the version that went out of use, if any; [`Shard::pop_drained`] gives it once its
    /// last request on this shard has ended. Call on every shard.
    ///
    /// Ends a freeze of the device. Everybody who waits goes on with the new layout.
    pub fn publish(
        &mut self,
        device: DeviceId,
        layout: Option<Arc<DeviceLayout>>,
        sink: &mut impl LeafSink,
    ) -> Option<u32> {
        layout.iter().flat_map(|layout| layout.leaves()).for_each(|leaf| self.loads.know(*leaf));
        if layout.as_ref().is_some_and(|layout| layout.parity().is_some() || layout.takes_sectors()) {
            self.prepare_rows(sink);
        }
        if layout.as_ref().is_some_and(|layout| layout.takes_sectors()) {
            self.partials.prepare(self.done_max as u32, self.devices.len());
        }
        let old = self.devices.publish(device, layout);
        self.home_published(device, sink);
        self.journal_published(device, sink);
        self.wake_all(device, sink);
        old
    }

    /// The next layout version whose last request on this shard has ended.
    pub fn pop_drained(&mut self) -> Option<(DeviceId, u32)> {
        self.devices.pop_drained()
    }

    /// Requests accepted and not yet answered, or answered while the kernel still has their buffer.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// What a device did on this shard since start.
    pub fn counters(&self, device: DeviceId) -> DeviceCounters {
        self.devices.get(device).map(|d| d.counters).unwrap_or_default()
    }

    /// The layout that new requests of the device are planned with.
    pub fn layout(&self, device: DeviceId) -> Option<&Arc<DeviceLayout>> {
        self.devices.get(device)?.current.as_ref()
    }

    /// Slots in use, those of the engine's own writes included: for tests and for a clean stop.
    pub fn slots_in_use(&self) -> u32 {
        self.slots.in_use()
    }

    /// Parts of requests to volumes, I/Os of pools, pages of these, and requests that pools count: for tests and for a clean stop.
    pub fn pools_in_use(&self) -> u32 {
        self.pools.in_use()
    }

    /// Takes the memory that arrays with parity, pools and devices that take sectors need, once.
    fn prepare_rows(&mut self, sink: &mut impl LeafSink) {
        if self.scratch.is_none() {
            let (base, bytes) = sink.scratch();
            let [rows, journal, gather, pools] = scratch::divide(base, bytes).map(Some);
            (self.scratch, self.journal_scratch, self.gather_scratch) = (rows, journal, gather);
            self.pools.memory = pools;
            self.works.prepare();
        }
    }

    /// All leaf I/Os of a slot's step are answered.
    #[inline]
    fn answered(&mut self, index: u32, sink: &mut impl LeafSink) {
        if let Some(block) = self.slots.reserved_block(index) {
            self.home_answered(block, index, sink);
        } else if let Some(io) = self.slots.journal_io(index) {
            self.journal_answered(io, index, sink);
        } else {
            self.advance(index, sink);
        }
        if self.has_woken() {
            self.work_off(sink);
        }
    }

    /// Takes a slot with no I/O out as far as it goes: to its next step, to a list, or to its end.
    #[inline]
    fn advance(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        debug_assert_eq!((slot.out, slot.state), (0, State::Active));
        if slot.work != slots::NONE && self.is_being_logged(index) {
            let slot = &self.slots[index];
            let key = log_key(DeviceId(slot.device));
            return self.waiting.park(&mut self.slots, index, key);
        }
        let slot = &self.slots[index];
        if slot.claim.is_wanted() && slot.error.is_none() && !self.claim_range(index) {
            return;
        }
        if self.slots[index].is_entered {
            return;
        }
        if self.slots[index].partial == Partial::Between {
            return self.partial_go(index, sink);
        }
        if self.slots[index].pool != slots::NO_POOL {
            return self.volume_go(index, sink);
        }
        let slot = &mut self.slots[index];
        if slot.error.is_none() && self.is_held(index) {
            return;
        }
        let slot = &mut self.slots[index];
        if slot.error.is_some() {
            if slot.work != slots::NONE {
                self.drop_work(index, sink);
            }
            return self.finish(index);
        }
        if slot.work != slots::NONE {
            if self.row_go(index, sink) {
                self.advance(index, sink);
            }
            return;
        }
        if slot.sync != slots::NONE {
            if !self.sync_step(index, sink) {
                self.finish(index);
            }
            return;
        }
        if slot.again {
            slot.again = false;
            slot.cursor = slot.step;
        }
        if !slot.flushing && slot.cursor < slot.end {
            self.shorten_claim(index);
            return self.data_step(index, sink);
        }
        let no_data = matches!(slot.op, Op::WriteZeroes | Op::Discard) && !planted(Planted::ZeroesNotFlushed);
        if !slot.flushing && slot.flags.has(Flags::FUA) && (no_data || slot.alone) {
            // Operations without data have no FUA of their own below, and one copy in a journal is not enough: a flush makes them
            // durable.
            slot.flushing = true;
            slot.cursor = 0;
        }
        if slot.flushing && self.any_flush_step(index, sink) {
            return;
        }
        if self.devices.at(self.slots[index].device).replicated && self.is_kept(index, sink) {
            return;
        }
        self.finish(index);
    }
}

/// Whether the operation may change what is on the disks.
#[inline]
fn mutates(op: Op) -> bool {
    !matches!(op, Op::Read | Op::Flush)
}

/// Whether the layout can take this request as it is.
#[inline]
fn check(request: &Request, layout: &DeviceLayout) -> Result<(), IoError> {
    check_range(request, layout, layout.block_bytes())
}

/// Whether a request is inside the device, not too long, and of whole units of so many bytes.
#[inline]
fn check_range(request: &Request, layout: &DeviceLayout, unit_bytes: u32) -> Result<(), IoError> {
    let mask = u64::from(unit_bytes) - 1;
    let inside = request.offset <= layout.size_bytes() && request.len <= layout.size_bytes() - request.offset;
    let aligned = (request.offset | request.len) & mask == 0;
    let short = !carries_data(request.op) || request.len <= REQUEST_BYTES_MAX;
    if inside && aligned && short { Ok(()) } else { Err(IoError::of(ErrorKind::Invalid)) }
}
