//! What of a replicated device is kept although nothing is left to do for it: see [`crate::DeviceLayout::replicated`].
//!
//! **The order of reads.** A read answers what one member gave it. That may be of a write which other members have not got yet:
//! were that told, and this member lost, a later read would find the older state. So a read that has its data waits until
//! each of its blocks has been free in the range table once: whatever it may have seen is then on all members that are in sync, or
//! those that lack it have been left out. What it answers stays what it has read, and a write that comes afterwards does not keep it
//! longer, as it waits for blocks, each once, and not for all to be free together.
//!
//! **The lease.** What is answered was true at a moment in which nobody else can have served the volume: an I/O has ended before
//! the lease is looked at. What is kept holds no range, so that nobody waits for the lease but whoever is to be answered. Volumes of a pool
//! on such a device look at it, too, as the pool answers some things by itself: that a block is zeros, say.
//!
//! What fails ends at once. So does everything under way when the device is stopped or has failed: a write of then may be on one member
//! only, with nobody left to see to it. Such a request is *unsettled* ([`ErrorKind::is_unsettled`]): the next serving decides what
//! became of it, and no client is told of an error.

use super::Shard;
use super::devices::Device;
use super::partial::Partial;
use super::ranges::release;
use super::waiting::{lease_key, range_key};
use crate::io::{DeviceId, ErrorKind, IoError, LeafSink, Op};
use crate::overlap::Awaited;
use crate::planted::{Planted, planted};

impl Shard {
    /// A device's lease has been renewed, after answers had been kept: they go out. To be called on every shard when
    /// [`crate::DeviceLease::renew`] says so.
    pub fn renewed(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        self.woken.push_back((lease_key(device), None));
        self.work_off(sink);
    }

    /// Whether a request that has all that it needs may not be answered yet.
    #[cold]
    pub(super) fn is_kept(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        if device.layout(slot.version).lease.is_none() {
            return false;
        }
        if device.version != slot.version {
            self.move_to_current(index);
            self.forgive(index);
            if self.slots[index].error.is_some() {
                return false;
            }
        }
        if self.slots[index].op == Op::Read && !planted(Planted::ReadNotOrdered) && self.awaits_writes(index) {
            return true;
        }
        // A step of a partial request answers nothing: the lease is looked at once, when all steps have ended.
        self.slots[index].partial != Partial::Step && self.awaits_lease(index, sink)
    }

    /// Keeps a request that has all that it needs while the lease does not hold: that of the device, or of the array below a volume of a
    /// pool. Returns whether it is kept. It then holds neither its range nor its claim.
    pub(super) fn awaits_lease(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(lease) = &layout.lease else { return false };
        if lease.holds(sink.lease_ns()) || planted(Planted::AnsweredWithoutLease) {
            return false;
        }
        let key = lease_key(layout.lessor.unwrap_or(DeviceId(slot.device)));
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        self.give_up_claim(index);
        self.waiting.park(&mut self.slots, index, key);
        true
    }

    /// Returns the error that the submitter of a request is told. Of a device under a lease, an error that only says that this serving
    /// has lost its replicas, or is being ended, becomes [`ErrorKind::Unsettled`]; an error of the request itself stays what it is.
    #[cold]
    pub(super) fn outcome(&self, index: u32, error: IoError) -> IoError {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        let layout = device.layout(slot.version);
        if layout.lease.is_none() || planted(Planted::UnsettledAnswered) {
            return error;
        }
        // A block that no replica can read is an error of the request as long as the device serves. Of a pool whose volume below is
        // withdrawn, it is what the pool makes of that.
        let serves = |device: &Device| {
            let current = device.current.as_deref();
            current.is_some_and(|layout| layout.mirror().is_none_or(|mirror| !mirror.failed)) && !device.frozen
        };
        let unsettled = match error.kind {
            ErrorKind::Gone | ErrorKind::TimedOut | ErrorKind::Failed | ErrorKind::FlushFailed => true,
            ErrorKind::Io => !serves(device) || layout.lessor.is_some_and(|lessor| !serves(self.devices.at(lessor.0))),
            _ => false,
        };
        if unsettled { IoError { kind: ErrorKind::Unsettled, ..error } } else { error }
    }

    /// Whether a read waits for writes that were under way when it had all its data.
    fn awaits_writes(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index];
        let mirror = self.devices.at(slot.device).layout(slot.version).mirror();
        let parity = mirror.and_then(|mirror| Some((mirror, mirror.parity.as_deref()?)));
        let (from, to) = match parity {
            Some((mirror, parity)) => parity.written_under(&mirror.geometry, slot.start, slot.end),
            None => (slot.start, slot.end),
        };
        // Nothing of it is out: what the slot keeps of its last step is free for this.
        let mut awaited = match std::mem::replace(&mut slot.has_read, true) {
            true => Some(Awaited { at: slot.step, blocks: slot.awaits, since: slot.begun_ns }),
            false if slot.start < slot.end => Some(Awaited::first(from, to)),
            false => {
                slot.awaits = 0;
                None
            }
        };
        while let Some(mut one) = awaited {
            let bucket = self.shared.ranges.await_free(DeviceId(slot.device), &mut one);
            (slot.step, slot.awaits, slot.begun_ns) = (one.at, one.blocks, one.since);
            if let Some(bucket) = bucket {
                self.waiting.park(&mut self.slots, index, range_key(bucket));
                return true;
            }
            awaited = one.next(to);
        }
        false
    }
}
