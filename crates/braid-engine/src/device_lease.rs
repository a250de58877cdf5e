//! The lease of a replicated device: until when its requests may be answered.
//!
//! A controller may be cut off while another one takes over the device on another node. So a controller answers
//! requests only while enough voters renew its lease (`replica::Lease`). The control plane renews the lease. The shards
//! check it at each completion, and keep back answers that may not be given now. A shard that keeps an answer back
//! records that here, and the control plane notifies all shards at the next renewal: no shard polls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The lease of one device, shared by the control plane and all shards.
#[derive(Debug)]
pub struct DeviceLease {
    /// The end of the lease, by the clock of [`crate::LeafSink::lease_ns`].
    until_ns: AtomicU64,
    /// A shard has kept back an answer since the last renewal.
    has_kept_answers: AtomicBool,
}

impl DeviceLease {
    /// Creates a lease that expires at `until_ns`. With 0, nothing may be answered before the first renewal.
    pub fn new(until_ns: u64) -> DeviceLease {
        DeviceLease { until_ns: AtomicU64::new(until_ns), has_kept_answers: AtomicBool::new(false) }
    }

    /// Returns when the lease expires, by the clock of [`crate::LeafSink::lease_ns`].
    pub fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::SeqCst)
    }

    /// Extends the lease; it never becomes shorter. Returns true if answers were kept: [`crate::Shard::lease_renewed`]
    /// must be called on every shard.
    #[must_use]
    pub fn renew(&self, until_ns: u64) -> bool {
        // Before `has_kept_answers` is read: a shard that sets it afterwards sees the new end.
        self.until_ns.fetch_max(until_ns, Ordering::SeqCst);
        self.has_kept_answers.swap(false, Ordering::SeqCst)
    }

    /// Returns whether an answer may be given now. If not, the next renewal notifies the shards.
    #[inline]
    pub(crate) fn holds(&self, now_ns: u64) -> bool {
        if now_ns < self.until_ns.load(Ordering::SeqCst) {
            return true;
        }
        self.has_kept_answers.store(true, Ordering::SeqCst);
        now_ns < self.until_ns.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_reports_kept_answers_once() {
        let lease = DeviceLease::new(100);
        assert!(lease.holds(99) && !lease.renew(110), "no request waits");
        assert!(lease.holds(109) && !lease.holds(110));
        assert!(lease.renew(110), "a request waits");
        assert!(!lease.renew(120) && lease.holds(119));
        assert!(!lease.renew(50) && lease.until_ns() == 120, "it never becomes shorter");
    }
}
