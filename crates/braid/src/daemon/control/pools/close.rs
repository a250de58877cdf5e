//! The end of a pool: closed in order with the daemon, or deleted; and its new name.

use super::super::Control;
use super::super::create::check_name;
use super::{Condition, Part, PoolEntry, Reach, Served, labels};
use braid_api::{ErrorDetail, Kind, Pool};
use braid_engine::PoolNext;
use braid_format::Name;
use braid_format::pool::PoolState;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Between two looks whether a checkpoint has ended.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(5);
/// Longest that what a pool has to write at its end may take.
const CLOSING_MAX: Duration = Duration::from_secs(10);

impl Control {
    /// Closes every pool in order, one after the other. Nothing of them is exported any more. Returns what could not be done in time, a
    /// sentence each: what was acknowledged is still there, and the next start writes it down.
    pub(in super::super) async fn close_pools(self: &Arc<Self>, deadline: Instant) -> Vec<String> {
        let pools: Vec<Uuid> =
            self.read().pools.values().filter(|entry| entry.served().is_some()).map(|entry| entry.uuid).collect();
        let mut left = Vec::new();
        for uuid in pools {
            let name = self.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
            match tokio::time::timeout_at(deadline, self.close_pool(uuid, true)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => left.push(format!("pool {name} was not closed in order: {}", error.message)),
                Err(_) => left.push(format!("pool {name} was not closed in time; the next start does the rest")),
            }
        }
        left
    }

    /// Takes a pool from the shards; its disks stay devices. With `keep` everything is written where it belongs, and the labels say so;
    /// without, it is about to be deleted.
    async fn close_pool(self: &Arc<Self>, uuid: Uuid, keep: bool) -> Result<Vec<Part>, ErrorDetail> {
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
            self.unpublish_volume(volume.device).await;
            let id = volume.id;
            self.call(&pool, move |pool| (PoolNext::Done, pool.leave(id))).await?;
        }
        let written = if keep { self.write_down(&pool).await } else { Ok(()) };
        let tending = self.read().pools.get(&uuid).and_then(|entry| Some(entry.served()?.tending.clone()));
        if let Some(tending) = tending {
            tending.end().await;
        }
        if !keep || written.is_err() {
            // Nothing may be under way when it is taken; where a member has failed, nothing is.
            let _ = self.call(&pool, |_| (PoolNext::Commit, ())).await;
        }
        drop(self.ring.leave_pool(pool.key, pool.home).await);
        let Some(served) = self.take_served(uuid) else { return Ok(Vec::new()) };
        self.write().give_pool_key(served.key);
        let Served { mut parts, .. } = served;
        written?;
        if keep {
            let io = self.ring.devices();
            let marked = labels::write(&io, &mut parts, |label| label.clean = true).await;
            marked.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))?;
        }
        match tokio::task::block_in_place(|| self.tails(uuid)) {
            Ok(tails) => tokio::task::block_in_place(|| tails.remove_all()),
            Err(error) => tracing::warn!("{}", error.message),
        }
        Ok(parts)
    }

    /// Commits, and writes the tables: nothing is left in the tail, nor needed of the rings.
    async fn write_down(&self, pool: &Reach) -> Result<(), ErrorDetail> {
        self.call(pool, |_| (PoolNext::Commit, ())).await?;
        let number = self.call(pool, |pool| (PoolNext::Done, pool.request_checkpoint())).await?;
        let until = Instant::now() + CLOSING_MAX;
        loop {
            let asked = move |pool: &mut braid_engine::pool::Pool| {
                (PoolNext::Done, (pool.is_checkpointed(number), pool.has_failed()))
            };
            let (done, failed) = self.call(pool, asked).await?;
            if done {
                return Ok(());
            }
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

    /// The pool is listed no more; who calls has what belonged to it.
    fn take_served(&self, uuid: Uuid) -> Option<Served> {
        let mut tables = self.write();
        match tables.pools.remove(&uuid)?.condition {
            Condition::Serves(served) => Some(served),
            Condition::Idle(_) => None,
        }
    }

    /// Deletes a pool with everything in it: its labels are removed.
    ///
    /// # Errors
    /// It has volumes that are exported, or members are missing, and `force` is not set; a disk's.
    pub async fn delete_pool(self: &Arc<Self>, name: &str, force: bool) -> Result<Pool, ErrorDetail> {
        let claim = self.claim_pool(name, "deleted")?;
        let uuid = claim.uuid;
        let shown = self.pool(&uuid.to_string()).await?;
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
        self.remove_exports_of_pool(uuid).await;
        let parts = if serves {
            self.close_pool(uuid, false).await?
        } else {
            self.parts_to_delete(uuid, &shown, force).await?
        };
        let erased = self.erase_pool(&shown.name, parts).await;
        self.forget_pool(uuid);
        self.write().pools.remove(&uuid);
        self.save_or_warn();
        erased?;
        self.events().info("pool_deleted", format!("pool {} was deleted", shown.name), &[("pool", &shown.name)]);
        Ok(shown)
    }

    /// Removes the labels from members that are devices, and lets go of the disks.
    pub(super) async fn erase_pool(&self, name: &str, mut parts: Vec<Part>) -> Result<(), ErrorDetail> {
        let io = self.ring.devices();
        // If that is cut off, the next start finishes it.
        let result = match labels::write(&io, &mut parts, |label| label.state = PoolState::Deleting).await {
            Ok(()) => labels::erase(&io, &parts).await,
            Err(error) => Err(error),
        };
        self.drop_parts(parts).await;
        result.map_err(|(member, error)| labels::failed(name, "removing the label of", member, error))
    }

    /// Lets go of members: their disks are free when this returns.
    pub(super) async fn drop_parts(&self, parts: Vec<Part>) {
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

    async fn remove_exports_of_pool(&self, pool: Uuid) {
        let volumes: std::collections::BTreeSet<Uuid> = {
            let tables = self.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
            of.map(|export| export.saved.array).collect()
        };
        for volume in volumes {
            self.remove_exports_of(volume).await;
        }
    }

    /// Gives a pool another name. Its exports keep theirs.
    ///
    /// # Errors
    /// The name is taken, the pool does not serve, or a disk's error.
    pub async fn rename_pool(self: &Arc<Self>, name: &str, new_name: &str) -> Result<Pool, ErrorDetail> {
        let claim = self.claim_pool(name, "renamed")?;
        let pool = self.reach(&claim.uuid.to_string())?;
        check_name(new_name)?;
        if pool.name == new_name {
            return self.pool(&claim.uuid.to_string()).await;
        }
        let _name = self.claim_name(new_name)?;
        let label_name = Name::new(new_name)
            .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("name", new_name))?;
        let _one_at_a_time = pool.work.lock().await;
        let mut parts = {
            let tables = self.read();
            let served = tables.pools.get(&pool.uuid).and_then(PoolEntry::served);
            served.map(|served| served.parts.clone()).unwrap_or_default()
        };
        let io = self.ring.devices();
        let written = labels::write(&io, &mut parts, |label| label.name = label_name.clone()).await;
        {
            let mut tables = self.write();
            for saved in tables.pool_disks.values_mut().filter(|saved| saved.pool == pool.uuid && written.is_ok()) {
                new_name.clone_into(&mut saved.pool_name);
            }
            if let Some(entry) = tables.pools.get_mut(&pool.uuid) {
                if written.is_ok() {
                    new_name.clone_into(&mut entry.name);
                    entry.label = parts.first().map(|part| part.label.clone());
                }
                if let Condition::Serves(served) = &mut entry.condition {
                    // Also where a disk has failed: the numbers of labels only rise.
                    served.parts = parts;
                }
            }
        }
        written.map_err(|(member, error)| labels::failed(&pool.name, "writing the label of", member, error))?;
        self.note_new_names(&pool).await?;
        let message = format!("pool {} is now called {new_name}", pool.name);
        self.events().info("pool_renamed", message, &[("pool", new_name), ("old_name", &pool.name)]);
        self.pool(&pool.uuid.to_string()).await
    }
}
