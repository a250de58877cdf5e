//! Requests that are taken in before it is certain that their client is still there.
//!
//! A client that gives up a connection may repeat its requests on another one, and send newer writes after them. The server of the first
//! connection learns that only by a look at its socket. A look before the server takes requests in is too early: the thread may be
//! interrupted after it, while the newer write is carried out on another shard.
//!
//! So a frontend looks between the claim and the first step. A request that enters by [`Shard::enter`] takes its place in the order of
//! claims ([`crate::claims`]), and waits. Then the frontend looks at the connection, once for all requests that have entered. If the client is
//! there, its newer write comes after that look, and so after the claims: [`Shard::begin_entered`]. If it has gone, nothing was changed:
//! [`Shard::call_off_entered`].

use super::Shard;
use super::partial::Partial;
use super::slots::NO_POOL;
use crate::claims::Claim;
use crate::io::{DeviceId, ErrorKind, IoError, LEAF_BYTES_MAX, LeafId, LeafSink, Op, Request};
use crate::planted::{Planted, planted};

impl Shard {
    /// Takes a request in, as [`Shard::submit`] does, up to its claim: one that changes the device does not begin before
    /// [`Shard::begin_entered`], which follows within the same call of the frontend. Others begin at once.
    ///
    /// # Errors
    /// As [`Shard::submit`].
    #[inline(never)]
    pub fn enter(&mut self, request: &Request, sink: &mut impl LeafSink) -> Result<(), IoError> {
        self.take_in::<true>(request, sink)
    }

    /// Begins all requests that have entered.
    #[inline]
    pub fn begin_entered(&mut self, sink: &mut impl LeafSink) {
        self.settle_entered(None, sink);
    }

    /// Ends all requests that have entered, with [`ErrorKind::Unsettled`], of which here is known that nothing was changed. A request that waits
    /// for the claim of another one ends after that one.
    #[cold]
    pub fn call_off_entered(&mut self, sink: &mut impl LeafSink) {
        let error = (!planted(Planted::CalledOffBegun)).then_some(IoError::of(ErrorKind::Unsettled));
        self.settle_entered(error, sink);
    }

    fn settle_entered(&mut self, error: Option<IoError>, sink: &mut impl LeafSink) {
        let mut entered = std::mem::take(&mut self.entered);
        for index in entered.drain(..) {
            let slot = &mut self.slots[index];
            slot.is_entered = false;
            slot.error = slot.error.or(error.map(|error| IoError { offset: slot.start, ..error }));
            self.begin_one(index, sink);
        }
        self.entered = entered;
        if self.has_woken() {
            self.work_off(sink);
        }
    }

    /// Begins a request that has entered: by a short way, now that it has its claim, or step by step.
    fn begin_one(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let has_claim = matches!(slot.claim, Claim::Held | Claim::Granted(_)) && slot.error.is_none();
        let is_short = has_claim && slot.op == Op::Write && slot.partial == Partial::No;
        if is_short && slot.pool != NO_POOL {
            if self.begin_in_one_place(index, sink) {
                return;
            }
        } else if is_short && let Some(place) = self.single_place_of(index) {
            return self.begin_single_or_end(index, place, sink);
        }
        // A request in the queue is in the list of those that wait for another one.
        if !matches!(self.slots[index].claim, Claim::Queued(_)) {
            self.advance(index, sink);
        }
    }

    /// Begins a request that is one leaf I/O, or carries it out within the call where the leaf answers so.
    fn begin_single_or_end(&mut self, index: u32, (leaf, offset): (LeafId, u64), sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let Some(result) = sink.at_once(leaf, slot.op, offset, slot.end - slot.start, slot.buf) else {
            return self.begin_single(index, (leaf, offset), sink);
        };
        let slot = &mut self.slots[index];
        slot.cursor = slot.end;
        slot.error =
            result.err().map(|e| IoError { kind: e.kind, leaf: Some(leaf), errno: e.errno, offset: slot.start });
        self.finish(index);
    }

    /// The one place of a short write to a device that is no volume, if one leaf I/O is all of it.
    #[inline]
    fn single_place_of(&self, index: u32) -> Option<(LeafId, u64)> {
        let slot = &self.slots[index];
        let len = slot.end - slot.start;
        if len > LEAF_BYTES_MAX {
            return None;
        }
        let layout = self.devices.get(DeviceId(slot.device))?.current.as_deref()?;
        if layout.ordered { None } else { layout.single_place(slot.start, len) }
    }
}
