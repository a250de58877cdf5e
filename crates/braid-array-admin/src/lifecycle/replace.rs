//! Replaces a member while it still serves: a successor is rebuilt beside it, and takes the slot once it holds
//! everything.
//!
//! A successor is in the member table behind the slots, as spares are. A job of the kind *replace* names it as its
//! target, and the slot as its source. While it is rebuilt it takes every write, bitmap update and flush, as any
//! rebuilding member does.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | begin | label n | (a) in-sync members n + 1: the successor is rebuilding; (b) others; (c) the successor, last | n + 1 on all |
//! | promote | n: rebuilding | as for any rebuilding member | n + 1: two members in sync hold the slot |
//! | retire | n: two hold the slot | (a) the successor flushed, then the others; (b) as a drop of the old member: a new lineage | n + 1: the slot is failed, its successor in sync; then the old label is erased |
//! | take the slot | n: the slot is failed | some n + 1 | n + 1: the successor has the slot |
//!
//! Each of these is an ordinary change of the labels, and a start may find the array after any: if both hold the slot,
//! the old member is retired; if the slot is failed, the successor takes it, in sync or still rebuilding. So if a
//! member fails while it is being replaced, its successor's rebuild continues from the other copies.

use braid_engine::{LeafId, MetaIo, Successor};
use braid_format::{Job, JobKind, JobState, MemberEntry, MemberId, MemberState};

use super::array::Array;
use super::erase::wipe;
use super::error::LifecycleError;
use super::journal;
use super::losses::Losses;
use super::member_table::{is_rebuild_of, successor_of, successors_of};
use super::members::{enter, vacate};
use super::write::flush;

/// The disk to replace a member with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// A spare, by its number in the member table.
    Spare(u16),
    /// A disk that is not a member.
    New {
        /// The disk.
        leaf: LeafId,
        /// Its new identity: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
}

impl Array {
    /// Returns the successors.
    pub fn successors(&self) -> impl Iterator<Item = Successor> + '_ {
        successors_of(&self.label)
    }

    /// Lets a disk become the successor of a member in sync: when this returns, the disk takes every write, bitmap
    /// update and flush, and content may be copied to it. Returns its number in the member table.
    ///
    /// # Errors
    /// A refusal before anything was written, the error of a failing disk (it is removed then), or
    /// [`LifecycleError::BeyondTolerance`].
    pub async fn begin_replacing<M: MetaIo>(
        &mut self,
        io: &M,
        role: u16,
        by: Replacement,
    ) -> Result<u16, LifecycleError> {
        self.check_replaceable(role)?;
        let needed_bytes = self.needed_bytes(role);
        let what = format!("member {role}");
        let (number, newcomer) = match by {
            Replacement::Spare(spare) => {
                let wrong = |reason: &str| LifecycleError::Slot { slot: spare, reason: reason.to_owned() };
                if self.state(spare) != MemberState::Spare {
                    return Err(wrong("it is not a spare"));
                }
                let target = self.targets.iter().find(|t| t.part.slot == spare);
                let target = target.ok_or_else(|| wrong("its disk is not here"))?;
                let data_bytes = target.part.layout.data.bytes;
                if data_bytes < needed_bytes {
                    return Err(LifecycleError::TooSmall { leaf: target.leaf, what, data_bytes, needed_bytes });
                }
                journal::check_room(target.leaf, &target.part.layout, &self.label, &self.in_sync())?;
                (spare, None)
            }
            Replacement::New { leaf, id, force } => {
                let number = self.free_number()?;
                let mut target = self.new_member(io, leaf, id, needed_bytes, what, force).await?;
                target.part.slot = number;
                (number, Some(target))
            }
        };
        match (&newcomer, self.targets.iter().find(|t| t.part.slot == number).cloned()) {
            (Some(target), _) => journal::erase_heads(io, &self.label, target).await?,
            (None, Some(spare)) => self.erase_spares_heads(io, &spare).await?,
            (None, None) => {}
        }
        self.complete(io).await?;
        // Completing the label may have dropped the member.
        self.check_replaceable(role)?;
        let mut next = self.next();
        let write_mostly = next.members[usize::from(role)].write_mostly;
        match &newcomer {
            Some(target) => {
                let (id, data_bytes) = (Some(target.part.id), target.part.layout.data.bytes);
                let entry = MemberEntry { id, data_bytes, state: MemberState::Rebuilding, write_mostly };
                enter(&mut next.members, number, entry);
            }
            None => {
                let entry = &mut next.members[usize::from(number)];
                (entry.state, entry.write_mostly) = (MemberState::Rebuilding, write_mostly);
            }
        }
        next.jobs.push(Job {
            kind: JobKind::Replace,
            state: JobState::Running,
            target: Some(number),
            source: Some(role),
            number: next.sequence,
            position_bytes: 0,
            end_bytes: next.array_bytes,
            rate_bytes_per_s: 0,
        });
        self.targets.extend(newcomer);
        let failures = self.record(io, next, Losses::default()).await?;
        self.expect(number, MemberState::Rebuilding, failures).map(|()| number)
    }

    /// Drops a member whose successor is in sync, as [`Array::drop_members`] does: until this returns, no write may be
    /// acknowledged and no read answered. The label of the old member is erased, so that its disk can be reused; if
    /// that fails, a later start knows the disk as replaced.
    ///
    /// The successor is flushed first, alone. If that fails, only the successor is dropped: the member still holds
    /// everything. If the successor fails later, it may already bear a label that calls it the last copy; if it is the
    /// last copy, the array must fail.
    ///
    /// # Errors
    /// It has no successor in sync, the error of the successor's flush, or [`LifecycleError::BeyondTolerance`].
    pub async fn retire<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        let successor = successor_of(&self.label, role).filter(|s| self.state(*s) == MemberState::InSync);
        let Some(successor) = successor.filter(|_| self.state(role) == MemberState::InSync) else {
            return Err(LifecycleError::Slot { slot: role, reason: "it has no successor in sync".into() });
        };
        if let Some(leaf) = self.leaf(successor)
            && let Err(error) = flush(io, leaf).await
        {
            self.drop_members(io, &[successor]).await?;
            return Err(error);
        }
        let leaf = self.leaf(role);
        let mut losses = Losses { flushed: Some(successor), ..Losses::of(vec![role]) };
        // The successor holds every cell of the member: no mark is retired for it. A member that fails in this flush
        // has no successor, and marks are retired for it.
        self.flush_survivors(io, &mut losses).await?;
        if losses.roles != [role] {
            self.prepare_losses(io, &mut losses).await?;
        }
        self.record_losses(io, losses).await?;
        // If the successor failed to take the label, the old member may return.
        let is_replaced = successor_of(&self.label, role).is_some_and(|s| self.state(s) == MemberState::InSync);
        if let Some(leaf) = leaf.filter(|_| is_replaced) {
            self.candidates.retain(|(candidate, _)| candidate.leaf != leaf);
            let _ = wipe(io, leaf).await;
        }
        Ok(())
    }

    /// Gives a successor up, as [`Array::drop_members`] does, and erases its label.
    ///
    /// # Errors
    /// It is not a successor, or [`LifecycleError::BeyondTolerance`].
    pub async fn cancel_replacement<M: MetaIo>(&mut self, io: &M, number: u16) -> Result<(), LifecycleError> {
        if !self.successors().any(|s| s.member == number) {
            return Err(LifecycleError::Slot { slot: number, reason: "it replaces nobody".into() });
        }
        let leaf = self.leaf(number);
        self.drop_members(io, &[number]).await?;
        if let Some(leaf) = leaf {
            let _ = wipe(io, leaf).await;
        }
        Ok(())
    }

    /// Gives a failed slot to its successor, in sync or rebuilding.
    ///
    /// # Errors
    /// It has no successor, the slot has not failed, or [`LifecycleError::BeyondTolerance`].
    pub async fn give_slot_to_successor<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        let wrong = |reason: &str| LifecycleError::Slot { slot: role, reason: reason.to_owned() };
        let number = successor_of(&self.label, role).ok_or_else(|| wrong("it has no successor"))?;
        if !matches!(self.state(role), MemberState::Failed | MemberState::Empty) {
            return Err(wrong("it serves"));
        }
        let mut next = self.next();
        let entry = next.members[usize::from(number)];
        next.jobs.retain(|job| {
            !is_rebuild_of(job, role) && (!is_rebuild_of(job, number) || entry.state == MemberState::Rebuilding)
        });
        for job in next.jobs.iter_mut().filter(|job| is_rebuild_of(job, number)) {
            (job.kind, job.target, job.source) = (JobKind::Rebuild, Some(role), None);
        }
        next.members[usize::from(role)] = entry;
        vacate(&mut next.members, number, self.slots());
        self.record(io, next, Losses::default()).await?;
        self.candidates.retain(|(candidate, _)| candidate.slot != role);
        Ok(())
    }

    /// Returns a slot with two members in sync: the old one is to be retired.
    pub fn to_retire(&self) -> Option<u16> {
        let both = |s: &Successor| [s.role, s.member].iter().all(|m| self.state(*m) == MemberState::InSync);
        self.successors().find(both).map(|s| s.role)
    }

    /// Returns a failed slot with a successor, which is to take the slot.
    pub fn slot_for_successor(&self) -> Option<u16> {
        let out = |s: &Successor| matches!(self.state(s.role), MemberState::Failed | MemberState::Empty);
        self.successors().find(out).map(|s| s.role)
    }

    fn check_replaceable(&self, role: u16) -> Result<(), LifecycleError> {
        self.check_redundant()?;
        let reason = match self.state(role) {
            _ if role >= self.slots() => "there is no such role",
            MemberState::InSync if successor_of(&self.label, role).is_some() => "it is being replaced already",
            MemberState::InSync if self.label.jobs.len() >= braid_format::JOBS_MAX => {
                return Err(LifecycleError::JobsFull);
            }
            MemberState::InSync => return Ok(()),
            MemberState::Rebuilding => {
                "it is being rebuilt; wait until it is in sync, or fail it and add the other disk"
            }
            _ => "it does not serve: add the other disk in its place",
        };
        Err(LifecycleError::Slot { slot: role, reason: reason.into() })
    }
}
