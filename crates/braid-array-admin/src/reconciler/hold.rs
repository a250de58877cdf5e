//! Holds requests briefly so that all members hold the same content, for a snapshot of each member.
//!
//! A layout holds the requests: once the previous layout has drained, no I/O is in flight. A member that fails
//! meanwhile is dropped as usual. The requester may crash, so the reconciler releases the requests itself when the time
//! limit expires.

use super::{First, OrderResult, Reconciler, ReconcilerIo, first};
use crate::lifecycle::LifecycleError;

impl Reconciler {
    pub(super) async fn hold<I: ReconcilerIo>(&mut self, io: &I, limit_ns: u64) -> OrderResult {
        // Unsettled regions differ between members, although no request reads them.
        if self.has_parity() || self.regions.unequal.count() > 0 {
            return Err(LifecycleError::NotHeld);
        }
        let until_ns = io.now_ns().saturating_add(limit_ns);
        self.held_until_ns = Some(until_ns);
        loop {
            if self.failed {
                self.held_until_ns = None;
                return Err(LifecycleError::BeyondTolerance { lost: Vec::new(), source: None });
            }
            let layout = self.layout(io);
            let device = self.options.device;
            self.posted += 1;
            let left_ns = until_ns.saturating_sub(io.now_ns());
            match first(io.next_fault(device), io.sleep(left_ns), io.publish(device, Some(layout))).await {
                First::A(trouble) => self.on_fault(io, trouble).await,
                First::B(()) => {
                    let _ = self.release(io);
                    return Err(LifecycleError::NotHeld);
                }
                First::C(()) => {
                    self.posted = 0;
                    return Ok(());
                }
            }
        }
    }

    pub(super) fn release<I: ReconcilerIo>(&mut self, io: &I) -> OrderResult {
        if self.held_until_ns.take().is_none() {
            return Err(LifecycleError::NotHeld);
        }
        if !self.failed {
            self.publish_now(io);
        }
        Ok(())
    }
}
