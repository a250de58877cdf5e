//! The two volumes that a replica has in its pool: its data, and its companion, which holds what its controller keeps beside the data, and
//! the register.
//!
//! Companions are named after the volume whose they are, are kept as thick volumes, so that nothing of a replica waits for space but its data, and
//! stand in no list.

use super::super::Control;
use super::super::tables::{Active, ArrayEntry, OpenDisk};
use super::controllers::{is_controllers, is_pending};
use super::create::unix_s;
use super::members::Asked;
use super::volumes::{Told, checked, find, room_for_volume, told};
use super::{Base, Reach, volumes};
use braid_advice::errors::of_ring;
use braid_api::{ErrorDetail, Kind};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{Owner, OwnerKind};
use braid_ring::{DiskSpec, stack_level_of_pool};
use std::sync::Arc;
use uuid::Uuid;

/// Ends the name of a companion, behind the identity of its replica's data.
const COMPANION: &str = ".companion";

/// What the companion of the replica with these data is called.
fn companion_name(data: Uuid) -> String {
    format!("{data}{COMPANION}")
}

/// Whether a volume of this name is a companion.
pub fn is_companion(name: &str) -> bool {
    name.strip_suffix(COMPANION).is_some_and(braid_api::names::is_uuid)
}

/// The data beside which a companion of this name stands.
pub(super) fn data_of_companion(name: &str) -> Option<Uuid> {
    Uuid::try_parse(name.strip_suffix(COMPANION).filter(|data| braid_api::names::is_uuid(data))?).ok()
}

/// Refuses names that only companions have.
pub(super) fn refuse_companions_name(name: &str) -> Result<(), ErrorDetail> {
    if !is_companion(name) {
        return Ok(());
    }
    let message = format!("{name} is a name that only companions of replicas have");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("name", name).remedy("choose another name"))
}

/// A volume of a replica that is to be made.
pub struct NewVolume {
    /// Its identity.
    pub uuid: Uuid,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes, which its snapshots have, too.
    pub block_bytes: u32,
}

impl Control {
    /// The identity and the name of a pool that may have replicas.
    ///
    /// # Errors
    /// There is none, it does not serve, or it stands on disks of other machines: after a death of the daemon their servers may still write what
    /// it had asked for, and nobody knows when that has ended.
    pub(in super::super) fn pool_for_replica(&self, pool: &str) -> Result<(Uuid, String), ErrorDetail> {
        let reach = self.reach(pool)?;
        self.refuse_closing_pool(reach.uuid)?;
        self.read().refuse_carried(
            reach.uuid,
            "it keeps no replicas of others",
            "use a pool of disks of this machine",
        )?;
        let remote = {
            let tables = self.read();
            let parts = tables.pools.get(&reach.uuid).and_then(|entry| entry.served()).map(|served| &served.parts);
            let disks = parts.into_iter().flatten().flat_map(|part| match &part.base {
                Base::Disk(disk) => vec![Arc::clone(disk)],
                Base::Array(uuid) => {
                    tables.arrays.get(uuid).and_then(ArrayEntry::active).map(Active::open_disks).unwrap_or_default()
                }
            });
            let mut remote = disks.filter(|disk| disk.disk.is_remote());
            remote.next().map(|disk| disk.name.clone())
        };
        if let Some(disk) = remote {
            let message = format!(
                "pool {} stands on {disk}, a disk of another machine, and so can have no replicas: what that has to write would not end with this daemon",
                reach.name
            );
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("pool", &reach.name)
                .with("disk", &disk)
                .remedy("use a pool of disks of this machine, or keep a replica on the other one"));
        }
        Ok((reach.uuid, reach.name))
    }

    /// Refuses further members of a pool of replicas that are disks of other machines, or arrays with such: as [`Control::pool_for_replica`].
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] with the member.
    pub(super) fn refuse_remote_under_replicas(&self, pool: &Reach, asked: &[Asked]) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let Some(replica) = tables.replica_in(pool.uuid) else { return Ok(()) };
        let is_remote = |asked: &&Asked| match asked {
            Asked::Disk(spec) => spec.remote().is_some(),
            Asked::Array(name) => tables.array(name).is_ok_and(|entry| {
                let disks = entry.active().map(Active::open_disks).unwrap_or_default();
                disks.iter().any(|disk| disk.disk.is_remote())
            }),
        };
        let Some(remote) = asked.iter().find(is_remote) else { return Ok(()) };
        let member = match remote {
            Asked::Disk(spec) => spec.to_string(),
            Asked::Array(name) => name.clone(),
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

    /// Makes the data of a replica, under this name, and its companion. `from`: as that snapshot of the pool.
    ///
    /// # Errors
    /// The name is taken, there is no room, no such snapshot; what was made is then to be removed.
    pub(in super::super) async fn make_replica_volumes(
        &self,
        pool: Uuid,
        name: &str,
        data: &NewVolume,
        companion: &NewVolume,
        from: Option<Uuid>,
    ) -> Result<(), ErrorDetail> {
        let reach = self.reach(&pool.to_string())?;
        volumes::check_size(name, data.size_bytes)?;
        volumes::check_size(name, companion.size_bytes)?;
        refuse_companions_name(name)?;
        let owner = |name: &str, new: &NewVolume| -> Result<Owner, ErrorDetail> {
            let in_sectors = volumes::check_block(name, new.block_bytes)?;
            let owner = Owner::volume(new.uuid, checked(name)?, new.size_bytes);
            Ok(Owner { created_unix_s: unix_s(), sectors_of_512: in_sectors, ..owner })
        };
        let data_owner = owner(name, data)?;
        let companion_owner = Owner { thick: true, ..owner(&companion_name(data.uuid), companion)? };
        let _one_at_a_time = reach.work.lock().await;
        for (owner, from) in [(data_owner, from), (companion_owner, None)] {
            let made = self.call(&reach, move |pool| {
                let parent = from.map(|from| {
                    let found = find(pool.state(), from, OwnerKind::Snapshot);
                    let found = found.filter(|parent| parent.size_bytes == owner.size_bytes);
                    found.map(|parent| parent.id).ok_or(Told::Admin(AdminError::NoSuch))
                });
                let result = room_for_volume(pool)
                    .and_then(|()| parent.transpose())
                    .and_then(|parent| pool.create_volume(parent, owner.clone()).map_err(Told::Admin));
                told(result.map(drop))
            });
            made.await?.map_err(|error| error.into_detail(&reach, &format!("{}/{name}", reach.name)))?;
        }
        Ok(())
    }

    /// Deletes the volumes of a replica, as far as they are there. Nobody holds them any more.
    ///
    /// # Errors
    /// The data have snapshots, or are exported; the pool does not serve.
    pub(in super::super) async fn remove_replica_volumes(
        self: &Arc<Self>,
        pool: Uuid,
        volumes: [Uuid; 2],
    ) -> Result<(), ErrorDetail> {
        let reach = self.reach(&pool.to_string())?;
        let _one_at_a_time = self.work_soon(&reach).await?;
        for uuid in volumes {
            self.remove_pending(&reach, uuid, |_| true).await?;
            let done = self.call(&reach, move |pool| {
                let id = find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.id);
                told(id.map_or(Ok(()), |id| pool.delete_volume(id).map_err(Told::Admin)))
            });
            done.await?.map_err(|error| error.into_detail(&reach, "the replica's volume"))?;
        }
        self.fold_soon(&reach);
        Ok(())
    }

    /// Whether the data of a replica have snapshots; `controllers`: those of controllers count, too.
    ///
    /// # Errors
    /// The pool does not serve.
    pub(in super::super) async fn has_snapshots_in(
        &self,
        pool: Uuid,
        volume: Uuid,
        controllers: bool,
    ) -> Result<bool, ErrorDetail> {
        let reach = self.reach(&pool.to_string())?;
        let asked = move |pool: &mut Pool| {
            let is_snapshot = |owner: &Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume;
            let counts = |owner: &Owner| !is_pending(owner) && (controllers || !is_controllers(owner.uuid));
            let of = |owner: &Owner| is_snapshot(owner) && counts(owner);
            (PoolNext::Done, pool.state().owners.iter().any(of))
        };
        self.call(&reach, asked).await
    }

    /// Opens both volumes of a replica as disks. Nobody else writes to them as long as they are open.
    ///
    /// # Errors
    /// One of them is not there, or cannot be written; the pool does not serve.
    pub(in super::super) async fn open_replica_volumes(
        self: &Arc<Self>,
        pool: Uuid,
        volumes: [Uuid; 2],
    ) -> Result<[Arc<OpenDisk>; 2], ErrorDetail> {
        let reach = self.reach(&pool.to_string())?;
        let first = self.open_replica_volume(&reach, volumes[0]).await?;
        match self.open_replica_volume(&reach, volumes[1]).await {
            Ok(second) => Ok([first, second]),
            Err(error) => {
                self.close_disks(vec![first]).await;
                Err(error)
            }
        }
    }

    /// Opens the data of a replica alone.
    ///
    /// # Errors
    /// They are not there, or cannot be written; the pool does not serve.
    pub(in super::super) async fn open_replica_data(
        self: &Arc<Self>,
        pool: Uuid,
        data: Uuid,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        self.open_replica_volume(&self.reach(&pool.to_string())?, data).await
    }

    async fn open_replica_volume(self: &Arc<Self>, pool: &Reach, uuid: Uuid) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let listening = self.listening.lock().await;
        self.refuse_closing_pool(pool.uuid)?;
        let asked = move |pool: &mut Pool| {
            let found = find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.name);
            (PoolNext::Done, found.ok_or(AdminError::NoSuch))
        };
        let own =
            self.call(pool, asked).await?.map_err(|error| volumes::of_admin(error, pool, "the replica's volume"))?;
        let name = format!("{}/{own}", pool.name);
        self.write().held_volumes.insert(uuid, pool.uuid);
        let opened = self.served_disk(pool, uuid, &name, &DiskSpec::Volume { name: name.clone() }).await;
        let disk = match opened {
            Ok(disk) => Arc::new(disk),
            Err(error) => {
                self.write().held_volumes.remove(&uuid);
                self.release_volume(&listening, pool.uuid, uuid).await;
                return Err(error);
            }
        };
        drop(listening);
        let leaf = match self.ring.add_leaf(Arc::clone(&disk)) {
            Ok(leaf) => leaf,
            Err(error) => {
                self.close_volume(uuid).await;
                return Err(of_ring(&error, &name));
            }
        };
        let (identity, entry, volume) = (None, None, Some(uuid));
        Ok(Arc::new(OpenDisk { name, disk, identity, entry, volume, leaf, watch: Default::default(), here: None }))
    }

    /// The tier of devices that stand on volumes of a pool.
    ///
    /// # Errors
    /// The pool does not serve.
    pub(in super::super) fn tier_on_pool(&self, pool: Uuid) -> Result<usize, ErrorDetail> {
        Ok(stack_level_of_pool(self.reach(&pool.to_string())?.key) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_companion_is_known_by_its_name() {
        let name = companion_name(Uuid::from_u128(7));
        assert!(is_companion(&name) && checked(&name).is_ok(), "{name}");
        for other in ["db", "db.companion", ".companion", "00000000-0000-0000-0000-000000000007"] {
            assert!(!is_companion(other) && refuse_companions_name(other).is_ok(), "{other}");
        }
        assert!(refuse_companions_name(&name).is_err());
    }
}
