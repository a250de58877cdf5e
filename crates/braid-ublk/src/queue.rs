//! The requests of one queue, on one shard.
//!
//! A request's life: the driver tells of it (`Fetch`, or the last `CommitAndFetch`, ends); it waits for the export's limits and
//! for memory; a write's data are asked for (`GetData`); the engine works; the answer is committed, and with it the next request
//! fetched. Memory is held from the third step to the last, and after a read a moment longer: the driver copies what was read when it
//! looks at the commit, not when that is put into the ring.
//!
//! Why not the two other ways. Buffers of a fixed place for each request would take depth times the longest request of the arena, used
//! or not. Copying by reads and writes of the device's file (`UBLK_F_USER_COPY`) came with Linux 6.5 and costs a further call for reads
//! too; this costs one for writes only, and works from 6.0 on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request};
use braid_nbd::{Export, ExportStats, RequestClass};

use crate::abi::{self, IoCommand, IoDescriptor, IoOp};

/// What holds one queue's descriptors.
pub trait Lane {
    /// A request, as the driver wrote it.
    fn descriptor(&self, tag: u16) -> IoDescriptor;
    /// Which queue, its requests, and how commands are numbered.
    fn shape(&self) -> (u16, u16, bool);
}

/// What a queue needs of its shard.
pub trait Host<L> {
    /// As [`braid_ring::Cx::now_ns`].
    fn now_ns(&self) -> u64;
    /// As [`braid_ring::Cx::submit`].
    fn submit(&mut self, request: &Request) -> Result<(), IoError>;
    /// As [`braid_ring::Cx::alloc`].
    fn alloc(&mut self, len: usize) -> Option<Buf>;
    /// As [`braid_ring::Cx::free`].
    fn free(&mut self, buf: Buf, len: usize);
    /// As [`braid_ring::Cx::is_redundant`].
    fn is_redundant(&self, device: DeviceId) -> bool;
    /// As [`braid_ring::Cx::timer_at`].
    fn timer_at(&mut self, at_ns: u64) -> bool;
    /// Gives the driver a command.
    fn command(&mut self, lane: &L, code: u32, command: IoCommand, tag: u16) -> bool;
    /// As [`braid_ring::Cx::commands`].
    fn commands(&mut self) -> (u64, u64);
}

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The driver has it.
    Waiting,
    /// It waits for memory, for its device, or for its turn.
    Held,
    /// The driver copies its data.
    Data,
    Engine,
    /// The driver has taken it back: its device ends.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    step: Step,
    op: Op,
    flags: Flags,
    /// Its data are in the buffer.
    has_data: bool,
    /// It was asked for a second time, as the first time its disk did not answer.
    again: bool,
    /// Whom it was asked for last.
    device: Option<DeviceId>,
    /// It may go on now; none: it was not asked yet.
    due_ns: Option<u64>,
    taken_ns: u64,
    offset: u64,
    len: u64,
    buf: Buf,
    buf_len: u32,
    /// Its buffer holds what a write is to write, and a disk that hangs reads from it still, under this tag.
    late: Option<u64>,
    generation: u32,
}

const EMPTY: Slot = Slot {
    step: Step::Gone,
    op: Op::Flush,
    flags: Flags::NONE,
    has_data: false,
    again: false,
    device: None,
    due_ns: None,
    taken_ns: 0,
    offset: 0,
    len: 0,
    buf: Buf::NONE,
    buf_len: 0,
    late: None,
    generation: 0,
};

/// Bits of a request's number in its tag for the engine, and of how often that was used.
const TAG_BITS: u32 = 16;
const GENERATION_BITS: u32 = 20;
/// Tags of a queue are below this.
pub const QUEUE_TAG_LIMIT: u64 = 1 << (TAG_BITS + GENERATION_BITS);

/// How long to wait before memory, or a place in the engine, is asked for again.
const AGAIN_NS: u64 = 1_000_000;
/// How long memory that the driver has copied from is kept at most when nothing else happens on the shard. Longer than a tick of any
/// kernel: a timer that is due before costs each sleep two writes to the processor's own timer.
const KEPT_NS: u64 = 20_000_000;
/// Data of writes that the driver is asked to copy at a time, in bytes, unless a single write has more. It copies all that it was asked for
/// before anything else happens on the shard, and the disks would wait for that, and then the shard for them.
const COPIED_AT_ONCE: u64 = 256 << 10;
/// An address that is never read nor written: the driver wants one with every answer to a read.
const NOWHERE: u64 = 4096;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
const EPERM: i32 = 1;
const EINVAL: i32 = 22;

/// One queue.
pub struct Queue<L> {
    lane: L,
    export: Arc<Export>,
    /// None: it is away, and requests wait.
    device: Option<DeviceId>,
    /// What waits fails: the device is being removed.
    failing: bool,
    /// Nothing new is begun: the shard ends.
    stopping: bool,
    slots: Box<[Slot]>,
    held: VecDeque<u16>,
    timed: BinaryHeap<Reverse<(u64, u16)>>,
    /// Buffers whose commits the driver may not have looked at: how many commands were begun by then.
    committed: VecDeque<(u64, Buf, u32)>,
    /// Buffers that the kernel of a disk still has, by the engine's tag.
    busy: Vec<(u64, Buf, u32)>,
    in_driver: u32,
    copying: u32,
    copying_bytes: u64,
    /// Writes whose data are asked for when others have theirs, in order.
    unasked: VecDeque<u16>,
    timer_ns: u64,
    stats: ExportStats,
}

impl<L: Lane> Queue<L> {
    /// A queue whose requests are fetched from now on; none: the shard's driver has no commands.
    pub fn begin<H: Host<L>>(host: &mut H, lane: L, export: Arc<Export>) -> Option<Queue<L>> {
        let (_, depth, _) = lane.shape();
        let count = usize::from(depth);
        let mut queue = Queue {
            lane,
            device: Some(export.info().device),
            export,
            failing: false,
            stopping: false,
            slots: vec![EMPTY; count].into(),
            held: VecDeque::with_capacity(count),
            timed: BinaryHeap::with_capacity(count),
            committed: VecDeque::with_capacity(count),
            busy: Vec::new(),
            in_driver: 0,
            copying: 0,
            copying_bytes: 0,
            unasked: VecDeque::with_capacity(count),
            timer_ns: 0,
            stats: ExportStats::default(),
        };
        for tag in 0..depth {
            queue.command(host, IoOp::Fetch, tag, 0, 0).then_some(())?;
        }
        Some(queue)
    }

    /// What it serves is there again, perhaps as another export; none: it is away, and requests wait.
    pub fn serve<H: Host<L>>(&mut self, host: &mut H, export: Option<Arc<Export>>) {
        self.device = export.as_ref().map(|export| export.info().device);
        self.export = export.unwrap_or_else(|| Arc::clone(&self.export));
        self.go_on(host);
    }

    /// What waits fails from now on.
    pub fn fail_all<H: Host<L>>(&mut self, host: &mut H) {
        self.failing = true;
        self.go_on(host);
    }

    /// Nothing new is begun.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether the driver has taken everything back, and nothing is under way.
    pub fn is_over(&self) -> bool {
        self.in_driver == 0
            && self.is_quiet()
            && self.busy.is_empty()
            && self.slots.iter().all(|slot| slot.step == Step::Gone)
    }

    /// Whether the driver uses no memory of it.
    pub fn is_quiet(&self) -> bool {
        self.copying == 0 && self.committed.is_empty()
    }

    fn command<H: Host<L>>(&mut self, host: &mut H, op: IoOp, tag: u16, result: i32, addr: u64) -> bool {
        let (q_id, _, encoded) = self.lane.shape();
        let begun = host.command(&self.lane, op.code(encoded), IoCommand { q_id, tag, result, addr }, tag);
        if begun {
            let slot = &mut self.slots[usize::from(tag)];
            slot.step = if op == IoOp::GetData { Step::Data } else { Step::Waiting };
            self.in_driver += 1;
            if op == IoOp::GetData {
                self.copying += 1;
                self.copying_bytes += u64::from(slot.buf_len);
            }
        }
        begun
    }

    /// The driver answered a command.
    pub fn command_done<H: Host<L>>(&mut self, host: &mut H, tag: u16, result: i32) {
        self.in_driver -= 1;
        let Slot { step: was, buf_len, .. } = self.slots[usize::from(tag)];
        if was == Step::Data {
            self.copying -= 1;
            self.copying_bytes -= u64::from(buf_len);
        }
        self.answered(host, tag, was, result);
        // Only now, so that the disks are told of this write before the driver copies the next one.
        while was == Step::Data
            && !self.stopping
            && let Some(&next) = self.unasked.front()
            && self.may_copy(self.slots[usize::from(next)].len)
        {
            self.unasked.pop_front();
            self.advance_as(host, next, true);
        }
    }

    fn may_copy(&self, len: u64) -> bool {
        self.copying_bytes == 0 || self.copying_bytes + len <= COPIED_AT_ONCE
    }

    fn answered<H: Host<L>>(&mut self, host: &mut H, tag: u16, was: Step, result: i32) {
        let slot = &mut self.slots[usize::from(tag)];
        if result < 0 {
            // The device ends (ENODEV), or the driver does not want this queue: nothing more comes of this one.
            slot.step = Step::Gone;
            return self.free(host, tag);
        }
        if self.stopping {
            // Not answered: the driver asks the next server.
            slot.step = Step::Gone;
            return self.free(host, tag);
        }
        let asked = self.lane.descriptor(tag);
        if was == Step::Data && result == abi::RES_NEED_GET_DATA {
            // The driver found no memory to copy anything.
            return self.hold_for_memory(host, tag);
        }
        if was == Step::Data {
            slot.has_data = true;
            // The driver may have found no memory to copy all of it; it asks for the rest by itself.
            slot.len = slot.len.min(u64::from(asked.nr_sectors) * abi::SECTOR_BYTES);
        } else {
            let before = slot.generation;
            *slot = Slot {
                generation: before,
                step: Step::Held,
                // A flush has all ones for its place.
                offset: asked.start_sector.saturating_mul(abi::SECTOR_BYTES),
                len: u64::from(asked.nr_sectors) * abi::SECTOR_BYTES,
                taken_ns: host.now_ns(),
                ..EMPTY
            };
            let (op, keeps_space) = (asked.op(), asked.has(abi::IO_F_NOUNMAP));
            slot.op = match op {
                abi::OP_READ => Op::Read,
                abi::OP_WRITE => Op::Write,
                abi::OP_FLUSH => Op::Flush,
                abi::OP_DISCARD => Op::Discard,
                abi::OP_WRITE_ZEROES => Op::WriteZeroes,
                _ => return self.commit(host, tag, -EOPNOTSUPP),
            };
            if slot.op == Op::Flush {
                (slot.offset, slot.len) = (0, 0);
            }
            if asked.has(abi::IO_F_FUA) && slot.op != Op::Flush {
                slot.flags = slot.flags.with(Flags::FUA);
            }
            if slot.op == Op::WriteZeroes && keeps_space {
                slot.flags = slot.flags.with(Flags::NO_UNMAP);
            }
            if self.export.info().read_only && !matches!(slot.op, Op::Read | Op::Flush) {
                return self.commit(host, tag, -EPERM);
            }
        }
        self.advance(host, tag);
    }

    /// Does the next thing for a request, or holds it.
    fn advance<H: Host<L>>(&mut self, host: &mut H, tag: u16) {
        self.advance_as(host, tag, false);
    }

    /// `is_next`: it was the first of those whose data are not asked for.
    fn advance_as<H: Host<L>>(&mut self, host: &mut H, tag: u16, is_next: bool) {
        let slot = self.slots[usize::from(tag)];
        if self.failing && self.device.is_none() {
            return self.commit(host, tag, -EIO);
        }
        let Some(device) = self.device.filter(|_| !self.stopping) else { return self.hold(tag) };
        if self.must_wait(host, tag) {
            return;
        }
        // Short ones do not pass a long one: it would wait as long as they come.
        let waits = !self.may_copy(slot.len) || (!is_next && !self.unasked.is_empty());
        if slot.op == Op::Write && !slot.has_data && waits {
            self.slots[usize::from(tag)].step = Step::Held;
            self.unasked.push_back(tag);
            return;
        }
        if matches!(slot.op, Op::Read | Op::Write) && slot.buf == Buf::NONE {
            let Some(buf) = host.alloc(slot.len as usize) else { return self.hold_for_memory(host, tag) };
            let slot = &mut self.slots[usize::from(tag)];
            (slot.buf, slot.buf_len) = (buf, slot.len as u32);
        }
        if slot.op == Op::Write && !slot.has_data {
            let addr = self.slots[usize::from(tag)].buf.addr;
            self.command(host, IoOp::GetData, tag, 0, addr);
            return;
        }
        self.submit(host, tag, device);
    }

    /// Holds a request back for the export's limits; true: it comes again at its time.
    fn must_wait<H: Host<L>>(&mut self, host: &mut H, tag: u16) -> bool {
        let own = self.export.throttle();
        let shared = self.export.info().shared_throttle.as_deref();
        if self.failing {
            // It is not to wait for its time while its device ends.
            return false;
        }
        if !own.is_limited() && !shared.is_some_and(|throttle| throttle.is_limited()) {
            return false;
        }
        let now_ns = host.now_ns();
        let slot = &mut self.slots[usize::from(tag)];
        let due_ns = *slot.due_ns.get_or_insert_with(|| {
            let of = |throttle: &braid_ring::Throttle| throttle.admit(now_ns, slot.op, slot.len).0;
            of(own).max(shared.map_or(0, of))
        });
        if due_ns <= now_ns {
            return false;
        }
        slot.step = Step::Held;
        self.timed.push(Reverse((due_ns, tag)));
        host.timer_at(due_ns);
        true
    }

    fn hold(&mut self, tag: u16) {
        self.slots[usize::from(tag)].step = Step::Held;
        self.held.push_back(tag);
    }

    fn hold_for_memory<H: Host<L>>(&mut self, host: &mut H, tag: u16) {
        self.hold(tag);
        self.wake_in(host, AGAIN_NS);
    }

    fn wake_in<H: Host<L>>(&mut self, host: &mut H, ns: u64) {
        let at_ns = host.now_ns() + ns;
        let is_set = host.now_ns() < self.timer_ns && self.timer_ns <= at_ns;
        if !is_set && host.timer_at(at_ns) {
            self.timer_ns = at_ns;
        }
    }

    fn submit<H: Host<L>>(&mut self, host: &mut H, tag: u16, device: DeviceId) {
        let slot = &mut self.slots[usize::from(tag)];
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        let Slot { op, flags, offset, len, buf, .. } = *slot;
        let number = u64::from(slot.generation) << TAG_BITS | u64::from(tag);
        match host.submit(&Request { device, op, flags, offset, len, buf, tag: number }) {
            Ok(()) => (slot.step, slot.device) = (Step::Engine, Some(device)),
            Err(error) if error.kind == ErrorKind::Busy => self.hold_for_memory(host, tag),
            Err(error) => {
                slot.device = Some(device);
                self.failed(host, tag, error.kind);
            }
        }
    }

    /// The engine answered.
    pub fn io_done<H: Host<L>>(&mut self, host: &mut H, done: &Completion) {
        let tag = (done.tag & ((1 << TAG_BITS) - 1)) as u16;
        let slot = &mut self.slots[usize::from(tag)];
        debug_assert_eq!(done.tag >> TAG_BITS, u64::from(slot.generation), "an answer to another request");
        let is_unsettled = done.result.is_err_and(|error| error.kind.is_unsettled());
        if done.buffer_busy && is_unsettled && slot.op == Op::Write && slot.late.is_none() {
            // The driver copies the data once, and a later session writes them: a disk only reads them meanwhile.
            slot.late = Some(done.tag);
        } else if done.buffer_busy {
            self.busy.push((done.tag, std::mem::replace(&mut slot.buf, Buf::NONE), slot.buf_len));
        }
        let Err(error) = done.result else {
            let bytes = if matches!(slot.op, Op::Read | Op::Write) { slot.len as i32 } else { 0 };
            return self.commit(host, tag, bytes);
        };
        // What one disk did not give in time another one may: with other memory, as the kernel may still fill the first.
        if done.buffer_busy
            && slot.op == Op::Read
            && !std::mem::replace(&mut slot.again, true)
            && self.device.is_some_and(|device| host.is_redundant(device))
        {
            return self.advance(host, tag);
        }
        self.failed(host, tag, error.kind);
    }

    /// A late I/O has given its buffer back.
    pub fn released<H: Host<L>>(&mut self, host: &mut H, tag: u64) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.late == Some(tag)) {
            slot.late = None;
        } else if let Some(at) = self.busy.iter().position(|(busy, _, _)| *busy == tag) {
            let (_, buf, len) = self.busy.swap_remove(at);
            if buf != Buf::NONE {
                host.free(buf, len as usize);
            }
        }
    }

    fn failed<H: Host<L>>(&mut self, host: &mut H, tag: u16, kind: ErrorKind) {
        let slot = &self.slots[usize::from(tag)];
        // What was to be written is in memory that the kernel of a disk still has, and the driver copies it only once.
        let is_lost = slot.op == Op::Write && slot.buf == Buf::NONE;
        let errno = match kind {
            // Its array was stopped, its volume is served elsewhere, or the daemon ends: the users wait for it, as they do for a daemon.
            ErrorKind::NoDevice if !self.failing && !is_lost => {
                // It may serve again by now.
                self.device = self.device.filter(|device| slot.device != Some(*device));
                return self.hold(tag);
            }
            // It is about to be withdrawn, if it goes on no more.
            kind if kind.is_unsettled() && !self.failing && !is_lost => return self.hold_for_memory(host, tag),
            ErrorKind::NoSpace => ENOSPC,
            ErrorKind::Unsupported => EOPNOTSUPP,
            ErrorKind::Invalid => EINVAL,
            ErrorKind::ReadOnly => EPERM,
            _ => EIO,
        };
        self.commit(host, tag, -errno);
    }

    /// Answers a request and fetches the next one.
    fn commit<H: Host<L>>(&mut self, host: &mut H, tag: u16, result: i32) {
        let slot = self.slots[usize::from(tag)];
        self.count(&slot, result, host.now_ns());
        // Nobody looks at what was written any more.
        let has_data = slot.op == Op::Read && slot.buf != Buf::NONE;
        if !has_data {
            self.free(host, tag);
        }
        let addr = if has_data { slot.buf.addr } else { NOWHERE };
        let begun = self.command(host, IoOp::CommitAndFetch, tag, result, addr);
        debug_assert!(begun, "the driver had commands before");
        if has_data {
            self.slots[usize::from(tag)].buf = Buf::NONE;
            self.committed.push_back((host.commands().0, slot.buf, slot.buf_len));
        }
    }

    fn count(&mut self, slot: &Slot, result: i32, now_ns: u64) {
        let (class, count, bytes) = match slot.op {
            Op::Read => (RequestClass::Read, &mut self.stats.reads, Some(&mut self.stats.read_bytes)),
            Op::Write => (RequestClass::Write, &mut self.stats.writes, Some(&mut self.stats.written_bytes)),
            _ => (RequestClass::Other, &mut self.stats.others, None),
        };
        *count += 1;
        match bytes {
            Some(bytes) if result > 0 => *bytes += result as u64,
            _ => {}
        }
        self.stats.errors += u64::from(result < 0);
        self.export.latencies().add(class, now_ns.saturating_sub(slot.taken_ns));
    }

    fn free<H: Host<L>>(&mut self, host: &mut H, tag: u16) {
        let slot = &mut self.slots[usize::from(tag)];
        match (slot.buf, slot.late.take()) {
            (Buf::NONE, _) => {}
            (buf, Some(late)) => self.busy.push((late, buf, slot.buf_len)),
            (buf, None) => host.free(buf, slot.buf_len as usize),
        }
        slot.buf = Buf::NONE;
    }

    /// Tries everything that waits once more.
    fn go_on<H: Host<L>>(&mut self, host: &mut H) {
        for _ in 0..self.held.len() {
            if let Some(tag) = self.held.pop_front() {
                self.advance(host, tag);
            }
        }
    }

    /// At the end of a batch: gives memory back that the driver has copied from, and tries what waits.
    pub fn end_of_batch<H: Host<L>>(&mut self, host: &mut H) {
        if !self.committed.is_empty() {
            let (_, looked_at) = host.commands();
            while let Some(&(begun, buf, len)) = self.committed.front()
                && begun <= looked_at
            {
                self.committed.pop_front();
                host.free(buf, len as usize);
            }
        }
        let now_ns = host.now_ns();
        while let Some(&Reverse((due_ns, tag))) = self.timed.peek()
            && (due_ns <= now_ns || self.failing)
        {
            self.timed.pop();
            self.advance(host, tag);
        }
        if self.device.is_some() || self.failing {
            self.go_on(host);
        }
        if !self.committed.is_empty() {
            // Others may wait for this memory, and nothing else may ever happen here.
            self.wake_in(host, if self.stopping { AGAIN_NS } else { KEPT_NS });
        }
        if self.stats != ExportStats::default() {
            self.export.add(&std::mem::take(&mut self.stats));
        }
    }
}

#[cfg(test)]
mod tests;
