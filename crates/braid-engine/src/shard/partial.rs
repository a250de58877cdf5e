//! Requests that begin or end within a block, to devices that take whole sectors ([`DeviceLayout::in_sectors`]).
//!
//! Such a request runs in steps, each of which is an ordinary request of whole blocks in the same slot. One that changes something first claims all
//! blocks that it touches ([`crate::claims`]); a read claims none.
//!
//! - A *write* goes in chunks. The first block of a chunk, and the last one, are read where the request covers only a part of them; the request's
//!   bytes are copied over what was read; the chunk is written.
//! - A *read* reads whole blocks, and copies what was asked for.
//! - *Write zeroes* first rewrites the blocks at both ends, then zeroes those between without data. What it has passed over of these its claim
//!   covers no longer.
//! - A *discard* is a hint: the blocks at both ends stay as they are.
//!
//! Invariants:
//!
//! - Between the read and the write of a block no other request changes it: every request that changes blocks claims them, and the claim of a
//!   partial request lasts from before its first step until it is answered; only what it has zeroed or discarded between its ends is released before,
//!   when both ends are written. Steps claim nothing.
//! - Only whole blocks are written, by steps. So what a crash may leave is what it may leave of any write of these blocks: the sectors around are rewritten
//!   with what they held.
//! - Between two steps a request has nothing out, is not counted by a pool, and goes on with the layout of then.
//! - The partial requests of one device hold at most a quarter of what the shard has for gathers and partial requests, with what the kernel has not
//!   given back; a first one is let through whatever its size. So requests that wait, for votes say, keep none from another device.
//! - While its device is frozen or held a request begins no step, and is not answered.
//! - A request that waits for memory has none. A request that has memory waits for what its step waits for (ranges, places, a journal, a disk); none of
//!   these waits for memory of partial requests.
//! - A chunk is written from the memory that its ends were read into.

use super::scratch::Run;
use super::slots::{NO_POOL, State};
use super::waiting::{partial_key, partial_share_key};
use super::{Shard, check_range, mutates, slots};
use crate::claims::Claim;
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LeafSink, Op, Request};
use crate::layout::{BLOCK_BYTES_MAX, DeviceLayout};
use crate::planted::{Planted, planted};

const BLOCK: u64 = BLOCK_BYTES_MAX as u64;
/// Bytes that are read and written at a time.
const CHUNK_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;

/// Where a slot is with a partial request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Partial {
    /// The slot's request is of whole blocks.
    #[default]
    No,
    /// The slot has nothing out: the next step begins.
    Between,
    /// A step is under way: the slot's range and operation are the step's.
    Step,
    /// It is answered, and the kernel may still have its memory.
    Ended,
}

/// A step of a partial request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing was done.
    Begin,
    /// Zeroes, or discards, the blocks between the ends.
    Middle,
    /// Reads the first block of a chunk, or all of it.
    ReadFirst,
    /// What a chunk held was copied to the buffer of the request.
    Copied,
    /// Reads the last block of a chunk.
    ReadLast,
    /// Writes a chunk.
    Write,
}

/// What a partial request needs besides its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialWork {
    op: Op,
    flags: Flags,
    /// What was asked for, in bytes of the device.
    from: u64,
    to: u64,
    buf: Buf,
    /// The claim of the blocks from `low` to `high`.
    claim: Claim,
    step: Step,
    /// The chunk, whole blocks.
    chunk: (u64, u64),
    memory: Option<Run>,
    /// The kernel still has I/O of the step that is under way, or ended last.
    late: bool,
}

impl PartialWork {
    const NONE: PartialWork = PartialWork {
        op: Op::Read,
        flags: Flags::NONE,
        from: 0,
        to: 0,
        buf: Buf::NONE,
        claim: Claim::No,
        step: Step::Begin,
        chunk: (0, 0),
        memory: None,
        late: false,
    };

    /// Where the first block begins that is touched.
    fn low(&self) -> u64 {
        self.from - self.from % BLOCK
    }

    /// Where the last block ends that is touched.
    fn high(&self) -> u64 {
        self.to.next_multiple_of(BLOCK)
    }

    /// The blocks that are covered as wholes: empty where the end is not behind the beginning.
    fn whole(&self) -> (u64, u64) {
        (self.from.next_multiple_of(BLOCK), self.to - self.to % BLOCK)
    }

    /// The next chunk from `at` on, or `None`. Of what has no data only blocks at the ends are chunks.
    fn chunk_from(&self, at: u64) -> Option<(u64, u64)> {
        let chunk = match self.op {
            Op::Read | Op::Write => (at, self.high().min(at + CHUNK_BYTES)),
            _ => {
                let is_partial = |block: u64| block < self.from || block + BLOCK > self.to;
                let last = self.high() - BLOCK;
                let block = if at == self.low() && is_partial(at) { at } else { last };
                if block < at || !is_partial(block) {
                    return None;
                }
                (block, block + BLOCK)
            }
        };
        (chunk.0 < chunk.1).then_some(chunk)
    }

    /// Whether the first block of the chunk has bytes that are not asked for.
    fn reads_first(&self) -> bool {
        self.op == Op::Read || self.chunk.0 < self.from || self.chunk.0 + BLOCK > self.to
    }

    /// Whether the last block of the chunk has such bytes, and is another one.
    fn reads_last(&self) -> bool {
        self.op != Op::Read && self.chunk.1 > self.to && self.chunk.1 - self.chunk.0 > BLOCK
    }

    /// Goes to the next step. False: there is none.
    fn go_on(&mut self) -> bool {
        let next_chunk = |work: &mut PartialWork, at: u64| match work.chunk_from(at) {
            Some(chunk) => {
                work.chunk = chunk;
                work.step = if work.reads_first() {
                    Step::ReadFirst
                } else if work.reads_last() {
                    Step::ReadLast
                } else {
                    Step::Write
                };
                true
            }
            None => false,
        };
        let to_middle = |work: &mut PartialWork| {
            let is_there = !matches!(work.op, Op::Read | Op::Write) && work.whole().0 < work.whole().1;
            work.step = if is_there { Step::Middle } else { work.step };
            is_there
        };
        match self.step {
            // A hint is not worth rewriting a block.
            Step::Begin if self.op == Op::Discard => to_middle(self),
            Step::Begin => next_chunk(self, self.low()) || to_middle(self),
            Step::Middle => false,
            Step::Copied => next_chunk(self, self.chunk.1),
            Step::ReadFirst if self.reads_last() => {
                self.step = Step::ReadLast;
                true
            }
            Step::ReadFirst | Step::ReadLast => {
                debug_assert_ne!(self.op, Op::Read, "what a read has read was copied");
                self.step = Step::Write;
                true
            }
            Step::Write => next_chunk(self, self.chunk.1) || to_middle(self),
        }
    }

    /// Whether the step needs memory of the shard.
    fn needs_memory(&self) -> bool {
        !matches!(self.step, Step::Begin | Step::Middle)
    }

    /// The step as a request: operation, flags, first byte and behind the last.
    fn request(&self) -> (Op, Flags, (u64, u64)) {
        let (first, end) = self.chunk;
        // The flags that say how zeros are made are of no use to a write.
        let fua = if self.flags.has(Flags::FUA) { Flags::FUA } else { Flags::NONE };
        match self.step {
            Step::Middle | Step::Begin | Step::Copied => (self.op, self.flags, self.whole()),
            Step::ReadFirst if self.op == Op::Read => (Op::Read, Flags::NONE, (first, end)),
            Step::ReadFirst => (Op::Read, Flags::NONE, (first, first + BLOCK)),
            Step::ReadLast => (Op::Read, Flags::NONE, (end - BLOCK, end)),
            Step::Write => (Op::Write, fua, (first, end)),
        }
    }

    /// Whether the step that was begun last reads.
    fn reads(&self) -> bool {
        matches!(self.step, Step::ReadFirst | Step::ReadLast)
    }

    /// The part of the chunk that was asked for.
    fn asked(&self) -> (u64, u64) {
        (self.chunk.0.max(self.from), self.chunk.1.min(self.to))
    }
}

/// The partial requests of a shard.
#[derive(Default)]
pub(crate) struct Partials {
    /// By slot; empty until a device takes such requests.
    works: Box<[PartialWork]>,
    /// Memory that the kernel may still have of these slots, whose disks hang.
    lent: Vec<(u32, Run)>,
    /// A request waits for memory.
    wanted: bool,
    /// By device: pages that its requests have, or lent.
    pages: Box<[u32]>,
    /// By device: requests wait for some of these.
    wants_share: Box<[bool]>,
}

impl Partials {
    /// Takes what partial requests need, once.
    pub fn prepare(&mut self, slots: u32, devices: usize) {
        if self.works.is_empty() {
            self.works = vec![PartialWork::NONE; slots as usize].into();
            (self.pages, self.wants_share) = (vec![0; devices].into(), vec![false; devices].into());
        }
    }
}

impl Shard {
    /// Takes a request in that is not of whole blocks, if the device takes it: see [`Shard::submit`].
    #[cold]
    pub(super) fn submit_partial(
        &mut self,
        request: &Request,
        enters: bool,
        sink: &mut impl LeafSink,
    ) -> Result<(), IoError> {
        let device = self.devices.at_mut(request.device.0);
        let layout = device.current.as_deref().expect("looked at before");
        let Request { op, flags, offset, len, buf, tag, .. } = *request;
        if !layout.takes_sectors() || op == Op::Flush || len == 0 {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        check_range(request, layout, DeviceLayout::SECTOR_BYTES)?;
        let work = PartialWork { op, flags, from: offset, to: offset + len, buf, ..PartialWork::NONE };
        let (low, high) = (work.low(), work.high());
        if mutates(op) && (layout.read_only || layout.volume().is_some_and(|volume| volume.read_only)) {
            return Err(IoError::of(ErrorKind::ReadOnly));
        }
        if flags.has(Flags::FAST_ZERO) && op == Op::WriteZeroes && work.whole().0 >= work.whole().1 {
            return Err(IoError::of(ErrorKind::Unsupported));
        }
        if device.late_full || mutates(op) && self.shared.late.covers(request.device, low, high) {
            return Err(IoError::of(ErrorKind::TimedOut));
        }
        let index = self.slots.take().ok_or(IoError::of(ErrorKind::Busy))?;
        let device = self.devices.at_mut(request.device.0);
        device.users += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.prepare(op, flags, low, high - low, buf, tag);
        (slot.device, slot.version) = (request.device.0, device.version);
        slot.partial = Partial::Between;
        if mutates(op) && !planted(Planted::PartialUnclaimed) {
            slot.claim = Claim::Wanted;
            if enters {
                slot.is_entered = true;
                self.entered.push(index);
            }
        }
        self.partials.works[index as usize] = work;
        self.advance(index, sink);
        if self.has_woken() {
            self.work_off(sink);
        }
        Ok(())
    }

    /// Begins the next step of a partial request, which has nothing out and has its claim; or ends it.
    #[cold]
    pub(super) fn partial_go(&mut self, index: u32, sink: &mut impl LeafSink) {
        if self.slots[index].error.is_none() {
            self.move_to_current(index);
            self.fail_with_array(index);
            if self.slots[index].error.is_none() && self.is_held(index) {
                return;
            }
        }
        let mut next = self.partials.works[index as usize];
        let memory_of = |run: Run| self.gather_scratch.as_ref().expect("it gave the run").page(run.first);
        if let (Op::Read, Step::ReadFirst, Some(run)) = (next.op, next.step, next.memory) {
            let (from, to) = next.asked();
            let (place, data) = (memory_of(run).add(from - next.chunk.0), next.buf.add(from - next.from));
            sink.compute(&[place], &[data], to - from, &mut |from, to| to[0].copy_from_slice(from[0]));
            // Should it wait now, it has this behind it.
            self.partials.works[index as usize].step = Step::Copied;
            next.step = Step::Copied;
        }
        if self.slots[index].error.is_some() {
            return self.end_partial(index);
        }
        if !next.go_on() {
            // Under a lease the request is kept, and no step: it has neither claim nor memory then.
            self.give_partial_memory(index);
            if planted(Planted::PartialWithoutLease) || !self.awaits_lease(index, sink) {
                self.end_partial(index);
            }
            return;
        }
        if !next.needs_memory() && next.memory.is_some() {
            self.give_partial_memory(index);
            next.memory = None;
        }
        if next.needs_memory() && next.memory.is_none() {
            next.memory = self.take_partial_memory(index);
            if next.memory.is_none() {
                return;
            }
        }
        let memory = next.memory.map(|run| self.gather_scratch.as_ref().expect("it gave the run").page(run.first));
        let work = &mut self.partials.works[index as usize];
        *work = next;
        let (op, flags, (start, end)) = work.request();
        let buf = match (work.step, memory) {
            (Step::Middle, _) | (_, None) => Buf::NONE,
            (_, Some(memory)) => memory.add(start - work.chunk.0),
        };
        if let (Step::Write, Some(memory)) = (work.step, memory) {
            let (from, to) = work.asked();
            let place = memory.add(from - work.chunk.0);
            match work.op {
                Op::Write => {
                    let data = work.buf.add(from - work.from);
                    sink.compute(&[data], &[place], to - from, &mut |from, to| to[0].copy_from_slice(from[0]));
                }
                _ => sink.zero(place, to - from),
            }
        }
        let slot = &mut self.slots[index];
        let (tag, late) = (slot.tag, slot.late);
        (work.claim, work.late) = (slot.claim, false);
        slot.prepare(op, flags, start, end - start, buf, tag);
        // Of steps before this one the kernel may still have I/O.
        (slot.late, slot.partial) = (late, Partial::Step);
        let id = DeviceId(slot.device);
        if self.is_to_volume(id) {
            self.begin_volume(index);
        }
        self.advance(index, sink);
    }

    /// Fails a request between two steps whose array has failed: a step would wait for what no later layout brings.
    fn fail_with_array(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let has_failed = |layout: &DeviceLayout| layout.mirror().is_some_and(|mirror| mirror.failed);
        if slot.error.is_none() && has_failed(self.devices.at(slot.device).layout(slot.version)) {
            slot.error = Some(IoError::of(ErrorKind::Failed));
        }
    }

    /// A step of a partial request has ended.
    #[cold]
    pub(super) fn partial_step_ended(&mut self, index: u32) {
        if self.slots[index].error.is_some() {
            return self.end_partial(index);
        }
        // A disk hangs that was left out meanwhile: the step has succeeded without it.
        self.lend_partial_memory(index);
        let work = &self.partials.works[index as usize];
        let (op, claim, low, high) = (work.op, work.claim, work.low(), work.high());
        let slot = &mut self.slots[index];
        if slot.held.0 < slot.held.1 {
            super::ranges::release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        debug_assert_eq!(self.slots[index].below.0, slots::NONE, "a step takes no short way");
        if self.slots[index].pool != NO_POOL {
            self.exit_volume(index);
        }
        let slot = &mut self.slots[index];
        (slot.op, slot.start, slot.end) = (op, low, high);
        (slot.held, slot.claim, slot.partial, slot.state) = ((0, 0), claim, Partial::Between, State::Active);
        // Not from here: a request of many steps would go ever deeper.
        self.resume(index);
    }

    /// Answers a partial request: it has done all, or a step has failed, of which the kernel may still have I/O.
    fn end_partial(&mut self, index: u32) {
        let work = &self.partials.works[index as usize];
        let (low, high) = (work.low(), work.high());
        let slot = &mut self.slots[index];
        if slot.partial == Partial::Step {
            slot.claim = work.claim;
        }
        (slot.op, slot.flags, slot.start, slot.end, slot.buf) = (work.op, work.flags, low, high, work.buf);
        slot.partial = Partial::Ended;
        let is_late = slot.late > 0;
        if is_late && work.reads() {
            // The I/O that the kernel still has only reads: later writes to the range need not be refused.
            slot.op = Op::Read;
        }
        self.lend_partial_memory(index);
        self.give_partial_memory(index);
        if !is_late {
            self.regain_partial_memory(index);
        }
        // Also when it only waited for memory itself: others wait behind it.
        self.partial_memory_is_news();
        self.finish(index);
    }

    /// Takes memory for a chunk. `None`: the request waits for it.
    fn take_partial_memory(&mut self, index: u32) -> Option<Run> {
        let work = &self.partials.works[index as usize];
        let bytes = match work.op {
            Op::WriteZeroes => BLOCK,
            _ => (work.high() - work.low()).min(CHUNK_BYTES),
        };
        let pages = (bytes / PAGE_BYTES) as u32;
        let device = DeviceId(self.slots[index].device);
        let scratch = self.gather_scratch.as_mut().expect("prepared with the device");
        let has = self.partials.pages[device.index()];
        if has > 0 && has + pages > scratch.limit() / 4 {
            self.partials.wants_share[device.index()] = true;
            self.waiting.park(&mut self.slots, index, partial_share_key(device));
            return None;
        }
        // Requests that wait already come first.
        let run = if self.partials.wanted { None } else { scratch.take(pages) };
        match run {
            Some(_) => self.partials.pages[device.index()] += pages,
            None => {
                self.partials.wanted = true;
                self.waiting.park(&mut self.slots, index, partial_key());
            }
        }
        run
    }

    /// Notes that a device has so many pages less.
    fn has_returned(&mut self, device: DeviceId, pages: u32) {
        self.partials.pages[device.index()] -= pages;
        if std::mem::take(&mut self.partials.wants_share[device.index()]) {
            self.woken.push_back((partial_share_key(device), None));
        }
        self.partial_memory_is_news();
    }

    /// The claim of a request of which a step is under way.
    pub(super) fn claim_of_partial(&self, index: u32) -> Claim {
        self.partials.works[index as usize].claim
    }

    /// Whether the kernel still has I/O of the slot that reads or writes the memory of what is under way: of steps before this one it has
    /// other memory.
    pub(super) fn is_step_late(&self, index: u32) -> bool {
        match self.slots[index].partial {
            Partial::Step => self.partials.works[index as usize].late,
            _ => self.slots[index].late > 0,
        }
    }

    /// Gives back the memory of the chunk, if there is any.
    fn give_partial_memory(&mut self, index: u32) {
        let memory = self.partials.works[index as usize].memory.take();
        if let (Some(run), Some(scratch)) = (memory, self.gather_scratch.as_mut()) {
            scratch.give(run);
            self.has_returned(DeviceId(self.slots[index].device), run.pages);
        }
    }

    /// An I/O of the step that is under way ran into its time limit.
    #[cold]
    pub(super) fn partial_step_is_late(&mut self, index: u32) {
        if self.slots[index].partial == Partial::Step {
            self.partials.works[index as usize].late = true;
        }
    }

    /// Lends the memory of the step that has ended to the kernel, if that still has I/O of the slot: a further step needs other memory.
    fn lend_partial_memory(&mut self, index: u32) {
        let work = &mut self.partials.works[index as usize];
        let spoils = planted(Planted::PartialMemoryLost);
        // A read that has succeeded has its data from elsewhere: the kernel has nothing of the memory that they are in.
        let is_read = work.reads() && self.slots[index].error.is_none() && !planted(Planted::PartialReadLent);
        if !work.late || !work.needs_memory() || is_read || spoils {
            return;
        }
        if let (Some(run), Some(scratch)) = (work.memory.take(), self.gather_scratch.as_mut()) {
            scratch.lend(run);
            self.partials.lent.push((index, run));
            self.partial_memory_is_news();
        }
    }

    /// The kernel has nothing of the slot any more: what it was lent is free.
    #[cold]
    pub(super) fn regain_partial_memory(&mut self, index: u32) {
        while let Some(at) = self.partials.lent.iter().position(|(slot, _)| *slot == index) {
            let (_, run) = self.partials.lent.swap_remove(at);
            if let Some(scratch) = self.gather_scratch.as_mut() {
                scratch.regain(run);
            }
            self.has_returned(DeviceId(self.slots[index].device), run.pages);
        }
    }

    /// Memory has come free that partial requests may wait for.
    #[inline]
    pub(super) fn partial_memory_is_news(&mut self) {
        if std::mem::take(&mut self.partials.wanted) {
            self.woken.push_back((partial_key(), None));
        }
    }
}
