//! Slots that wait: what for, and how they go on when that may have changed.

use super::{Shard, slots};
use crate::io::{DeviceId, ErrorKind, IoError, LeafSink};
use crate::overlap::Bucket;
use crate::planted::{Planted, planted};

pub(super) fn range_key(bucket: Bucket) -> u64 {
    1 << 62 | u64::from(bucket.0)
}

pub(super) fn region_key(device: DeviceId, block: u32) -> u64 {
    2 << 62 | u64::from(device.0) << 24 | u64::from(block)
}

/// Who waits for the end of a freeze.
pub(super) fn hold_key(device: DeviceId) -> u64 {
    3 << 62 | u64::from(device.0)
}

/// Who waits for the journal of an array with parity.
pub(super) fn log_key(device: DeviceId) -> u64 {
    3 << 62 | 1 << 40 | u64::from(device.0)
}

/// Who may not be answered before the device's lease is renewed.
pub(super) fn lease_key(device: DeviceId) -> u64 {
    3 << 62 | 1 << 46 | u64::from(device.0)
}

/// Who waits for scratch memory.
pub(super) fn memory_key() -> u64 {
    3 << 62 | 1 << 41
}

/// Which partial requests wait for scratch memory.
pub(super) fn partial_key() -> u64 {
    3 << 62 | 1 << 47
}

/// Which partial requests to this device wait for what others of the device have of the scratch memory.
pub(super) fn partial_share_key(device: DeviceId) -> u64 {
    3 << 62 | 1 << 48 | u64::from(device.0)
}

impl Shard {
    /// Whether somebody may go on.
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty() || !self.replies.is_empty() || self.pools.has_news()
    }

    /// Looks again at those for whom something may have changed, until nothing does.
    #[cold]
    pub(super) fn work_off(&mut self, sink: &mut impl LeafSink) {
        while self.has_woken() {
            self.work_off_replies(sink);
            // Before requests that go on: these may want parts again, and come behind those that wait.
            self.hand_out_parts(sink);
            if self.pools.has_news() {
                self.work_off_pools(sink);
            }
            let Some((key, error)) = self.woken.pop_front() else { continue };
            // Only those who wait now: one that waits for the same again is not woken twice.
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

    /// A slot that waits has no I/O out: it goes on with the layout of now, so that no change of
    /// layout waits for somebody who waits for that change.
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
                if !slot.failed.is_empty() && !planted(Planted::MissedByOwnLayout) {
                    // Who failed may be out by now.
                    current.missed.iter().for_each(|missed| missed.note(slot.start, slot.end));
                }
                if !slot.failed.is_empty() || !slot.avoid.is_empty() {
                    // Members may have other numbers now; who is left out has none.
                    let before = device.layout(slot.version).mirror();
                    let now = |roles: crate::Roles| match (before, current.mirror()) {
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
