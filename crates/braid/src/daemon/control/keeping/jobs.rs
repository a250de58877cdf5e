//! Jobs: what goes on in the background, named by array and number (`data:3`).

use super::super::Control;
use super::super::tables::{ArrayEntry, Tables, check_of};
use super::board::{is_check, progress};
use super::{Keeping, health};
use crate::daemon::state::{SavedCheck, SavedDamage};
use braid_advice::{self as advice, Case, JobCase, Names};
use braid_api::{CheckArray, ErrorDetail, Findings, Health, Job, JobList, JobState, Kind, SetJob, WrongMember};
use braid_engine::keeper::{CheckFrom, FINDINGS_BLOCK_BYTES as BLOCK_BYTES, JobInfo, JobStage, Order};
use braid_format::JobKind;
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Every job that goes on, or has ended lately.
    pub fn jobs(&self) -> JobList {
        let tables = self.read();
        let mut jobs: Vec<Job> = all(&tables).map(|(entry, job)| show(&entry.name, &job)).collect();
        drop(tables);
        jobs.extend(self.pool_jobs());
        jobs.sort_by(|a, b| (&a.array, &a.pool, a.number).cmp(&(&b.array, &b.pool, b.number)));
        JobList { jobs }
    }

    /// One job.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn job(&self, name: &str) -> Result<Job, ErrorDetail> {
        if let Some(job) = self.pool_job(name) {
            return Ok(job);
        }
        let (uuid, number) = self.find_job(name)?;
        let tables = self.read();
        let mut jobs = all(&tables).filter(|(entry, job)| (entry.uuid, job.number) == (uuid, number));
        jobs.next().map(|(entry, job)| show(&entry.name, &job)).ok_or_else(|| missing(name))
    }

    /// Begins to compare all copies of everything that was ever written, or to make equal what differs.
    ///
    /// # Errors
    /// [`Kind::NotFound`], the array has no redundancy, or it is gone over already.
    pub async fn check_array(self: &Arc<Self>, array: &str, ask: CheckArray) -> Result<Job, ErrorDetail> {
        let claim = self.claim(array, "checked")?;
        let keeping = self.keeping(array)?;
        let name = self.read().array(&claim.uuid.to_string())?.name.clone();
        if let Some(job) = keeping.newest(|job| is_check(job.kind) && !job.stage.is_over()) {
            let job = name_of(&name, job.number);
            return Err(ErrorDetail::new(Kind::InUse, format!("array {name} is gone over already: job {job}"))
                .with("array", &name)
                .with("job", &job)
                .remedy(advice::remedy(Case::Job(JobCase::Going), Names::with(&name, &job))));
        }
        let order = match (ask.from_data, ask.repair) {
            (false, repair) => Order::Check { repair },
            (true, true) if self.parities(claim.uuid) > 0 => Order::RepairFromData,
            (true, repair) => {
                let (why, remedy) = match repair {
                    true => (format!("array {name} has copies, and no parity that could be computed from data"), ""),
                    false => ("a check believes nobody: from_data is for a repair".to_owned(), " --from-data"),
                };
                let error = ErrorDetail::new(Kind::InvalidArgument, why).with("array", &name);
                return Err(error.remedy(format!("braid array repair {name}{remedy}")));
            }
        };
        self.give_order(claim.uuid, order).await?;
        let job = keeping.newest(|job| is_check(job.kind)).ok_or_else(|| missing(&name))?;
        self.save_checks();
        Ok(show(&name, &job))
    }

    fn parities(&self, uuid: Uuid) -> u16 {
        self.read().arrays.get(&uuid).and_then(|entry| entry.active()).map_or(0, |a| a.label.spec.level.parity())
    }

    /// Goes on with the check that an array had when it served last, and knows what one before that has found, and whether its parity is in
    /// doubt.
    pub(super) async fn resume_check(self: &Arc<Self>, uuid: Uuid, parities: u16) {
        let damage = self.read().damage.get(&uuid).cloned();
        if let Some(saved) = damage {
            // Where the state is saved in between, it has this twice rather than not at all.
            if self.with_keeping(uuid, |keeping| keeping.remember_damage(&saved, parities)).is_some() {
                self.write().damage.remove(&uuid);
            }
        }
        let Some(saved) = self.write().checks.remove(&uuid) else { return };
        let SavedCheck { repair, from_data, position_bytes, paused, limit_bytes_per_s, findings, .. } = saved;
        let findings = found(&findings);
        let from = CheckFrom { repair, from_data, position_bytes, findings, paused, limit_bytes_per_s };
        if let Err(error) = self.give_order(uuid, Order::ResumeCheck(from)).await {
            tracing::warn!("a check does not go on: {}", error.message);
        }
    }

    /// An array with parity is about to be started by force: its parity may be of before the last writes. That is known before its journal
    /// begins anew. A check that was under way has seen rows as they were before, and does not go on.
    pub(super) fn doubt_parity(&self, uuid: Uuid) {
        {
            let mut tables = self.write();
            tables.checks.remove(&uuid);
            let none = SavedDamage { array: uuid, repair: false, findings: Findings::default(), parity_in_doubt: true };
            tables.damage.entry(uuid).or_insert(none).parity_in_doubt = true;
        }
        self.save_or_warn();
    }

    /// Looks at once at the parity of an array that has just been started, if it is in doubt. Where nothing can be compared so far, that waits.
    pub(super) async fn begin_doubted(&self, uuid: Uuid, name: &str) {
        if self.with_keeping(uuid, |keeping| keeping.takes_up_doubt(true)) != Some(true) {
            return;
        }
        if let Err(error) = self.look_at_parity(uuid).await {
            let message = format!(
                "the parity of array {name} may be of before the last writes, and is looked at when all members are in sync: {}",
                error.message
            );
            self.events().warning("array_trouble", message, &[("array", name)]);
        }
    }

    /// Begins to look at parity that is in doubt, of arrays that have become whole.
    pub(in super::super) fn watch_doubted(self: &Arc<Self>) {
        let due: Vec<Uuid> = {
            let tables = self.read();
            let active = tables.arrays.values().filter_map(|entry| Some((entry.uuid, entry.active()?)));
            let doubted = active.filter_map(|(uuid, active)| {
                let keeping = active.keeping().filter(|keeping| keeping.is_in_doubt())?;
                keeping.takes_up_doubt(health::of(active) == Some(Health::Whole)).then_some(uuid)
            });
            doubted.collect()
        };
        for uuid in due {
            let control = Arc::clone(self);
            // A keeper whose disk hangs takes no orders for a while.
            tokio::spawn(async move {
                if let Err(error) = control.look_at_parity(uuid).await {
                    tracing::warn!("parity that is in doubt is not looked at: {}", error.message);
                }
            });
        }
    }

    /// One parity is made to agree with the data. Where there are two, a repair could take data that are newer than both for wrong, and one
    /// from the data rot for right: they are only looked at, as that is for people to decide.
    async fn look_at_parity(&self, uuid: Uuid) -> Result<(), ErrorDetail> {
        let repair = self.parities(uuid) == 1;
        let begun = self.give_order(uuid, Order::Check { repair }).await;
        if begun.is_err() {
            let _ = self.with_keeping(uuid, Keeping::puts_off_doubt);
        }
        begun
    }

    /// Notes from time to time how far checks have come.
    pub(in super::super) fn save_checks(&self) {
        let going = self.read().arrays.values().any(|entry| check_of(entry).is_some());
        if going {
            self.save_or_warn();
        }
    }

    /// Lets a job wait or go on, or gives it another limit.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or what the labels of the array say to it.
    pub async fn set_job(self: &Arc<Self>, name: &str, ask: SetJob) -> Result<Job, ErrorDetail> {
        if let Some(job) = self.set_pool_job(name, &ask).await {
            return Ok(job);
        }
        let (uuid, number, before) = self.going_job(name)?;
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
        if let Some(done) = self.cancel_pool_job(name).await {
            return done;
        }
        let (uuid, number, before) = self.going_job(name)?;
        self.give_order(uuid, Order::Cancel(number)).await?;
        // A check that was given up does not begin anew at the next start.
        self.save_or_warn();
        Ok(before)
    }

    /// A job that has not ended.
    fn going_job(&self, name: &str) -> Result<(Uuid, u64, Job), ErrorDetail> {
        let (uuid, number) = self.find_job(name)?;
        let job = self.job(name)?;
        if job.state.is_over() {
            return Err(missing(name));
        }
        Ok((uuid, number, job))
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

/// The name of a job: array and number.
pub fn name_of(array: &str, number: u64) -> String {
    format!("{array}:{number}")
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

/// The same, as a keeper has it.
pub(super) fn found(findings: &Findings) -> braid_engine::keeper::Findings {
    braid_engine::keeper::Findings {
        compared_blocks: findings.compared_blocks,
        uncompared_blocks: findings.uncompared_blocks,
        differing_blocks: findings.differing_blocks,
        repaired_blocks: findings.mended_blocks,
        unreadable_blocks: findings.unreadable_blocks,
        offsets: findings.places_bytes.clone(),
        wrong_blocks: findings.wrong_members.iter().map(|wrong| (wrong.member, wrong.blocks)).collect(),
    }
}

/// What a job has found, as the API shows it.
pub(super) fn findings(found: &braid_engine::keeper::Findings) -> Findings {
    let wrong = found.wrong_blocks.iter().map(|(member, blocks)| WrongMember { member: *member, blocks: *blocks });
    Findings {
        block_bytes: BLOCK_BYTES,
        compared_blocks: found.compared_blocks,
        uncompared_blocks: found.uncompared_blocks,
        differing_blocks: found.differing_blocks,
        mended_blocks: found.repaired_blocks,
        unreadable_blocks: found.unreadable_blocks,
        places_bytes: found.offsets.clone(),
        wrong_members: wrong.collect(),
    }
}

fn missing(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::NotFound, format!("there is no job {name}, or it has ended"))
        .with("job", name)
        .remedy(advice::remedy(Case::Job(JobCase::Unknown), Names::default()))
}
