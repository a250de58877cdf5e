//! The short way of a small read or write of a redundant array whose members all answer within the call.
//!
//! Nothing is left to wait for then, so that nothing has to be kept. Writes still exclude each other: with one shard nobody
//! can look while the call lasts, so that it is enough to see that nobody holds the range; with several it is taken and
//! given back. Where anything is not as it mostly is, the request goes the way of all others.

use super::{Shard, ranges};
use crate::io::{Completion, LEAF_BYTES_MAX, LeafSink, Op, Request};
use crate::mirror::{Mirrored, Role};

/// What came of the short way.
pub(super) enum AtOnce {
    /// The request is done.
    Done,
    /// It is for a slot to do.
    No,
    /// The same; its range is held already, and some members may have the data.
    Begun,
}

impl Shard {
    /// Carries out a request that the layout can take, if that is possible within the call.
    #[inline]
    pub(super) fn mirror_at_once(&mut self, request: &Request, sink: &mut impl LeafSink) -> AtOnce {
        let Request { op, offset, len, .. } = *request;
        let device = self.devices.at_mut(request.device.0);
        let small = matches!(op, Op::Read | Op::Write) && len.wrapping_sub(1) < LEAF_BYTES_MAX;
        // A slot has to be there for what was begun.
        if !small || device.takes_time || device.frozen || self.done.len() >= self.done_max || !self.slots.has_free() {
            return AtOnce::No;
        }
        let Some(mirror) = device.current.as_deref().and_then(|layout| layout.mirror()) else { return AtOnce::No };
        let (regions, end) = (&mirror.regions, offset + len);
        let region = regions.region_of(offset);
        let open = if op == Op::Read { &regions.readable } else { &regions.writable };
        if mirror.failed || end > regions.region_end(offset) || !open.has(region) {
            return AtOnce::No;
        }
        let excludes = op == Op::Write && self.shared.shards > 1;
        if excludes {
            let mut tell =
                |bucket| ranges::tell_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
            // Who does not get it waits by a slot, which tries again.
            if self.shared.ranges.acquire(request.device, offset, end, &mut tell).is_err() {
                return AtOnce::No;
            }
        } else if op == Op::Write && !self.shared.ranges.is_free(request.device, offset, end) {
            return AtOnce::No;
        }
        let done = if op == Op::Read { read(mirror, request, sink) } else { write(mirror, request, sink) };
        if done != Some(true) {
            device.takes_time |= done.is_some();
            return if excludes { AtOnce::Begun } else { AtOnce::No };
        }
        device.counters.count(op, len, false);
        self.done.push(Completion { tag: request.tag, result: Ok(()), buffer_busy: false });
        if excludes {
            let mut tell =
                |bucket| ranges::tell_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
            self.shared.ranges.release(request.device, offset, end, &mut tell);
            if !self.woken.is_empty() {
                self.work_off(sink);
            }
        }
        AtOnce::Done
    }
}

/// Reads from the first member that is there to be read from. `None`: not all of it lies in one piece. `Some(false)`: the
/// member did not answer, or has failed.
#[inline]
fn read(mirror: &Mirrored, request: &Request, sink: &mut impl LeafSink) -> Option<bool> {
    let piece = mirror.geometry.locate(request.offset);
    if piece.len < request.len {
        return None;
    }
    let mut from = &mirror.members[usize::from(piece.member)];
    let mut at = piece.member_offset;
    if from.role != Role::InSync || from.write_mostly {
        let mut found = None;
        mirror.geometry.copies(request.offset, &mut |piece| {
            let member = &mirror.members[usize::from(piece.member)];
            if found.is_none() && member.role == Role::InSync && !member.write_mostly {
                found = Some((member, piece.member_offset));
            }
        });
        // None but one that is read only if it must be: that is not for here to say.
        (from, at) = found?;
    }
    Some(sink.at_once(from.leaf, Op::Read, from.start + at, request.len, request.buf) == Some(Ok(())))
}

/// Writes to every member that serves. Says the same as [`read`].
#[inline]
fn write(mirror: &Mirrored, request: &Request, sink: &mut impl LeafSink) -> Option<bool> {
    let (mut whole, mut written, mut refused) = (true, false, false);
    mirror.geometry.copies(request.offset, &mut |piece| {
        let member = &mirror.members[usize::from(piece.member)];
        whole &= piece.len >= request.len;
        if !whole || refused || member.role == Role::Out {
            return;
        }
        let at = member.start + piece.member_offset;
        match sink.at_once(member.leaf, Op::Write, at, request.len, request.buf) {
            Some(Ok(())) => written = true,
            _ => refused = true,
        }
    });
    whole.then_some(written && !refused)
}
