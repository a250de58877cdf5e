//! The maintenance task: it takes the next due item of the scheduler, runs one step of it, and records the outcome.

use super::scheduler::{LogState, Outcome, Scheduler};
use crate::PoolManager;
use crate::compact::ConsolidatedExtents;
use crate::flatten::flatten_some;
use crate::measure::NextPass;
use crate::policies::ScheduleState;
use braid_engine::PoolNext;
use braid_engine::pool::{FlattenStep, MergeStep, MoveStep, Pool, PoolShared};
use braid_inventory::{Maintenance, PoolHandle, PoolJobs, Vitals, WorkItem};
use braid_ring::SharedLog;
use braid_tasks as tasks;
use std::sync::Arc;
use std::time::Instant;
use uuid::Uuid;

/// Records in one step of merging: requests of clients wait for it, some 100 µs if all of the records change.
const MERGE_RECORDS: u32 = 500;

/// Records in one step of moving or compacting.
const MOVE_RECORDS: u32 = 2000;

/// Records in one step of flattening.
const FLATTEN_RECORDS: u32 = 2000;

/// The pool is not served any more.
struct NotServed;

/// The maintenance task of a pool that serves.
pub(super) struct MaintenanceTask {
    manager: Arc<PoolManager>,
    uuid: Uuid,
    shared: Arc<PoolShared>,
    maintenance: Maintenance,
    memory_log: Option<Arc<SharedLog>>,
    scheduler: Scheduler,
    /// Locked by the task that runs schedules and measures contents, while it does.
    at_leisure: Arc<tokio::sync::Mutex<(ScheduleState, NextPass)>>,
    /// Number of blocks that were copied to other locations, as of the last step.
    moved_blocks: u64,
    /// A member has failed, as the last step of this turn has found.
    has_failed: bool,
    /// Something was merged since the merges were last found complete.
    merged_some: bool,
    /// There was something to move or to flatten since the jobs were last updated: there may be new jobs.
    moves_since_update: bool,
    /// The outcome of moving that was reported last.
    reported: Option<MoveStep>,
    /// The extents consolidated since the pool was opened, as of the first step of the compaction that is under way.
    made_before: Option<ConsolidatedExtents>,
}

impl MaintenanceTask {
    pub(super) fn new(
        manager: Arc<PoolManager>,
        pool: &PoolHandle,
        maintenance: Maintenance,
        memory_log: Option<Arc<SharedLog>>,
        now: Instant,
    ) -> MaintenanceTask {
        MaintenanceTask {
            manager,
            uuid: pool.uuid,
            shared: Arc::clone(&pool.shared),
            maintenance,
            memory_log,
            scheduler: Scheduler::new(now),
            at_leisure: Arc::default(),
            moved_blocks: 0,
            has_failed: false,
            merged_some: false,
            moves_since_update: false,
            reported: None,
            made_before: None,
        }
    }

    /// Runs turns until the end is requested or the pool is not served any more. A turn that has begun is finished.
    pub(super) async fn run(mut self) {
        while !self.maintenance.is_ending() {
            let _ = tokio::time::timeout(self.scheduler.pause(), self.maintenance.requested()).await;
            if !self.begin_turn() {
                continue;
            }
            let Ok(pool) = self.manager.serving_pool(&self.uuid.to_string()) else { return };
            while let Some(item) = self.scheduler.next(self.maintenance.is_held()) {
                match self.step(&pool, item).await {
                    Ok(outcome) => self.scheduler.complete(item, outcome),
                    Err(NotServed) => self.on_not_served(item),
                }
            }
            if self.has_failed {
                self.manager.on_pool_failed(self.uuid);
            }
        }
    }

    /// Begins a turn. Returns false if nothing is due: then the pool is not called.
    fn begin_turn(&mut self) -> bool {
        self.has_failed = false;
        let is_held = self.maintenance.is_held();
        let log = self.log_state();
        self.scheduler.begin_turn(Instant::now(), self.maintenance.take_requests(), log, is_held);
        self.moves_since_update |= self.scheduler.is_due(WorkItem::Move) || self.scheduler.is_due(WorkItem::Flatten);
        let jobs = self.jobs();
        let may_move = || jobs.as_ref().is_none_or(|jobs| jobs.may_move(self.moved_blocks));
        // What is queued behind a paused compaction may continue without a command: for example if the volume whose
        // compaction is paused is deleted.
        let is_compaction_paused = || jobs.as_ref().is_some_and(|jobs| jobs.compaction_waits());
        self.scheduler.limit(may_move, is_compaction_paused);
        !self.scheduler.is_idle()
    }

    fn log_state(&self) -> LogState {
        LogState { is_hot: self.shared.is_hot(), is_lost: self.maintenance.has_lost_log() }
    }

    fn jobs(&self) -> Option<Arc<PoolJobs>> {
        let tables = self.manager.inventory.read();
        tables.pools.get(&self.uuid).and_then(|entry| Some(Arc::clone(&entry.served()?.jobs)))
    }

    /// Runs one step of an item.
    async fn step(&mut self, pool: &PoolHandle, item: WorkItem) -> Result<Outcome, NotServed> {
        match item {
            WorkItem::Schedule => Ok(self.start_schedules()),
            WorkItem::CheckLog => Ok(self.check_log()),
            WorkItem::Merge => self.merge(pool).await,
            WorkItem::Commit => self.commit(pool).await,
            WorkItem::RetryWrites => self.retry_writes(pool).await,
            WorkItem::Move => self.move_blocks(pool).await,
            WorkItem::Compact => self.compact(pool).await,
            WorkItem::Flatten => self.flatten(pool).await,
            WorkItem::Measure => self.measure(pool).await,
            WorkItem::Removal => Ok(self.continue_removals().await),
        }
    }

    /// Runs work at the pool's home; records what the pool says of its own state after it.
    async fn call<R: Send + 'static>(
        &mut self,
        pool: &PoolHandle,
        mut work: impl FnMut(&mut Pool) -> R + Send + 'static,
    ) -> Result<R, NotServed> {
        let called = self.manager.call(pool, move |pool: &mut Pool| {
            let result = work(pool);
            (PoolNext::Done, (result, pool.has_failed(), pool.is_starving(), copied_so_far(pool)))
        });
        let (result, failed, starves, moved) = called.await.map_err(|_| NotServed)?;
        (self.has_failed, self.moved_blocks) = (failed, moved);
        // A pool that has failed makes no progress any more; a starving one makes none now.
        self.scheduler.set_blocked(failed || starves);
        Ok(result)
    }

    /// Abandons the turn, as the pool is not served any more: what was due is void. If the pool is opened again, it
    /// gets another task, which begins with all kinds of work but compactions. Merging is queued again, as it is not
    /// known to be complete.
    fn on_not_served(&mut self, item: WorkItem) {
        self.has_failed = false;
        self.scheduler.abandon_turn();
        if item == WorkItem::Merge {
            self.scheduler.complete(item, Outcome::More);
            self.merged_some = true;
        }
    }

    /// Starts a task of its own: a snapshot may wait for a disk, and maintenance goes on meanwhile.
    fn start_schedules(&mut self) -> Outcome {
        if let Ok(mut leisure) = Arc::clone(&self.at_leisure).try_lock_owned() {
            let (manager, uuid) = (Arc::clone(&self.manager), self.uuid);
            tasks::spawn(async move {
                let (schedule_state, rest) = &mut *leisure;
                manager.run_policies(uuid, schedule_state).await;
                manager.measure_volumes(uuid, rest).await;
            });
        }
        Outcome::Done
    }

    fn check_log(&mut self) -> Outcome {
        let is_lost = self.memory_log.as_ref().is_some_and(|memory_log| !memory_log.is_intact());
        if is_lost && self.maintenance.note_lost_log() {
            self.manager.report_lost_log(self.uuid);
        }
        self.scheduler.note_log(Instant::now(), self.log_state());
        Outcome::Done
    }

    async fn merge(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        let step = |pool: &mut Pool| {
            let merged = pool.merge_step(MERGE_RECORDS);
            // A commit that lacks space is retried once a second, not as often as some work needs log space.
            let commits = merged == MergeStep::LogFull && !pool.is_starving();
            if commits {
                pool.request_commit();
            }
            (merged, commits)
        };
        let (merged, commits) = self.call(pool, step).await?;
        if commits {
            self.scheduler.note_commit();
        }
        if merged != MergeStep::Nothing {
            self.merged_some = true;
            return Ok(Outcome::More);
        }
        if std::mem::take(&mut self.merged_some) {
            // An owner that inherited blocks by a merge may have them on members where they are not to be.
            self.scheduler.queue(WorkItem::Move);
        }
        Ok(Outcome::Done)
    }

    async fn commit(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        self.call(pool, |pool| pool.request_commit()).await?;
        self.scheduler.complete_commit();
        Ok(Outcome::Done)
    }

    async fn retry_writes(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        self.call(pool, Pool::retry_writes).await?;
        Ok(Outcome::Done)
    }

    async fn move_blocks(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        let moving = self.call(pool, |pool| pool.move_step(MOVE_RECORDS)).await?;
        if self.reported != Some(moving) {
            self.reported = Some(moving);
            self.manager.report_moves(self.uuid, moving);
        }
        // When all blocks are on their members, a member that is being removed may be empty.
        if moving == MoveStep::Done {
            self.scheduler.add(WorkItem::Removal);
        } else {
            self.scheduler.skip(WorkItem::Removal);
        }
        Ok(match moving {
            MoveStep::Done | MoveStep::Unreadable => Outcome::Done,
            MoveStep::Some => Outcome::More,
            // Space may become free again.
            MoveStep::Full | MoveStep::Paused => Outcome::Later,
        })
    }

    async fn compact(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        let step =
            |pool: &mut Pool| (pool.is_compacting(), pool.compact_step(MOVE_RECORDS), pool.extents_consolidated());
        let (was_requested, step, made) = self.call(pool, step).await?;
        let before = *self.made_before.get_or_insert(made);
        if self.has_failed {
            // The failure is reported at the end of the turn; the compaction did not complete.
            self.made_before = None;
            return Ok(Outcome::Done);
        }
        if step == MoveStep::Some {
            return Ok(Outcome::More);
        }
        self.made_before = None;
        let made = was_requested.then(|| (made.0 - before.0, made.1 - before.1));
        self.manager.report_compacted(self.uuid, made, step == MoveStep::Full);
        Ok(Outcome::Done)
    }

    async fn flatten(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        let flattening = self.call(pool, |pool| flatten_some(pool, FLATTEN_RECORDS)).await?;
        let outcome = match flattening.0 {
            FlattenStep::Nothing => Outcome::Done,
            FlattenStep::Later => Outcome::Later,
            FlattenStep::Some | FlattenStep::Full(_) | FlattenStep::Unreadable(_) => Outcome::More,
            FlattenStep::Done(_) => {
                // A deleted parent may have one child less, and merge into its last child; also onto members where the
                // child is not to have blocks.
                self.scheduler.queue(WorkItem::Merge);
                Outcome::More
            }
        };
        self.manager.report_flattened(self.uuid, flattening);
        Ok(outcome)
    }

    async fn measure(&mut self, pool: &PoolHandle) -> Result<Outcome, NotServed> {
        let vitals = self.call(pool, |pool| Vitals::of(pool)).await?;
        self.manager.note_vitals(self.uuid, vitals);
        let moved = std::mem::take(&mut self.moves_since_update);
        self.manager.update_jobs(pool, moved, true).await;
        Ok(Outcome::Done)
    }

    async fn continue_removals(&mut self) -> Outcome {
        // One that has to be continued later is continued when the moves are complete again.
        if self.manager.continue_removals(self.uuid).await {
            self.scheduler.queue(WorkItem::Move);
        }
        Outcome::Done
    }
}

/// Returns the number of blocks that were copied to other locations, for any reason.
fn copied_so_far(pool: &Pool) -> u64 {
    pool.blocks_moved() + pool.blocks_copied()
}
