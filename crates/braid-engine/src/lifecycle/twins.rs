//! Several disks that bear the label of one member: the member, and copies of it.

use super::disk::MemberDisk;
use super::lines::{is_before, is_one_step_before};
use super::planted::{Planted, planted};
use crate::LeafId;

/// Takes out of `disks` those beside which a later label of the same member is here, and says so of each: a copy from
/// before that lies beside the member hinders nothing.
///
/// Only what another member confirms counts as later: one that bears the same label, or one a single step from it. Otherwise
/// the disk with the higher number may be the copy, which somebody used elsewhere.
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
        let (line, later) = (&disk.label.array.lineage, &other.label.array.lineage);
        disk.label.order() < other.label.order() && (line.id == later.id || is_before(line, later))
    };
    let later_than = |disk: &MemberDisk| {
        let backwards = planted(Planted::OlderTwinTaken);
        let is_later = |other: &&&MemberDisk| {
            id(other) == id(disk)
                && (is_earlier(disk, other) && is_confirmed(other) || backwards && is_earlier(other, disk))
        };
        all.iter().find(is_later).copied()
    };
    let mut aside = Vec::new();
    disks.retain(|disk| match later_than(disk) {
        Some(later) => {
            let (own, newer) = (disk.label.array.sequence, later.label.array.sequence);
            let role = later.label.member.role;
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

/// What is said of a disk that is not taken, of several that say they are a member which is out.
pub(super) fn one_of_several(role: u16) -> String {
    format!("it is one of several disks that say they are member {role}, and not the latest")
}
