//! Writes the next label of a redundant array: the order of the writes, and what happens to members that fail
//! meanwhile.
//!
//! Members in sync come first, then others, and members whose state the label changes last. Each disk that takes labels
//! has label *n* before any has *n* + 1. The next label drops a member that fails, in a new lineage if any label called
//! it in sync. Before that label, marks are retired and the survivors flush, whatever the change is about
//! ([`Array::prepare_losses`]). Whether enough members survive is decided by the last completed label: a member that
//! the label being written promotes does not count yet.

use braid_engine::{LeafId, MetaIo};
use braid_format::{ArrayPart, JobKind, MemberState};

use super::array::Array;
use super::coverage::covers;
use super::error::LifecycleError;
use super::join::join_all;
use super::lineage::{branch, close_ancestors};
use super::losses::{Failure, Losses};
use super::member_table::{joining_from, may_clear_bits, successor_of};
use super::write::{Target, flush, number_of, write_each};

impl Array {
    /// Whether every byte of the array has a copy on, or can be computed from, the members in sync that would be left
    /// without `lost`. While the array grows, the larger array has to tolerate the loss too.
    pub fn tolerates(&self, lost: &[u16]) -> bool {
        let left_out = |role: &u16| lost.contains(role) || self.unproven.contains(role);
        let counts = |role: u16| self.counts(role) && !left_out(&role);
        let holds = |role: u16| counts(role) || successor_of(&self.label, role).is_some_and(counts);
        // A present disk that is being added counts as in sync: it needs to hold no data yet.
        let joins = |role: u16| {
            let number = joining_from(&self.label).map(|first| first + role.saturating_sub(self.slots()));
            let is_present = |number| self.targets.iter().any(|t| t.part.slot == number) && !lost.contains(&number);
            role >= self.slots() && number.is_some_and(is_present)
        };
        covers(&self.geometry, holds)
            && self
                .growing
                .as_ref()
                .is_none_or(|larger| covers(larger, |role| if role < self.slots() { holds(role) } else { joins(role) }))
    }

    /// Whether this member is in sync by a completed label, and takes labels.
    pub(super) fn counts(&self, role: u16) -> bool {
        let entry = self.label.members.get(usize::from(role));
        let is_present = |entry: &braid_format::MemberEntry| {
            self.targets.iter().any(|t| t.part.slot == role && Some(t.part.id) == entry.id)
        };
        entry.is_some_and(|entry| entry.state == MemberState::InSync && is_present(entry))
    }

    /// Writes a label that an earlier change has begun and not completed to all targets; it takes effect. An earlier
    /// change ends so when too few members survive, or when its future is dropped.
    pub(super) async fn complete<M: MetaIo>(&mut self, io: &M) -> Result<(), LifecycleError> {
        if self.written.sequence == self.label.sequence {
            return Ok(());
        }
        self.record(io, self.written.clone(), Losses::default()).await.map(drop)
    }

    /// At a start: writes the newest label again to these disks, which are a step behind or have only one current copy.
    /// Members in sync come first. Members that this label promotes come after them, and count as copies once all of
    /// them bear it.
    ///
    /// # Errors
    /// [`LifecycleError::BeyondTolerance`] if too few survive.
    pub(super) async fn rewrite<M: MetaIo>(
        &mut self,
        io: &M,
        leaves: &[LeafId],
        losses: &mut Losses,
    ) -> Result<(), LifecycleError> {
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
                .filter(|t| leaves.contains(&t.leaf) && !losses.roles.contains(&t.part.slot))
                .filter(|t| {
                    let proven = !self.unproven.contains(&t.part.slot);
                    (state(t.part.slot) == Some(MemberState::InSync) && proven) == in_sync
                })
                .collect();
            let roles: Vec<u16> = targets.iter().map(|t| t.part.slot).collect();
            let results = write_each(io, &mut targets, &label).await;
            losses.add(roles.into_iter().zip(results).filter_map(|(role, r)| Some((role, r.err()?))).collect());
        }
        self.unproven.clear();
        Ok(())
    }

    /// Copies the retired journal marks into the labels of all targets.
    fn spread_retired(&mut self) {
        let retired = self.retired;
        self.targets.iter_mut().chain(&mut self.journal).for_each(|target| target.part.retired = retired);
    }

    /// Returns the label after the last completed one.
    pub(super) fn next(&self) -> ArrayPart {
        let mut next = self.label.clone();
        next.sequence += 1;
        next
    }

    /// Writes `next`, and further labels until every failing member is dropped. Returns the members that failed
    /// meanwhile.
    ///
    /// Before: all targets have n. Between: members in sync have n or n + 1, others n; then members in sync have n + 1,
    /// others n or n + 1. After: all have n + 1.
    ///
    /// # Errors
    /// [`LifecycleError::BeyondTolerance`] if too few survive: the label stays on some targets, and nothing more is written.
    pub(super) async fn record<M: MetaIo>(
        &mut self,
        io: &M,
        mut next: ArrayPart,
        mut losses: Losses,
    ) -> Result<Vec<Failure>, LifecycleError> {
        loop {
            self.update_lineage(&mut next);
            for target in self.targets.iter().filter(|t| !losses.roles.contains(&t.part.slot)) {
                target.label(&next).encode()?;
            }
            self.agree_on_losses(io, &next).await?;
            self.written = next.clone();
            let before = losses.failures.len();
            self.write_in_order(io, &next, &mut losses).await;
            if losses.failures.len() == before {
                self.settle(next.clone(), &losses.roles);
                let not_promoted = self.agree_on_gains(io).await?;
                if not_promoted.is_empty() {
                    return Ok(losses.failures);
                }
                losses.add(not_promoted);
            }
            self.prepare_losses(io, &mut losses).await?;
            let mut after = next.clone();
            after.sequence += 1;
            self.mark_failed(&mut after, &losses.roles, &[&next]);
            next = after;
        }
    }

    /// Updates the lineage of `next` where no member is dropped; [`Array::mark_failed`] does so at a drop. Does not
    /// change a label that was begun before.
    ///
    /// While no member is failed or rebuilding, dirty bits are cleared, and a disk with a label of an earlier lineage
    /// is an old copy. A rebuild into a vacant slot ends that state: bits are kept from then on. It begins a new
    /// lineage, because the bits do not cover writes of the old one.
    fn update_lineage(&mut self, next: &mut ArrayPart) {
        if may_clear_bits(next) {
            close_ancestors(&mut next.lineage);
        } else if may_clear_bits(&self.label) && next.lineage.id == self.label.lineage.id {
            next.lineage = branch(&next.lineage, self.believed_from(), self.lineage_ids.next(), &[]);
        }
    }

    /// Before the next label is written: has the voters remove from their set of members in sync those that this label
    /// drops. A later start may find this label alone, and the voters must not count a dropped member as in sync then.
    async fn agree_on_losses<M: MetaIo>(&mut self, io: &M, next: &ArrayPart) -> Result<(), LifecycleError> {
        let stays = self.in_sync_by(next);
        let agreed = match &self.agreed {
            None => stays,
            Some(before) => before.iter().copied().filter(|role| stays.contains(role)).collect(),
        };
        self.agree(io, agreed).await.map(drop)
    }

    /// Has the voters record the members in sync by the label that is now complete. Returns the members that did not
    /// acknowledge their promotion.
    pub(super) async fn agree_on_gains<M: MetaIo>(&mut self, io: &M) -> Result<Vec<Failure>, LifecycleError> {
        let now = self.in_sync_by(&self.label);
        let not_promoted = self.agree(io, now).await?;
        let why = |role: u16| LifecycleError::Slot { slot: role, reason: "it did not take its own promotion".into() };
        Ok(not_promoted.into_iter().map(|role| (role, why(role))).collect())
    }

    async fn agree<M: MetaIo>(&mut self, io: &M, in_sync: Vec<u16>) -> Result<Vec<u16>, LifecycleError> {
        // As in labels, the last members in sync are never recorded as failed: an empty set is not sent.
        if self.agreed.as_ref() == Some(&in_sync) || in_sync.is_empty() {
            return Ok(Vec::new());
        }
        let overruled =
            |_| LifecycleError::BeyondTolerance { lost: Vec::new(), source: Some(Box::new(LifecycleError::Fenced)) };
        let not_promoted = io.record_in_sync(&in_sync).await.map_err(overruled)?;
        self.agreed = Some(in_sync.into_iter().filter(|role| !not_promoted.contains(role)).collect());
        Ok(not_promoted)
    }

    fn in_sync_by(&self, label: &ArrayPart) -> Vec<u16> {
        let entries = label.members.iter().zip(0..self.slots());
        entries.filter(|(entry, _)| entry.state == MemberState::InSync).map(|(_, role)| role).collect()
    }

    /// Flushes all members that hold content, except the failed and the already flushed ones; a member that fails is
    /// added to the losses.
    ///
    /// # Errors
    /// [`LifecycleError::BeyondTolerance`] if too few are left.
    pub(super) async fn flush_survivors<M: MetaIo>(
        &mut self,
        io: &M,
        losses: &mut Losses,
    ) -> Result<(), LifecycleError> {
        loop {
            if !self.tolerates(&losses.roles) {
                return Err(losses.beyond());
            }
            let holds = |target: &&Target| {
                matches!(self.state(target.part.slot), MemberState::InSync | MemberState::Rebuilding)
            };
            let done = |role: u16| losses.roles.contains(&role) || losses.flushed == Some(role);
            let left: Vec<&Target> = self.targets.iter().filter(holds).filter(|t| !done(t.part.slot)).collect();
            let results = join_all(left.iter().map(|target| flush(io, target.leaf))).await;
            let failed: Vec<Failure> =
                left.iter().zip(results).filter_map(|(t, r)| Some((t.part.slot, r.err()?))).collect();
            if failed.is_empty() {
                return Ok(());
            }
            losses.add(failed);
        }
    }

    /// Records in `label` that these members have failed: in a new lineage if any of them is in sync by the last
    /// complete label, by `label`, or by one of `begun`.
    pub(super) fn mark_failed(&mut self, label: &mut ArrayPart, lost: &[u16], begun: &[&ArrayPart]) {
        // A successor changes its number with the very label that gives it the slot.
        let number = |array: &ArrayPart, role: u16| {
            let target = self.targets.iter().find(|t| t.part.slot == role);
            target.and_then(|t| number_of(array, t.part.id)).unwrap_or(role)
        };
        let in_sync = |array: &ArrayPart, role: u16| {
            array.members.get(usize::from(number(array, role))).is_some_and(|m| m.state == MemberState::InSync)
        };
        let parted = lost.iter().any(|role| {
            in_sync(&self.label, *role) || in_sync(label, *role) || begun.iter().any(|b| in_sync(b, *role))
        });
        for role in lost {
            let number = number(label, *role);
            let Some(entry) = label.members.get_mut(usize::from(number)) else { continue };
            match entry.state {
                // Spares and successors leave no slot behind. A mirror that gives up its last slot gives that number to
                // a spare.
                state if number >= self.slots() || state == MemberState::Spare => {
                    (entry.state, entry.id) = (MemberState::Empty, None);
                    label.jobs.retain(|job| job.target != Some(number) || job.kind == JobKind::Grow);
                }
                MemberState::InSync | MemberState::Rebuilding => entry.state = MemberState::Failed,
                MemberState::Spare | MemberState::Failed | MemberState::Empty | MemberState::Journal => {}
            }
        }
        if parted {
            label.lineage = branch(&label.lineage, self.believed_from(), self.lineage_ids.next(), &[]);
        }
    }

    /// Returns the sequence number from which on a member dropped now may return: 0 if a member was failed or
    /// rebuilding, because no bit was cleared then. The last completed label is on all members; members that were
    /// missing at the start may lack the label that it found.
    pub(super) fn believed_from(&self) -> u64 {
        match self.may_clear_bits() {
            false => 0,
            true => self.label.sequence - u64::from(self.label.sequence == self.found_sequence),
        }
    }

    /// Writes a label to all targets except the failed ones, rank by rank. Stops after a rank that too few members
    /// survive.
    async fn write_in_order<M: MetaIo>(&mut self, io: &M, next: &ArrayPart, losses: &mut Losses) {
        self.spread_retired();
        let ranks: Vec<u8> = self.targets.iter().map(|target| self.rank(target, next)).collect();
        for rank in 0..3 {
            let mut targets: Vec<&mut Target> = self
                .targets
                .iter_mut()
                .zip(&ranks)
                .filter(|(t, r)| **r == rank && !losses.roles.contains(&t.part.slot))
                .map(|(t, _)| t)
                .collect();
            let roles: Vec<u16> = targets.iter().map(|t| t.part.slot).collect();
            let results = write_each(io, &mut targets, next).await;
            losses.add(roles.into_iter().zip(results).filter_map(|(role, r)| Some((role, r.err()?))).collect());
            if !self.tolerates(&losses.roles) {
                return;
            }
        }
        // A failed disk of the journal is given up here only in memory: a label may record that only after the ring has
        // moved.
        if let Some(journal) = &mut self.journal
            && write_each(io, &mut [journal], next).await.iter().any(Result::is_err)
        {
            self.journal = None;
        }
    }

    /// 0: in sync before and after. 1: another unchanged state. 2: this label changes its state.
    fn rank(&self, target: &Target, next: &ArrayPart) -> u8 {
        let of = |array: &ArrayPart, number: u16| array.members.get(usize::from(number)).map(|m| (m.id, m.state));
        let role = target.part.slot;
        let before = of(&self.label, role);
        let after = of(next, number_of(next, target.part.id).unwrap_or(role));
        match (before, after) {
            (Some((_, MemberState::InSync)), Some((_, MemberState::InSync))) if before == after => 0,
            (before, after) if before == after => 1,
            _ => 2,
        }
    }

    /// Makes `label`, which is on all targets, the current one.
    fn settle(&mut self, label: ArrayPart, lost: &[u16]) {
        self.written = label.clone();
        if let Ok(geometry) = label.geometry() {
            self.geometry = geometry;
            self.growing = None;
        }
        self.label = label;
        let (left, gone): (Vec<Target>, Vec<Target>) =
            std::mem::take(&mut self.targets).into_iter().partition(|t| !lost.contains(&t.part.slot));
        self.targets = left;
        for target in self.targets.iter_mut().chain(&mut self.journal) {
            target.part.slot = number_of(&self.label, target.part.id).unwrap_or(target.part.slot);
        }
        self.targets.sort_by_key(|target| target.part.slot);
        let (targets, journal) = (&self.targets, &self.journal);
        self.candidates.retain(|(candidate, _)| targets.iter().chain(journal).all(|t| t.leaf != candidate.leaf));
        for target in gone {
            self.keep_candidate(target);
        }
    }
}
