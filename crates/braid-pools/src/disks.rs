//! Volumes as disks: members of arrays.
//!
//! Such a volume is served like an exported one, and no other component writes to it: it is *held* as long as the disk
//! is open. An array's stack level is above that of its volumes, and a pool's stack level is that of its arrays. So
//! nothing can stand on itself, at any depth, and everything is started from the lowest stack level up and stopped from
//! the highest down.

use crate::PoolManager;
use crate::locate::Located;
use crate::names::is_replica_metadata;
use braid_api::{ErrorDetail, Kind};
use braid_format::pool::OwnerKind;
use braid_inventory::{ArrayEntry, OpenDisk, PoolHandle, called};
use braid_ring::{Disk, DiskSpec, STACK_LEVELS_MAX, stack_level_of_pool};
use std::sync::Arc;
use uuid::Uuid;

impl PoolManager {
    /// Opens a volume as a disk. No other component writes to it until [`PoolManager::close_volume`] closes it.
    ///
    /// # Errors
    /// There is no such volume, its pool does not serve, it is in use, or it cannot be written.
    pub async fn open_volume(self: &Arc<Self>, spec: &DiskSpec) -> Result<(Disk, Uuid), ErrorDetail> {
        let text = spec.volume().unwrap_or_default();
        // A command that adds an export has this lock: its export is in the tables by now, or will find that the volume
        // is held.
        let listening = self.exports.listening_lock.lock().await;
        let Located { pool, uuid, name } = self.locate(text, OwnerKind::Volume).await?;
        self.inventory.refuse_closing_pool(pool.uuid)?;
        self.inventory.read().refuse_on_replicated(
            pool.uuid,
            "its volumes are no disks of arrays and pools, which stay where they are when it goes to another node",
            "export the volume (braid export add), and use the export",
        )?;
        let in_use = |who: String, remedy: String| {
            Err(ErrorDetail::new(Kind::InUse, format!("volume {name} is {who}")).with("volume", &name).remedy(remedy))
        };
        {
            let mut tables = self.inventory.write();
            if let Some(who) = tables.holder_of_volume(uuid) {
                return in_use(who, "use another volume".to_owned());
            }
            let writes = |entry: &&braid_inventory::ExportEntry| entry.saved.array == uuid && !entry.saved.read_only;
            if let Some(export) = tables.exports.values().find(writes) {
                let name = &export.saved.name;
                let who = format!("exported as {name}, and its clients would write over the array");
                return in_use(who, format!("braid export remove {name} first"));
            }
            tables.held_volumes.insert(uuid, pool.uuid);
        }
        let opened = self.served_disk(&pool, uuid, &name, spec).await;
        if opened.is_err() {
            self.inventory.write().held_volumes.remove(&uuid);
            self.release_volume(&listening, pool.uuid, uuid).await;
        }
        Ok((opened?, uuid))
    }

    pub(crate) async fn served_disk(
        self: &Arc<Self>,
        pool: &PoolHandle,
        uuid: Uuid,
        name: &str,
        spec: &DiskSpec,
    ) -> Result<Disk, ErrorDetail> {
        let refused = |kind: Kind, why: String, remedy: &str| {
            Err(ErrorDetail::new(kind, why).with("volume", name).remedy(remedy))
        };
        let stack_level = stack_level_of_pool(pool.key) + 1;
        if stack_level >= STACK_LEVELS_MAX {
            let most = STACK_LEVELS_MAX - 1;
            let why = format!("pools and arrays stand on each other {most} deep below volume {name} already");
            return refused(Kind::LimitReached, why, "use a disk, or a volume of a pool that is not so deep");
        }
        let Some(source) = self.serve_volume(pool.uuid, uuid).await? else {
            return refused(Kind::Inactive, format!("pool {} does not serve", pool.name), "braid pool show");
        };
        if source.read_only {
            let why = format!("volume {name} cannot be written now");
            return refused(Kind::Inactive, why, "braid volume show says why, and braid pool show");
        }
        self.ring.ensure_stack_level(stack_level).map_err(|error| braid_advice::errors::ring_error(&error, name))?;
        // The volume may have been renamed before it was served; from now on it cannot be renamed. Replica metadata
        // never is.
        let now = match name.rsplit_once('/') {
            Some((_, own)) if is_replica_metadata(own) => name.to_owned(),
            _ => self.locate(&uuid.to_string(), OwnerKind::Volume).await?.name,
        };
        Ok(Disk::from_device(&called(spec.clone(), &now), source.device, source.size_bytes))
    }

    /// Closes a volume as a disk. The caller has nothing in flight on it. The volume stays served if it is exported.
    pub async fn close_volume(self: &Arc<Self>, volume: Uuid) {
        let listening = self.exports.listening_lock.lock().await;
        let Some(pool) = self.inventory.write().held_volumes.remove(&volume) else { return };
        self.release_volume(&listening, pool, volume).await;
    }

    /// Refuses operations on the data of a replica that only its controller may do.
    pub(crate) fn refuse_replica(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        let replica = self.inventory.read().replica_with(what.uuid).map(|entry| entry.saved.name.clone());
        let Some(replica) = replica else { return Ok(()) };
        let message = format!("volume {} has the data of replica {replica} and so cannot be {done} here", what.name);
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &what.name)
            .with("replica", &replica)
            .remedy(format!(
                "braid replica show {replica} says of which volume it is: that one is changed where it is served; --force does not override this"
            )))
    }

    /// Refuses operations that would take a volume from under its array or its replica.
    pub(crate) fn refuse_held(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        self.refuse_replica(what, done)?;
        let Some(who) = self.inventory.read().holder_of_volume(what.uuid) else { return Ok(()) };
        Err(ErrorDetail::new(Kind::InUse, format!("volume {} is {who} and so cannot be {done}", what.name))
            .with("volume", &what.name)
            .remedy("take it out of the array first (braid array replace, or fail and remove), or stop or delete the array; --force does not override this"))
    }

    /// Refuses operations that would take the last member from an array, for a pool with all of its volumes.
    pub(crate) fn refuse_last_on_of(&self, pool: &str) -> Result<(), ErrorDetail> {
        let tables = self.inventory.read();
        let is_of = |name: &str| name.split_once('/').is_some_and(|(of, _)| of == pool);
        let Some((volume, array)) = tables.volume_last_of(is_of) else { return Ok(()) };
        let message = format!("volume {volume} of pool {pool} was seen last as a member of array {array}");
        Err(ErrorDetail::new(Kind::WouldDestroy, message)
            .with("pool", pool)
            .with("array", array)
            .remedy("add --force if that array is not needed any more, or can do without it"))
    }

    /// Refuses operations that would take volumes of a pool from under arrays and replicas.
    pub(crate) fn refuse_held_of(&self, pool: Uuid, name: &str, done: &str) -> Result<(), ErrorDetail> {
        let Some(who) = self.inventory.read().held_of_pool(pool) else { return Ok(()) };
        Err(ErrorDetail::new(
            Kind::InUse,
            format!("a volume of pool {name} is {who}, so that the pool cannot be {done}"),
        )
        .with("pool", name)
        .remedy("stop or delete that array, or delete that replica, first; --force does not override this"))
    }

    /// Sets the new size of a volume on the disk that it is open as.
    pub(crate) fn update_disk_size(&self, volume: Uuid, size_bytes: u64) {
        let disks: Vec<Arc<OpenDisk>> = {
            let tables = self.inventory.read();
            let open = tables.arrays.values().filter_map(ArrayEntry::active).flat_map(|active| active.open_disks());
            open.filter(|disk| disk.volume == Some(volume)).collect()
        };
        // The shards learn the size when the array examines its disks: `braid array grow`.
        disks.iter().for_each(|disk| disk.disk.set_grown_size(size_bytes));
    }
}
