//! A further member, while the pool serves.
//!
//! The order: the new member's tables are zeros, and its ring start is the one that [`Pool::begin_member`] gives; both are durable. Then the
//! pool takes it in ([`Pool::add_member`]), and writes to it what it writes to all, but gives out nothing there. When a checkpoint has
//! ended that was asked for after that, it has all owners, and may be called a member in the labels of the others. Only when these are
//! durable it is opened ([`Pool::close_member`]). Cut off before, the pool knows nothing of it at the next start, and it had nothing. A member
//! that is refused before it is in the labels, for want of space say, is taken back ([`Pool::withdraw_member`]).

use braid_format::pool::RingStart;

use super::commit::Ring;
use super::home::{Pool, Room};
use super::open::{PoolDevice, tail_units_of_ring};
use super::space::{Free, Freed};
use super::units::MEMBERS_MAX;

/// Why a member cannot be taken in. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddError {
    /// Not now: a commit or a checkpoint is under way. Ask again.
    #[error("the pool is writing: ask again")]
    Again,
    /// The number is, or was, another's.
    #[error("the number is, or was, another member's")]
    Number,
    /// What the tail may hold has no room in its ring.
    #[error("its ring is too small for this pool")]
    Ring,
    /// A member has failed: nothing can be committed.
    #[error("a member has failed")]
    Failed,
}

impl Pool {
    /// The most units that are in its tail at a time. The ring of a further member has to have room for as many.
    pub fn tail_units(&self) -> u64 {
        self.tail.capacity()
    }

    /// What the ring start of a further member is to say. It counts as long as the pool is open.
    pub fn begin_member(&self) -> RingStart {
        let commits = &self.commits;
        RingStart {
            pool_tag: commits.tag,
            session: commits.session,
            run: commits.run,
            sequence: 1,
            position: 0,
            commit: commits.commit,
            mark: commits.committed,
            // Of an even generation, so that it stands in the first place, and behind all that there are: those have the owners.
            generation: 2,
            before: 0,
            parts: commits.parts,
            absent: commits.absent,
            settled: 0,
        }
    }

    /// Takes in a member whose start is durable, and whose tables are zeros. Nothing is given out there yet.
    ///
    /// # Errors
    /// See [`AddError`].
    pub fn add_member(&mut self, device: &PoolDevice) -> Result<(), AddError> {
        let number = device.number;
        let at = usize::from(number);
        if at >= MEMBERS_MAX || at < self.rooms.len() {
            return Err(AddError::Number);
        }
        if tail_units_of_ring(device.ring.1) < self.tail_units() {
            return Err(AddError::Ring);
        }
        if self.commits.is_failed() {
            return Err(AddError::Failed);
        }
        if !self.commits.is_between() {
            return Err(AddError::Again);
        }
        self.state.add_member(number, device.extents, device.zero_slots);
        for (_, extents) in self.state.members().skip(self.rooms.len()) {
            self.rooms.push(Room { free: Free::none(extents), freed: Freed::default(), closed: false });
        }
        (0..device.extents).for_each(|index| self.rooms[at].free.give(index));
        let (offset, blocks) = device.ring;
        self.commits.add_ring(Ring { offset, blocks, head: 0, sequence: 1, committed: (0, 1), start: 0 });
        let start_generation = self.begin_member().generation;
        self.commits.checkpoint.add_member(device, start_generation);
        self.close_member(number, true);
        Ok(())
    }
}
