//! Orders writes of whole blocks, of which any number may be in flight, and read-modify-writes, which begin or end within a
//! block. A read-modify-write writes back the rest of a block that it has read before, which must not undo a concurrent write
//! to that block. So it runs alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// Set while a write holds the claim to run alone. The other bits count writes of whole blocks in flight.
const CLAIMED: u64 = 1 << 63;

/// The write order of one file, shared by all shards that serve it. A refused write has to be retried after each change.
#[derive(Debug, Default)]
pub struct Order(AtomicU64);

/// The outcome of [`Order::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The claim is held, and no other write is in flight.
    Alone,
    /// The claim is held, and no new write begins; those in flight have to end first.
    Waits,
    /// Another write holds the claim.
    Refused,
}

impl Order {
    /// Begins a write of whole blocks; false: a claim is held, and the write has to wait.
    #[inline]
    pub fn share(&self) -> bool {
        self.0.try_update(Ordering::AcqRel, Ordering::Acquire, |now| (now & CLAIMED == 0).then_some(now + 1)).is_ok()
    }

    /// Ends a write of whole blocks; true: the write that holds the claim is alone now, and has to be woken.
    #[inline]
    #[must_use]
    pub fn unshare(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == CLAIMED + 1
    }

    /// Claims to run alone.
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
