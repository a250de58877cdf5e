//! The port: turns the engine's leaf I/Os into system calls, and returns their results.
//!
//! Small reads and writes of plain `null` and `mem` disks complete inside [`LeafSink::complete_inline`]. All other I/O on these
//! disks completes inside [`LeafSink::submit`]; its results wait in a queue that the shard's loop drains. Every other
//! I/O gets an entry in a slab. The entry exists through delays, retries, continuations and the time limit until the
//! driver's last event for it.

#![allow(unsafe_code)]

mod below;
mod entry;
mod errno;
mod forwarding;
mod memory;
mod remote;
mod steps;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use braid_engine::limits::STEP_IOS_MAX;
use braid_engine::{
    Buf, ComputeFn, Cookie, ErrorKind, Flags, LEAF_BYTES_MAX, LeafError, LeafId, LeafIo, LeafResult, LeafSink,
    META_BLOCKS, Op, SCRATCH_BYTES, ShardId,
};

use self::below::Below;
use self::entry::{Entries, NONE, State};
pub(crate) use self::forwarding::ForwardedIo;
use self::forwarding::Forwarding;
use self::memory::Iovecs;
use self::remote::CarrierQueues;
use crate::arena::Arena;
use crate::clock::lease_clock_ns;
use crate::driver::{Driver, FileRef};
use crate::error::RingError;
use crate::faults::{FaultOutcome, FaultView};
use crate::limits::{LEAVES_MAX, META_MAX};
use crate::map::Map;
use crate::medium::{Base, Medium};
use crate::stack_level::mark_of;
use crate::stats::LeafCounters;

/// Maximum number of system calls for leaf I/Os in flight on one shard. Further ones wait.
pub(crate) const DEPTH: u32 = 16 << 10;

/// Bytes of lent memory copied at a time.
const LENT_PIECE_BYTES: usize = 512;

/// The result of one leaf I/O, on its way to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) cookie: Cookie,
    pub(crate) result: LeafResult,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vacant,
    /// A plain `null` disk: I/O completes inside `submit`.
    Null,
    Mem,
    /// Any other disk: I/O takes time.
    Slow,
}

/// A disk as one shard sees it. The fields of the fast path are in the first cache line.
#[repr(C, align(64))]
struct Leaf {
    size_bytes: u64,
    counters: Arc<LeafCounters>,
    /// The memory of a `mem` disk.
    bytes: *mut u8,
    kind: Kind,
    /// Opened for writing.
    writable: bool,
    /// False once the file system or device has refused FALLOC_FL_PUNCH_HOLE.
    punches: bool,
    /// False once the file system or device has refused FALLOC_FL_ZERO_RANGE.
    zeroes_ranges: bool,
    /// Entries of this leaf in the slab.
    in_flight: u32,
    /// Ranges of its memory that are lent for sends.
    lent: u32,
    /// I/Os in flight that a `hang` rule holds.
    hung: u32,
    file: FileRef,
    disk: Option<Arc<Medium>>,
    views: Vec<FaultView>,
    /// Version of the rules when the hung I/Os were last checked.
    hung_version: u64,
    /// Index of the carrier of a remote disk.
    carrier: u16,
    /// The shard that has the disk's only connection and carries its I/O, if another one does.
    host: Option<ShardId>,
    /// The time ([`Port::now_ns`]) of the turn in which its file was last found to have its full size.
    whole_at_ns: u64,
}

impl Leaf {
    fn vacant(counters: &Arc<LeafCounters>) -> Leaf {
        Leaf {
            kind: Kind::Vacant,
            writable: false,
            punches: false,
            zeroes_ranges: false,
            in_flight: 0,
            lent: 0,
            hung: 0,
            size_bytes: 0,
            bytes: std::ptr::null_mut(),
            counters: Arc::clone(counters),
            file: FileRef::NONE,
            disk: None,
            views: Vec::new(),
            hung_version: 0,
            carrier: 0,
            host: None,
            whole_at_ns: u64::MAX,
        }
    }

    /// Returns whether the whole range lies on the disk.
    #[inline]
    fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.size_bytes && len <= self.size_bytes - offset
    }

    fn rules_version(&self) -> u64 {
        self.disk.iter().flat_map(|d| &d.faults).map(|f| f.version()).sum()
    }

    /// Returns whether the rules have changed since the hung I/Os were last checked.
    fn has_new_rules(&self) -> bool {
        self.hung > 0 && self.rules_version() != self.hung_version
    }
}

/// Configuration of a port.
pub(crate) struct PortConfig {
    pub(crate) shard: ShardId,
    /// Maximum number of leaf I/Os in flight.
    pub(crate) ios_max: usize,
    pub(crate) time_limit_ns: u64,
}

/// The memory that one stack level's engine uses.
pub(crate) struct LevelMemory {
    /// Scratch memory for parity computations. Pages are allocated on first use.
    scratch: Map,
    /// Metadata blocks of the engine.
    meta: Map,
}

impl LevelMemory {
    pub(crate) fn new() -> std::io::Result<LevelMemory> {
        Ok(LevelMemory { scratch: Map::new(SCRATCH_BYTES as usize)?, meta: Map::new(META_BLOCKS as usize * 4096)? })
    }
}

/// See the module documentation.
pub(crate) struct Port {
    pub(crate) driver: Driver,
    pub(crate) arena: Arena,
    /// The time of this turn of the loop.
    pub(crate) now_ns: u64,
    /// Results for the engine.
    pub(crate) done: Vec<Done>,
    /// I/Os that have exceeded their time limit, to be reported to the engine. The kernel still has them.
    pub(crate) late: Vec<Cookie>,
    /// Late I/Os that the kernel has returned, to be reported to the engine.
    pub(crate) returned: Vec<Cookie>,
    meta_blocks: Buf,
    leaves: Box<[Leaf]>,
    entries: Entries,
    /// Entries that wait for a time: the time, and the entry.
    delays: BinaryHeap<Reverse<(u64, u32)>>,
    /// System calls in flight.
    issued: u32,
    hung: u32,
    /// Leaves whose memory is lent, each once.
    lenders: Vec<LeafId>,
    iovecs: Iovecs,
    /// Zeros to write from. The mapping is never written, so all of it is the kernel's single zero page.
    zeros: Map,
    /// Scratch memory for parity computations. Pages are allocated on first use.
    scratch: Map,
    /// Scratch memory and metadata blocks of the stack levels above the first.
    upper: Vec<LevelMemory>,
    /// The stack level whose engine is running, and the mark of that level's cookies.
    level: usize,
    mark: u64,
    below: Below,
    carrier_queues: CarrierQueues,
    forwarding: Forwarding,
    time_limit_ns: u64,
    shard: ShardId,
    no_counters: Arc<LeafCounters>,
}

impl Port {
    pub(crate) fn new(driver: Driver, mut arena: Arena, config: &PortConfig) -> Result<Port, RingError> {
        let no_counters = Arc::new(LeafCounters::new());
        let failed = |e| RingError::os(e, "taking memory for a shard".to_string());
        let meta_blocks = arena.alloc(META_BLOCKS as usize * 4096).ok_or_else(|| {
            RingError::os(std::io::Error::from_raw_os_error(libc::ENOMEM), "an arena below 1 MiB".to_string())
        })?;
        Ok(Port {
            driver,
            arena,
            now_ns: 0,
            done: Vec::with_capacity(config.ios_max),
            late: Vec::with_capacity(config.ios_max),
            returned: Vec::with_capacity(config.ios_max),
            meta_blocks,
            leaves: (0..LEAVES_MAX).map(|_| Leaf::vacant(&no_counters)).collect(),
            entries: Entries::new(config.ios_max),
            delays: BinaryHeap::with_capacity(config.ios_max),
            issued: 0,
            hung: 0,
            lenders: Vec::with_capacity(LEAVES_MAX as usize),
            iovecs: Iovecs::new(DEPTH).map_err(failed)?,
            zeros: Map::new(LEAF_BYTES_MAX as usize).map_err(failed)?,
            scratch: Map::new(SCRATCH_BYTES as usize).map_err(failed)?,
            upper: Vec::new(),
            level: 0,
            mark: 0,
            below: Below::default(),
            carrier_queues: CarrierQueues::default(),
            forwarding: Forwarding::default(),
            time_limit_ns: config.time_limit_ns,
            shard: config.shard,
            no_counters,
        })
    }

    /// Reserves memory for the I/Os of one more stack level, whose engine has this many slots.
    pub(crate) fn add_level(&mut self, memory: LevelMemory, slots: usize) {
        self.upper.push(memory);
        let more = slots * STEP_IOS_MAX + META_MAX;
        self.entries.reserve(more);
        self.done.reserve(more);
        self.below.reserve(slots);
    }

    /// Selects the stack level whose engine runs from now on.
    pub(crate) fn set_level(&mut self, level: usize) {
        (self.level, self.mark) = (level, mark_of(level));
    }

    /// Adds `disk` as leaf `id`. The control plane never uses an id for two disks at a time.
    pub(crate) fn add_leaf(&mut self, id: LeafId, disk: Arc<Medium>, counters: Arc<LeafCounters>) {
        let file = match disk.raw_fd() {
            None => FileRef::NONE,
            Some(fd) => {
                let registered = self.driver.register_file(id.0, fd);
                let slot = if registered { id.0 } else { FileRef::UNREGISTERED };
                FileRef { fd, slot, direct: disk.is_direct() }
            }
        };
        let (kind, bytes) = match disk.base() {
            Base::Null if disk.is_plain() => (Kind::Null, std::ptr::null_mut()),
            Base::Mem(map) if disk.is_plain() => (Kind::Mem, map.ptr()),
            Base::Mem(map) => (Kind::Slow, map.ptr()),
            Base::Null | Base::File(_) | Base::Device(_) | Base::Remote { .. } => (Kind::Slow, std::ptr::null_mut()),
        };
        self.leaves[id.0 as usize] = Leaf {
            kind,
            writable: disk.is_writable(),
            punches: true,
            zeroes_ranges: true,
            in_flight: 0,
            lent: 0,
            hung: 0,
            size_bytes: disk.size_bytes(),
            bytes,
            counters,
            file,
            views: disk.faults.iter().map(|f| FaultView::new(f, self.shard)).collect(),
            disk: Some(disk),
            hung_version: 0,
            carrier: 0,
            host: None,
            whole_at_ns: u64::MAX,
        };
    }

    /// Updates the size of a leaf from its disk.
    pub(crate) fn resize_leaf(&mut self, id: LeafId) {
        let leaf = &mut self.leaves[id.0 as usize];
        if let Some(disk) = &leaf.disk {
            leaf.size_bytes = disk.size_bytes();
        }
    }

    /// Removes a leaf. Returns false if I/Os of it are in flight or its memory is lent.
    pub(crate) fn remove_leaf(&mut self, id: LeafId) -> bool {
        let leaf = &mut self.leaves[id.0 as usize];
        if leaf.in_flight > 0 || leaf.lent > 0 {
            return false;
        }
        let slot = leaf.file.slot;
        *leaf = Leaf::vacant(&self.no_counters);
        if slot != FileRef::UNREGISTERED {
            self.driver.register_file(slot, -1);
        }
        true
    }

    /// Returns the number of leaf I/Os that are incomplete, or that the kernel has not returned.
    pub(crate) fn in_flight(&self) -> u32 {
        self.entries.used() + self.done.len() as u32
    }

    /// Lends the memory of a range, if the leaf is a plain memory disk. The memory and the leaf stay until
    /// [`Port::take_back`].
    pub(crate) fn lend(&mut self, id: LeafId, offset: u64, len: u64) -> Option<Buf> {
        let leaf = self.leaves.get_mut(id.0 as usize)?;
        if leaf.kind != Kind::Mem || !leaf.holds(offset, len) {
            return None;
        }
        leaf.counters.started(Op::Read, len);
        leaf.lent += 1;
        let addr = leaf.bytes.wrapping_add(offset as usize) as u64;
        if leaf.lent == 1 {
            self.lenders.push(id);
        }
        Some(Buf { addr, region: Buf::UNREGISTERED })
    }

    /// Returns a loan of a leaf's memory.
    pub(crate) fn take_back(&mut self, id: LeafId) {
        let leaf = &mut self.leaves[id.0 as usize];
        debug_assert!(leaf.lent > 0, "what is given back was lent");
        leaf.lent -= 1;
        if leaf.lent == 0 {
            self.lenders.retain(|lender| *lender != id);
        }
    }

    /// Copies lent bytes to the arena, in short pieces: source and target are aligned differently within a cache line
    /// (a record header precedes one of them), and long copies of that kind take twice as long on some processors.
    pub(crate) fn copy_lent(&mut self, from: Buf, to: Buf, len: usize) {
        assert!(self.has_lent(from, len as u64), "the bytes are lent");
        let into = self.arena.memory(to, len);
        let mut at = from.addr as *const u8;
        for piece in into.chunks_mut(LENT_PIECE_BYTES) {
            // SAFETY: the range was just found to lie in the mapping of a disk that exists while it lends, and that is
            // only accessed through raw pointers; `piece` is exclusive, and no part of a disk.
            unsafe { memory::copy_out(at, piece) };
            at = at.wrapping_add(piece.len());
        }
    }

    /// Returns whether the whole range lies in the memory of a leaf that has lent some of it.
    pub(crate) fn has_lent(&self, buf: Buf, len: u64) -> bool {
        self.lenders.iter().map(|id| &self.leaves[id.0 as usize]).any(|leaf| {
            let offset = buf.addr.wrapping_sub(leaf.bytes as u64);
            leaf.holds(offset, len)
        })
    }

    /// Returns the number of system calls in flight.
    pub(crate) fn issued(&self) -> u32 {
        self.issued
    }

    /// Ends the port while the kernel still has I/Os of it. The memory of those I/Os is leaked.
    pub(crate) fn leak(self) {
        let Port { driver, arena, iovecs, zeros, leaves, scratch, upper, .. } = self;
        // The files stay open and locked as long as the kernel may still write to them.
        std::mem::forget((iovecs, zeros, leaves, scratch, upper));
        driver.abandon();
        arena.leak();
    }

    /// Returns when something is due that no event announces: the end of a delay or a time limit.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let delay = self.delays.peek().map(|Reverse((at, _))| *at);
        let limit = self.entries.oldest().map(|(_, since)| since.saturating_add(self.time_limit_ns));
        match (delay, limit) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Processes everything that is due by `now_ns`.
    pub(crate) fn tick(&mut self) {
        while let Some(Reverse((at, index))) = self.delays.peek().copied()
            && at <= self.now_ns
        {
            self.delays.pop();
            match self.entries[index].state {
                State::Holding => self.complete(index, self.entries[index].result),
                State::Retry => self.retry(index),
                _ => self.begin(index),
            }
        }
        while let Some((index, since)) = self.entries.oldest()
            && self.now_ns.saturating_sub(since) >= self.time_limit_ns
        {
            self.time_out(index);
        }
        if self.hung > 0 {
            self.release_hung();
        }
    }

    #[cold]
    fn refuse(&mut self, io: &LeafIo, kind: ErrorKind) {
        let cookie = Cookie(io.cookie.0 | self.mark);
        self.done.push(Done { cookie, result: Err(LeafError::of(kind)) });
    }

    /// Accepts an I/O that takes time.
    #[inline(never)]
    fn submit_slow(&mut self, io: &LeafIo) {
        let leaf = &mut self.leaves[io.leaf.0 as usize];
        leaf.in_flight += 1;
        leaf.counters.in_flight.add(1);
        let index = self.entries.take(io, self.now_ns);
        self.entries[index].io.cookie.0 |= self.mark;
        let disk = leaf.disk.as_ref().expect("only a leaf with a disk is slow");
        if disk.is_plain() {
            return self.begin(index);
        }
        let mut outcome = FaultOutcome::default();
        for view in &mut leaf.views {
            outcome = outcome.and(view.evaluate(io.op, io.offset, io.len));
        }
        let mut begin_ns = self.now_ns.saturating_add(outcome.delay_ns);
        let mut not_before_ns = 0;
        for throttle in &disk.throttles {
            let (start, earliest) = throttle.admit(self.now_ns, io.op, io.len);
            begin_ns = begin_ns.max(start);
            not_before_ns = not_before_ns.max(earliest);
        }
        self.shaped(index, outcome, begin_ns, not_before_ns);
    }

    /// Applies the outcome of fault rules and throttles to an entry.
    fn shaped(&mut self, index: u32, outcome: FaultOutcome, begin_ns: u64, not_before_ns: u64) {
        let entry = &mut self.entries[index];
        entry.not_before_ns = not_before_ns;
        entry.corrupt_bit = outcome.corrupt_bit.unwrap_or(u64::MAX);
        if let Some(torn_to) = outcome.torn_to {
            entry.io.len = torn_to.min(entry.io.len);
        }
        if outcome.gone || outcome.error {
            let errno = if outcome.gone { libc::ENODEV } else { libc::EIO };
            entry.not_before_ns = begin_ns.max(not_before_ns);
            return self.failed(index, errno);
        }
        if outcome.hang {
            let leaf = &mut self.leaves[entry.io.leaf.0 as usize];
            entry.state = State::Hung;
            entry.rules = leaf.views.iter().map(FaultView::version).sum();
            if leaf.hung == 0 {
                leaf.hung_version = entry.rules;
            }
            leaf.hung += 1;
            self.hung += 1;
            return self.entries.start_clock(index, self.now_ns);
        }
        if begin_ns > self.now_ns {
            entry.state = State::Delayed;
            return self.delays.push(Reverse((begin_ns, index)));
        }
        self.begin(index);
    }

    /// Starts an entry on the disk beneath its wrappers.
    fn begin(&mut self, index: u32) {
        let entry = &self.entries[index];
        let leaf = &self.leaves[entry.io.leaf.0 as usize];
        let disk = leaf.disk.as_ref().expect("a leaf is not removed while it has entries");
        if must_be_durable(&entry.io) && disk.has_failed_flush() {
            return self.finish(index, Err(LeafError::of(ErrorKind::FlushFailed)));
        }
        match disk.base() {
            Base::Null => self.finish(index, Ok(())),
            Base::Mem(_) => {
                // SAFETY: `submit` has checked that the range lies on the disk; the engine guarantees that the memory
                // is valid.
                unsafe { memory::carry_out(leaf.bytes, &entry.io) };
                self.finish(index, Ok(()));
            }
            Base::Device(device) => {
                let device = *device;
                self.begin_below(index, device);
            }
            Base::Remote { .. } => self.begin_remote(index),
            Base::File(_) => {
                self.entries.start_clock(index, self.now_ns);
                self.begin_on_file(index);
            }
        }
    }

    /// Ends the work of an entry. It completes now, or as soon as `not_before_ns` permits.
    fn finish(&mut self, index: u32, result: LeafResult) {
        let entry = &mut self.entries[index];
        if entry.corrupt_bit != u64::MAX && result.is_ok() && !entry.late {
            // SAFETY: the I/O has succeeded, so its memory is valid and the kernel no longer uses it.
            unsafe { memory::flip_bit(&entry.io, entry.corrupt_bit) };
        }
        if entry.not_before_ns > self.now_ns && !entry.late {
            entry.state = State::Holding;
            entry.result = result;
            let at = entry.not_before_ns;
            self.entries.stop_clock(index);
            self.delays.push(Reverse((at, index)));
            return;
        }
        self.complete(index, result);
    }

    /// Ends an entry with an error number of its disk. After a failed flush, later flushes and durable writes of the
    /// disk fail, too.
    fn failed(&mut self, index: u32, errno: i32) {
        let entry = &self.entries[index];
        if entry.io.op == Op::Flush
            && let Some(disk) = &self.leaves[entry.io.leaf.0 as usize].disk
        {
            disk.set_flush_failed();
        }
        self.finish(index, Err(errno::leaf_error(errno)));
    }

    /// Returns an entry's result to the engine, and frees the entry.
    fn complete(&mut self, index: u32, result: LeafResult) {
        let entry = &self.entries[index];
        let (cookie, late, op, start_ns) = (entry.io.cookie, entry.late, entry.io.op, entry.start_ns);
        let leaf = &mut self.leaves[entry.io.leaf.0 as usize];
        leaf.in_flight -= 1;
        if let Some(forwarded_from) = entry.forwarded_from {
            return self.reply_forwarded(index, forwarded_from, result);
        }
        leaf.counters.in_flight.sub(1);
        if late {
            self.returned.push(cookie);
        } else {
            // A read that was given up as slow has not failed.
            if let Err(error) = result
                && error.kind != ErrorKind::Slow
            {
                leaf.counters.errors.add(1);
                leaf.counters.no_space.add(u64::from(error.kind == ErrorKind::NoSpace));
            }
            leaf.counters.record(op as usize, self.now_ns.saturating_sub(start_ns));
            self.done.push(Done { cookie, result });
        }
        self.entries.give(index);
    }

    /// Handles an entry that has exceeded its time limit. The engine is notified now, and again when the kernel returns
    /// the I/O.
    fn time_out(&mut self, index: u32) {
        self.entries.stop_clock(index);
        let entry = &mut self.entries[index];
        entry.late = true;
        let counters = &self.leaves[entry.io.leaf.0 as usize].counters;
        counters.errors.add(1);
        counters.late.add(1);
        if entry.io.op == Op::Flush
            && let Some(disk) = &self.leaves[entry.io.leaf.0 as usize].disk
        {
            // Its result will never be known, so no later flush may claim that the data it covered is durable.
            disk.set_flush_failed();
        }
        self.late.push(entry.io.cookie);
    }

    /// Returns whether an I/O hangs by fault rules that were replaced since. The shard must not sleep then.
    pub(crate) fn has_new_rules(&self) -> bool {
        self.hung > 0 && self.leaves.iter().any(Leaf::has_new_rules)
    }

    /// Starts, or if they are late completes, I/Os that hang by fault rules that were replaced since.
    #[cold]
    fn release_hung(&mut self) {
        for id in 0..LEAVES_MAX {
            let leaf = &mut self.leaves[id as usize];
            if !leaf.has_new_rules() {
                continue;
            }
            let version = leaf.rules_version();
            leaf.hung_version = version;
            let mut from = 0;
            while let Some(index) = self.entries.next_hung(LeafId(id), from) {
                from = index + 1;
                if self.entries[index].rules == version {
                    continue;
                }
                self.leaves[id as usize].hung -= 1;
                self.hung -= 1;
                self.entries.stop_clock(index);
                if self.entries[index].late {
                    self.complete(index, Ok(()));
                } else {
                    self.begin(index);
                }
            }
        }
    }
}

/// Returns whether an I/O must be durable when it succeeds.
fn must_be_durable(io: &LeafIo) -> bool {
    io.op == Op::Flush || (io.op == Op::Write && io.flags.has(Flags::FUA))
}

impl LeafSink for Port {
    fn submit(&mut self, io: &LeafIo) {
        let Some(leaf) = self.leaves.get(io.leaf.0 as usize).filter(|leaf| leaf.kind != Kind::Vacant) else {
            return self.refuse(io, ErrorKind::NoDevice);
        };
        if !leaf.holds(io.offset, io.len) {
            return self.refuse(io, ErrorKind::Invalid);
        }
        if !leaf.writable && !matches!(io.op, Op::Read | Op::Flush) {
            return self.refuse(io, ErrorKind::ReadOnly);
        }
        leaf.counters.started(io.op, io.len);
        match leaf.kind {
            Kind::Null => {}
            // SAFETY: the range lies on the disk; the engine guarantees that the memory is valid, and `Cx::submit` has
            // checked that it lies in the arena.
            Kind::Mem => unsafe { memory::carry_out(leaf.bytes, io) },
            _ => return self.submit_slow(io),
        }
        self.done.push(Done { cookie: Cookie(io.cookie.0 | self.mark), result: Ok(()) });
    }

    #[inline(always)]
    fn complete_inline(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) -> Option<LeafResult> {
        let leaf = self.leaves.get(leaf.0 as usize)?;
        if !leaf.holds(offset, len) || (op != Op::Read && !leaf.writable) {
            return None;
        }
        match leaf.kind {
            Kind::Null => {}
            // SAFETY: as in `submit`.
            Kind::Mem => unsafe { memory::copy(leaf.bytes, op, offset, len, buf) },
            _ => return None,
        }
        leaf.counters.started(op, len);
        Some(Ok(()))
    }

    #[inline(always)]
    fn prefetch(&self, address: *const u8) {
        memory::fetch(address);
    }

    fn zero(&mut self, buf: Buf, len: u64) {
        // SAFETY: memory of a request in flight; the engine guarantees exclusive access.
        unsafe { memory::fill(buf, len) };
    }

    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool {
        // SAFETY: as in `zero`; no I/O in flight writes to it.
        unsafe { memory::is_equal(a, b, len) }
    }

    fn scratch(&mut self) -> (Buf, u64) {
        let map = match self.level {
            0 => &self.scratch,
            level => &self.upper[level - 1].scratch,
        };
        (Buf { addr: map.addr(), region: Buf::UNREGISTERED }, map.len() as u64)
    }

    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut ComputeFn<'_>) {
        // SAFETY: memory of requests in flight, on this shard or one that waits for it, and scratch memory; the engine
        // guarantees that it is valid and that no output overlaps another output or an input.
        unsafe { memory::compute(inputs, outputs, len, work) };
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn lease_ns(&self) -> u64 {
        lease_clock_ns()
    }

    fn meta_block(&mut self, index: u32) -> (Buf, &mut [u8; 4096]) {
        assert!(index < META_BLOCKS, "there are META_BLOCKS of them");
        let at = index as usize * 4096;
        if self.level > 0 {
            let map = &self.upper[self.level - 1].meta;
            let buf = Buf { addr: map.addr() + at as u64, region: Buf::UNREGISTERED };
            // SAFETY: a block of a mapping that lives as long as the port; the engine fills it only while no I/O uses
            // it, and holds the only reference.
            return (buf, unsafe { memory::block(map.ptr().wrapping_add(at)) });
        }
        let buf = self.meta_blocks.add(at as u64);
        let bytes = self.arena.memory(buf, 4096).as_mut_array().expect("4096 bytes were requested");
        (buf, bytes)
    }
}

const _: () = assert!(NONE > DEPTH);
