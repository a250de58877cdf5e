//! Keeps back the answer of a request to a replicated device although its I/O has completed, as long as it may not be
//! answered yet: see [`crate::DeviceLayout::replicated`].
//!
//! **The order of reads.** A read returns the content of one member. It may see a write that other members do not have
//! yet: if the read were answered and this member then lost, a later read would return the older content. So a read
//! that has its data waits until each of its blocks has been free in the range table once: every write that it may have
//! seen is then on all members in sync, or the members that lack it have been dropped. The read returns the data that
//! it has read. Later writes do not delay it, because each block must be free once, and not all of them together.
//!
//! **The lease.** An answer must have been true at a moment at which no other node can have served the device. So a
//! shard checks the lease after the I/O of the request has completed. A request that is kept back holds neither its
//! range nor its claim: only requests that are about to be answered wait for the lease. Volumes of a pool on such a
//! device check it, too, because the pool answers some requests by itself, for example that a block is zeros.
//!
//! A request that fails is answered at once. If the device is stopped or has failed, so is everything in flight: a
//! write may then be on one member only, and no component is left that completes it. Such a request is *unsettled*
//! ([`ErrorKind::is_unsettled`]): the controller that serves the device next decides its outcome, and no client
//! receives an error.

use super::Shard;
use super::devices::Device;
use super::ranges::release;
use super::slots::Partial;
use super::waiting::{lease_key, range_key};
use crate::io::{DeviceId, ErrorKind, IoError, LeafSink, Op};
use crate::overlap::AwaitedBlocks;

impl Shard {
    /// Answers requests that were kept, because the device's lease has been renewed. Must be called on every shard when
    /// [`crate::DeviceLease::renew`] says so.
    pub fn lease_renewed(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        self.woken.push_back((lease_key(device), None));
        self.process_woken(sink);
    }

    /// Returns whether a request that has all that it needs may not be answered yet.
    #[cold]
    pub(super) fn is_kept(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        if device.layout(slot.version).lease.is_none() {
            return false;
        }
        if device.version != slot.version {
            self.move_to_current(index);
            self.clear_failures(index);
            if self.slots[index].error.is_some() {
                return false;
            }
        }
        if self.slots[index].op == Op::Read && self.awaits_writes(index) {
            return true;
        }
        // A step of a partial request answers nothing: the lease is checked once, when all steps have ended.
        self.slots[index].partial != Partial::Step && self.awaits_lease(index, sink)
    }

    /// Keeps a request that has all that it needs while the lease does not hold: that of the device, or of the array
    /// below a volume of a pool. Returns whether it is kept. It then holds neither its range nor its claim.
    pub(super) fn awaits_lease(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(lease) = &layout.lease else { return false };
        if lease.holds(sink.lease_ns()) {
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

    /// Returns the error that the submitter of a request receives. For a device under a lease, an error becomes
    /// [`ErrorKind::Unsettled`] if it only says that this controller has lost its replicas or is being stopped; an
    /// error of the request itself stays what it is.
    #[cold]
    pub(super) fn outcome(&self, index: u32, error: IoError) -> IoError {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        let layout = device.layout(slot.version);
        if layout.lease.is_none() {
            return error;
        }
        // A block that no replica can read is an error of the request as long as the device serves. For a pool, this
        // error is also what results if the volume below it is withdrawn.
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

    /// Returns whether a read waits for writes that were in flight when it had all its data.
    fn awaits_writes(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index];
        let mirror = self.devices.at(slot.device).layout(slot.version).mirror();
        let parity = mirror.and_then(|mirror| Some((mirror, mirror.parity.as_deref()?)));
        let (from, to) = match parity {
            Some((mirror, parity)) => parity.written_under(&mirror.geometry, slot.start, slot.end),
            None => (slot.start, slot.end),
        };
        // No I/O of the slot is in flight: the fields of its last step are free for this.
        let mut awaited = match std::mem::replace(&mut slot.has_read, true) {
            true => Some(AwaitedBlocks { at: slot.step, blocks: slot.awaits, since: slot.begun_ns }),
            false if slot.start < slot.end => Some(AwaitedBlocks::first(from, to)),
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
