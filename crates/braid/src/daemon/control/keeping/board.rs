//! The jobs of one array, as its keeper tells of them: those that go on, and how those have ended that did lately.

use super::Keeping;
use crate::daemon::state::{SavedCheck, SavedDamage};
use braid_api::Findings;
use braid_engine::keeper::{self, FINDING_OFFSETS_MAX, FINDINGS_BLOCK_BYTES, JobInfo, JobStage};
use braid_format::JobKind;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// Jobs that are remembered after their end; the last check always is.
const ENDED_MAX: usize = 16;

/// The jobs, and what is known of the array beside them.
#[derive(Default)]
pub struct Board {
    /// By number.
    jobs: BTreeMap<u64, JobInfo>,
    /// Parity that may be of before the last writes.
    doubt: Option<Doubt>,
    /// What a resync could read from no member: where it begins, and bytes.
    unread: BTreeMap<u64, u64>,
}

/// Parity that was not looked at since its array was started by force.
#[derive(Clone, Copy)]
struct Doubt {
    /// A check that finds something does not end it, as a repair does: there is one parity.
    by_repair: bool,
    /// A repair or a check of it is to begin as soon as all members are in sync.
    is_due: bool,
}

impl FromIterator<JobInfo> for Board {
    fn from_iter<T: IntoIterator<Item = JobInfo>>(jobs: T) -> Board {
        Board { jobs: jobs.into_iter().map(|job| (job.number, job)).collect(), ..Board::default() }
    }
}

impl Board {
    /// A job has begun, has come further or has ended. Says whether it is new here.
    fn note(&mut self, mut job: JobInfo) -> bool {
        if job.kind == JobKind::Resync && !self.unread.is_empty() {
            job.findings = Some(self.unread_findings());
        }
        self.judge_doubt(&job);
        let is_new = self.jobs.insert(job.number, job).is_none();
        let kept = [self.last_check(), self.alarm()].map(|job| job.map(|job| job.number));
        let ended: Vec<u64> = self.jobs.values().filter(|job| job.stage.is_over()).map(|job| job.number).collect();
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        for number in ended.into_iter().take(surplus).filter(|number| !kept.contains(&Some(*number))) {
            self.jobs.remove(&number);
        }
        is_new
    }

    fn last_check(&self) -> Option<&JobInfo> {
        self.jobs.values().rev().find(|job| is_check(job.kind) && job.stage == JobStage::Done)
    }

    /// The check, repair or resync that found damage last, whether it has come to its end or not, unless a later check or repair went over
    /// everything and found it right: one that could not compare all that was written says nothing of the rest.
    fn alarm(&self) -> Option<&JobInfo> {
        let looks = |job: &&JobInfo| is_check(job.kind) || job.kind == JobKind::Resync;
        let left = |job: &JobInfo| found_by(job).left_blocks() > 0;
        let mut telling = self.jobs.values().rev().filter(looks).filter(|job| left(job) || has_seen_all(job));
        telling.next().filter(|job| left(job))
    }

    /// Parity that is in doubt was looked at, or it is to be looked at again: what was given up by command is not, before a start or a
    /// member's return.
    fn judge_doubt(&mut self, job: &JobInfo) {
        let Some(doubt) = self.doubt.filter(|_| is_check(job.kind) && job.stage.is_over()) else { return };
        let is_right = found_by(job).left_blocks() == 0 || job.kind == JobKind::Repair;
        // Where two parities differ from the data, what is right is for people to say, and the damage is an alarm of its own.
        self.doubt = match has_seen_all(job) {
            true if is_right || !doubt.by_repair => None,
            true => Some(doubt),
            false => Some(Doubt { is_due: doubt.is_due || job.stage != JobStage::Cancelled, ..doubt }),
        };
    }

    /// Whether parity is in doubt and is to be looked at now. `is_whole`: all members are in sync.
    fn takes_up_doubt(&mut self, is_whole: bool) -> bool {
        let mut going = self.jobs.values().filter(|job| !job.stage.is_over() && job.kind != JobKind::Resync);
        let (looks, fills) = (going.clone().any(|job| is_check(job.kind)), going.any(|job| !is_check(job.kind)));
        let Some(doubt) = &mut self.doubt else { return false };
        if fills || !is_whole {
            doubt.is_due = true;
            return false;
        }
        !looks && std::mem::take(&mut doubt.is_due)
    }

    fn unread_findings(&self) -> keeper::Findings {
        keeper::Findings {
            unreadable_blocks: self.unread.values().map(|bytes| bytes.div_ceil(FINDINGS_BLOCK_BYTES)).sum(),
            offsets: self.unread.keys().copied().take(FINDING_OFFSETS_MAX).collect(),
            ..keeper::Findings::default()
        }
    }

    fn damage_to_save(&self, array: uuid::Uuid) -> Option<SavedDamage> {
        let (alarm, parity_in_doubt) = (self.alarm(), self.doubt.is_some());
        (alarm.is_some() || parity_in_doubt).then(|| SavedDamage {
            array,
            repair: alarm.is_some_and(|job| job.kind != JobKind::Check),
            findings: alarm.map(found_by).unwrap_or_default(),
            parity_in_doubt,
        })
    }

    /// Remembers damage of before a restart as a job with the number 0: a check, or a repair where a repair or a resync had found it.
    fn remember_damage(&mut self, saved: &SavedDamage, parities: u16) {
        if saved.findings.left_blocks() > 0 {
            let kind = if saved.repair { JobKind::Repair } else { JobKind::Check };
            let findings = Some(super::jobs::found(&saved.findings));
            self.note(JobInfo { findings, ..job(0, kind, JobStage::Done) });
        }
        self.doubt = saved.parity_in_doubt.then_some(Doubt { by_repair: parities == 1, is_due: true });
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

/// What a job has found.
fn found_by(job: &JobInfo) -> Findings {
    job.findings.as_ref().map(super::jobs::findings).unwrap_or_default()
}

/// Whether a check or repair has gone over everything that was written.
fn has_seen_all(job: &JobInfo) -> bool {
    is_check(job.kind) && job.stage == JobStage::Done && found_by(job).is_complete()
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
        self.board().jobs.values().cloned().collect()
    }

    /// The job of this kind that goes on: for a member, or for all.
    pub fn going(&self, kind: JobKind, role: Option<u16>) -> Option<JobInfo> {
        let board = self.board();
        board.jobs.values().find(|job| (job.kind, job.member) == (kind, role) && !job.stage.is_over()).cloned()
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
        self.board().jobs.values().rev().find(|job| is(job)).cloned()
    }

    /// The check, repair or resync whose damage has not been found right since.
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
            findings: found_by(&job),
        })
    }

    /// The damage that the alarm is about, and that parity is in doubt, to be known after a restart.
    pub fn damage_to_save(&self, array: uuid::Uuid) -> Option<SavedDamage> {
        self.board().damage_to_save(array)
    }

    /// See [`Board::remember_damage`].
    pub(super) fn remember_damage(&self, saved: &SavedDamage, parities: u16) {
        self.board().remember_damage(saved, parities);
    }

    /// Whether its parity was not looked at since the array was started by force.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.board().doubt.is_some()
    }

    /// See [`Board::takes_up_doubt`].
    pub(super) fn takes_up_doubt(&self, is_whole: bool) -> bool {
        self.board().takes_up_doubt(is_whole)
    }

    /// Its parity could not be looked at: that is tried again.
    pub(super) fn puts_off_doubt(&self) {
        if let Some(doubt) = &mut self.board().doubt {
            doubt.is_due = true;
        }
    }

    /// A resync could read these bytes from no member, the first of them here.
    pub(super) fn note_unread(&self, offset: u64, bytes: u64) {
        self.board().unread.insert(offset, bytes);
    }

    /// Blocks that a resync could read from no member.
    pub(super) fn unread_blocks(&self) -> u64 {
        self.board().unread_findings().unreadable_blocks
    }

    /// How far that job has come which has the least share of its work done. None where nothing goes on.
    pub fn least_done(&self) -> Option<braid_api::Progress> {
        let board = self.board();
        let going = board.jobs.values().filter(|job| !job.stage.is_over());
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

    #[test]
    fn an_alarm_ends_when_everything_was_found_right() {
        let found = |compared_blocks, uncompared_blocks, differing_blocks, mended_blocks| Findings {
            compared_blocks,
            uncompared_blocks,
            differing_blocks,
            repaired_blocks: mended_blocks,
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

    fn differing(compared_blocks: u64, differing_blocks: u64, mended_blocks: u64) -> Option<Findings> {
        Some(Findings { compared_blocks, differing_blocks, repaired_blocks: mended_blocks, ..Findings::default() })
    }

    /// What is left of a board after a restart.
    fn restarted(board: &Board, parities: u16) -> Board {
        let mut next = Board::default();
        if let Some(saved) = board.damage_to_save(uuid::Uuid::nil()) {
            next.remember_damage(&saved, parities);
        }
        next
    }

    #[test]
    fn damage_is_an_alarm_however_its_check_ended() {
        let check = |number, stage, findings| JobInfo { findings, ..job(number, JobKind::Check, stage) };
        let left = |board: &Board| board.alarm().map(|job| found_by(job).left_blocks());
        for stage in [JobStage::Running, JobStage::Paused, JobStage::Cancelled, JobStage::Failed, JobStage::Done] {
            let mut board = Board::default();
            board.note(check(1, stage, differing(10, 5, 0)));
            assert_eq!(left(&board), Some(5), "{stage:?}");
            let mut board = restarted(&board, 0);
            assert_eq!(left(&board), Some(5), "{stage:?}, after a restart");
            for (number, stage) in [(1, JobStage::Running), (2, JobStage::Cancelled), (3, JobStage::Failed)] {
                board.note(check(number, stage, differing(100, 0, 0)));
                assert_eq!(left(&board), Some(5), "{stage:?} has not seen all");
            }
            board.note(check(4, JobStage::Done, differing(100, 0, 0)));
            assert_eq!(left(&restarted(&board, 0)), None);
            assert_eq!(left(&board), None);
        }
        // A repair that mends what it finds raises none, wherever it is given up.
        let mut board = Board::default();
        board.note(JobInfo { findings: differing(10, 5, 5), ..job(1, JobKind::Repair, JobStage::Cancelled) });
        assert_eq!(left(&board), None);
    }

    #[test]
    fn what_a_resync_could_not_read_is_an_alarm_of_it() {
        let mut board: Board = [job(1, JobKind::Resync, JobStage::Running)].into_iter().collect();
        board.unread.extend([(8192, 4096), (1 << 20, 8192)]);
        board.note(job(1, JobKind::Resync, JobStage::Done));
        let told = |board: &Board| board.alarm().map(|job| (job.kind, found_by(job).left_blocks()));
        assert_eq!(told(&board), Some((JobKind::Resync, 3)));
        assert_eq!(told(&restarted(&board, 0)), Some((JobKind::Repair, 3)));
        board.note(JobInfo { findings: differing(100, 0, 0), ..job(2, JobKind::Check, JobStage::Done) });
        assert_eq!(told(&board), None);
        // One that could read everything ends no alarm.
        let mut board = Board::default();
        board.note(JobInfo { findings: differing(100, 1, 0), ..job(1, JobKind::Check, JobStage::Done) });
        board.note(job(2, JobKind::Resync, JobStage::Done));
        assert_eq!(told(&board), Some((JobKind::Check, 1)));
    }

    #[test]
    fn doubt_of_parity_ends_when_all_of_it_was_looked_at() {
        let forced = |parities: u16| {
            let mut board = Board::default();
            let array = uuid::Uuid::nil();
            let saved = SavedDamage { array, repair: false, findings: Default::default(), parity_in_doubt: true };
            board.remember_damage(&saved, parities);
            board
        };
        let ended = |kind, stage, findings| JobInfo { findings, ..job(1, kind, stage) };
        let partial = || differing(10, 0, 0).map(|found| Findings { uncompared_blocks: 1, ..found });
        for parities in [1, 2] {
            let mut board = restarted(&forced(parities), parities);
            assert!(board.doubt.is_some() && board.alarm().is_none() && board.jobs.is_empty());
            // It begins by itself, once, when all members are in sync.
            assert_eq!([false, true, true].map(|is_whole| board.takes_up_doubt(is_whole)), [false, true, false]);
            board.note(ended(JobKind::Repair, JobStage::Running, None));
            assert!(!board.takes_up_doubt(false) && !board.takes_up_doubt(true), "it goes on");
            // What saw a part ends nothing.
            board.note(ended(JobKind::Repair, JobStage::Done, partial()));
            assert!(board.doubt.is_some() && board.takes_up_doubt(true) && !board.takes_up_doubt(true));
            board.note(ended(JobKind::Repair, JobStage::Failed, differing(10, 0, 0)));
            assert!(board.doubt.is_some() && board.takes_up_doubt(true));
            // What was given up by command begins again with the next start, or the next return.
            board.note(ended(JobKind::Repair, JobStage::Cancelled, differing(10, 0, 0)));
            assert!(board.doubt.is_some() && !board.takes_up_doubt(true));
            assert!(restarted(&board, parities).takes_up_doubt(true));
            assert!(!board.takes_up_doubt(false) && board.takes_up_doubt(true));
            // A disk that replaces another one has no row to compare so far.
            board.note(job(2, JobKind::Replace, JobStage::Running));
            assert!(!board.takes_up_doubt(true));
            board.note(job(2, JobKind::Replace, JobStage::Done));
            assert!(board.takes_up_doubt(true));
            for (kind, found) in [(JobKind::Check, differing(10, 0, 0)), (JobKind::Repair, differing(10, 3, 3))] {
                let mut board = forced(parities);
                board.note(ended(kind, JobStage::Done, found));
                assert!(board.doubt.is_none() && board.damage_to_save(uuid::Uuid::nil()).is_none());
            }
            // Where a repair is not by itself right, what a check has found is an alarm of its own.
            let mut board = forced(parities);
            board.note(ended(JobKind::Check, JobStage::Done, differing(10, 3, 0)));
            assert_eq!((board.doubt.is_some(), board.alarm().is_some()), (parities == 1, true));
            assert_eq!(board.takes_up_doubt(true), parities == 1);
        }
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
        let left: Vec<u64> = board.jobs.keys().copied().collect();
        assert_eq!(left[..2], [1, 2], "the one that goes on, and the check");
        assert_eq!((left.len(), left[2..].to_vec()), (2 + 16, (24..40).collect::<Vec<_>>()));
        board.note(job(40, JobKind::Repair, JobStage::Done));
        board.note(job(41, JobKind::Rebuild, JobStage::Done));
        assert_eq!(board.last_check().map(|job| job.number), Some(40));
        assert!(!board.jobs.contains_key(&2));
    }
}
