//! Accepting the loss of a member: the member never returns, its blocks are lost, and no owner is in doubt because of
//! it any longer.
//!
//! A missing member may return, so reading a block that it may hold is an error. Once an administrator has accepted the
//! loss, such a block reads as what the volume's parent has, or as zeros. The caller writes labels without the member
//! before it calls [`Pool::accept_loss`]. After a crash in between, the next open finds the member neither present nor
//! missing: no owner is in doubt, whether or not the changes of owners were committed.

use braid_format::pool::{AllocationPolicy, Change, MissingMember, MissingMembers, Owner};

use super::Pool;
use super::admin::AdminError;
use super::owners::OwnerId;

impl Pool {
    /// Returns whether any served volume, or an ancestor of one, has or may soon have missing records. Served maps are
    /// not updated when doubts end.
    pub fn serves_in_doubt(&self) -> bool {
        self.volumes.values().any(|volume| self.state.chain_may_miss_records(volume.owner)) || !self.builds.is_empty()
    }

    /// Accepts the loss of these members (a bit mask): they were missing, and are in no label any longer.
    ///
    /// # Errors
    /// `InUse`: a volume in doubt is served. `LogFull`: call again after a commit.
    pub fn accept_loss(&mut self, members: u128) -> Result<(), AdminError> {
        if self.serves_in_doubt() {
            return Err(AdminError::InUse);
        }
        self.state.missing &= !members;
        let stays = |absence: &&MissingMember| members >> absence.member & 1 == 0;
        let absent: Vec<MissingMember> = self.commits.absent.list().iter().filter(stays).copied().collect();
        self.commits.absent = MissingMembers::new(&absent).expect("no more than there were");
        self.remove_from_placement(members)?;
        // Nothing was reserved while the content of the members was unknown.
        self.find_reserves();
        // Blocks that were in doubt may be moved now.
        self.moves.restart_scan();
        self.progress += 1;
        Ok(())
    }

    /// Removes these members, which no longer exist, from the placement of all owners. An owner without another member
    /// may use all members.
    ///
    /// # Errors
    /// `LogFull`: call again after a commit.
    pub fn remove_from_placement(&mut self, members: u128) -> Result<(), AdminError> {
        let named = |owner: &&Owner| (owner.on | owner.also_on) & members != 0;
        let owners: Vec<OwnerId> = self.state.owners.iter().filter(named).map(|owner| owner.id).collect();
        for id in owners {
            if !self.log.has_room(6) {
                return Err(AdminError::LogFull);
            }
            let (slot, mut owner) = self.slot_of(id)?;
            (owner.on, owner.also_on) = (owner.on & !members, owner.also_on & !members);
            if owner.on == 0 {
                (owner.allocation, owner.also_on) = (AllocationPolicy::Spread, 0);
            }
            self.change(&[(0, slot, Change::Owner { owner: Some(owner) })]);
        }
        Ok(())
    }
}
