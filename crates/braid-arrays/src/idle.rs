//! Arrays that are not started: how they are listed, why, and the remedy.

use crate::ArrayManager;
use braid_advice::errors::not_started;
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames};
use braid_api::{ArrayState, ErrorDetail, Kind};
use braid_array_admin::lifecycle::{self, FoundArray, Refusal};
use braid_engine::LeafId;
use braid_inventory::state::SavedDisk;
use braid_inventory::{ArrayCondition, ArrayEntry, IdleArray, IdleMember, OpenDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

impl ArrayManager {
    /// Lists an array that does not serve.
    pub(crate) fn list_idle(
        &self,
        uuid: Uuid,
        name: &str,
        found: &FoundArray,
        idle: IdleArray,
        disks: &[Arc<OpenDisk>],
    ) {
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
        let idle = IdleArray { label: found.newest.clone(), members: members.collect(), ..idle };
        let entry = ArrayEntry { uuid, name: name.to_owned(), condition: ArrayCondition::Idle(idle) };
        self.inventory.write().arrays.insert(uuid, entry);
    }

    /// Returns why a found array is not started, and the remedy.
    pub(crate) fn explain(
        &self,
        uuid: Uuid,
        name: &str,
        found: &FoundArray,
        disks: &[Arc<OpenDisk>],
        faults: &BTreeMap<String, ErrorDetail>,
    ) -> IdleArray {
        let (kind, remedy) = not_started(found, name);
        let attention = match &found.status {
            lifecycle::ArrayStatus::Incomplete { missing } | lifecycle::ArrayStatus::Waiting { missing } => {
                let tables = self.inventory.read();
                missing
                    .iter()
                    .map(|missing| {
                        let seen = tables.disks.values().find(|s| s.array == uuid && s.slot == missing.number);
                        let mut text = format!("{missing} is missing");
                        if let Some((leaf, _)) = &missing.unusable_disk {
                            let disk = ArrayManager::name_in(disks)(*leaf).unwrap_or_default();
                            text = format!("{missing} (disk {disk})");
                        } else if let Some(seen) = seen {
                            text.push_str(&format!("; it was last seen on {}", seen.disk));
                            if let Some(fault) = faults.get(&seen.disk) {
                                text.push_str(&format!(" ({})", fault.message));
                            }
                        }
                        text
                    })
                    .collect()
            }
            lifecycle::ArrayStatus::Refused { reasons } => {
                let name = |leaf: &LeafId| ArrayManager::name_in(disks)(*leaf).unwrap_or_default();
                reasons.iter().map(|reason| refusal(reason, &name)).collect()
            }
            status => vec![status.to_string()],
        };
        let state = if kind == Kind::Incomplete { ArrayState::Incomplete } else { ArrayState::Failed };
        IdleArray { state, attention, remedy, label: None, members: Vec::new() }
    }

    /// Lists arrays that the state file knows and of which no disk was found.
    pub(crate) fn list_missing(&self, faults: &BTreeMap<String, ErrorDetail>) {
        let mut tables = self.inventory.write();
        let mut known: BTreeMap<Uuid, Vec<SavedDisk>> = BTreeMap::new();
        for saved in tables.disks.values().filter(|saved| !tables.arrays.contains_key(&saved.array)) {
            known.entry(saved.array).or_default().push(saved.clone());
        }
        for (uuid, mut disks) in known {
            disks.sort_by_key(|disk| disk.slot);
            let name = disks[0].array_name.clone();
            let attention = disks.iter().map(|disk| {
                let fault = faults.get(&disk.disk).map(|t| format!(" ({})", t.message)).unwrap_or_default();
                format!("member {} is missing; it was last seen on {}{fault}", disk.slot, disk.disk)
            });
            let members = disks.iter().map(|disk| IdleMember {
                role: disk.slot,
                id: String::new(),
                data_bytes: 0,
                disk: Some(disk.disk.clone()),
                state: braid_format::MemberState::InSync,
                present: false,
            });
            let stopped = tables.stopped.contains(&uuid);
            let idle = IdleArray {
                state: if stopped { ArrayState::Stopped } else { ArrayState::Incomplete },
                attention: attention.collect(),
                remedy: advice::remedy(Case::Array(ArrayCase::DisksMissing), ObjectNames::of(&name)),
                label: None,
                members: members.collect(),
            };
            tables.arrays.insert(uuid, ArrayEntry { uuid, name, condition: ArrayCondition::Idle(idle) });
        }
    }
}

/// Describes a refusal, with the disks that it concerns.
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

/// Returns the error for a named array that is not active.
pub(crate) fn not_active_error(name: &str, idle: &IdleArray) -> ErrorDetail {
    let kind = if idle.state == ArrayState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
    let reason = if idle.attention.is_empty() { String::new() } else { format!(": {}", idle.attention.join("; ")) };
    ErrorDetail::new(kind, format!("array {name} is {}{reason}", idle.state.word()))
        .with("array", name)
        .remedy(idle.remedy.clone())
}
