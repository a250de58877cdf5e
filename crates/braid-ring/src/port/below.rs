//! Leaf I/Os on devices of the stack level below. Each becomes requests to that device, one for each piece of memory.
//!
//! Such a leaf I/O has no time limit of its own; only the leaf I/Os on the disks at the bottom have one. A request to a
//! device below may take longer than that limit, for example while the array there drops a failed member.

use std::collections::VecDeque;

use braid_engine::{Completion, DeviceId, ErrorKind, Flags, IoError, LeafError, LeafResult, Op, Request};

use super::Port;
use super::entry::State;
use crate::medium::Base;
use crate::stack_level::{STACK_LEVELS_MAX, stack_level_of};
use crate::tokens::{BELOW, TAG_BITS};

/// Entries with requests to submit, by the stack level of the device, in the order of submission.
#[derive(Default)]
pub(super) struct Below {
    queues: [VecDeque<u32>; STACK_LEVELS_MAX],
    /// By level: whether its engine has refused a request for want of a slot, and was not tried again since.
    full: [bool; STACK_LEVELS_MAX],
}

impl Below {
    /// Reserves memory for this many more entries.
    pub(super) fn reserve(&mut self, max: usize) {
        self.queues.iter_mut().for_each(|queue| queue.reserve(max));
    }
}

impl Port {
    /// Begins an entry on a device of a level below.
    pub(super) fn begin_below(&mut self, index: u32, device: DeviceId) {
        let entry = &mut self.entries[index];
        entry.state = State::Below;
        (entry.outstanding, entry.busy, entry.step, entry.result) =
            (requests_of(entry.io.op, entry.io.pieces()), 0, 0, Ok(()));
        self.below.queues[stack_level_of(device)].push_back(index);
    }

    /// Returns whether the shard must do another round before it sleeps: requests wait for a level whose engine may
    /// have a free slot, or late or returned I/Os are to be reported.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        let submits = |(queue, full): (&VecDeque<u32>, &bool)| !queue.is_empty() && !full;
        !self.late.is_empty()
            || !self.returned.is_empty()
            || self.below.queues.iter().zip(&self.below.full).any(submits)
    }

    /// Retries levels that had no free slot, as something may have ended since.
    pub(crate) fn retry_below(&mut self) {
        self.below.full = [false; STACK_LEVELS_MAX];
    }

    /// Returns the next request to a device of this level. It stays queued until [`Port::submitted_below`] is called.
    pub(crate) fn next_below(&self, level: usize) -> Option<Request> {
        let index = *self.below.queues[level].front().filter(|_| !self.below.full[level])?;
        let entry = &self.entries[index];
        let io = &entry.io;
        let Base::Device(device) = *self.leaves[io.leaf.0 as usize].disk.as_ref()?.base() else { return None };
        let tag = BELOW << TAG_BITS | u64::from(index);
        if !carries_data(io.op) {
            let Op::Flush = io.op else {
                let (offset, len) = (io.offset, io.len);
                return Some(Request { device, op: io.op, flags: io.flags, offset, len, buf: io.buf, tag });
            };
            return Some(Request { device, op: io.op, flags: Flags::NONE, offset: 0, len: 0, buf: io.buf, tag });
        }
        let k = entry.step as u32;
        let (buf, len) = io.piece(k);
        let before = match k {
            0 => 0,
            k => u64::from(io.first_len) + u64::from(k - 1) * u64::from(io.piece_len),
        };
        Some(Request { device, op: io.op, flags: io.flags, offset: io.offset + before, len: len.into(), buf, tag })
    }

    /// Records that the request from [`Port::next_below`] was submitted or refused.
    pub(crate) fn submitted_below(&mut self, level: usize, submitted: Result<(), IoError>) {
        let Some(index) = self.below.queues[level].front().copied() else { return };
        if submitted.is_err_and(|error| error.kind == ErrorKind::Busy) {
            self.below.full[level] = true;
            return;
        }
        let entry = &mut self.entries[index];
        entry.step += 1;
        if entry.step == u64::from(requests_of(entry.io.op, entry.io.pieces())) {
            self.below.queues[level].pop_front();
        }
        if let Err(error) = submitted {
            self.ended_below(index, Err(error), false);
        }
    }

    /// Handles the end of a request below. Its tag is without [`BELOW`].
    pub(crate) fn done_below(&mut self, completion: &Completion) {
        self.ended_below(completion.tag as u32, completion.result, completion.buffer_busy);
    }

    fn ended_below(&mut self, index: u32, result: Result<(), IoError>, busy: bool) {
        let entry = &mut self.entries[index];
        entry.outstanding -= 1;
        entry.busy += u32::from(busy);
        if let (Err(error), true) = (result, entry.result.is_ok()) {
            entry.result = Err(LeafError { kind: error.kind, errno: error.errno });
        }
        if entry.outstanding > 0 {
            return;
        }
        let (result, late) = (entry.result, entry.busy > 0);
        self.fail_later_flushes_after(index, result);
        if late {
            return self.late_below(index);
        }
        self.finish(index, result);
    }

    /// Handles an entry whose requests have all ended while the kernel still uses some of its memory. The engine of the
    /// level above is notified now, and again when the kernel has returned that memory.
    #[cold]
    fn late_below(&mut self, index: u32) {
        let entry = &mut self.entries[index];
        entry.late = true;
        let counters = &self.leaves[entry.io.leaf.0 as usize].counters;
        counters.errors.add(1);
        counters.late.add(1);
        self.late.push(entry.io.cookie);
    }

    /// The kernel has returned the memory of a late request below.
    pub(crate) fn released_below(&mut self, tag: u64) {
        let index = tag as u32;
        let entry = &mut self.entries[index];
        entry.busy -= 1;
        if entry.busy == 0 && entry.late {
            self.complete(index, Ok(()));
        }
    }

    /// Fails later flushes of the disk if this I/O was a flush or durable write and failed: data of other writes may be
    /// lost, and no later flush would report it.
    pub(super) fn fail_later_flushes_after(&self, index: u32, result: LeafResult) {
        let io = &self.entries[index].io;
        let refused = |kind| {
            matches!(
                kind,
                ErrorKind::NoSpace
                    | ErrorKind::Invalid
                    | ErrorKind::ReadOnly
                    | ErrorKind::Unsupported
                    | ErrorKind::Unreadable
            )
        };
        if let Err(error) = result
            && super::must_be_durable(io)
            && (io.op == Op::Flush || !refused(error.kind))
            && let Some(disk) = &self.leaves[io.leaf.0 as usize].disk
            // A pool without space still holds the data that it could not make durable. A later flush of the volume can
            // succeed.
            && !(error.kind == ErrorKind::NoSpace && disk.spec().volume().is_some())
        {
            disk.set_flush_failed();
        }
    }
}

fn carries_data(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write)
}

/// Returns how many requests an I/O becomes.
fn requests_of(op: Op, pieces: u32) -> u32 {
    if carries_data(op) { pieces } else { 1 }
}
