//! An opening with the voters that reply only, at the request of the user.

use crate::voters::transport::NodeTransport;
use crate::voters::{VolumeVoters, VoterGroup};
use braid_engine::replica::{Forecast, Opening, VoterConfig};
use std::sync::Arc;
use uuid::Uuid;

/// The voters that open a volume by force, and no others.
pub(crate) struct ForcedAttach {
    pub(crate) known: VoterConfig,
    pub(crate) agreed: Forecast,
}

impl ForcedAttach {
    /// Begins to send them requests. `None`: there is no epoch that is high enough.
    pub(crate) fn begin(&self, transport: NodeTransport, controller: Uuid, lineage: u64) -> Option<Arc<VolumeVoters>> {
        let opening = Opening::new(self.known, controller, lineage);
        let opening = opening.forced(&self.agreed, (lineage >> 32) as u32)?;
        Some(VoterGroup::begin_with(transport, opening, self.agreed.present, (controller, lineage), true))
    }
}
