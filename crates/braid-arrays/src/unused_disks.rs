//! Disks that bear a label of an array and are not used by it: copies, and members that cannot return.

use crate::ArrayManager;
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::lifecycle::{self, DiskOutcome, FoundArray};
use braid_inventory::{ActiveArray, ArrayEntry, OpenDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// Why disks are not used, by name.
pub(crate) type UnusedDisks = Arc<Mutex<BTreeMap<String, ErrorDetail>>>;

impl ArrayManager {
    /// Returns whether the disk was present throughout and was dropped nevertheless: only an operator can decide that
    /// it is healthy.
    fn was_dropped_while_present(&self, uuid: Uuid, disk: &str) -> bool {
        let tables = self.inventory.read();
        let is_dropped =
            |active: &ActiveArray| active.missing.values().any(|missing| missing.disk == disk && !missing.gone);
        tables.arrays.get(&uuid).and_then(ArrayEntry::active).is_some_and(is_dropped)
    }

    /// Handles further disks with a label of a serving array. At redundant levels they are members that return; at
    /// others they are copies, or the same disk by another path.
    pub(crate) async fn handle_further_disks(
        self: &Arc<Self>,
        uuid: Uuid,
        name: &str,
        redundant: bool,
        named: bool,
        disks: Vec<Arc<OpenDisk>>,
        unused: &UnusedDisks,
    ) {
        if redundant {
            for disk in disks {
                if !named && self.was_dropped_while_present(uuid, &disk.name) {
                    self.close_disks(vec![disk]).await;
                    continue;
                }
                let disk_name = disk.name.clone();
                match self.return_disk(uuid, disk).await {
                    Ok(()) => {}
                    // The label on it cannot be used.
                    Err(error) if error.kind == Kind::InvalidArgument => {
                        let why = error.message.strip_prefix(&format!("disk {disk_name}: ")).unwrap_or(&error.message);
                        record_unused(unused, name, &disk_name, why.to_owned());
                    }
                    Err(error) => {
                        unused.lock().unwrap_or_else(PoisonError::into_inner).insert(disk_name, error);
                    }
                }
            }
            return;
        }
        for disk in &disks {
            let description = self.describe_copy(uuid, disk).await;
            let message = format!(
                "disk {} bears the label of a member of array {name}, which is active: it is {description}; wipe its label, or detach it",
                disk.name
            );
            self.inventory.events().warning("disk_is_a_copy", &message, &[("array", name), ("disk", &disk.name)]);
            record_unused(unused, name, &disk.name, format!("array {name} is active, and this is {description}"));
        }
        self.close_disks(disks).await;
    }

    /// Describes a disk with the label of an array that already has all members.
    async fn describe_copy(&self, uuid: Uuid, disk: &OpenDisk) -> String {
        let scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        let label = scan.disks.into_iter().find_map(|found| match found.outcome {
            DiskOutcome::Member(member) => Some(member.label.array),
            _ => None,
        });
        let now = self.inventory.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.label.sequence));
        match (label, now) {
            (Some(label), Some(now)) if label.sequence < now => {
                format!("an old copy of it (its label has sequence {}, the array's {now})", label.sequence)
            }
            _ => "a copy of it".to_owned(),
        }
    }

    /// Reports disks that bear a label of the array and are not used by it, with the reason.
    pub(crate) fn report_outsiders(&self, found: &FoundArray, disks: &[Arc<OpenDisk>], unused: &UnusedDisks) {
        let name = found.name.as_str();
        for (leaf, why) in &found.outsiders {
            let Some(disk) = ArrayManager::name_in(disks)(*leaf) else { continue };
            let message = format!("disk {disk} bears a label of array {name} and is not used: {why}");
            self.inventory.events().warning("disk_is_a_copy", message, &[("array", name), ("disk", &disk)]);
            record_unused(unused, name, &disk, why.clone());
        }
    }
}

/// Records why a disk is not used.
fn record_unused(unused: &UnusedDisks, array: &str, disk: &str, why: String) {
    let error = ErrorDetail::new(Kind::InUse, format!("disk {disk} is not used: {why}"))
        .with("array", array)
        .with("disk", disk)
        .remedy(format!("where nothing on it is needed, remove its label: braid disk wipe {disk}"));
    unused.lock().unwrap_or_else(PoisonError::into_inner).insert(disk.to_owned(), error);
}
