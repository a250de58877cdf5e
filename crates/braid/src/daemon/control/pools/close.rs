//! The end of a pool: closed in order with the daemon, or deleted; and its new name.

use super::super::Control;
use super::super::change::DRAINING_MAX;
use super::super::create::check_name;
use super::super::exports::Listens;
use super::{Condition, DELETED, Part, PoolEntry, Reach, Served, WITH_POOL, labels};
use braid_api::{ErrorDetail, Kind, Pool};
use braid_engine::{PoolKey, PoolNext};
use braid_format::Name;
use braid_ring::{Pending, stack_level_of_pool};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

/// Between two looks whether a checkpoint has ended.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(5);
/// Longest that what a pool has to write at its end may take.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Why a pool is taken from the shards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The daemon ends.
    Daemon,
    /// It is about to be deleted.
    Deleted,
    /// It is about to be opened anew.
    Anew,
}

/// A pool that was taken from the shards.
pub(super) struct Closed {
    /// Its members; their disks are devices still.
    pub(super) parts: Vec<Part>,
    /// Whether everything was written where it belongs, and the labels say so. If not, the next to open it does the rest.
    pub(super) written: Result<(), ErrorDetail>,
}

impl Control {
    /// Closes every pool of a tier in order, but for those of which arrays have volumes still. Nothing of them is exported any more. Returns
    /// what could not be done in time, a sentence each: what was acknowledged is still there, and the next start writes it down.
    pub(in super::super) async fn close_pools(self: &Arc<Self>, tier: usize, deadline: Instant) -> Vec<String> {
        let of_tier = |entry: &&PoolEntry| entry.served().is_some_and(|served| stack_level_of_pool(served.key) == tier);
        let pools: Vec<Uuid> = {
            let tables = self.read();
            let is_free = |entry: &&PoolEntry| !tables.held_volumes.values().any(|pool| *pool == entry.uuid);
            tables.pools.values().filter(of_tier).filter(is_free).map(|entry| entry.uuid).collect()
        };
        // All at once: one that is slow is no reason for the others.
        let mut all = JoinSet::new();
        for uuid in pools {
            let name = self.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
            let control = Arc::clone(self);
            all.spawn(async move {
                let closed = async { control.close_pool(uuid, End::Daemon).await?.written };
                match tokio::time::timeout_at(deadline, closed).await {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(format!("pool {name} was not closed in order: {}", error.message)),
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

    /// Takes a pool from the shards; its disks stay devices. Everything is written where it belongs, and the labels say so, unless it is about
    /// to be deleted.
    pub(super) async fn close_pool(self: &Arc<Self>, uuid: Uuid, end: End) -> Result<Closed, ErrorDetail> {
        let keep = end != End::Deleted;
        let pool = self.reach(&uuid.to_string())?;
        let _one_at_a_time = pool.work.lock().await;
        let volumes = {
            let mut tables = self.write();
            match tables.pools.get_mut(&uuid).map(|entry| &mut entry.condition) {
                Some(Condition::Serves(served)) => std::mem::take(&mut served.volumes),
                _ => Default::default(),
            }
        };
        for volume in volumes.into_values() {
            self.drain_volume(volume.device).await;
            self.write().give_device(volume.device);
            let id = volume.id;
            self.call(&pool, move |pool| (PoolNext::Done, pool.stop_serving(id))).await?;
        }
        let mut written = if keep { self.write_down(&pool).await } else { Ok(()) };
        let tending = self.read().pools.get(&uuid).and_then(|entry| Some(entry.served()?.tending.clone()));
        if let Some(tending) = tending {
            tending.end().await;
        }
        if !keep || written.is_err() {
            // Nothing may be under way when it is taken; where a member has failed, nothing is.
            let _ = self.call(&pool, |_| (PoolNext::Commit, ())).await;
        }
        let ended = self.ring.stop_pool(pool.key, pool.home).await.map(|(_, ended)| ended);
        let Some(served) = self.take_served(uuid, end) else {
            return Ok(Closed { parts: Vec::new(), written: Ok(()) });
        };
        // What it has begun to write on an array is written before that may be somebody else's. Disks are drained when they are let go.
        let waits = end != End::Daemon && served.written().any(|part| part.array().is_some());
        self.free_key(served.key, ended, if waits { DRAINING_MAX } else { Duration::ZERO }).await;
        let Served { mut parts, outgoing, stuck, .. } = served;
        if !keep && let Err(left) = labels::erase(&self.ring.devices(), &outgoing).await {
            tracing::warn!(
                "labels of {} members that were removed from pool {} may be there still",
                left.len(),
                pool.name
            );
        }
        self.drop_parts(outgoing).await;
        // What they bear is looked at by the next start.
        self.drop_parts(stuck).await;
        if keep && written.is_ok() {
            let io = self.ring.devices();
            let marked = labels::write(&io, &mut parts, |label| label.clean = true).await;
            written =
                marked.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error));
        }
        if written.is_ok() {
            self.remove_tails(uuid);
            self.note_closed(uuid);
        }
        Ok(Closed { parts, written })
    }

    /// Gives back the key of a pool that has left, when nothing of it is out on any shard. While a disk hangs that takes as long as that, and
    /// nobody waits for it beyond the limit.
    async fn free_key(self: &Arc<Self>, key: PoolKey, ended: Option<Pending<()>>, limit: Duration) {
        let control = Arc::clone(self);
        let mut freed = Box::pin(async move {
            if let Some(ended) = ended {
                // An error says that the shards have ended: then nothing is out either.
                let _ = ended.await;
            }
            control.write().give_pool_key(key);
        });
        if tokio::time::timeout(limit, &mut freed).await.is_err() {
            tokio::spawn(freed);
        }
    }

    /// Commits, and writes the tables: nothing is left in the tail, nor needed of the rings.
    async fn write_down(&self, pool: &Reach) -> Result<(), ErrorDetail> {
        if let Err(error) = self.call(pool, |_| (PoolNext::Commit, ())).await {
            if error.kind != Kind::NoSpace {
                return Err(error);
            }
            // A try that was under way by then has answered it, and may have begun before there was space.
            self.call(pool, |_| (PoolNext::Commit, ())).await?;
        }
        let number = self.call(pool, |pool| (PoolNext::Done, pool.request_checkpoint())).await?;
        self.wait_for_checkpoint(pool, number, CLOSING_MAX).await
    }

    /// Waits for a checkpoint that was asked for.
    ///
    /// # Errors
    /// A member has failed, a try that began after this call found no space below, or it takes too long.
    pub(super) async fn wait_for_checkpoint(
        &self,
        pool: &Reach,
        number: u64,
        limit: Duration,
    ) -> Result<(), ErrorDetail> {
        let until = Instant::now() + limit;
        let mut tried_again = false;
        loop {
            // A try that was under way at the request may have begun before there was space: it is made once more, at once.
            let asked = move |pool: &mut braid_engine::pool::Pool| {
                let waits = pool.waits_for_space();
                if waits && !tried_again {
                    pool.retry_writes();
                }
                (PoolNext::Done, (pool.is_checkpointed(number), pool.has_failed(), waits))
            };
            let (done, failed, waits) = self.call(pool, asked).await?;
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
            tokio::time::sleep(CHECKPOINT_EVERY).await;
        }
    }

    /// The pool is listed no more, or as one that waits; who calls has what belonged to it.
    fn take_served(&self, uuid: Uuid, end: End) -> Option<Served> {
        let mut tables = self.write();
        let entry = tables.pools.remove(&uuid)?;
        let Condition::Serves(served) = entry.condition else { return None };
        if end == End::Anew {
            let idle = super::returns::between(&served);
            tables.pools.insert(uuid, PoolEntry { condition: Condition::Idle(idle), ..entry });
        }
        Some(*served)
    }

    /// Deletes a pool with everything in it: its labels are removed.
    ///
    /// # Errors
    /// It has volumes that are exported, or members are missing, and `force` is not set; a disk's.
    pub async fn delete_pool(self: &Arc<Self>, name: &str, force: bool) -> Result<Pool, ErrorDetail> {
        let claim = self.claim_pool(name, DELETED).await?;
        let uuid = claim.uuid;
        let shown = self.pool(&uuid.to_string()).await?;
        // An export that began before is seen. None begins from here on: whoever begins one sees the claim.
        let listening = self.listening.lock().await;
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
        let serves = self.read().pools.get(&uuid).is_some_and(|entry| entry.served().is_some());
        // Nobody stops them, or gives them to others, before the labels are gone.
        let arrays: Vec<Uuid> = {
            let tables = self.read();
            let bases = tables.pools.get(&uuid).and_then(PoolEntry::served).map(|served| served.parts.clone());
            bases.unwrap_or_default().iter().filter_map(Part::array).collect()
        };
        let mut claims = Vec::new();
        for array in arrays {
            let busy = || {
                let name = self.name_of(&super::Base::Array(array));
                ErrorDetail::new(Kind::InUse, format!("{name}, a member of pool {}, is being changed", shown.name))
                    .remedy("wait until that is done, and try again")
            };
            claims.push(self.claim_found(array, WITH_POOL).ok_or_else(busy)?);
        }
        self.end_devices(&listening, |saved| saved.pool == Some(uuid)).await?;
        self.remove_exports_of_pool(&listening, uuid);
        drop(listening);
        let parts = if serves {
            self.close_pool(uuid, End::Deleted).await?.parts
        } else {
            let (parts, held) = self.parts_to_delete(uuid, &shown, force).await?;
            claims.extend(held);
            parts
        };
        let erased = self.erase_pool(&shown.name, parts).await;
        self.forget_pool(uuid);
        self.write().pools.remove(&uuid);
        self.save_or_warn();
        drop(claims);
        erased?;
        self.events().info("pool_deleted", format!("pool {} was deleted", shown.name), &[("pool", &shown.name)]);
        Ok(shown)
    }

    /// Removes the labels from members that are devices, and lets go of the disks.
    pub(super) async fn erase_pool(self: &Arc<Self>, name: &str, mut parts: Vec<Part>) -> Result<(), ErrorDetail> {
        let io = self.ring.devices();
        // If that is cut off, the next start finishes it.
        labels::doom(&io, &mut parts).await;
        let result = labels::erase(&io, &parts).await.map_err(|left| {
            let named = self.left_labels(&parts, &left);
            let (member, error) = left[0];
            labels::failed(name, "removing the label of", member, error).remedy(format!(
                "{named} may bear labels of it still: braid disk wipe DISK when they can be written; what else there was is free"
            ))
        });
        if let Some(part) = parts.first() {
            self.remove_tails(part.label.uuid);
        }
        self.drop_parts(parts).await;
        result
    }

    /// Members whose labels are still there, in words.
    pub(super) fn left_labels(&self, parts: &[Part], left: &[(u8, braid_engine::IoError)]) -> String {
        let of =
            |number: &u8| parts.iter().find(|part| part.label.member == *number).map(|part| self.name_of(&part.base));
        left.iter().filter_map(|(number, _)| of(number)).collect::<Vec<_>>().join(", ")
    }

    /// What a pool that is gone has in shared memory goes, too.
    pub(super) fn remove_tails(&self, uuid: Uuid) {
        match tokio::task::block_in_place(|| self.tails(uuid)) {
            Ok(tails) => tokio::task::block_in_place(|| tails.remove_all()),
            Err(error) => tracing::warn!("{}", error.message),
        }
    }

    /// Lets go of members: their disks are free when this returns.
    pub(super) async fn drop_parts(self: &Arc<Self>, parts: Vec<Part>) {
        let seats: Vec<_> = parts.iter().map(|part| (part.base.clone(), part.device)).collect();
        self.let_go(&seats).await;
        let disks = parts.into_iter().filter_map(|part| match part.base {
            super::Base::Disk(disk) => Some(disk),
            super::Base::Array(_) => None,
        });
        self.close_disks(disks.collect()).await;
    }

    fn exports_of_pool(&self, pool: Uuid) -> Vec<String> {
        let tables = self.read();
        let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
        of.map(|export| export.saved.name.clone()).collect()
    }

    pub(super) fn remove_exports_of_pool(&self, listening: &Listens<'_>, pool: Uuid) {
        let volumes: std::collections::BTreeSet<Uuid> = {
            let tables = self.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
            of.map(|export| export.saved.array).collect()
        };
        for volume in volumes {
            self.remove_exports_now(listening, volume);
        }
    }

    /// Gives a pool another name. Its exports keep theirs.
    ///
    /// # Errors
    /// The name is taken, the pool does not serve, or a disk's error.
    pub async fn rename_pool(self: &Arc<Self>, name: &str, new_name: &str) -> Result<Pool, ErrorDetail> {
        let claim = self.claim_pool(name, "renamed").await?;
        let pool = self.reach(&claim.uuid.to_string())?;
        check_name(new_name)?;
        if pool.name == new_name {
            return self.pool(&claim.uuid.to_string()).await;
        }
        let _name = self.claim_name(new_name)?;
        let label_name = Name::new(new_name)
            .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("name", new_name))?;
        let _one_at_a_time = pool.work.lock().await;
        // Only now: whoever begins to hold a volume waits for this lock, and calls it by the new name then.
        self.refuse_held_of(pool.uuid, &pool.name, "renamed")?;
        let mut parts = {
            let tables = self.read();
            let served = tables.pools.get(&pool.uuid).and_then(PoolEntry::served);
            served.map(|served| served.parts.clone()).unwrap_or_default()
        };
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| label.name = label_name.clone()).await;
        // Where a disk fails, some labels may say so, and the newest count at the next start: then it is called so.
        let renamed = parts.first().is_some_and(|part| part.label.name == label_name);
        {
            let mut tables = self.write();
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
                if let Condition::Serves(served) = &mut entry.condition {
                    // Also where a disk has failed: the numbers of labels only rise.
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
        self.events().info("pool_renamed", message, &[("pool", new_name), ("old_name", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }
}
