//! Ranges that a late write may still change.
//!
//! A write that exceeded its time limit has been answered, with an error; but the kernel still has it, and it may reach
//! the disk at any time until it is returned. It could overwrite a later, acknowledged write of another request. So
//! until then every overlapping write is refused, on all shards. It does not wait: a disk that hangs would hang its
//! clients.
//!
//! In normal operation no write is late: then the check is one atomic load for each write.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::DeviceId;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Late {
    device: DeviceId,
    start: u64,
    end: u64,
}

/// All late writes of all shards.
#[derive(Debug)]
pub struct LateRanges {
    count: AtomicU32,
    ranges: Mutex<Vec<Late>>,
}

impl LateRanges {
    /// Creates an empty list, with memory for `most` late writes.
    pub fn new(most: usize) -> LateRanges {
        LateRanges { count: AtomicU32::new(0), ranges: Mutex::new(Vec::with_capacity(most)) }
    }

    /// Records that a write to `[start, end)` of the device is late. Must be called before its request is answered.
    #[cold]
    pub fn insert(&self, device: DeviceId, start: u64, end: u64) {
        let mut ranges = self.lock();
        ranges.push(Late { device, start, end });
        self.count.store(ranges.len() as u32, Ordering::Release);
    }

    /// Records that the kernel has returned a late write.
    #[cold]
    pub fn remove(&self, device: DeviceId, start: u64, end: u64) {
        let mut ranges = self.lock();
        let at = ranges.iter().position(|late| *late == Late { device, start, end });
        ranges.swap_remove(at.expect("only what has entered leaves"));
        self.count.store(ranges.len() as u32, Ordering::Release);
    }

    /// Returns whether a late write may still change something in `[start, end)` of the device.
    #[inline]
    pub fn covers(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.look(device, start, end)
    }

    #[cold]
    fn look(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.lock().iter().any(|late| late.device == device && late.start < end && start < late.end)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Late>> {
        // No holder of the lock panics; and the list is whole after each of its operations.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_range_covers_overlapping_ranges_until_it_is_returned() {
        let late = LateRanges::new(4);
        let (a, b) = (DeviceId(1), DeviceId(2));
        late.insert(a, 4096, 12288);
        late.insert(a, 4096, 12288);
        let covers = |start, end| late.covers(a, start, end);
        assert!(covers(0, 8192) && covers(8192, 16384) && covers(8192, 8704) && covers(0, 1 << 30));
        assert!(!covers(0, 4096) && !covers(12288, 16384) && !late.covers(b, 0, 1 << 30));
        late.remove(a, 4096, 12288);
        assert!(covers(4096, 8192), "the other one is still late");
        late.remove(a, 4096, 12288);
        assert!(!covers(0, 1 << 30));
    }
}
