//! Whether a redundant array can start with the present members, and whether it may.

use braid_format::{ArrayPart, MemberState, StartPolicy};
use braid_geometry::Geometry;

use super::coverage::covers;
use super::found::FoundMember;
use super::lineage::MemberStanding;
use super::member_table::{joins, successor_of};
use super::status::{ArrayStatus, MissingMember, Refusal};

/// The members of a redundant array, as found by a scan.
pub(super) struct Assembly<'a> {
    pub newest: &'a ArrayPart,
    pub geometry: &'a Geometry,
    pub members: &'a [FoundMember],
}

impl Assembly<'_> {
    fn slot(&self, role: u16) -> Option<&FoundMember> {
        self.members.get(usize::from(role))
    }

    /// Whether the content of a slot is present and complete: on its own member or on its successor.
    fn holds(&self, role: u16) -> bool {
        self.serves(role) || successor_of(self.newest, role).is_some_and(|successor| self.serves(successor))
    }

    /// Whether a member is present and complete. A member that the newest label promotes, but that does not bear that
    /// label, is not: a start does not count it. A disk that the array was about to add is.
    fn serves(&self, role: u16) -> bool {
        self.slot(role).is_some_and(|m| match (m.standing, &m.disk) {
            (Some(MemberStanding::Current), _) => true,
            (Some(MemberStanding::Behind), Some(disk)) => {
                let label = &disk.label;
                let own = label.member.slot;
                label.array.members[usize::from(own)].state == MemberState::InSync || joins(&label.array, own)
            }
            _ => false,
        })
    }

    /// Returns the members that the newest label calls in sync and whose disks are missing.
    fn missing_in_sync(&self) -> impl Iterator<Item = &FoundMember> {
        self.members.iter().filter(|m| m.entry.state == MemberState::InSync && m.standing.is_none())
    }

    /// Returns the reasons against a start that can be overridden: members that are old copies or have diverged.
    pub fn refusals(&self) -> Vec<Refusal> {
        let needed = |m: &&FoundMember| m.entry.state == MemberState::InSync;
        let of = |m: &FoundMember| {
            let disk = m.disk.as_ref()?;
            let label = &disk.label.array;
            let (role, leaf, sequence, newest) = (m.number, disk.leaf, label.sequence, self.newest.sequence);
            match m.standing? {
                MemberStanding::Stale if needed(&m) => Some(Refusal::OldCopy { role, leaf, sequence, newest }),
                MemberStanding::Diverged => Some(Refusal::MemberDiverged { role, leaf, line: label.lineage.id }),
                _ => None,
            }
        };
        self.members.iter().filter_map(of).collect()
    }

    /// Returns the status, with the members that [`Assembly::refusals`] lists taken as failed.
    pub fn status(&self, missing: impl Fn(&FoundMember) -> MissingMember) -> ArrayStatus {
        let status = self.status_without_journal(&missing);
        let is_missing_journal = |m: &&FoundMember| m.entry.state == MemberState::Journal && m.standing.is_none();
        let Some(journal) = self.members.iter().find(is_missing_journal) else { return status };
        let needed = self.needs_journal();
        match status {
            ArrayStatus::Ready => ArrayStatus::Degraded { missing: vec![missing(journal)] },
            ArrayStatus::Degraded { missing: mut lost } | ArrayStatus::Waiting { missing: mut lost } if needed => {
                lost.push(missing(journal));
                ArrayStatus::Incomplete { missing: lost }
            }
            ArrayStatus::Degraded { missing: mut lost } => {
                lost.push(missing(journal));
                ArrayStatus::Degraded { missing: lost }
            }
            other => other,
        }
    }

    /// Whether a start needs what only the disk of the journal may hold: the array was not stopped cleanly, so that
    /// parity may not match its data, and a slot whose member is missing has to be computed from parity.
    pub fn needs_journal(&self) -> bool {
        !self.newest.clean && !(0..self.geometry.member_data_bytes().len() as u16).all(|role| self.holds(role))
    }

    /// [`Assembly::status`], as if the log ring were on the members.
    pub fn status_without_journal(&self, missing: impl Fn(&FoundMember) -> MissingMember) -> ArrayStatus {
        let lost: Vec<MissingMember> = self.missing_in_sync().map(missing).collect();
        if !covers(self.geometry, |role| self.holds(role)) {
            return ArrayStatus::Incomplete { missing: lost };
        }
        let slots = self.geometry.member_data_bytes().len();
        if lost.is_empty() {
            let is_current =
                |m: &FoundMember| matches!(m.standing, Some(MemberStanding::Current | MemberStanding::Behind));
            let whole = self.members.iter().take(slots).all(is_current);
            return if whole { ArrayStatus::Ready } else { ArrayStatus::Degraded { missing: lost } };
        }
        // The missing members could have gone on without the present ones if together they hold everything. A member
        // being rebuilt may have been completed in a step that the present labels do not know.
        let is_missing = |role: u16| {
            let state = |m: &FoundMember| matches!(m.entry.state, MemberState::InSync | MemberState::Rebuilding);
            self.slot(role).is_some_and(|m| state(m) && m.standing.is_none())
        };
        let could_have_diverged =
            covers(self.geometry, |role| is_missing(role) || successor_of(self.newest, role).is_some_and(is_missing));
        if could_have_diverged && self.newest.start_policy != StartPolicy::Auto {
            ArrayStatus::Waiting { missing: lost }
        } else {
            ArrayStatus::Degraded { missing: lost }
        }
    }
}
