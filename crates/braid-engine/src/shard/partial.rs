//! Partial requests: those that begin or end within a block, to devices that take whole sectors
//! ([`DeviceLayout::with_sector_requests`]).
//!
//! A partial request runs in steps, each of which is an ordinary request of whole blocks in the same slot. If it
//! changes the device it first claims all blocks that it touches ([`crate::claims`]); a read claims none.
//!
//! - A *write* proceeds in chunks. The first block of a chunk, and the last one, are read if the request covers only a
//!   part of them; the request's bytes are copied over what was read; the chunk is written.
//! - A *read* reads whole blocks, and copies what was requested.
//! - *Write zeroes* first rewrites the blocks at both ends, then zeroes those between without data. Its claim no longer
//!   covers those of them that are done.
//! - A *discard* is a hint: the blocks at both ends stay as they are.
//!
//! Invariants:
//!
//! - Between the read and the write of a block no other request changes it: every request that changes blocks claims
//!   them, and the claim of a partial request lasts from before its first step until it is answered. Only what it has
//!   zeroed or discarded between its ends is released before, when both ends are written. Steps claim nothing.
//! - Steps write only whole blocks. So a crash may leave what it may leave of any write of these blocks: the
//!   surrounding sectors are rewritten with their previous content.
//! - Between two steps a request has no I/O in flight, is not counted by a pool, and continues with the layout that is
//!   current then.
//! - The partial requests of one device use at most a quarter of the shard's memory for gathers and partial requests,
//!   including what the kernel has not returned; a first one is admitted whatever its size. So requests that wait, for
//!   voters for example, leave memory to the requests of other devices.
//! - While its device is frozen or held, a request begins no step and is not answered.
//! - A request that waits for memory has none. A request that has memory waits for what its step waits for (ranges,
//!   extents, a journal, a disk); none of these waits for memory of partial requests.
//! - A chunk is written from the memory that its ends were read into.

use super::scratch::PageRun;
use super::slots::{NO_POOL, Partial, SlotState};
use super::waiting::{partial_key, partial_share_key};
use super::{Shard, check_range, mutates, slots};
use crate::claims::Claim;
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LeafSink, Op, Request};
use crate::layout::{BLOCK_BYTES_MAX, DeviceLayout};

const BLOCK: u64 = BLOCK_BYTES_MAX as u64;
/// Bytes that are read and written at a time.
const CHUNK_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;

/// A step of a partial request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// No step has begun.
    Begin,
    /// Zeroes, or discards, the blocks between the ends.
    Middle,
    /// Reads the first block of a chunk, or, of a read, the whole chunk.
    ReadFirst,
    /// The content of a chunk was copied to the buffer of the request.
    Copied,
    /// Reads the last block of a chunk.
    ReadLast,
    /// Writes a chunk.
    Write,
}

/// The state of a partial request besides its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialWork {
    op: Op,
    flags: Flags,
    /// The requested range, in bytes of the device.
    from: u64,
    to: u64,
    buf: Buf,
    /// The claim to the blocks from `low` to `high`.
    claim: Claim,
    step: Step,
    /// The chunk, in whole blocks.
    chunk: (u64, u64),
    memory: Option<PageRun>,
    /// The kernel still has I/O of the step that is in flight, or ended last.
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

    /// Returns the start of the first block that is touched.
    fn low(&self) -> u64 {
        self.from - self.from % BLOCK
    }

    /// Returns the end of the last block that is touched.
    fn high(&self) -> u64 {
        self.to.next_multiple_of(BLOCK)
    }

    /// Returns the blocks that are covered entirely: none if the end is not behind the start.
    fn whole(&self) -> (u64, u64) {
        (self.from.next_multiple_of(BLOCK), self.to - self.to % BLOCK)
    }

    /// Returns the next chunk from `at` on. For an operation without data only partially covered blocks are chunks.
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

    /// Returns whether the first block of the chunk must be read: it has bytes outside the request, or the request is a
    /// read.
    fn reads_first(&self) -> bool {
        self.op == Op::Read || self.chunk.0 < self.from || self.chunk.0 + BLOCK > self.to
    }

    /// Returns whether the last block of the chunk has such bytes, and is another one.
    fn reads_last(&self) -> bool {
        self.op != Op::Read && self.chunk.1 > self.to && self.chunk.1 - self.chunk.0 > BLOCK
    }

    /// Goes to the next step. Returns false if there is none.
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

    /// Returns whether the step needs memory of the shard.
    fn needs_memory(&self) -> bool {
        !matches!(self.step, Step::Begin | Step::Middle)
    }

    /// Returns the step as a request: operation, flags, first byte and end.
    fn request(&self) -> (Op, Flags, (u64, u64)) {
        let (first, end) = self.chunk;
        // The flags that say how zeros are made do not apply to a write.
        let fua = if self.flags.has(Flags::FUA) { Flags::FUA } else { Flags::NONE };
        match self.step {
            Step::Middle | Step::Begin | Step::Copied => (self.op, self.flags, self.whole()),
            Step::ReadFirst if self.op == Op::Read => (Op::Read, Flags::NONE, (first, end)),
            Step::ReadFirst => (Op::Read, Flags::NONE, (first, first + BLOCK)),
            Step::ReadLast => (Op::Read, Flags::NONE, (end - BLOCK, end)),
            Step::Write => (Op::Write, fua, (first, end)),
        }
    }

    /// Returns whether the step that was begun last reads.
    fn reads(&self) -> bool {
        matches!(self.step, Step::ReadFirst | Step::ReadLast)
    }

    /// Returns the requested part of the chunk.
    fn requested_range(&self) -> (u64, u64) {
        (self.chunk.0.max(self.from), self.chunk.1.min(self.to))
    }
}

/// The partial requests of a shard.
#[derive(Default)]
pub(crate) struct Partials {
    /// By slot; empty until a device takes such requests.
    works: Box<[PartialWork]>,
    /// Memory of these slots that the kernel may still have, because their disks hang.
    lent: Vec<(u32, PageRun)>,
    /// A request waits for memory.
    wanted: bool,
    /// By device: pages that its requests have, or that are lent.
    pages: Box<[u32]>,
    /// By device: requests wait for some of these pages.
    wants_share: Box<[bool]>,
}

impl Partials {
    /// Allocates what partial requests need, once.
    pub fn prepare(&mut self, slots: u32, devices: usize) {
        if self.works.is_empty() {
            self.works = vec![PartialWork::NONE; slots as usize].into();
            (self.pages, self.wants_share) = (vec![0; devices].into(), vec![false; devices].into());
        }
    }
}

impl Shard {
    /// Submits a partial request, if the device takes it: see [`Shard::submit`].
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
        if mutates(op) {
            slot.claim = Claim::Wanted;
            if enters {
                slot.is_entered = true;
                self.entered.push(index);
            }
        }
        self.partials.works[index as usize] = work;
        self.advance(index, sink);
        if self.has_woken() {
            self.process_woken(sink);
        }
        Ok(())
    }

    /// Begins the next step of a partial request that has its claim and no I/O in flight; or ends it.
    #[cold]
    pub(super) fn partial_advance(&mut self, index: u32, sink: &mut impl LeafSink) {
        if self.slots[index].error.is_none() {
            self.move_to_current(index);
            self.fail_with_array(index);
            if self.slots[index].error.is_none() && self.is_held(index) {
                return;
            }
        }
        let mut next = self.partials.works[index as usize];
        let memory_of = |run: PageRun| self.gather_scratch.as_ref().expect("it gave the run").page(run.first);
        if let (Op::Read, Step::ReadFirst, Some(run)) = (next.op, next.step, next.memory) {
            let (from, to) = next.requested_range();
            let (place, data) = (memory_of(run).add(from - next.chunk.0), next.buf.add(from - next.from));
            sink.compute(&[place], &[data], to - from, &mut |from, to| to[0].copy_from_slice(from[0]));
            // If the request waits now, the copy is not repeated.
            self.partials.works[index as usize].step = Step::Copied;
            next.step = Step::Copied;
        }
        if self.slots[index].error.is_some() {
            return self.end_partial(index);
        }
        if !next.go_on() {
            // Under a lease the request is kept, not its last step: it has neither claim nor memory then.
            self.give_partial_memory(index);
            if !self.awaits_lease(index, sink) {
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
            let (from, to) = work.requested_range();
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
        // The kernel may still have I/O of earlier steps.
        (slot.late, slot.partial) = (late, Partial::Step);
        let id = DeviceId(slot.device);
        if self.is_to_volume(id) {
            self.begin_volume(index);
        }
        self.advance(index, sink);
    }

    /// Fails a request between two steps if its array has failed: a step would wait for something that no later layout
    /// brings.
    fn fail_with_array(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let has_failed = |layout: &DeviceLayout| layout.mirror().is_some_and(|mirror| mirror.failed);
        if slot.error.is_none() && has_failed(self.devices.at(slot.device).layout(slot.version)) {
            slot.error = Some(IoError::of(ErrorKind::Failed));
        }
    }

    /// Ends a step of a partial request.
    #[cold]
    pub(super) fn partial_step_ended(&mut self, index: u32) {
        if self.slots[index].error.is_some() {
            return self.end_partial(index);
        }
        // A disk that hangs was dropped meanwhile: the step has succeeded without it.
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
        (slot.held, slot.claim, slot.partial, slot.state) = ((0, 0), claim, Partial::Between, SlotState::Active);
        // Not from here: a request of many steps would recurse ever deeper.
        self.resume(index);
    }

    /// Answers a partial request that is complete, or of which a step has failed. The kernel may still have I/O of it.
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
        // Even if it only waited for memory itself: others wait behind it.
        self.wake_for_partial_memory();
        self.finish(index);
    }

    /// Allocates memory for a chunk. `None`: the request waits for it.
    fn take_partial_memory(&mut self, index: u32) -> Option<PageRun> {
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

    /// Counts pages that a device's requests have returned.
    fn has_returned(&mut self, device: DeviceId, pages: u32) {
        self.partials.pages[device.index()] -= pages;
        if std::mem::take(&mut self.partials.wants_share[device.index()]) {
            self.woken.push_back((partial_share_key(device), None));
        }
        self.wake_for_partial_memory();
    }

    /// Returns the claim of a request of which a step is in flight.
    pub(super) fn claim_of_partial(&self, index: u32) -> Claim {
        self.partials.works[index as usize].claim
    }

    /// Returns whether the kernel still has I/O of the slot that reads or writes the memory of the step in flight: I/O
    /// of earlier steps uses other memory.
    pub(super) fn is_step_late(&self, index: u32) -> bool {
        match self.slots[index].partial {
            Partial::Step => self.partials.works[index as usize].late,
            _ => self.slots[index].late > 0,
        }
    }

    /// Releases the memory of the chunk, if there is any.
    fn give_partial_memory(&mut self, index: u32) {
        let memory = self.partials.works[index as usize].memory.take();
        if let (Some(run), Some(scratch)) = (memory, self.gather_scratch.as_mut()) {
            scratch.give(run);
            self.has_returned(DeviceId(self.slots[index].device), run.pages);
        }
    }

    /// Notes that an I/O of the step in flight exceeded its time limit.
    #[cold]
    pub(super) fn partial_step_is_late(&mut self, index: u32) {
        if self.slots[index].partial == Partial::Step {
            self.partials.works[index as usize].late = true;
        }
    }

    /// Lends the memory of the step that has ended to the kernel, if the kernel still has I/O of the slot: a further
    /// step needs other memory.
    fn lend_partial_memory(&mut self, index: u32) {
        let work = &mut self.partials.works[index as usize];
        // A read that has succeeded has its data from another member: the kernel has no I/O to the memory that holds
        // them.
        let is_read = work.reads() && self.slots[index].error.is_none();
        if !work.late || !work.needs_memory() || is_read {
            return;
        }
        if let (Some(run), Some(scratch)) = (work.memory.take(), self.gather_scratch.as_mut()) {
            scratch.lend(run);
            self.partials.lent.push((index, run));
            self.wake_for_partial_memory();
        }
    }

    /// Takes back the memory that was lent for a slot: the kernel has no I/O of the slot any more.
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

    /// Wakes partial requests that may wait for memory, because some was released.
    #[inline]
    pub(super) fn wake_for_partial_memory(&mut self) {
        if std::mem::take(&mut self.partials.wanted) {
            self.woken.push_back((partial_key(), None));
        }
    }
}
