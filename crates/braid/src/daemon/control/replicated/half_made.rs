//! Volumes of several nodes whose making was cut off: what there is of them is removed, unless another node has opened them.
//!
//! Between the moment in which a volume is whole and that in which its maker has noted it, any node may attach it. Who removes what
//! is half made, therefore, asks all of its nodes before: one that does not answer may be where it is served.

use super::super::Control;
use super::saved::SavedReplicated;
use braid_api::Kind;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Between two tries to remove what is half made.
const AGAIN: Duration = Duration::from_secs(15);

/// What became of something half made.
pub(super) enum Unmade {
    /// Nothing is left.
    Removed,
    /// Another node has opened it: it is there, and this node does not serve it.
    Taken,
    /// These nodes did not answer, or could not remove what they have. It is remembered as half made.
    Left(Vec<String>),
}

impl Control {
    /// Removes what a crash left of volumes that were being made; tries again as long as nodes do not answer.
    pub async fn clear_half_made(self: Arc<Self>) {
        let mut told = false;
        loop {
            let half: Vec<SavedReplicated> =
                self.read().replicated.values().filter(|volume| volume.making).cloned().collect();
            let mut left = false;
            for volume in half {
                left |= self.clear_one(volume.uuid, told).await;
            }
            if !left {
                return;
            }
            told = true;
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Whether something is left to be tried again. `told`: that has been said already.
    async fn clear_one(self: &Arc<Self>, uuid: Uuid, told: bool) -> bool {
        let _one_at_a_time = self.replicated.changing.lock().await;
        let volume = {
            let tables = self.read();
            match tables.replicated.get(&uuid) {
                // Who has its name claimed is making it.
                Some(volume) if volume.making && !tables.claimed_names.contains(&volume.name) => volume.clone(),
                _ => return false,
            }
        };
        let name = &volume.name;
        let (message, left) = match self.unmake(&volume).await {
            Unmade::Taken => {
                (format!("volume {name} was made to its end, and another node has opened it since"), false)
            }
            Unmade::Removed => (format!("volume {name} was being made when this daemon ended, and was removed"), false),
            Unmade::Left(left) => {
                let left = left.join(", ");
                let message = format!(
                    "volume {name} was being made when this daemon ended, and is removed once {left} can say that nobody else has it; braid volume delete {name} --force does not wait for that"
                );
                (message, true)
            }
        };
        if !(left && told) {
            self.events().warning("volume_half_made", message, &[("volume", name)]);
        }
        left
    }

    /// Removes what there is of a volume that nobody serves here, if all of its nodes say that nobody else has it.
    pub(super) async fn unmake(&self, volume: &SavedReplicated) -> Unmade {
        let made = match self.whose(volume).await {
            Ok(true) => Unmade::Taken,
            Ok(false) => match self.remove_replicas(volume).await {
                left if left.is_empty() => Unmade::Removed,
                left => Unmade::Left(left),
            },
            Err(silent) => Unmade::Left(silent),
        };
        match &made {
            Unmade::Removed => drop(self.write().replicated.remove(&volume.uuid)),
            Unmade::Taken => {
                if let Some(volume) = self.write().replicated.get_mut(&volume.uuid) {
                    (volume.making, volume.attached) = (false, false);
                }
            }
            Unmade::Left(_) => {}
        }
        self.save_or_warn();
        made
    }

    /// Whether some voter answers another controller than the one by which a volume was being made.
    ///
    /// # Errors
    /// No voter that answers does, and these did not answer.
    async fn whose(&self, volume: &SavedReplicated) -> Result<bool, Vec<String>> {
        let own = volume.controller.to_string();
        let mut silent = Vec::new();
        for (number, voter) in volume.seated() {
            match self.replica_of(volume, number).await {
                // One that cannot say what it has promised may have promised it to anybody.
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
