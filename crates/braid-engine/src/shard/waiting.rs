//! Waiting slots: the keys that they wait for, and how they continue when a condition may have changed.

use super::{Shard, slots};
use crate::io::{DeviceId, ErrorKind, IoError, LeafSink};
use crate::overlap::Bucket;

pub(super) fn range_key(bucket: Bucket) -> u64 {
    1 << 62 | u64::from(bucket.0)
}

pub(super) fn region_key(device: DeviceId, block: u32) -> u64 {
    2 << 62 | u64::from(device.0) << 24 | u64::from(block)
}

/// Returns the wait key of the end of a freeze.
pub(super) fn hold_key(device: DeviceId) -> u64 {
    3 << 62 | u64::from(device.0)
}

/// Returns the wait key of the journal of an array with parity.
pub(super) fn log_key(device: DeviceId) -> u64 {
    3 << 62 | 1 << 40 | u64::from(device.0)
}

/// Returns the wait key of requests that may not be answered before the device's lease is renewed.
pub(super) fn lease_key(device: DeviceId) -> u64 {
    3 << 62 | 1 << 46 | u64::from(device.0)
}

/// Returns the wait key of scratch memory.
pub(super) fn memory_key() -> u64 {
    3 << 62 | 1 << 41
}

/// Returns the wait key of partial requests that wait for scratch memory.
pub(super) fn partial_key() -> u64 {
    3 << 62 | 1 << 47
}

/// Returns the wait key of partial requests to this device that wait for the device's share of scratch memory.
pub(super) fn partial_share_key(device: DeviceId) -> u64 {
    3 << 62 | 1 << 48 | u64::from(device.0)
}

impl Shard {
    /// Returns whether any waiting slot may continue.
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty() || !self.replies.is_empty() || self.pools.has_pending()
    }

    /// Processes all slots for which something may have changed, until nothing changes.
    #[cold]
    pub(super) fn process_woken(&mut self, sink: &mut impl LeafSink) {
        while self.has_woken() {
            self.process_replies(sink);
            // Before requests that continue: these may want further parts, and queue behind those that wait.
            self.hand_out_parts(sink);
            if self.pools.has_pending() {
                self.process_pools(sink);
            }
            let Some((key, error)) = self.woken.pop_front() else { continue };
            // Only slots that wait now: a slot that waits for the same key again is not woken twice.
            let mut last = None;
            while let Some(index) = self.next_woken(key, &mut last) {
                if let Some(error) = error {
                    let slot = &mut self.slots[index];
                    slot.error = Some(IoError { kind: error.kind, leaf: None, errno: error.errno, offset: slot.start });
                } else {
                    self.move_to_current(index);
                }
                self.advance(index, sink);
            }
        }
    }

    fn next_woken(&mut self, key: u64, last: &mut Option<u32>) -> Option<u32> {
        let boundary = *last.get_or_insert_with(|| self.waiting.last(key, &self.slots));
        if boundary == slots::NONE {
            return None;
        }
        let index = self.waiting.wake_one(&mut self.slots, key)?;
        if index == boundary {
            *last = Some(slots::NONE);
        }
        Some(index)
    }

    /// Moves a waiting slot, which has no I/O in flight, to the current layout: so no change of layout waits for a slot
    /// that waits for that change.
    pub(super) fn move_to_current(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        let device = self.devices.at_mut(slot.device);
        let version = device.version;
        if version == slot.version {
            return;
        }
        match &device.current {
            None => slot.error = Some(IoError::of(ErrorKind::NoDevice)),
            Some(current) if slot.end > current.size_bytes() => slot.error = Some(IoError::of(ErrorKind::Invalid)),
            Some(current) => {
                if !slot.failed.is_empty() {
                    // The failed member may be dropped by now.
                    current.missed.iter().for_each(|missed| missed.record(slot.start, slot.end));
                }
                if !slot.failed.is_empty() || !slot.avoid.is_empty() {
                    // Members may have other indices now; a dropped member has none.
                    let before = device.layout(slot.version).mirror();
                    let now = |roles: crate::MemberSet| match (before, current.mirror()) {
                        (Some(before), Some(now)) => before.renumber(roles, now),
                        _ => roles,
                    };
                    (slot.failed, slot.avoid) = (now(slot.failed), now(slot.avoid));
                    slot.set_slow(now(slot.slow()));
                }
                device.users += 1;
                let old = std::mem::replace(&mut slot.version, version);
                let id = slot.device;
                self.devices.leave(id, old);
            }
        }
    }
}
