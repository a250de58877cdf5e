//! Fenced exports: replicas whose server admits one controller, its latest session, and the latest attempt of each of
//! the session's connections.
//!
//! The server admits a new attempt of a connection only after all requests of earlier attempts have ended. So the
//! session can resend the requests that got no reply, however the connection ended. Writes with a reply keep their
//! effects as long as the node has the trusted boot id. Only the wait must be limited, since other replicas hold the
//! same data: see `Shared::mark_lost_if_stuck`.

use braid_engine::Uuid;

/// Identifies the controller that uses a replica, its session, and the state of the node that it trusts. The client
/// sends all of it to the server on each connection.
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
