//! Replicas: exports whose server lets in one controller alone, and of that one's connections the newest.
//!
//! What an older connection had asked for has ended when the server lets a newer one in. So what it had not answered may be asked
//! again, however a connection ended; what it has answered it still has, as long as the boot that is believed is its node's. What remains
//! is to wait no longer than is right for a replica that others can do without.

use braid_engine::Uuid;

use super::session::PATIENCE_NS;
use super::shared::{Loss, Shared};

/// Who uses a replica, and what it believes of it: told to the server on each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fenced {
    /// The controller's epoch.
    pub epoch: u64,
    /// The controller.
    pub controller: Uuid,
    /// The boot of its node under which the replica is believed.
    pub boot: Uuid,
    /// Higher than those of any earlier opening of the replica in this epoch.
    pub session: u64,
}

impl Fenced {
    /// The export's name on one connection: the lane is the place among a disk's connections, each attempt at it is higher than those before.
    pub(super) fn name(&self, export: &str, lane: u32, attempt: u64) -> String {
        let Fenced { epoch, controller, boot, session } = self;
        format!(
            "{export}?epoch={epoch}&controller={controller}&boot={boot}&session={session}&lane={lane}&attempt={attempt}"
        )
    }
}

impl Shared {
    /// Of a fenced disk: gives it up when its server has answered nothing for too long while something waited since `since_ns`. A server
    /// that answers anything at all makes progress: a slow one is not a dead one. Unless what one connection has waits alone, as it
    /// does since `own_ns`, for longer than anything may.
    pub(super) fn lose_if_stuck(&self, now_ns: u64, since_ns: u64, own_ns: u64) {
        let since_ns = since_ns.max(self.answered_ns());
        if now_ns.saturating_sub(since_ns) >= self.patience_ns() {
            self.lose(Loss::NoProgress);
        } else if now_ns.saturating_sub(own_ns) >= PATIENCE_NS.max(self.patience_ns()) {
            self.lose(Loss::NoAnswer);
        }
    }
}
