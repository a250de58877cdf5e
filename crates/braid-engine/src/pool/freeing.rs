//! Space that is being freed, and so worth waiting for: a freed extent needs a commit, a barrier and a discard before
//! it can be allocated.

use braid_format::pool::AllocationPolicy;

use super::shared::VolumeId;
use super::{Pool, Room};

impl Pool {
    /// Returns whether space is being freed on a member that the volume may use.
    pub fn is_freeing_for(&self, volume: VolumeId) -> bool {
        let owner = self.volumes.get(&volume).and_then(|volume| self.state.owners.get(volume.owner));
        let on = |owner: &braid_format::pool::Owner| {
            if owner.allocation == AllocationPolicy::Spread { u128::MAX } else { owner.on }
        };
        self.is_freeing_on(owner.map_or(0, on))
    }

    /// Returns whether space is being freed on any member.
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

    /// Requests the commit that freed extents wait for, if any do.
    pub fn commit_freed(&mut self) {
        if !self.empties.is_empty() || self.rooms.iter().any(|room| room.freed.awaits_commit()) {
            self.commit_soon();
        }
    }

    /// Returns how many extents have become free again since the pool was opened.
    pub fn extents_freed(&self) -> u64 {
        self.commits.discarded
    }
}
