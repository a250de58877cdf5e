//! Snapshots of the data of replicas that their controllers take: on all nodes at one instant and under one identity.
//!
//! That identity, which the controller chooses, tells them from the snapshots of this node's users: a UUID of version
//! 8, which no other component assigns. A snapshot that does not exist on all replicas yet, or is about to be deleted,
//! is *pending*: it has a name that only pending snapshots have, and appears in no list.

use crate::PoolManager;
use crate::errors::{VolumeError, reply_when_durable};
use crate::locate::Located;
use crate::names::{
    check_controller_snapshot_name, find, is_controller_snapshot, is_pending, name_in_pool, pending_name,
};
use braid_api::{ErrorDetail, Kind, ReplicaSnapshot};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{Owner, OwnerKind, OwnerName};
use braid_inventory::PoolHandle;
use std::sync::Arc;
use uuid::Uuid;

/// The data of a replica, as the object of a controller's request.
#[derive(Clone, Copy)]
pub struct ReplicaData {
    /// The pool.
    pub pool: Uuid,
    /// The volume.
    pub volume: Uuid,
}

impl PoolManager {
    /// Returns the snapshots of a replica's data that controllers took, in the order in which they were taken.
    ///
    /// # Errors
    /// The pool does not serve.
    pub async fn snapshots_of_replica(&self, data: ReplicaData) -> Result<Vec<ReplicaSnapshot>, ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        let listed = self.list_pool(&handle).await?;
        Ok(listed.controller_snapshots(data.volume))
    }

    /// Takes a pending snapshot. It is durable when this returns, and contains every write that completed before.
    ///
    /// # Errors
    /// Another snapshot has the name; an error from taking the snapshot.
    pub async fn take_pending_snapshot(
        &self,
        data: ReplicaData,
        snapshot: Uuid,
        name: &str,
    ) -> Result<(), ErrorDetail> {
        let (handle, name) = (self.serving_pool(&data.pool.to_string())?, check_controller_snapshot_name(name)?);
        let _one_at_a_time = handle.work.lock().await;
        let query = move |pool: &mut Pool| {
            let of = |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == data.volume;
            let taken = pool.state().owners.iter().filter(of).find(|owner| owner.name == name);
            (PoolNext::Done, taken.map(|owner| name_in_pool(pool.state(), owner)))
        };
        if let Some(taken) = self.call(&handle, query).await? {
            let message = format!("there is a snapshot {}/{taken} already", handle.name);
            return Err(ErrorDetail::new(Kind::Exists, message)
                .with("name", taken)
                .remedy("choose another name, or rename that one first"));
        }
        self.take_now(&handle, vec![(data.volume, snapshot, pending_name(snapshot)?)], "the replica's data").await
    }

    /// Names a snapshot: from then on a pending one is visible.
    ///
    /// # Errors
    /// There is no such snapshot; another one has the name.
    pub async fn name_controller_snapshot(
        &self,
        data: ReplicaData,
        snapshot: Uuid,
        name: &str,
    ) -> Result<(), ErrorDetail> {
        self.rename_replica_snapshot(data, snapshot, check_controller_snapshot_name(name)?).await
    }

    /// Records that the file system on the volume was frozen while a snapshot was taken.
    ///
    /// # Errors
    /// There is no such snapshot; the pool cannot write.
    pub async fn note_frozen(&self, data: ReplicaData, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        let what = Located { pool: handle.clone(), uuid: snapshot, name: format!("{}/…@{snapshot}", handle.name) };
        let _one_at_a_time = handle.work.lock().await;
        self.check_snapshot_of(&handle, data.volume, snapshot).await?;
        self.alter(&what, OwnerKind::Snapshot, |owner| owner.frozen = true).await
    }

    /// Makes a snapshot pending again.
    ///
    /// # Errors
    /// There is no such snapshot, or it is exported.
    pub async fn hide_snapshot(&self, data: ReplicaData, snapshot: Uuid) -> Result<(), ErrorDetail> {
        // A command that exports a snapshot holds this lock until it ends.
        let _listening = self.exports.listening_lock.lock().await;
        let exports = self.inventory.read().exports_of(snapshot);
        if let Some(first) = exports.first() {
            let message = format!("the snapshot is exported here, as {}, and so cannot be deleted", exports.join(", "));
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("export", first)
                .remedy(format!("braid export remove {first} first, on this node")));
        }
        self.rename_replica_snapshot(data, snapshot, pending_name(snapshot)?).await
    }

    async fn rename_replica_snapshot(
        &self,
        data: ReplicaData,
        snapshot: Uuid,
        name: OwnerName,
    ) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        let what = Located { pool: handle.clone(), uuid: snapshot, name: format!("{}/…@{name}", handle.name) };
        let _one_at_a_time = handle.work.lock().await;
        self.check_snapshot_of(&handle, data.volume, snapshot).await?;
        self.alter(&what, OwnerKind::Snapshot, move |owner| owner.name = name).await?;
        self.note_new_names(&handle).await
    }

    /// Refuses a snapshot that is not one of a replica's data.
    ///
    /// # Errors
    /// The pool does not serve.
    pub async fn check_snapshot_of_data(&self, data: ReplicaData, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        self.check_snapshot_of(&handle, data.volume, snapshot).await
    }

    async fn check_snapshot_of(&self, handle: &PoolHandle, volume: Uuid, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let query = move |pool: &mut Pool| {
            let found = find(pool.state(), snapshot, OwnerKind::Snapshot);
            (PoolNext::Done, found.is_some_and(|owner| owner.volume == volume))
        };
        if self.call(handle, query).await? {
            return Ok(());
        }
        let message = format!("the replica's data have no snapshot {snapshot}");
        Err(ErrorDetail::new(Kind::NotFound, message).with("snapshot", snapshot))
    }

    /// Deletes a pending snapshot; does nothing if there is none.
    ///
    /// # Errors
    /// The pool does not serve, or cannot write.
    pub async fn remove_pending_one(self: &Arc<Self>, data: ReplicaData, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        {
            // An export from before the snapshot was hidden may have left it served.
            let listening = self.exports.listening_lock.lock().await;
            self.release_volume(&listening, handle.uuid, snapshot).await;
        }
        let _one_at_a_time = self.work_soon(&handle).await?;
        self.remove_pending(&handle, data.volume, move |uuid| uuid == snapshot).await?;
        self.merge_soon(&handle);
        Ok(())
    }

    /// Checks whether the data could be rolled back to a snapshot, as far as can be seen.
    ///
    /// # Errors
    /// The data have no such snapshot; the data are exported.
    pub async fn check_rollback(&self, data: ReplicaData, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        self.check_snapshot_of(&handle, data.volume, snapshot).await?;
        let exports = self.inventory.read().exports_of(data.volume);
        let Some(first) = exports.first() else { return Ok(()) };
        let message =
            format!("the replica's data are exported here, as {}, and so cannot be rolled back", exports.join(", "));
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("export", first)
            .remedy(format!("braid export remove {first} first, on this node")))
    }

    /// Rolls the data back to one of their snapshots. The data are not served.
    ///
    /// # Errors
    /// There is no such snapshot; the data are exported; the pool cannot write.
    pub async fn roll_back_data(&self, data: ReplicaData, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&data.pool.to_string())?;
        let _listening = self.exports.listening_lock.lock().await;
        self.check_rollback(data, snapshot).await?;
        let _one_at_a_time = self.work_soon(&handle).await?;
        let done = self.call(&handle, move |pool| {
            let id = |uuid, kind| find(pool.state(), uuid, kind).map(|owner| owner.id).ok_or(AdminError::NoSuch);
            let both = id(data.volume, OwnerKind::Volume).and_then(|of| Ok((of, id(snapshot, OwnerKind::Snapshot)?)));
            reply_when_durable(both.and_then(|(of, to)| pool.rollback(of, to)).map(drop).map_err(VolumeError::Admin))
        });
        done.await?.map_err(|error| error.into_detail(&handle, "the replica's data"))?;
        self.merge_soon(&handle);
        Ok(())
    }

    /// Deletes all snapshots of a volume that controllers took.
    ///
    /// # Errors
    /// One of them is being read, or the pool does not serve or cannot write.
    pub async fn remove_controller_snapshots(&self, pool: Uuid, volume: Uuid) -> Result<(), ErrorDetail> {
        let handle = self.serving_pool(&pool.to_string())?;
        let _one_at_a_time = self.work_soon(&handle).await?;
        self.remove_snapshots(&handle, volume, |owner| is_controller_snapshot(owner.uuid)).await
    }

    /// Deletes those pending snapshots of a volume that satisfy the predicate. The caller has the pool's lock.
    pub(crate) async fn remove_pending(
        &self,
        handle: &PoolHandle,
        volume: Uuid,
        which: impl Fn(Uuid) -> bool + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        self.remove_snapshots(handle, volume, move |owner| is_pending(owner) && which(owner.uuid)).await
    }

    async fn remove_snapshots(
        &self,
        handle: &PoolHandle,
        volume: Uuid,
        which: impl Fn(&Owner) -> bool + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        let query = move |pool: &mut Pool| {
            let is_snapshot = |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume;
            let of = |owner: &&Owner| is_snapshot(owner) && which(owner);
            let found: Vec<u32> = pool.state().owners.iter().filter(of).map(|owner| owner.id).collect();
            (PoolNext::Done, found)
        };
        for id in self.call(handle, query).await? {
            let done = self.call(handle, move |pool| match pool.delete_snapshot(id) {
                Err(AdminError::NoSuch) => (PoolNext::Done, Ok(())),
                result => reply_when_durable(result.map_err(VolumeError::Admin)),
            });
            done.await?.map_err(|error| error.into_detail(handle, "a controller's snapshot"))?;
        }
        Ok(())
    }

    /// Refuses operations on a controller's snapshot that only the controller may do, as long as the replica exists.
    pub(crate) fn refuse_controller_snapshot(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        if !is_controller_snapshot(what.uuid) {
            return Ok(());
        }
        let Some((data, _)) = what.name.rsplit_once('@') else { return Ok(()) };
        let tables = self.inventory.read();
        let mut here = tables.replicas.values().filter(|entry| entry.saved.pool == Some(what.pool.uuid));
        let replica = here.find(|entry| format!("{}/{}", what.pool.name, entry.saved.name) == data);
        let Some(replica) = replica.map(|entry| entry.saved.name.clone()) else { return Ok(()) };
        let message = format!(
            "{} is a snapshot of volume {replica}, on all of its nodes, and so cannot be {done} here",
            what.name
        );
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("snapshot", &what.name)
            .with("replica", &replica)
            .remedy(format!(
                "that is done where the volume is served, and by its name there: braid snapshot list {replica}; --force does not override this"
            )))
    }

    /// Refuses new names of snapshots while a controller takes one: the controller's name was free when the controller
    /// requested it. The caller has the pool's lock.
    pub(crate) async fn refuse_while_pending(&self, handle: &PoolHandle, volumes: &[Uuid]) -> Result<(), ErrorDetail> {
        let volumes = volumes.to_vec();
        let query = move |pool: &mut Pool| {
            let owners = &pool.state().owners;
            // The identity is a volume's, or a snapshot's, which stands for its volume.
            let of = |uuid: &Uuid| find(pool.state(), *uuid, OwnerKind::Snapshot).map_or(*uuid, |owner| owner.volume);
            let volumes: Vec<Uuid> = volumes.iter().map(of).collect();
            let is_busy = owners.iter().any(|owner| is_pending(owner) && volumes.contains(&owner.volume));
            (PoolNext::Done, is_busy)
        };
        if !self.call(handle, query).await? {
            return Ok(());
        }
        let message = "a snapshot of the volume whose replica this is is being taken or deleted on all of its nodes";
        Err(ErrorDetail::new(Kind::InUse, message)
            .remedy("try again in a moment; where the volume is not served, when it is"))
    }
}
