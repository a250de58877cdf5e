//! The jobs of an array, as its reconciler's handle shows and records them.

use crate::job_table::{JobTable, found_by, is_check, progress};
use crate::reconciler::ReconcilerHandle;
use crate::state::{SavedCheck, SavedDamage};
use braid_array_admin::reconciler::{JobInfo, JobStage};
use braid_format::JobKind;
use std::sync::{MutexGuard, PoisonError};

impl ReconcilerHandle {
    /// Locks the job table.
    fn job_table(&self) -> MutexGuard<'_, JobTable> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a job began, progressed or ended. Returns true if the job was not known before.
    pub fn note_job(&self, job: JobInfo) -> bool {
        self.job_table().note(job)
    }

    /// Returns all known jobs, by number.
    pub fn jobs(&self) -> Vec<JobInfo> {
        self.job_table().jobs.values().cloned().collect()
    }

    /// Returns the running job of this kind: of one member, or of the whole array.
    pub fn running_job(&self, kind: JobKind, slot: Option<u16>) -> Option<JobInfo> {
        let job_table = self.job_table();
        job_table.jobs.values().find(|job| (job.kind, job.member) == (kind, slot) && !job.stage.is_over()).cloned()
    }

    /// Returns the job that rebuilds a member.
    pub fn rebuild_job(&self, slot: u16) -> Option<JobInfo> {
        let going = |kind: JobKind| self.running_job(kind, Some(slot));
        going(JobKind::Rebuild).or_else(|| going(JobKind::Replace))
    }

    /// Returns the progress of a member's rebuild; `None` if it has not begun.
    pub fn rebuild_progress(&self, slot: u16) -> Option<braid_api::Progress> {
        self.rebuild_job(slot).as_ref().map(progress)
    }

    /// Returns the most recently begun job that satisfies the predicate.
    pub fn newest(&self, is: impl Fn(&JobInfo) -> bool) -> Option<JobInfo> {
        self.job_table().jobs.values().rev().find(|job| is(job)).cloned()
    }

    /// Returns the last check, repair or resync that found damage, unless a later check or repair went over everything
    /// and found no damage.
    pub fn alarm(&self) -> Option<JobInfo> {
        self.job_table().alarm().cloned()
    }

    /// Returns the running check in the form that is saved, so that it continues after a restart.
    pub(crate) fn check_to_save(&self, array: uuid::Uuid) -> Option<SavedCheck> {
        let job = self.newest(|job| is_check(job.kind) && !job.stage.is_over())?;
        Some(SavedCheck {
            array,
            repair: job.kind == JobKind::Repair,
            from_data: job.from_data,
            position_bytes: job.position_bytes,
            paused: job.stage == JobStage::Paused,
            limit_bytes_per_s: job.limit_bytes_per_s,
            findings: found_by(&job),
        })
    }

    /// Returns the damage that the alarm is about, and whether parity is in doubt, in the form that is saved.
    pub(crate) fn damage_to_save(&self, array: uuid::Uuid) -> Option<SavedDamage> {
        self.job_table().damage_to_save(array)
    }

    /// Restores damage found before a restart, and the doubt about the parity. `parities`: number of parity blocks of a
    /// stripe.
    pub fn restore_damage(&self, saved: &SavedDamage, parities: u16) {
        self.job_table().restore_damage(saved, parities);
    }

    /// Returns true if the parity was not verified since the array was started by force.
    pub fn is_in_doubt(&self) -> bool {
        self.job_table().doubt.is_some()
    }

    /// Returns true if parity is in doubt and a check of it is to begin now. `is_whole`: all members are in sync.
    pub fn take_due_parity_check(&self, is_whole: bool) -> bool {
        self.job_table().take_due_parity_check(is_whole)
    }

    /// Makes the check of the parity due again: it could not begin.
    pub fn retry_parity_check(&self) {
        if let Some(doubt) = &mut self.job_table().doubt {
            doubt.is_due = true;
        }
    }

    /// Records that a resync could read a range from no member. `offset`: its first byte in the array. `bytes`: its
    /// length.
    pub fn note_unread(&self, offset: u64, bytes: u64) {
        self.job_table().unread.insert(offset, bytes);
    }

    /// Returns the number of blocks that a resync could read from no member.
    pub fn unread_blocks(&self) -> u64 {
        self.job_table().unread_findings().unreadable_blocks
    }

    /// Returns the progress of the running job with the smallest share of its work done; `None` if no job runs.
    pub fn least_progress(&self) -> Option<braid_api::Progress> {
        let job_table = self.job_table();
        let going = job_table.jobs.values().filter(|job| !job.stage.is_over());
        let share = |job: &&JobInfo| u128::from(job.done_bytes) * 1_000_000 / u128::from(job.total_bytes.max(1));
        going.min_by_key(share).map(progress)
    }

    /// Returns the progress of the running job of this kind; `None` if there is none.
    pub fn progress(&self, kind: JobKind, slot: Option<u16>) -> Option<braid_api::Progress> {
        self.running_job(kind, slot).as_ref().map(progress)
    }
}
