//! Volumes and snapshots as devices: served from their first export until their last one is removed.

use crate::diff::VolumeDifferences;
use crate::errors::of_admin;
use crate::names::name_in_pool;
use crate::{PoolManager, limits};
use braid_api::ErrorDetail;
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_engine::pool::{AdminError, Pool, VolumeId, VolumeShared};
use braid_engine::{DeviceId, DeviceLayout, Node, PoolNext, VolumeNode};
use braid_exports::{ExportSource, ListeningGuard};
use braid_format::pool::OwnerKind;
use braid_inventory::{ExportCondition, PoolCondition, PoolHandle, ServedVolume};
use braid_ring::{Rates, Throttle, stack_level_of_pool};
use braid_tasks as tasks;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

/// Maximum time that a command waits for requests in flight on a volume that is not exported any more, or was resized.
const RELEASING_MAX: Duration = Duration::from_secs(5);

/// A served volume, as its home reports it.
#[derive(Clone)]
pub(crate) struct HomeVolume {
    pub(crate) id: VolumeId,
    volume: Arc<VolumeShared>,
    size_bytes: u64,
    read_only: bool,
    /// Its logical block has 512 bytes.
    in_sectors: bool,
    is_snapshot: bool,
    /// The volume itself, or the snapshot's volume.
    of: Uuid,
    name: String,
    rates: Rates,
}

impl HomeVolume {
    /// Returns a copy with another size, in bytes.
    pub(crate) fn with_size(&self, size_bytes: u64) -> HomeVolume {
        HomeVolume { size_bytes, ..self.clone() }
    }
}

impl PoolManager {
    /// Serves a volume or snapshot, unless it is served already; [`None`] while its pool does not serve.
    ///
    /// # Errors
    /// There is no such volume; no device number is free.
    pub async fn serve_volume(self: &Arc<Self>, pool: Uuid, volume: Uuid) -> Result<Option<ExportSource>, ErrorDetail> {
        let Ok(handle) = self.serving_pool(&pool.to_string()) else { return Ok(None) };
        let _one_at_a_time = self.work_soon(&handle).await?;
        self.refuse_releasing(&handle, volume)?;
        let at_home = self.served_at_home(&handle, volume).await?;
        let known = self.inventory.read().pools.get(&pool).and_then(|e| e.served()?.volumes.get(&volume).cloned());
        let known = match known {
            Some(known) => known,
            None => match self.publish_volume(&handle, volume, &at_home).await {
                Ok(served) => served,
                Err(error) => {
                    self.stop_serving_at_home(&handle, at_home.id).await;
                    return Err(error);
                }
            },
        };
        Ok(Some(ExportSource {
            device: known.device,
            size_bytes: known.layout.size_bytes(),
            block_bytes: known.layout.request_bytes(),
            read_only: at_home.read_only,
            description: format!("Braid volume {}/{}", handle.name, at_home.name),
            allocation: Some(Arc::new(self.ring.known_zeros(known.device))),
            throttle: Some(known.throttle),
            differences: Some(Arc::new(VolumeDifferences {
                manager: Arc::downgrade(self),
                runtime: tokio::runtime::Handle::current(),
                pool,
                of: volume,
                volume: at_home.of,
                is_snapshot: at_home.is_snapshot,
                zeros: self.ring.known_zeros(known.device),
                known: Mutex::default(),
            })),
        }))
    }

    async fn publish_volume(
        &self,
        pool: &PoolHandle,
        uuid: Uuid,
        volume: &HomeVolume,
    ) -> Result<ServedVolume, ErrorDetail> {
        let device = self.inventory.write().allocate_device(stack_level_of_pool(pool.key))?;
        let layout = match self.publish_size(pool, device, volume).await {
            Ok((layout, _)) => layout,
            Err(error) => {
                self.inventory.write().release_device(device);
                return Err(error);
            }
        };
        let throttle = Arc::new(Throttle::with_rates(&volume.rates));
        let served = ServedVolume { id: volume.id, device, layout, throttle };
        self.note_served(pool.uuid, uuid, served.clone());
        Ok(served)
    }

    pub(crate) fn note_served(&self, pool: Uuid, volume: Uuid, served: ServedVolume) {
        if let Some(PoolCondition::Serves(pool)) =
            self.inventory.write().pools.get_mut(&pool).map(|entry| &mut entry.condition)
        {
            pool.volumes.insert(volume, served);
        }
    }

    /// Publishes a volume's device with the size of `volume`. Returns also whether all requests that began before have
    /// ended within [`RELEASING_MAX`].
    pub(crate) async fn publish_size(
        &self,
        pool: &PoolHandle,
        device: DeviceId,
        volume: &HomeVolume,
    ) -> Result<(Arc<DeviceLayout>, bool), ErrorDetail> {
        let version = self.inventory.write().next_layout_version();
        let node = Node::Volume(Box::new(VolumeNode {
            key: pool.key,
            home: pool.home,
            pool: Arc::clone(&pool.shared),
            volume: Arc::clone(&volume.volume),
            id: volume.id,
            members: Arc::clone(&pool.locations),
            size_bytes: volume.size_bytes,
            read_only: volume.read_only,
        }));
        let layout = DeviceLayout::new(version, VOLUME_BLOCK_BYTES, &node);
        let layout = if volume.in_sectors { layout.with_sector_requests() } else { layout };
        let layout = Arc::new(match self.lease_of(pool.uuid) {
            Some((lease, of)) => layout.leased(lease, of),
            None => layout,
        });
        // The new layout is in effect from now on. Requests that began before may wait for a disk that hangs: growing a
        // volume does not have to wait for them.
        let published = self.ring.publish_and_drain(device, Some(Arc::clone(&layout)));
        let Ok(published) = tokio::time::timeout(RELEASING_MAX, published).await else { return Ok((layout, false)) };
        published.map_err(|error| braid_advice::errors::ring_error(&error, &volume.name))?;
        Ok((layout, true))
    }

    /// Gives a resized volume's device the new size, if the volume is served. The caller has the pool's lock.
    pub(crate) async fn resize_served(&self, pool: &PoolHandle, volume: Uuid) -> Result<(), ErrorDetail> {
        let known = self.inventory.read().pools.get(&pool.uuid).and_then(|e| e.served()?.volumes.get(&volume).cloned());
        let Some(known) = known else { return Ok(()) };
        let at_home = self.served_at_home(pool, volume).await?;
        let (layout, _) = self.publish_size(pool, known.device, &at_home).await?;
        self.record_size(pool, volume, known, layout);
        Ok(())
    }

    /// Refuses a volume with requests in flight although it is not exported any more. The caller has the pool's lock.
    pub(crate) fn refuse_releasing(&self, pool: &PoolHandle, volume: Uuid) -> Result<(), ErrorDetail> {
        let releasing = |entry: &braid_inventory::PoolEntry| Some(entry.served()?.releasing.contains(&volume));
        if self.inventory.read().pools.get(&pool.uuid).and_then(releasing) != Some(true) {
            return Ok(());
        }
        let message = format!("a disk of pool {} hangs with requests to what was exported before", pool.name);
        Err(ErrorDetail::new(braid_api::Kind::InUse, message)
            .with("pool", &pool.name)
            .remedy("try again when the disk answers; look at the kernel's log (dmesg)"))
    }

    /// Serves a volume at its home, unless it is served already.
    pub(crate) async fn served_at_home(&self, pool: &PoolHandle, volume: Uuid) -> Result<HomeVolume, ErrorDetail> {
        let query = move |pool: &mut Pool| at_home_in_slices(pool, volume);
        self.call(pool, query).await?.map_err(|error| of_admin(error, pool, "the volume"))
    }

    /// Records the volume's published layout: clients that connect from now on get its size.
    pub(crate) fn record_size(&self, pool: &PoolHandle, volume: Uuid, known: ServedVolume, layout: Arc<DeviceLayout>) {
        self.note_served(pool.uuid, volume, ServedVolume { layout: Arc::clone(&layout), ..known });
        let size_bytes = layout.size_bytes();
        self.update_disk_size(volume, size_bytes);
        let tables = self.inventory.read();
        for export in tables.exports.values().filter(|export| export.saved.array == volume) {
            if let ExportCondition::Listening(export) = &export.serving {
                export.resize(size_bytes);
            }
        }
        drop(tables);
        self.exports.refresh_file_sizes(volume);
        self.exports.resize_blocks_of(volume);
    }

    /// Stops serving a volume or snapshot, unless it is exported or open as a disk. An export that is being added is
    /// not in the tables yet, but its command has the lock of listening addresses: so the caller has to have that lock.
    pub async fn release_volume(self: &Arc<Self>, _listening: &ListeningGuard<'_>, pool: Uuid, volume: Uuid) {
        let Ok(handle) = self.serving_pool(&pool.to_string()) else { return };
        let Ok(_one_at_a_time) = self.work_soon(&handle).await else {
            self.release_later(handle, volume);
            return;
        };
        let known = {
            let mut tables = self.inventory.write();
            if !tables.exports_of(volume).is_empty() || tables.held_volumes.contains_key(&volume) {
                return;
            }
            match tables.pools.get_mut(&pool).map(|entry| &mut entry.condition) {
                Some(PoolCondition::Serves(served)) => served.volumes.remove(&volume),
                _ => None,
            }
        };
        if let Some(known) = known {
            self.stop_serving_volume(&handle, volume, known).await;
        }
    }

    /// Stops serving a volume whose entry the caller has removed from the pool's served volumes. Returns false if a
    /// disk hangs with requests to the volume: then this continues in the background until the disk responds. The
    /// caller has the pool's lock.
    pub(crate) async fn stop_serving_volume(
        self: &Arc<Self>,
        handle: &PoolHandle,
        volume: Uuid,
        known: ServedVolume,
    ) -> bool {
        let (manager, pool) = (Arc::clone(self), handle.clone());
        let mut left = Box::pin(async move {
            manager.drain_volume(known.device).await;
            manager.inventory.write().release_device(known.device);
            manager.stop_serving_at_home(&pool, known.id).await;
        });
        if tokio::time::timeout(RELEASING_MAX, &mut left).await.is_ok() {
            return true;
        }
        // The caller does not wait for this; until the disk responds, the volume cannot be served again.
        self.note_released(handle.uuid, volume, true);
        let (manager, pool) = (Arc::clone(self), handle.uuid);
        tasks::spawn(async move {
            left.await;
            manager.note_released(pool, volume, false);
        });
        false
    }

    /// Releases a volume when the running change of its pool is done, unless the volume is in use again by then. The
    /// caller does not wait for that.
    fn release_later(self: &Arc<Self>, pool: PoolHandle, volume: Uuid) {
        let manager = Arc::clone(self);
        let released: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            drop(pool.work.lock().await);
            let listening = manager.exports.listening_lock.lock().await;
            manager.release_volume(&listening, pool.uuid, volume).await;
        });
        tasks::spawn(released);
    }

    fn note_released(&self, pool: Uuid, volume: Uuid, waits: bool) {
        if let Some(PoolCondition::Serves(pool)) =
            self.inventory.write().pools.get_mut(&pool).map(|entry| &mut entry.condition)
        {
            if waits {
                pool.releasing.insert(volume);
            } else {
                pool.releasing.remove(&volume);
            }
        }
    }

    /// Takes a volume's device from the shards. Nothing is in flight on it when this returns.
    pub(crate) async fn drain_volume(&self, device: DeviceId) {
        // An error says that the shards have ended: then nothing is in flight either.
        let _ = self.ring.publish_and_drain(device, None).await;
    }

    pub(crate) async fn stop_serving_at_home(&self, pool: &PoolHandle, id: VolumeId) {
        let left = self.call(pool, move |pool| (PoolNext::Done, pool.stop_serving(id))).await;
        if let Err(error) = left {
            tracing::warn!("{}", error.message);
        }
    }

    /// Restores the exports of all volumes of a pool that has just begun to serve.
    pub(crate) async fn restore_pool_exports(self: &Arc<Self>, pool: Uuid) {
        let volumes: std::collections::BTreeSet<Uuid> = {
            let tables = self.inventory.read();
            let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool));
            of.map(|export| export.saved.array).collect()
        };
        for volume in volumes {
            self.exports.restore_exports(volume).await;
        }
    }
}

/// Serves a volume at its home, in slices.
fn at_home_in_slices(pool: &mut Pool, uuid: Uuid) -> (PoolNext, Result<HomeVolume, AdminError>) {
    match at_home(pool, uuid) {
        Ok(Some(at_home)) => (PoolNext::Done, Ok(at_home)),
        Ok(None) => (PoolNext::NextTurn, Err(AdminError::LogFull)),
        Err(error) => (PoolNext::Done, Err(error)),
    }
}

/// Memory loads in one slice of building a volume's map: some 100 µs, during which other requests wait.
const SERVE_LOADS: u32 = 4096;

/// Serves a volume at its home, unless it is served already. [`None`]: its map is not complete yet, and the caller has
/// to call again.
fn at_home(pool: &mut Pool, uuid: Uuid) -> Result<Option<HomeVolume>, AdminError> {
    let named = |owner: &&braid_format::pool::Owner| {
        owner.uuid == uuid && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot)
    };
    let owner = pool.state().owners.iter().find(named).ok_or(AdminError::NoSuch)?;
    let (owner_id, size_bytes, is_snapshot) = (owner.id, owner.size_bytes, owner.kind == OwnerKind::Snapshot);
    let (of, in_sectors) = (if is_snapshot { owner.volume } else { uuid }, owner.sectors_of_512);
    let (name, rates) = (name_in_pool(pool.state(), owner), limits::rates_of(owner));
    let id = match pool.served(owner_id) {
        Some(id) => id,
        None => match pool.serve_step(owner_id, SERVE_LOADS)? {
            Some(id) => id,
            None => return Ok(None),
        },
    };
    let volume = Arc::clone(pool.volume(id).ok_or(AdminError::NoSuch)?);
    // A volume in doubt is read-only, too.
    let read_only = pool.is_read_only(id);
    Ok(Some(HomeVolume { id, volume, size_bytes, read_only, in_sectors, is_snapshot, of, name, rates }))
}
