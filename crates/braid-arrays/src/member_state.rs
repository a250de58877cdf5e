//! The state of a member as users see it.

use braid_api::{DiskState, MemberState};
use braid_inventory::{OpenDisk, disk_state};

/// Returns the state of a member, from the state that the labels record and from its disk, if that is open.
pub(crate) fn member_state(entry: braid_format::MemberState, disk: Option<&OpenDisk>) -> MemberState {
    use braid_format::MemberState as Recorded;
    match (entry, disk.map(|disk| disk_state(disk).0)) {
        (Recorded::Failed, _) => MemberState::Failed,
        (Recorded::Empty, _) => MemberState::Vacant,
        (_, None) => MemberState::Missing,
        (_, Some(DiskState::Gone)) => MemberState::Gone,
        (Recorded::Rebuilding, Some(_)) => MemberState::Rebuilding,
        (Recorded::Spare, Some(DiskState::Ok)) => MemberState::Spare,
        (Recorded::Journal, Some(DiskState::Ok)) => MemberState::Journal,
        (_, Some(DiskState::Ok)) => MemberState::InSync,
        (_, Some(_)) => MemberState::Failing,
    }
}
