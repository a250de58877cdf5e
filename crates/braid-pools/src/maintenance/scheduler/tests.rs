//! Tests of the scheduler in virtual time.

use super::*;
use WorkItem::{CheckLog, Commit, Compact, Flatten, Measure, Merge, Move, Removal, RetryWrites, Schedule};

const CLEAN: LogState = LogState { is_hot: false, is_lost: false };
const HOT: LogState = LogState { is_hot: true, is_lost: false };
const HOT_AND_LOST: LogState = LogState { is_hot: true, is_lost: true };

/// A scheduler and its virtual time.
struct World {
    scheduler: Scheduler,
    now: Instant,
    log: LogState,
    is_held: bool,
}

impl World {
    /// Returns a scheduler that has nothing to do, at the start of its first period.
    fn idle() -> World {
        let mut world = World::new();
        world.turn(&[]);
        world
    }

    fn new() -> World {
        let now = Instant::now();
        World { scheduler: Scheduler::new(now), now, log: CLEAN, is_held: false }
    }

    fn begin(&mut self, requests: &[WorkItem]) {
        self.scheduler.begin_turn(self.now, requests.iter().copied().collect(), self.log, self.is_held);
    }

    /// Runs what is left of a turn in which every step is done; returns its items in order.
    fn finish(&mut self) -> Vec<WorkItem> {
        let mut items = Vec::new();
        while let Some(item) = self.scheduler.next(self.is_held) {
            if item == Commit {
                self.scheduler.complete_commit();
            }
            self.scheduler.complete(item, Outcome::Done);
            items.push(item);
        }
        items
    }

    fn turn(&mut self, requests: &[WorkItem]) -> Vec<WorkItem> {
        self.begin(requests);
        self.finish()
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
}

#[test]
fn the_first_turn_looks_for_what_the_last_end_interrupted() {
    let mut world = World::new();
    assert_eq!(world.turn(&[]), [Merge, Move, Flatten]);
    assert_eq!(world.turn(&[]), []);
}

#[test]
fn nothing_due_sleeps_for_the_idle_interval() {
    let mut world = World::idle();
    world.begin(&[]);
    assert!(world.scheduler.is_idle());
    assert_eq!(world.scheduler.next(false), None);
    assert_eq!(world.scheduler.pause(), IDLE_INTERVAL);
}

#[test]
fn items_run_in_a_fixed_order_and_once_if_requested_twice() {
    let mut world = World::idle();
    world.scheduler.queue(Move);
    world.pass(1000);
    world.log = HOT;
    assert_eq!(
        world.turn(&[Flatten, Compact, Move, Merge]),
        [Schedule, CheckLog, Merge, RetryWrites, Move, Compact, Flatten, Measure, Removal]
    );
    world.pass(1000);
    assert_eq!(world.turn(&[Merge])[2..5], [Merge, Commit, RetryWrites]);
}

#[test]
fn periodic_work_is_due_once_a_second() {
    let mut world = World::idle();
    world.pass(999);
    assert_eq!(world.turn(&[]), []);
    world.pass(1);
    assert_eq!(world.turn(&[]), PERIODIC);
    // A late turn begins a new period.
    world.pass(1700);
    assert_eq!(world.turn(&[]), PERIODIC);
    world.pass(900);
    assert_eq!(world.turn(&[]), []);
}

#[test]
fn an_item_with_more_work_goes_behind_the_others() {
    let mut world = World::idle();
    world.begin(&[Merge, Move]);
    assert_eq!(world.scheduler.next(false), Some(Merge));
    world.scheduler.complete(Merge, Outcome::More);
    assert_eq!(world.scheduler.next(false), Some(Move));
    world.scheduler.complete(Move, Outcome::Done);
    assert_eq!(world.scheduler.next(false), None);
    assert_eq!(world.scheduler.pause(), BUSY_INTERVAL);
    assert_eq!(world.turn(&[]), [Merge]);
    assert_eq!(world.scheduler.pause(), IDLE_INTERVAL);
}

#[test]
fn an_item_that_has_to_wait_is_tried_again_after_an_idle_interval() {
    let mut world = World::idle();
    world.begin(&[Move]);
    let item = world.scheduler.next(false).expect("the move is due");
    world.scheduler.complete(item, Outcome::Later);
    assert_eq!(world.scheduler.pause(), IDLE_INTERVAL);
    assert_eq!(world.turn(&[]), [Move]);
}

#[test]
fn a_request_during_a_step_of_the_same_item_is_not_lost() {
    let mut world = World::idle();
    world.begin(&[Merge]);
    assert_eq!(world.scheduler.next(false), Some(Merge));
    world.scheduler.queue(Merge);
    world.scheduler.complete(Merge, Outcome::Done);
    assert_eq!(world.scheduler.next(false), None, "it waits for the next turn");
    assert_eq!(world.turn(&[]), [Merge]);
    assert_eq!(world.turn(&[]), []);
}

#[test]
fn a_hold_suspends_merging_and_flattening_only() {
    let mut world = World::idle();
    world.is_held = true;
    assert_eq!(world.turn(&[Merge, Move, Compact, Flatten]), [Move, Compact]);
    assert_eq!(world.turn(&[]), []);
    world.begin(&[]);
    assert!(world.scheduler.is_idle(), "suspended work alone makes no turn");
    world.is_held = false;
    assert_eq!(world.finish(), []);
    assert_eq!(world.turn(&[]), [Merge, Flatten]);
}

#[test]
fn a_hold_during_a_turn_suspends_what_has_not_begun() {
    let mut world = World::idle();
    world.begin(&[Merge, Move, Flatten]);
    assert_eq!(world.scheduler.next(false), Some(Merge));
    world.is_held = true;
    assert_eq!(world.finish(), [Move]);
    world.is_held = false;
    assert_eq!(world.turn(&[]), [Flatten]);
}

#[test]
fn copies_wait_for_their_rate_and_nothing_else_does() {
    let mut world = World::idle();
    world.begin(&[Merge, Move, Compact, Flatten]);
    world.scheduler.limit(|| false, || unreachable!("compaction is not due any more"));
    assert_eq!(world.finish(), [Merge]);
    assert_eq!(world.scheduler.pause(), IDLE_INTERVAL);
    world.begin(&[]);
    world.scheduler.limit(|| true, || false);
    assert_eq!(world.finish(), [Move, Compact, Flatten]);
    world.begin(&[Merge]);
    world.scheduler.limit(|| unreachable!("nothing copies"), || unreachable!("nothing copies"));
    assert_eq!(world.finish(), [Merge]);
}

#[test]
fn a_paused_compaction_stays_queued() {
    let mut world = World::idle();
    world.begin(&[Move, Compact]);
    world.scheduler.limit(|| true, || true);
    assert_eq!(world.finish(), [Move]);
    world.begin(&[]);
    world.scheduler.limit(|| true, || false);
    assert_eq!(world.finish(), [Compact]);
}

#[test]
fn changes_are_committed_when_they_are_a_second_old() {
    let mut world = World::idle();
    world.log = HOT;
    assert_eq!(world.turn(&[]), []);
    world.pass(999);
    assert_eq!(world.turn(&[]), []);
    world.pass(1);
    assert!(world.turn(&[]).contains(&Commit));
    // Changes that stay uncommitted are old again a second after they are next seen.
    world.pass(50);
    assert_eq!(world.turn(&[]), []);
    world.pass(950);
    assert!(!world.turn(&[]).contains(&Commit));
    world.pass(50);
    assert_eq!(world.turn(&[]), [Commit]);
    // A log that was clean in between starts a new age.
    world.turn(&[]);
    world.pass(500);
    world.log = CLEAN;
    world.turn(&[]);
    world.log = HOT;
    world.pass(600);
    assert!(!world.turn(&[]).contains(&Commit));
}

#[test]
fn a_lost_log_is_committed_in_the_turn_that_finds_it() {
    let mut world = World::idle();
    world.log = HOT;
    world.pass(1000);
    world.begin(&[]);
    assert_eq!(world.scheduler.next(false), Some(Schedule));
    assert_eq!(world.scheduler.next(false), Some(CheckLog));
    world.scheduler.note_log(world.now, HOT_AND_LOST);
    assert_eq!(world.finish(), [Commit, RetryWrites, Measure, Removal]);
    world.log = HOT_AND_LOST;
    world.pass(50);
    assert_eq!(world.turn(&[]), [Commit], "from then on at once");
}

#[test]
fn a_commit_of_a_merge_serves_old_changes_too() {
    let mut world = World::idle();
    world.log = HOT;
    world.turn(&[]);
    world.pass(500);
    world.begin(&[Merge]);
    assert_eq!(world.scheduler.next(false), Some(Merge));
    world.scheduler.note_commit();
    assert_eq!(world.finish(), [], "the changes are not old yet, and their age is kept");
    world.pass(500);
    world.begin(&[Merge]);
    assert!(world.scheduler.is_due(Commit));
    while world.scheduler.next(false) != Some(Merge) {}
    world.scheduler.note_commit();
    assert!(!world.finish().contains(&Commit));
    world.pass(50);
    assert_eq!(world.turn(&[]), []);
}

#[test]
fn a_blocked_pool_is_not_busy() {
    let mut world = World::idle();
    world.begin(&[Merge]);
    assert_eq!(world.scheduler.next(false), Some(Merge));
    world.scheduler.set_blocked(true);
    world.scheduler.complete(Merge, Outcome::More);
    assert_eq!(world.scheduler.pause(), IDLE_INTERVAL);
    assert_eq!(world.turn(&[]), [Merge]);
}

#[test]
fn an_abandoned_turn_keeps_what_was_queued_in_it() {
    let mut world = World::idle();
    world.begin(&[Merge, Move, Flatten]);
    assert_eq!(world.scheduler.next(false), Some(Merge));
    world.scheduler.complete(Merge, Outcome::More);
    world.scheduler.abandon_turn();
    assert_eq!(world.scheduler.next(false), None);
    assert_eq!(world.scheduler.pause(), BUSY_INTERVAL);
    assert_eq!(world.turn(&[]), [Merge]);
}

#[test]
fn a_removal_follows_a_move_that_is_done() {
    let mut world = World::idle();
    world.begin(&[Move]);
    assert_eq!(world.scheduler.next(false), Some(Move));
    world.scheduler.add(Removal);
    assert_eq!(world.finish(), [Removal]);
    world.pass(1000);
    world.begin(&[Move]);
    while world.scheduler.next(false) != Some(Move) {}
    world.scheduler.skip(Removal);
    assert_eq!(world.finish(), [Measure]);
}
