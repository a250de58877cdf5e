//! Requests that wait for a moment, so that what is on all members is the same: of then a snapshot of each is taken.
//!
//! Held is by a layout: when the one before has drained nothing is out. A member that fails meanwhile is left out as always. Whoever
//! wanted it may be lost: so the keeper itself lets go when the time is over.

use super::{First, Keeper, KeeperIo, Ordered, first};
use crate::lifecycle::LifecycleError;

impl Keeper {
    pub(super) async fn hold<I: KeeperIo>(&mut self, io: &I, limit_ns: u64) -> Ordered {
        // What a crash has left unequal is not the same on all members, though nobody reads it.
        if self.has_parity() || self.regions.unsettled.count() > 0 {
            return Err(LifecycleError::NotHeld);
        }
        let until_ns = io.now_ns().saturating_add(limit_ns);
        self.held_until_ns = Some(until_ns);
        loop {
            if self.failed {
                self.held_until_ns = None;
                return Err(LifecycleError::Beyond { lost: Vec::new(), source: None });
            }
            let layout = self.layout(io);
            let device = self.options.device;
            self.posted += 1;
            let left_ns = until_ns.saturating_sub(io.now_ns());
            match first(io.trouble(device), io.sleep(left_ns), io.publish(device, Some(layout))).await {
                First::A(trouble) => self.on_trouble(io, trouble).await,
                First::B(()) => {
                    let _ = self.let_go(io);
                    return Err(LifecycleError::NotHeld);
                }
                First::C(()) => {
                    self.posted = 0;
                    return Ok(());
                }
            }
        }
    }

    pub(super) fn let_go<I: KeeperIo>(&mut self, io: &I) -> Ordered {
        if self.held_until_ns.take().is_none() {
            return Err(LifecycleError::NotHeld);
        }
        if !self.failed {
            self.publish_now(io);
        }
        Ok(())
    }
}
