//! Whether it is worth waiting for space: what is freed goes through a commit, a barrier and a discard before anybody may have it.

use braid_format::pool::Placing;

use super::home::{Pool, Room, VolumeId};

impl Pool {
    /// Whether space is on its way to be free on a member that the volume may use.
    pub fn is_freeing_for(&self, volume: VolumeId) -> bool {
        let owner = self.volumes.get(&volume).and_then(|volume| self.state.owners.get(volume.owner));
        let on = |owner: &braid_format::pool::Owner| if owner.place == Placing::Spread { u128::MAX } else { owner.on };
        self.is_freeing_on(owner.map_or(0, on))
    }

    /// Whether any is.
    pub fn is_freeing(&self) -> bool {
        self.is_freeing_on(u128::MAX)
    }

    pub(super) fn is_freeing_on(&self, on: u128) -> bool {
        let allowed = |(member, room): &(u8, &Room)| !room.closed && on >> member & 1 == 1;
        let empty = |member: u8| self.empties.iter().any(|extent| extent.member == member);
        let mut rooms = (0u8..).zip(&self.rooms).filter(allowed);
        rooms.any(|(member, room)| {
            room.freed.len() > 0 || empty(member) || self.commits.discarding(member).next().is_some()
        })
    }

    /// Asks for the commit that what is freed waits for, if there is one.
    pub fn hurry_freeing(&mut self) {
        if !self.empties.is_empty() || self.rooms.iter().any(|room| room.freed.awaits_commit()) {
            self.commit_soon();
        }
    }

    /// How many extents have become free again since the pool was opened.
    pub fn extents_regained(&self) -> u64 {
        self.commits.discarded
    }
}
