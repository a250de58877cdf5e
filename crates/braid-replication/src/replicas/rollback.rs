//! Rolls a replica's data back to a snapshot. The replica's device is removed while that is done.

use crate::ReplicationManager;
use braid_api::{ErrorDetail, Kind, ReplicaState, replica_export};
use braid_inventory::{ReplicaCondition, ReplicaDevice, VotingReplica};
use braid_pools::ReplicaData;
use std::sync::Arc;
use uuid::Uuid;

impl ReplicationManager {
    /// Rolls the data back to a snapshot. No controller may be connected; one that requests admission in the meantime
    /// waits.
    ///
    /// # Errors
    /// A controller is connected, the data is exported, or there is no such snapshot: then nothing has changed. Or the
    /// data cannot be opened again: then the replica is shown as failed.
    pub(crate) async fn roll_back_replica(
        self: &Arc<Self>,
        replica: &str,
        data: ReplicaData,
        snapshot: Uuid,
    ) -> Result<(), ErrorDetail> {
        self.pools.check_rollback(data, snapshot).await?;
        let (saved, admission, replica_device) = {
            let mut tables = self.inventory.write();
            let volume = tables.replica(replica)?.saved.volume;
            let entry = tables.replicas.get_mut(&volume).filter(|entry| entry.saved.formed);
            let Some((saved, ReplicaCondition::Voting(ready))) =
                entry.map(|entry| (entry.saved.clone(), &mut entry.condition))
            else {
                return Err(not_ready(replica));
            };
            if ready.admission.connections() > 0 {
                let message = format!("replica {} is used by its controller", saved.name);
                return Err(ErrorDetail::new(Kind::InUse, message).with("replica", &saved.name));
            }
            let Some(replica_device) = ready.replica_device.take() else { return Err(not_ready(replica)) };
            (saved, Arc::clone(&ready.admission), replica_device)
        };
        let ReplicaDevice { device, disks: [data_disk, metadata], session_base } = replica_device;
        drop(session_base.sessions.write().await);
        self.replica_exports.remove(&replica_export(&saved.volume.to_string()));
        // An error means that the shards have ended: then nothing is in flight either.
        let _ = self.ring.publish_and_drain(device, None).await;
        self.inventory.write().release_device(device);
        self.arrays.close_disks(vec![data_disk]).await;
        let done = self.pools.roll_back_data(data, snapshot).await;
        let reopened = match self.pools.open_replica_data(data.pool, data.volume).await {
            Ok(data_disk) => {
                let disks = [data_disk, Arc::clone(&metadata)];
                let opened = self.open_device(&saved, data.pool, &disks, &admission).await;
                match opened {
                    Err(error) => {
                        let [data_disk, _] = disks;
                        self.arrays.close_disks(vec![data_disk]).await;
                        Err(error)
                    }
                    opened => opened,
                }
            }
            Err(error) => Err(error),
        };
        let failed = {
            let mut tables = self.inventory.write();
            let entry = tables.replicas.get_mut(&saved.volume);
            match (entry.map(|entry| &mut entry.condition), reopened) {
                (Some(ReplicaCondition::Voting(VotingReplica { replica_device, .. })), Ok(reopened)) => {
                    *replica_device = Some(reopened);
                    None
                }
                (Some(condition), Err(error)) => {
                    *condition = ReplicaCondition::NotVoting(ReplicaState::Failed, error.message.clone());
                    Some(error)
                }
                _ => Some(not_ready(replica)),
            }
        };
        if let Some(error) = failed {
            admission.close();
            self.arrays.close_disks(vec![metadata]).await;
            return done.and(Err(error));
        }
        done
    }
}

fn not_ready(replica: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("replica {replica} is being closed, or made"))
        .with("replica", replica)
        .remedy("try again; braid replica show says how it does")
}
