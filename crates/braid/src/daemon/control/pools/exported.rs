//! Volumes and snapshots as devices: served from the first export on, until the last one is gone.

use super::super::Control;
use super::super::tables::Serving;
use super::holes::VolumeHoles;
use super::{Condition, Reach, ServedVolume, volumes};
use braid_api::ErrorDetail;
use braid_engine::pool::{AdminError, Pool, VolumeId, VolumeShared};
use braid_engine::{DeviceId, DeviceLayout, Node, PoolNext, VolumeNode};
use braid_format::pool::OwnerKind;
use braid_nbd::export::Allocation;
use std::sync::Arc;
use uuid::Uuid;

/// The logical block of a volume, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// What an export is of.
pub struct Source {
    /// The device.
    pub device: DeviceId,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
    /// Nobody writes to it.
    pub read_only: bool,
    /// What it is, for clients.
    pub description: String,
    /// Where it holds nothing.
    pub allocation: Option<Arc<dyn Allocation>>,
}

/// What the home says of a volume that is served.
struct AtHome {
    id: VolumeId,
    volume: Arc<VolumeShared>,
    size_bytes: u64,
    read_only: bool,
    name: String,
}

impl Control {
    /// Serves a volume or snapshot, unless it is already; none while its pool does not serve.
    ///
    /// # Errors
    /// It is not there; there is no room for another device.
    pub(in super::super) async fn serve_volume(&self, pool: Uuid, volume: Uuid) -> Result<Option<Source>, ErrorDetail> {
        let Ok(reach) = self.reach(&pool.to_string()) else { return Ok(None) };
        let _one_at_a_time = reach.work.lock().await;
        let asked = move |pool: &mut Pool| at_home_in_slices(pool, volume);
        let at_home =
            self.call(&reach, asked).await?.map_err(|error| volumes::of_admin(error, &reach, "the volume"))?;
        let known = self.read().pools.get(&pool).and_then(|e| e.served()?.volumes.get(&volume).cloned());
        let known = match known {
            Some(known) => known,
            None => match self.publish_volume(&reach, volume, &at_home).await {
                Ok(served) => served,
                Err(error) => {
                    self.leave_volume(&reach, at_home.id).await;
                    return Err(error);
                }
            },
        };
        Ok(Some(Source {
            device: known.device,
            size_bytes: known.layout.size_bytes(),
            block_bytes: BLOCK_BYTES,
            read_only: at_home.read_only,
            description: format!("Braid volume {}/{}", reach.name, at_home.name),
            allocation: Some(Arc::new(VolumeHoles(known.layout))),
        }))
    }

    async fn publish_volume(&self, pool: &Reach, uuid: Uuid, volume: &AtHome) -> Result<ServedVolume, ErrorDetail> {
        let device = self.write().take_device()?;
        let layout = match self.publish_size(pool, device, volume).await {
            Ok(layout) => layout,
            Err(error) => {
                self.write().give_device(device);
                return Err(error);
            }
        };
        let served = ServedVolume { id: volume.id, device, layout };
        self.note_served(pool.uuid, uuid, served.clone());
        Ok(served)
    }

    fn note_served(&self, pool: Uuid, volume: Uuid, served: ServedVolume) {
        if let Some(Condition::Serves(pool)) = self.write().pools.get_mut(&pool).map(|entry| &mut entry.condition) {
            pool.volumes.insert(volume, served);
        }
    }

    async fn publish_size(
        &self,
        pool: &Reach,
        device: DeviceId,
        volume: &AtHome,
    ) -> Result<Arc<DeviceLayout>, ErrorDetail> {
        let (version, members) = {
            let mut tables = self.write();
            let places = tables.pools.get(&pool.uuid).and_then(|entry| Some(Arc::clone(&entry.served()?.places)));
            (tables.next_version(), places.unwrap_or_default())
        };
        let node = Node::Volume(Box::new(VolumeNode {
            key: pool.key,
            home: pool.home,
            pool: Arc::clone(&pool.shared),
            volume: Arc::clone(&volume.volume),
            id: volume.id,
            members,
            size_bytes: volume.size_bytes,
            read_only: volume.read_only,
        }));
        let layout = Arc::new(DeviceLayout::new(version, BLOCK_BYTES, &node));
        let published = self.ring.publish_and_drain(device, Some(Arc::clone(&layout))).await;
        published.map_err(|error| crate::daemon::errors::of_ring(&error, &volume.name))?;
        Ok(layout)
    }

    /// The volume has another size: its device gets it, if it is one. The caller has the pool's lock.
    pub(super) async fn resize_served(&self, pool: &Reach, volume: Uuid) -> Result<(), ErrorDetail> {
        let known = self.read().pools.get(&pool.uuid).and_then(|e| e.served()?.volumes.get(&volume).cloned());
        let Some(known) = known else { return Ok(()) };
        let asked = move |pool: &mut Pool| at_home_in_slices(pool, volume);
        let at_home = self.call(pool, asked).await?.map_err(|error| volumes::of_admin(error, pool, "the volume"))?;
        let layout = self.publish_size(pool, known.device, &at_home).await?;
        self.note_served(pool.uuid, volume, ServedVolume { layout: Arc::clone(&layout), ..known });
        let holes: Arc<dyn Allocation> = Arc::new(VolumeHoles(layout));
        let tables = self.read();
        for export in tables.exports.values().filter(|export| export.saved.array == volume) {
            if let Serving::Listening(export) = &export.serving {
                export.grow(at_home.size_bytes, Some(Arc::clone(&holes)));
            }
        }
        Ok(())
    }

    /// Serves a volume or snapshot no more, if nothing exports it any more.
    pub(in super::super) async fn release_volume(&self, pool: Uuid, volume: Uuid) {
        let Ok(reach) = self.reach(&pool.to_string()) else { return };
        let _one_at_a_time = reach.work.lock().await;
        let known = {
            let mut tables = self.write();
            if !tables.exports_of(volume).is_empty() {
                return;
            }
            match tables.pools.get_mut(&pool).map(|entry| &mut entry.condition) {
                Some(Condition::Serves(served)) => served.volumes.remove(&volume),
                _ => None,
            }
        };
        if let Some(known) = known {
            self.unpublish_volume(known.device).await;
            self.leave_volume(&reach, known.id).await;
        }
    }

    /// Takes a volume's device from the shards. Nothing is in flight on it when this returns.
    pub(super) async fn unpublish_volume(&self, device: DeviceId) {
        // An error says that the shards have ended: then nothing is in flight either.
        let _ = self.ring.publish_and_drain(device, None).await;
        self.write().give_device(device);
    }

    async fn leave_volume(&self, pool: &Reach, id: VolumeId) {
        let left = self.call(pool, move |pool| (PoolNext::Done, pool.leave(id))).await;
        if let Err(error) = left {
            tracing::warn!("{}", error.message);
        }
    }

    /// Restores the exports of all volumes of a pool that has just begun to serve.
    pub(super) async fn restore_pool_exports(&self, pool: Uuid) {
        let volumes: std::collections::BTreeSet<Uuid> = {
            let tables = self.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
            of.map(|export| export.saved.array).collect()
        };
        for volume in volumes {
            self.restore_exports(volume).await;
        }
    }
}

/// Serves a volume at its home, little by little.
fn at_home_in_slices(pool: &mut Pool, uuid: Uuid) -> (PoolNext, Result<AtHome, AdminError>) {
    match at_home(pool, uuid) {
        Ok(Some(at_home)) => (PoolNext::Done, Ok(at_home)),
        Ok(None) => (PoolNext::GoOn, Err(AdminError::TailFull)),
        Err(error) => (PoolNext::Done, Err(error)),
    }
}

/// Loads of memory of one slice of building a volume's map: some 100 µs, which others wait for.
const SERVE_LOADS: u32 = 8192;

/// Serves a volume at its home, unless it is already. `None`: its map is not built yet, to be asked again.
fn at_home(pool: &mut Pool, uuid: Uuid) -> Result<Option<AtHome>, AdminError> {
    let named = |owner: &&braid_format::pool::Owner| {
        owner.uuid == uuid && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot)
    };
    let owner = pool.state().owners.iter().find(named).ok_or(AdminError::NoSuch)?;
    let (owner_id, size_bytes, read_only) = (owner.id, owner.size_bytes, owner.kind == OwnerKind::Snapshot);
    let name = volumes::name_in_pool(pool.state(), owner);
    let id = match pool.served(owner_id) {
        Some(id) => id,
        None => match pool.serve_step(owner_id, SERVE_LOADS)? {
            Some(id) => id,
            None => return Ok(None),
        },
    };
    let volume = Arc::clone(pool.volume(id).ok_or(AdminError::NoSuch)?);
    Ok(Some(AtHome { id, volume, size_bytes, read_only, name }))
}
