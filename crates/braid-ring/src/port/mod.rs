//! The port: where the engine's leaf I/Os become system calls, and their results come back.
//!
//! Small reads and writes of plain `null` and `mem` disks end inside [`LeafSink::at_once`]. What else these disks are asked
//! ends inside [`LeafSink::submit`]; its results wait in a queue that the shard's loop drains. All others get an entry in
//! a slab, in which they live through delays, retries, continuations and their time limit, until the driver's last
//! event on them.

#![allow(unsafe_code)]

mod below;
mod entry;
mod errands;
mod errno;
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
    Buf, Cookie, ErrorKind, Flags, LEAF_BYTES_MAX, LeafError, LeafId, LeafIo, LeafResult, LeafSink, META_BLOCKS, Op,
    RowWork, SCRATCH_BYTES, ShardId,
};

use self::below::Below;
use self::entry::{Entries, NONE, State};
pub(crate) use self::errands::Errand;
use self::errands::Errands;
use self::memory::Iovecs;
use self::remote::Lines;
use crate::arena::Arena;
use crate::disk::{Base, Disk};
use crate::driver::{Driver, FileRef};
use crate::error::RingError;
use crate::faults::{FaultView, Verdict};
use crate::map::Map;
use crate::metas::META_MAX;
use crate::shard::lease_clock_ns;
use crate::stats::LeafCounters;
use crate::tier::mark_of;

/// Disks that a ring can hold at a time.
pub const LEAVES_MAX: u32 = 4096;

/// Jobs of leaf I/Os in the kernel at a time, on one shard; more wait.
pub(crate) const DEPTH: u32 = 16 << 10;

/// Bytes of lent memory that are copied in one go.
const LENT_PIECE_BYTES: usize = 512;

/// Kind of a driver's token: the event belongs to an entry of the port.
pub(crate) const LEAF_TOKEN: u64 = 1 << 56;

/// The result of one leaf I/O, on its way to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) cookie: Cookie,
    pub(crate) result: LeafResult,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vacant,
    /// Plain: ends inside `submit`.
    Null,
    Mem,
    /// Everything that takes time.
    Slow,
}

/// A disk, as one shard sees it. What the fast path needs is in its first cache line.
#[repr(C, align(64))]
struct Leaf {
    size_bytes: u64,
    counters: Arc<LeafCounters>,
    /// The bytes of a memory disk.
    bytes: *mut u8,
    kind: Kind,
    /// Opened for writing.
    writable: bool,
    /// The file system or device has these operations, as far as is known.
    punches: bool,
    zeroes_ranges: bool,
    /// Entries of this leaf in the slab.
    in_flight: u32,
    /// Ranges of its memory that somebody is sending from.
    lent: u32,
    /// Of those in flight, held by a rule.
    hung: u32,
    file: FileRef,
    disk: Option<Arc<Disk>>,
    views: Vec<FaultView>,
    /// Version of the rules by which those that hang were last looked at.
    hung_version: u64,
    /// Of what carries its I/O, if it is a disk on the other side of a network.
    place: u16,
    /// Another shard that carries it.
    host: Option<ShardId>,
    /// The turn of the loop in which its file was last seen to have its full size.
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
            place: 0,
            host: None,
            whole_at_ns: u64::MAX,
        }
    }

    /// Whether all of the range is on the disk.
    #[inline]
    fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.size_bytes && len <= self.size_bytes - offset
    }

    fn rules_version(&self) -> u64 {
        self.disk.iter().flat_map(|d| &d.faults).map(|f| f.version()).sum()
    }

    /// Whether rules have changed by which something hangs.
    fn has_new_rules(&self) -> bool {
        self.hung > 0 && self.rules_version() != self.hung_version
    }
}

/// What a port is built with.
pub(crate) struct PortConfig {
    pub(crate) shard: ShardId,
    /// Leaf I/Os that can be out at a time.
    pub(crate) ios_max: usize,
    pub(crate) time_limit_ns: u64,
}

/// What an engine has of a port for itself.
pub(crate) struct TierMemory {
    /// For what arrays with parity compute; pages appear when they are used.
    scratch: Map,
    /// Blocks for its metadata.
    meta: Map,
}

impl TierMemory {
    pub(crate) fn new() -> std::io::Result<TierMemory> {
        Ok(TierMemory { scratch: Map::new(SCRATCH_BYTES as usize)?, meta: Map::new(META_BLOCKS as usize * 4096)? })
    }
}

/// See the module's page.
pub(crate) struct Port {
    pub(crate) driver: Driver,
    pub(crate) arena: Arena,
    /// The time of this turn of the loop.
    pub(crate) now_ns: u64,
    pub(crate) done: Vec<Done>,
    pub(crate) late: Vec<Cookie>,
    pub(crate) returned: Vec<Cookie>,
    meta_blocks: Buf,
    leaves: Box<[Leaf]>,
    entries: Entries,
    /// Entries that wait for a moment: when, and which.
    delays: BinaryHeap<Reverse<(u64, u32)>>,
    /// Jobs in the kernel.
    issued: u32,
    hung: u32,
    /// Leaves whose memory is lent, each once.
    lenders: Vec<LeafId>,
    iovecs: Iovecs,
    /// Zeros to write from. Never written, so that all of it is the kernel's one page of zeros.
    zeros: Map,
    /// For what arrays with parity compute; pages appear when they are used.
    scratch: Map,
    /// The same for the tiers above the first.
    upper: Vec<TierMemory>,
    /// The tier whose engine it works for just now, and what that tier's cookies are marked with.
    tier: usize,
    mark: u64,
    below: Below,
    lines: Lines,
    errands: Errands,
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
            tier: 0,
            mark: 0,
            below: Below::default(),
            lines: Lines::default(),
            errands: Errands::default(),
            time_limit_ns: config.time_limit_ns,
            shard: config.shard,
            no_counters,
        })
    }

    /// Makes room for one more tier, whose engine has so many slots.
    pub(crate) fn add_tier(&mut self, memory: TierMemory, slots: usize) {
        self.upper.push(memory);
        let more = slots * STEP_IOS_MAX + META_MAX;
        self.entries.reserve(more);
        self.done.reserve(more);
        self.below.reserve(slots);
    }

    /// Works for the engine of this tier from now on.
    pub(crate) fn set_tier(&mut self, tier: usize) {
        (self.tier, self.mark) = (tier, mark_of(tier));
    }

    /// Makes `disk` answer to `id`. The control plane gives each number out once at a time.
    pub(crate) fn add_leaf(&mut self, id: LeafId, disk: Arc<Disk>, counters: Arc<LeafCounters>) {
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
            Base::Null | Base::File(_) | Base::Device(_) | Base::Remote(_) => (Kind::Slow, std::ptr::null_mut()),
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
            place: 0,
            host: None,
            whole_at_ns: u64::MAX,
        };
    }

    /// Takes note of how large a leaf's disk is now.
    pub(crate) fn resize_leaf(&mut self, id: LeafId) {
        let leaf = &mut self.leaves[id.0 as usize];
        if let Some(disk) = &leaf.disk {
            leaf.size_bytes = disk.size_bytes();
        }
    }

    /// Forgets a leaf, unless I/Os of it are still out: then false.
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

    /// Leaf I/Os that are not answered, or that the kernel has not given back.
    pub(crate) fn in_flight(&self) -> u32 {
        self.entries.used() + self.done.len() as u32
    }

    /// The memory of a range, if the leaf is a plain disk in memory. It stays, and the leaf with it, until it is taken back.
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

    /// What was lent is no longer needed.
    pub(crate) fn take_back(&mut self, id: LeafId) {
        let leaf = &mut self.leaves[id.0 as usize];
        debug_assert!(leaf.lent > 0, "what is given back was lent");
        leaf.lent -= 1;
        if leaf.lent == 0 {
            self.lenders.retain(|lender| *lender != id);
        }
    }

    /// Copies bytes that are lent to the arena: in short pieces, since the two places lie differently within a cache line
    /// (a record's header is before the one), where long copies take twice as long on some processors.
    pub(crate) fn copy_lent(&mut self, from: Buf, to: Buf, len: usize) {
        assert!(self.has_lent(from, len as u64), "the bytes are lent");
        let into = self.arena.memory(to, len);
        let mut at = from.addr as *const u8;
        for piece in into.chunks_mut(LENT_PIECE_BYTES) {
            // SAFETY: just seen to lie in the mapping of a disk that stays while it lends, and that only raw pointers work
            // on; `piece` is nobody else's, and no part of a disk.
            unsafe { memory::copy_out(at, piece) };
            at = at.wrapping_add(piece.len());
        }
    }

    /// Whether all of the range lies in the memory of a leaf that has lent some of it.
    pub(crate) fn has_lent(&self, buf: Buf, len: u64) -> bool {
        self.lenders.iter().map(|id| &self.leaves[id.0 as usize]).any(|leaf| {
            let offset = buf.addr.wrapping_sub(leaf.bytes as u64);
            leaf.holds(offset, len)
        })
    }

    /// Jobs that the kernel has.
    pub(crate) fn issued(&self) -> u32 {
        self.issued
    }

    /// Ends the port while the kernel still has I/Os of it: what they work on is never given back.
    pub(crate) fn leak(self) {
        let Port { driver, arena, iovecs, zeros, leaves, scratch, upper, .. } = self;
        // The files stay open, and locked, as long as something may still be written to them.
        std::mem::forget((iovecs, zeros, leaves, scratch, upper));
        driver.abandon();
        arena.leak();
    }

    /// When something is due that no event announces: a delay's end or a time limit.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let delay = self.delays.peek().map(|Reverse((at, _))| *at);
        let limit = self.entries.oldest().map(|(_, since)| since.saturating_add(self.time_limit_ns));
        match (delay, limit) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Works off what has become due by `now_ns`.
    pub(crate) fn tick(&mut self) {
        while let Some(Reverse((at, index))) = self.delays.peek().copied()
            && at <= self.now_ns
        {
            self.delays.pop();
            match self.entries[index].state {
                State::Holding => self.answer(index, self.entries[index].result),
                State::Again => self.again(index),
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

    /// Takes an I/O that takes time in.
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
        let mut verdict = Verdict::default();
        for view in &mut leaf.views {
            verdict = verdict.and(view.judge(io.op, io.offset, io.len));
        }
        let mut begin_ns = self.now_ns.saturating_add(verdict.delay_ns);
        let mut not_before_ns = 0;
        for throttle in &disk.throttles {
            let (start, earliest) = throttle.admit(self.now_ns, io.op, io.len);
            begin_ns = begin_ns.max(start);
            not_before_ns = not_before_ns.max(earliest);
        }
        self.shaped(index, verdict, begin_ns, not_before_ns);
    }

    /// Applies what rules and limits have decided for an entry.
    fn shaped(&mut self, index: u32, verdict: Verdict, begin_ns: u64, not_before_ns: u64) {
        let entry = &mut self.entries[index];
        entry.not_before_ns = not_before_ns;
        entry.corrupt_bit = verdict.corrupt_bit.unwrap_or(u64::MAX);
        if let Some(torn_to) = verdict.torn_to {
            entry.io.len = torn_to.min(entry.io.len);
        }
        if verdict.gone || verdict.error {
            let errno = if verdict.gone { libc::ENODEV } else { libc::EIO };
            entry.not_before_ns = begin_ns.max(not_before_ns);
            return self.failed(index, errno);
        }
        if verdict.hang {
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

    /// Starts an entry on what is at the bottom of its disk.
    fn begin(&mut self, index: u32) {
        let entry = &self.entries[index];
        let leaf = &self.leaves[entry.io.leaf.0 as usize];
        let disk = leaf.disk.as_ref().expect("a leaf is not removed while it has entries");
        if vouches(&entry.io) && disk.has_failed_flush() {
            return self.finish(index, Err(LeafError::of(ErrorKind::FlushFailed)));
        }
        match disk.base() {
            Base::Null => self.finish(index, Ok(())),
            Base::Mem(_) => {
                // SAFETY: `check` has seen that the range is on the disk; the engine vouches for the memory.
                unsafe { memory::carry_out(leaf.bytes, &entry.io) };
                self.finish(index, Ok(()));
            }
            Base::Device(device) => {
                let device = *device;
                self.begin_below(index, device);
            }
            Base::Remote(_) => self.begin_remote(index),
            Base::File(_) => {
                self.entries.start_clock(index, self.now_ns);
                self.begin_on_file(index);
            }
        }
    }

    /// The work of an entry is done: it is answered now, or as soon as it may be.
    fn finish(&mut self, index: u32, result: LeafResult) {
        let entry = &mut self.entries[index];
        if entry.corrupt_bit != u64::MAX && result.is_ok() && !entry.late {
            // SAFETY: the I/O has ended well, so that its memory is valid and the kernel is done with it.
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
        self.answer(index, result);
    }

    /// Ends an entry with an error number of its disk.
    fn failed(&mut self, index: u32, errno: i32) {
        let entry = &self.entries[index];
        if entry.io.op == Op::Flush
            && let Some(disk) = &self.leaves[entry.io.leaf.0 as usize].disk
        {
            disk.set_flush_failed();
        }
        self.finish(index, Err(errno::leaf_error(errno)));
    }

    /// Gives an entry's result to the engine, and the entry back.
    fn answer(&mut self, index: u32, result: LeafResult) {
        let entry = &self.entries[index];
        let (cookie, late, op, start_ns) = (entry.io.cookie, entry.late, entry.io.op, entry.start_ns);
        let leaf = &mut self.leaves[entry.io.leaf.0 as usize];
        leaf.in_flight -= 1;
        if let Some(guest_of) = entry.guest_of {
            return self.errand_is_done(index, guest_of, result);
        }
        leaf.counters.in_flight.sub(1);
        if late {
            self.returned.push(cookie);
        } else {
            // What is only slow has not failed.
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

    /// An entry has exceeded its time limit: the engine is told now, and again when the kernel gives it back.
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
            // Nobody will learn how it ended, so that a later one cannot vouch for what this one was to save.
            disk.set_flush_failed();
        }
        self.late.push(entry.io.cookie);
    }

    /// Whether something hangs by rules that are no longer in force: a reason not to fall asleep.
    pub(crate) fn has_new_rules(&self) -> bool {
        self.hung > 0 && self.leaves.iter().any(Leaf::has_new_rules)
    }

    /// Lets I/Os go on that hang by rules which are no longer in force.
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
                    self.answer(index, Ok(()));
                } else {
                    self.begin(index);
                }
            }
        }
    }
}

/// Whether an I/O that ends well says so of the disk's cache, too.
fn vouches(io: &LeafIo) -> bool {
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
            // SAFETY: the range is on the disk; the engine vouches for the memory, which `Cx::submit` has found to
            // lie in the arena.
            Kind::Mem => unsafe { memory::carry_out(leaf.bytes, io) },
            _ => return self.submit_slow(io),
        }
        self.done.push(Done { cookie: Cookie(io.cookie.0 | self.mark), result: Ok(()) });
    }

    #[inline(always)]
    fn at_once(&mut self, leaf: LeafId, op: Op, offset: u64, len: u64, buf: Buf) -> Option<LeafResult> {
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
    fn fetch(&self, address: *const u8) {
        memory::fetch(address);
    }

    fn zero(&mut self, buf: Buf, len: u64) {
        // SAFETY: memory of a request in flight, which nobody else uses: the engine vouches for it.
        unsafe { memory::fill(buf, len) };
    }

    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool {
        // SAFETY: as in `zero`; no I/O is out that would change it.
        unsafe { memory::is_equal(a, b, len) }
    }

    fn scratch(&mut self) -> (Buf, u64) {
        let map = match self.tier {
            0 => &self.scratch,
            tier => &self.upper[tier - 1].scratch,
        };
        (Buf { addr: map.addr(), region: Buf::UNREGISTERED }, map.len() as u64)
    }

    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut RowWork<'_>) {
        // SAFETY: memory of requests in flight, on this shard or one that waits for it, and of scratch: the engine vouches
        // for it, and that no output is another one or an input.
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
        if self.tier > 0 {
            let map = &self.upper[self.tier - 1].meta;
            let buf = Buf { addr: map.addr() + at as u64, region: Buf::UNREGISTERED };
            // SAFETY: a block of a mapping that lives as long as the port; the engine fills it only while no I/O uses it, and nobody
            // else has the address.
            return (buf, unsafe { memory::block(map.ptr().wrapping_add(at)) });
        }
        let buf = self.meta_blocks.add(at as u64);
        let bytes = self.arena.memory(buf, 4096).as_mut_array().expect("4096 bytes were asked for");
        (buf, bytes)
    }
}

const _: () = assert!(NONE > DEPTH);
