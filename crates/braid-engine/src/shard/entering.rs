//! Requests that are accepted before it is certain that their client is still connected.
//!
//! A client that gives up a connection may repeat its requests on another one, and send newer writes after them. The
//! server of the first connection learns that only by looking at its socket. A look before the server accepts requests
//! is too early: the thread may be interrupted after it, while the newer write is carried out on another shard.
//!
//! Therefore a frontend looks between the claim and the first step. A request that enters by [`Shard::enter`] takes its
//! position in the order of claims ([`crate::claims`]), and waits. Then the frontend looks at the connection, once for
//! all requests that have entered. If the client is connected, its newer write comes after that look, and so after the
//! claims: [`Shard::begin_entered`]. If it has disconnected, nothing was changed: [`Shard::cancel_entered`].

use super::Shard;
use super::slots::{NO_POOL, Partial};
use crate::claims::Claim;
use crate::io::{DeviceId, ErrorKind, IoError, LEAF_BYTES_MAX, LeafId, LeafSink, Op, Request};

impl Shard {
    /// Submits a request, as [`Shard::submit`] does, up to its claim: a request that changes the device does not begin
    /// before [`Shard::begin_entered`], which follows within the same call of the frontend. Other requests begin at
    /// once.
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

    /// Ends all requests that have entered, with [`ErrorKind::Unsettled`]; none of them has changed anything. A request
    /// that waits for the claim of another request ends after that one.
    #[cold]
    pub fn cancel_entered(&mut self, sink: &mut impl LeafSink) {
        self.settle_entered(Some(IoError::of(ErrorKind::Unsettled)), sink);
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
            self.process_woken(sink);
        }
    }

    /// Begins a request that has entered: on a fast path, now that it has its claim, or step by step.
    fn begin_one(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let has_claim = matches!(slot.claim, Claim::Held | Claim::Granted(_)) && slot.error.is_none();
        let is_short = has_claim && slot.op == Op::Write && slot.partial == Partial::No;
        if is_short && slot.pool != NO_POOL {
            if self.begin_volume_fast_path(index, sink) {
                return;
            }
        } else if is_short && let Some(place) = self.single_place_of(index) {
            return self.begin_single_or_end(index, place, sink);
        }
        // A queued request is in the list of slots that wait for another claim.
        if !matches!(self.slots[index].claim, Claim::Queued(_)) {
            self.advance(index, sink);
        }
    }

    /// Begins a request that is a single leaf I/O, or completes it if the leaf completes the I/O inline.
    fn begin_single_or_end(&mut self, index: u32, (leaf, offset): (LeafId, u64), sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let Some(result) = sink.complete_inline(leaf, slot.op, offset, slot.end - slot.start, slot.buf) else {
            return self.begin_single(index, (leaf, offset), sink);
        };
        let slot = &mut self.slots[index];
        slot.cursor = slot.end;
        slot.error =
            result.err().map(|e| IoError { kind: e.kind, leaf: Some(leaf), errno: e.errno, offset: slot.start });
        self.finish(index);
    }

    /// Returns the leaf and the offset of a short write to a device that is no volume, if it is a single leaf I/O.
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
