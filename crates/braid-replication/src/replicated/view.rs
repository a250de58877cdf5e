//! Replicated volumes, found by name and as the API shows them.

use crate::ReplicationManager;
use crate::replicated::findings::{VolumeSituation, with_current_membership};
use braid_api::limits::REPLICATED_MAX;
use braid_api::{ErrorDetail, Kind, ReplicatedList, ReplicatedState, ReplicatedVolume, Voter, VoterState};
use braid_engine::replica::{self, VoterId};
use braid_format::MemberState;
use braid_geometry::Level;
use braid_inventory::{ActiveArray, SavedReplicated, volume_exists};
use std::time::Duration;

impl ReplicationManager {
    /// Returns every replicated volume that this node knows, sorted by name.
    pub fn replicated_volumes(&self) -> ReplicatedList {
        let volumes: Vec<SavedReplicated> = self.inventory.read().replicated.values().cloned().collect();
        let mut volumes: Vec<ReplicatedVolume> = volumes.iter().map(|volume| self.show_replicated(volume)).collect();
        volumes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        ReplicatedList { volumes }
    }

    /// Returns a replicated volume, by name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn replicated_volume(&self, name: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        Ok(self.show_replicated(&self.inventory.find_replicated(name)?))
    }

    /// Returns the time for which a volume of this node may still answer its clients without a reply of its voters.
    pub fn lease_left(&self, uuid: &str) -> Option<Duration> {
        let voters = self.voters_of(uuid.parse().ok()?)?;
        Some(Duration::from_nanos(voters.lease().until_ns().saturating_sub(self.ring.lease_ns())))
    }

    pub(crate) fn check_name_free(&self, name: &str) -> Result<(), ErrorDetail> {
        let tables = self.inventory.read();
        if tables.replicated.len() >= REPLICATED_MAX {
            let message = format!("this node knows {REPLICATED_MAX} replicated volumes already");
            return Err(ErrorDetail::new(Kind::LimitReached, message).remedy("delete one first"));
        }
        match tables.replicated.values().find(|volume| volume.name == name) {
            None => Ok(()),
            Some(_) => Err(volume_exists(name)),
        }
    }

    fn show_replicated(&self, volume: &SavedReplicated) -> ReplicatedVolume {
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let (status, volume) = with_current_membership(volume, attached.as_deref());
        let volume = &volume;
        let mut attention = Vec::new();
        let tables = self.inventory.read();
        let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
        let state = match (&attached, active) {
            (Some(_), Some(_)) => ReplicatedState::Serving,
            (Some(_), None) => ReplicatedState::Opening,
            (None, _) => ReplicatedState::Detached,
        };
        let situation = VolumeSituation { volume, attached: attached.as_deref(), status: status.as_ref(), active };
        attention.extend(self.findings_of(&situation).into_iter().map(|finding| finding.sentence(&volume.name)));
        attention.extend(attached.iter().flat_map(|attached| attached.excluded()));
        let membership = volume.membership();
        let voters = volume.voting().map(|(number, voter)| {
            let id = VoterId(number);
            let failure = || status.as_ref().and_then(|status| status.failures[usize::from(number)].clone());
            Voter {
                voter: number,
                node: voter.node.clone(),
                pool: voter.pool.clone(),
                state: match (&voter.pool, active) {
                    (None, _) => VoterState::Witness,
                    (Some(_), None) => VoterState::Unknown,
                    (Some(_), Some(active)) => state_of(active, usize::from(number)),
                },
                reachable: status.as_ref().is_some_and(|status| status.raised.has(id)) && failure().is_none(),
                reason: failure(),
            }
        });
        let voters: Vec<Voter> = voters.collect();
        if membership.is_joint() {
            let names = |numbers: replica::Voters| -> String {
                let names: Vec<String> = numbers.iter().map(|voter| volume.voter_name(voter.0)).collect();
                names.join(", ")
            };
            let (joining, leaving) = (
                membership.voters.without(membership.previous_voters),
                membership.previous_voters.without(membership.voters),
            );
            attention.push(match joining.is_empty() {
                true => {
                    format!("voter {} is being removed: too few of the other voters have agreed yet", names(leaving))
                }
                false => format!("voter {} is being added: too few voters have agreed yet", names(joining)),
            });
        }
        ReplicatedVolume {
            uuid: volume.uuid.to_string(),
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            block_bytes: volume.block_bytes,
            level: level_of(volume, active).name().to_owned(),
            pool: tables.pool_on_replicated(volume.uuid).map(|(_, pool)| pool),
            state,
            epoch: status.as_ref().map_or(0, |status| status.epoch),
            voters,
            exports: tables.exports_of(volume.uuid),
            snapshots: attached.as_ref().and_then(|attached| attached.snapshot_count()),
            attention,
        }
    }
}

/// Returns the level of the volume: that of its label where it is served, else the one that follows from the number of
/// replicas and the minimum. A replica that is just being replaced does not count.
fn level_of(volume: &SavedReplicated, active: Option<&ActiveArray>) -> Level {
    if let Some(active) = active {
        return active.label.spec.level;
    }
    match volume.replicas().len().saturating_sub(volume.replicas_min()) {
        _ if volume.is_mirrored() => Level::Raid1,
        0 | 1 => Level::Raid5,
        _ => Level::Raid6,
    }
}

fn state_of(active: &ActiveArray, number: usize) -> VoterState {
    match active.label.members.get(number).map(|member| member.state) {
        Some(MemberState::InSync) => VoterState::InSync,
        Some(MemberState::Rebuilding) => VoterState::Rebuilding,
        _ => VoterState::Failed,
    }
}
