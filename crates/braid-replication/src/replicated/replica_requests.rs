//! Requests of the serving node to the nodes of its replicas: changes of a replica and its snapshots, and their lists.
//!
//! A change states epoch, controller and session. The replica refuses one of a fenced controller, or of an earlier
//! session.

use crate::ReplicationManager;
use crate::attached::ServedVolume;
use crate::replicated::outcome::{SnapshotLists, SnapshotState};
use braid_api::{ChangeReplica, ErrorDetail, Kind, ReplicaChange, ReplicaSnapshot, ReplicaSnapshotList};
use braid_engine::DeviceIo;
use braid_engine::replica::VoterId;
use braid_format::MemberState;
use braid_inventory::SavedReplicated;
use futures_util::future::join_all;
use hyper::Method;
use std::time::Duration;

/// Maximum time for a change of a replica that no client request waits for.
pub(crate) const CHANGE_MAX: Duration = Duration::from_secs(10);

/// Maximum wait for a replica that may be about to be dropped.
const FLUSH_MAX: Duration = Duration::from_secs(12);

/// Attempts to have a replica in sync make a change, and the delay between two of them.
const TRIES: u32 = 5;

const RETRY_DELAY: Duration = Duration::from_secs(1);

impl ReplicationManager {
    /// Requests the same change from several replicas concurrently, and retries while they are in sync and fail.
    pub(crate) async fn change_all(
        &self,
        serving: &ServedVolume,
        slots: &[u16],
        change: &ReplicaChange,
    ) -> Result<(), ErrorDetail> {
        let mut slots = slots.to_vec();
        for turn in 1.. {
            let ask = |slot: u16| async move { (slot, self.change_one(serving, slot, change, CHANGE_MAX).await) };
            let mut failed = None;
            let mut again = Vec::new();
            for (slot, done) in join_all(slots.iter().copied().map(ask)).await {
                if let Err(error) = done {
                    again.push(slot);
                    failed = Some(error);
                }
            }
            // A replica that was dropped does not count any more, and undoes the change when it rejoins.
            let in_sync = self.slots_in_sync(&serving.volume);
            again.retain(|slot| in_sync.contains(slot));
            let Some(error) = failed.filter(|_| !again.is_empty()) else { break };
            let is_final = !matches!(error.kind, Kind::Unreachable | Kind::TimedOut | Kind::Inactive | Kind::Fenced);
            if is_final || turn == TRIES || serving.attached.has_ended() {
                return Err(error);
            }
            self.flush_replicas(&serving.volume).await;
            tokio::time::sleep(RETRY_DELAY).await;
            slots = again;
        }
        Ok(())
    }

    /// Requests a change from a replica.
    pub(crate) async fn change_one(
        &self,
        serving: &ServedVolume,
        slot: u16,
        change: &ReplicaChange,
        limit: Duration,
    ) -> Result<(), ErrorDetail> {
        let ServedVolume { volume, attached, voters } = serving;
        let (epoch, controller, _) = voters.session_of(VoterId(slot as u8));
        let body = ChangeReplica {
            epoch,
            controller: controller.to_string(),
            session: attached.session_of(slot),
            change: change.clone(),
        };
        let internal = |error: serde_json::Error| ErrorDetail::new(Kind::Internal, error.to_string());
        let body = serde_json::to_value(&body).map_err(internal)?;
        let path = format!("/v1/replicas/{}/snapshots", volume.uuid);
        let node = volume.node_of(slot)?;
        let done = self.nodes.call_within(limit, node, Method::POST, &path, Some(body)).await;
        done.map(drop).map_err(|error| {
            let message = format!("replica {}: {}", volume.voter_name(slot as u8), error.message);
            ErrorDetail { message, ..error }
        })
    }

    pub(crate) async fn list_one(
        &self,
        volume: &SavedReplicated,
        slot: u16,
    ) -> Result<Vec<ReplicaSnapshot>, ErrorDetail> {
        let path = format!("/v1/replicas/{}/snapshots", volume.uuid);
        let node = volume.node_of(slot)?;
        let reply = self.nodes.call(node, Method::GET, &path, None).await?;
        let list: ReplicaSnapshotList =
            serde_json::from_value(reply).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        Ok(list.snapshots)
    }

    /// Returns the snapshots of these replicas.
    pub(crate) async fn list_all(&self, volume: &SavedReplicated, slots: &[u16]) -> Result<SnapshotLists, ErrorDetail> {
        let lists = join_all(slots.iter().map(|slot| self.list_one(volume, *slot))).await;
        let lists: Result<Vec<_>, ErrorDetail> = lists.into_iter().collect();
        Ok(SnapshotLists(slots.iter().copied().zip(lists?).collect()))
    }

    /// Sends a flush to all replicas in sync, so that one without progress is detected.
    pub(crate) async fn flush_replicas(&self, volume: &SavedReplicated) {
        let device = self.inventory.read().arrays.get(&volume.uuid).and_then(|entry| Some(entry.active()?.device));
        if let Some(device) = device {
            // The labels show the outcome.
            let _ = tokio::time::timeout(FLUSH_MAX, self.ring.devices().flush(device)).await;
        }
    }

    /// Returns the replicas in sync, by the current labels.
    pub(crate) fn slots_in_sync(&self, volume: &SavedReplicated) -> Vec<u16> {
        let tables = self.inventory.read();
        let Some(active) = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active()) else { return Vec::new() };
        let members = active.label.members.iter().zip(0u16..);
        members.filter(|(member, _)| member.state == MemberState::InSync).map(|(_, slot)| slot).collect()
    }

    /// Returns the replicas in sync that have a snapshot.
    pub(crate) fn slots_with(&self, serving: &ServedVolume, listed: &SnapshotLists, snapshot: &str) -> Vec<u16> {
        let has = |slot: &u16| listed.state_on(*slot, snapshot) != SnapshotState::Absent;
        self.slots_in_sync(&serving.volume).into_iter().filter(has).collect()
    }
}
