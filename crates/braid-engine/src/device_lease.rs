//! Until when a device that is replicated may answer.
//!
//! Its controller may be cut off while another one opens the volume elsewhere: so answers are given only while enough voters
//! vouch for it (`replica::Lease`). The control plane renews; the shards look at each completion, and keep what may not be
//! answered now. Who keeps something says so here, and whoever renews then tells all shards: nobody looks again in vain.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The lease of one device, as the control plane and all shards share it.
#[derive(Debug)]
pub struct DeviceLease {
    /// Of the clock that [`crate::LeafSink::lease_ns`] tells.
    until_ns: AtomicU64,
    /// An answer is kept somewhere.
    keeps: AtomicBool,
}

impl DeviceLease {
    /// One that runs out at this moment; 0: nothing may be answered yet.
    pub fn new(until_ns: u64) -> DeviceLease {
        DeviceLease { until_ns: AtomicU64::new(until_ns), keeps: AtomicBool::new(false) }
    }

    /// Until when answers may be given.
    pub fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::SeqCst)
    }

    /// Answers may be given until then; a lease never becomes shorter. True: answers were kept, and every shard is to be told by
    /// [`crate::Shard::renewed`].
    #[must_use]
    pub fn renew(&self, until_ns: u64) -> bool {
        // Before the look at who waits: who says afterwards that he does sees the new end.
        self.until_ns.fetch_max(until_ns, Ordering::SeqCst);
        self.keeps.swap(false, Ordering::SeqCst)
    }

    /// Whether an answer may be given now. Where not, whoever renews will tell.
    #[inline]
    pub(crate) fn holds(&self, now_ns: u64) -> bool {
        if now_ns < self.until_ns.load(Ordering::SeqCst) {
            return true;
        }
        self.keeps.store(true, Ordering::SeqCst);
        now_ns < self.until_ns.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_renews_hears_that_somebody_waits_once() {
        let lease = DeviceLease::new(100);
        assert!(lease.holds(99) && !lease.renew(110), "nobody waits");
        assert!(lease.holds(109) && !lease.holds(110));
        assert!(lease.renew(110), "somebody does");
        assert!(!lease.renew(120) && lease.holds(119));
        assert!(!lease.renew(50) && lease.until_ns() == 120, "it never becomes shorter");
    }
}
