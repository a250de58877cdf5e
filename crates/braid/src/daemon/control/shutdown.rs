//! The end of the daemon: no new work, what is in flight done, labels marked clean, sockets gone.
//!
//! Every wait here has a limit, so that a disk that hangs does not keep the daemon. What is not done by then is named,
//! and left as a death of the daemon would leave it: the next start copes.

use super::Control;
use super::change::end_service;
use super::tables::ArrayEntry;
use braid_api::{ErrorDetail, Kind};
use braid_ring::{STACK_LEVELS_MAX, stack_level_of};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

/// Longest that what is in flight when the end begins may go on: requests of clients, changes, a start.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(10);
/// Longest that the labels of one array may take to be marked clean.
const MARKING_MAX: Duration = Duration::from_secs(5);
/// Longest that disks may take to be closed.
const CLOSING_MAX: Duration = Duration::from_secs(3);
/// What those get at least that come last: as a change made them active while the daemon ended, or as what is above them hung.
const DRAINING_MIN: Duration = Duration::from_secs(1);

/// Between two looks whether nothing is under way.
const AGAIN: Duration = Duration::from_millis(20);

/// A change of arrays or exports that is under way, as long as this lives.
pub struct Change(Arc<Control>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.changes.send_modify(|changes| *changes -= 1);
    }
}

impl Control {
    /// Notes that a change begins, so that the end waits for it.
    pub fn begin_change(self: &Arc<Self>) -> Change {
        self.changes.send_modify(|changes| *changes += 1);
        Change(Arc::clone(self))
    }

    /// Waits until the start is over and no change is under way, and has none begin then.
    ///
    /// # Errors
    /// One goes on and on; others may begin as before.
    pub async fn wait_for_changes(&self, most: Duration) -> Result<(), ErrorDetail> {
        let deadline = Instant::now() + most;
        let mut changes = self.changes.subscribe();
        loop {
            let done = timeout_at(deadline, changes.wait_for(|changes| *changes == 0)).await.is_ok();
            if done && self.start_ms.get().is_some() {
                // One that is let in just now would find itself refused in the middle.
                self.upgrades().set_closed(true);
                if *changes.borrow() == 0 {
                    return Ok(());
                }
                self.upgrades().set_closed(false);
            }
            if Instant::now() >= deadline {
                let what = if self.start_ms.get().is_none() { "the start of the daemon" } else { "a change" };
                let message = format!("{what} has not ended within {} s: nothing has stopped", most.as_secs());
                return Err(ErrorDetail::new(Kind::InUse, message).remedy("try again when that is done"));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Refuses what an end of the daemon would cut off.
    pub fn refuse_while_stopping(&self) -> Result<(), ErrorDetail> {
        self.is_open()
    }

    /// Refuses changes from now on, and ends streams of events.
    pub fn begin_stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Silences all exports, then stops all arrays, all at once; `start` is what the daemon does at its start, if it is
    /// still at it. Returns what could not be done in time, a sentence each.
    pub async fn stop(self: &Arc<Self>, start: JoinHandle<()>) -> Vec<String> {
        let deadline = Instant::now() + IN_FLIGHT_MAX;
        // Whoever looks up the name of a host has this lock for a while; clients are cut off all the same.
        let one_at_a_time = timeout_at(deadline, self.listening.lock()).await;
        let names: Vec<String> = self.read().exports.keys().cloned().collect();
        for name in names {
            self.silence(&name);
        }
        drop(one_at_a_time);
        let (mut left, mut work) = (Vec::new(), JoinSet::new());
        // Above everything else, and one of their replicas and voters may be this node's.
        if timeout_at(deadline, self.end_all_replicated()).await.is_err() {
            left.push(
                "volumes of several nodes have not been let go of: whoever opens them waits some seconds".to_owned(),
            );
        }
        // Before the pools that they stand on. What hangs there keeps its pool open.
        let _ = timeout_at(deadline.max(Instant::now() + DRAINING_MIN), self.close_replicas()).await;
        self.close_all(&mut left, &mut work, deadline).await;
        if timeout_at(deadline, start).await.is_err() {
            left.push("disks that were looked at since the start have not answered".to_owned());
        }
        let mut changes = self.changes.subscribe();
        // Bound outside of the condition: what is looked at is locked meanwhile.
        let done = timeout_at(deadline, changes.wait_for(|changes| *changes == 0)).await.is_ok();
        if !done {
            left.push("a change that was under way is cut off; the next start finishes it or undoes it".to_owned());
        }
        // Those that became active meanwhile.
        self.close_all(&mut left, &mut work, deadline.max(Instant::now() + DRAINING_MIN)).await;
        while let Some(done) = work.join_next().await {
            left.extend(done.unwrap_or_else(|error| Some(format!("an array was not stopped: {error}"))));
        }
        if !self.read().checks.is_empty() || !self.read().damage.is_empty() {
            self.save_or_warn();
        }
        // The next build goes on with them.
        if !self.upgrades().is_closed() {
            left.extend(self.end_files().await);
        }
        left.extend(self.kept_open());
        // What jobs had under way, or clients that have left, may take its time: a slow disk is not one that hangs.
        let until = deadline.max(Instant::now() + DRAINING_MIN);
        while !self.disks_that_hang().is_empty() && Instant::now() < until {
            tokio::time::sleep(AGAIN).await;
        }
        left.extend(self.disks_that_hang().into_values().map(|name| format!("disk {name} has not answered")));
        self.tell_of_clients();
        left
    }

    /// From above, pools first, as they stand on arrays; the arrays at the bottom are only begun with. What has not ended keeps what it
    /// stands on: were that taken away, it would write of its members that they are lost.
    async fn close_all(
        self: &Arc<Self>,
        left: &mut Vec<String>,
        work: &mut JoinSet<Option<String>>,
        deadline: Instant,
    ) {
        for tier in (0..STACK_LEVELS_MAX).rev() {
            // What hung above has taken all of the time: others get some all the same.
            let deadline = deadline.max(Instant::now() + DRAINING_MIN);
            left.extend(self.close_pools(tier, deadline).await);
            self.close_arrays(tier, work, deadline);
            while tier > 0
                && let Some(done) = work.join_next().await
            {
                left.extend(done.unwrap_or_else(|error| Some(format!("an array was not stopped: {error}"))));
            }
        }
    }

    /// Begins to stop every active array of a tier.
    fn close_arrays(self: &Arc<Self>, tier: usize, work: &mut JoinSet<Option<String>>, deadline: Instant) {
        let active = |tables: &super::tables::Tables| {
            let of_tier =
                |entry: &&ArrayEntry| entry.active().is_some_and(|active| stack_level_of(active.device) == tier);
            let is_free = |entry: &&ArrayEntry| tables.served_on(entry.uuid).is_none();
            let active = tables.arrays.values().filter(of_tier).filter(is_free);
            active.map(|entry| entry.uuid).collect::<Vec<Uuid>>()
        };
        for uuid in active(&self.read()) {
            let control = Arc::clone(self);
            work.spawn(async move { control.close_array(uuid, deadline).await });
        }
    }

    /// Stops one array and marks its labels clean. Returns why that could not be done in time, if so.
    async fn close_array(self: &Arc<Self>, uuid: Uuid, deadline: Instant) -> Option<String> {
        let (entry, taken) = self.take_active(uuid)?;
        let not_clean = |why: &str| Some(format!("array {} is not marked clean: {why}", entry.name));
        let drained = end_service(self.ring.clone(), taken.device, taken.handle.clone());
        let Ok(ended) = timeout_at(deadline, drained).await else {
            self.note_leaving(&taken.disks);
            return not_clean(&format!("requests to it have not ended within {} s", IN_FLIGHT_MAX.as_secs()));
        };
        let Some(mut ended) = ended else { return not_clean("its keeper is lost") };
        if timeout(MARKING_MAX, self.mark_clean(&entry.name, &taken.disks, &mut ended)).await.is_err() {
            self.note_leaving(&taken.disks);
            return not_clean(&format!("a disk took longer than {} s for it", MARKING_MAX.as_secs()));
        }
        drop(entry);
        self.close_disks_within(taken.disks, CLOSING_MAX).await;
        None
    }

    /// Pools and arrays that were left alone, as something stands on them that has not ended, a sentence each.
    fn kept_open(&self) -> Vec<String> {
        let tables = self.read();
        let held = |entry: &&super::pools::PoolEntry| {
            entry.served().is_some() && tables.held_volumes.values().any(|pool| *pool == entry.uuid)
        };
        let pool = |entry: &super::pools::PoolEntry| match tables.replica_in(entry.uuid) {
            Some(replica) => {
                format!("pool {} was not closed: replica {} on it has not ended", entry.name, replica.saved.name)
            }
            None => {
                format!("pool {} was not closed: a volume of it is a disk of an array that has not ended", entry.name)
            }
        };
        let array = |entry: &ArrayEntry| {
            entry.active()?;
            let (pool, _) = tables.served_on(entry.uuid)?;
            Some(format!("array {} is not marked clean: pool {} on it was not closed", entry.name, pool.name))
        };
        tables.pools.values().filter(held).map(pool).chain(tables.arrays.values().filter_map(array)).collect()
    }

    /// Disks with I/O that has not ended, by number.
    fn disks_that_hang(&self) -> BTreeMap<u32, String> {
        let leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hang: BTreeMap<u32, String> = leaving.iter().map(|(leaf, name)| (leaf.0, name.clone())).collect();
        drop(leaving);
        for leaf in 0..braid_ring::LEAVES_MAX {
            let id = braid_engine::LeafId(leaf);
            match (self.ring.leaf_stats(id), self.ring.disk(id)) {
                (Some(stats), Some(disk)) if stats.in_flight > 0 => {
                    hang.entry(leaf).or_insert_with(|| disk.spec().to_string());
                }
                // It is open, and idle: it was noted with others of its array.
                (Some(_), _) => {
                    hang.remove(&leaf);
                }
                _ => {}
            }
        }
        hang
    }
}
