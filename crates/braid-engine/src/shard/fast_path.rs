//! The fast path of a small read or write of a redundant array whose members all complete it inline.
//!
//! Such a request needs no slot. Writes still exclude each other: with one shard no other request can run during the
//! call, so that it is enough to check that no request holds the range; with several shards the range is acquired and
//! released. A request that does not meet all conditions takes the regular path.

use super::{Shard, ranges};
use crate::claims::Claim;
use crate::io::{Buf, Completion, DeviceId, LeafSink, Op, Request};
use crate::mirror::FastMirror;
use braid_geometry::CopyLocations;

/// The outcome of the fast path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FastPath {
    /// The request is complete.
    Done,
    /// The request needs a slot.
    No,
    /// The request needs a slot; some members may have the data already. It has claimed its range and holds it, or it
    /// is in the queue of claims and does not hold it.
    Begun(Claim),
}

/// The outcome of I/O to the members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InlineOutcome {
    Done,
    /// The request spans several pieces, or no member serves it.
    Cannot,
    /// A member did not complete the I/O inline, or has failed it.
    Refused,
}

impl Shard {
    /// Carries out a small read or write, of at least one byte and within the layout, if that is possible within the
    /// call.
    // Always inlined: as a call of its own it took twice as long (30 ns against 15 in `examples/plan_cost.rs`), and the
    // other fast paths take the same either way.
    #[inline(always)]
    pub(super) fn mirror_fast_path(&mut self, request: &Request, sink: &mut impl LeafSink) -> FastPath {
        let Request { device: id, op, offset, len, buf, tag, .. } = *request;
        let device = self.devices.at_mut(id.0);
        // If a member does not complete its I/O inline, the request goes on with a slot: one must be free.
        if device.takes_time || device.frozen || self.done.len() >= self.done_max || !self.slots.has_free() {
            return FastPath::No;
        }
        let Some(short) = device.current.as_deref().and_then(|layout| layout.fast_mirror()) else {
            return FastPath::No;
        };
        let region = offset >> short.region_shift;
        if (offset + len - 1) >> short.region_shift != region {
            return FastPath::No;
        }
        let outcome = if op == Op::Read {
            if !short.readable.has(region as u32) {
                return FastPath::No;
            }
            let outcome = read(short, (offset, len), buf, sink);
            if outcome == InlineOutcome::Done {
                device.counters.count(Op::Read, len, false);
            }
            outcome
        } else {
            if !short.writable.has(region as u32) {
                return FastPath::No;
            }
            if self.shared.shards > 1 {
                return self.write_fast_path(id, (offset, len), buf, tag, sink);
            }
            // In most cases no request is in flight that could hold anything.
            let (start, end) = (offset, offset + len);
            let is_free = || self.shared.ranges.is_free(id, start, end) && self.shared.claims.is_free(id, start, end);
            if self.in_flight > 0 && !is_free() {
                return FastPath::No;
            }
            let outcome = write(short, (offset, len), buf, sink);
            if outcome == InlineOutcome::Done {
                device.counters.count(Op::Write, len, false);
            }
            outcome
        };
        if outcome != InlineOutcome::Done {
            device.takes_time |= outcome == InlineOutcome::Refused;
            return FastPath::No;
        }
        self.done.push(Completion { tag, result: Ok(()), buffer_busy: false });
        FastPath::Done
    }

    /// Writes when other shards might write to the same range at the same time.
    #[inline(never)]
    fn write_fast_path(
        &mut self,
        id: DeviceId,
        (offset, len): (u64, u64),
        buf: Buf,
        tag: u64,
        sink: &mut impl LeafSink,
    ) -> FastPath {
        let device = self.devices.at_mut(id.0);
        let Some(short) = device.current.as_deref().and_then(|layout| layout.fast_mirror()) else {
            return FastPath::No;
        };
        let mut tell =
            |bucket| ranges::notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        // A request that does not get the range waits with a slot, which tries again.
        if self.shared.ranges.acquire(id, offset, offset + len, &mut tell).is_err() {
            return FastPath::No;
        }
        if !self.shared.claims.is_free(id, offset, offset + len) {
            // An earlier request has claimed it, and waits for something other than this range.
            self.shared.ranges.release(id, offset, offset + len, &mut tell);
            return FastPath::No;
        }
        let outcome = write(short, (offset, len), buf, sink);
        if outcome != InlineOutcome::Done {
            device.takes_time |= outcome == InlineOutcome::Refused;
            // The range is released while the request waits for a region: the claim keeps its position in the order of
            // writes.
            if self.shared.claims.hold(id, offset, offset + len, &mut tell) {
                return FastPath::Begun(Claim::Held);
            }
            let queued = Claim::Queued(self.shared.claims.join(id, offset, offset + len));
            self.shared.ranges.release(id, offset, offset + len, &mut tell);
            return FastPath::Begun(queued);
        }
        self.shared.ranges.release(id, offset, offset + len, &mut tell);
        device.counters.count(Op::Write, len, false);
        self.done.push(Completion { tag, result: Ok(()), buffer_busy: false });
        if !self.woken.is_empty() {
            self.process_woken(sink);
        }
        FastPath::Done
    }
}

/// Reads from the first readable member.
#[inline(always)]
fn read(short: &FastMirror, (offset, len): (u64, u64), buf: Buf, sink: &mut impl LeafSink) -> InlineOutcome {
    let copies = short.places.locate(offset, len);
    if !copies.is_contiguous {
        return InlineOutcome::Cannot;
    }
    // In most cases it is the first one.
    for (slot, at) in copies {
        let member = &short.slots[slot];
        if member.reads {
            let result = sink.complete_inline(member.leaf, Op::Read, member.start + at, len, buf);
            return if result == Some(Ok(())) { InlineOutcome::Done } else { InlineOutcome::Refused };
        }
    }
    InlineOutcome::Cannot
}

/// Writes to every member that serves.
#[inline(always)]
fn write(short: &FastMirror, (offset, len): (u64, u64), buf: Buf, sink: &mut impl LeafSink) -> InlineOutcome {
    let copies = short.places.locate(offset, len);
    if !copies.is_contiguous {
        return InlineOutcome::Cannot;
    }
    let Some((slots, at)) = copies.in_one_stripe() else {
        return write_in_two_rows_of_chunks(short, copies, len, buf, sink);
    };
    let mut outcome = InlineOutcome::Cannot;
    for member in &short.slots[slots] {
        if member.serves {
            if sink.complete_inline(member.leaf, Op::Write, member.start + at, len, buf) != Some(Ok(())) {
                return InlineOutcome::Refused;
            }
            outcome = InlineOutcome::Done;
        }
    }
    outcome
}

#[inline(never)]
fn write_in_two_rows_of_chunks(
    short: &FastMirror,
    copies: CopyLocations,
    len: u64,
    buf: Buf,
    sink: &mut impl LeafSink,
) -> InlineOutcome {
    let mut outcome = InlineOutcome::Cannot;
    for (slot, at) in copies {
        let member = &short.slots[slot];
        if member.serves {
            if sink.complete_inline(member.leaf, Op::Write, member.start + at, len, buf) != Some(Ok(())) {
                return InlineOutcome::Refused;
            }
            outcome = InlineOutcome::Done;
        }
    }
    outcome
}
