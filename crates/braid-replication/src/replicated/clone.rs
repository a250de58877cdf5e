//! Creates a replicated volume from a snapshot of another one.

use crate::ReplicationManager;
use crate::replicated::outcome::SnapshotState;
use crate::replicated::snapshots::split_name;
use braid_api::{CreateReplicated, ErrorDetail, Kind, ReplicatedVolume};
use braid_arrays::check_name;
use braid_inventory::{SavedReplicated, SavedVoter, random_uuid};
use std::sync::Arc;

impl ReplicationManager {
    /// Creates a volume from a snapshot: on the nodes that have the snapshot, with as many replicas.
    ///
    /// # Errors
    /// This node does not serve the snapshot's volume; the errors of creating a volume.
    pub(crate) async fn clone_replicated(
        self: &Arc<Self>,
        text: &str,
        ask: &CreateReplicated,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let named = !ask.replicas.is_empty() || !ask.witnesses.is_empty() || ask.level.is_some();
        if (ask.size_bytes, ask.count, ask.block_bytes) != (0, 0, None) || named {
            let message = "a clone has the size, block, level, replicas and witnesses of its snapshot";
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("volume", &ask.name)
                .remedy("leave out size_bytes, block_bytes, level, replicas, count and witnesses"));
        }
        let (source, own) = split_name(text)?;
        check_name(&ask.name)?;
        let _name = self.arrays.claim_name(&ask.name)?;
        self.check_name_free(&ask.name)?;
        let serving = self.serving(source)?;
        self.refuse_parity(&serving.volume)?;
        self.refuse_pool_on(&serving.volume, "cloned")?;
        // Held until the new volume exists, so that the snapshot stays until then.
        let _one_at_a_time = serving.attached.snapshot_lock.lock().await;
        let listed = self.settled_snapshots_retrying(&serving).await?;
        let from = self.one_of(&serving.volume, &listed, own)?;
        let has = |slot: u8| matches!(listed.state_on(u16::from(slot), &from.uuid), SnapshotState::Named(_));
        // Replicas first, as in any new volume.
        let mut all: Vec<(u8, &SavedVoter)> = serving.volume.voting().collect();
        all.sort_by_key(|(slot, voter)| (voter.pool.is_none(), *slot));
        let replicas = all.iter().filter(|(slot, voter)| voter.pool.is_some() && has(*slot)).count();
        // One replica opens the volume alone; a witness would only be one more voter that must reply.
        let votes = |(slot, voter): &(u8, &SavedVoter)| match voter.pool {
            Some(_) => has(*slot),
            None => replicas > 1,
        };
        let (voters, membership) =
            SavedReplicated::numbered(all.into_iter().filter(votes).map(|(_, voter)| voter.clone()).collect());
        let volume = SavedReplicated {
            uuid: random_uuid()?,
            name: ask.name.clone(),
            size_bytes: from.size_bytes,
            block_bytes: serving.volume.block_bytes,
            voters,
            membership,
            attached: true,
            controller: random_uuid()?,
            epoch: 0,
            creating: true,
            from: from.uuid.parse().ok(),
            left: Vec::new(),
        };
        self.create_prepared(volume).await
    }
}
