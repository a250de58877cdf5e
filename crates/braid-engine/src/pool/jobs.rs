//! What of a pool's work in the background is to wait, is given up, and how far it has come.

use std::collections::BTreeSet;

use super::home::Pool;
use super::owners::OwnerId;
use super::state::RecordId;

/// What is not to be moved for now.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Members that are emptied, by their bits.
    members: u128,
    owners: BTreeSet<OwnerId>,
}

impl Waiting {
    /// Whether what an owner has on a member waits. What stands on a member that is emptied waits for that member's sake alone.
    pub fn waits(&self, owner: OwnerId, member: u8, closed: bool) -> bool {
        if closed { self.members >> member & 1 == 1 } else { self.owners.contains(&owner) }
    }
}

impl Pool {
    /// Of these members, which are emptied, and of these owners nothing more is begun to be moved, until this is called anew.
    pub fn hold_moves(&mut self, members: u128, owners: BTreeSet<OwnerId>) {
        let waiting = Waiting { members, owners };
        // Whoever says the same again and again stops nothing: a scan that were begun anew each time would never end.
        if self.moves.waiting != waiting {
            self.moves.waiting = waiting;
            self.moves.begin_anew();
        }
    }

    /// Nothing more is copied for these owners, which are to be flattened, until this is called anew.
    pub fn hold_flattening(&mut self, owners: BTreeSet<OwnerId>) {
        self.flattening_held = owners;
    }

    /// Records that are to be looked at yet to put together what these owners have scattered, and how many there are for each owner.
    pub fn compaction_left(&self, owners: &[OwnerId]) -> (u64, u64) {
        let members = || (0u8..).zip(&self.rooms).map(|(member, _)| u64::from(self.state.records.extents(member)));
        let all: u64 = members().sum();
        let Some(compaction) = &self.compaction else { return (0, all) };
        let waiting = owners.iter().filter(|owner| compaction.is_to_come(**owner)).count() as u64;
        let seen = |next: RecordId| {
            let before: u64 = members().take(usize::from(next.member)).sum();
            before + u64::from(next.index)
        };
        let walking = compaction.walking().filter(|(owner, _)| owners.contains(owner)).and_then(|(_, next)| next);
        (waiting * all + walking.map_or(0, |next| all.saturating_sub(seen(next))), all)
    }

    /// What these owners have scattered stays as it is, but for what is being moved already.
    pub fn stop_compacting(&mut self, owners: &[OwnerId]) {
        if let Some(compaction) = &mut self.compaction {
            compaction.forget(owners);
        }
    }
}
