//! The short way of a small read or write of a redundant array whose members all answer within the call.
//!
//! Nothing is left to wait for then, so that nothing has to be kept. Writes still exclude each other: with one shard nobody
//! can look while the call lasts, so that it is enough to see that nobody holds the range; with several it is taken and
//! given back. Where anything is not as it mostly is, the request goes the way of all others.

use super::{Shard, ranges};
use crate::claims::Claim;
use crate::io::{Buf, Completion, DeviceId, LeafSink, Op, Request};
use crate::mirror::ShortMirror;
use braid_geometry::Copies;

/// What came of the short way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AtOnce {
    /// The request is done.
    Done,
    /// It is for a slot to do.
    No,
    /// The same; some members may have the data. It has claimed its range and holds it, or is in the queue of claims and does not hold it.
    Begun(Claim),
}

/// What came of asking the members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Done,
    /// It does not lie in one piece, or nobody is there to be read from as others are.
    Cannot,
    /// One did not answer within the call, or has failed.
    Refused,
}

impl Shard {
    /// Carries out a small read or write, of a byte at least, that the layout can take, if that is possible within the call.
    // Always inlined: as a call of its own it took twice as long (30 ns against 15 in `examples/plan_cost.rs`), and the short
    // way of all others takes the same either way.
    #[inline(always)]
    pub(super) fn mirror_at_once(&mut self, request: &Request, sink: &mut impl LeafSink) -> AtOnce {
        let Request { device: id, op, offset, len, buf, tag, .. } = *request;
        let device = self.devices.at_mut(id.0);
        // A slot has to be there for what was begun.
        if device.takes_time || device.frozen || self.done.len() >= self.done_max || !self.slots.has_free() {
            return AtOnce::No;
        }
        let Some(short) = device.current.as_deref().and_then(|layout| layout.short_mirror()) else { return AtOnce::No };
        let region = offset >> short.region_shift;
        if (offset + len - 1) >> short.region_shift != region {
            return AtOnce::No;
        }
        let asked = if op == Op::Read {
            if !short.readable.has(region as u32) {
                return AtOnce::No;
            }
            let asked = read(short, (offset, len), buf, sink);
            if asked == Asked::Done {
                device.counters.count(Op::Read, len, false);
            }
            asked
        } else {
            if !short.writable.has(region as u32) {
                return AtOnce::No;
            }
            if self.shared.shards > 1 {
                return self.write_at_once(id, (offset, len), buf, tag, sink);
            }
            // Mostly nobody is there who could hold anything.
            let (start, end) = (offset, offset + len);
            let is_free = || self.shared.ranges.is_free(id, start, end) && self.shared.claims.is_free(id, start, end);
            if self.in_flight > 0 && !is_free() {
                return AtOnce::No;
            }
            let asked = write(short, (offset, len), buf, sink);
            if asked == Asked::Done {
                device.counters.count(Op::Write, len, false);
            }
            asked
        };
        if asked != Asked::Done {
            device.takes_time |= asked == Asked::Refused;
            return AtOnce::No;
        }
        self.done.push(Completion { tag, result: Ok(()), buffer_busy: false });
        AtOnce::Done
    }

    /// A write where other shards might write to the same place at the same time.
    #[inline(never)]
    fn write_at_once(
        &mut self,
        id: DeviceId,
        (offset, len): (u64, u64),
        buf: Buf,
        tag: u64,
        sink: &mut impl LeafSink,
    ) -> AtOnce {
        let device = self.devices.at_mut(id.0);
        let Some(short) = device.current.as_deref().and_then(|layout| layout.short_mirror()) else { return AtOnce::No };
        let mut tell = |bucket| ranges::tell_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        // Who does not get it waits by a slot, which tries again.
        if self.shared.ranges.acquire(id, offset, offset + len, &mut tell).is_err() {
            return AtOnce::No;
        }
        if !self.shared.claims.is_free(id, offset, offset + len) {
            // An earlier request has claimed it, and waits for something else than this range.
            self.shared.ranges.release(id, offset, offset + len, &mut tell);
            return AtOnce::No;
        }
        let asked = write(short, (offset, len), buf, sink);
        if asked != Asked::Done {
            device.takes_time |= asked == Asked::Refused;
            // The range is given back while the request waits for a region: its place in the order of writes is the claim.
            if self.shared.claims.hold(id, offset, offset + len, &mut tell) {
                return AtOnce::Begun(Claim::Held);
            }
            let queued = Claim::Queued(self.shared.claims.join(id, offset, offset + len));
            self.shared.ranges.release(id, offset, offset + len, &mut tell);
            return AtOnce::Begun(queued);
        }
        self.shared.ranges.release(id, offset, offset + len, &mut tell);
        device.counters.count(Op::Write, len, false);
        self.done.push(Completion { tag, result: Ok(()), buffer_busy: false });
        if !self.woken.is_empty() {
            self.work_off(sink);
        }
        AtOnce::Done
    }
}

/// Reads from the first member that is there to be read from.
#[inline(always)]
fn read(short: &ShortMirror, (offset, len): (u64, u64), buf: Buf, sink: &mut impl LeafSink) -> Asked {
    let copies = short.places.locate(offset, len);
    if !copies.whole {
        return Asked::Cannot;
    }
    // Mostly it is the first one.
    for (slot, at) in copies {
        let member = &short.slots[slot];
        if member.reads {
            let result = sink.at_once(member.leaf, Op::Read, member.start + at, len, buf);
            return if result == Some(Ok(())) { Asked::Done } else { Asked::Refused };
        }
    }
    Asked::Cannot
}

/// Writes to every member that serves.
#[inline(always)]
fn write(short: &ShortMirror, (offset, len): (u64, u64), buf: Buf, sink: &mut impl LeafSink) -> Asked {
    let copies = short.places.locate(offset, len);
    if !copies.whole {
        return Asked::Cannot;
    }
    let Some((slots, at)) = copies.in_one_row() else { return write_in_two_rows(short, copies, len, buf, sink) };
    let mut asked = Asked::Cannot;
    for member in &short.slots[slots] {
        if member.serves {
            if sink.at_once(member.leaf, Op::Write, member.start + at, len, buf) != Some(Ok(())) {
                return Asked::Refused;
            }
            asked = Asked::Done;
        }
    }
    asked
}

#[inline(never)]
fn write_in_two_rows(short: &ShortMirror, copies: Copies, len: u64, buf: Buf, sink: &mut impl LeafSink) -> Asked {
    let mut asked = Asked::Cannot;
    for (slot, at) in copies {
        let member = &short.slots[slot];
        if member.serves {
            if sink.at_once(member.leaf, Op::Write, member.start + at, len, buf) != Some(Ok(())) {
                return Asked::Refused;
            }
            asked = Asked::Done;
        }
    }
    asked
}
