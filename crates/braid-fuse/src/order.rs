//! Orders the writes of one file. Any number of writes of whole blocks may be in flight at a time. A write that begins
//! or ends within a block is a read-modify-write: it reads the block, and later writes back the part that it does not
//! change. A concurrent write to that block would be undone, so a read-modify-write holds a claim and runs alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// Set while a write holds the claim to run alone. The other bits count writes of whole blocks in flight.
const CLAIMED: u64 = 1 << 63;

/// The write order of one file, shared by all shards that serve it. A write that was refused must be retried whenever
/// [`Order::unshare`] returns true or [`Order::release`] was called.
#[derive(Debug, Default)]
pub struct Order(AtomicU64);

/// The outcome of [`Order::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The claim is held, and no other write is in flight.
    Alone,
    /// The claim is held, and no new write begins. The caller must wait for those in flight: until [`Order::is_alone`].
    Waits,
    /// Another write holds the claim.
    Refused,
}

impl Order {
    /// Begins a write of whole blocks. Returns false, without a change, if another write holds the claim.
    #[inline]
    pub fn share(&self) -> bool {
        self.0.try_update(Ordering::AcqRel, Ordering::Acquire, |now| (now & CLAIMED == 0).then_some(now + 1)).is_ok()
    }

    /// Ends a write of whole blocks. Returns true if it was the last one in flight and another write holds the claim:
    /// that write is alone now, and the caller must wake it.
    #[inline]
    #[must_use]
    pub fn unshare(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == CLAIMED + 1
    }

    /// Claims to run alone. Unless refused, the claim is held until [`Order::release`].
    pub fn claim(&self) -> Claim {
        match self.0.fetch_or(CLAIMED, Ordering::AcqRel) {
            0 => Claim::Alone,
            now if now & CLAIMED != 0 => Claim::Refused,
            _ => Claim::Waits,
        }
    }

    /// Whether the write that holds the claim is alone now.
    pub fn is_alone(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLAIMED
    }

    /// Releases the claim; all refused writes have to be woken.
    pub fn release(&self) {
        self.0.fetch_and(!CLAIMED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_write_runs_alone_or_many_together() {
        let order = Order::default();
        assert!(order.share() && order.share());
        assert_eq!(order.claim(), Claim::Waits);
        assert!(!order.share(), "no new write begins");
        assert_eq!(order.claim(), Claim::Refused);
        assert!(!order.unshare() && !order.is_alone());
        assert!(order.unshare() && order.is_alone());
        order.release();
        assert_eq!(order.claim(), Claim::Alone);
        order.release();
        assert!(order.share());
    }
}
