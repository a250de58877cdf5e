//! The jobs of one array, as its reconciler reports them: the running ones, and the outcome of recently ended ones.

use crate::state::SavedDamage;
use braid_api::{Findings, WrongMember};
use braid_array_admin::reconciler::{self, FINDING_OFFSETS_MAX, FINDINGS_BLOCK_BYTES, JobInfo, JobStage};
use braid_format::JobKind;
use std::collections::BTreeMap;

/// Maximum number of ended jobs that are kept; the last completed check is always kept.
const ENDED_MAX: usize = 16;

/// The jobs of an array, and what they say about its parity and its unreadable blocks.
#[derive(Default)]
pub(crate) struct JobTable {
    /// The jobs, by number.
    pub(crate) jobs: BTreeMap<u64, JobInfo>,
    /// Set while the parity may predate the last writes.
    pub(crate) doubt: Option<ParityDoubt>,
    /// Ranges that a resync could read from no member: first byte, and length in bytes.
    pub(crate) unread: BTreeMap<u64, u64>,
}

/// Parity that was not verified since its array was started by force.
#[derive(Clone, Copy)]
pub(crate) struct ParityDoubt {
    /// A check that finds differences does not end the doubt; a repair does. Set if a stripe has one parity. With two,
    /// each check that compared everything ends the doubt.
    pub(crate) by_repair: bool,
    /// A repair or check of the parity begins as soon as all members are in sync.
    pub(crate) is_due: bool,
}

impl FromIterator<JobInfo> for JobTable {
    fn from_iter<T: IntoIterator<Item = JobInfo>>(jobs: T) -> JobTable {
        JobTable { jobs: jobs.into_iter().map(|job| (job.number, job)).collect(), ..JobTable::default() }
    }
}

impl JobTable {
    /// Records that a job began, progressed or ended. Returns true if the job was not known before.
    pub(crate) fn note(&mut self, mut job: JobInfo) -> bool {
        if job.kind == JobKind::Resync && !self.unread.is_empty() {
            job.findings = Some(self.unread_findings());
        }
        self.update_doubt(&job);
        let is_new = self.jobs.insert(job.number, job).is_none();
        let kept = [self.last_check(), self.alarm()].map(|job| job.map(|job| job.number));
        let ended: Vec<u64> = self.jobs.values().filter(|job| job.stage.is_over()).map(|job| job.number).collect();
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        for number in ended.into_iter().take(surplus).filter(|number| !kept.contains(&Some(*number))) {
            self.jobs.remove(&number);
        }
        is_new
    }

    /// Returns the last check or repair that completed.
    pub(crate) fn last_check(&self) -> Option<&JobInfo> {
        self.jobs.values().rev().find(|job| is_check(job.kind) && job.stage == JobStage::Done)
    }

    /// Returns the last check, repair or resync that found damage, whether it completed or not, unless a later check or
    /// repair went over everything and found it intact. A check that could not compare everything says nothing about
    /// the rest.
    pub(crate) fn alarm(&self) -> Option<&JobInfo> {
        let looks = |job: &&JobInfo| is_check(job.kind) || job.kind == JobKind::Resync;
        let left = |job: &JobInfo| found_by(job).left_blocks() > 0;
        let mut telling = self.jobs.values().rev().filter(looks).filter(|job| left(job) || is_complete_check(job));
        telling.next().filter(|job| left(job))
    }

    /// Updates the doubt about the parity after a check or repair has ended: ends it, or makes another check due. A
    /// check that was cancelled by command is not due again before the next start or the next return of a member.
    pub(crate) fn update_doubt(&mut self, job: &JobInfo) {
        let Some(doubt) = self.doubt.filter(|_| is_check(job.kind) && job.stage.is_over()) else { return };
        let is_right = found_by(job).left_blocks() == 0 || job.kind == JobKind::Repair;
        // With two parities, the user decides whether data or parity is right: the differences that the check found
        // raise an alarm of their own.
        self.doubt = match is_complete_check(job) {
            true if is_right || !doubt.by_repair => None,
            true => Some(doubt),
            false => Some(ParityDoubt { is_due: doubt.is_due || job.stage != JobStage::Cancelled, ..doubt }),
        };
    }

    /// Returns true if the parity is in doubt and a check of it is to begin now; the caller begins it. `is_whole`: all
    /// members are in sync. While they are not, or a member is being filled, no check begins, and one is due after
    /// that.
    pub(crate) fn take_due_parity_check(&mut self, is_whole: bool) -> bool {
        let mut going = self.jobs.values().filter(|job| !job.stage.is_over() && job.kind != JobKind::Resync);
        let (looks, fills) = (going.clone().any(|job| is_check(job.kind)), going.any(|job| !is_check(job.kind)));
        let Some(doubt) = &mut self.doubt else { return false };
        if fills || !is_whole {
            doubt.is_due = true;
            return false;
        }
        !looks && std::mem::take(&mut doubt.is_due)
    }

    /// Returns what a resync could read from no member, as findings.
    pub(crate) fn unread_findings(&self) -> reconciler::Findings {
        reconciler::Findings {
            unreadable_blocks: self.unread.values().map(|bytes| bytes.div_ceil(FINDINGS_BLOCK_BYTES)).sum(),
            offsets: self.unread.keys().copied().take(FINDING_OFFSETS_MAX).collect(),
            ..reconciler::Findings::default()
        }
    }

    /// See [`ReconcilerHandle::damage_to_save`].
    pub(crate) fn damage_to_save(&self, array: uuid::Uuid) -> Option<SavedDamage> {
        let (alarm, parity_in_doubt) = (self.alarm(), self.doubt.is_some());
        (alarm.is_some() || parity_in_doubt).then(|| SavedDamage {
            array,
            repair: alarm.is_some_and(|job| job.kind != JobKind::Check),
            findings: alarm.map(found_by).unwrap_or_default(),
            parity_in_doubt,
        })
    }

    /// Restores damage found before a restart as job number 0: a repair if a repair or a resync found it, otherwise a
    /// check.
    pub(crate) fn restore_damage(&mut self, saved: &SavedDamage, parities: u16) {
        if saved.findings.left_blocks() > 0 {
            let kind = if saved.repair { JobKind::Repair } else { JobKind::Check };
            let findings = Some(found(&saved.findings));
            self.note(JobInfo { findings, ..job(0, kind, JobStage::Done) });
        }
        self.doubt = saved.parity_in_doubt.then_some(ParityDoubt { by_repair: parities == 1, is_due: true });
    }
}

/// Returns a job of the whole array that has gone over nothing and has no findings.
fn job(number: u64, kind: JobKind, stage: JobStage) -> JobInfo {
    JobInfo {
        number,
        kind,
        member: None,
        replaces_slot: None,
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

/// Returns the findings of a job.
pub(crate) fn found_by(job: &JobInfo) -> Findings {
    job.findings.as_ref().map(findings).unwrap_or_default()
}

/// Returns true if the job is a check or repair that went over everything that was written.
fn is_complete_check(job: &JobInfo) -> bool {
    is_check(job.kind) && job.stage == JobStage::Done && found_by(job).is_complete()
}

/// Returns true if jobs of this kind compare all copies.
pub fn is_check(kind: JobKind) -> bool {
    matches!(kind, JobKind::Check | JobKind::Repair)
}

/// Returns the progress of a job in the API's form.
pub fn progress(job: &JobInfo) -> braid_api::Progress {
    braid_api::Progress {
        done_bytes: job.done_bytes,
        total_bytes: job.total_bytes,
        rate_bytes_per_s: job.rate_bytes_per_s,
        remaining_s: job.left_ns().map(|ns| ns.div_ceil(1_000_000_000)),
    }
}

/// Returns the name of a job: the array or pool, and its number, as in `tank:3`.
pub fn name_of(array: &str, number: u64) -> String {
    format!("{array}:{number}")
}

/// Converts findings into the reconciler's form.
pub fn found(findings: &Findings) -> braid_array_admin::reconciler::Findings {
    braid_array_admin::reconciler::Findings {
        compared_blocks: findings.compared_blocks,
        uncompared_blocks: findings.uncompared_blocks,
        differing_blocks: findings.differing_blocks,
        repaired_blocks: findings.repaired_blocks,
        unreadable_blocks: findings.unreadable_blocks,
        offsets: findings.offsets_bytes.clone(),
        wrong_blocks: findings.wrong_members.iter().map(|wrong| (wrong.member, wrong.blocks)).collect(),
    }
}

/// Converts a job's findings into the API's form.
pub fn findings(found: &braid_array_admin::reconciler::Findings) -> Findings {
    let wrong = found.wrong_blocks.iter().map(|(member, blocks)| WrongMember { member: *member, blocks: *blocks });
    Findings {
        block_bytes: FINDINGS_BLOCK_BYTES,
        compared_blocks: found.compared_blocks,
        uncompared_blocks: found.uncompared_blocks,
        differing_blocks: found.differing_blocks,
        repaired_blocks: found.repaired_blocks,
        unreadable_blocks: found.unreadable_blocks,
        offsets_bytes: found.offsets.clone(),
        wrong_members: wrong.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_array_admin::reconciler::Findings;

    #[test]
    fn an_alarm_ends_when_a_complete_check_finds_no_damage() {
        let found = |compared_blocks, uncompared_blocks, differing_blocks, repaired_blocks| Findings {
            compared_blocks,
            uncompared_blocks,
            differing_blocks,
            repaired_blocks,
            ..Findings::default()
        };
        let check =
            |number, findings| JobInfo { findings: Some(findings), ..job(number, JobKind::Check, JobStage::Done) };
        let mut job_table = JobTable::default();
        let alarm = |job_table: &JobTable| job_table.alarm().map(|job| job.number);
        job_table.note(check(1, found(100, 0, 0, 0)));
        assert_eq!(alarm(&job_table), None);
        job_table.note(check(2, found(100, 0, 1, 0)));
        assert_eq!(alarm(&job_table), Some(2));
        job_table.note(check(3, found(60, 40, 0, 0)));
        assert_eq!(alarm(&job_table), Some(2), "it may be in what was not compared");
        for number in 4..60 {
            job_table.note(job(number, JobKind::Rebuild, JobStage::Done));
        }
        assert_eq!(alarm(&job_table), Some(2), "it is not forgotten");
        job_table.note(check(60, found(60, 40, 2, 2)));
        assert_eq!(alarm(&job_table), Some(2));
        job_table.note(JobInfo { stage: JobStage::Cancelled, ..check(61, found(100, 0, 0, 0)) });
        assert_eq!(alarm(&job_table), Some(2));
        job_table.note(check(62, found(100, 0, 1, 1)));
        assert_eq!(alarm(&job_table), None);
    }

    fn differing(compared_blocks: u64, differing_blocks: u64, repaired_blocks: u64) -> Option<Findings> {
        Some(Findings { compared_blocks, differing_blocks, repaired_blocks, ..Findings::default() })
    }

    /// Returns the job table as it is after a restart.
    fn restarted(job_table: &JobTable, parities: u16) -> JobTable {
        let mut next = JobTable::default();
        if let Some(saved) = job_table.damage_to_save(uuid::Uuid::nil()) {
            next.restore_damage(&saved, parities);
        }
        next
    }

    #[test]
    fn damage_raises_an_alarm_however_its_check_ended() {
        let check = |number, stage, findings| JobInfo { findings, ..job(number, JobKind::Check, stage) };
        let left = |job_table: &JobTable| job_table.alarm().map(|job| found_by(job).left_blocks());
        for stage in [JobStage::Running, JobStage::Paused, JobStage::Cancelled, JobStage::Failed, JobStage::Done] {
            let mut job_table = JobTable::default();
            job_table.note(check(1, stage, differing(10, 5, 0)));
            assert_eq!(left(&job_table), Some(5), "{stage:?}");
            let mut job_table = restarted(&job_table, 0);
            assert_eq!(left(&job_table), Some(5), "{stage:?}, after a restart");
            for (number, stage) in [(1, JobStage::Running), (2, JobStage::Cancelled), (3, JobStage::Failed)] {
                job_table.note(check(number, stage, differing(100, 0, 0)));
                assert_eq!(left(&job_table), Some(5), "{stage:?} has not seen all");
            }
            job_table.note(check(4, JobStage::Done, differing(100, 0, 0)));
            assert_eq!(left(&restarted(&job_table, 0)), None);
            assert_eq!(left(&job_table), None);
        }
        // A repair that mends all that it finds raises no alarm, even if it is cancelled.
        let mut job_table = JobTable::default();
        job_table.note(JobInfo { findings: differing(10, 5, 5), ..job(1, JobKind::Repair, JobStage::Cancelled) });
        assert_eq!(left(&job_table), None);
    }

    #[test]
    fn blocks_that_a_resync_could_not_read_raise_an_alarm() {
        let mut job_table: JobTable = [job(1, JobKind::Resync, JobStage::Running)].into_iter().collect();
        job_table.unread.extend([(8192, 4096), (1 << 20, 8192)]);
        job_table.note(job(1, JobKind::Resync, JobStage::Done));
        let alarm_of = |job_table: &JobTable| job_table.alarm().map(|job| (job.kind, found_by(job).left_blocks()));
        assert_eq!(alarm_of(&job_table), Some((JobKind::Resync, 3)));
        assert_eq!(alarm_of(&restarted(&job_table, 0)), Some((JobKind::Repair, 3)));
        job_table.note(JobInfo { findings: differing(100, 0, 0), ..job(2, JobKind::Check, JobStage::Done) });
        assert_eq!(alarm_of(&job_table), None);
        // A resync that could read everything ends no alarm.
        let mut job_table = JobTable::default();
        job_table.note(JobInfo { findings: differing(100, 1, 0), ..job(1, JobKind::Check, JobStage::Done) });
        job_table.note(job(2, JobKind::Resync, JobStage::Done));
        assert_eq!(alarm_of(&job_table), Some((JobKind::Check, 1)));
    }

    #[test]
    fn doubt_about_parity_ends_after_a_complete_check() {
        let forced = |parities: u16| {
            let mut job_table = JobTable::default();
            let array = uuid::Uuid::nil();
            let saved = SavedDamage { array, repair: false, findings: Default::default(), parity_in_doubt: true };
            job_table.restore_damage(&saved, parities);
            job_table
        };
        let ended = |kind, stage, findings| JobInfo { findings, ..job(1, kind, stage) };
        let partial = || differing(10, 0, 0).map(|found| Findings { uncompared_blocks: 1, ..found });
        for parities in [1, 2] {
            let mut job_table = restarted(&forced(parities), parities);
            assert!(job_table.doubt.is_some() && job_table.alarm().is_none() && job_table.jobs.is_empty());
            // The check begins automatically, once, when all members are in sync.
            assert_eq!(
                [false, true, true].map(|is_whole| job_table.take_due_parity_check(is_whole)),
                [false, true, false]
            );
            job_table.note(ended(JobKind::Repair, JobStage::Running, None));
            assert!(!job_table.take_due_parity_check(false) && !job_table.take_due_parity_check(true), "it goes on");
            // A check that compared only a part does not end the doubt.
            job_table.note(ended(JobKind::Repair, JobStage::Done, partial()));
            assert!(
                job_table.doubt.is_some()
                    && job_table.take_due_parity_check(true)
                    && !job_table.take_due_parity_check(true)
            );
            job_table.note(ended(JobKind::Repair, JobStage::Failed, differing(10, 0, 0)));
            assert!(job_table.doubt.is_some() && job_table.take_due_parity_check(true));
            // A check that was cancelled by command begins again at the next start, or at the next return of a member.
            job_table.note(ended(JobKind::Repair, JobStage::Cancelled, differing(10, 0, 0)));
            assert!(job_table.doubt.is_some() && !job_table.take_due_parity_check(true));
            assert!(restarted(&job_table, parities).take_due_parity_check(true));
            assert!(!job_table.take_due_parity_check(false) && job_table.take_due_parity_check(true));
            // A disk that is replacing a member has no stripe to compare yet.
            job_table.note(job(2, JobKind::Replace, JobStage::Running));
            assert!(!job_table.take_due_parity_check(true));
            job_table.note(job(2, JobKind::Replace, JobStage::Done));
            assert!(job_table.take_due_parity_check(true));
            for (kind, found) in [(JobKind::Check, differing(10, 0, 0)), (JobKind::Repair, differing(10, 3, 3))] {
                let mut job_table = forced(parities);
                job_table.note(ended(kind, JobStage::Done, found));
                assert!(job_table.doubt.is_none() && job_table.damage_to_save(uuid::Uuid::nil()).is_none());
            }
            // If a repair is not known to be right, what a check has found raises an alarm of its own.
            let mut job_table = forced(parities);
            job_table.note(ended(JobKind::Check, JobStage::Done, differing(10, 3, 0)));
            assert_eq!((job_table.doubt.is_some(), job_table.alarm().is_some()), (parities == 1, true));
            assert_eq!(job_table.take_due_parity_check(true), parities == 1);
        }
    }

    #[test]
    fn ended_jobs_are_forgotten_but_not_the_last_check() {
        let mut job_table = JobTable::default();
        assert!(job_table.note(job(1, JobKind::Rebuild, JobStage::Running)));
        job_table.note(job(2, JobKind::Check, JobStage::Done));
        for number in 3..40 {
            assert!(job_table.note(job(number, JobKind::Rebuild, JobStage::Running)));
            assert!(!job_table.note(job(number, JobKind::Rebuild, JobStage::Failed)));
        }
        let left: Vec<u64> = job_table.jobs.keys().copied().collect();
        assert_eq!(left[..2], [1, 2], "the one that goes on, and the check");
        assert_eq!((left.len(), left[2..].to_vec()), (2 + 16, (24..40).collect::<Vec<_>>()));
        job_table.note(job(40, JobKind::Repair, JobStage::Done));
        job_table.note(job(41, JobKind::Rebuild, JobStage::Done));
        assert_eq!(job_table.last_check().map(|job| job.number), Some(40));
        assert!(!job_table.jobs.contains_key(&2));
    }
}
