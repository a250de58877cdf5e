//! A volume that is kept on several nodes becomes as one of its snapshots is.
//!
//! | step | after the end of its controller |
//! |---|---|
//! | all replicas but one are left out, by votes; and off the table of members, so that they never return by what they had | the volume is as it was, on one replica; the others are filled wholly |
//! | the volume is closed in order, and opened in a higher epoch | the same |
//! | before anybody is connected to that replica its node rolls it back, which is one step in its pool | it is as it was, or rolled back |
//! | it is served; the others come back, and are filled wholly | it is rolled back |
//!
//! So nothing of what is to be lost comes back from another replica, wherever this ends.

use super::super::Control;
use super::Voters;
use super::saved::SavedReplicated;
use super::serve::Attached;
use super::snapshots::{CHANGING_MAX, Serving};
use braid_api::{ErrorDetail, Kind, ReplicaChange, ReplicatedVolume, Volume};
use braid_engine::keeper::Order;
use braid_engine::replica;
use braid_format::MemberState;
use hyper::Method;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest that whoever asks waits for it.
const ROLLBACK_MAX: Duration = Duration::from_secs(60);
/// Longest that replicas which are just coming back are waited for.
const RETURNING_MAX: Duration = Duration::from_secs(30);

/// What is to be rolled back at an opening.
pub(super) struct Rollback {
    /// The replica that holds everything, alone.
    role: u16,
    snapshot: String,
    told: oneshot::Sender<Result<(), ErrorDetail>>,
}

impl Control {
    /// Makes a volume be as one of its snapshots is. What it had since is lost; its snapshots stay.
    ///
    /// # Errors
    /// This node does not serve it; it is exported, here or a replica on its node; there is no such snapshot. Nothing is lost then.
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
        let Serving { volume, attached, .. } = &serving;
        self.refuse_no_copies(volume)?;
        self.refuse_pool_above(volume, "rolled back")?;
        // Who comes back now would be gone again in a moment.
        let returning = tokio::time::timeout(RETURNING_MAX, attached.returning.write()).await;
        let nobody_returns = returning.map_err(|_| {
            ErrorDetail::new(Kind::TimedOut, format!("a replica of volume {name} is just coming back"))
                .with("volume", name)
                .remedy("try again when it is back: braid volume show")
        })?;
        let one_at_a_time = attached.snapshots.lock().await;
        let exports = self.read().exports_of(volume.uuid);
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
        let listed = self.listed_surely(&serving).await?;
        let snapshot = self.one_of(volume, &listed, own)?;
        let having = self.having(&serving, &listed, &snapshot.uuid);
        let near = self.near_replica(volume.uuid).filter(|near| having.contains(near));
        let Some(role) = near.or_else(|| having.first().copied()) else {
            return Err(ErrorDetail::new(
                Kind::Incomplete,
                format!("no replica that is in sync has {}", snapshot.name),
            )
            .with("volume", name));
        };
        self.refuse_exported_data(volume, role).await?;
        self.leave_alone(volume, role).await?;
        let (told, answer) = oneshot::channel();
        let wanted = Rollback { role, snapshot: snapshot.uuid.clone(), told };
        *attached.rollback.lock().unwrap_or_else(PoisonError::into_inner) = Some(wanted);
        attached.rolls_back.notify_one();
        let done = tokio::time::timeout(ROLLBACK_MAX, answer).await;
        // Nobody is surprised by it later.
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
        // Its opening goes on with the snapshots, and with those who come back.
        drop((one_at_a_time, nobody_returns));
        let message = format!("volume {name} is as snapshot {} again", snapshot.name);
        self.events().info("volume_rolled_back", message, &[("volume", name)]);
        self.served(volume.uuid, attached).await
    }

    /// Exports of a replica's data, which only look at them.
    async fn refuse_exported_data(&self, volume: &SavedReplicated, role: u16) -> Result<(), ErrorDetail> {
        let Some((node, pool)) = volume.voters.get(&(role as u8)).and_then(|v| Some((&v.node, v.pool.as_ref()?)))
        else {
            return Ok(());
        };
        let path = format!("/v1/volumes/{pool}%2F{}", volume.name);
        let data: Volume = serde_json::from_value(self.nodes().call(node, Method::GET, &path, None).await?)
            .map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        if data.exports.is_empty() {
            return Ok(());
        }
        let message = format!("replica {node}/{pool} is exported on its node, and so cannot be rolled back");
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &volume.name)
            .remedy("remove these exports there first: braid export list"))
    }

    /// Leaves all replicas but one out, for good: whoever comes back has nothing that counts.
    async fn leave_alone(&self, volume: &SavedReplicated, role: u16) -> Result<(), ErrorDetail> {
        let which = |wanted: fn(MemberState) -> bool| -> Vec<u16> {
            let tables = self.read();
            let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
            let members = active.map(|active| active.label.members.clone()).unwrap_or_default();
            let others = (0u16..).zip(members).filter(|(other, _)| *other != role);
            others.filter(|(_, member)| wanted(member.state)).map(|(other, _)| other).collect()
        };
        let serve = which(|state| matches!(state, MemberState::InSync | MemberState::Rebuilding));
        if !serve.is_empty() {
            self.give_order(volume.uuid, Order::Fail(serve)).await?;
        }
        for other in which(|state| state == MemberState::Failed) {
            self.give_order(volume.uuid, Order::Remove(other)).await?;
        }
        let left = which(|state| state != MemberState::Empty);
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(|role| volume.voter_name(*role as u8)).collect();
        Err(ErrorDetail::new(Kind::Internal, format!("{} could not be left out", names.join(", "))))
    }

    /// Rolls the one replica that holds everything back, where somebody waits for that: nobody is connected to it yet.
    pub(super) async fn roll_back_at_opening(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
        chosen: replica::Voters,
    ) {
        let wanted = attached.rollback.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Rollback { role, snapshot, told }) = wanted else { return };
        let alone = chosen.iter().map(|voter| u16::from(voter.0)).eq([role]);
        let done = if alone {
            let serving =
                Serving { volume: volume.clone(), attached: Arc::clone(attached), voters: Arc::clone(voters) };
            attached.forget_sessions();
            self.change_one(&serving, role, &ReplicaChange::Rollback { snapshot }, CHANGING_MAX).await
        } else {
            let message = "other replicas hold everything, too".to_owned();
            Err(ErrorDetail::new(Kind::Internal, message).with("volume", &volume.name))
        };
        // Whoever asked may have gone.
        let _ = told.send(done);
    }
}
