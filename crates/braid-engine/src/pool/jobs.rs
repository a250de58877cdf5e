//! Background work of a pool: pausing it, stopping it, and its progress.

use std::collections::BTreeSet;

use super::Pool;
use super::owners::OwnerId;
use super::units::RecordId;

/// Moves that are paused.
#[derive(Default, PartialEq, Eq)]
pub(super) struct PausedMoves {
    /// Members that are being emptied, a bit mask.
    members: u128,
    owners: BTreeSet<OwnerId>,
}

impl PausedMoves {
    /// Returns whether moves of an owner's blocks off a member are paused. On a member that is being emptied, only the
    /// pause of that member matters.
    pub fn is_paused(&self, owner: OwnerId, member: u8, closed: bool) -> bool {
        if closed { self.members >> member & 1 == 1 } else { self.owners.contains(&owner) }
    }
}

impl Pool {
    /// Pauses moves off these members, which are being emptied, and moves of these owners' blocks. Each call replaces
    /// the pauses of the previous one. Moves that have begun go on.
    pub fn pause_moves(&mut self, members: u128, owners: BTreeSet<OwnerId>) {
        let paused = PausedMoves { members, owners };
        // A repeated call must not restart the scan: a scan that is restarted each time never ends.
        if self.moves.paused != paused {
            self.moves.paused = paused;
            self.moves.restart_scan();
        }
    }

    /// Pauses flattening of these owners. Each call replaces the pauses of the previous one.
    pub fn pause_flattening(&mut self, owners: BTreeSet<OwnerId>) {
        self.flattening_held = owners;
    }

    /// Returns how many records compaction of these owners still has to scan, and how many there are for each owner.
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

    /// Stops compaction of these owners. Moves that have begun go on.
    pub fn stop_compacting(&mut self, owners: &[OwnerId]) {
        if let Some(compaction) = &mut self.compaction {
            compaction.forget(owners);
        }
    }
}
