//! Several disks with the label of one member: the member itself, and copies of it.

use braid_engine::LeafId;

use super::disk::MemberDisk;
use super::lineage::{is_ancestor, is_one_step_before};

/// Removes from `disks` those beside which a later label of the same member is present, and returns them with the
/// reason: an older copy beside the member must not prevent a start.
///
/// A label counts as later only if another member confirms it, with the same label or one a single step from it.
/// Otherwise the disk with the higher number may be a copy that was used elsewhere.
pub(super) fn set_older_aside(disks: &mut Vec<&MemberDisk>) -> Vec<(LeafId, String)> {
    let all = disks.clone();
    let id = |disk: &MemberDisk| disk.label.member.id;
    let is_confirmed = |disk: &MemberDisk| {
        let label = &disk.label.array;
        let confirms = |other: &MemberDisk| {
            let other = &other.label.array;
            other == label || is_one_step_before(other, label) || is_one_step_before(label, other)
        };
        all.iter().any(|other| id(other) != id(disk) && confirms(other))
    };
    let is_earlier = |disk: &MemberDisk, other: &MemberDisk| {
        let (lineage, later) = (&disk.label.array.lineage, &other.label.array.lineage);
        disk.label.order() < other.label.order() && (lineage.id == later.id || is_ancestor(lineage, later))
    };
    let later_than = |disk: &MemberDisk| {
        let is_later = |other: &&&MemberDisk| id(other) == id(disk) && is_earlier(disk, other) && is_confirmed(other);
        all.iter().find(is_later).copied()
    };
    let mut aside = Vec::new();
    disks.retain(|disk| match later_than(disk) {
        Some(later) => {
            let (own, newer) = (disk.label.array.sequence, later.label.array.sequence);
            let role = later.label.member.slot;
            aside.push((
                disk.leaf,
                format!("it is an old copy of member {role} (label {own}), which is here itself (label {newer})"),
            ));
            false
        }
        None => true,
    });
    aside
}

/// Returns the reason for not using one of several disks that claim to be the same failed member.
pub(super) fn one_of_several(role: u16) -> String {
    format!("it is one of several disks that say they are member {role}, and not the latest")
}
