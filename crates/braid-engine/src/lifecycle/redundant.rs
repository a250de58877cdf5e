//! Whether a redundant array can start with the members that are here, and whether it may.

use braid_format::{ArrayPart, MemberState, StartPolicy};
use braid_geometry::{Geometry, Level};

use super::coverage::covers;
use super::grow::joins;
use super::lines::Standing;
use super::planted::{Planted, planted};
use super::replace::successor_of;
use super::scan::{FoundMember, Missing, Refusal, Status};

/// Whether arrays of this level go on when members fail.
pub fn is_redundant(level: Level) -> bool {
    matches!(level, Level::Raid1 | Level::Raid10 | Level::Raid5 | Level::Raid6)
}

/// How many roles a label's zones have: those that hold content.
pub(super) fn roles_of(label: &ArrayPart) -> usize {
    let roles = label.zones.iter().fold(0, |set, zone| set | zone.members);
    (u128::BITS - roles.leading_zeros()) as usize
}

/// Whether nobody is out and nobody is being filled: then there is nobody who comes to hold everything by what the bitmap says, and
/// bits may be cleared. Roles of copies that are nobody's do not count: who takes one gets everything. With parity they do, as they are
/// what others make up for.
pub(super) fn lacks_nobody(label: &ArrayPart) -> bool {
    let of_copies = label.spec.level.parity() == 0;
    label.members.iter().take(roles_of(label)).all(|member| match member.state {
        MemberState::InSync => true,
        MemberState::Absent => of_copies,
        _ => false,
    })
}

/// The members of one redundant array, seen together.
pub(super) struct Seats<'a> {
    pub newest: &'a ArrayPart,
    pub geometry: &'a Geometry,
    pub members: &'a [FoundMember],
}

impl Seats<'_> {
    fn seat(&self, role: u16) -> Option<&FoundMember> {
        self.members.get(usize::from(role))
    }

    /// Whether a role's content is here, complete: on its own member or on the one that is to replace it.
    fn holds(&self, role: u16) -> bool {
        self.serves(role) || successor_of(self.newest, role).is_some_and(|successor| self.serves(successor))
    }

    /// Whether a member is here, complete. One that the newest label promotes, and that does not bear it yet, is so only beside
    /// the others: a start does not count it. One with which the array was about to grow counts.
    fn serves(&self, role: u16) -> bool {
        let filling = planted(Planted::FillingStartedAlone);
        self.seat(role).is_some_and(|m| match (m.standing, &m.disk) {
            (Some(Standing::Current), _) => true,
            (Some(Standing::Behind), Some(disk)) => {
                let label = &disk.label;
                let own = label.member.role;
                label.array.members[usize::from(own)].state == MemberState::InSync
                    || joins(&label.array, own) && !planted(Planted::JoiningUncounted)
            }
            (Some(Standing::Filling), _) => filling,
            _ => false,
        })
    }

    /// Members that the newest label calls in sync and that are not here at all.
    fn absent(&self) -> impl Iterator<Item = &FoundMember> {
        self.members.iter().filter(|m| m.entry.state == MemberState::InSync && m.standing.is_none())
    }

    /// What stands in the way of a start and can be overridden: members that are old copies, or were used apart.
    pub fn refusals(&self) -> Vec<Refusal> {
        let needed = |m: &&FoundMember| m.entry.state == MemberState::InSync;
        let of = |m: &FoundMember| {
            let disk = m.disk.as_ref()?;
            let label = &disk.label.array;
            let (role, leaf, sequence, newest) = (m.role, disk.leaf, label.sequence, self.newest.sequence);
            match m.standing? {
                Standing::Stale if needed(&m) => Some(Refusal::OldCopy { role, leaf, sequence, newest }),
                Standing::Diverged => Some(Refusal::WentApart { role, leaf, line: label.lineage.id }),
                _ => None,
            }
        };
        self.members.iter().filter_map(of).collect()
    }

    /// The status, those aside that [`Seats::refusals`] lists: these are taken as left out.
    pub fn status(&self, missing: impl Fn(&FoundMember) -> Missing) -> Status {
        let status = self.status_without_journal(&missing);
        let absent = |m: &&FoundMember| m.entry.state == MemberState::Journal && m.standing.is_none();
        let Some(journal) = self.members.iter().find(absent) else { return status };
        let needed = self.needs_journal();
        match status {
            Status::Ready => Status::Degraded { missing: vec![missing(journal)] },
            Status::Degraded { missing: mut lost } | Status::Waiting { missing: mut lost } if needed => {
                lost.push(missing(journal));
                Status::Incomplete { missing: lost }
            }
            Status::Degraded { missing: mut lost } => {
                lost.push(missing(journal));
                Status::Degraded { missing: lost }
            }
            other => other,
        }
    }

    /// Whether what only the journal's disk may hold is needed: where parity must stand in for data, and may not fit it.
    pub fn needs_journal(&self) -> bool {
        !self.newest.clean && !(0..self.geometry.members().len() as u16).all(|role| self.holds(role))
    }

    /// The same, as if the ring of the journal were on the members.
    pub fn status_without_journal(&self, missing: impl Fn(&FoundMember) -> Missing) -> Status {
        let lost: Vec<Missing> = self.absent().map(missing).collect();
        if !covers(self.geometry, |role| self.holds(role)) {
            return Status::Incomplete { missing: lost };
        }
        let seats = self.geometry.members().len();
        if lost.is_empty() {
            let is_here = |m: &FoundMember| matches!(m.standing, Some(Standing::Current | Standing::Behind));
            let whole = self.members.iter().take(seats).all(is_here);
            return if whole { Status::Ready } else { Status::Degraded { missing: lost } };
        }
        // Those that are absent could have gone on without the ones here if together they hold everything. One that was
        // being filled may have been completed in the step that the labels here do not know.
        let elsewhere = |role: u16| {
            let state = |m: &FoundMember| matches!(m.entry.state, MemberState::InSync | MemberState::Filling);
            self.seat(role).is_some_and(|m| state(m) && m.standing.is_none())
        };
        let lived_on =
            covers(self.geometry, |role| elsewhere(role) || successor_of(self.newest, role).is_some_and(elsewhere));
        if lived_on && self.newest.start_policy != StartPolicy::Auto {
            Status::Waiting { missing: lost }
        } else {
            Status::Degraded { missing: lost }
        }
    }
}
