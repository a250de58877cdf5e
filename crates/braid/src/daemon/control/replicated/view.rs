//! How volumes that are kept on several nodes are shown.

use super::super::Control;
use super::super::replicas::show_seating;
use super::super::tables::Active;
use super::advised::Situation;
use super::council::Seen;
use super::saved::SavedReplicated;
use super::serve::Attached;
use braid_api::{ErrorDetail, Kind, ReplicatedList, ReplicatedState, ReplicatedVolume, Voter, VoterState};
use braid_engine::replica::{self, VoterId};
use braid_format::MemberState;
use braid_geometry::Level;
use std::time::Duration;

impl Control {
    /// Every volume of several nodes that this one knows.
    pub fn replicated_volumes(&self) -> ReplicatedList {
        let volumes: Vec<SavedReplicated> = self.read().replicated.values().cloned().collect();
        let mut volumes: Vec<ReplicatedVolume> = volumes.iter().map(|volume| self.show_replicated(volume)).collect();
        volumes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        ReplicatedList { volumes }
    }

    /// One of them, by name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn replicated_volume(&self, name: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        Ok(self.show_replicated(&self.find_replicated(name)?))
    }

    /// So long a volume that this node serves may still answer without hearing from its voters.
    pub fn lease_left(&self, uuid: &str) -> Option<Duration> {
        let voters = self.voters_of(uuid.parse().ok()?)?;
        Some(Duration::from_nanos(voters.lease().until_ns().saturating_sub(self.ring.lease_ns())))
    }

    pub(in super::super) fn find_replicated(&self, name: &str) -> Result<SavedReplicated, ErrorDetail> {
        let tables = self.read();
        let found = tables.replicated.values().find(|volume| volume.name == name || volume.uuid.to_string() == name);
        found.cloned().ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("this node knows no volume {name} of several nodes"))
                .with("volume", name)
                .remedy(format!("braid volume list; braid volume attach {name} looks on other nodes"))
        })
    }

    fn show_replicated(&self, volume: &SavedReplicated) -> ReplicatedVolume {
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let (seen, volume) = as_it_counts(volume, attached.as_deref());
        let volume = &volume;
        let mut attention = Vec::new();
        let tables = self.read();
        let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
        let state = match (&attached, active) {
            (Some(_), Some(_)) => ReplicatedState::Serving,
            (Some(_), None) => ReplicatedState::Opening,
            (None, _) => ReplicatedState::Detached,
        };
        let how = Situation { volume, attached: attached.as_deref(), seen: seen.as_ref(), active };
        attention.extend(self.said_of(&how).into_iter().map(|said| said.sentence(&volume.name)));
        attention.extend(attached.iter().flat_map(|attached| attached.outside()));
        let seating = volume.seating();
        let voters = volume.seated().map(|(number, voter)| {
            let id = VoterId(number);
            let away = || seen.as_ref().and_then(|seen| seen.away[usize::from(number)].clone());
            Voter {
                voter: number,
                node: voter.node.clone(),
                pool: voter.pool.clone(),
                state: match (&voter.pool, active) {
                    (None, _) => VoterState::Witness,
                    (Some(_), None) => VoterState::Unknown,
                    (Some(_), Some(active)) => state_of(active, usize::from(number)),
                },
                answers: seen.as_ref().is_some_and(|seen| seen.raised.has(id)) && away().is_none(),
                reason: away(),
            }
        });
        let voters: Vec<Voter> = voters.collect();
        if seating.is_joint() {
            let names = |numbers: replica::Voters| -> String {
                let names: Vec<String> = numbers.iter().map(|voter| volume.voter_name(voter.0)).collect();
                names.join(", ")
            };
            let (come, go) = (seating.voters.without(seating.before), seating.before.without(seating.voters));
            attention.push(match come.is_empty() {
                true => format!("voter {} goes, once enough of the others have heard of it", names(go)),
                false => format!("voter {} comes, once enough of all have heard of it", names(come)),
            });
        }
        ReplicatedVolume {
            uuid: volume.uuid.to_string(),
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            block_bytes: volume.block_bytes,
            level: level_of(volume, active).name().to_owned(),
            pool: tables.pool_carried(volume.uuid).map(|(_, pool)| pool),
            state,
            epoch: seen.as_ref().map_or(0, |seen| seen.epoch),
            voters,
            exports: tables.exports_of(volume.uuid),
            snapshots: attached.as_ref().and_then(|attached| attached.snapshot_count()),
            attention,
        }
    }
}

/// What is seen of the voters, and the volume with those that vote by now, which may not be noted yet.
pub(super) fn as_it_counts(volume: &SavedReplicated, attached: Option<&Attached>) -> (Option<Seen>, SavedReplicated) {
    let council = attached.and_then(|attached| attached.voters());
    let seen = council.as_ref().map(|voters| voters.seen());
    let counts = council.and_then(|voters| Some(show_seating(&voters.settled()?.seating)));
    (seen, SavedReplicated { seating: counts.unwrap_or(volume.seating), ..volume.clone() })
}

/// Where it is served its label says so; else how many replicas there are, and how many it takes. One that is just replaced is none of them.
fn level_of(volume: &SavedReplicated, active: Option<&Active>) -> Level {
    if let Some(active) = active {
        return active.label.spec.level;
    }
    match volume.replicas().len().saturating_sub(volume.least()) {
        _ if volume.is_of_copies() => Level::Raid1,
        0 | 1 => Level::Raid5,
        _ => Level::Raid6,
    }
}

fn state_of(active: &Active, number: usize) -> VoterState {
    match active.label.members.get(number).map(|member| member.state) {
        Some(MemberState::InSync) => VoterState::InSync,
        Some(MemberState::Filling) => VoterState::Filling,
        _ => VoterState::Out,
    }
}
