//! The order between writes of whole blocks, of which any number may be under way, and those that begin or end within a
//! block: these read what is around them and write it back, which must not undo what another write has put there meanwhile.
//! So one of them runs alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// Somebody has claimed to be alone.
const CLAIMED: u64 = 1 << 63;

/// Shared by all shards that serve one file. Whoever is refused waits until it is told that something has changed.
#[derive(Debug, Default)]
pub struct Order(AtomicU64);

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nobody else is at it.
    Alone,
    /// Others have to end first; nobody new begins.
    Waits,
    /// Somebody else has claimed it.
    Refused,
}

impl Order {
    /// One more write of whole blocks; false: not now.
    #[inline]
    pub fn share(&self) -> bool {
        self.0.try_update(Ordering::AcqRel, Ordering::Acquire, |now| (now & CLAIMED == 0).then_some(now + 1)).is_ok()
    }

    /// One less; true: whoever has claimed it is alone now, and has to be told.
    #[inline]
    #[must_use]
    pub fn unshare(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == CLAIMED + 1
    }

    /// Claims to be alone.
    pub fn claim(&self) -> Claim {
        match self.0.fetch_or(CLAIMED, Ordering::AcqRel) {
            0 => Claim::Alone,
            now if now & CLAIMED != 0 => Claim::Refused,
            _ => Claim::Waits,
        }
    }

    /// Whether whoever has claimed it is alone by now.
    pub fn is_alone(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLAIMED
    }

    /// Ends a claim; all that were refused have to be told.
    pub fn release(&self) {
        self.0.fetch_and(!CLAIMED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_or_many_together() {
        let order = Order::default();
        assert!(order.share() && order.share());
        assert_eq!(order.claim(), Claim::Waits);
        assert!(!order.share(), "nobody new begins");
        assert_eq!(order.claim(), Claim::Refused);
        assert!(!order.unshare() && !order.is_alone());
        assert!(order.unshare() && order.is_alone());
        order.release();
        assert_eq!(order.claim(), Claim::Alone);
        order.release();
        assert!(order.share());
    }
}
