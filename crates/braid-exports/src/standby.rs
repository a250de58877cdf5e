//! Standby exports: exports of replicated volumes that another node serves, or none.
//!
//! An export can be prepared on each node that may take the volume over, so that a takeover is one step (`braid volume
//! attach`). On standby nothing listens at its address: a client that connects is refused at once and tries again, or
//! tries its next address. A connection that was accepted and kept waiting would keep the client from the serving node.

use crate::{ExportManager, listen};
use braid_api::ErrorDetail;
use braid_api::address::Address;
use uuid::Uuid;

impl ExportManager {
    /// Returns the replicated volume with this name or identity, unless it is an active or listed array of this node:
    /// this node does not serve it, or not yet.
    pub(crate) async fn volume_to_prepare(&self, text: &str) -> Option<(Uuid, String)> {
        if text.contains('/') || self.inventory.read().array(text).is_ok() {
            return None;
        }
        self.provider().find_replicated_in_cluster(text).await
    }

    /// Refuses an address that could not be bound at a takeover, as far as that is known now.
    pub(crate) async fn refuse_unavailable_address(&self, address: &Address) -> Result<(), ErrorDetail> {
        let is_socket = matches!(address, Address::Unix(_) | Address::Tcp { .. });
        if is_socket && !self.inventory.read().listeners.contains_key(address) {
            drop(listen::bind(address).await?);
        }
        Ok(())
    }
}
