//! Adding a member while the pool is in use.
//!
//! The order of steps:
//!
//! 1. The caller makes the new member's tables durable as zeros, and its ring start as [`Pool::begin_member`] returns
//!    it.
//! 2. [`Pool::add_member`] adds the member. From then on the pool writes to the member what it writes to all members,
//!    but allocates nothing there.
//! 3. Once a checkpoint that was requested after step 2 has ended, the member has all owners, and the labels of the
//!    other members may name it.
//! 4. Once these labels are durable, [`Pool::close_member`] opens the member for allocations.
//!
//! If this is interrupted before the labels name the member, the next open does not know the member, which holds no
//! blocks. [`Pool::withdraw_member`] takes back a member that is not in the labels yet, for example because it has no
//! space for the pool's own writes.

use braid_format::pool::Checkpoint;

use super::commit_ring::LogRing;
use super::device::PoolDevice;
use super::open::log_units_of_ring;
use super::space::{Free, Freed};
use super::units::MEMBERS_MAX;
use super::{Pool, Room};

/// Why a member cannot be added. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddError {
    /// A commit or checkpoint is under way: call again.
    #[error("the pool is writing: ask again")]
    Again,
    /// The member's number is too high, or not above every number that the open pool has had.
    #[error("the number is, or was, another member's")]
    Number,
    /// A commit of the whole log would not fit into the member's ring.
    #[error("its ring is too small for this pool")]
    Ring,
    /// A member has failed: nothing can be committed.
    #[error("a member has failed")]
    Failed,
}

impl Pool {
    /// Returns the maximum units in the log at a time. The ring of a new member must have room for as many.
    pub fn log_units(&self) -> u64 {
        self.log.capacity()
    }

    /// Returns the ring start for a new member. It is valid while the pool is open.
    pub fn begin_member(&self) -> Checkpoint {
        let commits = &self.commits;
        Checkpoint {
            pool_tag: commits.tag,
            session: commits.session,
            run: commits.run,
            sequence: 1,
            position: 0,
            commit: commits.commit,
            mark: commits.committed,
            // Generation 2 is even, so the start goes into the first slot. It is below the generations of all other
            // members: an open reads the owners from a member with the highest one, and the new member has no owners
            // yet.
            generation: 2,
            previous_run: 0,
            last_commits: commits.parts,
            missing: commits.absent,
            hold_outcome: 0,
        }
    }

    /// Adds a member whose start is durable, and whose tables are zeros. Nothing is allocated there yet.
    ///
    /// # Errors
    /// See [`AddError`].
    pub fn add_member(&mut self, device: &PoolDevice) -> Result<(), AddError> {
        let number = device.number;
        let at = usize::from(number);
        if at >= MEMBERS_MAX || at < self.rooms.len() {
            return Err(AddError::Number);
        }
        if log_units_of_ring(device.ring.1) < self.log_units() {
            return Err(AddError::Ring);
        }
        if self.commits.is_failed() {
            return Err(AddError::Failed);
        }
        if !self.commits.is_quiescent() {
            return Err(AddError::Again);
        }
        self.state.add_member(number, device.extents, device.zero_slots);
        for (_, extents) in self.state.members().skip(self.rooms.len()) {
            self.rooms.push(Room { free: Free::none(extents), freed: Freed::default(), closed: false });
        }
        (0..device.extents).for_each(|index| self.rooms[at].free.give(index));
        let (offset, blocks) = device.ring;
        self.commits.add_ring(LogRing { offset, blocks, head: 0, sequence: 1, committed: (0, 1), start: 0 });
        let start_generation = self.begin_member().generation;
        self.commits.checkpoint.add_member(device, start_generation);
        self.close_member(number, true);
        Ok(())
    }
}
