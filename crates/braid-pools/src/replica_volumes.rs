//! The two volumes of a replica in its pool: its data, and its replica metadata, which hold what its controller keeps
//! beside the data, and the register.
//!
//! Replica metadata volumes are named after the data volume that they belong to. They are thick volumes, so that only
//! the data of a replica ever wait for space. They appear in no list.

use crate::PoolManager;
use crate::errors::{VolumeError, of_admin, reply_when_durable};
use crate::members::RequestedMember;
use crate::names::{
    checked, find, is_controller_snapshot, is_pending, refuse_replica_metadata_name, replica_metadata_name,
};
use crate::sizes::{check_block, check_size};
use crate::unix_time::unix_s;
use crate::volumes::check_volume_count;
use braid_advice::errors::ring_error;
use braid_api::{ErrorDetail, Kind};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{Owner, OwnerKind};
use braid_inventory::{ActiveArray, ArrayEntry, MemberBacking, OpenDisk, PoolHandle};
use braid_ring::{DiskSpec, stack_level_of_pool};
use std::sync::Arc;
use uuid::Uuid;

/// A volume of a replica that is to be created.
pub struct NewReplicaVolume {
    /// Its identity.
    pub uuid: Uuid,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes, which its snapshots have, too.
    pub block_bytes: u32,
}

impl PoolManager {
    /// Returns the identity and the name of a pool that may have replicas.
    ///
    /// # Errors
    /// There is no such pool, it does not serve, or it is on disks of other machines: after a crash of the daemon their
    /// servers may still execute its writes, and no component knows when that has ended.
    pub fn pool_for_replica(&self, pool: &str) -> Result<(Uuid, String), ErrorDetail> {
        let handle = self.serving_pool(pool)?;
        self.inventory.refuse_closing_pool(handle.uuid)?;
        self.inventory.read().refuse_on_replicated(
            handle.uuid,
            "it keeps no replicas of others",
            "use a pool of disks of this machine",
        )?;
        let remote = {
            let tables = self.inventory.read();
            let parts = tables.pools.get(&handle.uuid).and_then(|entry| entry.served()).map(|served| &served.parts);
            let disks = parts.into_iter().flatten().flat_map(|part| match &part.backing {
                MemberBacking::Disk(disk) => vec![Arc::clone(disk)],
                MemberBacking::Array(uuid) => tables
                    .arrays
                    .get(uuid)
                    .and_then(ArrayEntry::active)
                    .map(ActiveArray::open_disks)
                    .unwrap_or_default(),
            });
            let mut remote = disks.filter(|disk| disk.disk.is_remote());
            remote.next().map(|disk| disk.name.clone())
        };
        if let Some(disk) = remote {
            let message = format!(
                "pool {} stands on {disk}, a disk of another machine, and so can have no replicas: what that has to write would not end with this daemon",
                handle.name
            );
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("pool", &handle.name)
                .with("disk", &disk)
                .remedy("use a pool of disks of this machine, or keep a replica on the other one"));
        }
        Ok((handle.uuid, handle.name))
    }

    /// Refuses new members of a pool with replicas that are remote disks, or arrays on remote disks: see
    /// [`PoolManager::pool_for_replica`].
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] with the member.
    pub(crate) fn refuse_remote_under_replicas(
        &self,
        pool: &PoolHandle,
        requested: &[RequestedMember],
    ) -> Result<(), ErrorDetail> {
        let tables = self.inventory.read();
        let Some(replica) = tables.replica_in(pool.uuid) else { return Ok(()) };
        let is_remote = |requested: &&RequestedMember| match requested {
            RequestedMember::Disk(spec) => spec.remote().is_some(),
            RequestedMember::Array(name) => tables.array(name).is_ok_and(|entry| {
                let disks = entry.active().map(ActiveArray::open_disks).unwrap_or_default();
                disks.iter().any(|disk| disk.disk.is_remote())
            }),
        };
        let Some(remote) = requested.iter().find(is_remote) else { return Ok(()) };
        let member = match remote {
            RequestedMember::Disk(spec) => spec.to_string(),
            RequestedMember::Array(name) => name.clone(),
        };
        let message = format!(
            "pool {} has replica {}, and {member} is on another machine: what that has to write would not end with this daemon",
            pool.name, replica.saved.name
        );
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("pool", &pool.name)
            .with("disk", member)
            .remedy("add disks of this machine"))
    }

    /// Creates the data volume of a replica, under this name, and its metadata volume. `from`: the snapshot in the pool
    /// that the data are cloned from.
    ///
    /// # Errors
    /// The name is taken, there is no space, no such snapshot; the caller then removes what was created.
    pub async fn make_replica_volumes(
        &self,
        pool: Uuid,
        name: &str,
        data: &NewReplicaVolume,
        metadata: &NewReplicaVolume,
        from: Option<Uuid>,
    ) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&pool.to_string())?;
        check_size(name, data.size_bytes)?;
        check_size(name, metadata.size_bytes)?;
        refuse_replica_metadata_name(name)?;
        let owner = |name: &str, new: &NewReplicaVolume| -> Result<Owner, ErrorDetail> {
            let in_sectors = check_block(name, new.block_bytes)?;
            let owner = Owner::volume(new.uuid, checked(name)?, new.size_bytes);
            Ok(Owner { created_unix_s: unix_s(), sectors_of_512: in_sectors, ..owner })
        };
        let data_owner = owner(name, data)?;
        let metadata_owner = Owner { thick: true, ..owner(&replica_metadata_name(data.uuid), metadata)? };
        let _one_at_a_time = handle.work.lock().await;
        for (owner, from) in [(data_owner, from), (metadata_owner, None)] {
            let made = self.call(&handle, move |pool| {
                let parent = from.map(|from| {
                    let found = find(pool.state(), from, OwnerKind::Snapshot);
                    let found = found.filter(|parent| parent.size_bytes == owner.size_bytes);
                    found.map(|parent| parent.id).ok_or(VolumeError::Admin(AdminError::NoSuch))
                });
                let result = check_volume_count(pool)
                    .and_then(|()| parent.transpose())
                    .and_then(|parent| pool.create_volume(parent, owner.clone()).map_err(VolumeError::Admin));
                reply_when_durable(result.map(drop))
            });
            made.await?.map_err(|error| error.into_detail(&handle, &format!("{}/{name}", handle.name)))?;
        }
        Ok(())
    }

    /// Deletes those volumes of a replica that exist. No component holds them any more.
    ///
    /// # Errors
    /// The data have snapshots, or are exported; the pool does not serve.
    pub async fn remove_replica_volumes(self: &Arc<Self>, pool: Uuid, volumes: [Uuid; 2]) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&pool.to_string())?;
        let _one_at_a_time = self.work_soon(&handle).await?;
        for uuid in volumes {
            self.remove_pending(&handle, uuid, |_| true).await?;
            let done = self.call(&handle, move |pool| {
                let id = find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.id);
                reply_when_durable(id.map_or(Ok(()), |id| pool.delete_volume(id).map_err(VolumeError::Admin)))
            });
            done.await?.map_err(|error| error.into_detail(&handle, "the replica's volume"))?;
        }
        self.merge_soon(&handle);
        Ok(())
    }

    /// Returns true if the data of a replica have snapshots. `controllers`: also count those taken by controllers.
    ///
    /// # Errors
    /// The pool does not serve.
    pub async fn has_snapshots_in(&self, pool: Uuid, volume: Uuid, controllers: bool) -> Result<bool, ErrorDetail> {
        let handle = self.serving_pool(&pool.to_string())?;
        let query = move |pool: &mut Pool| {
            let is_snapshot = |owner: &Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume;
            let counts = |owner: &Owner| !is_pending(owner) && (controllers || !is_controller_snapshot(owner.uuid));
            let of = |owner: &Owner| is_snapshot(owner) && counts(owner);
            (PoolNext::Done, pool.state().owners.iter().any(of))
        };
        self.call(&handle, query).await
    }

    /// Opens both volumes of a replica as disks. No other component writes to them while they are open.
    ///
    /// # Errors
    /// One of them does not exist, or cannot be written; the pool does not serve.
    pub async fn open_replica_volumes(
        self: &Arc<Self>,
        pool: Uuid,
        volumes: [Uuid; 2],
    ) -> Result<[Arc<OpenDisk>; 2], ErrorDetail> {
        let handle = self.serving_pool(&pool.to_string())?;
        let first = self.open_replica_volume(&handle, volumes[0]).await?;
        match self.open_replica_volume(&handle, volumes[1]).await {
            Ok(second) => Ok([first, second]),
            Err(error) => {
                self.arrays.close_disks(vec![first]).await;
                Err(error)
            }
        }
    }

    /// Opens only the data of a replica.
    ///
    /// # Errors
    /// They do not exist, or cannot be written; the pool does not serve.
    pub async fn open_replica_data(self: &Arc<Self>, pool: Uuid, data: Uuid) -> Result<Arc<OpenDisk>, ErrorDetail> {
        self.open_replica_volume(&self.serving_pool(&pool.to_string())?, data).await
    }

    async fn open_replica_volume(
        self: &Arc<Self>,
        pool: &PoolHandle,
        uuid: Uuid,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let listening = self.exports.listening_lock.lock().await;
        self.inventory.refuse_closing_pool(pool.uuid)?;
        let query = move |pool: &mut Pool| {
            let found = find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.name);
            (PoolNext::Done, found.ok_or(AdminError::NoSuch))
        };
        let own = self.call(pool, query).await?.map_err(|error| of_admin(error, pool, "the replica's volume"))?;
        let name = format!("{}/{own}", pool.name);
        self.inventory.write().held_volumes.insert(uuid, pool.uuid);
        let opened = self.served_disk(pool, uuid, &name, &DiskSpec::Volume { name: name.clone() }).await;
        let disk = match opened {
            Ok(disk) => Arc::new(disk),
            Err(error) => {
                self.inventory.write().held_volumes.remove(&uuid);
                self.release_volume(&listening, pool.uuid, uuid).await;
                return Err(error);
            }
        };
        drop(listening);
        let leaf = match self.ring.add_leaf(Arc::clone(&disk)) {
            Ok(leaf) => leaf,
            Err(error) => {
                self.close_volume(uuid).await;
                return Err(ring_error(&error, &name));
            }
        };
        let (identity, entry, volume) = (None, None, Some(uuid));
        Ok(Arc::new(OpenDisk {
            name,
            disk,
            identity,
            entry,
            volume,
            leaf,
            watch: Default::default(),
            local_replica: None,
        }))
    }

    /// Returns the stack level of devices that stand on volumes of a pool.
    ///
    /// # Errors
    /// The pool does not serve.
    pub fn stack_level_on_pool(&self, pool: Uuid) -> Result<usize, ErrorDetail> {
        Ok(stack_level_of_pool(self.serving_pool(&pool.to_string())?.key) + 1)
    }
}
