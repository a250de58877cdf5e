//! Snapshots of the data of replicas that their controllers take, on all nodes at one moment and under one identity.
//!
//! What tells them from those of this node's users is that identity, which the controller chooses: a UUID of version 8, which nobody else
//! gives to anything. One that is not there on all replicas yet, or is about to go, is *pending*: it bears a name that only such ones
//! have, and stands in no list.

use super::super::Control;
use super::Reach;
use super::snapshots::not_a_policys;
use super::volumes::{Located, Told, checked, find, name_in_pool, told};
use braid_api::{ErrorDetail, Kind, ReplicaSnapshot};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{Owner, OwnerKind, OwnerName};
use std::sync::Arc;
use uuid::Uuid;

/// Ends the name of a pending snapshot, behind its identity.
const PENDING: &str = ".pending";

/// Whether a snapshot is one of a controller.
pub(in super::super) fn is_controllers(snapshot: Uuid) -> bool {
    snapshot.get_version_num() == 8
}

fn is_pending_name(name: &str) -> bool {
    name.strip_suffix(PENDING).is_some_and(braid_api::names::is_uuid)
}

/// Whether this is a snapshot that nobody is to see.
pub(super) fn is_pending(owner: &Owner) -> bool {
    owner.kind == OwnerKind::Snapshot && is_pending_name(owner.name.as_str())
}

fn pending_name(snapshot: Uuid) -> Result<OwnerName, ErrorDetail> {
    checked(&format!("{snapshot}{PENDING}"))
}

/// Refuses names that only pending snapshots have.
pub(super) fn refuse_pending_name(name: &str) -> Result<(), ErrorDetail> {
    if !is_pending_name(name) {
        return Ok(());
    }
    let message = format!("{name} is a name that only snapshots have which are being taken");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("name", name).remedy("choose another name"))
}

/// A name as a controller may give it to a snapshot.
pub(in super::super) fn name_for_all(name: &str) -> Result<OwnerName, ErrorDetail> {
    not_a_policys(name)?;
    refuse_pending_name(name)?;
    checked(name)
}

/// The data of a replica, for what its controller wants done with them.
#[derive(Clone, Copy)]
pub(in super::super) struct DataOf {
    pub(in super::super) pool: Uuid,
    pub(in super::super) volume: Uuid,
}

impl Control {
    /// The snapshots of a replica's data that controllers had taken, in that order.
    ///
    /// # Errors
    /// The pool does not serve.
    pub(in super::super) async fn snapshots_of_replica(
        &self,
        data: DataOf,
    ) -> Result<Vec<ReplicaSnapshot>, ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        let listed = self.list_pool(&reach).await?;
        Ok(listed.of_controllers(data.volume))
    }

    /// Takes a pending one. It is durable when this returns, and what had been written to the data before is in it.
    ///
    /// # Errors
    /// There is another one of that name; what taking snapshots meets.
    pub(in super::super) async fn take_pending(
        &self,
        data: DataOf,
        snapshot: Uuid,
        name: &str,
    ) -> Result<(), ErrorDetail> {
        let (reach, name) = (self.reach(&data.pool.to_string())?, name_for_all(name)?);
        let _one_at_a_time = reach.work.lock().await;
        let asked = move |pool: &mut Pool| {
            let of = |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == data.volume;
            let taken = pool.state().owners.iter().filter(of).find(|owner| owner.name == name);
            (PoolNext::Done, taken.map(|owner| name_in_pool(pool.state(), owner)))
        };
        if let Some(taken) = self.call(&reach, asked).await? {
            let message = format!("there is a snapshot {}/{taken} already", reach.name);
            return Err(ErrorDetail::new(Kind::Exists, message)
                .with("name", taken)
                .remedy("choose another name, or rename that one first"));
        }
        self.take_now(&reach, vec![(data.volume, snapshot, pending_name(snapshot)?)], "the replica's data").await
    }

    /// Gives one a name: a pending one is there from then on.
    ///
    /// # Errors
    /// It is not there; another one has the name.
    pub(in super::super) async fn name_of_all(
        &self,
        data: DataOf,
        snapshot: Uuid,
        name: &str,
    ) -> Result<(), ErrorDetail> {
        self.rename_controllers(data, snapshot, name_for_all(name)?).await
    }

    /// Notes that the file system of the volume was frozen while one was taken.
    ///
    /// # Errors
    /// It is not there; the pool cannot write.
    pub(in super::super) async fn note_frozen(&self, data: DataOf, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        let what = Located { pool: reach.clone(), uuid: snapshot, name: format!("{}/…@{snapshot}", reach.name) };
        let _one_at_a_time = reach.work.lock().await;
        self.check_is_of(&reach, data.volume, snapshot).await?;
        self.alter(&what, OwnerKind::Snapshot, |owner| owner.frozen = true).await
    }

    /// Makes one pending again.
    ///
    /// # Errors
    /// It is not there, or it is exported.
    pub(in super::super) async fn hide_snapshot(&self, data: DataOf, snapshot: Uuid) -> Result<(), ErrorDetail> {
        // Whoever exports one holds this to the end.
        let _listening = self.listening.lock().await;
        let exports = self.read().exports_of(snapshot);
        if let Some(first) = exports.first() {
            let message = format!("the snapshot is exported here, as {}, and so cannot be deleted", exports.join(", "));
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("export", first)
                .remedy(format!("braid export remove {first} first, on this node")));
        }
        self.rename_controllers(data, snapshot, pending_name(snapshot)?).await
    }

    async fn rename_controllers(&self, data: DataOf, snapshot: Uuid, name: OwnerName) -> Result<(), ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        let what = Located { pool: reach.clone(), uuid: snapshot, name: format!("{}/…@{name}", reach.name) };
        let _one_at_a_time = reach.work.lock().await;
        self.check_is_of(&reach, data.volume, snapshot).await?;
        self.alter(&what, OwnerKind::Snapshot, move |owner| owner.name = name).await?;
        self.note_new_names(&reach).await
    }

    /// Refuses a snapshot that is none of a replica's data.
    ///
    /// # Errors
    /// The pool does not serve.
    pub(in super::super) async fn check_is_of_data(&self, data: DataOf, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        self.check_is_of(&reach, data.volume, snapshot).await
    }

    async fn check_is_of(&self, reach: &Reach, volume: Uuid, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let asked = move |pool: &mut Pool| {
            let found = find(pool.state(), snapshot, OwnerKind::Snapshot);
            (PoolNext::Done, found.is_some_and(|owner| owner.volume == volume))
        };
        if self.call(reach, asked).await? {
            return Ok(());
        }
        let message = format!("the replica's data have no snapshot {snapshot}");
        Err(ErrorDetail::new(Kind::NotFound, message).with("snapshot", snapshot))
    }

    /// Deletes one that is pending; nothing is done where it is not there.
    ///
    /// # Errors
    /// The pool does not serve, or cannot write.
    pub(in super::super) async fn remove_pending_one(
        self: &Arc<Self>,
        data: DataOf,
        snapshot: Uuid,
    ) -> Result<(), ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        {
            // An export of the time before it was hidden may have left it served.
            let listening = self.listening.lock().await;
            self.release_volume(&listening, reach.uuid, snapshot).await;
        }
        let _one_at_a_time = self.work_soon(&reach).await?;
        self.remove_pending(&reach, data.volume, move |uuid| uuid == snapshot).await?;
        self.fold_soon(&reach);
        Ok(())
    }

    /// Whether the data could be rolled back to a snapshot, as far as can be seen.
    ///
    /// # Errors
    /// There is no such snapshot of them; they are exported.
    pub(in super::super) async fn check_rollback(&self, data: DataOf, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        self.check_is_of(&reach, data.volume, snapshot).await?;
        let exports = self.read().exports_of(data.volume);
        let Some(first) = exports.first() else { return Ok(()) };
        let message =
            format!("the replica's data are exported here, as {}, and so cannot be rolled back", exports.join(", "));
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("export", first)
            .remedy(format!("braid export remove {first} first, on this node")))
    }

    /// Makes the data be as a snapshot of them is. They are not served.
    ///
    /// # Errors
    /// There is no such snapshot; they are exported; the pool cannot write.
    pub(in super::super) async fn roll_back_data(&self, data: DataOf, snapshot: Uuid) -> Result<(), ErrorDetail> {
        let reach = self.reach(&data.pool.to_string())?;
        let _listening = self.listening.lock().await;
        self.check_rollback(data, snapshot).await?;
        let _one_at_a_time = self.work_soon(&reach).await?;
        let done = self.call(&reach, move |pool| {
            let id = |uuid, kind| find(pool.state(), uuid, kind).map(|owner| owner.id).ok_or(AdminError::NoSuch);
            let both = id(data.volume, OwnerKind::Volume).and_then(|of| Ok((of, id(snapshot, OwnerKind::Snapshot)?)));
            told(both.and_then(|(of, to)| pool.rollback(of, to)).map(drop).map_err(Told::Admin))
        });
        done.await?.map_err(|error| error.into_detail(&reach, "the replica's data"))?;
        self.fold_soon(&reach);
        Ok(())
    }

    /// Deletes all snapshots of a volume that controllers had taken.
    ///
    /// # Errors
    /// One is read, or the pool does not serve or cannot write.
    pub(in super::super) async fn remove_controllers_snapshots(
        &self,
        pool: Uuid,
        volume: Uuid,
    ) -> Result<(), ErrorDetail> {
        let reach = self.reach(&pool.to_string())?;
        let _one_at_a_time = self.work_soon(&reach).await?;
        self.remove_snapshots(&reach, volume, |owner| is_controllers(owner.uuid)).await
    }

    /// Deletes those pending ones of a volume. The caller has the pool's lock.
    pub(super) async fn remove_pending(
        &self,
        reach: &Reach,
        volume: Uuid,
        which: impl Fn(Uuid) -> bool + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        self.remove_snapshots(reach, volume, move |owner| is_pending(owner) && which(owner.uuid)).await
    }

    async fn remove_snapshots(
        &self,
        reach: &Reach,
        volume: Uuid,
        which: impl Fn(&Owner) -> bool + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        let asked = move |pool: &mut Pool| {
            let is_snapshot = |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume;
            let of = |owner: &&Owner| is_snapshot(owner) && which(owner);
            let found: Vec<u32> = pool.state().owners.iter().filter(of).map(|owner| owner.id).collect();
            (PoolNext::Done, found)
        };
        for id in self.call(reach, asked).await? {
            let done = self.call(reach, move |pool| match pool.delete_snapshot(id) {
                Err(AdminError::NoSuch) => (PoolNext::Done, Ok(())),
                result => told(result.map_err(Told::Admin)),
            });
            done.await?.map_err(|error| error.into_detail(reach, "a controller's snapshot"))?;
        }
        Ok(())
    }

    /// Refuses what only the controller may do with its snapshots, as long as there is the replica.
    pub(super) fn refuse_controllers(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        if !is_controllers(what.uuid) {
            return Ok(());
        }
        let Some((data, _)) = what.name.rsplit_once('@') else { return Ok(()) };
        let tables = self.read();
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

    /// Refuses new names of snapshots while a controller takes one: its own was free when it asked. The caller has the pool's lock.
    pub(super) async fn refuse_while_pending(&self, reach: &Reach, volumes: &[Uuid]) -> Result<(), ErrorDetail> {
        let volumes = volumes.to_vec();
        let asked = move |pool: &mut Pool| {
            let owners = &pool.state().owners;
            // A volume, or the one of which a snapshot was taken.
            let of = |uuid: &Uuid| find(pool.state(), *uuid, OwnerKind::Snapshot).map_or(*uuid, |owner| owner.volume);
            let volumes: Vec<Uuid> = volumes.iter().map(of).collect();
            let is_busy = owners.iter().any(|owner| is_pending(owner) && volumes.contains(&owner.volume));
            (PoolNext::Done, is_busy)
        };
        if !self.call(reach, asked).await? {
            return Ok(());
        }
        let message = "a snapshot of the volume whose replica this is is being taken or deleted on all of its nodes";
        Err(ErrorDetail::new(Kind::InUse, message)
            .remedy("try again in a moment; where the volume is not served, when it is"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_snapshots_and_those_of_controllers_are_known() {
        let of_user = Uuid::try_parse("123e4567-e89b-42d3-a456-426614174000").expect("it is one");
        let of_all = Uuid::try_parse("123e4567-e89b-82d3-a456-426614174000").expect("it is one");
        assert!(!is_controllers(of_user) && is_controllers(of_all));
        let name = pending_name(of_all).expect("it may be a name");
        assert!(is_pending_name(name.as_str()) && refuse_pending_name(name.as_str()).is_err());
        for other in ["monday", "monday.pending", ".pending", "123e4567-e89b-82d3-a456-426614174000"] {
            assert!(!is_pending_name(other) && refuse_pending_name(other).is_ok(), "{other}");
        }
        assert!(name_for_all("auto-20261122T140000Z").is_err() && name_for_all("a b").is_err());
        assert!(name_for_all("monday").is_ok());
    }
}
