//! An array that was started and whose labels agree: the handle through which it is changed.

use std::sync::Arc;

use braid_format::journal::{Head, LostRow};
use braid_format::{ArrayPart, ArrayState, Job, JobKind, MemberPart, MemberState, Name, RetiredMarks, Uuid};
use braid_geometry::Geometry;

use super::erase::{erase_targets, wipe};
use super::error::LifecycleError;
use super::grow::joins;
use super::join::{join_all, try_join_all};
use super::journal::JournalStart;
use super::lines::Lines;
use super::planted::{Planted, planted};
use super::record::{Failure, Losses};
use super::redundant::{is_redundant, lacks_nobody};
use super::retirement::Retirement;
use super::write::{Target, flush, write_labels};
use crate::{LeafId, MetaIo};

/// A started array. It knows its members by role; the caller makes the layout of it and serves it.
#[derive(Clone, Debug)]
pub struct Array {
    /// What was acknowledged last.
    pub(super) label: ArrayPart,
    /// What was written last, perhaps only on some members. Differs from `label` after a change that failed.
    pub(super) written: ArrayPart,
    pub(super) geometry: Geometry,
    /// The disks that take labels: every member, but for those that are out.
    pub(super) targets: Vec<Target>,
    /// The disk of the journal, where the label names one, as long as it is here and has not failed. It takes labels as well.
    pub(super) journal: Option<Target>,
    /// When it was found it had been stopped in order, or it is new: of what was in the journal nothing is needed.
    pub(super) was_clean: bool,
    /// With parity: the head that the journal's run began with, and its list.
    pub(super) run_head: Option<(Head, Vec<LostRow>)>,
    /// The marks of the journal that a recovery ignores, as every label says that is written from now on.
    pub(super) retired: RetiredMarks,
    /// With parity, once it has a keeper: how marks are retired before a label leaves members out.
    pub(super) retirement: Option<Arc<Retirement>>,
    /// Its service has ended in order: see [`Array::end_run`].
    pub(super) has_ended: bool,
    /// Disks of members that are out, and that could be filled.
    pub(super) candidates: Vec<(Candidate, Target)>,
    pub(super) lines: Lines,
    /// The label with which it was found at the start, and which members that are absent may lack; 0: there is none.
    pub(super) found_sequence: u64,
    /// In sync by a label that is not complete yet: while that is so they do not count as copies.
    pub(super) unproven: Vec<u16>,
    /// Who is in sync by the last word of whoever decides that beside the labels ([`MetaIo::agree`]); none: not asked yet.
    pub(super) agreed: Option<Vec<u16>>,
    /// While it grows: what it will be. Nobody is left out whom that could not do without.
    pub(super) growing: Option<Geometry>,
}

/// How a member is brought up to date.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Filling {
    /// It was in sync once: what the write-intent bitmap calls dirty is copied.
    FromBitmap,
    /// All of it is copied, from the position that its job in the label says.
    Full,
}

/// A disk that is here, is no member at present, and could be one again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The role that it had.
    pub role: u16,
    /// The disk.
    pub leaf: LeafId,
    /// What it would take to fill it.
    pub from: Filling,
    /// All of the array before this byte is on it, those regions aside that are dirty; 0 where it is filled from the bitmap.
    pub position_bytes: u64,
    /// Whether it returns as who it was ([`Newcomer::Returning`](super::Newcomer)). Else it is a copy that a forced start
    /// has given up, and comes back only as a new member ([`Newcomer::New`](super::Newcomer)).
    pub returns: bool,
}

/// One member of a started array.
#[derive(Clone, Copy, Debug)]
pub struct ArrayMember<'a> {
    /// Its role: its number in the geometry.
    pub role: u16,
    /// Its disk.
    pub leaf: LeafId,
    /// What the array thinks of it.
    pub state: MemberState,
    /// Where everything lies on that disk; data begin at `places.data.start`.
    pub part: &'a MemberPart,
}

impl Array {
    /// `random` is where the ids of further lines come from.
    pub(super) fn new(label: ArrayPart, geometry: Geometry, mut targets: Vec<Target>, random: u64) -> Array {
        targets.sort_by_key(|target| target.part.role);
        let holds_journal = |target: &Target| {
            label.members.get(usize::from(target.part.role)).is_some_and(|entry| entry.state == MemberState::Journal)
        };
        let at = targets.iter().position(holds_journal);
        let journal = at.map(|at| targets.remove(at));
        let was_clean = label.clean;
        let (candidates, lines, unproven) = (Vec::new(), Lines::new(random), Vec::new());
        let (written, found_sequence) = (label.clone(), 0);
        let growing = None;
        Array {
            written,
            label,
            geometry,
            targets,
            journal,
            was_clean,
            run_head: None,
            retired: RetiredMarks::default(),
            retirement: None,
            has_ended: false,
            candidates,
            lines,
            found_sequence,
            unproven,
            agreed: None,
            growing,
        }
    }

    /// The journal has begun a run.
    pub fn note_run(&mut self, start: &JournalStart) {
        self.run_head = Some(start.head());
    }

    /// Whether it goes on when members fail.
    pub fn is_redundant(&self) -> bool {
        is_redundant(self.label.spec.level)
    }

    /// Its identity.
    pub fn uuid(&self) -> Uuid {
        self.label.uuid
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.label.name
    }

    /// The label that all members bear.
    pub fn label(&self) -> &ArrayPart {
        &self.label
    }

    /// Where every byte lives.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The members that hold content and whose disks are here, by role: in sync, or being filled.
    pub fn members(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.disks().filter(|m| matches!(m.state, MemberState::InSync | MemberState::Filling))
    }

    /// The spares that are here, by their number in the table of members.
    pub fn spares(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.disks().filter(|m| m.state == MemberState::Spare && !joins(&self.label, m.role))
    }

    /// Disks of members that are out and could be filled.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.candidates.iter().map(|(candidate, _)| *candidate)
    }

    /// Forgets disks of members that are out, unless they are still here under the number that they had: numbers are given
    /// to other disks by and by.
    pub fn retain_candidates(&mut self, mut is_here: impl FnMut(LeafId) -> bool) {
        self.candidates.retain(|(candidate, _)| is_here(candidate.leaf));
    }

    fn disks(&self) -> impl Iterator<Item = ArrayMember<'_>> {
        self.targets.iter().map(|t| {
            let state = self.state(t.part.role);
            ArrayMember { role: t.part.role, leaf: t.leaf, state, part: &t.part }
        })
    }

    /// How many roles hold content. Numbers from here on in the table of members are spares.
    pub fn roles(&self) -> u16 {
        self.geometry.members().len() as u16
    }

    /// What the array thinks of a member; absent where there is no such number.
    pub fn state(&self, role: u16) -> MemberState {
        self.label.members.get(usize::from(role)).map_or(MemberState::Absent, |m| m.state)
    }

    /// The disk of a member that is in sync, being filled, or a spare.
    pub fn leaf(&self, role: u16) -> Option<LeafId> {
        self.targets.iter().find(|t| t.part.role == role).map(|t| t.leaf)
    }

    /// Whether every role is in sync.
    pub fn is_whole(&self) -> bool {
        (0..self.roles()).all(|role| self.state(role) == MemberState::InSync)
    }

    /// Whether nobody is out and nobody is being filled: only then may bits of the bitmap be cleared. Roles of a mirror that are
    /// nobody's do not count: who takes one gets everything.
    pub fn lacks_nobody(&self) -> bool {
        lacks_nobody(&self.label)
    }

    /// The roles of a mirror that are nobody's.
    pub fn vacant(&self) -> impl Iterator<Item = u16> {
        let of_copies = self.label.spec.level.parity() == 0;
        (0..self.roles()).filter(move |role| of_copies && self.state(*role) == MemberState::Absent)
    }

    /// The job in the label that fills this member in full, where there is one.
    pub fn rebuild(&self, role: u16) -> Option<&Job> {
        rebuild_of(&self.label, role)
    }

    /// Notes the disk of a member that has just been left out.
    pub(super) fn keep_candidate(&mut self, target: Target) {
        let role = target.part.role;
        if self.state(role) != MemberState::Out {
            return;
        }
        let job = self.rebuild(role).map(|job| (Filling::Full, job.position_bytes));
        let (from, position_bytes) = job.unwrap_or((Filling::FromBitmap, 0));
        self.note_candidate(Candidate { role, leaf: target.leaf, from, position_bytes, returns: true }, target);
    }

    /// Notes a disk that could be filled.
    pub(super) fn note_candidate(&mut self, candidate: Candidate, target: Target) {
        self.candidates.retain(|(other, _)| other.leaf != target.leaf);
        self.candidates.push((candidate, target));
    }

    /// Gives the array another name. That no other array has it is for the caller to know.
    ///
    /// # Errors
    /// A disk's; then the name is the old one until a later change succeeds, and may be either after a restart.
    pub async fn rename<M: MetaIo>(&mut self, io: &M, name: Name) -> Result<(), LifecycleError> {
        self.change(io, |label| label.name = name).await
    }

    /// Notes that the array stopped in order. What was written to it becomes durable first; no I/O may be under way.
    ///
    /// # Errors
    /// A disk's; then the mark is not set, which does no harm. A redundant array drops a member that fails meanwhile.
    pub async fn stop<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            self.complete(io).await?;
            let mut losses = Losses::default();
            if !planted(Planted::StopWithoutFlush) {
                self.flush_survivors(io, &mut losses).await?;
            }
            // What was written until the service ended may be marked. The next start needs no mark, whichever member is absent then.
            self.retire_ended();
            let mut next = self.next();
            next.clean = true;
            self.leave_out(&mut next, &losses.roles, &[]);
            return self.record(io, next, losses).await.map(drop);
        }
        try_join_all(self.targets.iter().map(|target| flush(io, target.leaf))).await?;
        self.change(io, |label| label.clean = true).await
    }

    /// Removes the labels from all members that are here, and nothing else. After an error it can be called again; a
    /// deletion that was begun is finished by the next start. Returns the members whose labels were not removed, because
    /// their disks are not here: those are to be wiped when they return.
    ///
    /// # Errors
    /// A disk's.
    pub async fn delete<M: MetaIo>(&mut self, io: &M) -> Result<Vec<u16>, LifecycleError> {
        if self.label.state != ArrayState::Deleting && !planted(Planted::EraseUnannounced) {
            self.change(io, |label| label.state = ArrayState::Deleting).await?;
        }
        erase_targets(io, &self.targets).await?;
        // Should it fail, it is named as one that is to be wiped.
        let journal = self.journal.take();
        if let Some(target) = &journal
            && erase_targets(io, std::slice::from_ref(target)).await.is_ok()
        {
            self.journal = journal;
        }
        let wiped = join_all(self.candidates.iter().map(|(candidate, _)| wipe(io, candidate.leaf))).await;
        let left = self.candidates.iter().zip(wiped).filter(|(_, wiped)| wiped.is_err()).map(|((c, _), _)| c.role);
        let left: Vec<u16> = left.collect();
        let erased = |role: u16| {
            self.targets.iter().chain(&self.journal).any(|t| t.part.role == role)
                || self.candidates.iter().any(|(c, _)| c.role == role && c.returns) && !left.contains(&role)
        };
        let named = self.label.members.iter().zip(0..).filter(|(entry, _)| entry.id.is_some());
        Ok(named.map(|(_, role)| role).filter(|role| !erased(*role)).collect())
    }

    /// The same as [`Array::change`], and says who failed on the way: at a redundant level they were dropped.
    pub(super) async fn change_dropping<M: MetaIo>(
        &mut self,
        io: &M,
        edit: impl FnOnce(&mut ArrayPart),
    ) -> Result<Vec<Failure>, LifecycleError> {
        self.complete(io).await?;
        let mut next = self.next();
        edit(&mut next);
        self.record(io, next, Losses::default()).await
    }

    /// Writes a new label on all members.
    ///
    /// Before: all have label n. Between: some have n + 1. After: all have n + 1. A change that failed left some with
    /// n + 1: that very label is then completed on all before there can be n + 2, and what it said is undone in n + 2.
    pub(super) async fn change<M: MetaIo>(
        &mut self,
        io: &M,
        edit: impl FnOnce(&mut ArrayPart),
    ) -> Result<(), LifecycleError> {
        if self.is_redundant() {
            return self.change_dropping(io, edit).await.map(drop);
        }
        self.catch_up(io).await?;
        let mut next = self.label.clone();
        next.sequence += 1;
        edit(&mut next);
        // Before the first await: whatever happens from here on, this number is used up.
        self.written = next.clone();
        write_labels(io, &mut self.targets, &next).await?;
        self.label = next;
        Ok(())
    }

    /// Completes a label that was begun at a level without redundancy. What it said does not count: the next one says that.
    pub(super) async fn catch_up<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.written.sequence != self.label.sequence {
            let written = self.written.clone();
            fit_data_areas(&mut self.targets, &written);
            write_labels(io, &mut self.targets, &written).await?;
            self.label.sequence = written.sequence;
            fit_data_areas(&mut self.targets, &self.label);
        }
        Ok(())
    }
}

/// Data areas as a label has them: a growth that did not succeed has begun to make them larger.
fn fit_data_areas(targets: &mut [Target], label: &ArrayPart) {
    for target in targets {
        let Some(entry) = label.members.get(usize::from(target.part.role)) else { continue };
        let places = &mut target.part.places;
        *places = places.with_data(entry.data_bytes).unwrap_or(*places);
    }
}

/// The job that fills a member in full.
pub(super) fn rebuild_of(label: &ArrayPart, role: u16) -> Option<&Job> {
    label.jobs.iter().find(|job| fills(job, role))
}

/// Whether the job fills this member in full: of a role, or a successor.
pub(super) fn fills(job: &Job, role: u16) -> bool {
    matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && job.target == Some(role)
}
