//! The maintenance task of a pool, as the control plane sees it: requests for work, and its end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A kind of background work of a pool. Items of one turn of the task run in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WorkItem {
    /// Start the scheduled snapshots that are due and the measurement of the volumes' contents, in a task of their own.
    Schedule,
    /// Check whether the in-memory log is still where the next start looks for it.
    CheckLog,
    /// Merge what was deleted.
    Merge,
    /// Commit changes that are old.
    Commit,
    /// Retry the pool's own writes that found no space.
    RetryWrites,
    /// Move blocks that are on members where they are not to be.
    Move,
    /// Compact volumes.
    Compact,
    /// Flatten volumes.
    Flatten,
    /// Measure how full the pool is, and update the progress of its jobs.
    Measure,
    /// Continue the removal of members.
    Removal,
}

impl WorkItem {
    /// Returns true if a [`MergeHold`] suspends this work.
    pub fn is_suspended_by_hold(self) -> bool {
        matches!(self, WorkItem::Merge | WorkItem::Flatten)
    }

    /// Returns true if this work copies blocks, so that the rate limits of the pool's jobs apply to it.
    pub fn copies_blocks(self) -> bool {
        matches!(self, WorkItem::Move | WorkItem::Compact | WorkItem::Flatten)
    }
}

/// The handle of a pool's maintenance task: any thread requests work by it. Clones refer to the same task.
#[derive(Clone, Default)]
pub struct Maintenance(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Requested work that the task has not taken yet. Locked for an insertion or a take only, never across an await.
    ///
    /// A request is inserted before `wake` is notified, and `wake` stores one notification: so a request that the task
    /// did not take ends the task's next sleep.
    requests: Mutex<BTreeSet<WorkItem>>,
    wake: Notify,
    ending: AtomicBool,
    task: Mutex<Option<JoinHandle<()>>>,
    log_lost: AtomicBool,
    /// Number of components that suspend merging and flattening.
    holds: AtomicU32,
}

/// Suspends merging and flattening while it exists, except for a step that is under way.
pub struct MergeHold(Arc<Shared>);

impl Drop for MergeHold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Maintenance {
    /// Wakes the task after a deletion, to merge.
    pub fn merge(&self) {
        self.request(WorkItem::Merge);
    }

    /// Wakes the task to move blocks.
    pub fn moves(&self) {
        self.request(WorkItem::Move);
    }

    /// Wakes the task to compact.
    pub fn compacts(&self) {
        self.request(WorkItem::Compact);
    }

    /// Wakes the task to flatten.
    pub fn flattens(&self) {
        self.request(WorkItem::Flatten);
    }

    /// Requests work and wakes the task. What is requested twice before the task takes it is done once. A request
    /// during a step of the same work is a new one, as the step may have passed what the request is about.
    fn request(&self, item: WorkItem) {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner).insert(item);
        self.0.wake.notify_one();
    }

    /// Takes everything that was requested since the last call. Only the task calls this.
    pub fn take_requests(&self) -> BTreeSet<WorkItem> {
        std::mem::take(&mut *self.0.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until work or the end is requested; returns at once if that happened since the last wait. May also return
    /// for a request that [`Maintenance::take_requests`] has taken already. Only the task calls this.
    pub async fn requested(&self) {
        self.0.wake.notified().await;
    }

    /// Suspends merging and flattening until the guard is dropped. What is requested meanwhile stays queued.
    pub fn hold(&self) -> MergeHold {
        self.0.holds.fetch_add(1, Ordering::AcqRel);
        MergeHold(Arc::clone(&self.0))
    }

    /// Returns true while merging and flattening are suspended.
    pub fn is_held(&self) -> bool {
        self.0.holds.load(Ordering::Acquire) != 0
    }

    /// Records that the in-memory log is not where the next start looks for it. Returns true for the first call.
    pub fn note_lost_log(&self) -> bool {
        !self.0.log_lost.swap(true, Ordering::Relaxed)
    }

    /// Returns true if acknowledged writes would be lost with the process.
    pub fn has_lost_log(&self) -> bool {
        self.0.log_lost.load(Ordering::Relaxed)
    }

    /// Records the task, for [`Maintenance::end`].
    pub fn set_task(&self, task: JoinHandle<()>) {
        *self.0.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    /// Returns true if the task is to end: it finishes the turn that has begun, and begins no other.
    pub fn is_ending(&self) -> bool {
        self.0.ending.load(Ordering::Acquire)
    }

    /// Ends the task, which holds the in-memory log, and waits for its end. What is queued then is found again by the
    /// next start, except compactions.
    pub async fn end(&self) {
        self.0.ending.store(true, Ordering::Release);
        self.0.wake.notify_one();
        let task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A task that panicked has ended as well.
            let _ = task.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_request_between_the_take_and_the_sleep_ends_the_sleep() {
        let maintenance = Maintenance::default();
        assert!(maintenance.take_requests().is_empty());
        maintenance.moves();
        maintenance.moves();
        let woken = tokio::time::timeout(Duration::from_secs(1), maintenance.requested()).await;
        assert!(woken.is_ok());
        assert_eq!(maintenance.take_requests(), BTreeSet::from([WorkItem::Move]));
        let woken = tokio::time::timeout(Duration::from_secs(1), maintenance.requested()).await;
        assert!(woken.is_err(), "two requests of one item are one");
    }

    #[test]
    fn the_last_hold_ends_the_suspension() {
        let maintenance = Maintenance::default();
        let (one, other) = (maintenance.hold(), maintenance.clone().hold());
        drop(one);
        assert!(maintenance.is_held());
        drop(other);
        assert!(!maintenance.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_the_turn_that_has_begun() {
        let maintenance = Maintenance::default();
        let turns = Arc::new(AtomicU32::new(0));
        let (inner, counted) = (maintenance.clone(), Arc::clone(&turns));
        maintenance.set_task(tokio::spawn(async move {
            while !inner.is_ending() {
                inner.requested().await;
                // A step waits for the pool.
                tokio::time::sleep(Duration::from_secs(1)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }));
        maintenance.merge();
        tokio::time::sleep(Duration::from_millis(500)).await;
        maintenance.end().await;
        assert_eq!(turns.load(Ordering::Relaxed), 1);
        maintenance.end().await;
    }

    #[test]
    fn a_lost_log_is_reported_once() {
        let maintenance = Maintenance::default();
        assert!(!maintenance.has_lost_log());
        assert!(maintenance.note_lost_log());
        assert!(!maintenance.note_lost_log());
        assert!(maintenance.has_lost_log());
    }
}
