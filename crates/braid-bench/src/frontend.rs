//! The load itself: a frontend on a shard that keeps so many requests in flight, or begins them by a schedule.
//!
//! What it costs is part of every figure, so it does little for each I/O: no allocation, no clock (the loop's own
//! reading is used), latencies counted in runs of equal ones.

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

/// Mismatches that are kept in words; the others are counted.
pub const MISMATCHES_KEPT: usize = 8;
/// How often a block is drawn again because something is in flight on it, before the place waits.
const DRAWS_MAX: usize = 64;

/// What one job is to do on one device, for as long as its point is measured.
#[derive(Clone, Debug)]
pub struct Load {
    /// Tells one load from the next on the same target: what was remembered of another is forgotten.
    pub epoch: u32,
    /// Which of the job's memories it uses; one for each target.
    pub slot: usize,
    /// The device.
    pub device: DeviceId,
    /// I/Os in flight.
    pub depth: u32,
    /// Bytes of each.
    pub block_bytes: u64,
    /// Buffers that each I/O in flight takes in turn: with many of them, what is written is in no cache.
    pub buffers: u32,
    /// First byte of this job's part.
    pub first_byte: u64,
    /// Its length.
    pub span_bytes: u64,
    /// Which blocks, and how many of them are read.
    pub visit: Visit,
    /// Of the order in which blocks are visited.
    pub seed: u64,
    /// Give every block its content, and check what is read: the load's seed.
    pub verify: Option<u64>,
    /// I/Os a second of all jobs, this job's number and how many there are.
    pub rate: Option<(u64, u64, u64)>,
    /// Only these blocks, drawn evenly.
    pub only: Option<Arc<[u32]>>,
    /// A FLUSH follows so many I/Os; it is in flight beside the next ones, and counts as none.
    pub flush_every: Option<u64>,
}

impl Load {
    /// Bytes of memory of each I/O in flight.
    fn memory_bytes(&self) -> usize {
        self.block_bytes as usize * self.buffers as usize
    }
}

/// What is done in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Blocks by pattern, until a number is reached or a time is over.
    Run {
        /// I/Os, or `u64::MAX`.
        ios: u64,
        /// Nanoseconds, or `u64::MAX`.
        time_ns: u64,
    },
    /// Every block is written once.
    Fill,
    /// Every block whose content is known is read once, and checked.
    ReadBack,
}

/// One pass of a load; posted to the frontend.
#[derive(Clone, Debug)]
pub struct Phase {
    /// On what.
    pub load: Arc<Load>,
    /// What.
    pub pass: Pass,
}

/// Ends the phase in hand early; posted to the frontend.
#[derive(Clone, Copy, Debug)]
pub struct Stop;

/// How a phase went for one job.
pub struct PhaseDone {
    /// I/Os answered, within the time where one was given.
    pub ios: u64,
    /// Those that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<IoError>,
    /// Latencies.
    pub latency: Latencies,
    /// Time of the loop at the first submission.
    pub begun_ns: u64,
    /// Time of the loop at the last answer that counts: where a time was given, the last one within it.
    pub ended_ns: u64,
    /// I/Os that the schedule had wanted to begin and that had not when the time was over.
    pub behind: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// The first wrong blocks.
    pub mismatches: Vec<Mismatch>,
    /// All wrong blocks.
    pub mismatch_count: u64,
}

impl PhaseDone {
    /// Nothing yet.
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

/// Of a place: what is in flight is a FLUSH.
const FLUSH: u64 = u64::MAX;

/// One place in flight.
#[derive(Clone, Copy)]
struct Place {
    buf: Buf,
    begun_ns: u64,
    /// The block and, in the lowest bit, whether it is read.
    what: u64,
}

impl Place {
    fn block(self) -> u64 {
        self.what >> 1
    }

    fn is_read(self) -> bool {
        self.what & 1 == 1
    }
}

/// Where blocks come from in a phase.
enum Source {
    Pattern,
    /// The next block to look at.
    All(u64),
    Known(u64),
}

/// What is drawn.
enum Drawn {
    Block(u64, bool),
    /// Something is in flight on each block that came.
    Busy,
    Done,
}

/// What a job remembers of a load between its phases.
struct Memory {
    epoch: u32,
    pattern: Pattern,
    ahead: Ahead,
    ledger: Option<Ledger>,
}

impl Memory {
    fn of(load: &Load) -> Memory {
        let mut pattern = Pattern::new(load.seed, &load.visit, load.first_byte, load.span_bytes, load.block_bytes);
        if let Some(only) = &load.only {
            pattern.draw_from(Arc::clone(only));
        }
        let ledger = load.verify.map(|_| Ledger::new(pattern.blocks()));
        Memory { epoch: load.epoch, pattern, ahead: Ahead::default(), ledger }
    }
}

/// The frontend of one job.
pub struct LoadFrontend {
    load: Arc<Load>,
    done: SyncSender<PhaseDone>,
    live: Arc<LiveCell>,
    /// Of the load in hand.
    memory: Memory,
    /// Of the other targets.
    others: Vec<Option<Memory>>,
    source: Source,
    places: Vec<Place>,
    /// Places that wait: for a block that is free, or for their moment.
    idle: Vec<u32>,
    /// Places whose buffer the kernel still has, of an I/O that was answered by its time limit.
    kept: Vec<u32>,
    /// Of the load in hand, beside what each I/O touches anyway.
    device: DeviceId,
    block_bytes: u64,
    /// Nothing is verified and no schedule is kept to: the short way, which nearly every figure is measured on.
    plain: bool,
    /// I/Os until the next FLUSH.
    until_flush: u64,
    schedule: Option<Schedule>,
    /// When the timer rings that was set last.
    alarm_ns: u64,
    in_flight: u32,
    left: u64,
    deadline_ns: u64,
    /// When the time was over, and how many I/Os had been answered: what is in flight then ends as the disks please, and is no
    /// part of the rate.
    over: Option<(u64, u64)>,
    /// The latest latency with, in the lowest bit, whether it was of a read, and how often that came in a row.
    run: (u64, u64),
    latency_sum: u64,
    running: bool,
    found: PhaseDone,
}

/// What a job has before its first phase.
fn nothing() -> Load {
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
    /// A frontend that sends how each phase went to `done`, and shows in `live` how it is going.
    pub fn new(done: SyncSender<PhaseDone>, live: Arc<LiveCell>) -> LoadFrontend {
        let load = nothing();
        LoadFrontend {
            done,
            live,
            memory: Memory::of(&load),
            others: Vec::new(),
            source: Source::Pattern,
            places: Vec::new(),
            idle: Vec::new(),
            kept: Vec::new(),
            device: load.device,
            block_bytes: load.block_bytes,
            plain: true,
            until_flush: u64::MAX,
            schedule: None,
            alarm_ns: 0,
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
        self.turn_to(cx, &phase.load);
        let now = cx.now_ns();
        (self.deadline_ns, self.over, self.schedule) = (u64::MAX, None, None);
        self.latency_sum = 0;
        match phase.pass {
            Pass::Run { ios, time_ns } => {
                self.source = Source::Pattern;
                self.left = ios;
                self.deadline_ns = now.saturating_add(time_ns);
                self.schedule = self.load.rate.map(|(rate, job, jobs)| Schedule::new(now, rate, job, jobs));
            }
            Pass::Fill => {
                self.source = Source::All(0);
                self.left = self.memory.pattern.blocks();
            }
            Pass::ReadBack => {
                self.source = Source::Known(0);
                self.left = u64::MAX;
            }
        }
        self.plain = self.memory.ledger.is_none() && self.schedule.is_none() && self.load.flush_every.is_none();
        self.until_flush = self.load.flush_every.unwrap_or(u64::MAX);
        self.found.begun_ns = now;
        self.running = true;
        self.idle.clear();
        // The first place is taken first.
        self.idle.extend((0..self.places.len() as u32).rev().filter(|place| !self.kept.contains(place)));
        self.use_idle(cx);
        if self.in_flight == 0 && (self.schedule.is_none() || self.left == 0) {
            self.finish(cx.now_ns());
        }
    }

    /// Makes another load the one in hand: its memory, and places of its size.
    fn turn_to(&mut self, cx: &mut Cx<'_>, load: &Arc<Load>) {
        if self.load.epoch == load.epoch && self.load.slot == load.slot {
            return;
        }
        let of = |load: &Load| (load.depth, load.block_bytes, load.buffers);
        let same_places = of(&self.load) == of(load);
        if !same_places {
            // What the kernel still has is used for nothing any more.
            for (at, place) in self.places.drain(..).enumerate() {
                if !self.kept.contains(&(at as u32)) {
                    cx.free(place.buf, self.load.memory_bytes());
                }
            }
            self.kept.clear();
            self.idle.reserve(load.depth as usize);
            for _ in 0..load.depth {
                // Fewer in flight than asked for would be another measurement: the arena was made large enough.
                let buf = cx.alloc(load.memory_bytes()).expect("the arena has room for every place");
                self.places.push(Place { buf, begun_ns: 0, what: 1 });
            }
        }
        if self.others.len() <= load.slot.max(self.load.slot) {
            self.others.resize_with(load.slot.max(self.load.slot) + 1, || None);
        }
        let remembered = self.others[load.slot].take().filter(|memory| memory.epoch == load.epoch);
        let memory = remembered.unwrap_or_else(|| Memory::of(load));
        let before = std::mem::replace(&mut self.memory, memory);
        if before.epoch == load.epoch {
            self.others[self.load.slot] = Some(before);
        }
        (self.device, self.block_bytes) = (load.device, load.block_bytes);
        self.load = Arc::clone(load);
    }

    /// The next block, and whether it is read: with all that verifying asks for.
    #[inline(never)]
    fn draw(&mut self) -> Drawn {
        if self.left == 0 {
            return Drawn::Done;
        }
        let Some(ledger) = &mut self.memory.ledger else {
            self.left -= 1;
            return match &mut self.source {
                Source::Pattern => {
                    let (block, read) = self.memory.pattern.next();
                    Drawn::Block(block, read)
                }
                // Only those who verify fill and read back.
                Source::All(_) | Source::Known(_) => Drawn::Done,
            };
        };
        for _ in 0..DRAWS_MAX {
            let (block, read) = match &mut self.source {
                Source::Pattern => self.memory.pattern.next(),
                Source::All(next) => {
                    *next += 1;
                    (*next - 1, false)
                }
                Source::Known(next) => {
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

    /// Submits the next I/O from this place; false when there is none now. `TOLD`: it may be one that was drawn ahead.
    #[inline(always)]
    fn next<const TOLD: bool>(&mut self, cx: &mut Cx<'_>, tag: u64, begun_ns: u64) -> bool {
        let (block, read) = if self.plain {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let Memory { pattern, ahead, .. } = &mut self.memory;
            match if TOLD { ahead.take() } else { None } {
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
        let place = &mut self.places[tag as usize];
        place.begun_ns = begun_ns;
        place.what = block << 1 | u64::from(read);
        let buf = match self.load.buffers {
            1 => place.buf,
            buffers => place.buf.add(self.found.ios / u64::from(self.load.depth) % u64::from(buffers) * len),
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

    /// Submits a FLUSH from this place.
    #[cold]
    fn flush(&mut self, cx: &mut Cx<'_>, tag: u64, begun_ns: u64) -> bool {
        self.until_flush = self.load.flush_every.unwrap_or(u64::MAX);
        let place = &mut self.places[tag as usize];
        (place.begun_ns, place.what) = (begun_ns, FLUSH);
        let (op, buf) = (Op::Flush, place.buf);
        let request = Request { device: self.device, op, flags: Flags::NONE, offset: 0, len: 0, buf, tag };
        match cx.submit(&request) {
            Ok(()) => {
                self.in_flight += 1;
                true
            }
            Err(error) => self.refused(error, 0),
        }
    }

    /// An I/O was not accepted. It is not tried again: whatever refuses now refuses the next one too.
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

    /// Gives a block that is verified its content.
    #[inline(never)]
    fn fill(&self, cx: &mut Cx<'_>, buf: Buf, block: u64) {
        let (Some(ledger), Some(run)) = (&self.memory.ledger, self.load.verify) else { return };
        let seed = verify::seed_of(run, ledger.generation(block));
        verify::fill(cx.memory(buf, self.block_bytes as usize), self.memory.pattern.offset(block), seed);
    }

    /// Submits from the places that wait, as far as there are blocks, or moments that have come.
    fn use_idle(&mut self, cx: &mut Cx<'_>) {
        let now_ns = cx.now_ns();
        while let Some(&place) = self.idle.last() {
            let begun_ns = match &self.schedule {
                None => now_ns,
                Some(schedule) if schedule.due_ns() <= now_ns => schedule.due_ns(),
                Some(_) => break,
            };
            if !self.next::<true>(cx, u64::from(place), begun_ns) {
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
            let wanted_ns = schedule.due_ns().min(self.deadline_ns);
            // One alarm at a time: the next one is set when that has rung, unless it is wanted sooner.
            if self.alarm_ns <= now_ns || wanted_ns < self.alarm_ns {
                self.alarm_ns = wanted_ns.max(now_ns + 1);
                cx.timer_at(self.alarm_ns, 0);
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

    /// An I/O on a block that is verified has ended.
    #[inline(never)]
    fn settle(&mut self, cx: &Cx<'_>, place: Place, ok: bool) {
        let (Some(ledger), Some(run)) = (&mut self.memory.ledger, self.load.verify) else { return };
        if !ok && !place.is_read() {
            ledger.end_failed_write(place.block());
            return;
        }
        let generation = ledger.end(place.block());
        if !ok || !place.is_read() || generation == 0 {
            return;
        }
        let (len, offset) = (self.load.block_bytes, self.memory.pattern.offset(place.block()));
        let seed = verify::seed_of(run, generation);
        if let Some(mismatch) = verify::check(cx.bytes(place.buf, len as usize), offset, seed) {
            self.found.mismatch_count += 1;
            if self.found.mismatches.len() < MISMATCHES_KEPT {
                self.found.mismatches.push(mismatch);
            }
        }
        self.found.verified_bytes += len;
    }

    /// Tells how the phase went.
    fn finish(&mut self, now_ns: u64) {
        self.record_run();
        self.running = false;
        (self.found.ended_ns, self.found.ios) = self.over.unwrap_or((now_ns, self.found.ios));
        let found = std::mem::replace(&mut self.found, PhaseDone::new());
        // Nobody may be waiting any more: then nobody wants to know.
        let _ = self.done.try_send(found);
    }

    /// The time is over, or somebody ends it: nothing new begins.
    fn stop_at(&mut self, now_ns: u64) {
        self.left = 0;
        let ended_ns = match &self.schedule {
            // By a schedule the time is what was asked for, however few I/Os that were.
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
    /// An I/O of a plain load has ended well, and is counted already: the short way.
    #[inline(always)]
    fn ended_plainly<const TOLD: bool>(&mut self, cx: &mut Cx<'_>, tag: u64, now_ns: u64) {
        // Field by field: a copy of the place would be put together in memory.
        let place = &self.places[tag as usize];
        let (begun_ns, read) = (place.begun_ns, place.is_read());
        self.record(now_ns - begun_ns, read);
        if !self.next::<TOLD>(cx, tag, now_ns) {
            self.idle.push(tag as u32);
        }
    }

    /// These have ended, and as many are to follow: the engine is told of some before they begin, as a server does that finds them in what it
    /// has received.
    #[inline(never)]
    fn ended_told(&mut self, cx: &mut Cx<'_>, completions: &[Completion], now_ns: u64) {
        for some in completions.chunks(AHEAD) {
            let Memory { pattern, ahead, .. } = &mut self.memory;
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

    /// Any I/O has ended, and is counted already.
    #[inline(never)]
    fn ended(&mut self, cx: &mut Cx<'_>, completion: &Completion, now_ns: u64) {
        let place = self.places[completion.tag as usize];
        if place.what == FLUSH {
            self.found.ios -= 1;
        } else {
            self.record(now_ns - place.begun_ns, place.is_read());
        }
        if let Err(error) = completion.result {
            self.failed(error);
        }
        if !self.plain {
            self.settle(cx, place, completion.result.is_ok());
        }
        // A buffer that the kernel still has is used again when it comes back.
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
            return self.ended_told(cx, completions, now_ns);
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
        let Some(at) = self.kept.iter().position(|&place| u64::from(place) == tag) else { return };
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
        // A phase in which nothing was answered in time is as long as it took, unless a schedule says how long.
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

/// What an error of an I/O was, for people.
pub fn in_words(error: IoError) -> String {
    match error.kind {
        ErrorKind::TimedOut => format!("no answer within the time limit ({error})"),
        _ => error.to_string(),
    }
}
