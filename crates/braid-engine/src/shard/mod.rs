//! A shard: one core's share of the engine. It takes requests and results of leaf I/Os, and issues leaf I/Os; it is
//! sans-I/O.
//!
//! A shard is single-threaded and owns everything that it changes, except for the state that shards share: the range
//! tables, the claims, the late ranges, the maps of regions and of volumes, the leases, and the records of missed
//! writes, lost stripes and retired marks. In the normal case shared state is only atomics; contended claims, late
//! ranges and retired marks also take a lock. Everything else shards send each other as messages.
//!
//! A request occupies one slot. It is planned in steps: the next step is planned when all leaf I/Os of the previous one
//! have completed. Nearly every request is one step. A request that must wait for something other than a leaf I/O (a
//! range that another request holds, a bit that is not durable yet) waits in a list, and is planned again when that may
//! have changed.

mod claiming;
mod compute;
mod data_step;
mod devices;
mod entering;
mod fast_path;
mod faults;
mod finish;
mod flush_step;
mod gather;
mod home;
mod journal;
mod journal_state;
mod late;
mod partial;
mod pool_state;
mod pools;
mod ranges;
mod replicated;
mod scratch;
mod slots;
mod stripe_sync;
mod stripe_work;
mod stripes;
mod sync;
pub mod sync_parts;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

pub use devices::DeviceCounters;
use devices::Devices;
use fast_path::FastPath;
use gather::Gathers;
pub use home::RegionCall;
use home::RegionHome;
use journal_state::{DrainRequest, Journals};
pub use journal_state::{InJournal, LogRequest};
use partial::Partials;
use pool_state::Pools;
pub use pool_state::{PoolCall, PoolNext, PoolReply, PoolRequest, Reservations};
pub use pools::UpcomingRequest;
use scratch::Scratch;
pub use scratch::{SCRATCH_BYTES, SCRATCH_BYTES_MIN};
use slots::{Partial, Slab, SlotState, WaitLists};
use stripe_work::StripeWorks;
use sync_parts::{SyncDone, Syncs};
use waiting::{log_key, range_key, region_key};

use crate::claims::{Claim, Claims};
use crate::fault::Fault;
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
use crate::volume::PoolKey;

/// The state that all shards of an engine share.
#[derive(Debug)]
pub struct Shared {
    ranges: RangeTable,
    /// The ranges of volumes. A request that holds a range of a volume waits for ranges of the pool's members: if both
    /// used the same words of one table, it could wait for itself.
    volume_ranges: RangeTable,
    claims: Claims,
    late: LateRanges,
    shards: u16,
}

impl Shared {
    /// Creates the shared state of an engine of `shards` shards.
    pub fn new(shards: u16, limits: &Limits) -> Shared {
        let late = LateRanges::new(limits.slots as usize);
        let ranges = RangeTable::new(limits.range_table_bits);
        // Ranges are held here only while blocks are allocated or unmapped.
        let volume_ranges = RangeTable::new(limits.range_table_bits.saturating_sub(2).max(1));
        let claims = Claims::new(limits.range_table_bits, limits.slots as usize);
        Shared { ranges, volume_ranges, claims, late, shards }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Returns the claims of requests to the ranges that they change.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the table of ranges being written.
    pub fn ranges(&self) -> &RangeTable {
        &self.ranges
    }

    /// Returns the table of volumes' ranges being written.
    pub fn volume_ranges(&self) -> &RangeTable {
        &self.volume_ranges
    }
}

/// A message from one shard to another. Messages between two shards are delivered in order.
#[derive(Clone, Debug)]
pub enum ShardMessage {
    /// A word that requests wait on was released, or a request has left the queue of claims: requests that wait for
    /// this bucket try again.
    Released(Bucket),
    /// To the home shard of an array's regions: a request waits to read or write this region.
    NeedRegion {
        /// The array.
        device: DeviceId,
        /// The region.
        region: u32,
    },
    /// From that home shard: the state of regions of this bitmap block has changed, or the change failed.
    RegionsChanged {
        /// The array.
        device: DeviceId,
        /// The bitmap block.
        block: u32,
        /// Why it failed.
        error: Option<LeafError>,
    },
    /// To the home shard of an array with parity: an op is to be logged in the journal.
    Log {
        /// The array.
        device: DeviceId,
        /// The op, and the slot that requests it.
        request: LogRequest,
    },
    /// From that home shard: the op is durable in the journal, or why it is not.
    Logged {
        /// The requesting slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// The index of the op among the slot's ops.
        op: u8,
        /// Its location in the journal.
        result: Result<InJournal, ErrorKind>,
    },
    /// To that home shard: an entry of this batch has been written in place.
    EntryInPlace {
        /// The array.
        device: DeviceId,
        /// The run that the batch belongs to.
        run: u64,
        /// The batch's sequence number.
        sequence: u64,
    },
    /// To that home shard: writes that were answered before are to be made durable.
    FlushJournal {
        /// The array.
        device: DeviceId,
        /// The requesting shard.
        from: ShardId,
        /// The requesting slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    },
    /// From that home shard: a member is about to be dropped. Each shard reports when it has no write in flight to a
    /// stripe that is only marked.
    DrainMarked {
        /// The array.
        device: DeviceId,
        /// The home shard, which receives the report.
        home: ShardId,
        /// The call that waits for it.
        call: u64,
    },
    /// To that home shard: no such write is in flight.
    MarkedDrained {
        /// The array.
        device: DeviceId,
        /// The call.
        call: u64,
        /// The disks of members that failed a write to such a stripe.
        failed: Vec<LeafId>,
    },
    /// To the home shard of a pool: a request to one of its volumes needs something.
    PoolRequest {
        /// The pool.
        key: PoolKey,
        /// The requesting shard.
        from: ShardId,
        /// The requesting slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// What it needs.
        ask: PoolRequest,
    },
    /// From that home shard: the reply.
    PoolReply {
        /// The requesting slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// The reply.
        told: PoolReply,
    },
    /// From that home shard: a new counting period begins. The shard reports when all requests of the previous period
    /// have ended.
    PoolBeginPeriod {
        /// The pool.
        key: PoolKey,
        /// The pool's home shard.
        home: ShardId,
        /// The barrier's number.
        number: u64,
    },
    /// From that home shard: requests that wait to retry may do so.
    PoolRetry {
        /// The pool.
        key: PoolKey,
    },
    /// To that home shard: a request to one of the pool's volumes has I/O that may still change a disk after its time
    /// limit, or has no longer.
    PoolLate {
        /// The pool.
        key: PoolKey,
        /// It has such I/O.
        late: bool,
    },
    /// From that home shard: the pool is withdrawn. The shard reports when none of its I/O is in flight. This is the
    /// last message about this pool to the shard.
    PoolWithdrawn {
        /// The pool.
        key: PoolKey,
        /// The shard that was its home.
        home: ShardId,
    },
    /// To that home shard: none of the pool's I/O is in flight on the sending shard. This is the last message about
    /// this pool from the shard.
    PoolDrained {
        /// The pool.
        key: PoolKey,
    },
    /// To that home shard: all requests of the previous period have ended.
    PoolPeriodEnded {
        /// The pool.
        key: PoolKey,
        /// The barrier's number.
        number: u64,
    },
    /// From that home shard: the writes are durable, or why not.
    JournalFlushed {
        /// The requesting slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// Whether it succeeded.
        result: Result<(), ErrorKind>,
    },
}

/// One core's share of the engine. See the module's documentation.
pub struct Shard {
    id: ShardId,
    shared: Arc<Shared>,
    slots: Slab,
    devices: Devices,
    plan: Plan,
    waiting: WaitLists,
    home: RegionHome,
    loads: Loads,
    syncs: Syncs,
    sync_done: VecDeque<SyncDone>,
    faults: VecDeque<Fault>,
    done: Vec<Completion>,
    /// The number of completions in `done` from which on no further request is answered inline.
    done_max: usize,
    released: VecDeque<u64>,
    outbox: VecDeque<(ShardId, ShardMessage)>,
    /// Wait keys whose condition may have changed; processed at the end of each call.
    woken: VecDeque<(u64, Option<LeafError>)>,
    /// Slots that have a reply from the journal of an array with parity.
    replies: VecDeque<u32>,
    works: StripeWorks,
    gathers: Gathers,
    journals: Journals,
    /// Home shards of journals that wait until this shard has no write to a marked stripe in flight.
    drain_requests: Vec<DrainRequest>,
    pools: Pools,
    partials: Partials,
    /// Requests that wait for their frontend to begin them or call them off: see [`entering`].
    entered: Vec<u32>,
    /// Memory for stripes, for batches of journals, and for gathers and partial requests. All of it is taken when the
    /// first device that needs some is published.
    scratch: Option<Scratch>,
    journal_scratch: Option<Scratch>,
    gather_scratch: Option<Scratch>,
    in_flight: u32,
}

impl Shard {
    /// Creates a shard, with all the memory that it will ever need.
    ///
    /// # Panics
    /// If the limits exceed what a cookie can address.
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
            home: RegionHome::new(),
            loads: Loads::new(),
            syncs: Syncs::new(),
            sync_done: VecDeque::with_capacity(SYNCS_MAX as usize),
            faults: VecDeque::with_capacity(256),
            // Requests answered inline need no slot: they get as much space again.
            done: Vec::with_capacity(2 * limits.slots as usize),
            done_max: limits.slots as usize,
            released: VecDeque::with_capacity(limits.slots as usize),
            outbox: VecDeque::with_capacity(4 * limits.slots as usize),
            woken: VecDeque::with_capacity(4 * limits.slots as usize),
            replies: VecDeque::with_capacity(limits.slots as usize),
            works: StripeWorks::new(),
            gathers: Gathers::new(limits.slots),
            journals: Journals::new(),
            drain_requests: Vec::new(),
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

    /// Returns the shard's id.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Submits a request. `Err` means that it was refused at once, and that no completion follows.
    ///
    /// # Errors
    /// `NoDevice`; `Invalid` (unaligned, beyond the end, too long); `Busy` (all slots in use); `ReadOnly`;
    /// `Unsupported`: the request has [`Flags::FAST_ZERO`] and covers no whole block; `TimedOut`: a write to this range
    /// exceeded its time limit and the kernel still has it, or so many requests of the device are in this state that
    /// the shard would run out of memory for others (see [`crate::limits::LATE_MAX`]).
    // Always inlined: as a call of its own, saving and restoring registers was a fifth of a small request's cost.
    #[inline(always)]
    pub fn submit(&mut self, request: &Request, sink: &mut impl LeafSink) -> Result<(), IoError> {
        self.take_in::<false>(request, sink)
    }

    /// Submits a request. With `ENTERS`, a request that changes the device claims its range, and then waits until its
    /// frontend begins it or calls it off ([`entering`]).
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
            // There are no writes to make durable.
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
        // The fast paths begin the request immediately.
        let small = small && !is_entered;
        // A queued request came earlier: this one must not overtake it.
        let small = small && !(request.op == Op::Write && self.shared.claims.is_queued(request.device, start, end));
        let (mut place, mut begun) = (None, None);
        if small && layout.ordered {
            match self.mirror_fast_path(request, sink) {
                FastPath::Done => return Ok(()),
                FastPath::No => {}
                FastPath::Begun(claim) => begun = Some(claim),
            }
        } else if small {
            place = layout.single_place(request.offset, request.len);
            if let Some((leaf, offset)) = place
                && self.done.len() < self.done_max
                // A longer request may have I/O in flight to the same blocks of a disk that completes this one inline.
                && (request.op == Op::Read
                    || self.in_flight == 0 && self.shared.shards == 1
                    || self.shared.claims.is_free(request.device, start, end))
                && let Some(result) = sink.complete_inline(leaf, request.op, offset, request.len, request.buf)
            {
                // The request is complete: it needs neither a slot nor a cookie.
                let result =
                    result.map_err(|e| IoError { kind: e.kind, leaf: Some(leaf), errno: e.errno, offset: start });
                device.counters.count(request.op, request.len, result.is_err());
                self.done.push(Completion { tag: request.tag, result, buffer_busy: false });
                return Ok(());
            }
            if place.is_none()
                && let Some(result) = self.volume_fast_path(request, sink)
            {
                return result;
            }
        }
        // The request is passed in parts: passed whole, it would be assembled in memory on the fast path as well.
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

    /// Begins a request that is a single leaf I/O: no step follows.
    #[inline]
    fn begin_single(&mut self, index: u32, (leaf, offset): (LeafId, u64), sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        slot.cursor = slot.end;
        slot.out = 1;
        slot.single = true;
        let cookie = slots::cookie(index, slot.generation, leaf);
        sink.submit(&LeafIo::simple(leaf, slot.op, slot.flags, offset, slot.end - slot.start, slot.buf, cookie));
    }

    /// Continues [`Shard::submit`] for a request that needs a slot until its I/O has completed.
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
            // Part of it is written. The claim keeps its position in the order of writes, and, if held, its range.
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
            && let Some(claim) = self.claim_single_location(DeviceId(id), op, start, start + len)
        {
            // Nearly every small request takes this path.
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
            self.process_woken(sink);
        }
        Ok(())
    }

    /// Returns the leaf and the offset of a range, if all of it is at one location of one leaf and can be read without
    /// further conditions: for a driver that can expose the leaf's own memory instead of copying it. A driver that does
    /// so reports it by [`Shard::count_read`].
    pub fn location_to_read(&self, device: DeviceId, offset: u64, len: u64) -> Option<(LeafId, u64)> {
        let layout = self.devices.get(device)?.current.as_deref()?;
        let request = Request { device, op: Op::Read, flags: Flags::NONE, offset, len, buf: Buf::NONE, tag: 0 };
        check(&request, layout).ok()?;
        if len == 0 { None } else { layout.single_place(offset, len) }
    }

    /// Returns whether data that one disk of the device cannot supply may be available from another one.
    pub fn is_redundant(&self, device: DeviceId) -> bool {
        let layout = self.devices.get(device).and_then(|device| device.current.as_deref());
        layout.and_then(DeviceLayout::mirror).is_some_and(|mirror| !mirror.failed)
    }

    /// Counts a read of this many bytes that was answered without the engine.
    pub fn count_read(&mut self, device: DeviceId, bytes: u64) {
        if let Some(device) = self.devices.get_mut(device) {
            device.counters.count(Op::Read, bytes, false);
        }
    }

    /// Reports that a leaf I/O has completed. A cookie whose slot has since been reused is ignored.
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
                    self.process_woken(sink);
                }
                return;
            }
            self.answered(index, sink);
        }
    }

    /// Returns whether requests have ended whose completions were not fetched.
    #[inline]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the maximum number of requests that can end between two calls of [`Shard::swap_done`].
    pub fn done_capacity(&self) -> usize {
        2 * self.done_max
    }

    /// Fills `batch` with the completed requests, in the order of completion, and takes over its memory. Its former
    /// content is discarded. A caller that passes the same vector each time causes no allocation.
    #[inline]
    pub fn swap_done(&mut self, batch: &mut Vec<Completion>) {
        batch.clear();
        std::mem::swap(&mut self.done, batch);
    }

    /// Returns the next message to deliver to another shard.
    #[inline]
    pub fn pop_message(&mut self) -> Option<(ShardId, ShardMessage)> {
        self.outbox.pop_front()
    }

    /// Processes a message from another shard.
    pub fn handle_message(&mut self, message: ShardMessage, sink: &mut impl LeafSink) {
        match message {
            ShardMessage::Released(bucket) => self.woken.push_back((range_key(bucket), None)),
            ShardMessage::RegionsChanged { device, block, error } => {
                self.woken.push_back((region_key(device, block), error))
            }
            ShardMessage::NeedRegion { device, region } => self.need(device, region, sink),
            ShardMessage::Log { device, request } => self.journal_log(device, request, sink),
            ShardMessage::Logged { slot, generation, op, result } => self.op_logged(slot, generation, op, result),
            ShardMessage::EntryInPlace { device, run, sequence } => self.journal_in_place(device, run, sequence, sink),
            ShardMessage::FlushJournal { device, from, slot, generation } => {
                self.journal_settle(device, (from, slot, generation), sink);
            }
            ShardMessage::DrainMarked { device, home, call } => self.still(device, home, call),
            ShardMessage::MarkedDrained { device, call, failed } => self.journal_marked_drained(device, call, &failed),
            ShardMessage::JournalFlushed { slot, generation, result } => self.flush_settled(slot, generation, result),
            ShardMessage::PoolRequest { key, from, slot, generation, ask } => {
                self.pool_requested(key, (from, slot, generation), ask, sink);
            }
            ShardMessage::PoolReply { slot, generation, told } => self.pool_replied(slot, generation, told),
            ShardMessage::PoolBeginPeriod { key, home, number } => self.pool_begin_period(key, home, number),
            ShardMessage::PoolPeriodEnded { key, number } => self.pool_period_ended(key, number),
            ShardMessage::PoolRetry { key } => self.pool_retry(key),
            ShardMessage::PoolLate { key, late } => self.pool_is_late(key, late),
            ShardMessage::PoolWithdrawn { key, home } => self.pool_withdrawn(key, home),
            ShardMessage::PoolDrained { key } => self.pool_ended(key),
        }
        self.process_woken(sink);
    }

    /// Makes `layout` the one that new requests of `device` are planned with; `None` stops the device.
    ///
    /// Returns the version that went out of use, if any; [`Shard::pop_drained`] returns it once its last request on
    /// this shard has ended. Must be called on every shard.
    ///
    /// Ends a freeze of the device. All waiting requests continue with the new layout.
    pub fn publish(
        &mut self,
        device: DeviceId,
        layout: Option<Arc<DeviceLayout>>,
        sink: &mut impl LeafSink,
    ) -> Option<u32> {
        layout.iter().flat_map(|layout| layout.leaves()).for_each(|leaf| self.loads.know(*leaf));
        if layout.as_ref().is_some_and(|layout| layout.parity().is_some() || layout.takes_sectors()) {
            self.prepare_scratch(sink);
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

    /// Returns the next layout version whose last request on this shard has ended.
    pub fn pop_drained(&mut self) -> Option<(DeviceId, u32)> {
        self.devices.pop_drained()
    }

    /// Returns the number of requests that are accepted and not yet answered, or answered while the kernel still has
    /// their buffer.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns what the device did on this shard since start.
    pub fn counters(&self, device: DeviceId) -> DeviceCounters {
        self.devices.get(device).map(|d| d.counters).unwrap_or_default()
    }

    /// Returns the layout that new requests of the device are planned with.
    pub fn layout(&self, device: DeviceId) -> Option<&Arc<DeviceLayout>> {
        self.devices.get(device)?.current.as_ref()
    }

    /// Returns the number of slots in use, including those of the engine's own writes: for tests and for a clean stop.
    pub fn slots_in_use(&self) -> u32 {
        self.slots.in_use()
    }

    /// Returns the number of parts of requests to volumes, I/Os of pools, pages of these, and requests that pools
    /// count, that are in use: for tests and for a clean stop.
    pub fn pools_in_use(&self) -> u32 {
        self.pools.in_use()
    }

    /// Takes the memory that arrays with parity, pools and devices that take sectors need, once.
    fn prepare_scratch(&mut self, sink: &mut impl LeafSink) {
        if self.scratch.is_none() {
            let (base, bytes) = sink.scratch();
            let [rows, journal, gather, pools] = scratch::divide(base, bytes).map(Some);
            (self.scratch, self.journal_scratch, self.gather_scratch) = (rows, journal, gather);
            self.pools.memory = pools;
            self.works.prepare();
        }
    }

    /// Continues a slot whose step has completed all of its leaf I/Os.
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
            self.process_woken(sink);
        }
    }

    /// Advances a slot with no I/O in flight: to its next step, to a wait list, or to its end.
    #[inline]
    fn advance(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        debug_assert_eq!((slot.out, slot.state), (0, SlotState::Active));
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
            return self.partial_advance(index, sink);
        }
        if self.slots[index].pool != slots::NO_POOL {
            return self.volume_advance(index, sink);
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
            if self.stripe_advance(index, sink) {
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
        let no_data = matches!(slot.op, Op::WriteZeroes | Op::Discard);
        if !slot.flushing && slot.flags.has(Flags::FUA) && (no_data || slot.alone) {
            // Operations without data have no FUA on the leaf, and a single copy in a journal is not durable enough: a
            // flush makes them durable.
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

/// Returns whether the operation may change the content of the disks.
#[inline]
fn mutates(op: Op) -> bool {
    !matches!(op, Op::Read | Op::Flush)
}

/// Returns an error if the layout cannot take this request as it is.
#[inline]
fn check(request: &Request, layout: &DeviceLayout) -> Result<(), IoError> {
    check_range(request, layout, layout.block_bytes())
}

/// Returns an error unless a request is inside the device, not too long, and of whole units of `unit_bytes`.
#[inline]
fn check_range(request: &Request, layout: &DeviceLayout, unit_bytes: u32) -> Result<(), IoError> {
    let mask = u64::from(unit_bytes) - 1;
    let inside = request.offset <= layout.size_bytes() && request.len <= layout.size_bytes() - request.offset;
    let aligned = (request.offset | request.len) & mask == 0;
    let short = !carries_data(request.op) || request.len <= REQUEST_BYTES_MAX;
    if inside && aligned && short { Ok(()) } else { Err(IoError::of(ErrorKind::Invalid)) }
}
