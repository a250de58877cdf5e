//! The jobs of one array, as its keeper tells of them: those that go on, and how those have ended that did lately.

use super::Keeping;
use crate::daemon::state::{SavedCheck, SavedDamage};
use braid_engine::keeper::{JobInfo, JobStage};
use braid_format::JobKind;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// Jobs that are remembered after their end; the last check always is.
const ENDED_MAX: usize = 16;

/// Jobs by number.
#[derive(Default)]
pub struct Board(BTreeMap<u64, JobInfo>);

impl FromIterator<JobInfo> for Board {
    fn from_iter<T: IntoIterator<Item = JobInfo>>(jobs: T) -> Board {
        Board(jobs.into_iter().map(|job| (job.number, job)).collect())
    }
}

impl Board {
    /// A job has begun, has come further or has ended. Says whether it is new here.
    fn note(&mut self, job: JobInfo) -> bool {
        let is_new = self.0.insert(job.number, job).is_none();
        let kept = [self.last_check(), self.alarm()].map(|job| job.map(|job| job.number));
        let ended: Vec<u64> = self.0.values().filter(|job| job.stage.is_over()).map(|job| job.number).collect();
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        for number in ended.into_iter().take(surplus).filter(|number| !kept.contains(&Some(*number))) {
            self.0.remove(&number);
        }
        is_new
    }

    fn last_check(&self) -> Option<&JobInfo> {
        self.0.values().rev().find(|job| is_check(job.kind) && job.stage == JobStage::Done)
    }

    /// The check or repair that found damage last, unless a later one went over everything and found it right: one that could not
    /// compare all that was written says nothing of the rest.
    fn alarm(&self) -> Option<&JobInfo> {
        let done = self.0.values().rev().filter(|job| is_check(job.kind) && job.stage == JobStage::Done);
        let told = |job: &JobInfo| job.findings.as_ref().map(super::jobs::findings).unwrap_or_default();
        let mut telling = done.filter(|job| told(job).left_blocks() > 0 || told(job).is_complete());
        telling.next().filter(|job| told(job).left_blocks() > 0)
    }
}

/// Whether such a job goes over all copies.
pub(super) fn is_check(kind: JobKind) -> bool {
    matches!(kind, JobKind::Check | JobKind::Repair)
}

impl Keeping {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Board::note`].
    pub(super) fn note_job(&self, job: JobInfo) -> bool {
        self.board().note(job)
    }

    /// All jobs that are known, by number.
    pub fn jobs(&self) -> Vec<JobInfo> {
        self.board().0.values().cloned().collect()
    }

    /// The job of this kind that goes on: for a member, or for all.
    pub fn going(&self, kind: JobKind, role: Option<u16>) -> Option<JobInfo> {
        let board = self.board();
        board.0.values().find(|job| (job.kind, job.role) == (kind, role) && !job.stage.is_over()).cloned()
    }

    /// The job that fills a member.
    pub fn filling(&self, role: u16) -> Option<JobInfo> {
        let going = |kind: JobKind| self.going(kind, Some(role));
        going(JobKind::Rebuild).or_else(|| going(JobKind::Replace))
    }

    /// How far a member has been filled. None where that has not begun.
    pub fn filled(&self, role: u16) -> Option<braid_api::Progress> {
        self.filling(role).as_ref().map(progress)
    }

    /// The job that was begun last, of those of which this is true.
    pub(super) fn newest(&self, is: impl Fn(&JobInfo) -> bool) -> Option<JobInfo> {
        self.board().0.values().rev().find(|job| is(job)).cloned()
    }

    /// The check or repair whose damage has not been found right since.
    pub(super) fn alarm(&self) -> Option<JobInfo> {
        self.board().alarm().cloned()
    }

    /// The check that goes on, to be gone on with after a restart.
    pub fn check_to_save(&self, array: uuid::Uuid) -> Option<SavedCheck> {
        let job = self.newest(|job| is_check(job.kind) && !job.stage.is_over())?;
        Some(SavedCheck {
            array,
            repair: job.kind == JobKind::Repair,
            from_data: job.from_data,
            position_bytes: job.position_bytes,
            paused: job.stage == JobStage::Paused,
            limit_bytes_per_s: job.limit_bytes_per_s,
            findings: job.findings.as_ref().map(super::jobs::findings).unwrap_or_default(),
        })
    }

    /// The damage that the alarm is about, to be known after a restart.
    pub fn damage_to_save(&self, array: uuid::Uuid) -> Option<SavedDamage> {
        let job = self.alarm()?;
        let findings = job.findings.as_ref().map(super::jobs::findings).unwrap_or_default();
        Some(SavedDamage { array, repair: job.kind == JobKind::Repair, findings })
    }

    /// Remembers damage of before a restart, as that of a check with the number 0.
    pub(super) fn remember_damage(&self, saved: &SavedDamage) {
        let kind = if saved.repair { JobKind::Repair } else { JobKind::Check };
        let findings = Some(super::jobs::found(&saved.findings));
        let job = JobInfo {
            number: 0,
            kind,
            role: None,
            replaces: None,
            stage: JobStage::Done,
            from_data: false,
            done_bytes: 0,
            total_bytes: 0,
            position_bytes: 0,
            rate_bytes_per_s: 0,
            limit_bytes_per_s: 0,
            begun_ns: 0,
            findings,
        };
        self.note_job(job);
    }

    /// How far that job has come which has the least share of its work done. None where nothing goes on.
    pub fn least_done(&self) -> Option<braid_api::Progress> {
        let board = self.board();
        let going = board.0.values().filter(|job| !job.stage.is_over());
        let share = |job: &&JobInfo| u128::from(job.done_bytes) * 1_000_000 / u128::from(job.total_bytes.max(1));
        going.min_by_key(share).map(progress)
    }

    /// How far such work has come. None where there is none.
    pub fn progress(&self, kind: JobKind, role: Option<u16>) -> Option<braid_api::Progress> {
        self.going(kind, role).as_ref().map(progress)
    }
}

/// How far a job has come.
pub(super) fn progress(job: &JobInfo) -> braid_api::Progress {
    braid_api::Progress {
        done_bytes: job.done_bytes,
        total_bytes: job.total_bytes,
        rate_bytes_per_s: job.rate_bytes_per_s,
        remaining_s: job.left_ns().map(|ns| ns.div_ceil(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_engine::keeper::Findings;

    fn job(number: u64, kind: JobKind, stage: JobStage) -> JobInfo {
        JobInfo {
            number,
            kind,
            role: None,
            replaces: None,
            stage,
            from_data: false,
            done_bytes: 0,
            total_bytes: 0,
            position_bytes: 0,
            rate_bytes_per_s: 0,
            limit_bytes_per_s: 0,
            begun_ns: 0,
            findings: None,
        }
    }

    #[test]
    fn an_alarm_ends_when_everything_was_found_right() {
        let found = |compared_blocks, uncompared_blocks, differing_blocks, mended_blocks| Findings {
            compared_blocks,
            uncompared_blocks,
            differing_blocks,
            mended_blocks,
            ..Findings::default()
        };
        let check =
            |number, findings| JobInfo { findings: Some(findings), ..job(number, JobKind::Check, JobStage::Done) };
        let mut board = Board::default();
        let alarm = |board: &Board| board.alarm().map(|job| job.number);
        board.note(check(1, found(100, 0, 0, 0)));
        assert_eq!(alarm(&board), None);
        board.note(check(2, found(100, 0, 1, 0)));
        assert_eq!(alarm(&board), Some(2));
        board.note(check(3, found(60, 40, 0, 0)));
        assert_eq!(alarm(&board), Some(2), "it may be in what was not compared");
        for number in 4..60 {
            board.note(job(number, JobKind::Rebuild, JobStage::Done));
        }
        assert_eq!(alarm(&board), Some(2), "it is not forgotten");
        board.note(check(60, found(60, 40, 2, 2)));
        assert_eq!(alarm(&board), Some(2));
        board.note(JobInfo { stage: JobStage::Cancelled, ..check(61, found(100, 0, 0, 0)) });
        assert_eq!(alarm(&board), Some(2));
        board.note(check(62, found(100, 0, 1, 1)));
        assert_eq!(alarm(&board), None);
    }

    #[test]
    fn ended_jobs_are_forgotten_but_not_the_last_check() {
        let mut board = Board::default();
        assert!(board.note(job(1, JobKind::Rebuild, JobStage::Running)));
        board.note(job(2, JobKind::Check, JobStage::Done));
        for number in 3..40 {
            assert!(board.note(job(number, JobKind::Rebuild, JobStage::Running)));
            assert!(!board.note(job(number, JobKind::Rebuild, JobStage::Failed)));
        }
        let left: Vec<u64> = board.0.keys().copied().collect();
        assert_eq!(left[..2], [1, 2], "the one that goes on, and the check");
        assert_eq!((left.len(), left[2..].to_vec()), (2 + 16, (24..40).collect::<Vec<_>>()));
        board.note(job(40, JobKind::Repair, JobStage::Done));
        board.note(job(41, JobKind::Rebuild, JobStage::Done));
        assert_eq!(board.last_check().map(|job| job.number), Some(40));
        assert!(!board.0.contains_key(&2));
    }
}
