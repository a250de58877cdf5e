//! Attaches replicated volumes to this node.

use crate::ReplicationManager;
use crate::replicated::incomplete::refuse_incomplete;
use crate::voters::forced::ForcedAttach;
use braid_api::{ErrorDetail, Kind, ReplicatedVolume};
use braid_engine::replica::VoterId;
use braid_inventory::{SavedReplicated, random_uuid};
use std::collections::BTreeSet;
use std::sync::Arc;

impl ReplicationManager {
    /// Serves a volume on this node. A node that has served it so far is fenced.
    ///
    /// # Errors
    /// No such volume is known here or on a node that replies; or why it is not served in time: then it is not
    /// attached.
    pub async fn attach_replicated(self: &Arc<Self>, name: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let volume = self.find_in_cluster(name).await?;
        self.refuse_in_creation(&volume)?;
        let _one_at_a_time = self.replicated.change_lock.lock().await;
        refuse_incomplete(&volume)?;
        let serves = self.replicated.all().get(&volume.uuid).cloned();
        if let Some(attached) = serves {
            if self.inventory.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some()) {
                return self.wait_served(volume.uuid, &attached).await;
            }
            // The running attempt goes on only if no other controller has come; a new one goes above any other.
            self.end_replicated(volume.uuid).await;
        }
        self.attach_with(volume, None).await
    }

    /// Attaches a volume with the voters that reply, although they are too few: the others are excluded. `without`: the
    /// nodes of exactly these others.
    ///
    /// # Errors
    /// As [`ReplicationManager::forced_opening`]; other voters than these do not reply; or why it is not served in time.
    pub async fn force_attach(
        self: &Arc<Self>,
        name: &str,
        without: &[String],
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let _one_at_a_time = self.replicated.change_lock.lock().await;
        let (volume, _, shown) = self.forecast_forced(name).await?;
        let names = |nodes: &[String]| nodes.iter().cloned().collect::<BTreeSet<String>>();
        if names(&shown.without) != names(without) {
            let message = format!(
                "of the voters of volume {} these do not answer now: {}; they are not the ones that were to be given up",
                volume.name,
                shown.without.join(", ")
            );
            return Err(ErrorDetail::new(Kind::NeedsConfirmation, message)
                .with("volume", &volume.name)
                .remedy(format!("look again what may be lost: braid volume attach {} --force", volume.name)));
        }
        // Waiting clients keep waiting: none of their requests was completed. A vote of the ended opening may have
        // reached voters, hence the second forecast.
        let served = self.replicated.all().contains_key(&volume.uuid);
        self.end_replicated(volume.uuid).await;
        let again = self.forecast_forced(name).await.and_then(|(volume, forecast, now)| match now == shown {
            true => Ok((volume, forecast)),
            false => Err(ErrorDetail::new(
                Kind::NeedsConfirmation,
                format!("what opening volume {} by force may lose has just changed", volume.name),
            )
            .with("volume", &volume.name)
            .remedy(format!("look again: braid volume attach {} --force", volume.name))),
        });
        let (mut volume, forecast) = again.inspect_err(|_| {
            if served {
                self.begin_replicated(volume.uuid, false);
            }
        })?;
        let known = volume.membership();
        for (number, voter) in &mut volume.voters {
            voter.excluded |= forecast.absent.has(VoterId(*number));
        }
        let message =
            format!("volume {} is attached by force, without the voters on {}", volume.name, shown.without.join(", "));
        self.inventory.events().warning("volume_forced", message, &[("volume", &volume.name)]);
        self.attach_with(volume, Some(ForcedAttach { known, agreed: forecast })).await
    }

    /// Returns a volume that this node or another one knows.
    pub async fn find_in_cluster(&self, name: &str) -> Result<SavedReplicated, ErrorDetail> {
        match self.inventory.find_replicated(name) {
            Ok(volume) => Ok(volume),
            Err(_) => self.find_elsewhere(name).await,
        }
    }

    /// Saves that this node is to serve a volume, and serves it. No task here may serve it yet.
    async fn attach_with(
        self: &Arc<Self>,
        volume: SavedReplicated,
        forced: Option<ForcedAttach>,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let before = {
            let mut tables = self.inventory.write();
            if !tables.replicated.contains_key(&volume.uuid) {
                tables.refuse_taken_name(&volume.name)?;
            }
            let volume = SavedReplicated { attached: true, epoch: 0, controller: random_uuid()?, ..volume.clone() };
            tables.replicated.insert(volume.uuid, volume)
        };
        let give_back = || {
            let mut tables = self.inventory.write();
            match before.clone() {
                Some(before) => tables.replicated.insert(volume.uuid, SavedReplicated { attached: false, ..before }),
                None => tables.replicated.remove(&volume.uuid),
            };
        };
        if let Err(error) = self.inventory.save() {
            give_back();
            return Err(error);
        }
        let attached = self.begin_opening(volume.uuid, false, forced);
        let served = self.wait_served(volume.uuid, &attached).await;
        if served.is_err() {
            // The volume must not be attached later, whatever the voters reply then.
            self.end_replicated(volume.uuid).await;
            give_back();
            self.inventory.save_or_warn();
        }
        served
    }
}
