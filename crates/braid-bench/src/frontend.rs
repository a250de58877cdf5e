//! The load generator: a frontend on a shard that keeps a number of requests in flight, or begins them by a schedule.
//!
//! Its cost is part of every figure, so it does little per I/O: it allocates nothing, uses the time that the shard's loop has read, and
//! records runs of equal latencies at once.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request};
use braid_ring::{Cx, Frontend};

use super::ahead::{AHEAD, Ahead};
use super::latency::Latencies;
use super::ledger::Ledger;
use super::live::LiveCell;
use super::pattern::{Order, Pattern, Visit};
use super::schedule::Schedule;
use super::verify::{self, Mismatch};

/// Mismatches of which details are kept; further ones are only counted.
pub const MISMATCHES_KEPT: usize = 8;
/// How often a block is drawn again because an I/O is in flight on it, before the slot waits.
const DRAWS_MAX: usize = 64;

/// The load of one job on one device, for one point.
#[derive(Clone, Debug)]
pub struct Load {
    /// Identifies the load among those on the same target. State that a job keeps of another load is dropped.
    pub epoch: u32,
    /// The index of the job's state for this load; one for each target.
    pub slot: usize,
    /// The device.
    pub device: DeviceId,
    /// I/Os in flight.
    pub depth: u32,
    /// The block size in bytes.
    pub block_bytes: u64,
    /// Buffers that each I/O in flight uses in turn. With many of them, written data is in no cache.
    pub buffers: u32,
    /// First byte of the part of the device that this job uses.
    pub first_byte: u64,
    /// Length of that part in bytes.
    pub span_bytes: u64,
    /// The order of blocks, and the share of reads.
    pub visit: Visit,
    /// The seed of the order in which blocks are visited.
    pub seed: u64,
    /// The seed of verifiable content, if every block is written with such content, and checked when it is read.
    pub verify: Option<u64>,
    /// I/Os per second of all jobs, the number of this job, and the number of jobs.
    pub rate: Option<(u64, u64, u64)>,
    /// The blocks to draw from uniformly, if not all.
    pub only: Option<Arc<[u32]>>,
    /// A FLUSH follows this many I/Os. It is in flight beside the next I/Os, and is not counted as one.
    pub flush_every: Option<u64>,
}

impl Load {
    /// Returns the bytes of memory per I/O in flight.
    fn memory_bytes(&self) -> usize {
        self.block_bytes as usize * self.buffers as usize
    }
}

/// What a phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// I/Os by pattern, until a number is reached or a time is over.
    Run {
        /// The number of I/Os, or `u64::MAX`.
        ios: u64,
        /// The time in nanoseconds, or `u64::MAX`.
        time_ns: u64,
    },
    /// Writes every block once.
    Fill,
    /// Reads and checks every block of known content once.
    ReadBack,
}

/// A phase: one pass of a load. It is posted to the frontend.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The load.
    pub load: Arc<Load>,
    /// The pass.
    pub pass: Pass,
}

/// Ends the current phase early. It is posted to the frontend.
#[derive(Clone, Copy, Debug)]
pub struct Stop;

/// The result of a phase for one job.
pub struct PhaseDone {
    /// I/Os completed, within the time if there is a time limit.
    pub ios: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// The first error.
    pub first_error: Option<IoError>,
    /// Latencies of all I/Os that completed.
    pub latency: Latencies,
    /// Loop time of the first submission, in nanoseconds.
    pub begun_ns: u64,
    /// Loop time of the last completion that is counted, in nanoseconds. With a time limit, it lies within the limit.
    pub ended_ns: u64,
    /// I/Os that were due by the schedule and had not begun when the time was over.
    pub behind: u64,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// The first mismatches.
    pub mismatches: Vec<Mismatch>,
    /// The number of all mismatches.
    pub mismatch_count: u64,
}

impl Default for PhaseDone {
    fn default() -> PhaseDone {
        PhaseDone::new()
    }
}

impl PhaseDone {
    /// Returns the result of a phase without I/Os.
    pub fn new() -> PhaseDone {
        PhaseDone {
            ios: 0,
            errors: 0,
            first_error: None,
            latency: Latencies::new(),
            begun_ns: 0,
            ended_ns: 0,
            behind: 0,
            verified_bytes: 0,
            mismatches: Vec::with_capacity(MISMATCHES_KEPT),
            mismatch_count: 0,
        }
    }
}

/// Value of [`IoSlot::what`]: a FLUSH is in flight.
const FLUSH: u64 = u64::MAX;

/// The slot of one I/O in flight.
#[derive(Clone, Copy)]
struct IoSlot {
    buf: Buf,
    begun_ns: u64,
    /// The block and, in the lowest bit, whether it is a read.
    what: u64,
}

impl IoSlot {
    fn block(self) -> u64 {
        self.what >> 1
    }

    fn is_read(self) -> bool {
        self.what & 1 == 1
    }
}

/// Where a phase takes blocks from.
enum BlockSource {
    Pattern,
    /// Every block, from this one on.
    All(u64),
    /// Every block of known content, from this one on.
    Known(u64),
}

/// The result of drawing a block.
enum Drawn {
    /// This block, and whether it is read.
    Block(u64, bool),
    /// An I/O is in flight on each of the blocks that were drawn.
    Busy,
    Done,
}

/// The state that a job keeps of a load between phases.
struct LoadState {
    epoch: u32,
    pattern: Pattern,
    ahead: Ahead,
    ledger: Option<Ledger>,
}

impl LoadState {
    fn of(load: &Load) -> LoadState {
        let mut pattern = Pattern::new(load.seed, &load.visit, load.first_byte, load.span_bytes, load.block_bytes);
        if let Some(only) = &load.only {
            pattern.draw_from(Arc::clone(only));
        }
        let ledger = load.verify.map(|_| Ledger::new(pattern.blocks()));
        LoadState { epoch: load.epoch, pattern, ahead: Ahead::default(), ledger }
    }
}

/// The frontend of one job.
pub struct LoadFrontend {
    load: Arc<Load>,
    done: SyncSender<PhaseDone>,
    live: Arc<LiveCell>,
    /// The state of the current load.
    memory: LoadState,
    /// The states of loads on other targets, by [`Load::slot`].
    others: Vec<Option<LoadState>>,
    source: BlockSource,
    slots: Vec<IoSlot>,
    /// Slots that wait for a free block, or for their time in the schedule.
    idle: Vec<u32>,
    /// Slots of I/Os that completed by their time limit while the kernel still holds the buffer. They are not used
    /// until it is released.
    kept: Vec<u32>,
    /// A copy from the current load, beside fields that each I/O touches anyway.
    device: DeviceId,
    block_bytes: u64,
    /// Whether the load neither verifies nor follows a schedule nor flushes: the fast path, on which nearly every figure is measured.
    plain: bool,
    /// I/Os until the next FLUSH.
    until_flush: u64,
    schedule: Option<Schedule>,
    /// The time of the timer that was set last.
    timer_ns: u64,
    in_flight: u32,
    left: u64,
    deadline_ns: u64,
    /// When the phase was over, in nanoseconds of loop time, and the number of I/Os completed by then. I/Os that
    /// complete later do not count in the rate.
    over: Option<(u64, u64)>,
    /// The latest latency with, in the lowest bit, whether it was of a read, and how often that value was recorded in succession.
    run: (u64, u64),
    latency_sum: u64,
    running: bool,
    found: PhaseDone,
}

/// Returns the load of a job before its first phase.
fn no_load() -> Load {
    Load {
        epoch: u32::MAX,
        slot: 0,
        device: DeviceId(0),
        depth: 0,
        block_bytes: 4096,
        buffers: 1,
        first_byte: 0,
        span_bytes: 4096,
        visit: Visit { order: Order::Sequential, theta: 1.0, reads_percent: 100 },
        seed: 0,
        verify: None,
        rate: None,
        only: None,
        flush_every: None,
    }
}

impl LoadFrontend {
    /// Returns a frontend that sends the result of each phase to `done`, and publishes its progress in `live`.
    pub fn new(done: SyncSender<PhaseDone>, live: Arc<LiveCell>) -> LoadFrontend {
        let load = no_load();
        LoadFrontend {
            done,
            live,
            memory: LoadState::of(&load),
            others: Vec::new(),
            source: BlockSource::Pattern,
            slots: Vec::new(),
            idle: Vec::new(),
            kept: Vec::new(),
            device: load.device,
            block_bytes: load.block_bytes,
            plain: true,
            until_flush: u64::MAX,
            schedule: None,
            timer_ns: 0,
            in_flight: 0,
            left: 0,
            deadline_ns: u64::MAX,
            over: None,
            run: (0, 0),
            latency_sum: 0,
            running: false,
            found: PhaseDone::new(),
            load: Arc::new(load),
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>, phase: &Phase) {
        self.switch_to(cx, &phase.load);
        let now = cx.now_ns();
        (self.deadline_ns, self.over, self.schedule) = (u64::MAX, None, None);
        self.latency_sum = 0;
        match phase.pass {
            Pass::Run { ios, time_ns } => {
                self.source = BlockSource::Pattern;
                self.left = ios;
                self.deadline_ns = now.saturating_add(time_ns);
                self.schedule = self.load.rate.map(|(rate, job, jobs)| Schedule::new(now, rate, job, jobs));
            }
            Pass::Fill => {
                self.source = BlockSource::All(0);
                self.left = self.memory.pattern.blocks();
            }
            Pass::ReadBack => {
                self.source = BlockSource::Known(0);
                self.left = u64::MAX;
            }
        }
        self.plain = self.memory.ledger.is_none() && self.schedule.is_none() && self.load.flush_every.is_none();
        self.until_flush = self.load.flush_every.unwrap_or(u64::MAX);
        self.found.begun_ns = now;
        self.running = true;
        self.idle.clear();
        // The last element is used first: the first slot.
        self.idle.extend((0..self.slots.len() as u32).rev().filter(|slot| !self.kept.contains(slot)));
        self.use_idle(cx);
        if self.in_flight == 0 && (self.schedule.is_none() || self.left == 0) {
            self.finish(cx.now_ns());
        }
    }

    /// Makes a load the current one: restores or creates its state, and slots of its size.
    fn switch_to(&mut self, cx: &mut Cx<'_>, load: &Arc<Load>) {
        if self.load.epoch == load.epoch && self.load.slot == load.slot {
            return;
        }
        let of = |load: &Load| (load.depth, load.block_bytes, load.buffers);
        let same_slots = of(&self.load) == of(load);
        if !same_slots {
            // Buffers that the kernel still holds are not used again.
            for (at, slot) in self.slots.drain(..).enumerate() {
                if !self.kept.contains(&(at as u32)) {
                    cx.free(slot.buf, self.load.memory_bytes());
                }
            }
            self.kept.clear();
            self.idle.reserve(load.depth as usize);
            for _ in 0..load.depth {
                // The arena is large enough: fewer I/Os in flight would be another measurement.
                let buf = cx.alloc(load.memory_bytes()).expect("the arena has room for every slot");
                self.slots.push(IoSlot { buf, begun_ns: 0, what: 1 });
            }
        }
        if self.others.len() <= load.slot.max(self.load.slot) {
            self.others.resize_with(load.slot.max(self.load.slot) + 1, || None);
        }
        let remembered = self.others[load.slot].take().filter(|memory| memory.epoch == load.epoch);
        let memory = remembered.unwrap_or_else(|| LoadState::of(load));
        let before = std::mem::replace(&mut self.memory, memory);
        if before.epoch == load.epoch {
            self.others[self.load.slot] = Some(before);
        }
        (self.device, self.block_bytes) = (load.device, load.block_bytes);
        self.load = Arc::clone(load);
    }

    /// Draws the next block, and whether it is read. When verifying, blocks with an I/O in flight are not drawn.
    #[inline(never)]
    fn draw(&mut self) -> Drawn {
        if self.left == 0 {
            return Drawn::Done;
        }
        let Some(ledger) = &mut self.memory.ledger else {
            self.left -= 1;
            return match &mut self.source {
                BlockSource::Pattern => {
                    let (block, read) = self.memory.pattern.next();
                    Drawn::Block(block, read)
                }
                // Only loads that verify fill and read back.
                BlockSource::All(_) | BlockSource::Known(_) => Drawn::Done,
            };
        };
        for _ in 0..DRAWS_MAX {
            let (block, read) = match &mut self.source {
                BlockSource::Pattern => self.memory.pattern.next(),
                BlockSource::All(next) => {
                    *next += 1;
                    (*next - 1, false)
                }
                BlockSource::Known(next) => {
                    let Some(found) = ledger.next_known(*next) else {
                        self.left = 0;
                        return Drawn::Done;
                    };
                    *next = found + 1;
                    (found, true)
                }
            };
            if ledger.begin(block, read) {
                self.left -= 1;
                return Drawn::Block(block, read);
            }
        }
        Drawn::Busy
    }

    /// Submits the next I/O from this slot. Returns false if there is none now. `ANNOUNCED`: the I/O may be one that was drawn ahead.
    #[inline(always)]
    fn next<const ANNOUNCED: bool>(&mut self, cx: &mut Cx<'_>, tag: u64, begun_ns: u64) -> bool {
        let (block, read) = if self.plain {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let LoadState { pattern, ahead, .. } = &mut self.memory;
            match if ANNOUNCED { ahead.take() } else { None } {
                Some(drawn) => drawn,
                None => pattern.next(),
            }
        } else {
            if self.until_flush == 0 && self.left > 0 {
                return self.flush(cx, tag, begun_ns);
            }
            let Drawn::Block(block, read) = self.draw() else { return false };
            self.until_flush -= 1;
            (block, read)
        };
        let (offset, len) = (self.memory.pattern.offset(block), self.block_bytes);
        let slot = &mut self.slots[tag as usize];
        slot.begun_ns = begun_ns;
        slot.what = block << 1 | u64::from(read);
        let buf = match self.load.buffers {
            1 => slot.buf,
            buffers => slot.buf.add(self.found.ios / u64::from(self.load.depth) % u64::from(buffers) * len),
        };
        if !self.plain && !read {
            self.fill(cx, buf, block);
        }
        let op = if read { Op::Read } else { Op::Write };
        let request = Request { device: self.device, op, flags: Flags::NONE, offset, len, buf, tag };
        match cx.submit(&request) {
            Ok(()) => {
                self.in_flight += 1;
                true
            }
            Err(error) => self.refused(error, block),
        }
    }

    /// Submits a FLUSH from this slot.
    #[cold]
    fn flush(&mut self, cx: &mut Cx<'_>, tag: u64, begun_ns: u64) -> bool {
        self.until_flush = self.load.flush_every.unwrap_or(u64::MAX);
        let slot = &mut self.slots[tag as usize];
        (slot.begun_ns, slot.what) = (begun_ns, FLUSH);
        let (op, buf) = (Op::Flush, slot.buf);
        let request = Request { device: self.device, op, flags: Flags::NONE, offset: 0, len: 0, buf, tag };
        match cx.submit(&request) {
            Ok(()) => {
                self.in_flight += 1;
                true
            }
            Err(error) => self.refused(error, 0),
        }
    }

    /// Handles an I/O that was not accepted. It is not retried, and the phase ends: the next I/O would be refused, too.
    #[cold]
    fn refused(&mut self, error: IoError, block: u64) -> bool {
        self.failed(error);
        self.found.ios += 1;
        if let Some(ledger) = &mut self.memory.ledger {
            ledger.end_failed_write(block);
        }
        self.left = 0;
        false
    }

    /// Fills the buffer of a write with the verifiable content of its block.
    #[inline(never)]
    fn fill(&self, cx: &mut Cx<'_>, buf: Buf, block: u64) {
        let (Some(ledger), Some(run)) = (&self.memory.ledger, self.load.verify) else { return };
        let seed = verify::seed_of(run, ledger.generation(block));
        verify::fill(cx.memory(buf, self.block_bytes as usize), self.memory.pattern.offset(block), seed);
    }

    /// Submits I/Os from waiting slots, as far as there are free blocks and the schedule is due.
    fn use_idle(&mut self, cx: &mut Cx<'_>) {
        let now_ns = cx.now_ns();
        while let Some(&slot) = self.idle.last() {
            let begun_ns = match &self.schedule {
                None => now_ns,
                Some(schedule) if schedule.due_ns() <= now_ns => schedule.due_ns(),
                Some(_) => break,
            };
            if !self.next::<true>(cx, u64::from(slot), begun_ns) {
                return;
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            self.idle.pop();
        }
        if let Some(schedule) = &self.schedule
            && self.left > 0
            && !self.idle.is_empty()
        {
            let needed_ns = schedule.due_ns().min(self.deadline_ns);
            // One timer at a time: the next one is set when it has expired, unless it is needed sooner.
            if self.timer_ns <= now_ns || needed_ns < self.timer_ns {
                self.timer_ns = needed_ns.max(now_ns + 1);
                cx.timer_at(self.timer_ns, 0);
            }
        }
    }

    #[cold]
    fn failed(&mut self, error: IoError) {
        self.found.errors += 1;
        self.found.first_error.get_or_insert(error);
    }

    #[inline]
    fn record(&mut self, latency_ns: u64, read: bool) {
        let what = latency_ns << 1 | u64::from(read);
        if self.run.0 == what {
            self.run.1 += 1;
        } else {
            self.record_run();
            self.run = (what, 1);
        }
    }

    #[inline(never)]
    fn record_run(&mut self) {
        let (what, times) = self.run;
        if times > 0 {
            let (latency_ns, read) = (what >> 1, what & 1 == 1);
            self.found.latency.side(read).saturating_record_n(latency_ns, times);
            self.latency_sum = self.latency_sum.saturating_add(latency_ns.saturating_mul(times));
            self.run.1 = 0;
        }
    }

    /// Ends an I/O of a load that verifies: updates the ledger, and checks what was read.
    #[inline(never)]
    fn settle(&mut self, cx: &Cx<'_>, slot: IoSlot, ok: bool) {
        let (Some(ledger), Some(run)) = (&mut self.memory.ledger, self.load.verify) else { return };
        if !ok && !slot.is_read() {
            ledger.end_failed_write(slot.block());
            return;
        }
        let generation = ledger.end(slot.block());
        if !ok || !slot.is_read() || generation == 0 {
            return;
        }
        let (len, offset) = (self.load.block_bytes, self.memory.pattern.offset(slot.block()));
        let seed = verify::seed_of(run, generation);
        if let Some(mismatch) = verify::check(cx.bytes(slot.buf, len as usize), offset, seed) {
            self.found.mismatch_count += 1;
            if self.found.mismatches.len() < MISMATCHES_KEPT {
                self.found.mismatches.push(mismatch);
            }
        }
        self.found.verified_bytes += len;
    }

    /// Ends the phase, and sends its result.
    fn finish(&mut self, now_ns: u64) {
        self.record_run();
        self.running = false;
        (self.found.ended_ns, self.found.ios) = self.over.unwrap_or((now_ns, self.found.ios));
        let found = std::mem::take(&mut self.found);
        // The receiver may be gone: then the result is not needed.
        let _ = self.done.try_send(found);
    }

    /// Stops the phase, because its time is over or its end was requested: no I/O is begun any more.
    fn stop_at(&mut self, now_ns: u64) {
        self.left = 0;
        let ended_ns = match &self.schedule {
            // With a schedule, the phase is as long as its time limit, however few I/Os it had.
            Some(schedule) => {
                let until_ns = self.deadline_ns.min(now_ns);
                self.found.behind = schedule.behind(until_ns);
                until_ns
            }
            None => now_ns,
        };
        self.over = Some((ended_ns, self.found.ios));
    }
}

impl LoadFrontend {
    /// Handles a successful I/O of a plain load, which is counted already: the fast path.
    #[inline(always)]
    fn ended_plainly<const ANNOUNCED: bool>(&mut self, cx: &mut Cx<'_>, tag: u64, now_ns: u64) {
        // Field by field: a copy of the slot would go through memory.
        let slot = &self.slots[tag as usize];
        let (begun_ns, read) = (slot.begun_ns, slot.is_read());
        self.record(now_ns - begun_ns, read);
        if !self.next::<ANNOUNCED>(cx, tag, now_ns) {
            self.idle.push(tag as u32);
        }
    }

    /// Handles completions of a plain load, and begins as many I/Os. The next I/Os are announced to the engine before they are submitted, as the
    /// NBD server announces requests that it finds in received bytes.
    #[inline(never)]
    fn ended_announced(&mut self, cx: &mut Cx<'_>, completions: &[Completion], now_ns: u64) {
        for some in completions.chunks(AHEAD) {
            let LoadState { pattern, ahead, .. } = &mut self.memory;
            let count = usize::try_from(self.left).unwrap_or(AHEAD).min(some.len());
            ahead.draw(pattern, count, |soon| cx.prefetch(self.device, soon));
            for completion in some {
                if completion.result.is_ok() && !completion.buffer_busy {
                    self.ended_plainly::<true>(cx, completion.tag, now_ns);
                } else {
                    self.ended(cx, completion, now_ns);
                }
            }
        }
    }

    /// Handles any completion, which is counted already.
    #[inline(never)]
    fn ended(&mut self, cx: &mut Cx<'_>, completion: &Completion, now_ns: u64) {
        let slot = self.slots[completion.tag as usize];
        if slot.what == FLUSH {
            self.found.ios -= 1;
        } else {
            self.record(now_ns - slot.begun_ns, slot.is_read());
        }
        if let Err(error) = completion.result {
            self.failed(error);
        }
        if !self.plain {
            self.settle(cx, slot, completion.result.is_ok());
        }
        // A buffer that the kernel still holds is used again when the kernel releases it.
        if completion.buffer_busy {
            self.kept.push(completion.tag as u32);
        } else if self.schedule.is_some() || !self.next::<true>(cx, completion.tag, now_ns) {
            self.idle.push(completion.tag as u32);
        }
    }
}

impl Frontend for LoadFrontend {
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        self.ios_done(cx, std::slice::from_ref(completion));
    }

    fn ios_done(&mut self, cx: &mut Cx<'_>, completions: &[Completion]) {
        let now_ns = cx.now_ns();
        self.in_flight -= completions.len() as u32;
        self.found.ios += completions.len() as u64;
        if self.plain && completions.len() > 1 && cx.benefits_from_prefetch(self.device) {
            return self.ended_announced(cx, completions, now_ns);
        }
        for completion in completions {
            if self.plain && completion.result.is_ok() && !completion.buffer_busy {
                self.ended_plainly::<false>(cx, completion.tag, now_ns);
            } else {
                self.ended(cx, completion, now_ns);
            }
        }
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        let Some(at) = self.kept.iter().position(|&slot| u64::from(slot) == tag) else { return };
        self.kept.swap_remove(at);
        if self.running {
            self.idle.push(tag as u32);
            self.use_idle(cx);
        }
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        match message.downcast::<Phase>() {
            Ok(phase) => self.begin(cx, &phase),
            Err(other) if other.is::<Stop>() && self.running && self.left > 0 => self.stop_at(cx.now_ns()),
            Err(_) => {}
        }
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        if !self.running {
            return;
        }
        // A phase without a completion within its time lasts until the first one, unless a schedule defines its length.
        let late = cx.now_ns() >= self.deadline_ns && self.left > 0;
        if late && (self.found.ios > 0 || self.schedule.is_some()) {
            self.stop_at(cx.now_ns());
        } else if !self.idle.is_empty() && self.left > 0 {
            self.use_idle(cx);
        }
        self.live.show(self.found.ios, self.latency_sum);
        if self.in_flight == 0 && self.left == 0 && self.running {
            self.finish(cx.now_ns());
        }
    }
}

/// Formats the error of an I/O.
pub fn in_words(error: IoError) -> String {
    match error.kind {
        ErrorKind::TimedOut => format!("no answer within the time limit ({error})"),
        _ => error.to_string(),
    }
}
