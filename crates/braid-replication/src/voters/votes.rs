//! The votes of a replicated volume, as its array asks for them.

use crate::voters::{VolumeVoters, VoterGroup};
use braid_arrays::Votes;
use braid_engine::replica::VoterId;
use braid_engine::{DeviceLease, ErrorKind, LeafError};
use braid_exports::BoxFuture;
use std::sync::Arc;

impl Votes for VolumeVoters {
    fn lease(&self) -> &Arc<DeviceLease> {
        VoterGroup::lease(self)
    }

    fn agree<'a>(&'a self, in_sync: &'a [u16]) -> BoxFuture<'a, Result<Vec<u16>, LeafError>> {
        Box::pin(async move {
            let slots = in_sync.iter().map(|slot| VoterId(*slot as u8)).collect();
            let unacknowledged = VoterGroup::agree(self, slots).await.map_err(|_| LeafError::of(ErrorKind::Gone))?;
            Ok(unacknowledged.iter().map(|voter| u16::from(voter.0)).collect())
        })
    }
}
