//! Writing the next label of a redundant array: in which order, and what becomes of members that fail meanwhile.
//!
//! In-sync members first, others after them, whoever changes its state last. Each disk that takes labels has label *n*
//! before any has *n* + 1. A member that fails is left out by the next label, of a new line if any label called it in
//! sync; before that label marks are retired and the survivors flushed, whatever the change is about
//! ([`Array::prepare_losses`]). Whether enough survive is judged by the last label that was completed: who is promoted by
//! the one that is being written does not count yet.

use braid_format::{ArrayPart, JobKind, MemberState};

use super::array::Array;
use super::coverage::covers;
use super::error::LifecycleError;
use super::grow::joining_from;
use super::join::join_all;
use super::lines::{close, part};
use super::planted::{Planted, planted};
use super::redundant::lacks_nobody;
use super::replace::successor_of;
use super::write::{Target, flush, place_of, write_each};
use crate::{LeafId, MetaIo};

/// A member that failed on the way, and how.
pub(super) type Failure = (u16, LifecycleError);

/// Who is left out, and what their disks answered.
#[derive(Default)]
pub(super) struct Losses {
    pub roles: Vec<u16>,
    pub failures: Vec<Failure>,
    /// One that survives and has been flushed already.
    pub flushed: Option<u16>,
}

impl Losses {
    pub fn of(roles: Vec<u16>) -> Losses {
        Losses { roles, ..Losses::default() }
    }

    pub fn add(&mut self, failures: Vec<Failure>) {
        self.roles.extend(failures.iter().map(|(role, _)| *role));
        self.failures.extend(failures);
        self.roles.sort_unstable();
        self.roles.dedup();
    }

    fn beyond(&self) -> LifecycleError {
        let source = self.failures.last().map(|(_, error)| Box::new(error.clone()));
        LifecycleError::Beyond { lost: self.roles.clone(), source }
    }
}

impl Array {
    /// Whether every byte keeps a copy that is in sync without these members, beside those that are out already.
    pub fn tolerates(&self, lost: &[u16]) -> bool {
        let left_out = |role: &u16| lost.contains(role) || self.unproven.contains(role);
        let counts = |role: u16| self.counts(role) && !left_out(&role);
        let holds = |role: u16| counts(role) || successor_of(&self.label, role).is_some_and(counts);
        // Disks that are being taken up hold nothing that counts, and all that is needed of them.
        let joins = |role: u16| {
            let number = joining_from(&self.label).map(|first| first + role.saturating_sub(self.roles()));
            let here = |number| self.targets.iter().any(|t| t.part.role == number) && !lost.contains(&number);
            role >= self.roles() && number.is_some_and(here)
        };
        covers(&self.geometry, holds)
            && self
                .growing
                .as_ref()
                .is_none_or(|larger| covers(larger, |role| if role < self.roles() { holds(role) } else { joins(role) }))
    }

    /// Whether this member is in sync by a completed label, and takes labels.
    pub(super) fn counts(&self, role: u16) -> bool {
        let entry = self.label.members.get(usize::from(role));
        let here = |entry: &braid_format::MemberEntry| {
            self.targets.iter().any(|t| t.part.role == role && Some(t.part.id) == entry.id)
        };
        let filling = |entry: &braid_format::MemberEntry| {
            planted(Planted::FillingStartedAlone) && entry.state == MemberState::Filling
        };
        entry.is_some_and(|entry| (entry.state == MemberState::InSync || filling(entry)) && here(entry))
    }

    /// Completes a label that was begun and, when the array froze, not completed.
    pub(super) async fn complete<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.written.sequence == self.label.sequence {
            return Ok(());
        }
        self.record(io, self.written.clone(), Losses::default()).await.map(drop)
    }

    /// Writes the label as it is again, on these disks, in-sync members first: they are a step behind, or a copy is damaged.
    /// Whom this very label promotes comes after them, and counts once they all have it.
    ///
    /// # Errors
    /// [`LifecycleError::Beyond`] when too few survive.
    pub(super) async fn rewrite<M: MetaIo>(
        &mut self,
        io: &M,
        leaves: &[LeafId],
        losses: &mut Losses,
    ) -> Result<(), LifecycleError> {
        if planted(Planted::RaisedWhileBehind) || planted(Planted::NewestNotWritten) {
            return Ok(());
        }
        let label = self.label.clone();
        self.spread_retired();
        for in_sync in [true, false] {
            if !self.tolerates(&losses.roles) {
                return Err(losses.beyond());
            }
            let state = |role: u16| label.members.get(usize::from(role)).map(|m| m.state);
            let mut targets: Vec<&mut Target> = self
                .targets
                .iter_mut()
                .filter(|t| leaves.contains(&t.leaf) && !losses.roles.contains(&t.part.role))
                .filter(|t| {
                    let proven = !self.unproven.contains(&t.part.role);
                    (state(t.part.role) == Some(MemberState::InSync) && proven) == in_sync
                })
                .collect();
            let roles: Vec<u16> = targets.iter().map(|t| t.part.role).collect();
            let results = write_each(io, &mut targets, &label).await;
            losses.add(roles.into_iter().zip(results).filter_map(|(role, r)| Some((role, r.err()?))).collect());
        }
        self.unproven.clear();
        Ok(())
    }

    /// What the labels say of the journal's marks that are retired, on every disk that takes them.
    fn spread_retired(&mut self) {
        let retired = self.retired;
        self.targets.iter_mut().chain(&mut self.journal).for_each(|target| target.part.retired = retired);
    }

    /// The label after the last completed one.
    pub(super) fn next(&self) -> ArrayPart {
        let mut next = self.label.clone();
        next.sequence += 1;
        next
    }

    /// Writes `next`, and as many after it as it takes to leave out who fails. Returns who failed on the way.
    ///
    /// Before: all that take labels have n. Between: in-sync members have n or n + 1, others n; then those have n + 1
    /// and others n or n + 1. After: all have n + 1.
    ///
    /// # Errors
    /// [`LifecycleError::Beyond`] when too few survive: what was begun stays on some, and nothing more is written.
    pub(super) async fn record<M: MetaIo>(
        &mut self,
        io: &M,
        mut next: ArrayPart,
        mut losses: Losses,
    ) -> Result<Vec<Failure>, LifecycleError> {
        loop {
            self.keep_line(&mut next);
            for target in self.targets.iter().filter(|t| !losses.roles.contains(&t.part.role)) {
                target.label(&next).encode()?;
            }
            if !planted(Planted::LabelsBeforeVotes) {
                self.agree_on_losses(io, &next).await?;
            }
            self.written = next.clone();
            let before = losses.failures.len();
            self.write_in_order(io, &next, &mut losses).await;
            if losses.failures.len() == before {
                if planted(Planted::LabelsBeforeVotes) {
                    self.agree_on_losses(io, &next).await?;
                }
                self.settle(next.clone(), &losses.roles);
                let untold = self.agree_on_gains(io).await?;
                if untold.is_empty() {
                    return Ok(losses.failures);
                }
                losses.add(untold);
            }
            self.prepare_losses(io, &mut losses).await?;
            let mut after = next.clone();
            after.sequence += 1;
            self.leave_out(&mut after, &losses.roles, &[&next]);
            next = after;
        }
    }

    /// States of which line `next` is, beside what [`Array::leave_out`] says of those that part. Of a label that was begun before it
    /// changes nothing.
    ///
    /// While nobody is out bits are cleared, and whoever comes from a line before is an old copy. When somebody begins to be filled
    /// then, as a role that was nobody's is taken, bits are kept from there on: of that a new line tells, as what is kept is not all that
    /// was written since the one that ends.
    fn keep_line(&mut self, next: &mut ArrayPart) {
        if lacks_nobody(next) {
            if !planted(Planted::WholeNotClosed) {
                close(&mut next.lineage);
            }
        } else if lacks_nobody(&self.label)
            && next.lineage.id == self.label.lineage.id
            && !planted(Planted::VacantFilledInLine)
        {
            next.lineage = part(&next.lineage, self.believed_from(), self.lines.next(), &[]);
        }
    }

    /// Who is not in sync any more by the label that is about to be written is out by the word of whoever decides beside the labels,
    /// first: a label that says so may be all that is found.
    async fn agree_on_losses<M: MetaIo>(&mut self, io: &M, next: &ArrayPart) -> Result<(), LifecycleError> {
        let stays = self.in_sync_by(next);
        let agreed = match &self.agreed {
            None => stays,
            Some(before) => before.iter().copied().filter(|role| stays.contains(role)).collect(),
        };
        self.agree(io, agreed).await.map(drop)
    }

    /// Who is in sync by the label that is complete now is so by the word of whoever decides, too. Gives those who failed meanwhile.
    pub(super) async fn agree_on_gains<M: MetaIo>(&mut self, io: &M) -> Result<Vec<Failure>, LifecycleError> {
        let now = self.in_sync_by(&self.label);
        let untold = self.agree(io, now).await?;
        let why = |role: u16| LifecycleError::Role { role, reason: "it did not take its own promotion".into() };
        Ok(untold.into_iter().map(|role| (role, why(role))).collect())
    }

    async fn agree<M: MetaIo>(&mut self, io: &M, in_sync: Vec<u16>) -> Result<Vec<u16>, LifecycleError> {
        // The last ones are never called lost, here either.
        if self.agreed.as_ref() == Some(&in_sync) || in_sync.is_empty() {
            return Ok(Vec::new());
        }
        let overruled =
            |_| LifecycleError::Beyond { lost: Vec::new(), source: Some(Box::new(LifecycleError::Overruled)) };
        let untold = io.agree(&in_sync).await.map_err(overruled)?;
        self.agreed = Some(in_sync.into_iter().filter(|role| !untold.contains(role)).collect());
        Ok(untold)
    }

    fn in_sync_by(&self, label: &ArrayPart) -> Vec<u16> {
        let entries = label.members.iter().zip(0..self.roles());
        entries.filter(|(entry, _)| entry.state == MemberState::InSync).map(|(_, role)| role).collect()
    }

    /// Flushes all that hold content, but for the lost ones and who has been flushed already; who fails is lost, too.
    ///
    /// # Errors
    /// [`LifecycleError::Beyond`] when too few are left.
    pub(super) async fn flush_survivors<M: MetaIo>(
        &mut self,
        io: &M,
        losses: &mut Losses,
    ) -> Result<(), LifecycleError> {
        loop {
            if !self.tolerates(&losses.roles) {
                self.record_the_end(io, &losses.roles).await;
                return Err(losses.beyond());
            }
            if planted(Planted::DropRecordedWithoutFlush) {
                return Ok(());
            }
            let holds =
                |target: &&Target| matches!(self.state(target.part.role), MemberState::InSync | MemberState::Filling);
            let done = |role: u16| losses.roles.contains(&role) || losses.flushed == Some(role);
            let left: Vec<&Target> = self.targets.iter().filter(holds).filter(|t| !done(t.part.role)).collect();
            let results = join_all(left.iter().map(|target| flush(io, target.leaf))).await;
            let failed: Vec<Failure> =
                left.iter().zip(results).filter_map(|(t, r)| Some((t.part.role, r.err()?))).collect();
            if failed.is_empty() {
                return Ok(());
            }
            losses.add(failed);
        }
    }

    /// The planted bug: the last survivors are called failed as well, wherever that can still be written.
    async fn record_the_end<M: MetaIo>(&mut self, io: &M, lost: &[u16]) {
        if planted(Planted::LastSurvivorRecordedFailed) {
            let mut last = self.written.clone();
            last.sequence += 1;
            self.leave_out(&mut last, lost, &[]);
            drop(write_each(io, &mut self.targets.iter_mut().collect::<Vec<_>>(), &last).await);
        }
    }

    /// States in `label` that these members are lost: of a new line if any of them is called in sync, by the last
    /// complete label or by one of `begun`.
    pub(super) fn leave_out(&mut self, label: &mut ArrayPart, lost: &[u16], begun: &[&ArrayPart]) {
        // A successor takes another number with the very label that seats it.
        let place = |array: &ArrayPart, role: u16| {
            let target = self.targets.iter().find(|t| t.part.role == role);
            target.and_then(|t| place_of(array, t.part.id)).unwrap_or(role)
        };
        let in_sync = |array: &ArrayPart, role: u16| {
            array.members.get(usize::from(place(array, role))).is_some_and(|m| m.state == MemberState::InSync)
        };
        let parted = lost.iter().any(|role| {
            in_sync(&self.label, *role) || in_sync(label, *role) || begun.iter().any(|b| in_sync(b, *role))
        });
        for role in lost {
            let place = place(label, *role);
            let Some(entry) = label.members.get_mut(usize::from(place)) else { continue };
            match entry.state {
                // Spares and successors have no role that waits for them. A mirror that gives its last role up gives its number to a spare.
                state if place >= self.roles() || state == MemberState::Spare => {
                    (entry.state, entry.id) = (MemberState::Absent, None);
                    label.jobs.retain(|job| job.target != Some(place) || job.kind == JobKind::Grow);
                }
                MemberState::InSync | MemberState::Filling => entry.state = MemberState::Out,
                MemberState::Spare | MemberState::Out | MemberState::Absent | MemberState::Journal => {}
            }
        }
        if parted {
            label.lineage = part(&label.lineage, self.believed_from(), self.lines.next(), &[]);
        }
    }

    /// From which sequence number on a member is believed that parts from here: 0 where somebody was out or being filled, as then no
    /// bit was cleared. The last completed label is on everybody. What a start found may lack on members that are not here.
    pub(super) fn believed_from(&self) -> u64 {
        match self.lacks_nobody() {
            false => 0,
            true => self.label.sequence - u64::from(self.label.sequence == self.found_sequence),
        }
    }

    /// Writes a label on all but the lost, rank by rank. Stops after the first rank when too few survive it.
    async fn write_in_order<M: MetaIo>(&mut self, io: &M, next: &ArrayPart, losses: &mut Losses) {
        self.spread_retired();
        let mut ranks: Vec<u8> = self.targets.iter().map(|target| self.rank(target, next)).collect();
        if planted(Planted::NewcomerLabelFirst) {
            ranks.iter_mut().for_each(|rank| *rank = 2 - *rank);
        }
        for rank in 0..3 {
            let mut targets: Vec<&mut Target> = self
                .targets
                .iter_mut()
                .zip(&ranks)
                .filter(|(t, r)| **r == rank && !losses.roles.contains(&t.part.role))
                .map(|(t, _)| t)
                .collect();
            let roles: Vec<u16> = targets.iter().map(|t| t.part.role).collect();
            let results = write_each(io, &mut targets, next).await;
            losses.add(roles.into_iter().zip(results).filter_map(|(role, r)| Some((role, r.err()?))).collect());
            if !self.tolerates(&losses.roles) {
                return;
            }
        }
        // No label says that the journal's disk has failed before the ring is elsewhere.
        if let Some(journal) = &mut self.journal
            && write_each(io, &mut [journal], next).await.iter().any(Result::is_err)
        {
            self.journal = None;
        }
    }

    /// 0: in sync before and after. 1: something else, before and after. 2: this label changes what it is.
    fn rank(&self, target: &Target, next: &ArrayPart) -> u8 {
        let of = |array: &ArrayPart, place: u16| array.members.get(usize::from(place)).map(|m| (m.id, m.state));
        let role = target.part.role;
        let before = of(&self.label, role);
        let after = of(next, place_of(next, target.part.id).unwrap_or(role));
        match (before, after) {
            (Some((_, MemberState::InSync)), Some((_, MemberState::InSync))) if before == after => 0,
            (before, after) if before == after => 1,
            _ => 2,
        }
    }

    /// All that take labels have this one.
    fn settle(&mut self, label: ArrayPart, lost: &[u16]) {
        self.written = label.clone();
        if let Ok(geometry) = label.geometry() {
            self.geometry = geometry;
            self.growing = None;
        }
        self.label = label;
        let (left, gone): (Vec<Target>, Vec<Target>) =
            std::mem::take(&mut self.targets).into_iter().partition(|t| !lost.contains(&t.part.role));
        self.targets = left;
        for target in self.targets.iter_mut().chain(&mut self.journal) {
            target.part.role = place_of(&self.label, target.part.id).unwrap_or(target.part.role);
        }
        self.targets.sort_by_key(|target| target.part.role);
        let (targets, journal) = (&self.targets, &self.journal);
        self.candidates.retain(|(candidate, _)| targets.iter().chain(journal).all(|t| t.leaf != candidate.leaf));
        for target in gone {
            self.keep_candidate(target);
        }
    }
}
