//! Replicas that rejoin: by delta resync where their data allows it, otherwise by a full rebuild. The snapshots that
//! they lack are copied first.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::attached::ServedVolume;
use crate::replicated::copy::CopyResult;
use crate::voters::VolumeVoters;
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::lifecycle::{RebuildKind, RebuildTarget};
use braid_array_admin::reconciler::Order;
use braid_engine::replica::{VoterId, is_of_older_copy};
use braid_format::{MemberId, MemberState};
use braid_inventory::{ArrayCondition, OpenDisk, SavedReplicated, random};
use std::sync::Arc;
use uuid::Uuid;

/// What a replica that rejoins still holds, by the boot of its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeldData {
    /// The boot is that of its last session: all acknowledged writes.
    AllAcknowledged,
    /// The boot has changed: all flushed writes.
    AllFlushed,
    /// The boot is that of an older copy of the replica: any state.
    Anything,
}

impl ReplicationManager {
    /// Takes a missing replica back: by delta resync where its data allows it, otherwise by a full rebuild.
    pub(crate) async fn rejoin_replica(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
        slot: u16,
    ) -> Result<(), ErrorDetail> {
        let (voter, name) = (VoterId(slot as u8), volume.voter_name(slot as u8));
        // Not while the volume is rolled back, or this replica is to be removed.
        let Ok(_rejoin_guard) = attached.rejoin_lock.try_read() else { return Ok(()) };
        if attached.removing() == Some(slot) {
            return Ok(());
        }
        if !voters.refresh_boot(voter).await {
            return Err(ErrorDetail::new(Kind::Unreachable, format!("replica {name} does not answer")));
        }
        if voters.status().forgotten.has(voter) {
            return Err(ErrorDetail::new(Kind::Incomplete, format!("replica {name} must be rebuilt from nothing")));
        }
        let session = attached.next_session();
        let disk = self.reach_replica(volume, voters, voter, session).await?;
        attached.set_session(slot, session);
        // Asked after it was opened: the boot is no older than that of the session.
        let boot = voters.session_of(voter).2;
        let kept = attached.boots().get(&voter.0) == Some(&boot);
        // Of an older copy, nothing says in what it differs. Once it was admitted under that boot, it was rebuilt, or
        // is to be.
        let held = match kept {
            true => HeldData::AllAcknowledged,
            false if is_of_older_copy(boot) => HeldData::Anything,
            false => HeldData::AllFlushed,
        };
        let mut to_report = None;
        let taken = if !volume.is_mirrored() {
            // A volume with parity has no snapshots.
            self.rejoin_array(volume.uuid, slot, &disk, held, false).await.map(drop)
        } else {
            let serving = ServedVolume::new(volume, attached, voters);
            // Held until the replica takes writes: it must have all snapshots that exist then.
            let _one_at_a_time = attached.snapshot_lock.lock().await;
            match self.prepare_snapshots(&serving, slot, &disk).await {
                Ok(copied) => {
                    let taken = self.rejoin_array(volume.uuid, slot, &disk, held, copied.has_content).await;
                    taken.map(|is_new| {
                        if is_new {
                            to_report = Some(copied)
                        }
                    })
                }
                Err(error) => Err(error),
            }
        };
        match taken {
            Ok(()) => drop(attached.boots().insert(voter.0, boot)),
            Err(_) => self.arrays.leave(volume.uuid, disk).await,
        }
        if let Some(copied) = to_report {
            let serving = ServedVolume::new(volume, attached, voters);
            self.report_delta(&serving, slot, copied).await;
        }
        taken
    }

    /// Drops replicas whose voters have lost an epoch to which they were raised: their data is older, or gone. They are
    /// rebuilt from nothing, whatever their labels say.
    ///
    /// # Errors
    /// The other replicas in sync do not have all data: nothing is left to serve.
    pub(crate) async fn drop_forgotten(
        &self,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
    ) -> Result<(), ErrorDetail> {
        for voter in voters.status().forgotten.iter() {
            let (slot, name) = (u16::from(voter.0), volume.voter_name(voter.0));
            let state = || self.states(volume).get(usize::from(slot)).copied();
            if matches!(state(), Some(MemberState::InSync | MemberState::Rebuilding)) {
                let message =
                    format!("replica {name} has lost data: its node has forgotten a vote that it had guaranteed");
                self.inventory.events().warning("replica_epoch_lost", message, &[("volume", &volume.name)]);
                self.arrays.give_order(volume.uuid, Order::Fail(vec![slot])).await?;
            }
            if state() == Some(MemberState::Failed) {
                self.arrays.give_order(volume.uuid, Order::Remove(slot)).await?;
            }
            attached.forget_replica(slot);
            voters.allow_rebuild(voter);
        }
        Ok(())
    }

    /// Gives a replica the same snapshots as the others, before it takes writes and can become in sync.
    async fn prepare_snapshots(
        self: &Arc<Self>,
        serving: &ServedVolume,
        slot: u16,
        disk: &Arc<OpenDisk>,
    ) -> Result<CopyResult, ErrorDetail> {
        self.remove_extra_snapshots(serving, slot).await?;
        self.copy_snapshots(serving, slot, disk).await
    }

    /// Adds a replica to the array again. `has_content`: it holds most of the volume's content, whatever its label says.
    /// Returns true if it is fully rebuilt, false for a delta resync.
    async fn rejoin_array(
        self: &Arc<Self>,
        uuid: Uuid,
        slot: u16,
        disk: &Arc<OpenDisk>,
        held: HeldData,
        has_content: bool,
    ) -> Result<bool, ErrorDetail> {
        match self.inventory.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition) {
            Some(ArrayCondition::Active(active)) => active.guests.push(Arc::clone(disk)),
            _ => return Err(ErrorDetail::new(Kind::Inactive, "the volume is not served any more")),
        }
        let why = match held {
            HeldData::Anything => "it is an older copy of itself".to_owned(),
            HeldData::AllAcknowledged | HeldData::AllFlushed => {
                let kept = held == HeldData::AllAcknowledged;
                match self.arrays.give_order(uuid, Order::Return { leaf: disk.leaf, kept_writes: kept }).await {
                    Ok(()) => return Ok(false),
                    Err(error) => error.message,
                }
            }
        };
        tracing::info!("replica {} is fully rebuilt: {why}", disk.name);
        // `force`: the replica is not in sync by the votes, so its label is overwritten even if it says otherwise.
        let target = RebuildTarget::New { leaf: disk.leaf, id: MemberId::from_random(random()?), force: true };
        self.arrays.give_order(uuid, Order::Rebuild { slot, target, kind: RebuildKind::Full }).await?;
        if has_content || held == HeldData::Anything {
            // If this fails, the rebuild sends all data without comparing.
            let _ = self.arrays.give_order(uuid, Order::CompareBeforeCopy(slot)).await;
        }
        Ok(true)
    }
}
