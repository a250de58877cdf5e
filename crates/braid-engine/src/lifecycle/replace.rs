//! Replacing a member while it still serves: a successor is filled beside it, and takes its place when it holds everything.
//!
//! A successor stands in the table of members beyond the roles, as spares do. A job of the kind *replace* names it as its
//! target, and the role as its source. While it is filled it takes every write, every bit and every flush, as any member does
//! that is filled.
//!
//! | procedure | before | between | after, when it is acknowledged |
//! |---|---|---|---|
//! | begin | label n | (a) in-sync members n + 1: the successor is filling; (b) others; (c) the successor, last | n + 1 on all |
//! | promote | n: filling | as of any member that is filled | n + 1: two members in sync hold the role |
//! | retire | n: two hold the role | (a) the successor flushed, then the others; (b) as a drop of the old one: a new line | n + 1: the role is out, its successor in sync; then the old label is erased |
//! | seat | n: the role is out | some n + 1 | n + 1: the successor has the role |
//!
//! Each of these is an ordinary change of the labels, and the array can be found after any: where both hold the role, the old
//! one is retired; where the role is out, the successor is seated, in sync or still filling. So a member that fails while it
//! is being replaced is out, and its successor goes on where it was, from the other copies.

use braid_format::{ArrayPart, Job, JobKind, JobState, MemberEntry, MemberId, MemberState};

use super::array::{Array, fills};
use super::erase::wipe;
use super::error::LifecycleError;
use super::journal;
use super::members::{enter, vacate};
use super::planted::{Planted, planted};
use super::record::Losses;
use super::write::flush;
use crate::mirror::Successor;
use crate::{LeafId, MetaIo};

/// Who is to replace a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// A spare, by its number in the table of members.
    Spare(u16),
    /// A disk that is no member.
    New {
        /// The disk.
        leaf: LeafId,
        /// The identity that it gets: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
}

/// The number of the member that is to replace a role's, where there is one.
pub(super) fn successor_of(label: &ArrayPart, role: u16) -> Option<u16> {
    successors_of(label).find(|s| s.role == role).map(|s| s.member)
}

fn successors_of(label: &ArrayPart) -> impl Iterator<Item = Successor> + '_ {
    let holds = |member: &u16| {
        let state = label.members.get(usize::from(*member)).map(|m| m.state);
        matches!(state, Some(MemberState::InSync | MemberState::Filling))
    };
    let replaces = |job: &Job| Some((job.source?, job.target?)).filter(|_| job.kind == JobKind::Replace);
    let named = label.jobs.iter().filter_map(replaces);
    named.filter(move |(_, member)| holds(member)).map(|(role, member)| Successor { role, member })
}

impl Array {
    /// The members that are to take the place of others.
    pub fn successors(&self) -> impl Iterator<Item = Successor> + '_ {
        successors_of(&self.label)
    }

    /// Lets a disk become the successor of a member in sync: from the moment that this returns it takes every write, every
    /// bit and every flush, and its content may be copied. Returns its number in the table of members.
    ///
    /// # Errors
    /// What was refused, before anything was written; a failing disk's error (it is off the table then); or
    /// [`LifecycleError::Beyond`].
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
                let wrong = |reason: &str| LifecycleError::Role { role: spare, reason: reason.to_owned() };
                if self.state(spare) != MemberState::Spare {
                    return Err(wrong("it is not a spare"));
                }
                let target = self.targets.iter().find(|t| t.part.role == spare);
                let target = target.ok_or_else(|| wrong("its disk is not here"))?;
                let data_bytes = target.part.places.data.bytes;
                if data_bytes < needed_bytes {
                    return Err(LifecycleError::TooSmall { leaf: target.leaf, what, data_bytes, needed_bytes });
                }
                journal::check_room(target.leaf, &target.part.places, &self.label, &self.in_sync())?;
                (spare, None)
            }
            Replacement::New { leaf, id, force } => {
                let number = self.free_number()?;
                let mut target = self.new_member(io, leaf, id, needed_bytes, what, force).await?;
                target.part.role = number;
                (number, Some(target))
            }
        };
        match (&newcomer, self.targets.iter().find(|t| t.part.role == number).cloned()) {
            (Some(target), _) => journal::erase_heads(io, &self.label, target).await?,
            (None, Some(spare)) => self.erase_spares_heads(io, &spare).await?,
            (None, None) => {}
        }
        self.complete(io).await?;
        // Completing may have left it out.
        self.check_replaceable(role)?;
        let mut next = self.next();
        let write_mostly = next.members[usize::from(role)].write_mostly;
        match &newcomer {
            Some(target) => {
                let (id, data_bytes) = (Some(target.part.id), target.part.places.data.bytes);
                let entry = MemberEntry { id, data_bytes, state: MemberState::Filling, write_mostly };
                enter(&mut next.members, number, entry);
            }
            None => {
                let entry = &mut next.members[usize::from(number)];
                (entry.state, entry.write_mostly) = (MemberState::Filling, write_mostly);
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
        self.expect(number, MemberState::Filling, failures).map(|()| number)
    }

    /// Leaves out a member whose successor is in sync, as [`Array::drop_members`] does: until this returns nothing may be
    /// acknowledged and no read answered. Its label is erased, so that its disk can be used for something else; where that
    /// does not succeed it is known as a disk that was replaced.
    ///
    /// The successor is flushed first, alone. Where that fails only the successor is left out: the member still holds everything.
    /// One that fails later may bear a label already that calls it the last copy; then the array must freeze if it is.
    ///
    /// # Errors
    /// It has no successor in sync, the error of the successor's flush, or [`LifecycleError::Beyond`].
    pub async fn retire<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        let successor = successor_of(&self.label, role).filter(|s| self.state(*s) == MemberState::InSync);
        let Some(successor) = successor.filter(|_| self.state(role) == MemberState::InSync) else {
            return Err(LifecycleError::Role { role, reason: "it has no successor in sync".into() });
        };
        let late = planted(Planted::SuccessorFlushedWithOthers);
        let skipped = late || planted(Planted::SuccessorNotFlushed);
        if let Some(leaf) = self.leaf(successor).filter(|_| !skipped)
            && let Err(error) = flush(io, leaf).await
        {
            self.drop_members(io, &[successor]).await?;
            return Err(error);
        }
        let leaf = self.leaf(role);
        let mut losses = Losses { flushed: (!late).then_some(successor), ..Losses::of(vec![role]) };
        // Its successor has each of its cells: no mark is retired for it. A member that fails in this flush has no successor, and its marks are retired.
        self.flush_survivors(io, &mut losses).await?;
        if losses.roles != [role] {
            self.prepare_losses(io, &mut losses).await?;
        }
        self.record_losses(io, losses).await?;
        // Where the successor failed in taking the label, the old one may return.
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
    /// It is none, or [`LifecycleError::Beyond`].
    pub async fn abandon<M: MetaIo>(&mut self, io: &M, number: u16) -> Result<(), LifecycleError> {
        if !self.successors().any(|s| s.member == number) {
            return Err(LifecycleError::Role { role: number, reason: "it replaces nobody".into() });
        }
        let leaf = self.leaf(number);
        self.drop_members(io, &[number]).await?;
        if let Some(leaf) = leaf {
            let _ = wipe(io, leaf).await;
        }
        Ok(())
    }

    /// Gives a role that is out to its successor, in sync or being filled.
    ///
    /// # Errors
    /// There is none, the role is not out, or [`LifecycleError::Beyond`].
    pub async fn seat_successor<M: MetaIo>(&mut self, io: &M, role: u16) -> Result<(), LifecycleError> {
        self.complete(io).await?;
        let wrong = |reason: &str| LifecycleError::Role { role, reason: reason.to_owned() };
        let number = successor_of(&self.label, role).ok_or_else(|| wrong("it has no successor"))?;
        if !matches!(self.state(role), MemberState::Out | MemberState::Absent) {
            return Err(wrong("it serves"));
        }
        let mut next = self.next();
        let entry = next.members[usize::from(number)];
        next.jobs.retain(|job| !fills(job, role) && (!fills(job, number) || entry.state == MemberState::Filling));
        for job in next.jobs.iter_mut().filter(|job| fills(job, number)) {
            (job.kind, job.target, job.source) = (JobKind::Rebuild, Some(role), None);
        }
        next.members[usize::from(role)] = entry;
        vacate(&mut next.members, number, self.roles());
        self.record(io, next, Losses::default()).await?;
        self.candidates.retain(|(candidate, _)| candidate.role != role);
        Ok(())
    }

    /// Whether the array has two members in sync for a role: then the old one is to be retired.
    pub fn to_retire(&self) -> Option<u16> {
        let both = |s: &Successor| [s.role, s.member].iter().all(|m| self.state(*m) == MemberState::InSync);
        self.successors().find(both).map(|s| s.role)
    }

    /// A role that is out and has a successor, which is to be seated.
    pub fn to_seat(&self) -> Option<u16> {
        let out = |s: &Successor| matches!(self.state(s.role), MemberState::Out | MemberState::Absent);
        self.successors().find(out).map(|s| s.role)
    }

    fn check_replaceable(&self, role: u16) -> Result<(), LifecycleError> {
        self.check_redundant()?;
        let reason = match self.state(role) {
            _ if role >= self.roles() => "there is no such role",
            MemberState::InSync if successor_of(&self.label, role).is_some() => "it is being replaced already",
            MemberState::InSync if self.label.jobs.len() >= braid_format::JOBS_MAX => {
                return Err(LifecycleError::JobsFull);
            }
            MemberState::InSync => return Ok(()),
            MemberState::Filling => {
                "it is being filled; wait until it is in sync, or leave it out and add the other disk"
            }
            _ => "it does not serve: add the other disk in its place",
        };
        Err(LifecycleError::Role { role, reason: reason.into() })
    }
}
