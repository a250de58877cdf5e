//! What to report about a replicated volume and its replicas, with the case that selects the advice.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::voters::VotersStatus;
use braid_advice::{self as advice, Case, ObjectNames, ReplicaOfServed, VolumeCase};
use braid_api::{Attention, DiskState};
use braid_arrays::Lacking;
use braid_arrays::reconcilers::health;
use braid_engine::replica::{Quorums, VoterId};
use braid_format::MemberState;
use braid_inventory::job_table::name_of;
use braid_inventory::{ActiveArray, SavedReplicated, Tables, disk_state, show_membership};
use std::sync::Arc;

/// A volume that this node knows, and its state here.
pub(crate) struct VolumeSituation<'a> {
    /// The volume with its current membership.
    pub(crate) volume: &'a SavedReplicated,
    /// Set if this node serves it, or is about to.
    pub(crate) attached: Option<&'a AttachedVolume>,
    /// State of its voters, as this node sees it.
    pub(crate) status: Option<&'a VotersStatus>,
    /// The array on its replicas, if it serves.
    pub(crate) active: Option<&'a ActiveArray>,
}

/// A finding about a volume.
pub(crate) struct Finding {
    case: Case,
    /// The node of the replica that it is about, or the job that rebuilds that.
    part: String,
    message: String,
}

impl Finding {
    fn of_volume(case: VolumeCase, message: String) -> Finding {
        Finding { case: Case::ReplicatedVolume(case), part: String::new(), message }
    }

    /// Returns one sentence that includes the remedy.
    pub(crate) fn sentence(self, volume: &str) -> String {
        let remedy = advice::remedy(self.case, ObjectNames::with(volume, &self.part));
        format!("{}; {remedy}", self.message)
    }

    fn attention(self, volume: &str) -> Attention {
        let advice = advice::of(self.case, ObjectNames::with(volume, &self.part));
        advice.attention(format!("volume {volume}"), self.message)
    }
}

impl ReplicationManager {
    /// Returns what needs attention about replicated volumes that this node serves, is about to serve, or has a voter
    /// of.
    pub fn attention_of_volumes(&self, tables: &Tables) -> Vec<Attention> {
        let mut all = Vec::new();
        for volume in tables.replicated.values().filter(|volume| !volume.creating) {
            let attached = self.replicated.all().get(&volume.uuid).cloned();
            let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
            if let Some(active) = active {
                all.extend(health::attention_of_volume(&volume.name, active));
            }
            let findings = self.findings(volume, attached.as_ref(), active).into_iter();
            // That a volume of another node has fewer replicas cannot be repaired on this node.
            let findings = findings.filter(|finding| finding.case != Case::ReplicatedVolume(VolumeCase::NotServedHere));
            all.extend(findings.map(|finding| finding.attention(&volume.name)));
        }
        all.extend(self.attention_of_unserved(tables));
        all
    }

    /// Returns the faults of the replicas of a volume that this node serves, one sentence each.
    pub fn replica_reports(&self, volume: &SavedReplicated, active: &ActiveArray) -> Vec<String> {
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let findings = self.findings(volume, attached.as_ref(), Some(active));
        findings.into_iter().map(|finding| finding.sentence(&volume.name)).collect()
    }

    fn findings(
        &self,
        volume: &SavedReplicated,
        attached: Option<&Arc<AttachedVolume>>,
        active: Option<&ActiveArray>,
    ) -> Vec<Finding> {
        let attached = attached.map(|attached| &**attached);
        let (status, volume) = with_current_membership(volume, attached);
        self.findings_of(&VolumeSituation { volume: &volume, attached, status: status.as_ref(), active })
    }

    /// Returns all findings about a volume.
    pub(crate) fn findings_of(&self, situation: &VolumeSituation<'_>) -> Vec<Finding> {
        let missing = || match self.missing_report(situation.volume)? {
            (true, message) => Some(Finding::of_volume(VolumeCase::Deleted, message)),
            (false, message) => Some(Finding::of_volume(VolumeCase::NotServedHere, message)),
        };
        match (situation.attached, situation.active) {
            (_, Some(active)) => {
                let has_lease = self.lease_left(&situation.volume.uuid.to_string()).is_none_or(|left| !left.is_zero());
                let waits = if has_lease { None } else { waits_for_voters(situation) };
                waits.into_iter().chain(of_replicas(situation, active)).collect()
            }
            (Some(attached), None) => of_opening(situation, attached).into_iter().chain(missing()).collect(),
            (None, None) => missing().into_iter().collect(),
        }
    }
}

/// Returns the state of the voters, and the volume with its current membership, which may not be saved yet.
pub(crate) fn with_current_membership(
    volume: &SavedReplicated,
    attached: Option<&AttachedVolume>,
) -> (Option<VotersStatus>, SavedReplicated) {
    let group = attached.and_then(|attached| attached.voters());
    let status = group.as_ref().map(|voters| voters.status());
    let counts = group.and_then(|voters| Some(show_membership(&voters.settled()?.config)));
    (status, SavedReplicated { membership: counts.unwrap_or(volume.membership), ..volume.clone() })
}

/// Returns the finding that too few voters reply for a served volume: without a lease it completes no request.
fn waits_for_voters(situation: &VolumeSituation<'_>) -> Option<Finding> {
    let status = situation.status?;
    let answers = |number: u8| status.raised.has(VoterId(number)) && status.failures[usize::from(number)].is_none();
    let silent: Vec<String> = situation
        .volume
        .voting()
        .filter(|(number, _)| !answers(*number))
        .map(|(number, _)| situation.volume.voter_name(number))
        .collect();
    let message = format!("it waits for voters: {} do not answer", silent.join(", "));
    (!silent.is_empty()).then(|| Finding::of_volume(VolumeCase::WaitsForVoters, message))
}

/// Returns why a volume that this node is to serve is not served.
fn of_opening(situation: &VolumeSituation<'_>, attached: &AttachedVolume) -> Vec<Finding> {
    let mut findings = Vec::new();
    let volume = situation.volume;
    if let Some(status) = situation.status {
        let missing: Vec<String> = status.missing.iter().map(|voter| volume.voter_name(voter.0)).collect();
        let is_silent = |number: u8| !status.raised.has(VoterId(number));
        let silent: Vec<String> = volume
            .voting()
            .filter(|(number, _)| is_silent(*number))
            .map(|(number, _)| volume.voter_name(number))
            .collect();
        let voters = volume.voting().count();
        if !missing.is_empty() {
            let message = format!("no replica in sync is available: one of {} is needed", missing.join(", "));
            findings.push(Finding::of_volume(VolumeCase::WaitsForData, message));
        } else if voters - silent.len() < Quorums::of(voters.max(1)).open {
            let message = format!("it waits for voters: {} do not answer", silent.join(", "));
            findings.push(Finding::of_volume(VolumeCase::WaitsForVoters, message));
        }
    }
    if let Some(why) = attached.fault() {
        findings.insert(0, Finding::of_volume(VolumeCase::Opening, why));
    } else if findings.is_empty() {
        findings.push(Finding::of_volume(VolumeCase::Opening, "it is being opened".to_owned()));
    }
    findings
}

/// Returns the replicas of a served volume that are not in sync, or are faulty.
fn of_replicas(situation: &VolumeSituation<'_>, active: &ActiveArray) -> Vec<Finding> {
    let volume = situation.volume;
    let lacking = health::incomplete_members(active);
    let failing = active.disks.iter().filter(|member| lacking.iter().all(|lacking| lacking.role != member.role));
    let failing: Vec<Finding> = failing
        .filter_map(|member| match disk_state(&member.disk) {
            (DiskState::Ok, _) => None,
            (state, fault) => {
                let number = member.role as u8;
                let why = fault.unwrap_or_else(|| "no reason known".to_owned());
                let message = format!("replica {} is {}: {why}", volume.voter_name(number), state.word());
                Some(of_replica(volume, number, ReplicaOfServed::Failing, message))
            }
        })
        .collect();
    lacking.into_iter().filter_map(|lacking| of_lacking(situation, lacking)).chain(failing).collect()
}

fn of_lacking(situation: &VolumeSituation<'_>, Lacking { role: slot, state, why, waits }: Lacking) -> Option<Finding> {
    let volume = situation.volume;
    let number = slot as u8;
    let id = VoterId(number);
    let name = volume.voter_name(number);
    let is_voting = volume.voting().any(|(voting, voter)| voting == number && voter.pool.is_some());
    let is_left_out = volume.excluded().any(|(excluded, _)| excluded == number);
    let failure = situation.status.and_then(|status| status.failures[usize::from(number)].clone());
    let answers = failure.is_none() && situation.status.is_some_and(|status| status.raised.has(id));
    let because = if why.is_empty() { String::new() } else { format!(": {why}") };
    let (case, message) = match state {
        _ if is_left_out => {
            (ReplicaOfServed::LeftOut, format!("replica {name} was excluded when the volume was attached by force"))
        }
        // With full copies the user has chosen to have fewer.
        _ if !is_voting && volume.is_mirrored() => return None,
        _ if !is_voting => (ReplicaOfServed::Removed, format!("replica {slot} was removed, and its slot is empty")),
        MemberState::Rebuilding => {
            let message = format!("replica {name} is being rebuilt{because}");
            if let Some(job) = waits {
                let (case, job) = (Case::ServedReplica(ReplicaOfServed::RebuildPaused), name_of(&volume.name, job));
                return Some(Finding { case, message: format!("{message}; job {job} is paused"), part: job });
            }
            (ReplicaOfServed::Rebuilding, message)
        }
        _ if answers => (ReplicaOfServed::Returning, format!("replica {name} has failed{because}")),
        _ => {
            let failure = failure.map(|failure| format!(" ({failure})")).unwrap_or_default();
            (
                ReplicaOfServed::NodeUnreachable,
                format!("replica {name} has failed, and its node does not answer{failure}"),
            )
        }
    };
    Some(of_replica(volume, number, case, message))
}

fn of_replica(volume: &SavedReplicated, number: u8, case: ReplicaOfServed, message: String) -> Finding {
    let part = volume.voters.get(&number).map(|voter| voter.node.clone()).unwrap_or_default();
    Finding { case: Case::ServedReplica(case), part, message }
}
