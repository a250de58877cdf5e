//! A replica's data that become as a snapshot is: its device is away for that moment.

use super::{Condition, Ready, Standing};
use crate::daemon::control::Control;
use crate::daemon::control::pools::DataOf;
use braid_api::{ErrorDetail, Kind, ReplicaState, replica_export};
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Makes the data be as a snapshot is. Whoever comes to the door meanwhile waits; nobody is connected.
    ///
    /// # Errors
    /// Somebody is, the data are exported, there is no such snapshot: then nothing has changed. Or the data cannot be opened again: it is
    /// shown so.
    pub(super) async fn roll_back_replica(
        self: &Arc<Self>,
        replica: &str,
        data: DataOf,
        snapshot: Uuid,
    ) -> Result<(), ErrorDetail> {
        self.check_rollback(data, snapshot).await?;
        let (saved, door, standing) = {
            let mut tables = self.write();
            let volume = tables.replica(replica)?.saved.volume;
            let entry = tables.replicas.get_mut(&volume).filter(|entry| entry.saved.formed);
            let Some((saved, Condition::Ready(ready))) = entry.map(|entry| (entry.saved.clone(), &mut entry.condition))
            else {
                return Err(away(replica));
            };
            if ready.door.connections() > 0 {
                let message = format!("replica {} is used by its controller", saved.name);
                return Err(ErrorDetail::new(Kind::InUse, message).with("replica", &saved.name));
            }
            let Some(standing) = ready.standing.take() else { return Err(away(replica)) };
            (saved, Arc::clone(&ready.door), standing)
        };
        let Standing { device, disks: [data_disk, companion], ground } = standing;
        drop(ground.sessions.write().await);
        self.replica_exports.remove(&replica_export(&saved.volume.to_string()));
        // An error says that the shards have ended: then nothing is under way either.
        let _ = self.ring.publish_and_drain(device, None).await;
        self.write().give_device(device);
        self.close_disks(vec![data_disk]).await;
        let done = self.roll_back_data(data, snapshot).await;
        let again = match self.open_replica_data(data.pool, data.volume).await {
            Ok(data_disk) => {
                let disks = [data_disk, Arc::clone(&companion)];
                let stands = self.stand(&saved, data.pool, &disks, &door).await;
                match stands {
                    Err(error) => {
                        let [data_disk, _] = disks;
                        self.close_disks(vec![data_disk]).await;
                        Err(error)
                    }
                    stands => stands,
                }
            }
            Err(error) => Err(error),
        };
        let failed = {
            let mut tables = self.write();
            let entry = tables.replicas.get_mut(&saved.volume);
            match (entry.map(|entry| &mut entry.condition), again) {
                (Some(Condition::Ready(Ready { standing, .. })), Ok(again)) => {
                    *standing = Some(again);
                    None
                }
                (Some(condition), Err(error)) => {
                    *condition = Condition::Not(ReplicaState::Failed, error.message.clone());
                    Some(error)
                }
                _ => Some(away(replica)),
            }
        };
        if let Some(error) = failed {
            door.shut();
            self.close_disks(vec![companion]).await;
            return done.and(Err(error));
        }
        done
    }
}

fn away(replica: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("replica {replica} is being closed, or made"))
        .with("replica", replica)
        .remedy("try again; braid replica show says how it does")
}
