//! The load itself: a frontend on a shard that keeps so many requests in flight.
//!
//! What it costs is part of every figure, so it does little for each I/O: no allocation, no clock (the loop's own
//! reading is used), latencies counted in runs of equal ones.

use std::any::Any;
use std::sync::mpsc::SyncSender;

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request};
use braid_ring::{Cx, Frontend};
use hdrhistogram::Histogram;

use super::latency::latency_histogram;
use super::pattern::{Order, Pattern};
use super::verify::{self, Mismatch};

/// Mismatches that are kept in words; the others are counted.
pub const MISMATCHES_KEPT: usize = 8;

/// What one shard is to do, from the start of the ring on.
#[derive(Clone, Debug)]
pub struct Load {
    /// The device.
    pub device: DeviceId,
    /// I/Os in flight.
    pub depth: u32,
    /// Bytes of each.
    pub block_bytes: u64,
    /// First byte of this shard's part.
    pub first_byte: u64,
    /// Its length.
    pub span_bytes: u64,
    /// Of the blocks' content, and of the order in which they are visited.
    pub seed: u64,
    /// Give every block its content, and check what is read.
    pub verify: bool,
}

/// One pass over the blocks; posted to the frontend.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Blocks by pattern, until a number is reached or a time is over.
    Run {
        /// In which order.
        order: Order,
        /// Share of reads, in percent.
        reads_percent: u8,
        /// I/Os, or `u64::MAX`.
        ios: u64,
        /// Nanoseconds, or `u64::MAX`.
        time_ns: u64,
    },
    /// Every block is written once.
    Fill,
    /// Every block that was written is read once, and checked.
    ReadBack,
}

/// How a phase went on one shard.
pub struct PhaseDone {
    /// I/Os answered, within the time where one was given.
    pub ios: u64,
    /// Those that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<IoError>,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
    /// Time of the loop at the first submission.
    pub begun_ns: u64,
    /// Time of the loop at the last answer that counts: where a time was given, the last one within it.
    pub ended_ns: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// The first wrong blocks.
    pub mismatches: Vec<Mismatch>,
    /// All wrong blocks.
    pub mismatch_count: u64,
}

impl PhaseDone {
    fn new() -> PhaseDone {
        PhaseDone {
            ios: 0,
            errors: 0,
            first_error: None,
            latency: latency_histogram(),
            begun_ns: 0,
            ended_ns: 0,
            verified_bytes: 0,
            mismatches: Vec::with_capacity(MISMATCHES_KEPT),
            mismatch_count: 0,
        }
    }
}

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
    Written(u64),
}

/// The frontend.
pub struct LoadFrontend {
    load: Load,
    done: SyncSender<PhaseDone>,
    pattern: Pattern,
    source: Source,
    places: Vec<Place>,
    /// One bit for each block that was written, when verifying.
    written: Vec<u64>,
    in_flight: u32,
    left: u64,
    deadline_ns: u64,
    /// When the time was over, and how many I/Os had been answered: what is in flight then ends as the disks please, and is no
    /// part of the rate.
    over: Option<(u64, u64)>,
    /// The latest latency and how often it came in a row.
    run: (u64, u64),
    found: PhaseDone,
}

impl LoadFrontend {
    /// A frontend that sends how each phase went to `done`.
    pub fn new(load: Load, done: SyncSender<PhaseDone>) -> LoadFrontend {
        let pattern =
            Pattern::new(load.seed, Order::Sequential, 100, load.first_byte, load.span_bytes, load.block_bytes);
        let words = if load.verify { pattern.blocks().div_ceil(64) as usize } else { 0 };
        LoadFrontend {
            done,
            source: Source::Pattern,
            places: Vec::with_capacity(load.depth as usize),
            written: vec![0; words],
            in_flight: 0,
            left: 0,
            deadline_ns: u64::MAX,
            over: None,
            run: (0, 0),
            found: PhaseDone::new(),
            pattern,
            load,
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>, phase: &Phase) {
        let blocks = self.pattern.blocks();
        let now = cx.now_ns();
        self.deadline_ns = u64::MAX;
        self.over = None;
        self.left = u64::MAX;
        match *phase {
            Phase::Run { order, reads_percent, ios, time_ns } => {
                let load = &self.load;
                self.pattern =
                    Pattern::new(load.seed, order, reads_percent, load.first_byte, load.span_bytes, load.block_bytes);
                self.source = Source::Pattern;
                self.left = ios;
                self.deadline_ns = now.saturating_add(time_ns);
            }
            Phase::Fill => {
                self.source = Source::All(0);
                self.left = blocks;
            }
            Phase::ReadBack => self.source = Source::Written(0),
        }
        self.found.begun_ns = now;
        for place in 0..self.places.len() {
            if !self.next(cx, place as u64) {
                break;
            }
        }
        if self.in_flight == 0 {
            self.finish(cx.now_ns());
        }
    }

    /// The next block, and whether it is read; none when the phase has no more.
    #[inline(always)]
    fn draw(&mut self) -> Option<(u64, bool)> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        match &mut self.source {
            Source::Pattern => Some(self.pattern.next()),
            Source::All(next) => {
                *next += 1;
                Some((*next - 1, false))
            }
            Source::Written(next) => {
                let found =
                    (*next..self.pattern.blocks()).find(|b| self.written[(b / 64) as usize] >> (b % 64) & 1 == 1)?;
                *next = found + 1;
                Some((found, true))
            }
        }
    }

    /// Submits the next I/O from this place; false when there is none.
    #[inline(always)]
    fn next(&mut self, cx: &mut Cx<'_>, tag: u64) -> bool {
        let Some((block, read)) = self.draw() else { return false };
        let offset = self.pattern.offset(block);
        let (now_ns, len) = (cx.now_ns(), self.load.block_bytes);
        let place = &mut self.places[tag as usize];
        place.begun_ns = now_ns;
        place.what = block << 1 | u64::from(read);
        let buf = place.buf;
        if self.load.verify && !read {
            self.written[(block / 64) as usize] |= 1 << (block % 64);
            verify::fill(cx.memory(buf, len as usize), offset, self.load.seed);
        }
        let op = if read { Op::Read } else { Op::Write };
        let request = Request { device: self.load.device, op, flags: Flags::NONE, offset, len, buf, tag };
        match cx.submit(&request) {
            Ok(()) => {
                self.in_flight += 1;
                true
            }
            Err(error) => {
                // Not tried again: whatever refuses now refuses the next one too.
                self.failed(error);
                self.found.ios += 1;
                false
            }
        }
    }

    #[cold]
    fn failed(&mut self, error: IoError) {
        self.found.errors += 1;
        self.found.first_error.get_or_insert(error);
    }

    #[inline]
    fn record(&mut self, latency_ns: u64) {
        if self.run.0 == latency_ns {
            self.run.1 += 1;
        } else {
            self.record_run();
            self.run = (latency_ns, 1);
        }
    }

    fn record_run(&mut self) {
        if self.run.1 > 0 {
            self.found.latency.saturating_record_n(self.run.0, self.run.1);
            self.run.1 = 0;
        }
    }

    fn check(&mut self, cx: &Cx<'_>, place: Place) {
        let (len, offset) = (self.load.block_bytes, self.pattern.offset(place.block()));
        if let Some(mismatch) = verify::check(cx.bytes(place.buf, len as usize), offset, self.load.seed) {
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
        (self.found.ended_ns, self.found.ios) = self.over.unwrap_or((now_ns, self.found.ios));
        let found = std::mem::replace(&mut self.found, PhaseDone::new());
        // Nobody may be waiting any more: then nobody wants to know.
        let _ = self.done.try_send(found);
    }
}

impl Frontend for LoadFrontend {
    fn start(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..self.load.depth {
            // Fewer in flight than asked for would be another measurement: the arena was made large enough.
            let buf = cx.alloc(self.load.block_bytes as usize).expect("the arena has room for every place");
            self.places.push(Place { buf, begun_ns: 0, what: 1 });
        }
    }

    #[inline(always)]
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        let now_ns = cx.now_ns();
        let place = self.places[completion.tag as usize];
        self.in_flight -= 1;
        self.found.ios += 1;
        self.record(now_ns - place.begun_ns);
        if let Err(error) = completion.result {
            self.failed(error);
        } else if self.load.verify && place.is_read() {
            self.check(cx, place);
        }
        // A buffer that the kernel still has is used again when it comes back.
        if !completion.buffer_busy {
            self.next(cx, completion.tag);
        }
        if self.in_flight == 0 {
            self.finish(now_ns);
        }
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        self.next(cx, tag);
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        if let Ok(phase) = message.downcast::<Phase>() {
            self.begin(cx, &phase);
        }
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        // A phase in which nothing was answered in time is as long as it took.
        if cx.now_ns() >= self.deadline_ns && self.left > 0 && self.found.ios > 0 {
            self.left = 0;
            self.over = Some((cx.now_ns(), self.found.ios));
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
