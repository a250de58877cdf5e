//! Standby exports: those of volumes of several nodes that another node serves, or none.
//!
//! An export can be prepared on each node that may take the volume over, so that a takeover is one step (`braid volume attach`). Nothing
//! listens at its address meanwhile. A client that connects is refused at once, and tries again, or tries the next address that it has: a
//! connection that were accepted and kept waiting would keep it from the node that serves.

use super::Control;
use super::tables::Tables;
use crate::daemon::listen;
use crate::daemon::state::SavedExport;
use braid_api::ErrorDetail;
use braid_api::address::Address;
use uuid::Uuid;

impl Tables {
    /// The volume of several nodes that an export is of, or its pool stands on, if this node does not serve it now: its name, and
    /// whether this node is about to.
    pub(super) fn unserved_volume(&self, saved: &SavedExport) -> Option<(String, bool)> {
        let carrier = |pool: Uuid| self.pool_arrays.iter().find(|seen| seen.pool == pool).map(|seen| seen.array);
        let volume = saved.pool.map_or(Some(saved.array), carrier)?;
        let known = self.replicated.get(&volume);
        let is_active = self.arrays.get(&volume).is_some_and(|entry| entry.active().is_some());
        if is_active || (known.is_none() && !(saved.of_nodes && saved.pool.is_none())) {
            return None;
        }
        let name = known.map_or_else(|| saved.array_name.clone(), |volume| volume.name.clone());
        Some((name, known.is_some_and(|volume| volume.attached)))
    }

    /// Whether an export waits for this node to serve the volume of several nodes below it, which nobody has told it to.
    pub(super) fn is_standby(&self, saved: &SavedExport) -> bool {
        self.unserved_volume(saved).is_some_and(|(_, opens)| !opens)
    }
}

impl Control {
    /// The volume of several nodes of this name or identity, if it is no array that is here: this node does not serve it, or not yet.
    pub(super) async fn volume_to_prepare(&self, text: &str) -> Option<(Uuid, String)> {
        if text.contains('/') || self.read().array(text).is_ok() {
            return None;
        }
        let volume = self.find_anywhere(text).await.ok()?;
        (!volume.making).then_some((volume.uuid, volume.name))
    }

    /// Refuses an address that could not be taken at a takeover, as far as that can be said today.
    pub(super) async fn refuse_taken(&self, address: &Address) -> Result<(), ErrorDetail> {
        let is_socket = matches!(address, Address::Unix(_) | Address::Tcp { .. });
        if is_socket && !self.read().listeners.contains_key(address) {
            drop(listen::bind(address).await?);
        }
        Ok(())
    }
}
