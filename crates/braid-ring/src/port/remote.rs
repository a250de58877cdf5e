//! Leaf I/Os on remote disks. Each waits in a queue until a carrier takes it, in parts, and ends when all its parts
//! have ended.

use braid_engine::{ErrorKind, LeafError, LeafId, LeafResult, Op};

use super::entry::{NONE, State};
use super::{Port, errno, memory, must_be_durable};
use crate::remote_part::{PartLimits, RemotePart};

/// The I/Os that wait for one carrier, first come, first served. Only the first may have parts that were taken.
#[derive(Clone, Copy)]
struct CarrierQueue {
    head: u32,
    tail: u32,
    /// Whether it is in the list of queues whose carrier has work.
    due: bool,
}

/// The queues of all carriers, by carrier index.
#[derive(Default)]
pub(super) struct CarrierQueues {
    all: Vec<CarrierQueue>,
    due: Vec<u16>,
}

impl Port {
    /// Makes the carrier with this index carry the I/O of a leaf.
    pub(crate) fn set_remote(&mut self, id: LeafId, carrier: u16) {
        let queue = CarrierQueue { head: NONE, tail: NONE, due: false };
        let carrier_queues = &mut self.carrier_queues;
        if carrier_queues.all.len() <= usize::from(carrier) {
            carrier_queues.all.resize(usize::from(carrier) + 1, queue);
        }
        carrier_queues.all[usize::from(carrier)] = queue;
        carrier_queues.due.retain(|due| *due != carrier);
        carrier_queues.due.reserve(carrier_queues.all.len());
        self.leaves[id.0 as usize].carrier = carrier;
    }

    /// Returns the index of a leaf's carrier, if that is on this shard.
    pub(crate) fn remote_of(&self, id: LeafId) -> Option<u16> {
        let leaf = &self.leaves[id.0 as usize];
        let remote = leaf.disk.as_ref().is_some_and(|disk| disk.is_remote()) && leaf.host.is_none();
        remote.then_some(leaf.carrier)
    }

    /// Returns whether no I/O of a leaf is in flight.
    pub(crate) fn is_quiet(&self, id: LeafId) -> bool {
        self.leaves[id.0 as usize].in_flight == 0
    }

    pub(crate) fn remote_is_due(&mut self, carrier: u16) {
        let queue = &mut self.carrier_queues.all[usize::from(carrier)];
        if !std::mem::replace(&mut queue.due, true) {
            self.carrier_queues.due.push(carrier);
        }
    }

    pub(crate) fn next_due_remote(&mut self) -> Option<u16> {
        let carrier = self.carrier_queues.due.pop()?;
        self.carrier_queues.all[usize::from(carrier)].due = false;
        Some(carrier)
    }

    /// Queues an entry for its carrier, or forwards it to the shard that has the connection.
    pub(super) fn begin_remote(&mut self, index: u32) {
        let entry = &mut self.entries[index];
        if entry.io.len == 0 && entry.io.op != Op::Flush {
            return self.finish(index, Ok(()));
        }
        (entry.state, entry.outstanding, entry.done, entry.result, entry.link) = (State::Remote, 0, 0, Ok(()), NONE);
        let leaf = &self.leaves[entry.io.leaf.0 as usize];
        if let Some(host) = leaf.host {
            return self.forward(index, host);
        }
        let carrier = leaf.carrier;
        let queue = &mut self.carrier_queues.all[usize::from(carrier)];
        let tail = std::mem::replace(&mut queue.tail, index);
        match tail {
            NONE => queue.head = index,
            tail => self.entries[tail].link = index,
        }
        self.remote_is_due(carrier);
    }

    fn pop_queue(&mut self, carrier: u16) {
        let queue = &mut self.carrier_queues.all[usize::from(carrier)];
        queue.head = self.entries[queue.head].link;
        if queue.head == NONE {
            queue.tail = NONE;
        }
    }

    /// Returns when the first waiting I/O was submitted.
    pub(crate) fn waiting_since_ns(&self, carrier: u16) -> Option<u64> {
        let head = self.carrier_queues.all[usize::from(carrier)].head;
        (head != NONE).then(|| self.entries[head].start_ns)
    }

    /// Takes the next part of the first waiting I/O.
    pub(crate) fn take_part(&mut self, carrier: u16, cut: &PartLimits) -> Option<RemotePart> {
        let index = self.carrier_queues.all[usize::from(carrier)].head;
        if index == NONE {
            return None;
        }
        let entry = &mut self.entries[index];
        let io = &entry.io;
        let (at, rest) = (entry.done, io.len - entry.done);
        let len = match io.op {
            Op::Read | Op::Write => pieces_end(io, at, cut.pieces).min(at + cut.data_bytes.min(rest)) - at,
            Op::WriteZeroes | Op::Discard => rest.min(cut.range_bytes),
            Op::Flush => 0,
        };
        let (op, flags, offset, start_ns) = (io.op, io.flags, io.offset + at, entry.start_ns);
        let part = RemotePart { io: index, op, flags, offset, len, at, start_ns };
        entry.done += len;
        entry.outstanding += 1;
        if entry.done == entry.io.len {
            self.pop_queue(carrier);
        }
        Some(part)
    }

    /// Handles the end of a part of an entry.
    pub(crate) fn part_done(&mut self, index: u32, result: Result<(), i32>) {
        let entry = &mut self.entries[index];
        debug_assert!(entry.state == State::Remote && entry.outstanding > 0, "a part completes once");
        entry.outstanding -= 1;
        if let (Err(errno), Ok(())) = (result, entry.result) {
            entry.result = Err(errno::leaf_error(errno));
            let carrier = self.leaves[entry.io.leaf.0 as usize].carrier;
            if entry.done < entry.io.len {
                // The I/O fails anyway, so the parts that were not taken are dropped.
                entry.done = entry.io.len;
                self.pop_queue(carrier);
            }
        }
        self.end_remote(index);
    }

    /// Fails the first waiting I/O. It completes when its parts that were taken have ended.
    pub(crate) fn fail_waiting(&mut self, carrier: u16, errno: i32) {
        let index = self.carrier_queues.all[usize::from(carrier)].head;
        if index == NONE {
            return;
        }
        self.pop_queue(carrier);
        let entry = &mut self.entries[index];
        entry.done = entry.io.len;
        if entry.result.is_ok() {
            entry.result = Err(errno::leaf_error(errno));
        }
        self.end_remote(index);
    }

    /// Fails, as slow, the waiting reads that have exceeded the limit and that another member can serve. Parts that
    /// were taken continue. Returns when the first of these reads was submitted.
    pub(crate) fn give_up_reads(&mut self, carrier: u16, now_ns: u64, limit_ns: u64) -> Option<u64> {
        let (mut before, mut since) = (NONE, None);
        let mut index = self.carrier_queues.all[usize::from(carrier)].head;
        while index != NONE {
            let entry = &mut self.entries[index];
            let (this, next) = (index, entry.link);
            index = next;
            if !entry.io.flags.is_abandoned_after(now_ns.saturating_sub(entry.start_ns), limit_ns) {
                before = this;
                continue;
            }
            since = since.or(Some(entry.start_ns));
            entry.done = entry.io.len;
            if entry.result.is_ok() {
                entry.result = Err(LeafError::of(ErrorKind::Slow));
            }
            let queue = &mut self.carrier_queues.all[usize::from(carrier)];
            if queue.tail == this {
                queue.tail = before;
            }
            match before {
                NONE => queue.head = next,
                before => self.entries[before].link = next,
            }
            self.end_remote(this);
        }
        since
    }

    /// Completes an entry if none of it is outstanding.
    fn end_remote(&mut self, index: u32) {
        let entry = &self.entries[index];
        if entry.outstanding > 0 || entry.done < entry.io.len {
            return;
        }
        let mut result: LeafResult = entry.result;
        self.fail_later_flushes_after(index, result);
        let disk = self.leaves[self.entries[index].io.leaf.0 as usize].disk.as_ref();
        if result.is_ok()
            && must_be_durable(&self.entries[index].io)
            && disk.is_some_and(|disk| disk.has_failed_flush())
        {
            // A flush of this disk has failed meanwhile, perhaps on another shard: acknowledged data may be lost, and
            // this success does not prove that it is durable.
            result = Err(braid_engine::LeafError::of(braid_engine::ErrorKind::FlushFailed));
        }
        self.finish(index, result);
    }

    /// Returns the address of byte `at` of a part, and how many bytes of the I/O follow in the same piece, including
    /// that byte.
    ///
    /// # Panics
    /// When the part has no such byte, or does not belong to this port.
    pub(crate) fn memory_of(&self, part: &RemotePart, at: u64) -> (u64, u64) {
        let entry = &self.entries[part.io];
        assert!(at < part.len && part.at + part.len <= entry.io.len && entry.state == State::Remote, "a part's byte");
        if !matches!(entry.io.op, Op::Read | Op::Write) {
            // Zeros, from any offset.
            let bytes = self.zeros.len() as u64;
            return (self.zeros.addr(), bytes);
        }
        let mut skip = part.at + at;
        for k in 0..entry.io.pieces() {
            let (buf, len) = entry.io.piece(k);
            if skip < u64::from(len) {
                return (buf.addr + skip, u64::from(len) - skip);
            }
            skip -= u64::from(len);
        }
        unreachable!("the pieces of an I/O are as long as itself")
    }

    /// Copies `len` received bytes at `from` to the memory of a part, from its byte `at` on.
    pub(crate) fn copy_data(&mut self, part: &RemotePart, mut at: u64, mut from: *const u8, mut len: u64) {
        assert!(part.op == Op::Read, "only what is read has memory to be changed");
        while len > 0 {
            let (addr, piece) = self.memory_of(part, at);
            let step = piece.min(len);
            // SAFETY: memory of an incomplete I/O, inside one of its pieces; the engine guarantees that it is valid.
            // The source belongs to the carrier, which has checked the range, and is no part of any I/O.
            unsafe { memory::copy_from(from, addr, step) };
            (at, from, len) = (at + step, from.wrapping_add(step as usize), len - step);
        }
    }

    /// Copies data of a part, from its byte `at` on, to `len` bytes at `to`. The target belongs to the carrier and is
    /// no part of any I/O.
    pub(crate) fn data_to(&self, part: &RemotePart, mut at: u64, mut to: *mut u8, mut len: u64) {
        while len > 0 {
            let (addr, piece) = self.memory_of(part, at);
            let step = piece.min(len);
            // SAFETY: memory of an incomplete I/O, inside one of its pieces, or this port's zeros; the engine
            // guarantees that it is valid. The carrier has checked the target.
            unsafe { memory::copy_to(addr, to, step) };
            (at, to, len) = (at + step, to.wrapping_add(step as usize), len - step);
        }
    }
}

/// Returns the offset within the I/O at which the `pieces`th piece of memory ends, counted from the piece that has byte
/// `at`.
fn pieces_end(io: &braid_engine::LeafIo, at: u64, pieces: usize) -> u64 {
    let (mut end, mut left) = (0, pieces.max(1));
    for k in 0..io.pieces() {
        end += u64::from(io.piece(k).1);
        if end > at {
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    end
}
