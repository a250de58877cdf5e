//! What a scan has found of an array: its slots, their disks, and whether it can be started.

use braid_engine::LeafId;
use braid_format::{ArrayPart, Header, MemberEntry, MemberPart, Name, Uuid};

use super::disk::MemberDisk;
use super::lineage::MemberStanding;
use super::member_table::is_redundant;
use super::status::{ArrayStatus, Refusal};
use super::write::Target;

/// An array of which at least one disk is present.
#[derive(Clone, Debug)]
pub struct FoundArray {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name, by the newest label.
    pub name: Name,
    /// The newest label; `None` if only remnants of labels are left.
    pub newest: Option<ArrayPart>,
    /// Its slots and the disks that hold them; empty without a newest label.
    pub members: Vec<FoundMember>,
    /// Whether it can be started, and if not, why not.
    pub status: ArrayStatus,
    /// The status that a start with `--force` acts on; `None` if there is nothing to override. For a refused redundant
    /// array: its status without the members that it is refused for. For an array that lacks the disk of its journal:
    /// its status without that disk.
    pub forced: Option<Box<ArrayStatus>>,
    /// Disks that bear its label and are not, or no longer, members; each with the reason.
    pub outsiders: Vec<(LeafId, String)>,
    /// Disks on which only the first sector of its label is left.
    pub remnants: Vec<(LeafId, Box<Header>)>,
    /// Other present arrays with the same name, except those that are half created or half deleted.
    pub same_name: Vec<Uuid>,
}

/// A slot of an array that was found.
#[derive(Clone, Debug)]
pub struct FoundMember {
    /// The slot.
    pub number: u16,
    /// Its entry in the newest label.
    pub entry: MemberEntry,
    /// Its disk, if present.
    pub disk: Option<MemberDisk>,
    /// What that disk is to a redundant array; `None` if it is missing, and at levels without redundancy.
    pub standing: Option<MemberStanding>,
}

impl FoundMember {
    /// Returns the disk's own part of the label, with the slot and the size of the data area from the newest label.
    pub(super) fn part(&self) -> Option<MemberPart> {
        let disk = self.disk.as_ref()?;
        let own = &disk.label.member;
        let places = own.layout.with_data(self.entry.data_bytes).unwrap_or(own.layout);
        Some(MemberPart { slot: self.number, layout: places, ..own.clone() })
    }
}

impl FoundArray {
    /// Returns the members whose disks are present.
    pub fn disks(&self) -> impl Iterator<Item = &MemberDisk> {
        self.members.iter().filter_map(|member| member.disk.as_ref())
    }

    /// Whether a start with these options (`--force` and `--degraded`) would be accepted.
    pub fn may_start(&self, force: bool, degraded: bool) -> bool {
        if self.newest.as_ref().is_some_and(|newest| is_redundant(newest.spec.level)) {
            let status = self.forced.as_deref().filter(|_| force).unwrap_or(&self.status);
            return status.starts_by_itself() || degraded && matches!(status, ArrayStatus::Waiting { .. });
        }
        let only_forcible =
            matches!(&self.status, ArrayStatus::Refused { reasons } if reasons.iter().all(Refusal::can_be_forced));
        self.status.starts_by_itself() || force && only_forcible && self.missing().next().is_none()
    }

    /// Whether it starts automatically and has every disk that the newest label names: no other disk has to be searched
    /// for.
    pub fn is_complete(&self) -> bool {
        match &self.status {
            ArrayStatus::Ready => true,
            ArrayStatus::Degraded { missing } => missing.is_empty(),
            _ => false,
        }
    }

    /// Whether the array lacks the disk of its journal, and could start with it.
    pub fn waits_for_journal(&self) -> bool {
        let ArrayStatus::Incomplete { missing } = &self.status else { return false };
        self.forced.is_some() && missing.iter().any(|missing| missing.is_journal)
    }
}

/// Returns the present members as targets for labels.
pub(super) fn targets_of(found: &FoundArray) -> Vec<Target> {
    let target = |member: &FoundMember| {
        let disk = member.disk.as_ref()?;
        Some(Target { leaf: disk.leaf, part: member.part()?, doubtful: disk.doubtful })
    };
    found.members.iter().filter_map(target).collect()
}
