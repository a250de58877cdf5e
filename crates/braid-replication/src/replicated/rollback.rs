//! Rolls a replicated volume back to one of its snapshots.
//!
//! | step | outcome if its controller ends then |
//! |---|---|
//! | all replicas but one are dropped, by votes, and removed from the array, so that they never rejoin with the data that they have | the volume is unchanged, on one replica; the others are fully rebuilt |
//! | the volume is closed cleanly, and opened in a higher epoch | the same |
//! | before that replica has a connection, its node rolls it back, which is one step in its pool | it is unchanged, or rolled back |
//! | it is served; the others rejoin, and are fully rebuilt | it is rolled back |
//!
//! So no discarded write comes back from another replica, whenever this is interrupted.

use crate::ReplicationManager;
use crate::attached::{AttachedVolume, Rollback, ServedVolume};
use crate::replicated::replica_requests::CHANGE_MAX;
use crate::voters::VolumeVoters;
use braid_api::{ErrorDetail, Kind, ReplicaChange, ReplicatedVolume, Volume};
use braid_array_admin::reconciler::Order;
use braid_engine::replica;
use braid_format::MemberState;
use braid_inventory::SavedReplicated;
use hyper::Method;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum time for which the command waits for it.
const ROLLBACK_MAX: Duration = Duration::from_secs(60);

/// Maximum wait for replicas that are rejoining.
const REJOIN_WAIT_MAX: Duration = Duration::from_secs(30);

impl ReplicationManager {
    /// Rolls a volume back to one of its snapshots. Later writes are lost; its snapshots stay.
    ///
    /// # Errors
    /// This node does not serve it; it is exported, or a replica is on its node; there is no such snapshot. Nothing is
    /// lost then.
    pub async fn roll_back_replicated(
        self: &Arc<Self>,
        name: &str,
        own: &str,
    ) -> Result<ReplicatedVolume, ErrorDetail> {
        let own = match own.rsplit_once('@') {
            None => own,
            Some((of, own)) if of.is_empty() || of == name => own,
            Some(_) => {
                let message = format!("{own} is no snapshot of volume {name}");
                return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                    .with("volume", name)
                    .remedy(format!("braid volume clone {own} NAME makes a volume of it")));
            }
        };
        let serving = self.serving(name)?;
        let ServedVolume { volume, attached, .. } = &serving;
        self.refuse_parity(volume)?;
        self.refuse_pool_on(volume, "rolled back")?;
        // A replica that rejoined now would be dropped again at once.
        let rejoining = tokio::time::timeout(REJOIN_WAIT_MAX, attached.rejoin_lock.write()).await;
        let rejoin_guard = rejoining.map_err(|_| {
            ErrorDetail::new(Kind::TimedOut, format!("a replica of volume {name} is just coming back"))
                .with("volume", name)
                .remedy("try again when it is back: braid volume show")
        })?;
        let one_at_a_time = attached.snapshot_lock.lock().await;
        let exports = self.inventory.read().exports_of(volume.uuid);
        if let Some(first) = exports.first() {
            let message = format!(
                "volume {name} is exported as {} and so cannot be rolled back under its clients",
                exports.join(", ")
            );
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("volume", name)
                .with("export", first)
                .remedy(format!("braid export remove {first} first")));
        }
        let listed = self.settled_snapshots_retrying(&serving).await?;
        let snapshot = self.one_of(volume, &listed, own)?;
        let slots_with = self.slots_with(&serving, &listed, &snapshot.uuid);
        let local = self.local_replica(volume.uuid).filter(|local| slots_with.contains(local));
        let Some(slot) = local.or_else(|| slots_with.first().copied()) else {
            return Err(ErrorDetail::new(
                Kind::Incomplete,
                format!("no replica that is in sync has {}", snapshot.name),
            )
            .with("volume", name));
        };
        self.refuse_exported_data(volume, slot).await?;
        self.drop_all_but(volume, slot).await?;
        let (sender, reply) = oneshot::channel();
        let wanted = Rollback { slot, snapshot: snapshot.uuid.clone(), sender };
        *attached.rollback.lock().unwrap_or_else(PoisonError::into_inner) = Some(wanted);
        attached.rollback_requested.notify_one();
        let done = tokio::time::timeout(ROLLBACK_MAX, reply).await;
        // A rollback that was not done in time must not be done later.
        let dropped = attached.rollback.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        match done {
            Ok(Ok(done)) => done?,
            _ => {
                let what = if dropped { "was not opened anew in time, and is as it was" } else { "may be as it was" };
                return Err(ErrorDetail::new(Kind::TimedOut, format!("volume {name} {what}"))
                    .with("volume", name)
                    .remedy("braid volume show says how it does; then try again"));
            }
        }
        // The opening that follows needs the snapshots, and takes replicas back.
        drop((one_at_a_time, rejoin_guard));
        let message = format!("volume {name} is as snapshot {} again", snapshot.name);
        self.inventory.events().info("volume_rolled_back", message, &[("volume", name)]);
        self.wait_served(volume.uuid, attached).await
    }

    /// Refuses if a replica's data is exported. Such exports are read-only.
    async fn refuse_exported_data(&self, volume: &SavedReplicated, slot: u16) -> Result<(), ErrorDetail> {
        let Some((node, pool)) = volume.voters.get(&(slot as u8)).and_then(|v| Some((&v.node, v.pool.as_ref()?)))
        else {
            return Ok(());
        };
        let path = format!("/v1/volumes/{pool}%2F{}", volume.name);
        let data: Volume = serde_json::from_value(self.nodes.call(node, Method::GET, &path, None).await?)
            .map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        if data.exports.is_empty() {
            return Ok(());
        }
        let message = format!("replica {node}/{pool} is exported on its node, and so cannot be rolled back");
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &volume.name)
            .remedy("remove these exports there first: braid export list"))
    }

    /// Drops all replicas but one and removes them from the array: when they rejoin, they are rebuilt in full.
    async fn drop_all_but(&self, volume: &SavedReplicated, slot: u16) -> Result<(), ErrorDetail> {
        let which = |wanted: fn(MemberState) -> bool| -> Vec<u16> {
            let tables = self.inventory.read();
            let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
            let members = active.map(|active| active.label.members.clone()).unwrap_or_default();
            let others = (0u16..).zip(members).filter(|(other, _)| *other != slot);
            others.filter(|(_, member)| wanted(member.state)).map(|(other, _)| other).collect()
        };
        let serve = which(|state| matches!(state, MemberState::InSync | MemberState::Rebuilding));
        if !serve.is_empty() {
            self.arrays.give_order(volume.uuid, Order::Fail(serve)).await?;
        }
        for other in which(|state| state == MemberState::Failed) {
            self.arrays.give_order(volume.uuid, Order::Remove(other)).await?;
        }
        let left = which(|state| state != MemberState::Empty);
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(|slot| volume.voter_name(*slot as u8)).collect();
        Err(ErrorDetail::new(Kind::Internal, format!("{} could not be dropped", names.join(", "))))
    }

    /// Rolls back the only replica in sync, if a rollback is pending. No connection to it exists yet.
    pub(crate) async fn roll_back_at_opening(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
        chosen: replica::Voters,
    ) {
        let wanted = attached.rollback.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Rollback { slot, snapshot, sender }) = wanted else { return };
        let alone = chosen.iter().map(|voter| u16::from(voter.0)).eq([slot]);
        let done = if alone {
            let serving =
                ServedVolume { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
            attached.forget_sessions();
            self.change_one(&serving, slot, &ReplicaChange::Rollback { snapshot }, CHANGE_MAX).await
        } else {
            let message = "other replicas hold everything, too".to_owned();
            Err(ErrorDetail::new(Kind::Internal, message).with("volume", &volume.name))
        };
        // The waiting command may be gone.
        let _ = sender.send(done);
    }
}
