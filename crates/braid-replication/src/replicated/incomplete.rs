//! Replicated volumes whose creation was interrupted: what exists of them is removed, unless another node has opened
//! them.
//!
//! Between the moment at which a volume is complete and that at which the creating node has saved this, any node may
//! attach it. So before a removal all nodes of the volume are asked: one that does not reply may serve it.

use crate::ReplicationManager;
use braid_api::{ErrorDetail, Kind};
use braid_inventory::SavedReplicated;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Delay between two attempts to remove an incomplete volume.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);

/// Outcome of the removal of an incomplete volume.
pub(crate) enum RemovalOutcome {
    /// Nothing is left.
    Removed,
    /// Another node has opened it: it exists, and this node does not serve it.
    Taken,
    /// These nodes did not reply, or could not remove what they have. The volume stays saved as incomplete.
    Left(Vec<String>),
}

impl ReplicationManager {
    /// Removes what a crash has left of volumes that were being created; retries as long as nodes do not reply.
    pub async fn clear_incomplete(self: Arc<Self>) {
        let mut was_reported = false;
        loop {
            let half: Vec<SavedReplicated> =
                self.inventory.read().replicated.values().filter(|volume| volume.creating).cloned().collect();
            let mut left = false;
            for volume in half {
                left |= self.clear_one(volume.uuid, was_reported).await;
            }
            if !left {
                return;
            }
            was_reported = true;
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Removes one volume. Returns whether something is left for the next attempt.
    /// `was_reported`: that was reported before.
    async fn clear_one(self: &Arc<Self>, uuid: Uuid, was_reported: bool) -> bool {
        let _one_at_a_time = self.replicated.change_lock.lock().await;
        let volume = {
            let tables = self.inventory.read();
            match tables.replicated.get(&uuid) {
                // A claimed name means that its creation is in progress.
                Some(volume) if volume.creating && !tables.claimed_names.contains(&volume.name) => volume.clone(),
                _ => return false,
            }
        };
        let name = &volume.name;
        let (message, left) = match self.remove_incomplete(&volume).await {
            RemovalOutcome::Taken => {
                (format!("volume {name} was created completely, and another node has opened it since"), false)
            }
            RemovalOutcome::Removed => {
                (format!("volume {name} was being created when this daemon ended, and was removed"), false)
            }
            RemovalOutcome::Left(left) => {
                let left = left.join(", ");
                let message = format!(
                    "volume {name} was being made when this daemon ended, and is removed once {left} confirm that no other node has opened it; braid volume delete {name} --force does not wait for that"
                );
                (message, true)
            }
        };
        if !(left && was_reported) {
            self.inventory.events().warning("volume_incomplete", message, &[("volume", name)]);
        }
        left
    }

    /// Removes what exists of a volume that this node does not serve, if all of its nodes confirm that no other
    /// controller has opened it.
    pub(crate) async fn remove_incomplete(&self, volume: &SavedReplicated) -> RemovalOutcome {
        let made = match self.opened_elsewhere(volume).await {
            Ok(true) => RemovalOutcome::Taken,
            Ok(false) => match self.remove_replicas(volume).await {
                left if left.is_empty() => RemovalOutcome::Removed,
                left => RemovalOutcome::Left(left),
            },
            Err(silent) => RemovalOutcome::Left(silent),
        };
        match &made {
            RemovalOutcome::Removed => drop(self.inventory.write().replicated.remove(&volume.uuid)),
            RemovalOutcome::Taken => {
                if let Some(volume) = self.inventory.write().replicated.get_mut(&volume.uuid) {
                    (volume.creating, volume.attached) = (false, false);
                }
            }
            RemovalOutcome::Left(_) => {}
        }
        self.inventory.save_or_warn();
        made
    }

    /// Returns whether a voter replies to another controller than the one that was creating the volume.
    ///
    /// # Errors
    /// No voter does so, as far as they reply; the nodes that did not reply.
    async fn opened_elsewhere(&self, volume: &SavedReplicated) -> Result<bool, Vec<String>> {
        let own = volume.controller.to_string();
        let mut silent = Vec::new();
        for (number, voter) in volume.voting() {
            match self.replica_of(volume, number).await {
                // A voter that cannot read its register may have guaranteed anything to any controller.
                Ok(replica) => match replica.register.map(|register| register.controller) {
                    Some(Some(controller)) if controller != own => return Ok(true),
                    Some(_) => {}
                    None => silent.push(voter.node.clone()),
                },
                Err(error) if error.kind == Kind::NotFound => {}
                Err(_) => silent.push(voter.node.clone()),
            }
        }
        if silent.is_empty() { Ok(false) } else { Err(silent) }
    }
}

/// Refuses operations on a volume whose creation was interrupted.
pub(crate) fn refuse_incomplete(volume: &SavedReplicated) -> Result<(), ErrorDetail> {
    if !volume.creating {
        return Ok(());
    }
    let message = format!("volume {} was never created completely", volume.name);
    Err(ErrorDetail::new(Kind::Incomplete, message)
        .with("volume", &volume.name)
        .remedy(format!("braid volume delete {} removes what there is of it", volume.name)))
}
