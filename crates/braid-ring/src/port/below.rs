//! Leaf I/Os on devices of the tier below: requests there, one for each piece of memory.
//!
//! They have no time limit of their own: what they stand on has. A request there may wait for longer than a disk may take, as for a member
//! that has failed to be left out.

use std::collections::VecDeque;

use braid_engine::{Completion, DeviceId, ErrorKind, Flags, IoError, LeafError, LeafResult, Op, Request};

use super::Port;
use super::entry::State;
use crate::disk::Base;
use crate::frontend::TAG_BITS;
use crate::requests::BELOW;
use crate::tier::{TIERS_MAX, tier_of};

/// Entries that have requests to submit, by the tier that these go to, in the order in which they came.
#[derive(Default)]
pub(super) struct Below {
    queues: [VecDeque<u32>; TIERS_MAX],
    /// That tier has no slot free: not before something has ended.
    full: [bool; TIERS_MAX],
}

impl Below {
    /// Takes memory for so many.
    pub(super) fn reserve(&mut self, most: usize) {
        self.queues.iter_mut().for_each(|queue| queue.reserve(most));
    }
}

impl Port {
    /// Begins an entry on a device of a tier below.
    pub(super) fn begin_below(&mut self, index: u32, device: DeviceId) {
        let entry = &mut self.entries[index];
        entry.state = State::Below;
        (entry.out, entry.busy, entry.step, entry.result) = (requests_of(entry.io.op, entry.io.pieces()), 0, 0, Ok(()));
        self.below.queues[tier_of(device)].push_back(index);
    }

    /// Whether a tier has something to submit, and may have room for it; or something was late below, or has come back there.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        let submits = |(queue, full): (&VecDeque<u32>, &bool)| !queue.is_empty() && !full;
        !self.late.is_empty()
            || !self.returned.is_empty()
            || self.below.queues.iter().zip(&self.below.full).any(submits)
    }

    /// Something may have ended since: tiers that had no slot are asked again.
    pub(crate) fn retry_below(&mut self) {
        self.below.full = [false; TIERS_MAX];
    }

    /// The next request to a device of this tier. It counts as submitted when [`Port::submitted_below`] is called.
    pub(crate) fn next_below(&self, tier: usize) -> Option<Request> {
        let index = *self.below.queues[tier].front().filter(|_| !self.below.full[tier])?;
        let entry = &self.entries[index];
        let io = &entry.io;
        let Base::Device(device) = *self.leaves[io.leaf.0 as usize].disk.as_ref()?.base() else { return None };
        let tag = BELOW << TAG_BITS | u64::from(index);
        if !moves(io.op) {
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

    /// The request that [`Port::next_below`] gave was submitted, or refused.
    pub(crate) fn submitted_below(&mut self, tier: usize, submitted: Result<(), IoError>) {
        let Some(index) = self.below.queues[tier].front().copied() else { return };
        if submitted.is_err_and(|error| error.kind == ErrorKind::Busy) {
            self.below.full[tier] = true;
            return;
        }
        let entry = &mut self.entries[index];
        entry.step += 1;
        if entry.step == u64::from(requests_of(entry.io.op, entry.io.pieces())) {
            self.below.queues[tier].pop_front();
        }
        if let Err(error) = submitted {
            self.ended_below(index, Err(error), false);
        }
    }

    /// A request below has ended; its tag is without [`BELOW`].
    pub(crate) fn done_below(&mut self, completion: &Completion) {
        self.ended_below(completion.tag as u32, completion.result, completion.buffer_busy);
    }

    fn ended_below(&mut self, index: u32, result: Result<(), IoError>, busy: bool) {
        let entry = &mut self.entries[index];
        entry.out -= 1;
        entry.busy += u32::from(busy);
        if let (Err(error), true) = (result, entry.result.is_ok()) {
            entry.result = Err(LeafError { kind: error.kind, errno: error.errno });
        }
        if entry.out > 0 {
            return;
        }
        let (result, late) = (entry.result, entry.busy > 0);
        self.doubt_flushes_of(index, result);
        if late {
            return self.late_below(index);
        }
        self.finish(index, result);
    }

    /// Some of it the kernel has still: the engine is told now, and again when that is given back.
    #[cold]
    fn late_below(&mut self, index: u32) {
        let entry = &mut self.entries[index];
        entry.late = true;
        let counters = &self.leaves[entry.io.leaf.0 as usize].counters;
        counters.errors.add(1);
        counters.late.add(1);
        self.late.push(entry.io.cookie);
    }

    /// The kernel has given back what a request below was late with.
    pub(crate) fn released_below(&mut self, tag: u64) {
        let index = tag as u32;
        let entry = &mut self.entries[index];
        entry.busy -= 1;
        if entry.busy == 0 && entry.late {
            self.answer(index, Ok(()));
        }
    }

    /// A flush that failed, or a write that was to be durable: what others have written may be lost, and no later flush would say so.
    pub(super) fn doubt_flushes_of(&self, index: u32, result: LeafResult) {
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
            && super::vouches(io)
            && (io.op == Op::Flush || !refused(error.kind))
            && let Some(disk) = &self.leaves[io.leaf.0 as usize].disk
            // A volume's pool has what it could not make durable for want of space, and a later flush does it.
            && !(error.kind == ErrorKind::NoSpace && disk.spec().volume().is_some())
        {
            disk.set_flush_failed();
        }
    }
}

fn moves(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write)
}

/// How many requests an I/O becomes.
fn requests_of(op: Op, pieces: u32) -> u32 {
    if moves(op) { pieces } else { 1 }
}
