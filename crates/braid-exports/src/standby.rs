//! Standby exports: exports of replicated volumes that this node does not serve; another node does, or none.
//!
//! An export can be prepared on each node that may take the volume over, so that a takeover is one step (`braid volume
//! attach`). On standby nothing listens at its address: a client that connects is refused at once and tries again, or
//! tries its next address. If this node accepted the connection and let it wait, the client would not try the serving
//! node.

use crate::{ExportManager, listen};
use braid_api::ErrorDetail;
use braid_api::address::Address;
use uuid::Uuid;

impl ExportManager {
    /// Returns the replicated volume with this name or UUID that an export can be prepared for. `None` if this node has
    /// it as an array, and so may export it directly, or if there is no such volume.
    pub(crate) async fn volume_to_prepare(&self, text: &str) -> Option<(Uuid, String)> {
        if text.contains('/') || self.inventory.read().array(text).is_ok() {
            return None;
        }
        self.provider().find_replicated_in_cluster(text).await
    }

    /// Refuses an address that cannot be bound, so that a takeover does not fail for it later: binds it, and releases
    /// it again.
    pub(crate) async fn refuse_unavailable_address(&self, address: &Address) -> Result<(), ErrorDetail> {
        let is_socket = matches!(address, Address::Unix(_) | Address::Tcp { .. });
        if is_socket && !self.inventory.read().listeners.contains_key(address) {
            drop(listen::bind(address).await?);
        }
        Ok(())
    }
}
