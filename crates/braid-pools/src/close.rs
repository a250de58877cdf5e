//! Closing a pool with the daemon, deleting a pool, and renaming a pool.

use crate::{PoolManager, labels};
use braid_api::{ErrorDetail, Kind, Pool};
use braid_arrays::{DRAINING_MAX, check_name};
use braid_engine::{PoolKey, PoolNext};
use braid_exports::ListeningGuard;
use braid_format::Name;
use braid_inventory::{DELETED, MemberPart, PoolCondition, PoolEntry, PoolHandle, ServedPool, WITH_POOL};
use braid_ring::{Pending, stack_level_of_pool};
use braid_tasks as tasks;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

/// Interval between two checks whether a checkpoint has completed.
const CHECKPOINT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum duration of the writes when a pool is closed.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Why a pool is taken from the shards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The daemon ends.
    Daemon,
    /// The pool is about to be deleted.
    Deleted,
    /// The pool is about to be reopened.
    Reopened,
}

/// A pool that was taken from the shards.
pub(crate) struct Closed {
    /// Its members; their disks are still devices.
    pub(crate) parts: Vec<MemberPart>,
    /// Whether all tables are written and the labels say so. If not, the next start completes it.
    pub(crate) written: Result<(), ErrorDetail>,
}

impl PoolManager {
    /// Closes every pool of a stack level cleanly, except those with volumes that are still open as disks. The caller
    /// has stopped all exports of these pools. Returns a sentence for each pool that could not be closed in time: its
    /// acknowledged writes are kept, and the next start writes them to the tables.
    pub async fn close_pools(self: &Arc<Self>, stack_level: usize, deadline: Instant) -> Vec<String> {
        let on_level =
            |entry: &&PoolEntry| entry.served().is_some_and(|served| stack_level_of_pool(served.key) == stack_level);
        let pools: Vec<Uuid> = {
            let tables = self.inventory.read();
            let is_free = |entry: &&PoolEntry| !tables.held_volumes.values().any(|pool| *pool == entry.uuid);
            tables.pools.values().filter(on_level).filter(is_free).map(|entry| entry.uuid).collect()
        };
        // All at once: a slow pool does not delay the others.
        let mut all = JoinSet::new();
        for uuid in pools {
            let name = self.inventory.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
            let manager = Arc::clone(self);
            tasks::spawn_in(&mut all, async move {
                let closed = async { manager.close_pool(uuid, CloseReason::Daemon).await?.written };
                match tokio::time::timeout_at(deadline, closed).await {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(format!("pool {name} was not closed cleanly: {}", error.message)),
                    Err(_) => Some(format!("pool {name} was not closed in time; the next start does the rest")),
                }
            });
        }
        let mut left = Vec::new();
        while let Some(closed) = all.join_next().await {
            left.extend(closed.unwrap_or_else(|error| Some(format!("a pool was not closed: {error}"))));
        }
        left
    }

    /// Takes a pool from the shards; its members stay devices. Unless the pool is about to be deleted, all tables are
    /// written first, and then the labels say that it was closed cleanly. [`Closed::written`] has the error of these
    /// writes.
    ///
    /// # Errors
    /// The pool does not serve, or its home cannot be called.
    pub(crate) async fn close_pool(self: &Arc<Self>, uuid: Uuid, reason: CloseReason) -> Result<Closed, ErrorDetail> {
        let keep = reason != CloseReason::Deleted;
        let pool = self.serving_pool(&uuid.to_string())?;
        let _one_at_a_time = pool.work.lock().await;
        let volumes = {
            let mut tables = self.inventory.write();
            match tables.pools.get_mut(&uuid).map(|entry| &mut entry.condition) {
                Some(PoolCondition::Serves(served)) => std::mem::take(&mut served.volumes),
                _ => Default::default(),
            }
        };
        for volume in volumes.into_values() {
            self.drain_volume(volume.device).await;
            self.inventory.write().release_device(volume.device);
            let id = volume.id;
            self.call(&pool, move |pool| (PoolNext::Done, pool.stop_serving(id))).await?;
        }
        let mut written = if keep { self.write_down(&pool).await } else { Ok(()) };
        let maintenance =
            self.inventory.read().pools.get(&uuid).and_then(|entry| Some(entry.served()?.maintenance.clone()));
        if let Some(maintenance) = maintenance {
            maintenance.end().await;
        }
        if !keep || written.is_err() {
            // The shards must not give up the pool while a commit is in progress: this waits for one. If a member has
            // failed, none is in progress, and the call returns an error.
            let _ = self.call(&pool, |_| (PoolNext::Commit, ())).await;
        }
        let ended = self.ring.stop_pool(pool.key, pool.home).await.map(|(_, ended)| ended);
        let Some(served) = self.take_served(uuid, reason) else {
            return Ok(Closed { parts: Vec::new(), written: Ok(()) });
        };
        // The pool's writes to an array complete before the array can get another use. Disks are drained when they are
        // released.
        let waits = reason != CloseReason::Daemon && served.written().any(|part| part.array().is_some());
        self.free_key(served.key, ended, if waits { DRAINING_MAX } else { Duration::ZERO }).await;
        let ServedPool { mut parts, outgoing, stuck, .. } = served;
        if !keep && let Err(left) = labels::erase(&self.ring.devices(), &outgoing).await {
            tracing::warn!(
                "labels of {} members that were removed from pool {} may be there still",
                left.len(),
                pool.name
            );
        }
        self.drop_parts(outgoing).await;
        // The next start reads their labels.
        self.drop_parts(stuck).await;
        if keep && written.is_ok() {
            let io = self.ring.devices();
            let marked = labels::write(&io, &mut parts, |label| label.clean = true).await;
            written =
                marked.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error));
        }
        if written.is_ok() {
            self.remove_memory_logs(uuid);
            self.note_closed(uuid);
        }
        Ok(Closed { parts, written })
    }

    /// Frees the key of a pool that has left, once no shard has any of its requests in flight. If a disk hangs, that
    /// lasts as long as the disk hangs, and the caller does not wait for it beyond `limit`.
    async fn free_key(self: &Arc<Self>, key: PoolKey, ended: Option<Pending<()>>, limit: Duration) {
        let manager = Arc::clone(self);
        let mut freed = Box::pin(async move {
            if let Some(ended) = ended {
                // An error says that the shards have ended: then nothing is in flight either.
                let _ = ended.await;
            }
            manager.inventory.write().release_pool_key(key);
        });
        if tokio::time::timeout(limit, &mut freed).await.is_err() {
            tasks::spawn(freed);
        }
    }

    /// Commits, and checkpoints the tables: afterwards the in-memory log is empty, and nothing in the rings is needed.
    async fn write_down(&self, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        if let Err(error) = self.call(pool, |_| (PoolNext::Commit, ())).await {
            if error.kind != Kind::NoSpace {
                return Err(error);
            }
            // The commit that failed may have begun before this request, and before there was space: one more is tried.
            self.call(pool, |_| (PoolNext::Commit, ())).await?;
        }
        let number = self.call(pool, |pool| (PoolNext::Done, pool.request_checkpoint())).await?;
        self.wait_for_checkpoint(pool, number, CLOSING_MAX).await
    }

    /// Waits for a requested checkpoint.
    ///
    /// # Errors
    /// A member has failed, an attempt that began after this call found no space below, or it takes too long.
    pub(crate) async fn wait_for_checkpoint(
        &self,
        pool: &PoolHandle,
        number: u64,
        limit: Duration,
    ) -> Result<(), ErrorDetail> {
        let until = Instant::now() + limit;
        let mut tried_again = false;
        loop {
            // A write that fails for lack of space may have begun before this call, and before there was space: it is
            // retried once, at once.
            let query = move |pool: &mut braid_engine::pool::Pool| {
                let waits = pool.waits_for_space();
                if waits && !tried_again {
                    pool.retry_writes();
                }
                (PoolNext::Done, (pool.is_checkpointed(number), pool.has_failed(), waits))
            };
            let (done, failed, waits) = self.call(pool, query).await?;
            if done {
                return Ok(());
            }
            if waits && tried_again {
                return Err(self.why_not_committed(pool).await);
            }
            tried_again |= waits;
            if failed || Instant::now() >= until {
                return Err(ErrorDetail::new(
                    Kind::DiskError,
                    format!("the tables of pool {} could not be written", pool.name),
                )
                .with("pool", &pool.name));
            }
            tokio::time::sleep(CHECKPOINT_POLL_INTERVAL).await;
        }
    }

    /// Removes the pool from the tables, or lists it as waiting; returns its former contents.
    fn take_served(&self, uuid: Uuid, reason: CloseReason) -> Option<ServedPool> {
        let mut tables = self.inventory.write();
        let entry = tables.pools.remove(&uuid)?;
        let PoolCondition::Serves(served) = entry.condition else { return None };
        if reason == CloseReason::Reopened {
            let idle = braid_inventory::while_reopening(&served);
            tables.pools.insert(uuid, PoolEntry { condition: PoolCondition::Idle(idle), ..entry });
        }
        Some(*served)
    }

    /// Deletes a pool with all of its volumes: its labels are removed.
    ///
    /// # Errors
    /// `force` is not set, and volumes are exported or members are missing; a device fails.
    pub async fn delete_pool(self: &Arc<Self>, name: &str, force: bool) -> Result<Pool, ErrorDetail> {
        let claim = self.claim_pool(name, DELETED).await?;
        let uuid = claim.uuid;
        let shown = self.pool(&uuid.to_string()).await?;
        // An export that began before is in the tables. No export begins after this: it would see the claim.
        let listening = self.exports.listening_lock.lock().await;
        self.refuse_held_of(uuid, &shown.name, "deleted")?;
        if !force {
            self.refuse_last_on_of(&shown.name)?;
        }
        let exports = self.exports_of_pool(uuid);
        if let Some(first) = exports.first().filter(|_| !force) {
            return Err(ErrorDetail::new(
                Kind::InUse,
                format!("volumes of pool {} are exported as {}", shown.name, exports.join(", ")),
            )
            .with("pool", &shown.name)
            .with("export", first)
            .remedy(format!("braid export remove {first} first, or add --force (they are removed)")));
        }
        let serves = self.inventory.read().pools.get(&uuid).is_some_and(|entry| entry.served().is_some());
        // No command stops these arrays, or gives them another use, before the labels are gone.
        let arrays: Vec<Uuid> = {
            let tables = self.inventory.read();
            let bases = tables.pools.get(&uuid).and_then(PoolEntry::served).map(|served| served.parts.clone());
            bases.unwrap_or_default().iter().filter_map(MemberPart::array).collect()
        };
        let mut claims = Vec::new();
        for array in arrays {
            let busy = || {
                let name = self.job_name(&braid_inventory::MemberBacking::Array(array));
                ErrorDetail::new(Kind::InUse, format!("{name}, a member of pool {}, is being changed", shown.name))
                    .remedy("wait until that is done, and try again")
            };
            claims.push(self.inventory.claim_uuid(array, WITH_POOL).ok_or_else(busy)?);
        }
        self.exports.end_devices(&listening, |saved| saved.pool == Some(uuid)).await?;
        self.remove_exports_of_pool(&listening, uuid);
        drop(listening);
        let parts = if serves {
            self.close_pool(uuid, CloseReason::Deleted).await?.parts
        } else {
            let (parts, held) = self.parts_to_delete(uuid, &shown, force).await?;
            claims.extend(held);
            parts
        };
        let erased = self.erase_pool(&shown.name, parts).await;
        self.forget_pool(uuid);
        self.inventory.write().pools.remove(&uuid);
        self.inventory.save_or_warn();
        drop(claims);
        erased?;
        self.inventory.events().info(
            "pool_deleted",
            format!("pool {} was deleted", shown.name),
            &[("pool", &shown.name)],
        );
        Ok(shown)
    }

    /// Removes the labels from members that are devices, and releases the disks.
    pub(crate) async fn erase_pool(
        self: &Arc<Self>,
        name: &str,
        mut parts: Vec<MemberPart>,
    ) -> Result<(), ErrorDetail> {
        let io = self.ring.devices();
        // If the removal of the labels is interrupted, this mark makes the next start complete it.
        labels::mark_deleting(&io, &mut parts).await;
        let result = labels::erase(&io, &parts).await.map_err(|left| {
            let named = self.left_labels(&parts, &left);
            let (member, error) = left[0];
            labels::failed(name, "removing the label of", member, error).remedy(format!(
                "{named} may bear labels of it still: braid disk wipe DISK when they can be written; what else there was is free"
            ))
        });
        if let Some(part) = parts.first() {
            self.remove_memory_logs(part.label.uuid);
        }
        self.drop_parts(parts).await;
        result
    }

    /// Returns the names of members whose labels may still exist.
    pub(crate) fn left_labels(&self, parts: &[MemberPart], left: &[(u8, braid_engine::IoError)]) -> String {
        let of = |number: &u8| {
            parts.iter().find(|part| part.label.member == *number).map(|part| self.job_name(&part.backing))
        };
        left.iter().filter_map(|(number, _)| of(number)).collect::<Vec<_>>().join(", ")
    }

    /// Removes what a closed or deleted pool has in shared memory.
    pub(crate) fn remove_memory_logs(&self, uuid: Uuid) {
        match tokio::task::block_in_place(|| self.memory_logs(uuid)) {
            Ok(memory_logs) => tokio::task::block_in_place(|| memory_logs.remove_all()),
            Err(error) => tracing::warn!("{}", error.message),
        }
    }

    /// Releases members: their disks are free when this returns.
    pub(crate) async fn drop_parts(self: &Arc<Self>, parts: Vec<MemberPart>) {
        let devices: Vec<_> = parts.iter().map(|part| (part.backing.clone(), part.device)).collect();
        self.release_devices(&devices).await;
        let disks = parts.into_iter().filter_map(|part| match part.backing {
            braid_inventory::MemberBacking::Disk(disk) => Some(disk),
            braid_inventory::MemberBacking::Array(_) => None,
        });
        self.arrays.close_disks(disks.collect()).await;
    }

    fn exports_of_pool(&self, pool: Uuid) -> Vec<String> {
        let tables = self.inventory.read();
        let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
        of.map(|export| export.saved.name.clone()).collect()
    }

    pub(crate) fn remove_exports_of_pool(&self, listening: &ListeningGuard<'_>, pool: Uuid) {
        let volumes: std::collections::BTreeSet<Uuid> = {
            let tables = self.inventory.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
            of.map(|export| export.saved.array).collect()
        };
        for volume in volumes {
            self.exports.remove_exports_now(listening, volume);
        }
    }

    /// Renames a pool. Its exports keep their names.
    ///
    /// # Errors
    /// The name is taken, the pool does not serve, or a disk's error.
    pub async fn rename_pool(self: &Arc<Self>, name: &str, new_name: &str) -> Result<Pool, ErrorDetail> {
        let claim = self.claim_pool(name, "renamed").await?;
        let pool = self.serving_pool(&claim.uuid.to_string())?;
        check_name(new_name)?;
        if pool.name == new_name {
            return self.pool(&claim.uuid.to_string()).await;
        }
        let _name = self.arrays.claim_name(new_name)?;
        let label_name = Name::new(new_name)
            .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("name", new_name))?;
        let _one_at_a_time = pool.work.lock().await;
        // Checked only now: a command that takes a volume as a disk waits for this lock, and then uses the new name.
        self.refuse_held_of(pool.uuid, &pool.name, "renamed")?;
        let mut parts = {
            let tables = self.inventory.read();
            let served = tables.pools.get(&pool.uuid).and_then(PoolEntry::served);
            served.map(|served| served.parts.clone()).unwrap_or_default()
        };
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| label.name = label_name.clone()).await;
        // If a disk fails, some labels may have the new name, and the newest label determines the name at the next
        // start: then the pool has the new name.
        let renamed = parts.first().is_some_and(|part| part.label.name == label_name);
        {
            let mut tables = self.inventory.write();
            for saved in tables.pool_disks.values_mut().filter(|saved| saved.pool == pool.uuid && renamed) {
                new_name.clone_into(&mut saved.pool_name);
            }
            for saved in tables.pool_arrays.iter_mut().filter(|saved| saved.pool == pool.uuid && renamed) {
                new_name.clone_into(&mut saved.pool_name);
            }
            if renamed {
                let volume = |name: &str| name.strip_prefix(&pool.name)?.strip_prefix('/').map(str::to_owned);
                tables.rename_volumes(|name| Some(format!("{new_name}/{}", volume(name)?)));
            }
            if let Some(entry) = tables.pools.get_mut(&pool.uuid) {
                if renamed {
                    new_name.clone_into(&mut entry.name);
                    entry.label = parts.first().map(|part| part.label.clone());
                }
                if let PoolCondition::Serves(served) = &mut entry.condition {
                    // After an error, too: some labels may have the new sequence numbers, which must not be used for
                    // another content.
                    served.parts = parts;
                }
            }
        }
        if renamed {
            self.note_new_names(&pool).await?;
        }
        written.map_err(|(member, error)| {
            let error = labels::failed(&pool.name, "writing the label of", member, error);
            let now = if renamed { new_name } else { &pool.name };
            let remedy = format!("it is called {now} now; {}", error.remedy);
            error.remedy(remedy)
        })?;
        let message = format!("pool {} is now called {new_name}", pool.name);
        self.inventory.events().info("pool_renamed", message, &[("pool", new_name), ("old_name", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }
}
