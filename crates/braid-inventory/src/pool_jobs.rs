//! Jobs of pools: the background work of a pool, as its maintenance task reports it, with its pauses and rate limits.

use crate::job_table::name_of;
use braid_api::{Job, JobState, Progress, SetJob};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Maximum number of ended jobs that are kept.
const ENDED_MAX: usize = 16;

/// The work of a job of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolWork {
    /// Evacuates a member that is being removed, by its number.
    Evacuation(u8),
    /// Moves a volume, by its identity, with its snapshots, to its new members.
    Move(Uuid),
    /// Compacts a volume, by its identity, and its snapshots.
    Compaction(Uuid),
    /// Copies the blocks that a volume, by its identity, and its snapshots share with their ancestors.
    Flattening(Uuid),
}

impl PoolWork {
    /// Returns the kind of the job, as in the API.
    fn word(self) -> &'static str {
        match self {
            PoolWork::Evacuation(_) => "evacuation",
            PoolWork::Move(_) => "move",
            PoolWork::Compaction(_) => "compaction",
            PoolWork::Flattening(_) => "flattening",
        }
    }
}

/// A job.
struct PoolJob {
    work: PoolWork,
    /// The name of the volume when the job began; `None` for an evacuation.
    volume: Option<String>,
    state: JobState,
    /// Maximum bytes per second; 0: no limit.
    limit_bytes_per_s: u64,
    /// The most bytes that were left at any time.
    total_bytes: u64,
    /// The bytes that are left.
    left_bytes: u64,
    /// When the job began or was resumed.
    since: Instant,
    /// The bytes that were left at that time.
    left_then: u64,
}

/// The jobs of a pool, and the state of its rate limit.
#[derive(Default)]
struct PoolJobTable {
    /// By number.
    jobs: BTreeMap<u64, PoolJob>,
    /// The number of the newest job; numbers begin with 1.
    newest: u64,
    /// Blocks moved until the last check of the rate limit.
    moved_blocks: u64,
    /// No more blocks may be moved before this time; `None`: they may be moved now.
    not_before: Option<Instant>,
}

impl PoolJobTable {
    /// Updates the bytes that are left of a running job. Returns false if no job with this work is running.
    fn update_left(&mut self, work: PoolWork, left_bytes: u64) -> bool {
        let Some(one) = self.jobs.values_mut().find(|one| one.work == work && !one.state.is_over()) else {
            return false;
        };
        one.left_bytes = left_bytes;
        one.total_bytes = one.total_bytes.max(left_bytes);
        true
    }
}

/// The jobs of a pool that serves.
#[derive(Default)]
pub struct PoolJobs(Mutex<PoolJobTable>);

impl PoolJobs {
    fn job_table(&self) -> MutexGuard<'_, PoolJobTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the bytes that are left of a running job. Returns false if no job with this work is running.
    pub fn update_left(&self, work: PoolWork, left_bytes: u64) -> bool {
        self.job_table().update_left(work, left_bytes)
    }

    /// Records that work has begun or is running, with this many bytes left. `volume` is the name of its
    /// volume, with the pool's; `None` for an evacuation.
    pub fn note(&self, work: PoolWork, volume: Option<&str>, left_bytes: u64) {
        let mut job_table = self.job_table();
        if job_table.update_left(work, left_bytes) {
            return;
        }
        job_table.newest += 1;
        let number = job_table.newest;
        let one = PoolJob {
            work,
            volume: volume.map(str::to_owned),
            state: JobState::Running,
            limit_bytes_per_s: 0,
            total_bytes: left_bytes,
            left_bytes,
            since: Instant::now(),
            left_then: left_bytes,
        };
        job_table.jobs.insert(number, one);
    }

    /// Ends the running jobs whose work satisfies the predicate, in the given state.
    pub fn end(&self, state: JobState, is: impl Fn(PoolWork) -> bool) {
        let mut job_table = self.job_table();
        for one in job_table.jobs.values_mut().filter(|one| !one.state.is_over() && is(one.work)) {
            one.state = state;
            if state == JobState::Done {
                one.left_bytes = 0;
            }
        }
        let ended: Vec<u64> = job_table.jobs.iter().filter(|(_, one)| one.state.is_over()).map(|(n, _)| *n).collect();
        for number in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            job_table.jobs.remove(number);
        }
    }

    /// Pauses or resumes a job, or changes its rate limit. Returns false if there is no such job, or if it has ended.
    pub fn set(&self, number: u64, ask: &SetJob) -> bool {
        let mut job_table = self.job_table();
        let Some(one) = job_table.jobs.get_mut(&number).filter(|one| !one.state.is_over()) else { return false };
        one.limit_bytes_per_s = ask.limit_bytes_per_s.unwrap_or(one.limit_bytes_per_s);
        match ask.paused {
            Some(true) => one.state = JobState::Paused,
            Some(false) => {
                one.state = JobState::Running;
                (one.since, one.left_then) = (Instant::now(), one.left_bytes);
            }
            None => {}
        }
        job_table.not_before = None;
        true
    }

    /// Returns the work of a job, by its number, running or ended.
    pub fn work(&self, number: u64) -> Option<PoolWork> {
        self.job_table().jobs.get(&number).map(|one| one.work)
    }

    /// Returns the work of the jobs that have not ended, paused ones included, with their states.
    pub fn running(&self) -> Vec<(PoolWork, JobState)> {
        let job_table = self.job_table();
        job_table.jobs.values().filter(|one| !one.state.is_over()).map(|one| (one.work, one.state)).collect()
    }

    /// Returns true if a compaction is paused: then the compactions behind it in the queue wait, too.
    pub fn compaction_waits(&self) -> bool {
        self.running().iter().any(|(work, state)| matches!(work, PoolWork::Compaction(_)) && *state == JobState::Paused)
    }

    /// Returns true if more blocks may be moved now. The lowest limit of all jobs that have not ended applies to the
    /// whole pool. `moved_blocks`: number of blocks that were moved since the pool was opened.
    pub fn may_move(&self, moved_blocks: u64) -> bool {
        let mut job_table = self.job_table();
        let limits = job_table.jobs.values().filter(|one| !one.state.is_over()).map(|one| one.limit_bytes_per_s);
        let Some(limit) = limits.filter(|limit| *limit > 0).min() else {
            (job_table.moved_blocks, job_table.not_before) = (moved_blocks, None);
            return true;
        };
        let now = Instant::now();
        let new = moved_blocks.saturating_sub(job_table.moved_blocks);
        if new > 0 {
            let ns = u128::from(new) * 4096 * 1_000_000_000 / u128::from(limit);
            let takes = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
            job_table.not_before = job_table.not_before.unwrap_or(now).max(now).checked_add(takes);
            job_table.moved_blocks = moved_blocks;
        }
        job_table.not_before.is_none_or(|at| at <= now)
    }

    /// Returns all jobs in the API's form, by number. `pool` is the pool's name.
    pub fn show(&self, pool: &str) -> Vec<Job> {
        self.job_table().jobs.iter().map(|(number, one)| one.show(pool, *number)).collect()
    }
}

impl PoolJob {
    fn show(&self, pool: &str, number: u64) -> Job {
        let done_bytes = self.total_bytes - self.left_bytes.min(self.total_bytes);
        let seconds = self.since.elapsed().as_secs_f64().max(0.001);
        let rate = match self.state {
            JobState::Running => (self.left_then.saturating_sub(self.left_bytes) as f64 / seconds) as u64,
            _ => 0,
        };
        Job {
            name: name_of(pool, number),
            array: String::new(),
            pool: Some(pool.to_owned()),
            volume: self.volume.clone(),
            number,
            kind: self.work.word().to_owned(),
            member: match self.work {
                PoolWork::Evacuation(member) => Some(member.into()),
                _ => None,
            },
            replaces: None,
            state: self.state,
            paused: self.state == JobState::Paused,
            limit_bytes_per_s: self.limit_bytes_per_s,
            progress: Progress {
                done_bytes,
                total_bytes: self.total_bytes,
                rate_bytes_per_s: rate,
                remaining_s: (rate > 0).then(|| self.left_bytes.div_ceil(rate)),
            },
            findings: None,
        }
    }
}
