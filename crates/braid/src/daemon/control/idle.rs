//! Arrays that are not started: how they are listed, why, and what is to be done.

use super::Control;
use super::tables::{ArrayEntry, Condition, Idle, IdleMember, OpenDisk};
use crate::daemon::state::SavedDisk;
use braid_advice::errors::not_started;
use braid_advice::{self as advice, ArrayCase, Case, Names};
use braid_api::{ArrayState, ErrorDetail, Kind};
use braid_engine::LeafId;
use braid_engine::lifecycle::{self, FoundArray, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Lists an array that does not serve.
    pub(super) fn list_idle(&self, uuid: Uuid, name: &str, found: &FoundArray, idle: Idle, disks: &[Arc<OpenDisk>]) {
        let disk_of = |member: &lifecycle::FoundMember| {
            let leaf = member.disk.as_ref()?.leaf;
            disks.iter().find(|disk| disk.leaf == leaf).map(|disk| disk.name.clone())
        };
        let members = found.members.iter().map(|member| IdleMember {
            role: member.number,
            id: member.entry.id.map(|id| id.to_string()).unwrap_or_default(),
            data_bytes: member.entry.data_bytes,
            disk: disk_of(member),
            state: member.entry.state,
            present: member.disk.is_some(),
        });
        let idle = Idle { label: found.newest.clone(), members: members.collect(), ..idle };
        let entry = ArrayEntry { uuid, name: name.to_owned(), condition: Condition::Idle(idle) };
        self.write().arrays.insert(uuid, entry);
    }

    /// Says why an array that was found is not started, and what to do.
    pub(super) fn explain(
        &self,
        uuid: Uuid,
        name: &str,
        found: &FoundArray,
        disks: &[Arc<OpenDisk>],
        troubles: &BTreeMap<String, ErrorDetail>,
    ) -> Idle {
        let (kind, remedy) = not_started(found, name);
        let attention = match &found.status {
            lifecycle::ArrayStatus::Incomplete { missing } | lifecycle::ArrayStatus::Waiting { missing } => {
                let tables = self.read();
                missing
                    .iter()
                    .map(|missing| {
                        let seen = tables.disks.values().find(|s| s.array == uuid && s.role == missing.number);
                        let mut text = format!("{missing} is missing");
                        if let Some((leaf, _)) = &missing.unusable_disk {
                            let disk = Control::name_in(disks)(*leaf).unwrap_or_default();
                            text = format!("{missing} (disk {disk})");
                        } else if let Some(seen) = seen {
                            text.push_str(&format!("; it was last seen on {}", seen.disk));
                            if let Some(trouble) = troubles.get(&seen.disk) {
                                text.push_str(&format!(" ({})", trouble.message));
                            }
                        }
                        text
                    })
                    .collect()
            }
            lifecycle::ArrayStatus::Refused { reasons } => {
                let name = |leaf: &LeafId| Control::name_in(disks)(*leaf).unwrap_or_default();
                reasons.iter().map(|reason| refusal(reason, &name)).collect()
            }
            status => vec![status.to_string()],
        };
        let state = if kind == Kind::Incomplete { ArrayState::Incomplete } else { ArrayState::Failed };
        Idle { state, attention, remedy, label: None, members: Vec::new() }
    }

    /// Lists arrays of which not one disk was found, but which are known from the state.
    pub(super) fn list_absent(&self, troubles: &BTreeMap<String, ErrorDetail>) {
        let mut tables = self.write();
        let mut known: BTreeMap<Uuid, Vec<SavedDisk>> = BTreeMap::new();
        for saved in tables.disks.values().filter(|saved| !tables.arrays.contains_key(&saved.array)) {
            known.entry(saved.array).or_default().push(saved.clone());
        }
        for (uuid, mut disks) in known {
            disks.sort_by_key(|disk| disk.role);
            let name = disks[0].array_name.clone();
            let attention = disks.iter().map(|disk| {
                let trouble = troubles.get(&disk.disk).map(|t| format!(" ({})", t.message)).unwrap_or_default();
                format!("member {} is missing; it was last seen on {}{trouble}", disk.role, disk.disk)
            });
            let members = disks.iter().map(|disk| IdleMember {
                role: disk.role,
                id: String::new(),
                data_bytes: 0,
                disk: Some(disk.disk.clone()),
                state: braid_format::MemberState::InSync,
                present: false,
            });
            let stopped = tables.stopped.contains(&uuid);
            let idle = Idle {
                state: if stopped { ArrayState::Stopped } else { ArrayState::Incomplete },
                attention: attention.collect(),
                remedy: advice::remedy(Case::Array(ArrayCase::DisksMissing), Names::of(&name)),
                label: None,
                members: members.collect(),
            };
            tables.arrays.insert(uuid, ArrayEntry { uuid, name, condition: Condition::Idle(idle) });
        }
    }
}

/// A refusal in words, with the disks that it is about.
fn refusal(reason: &Refusal, name: &dyn Fn(&LeafId) -> String) -> String {
    match reason {
        Refusal::Twins { leaves, .. } => {
            let names: Vec<String> = leaves.iter().map(name).collect();
            format!("{reason} (they are {})", names.join(" and "))
        }
        Refusal::Stale { leaf, .. }
        | Refusal::WrongSize { leaf, .. }
        | Refusal::OldCopy { leaf, .. }
        | Refusal::MemberDiverged { leaf, .. } => format!("disk {}: {reason}", name(leaf)),
        reason => reason.to_string(),
    }
}

/// Why an array that was named is not active.
pub(super) fn why_not(name: &str, idle: &Idle) -> ErrorDetail {
    let kind = if idle.state == ArrayState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
    let reason = if idle.attention.is_empty() { String::new() } else { format!(": {}", idle.attention.join("; ")) };
    ErrorDetail::new(kind, format!("array {name} is {}{reason}", idle.state.word()))
        .with("array", name)
        .remedy(idle.remedy.clone())
}
