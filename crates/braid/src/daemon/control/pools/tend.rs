//! The task of each pool: what was deleted is folded, what is old is committed, what goes wrong is told.

use super::super::Control;
use super::Condition;
use super::compact::PutTogether;
use super::flatten::flatten_some;
use super::measure::{Rest, Vitals};
use super::policies::Looked;
use braid_api::JobState;
use braid_engine::PoolNext;
use braid_engine::pool::{FlattenStep, MergeStep, MoveStep, Pool};
use braid_ring::SharedLog;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Between two looks at a pool.
const EVERY: Duration = Duration::from_millis(50);
/// The same while there is something to do.
const BUSY: Duration = Duration::from_millis(1);
/// What is not committed for so long is, then.
const UNCOMMITTED_MAX: Duration = Duration::from_secs(1);
/// Between two looks whether the tail is still there, and the pool well.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Records that are looked at in one step of folding: requests of clients wait for it, some 100 µs where all of them change.
const FOLD_RECORDS: u32 = 500;
/// The same of moving.
const MOVE_RECORDS: u32 = 2000;
/// The same of flattening.
const FLATTEN_RECORDS: u32 = 2000;

/// The task, as seen by the control plane.
#[derive(Clone, Default)]
pub struct Tending {
    /// Something was deleted: there may be something to fold.
    fold: Arc<AtomicBool>,
    /// Something stands where it should not.
    moves: Arc<AtomicBool>,
    /// Something is to be put together.
    compacts: Arc<AtomicBool>,
    /// A volume is to become independent.
    flattens: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    wake: Arc<Notify>,
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
    /// The tail is not where the next start would look for it.
    tail_lost: Arc<AtomicBool>,
    /// So many want nothing to be folded for a while.
    holds: Arc<AtomicU32>,
}

/// As long as this lives nothing is folded, but for a step that is under way.
pub struct Unfolded(Arc<AtomicU32>);

impl Drop for Unfolded {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tending {
    /// Something was deleted.
    pub fn fold(&self) {
        self.fold.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Something stands where it should not.
    pub fn moves(&self) {
        self.moves.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Something is to be put together.
    pub fn compacts(&self) {
        self.compacts.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// A volume is to become independent.
    pub fn flattens(&self) {
        self.flattens.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Lets nothing be folded.
    pub fn hold(&self) -> Unfolded {
        self.holds.fetch_add(1, Ordering::AcqRel);
        Unfolded(Arc::clone(&self.holds))
    }

    /// Whether what is acknowledged would be lost with the process.
    pub fn has_lost_tail(&self) -> bool {
        self.tail_lost.load(Ordering::Relaxed)
    }

    /// Ends the task, and waits for that: it holds the tail.
    pub async fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.wake.notify_one();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // One that panicked has ended as well.
            let _ = task.await;
        }
    }
}

impl Control {
    /// Begins to look after a pool that serves.
    pub(super) fn tend(self: &Arc<Self>, uuid: Uuid, tail: Option<Arc<SharedLog>>) {
        let Some(tending) = self.read().pools.get(&uuid).and_then(|e| Some(e.served()?.tending.clone())) else {
            return;
        };
        // A deletion before the last end may not have been folded.
        tending.fold.store(true, Ordering::Release);
        tending.moves.store(true, Ordering::Release);
        tending.flattens.store(true, Ordering::Release);
        let control = Arc::clone(self);
        let (inner, place) = (tending.clone(), Arc::clone(&tending.task));
        let task = tokio::spawn(async move { control.tend_until(uuid, inner, tail).await });
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    async fn tend_until(self: Arc<Self>, uuid: Uuid, tending: Tending, tail: Option<Arc<SharedLog>>) {
        let (mut hot_since, mut looked) = (None::<Instant>, Instant::now());
        let shared = match self.reach(&uuid.to_string()) {
            Ok(pool) => pool.shared,
            Err(_) => return,
        };
        let mut busy = false;
        let (mut told, mut moved_blocks) = (None, 0);
        let mut folded_some = false;
        // Something was to move since the jobs were looked at last: there may be others.
        let mut moves_since_look = false;
        let mut made_before = None::<PutTogether>;
        let at_leisure = Arc::new(tokio::sync::Mutex::new((Looked::default(), Rest::default())));
        while !tending.ending.load(Ordering::Acquire) {
            let wait = if busy { BUSY } else { EVERY };
            let _ = tokio::time::timeout(wait, tending.wake.notified()).await;
            let look = looked.elapsed() >= LOOK_EVERY;
            if look {
                looked = Instant::now();
                // In a task of its own: a snapshot may wait for a disk, and the pool is looked after meanwhile.
                if let Ok(mut leisure) = Arc::clone(&at_leisure).try_lock_owned() {
                    let control = Arc::clone(&self);
                    tokio::spawn(async move {
                        let (looked, rest) = &mut *leisure;
                        control.run_policies(uuid, looked).await;
                        control.measure_volumes(uuid, rest).await;
                    });
                }
                let lost = tail.as_ref().is_some_and(|tail| !tail.is_intact());
                if lost && !tending.tail_lost.swap(lost, Ordering::Relaxed) {
                    self.tell_lost_tail(uuid);
                }
            }
            hot_since = if shared.is_hot() { hot_since.or(Some(Instant::now())) } else { None };
            let old = hot_since.is_some_and(|since| since.elapsed() >= UNCOMMITTED_MAX)
                || hot_since.is_some() && tending.has_lost_tail();
            // Whatever is deleted from here on sets it again.
            let held = tending.holds.load(Ordering::Acquire) != 0;
            let fold = !held && tending.fold.swap(false, Ordering::AcqRel);
            // Who compares two finds that a block is new which was copied.
            let mut flattens = !held && tending.flattens.swap(false, Ordering::AcqRel);
            let mut moves = tending.moves.swap(false, Ordering::AcqRel);
            let mut compacts = tending.compacts.swap(false, Ordering::AcqRel);
            moves_since_look |= moves || flattens;
            busy = false;
            let jobs = self.read().pools.get(&uuid).and_then(|entry| Some(Arc::clone(&entry.served()?.jobs)));
            if let Some(jobs) = &jobs {
                // Looked at again when the time has come, or somebody lets it go on.
                if (moves || compacts || flattens) && !jobs.may_move(moved_blocks) {
                    tending.moves.fetch_or(moves, Ordering::AcqRel);
                    tending.compacts.fetch_or(compacts, Ordering::AcqRel);
                    tending.flattens.fetch_or(flattens, Ordering::AcqRel);
                    (moves, compacts, flattens) = (false, false, false);
                }
                if compacts && jobs.compaction_waits() {
                    // What comes after it may be let go on in another way than by a command: with the volume that waits.
                    tending.compacts.store(true, Ordering::Release);
                    compacts = false;
                }
            }
            // A flush may fail although nothing was to be committed.
            if !old && !fold && !moves && !compacts && !flattens && !look {
                continue;
            }
            let Ok(pool) = self.reach(&uuid.to_string()) else { return };
            let step = move |pool: &mut Pool| {
                let folded = if fold { pool.merge_step(FOLD_RECORDS) } else { MergeStep::Nothing };
                // One that lacks space is tried again once a second, not as fast as something wants room.
                if old || folded == MergeStep::LogFull && !pool.is_starving() {
                    pool.request_commit();
                }
                if look {
                    pool.retry_writes();
                }
                let moving = if moves { pool.move_step(MOVE_RECORDS) } else { MoveStep::Done };
                let was_asked = pool.is_compacting();
                let compacting =
                    compacts.then(|| (was_asked, pool.compact_step(MOVE_RECORDS), pool.extents_consolidated()));
                let flattening = flattens.then(|| flatten_some(pool, FLATTEN_RECORDS));
                let vitals = look.then(|| Vitals::of(pool));
                let ends = (pool.has_failed(), pool.is_starving());
                (PoolNext::Done, (folded, moving, compacting, flattening, ends, vitals, copied_so_far(pool)))
            };
            let called = self.call(&pool, step).await;
            if fold && !matches!(called, Ok((MergeStep::Nothing, ..))) {
                tending.fold.store(true, Ordering::Release);
                (busy, folded_some) = (true, true);
            } else if fold && std::mem::take(&mut folded_some) {
                // Who was given something may have it where it should not stand.
                tending.moves.store(true, Ordering::Release);
            }
            let Ok((_, moving, compacting, flattening, (failed, starves), vitals, moved)) = called else { continue };
            moved_blocks = moved;
            if let Some(flattening) = flattening {
                if flattening.0 != FlattenStep::Nothing {
                    tending.flattens.store(true, Ordering::Release);
                    busy |= flattening.0 != FlattenStep::Later;
                }
                if let FlattenStep::Done(_) = flattening.0 {
                    // A deleted parent may have one child less, and give that what it has; also where that is not to have it.
                    tending.fold.store(true, Ordering::Release);
                }
                self.tell_flattened(uuid, flattening);
            }
            if let Some(vitals) = vitals {
                self.note_vitals(uuid, vitals);
                self.look_at_jobs(&pool, std::mem::take(&mut moves_since_look), true).await;
            }
            // What stands nowhere it should not may leave a member with nothing.
            if moving == MoveStep::Done && (moves || look) && self.go_on_removing(uuid).await {
                tending.moves.store(true, Ordering::Release);
            }
            match moving {
                MoveStep::Done => {}
                MoveStep::Some => {
                    tending.moves.store(true, Ordering::Release);
                    busy = true;
                }
                // Space may come back.
                MoveStep::Full | MoveStep::Paused => tending.moves.store(true, Ordering::Release),
                MoveStep::Unreadable => {}
            }
            if moves && told != Some(moving) {
                told = Some(moving);
                self.tell_moving(uuid, moving);
            }
            if let Some((was_asked, step, made)) = compacting {
                let before = *made_before.get_or_insert(made);
                if failed {
                    // That it failed is told below; nothing was put together to the end.
                    made_before = None;
                } else if step == MoveStep::Some {
                    tending.compacts.store(true, Ordering::Release);
                    busy = true;
                } else {
                    made_before = None;
                    let made = was_asked.then(|| (made.0 - before.0, made.1 - before.1));
                    self.tell_compacted(uuid, made, step == MoveStep::Full);
                }
            }
            if old {
                hot_since = None;
            }
            // Nothing moves any more, or for now.
            busy &= !failed && !starves;
            if failed {
                self.on_pool_failed(uuid);
            }
        }
    }

    /// A member has failed, and nothing is made durable any more.
    fn on_pool_failed(&self, uuid: Uuid) {
        let name = {
            let tables = self.read();
            let Some(entry) = tables.pools.get(&uuid) else { return };
            let Condition::Serves(served) = &entry.condition else { return };
            if served.failed.swap(true, Ordering::Relaxed) {
                return;
            }
            entry.name.clone()
        };
        if let Some(served) = self.read().pools.get(&uuid).and_then(|entry| entry.served()) {
            served.jobs.end(JobState::Failed, |_| true);
        }
        let message = format!(
            "a member of pool {name} has failed a write or a flush: nothing more can be made durable in the pool, and what its clients flush gets errors"
        );
        self.events().error("pool_failed", message, &[("pool", &name)]);
    }

    /// What moves cannot go on, or has ended.
    fn tell_moving(&self, uuid: Uuid, moving: MoveStep) {
        let name = self.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let message = match moving {
            MoveStep::Done | MoveStep::Some | MoveStep::Paused => return,
            MoveStep::Full => format!(
                "what is to move to other members of pool {name} waits for space there: make some free, or place volumes otherwise"
            ),
            MoveStep::Unreadable => format!(
                "some of what is to move to other members of pool {name} could not be copied, and stays where it is: look at its disks and at the kernel's log (dmesg)"
            ),
        };
        self.events().error("pool_moves_stopped", message, &[("pool", &name)]);
    }

    fn tell_lost_tail(&self, uuid: Uuid) {
        let name = self.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let message = format!(
            "the tail of pool {name} was removed from shared memory: until the daemon is restarted in order, what was acknowledged and not flushed for a moment is lost if it is killed"
        );
        self.events().error("pool_tail_lost", message, &[("pool", &name)]);
    }
}

/// Blocks that were copied to other places, for whatever reason.
fn copied_so_far(pool: &Pool) -> u64 {
    pool.blocks_moved() + pool.blocks_copied()
}
