//! Removing a member: no blocks are left there, and the pool comes to need nothing of it.
//!
//! The last commits may be about the member alone, and so be in its ring alone: an open without the member would find
//! an in-memory log that begins after a gap. So a checkpoint ends before the labels without the member are written.
//! Owners are written to the member to the end, because an open may find no other member.

use braid_format::pool::{AllocationPolicy, Owner};

use super::Pool;
use super::admin::AdminError;
use super::owners::OwnerId;

/// How far the removal of a member has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberRemoval {
    /// It has blocks, or may get some: it is not closed, or an owner is placed on it.
    NotEmpty,
    /// Commits or a checkpoint are under way: call again.
    NotYet,
    /// The pool can be opened without it: the labels may say so.
    Ready,
}

impl Pool {
    /// Returns the owners that may have new blocks on this member only.
    pub fn restricted_to(&self, member: u8) -> Vec<OwnerId> {
        let bound = |uses: u128| uses & !(1 << member) == 0;
        self.state.owners.iter().filter(|owner| bound(owner.allocation_members())).map(|owner| owner.id).collect()
    }

    /// Returns the extents in use on a member, and the free ones on the other members that take new allocations. Some
    /// of the latter may be reserved for thick volumes ([`Pool::reserved_extents`]).
    pub fn used_and_free_elsewhere(&self, member: u8) -> (u64, u64) {
        let room = &self.rooms[usize::from(member)];
        let used = u64::from(self.state.records.extents(member) - room.free.count());
        let others = (0u8..).zip(&self.rooms).filter(|(other, room)| *other != member && !room.closed);
        let free: u64 = others.map(|(_, room)| u64::from(room.free.count())).sum();
        (used, free)
    }

    /// Empties a member: no volume may keep blocks on it if another member may hold them, and it takes no new
    /// allocations. Its blocks are moved by [`Pool::move_step`].
    ///
    /// # Errors
    /// `LogFull`: call again. `InUse`: an owner may have blocks only there ([`Pool::restricted_to`]). `Damaged`: the
    /// content of some of its extents is unknown. `NoSpace`: less space is free elsewhere than has to be reserved for
    /// thick volumes.
    pub fn empty_member(&mut self, member: u8) -> Result<(), AdminError> {
        self.can_empty(member)?;
        let on_it = self.state.owners.iter().filter(|owner| owner.on >> member & 1 == 1);
        for (id, on) in on_it.map(|owner| (owner.id, owner.on)).collect::<Vec<_>>() {
            self.set_placement(id, AllocationPolicy::Chosen, on & !(1 << member))?;
        }
        self.close_member(member, true);
        Ok(())
    }

    /// Checks whether owners and reservations allow that a member is emptied. Nothing changes.
    ///
    /// # Errors
    /// As [`Pool::empty_member`], but for `LogFull`.
    pub fn can_empty(&self, member: u8) -> Result<(), AdminError> {
        if !self.restricted_to(member).is_empty() {
            return Err(AdminError::InUse);
        }
        if self.state.damage.members() >> member & 1 == 1 {
            return Err(AdminError::Damaged);
        }
        // All or none: the reservations of all thick volumes together must fit on the other members, including those of
        // volumes that may use any member.
        let on_it = self.state.owners.iter().filter(|owner| owner.on >> member & 1 == 1);
        let image = |owner: &Owner| Owner {
            allocation: AllocationPolicy::Chosen,
            on: owner.on & !(1 << member),
            ..owner.clone()
        };
        self.reserves_off(member, on_it.map(image))
    }

    /// Advances the removal of an emptied member, as far as possible now.
    pub fn remove_member_step(&mut self, member: u8) -> MemberRemoval {
        // Whatever its labels say: a member that takes new blocks may be empty now, and have blocks a moment later.
        let closed = self.rooms[usize::from(member)].closed;
        let placed = || self.state.owners.iter().any(|owner| owner.on >> member & 1 == 1);
        if !closed || !self.is_member_empty(member) || placed() {
            return MemberRemoval::NotEmpty;
        }
        match self.commits.leaving {
            Some((leaving, checkpoint)) if leaving == member => {
                if self.is_checkpointed(checkpoint) {
                    MemberRemoval::Ready
                } else {
                    MemberRemoval::NotYet
                }
            }
            Some(_) => MemberRemoval::NotYet,
            None => {
                // Changes about the member itself are in its own ring.
                if !self.log.is_empty() || !self.commits.is_idle() {
                    self.commit_soon();
                    return MemberRemoval::NotYet;
                }
                let checkpoint = self.request_checkpoint();
                self.commits.leaving = Some((member, checkpoint));
                MemberRemoval::NotYet
            }
        }
    }

    /// Takes back a member that was added ([`Pool::add_member`]) and is in the labels of no other member. It holds no
    /// blocks, and an open without it accepts every commit that was valid with it: such a member gets only batches of
    /// owners, which all members get. A commit or checkpoint that is under way, or waits for space on this member, goes
    /// on without it.
    ///
    /// False: an I/O of a commit or checkpoint is in flight, the member holds blocks, or a member has failed. Then
    /// nothing has changed.
    pub fn withdraw_member(&mut self, member: u8) -> bool {
        let closed = self.rooms[usize::from(member)].closed;
        if !closed || !self.is_member_empty(member) || self.commits.is_failed() || self.commits.is_writing() {
            return false;
        }
        self.commits.withdraw_member(member);
        if self.commits.leaving.is_some_and(|(leaving, _)| leaving == member) {
            self.commits.leaving = None;
        }
        if !self.commits.attempts.waits() {
            self.retry_commit();
        }
        // Its ring may have been the one without room.
        self.write_if_room();
        true
    }

    /// Drops a member that is no longer in the labels. False: the pool still needs it; call again.
    pub fn drop_member(&mut self, member: u8) -> bool {
        // A member that is not closed may have blocks again. No caller does that, and nothing is lost while the member
        // is kept.
        let closed = self.rooms[usize::from(member)].closed;
        if !closed || !self.commits.is_idle() || !self.commits.checkpoint.is_idle() {
            return false;
        }
        self.commits.remove_member(member);
        self.commits.leaving = None;
        true
    }
}
