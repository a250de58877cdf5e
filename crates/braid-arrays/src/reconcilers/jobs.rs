//! Jobs: background work on arrays, named by array and number (`data:3`).

use crate::ArrayManager;
use crate::reconcilers::health;
use braid_advice::{self as advice, Case, JobCase, ObjectNames};
use braid_api::{CheckArray, ErrorDetail, Findings, Health, Job, JobList, JobState, Kind, SetJob};
use braid_array_admin::reconciler::{CheckFrom, JobInfo, JobStage, Order};
use braid_format::JobKind;
use braid_inventory::job_table::{findings, found, is_check, name_of, progress};
use braid_inventory::state::{SavedCheck, SavedDamage};
use braid_inventory::{ArrayEntry, ReconcilerHandle, Tables, check_of};
use braid_tasks as tasks;
use std::sync::Arc;
use uuid::Uuid;

impl ArrayManager {
    /// Returns all jobs that run or ended recently, of arrays and of pools.
    pub fn jobs(&self) -> JobList {
        let tables = self.inventory.read();
        let mut jobs: Vec<Job> = all(&tables).map(|(entry, job)| show(&entry.name, &job)).collect();
        drop(tables);
        jobs.extend(self.users().pool_jobs());
        jobs.sort_by(|a, b| (&a.array, &a.pool, a.number).cmp(&(&b.array, &b.pool, b.number)));
        JobList { jobs }
    }

    /// Returns one job of an array or pool.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn job(&self, name: &str) -> Result<Job, ErrorDetail> {
        if let Some(job) = self.users().pool_job(name) {
            return Ok(job);
        }
        let (uuid, number) = self.find_job(name)?;
        let tables = self.inventory.read();
        let mut jobs = all(&tables).filter(|(entry, job)| (entry.uuid, job.number) == (uuid, number));
        jobs.next().map(|(entry, job)| show(&entry.name, &job)).ok_or_else(|| missing(name))
    }

    /// Begins to compare all copies of everything that was ever written (check), or to make differing copies equal
    /// (repair).
    ///
    /// # Errors
    /// [`Kind::NotFound`], the array has no redundancy, or a check of it is running already.
    pub async fn check_array(self: &Arc<Self>, array: &str, request: CheckArray) -> Result<Job, ErrorDetail> {
        let claim = self.inventory.claim(array, "checked")?;
        let handle = self.reconciler_of(array)?;
        let name = self.inventory.read().array(&claim.uuid.to_string())?.name.clone();
        if let Some(job) = handle.newest(|job| is_check(job.kind) && !job.stage.is_over()) {
            let job = name_of(&name, job.number);
            return Err(ErrorDetail::new(Kind::InUse, format!("array {name} is being checked already: job {job}"))
                .with("array", &name)
                .with("job", &job)
                .remedy(advice::remedy(Case::Job(JobCase::Running), ObjectNames::with(&name, &job))));
        }
        let order = match (request.from_data, request.repair) {
            (false, repair) => Order::Check { repair },
            (true, true) if self.parities(claim.uuid) > 0 => Order::RepairFromData,
            (true, repair) => {
                let (why, remedy) = match repair {
                    true => (format!("array {name} has copies, and no parity that could be computed from data"), ""),
                    false => ("from_data applies to a repair: a check changes nothing".to_owned(), " --from-data"),
                };
                let error = ErrorDetail::new(Kind::InvalidArgument, why).with("array", &name);
                return Err(error.remedy(format!("braid array repair {name}{remedy}")));
            }
        };
        self.give_order(claim.uuid, order).await?;
        let job = handle.newest(|job| is_check(job.kind)).ok_or_else(|| missing(&name))?;
        self.save_checks();
        Ok(show(&name, &job))
    }

    /// Returns the number of parities of an active array; 0 if it has none or is not active.
    fn parities(&self, uuid: Uuid) -> u16 {
        self.inventory
            .read()
            .arrays
            .get(&uuid)
            .and_then(|entry| entry.active())
            .map_or(0, |a| a.label.spec.level.parity())
    }

    /// Resumes the check that was running when the array last served, and restores the damage that an earlier check
    /// found and whether the parity is in doubt.
    pub(crate) async fn resume_check(self: &Arc<Self>, uuid: Uuid, parities: u16) {
        let damage = self.inventory.read().damage.get(&uuid).cloned();
        if let Some(saved) = damage {
            // If the state is saved between these two steps, it has the damage twice rather than not at all.
            if self.with_reconciler(uuid, |handle| handle.restore_damage(&saved, parities)).is_some() {
                self.inventory.write().damage.remove(&uuid);
            }
        }
        let Some(saved) = self.inventory.write().checks.remove(&uuid) else { return };
        let SavedCheck { repair, from_data, position_bytes, paused, limit_bytes_per_s, findings, .. } = saved;
        let findings = found(&findings);
        let from = CheckFrom { repair, from_data, position_bytes, findings, paused, limit_bytes_per_s };
        if let Err(error) = self.give_order(uuid, Order::ResumeCheck(from)).await {
            tracing::warn!("a check is not resumed: {}", error.message);
        }
    }

    /// Marks the parity of an array as in doubt before the array is started by force: the parity may predate the last
    /// writes. The mark is saved before the journal begins anew. A check that was under way has seen the stripes as
    /// they were before, and is not resumed.
    pub(crate) fn mark_parity_in_doubt(&self, uuid: Uuid) {
        {
            let mut tables = self.inventory.write();
            tables.checks.remove(&uuid);
            let none = SavedDamage { array: uuid, repair: false, findings: Findings::default(), parity_in_doubt: true };
            tables.damage.entry(uuid).or_insert(none).parity_in_doubt = true;
        }
        self.inventory.save_or_warn();
    }

    /// Begins a check of the parity of an array that has just started, if the parity is in doubt. If nothing can be
    /// compared yet, the check waits.
    pub(crate) async fn begin_parity_check(&self, uuid: Uuid, name: &str) {
        if self.with_reconciler(uuid, |handle| handle.take_due_parity_check(true)) != Some(true) {
            return;
        }
        if let Err(error) = self.check_parity(uuid).await {
            let message = format!(
                "the parity of array {name} may predate the last writes, and is checked when all members are in sync: {}",
                error.message
            );
            self.inventory.events().warning("array_fault", message, &[("array", name)]);
        }
    }

    /// Begins the due checks of parity in doubt, on arrays whose members are all in sync. Called periodically.
    pub fn watch_parity_checks(self: &Arc<Self>) {
        let due: Vec<Uuid> = {
            let tables = self.inventory.read();
            let active = tables.arrays.values().filter_map(|entry| Some((entry.uuid, entry.active()?)));
            let doubted = active.filter_map(|(uuid, active)| {
                let handle = active.reconciler().filter(|handle| handle.is_in_doubt())?;
                handle.take_due_parity_check(health::of(active) == Some(Health::Whole)).then_some(uuid)
            });
            doubted.collect()
        };
        for uuid in due {
            let manager = Arc::clone(self);
            // A reconciler whose disk hangs takes no orders for a while.
            tasks::spawn(async move {
                if let Err(error) = manager.check_parity(uuid).await {
                    tracing::warn!("parity in doubt is not checked: {}", error.message);
                }
            });
        }
    }

    /// Begins a check or repair of parity in doubt. A single parity is repaired: it is made to agree with the data.
    /// With two parities, a repair could take data that are newer than both parities for corrupted, and a repair from
    /// the data could take corrupted data for right: so they are only checked, and the user decides.
    async fn check_parity(&self, uuid: Uuid) -> Result<(), ErrorDetail> {
        let repair = self.parities(uuid) == 1;
        let begun = self.give_order(uuid, Order::Check { repair }).await;
        if begun.is_err() {
            let _ = self.with_reconciler(uuid, ReconcilerHandle::retry_parity_check);
        }
        begun
    }

    /// Saves the progress of running checks; called periodically.
    pub fn save_checks(&self) {
        let going = self.inventory.read().arrays.values().any(|entry| check_of(entry).is_some());
        if going {
            self.inventory.save_or_warn();
        }
    }

    /// Pauses or resumes a job, or changes its rate limit.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or an error from writing the array's labels.
    pub async fn set_job(self: &Arc<Self>, name: &str, request: SetJob) -> Result<Job, ErrorDetail> {
        if let Some(job) = self.users().set_pool_job(name, &request).await {
            return Ok(job);
        }
        let (uuid, number, before) = self.going_job(name)?;
        if let Some(rate_bytes_per_s) = request.limit_bytes_per_s {
            self.give_order(uuid, Order::Limit { job: number, rate_bytes_per_s }).await?;
        }
        match request.paused {
            Some(true) => self.give_order(uuid, Order::Pause(number)).await?,
            Some(false) => self.give_order(uuid, Order::Resume(number)).await?,
            None => {}
        }
        // The job may have ended meanwhile.
        Ok(self.job(name).unwrap_or(before))
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or the job cannot be cancelled.
    pub async fn cancel_job(self: &Arc<Self>, name: &str) -> Result<Job, ErrorDetail> {
        if let Some(done) = self.users().cancel_pool_job(name).await {
            return done;
        }
        let (uuid, number, before) = self.going_job(name)?;
        self.give_order(uuid, Order::Cancel(number)).await?;
        // A cancelled check does not begin again at the next start.
        self.inventory.save_or_warn();
        Ok(before)
    }

    /// Returns a job that has not ended.
    fn going_job(&self, name: &str) -> Result<(Uuid, u64, Job), ErrorDetail> {
        let (uuid, number) = self.find_job(name)?;
        let job = self.job(name)?;
        if job.state.is_over() {
            return Err(missing(name));
        }
        Ok((uuid, number, job))
    }

    /// Returns the array and the number of a job, by its name.
    fn find_job(&self, name: &str) -> Result<(Uuid, u64), ErrorDetail> {
        let (array, number) = name.rsplit_once(':').ok_or_else(|| missing(name))?;
        let number = number.parse().map_err(|_| missing(name))?;
        Ok((self.inventory.read().array(array)?.uuid, number))
    }
}

fn all(tables: &Tables) -> impl Iterator<Item = (&ArrayEntry, JobInfo)> {
    tables.arrays.values().flat_map(|entry| {
        let handle = entry.active().and_then(|active| active.reconciler());
        let jobs = handle.map(|handle| handle.jobs()).unwrap_or_default();
        jobs.into_iter().map(move |job| (entry, job))
    })
}

fn show(array: &str, job: &JobInfo) -> Job {
    Job {
        name: name_of(array, job.number),
        array: array.to_owned(),
        pool: None,
        volume: None,
        number: job.number,
        kind: match job.kind {
            JobKind::Resync => "resync",
            JobKind::Rebuild => "rebuild",
            JobKind::Replace => "replace",
            JobKind::Check => "check",
            JobKind::Repair => "repair",
            _ => "other",
        }
        .to_owned(),
        member: job.member,
        replaces: job.replaces_slot,
        state: match job.stage {
            JobStage::Running => JobState::Running,
            JobStage::Paused => JobState::Paused,
            JobStage::Done => JobState::Done,
            JobStage::Cancelled => JobState::Cancelled,
            JobStage::Failed => JobState::Failed,
        },
        paused: job.stage == JobStage::Paused,
        limit_bytes_per_s: job.limit_bytes_per_s,
        progress: progress(job),
        findings: job.findings.as_ref().map(findings),
    }
}

fn missing(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::NotFound, format!("there is no job {name}, or it has ended"))
        .with("job", name)
        .remedy(advice::remedy(Case::Job(JobCase::Unknown), ObjectNames::default()))
}
