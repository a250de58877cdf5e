//! Rolls a volume back to a snapshot while its clients wait.
//!
//! | step | on disk | clients |
//! |---|---|---|
//! | 1. requests are held: connections and devices stay, no further request begins | old | wait |
//! | 2. requests in flight are answered, and the volume's device is drained | old | wait |
//! | 3. the volume is not served any more | old | wait |
//! | 4. the rollback is committed | new | wait |
//! | 5. the volume is served again, with the same device | new | wait |
//! | 6. requests are released | new | read the content of the snapshot |
//!
//! A request is never divided between both contents: it has ended before step 3, or begins after step 5. A failure
//! before step 4 releases the clients with the old content. If the daemon dies, the next one finds either content, as
//! the commit is atomic, and its clients connect again.

use crate::PoolManager;
use crate::errors::{VolumeError, reply_when_durable};
use crate::locate::Located;
use crate::names::find;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind, RollbackVolume, Volume};
use braid_engine::pool::AdminError;
use braid_engine::{PoolNext, ShardId};
use braid_export::Export;
use braid_exports::ListeningGuard;
use braid_format::pool::OwnerKind;
use braid_inventory::state::SavedExport;
use braid_inventory::{ExportCondition, NBD_FRONTEND, PoolHandle, ServedVolume};
use braid_nbd::server::CountUnanswered;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

/// Maximum time in which the requests in flight have to be answered.
const ANSWERING_MAX: Duration = Duration::from_secs(5);

/// Interval between two counts of the requests in flight.
const COUNT_INTERVAL: Duration = Duration::from_millis(2);

/// An export whose clients wait.
type HeldExport = (SavedExport, Arc<Export>);

impl PoolManager {
    /// Rolls a volume back to a snapshot. Later changes of the volume are lost, and the snapshot stays. Clients of the
    /// volume wait meanwhile; their requests in flight are answered before.
    ///
    /// # Errors
    /// The snapshot is in another pool, or has other blocks than clients know; a file system of this machine is mounted
    /// on the volume, or the volume was a member of an array that does not serve, and `force` is not set; requests in
    /// flight are not answered in time. Then nothing has changed. [`Kind::NoSpace`]: the pool cannot make the rollback
    /// durable now; it may become durable later, when there is space.
    pub async fn rollback_volume(self: &Arc<Self>, volume: &str, ask: RollbackVolume) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let snapshot = match ask.snapshot.strip_prefix('@') {
            Some(own) => self.locate(&format!("{}@{own}", located.name), OwnerKind::Snapshot).await?,
            None => self.locate(&ask.snapshot, OwnerKind::Snapshot).await?,
        };
        if snapshot.pool.uuid != located.pool.uuid {
            let message = format!("snapshot {} is in another pool than volume {}", snapshot.name, located.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("name one of the same pool"));
        }
        let listening = self.exports.listening_lock.lock().await;
        let pool = located.pool.clone();
        let _one_at_a_time = self.work_soon(&pool).await?;
        self.refuse_held(&located, "rolled back")?;
        self.refuse_releasing(&pool, located.uuid)?;
        if !ask.force {
            self.inventory.refuse_last_member_on(&located.name)?;
            self.exports.refuse_mounted(located.uuid, &located.name).await?;
        }
        self.refuse_other_blocks(&located, &snapshot).await?;
        let known =
            self.inventory.read().pools.get(&pool.uuid).and_then(|e| e.served()?.volumes.get(&located.uuid).cloned());
        match known {
            Some(known) => self.roll_back_served(&listening, &located, &snapshot, known).await?,
            None => self.roll_back_at_home(&located, &snapshot).await?,
        }
        let message = format!("rolled back volume {} to snapshot {}", located.name, snapshot.name);
        self.inventory.events().info("volume_rolled_back", message, &[("volume", &located.name)]);
        self.volume_of(&pool, located.uuid).await
    }

    /// Rolls a volume back at its home. It is not served.
    async fn roll_back_at_home(&self, volume: &Located, snapshot: &Located) -> Result<(), ErrorDetail> {
        let (pool, of, to) = (&volume.pool, volume.uuid, snapshot.uuid);
        let done = self.call(pool, move |pool| {
            let id = |uuid, kind| find(pool.state(), uuid, kind).map(|owner| owner.id).ok_or(AdminError::NoSuch);
            let result = id(of, OwnerKind::Volume).and_then(|volume| Ok((volume, id(to, OwnerKind::Snapshot)?)));
            reply_when_durable(
                result.and_then(|(volume, to)| pool.rollback(volume, to)).map(drop).map_err(VolumeError::Admin),
            )
        });
        let done = done.await;
        // After an error, too: a rollback that cannot be made durable now may become durable when there is space again.
        self.merge_soon(pool);
        done?.map_err(|error| error.into_detail(pool, &volume.name))
    }

    /// Rolls a served volume back while its clients wait.
    async fn roll_back_served(
        self: &Arc<Self>,
        _listening: &ListeningGuard<'_>,
        volume: &Located,
        snapshot: &Located,
        known: ServedVolume,
    ) -> Result<(), ErrorDetail> {
        let pool = &volume.pool;
        let exports = self.hold_clients(volume.uuid);
        if let Err(error) = self.wait_until_answered(volume, &exports, &known).await {
            self.release_clients(&exports).await;
            return Err(error);
        }
        self.drain_volume(known.device).await;
        self.stop_serving_at_home(pool, known.id).await;
        let done = self.roll_back_at_home(volume, snapshot).await;
        // With the new content, or with the old one if that failed.
        let served = self.serve_again(pool, volume.uuid, &known).await;
        match served {
            Ok(()) => self.release_clients(&exports).await,
            Err(error) => {
                self.abandon_served(pool, volume.uuid, &known);
                for (saved, _) in &exports {
                    self.exports.fail_export(&saved.name, error.clone());
                }
                return done.and(Err(error));
            }
        }
        done
    }

    /// Begins to hold the requests of all clients of a volume.
    fn hold_clients(&self, volume: Uuid) -> Vec<HeldExport> {
        let exports: Vec<HeldExport> = {
            let tables = self.inventory.read();
            let of = tables.exports.values().filter(|entry| entry.saved.array == volume);
            let listening = of.filter_map(|entry| match &entry.serving {
                ExportCondition::Listening(export) => Some((entry.saved.clone(), Arc::clone(export))),
                _ => None,
            });
            listening.collect()
        };
        for (saved, export) in &exports {
            match Address::parse(&saved.nbd) {
                Ok(Address::Ublk { .. }) => self.exports.quiesce_block(saved),
                Ok(Address::Fuse(_)) => self.exports.detach_file(saved.uuid),
                _ => export.hold(true),
            }
        }
        exports
    }

    /// Lets the clients continue.
    async fn release_clients(self: &Arc<Self>, exports: &[HeldExport]) {
        for (saved, export) in exports {
            match Address::parse(&saved.nbd) {
                Ok(Address::Ublk { .. }) => self.exports.resume_block(saved, export),
                Ok(Address::Fuse(path)) => {
                    if let Err(error) = self.exports.serve_file(saved, &path, export).await {
                        self.exports.fail_export(&saved.name, error);
                    }
                }
                _ => export.hold(false),
            }
        }
    }

    /// Waits until all requests that began before the hold have ended. Afterwards nothing is in flight on the volume's
    /// device.
    async fn wait_until_answered(
        &self,
        volume: &Located,
        exports: &[HeldExport],
        known: &ServedVolume,
    ) -> Result<(), ErrorDetail> {
        let until = Instant::now() + ANSWERING_MAX;
        for (saved, export) in exports {
            match Address::parse(&saved.nbd) {
                // The drain below covers them: each request is one of the engine, too.
                Ok(Address::Ublk { .. }) => {}
                Ok(Address::Fuse(path)) => self.exports.wait_for_detached_file(saved.uuid, &path).await?,
                _ => {
                    while self.unanswered(export, until).await > 0 {
                        if Instant::now() >= until {
                            return Err(not_answered(volume, &saved.name));
                        }
                        tokio::time::sleep(COUNT_INTERVAL).await;
                    }
                }
            }
        }
        let at_home = self.served_at_home(&volume.pool, volume.uuid).await?;
        let (layout, is_drained) = self.publish_size(&volume.pool, known.device, &at_home).await?;
        self.note_served(volume.pool.uuid, volume.uuid, ServedVolume { layout, ..known.clone() });
        if is_drained {
            return Ok(());
        }
        let message = format!("a disk of pool {} hangs with requests to volume {}", volume.pool.name, volume.name);
        Err(ErrorDetail::new(Kind::TimedOut, message)
            .with("volume", &volume.name)
            .remedy("nothing has changed; try again when the disk answers, and look at the kernel's log (dmesg)"))
    }

    /// Returns the number of unanswered NBD requests of an export; not zero if a shard does not answer in time.
    async fn unanswered(&self, export: &Arc<Export>, until: Instant) -> u32 {
        let mut sum = 0;
        for shard in 0..self.ring.shards() {
            let (sender, reply) = oneshot::channel();
            let count = CountUnanswered {
                export: Arc::clone(export),
                reply: Box::new(move |count| {
                    // The command may have ended meanwhile.
                    let _ = sender.send(count);
                }),
            };
            self.ring.post(ShardId(shard), NBD_FRONTEND, Box::new(count));
            sum += match tokio::time::timeout_at(until, reply).await {
                Ok(Ok(count)) => count,
                // The shard has stopped: nothing is in flight on it.
                Ok(Err(_)) => 0,
                Err(_) => 1,
            };
        }
        sum
    }

    /// Serves a volume again, with the device that it had.
    async fn serve_again(&self, pool: &PoolHandle, volume: Uuid, known: &ServedVolume) -> Result<(), ErrorDetail> {
        let at_home = self.served_at_home(pool, volume).await?;
        match self.publish_size(pool, known.device, &at_home).await {
            Ok((layout, _)) => {
                self.record_size(pool, volume, ServedVolume { id: at_home.id, ..known.clone() }, layout);
                Ok(())
            }
            Err(error) => {
                self.stop_serving_at_home(pool, at_home.id).await;
                Err(error)
            }
        }
    }

    /// Forgets the device of a volume that could not be served again.
    fn abandon_served(&self, pool: &PoolHandle, volume: Uuid, known: &ServedVolume) {
        let mut tables = self.inventory.write();
        if let Some(braid_inventory::PoolCondition::Serves(served)) =
            tables.pools.get_mut(&pool.uuid).map(|entry| &mut entry.condition)
            && served.volumes.remove(&volume).is_some()
        {
            tables.release_device(known.device);
        }
    }

    /// Refuses to change the size of the blocks of an exported volume: its clients know the present one.
    async fn refuse_other_blocks(&self, volume: &Located, snapshot: &Located) -> Result<(), ErrorDetail> {
        let exports = self.inventory.read().exports_of(volume.uuid);
        let Some(first) = exports.first() else { return Ok(()) };
        let (of, to) = (volume.uuid, snapshot.uuid);
        let differ = self.call(&volume.pool, move |pool| {
            let blocks = |uuid, kind| find(pool.state(), uuid, kind).map(|owner| owner.sectors_of_512);
            (PoolNext::Done, blocks(of, OwnerKind::Volume) != blocks(to, OwnerKind::Snapshot))
        });
        if !differ.await? {
            return Ok(());
        }
        let message = format!(
            "snapshot {} has blocks of another size than volume {}, and the clients of its exports ({}) know the present size",
            snapshot.name,
            volume.name,
            exports.join(", ")
        );
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &volume.name)
            .with("export", first)
            .remedy(format!("braid export remove {first} first, and add it again afterwards")))
    }
}

fn not_answered(volume: &Located, export: &str) -> ErrorDetail {
    let message = format!(
        "volume {} was not rolled back: requests of clients of export {export} were not complete within {} s",
        volume.name,
        ANSWERING_MAX.as_secs()
    );
    ErrorDetail::new(Kind::TimedOut, message).with("volume", &volume.name).with("export", export).remedy(format!(
        "nothing has changed; try again, or disconnect its clients first (braid export remove {export})"
    ))
}
