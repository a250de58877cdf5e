//! What is said of a volume of several nodes and of its replicas, with the kind of object and the state by which advice is given.

use super::super::keeping::health::{self, Lacking};
use super::super::keeping::name_of;
use super::super::tables::{Active, Tables};
use super::super::view::disk_state;
use super::Control;
use super::council::Seen;
use super::saved::SavedReplicated;
use super::serve::Attached;
use super::view::as_it_counts;
use braid_advice::{self as advice, Case, Names, ReplicaOfServed, VolumeCase};
use braid_api::{Attention, DiskState};
use braid_engine::replica::{Quorums, VoterId};
use braid_format::MemberState;
use std::sync::Arc;

/// A volume that this node knows, and what runs for it here.
pub(super) struct Situation<'a> {
    /// As it counts by now.
    pub volume: &'a SavedReplicated,
    /// This node serves it, or is about to.
    pub attached: Option<&'a Attached>,
    /// Its voters, as this node sees them.
    pub seen: Option<&'a Seen>,
    /// The array above its replicas, where that serves.
    pub active: Option<&'a Active>,
}

/// Something that is said of a volume.
pub(super) struct Said {
    case: Case,
    /// The node of the replica that it is about, or the job that fills it.
    part: String,
    message: String,
}

impl Said {
    fn of_volume(case: VolumeCase, message: String) -> Said {
        Said { case: Case::ReplicatedVolume(case), part: String::new(), message }
    }

    /// In one sentence, with what is to be done.
    pub(super) fn sentence(self, volume: &str) -> String {
        let remedy = advice::remedy(self.case, Names::with(volume, &self.part));
        format!("{}; {remedy}", self.message)
    }

    fn attention(self, volume: &str) -> Attention {
        let advice = advice::of(self.case, Names::with(volume, &self.part));
        advice.attention(format!("volume {volume}"), self.message)
    }
}

impl Control {
    /// What needs attention of volumes of several nodes that this node serves, is about to serve, or has a voter of.
    pub(in super::super) fn attention_of_volumes(&self, tables: &Tables) -> Vec<Attention> {
        let mut all = Vec::new();
        for volume in tables.replicated.values().filter(|volume| !volume.making) {
            let attached = self.replicated.all().get(&volume.uuid).cloned();
            let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
            if let Some(active) = active {
                all.extend(health::attention_of_volume(&volume.name, active));
            }
            let said = self.said(volume, attached.as_ref(), active).into_iter();
            // That another node has fewer replicas now is nothing that this one could mend.
            let said = said.filter(|said| said.case != Case::ReplicatedVolume(VolumeCase::NotServedHere));
            all.extend(said.map(|said| said.attention(&volume.name)));
        }
        all.extend(self.attention_of_unserved(tables));
        all
    }

    /// What is amiss with the replicas of a volume that this node serves, a sentence each.
    pub(in super::super) fn sentences_of_replicas(&self, volume: &SavedReplicated, active: &Active) -> Vec<String> {
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let said = self.said(volume, attached.as_ref(), Some(active));
        said.into_iter().map(|said| said.sentence(&volume.name)).collect()
    }

    fn said(&self, volume: &SavedReplicated, attached: Option<&Arc<Attached>>, active: Option<&Active>) -> Vec<Said> {
        let attached = attached.map(|attached| &**attached);
        let (seen, volume) = as_it_counts(volume, attached);
        self.said_of(&Situation { volume: &volume, attached, seen: seen.as_ref(), active })
    }

    /// All that is to be said of a volume.
    pub(super) fn said_of(&self, how: &Situation<'_>) -> Vec<Said> {
        let gone = || match self.told_of_gone(how.volume)? {
            (true, message) => Some(Said::of_volume(VolumeCase::Deleted, message)),
            (false, message) => Some(Said::of_volume(VolumeCase::NotServedHere, message)),
        };
        match (how.attached, how.active) {
            (_, Some(active)) => {
                let has_lease = self.lease_left(&how.volume.uuid.to_string()).is_none_or(|left| !left.is_zero());
                let waits = if has_lease { None } else { waits_for_voters(how) };
                waits.into_iter().chain(of_replicas(how, active)).collect()
            }
            (Some(attached), None) => of_opening(how, attached).into_iter().chain(gone()).collect(),
            (None, None) => gone().into_iter().collect(),
        }
    }
}

/// That too few voters answer a volume that is served: it answers nothing without a lease.
fn waits_for_voters(how: &Situation<'_>) -> Option<Said> {
    let seen = how.seen?;
    let answers = |number: u8| seen.raised.has(VoterId(number)) && seen.away[usize::from(number)].is_none();
    let silent: Vec<String> = how
        .volume
        .seated()
        .filter(|(number, _)| !answers(*number))
        .map(|(number, _)| how.volume.voter_name(number))
        .collect();
    let message = format!("it waits for voters: {} do not answer", silent.join(", "));
    (!silent.is_empty()).then(|| Said::of_volume(VolumeCase::WaitsForVoters, message))
}

/// Why a volume that this node is to serve is not served.
fn of_opening(how: &Situation<'_>, attached: &Attached) -> Vec<Said> {
    let mut said = Vec::new();
    let volume = how.volume;
    if let Some(seen) = how.seen {
        let missing: Vec<String> = seen.missing.iter().map(|voter| volume.voter_name(voter.0)).collect();
        let is_silent = |number: u8| !seen.raised.has(VoterId(number));
        let silent: Vec<String> = volume
            .seated()
            .filter(|(number, _)| is_silent(*number))
            .map(|(number, _)| volume.voter_name(number))
            .collect();
        let voters = volume.seated().count();
        if !missing.is_empty() {
            let message = format!(
                "none of those that hold everything is here and sound: {} would do, one of them",
                missing.join(", ")
            );
            said.push(Said::of_volume(VolumeCase::WaitsForData, message));
        } else if voters - silent.len() < Quorums::of(voters.max(1)).open {
            let message = format!("it waits for voters: {} do not answer", silent.join(", "));
            said.push(Said::of_volume(VolumeCase::WaitsForVoters, message));
        }
    }
    if let Some(why) = attached.trouble() {
        said.insert(0, Said::of_volume(VolumeCase::Opening, why));
    } else if said.is_empty() {
        said.push(Said::of_volume(VolumeCase::Opening, "it is being opened".to_owned()));
    }
    said
}

/// The replicas of a volume that is served which do not hold everything, or do not work.
fn of_replicas(how: &Situation<'_>, active: &Active) -> Vec<Said> {
    let volume = how.volume;
    let lacking = health::lacking(active);
    let failing = active.disks.iter().filter(|seat| lacking.iter().all(|lacking| lacking.role != seat.role));
    let failing: Vec<Said> = failing
        .filter_map(|seat| match disk_state(&seat.disk) {
            (DiskState::Ok, _) => None,
            (state, trouble) => {
                let number = seat.role as u8;
                let why = trouble.unwrap_or_else(|| "no reason known".to_owned());
                let message = format!("replica {} is {}: {why}", volume.voter_name(number), state.word());
                Some(of_replica(volume, number, ReplicaOfServed::Failing, message))
            }
        })
        .collect();
    lacking.into_iter().filter_map(|lacking| of_lacking(how, lacking)).chain(failing).collect()
}

fn of_lacking(how: &Situation<'_>, Lacking { role, state, why, waits }: Lacking) -> Option<Said> {
    let volume = how.volume;
    let number = role as u8;
    let id = VoterId(number);
    let name = volume.voter_name(number);
    let is_seated = volume.seated().any(|(seated, voter)| seated == number && voter.pool.is_some());
    let is_left_out = volume.outside().any(|(outside, _)| outside == number);
    let away = how.seen.and_then(|seen| seen.away[usize::from(number)].clone());
    let answers = away.is_none() && how.seen.is_some_and(|seen| seen.raised.has(id));
    let because = if why.is_empty() { String::new() } else { format!(": {why}") };
    let (case, message) = match state {
        _ if is_left_out => {
            (ReplicaOfServed::LeftOut, format!("replica {name} was left out when the volume was opened by force"))
        }
        // Of copies the user has chosen to have fewer.
        _ if !is_seated && volume.is_of_copies() => return None,
        _ if !is_seated => {
            (ReplicaOfServed::Removed, format!("replica {role} was removed, and no other has its place"))
        }
        MemberState::Rebuilding => {
            let message = format!("replica {name} is being filled{because}");
            if let Some(job) = waits {
                let (case, job) = (Case::ReplicaOfServed(ReplicaOfServed::FillingPaused), name_of(&volume.name, job));
                return Some(Said { case, message: format!("{message}; job {job} waits, by command"), part: job });
            }
            (ReplicaOfServed::Filling, message)
        }
        _ if answers => (ReplicaOfServed::Returning, format!("replica {name} is out{because}")),
        _ => {
            let away = away.map(|away| format!(" ({away})")).unwrap_or_default();
            (ReplicaOfServed::NodeAway, format!("replica {name} is out, and its node does not answer{away}"))
        }
    };
    Some(of_replica(volume, number, case, message))
}

fn of_replica(volume: &SavedReplicated, number: u8, case: ReplicaOfServed, message: String) -> Said {
    let part = volume.voters.get(&number).map(|voter| voter.node.clone()).unwrap_or_default();
    Said { case: Case::ReplicaOfServed(case), part, message }
}
