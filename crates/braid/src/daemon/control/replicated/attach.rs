//! Attaching volumes that are kept on several nodes to this one.

use super::super::{Control, random_uuid};
use super::forced::Forced;
use super::saved::SavedReplicated;
use braid_api::{ErrorDetail, Kind, ReplicatedVolume};
use braid_engine::replica::VoterId;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Control {
    /// Serves a volume on this node, whoever has served it so far: that node is cut off.
    ///
    /// # Errors
    /// No such volume is known here or on a node that answers; or why it is not served within some seconds: then it is not attached.
    pub async fn attach_replicated(self: &Arc<Self>, name: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        self.is_open()?;
        let volume = self.find_anywhere(name).await?;
        self.refuse_being_made(&volume)?;
        let _one_at_a_time = self.replicated.changing.lock().await;
        refuse_half_made(&volume)?;
        let serves = self.replicated.all().get(&volume.uuid).cloned();
        if let Some(attached) = serves {
            if self.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some()) {
                return self.served(volume.uuid, &attached).await;
            }
            // It only goes on if nobody else has come; this is to go above whoever has.
            self.end_replicated(volume.uuid).await;
        }
        self.attach_as(volume, None).await
    }

    /// The same with the voters that answer alone, although they are too few: the others are given up. `without`: their nodes, all of them.
    ///
    /// # Errors
    /// As [`Control::forced_opening`]; others than these do not answer; or why it is not served within some seconds.
    pub async fn attach_by_force(
        self: &Arc<Self>,
        name: &str,
        without: &[String],
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        self.is_open()?;
        let _one_at_a_time = self.replicated.changing.lock().await;
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
        // Clients that wait go on waiting: nothing that they asked for was answered. What it had voted for may have come to voters meanwhile.
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
        let known = volume.seating();
        for (number, voter) in &mut volume.voters {
            voter.outside |= forecast.absent.has(VoterId(*number));
        }
        let message =
            format!("volume {} is opened by force, without the voters on {}", volume.name, shown.without.join(", "));
        self.events().warning("volume_forced", message, &[("volume", &volume.name)]);
        self.attach_as(volume, Some(Forced { known, agreed: forecast })).await
    }

    /// A volume that this node knows, or another one.
    pub(in super::super) async fn find_anywhere(&self, name: &str) -> Result<SavedReplicated, ErrorDetail> {
        match self.find_replicated(name) {
            Ok(volume) => Ok(volume),
            Err(_) => self.find_elsewhere(name).await,
        }
    }

    /// Notes that this node is to serve a volume, and serves it. Nobody does here.
    async fn attach_as(
        self: &Arc<Self>,
        volume: SavedReplicated,
        forced: Option<Forced>,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let before = {
            let mut tables = self.write();
            if !tables.replicated.contains_key(&volume.uuid) {
                tables.name_is_free(&volume.name)?;
            }
            let volume = SavedReplicated { attached: true, epoch: 0, controller: random_uuid()?, ..volume.clone() };
            tables.replicated.insert(volume.uuid, volume)
        };
        let give_back = || {
            let mut tables = self.write();
            match before.clone() {
                Some(before) => tables.replicated.insert(volume.uuid, SavedReplicated { attached: false, ..before }),
                None => tables.replicated.remove(&volume.uuid),
            };
        };
        if let Err(error) = self.save() {
            give_back();
            return Err(error);
        }
        let attached = self.begin_opening(volume.uuid, false, forced);
        let served = self.served(volume.uuid, &attached).await;
        if served.is_err() {
            // Whatever the voters say later, nobody is taken by surprise.
            self.end_replicated(volume.uuid).await;
            give_back();
            self.save_or_warn();
        }
        served
    }
}

pub(super) fn refuse_half_made(volume: &SavedReplicated) -> Result<(), ErrorDetail> {
    if !volume.making {
        return Ok(());
    }
    let message = format!("volume {} was never made to its end", volume.name);
    Err(ErrorDetail::new(Kind::Incomplete, message)
        .with("volume", &volume.name)
        .remedy(format!("braid volume delete {} removes what there is of it", volume.name)))
}
