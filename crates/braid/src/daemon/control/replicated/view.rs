//! How volumes that are kept on several nodes are found by name, and shown.

use super::super::Control;
use super::super::replicas::show_seating;
use super::super::tables::{Active, Tables};
use super::advised::Situation;
use super::council::Seen;
use super::saved::SavedReplicated;
use super::serve::Attached;
use braid_advice::{self as advice, Case, Names, VolumeCase};
use braid_api::limits::REPLICATED_MAX;
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
        found.cloned().ok_or_else(|| tables.no_replicated(name))
    }

    /// Whether a text names a volume of several nodes, as far as this node can tell.
    pub(in super::super) fn has_volume_of_nodes(&self, text: &str) -> bool {
        self.read().volume_of_nodes(text).is_some()
    }

    pub(super) fn name_of_no_replicated(&self, name: &str) -> Result<(), ErrorDetail> {
        let tables = self.read();
        if tables.replicated.len() >= REPLICATED_MAX {
            let message = format!("this node knows {REPLICATED_MAX} volumes of several nodes already");
            return Err(ErrorDetail::new(Kind::LimitReached, message).remedy("delete one first"));
        }
        match tables.replicated.values().find(|volume| volume.name == name) {
            None => Ok(()),
            Some(_) => Err(volume_exists(name)),
        }
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

impl Tables {
    /// The name of the volume of several nodes that a text names, by name or UUID: this node knows it, or keeps a replica or witness of it.
    pub(in super::super) fn volume_of_nodes(&self, text: &str) -> Option<&str> {
        // A node that keeps a replica of it may never have served it.
        let known = self.replicated.values().map(|volume| (volume.uuid, &volume.name));
        let kept = self.replicas.values().map(|entry| (entry.saved.volume, &entry.saved.name));
        let mut volumes = known.chain(kept);
        let (_, name) = volumes.find(|(uuid, own)| *own == text || uuid.to_string() == text)?;
        Some(name)
    }

    /// Why nothing can be done here with a volume of several nodes that this node does not know.
    fn no_replicated(&self, text: &str) -> ErrorDetail {
        let mut kept = self.replicas.values().map(|entry| &entry.saved);
        match kept.find(|kept| kept.name == text || kept.volume.to_string() == text) {
            Some(kept) => {
                let what = if kept.data.is_some() { "replica" } else { "witness" };
                not_served_here(Kind::NotFound, &kept.name, &format!(", which keeps a {what} of it"))
            }
            None => ErrorDetail::new(Kind::NotFound, format!("this node knows no volume {text} of several nodes"))
                .with("volume", text)
                .remedy(format!("braid volume list --all; braid volume attach {text} looks on other nodes")),
        }
    }

    /// Refuses a name that a volume of several nodes has which this node serves, or makes.
    ///
    /// # Errors
    /// [`Kind::Exists`].
    pub(in super::super) fn refuse_name_of_volume(&self, name: &str) -> Result<(), ErrorDetail> {
        let is_here = |volume: &SavedReplicated| volume.making || self.arrays.contains_key(&volume.uuid);
        match self.replicated.values().any(|volume| volume.name == name && is_here(volume)) {
            true => Err(volume_exists(name)),
            false => Ok(()),
        }
    }
}

fn volume_exists(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Exists, format!("there is a volume {name} already"))
        .with("volume", name)
        .remedy("choose another name")
}

/// Why something cannot be done on this node, and on which it can. `more` goes on after "by this node".
pub(super) fn not_served_here(kind: Kind, volume: &str, more: &str) -> ErrorDetail {
    ErrorDetail::new(kind, format!("volume {volume} is not served by this node{more}"))
        .with("volume", volume)
        .remedy(advice::remedy(Case::ReplicatedVolume(VolumeCase::NotServedHere), Names::of(volume)))
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
        Some(MemberState::Rebuilding) => VoterState::Filling,
        _ => VoterState::Out,
    }
}
