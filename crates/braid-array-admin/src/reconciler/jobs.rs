//! The jobs of an array: a numbered list with the progress of each, for monitoring and administration.
//!
//! The work of a job is recorded elsewhere: in the region bits and in what rebuilds have left to copy.

use braid_format::{JobKind, JobState};

use super::{Findings, Reconciler, ReconcilerEvent, ReconcilerIo};
use crate::lifecycle::LifecycleError;

/// Minimum interval between two progress reports of a job.
const REPORT_INTERVAL_NS: u64 = 250_000_000;
/// The reported rate is a moving average with a weight of one in this many.
const RATE_FOLLOWS: u64 = 4;

/// The stage of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobStage {
    /// It is in progress.
    Running,
    /// It is paused.
    Paused,
    /// It has completed.
    Done,
    /// It was cancelled by an order.
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

/// A job and its progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobInfo {
    /// Its number, unique for this array while it is served; from 1.
    pub number: u64,
    /// Its kind: resync, rebuild, replace, check or repair.
    pub kind: JobKind,
    /// The number of the member that is being rebuilt: a slot, or a successor's number.
    pub member: Option<u16>,
    /// Of a replacement: the slot that the rebuilding member takes over.
    pub replaces_slot: Option<u16>,
    /// Its stage.
    pub stage: JobStage,
    /// Of a repair: trust the data and recompute parity.
    pub from_data: bool,
    /// Bytes of the array done.
    pub done_bytes: u64,
    /// Bytes of the array to process; for a rebuild what was ever written, or what its member lacks.
    pub total_bytes: u64,
    /// Of a check or repair: everything before this byte of the array has been checked.
    pub position_bytes: u64,
    /// Recent progress in bytes of the array a second; 0 while unknown or paused.
    pub rate_bytes_per_s: u64,
    /// Maximum bytes a second read or written on any one member; 0: the default policy.
    pub limit_bytes_per_s: u64,
    /// When it began, by [`braid_engine::EngineIo::now_ns`].
    pub begun_ns: u64,
    /// What a check or repair has found; of a rebuild, what no member can read.
    pub findings: Option<Findings>,
}

impl JobInfo {
    /// Returns the remaining time in nanoseconds at the current rate, if known.
    pub fn left_ns(&self) -> Option<u64> {
        let left = u128::from(self.total_bytes.saturating_sub(self.done_bytes));
        let ns = (left * 1_000_000_000).checked_div(u128::from(self.rate_bytes_per_s))?;
        (self.stage == JobStage::Running).then(|| u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// A job in the list.
pub(super) struct Job {
    pub info: JobInfo,
    /// When it was last reported, and its progress then.
    reported_ns: u64,
    reported_bytes: u64,
}

/// The jobs that have not ended.
#[derive(Default)]
pub(super) struct Jobs {
    last: u64,
    list: Vec<Job>,
}

impl Jobs {
    /// Returns the job of this kind for this member.
    pub fn of(&self, kind: JobKind, role: Option<u16>) -> Option<&JobInfo> {
        self.list.iter().map(|job| &job.info).find(|info| (info.kind, info.member) == (kind, role))
    }

    /// Returns the check or repair.
    pub fn check(&self) -> Option<&JobInfo> {
        self.of(JobKind::Check, None).or_else(|| self.of(JobKind::Repair, None))
    }

    fn at(&mut self, number: u64) -> Option<&mut Job> {
        self.list.iter_mut().find(|job| job.info.number == number)
    }

    /// Whether the job exists and is not paused.
    pub fn runs(&self, kind: JobKind, role: Option<u16>) -> bool {
        self.of(kind, role).is_some_and(|info| info.stage == JobStage::Running)
    }

    /// Returns the limit of a job, in bytes a second.
    pub fn limit(&self, kind: JobKind, role: Option<u16>) -> u64 {
        self.of(kind, role).map_or(0, |info| info.limit_bytes_per_s)
    }
}

impl Reconciler {
    /// Returns the jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = &JobInfo> {
        self.jobs.list.iter().map(|job| &job.info)
    }

    /// Begins a job and reports it.
    pub(super) fn begin_job<I: ReconcilerIo>(
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
            member: role,
            replaces_slot: self.array.successors().find(|one| Some(one.member) == role).map(|one| one.role),
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
        io.report(self.options.device, ReconcilerEvent::Job(info.clone()));
        self.jobs.list.push(Job { reported_ns: info.begun_ns, reported_bytes: done_bytes, info });
    }

    /// Ends a job: reports it and removes it from the list.
    pub(super) fn end_job<I: ReconcilerIo>(&mut self, io: &I, kind: JobKind, role: Option<u16>, stage: JobStage) {
        let Some(at) = self.jobs.list.iter().position(|job| (job.info.kind, job.info.member) == (kind, role)) else {
            return;
        };
        let (done, total) = self.progress(kind, role);
        let mut info = self.jobs.list.remove(at).info;
        (info.stage, info.rate_bytes_per_s, info.total_bytes) = (stage, 0, total);
        info.done_bytes = if stage == JobStage::Done { total } else { done };
        info.findings = self.findings(kind);
        io.report(self.options.device, ReconcilerEvent::Job(info));
    }

    /// Ends all jobs as failed.
    pub(super) fn fail_jobs<I: ReconcilerIo>(&mut self, io: &I) {
        while let Some((kind, role)) = self.jobs.list.first().map(|job| (job.info.kind, job.info.member)) {
            self.end_job(io, kind, role, JobStage::Failed);
        }
    }

    /// Reports the progress of a job, if a report is due.
    pub(super) fn report_job<I: ReconcilerIo>(&mut self, io: &I, kind: JobKind, role: Option<u16>, at_once: bool) {
        let now = io.now_ns();
        let Some(at) = self.jobs.list.iter().position(|job| (job.info.kind, job.info.member) == (kind, role)) else {
            return;
        };
        let since = now - self.jobs.list[at].reported_ns;
        if since < REPORT_INTERVAL_NS && !at_once {
            return;
        }
        let (done, total) = self.progress(kind, role);
        let (findings, position) = (self.findings(kind), self.check_position());
        let job = &mut self.jobs.list[at];
        (job.info.findings, job.info.position_bytes) = (findings, position);
        (job.info.done_bytes, job.info.total_bytes) = (done, total);
        if job.info.stage != JobStage::Running {
            job.info.rate_bytes_per_s = 0;
        } else if since >= REPORT_INTERVAL_NS {
            let rate = u128::from(done.saturating_sub(job.reported_bytes)) * 1_000_000_000 / u128::from(since);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            let before = job.info.rate_bytes_per_s;
            job.info.rate_bytes_per_s = match before {
                0 => rate,
                _ => before - before / RATE_FOLLOWS + rate / RATE_FOLLOWS,
            };
        }
        (job.reported_ns, job.reported_bytes) = (now, done);
        io.report(self.options.device, ReconcilerEvent::Job(job.info.clone()));
    }

    /// Returns the bytes of the array that a job has done, and those to process in all.
    fn progress(&self, kind: JobKind, role: Option<u16>) -> (u64, u64) {
        let size = self.array.geometry().size_bytes();
        let bytes = |regions: u64| regions * u64::from(self.array.label().region_bytes);
        let (done, total) = match (kind, role.and_then(|role| self.rebuilds.get(&role))) {
            (JobKind::Rebuild | JobKind::Replace, Some(rebuild)) => rebuild.progress(&self.regions),
            (JobKind::Resync, _) => {
                let total = self.resync_total;
                (bytes(total.saturating_sub(self.regions.unequal.count())), bytes(total))
            }
            (JobKind::Check | JobKind::Repair, _) => {
                let (done, total) = self.check_progress();
                (bytes(done), bytes(total))
            }
            _ => (0, 0),
        };
        (done.min(size), total.min(size))
    }

    /// Pauses or resumes a job. A full rebuild records this in the label.
    pub(super) async fn pause<I: ReconcilerIo>(
        &mut self,
        io: &I,
        number: u64,
        paused: bool,
    ) -> Result<(), LifecycleError> {
        let job = self.jobs.at(number).ok_or_else(|| missing(number))?;
        let stage = if paused { JobStage::Paused } else { JobStage::Running };
        job.info.stage = stage;
        let (kind, role, limit) = (job.info.kind, job.info.member, job.info.limit_bytes_per_s);
        self.report_job(io, kind, role, true);
        self.record_job(io, role, stage, limit).await
    }

    /// Changes the limit of a job. A full rebuild records this in the label.
    pub(super) async fn limit<I: ReconcilerIo>(
        &mut self,
        io: &I,
        number: u64,
        rate_bytes_per_s: u64,
    ) -> Result<(), LifecycleError> {
        let job = self.jobs.at(number).ok_or_else(|| missing(number))?;
        job.info.limit_bytes_per_s = rate_bytes_per_s;
        let (kind, role, stage) = (job.info.kind, job.info.member, job.info.stage);
        self.report_job(io, kind, role, true);
        self.record_job(io, role, stage, rate_bytes_per_s).await
    }

    async fn record_job<I: ReconcilerIo>(
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

    /// Cancels a job.
    pub(super) async fn cancel<I: ReconcilerIo>(&mut self, io: &I, number: u64) -> Result<(), LifecycleError> {
        let job = self.jobs.at(number).ok_or_else(|| missing(number))?;
        match (job.info.kind, job.info.member) {
            (JobKind::Resync, _) => {
                let reason =
                    "a resync cannot be cancelled, as what a crash left unequal cannot be read before; pause it";
                Err(LifecycleError::Job { number, reason: reason.into() })
            }
            (kind @ (JobKind::Rebuild | JobKind::Replace), Some(role)) => {
                self.end_job(io, kind, Some(role), JobStage::Cancelled);
                self.drop_and_settle(io, &[role], kind == JobKind::Replace).await;
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
