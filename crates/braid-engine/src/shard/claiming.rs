//! How requests claim their ranges: see [`crate::claims`].

use super::ranges::notify_released;
use super::slots::Partial;
use super::waiting::range_key;
use super::{Shard, slots};
use crate::claims::{Claim, HELD_BYTES_MAX};
use crate::io::{DeviceId, ErrorKind, IoError, Op};

impl Shard {
    /// Claims the range of a new write on the fast path. `None`: another request overlaps, and the write takes the
    /// regular path.
    #[inline]
    pub(super) fn claim_fast_path(&mut self, device: DeviceId, start: u64, end: u64) -> Option<Claim> {
        let mut tell = |bucket| notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        if !self.shared.claims.hold(device, start, end, &mut tell) {
            return None;
        }
        // A write that becomes late enters this list before it releases its claim.
        if self.shared.late.covers(device, start, end) {
            self.shared.claims.release(device, start, end, &mut tell);
            return None;
        }
        Some(Claim::Held)
    }

    /// Claims the range of a read or write; a read needs no claim.
    #[inline]
    pub(super) fn claim_single_location(&mut self, device: DeviceId, op: Op, start: u64, end: u64) -> Option<Claim> {
        if op == Op::Read { Some(Claim::No) } else { self.claim_fast_path(device, start, end) }
    }

    /// Returns whether no earlier request has claimed or awaits any of the range: for a request that is completed
    /// inline.
    #[inline]
    pub(super) fn is_unclaimed(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.in_flight == 0 && self.shared.shards == 1 || self.shared.claims.is_free(device, start, end)
    }

    /// Releases what [`Shard::claim_fast_path`] claimed.
    #[cold]
    pub(super) fn give_back_claim(&mut self, claim: Claim, device: DeviceId, start: u64, end: u64) {
        if claim == Claim::Held {
            let mut tell = |bucket| notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
            self.shared.claims.release(device, start, end, &mut tell);
        }
    }

    /// Claims the range of a request before its first step. Returns false if the request waits. Sets the request's
    /// error if a late write covers the range.
    pub(super) fn claim_range(&mut self, index: u32) -> bool {
        let slot = &self.slots[index];
        let (device, start, end) = (DeviceId(slot.device), slot.start, slot.end);
        let claims = &self.shared.claims;
        if slot.claim == Claim::Wanted {
            let mut tell = |bucket| notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
            self.slots[index].claim = match claims.hold(device, start, end, &mut tell) {
                true => Claim::Held,
                false => Claim::Queued(claims.join(device, start, end)),
            };
        }
        let slot = &mut self.slots[index];
        if let Claim::Queued(number) = slot.claim {
            if let Err(bucket) = claims.try_grant(device, start, end, number) {
                if slot.pool != slots::NO_POOL {
                    // The request that has the claim may wait for the end of all counted requests.
                    self.stop_counting(index);
                }
                self.waiting.park(&mut self.slots, index, range_key(bucket));
                return false;
            }
            slot.claim = Claim::Granted(number);
        }
        if self.shared.late.covers(device, start, end) {
            slot.error = Some(IoError { offset: start, ..IoError::of(ErrorKind::TimedOut) });
        }
        true
    }

    /// Releases the part of a long request's claim that lies before its cursor, so that later requests to that part go
    /// on.
    #[inline]
    pub(super) fn shorten_claim(&mut self, index: u32) {
        let slot = &self.slots[index];
        if slot.op != Op::Write
            && slot.end - slot.start > HELD_BYTES_MAX
            && slot.cursor > slot.start
            && slot.cursor < slot.end
            && let Claim::Granted(number) = self.claim_of(index)
        {
            let bucket = self.shared.claims.shorten(number, slot.cursor);
            notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        }
    }

    /// Returns the claim of the request that a slot carries out.
    fn claim_of(&self, index: u32) -> Claim {
        let slot = &self.slots[index];
        if slot.partial == Partial::Step { self.claim_of_partial(index) } else { slot.claim }
    }

    /// Releases a request's claim: the request has ended, or does no more I/O.
    #[inline]
    pub(super) fn give_up_claim(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let (device, start, end) = (DeviceId(slot.device), slot.start, slot.end);
        let mut tell = |bucket| notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        match std::mem::take(&mut slot.claim) {
            Claim::No | Claim::Wanted => {}
            Claim::Held => self.shared.claims.release(device, start, end, &mut tell),
            Claim::Queued(number) | Claim::Granted(number) => tell(self.shared.claims.leave_queue(number)),
        }
    }
}
