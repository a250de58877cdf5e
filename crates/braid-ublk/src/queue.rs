//! The requests of one queue, on one shard.
//!
//! A request's life cycle: the driver delivers it (`Fetch`, or the last `CommitAndFetch`, completes); it waits for the export's
//! limits and for memory; the data of a write are requested (`GetData`); the engine carries it out; the result is committed, and
//! with it the next request is fetched. Memory is held from the third step to the last, and after a read a moment longer: the
//! driver copies the data when it consumes the commit, not when the commit is put into the ring.
//!
//! Why not the two alternatives. A fixed buffer for each request would take depth times the longest request of the arena, used or
//! not. Copying by reads and writes of the device's file (`UBLK_F_USER_COPY`) came with Linux 6.5 and costs an additional call for
//! reads, too; this costs one for writes only, and works from 6.0 on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request};
use braid_export::{Export, ExportStats, RequestClass};

use crate::abi::{self, IoCommand, IoDescriptor, IoOp};

/// The driver's side of a queue.
pub trait DriverQueue {
    /// Returns a request's descriptor, as the driver wrote it.
    fn descriptor(&self, tag: u16) -> IoDescriptor;
    /// Returns the queue's number, its depth, and whether commands have ioctl-encoded numbers.
    fn shape(&self) -> (u16, u16, bool);
}

/// What a queue needs of its shard.
pub trait Host<D> {
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
    /// Sends the driver a command for the request `tag` of `queue`. Returns false if the shard's driver has no
    /// commands.
    fn command(&mut self, queue: &D, code: u32, command: IoCommand, tag: u16) -> bool;
    /// As [`braid_ring::Cx::commands`].
    fn commands(&mut self) -> (u64, u64);
}

/// The step of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The driver has a command that waits for a request.
    Waiting,
    /// The request waits for memory, for its device, for its limits, or for its turn.
    Held,
    /// The driver copies its data.
    Data,
    /// The engine executes it.
    Engine,
    /// No command of this slot is with the driver: its device or this queue ends.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    step: Step,
    op: Op,
    flags: Flags,
    /// Whether its data are in the buffer.
    has_data: bool,
    /// Whether its read was retried from another disk, after the first one had not completed in time.
    retried: bool,
    /// The device that it was last submitted to.
    device: Option<DeviceId>,
    /// The time from which the export's limits let it continue; `None`: they were not applied yet.
    due_ns: Option<u64>,
    /// When the request arrived, for the latency.
    taken_ns: u64,
    offset: u64,
    len: u64,
    buf: Buf,
    buf_len: u32,
    /// The engine's tag of an earlier attempt of this write that has completed as unsettled, while a hanging disk still
    /// reads from `buf`. The buffer and its data are kept for the next attempt.
    late: Option<u64>,
    /// Counts attempts, so that the engine's tags of two attempts differ.
    generation: u32,
}

const EMPTY: Slot = Slot {
    step: Step::Ended,
    op: Op::Flush,
    flags: Flags::NONE,
    has_data: false,
    retried: false,
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

/// Bits of a request's number in its tag for the engine, and of that number's generation.
const TAG_BITS: u32 = 16;
const GENERATION_BITS: u32 = 20;
/// Tags of a queue are below this.
pub const QUEUE_TAG_LIMIT: u64 = 1 << (TAG_BITS + GENERATION_BITS);

/// Pause before a retry for want of memory, or of room in the engine.
const RETRY_NS: u64 = 1_000_000;
/// Longest time in nanoseconds that an otherwise idle shard keeps memory from which the driver has copied. Longer than
/// a tick of any kernel, because an earlier timer costs each sleep two writes to the processor's timer.
const COMMITTED_MAX_NS: u64 = 20_000_000;
/// Maximum bytes of write data that the driver is requested to copy at a time, unless a single write has more. The
/// driver copies everything that was requested before the shard's loop continues. With larger batches the disks would
/// be idle during the copy, and the shard would be idle afterwards.
const COPY_BYTES_MAX: u64 = 256 << 10;
/// An address that is never read or written: the driver requires one with every commit of a read.
const UNUSED_ADDR: u64 = 4096;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
const EPERM: i32 = 1;
const EINVAL: i32 = 22;

/// One queue of a device.
pub struct Queue<D> {
    driver: D,
    export: Arc<Export>,
    /// `None`: the export does not serve, and requests wait.
    device: Option<DeviceId>,
    /// Requests that wait fail: the device is being removed.
    failing: bool,
    /// No new request begins: the shard ends.
    stopping: bool,
    slots: Box<[Slot]>,
    held: VecDeque<u16>,
    /// Requests held by the export's limits, by due time.
    throttled: BinaryHeap<Reverse<(u64, u16)>>,
    /// Buffers of reads from which the driver may not have copied yet: the value of [`Host::commands`] that the
    /// driver's progress must reach, the buffer, and its length.
    committed: VecDeque<(u64, Buf, u32)>,
    /// Buffers that late I/Os still use: the engine's tag, the buffer, and its length.
    busy: Vec<(u64, Buf, u32)>,
    /// Commands that the driver has not completed.
    in_driver: u32,
    /// Requests whose data the driver was requested to copy, and the bytes of their buffers.
    copying: u32,
    copying_bytes: u64,
    /// Writes whose data are not requested yet because of [`COPY_BYTES_MAX`], in order.
    awaiting_copy: VecDeque<u16>,
    /// When the timer of [`Queue::wake_in`] fires.
    timer_ns: u64,
    stats: ExportStats,
}

impl<D: DriverQueue> Queue<D> {
    /// Creates a queue and fetches its requests from now on; `None`: the shard's driver has no commands.
    pub fn begin<H: Host<D>>(host: &mut H, driver: D, export: Arc<Export>) -> Option<Queue<D>> {
        let (_, depth, _) = driver.shape();
        let count = usize::from(depth);
        let mut queue = Queue {
            driver,
            device: Some(export.info().device),
            export,
            failing: false,
            stopping: false,
            slots: vec![EMPTY; count].into(),
            held: VecDeque::with_capacity(count),
            throttled: BinaryHeap::with_capacity(count),
            committed: VecDeque::with_capacity(count),
            busy: Vec::new(),
            in_driver: 0,
            copying: 0,
            copying_bytes: 0,
            awaiting_copy: VecDeque::with_capacity(count),
            timer_ns: 0,
            stats: ExportStats::default(),
        };
        for tag in 0..depth {
            queue.command(host, IoOp::Fetch, tag, 0, 0).then_some(())?;
        }
        Some(queue)
    }

    /// Serves this export, or another one, from now on; `None`: the export does not serve, and requests wait.
    pub fn serve<H: Host<D>>(&mut self, host: &mut H, export: Option<Arc<Export>>) {
        self.device = export.as_ref().map(|export| export.info().device);
        self.export = export.unwrap_or_else(|| Arc::clone(&self.export));
        self.retry_held(host);
    }

    /// Fails requests that wait, from now on.
    pub fn fail_all<H: Host<D>>(&mut self, host: &mut H) {
        self.failing = true;
        self.retry_held(host);
    }

    /// Begins no new request from now on.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether the driver has completed all commands, and no I/O is in flight.
    pub fn is_over(&self) -> bool {
        self.in_driver == 0
            && self.is_quiet()
            && self.busy.is_empty()
            && self.slots.iter().all(|slot| slot.step == Step::Ended)
    }

    /// Whether the driver uses none of its memory.
    pub fn is_quiet(&self) -> bool {
        self.copying == 0 && self.committed.is_empty()
    }

    fn command<H: Host<D>>(&mut self, host: &mut H, op: IoOp, tag: u16, result: i32, addr: u64) -> bool {
        let (q_id, _, encoded) = self.driver.shape();
        let begun = host.command(&self.driver, op.code(encoded), IoCommand { q_id, tag, result, addr }, tag);
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

    /// Handles the completion of a command.
    pub fn command_done<H: Host<D>>(&mut self, host: &mut H, tag: u16, result: i32) {
        self.in_driver -= 1;
        let Slot { step: was, buf_len, .. } = self.slots[usize::from(tag)];
        if was == Step::Data {
            self.copying -= 1;
            self.copying_bytes -= u64::from(buf_len);
        }
        self.handle_result(host, tag, was, result);
        // Only now, so that the disks get this write before the driver copies the data of the next one.
        while was == Step::Data
            && !self.stopping
            && let Some(&next) = self.awaiting_copy.front()
            && self.may_copy(self.slots[usize::from(next)].len)
        {
            self.awaiting_copy.pop_front();
            self.advance_as(host, next, true);
        }
    }

    fn may_copy(&self, len: u64) -> bool {
        self.copying_bytes == 0 || self.copying_bytes + len <= COPY_BYTES_MAX
    }

    fn handle_result<H: Host<D>>(&mut self, host: &mut H, tag: u16, was: Step, result: i32) {
        let slot = &mut self.slots[usize::from(tag)];
        if result < 0 {
            // The device ends (ENODEV), or the driver refuses this queue: no further request arrives in this slot.
            slot.step = Step::Ended;
            return self.free(host, tag);
        }
        if self.stopping {
            // No reply: the driver reissues the request to the next server.
            slot.step = Step::Ended;
            return self.free(host, tag);
        }
        let descriptor = self.driver.descriptor(tag);
        if was == Step::Data && result == abi::RES_NEED_GET_DATA {
            // The driver had no memory to copy anything.
            return self.hold_for_memory(host, tag);
        }
        if was == Step::Data {
            slot.has_data = true;
            // The driver may have had no memory to copy all of it; it issues the rest as another request.
            slot.len = slot.len.min(u64::from(descriptor.nr_sectors) * abi::SECTOR_BYTES);
        } else {
            let before = slot.generation;
            *slot = Slot {
                generation: before,
                step: Step::Held,
                // The start sector of a flush is all ones.
                offset: descriptor.start_sector.saturating_mul(abi::SECTOR_BYTES),
                len: u64::from(descriptor.nr_sectors) * abi::SECTOR_BYTES,
                taken_ns: host.now_ns(),
                ..EMPTY
            };
            let (op, keeps_space) = (descriptor.op(), descriptor.has(abi::IO_F_NOUNMAP));
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
            if descriptor.has(abi::IO_F_FUA) && slot.op != Op::Flush {
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

    /// Begins the next step of a request, or holds it.
    fn advance<H: Host<D>>(&mut self, host: &mut H, tag: u16) {
        self.advance_as(host, tag, false);
    }

    /// As [`Queue::advance`]. `is_next`: the request is the one just taken from the front of `awaiting_copy`.
    fn advance_as<H: Host<D>>(&mut self, host: &mut H, tag: u16, is_next: bool) {
        let slot = self.slots[usize::from(tag)];
        if self.failing && self.device.is_none() {
            return self.commit(host, tag, -EIO);
        }
        let Some(device) = self.device.filter(|_| !self.stopping) else { return self.hold(tag) };
        if self.is_throttled(host, tag) {
            return;
        }
        // Short writes do not overtake a long one, which would starve while they arrive.
        let waits = !self.may_copy(slot.len) || (!is_next && !self.awaiting_copy.is_empty());
        if slot.op == Op::Write && !slot.has_data && waits {
            self.slots[usize::from(tag)].step = Step::Held;
            self.awaiting_copy.push_back(tag);
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

    /// Whether the export's limits delay a request; it is then held until due.
    fn is_throttled<H: Host<D>>(&mut self, host: &mut H, tag: u16) -> bool {
        let own = self.export.throttle();
        let shared = self.export.info().shared_throttle.as_deref();
        if self.failing {
            // Limits must not delay the removal of the device.
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
        self.throttled.push(Reverse((due_ns, tag)));
        host.timer_at(due_ns);
        true
    }

    fn hold(&mut self, tag: u16) {
        self.slots[usize::from(tag)].step = Step::Held;
        self.held.push_back(tag);
    }

    fn hold_for_memory<H: Host<D>>(&mut self, host: &mut H, tag: u16) {
        self.hold(tag);
        self.wake_in(host, RETRY_NS);
    }

    fn wake_in<H: Host<D>>(&mut self, host: &mut H, ns: u64) {
        let at_ns = host.now_ns() + ns;
        let is_set = host.now_ns() < self.timer_ns && self.timer_ns <= at_ns;
        if !is_set && host.timer_at(at_ns) {
            self.timer_ns = at_ns;
        }
    }

    fn submit<H: Host<D>>(&mut self, host: &mut H, tag: u16, device: DeviceId) {
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

    /// Handles the completion of a request by the engine.
    pub fn io_done<H: Host<D>>(&mut self, host: &mut H, done: &Completion) {
        let tag = (done.tag & ((1 << TAG_BITS) - 1)) as u16;
        let slot = &mut self.slots[usize::from(tag)];
        debug_assert_eq!(done.tag >> TAG_BITS, u64::from(slot.generation), "a completion of another request");
        let is_unsettled = done.result.is_err_and(|error| error.kind.is_unsettled());
        if done.buffer_busy && is_unsettled && slot.op == Op::Write && slot.late.is_none() {
            // Keep the buffer with its data for the next attempt, because the driver copies the data only once. The
            // late I/O only reads them, so both may use the buffer.
            slot.late = Some(done.tag);
        } else if done.buffer_busy {
            self.busy.push((done.tag, std::mem::replace(&mut slot.buf, Buf::NONE), slot.buf_len));
        }
        let Err(error) = done.result else {
            let bytes = if matches!(slot.op, Op::Read | Op::Write) { slot.len as i32 } else { 0 };
            return self.commit(host, tag, bytes);
        };
        // Another disk may have the data. Retry with other memory, as the kernel may still write to the first buffer.
        if done.buffer_busy
            && slot.op == Op::Read
            && !std::mem::replace(&mut slot.retried, true)
            && self.device.is_some_and(|device| host.is_redundant(device))
        {
            return self.advance(host, tag);
        }
        self.failed(host, tag, error.kind);
    }

    /// Handles the end of a late I/O, which releases its buffer.
    pub fn released<H: Host<D>>(&mut self, host: &mut H, tag: u64) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.late == Some(tag)) {
            slot.late = None;
        } else if let Some(at) = self.busy.iter().position(|(busy, _, _)| *busy == tag) {
            let (_, buf, len) = self.busy.swap_remove(at);
            if buf != Buf::NONE {
                host.free(buf, len as usize);
            }
        }
    }

    fn failed<H: Host<D>>(&mut self, host: &mut H, tag: u16, kind: ErrorKind) {
        let slot = &self.slots[usize::from(tag)];
        // The data are in memory that a late I/O still uses, and the driver copies them only once.
        let is_lost = slot.op == Op::Write && slot.buf == Buf::NONE;
        let errno = match kind {
            // The array was stopped, another node serves the volume, or the daemon ends: users wait, as they do for a daemon's restart.
            ErrorKind::NoDevice if !self.failing && !is_lost => {
                // The device is gone, so requests wait for the next `serve`. If the export already has another device,
                // that one stays.
                self.device = self.device.filter(|device| slot.device != Some(*device));
                return self.hold(tag);
            }
            // The outcome is not settled: retry until the device recovers, or until the control plane withdraws it.
            kind if kind.is_unsettled() && !self.failing && !is_lost => return self.hold_for_memory(host, tag),
            ErrorKind::NoSpace => ENOSPC,
            ErrorKind::Unsupported => EOPNOTSUPP,
            ErrorKind::Invalid => EINVAL,
            ErrorKind::ReadOnly => EPERM,
            _ => EIO,
        };
        self.commit(host, tag, -errno);
    }

    /// Commits a request's result and fetches the next request.
    fn commit<H: Host<D>>(&mut self, host: &mut H, tag: u16, result: i32) {
        let slot = self.slots[usize::from(tag)];
        self.count(&slot, result, host.now_ns());
        // The driver copies data only from the buffer of a read.
        let has_data = slot.op == Op::Read && slot.buf != Buf::NONE;
        if !has_data {
            self.free(host, tag);
        }
        let addr = if has_data { slot.buf.addr } else { UNUSED_ADDR };
        let begun = self.command(host, IoOp::CommitAndFetch, tag, result, addr);
        debug_assert!(begun, "the shard's driver has commands");
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

    fn free<H: Host<D>>(&mut self, host: &mut H, tag: u16) {
        let slot = &mut self.slots[usize::from(tag)];
        match (slot.buf, slot.late.take()) {
            (Buf::NONE, _) => {}
            (buf, Some(late)) => self.busy.push((late, buf, slot.buf_len)),
            (buf, None) => host.free(buf, slot.buf_len as usize),
        }
        slot.buf = Buf::NONE;
    }

    /// Retries all held requests.
    fn retry_held<H: Host<D>>(&mut self, host: &mut H) {
        for _ in 0..self.held.len() {
            if let Some(tag) = self.held.pop_front() {
                self.advance(host, tag);
            }
        }
    }

    /// Frees memory that the driver has copied from, and retries requests that wait. Called at the end of a batch.
    pub fn end_of_batch<H: Host<D>>(&mut self, host: &mut H) {
        if !self.committed.is_empty() {
            let (_, seen) = host.commands();
            while let Some(&(begun, buf, len)) = self.committed.front()
                && begun <= seen
            {
                self.committed.pop_front();
                host.free(buf, len as usize);
            }
        }
        let now_ns = host.now_ns();
        while let Some(&Reverse((due_ns, tag))) = self.throttled.peek()
            && (due_ns <= now_ns || self.failing)
        {
            self.throttled.pop();
            self.advance(host, tag);
        }
        if self.device.is_some() || self.failing {
            self.retry_held(host);
        }
        if !self.committed.is_empty() {
            // Other requests may wait for this memory, and nothing else may wake the shard to free it.
            self.wake_in(host, if self.stopping { RETRY_NS } else { COMMITTED_MAX_NS });
        }
        if self.stats != ExportStats::default() {
            self.export.add_stats(&std::mem::take(&mut self.stats));
        }
    }
}

#[cfg(test)]
mod tests;
