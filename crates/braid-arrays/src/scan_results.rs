//! The result of a scan for members: disks with labels, by the arrays and pools that the labels name.

use braid_api::ErrorDetail;
use braid_array_admin::lifecycle::{self, DiskOutcome, FoundDisk};
use braid_format::{Label, newest};
use braid_inventory::{FoundPoolDisk, OpenDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// A disk whose label was read.
pub struct ScannedArrayDisk {
    /// The disk.
    pub disk: Arc<OpenDisk>,
    /// Its label.
    pub(crate) found: FoundDisk,
}

/// The result of a scan for members.
#[derive(Default)]
pub struct ScanResults {
    /// Open disks with labels of arrays, by the array that the label names.
    pub arrays: BTreeMap<Uuid, Vec<ScannedArrayDisk>>,
    /// Open disks with labels of pools.
    pub pools: Vec<FoundPoolDisk>,
    /// Why known disks could not be read, by name.
    pub troubles: BTreeMap<String, ErrorDetail>,
}

impl ScanResults {
    /// Returns whether the array can start automatically and no member is missing. A disk that is only an old copy of a
    /// member does not count as that member.
    pub(crate) fn is_complete(&self, uuid: Uuid) -> bool {
        let Some(disks) = self.arrays.get(&uuid) else { return false };
        let disks: Vec<FoundDisk> = disks.iter().map(|scanned| scanned.found.clone()).collect();
        lifecycle::resolve_labels(&disks, uuid).is_some_and(|found| found.is_complete())
    }

    /// Returns how many arrays and pools have members in the result.
    pub(crate) fn owner_count(&self) -> usize {
        let pools: BTreeSet<Uuid> = self.pools.iter().map(|found| found.label.uuid).collect();
        self.arrays.len() + pools.len()
    }

    /// Moves the pools out of the result, with copies of all faults.
    pub(crate) fn take_pools(&mut self) -> ScanResults {
        ScanResults {
            pools: std::mem::take(&mut self.pools),
            troubles: self.troubles.clone(),
            ..ScanResults::default()
        }
    }

    /// Returns whether the array with this name or UUID is complete.
    pub(crate) fn has_complete(&self, name: &str) -> bool {
        self.arrays.iter().any(|(uuid, disks)| {
            let labels = disks.iter().filter_map(|disk| member_label(&disk.found));
            let called = newest(labels).is_some_and(|label| label.array.name.as_str() == name);
            (called || uuid.to_string() == name) && self.is_complete(*uuid)
        })
    }

    /// Moves the complete arrays out of the result.
    pub(crate) fn take_complete(&mut self) -> ScanResults {
        let complete: Vec<Uuid> = self.arrays.keys().copied().filter(|uuid| self.is_complete(*uuid)).collect();
        let arrays = complete.into_iter().filter_map(|uuid| self.arrays.remove_entry(&uuid)).collect();
        ScanResults { arrays, ..ScanResults::default() }
    }
}

/// Returns the label of a member; none of a disk with another label or without one.
fn member_label(found: &FoundDisk) -> Option<&Label> {
    match &found.outcome {
        DiskOutcome::Member(member) => Some(&member.label),
        _ => None,
    }
}
