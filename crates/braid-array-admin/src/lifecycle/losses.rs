//! What precedes a label that drops members: the marks of the journal are retired, and the survivors flush.
//!
//! A member is dropped explicitly, or by any change of the labels that failed on it: a rename, a spare, a replacement,
//! a growth, another disk of the journal. The next label then omits that member. By that label, the member's cells of a
//! stripe that is only marked in the journal would be unreadable
//! (`docs/decisions/0006-marks-are-retired-with-the-drop.md`). So [`Array::prepare_losses`] precedes every such label.
//!
//! | step | on the disks | after a crash |
//! |---|---|---|
//! | a change fails on a member | label n on some, n + 1 on others; both call the member in sync | the marks are valid, and so is the member's data |
//! | the device is frozen, and no I/O of a marked stripe is in flight | the same | the same: no label retires the marks yet |
//! | the survivors flush | the same; marked stripes are durable in place on the survivors | the same |
//! | the next label is written | n + 2 on some: the member has failed *and* the marks are retired | by n + 2 the member's cells are computed; by n + 1 all as before |
//!
//! Freezing and retiring are done by the reconciler, which serves the array: see [`Retirement`].
//!
//! Once the reconciler has ended in order, no I/O is in flight and no shard writes to the journal. From then on the
//! label that records the stop, and each label before it that drops a member, retires all marks of the run
//! ([`Array::end_run`]).

use std::sync::Arc;

use braid_engine::MetaIo;
use braid_format::limits::COUNTER_MAX;
use braid_format::{ArrayPart, MemberState, RetiredMarks};

use super::array::Array;
use super::error::LifecycleError;
use super::retirement::Retirement;
use super::write::number_of;

/// A member that failed during a change, and its error.
pub(super) type Failure = (u16, LifecycleError);

/// The members to drop, and their errors.
#[derive(Default)]
pub(super) struct Losses {
    pub roles: Vec<u16>,
    pub failures: Vec<Failure>,
    /// A survivor that has been flushed already.
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

    pub fn beyond(&self) -> LifecycleError {
        let source = self.failures.last().map(|(_, error)| Box::new(error.clone()));
        LifecycleError::BeyondTolerance { lost: self.roles.clone(), source }
    }
}

impl Array {
    /// From now on marks are retired through `retirement` before a label drops members. `None`: no shard has the
    /// journal, and no marks are retired.
    pub(crate) fn retire_through(&mut self, retirement: Option<Arc<Retirement>>) {
        (self.retirement, self.has_ended) = (retirement, false);
    }

    /// Records that the service has ended in order: no I/O is in flight, and the journal's run gets no further batch.
    /// Each marked stripe is in place or untouched on all members, except those that the next label drops. So the next
    /// label that is written after a flush retires all marks of the run.
    pub(crate) fn end_run(&mut self) {
        (self.retirement, self.has_ended) = (None, true);
    }

    /// Retires all marks of a run that has ended; returns whether there is one. The caller flushes the survivors before
    /// it writes the next label.
    pub(super) fn retire_ended(&mut self) -> bool {
        let Some((head, _)) = self.run_head.as_ref().filter(|_| self.has_ended) else { return false };
        self.retired = RetiredMarks { run: head.run, batch: COUNTER_MAX };
        true
    }

    /// Prepares a label that drops these members, whatever else that label changes. When this returns, no I/O of a
    /// marked stripe is in flight, `retired` has the marks for that label to retire, and the survivors have flushed.
    /// Members that failed a write of a marked stripe are added to the losses: on them the stripe does not match its
    /// parity.
    ///
    /// # Errors
    /// [`LifecycleError::BeyondTolerance`] if too few are left. Then no label drops a member, and no label retires
    /// these marks.
    pub(super) async fn prepare_losses<M: MetaIo>(
        &mut self,
        io: &M,
        losses: &mut Losses,
    ) -> Result<(), LifecycleError> {
        let before = self.retired;
        let mut is_retired = self.retire_marks(losses).await;
        loop {
            let flushed = self.flush_survivors(io, losses).await;
            if flushed.is_err() {
                self.retired = before;
            }
            if flushed.is_err() || is_retired {
                return flushed;
            }
            // No marks were retired: the losses so far hold no content, or the array is not served. This flush may have
            // lost the first member that holds content.
            is_retired = self.retire_marks(losses).await;
            if !is_retired {
                return Ok(());
            }
        }
    }

    /// Retires the marks if a member that holds content is lost and the array is served, or was until its run ended;
    /// returns whether it did.
    async fn retire_marks(&mut self, losses: &mut Losses) -> bool {
        if !self.loses_content(&losses.roles) {
            return false;
        }
        if self.retire_ended() {
            return true;
        }
        let Some(retirement) = self.retirement.clone() else { return false };
        if !retirement.request().await {
            return false;
        }
        let failed = retirement.marks.failed();
        losses.roles.extend(self.members().filter(|member| failed.contains(&member.leaf)).map(|member| member.number));
        losses.roles.sort_unstable();
        losses.roles.dedup();
        // A flush before the freeze does not cover the writes that were in flight then.
        losses.flushed = None;
        self.retired = retirement.marks.retired();
        true
    }

    /// Whether one of these members holds content, by the last complete label or by the one that was begun. A spare
    /// does not.
    fn loses_content(&self, lost: &[u16]) -> bool {
        let holds = |label: &ArrayPart, role: u16| {
            let target = self.targets.iter().find(|target| target.part.slot == role);
            let number = target.and_then(|target| number_of(label, target.part.id)).unwrap_or(role);
            let state = label.members.get(usize::from(number)).map(|member| member.state);
            matches!(state, Some(MemberState::InSync | MemberState::Rebuilding))
        };
        lost.iter().any(|role| holds(&self.label, *role) || holds(&self.written, *role))
    }
}
