//! A member goes: nothing stands there any more, and the pool comes to need nothing of it.
//!
//! The last commits may be in its ring alone, as they were about itself alone: a start without it would find a tail that has gone further
//! than the rings. So there is a checkpoint before the labels lack it. Owners it is told to the end, as a start may find no other member.

use braid_format::pool::{Owner, Placing};

use super::admin::AdminError;
use super::home::Pool;
use super::owners::OwnerId;
use crate::planted::{Planted, planted};

/// How far a member is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Something stands there, or may come to: it is not closed, or somebody is placed on it.
    NotEmpty,
    /// Commits or a checkpoint are under way: ask again.
    NotYet,
    /// The pool can be opened without it: the labels may say so.
    Ready,
}

impl Pool {
    /// Owners that may have new blocks on this member alone.
    pub fn bound_to(&self, member: u8) -> Vec<OwnerId> {
        let bound = |uses: u128| uses & !(1 << member) == 0;
        self.state.owners.iter().filter(|owner| bound(owner.uses())).map(|owner| owner.id).collect()
    }

    /// Extents that are in use on a member, and those that are free on the others that take new ones: of these some
    /// may be kept for thick volumes ([`Pool::kept_extents`]).
    pub fn used_and_free_elsewhere(&self, member: u8) -> (u64, u64) {
        let room = &self.rooms[usize::from(member)];
        let used = u64::from(self.state.records.extents(member) - room.free.count());
        let others = (0u8..).zip(&self.rooms).filter(|(other, room)| *other != member && !room.closed);
        let free: u64 = others.map(|(_, room)| u64::from(room.free.count())).sum();
        (used, free)
    }

    /// Nobody is to have blocks on this member who may have them elsewhere, and nothing new goes there. What stands there is to be moved
    /// ([`Pool::move_step`]).
    ///
    /// # Errors
    /// `TailFull`: call again. `InUse`: somebody may have blocks there alone ([`Pool::bound_to`]). `Damaged`: nobody knows what stands in some
    /// of its extents. `NoSpace`: less is free elsewhere than would be kept for thick volumes.
    pub fn empty_member(&mut self, member: u8) -> Result<(), AdminError> {
        self.can_empty(member)?;
        let on_it = self.state.owners.iter().filter(|owner| owner.on >> member & 1 == 1);
        for (id, on) in on_it.map(|owner| (owner.id, owner.on)).collect::<Vec<_>>() {
            self.place_owner(id, Placing::Chosen, on & !(1 << member))?;
        }
        self.close_member(member, true);
        Ok(())
    }

    /// Whether a member can be emptied as far as others' rights go. Nothing changes.
    ///
    /// # Errors
    /// As [`Pool::empty_member`], but for `TailFull`.
    pub fn can_empty(&self, member: u8) -> Result<(), AdminError> {
        if !self.bound_to(member).is_empty() {
            return Err(AdminError::InUse);
        }
        if self.state.damage.members() >> member & 1 == 1 {
            return Err(AdminError::Damaged);
        }
        // All or none: what is kept for thick volumes has room on the others, for all of them together, also for those that may have
        // blocks anywhere.
        let on_it = self.state.owners.iter().filter(|owner| owner.on >> member & 1 == 1);
        let anew = |owner: &Owner| Owner { place: Placing::Chosen, on: owner.on & !(1 << member), ..owner.clone() };
        self.reserves_off(member, on_it.map(anew))
    }

    /// Lets a member that was emptied go, as far as that can be done now.
    pub fn leave_step(&mut self, member: u8) -> Leaving {
        // Whether its labels say that it leaves or not: where new blocks go to, nothing that is seen now lasts.
        let closed = self.rooms[usize::from(member)].closed || planted(Planted::LeftWhileOpen);
        let placed = || self.state.owners.iter().any(|owner| owner.on >> member & 1 == 1);
        if !closed || !self.is_member_empty(member) || placed() {
            return Leaving::NotEmpty;
        }
        match self.commits.leaving {
            Some((leaving, checkpoint)) if leaving == member => {
                if self.is_checkpointed(checkpoint) || planted(Planted::LeftBeforeCheckpoint) {
                    Leaving::Ready
                } else {
                    Leaving::NotYet
                }
            }
            Some(_) => Leaving::NotYet,
            None => {
                // What is said of the member itself is in its ring.
                if !self.tail.is_empty() || !self.commits.is_idle() {
                    self.commit_soon();
                    return Leaving::NotYet;
                }
                let checkpoint = self.request_checkpoint();
                self.commits.leaving = Some((member, checkpoint));
                Leaving::NotYet
            }
        }
    }

    /// Takes back a member that was taken in ([`Pool::add_member`]) and is in the labels of no other member. Nothing stands there, and a start
    /// that does not read it counts every commit that counted with it: such a member gets batches of owners alone, which all members get.
    /// A commit or checkpoint that is under way, or waits for space on it, goes on without it.
    ///
    /// False: an I/O of a commit or checkpoint is out, something stands there, or a member has failed. Nothing has changed then.
    pub fn withdraw_member(&mut self, member: u8) -> bool {
        let closed = self.rooms[usize::from(member)].closed;
        if !closed || !self.is_member_empty(member) || self.commits.is_failed() || self.commits.is_writing() {
            return false;
        }
        self.commits.withdraw_member(member);
        if self.commits.leaving.is_some_and(|(leaving, _)| leaving == member) {
            self.commits.leaving = None;
        }
        if !self.commits.tries.waits() {
            self.commit_again();
        }
        // Its ring may have been the one that had no room.
        self.write_if_room();
        true
    }

    /// The labels say that the member is gone: the pool has nothing to do with it any more. False: it has yet, ask again.
    pub fn drop_member(&mut self, member: u8) -> bool {
        // Where it is not closed it may have something again: nobody asks that, and nothing is lost as long as it is here.
        let closed = self.rooms[usize::from(member)].closed || planted(Planted::LeftWhileOpen);
        if !closed || !self.commits.is_idle() || !self.commits.checkpoint.is_idle() {
            return false;
        }
        self.commits.remove_member(member);
        self.commits.leaving = None;
        true
    }
}
