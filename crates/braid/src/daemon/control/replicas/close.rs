//! Replicas that end: with the daemon, with their pool, or as they are deleted.

use super::{Condition, Ready, Standing};
use crate::daemon::control::Control;
use braid_api::{ReplicaState, replica_export};
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Ends every replica and witness, before the pools that they stand on do.
    pub(in super::super) async fn close_replicas(self: &Arc<Self>) {
        let volumes: Vec<Uuid> = self.read().replicas.keys().copied().collect();
        for volume in volumes {
            self.close_replica(volume, "the daemon ends").await;
        }
    }

    /// Ends one: whoever uses it is cut off, and nothing of it is under way when this returns.
    pub(super) async fn close_replica(self: &Arc<Self>, volume: Uuid, why: &str) {
        let ready = {
            let mut tables = self.write();
            let Some(entry) = tables.replicas.get_mut(&volume) else { return };
            let not = Condition::Not(ReplicaState::Waiting, why.to_owned());
            match std::mem::replace(&mut entry.condition, not) {
                Condition::Ready(ready) => ready,
                before => return entry.condition = before,
            }
        };
        let Ready { door, keeps, standing, .. } = ready;
        door.shut();
        self.withdraw_snapshots_of(volume).await;
        // What it writes to may be somebody else's afterwards.
        let _ = keeps.await;
        let Some(Standing { device, disks, ground }) = standing else { return };
        drop(ground.sessions.write().await);
        self.replica_exports.remove(&replica_export(&volume.to_string()));
        // An error says that the shards have ended: then nothing is under way either.
        let _ = self.ring.publish_and_drain(device, None).await;
        self.write().give_device(device);
        self.close_disks(disks.into()).await;
    }
}
