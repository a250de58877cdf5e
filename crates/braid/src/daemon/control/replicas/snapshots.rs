//! Snapshots of a replica's data, as its controller wants them: the replica's fence decides whether that counts.

use super::offered::Readers;
use super::{Condition, fenced, invalid, uuid_of};
use crate::daemon::control::Control;
use crate::daemon::control::pools::{DataOf, is_controllers};
use braid_api::{ChangeReplica, ErrorDetail, Kind, Replica, ReplicaChange, ReplicaSnapshotList};
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// The snapshots of a replica's data that controllers had taken.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; its pool does not serve.
    pub async fn replica_snapshots(&self, replica: &str) -> Result<ReplicaSnapshotList, ErrorDetail> {
        let data = self.data_of_replica(replica)?;
        Ok(ReplicaSnapshotList { snapshots: self.snapshots_of_replica(data).await? })
    }

    /// Does with them what a controller wants. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Fenced`] where another controller, or another session, is answered; what the pool says.
    pub async fn change_replica(self: &Arc<Self>, replica: &str, ask: ChangeReplica) -> Result<Replica, ErrorDetail> {
        let data = self.data_of_replica(replica)?;
        let (door, name, volume) = {
            let tables = self.read();
            let entry = tables.replica(replica)?;
            match &entry.condition {
                Condition::Ready(ready) => (Arc::clone(&ready.door), entry.saved.name.clone(), entry.saved.volume),
                Condition::Not(state, why) => return Err(super::does_not_vote(&entry.saved.name, *state, why)),
            }
        };
        let controller = uuid_of(&name, "the controller", &ask.controller)?;
        let snapshot = |text: &str| -> Result<Uuid, ErrorDetail> {
            let snapshot = uuid_of(&name, "the snapshot", text)?;
            match is_controllers(snapshot) {
                true => Ok(snapshot),
                false => {
                    Err(invalid(&name, format!("{snapshot} is no snapshot of a controller: no UUID of version 8")))
                }
            }
        };
        // To the end of it: who raises waits.
        let operation = door.begin(ask.epoch, controller, ask.session);
        let Some(_under_way) = operation else {
            let register = door.register();
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
            ReplicaChange::Take { snapshot: text, name } => self.take_pending(data, snapshot(text)?, name).await?,
            ReplicaChange::Name { snapshot: text, name } => self.name_of_all(data, snapshot(text)?, name).await?,
            ReplicaChange::Frozen { snapshot: text } => self.note_frozen(data, snapshot(text)?).await?,
            ReplicaChange::Hide { snapshot: text } => {
                // A controller of before may have it open for a moment still.
                self.withdraw_snapshot(snapshot(text)?).await;
                self.hide_snapshot(data, snapshot(text)?).await?;
            }
            ReplicaChange::Remove { snapshot: text } => {
                self.withdraw_snapshot(snapshot(text)?).await;
                self.remove_pending_one(data, snapshot(text)?).await?;
            }
            ReplicaChange::Offer { snapshot: text } => {
                let readers = Readers::new(Arc::clone(&door), ask.epoch, controller);
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

    pub(in super::super) fn data_of_replica(&self, replica: &str) -> Result<DataOf, ErrorDetail> {
        let tables = self.read();
        let saved = &tables.replica(replica)?.saved;
        match (saved.pool, saved.data) {
            (Some(pool), Some(volume)) => Ok(DataOf { pool, volume }),
            _ => {
                Err(ErrorDetail::new(Kind::InvalidArgument, format!("{} is a witness, which has no data", saved.name))
                    .with("replica", &saved.name)
                    .remedy("ask one of the volume's replicas"))
            }
        }
    }
}
