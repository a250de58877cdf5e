//! Fenced exports: replicas whose server admits only one controller, and of its connections only the newest.
//!
//! When the server admits a newer connection, all requests of older ones have ended. Unanswered requests can therefore
//! be resent, however the connection ended. Answered requests keep their effects as long as the node's boot id is the
//! trusted one. What remains is to limit the wait for a replica that others can replace: `Shared::mark_lost_if_stuck`.

use braid_engine::Uuid;

/// The user of a replica and what it knows of it: sent to the server on each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fenced {
    /// The controller's epoch.
    pub epoch: u64,
    /// The controller's id.
    pub controller: Uuid,
    /// The boot id of the node under which the replica is trusted.
    pub boot: Uuid,
    /// Higher than in any earlier opening of the replica in this epoch.
    pub session: u64,
}

impl Fenced {
    /// Returns the export's name for one connection. `connection` is its index among the disk's connections; each
    /// attempt to open it has a higher number than those before.
    pub(super) fn name(&self, export: &str, connection: u32, attempt: u64) -> String {
        let Fenced { epoch, controller, boot, session } = self;
        format!(
            "{export}?epoch={epoch}&controller={controller}&boot={boot}&session={session}&connection={connection}&attempt={attempt}"
        )
    }
}
