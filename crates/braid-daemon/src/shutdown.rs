//! Stops the daemon: refuses new changes, drains requests in flight, marks labels clean, and removes sockets.
//!
//! Every wait has a limit, so that a disk that hangs does not hold up the daemon. Whatever is not done by then is
//! reported, and left as a crash of the daemon would leave it: the next start recovers from that.

use crate::Daemon;
use braid_api::{ErrorDetail, Kind};
use braid_arrays::end_service;
use braid_engine::LeafId;
use braid_inventory::{ArrayEntry, PoolEntry, Tables};
use braid_ring::{LEAVES_MAX, STACK_LEVELS_MAX, stack_level_of};
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

/// Maximum time for requests, changes and a start that are in progress when the stop begins.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(10);

/// Maximum time to mark the labels of one array clean.
const MARKING_MAX: Duration = Duration::from_secs(5);

/// Maximum time to close disks.
const CLOSING_MAX: Duration = Duration::from_secs(3);

/// Minimum time for arrays and pools that are stopped last: because a change activated them during the stop, or because
/// a device above them hung.
const DRAINING_MIN: Duration = Duration::from_secs(1);

/// Interval between two checks that nothing is in progress.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A change of arrays, pools or exports, in progress until this is dropped.
pub struct Change(Arc<Daemon>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.inventory.changes().send_modify(|changes| *changes -= 1);
    }
}

impl Daemon {
    /// Registers a change, so that the stop waits for it.
    pub fn begin_change(self: &Arc<Self>) -> Change {
        self.inventory.changes().send_modify(|changes| *changes += 1);
        Change(Arc::clone(self))
    }

    /// Waits until the start is over and no change is in progress, and then refuses further ones.
    ///
    /// # Errors
    /// A change or the start does not end in time; changes are accepted as before.
    pub async fn wait_for_changes(&self, most: Duration) -> Result<(), ErrorDetail> {
        let deadline = Instant::now() + most;
        let mut changes = self.inventory.changes().subscribe();
        loop {
            let done = timeout_at(deadline, changes.wait_for(|changes| *changes == 0)).await.is_ok();
            if done && self.inventory.start_ms().get().is_some() {
                // A change that is let in just now would be refused half-way.
                self.upgrades.set_closed(true);
                if *changes.borrow() == 0 {
                    return Ok(());
                }
                self.upgrades.set_closed(false);
            }
            if Instant::now() >= deadline {
                let what =
                    if self.inventory.start_ms().get().is_none() { "the start of the daemon" } else { "a change" };
                let message = format!("{what} has not ended within {} s: nothing has stopped", most.as_secs());
                return Err(ErrorDetail::new(Kind::InUse, message).remedy("try again when that is done"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Stops all exports, then all arrays and pools concurrently on each stack level; `start` is the task of the
    /// daemon's start, which may still run. Returns one sentence for each thing that could not be done in time.
    pub async fn stop(self: &Arc<Self>, start: JoinHandle<()>) -> Vec<String> {
        let deadline = Instant::now() + IN_FLIGHT_MAX;
        // A task that resolves a host name holds this lock for a while; clients are disconnected all the same.
        let one_at_a_time = timeout_at(deadline, self.exports.listening_lock.lock()).await;
        let names: Vec<String> = self.inventory.read().exports.keys().cloned().collect();
        for name in names {
            self.exports.stop_export(&name);
        }
        drop(one_at_a_time);
        let (mut unfinished, mut work) = (Vec::new(), JoinSet::new());
        // First, because they are above everything else; their replicas and voters may be on this node.
        if timeout_at(deadline, self.replication.end_all_replicated()).await.is_err() {
            unfinished
                .push("replicated volumes were not released: a node that attaches them waits some seconds".to_owned());
        }
        // Before the pools that they stand on. A replica that hangs keeps its pool open.
        let _ = timeout_at(deadline.max(Instant::now() + DRAINING_MIN), self.replication.close_replicas()).await;
        self.close_all(&mut unfinished, &mut work, deadline).await;
        if timeout_at(deadline, start).await.is_err() {
            unfinished.push("disks that were looked at since the start have not answered".to_owned());
        }
        let mut changes = self.inventory.changes().subscribe();
        // The guard of the watch channel must not outlive this statement.
        let done = timeout_at(deadline, changes.wait_for(|changes| *changes == 0)).await.is_ok();
        if !done {
            unfinished
                .push("a change that was under way is cut off; the next start finishes it or undoes it".to_owned());
        }
        // Arrays that became active meanwhile.
        self.close_all(&mut unfinished, &mut work, deadline.max(Instant::now() + DRAINING_MIN)).await;
        while let Some(done) = work.join_next().await {
            unfinished.extend(done.unwrap_or_else(|error| Some(format!("an array was not stopped: {error}"))));
        }
        if !self.inventory.read().checks.is_empty() || !self.inventory.read().damage.is_empty() {
            self.inventory.save_or_warn();
        }
        // The next build continues with the mounted files.
        if !self.upgrades.is_closed() {
            unfinished.extend(self.exports.end_files().await);
        }
        unfinished.extend(self.still_open());
        // I/O of jobs and of disconnected clients may take a while: a slow disk does not hang.
        let until = deadline.max(Instant::now() + DRAINING_MIN);
        while !self.disks_that_hang().is_empty() && Instant::now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        unfinished.extend(self.disks_that_hang().into_values().map(|name| format!("disk {name} has not answered")));
        self.exports.report_client_events();
        unfinished
    }

    /// Stops pools and arrays from the top of the stack down, on each level pools before arrays; the arrays at the
    /// bottom are only started to stop. An object that has not ended keeps its members: if they were closed, it would
    /// record them as failed.
    async fn close_all(
        self: &Arc<Self>,
        unfinished: &mut Vec<String>,
        work: &mut JoinSet<Option<String>>,
        deadline: Instant,
    ) {
        for level in (0..STACK_LEVELS_MAX).rev() {
            // A level above may have used up all of the time: the others get some all the same.
            let deadline = deadline.max(Instant::now() + DRAINING_MIN);
            unfinished.extend(self.pools.close_pools(level, deadline).await);
            self.close_arrays(level, work, deadline);
            while level > 0
                && let Some(done) = work.join_next().await
            {
                unfinished.extend(done.unwrap_or_else(|error| Some(format!("an array was not stopped: {error}"))));
            }
        }
    }

    /// Begins to stop every active array of a stack level.
    fn close_arrays(self: &Arc<Self>, level: usize, work: &mut JoinSet<Option<String>>, deadline: Instant) {
        let active = |tables: &Tables| {
            let on_level =
                |entry: &&ArrayEntry| entry.active().is_some_and(|active| stack_level_of(active.device) == level);
            let is_free = |entry: &&ArrayEntry| tables.serving_pool_on(entry.uuid).is_none();
            let active = tables.arrays.values().filter(on_level).filter(is_free);
            active.map(|entry| entry.uuid).collect::<Vec<Uuid>>()
        };
        for uuid in active(&self.inventory.read()) {
            let daemon = Arc::clone(self);
            tasks::spawn_in(work, async move { daemon.close_array(uuid, deadline).await });
        }
    }

    /// Stops one array and marks its labels clean. Returns why that could not be done in time, if so.
    async fn close_array(self: &Arc<Self>, uuid: Uuid, deadline: Instant) -> Option<String> {
        let (entry, taken) = self.arrays.take_active(uuid)?;
        let not_clean = |why: &str| Some(format!("array {} is not marked clean: {why}", entry.name));
        let drained = end_service(self.ring.clone(), taken.device, taken.handle.clone());
        let Ok(ended) = timeout_at(deadline, drained).await else {
            self.arrays.record_closing_disks(&taken.disks);
            return not_clean(&format!("requests to it have not ended within {} s", IN_FLIGHT_MAX.as_secs()));
        };
        let Some(mut ended) = ended else { return not_clean("its reconciler has failed") };
        if timeout(MARKING_MAX, self.arrays.mark_clean(&entry.name, &taken.disks, &mut ended)).await.is_err() {
            self.arrays.record_closing_disks(&taken.disks);
            return not_clean(&format!("a disk took longer than {} s for it", MARKING_MAX.as_secs()));
        }
        drop(entry);
        self.arrays.close_disks_within(taken.disks, CLOSING_MAX).await;
        None
    }

    /// Returns one sentence for each pool and array that stays open because an object above it has not ended.
    fn still_open(&self) -> Vec<String> {
        let tables = self.inventory.read();
        let held = |entry: &&PoolEntry| {
            entry.served().is_some() && tables.held_volumes.values().any(|pool| *pool == entry.uuid)
        };
        let pool = |entry: &PoolEntry| match tables.replica_in(entry.uuid) {
            Some(replica) => {
                format!("pool {} was not closed: replica {} on it has not ended", entry.name, replica.saved.name)
            }
            None => {
                format!("pool {} was not closed: a volume of it is a disk of an array that has not ended", entry.name)
            }
        };
        let array = |entry: &ArrayEntry| {
            entry.active()?;
            let (pool, _) = tables.serving_pool_on(entry.uuid)?;
            Some(format!("array {} is not marked clean: pool {} on it was not closed", entry.name, pool.name))
        };
        tables.pools.values().filter(held).map(pool).chain(tables.arrays.values().filter_map(array)).collect()
    }

    /// Returns the disks with I/O in flight, by leaf number.
    fn disks_that_hang(&self) -> BTreeMap<u32, String> {
        let leaving = self.arrays.closing_disks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hang: BTreeMap<u32, String> = leaving.iter().map(|(leaf, name)| (leaf.0, name.clone())).collect();
        drop(leaving);
        for leaf in 0..LEAVES_MAX {
            let id = LeafId(leaf);
            match (self.ring.leaf_stats(id), self.ring.disk(id)) {
                (Some(stats), Some(disk)) if stats.in_flight > 0 => {
                    hang.entry(leaf).or_insert_with(|| disk.spec().to_string());
                }
                // The disk is open and idle: it was recorded with others of its array.
                (Some(_), _) => {
                    hang.remove(&leaf);
                }
                _ => {}
            }
        }
        hang
    }
}
