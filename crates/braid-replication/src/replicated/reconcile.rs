//! Reconciles a served volume with the votes and with what its replicas report, once a second, until its epoch ends.
//!
//! Cleanups, the settling of snapshots and replicas that rejoin have tasks of their own, since they may wait for nodes.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::replicated::serve::EpochEnd;
use crate::voters::VolumeVoters;
use braid_engine::replica::VoterId;
use braid_format::MemberState;
use braid_inventory::SavedReplicated;
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Interval between two reconciliations of a served volume.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time for which a voter may refuse this controller, since another one has raised it: then the volume is
/// opened anew, above that epoch.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Interval between two attempts to remove what is left on nodes of removed voters.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(10);

/// Delay between two attempts to take a replica back: minimum and maximum.
const REJOIN_DELAY_MIN: Duration = Duration::from_secs(1);

const REJOIN_DELAY_MAX: Duration = Duration::from_secs(60);

impl ReplicationManager {
    /// Reconciles the volume until it is to end, another node opens it, or no replica is left.
    pub(crate) async fn reconcile_replicated(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
    ) -> EpochEnd {
        let mut tries: BTreeMap<u16, (Instant, Duration)> = BTreeMap::new();
        let mut rejoining: BTreeMap<u16, JoinHandle<()>> = BTreeMap::new();
        let mut refused_since: Option<Instant> = None;
        let mut settling: Option<JoinHandle<()>> = None;
        let (mut clearing, mut cleared): (Option<JoinHandle<()>>, _) = (None, Instant::now());
        loop {
            tokio::select! {
                () = attached.end_requested() => return EpochEnd::Stopped,
                () = voters.ended() => return EpochEnd::Fenced,
                () = attached.rollback_requested.notified() => return EpochEnd::RolledBack,
                () = attached.voter_added.notified() => {}
                () = tokio::time::sleep(RECONCILE_INTERVAL) => {}
            }
            // A membership change that has settled by itself is saved, too.
            let membership = voters.membership();
            let before = self.inventory.read().replicated.get(&volume.uuid).map(SavedReplicated::membership);
            let Some(volume) = self.save_membership(volume.uuid, &membership) else { return EpochEnd::Stopped };
            if before != Some(volume.membership()) {
                self.inventory.save_or_warn();
            }
            if attached.removing().is_some_and(|slot| !membership.all().has(VoterId(slot as u8))) {
                attached.set_removing(None);
            }
            self.give_slots(&volume).await;
            let is_idle = clearing.as_ref().is_none_or(|task| task.is_finished());
            let is_left = !volume.left.is_empty() || volume.excluded().next().is_some();
            if is_left && is_idle && cleared.elapsed() > CLEANUP_INTERVAL {
                cleared = Instant::now();
                let (manager, volume) = (Arc::clone(self), volume.clone());
                let (attached, voters) = (Arc::clone(attached), Arc::clone(voters));
                clearing = Some(tasks::spawn(async move {
                    manager.clear_leftovers(&volume).await;
                    manager.check_excluded(&volume, &attached, &voters).await;
                }));
            } else if !is_left {
                attached.set_excluded(Vec::new());
            }
            let out: Vec<u16> = {
                let tables = self.inventory.read();
                let Some(active) = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active()) else {
                    return EpochEnd::Reopen("its array has stopped".to_owned());
                };
                if active.has_failed() {
                    return EpochEnd::Reopen("its last replica has failed; it is opened anew".to_owned());
                }
                let is_out = |state: MemberState| matches!(state, MemberState::Failed | MemberState::Empty);
                let (replicas, removing) = (volume.replicas(), attached.removing());
                let members = active.label.members.iter().zip(0..);
                let stays = |slot: u16| membership.voters.has(VoterId(slot as u8)) && removing != Some(slot);
                let members = members.filter(|(_, slot)| replicas.contains(slot) && stays(*slot));
                members.filter(|(member, _)| is_out(member.state)).map(|(_, slot)| slot).collect()
            };
            // A voter that another controller has raised replies to this one again only in a higher epoch.
            match voters.status().refused.is_empty() {
                true => refused_since = None,
                false if refused_since.get_or_insert_with(Instant::now).elapsed() > REFUSED_MAX => {
                    return EpochEnd::Reopen("a voter was raised by another node, which then gave up".to_owned());
                }
                false => {}
            }
            if !voters.status().forgotten.is_empty() {
                let left = tokio::select! {
                    left = self.drop_forgotten(&volume, attached, voters) => left,
                    () = attached.end_requested() => return EpochEnd::Stopped,
                    () = voters.ended() => return EpochEnd::Fenced,
                };
                if let Err(error) = left {
                    return EpochEnd::Reopen(format!("a replica has lost data, and without it: {}", error.message));
                }
            }
            if attached.is_unsettled() && settling.as_ref().is_none_or(|task| task.is_finished()) {
                let (manager, volume) = (Arc::clone(self), volume.clone());
                let (attached, voters) = (Arc::clone(attached), Arc::clone(voters));
                settling = Some(tasks::spawn(async move { manager.settle_later(&volume, &attached, &voters).await }));
            }
            tries.retain(|slot, _| out.contains(slot));
            rejoining.retain(|_, task| !task.is_finished());
            for slot in out.into_iter().filter(|slot| !rejoining.contains_key(slot)).collect::<Vec<_>>() {
                let (at, wait) = tries.get(&slot).copied().unwrap_or((Instant::now(), REJOIN_DELAY_MIN));
                if at > Instant::now() {
                    continue;
                }
                tries.insert(slot, (Instant::now() + wait, (2 * wait).min(REJOIN_DELAY_MAX)));
                // In a task of its own, which may wait and always runs to its end.
                let (manager, volume) = (Arc::clone(self), volume.clone());
                let (attached, voters) = (Arc::clone(attached), Arc::clone(voters));
                let task = tasks::spawn(async move {
                    if let Err(error) = manager.rejoin_replica(&volume, &attached, &voters, slot).await {
                        tracing::info!("volume {}: {}", volume.name, error.message);
                    }
                });
                rejoining.insert(slot, task);
            }
        }
    }
}
