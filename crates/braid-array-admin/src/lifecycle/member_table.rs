//! What the table of members and the jobs of a label say: whether the array is redundant and whole, who joins it, whose
//! successor a member is, who is rebuilt.

use braid_engine::Successor;
use braid_format::{ArrayPart, Job, JobKind, MemberState};
use braid_geometry::Level;

/// Whether arrays of this level tolerate failed members.
pub fn is_redundant(level: Level) -> bool {
    matches!(level, Level::Raid1 | Level::Raid10 | Level::Raid5 | Level::Raid6)
}

/// Returns the number of slots that hold content: those in the label's zones.
pub(super) fn roles_of(label: &ArrayPart) -> usize {
    let roles = label.zones.iter().fold(0, |set, zone| set | zone.members);
    (u128::BITS - roles.leading_zeros()) as usize
}

/// Whether no member is failed or rebuilding: then no later delta resync depends on the bitmap, and bits may be
/// cleared. Vacant slots of a mirror do not count, because a disk that takes one is rebuilt in full. With parity they
/// do, because the other members stand in for them.
pub(super) fn may_clear_bits(label: &ArrayPart) -> bool {
    let of_copies = label.spec.level.parity() == 0;
    label.members.iter().take(roles_of(label)).all(|member| match member.state {
        MemberState::InSync => true,
        MemberState::Empty => of_copies,
        _ => false,
    })
}

/// While a redundant array grows: returns the number of the first disk being added. That disk and all after it in the
/// member table are the disks being added. `None` if the array does not grow, or has no redundancy.
pub(super) fn joining_from(label: &ArrayPart) -> Option<u16> {
    label.jobs.iter().find(|job| job.kind == JobKind::Grow).and_then(|job| job.target)
}

/// Whether this number is of a disk being added.
pub(super) fn joins(label: &ArrayPart, number: u16) -> bool {
    joining_from(label).is_some_and(|first| number >= first)
}

/// Removes the disks being added from the member table.
pub(super) fn forget_joining(label: &mut ArrayPart) {
    if let Some(first) = joining_from(label) {
        label.members.truncate(usize::from(first));
        label.jobs.retain(|job| job.kind != JobKind::Grow);
    }
}

/// Returns the number of a slot's successor, if it has one.
pub(super) fn successor_of(label: &ArrayPart, role: u16) -> Option<u16> {
    successors_of(label).find(|s| s.role == role).map(|s| s.member)
}

/// Returns the successors that hold content, each with the slot that it is to take.
pub(super) fn successors_of(label: &ArrayPart) -> impl Iterator<Item = Successor> + '_ {
    let holds = |member: &u16| {
        let state = label.members.get(usize::from(*member)).map(|m| m.state);
        matches!(state, Some(MemberState::InSync | MemberState::Rebuilding))
    };
    let replaces = |job: &Job| Some((job.source?, job.target?)).filter(|_| job.kind == JobKind::Replace);
    let named = label.jobs.iter().filter_map(replaces);
    named.filter(move |(_, member)| holds(member)).map(|(role, member)| Successor { role, member })
}

/// Returns the job that rebuilds a member in full.
pub(super) fn rebuild_of(label: &ArrayPart, role: u16) -> Option<&Job> {
    label.jobs.iter().find(|job| is_rebuild_of(job, role))
}

/// Whether a job rebuilds this member, of a slot or a successor, in full.
pub(super) fn is_rebuild_of(job: &Job, role: u16) -> bool {
    matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && job.target == Some(role)
}
