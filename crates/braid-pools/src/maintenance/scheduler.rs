//! The scheduler of a pool's background work: a queue of typed items, processed in turns.
//!
//! It does no I/O and has no clock: the time is an argument. In a turn, each item that is due is run for one step, in
//! the order of [`WorkItem`]; between two turns, the task sleeps. What is queued during a turn waits for the next one,
//! so that an item that has more work goes behind all the others.

use braid_inventory::WorkItem;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Interval between two turns.
const IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// Interval between two turns while there is work.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);

/// Uncommitted changes of this age are committed.
const UNCOMMITTED_MAX: Duration = Duration::from_secs(1);

/// Interval between two runs of the periodic work.
const PERIOD: Duration = Duration::from_secs(1);

/// The work that is due once in each period, in one turn.
const PERIODIC: [WorkItem; 5] =
    [WorkItem::Schedule, WorkItem::CheckLog, WorkItem::RetryWrites, WorkItem::Measure, WorkItem::Removal];

/// Work that is queued when the task starts: a deletion, a move or a flattening may have been interrupted by the last
/// end.
const INITIAL: [WorkItem; 3] = [WorkItem::Merge, WorkItem::Move, WorkItem::Flatten];

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// There is nothing more to do until it is requested again.
    Done,
    /// There is more, and it can proceed.
    More,
    /// There is more, and it has to wait for something: the item is queued for the next turn, which does not begin
    /// earlier because of it.
    Later,
}

/// The state of the in-memory log.
#[derive(Clone, Copy, Default)]
pub(super) struct LogState {
    /// An acknowledged change is only in the in-memory log.
    pub is_hot: bool,
    /// The log is not where the next start looks for it: an end of the process would lose its content.
    pub is_lost: bool,
}

/// The queue of a pool's background work.
///
/// Invariants: an item is at most once in `queued`, and at most once in `turn`. An item leaves `turn` before its step
/// begins, so that what is queued during the step is not taken for the step's own work. Limits and holds move an item
/// from `turn` back to `queued`; nothing else but a step and [`Scheduler::abandon_turn`] removes a requested item.
pub(super) struct Scheduler {
    /// What is to be done in the next turn, or later if it is suspended or limited then.
    queued: BTreeSet<WorkItem>,
    /// What is still to be done in this turn.
    turn: BTreeSet<WorkItem>,
    /// When the periodic work was last due.
    last_period: Instant,
    /// When uncommitted changes were first seen; reset when the log is clean, and when a commit is requested for their
    /// age.
    hot_since: Option<Instant>,
    /// A step of this turn has more work that can proceed.
    is_busy: bool,
    /// The pool can make no progress, as the last step of this turn has found.
    is_blocked: bool,
}

impl Scheduler {
    /// Creates the scheduler of a pool whose task starts now.
    pub(super) fn new(now: Instant) -> Scheduler {
        Scheduler {
            queued: BTreeSet::from(INITIAL),
            turn: BTreeSet::new(),
            last_period: now,
            hot_since: None,
            is_busy: false,
            is_blocked: false,
        }
    }

    /// Begins a turn: everything that is queued becomes due, except suspended work if that `is_held`, and the periodic
    /// work if a period has passed.
    pub(super) fn begin_turn(&mut self, now: Instant, requests: BTreeSet<WorkItem>, log: LogState, is_held: bool) {
        debug_assert!(self.turn.is_empty(), "the last turn has not ended");
        (self.is_busy, self.is_blocked) = (false, false);
        self.queued.extend(requests);
        let is_suspended = |item: &WorkItem| is_held && item.is_suspended_by_hold();
        (self.queued, self.turn) = std::mem::take(&mut self.queued).into_iter().partition(is_suspended);
        if now.saturating_duration_since(self.last_period) >= PERIOD {
            self.last_period = now;
            self.turn.extend(PERIODIC);
        }
        self.note_log(now, log);
    }

    /// Records the state of the in-memory log: a commit is due in this turn if changes have been uncommitted for long,
    /// or if any are uncommitted and the log is lost. A later call in the same turn replaces an earlier one.
    pub(super) fn note_log(&mut self, now: Instant, log: LogState) {
        self.hot_since = if log.is_hot { self.hot_since.or(Some(now)) } else { None };
        let is_old = |since: Instant| log.is_lost || now.saturating_duration_since(since) >= UNCOMMITTED_MAX;
        if self.hot_since.is_some_and(is_old) {
            self.turn.insert(WorkItem::Commit);
        } else {
            self.turn.remove(&WorkItem::Commit);
        }
    }

    /// Returns true if an item is due in this turn.
    pub(super) fn is_due(&self, item: WorkItem) -> bool {
        self.turn.contains(&item)
    }

    /// Returns true if nothing is due in this turn any more.
    pub(super) fn is_idle(&self) -> bool {
        self.turn.is_empty()
    }

    /// Puts off items to a later turn: all that copy blocks if the jobs' rate limits do not permit that now (`may_copy`
    /// is false), and compaction if it is paused. Each function is called only if an item that it concerns is due.
    pub(super) fn limit(&mut self, may_copy: impl FnOnce() -> bool, is_compaction_paused: impl FnOnce() -> bool) {
        if self.turn.iter().any(|item| item.copies_blocks()) && !may_copy() {
            let limited: BTreeSet<WorkItem>;
            (limited, self.turn) = std::mem::take(&mut self.turn).into_iter().partition(|item| item.copies_blocks());
            self.queued.extend(limited);
        }
        if self.is_due(WorkItem::Compact) && is_compaction_paused() {
            self.skip(WorkItem::Compact);
            self.queue(WorkItem::Compact);
        }
    }

    /// Takes the next item of this turn. [`None`] ends the turn. If `is_held`, items that a hold suspends are queued
    /// for a later turn.
    pub(super) fn next(&mut self, is_held: bool) -> Option<WorkItem> {
        while let Some(item) = self.turn.pop_first() {
            if !is_held || !item.is_suspended_by_hold() {
                return Some(item);
            }
            self.queue(item);
        }
        None
    }

    /// Records the outcome of a step.
    pub(super) fn complete(&mut self, item: WorkItem, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::More => {
                self.queue(item);
                self.is_busy = true;
            }
            Outcome::Later => self.queue(item),
        }
    }

    /// Queues an item for the next turn.
    pub(super) fn queue(&mut self, item: WorkItem) {
        self.queued.insert(item);
    }

    /// Adds an item that a step has made due to this turn.
    pub(super) fn add(&mut self, item: WorkItem) {
        self.turn.insert(item);
    }

    /// Removes an item from this turn.
    pub(super) fn skip(&mut self, item: WorkItem) {
        self.turn.remove(&item);
    }

    /// Records that a commit was requested: one that is due in this turn needs no request of its own.
    pub(super) fn note_commit(&mut self) {
        if self.turn.remove(&WorkItem::Commit) {
            self.hot_since = None;
        }
    }

    /// Records that the commit of old changes was requested: their age counts from the next turn on.
    pub(super) fn complete_commit(&mut self) {
        self.hot_since = None;
    }

    /// Records whether the pool can make any progress, as its last step has found.
    pub(super) fn set_blocked(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
    }

    /// Ends the turn early, as the pool is not served any more: what was due in it is void.
    pub(super) fn abandon_turn(&mut self) {
        self.turn.clear();
        self.is_blocked = false;
    }

    /// Returns how long the task sleeps before the next turn unless it is woken.
    pub(super) fn pause(&self) -> Duration {
        if self.is_busy && !self.is_blocked { BUSY_INTERVAL } else { IDLE_INTERVAL }
    }
}

#[cfg(test)]
mod tests;
