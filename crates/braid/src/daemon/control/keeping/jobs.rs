//! Jobs: what goes on in the background, named by array and number (`data:3`).

use super::super::Control;
use super::super::tables::{ArrayEntry, Tables};
use super::progress;
use braid_api::{ErrorDetail, Job, JobList, Kind, SetJob};
use braid_engine::keeper::{JobInfo, JobStage, Order};
use braid_format::JobKind;
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Every job that has not ended.
    pub fn jobs(&self) -> JobList {
        let tables = self.read();
        let mut jobs: Vec<Job> = all(&tables).map(|(entry, job)| show(&entry.name, &job)).collect();
        jobs.sort_by(|a, b| (&a.array, a.number).cmp(&(&b.array, b.number)));
        JobList { jobs }
    }

    /// One job.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn job(&self, name: &str) -> Result<Job, ErrorDetail> {
        let (uuid, number) = self.find_job(name)?;
        let tables = self.read();
        let mut jobs = all(&tables).filter(|(entry, job)| (entry.uuid, job.number) == (uuid, number));
        jobs.next().map(|(entry, job)| show(&entry.name, &job)).ok_or_else(|| missing(name))
    }

    /// Lets a job wait or go on, or gives it another limit.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or what the labels of the array say to it.
    pub async fn set_job(self: &Arc<Self>, name: &str, ask: SetJob) -> Result<Job, ErrorDetail> {
        let (uuid, number) = self.find_job(name)?;
        let before = self.job(name)?;
        if let Some(rate_bytes_per_s) = ask.limit_bytes_per_s {
            self.give_order(uuid, Order::Limit { job: number, rate_bytes_per_s }).await?;
        }
        match ask.paused {
            Some(true) => self.give_order(uuid, Order::Pause(number)).await?,
            Some(false) => self.give_order(uuid, Order::Resume(number)).await?,
            None => {}
        }
        // It may have ended meanwhile.
        Ok(self.job(name).unwrap_or(before))
    }

    /// Gives a job up.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or it cannot be given up.
    pub async fn cancel_job(self: &Arc<Self>, name: &str) -> Result<Job, ErrorDetail> {
        let (uuid, number) = self.find_job(name)?;
        let before = self.job(name)?;
        self.give_order(uuid, Order::Cancel(number)).await?;
        Ok(before)
    }

    fn find_job(&self, name: &str) -> Result<(Uuid, u64), ErrorDetail> {
        let (array, number) = name.rsplit_once(':').ok_or_else(|| missing(name))?;
        let number = number.parse().map_err(|_| missing(name))?;
        Ok((self.read().array(array)?.uuid, number))
    }
}

fn all(tables: &Tables) -> impl Iterator<Item = (&ArrayEntry, JobInfo)> {
    tables.arrays.values().flat_map(|entry| {
        let keeping = entry.active().and_then(|active| active.keeping());
        let jobs = keeping.map(|keeping| keeping.jobs()).unwrap_or_default();
        jobs.into_iter().map(move |job| (entry, job))
    })
}

fn show(array: &str, job: &JobInfo) -> Job {
    Job {
        name: format!("{array}:{}", job.number),
        array: array.to_owned(),
        number: job.number,
        kind: match job.kind {
            JobKind::Resync => "resync",
            JobKind::Rebuild => "rebuild",
            JobKind::Check => "check",
            JobKind::Repair => "repair",
            _ => "other",
        }
        .to_owned(),
        member: job.role,
        paused: job.stage == JobStage::Paused,
        limit_bytes_per_s: job.limit_bytes_per_s,
        progress: progress(job),
    }
}

fn missing(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::NotFound, format!("there is no job {name}, or it has ended"))
        .with("job", name)
        .remedy("`braid job list` shows those that go on; a job is named ARRAY:NUMBER")
}
