//! The jobs of an array: a numbered list, with how far each has come, for whoever watches or administers.
//!
//! What a job has to do is known elsewhere: to the bits of regions, to the lists of what is left to fill. This is its face.

use braid_format::{JobKind, JobState};

use super::{Findings, Keeper, KeeperIo, Note};
use crate::lifecycle::LifecycleError;

/// Between two notes of how far a job has come, at least.
const TELL_NS: u64 = 250_000_000;
/// The rate that is told follows what is measured by one part in so many.
const RATE_FOLLOWS: u64 = 4;

/// Where a job stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobStage {
    /// It goes on by itself.
    Running,
    /// It waits for a person.
    Paused,
    /// It has done what it should.
    Done,
    /// It was given up by order.
    Cancelled,
    /// It cannot go on: its member, or the array, has failed.
    Failed,
}

impl JobStage {
    /// Whether it has ended.
    pub fn is_over(self) -> bool {
        !matches!(self, JobStage::Running | JobStage::Paused)
    }
}

/// A job, as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobInfo {
    /// Its number: of this array, since it is served; from 1.
    pub number: u64,
    /// What it does: resync, rebuild, replace, check or repair.
    pub kind: JobKind,
    /// The member that is filled, by its number: of a role, or of a successor.
    pub role: Option<u16>,
    /// Of a replacement: the number of the member whose place the one that is filled takes.
    pub replaces: Option<u16>,
    /// Whether it goes on.
    pub stage: JobStage,
    /// Of a repair: the data are right, whatever their parities say.
    pub from_data: bool,
    /// Bytes of the array that it is done with.
    pub done_bytes: u64,
    /// Bytes of the array that it goes over: for a rebuild what was ever written, or what its member lacks.
    pub total_bytes: u64,
    /// Of a check or repair: everything before this byte of the array has been gone over.
    pub position_bytes: u64,
    /// Bytes of the array that it gets done in a second, lately; 0 while that is not known, or it waits.
    pub rate_bytes_per_s: u64,
    /// Bytes a second that it may read or write on one member at most; 0: as the default policy has it.
    pub limit_bytes_per_s: u64,
    /// When it began, by [`super::EngineIo::now_ns`].
    pub begun_ns: u64,
    /// What a check or repair has found; of a rebuild, what no member can read.
    pub findings: Option<Findings>,
}

impl JobInfo {
    /// The time that it will still take at its rate, in nanoseconds, where that is known.
    pub fn left_ns(&self) -> Option<u64> {
        let left = u128::from(self.total_bytes.saturating_sub(self.done_bytes));
        let ns = (left * 1_000_000_000).checked_div(u128::from(self.rate_bytes_per_s))?;
        (self.stage == JobStage::Running).then(|| u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// One in the list.
pub(super) struct Job {
    pub info: JobInfo,
    /// When it was told, and how far it had come then.
    told_ns: u64,
    told_bytes: u64,
}

/// The jobs that have not ended.
#[derive(Default)]
pub(super) struct Jobs {
    last: u64,
    list: Vec<Job>,
}

impl Jobs {
    /// The job of this kind for this member.
    pub fn of(&self, kind: JobKind, role: Option<u16>) -> Option<&JobInfo> {
        self.list.iter().map(|job| &job.info).find(|info| (info.kind, info.role) == (kind, role))
    }

    /// The check or repair.
    pub fn check(&self) -> Option<&JobInfo> {
        self.of(JobKind::Check, None).or_else(|| self.of(JobKind::Repair, None))
    }

    fn at(&mut self, number: u64) -> Option<&mut Job> {
        self.list.iter_mut().find(|job| job.info.number == number)
    }

    /// Whether the job is there and may go on.
    pub fn runs(&self, kind: JobKind, role: Option<u16>) -> bool {
        self.of(kind, role).is_some_and(|info| info.stage == JobStage::Running)
    }

    /// The limit of a job, in bytes a second.
    pub fn limit(&self, kind: JobKind, role: Option<u16>) -> u64 {
        self.of(kind, role).map_or(0, |info| info.limit_bytes_per_s)
    }
}

impl Keeper {
    /// The jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = &JobInfo> {
        self.jobs.list.iter().map(|job| &job.info)
    }

    /// A job begins. It is told of.
    pub(super) fn begin_job<I: KeeperIo>(
        &mut self,
        io: &I,
        kind: JobKind,
        role: Option<u16>,
        stage: JobStage,
        limit_bytes_per_s: u64,
    ) {
        self.jobs.last += 1;
        let (done_bytes, total_bytes) = self.progress(kind, role);
        let info = JobInfo {
            number: self.jobs.last,
            kind,
            role,
            replaces: self.array.successors().find(|one| Some(one.member) == role).map(|one| one.role),
            stage,
            from_data: self.repairs_from_data(kind),
            done_bytes,
            total_bytes,
            position_bytes: self.check_position(),
            rate_bytes_per_s: 0,
            limit_bytes_per_s,
            begun_ns: io.now_ns(),
            findings: self.findings(kind),
        };
        io.note(self.options.device, Note::Job(info.clone()));
        self.jobs.list.push(Job { told_ns: info.begun_ns, told_bytes: done_bytes, info });
    }

    /// A job has ended. It is told of, and leaves the list.
    pub(super) fn end_job<I: KeeperIo>(&mut self, io: &I, kind: JobKind, role: Option<u16>, stage: JobStage) {
        let Some(at) = self.jobs.list.iter().position(|job| (job.info.kind, job.info.role) == (kind, role)) else {
            return;
        };
        let (done, total) = self.progress(kind, role);
        let mut info = self.jobs.list.remove(at).info;
        (info.stage, info.rate_bytes_per_s, info.total_bytes) = (stage, 0, total);
        info.done_bytes = if stage == JobStage::Done { total } else { done };
        info.findings = self.findings(kind);
        io.note(self.options.device, Note::Job(info));
    }

    /// All that goes on has failed.
    pub(super) fn fail_jobs<I: KeeperIo>(&mut self, io: &I) {
        while let Some((kind, role)) = self.jobs.list.first().map(|job| (job.info.kind, job.info.role)) {
            self.end_job(io, kind, role, JobStage::Failed);
        }
    }

    /// Tells how far a job has come, if it is time to.
    pub(super) fn tell_job<I: KeeperIo>(&mut self, io: &I, kind: JobKind, role: Option<u16>, at_once: bool) {
        let now = io.now_ns();
        let Some(at) = self.jobs.list.iter().position(|job| (job.info.kind, job.info.role) == (kind, role)) else {
            return;
        };
        let since = now - self.jobs.list[at].told_ns;
        if since < TELL_NS && !at_once {
            return;
        }
        let (done, total) = self.progress(kind, role);
        let (findings, position) = (self.findings(kind), self.check_position());
        let job = &mut self.jobs.list[at];
        (job.info.findings, job.info.position_bytes) = (findings, position);
        (job.info.done_bytes, job.info.total_bytes) = (done, total);
        if job.info.stage != JobStage::Running {
            job.info.rate_bytes_per_s = 0;
        } else if since >= TELL_NS {
            let rate = u128::from(done.saturating_sub(job.told_bytes)) * 1_000_000_000 / u128::from(since);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            let before = job.info.rate_bytes_per_s;
            job.info.rate_bytes_per_s = match before {
                0 => rate,
                _ => before - before / RATE_FOLLOWS + rate / RATE_FOLLOWS,
            };
        }
        (job.told_ns, job.told_bytes) = (now, done);
        io.note(self.options.device, Note::Job(job.info.clone()));
    }

    /// Bytes of the array that a job is done with, and that it goes over.
    fn progress(&self, kind: JobKind, role: Option<u16>) -> (u64, u64) {
        let size = self.array.geometry().size_bytes();
        let bytes = |regions: u64| regions * u64::from(self.array.label().region_bytes);
        let (done, total) = match (kind, role.and_then(|role| self.fills.get(&role))) {
            (JobKind::Rebuild | JobKind::Replace, Some(fill)) => fill.progress(&self.regions),
            (JobKind::Resync, _) => {
                let total = self.resync_total;
                (bytes(total.saturating_sub(self.regions.unsettled.count())), bytes(total))
            }
            (JobKind::Check | JobKind::Repair, _) => {
                let (done, total) = self.check_progress();
                (bytes(done), bytes(total))
            }
            _ => (0, 0),
        };
        (done.min(size), total.min(size))
    }

    /// Lets a job wait, or go on. What fills a member in full remembers it over a restart.
    pub(super) async fn pause<I: KeeperIo>(&mut self, io: &I, number: u64, paused: bool) -> Result<(), LifecycleError> {
        let job = self.jobs.at(number).ok_or_else(|| missing(number))?;
        let stage = if paused { JobStage::Paused } else { JobStage::Running };
        job.info.stage = stage;
        let (kind, role, limit) = (job.info.kind, job.info.role, job.info.limit_bytes_per_s);
        self.tell_job(io, kind, role, true);
        self.record_job(io, role, stage, limit).await
    }

    /// Gives a job another limit. What fills a member in full remembers it over a restart.
    pub(super) async fn limit<I: KeeperIo>(
        &mut self,
        io: &I,
        number: u64,
        rate_bytes_per_s: u64,
    ) -> Result<(), LifecycleError> {
        let job = self.jobs.at(number).ok_or_else(|| missing(number))?;
        job.info.limit_bytes_per_s = rate_bytes_per_s;
        let (kind, role, stage) = (job.info.kind, job.info.role, job.info.stage);
        self.tell_job(io, kind, role, true);
        self.record_job(io, role, stage, rate_bytes_per_s).await
    }

    async fn record_job<I: KeeperIo>(
        &mut self,
        io: &I,
        role: Option<u16>,
        stage: JobStage,
        limit: u64,
    ) -> Result<(), LifecycleError> {
        let Some(role) = role.filter(|role| self.array.rebuild(*role).is_some()) else { return Ok(()) };
        let state = if stage == JobStage::Paused { JobState::Paused } else { JobState::Running };
        self.array.set_rebuild(io, role, state, limit).await
    }

    /// Gives a job up.
    pub(super) async fn cancel<I: KeeperIo>(&mut self, io: &I, number: u64) -> Result<(), LifecycleError> {
        let job = self.jobs.at(number).ok_or_else(|| missing(number))?;
        match (job.info.kind, job.info.role) {
            (JobKind::Resync, _) => {
                let reason =
                    "a resync cannot be cancelled, as what a crash left unequal cannot be read before; pause it";
                Err(LifecycleError::Job { number, reason: reason.into() })
            }
            (kind @ (JobKind::Rebuild | JobKind::Replace), Some(role)) => {
                self.end_job(io, kind, Some(role), JobStage::Cancelled);
                self.lose(io, &[role], kind == JobKind::Replace).await;
                Ok(())
            }
            (kind, role) => {
                self.end_job(io, kind, role, JobStage::Cancelled);
                self.check = None;
                Ok(())
            }
        }
    }
}

fn missing(number: u64) -> LifecycleError {
    LifecycleError::Job { number, reason: "there is no such job, or it has ended".into() }
}
