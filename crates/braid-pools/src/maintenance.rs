//! The maintenance task of each pool: it merges what was deleted, commits old changes, moves blocks, and reports
//! faults.
//!
//! The scheduler (`scheduler`) decides what is due, and the task (`steps`) runs one bounded step of each such item.

mod scheduler;
mod steps;

use crate::PoolManager;
use braid_api::JobState;
use braid_engine::pool::MoveStep;
use braid_inventory::PoolCondition;
use braid_ring::SharedLog;
use braid_tasks as tasks;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use steps::MaintenanceTask;
use uuid::Uuid;

impl PoolManager {
    /// Starts the maintenance task of a pool that serves.
    pub(crate) fn maintain(self: &Arc<Self>, uuid: Uuid, memory_log: Option<Arc<SharedLog>>) {
        let Some(maintenance) =
            self.inventory.read().pools.get(&uuid).and_then(|e| Some(e.served()?.maintenance.clone()))
        else {
            return;
        };
        let (control, inner) = (Arc::clone(self), maintenance.clone());
        let task = tasks::spawn(async move {
            // Not served any more: there is nothing to maintain.
            let Ok(pool) = control.serving_pool(&uuid.to_string()) else { return };
            MaintenanceTask::new(control, &pool, inner, memory_log, Instant::now()).run().await;
        });
        maintenance.set_task(task);
    }

    /// Records and reports that a member has failed, and that nothing can be made durable any more.
    fn on_pool_failed(&self, uuid: Uuid) {
        let name = {
            let tables = self.inventory.read();
            let Some(entry) = tables.pools.get(&uuid) else { return };
            let PoolCondition::Serves(served) = &entry.condition else { return };
            if served.failed.swap(true, Ordering::Relaxed) {
                return;
            }
            entry.name.clone()
        };
        if let Some(served) = self.inventory.read().pools.get(&uuid).and_then(|entry| entry.served()) {
            served.jobs.end(JobState::Failed, |_| true);
        }
        let message = format!(
            "a member of pool {name} has failed a write or a flush: nothing more can be made durable in the pool, and what its clients flush gets errors"
        );
        self.inventory.events().error("pool_failed", message, &[("pool", &name)]);
    }

    /// Reports moves that cannot proceed.
    fn report_moves(&self, uuid: Uuid, moving: MoveStep) {
        let name = self.inventory.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let message = match moving {
            MoveStep::Done | MoveStep::Some | MoveStep::Paused => return,
            MoveStep::Full => format!(
                "what is to move to other members of pool {name} waits for space there: make some free, or place volumes otherwise"
            ),
            MoveStep::Unreadable => format!(
                "some of what is to move to other members of pool {name} could not be copied, and stays where it is: look at its disks and at the kernel's log (dmesg)"
            ),
        };
        self.inventory.events().error("pool_moves_stopped", message, &[("pool", &name)]);
    }

    fn report_lost_log(&self, uuid: Uuid) {
        let name = self.inventory.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let message = format!(
            "the in-memory log of pool {name} was removed from shared memory: until the daemon is restarted in order, what was acknowledged and not flushed for a moment is lost if it is killed"
        );
        self.inventory.events().error("pool_memory_log_lost", message, &[("pool", &name)]);
    }
}
