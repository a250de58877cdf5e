//! Volumes: created, listed, renamed, resized, cloned from snapshots, deleted.

use crate::PoolManager;
use crate::errors::{VolumeError, has_snapshots, invalid_name, not_found, reply_when_durable};
use crate::limits::with_limits;
use crate::listing::PoolListing;
use crate::locate::Located;
use crate::names::{checked, find, refuse_replica_metadata_name};
use crate::sizes::{check_block, check_size};
use crate::unix_time::unix_s;
use braid_api::limits::VOLUMES_MAX;
use braid_api::names::VolumeName;
use braid_api::{CloneSnapshot, CreateVolume, ErrorDetail, Kind, ResizeVolume, Volume, VolumeList};
use braid_engine::pool::{AdminError, BLOCK_BYTES, Pool, PoolTables};
use braid_format::pool::{Owner, OwnerKind};
use braid_inventory::{Maintenance, PoolHandle, random_uuid};
use std::sync::Arc;
use uuid::Uuid;

impl PoolManager {
    /// Creates a volume. It takes no space until it is written, unless it is thick.
    ///
    /// # Errors
    /// The name is taken or not valid; a limit.
    pub async fn create_volume(&self, ask: CreateVolume) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let (pool, name) = new_volume(&ask.name)?;
        check_size(&ask.name, ask.size_bytes)?;
        let in_sectors = check_block(&ask.name, ask.block_bytes)?;
        let pool = self.serving_pool(pool)?;
        let _one_at_a_time = pool.work.lock().await;
        let (policy, on) = self.resolve_placement(&pool, &ask.place).await?;
        refuse_replica_metadata_name(name)?;
        let owner = Owner {
            allocation: policy,
            on,
            thick: ask.thick,
            sectors_of_512: in_sectors,
            ..owner(name, ask.size_bytes)?
        };
        let owner = with_limits(owner, ask.iops_max, ask.bandwidth_bytes_max);
        let uuid = owner.uuid;
        let made = self.call(&pool, move |pool| {
            let result = check_volume_count(pool)
                .and_then(|()| pool.create_volume(None, owner.clone()).map_err(VolumeError::Admin));
            reply_when_durable(result.map(drop))
        });
        made.await?.map_err(|error| error.into_detail(&pool, &ask.name))?;
        let message = format!("volume {} was created", ask.name);
        self.inventory.events().info("volume_created", message, &[("volume", &ask.name)]);
        self.volume_of(&pool, uuid).await
    }

    /// Returns every volume, or those of one pool.
    ///
    /// # Errors
    /// There is no such pool, or it does not serve.
    pub async fn volumes(&self, pool: Option<&str>) -> Result<VolumeList, ErrorDetail> {
        let several = pool.is_none();
        let pools = match pool {
            Some(name) => vec![self.serving_pool(name)?],
            None => self.reach_all(),
        };
        let mut volumes = Vec::new();
        for pool in pools {
            // A pool that was deleted at this moment has none.
            let listed = match self.list_counted(&pool).await {
                Err(error) if error.kind == Kind::Inactive && several => continue,
                listed => listed?,
            };
            volumes.extend(self.show_volumes(&pool, &listed));
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        let replicated = if several { self.provider().replicated_volumes().volumes } else { Vec::new() };
        let incomplete = if several { self.inventory.why_volumes_incomplete() } else { Vec::new() };
        Ok(VolumeList { volumes, replicated, incomplete })
    }

    /// Returns one volume.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub async fn volume(&self, name: &str) -> Result<Volume, ErrorDetail> {
        let located = self.locate(name, OwnerKind::Volume).await?;
        let listed = self.list_counted(&located.pool).await?;
        self.volume_in(&located.pool, &listed, located.uuid)
    }

    pub(crate) async fn volume_of(&self, pool: &PoolHandle, uuid: Uuid) -> Result<Volume, ErrorDetail> {
        let listed = self.list_pool(pool).await?;
        self.volume_in(pool, &listed, uuid)
    }

    fn volume_in(&self, pool: &PoolHandle, listed: &PoolListing, uuid: Uuid) -> Result<Volume, ErrorDetail> {
        let found = self.show_volumes(pool, listed).into_iter().find(|volume| volume.uuid == uuid.to_string());
        found.ok_or_else(|| not_found(&uuid.to_string(), OwnerKind::Volume))
    }

    /// Renames a volume. Its exports keep their names.
    ///
    /// # Errors
    /// The name is taken or not valid.
    pub async fn rename_volume(&self, volume: &str, new_name: &str) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let own = self.own_name(new_name, &located.pool)?;
        let pool = located.pool.clone();
        let _one_at_a_time = pool.work.lock().await;
        // Checked only now: a command that takes the volume as a disk waits for this lock, and then uses the new name.
        // The pool may have been renamed meanwhile.
        let located = self.locate(&located.uuid.to_string(), OwnerKind::Volume).await?;
        self.refuse_held(&located, "renamed")?;
        self.alter(&located, OwnerKind::Volume, move |owner| owner.name = own).await?;
        let shown = self.volume_of(&located.pool, located.uuid).await?;
        self.inventory.write().rename_volumes(|name| (name == located.name).then(|| shown.name.clone()));
        self.note_new_names(&located.pool).await?;
        let message = format!("volume {} is now called {}", located.name, shown.name);
        self.inventory.events().info(
            "volume_renamed",
            message,
            &[("volume", &shown.name), ("old_name", &located.name)],
        );
        Ok(shown)
    }

    /// Resizes a volume while it is used.
    ///
    /// # Errors
    /// The volume would shrink, has data beyond its new end, and `force` is not set; a limit.
    pub async fn resize_volume(&self, volume: &str, ask: ResizeVolume) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        check_size(&located.name, ask.size_bytes)?;
        self.refuse_replica(&located, "given another size")?;
        let listening = self.exports.listening_lock.lock().await;
        let _one_at_a_time = self.work_soon(&located.pool).await?;
        let before = self.volume_of(&located.pool, located.uuid).await?.size_bytes;
        if ask.size_bytes < before {
            self.refuse_held(&located, "made smaller")?;
            if !ask.force {
                self.inventory.refuse_last_member_on(&located.name)?;
            }
            // Shrinking may take long. A command that would serve the volume, or stop serving it, waits for the pool's
            // lock.
            drop(listening);
            self.shrink_volume(&located, ask.size_bytes, ask.force).await?;
        } else {
            self.alter(&located, OwnerKind::Volume, move |owner| owner.size_bytes = ask.size_bytes).await?;
            self.resize_served(&located.pool, located.uuid).await?;
        }
        let message = format!("resized volume {} to {} bytes", located.name, ask.size_bytes);
        self.inventory.events().info("volume_resized", message, &[("volume", &located.name)]);
        self.volume_of(&located.pool, located.uuid).await
    }

    /// Creates a volume as a clone of a snapshot.
    ///
    /// # Errors
    /// The name is taken or not valid; a limit.
    pub async fn clone_snapshot(&self, snapshot: &str, ask: CloneSnapshot) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(snapshot, OwnerKind::Snapshot).await?;
        let name = self.own_name(&ask.name, &located.pool)?;
        let pool = located.pool.clone();
        let full = format!("{}/{name}", pool.name);
        let _one_at_a_time = pool.work.lock().await;
        let new = owner(name.as_str(), BLOCK_BYTES)?;
        let (uuid, from) = (new.uuid, located.uuid);
        let made = self.call(&pool, move |pool| {
            let result = check_volume_count(pool).and_then(|()| {
                let parent =
                    find(pool.state(), from, OwnerKind::Snapshot).ok_or(VolumeError::Admin(AdminError::NoSuch))?;
                let Owner { size_bytes, allocation: policy, on, .. } = *parent;
                let new = Owner { size_bytes, allocation: policy, on, ..new.clone() };
                pool.create_volume(Some(parent.id), new).map_err(VolumeError::Admin)
            });
            reply_when_durable(result.map(drop))
        });
        made.await?.map_err(|error| error.into_detail(&pool, &full))?;
        let message = format!("volume {full} was made of snapshot {}", located.name);
        self.inventory.events().info("volume_created", message, &[("volume", &full)]);
        self.volume_of(&pool, uuid).await
    }

    /// Deletes a volume without snapshots. Its space becomes free in the background.
    ///
    /// # Errors
    /// The volume has snapshots; it is exported or was a member of an array that does not serve, and `force` is not
    /// set.
    pub async fn delete_volume(self: &Arc<Self>, volume: &str, force: bool) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let shown = self.volume_of(&located.pool, located.uuid).await?;
        if shown.snapshots > 0 {
            return Err(has_snapshots(&shown.name));
        }
        self.delete_owner(&located, OwnerKind::Volume, force, |_, _| true).await?;
        let message = format!("volume {} was deleted", shown.name);
        self.inventory.events().info("volume_deleted", message, &[("volume", &shown.name)]);
        Ok(shown)
    }

    /// Deletes a volume or snapshot, with its exports if `force` is set. One that does not satisfy `is_wanted` at that
    /// moment is not found.
    pub(crate) async fn delete_owner(
        self: &Arc<Self>,
        what: &Located,
        kind: OwnerKind,
        force: bool,
        is_wanted: impl Fn(&PoolTables, &Owner) -> bool + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        if !force {
            self.refuse_exported_volume(what, "deleted").map_err(|error| {
                let remedy = format!("{}, or add --force (its exports are removed)", error.remedy);
                error.remedy(remedy)
            })?;
        }
        // Held to the end: an export that began before is in the tables, and none can begin.
        let listening = self.exports.listening_lock.lock().await;
        self.refuse_held(what, "deleted")?;
        if !force {
            self.inventory.refuse_last_member_on(&what.name)?;
            self.refuse_exported_volume(what, "deleted")?;
        }
        self.exports.end_devices(&listening, |saved| saved.array == what.uuid).await?;
        self.exports.remove_exports_now(&listening, what.uuid);
        self.release_volume(&listening, what.pool.uuid, what.uuid).await;
        let _one_at_a_time = self.work_soon(&what.pool).await?;
        let uuid = what.uuid;
        let done = self.call(&what.pool, move |pool| {
            let found = find(pool.state(), uuid, kind).filter(|owner| is_wanted(pool.state(), owner));
            let id = found.map(|owner| owner.id).ok_or(AdminError::NoSuch);
            let result = id.and_then(|id| match kind {
                OwnerKind::Snapshot => pool.delete_snapshot(id),
                _ => pool.delete_volume(id),
            });
            reply_when_durable(result.map_err(VolumeError::Admin))
        });
        let done = done.await;
        // The exports are removed, whatever the outcome of the rest.
        self.inventory.save_or_warn();
        // After an error, too: a deletion that cannot be made durable now may become durable when there is space again.
        self.merge_soon(&what.pool);
        done?.map_err(|error| error.into_detail(&what.pool, &what.name))?;
        self.note_snapshots(what.pool.uuid).await;
        Ok(())
    }

    /// Refuses operations that are not possible on an exported volume or snapshot.
    fn refuse_exported_volume(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        let exports = self.inventory.read().exports_of(what.uuid);
        let Some(first) = exports.first() else { return Ok(()) };
        let message = format!("{} is exported as {} and so cannot be {done}", what.name, exports.join(", "));
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &what.name)
            .with("export", first)
            .remedy(format!("braid export remove {first} first")))
    }

    /// Changes the properties of a volume or snapshot. The caller has the pool's lock.
    pub(crate) async fn alter(
        &self,
        what: &Located,
        kind: OwnerKind,
        change: impl Fn(&mut Owner) + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        let uuid = what.uuid;
        let done = self.call(&what.pool, move |pool| {
            let found = find(pool.state(), uuid, kind).cloned().ok_or(AdminError::NoSuch);
            let result = found.and_then(|mut owner| {
                change(&mut owner);
                pool.alter(owner.id, owner)
            });
            reply_when_durable(result.map_err(VolumeError::Admin))
        });
        done.await?.map_err(|error| error.into_detail(&what.pool, &what.name))
    }

    /// Wakes the maintenance task to merge what was deleted.
    pub(crate) fn merge_soon(&self, pool: &PoolHandle) {
        let maintenance: Option<Maintenance> =
            self.inventory.read().pools.get(&pool.uuid).and_then(|entry| Some(entry.served()?.maintenance.clone()));
        if let Some(maintenance) = maintenance {
            maintenance.merge();
        }
    }

    /// Updates the volume names that the exports of a pool record.
    pub(crate) async fn note_new_names(&self, pool: &PoolHandle) -> Result<(), ErrorDetail> {
        self.note_snapshots(pool.uuid).await;
        let listed = self.list_pool(pool).await?;
        {
            let mut tables = self.inventory.write();
            let pool_name = tables.pools.get(&pool.uuid).map_or_else(|| pool.name.clone(), |entry| entry.name.clone());
            for export in tables.exports.values_mut().filter(|export| export.saved.pool == Some(pool.uuid)) {
                if let Some(name) = listed.name_of(export.saved.array) {
                    export.saved.array_name = format!("{pool_name}/{name}");
                }
            }
        }
        self.inventory.save_or_warn();
        Ok(())
    }
}

/// Refuses another volume in a pool that has the maximum number.
pub(crate) fn check_volume_count(pool: &Pool) -> Result<(), VolumeError> {
    let volumes = pool.state().owners.iter().filter(|owner| owner.kind == OwnerKind::Volume).count();
    if volumes < VOLUMES_MAX { Ok(()) } else { Err(VolumeError::TooMany) }
}

/// Returns a new volume of this name and size, without limits.
fn owner(name: &str, size_bytes: u64) -> Result<Owner, ErrorDetail> {
    Ok(Owner { created_unix_s: unix_s(), ..Owner::volume(random_uuid()?, checked(name)?, size_bytes) })
}

/// Splits the name of a volume that is to be created into the pool and its own name.
fn new_volume(text: &str) -> Result<(&str, &str), ErrorDetail> {
    match VolumeName::parse(text) {
        Some(VolumeName { pool, volume, snapshot: None }) => Ok((pool, volume)),
        _ => Err(invalid_name(text, OwnerKind::Volume)),
    }
}
