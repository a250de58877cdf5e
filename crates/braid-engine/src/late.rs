//! Ranges that a late write may still change.
//!
//! A write that ran into its time limit has been answered, with an error; but the kernel still has it,
//! and it may land at any time until it is given back. What somebody else wrote there meanwhile would be
//! overwritten, after it had been acknowledged. So until then every write that overlaps is refused, on all
//! shards. It does not wait: a disk that hangs would hang its clients.
//!
//! Nothing is ever late in the normal course: then this is one atomic load for each write.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::DeviceId;
use crate::planted::{Planted, planted};

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
    /// None, with room for `most` at once.
    pub fn new(most: usize) -> LateRanges {
        LateRanges { count: AtomicU32::new(0), ranges: Mutex::new(Vec::with_capacity(most)) }
    }

    /// A write to `[start, end)` of the device is late. To be called before its request is answered.
    #[cold]
    pub fn enter(&self, device: DeviceId, start: u64, end: u64) {
        let mut ranges = self.lock();
        ranges.push(Late { device, start, end });
        self.count.store(ranges.len() as u32, Ordering::Release);
    }

    /// The kernel gave it back.
    #[cold]
    pub fn leave(&self, device: DeviceId, start: u64, end: u64) {
        let mut ranges = self.lock();
        let at = ranges.iter().position(|late| *late == Late { device, start, end });
        ranges.swap_remove(at.expect("only what has entered leaves"));
        self.count.store(ranges.len() as u32, Ordering::Release);
    }

    /// Whether a late write may still change something in `[start, end)` of the device.
    #[inline]
    pub fn covers(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.look(device, start, end) && !planted(Planted::LateForgotten)
    }

    #[cold]
    fn look(&self, device: DeviceId, start: u64, end: u64) -> bool {
        self.lock().iter().any(|late| late.device == device && late.start < end && start < late.end)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Late>> {
        // Nobody panics while holding it; and a list is whole after each of its operations.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_covers_what_overlaps_until_it_is_back() {
        let late = LateRanges::new(4);
        let (a, b) = (DeviceId(1), DeviceId(2));
        late.enter(a, 4096, 12288);
        late.enter(a, 4096, 12288);
        let covers = |start, end| late.covers(a, start, end);
        assert!(covers(0, 8192) && covers(8192, 16384) && covers(8192, 8704) && covers(0, 1 << 30));
        assert!(!covers(0, 4096) && !covers(12288, 16384) && !late.covers(b, 0, 1 << 30));
        late.leave(a, 4096, 12288);
        assert!(covers(4096, 8192), "the other one is still late");
        late.leave(a, 4096, 12288);
        assert!(!covers(0, 1 << 30));
    }
}
