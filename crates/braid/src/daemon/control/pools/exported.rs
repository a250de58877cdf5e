//! Volumes and snapshots as devices: served from the first export on, until the last one is gone.

use super::super::Control;
use super::super::exports::Listens;
use super::super::tables::Serving;
use super::diff::VolumeDifferences;
use super::{Condition, Reach, ServedVolume, limits, volumes};
use braid_api::ErrorDetail;
use braid_api::limits::VOLUME_BLOCK_BYTES;
use braid_engine::pool::{AdminError, Pool, VolumeId, VolumeShared};
use braid_engine::{DeviceId, DeviceLayout, Node, PoolNext, VolumeNode};
use braid_format::pool::OwnerKind;
use braid_nbd::export::{Allocation, Differences};
use braid_ring::{Rates, Throttle, stack_level_of_pool};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

/// Longest that a command waits for what is in flight on a volume that is exported no more, or has another size.
const RELEASING_MAX: Duration = Duration::from_secs(5);

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
    /// What it can be compared with.
    pub differences: Option<Arc<dyn Differences>>,
    /// What all of its exports may take together.
    pub throttle: Option<Arc<Throttle>>,
}

/// What the home says of a volume that is served.
#[derive(Clone)]
pub(super) struct AtHome {
    pub(super) id: VolumeId,
    volume: Arc<VolumeShared>,
    size_bytes: u64,
    read_only: bool,
    /// Its logical block has 512 bytes.
    in_sectors: bool,
    is_snapshot: bool,
    /// The volume that it is, or is of.
    of: Uuid,
    name: String,
    rates: Rates,
}

impl AtHome {
    /// The same with another size.
    pub(super) fn with_size(&self, size_bytes: u64) -> AtHome {
        AtHome { size_bytes, ..self.clone() }
    }
}

impl Control {
    /// Serves a volume or snapshot, unless it is already; none while its pool does not serve.
    ///
    /// # Errors
    /// It is not there; there is no room for another device.
    pub(in super::super) async fn serve_volume(
        self: &Arc<Self>,
        pool: Uuid,
        volume: Uuid,
    ) -> Result<Option<Source>, ErrorDetail> {
        let Ok(reach) = self.reach(&pool.to_string()) else { return Ok(None) };
        let _one_at_a_time = self.work_soon(&reach).await?;
        self.refuse_releasing(&reach, volume)?;
        let at_home = self.served_at_home(&reach, volume).await?;
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
            block_bytes: known.layout.request_bytes(),
            read_only: at_home.read_only,
            description: format!("Braid volume {}/{}", reach.name, at_home.name),
            allocation: Some(Arc::new(self.ring.known_zeros(known.device))),
            throttle: Some(known.throttle),
            differences: Some(Arc::new(VolumeDifferences {
                control: Arc::downgrade(self),
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

    async fn publish_volume(&self, pool: &Reach, uuid: Uuid, volume: &AtHome) -> Result<ServedVolume, ErrorDetail> {
        let device = self.write().take_device(stack_level_of_pool(pool.key))?;
        let layout = match self.publish_size(pool, device, volume).await {
            Ok((layout, _)) => layout,
            Err(error) => {
                self.write().give_device(device);
                return Err(error);
            }
        };
        let throttle = Arc::new(Throttle::with_rates(&volume.rates));
        let served = ServedVolume { id: volume.id, device, layout, throttle };
        self.note_served(pool.uuid, uuid, served.clone());
        Ok(served)
    }

    fn note_served(&self, pool: Uuid, volume: Uuid, served: ServedVolume) {
        if let Some(Condition::Serves(pool)) = self.write().pools.get_mut(&pool).map(|entry| &mut entry.condition) {
            pool.volumes.insert(volume, served);
        }
    }

    /// Publishes a volume's device. The second: whether everything that had begun before has ended.
    pub(super) async fn publish_size(
        &self,
        pool: &Reach,
        device: DeviceId,
        volume: &AtHome,
    ) -> Result<(Arc<DeviceLayout>, bool), ErrorDetail> {
        let version = self.write().next_version();
        let node = Node::Volume(Box::new(VolumeNode {
            key: pool.key,
            home: pool.home,
            pool: Arc::clone(&pool.shared),
            volume: Arc::clone(&volume.volume),
            id: volume.id,
            members: Arc::clone(&pool.places),
            size_bytes: volume.size_bytes,
            read_only: volume.read_only,
        }));
        let layout = DeviceLayout::new(version, VOLUME_BLOCK_BYTES, &node);
        let layout = if volume.in_sectors { layout.in_sectors() } else { layout };
        let layout = Arc::new(match self.lease_of(pool.uuid) {
            Some((lease, of)) => layout.leased(lease, of),
            None => layout,
        });
        // It counts from now on. What began before may wait for a disk that hangs: who lets a volume grow need not.
        let published = self.ring.publish_and_drain(device, Some(Arc::clone(&layout)));
        let Ok(published) = tokio::time::timeout(RELEASING_MAX, published).await else { return Ok((layout, false)) };
        published.map_err(|error| braid_advice::errors::of_ring(&error, &volume.name))?;
        Ok((layout, true))
    }

    /// The volume has another size: its device gets it, if it is one. The caller has the pool's lock.
    pub(super) async fn resize_served(&self, pool: &Reach, volume: Uuid) -> Result<(), ErrorDetail> {
        let known = self.read().pools.get(&pool.uuid).and_then(|e| e.served()?.volumes.get(&volume).cloned());
        let Some(known) = known else { return Ok(()) };
        let at_home = self.served_at_home(pool, volume).await?;
        let (layout, _) = self.publish_size(pool, known.device, &at_home).await?;
        self.tell_size(pool, volume, known, layout);
        Ok(())
    }

    /// Refuses what would meet requests that are under way although nothing exports the volume any more. The caller has the pool's lock.
    pub(super) fn refuse_releasing(&self, pool: &Reach, volume: Uuid) -> Result<(), ErrorDetail> {
        let releasing = |entry: &super::PoolEntry| Some(entry.served()?.releasing.contains(&volume));
        if self.read().pools.get(&pool.uuid).and_then(releasing) != Some(true) {
            return Ok(());
        }
        let message = format!("a disk of pool {} hangs with requests to what was exported before", pool.name);
        Err(ErrorDetail::new(braid_api::Kind::InUse, message)
            .with("pool", &pool.name)
            .remedy("try again when the disk answers; look at the kernel's log (dmesg)"))
    }

    /// Serves a volume at its home, unless it is already.
    pub(super) async fn served_at_home(&self, pool: &Reach, volume: Uuid) -> Result<AtHome, ErrorDetail> {
        let asked = move |pool: &mut Pool| at_home_in_slices(pool, volume);
        self.call(pool, asked).await?.map_err(|error| volumes::of_admin(error, pool, "the volume"))
    }

    /// The volume as it was published now: clients that connect from now on learn its size.
    pub(super) fn tell_size(&self, pool: &Reach, volume: Uuid, known: ServedVolume, layout: Arc<DeviceLayout>) {
        self.note_served(pool.uuid, volume, ServedVolume { layout: Arc::clone(&layout), ..known });
        let size_bytes = layout.size_bytes();
        self.tell_disk_size(volume, size_bytes);
        let tables = self.read();
        for export in tables.exports.values().filter(|export| export.saved.array == volume) {
            if let Serving::Listening(export) = &export.serving {
                export.resize(size_bytes);
            }
        }
        drop(tables);
        self.look_at_files_of(volume);
        self.resize_blocks_of(volume);
    }

    /// Serves a volume or snapshot no more, if nothing exports it any more. An export that is being added is not in the tables yet: only who
    /// may change what is listened on knows that there is none.
    pub(in super::super) async fn release_volume(self: &Arc<Self>, _listening: &Listens<'_>, pool: Uuid, volume: Uuid) {
        let Ok(reach) = self.reach(&pool.to_string()) else { return };
        let Ok(_one_at_a_time) = self.work_soon(&reach).await else {
            self.release_later(reach, volume);
            return;
        };
        let known = {
            let mut tables = self.write();
            if !tables.exports_of(volume).is_empty() || tables.held_volumes.contains_key(&volume) {
                return;
            }
            match tables.pools.get_mut(&pool).map(|entry| &mut entry.condition) {
                Some(Condition::Serves(served)) => served.volumes.remove(&volume),
                _ => None,
            }
        };
        if let Some(known) = known {
            self.let_go_of_volume(&reach, volume, known).await;
        }
    }

    /// Serves a volume no more, which is not in the tables any more. False: a disk hangs with requests to it, and it ends when that answers. The
    /// caller has the pool's lock.
    pub(super) async fn let_go_of_volume(self: &Arc<Self>, reach: &Reach, volume: Uuid, known: ServedVolume) -> bool {
        let (control, pool) = (Arc::clone(self), reach.clone());
        let mut left = Box::pin(async move {
            control.drain_volume(known.device).await;
            control.write().give_device(known.device);
            control.leave_volume(&pool, known.id).await;
        });
        if tokio::time::timeout(RELEASING_MAX, &mut left).await.is_ok() {
            return true;
        }
        // Nobody else waits for that; until the disk answers the volume cannot be served again.
        self.note_released(reach.uuid, volume, true);
        let (control, pool) = (Arc::clone(self), reach.uuid);
        tokio::spawn(async move {
            left.await;
            control.note_released(pool, volume, false);
        });
        false
    }

    /// Releases a volume when the change of its pool that is under way is done, if it is not used again by then. Nobody waits for that.
    fn release_later(self: &Arc<Self>, pool: Reach, volume: Uuid) {
        let control = Arc::clone(self);
        let released: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            drop(pool.work.lock().await);
            let listening = control.listening.lock().await;
            control.release_volume(&listening, pool.uuid, volume).await;
        });
        tokio::spawn(released);
    }

    fn note_released(&self, pool: Uuid, volume: Uuid, waits: bool) {
        if let Some(Condition::Serves(pool)) = self.write().pools.get_mut(&pool).map(|entry| &mut entry.condition) {
            if waits {
                pool.releasing.insert(volume);
            } else {
                pool.releasing.remove(&volume);
            }
        }
    }

    /// Takes a volume's device from the shards. Nothing is in flight on it when this returns.
    pub(super) async fn drain_volume(&self, device: DeviceId) {
        // An error says that the shards have ended: then nothing is in flight either.
        let _ = self.ring.publish_and_drain(device, None).await;
    }

    pub(super) async fn leave_volume(&self, pool: &Reach, id: VolumeId) {
        let left = self.call(pool, move |pool| (PoolNext::Done, pool.stop_serving(id))).await;
        if let Err(error) = left {
            tracing::warn!("{}", error.message);
        }
    }

    /// Restores the exports of all volumes of a pool that has just begun to serve.
    pub(super) async fn restore_pool_exports(self: &Arc<Self>, pool: Uuid) {
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
        Ok(None) => (PoolNext::GoOn, Err(AdminError::LogFull)),
        Err(error) => (PoolNext::Done, Err(error)),
    }
}

/// Loads of memory of one slice of building a volume's map: some 100 µs, which others wait for.
const SERVE_LOADS: u32 = 4096;

/// Serves a volume at its home, unless it is already. `None`: its map is not built yet, to be asked again.
fn at_home(pool: &mut Pool, uuid: Uuid) -> Result<Option<AtHome>, AdminError> {
    let named = |owner: &&braid_format::pool::Owner| {
        owner.uuid == uuid && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot)
    };
    let owner = pool.state().owners.iter().find(named).ok_or(AdminError::NoSuch)?;
    let (owner_id, size_bytes, is_snapshot) = (owner.id, owner.size_bytes, owner.kind == OwnerKind::Snapshot);
    let (of, in_sectors) = (if is_snapshot { owner.volume } else { uuid }, owner.sectors_of_512);
    let (name, rates) = (volumes::name_in_pool(pool.state(), owner), limits::rates_of(owner));
    let id = match pool.served(owner_id) {
        Some(id) => id,
        None => match pool.serve_step(owner_id, SERVE_LOADS)? {
            Some(id) => id,
            None => return Ok(None),
        },
    };
    let volume = Arc::clone(pool.volume(id).ok_or(AdminError::NoSuch)?);
    // So is what is in doubt.
    let read_only = pool.is_read_only(id);
    Ok(Some(AtHome { id, volume, size_bytes, read_only, in_sectors, is_snapshot, of, name, rates }))
}
