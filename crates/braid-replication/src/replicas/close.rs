//! Closes replicas and witnesses: with the daemon, with their pool, or when they are deleted.

use crate::ReplicationManager;
use braid_api::{ReplicaState, replica_export};
use braid_inventory::{ReplicaCondition, ReplicaDevice, VotingReplica};
use std::sync::Arc;
use uuid::Uuid;

impl ReplicationManager {
    /// Closes every replica and witness, before their pools are closed.
    pub async fn close_replicas(self: &Arc<Self>) {
        let volumes: Vec<Uuid> = self.inventory.read().replicas.keys().copied().collect();
        for volume in volumes {
            self.close_replica(volume, "the daemon ends").await;
        }
    }

    /// Closes a replica or witness. Its connections are cut off; when this returns, nothing of it is in flight.
    pub(crate) async fn close_replica(self: &Arc<Self>, volume: Uuid, why: &str) {
        let ready = {
            let mut tables = self.inventory.write();
            let Some(entry) = tables.replicas.get_mut(&volume) else { return };
            let not = ReplicaCondition::NotVoting(ReplicaState::Waiting, why.to_owned());
            match std::mem::replace(&mut entry.condition, not) {
                ReplicaCondition::Voting(ready) => ready,
                before => return entry.condition = before,
            }
        };
        let VotingReplica { admission, writer, replica_device, .. } = ready;
        admission.close();
        self.withdraw_snapshots_of(volume).await;
        // Its location may belong to another volume afterwards.
        let _ = writer.await;
        let Some(ReplicaDevice { device, disks, session_base }) = replica_device else { return };
        drop(session_base.sessions.write().await);
        self.replica_exports.remove(&replica_export(&volume.to_string()));
        // An error means that the shards have ended: then nothing is in flight either.
        let _ = self.ring.publish_and_drain(device, None).await;
        self.inventory.write().release_device(device);
        self.arrays.close_disks(disks.into()).await;
    }
}
