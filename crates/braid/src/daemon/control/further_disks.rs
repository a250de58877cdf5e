//! Disks that bear the label of an array and are not used by it: copies, and members that do not return.

use super::Control;
use super::tables::{Active, ArrayEntry, OpenDisk};
use braid_api::{ErrorDetail, Kind};
use braid_engine::lifecycle::{self, DiskOutcome, FoundArray};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// Why disks are not used, by name.
pub(super) type Unused = Arc<Mutex<BTreeMap<String, ErrorDetail>>>;

impl Control {
    /// Whether the disk was here all the time and was left out nevertheless: whether it is well, somebody has to say.
    fn was_left_out(&self, uuid: Uuid, disk: &str) -> bool {
        let tables = self.read();
        let away = |active: &Active| active.away.values().any(|away| away.disk == disk && !away.gone);
        tables.arrays.get(&uuid).and_then(ArrayEntry::active).is_some_and(away)
    }

    /// Further disks that bear the label of an array that serves: members that return. At other levels they are copies, or
    /// the same disk by another path.
    pub(super) async fn on_further_disks(
        self: &Arc<Self>,
        uuid: Uuid,
        name: &str,
        redundant: bool,
        named: bool,
        disks: Vec<Arc<OpenDisk>>,
        unused: &Unused,
    ) {
        if redundant {
            for disk in disks {
                if !named && self.was_left_out(uuid, &disk.name) {
                    self.close_disks(vec![disk]).await;
                    continue;
                }
                let disk_name = disk.name.clone();
                match self.return_disk(uuid, disk).await {
                    Ok(()) => {}
                    // What it bears is of no use.
                    Err(error) if error.kind == Kind::InvalidArgument => {
                        let why = error.message.strip_prefix(&format!("disk {disk_name}: ")).unwrap_or(&error.message);
                        note_unused(unused, name, &disk_name, why.to_owned());
                    }
                    Err(error) => {
                        unused.lock().unwrap_or_else(PoisonError::into_inner).insert(disk_name, error);
                    }
                }
            }
            return;
        }
        for disk in &disks {
            let age = self.label_age(uuid, disk).await;
            let message = format!(
                "disk {} bears the label of a member of array {name}, which is active: it is {age}; wipe its label, or detach it",
                disk.name
            );
            self.events().warning("disk_is_a_copy", &message, &[("array", name), ("disk", &disk.name)]);
            note_unused(unused, name, &disk.name, format!("array {name} is active, and this is {age}"));
        }
        self.close_disks(disks).await;
    }

    /// What a disk is beside the members of an array that serves.
    async fn label_age(&self, uuid: Uuid, disk: &OpenDisk) -> String {
        let scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        let label = scan.disks.into_iter().find_map(|found| match found.outcome {
            DiskOutcome::Member(member) => Some(member.label.array),
            _ => None,
        });
        let now = self.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.label.sequence));
        match (label, now) {
            (Some(label), Some(now)) if label.sequence < now => {
                format!("an old copy of it (its label has sequence {}, the array's {now})", label.sequence)
            }
            _ => "a copy of it".to_owned(),
        }
    }

    /// Says of disks that bear the array's label and are not used by it why that is so.
    pub(super) fn tell_outsiders(&self, found: &FoundArray, disks: &[Arc<OpenDisk>], unused: &Unused) {
        let name = found.name.as_str();
        for (leaf, why) in &found.outsiders {
            let Some(disk) = Control::name_in(disks)(*leaf) else { continue };
            let message = format!("disk {disk} bears a label of array {name} and is not used: {why}");
            self.events().warning("disk_is_a_copy", message, &[("array", name), ("disk", &disk)]);
            note_unused(unused, name, &disk, why.clone());
        }
    }
}

/// Notes of a disk that is not used why that is so.
fn note_unused(unused: &Unused, array: &str, disk: &str, why: String) {
    let error = ErrorDetail::new(Kind::InUse, format!("disk {disk} is not used: {why}"))
        .with("array", array)
        .with("disk", disk)
        .remedy(format!("where nothing on it is needed, remove its label: braid disk wipe {disk}"));
    unused.lock().unwrap_or_else(PoisonError::into_inner).insert(disk.to_owned(), error);
}
