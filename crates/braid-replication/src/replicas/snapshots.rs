//! Snapshots of a replica's data, on behalf of its controller. The replica's fence decides whether a request of a
//! controller is done.

use crate::ReplicationManager;
use crate::offered::SnapshotReaders;
use crate::replicas::{fenced, invalid, uuid_of};
use braid_api::{ChangeReplica, ErrorDetail, Kind, Replica, ReplicaChange, ReplicaSnapshotList};
use braid_inventory::ReplicaCondition;
use braid_pools::{ReplicaData, is_controller_snapshot};
use std::sync::Arc;
use uuid::Uuid;

impl ReplicationManager {
    /// Returns the snapshots of a replica's data that controllers have taken.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; its pool does not serve.
    pub async fn replica_snapshots(&self, replica: &str) -> Result<ReplicaSnapshotList, ErrorDetail> {
        let data = self.data_of_replica(replica)?;
        Ok(ReplicaSnapshotList { snapshots: self.pools.snapshots_of_replica(data).await? })
    }

    /// Changes the snapshots as a controller requests. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if the replica replies to another controller or session; the error of the pool.
    pub async fn change_replica(self: &Arc<Self>, replica: &str, ask: ChangeReplica) -> Result<Replica, ErrorDetail> {
        let data = self.data_of_replica(replica)?;
        let (admission, name, volume) = {
            let tables = self.inventory.read();
            let entry = tables.replica(replica)?;
            match &entry.condition {
                ReplicaCondition::Voting(ready) => {
                    (Arc::clone(&ready.admission), entry.saved.name.clone(), entry.saved.volume)
                }
                ReplicaCondition::NotVoting(state, why) => {
                    return Err(crate::replicas::does_not_vote(&entry.saved.name, *state, why));
                }
            }
        };
        let controller = uuid_of(&name, "the controller", &ask.controller)?;
        let snapshot = |text: &str| -> Result<Uuid, ErrorDetail> {
            let snapshot = uuid_of(&name, "the snapshot", text)?;
            match is_controller_snapshot(snapshot) {
                true => Ok(snapshot),
                false => {
                    Err(invalid(&name, format!("{snapshot} is no snapshot of a controller: no UUID of version 8")))
                }
            }
        };
        // The operation is in flight until the end: a raise of the epoch waits for it.
        let operation = admission.begin(ask.epoch, controller, ask.session);
        let Some(_under_way) = operation else {
            let register = admission.register();
            let refused = fenced(&name, register.epoch);
            if (register.epoch, register.controller) != (ask.epoch, controller) {
                return Err(refused);
            }
            let message = format!(
                "replica {name} is not asked in session {} of epoch {} now: it has another one, or none since it began, or another controller is coming",
                ask.session, ask.epoch
            );
            return Err(ErrorDetail { message, ..refused }.remedy("try again when the replica is connected to"));
        };
        match &ask.change {
            ReplicaChange::Take { snapshot: text, name } => {
                self.pools.take_pending_snapshot(data, snapshot(text)?, name).await?
            }
            ReplicaChange::Name { snapshot: text, name } => {
                self.pools.name_controller_snapshot(data, snapshot(text)?, name).await?
            }
            ReplicaChange::Frozen { snapshot: text } => self.pools.note_frozen(data, snapshot(text)?).await?,
            ReplicaChange::Hide { snapshot: text } => {
                // An earlier controller may still have it open for a moment.
                self.withdraw_snapshot(snapshot(text)?).await;
                self.pools.hide_snapshot(data, snapshot(text)?).await?;
            }
            ReplicaChange::Remove { snapshot: text } => {
                self.withdraw_snapshot(snapshot(text)?).await;
                self.pools.remove_pending_one(data, snapshot(text)?).await?;
            }
            ReplicaChange::Offer { snapshot: text } => {
                let readers = SnapshotReaders::new(Arc::clone(&admission), ask.epoch, controller);
                self.offer_snapshot((volume, data), snapshot(text)?, readers).await?;
            }
            ReplicaChange::Withdraw { snapshot: text } => self.withdraw_snapshot(snapshot(text)?).await,
            ReplicaChange::Rollback { snapshot: text } => {
                if ask.session > 0 {
                    return Err(invalid(&name, "it is rolled back before the first session only"));
                }
                self.withdraw_snapshots_of(volume).await;
                self.roll_back_replica(replica, data, snapshot(text)?).await?;
            }
        }
        self.replica(replica)
    }

    pub(crate) fn data_of_replica(&self, replica: &str) -> Result<ReplicaData, ErrorDetail> {
        let tables = self.inventory.read();
        let saved = &tables.replica(replica)?.saved;
        match (saved.pool, saved.data) {
            (Some(pool), Some(volume)) => Ok(ReplicaData { pool, volume }),
            _ => {
                Err(ErrorDetail::new(Kind::InvalidArgument, format!("{} is a witness, which has no data", saved.name))
                    .with("replica", &saved.name)
                    .remedy("ask one of the volume's replicas"))
            }
        }
    }
}
