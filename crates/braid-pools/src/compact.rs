//! Compacts volumes while they are used: moves their scattered blocks into whole extents.

use crate::PoolManager;
use crate::errors::{VolumeError, reply_when_durable};
use braid_api::{ErrorDetail, JobState, Volume};
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::OwnerKind;
use braid_inventory::PoolWork;
use uuid::Uuid;

/// Numbers of extents that were made of scattered blocks since the pool was opened: whole ones, and packed ones.
pub(crate) type ConsolidatedExtents = (u64, u64);

impl PoolManager {
    /// Begins to compact a volume and its snapshots in the background. The compaction ends with the daemon.
    ///
    /// # Errors
    /// There is no such volume, or its pool does not serve.
    pub async fn compact_volume(&self, volume: &str) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let pool = located.pool.clone();
        let _one_at_a_time = pool.work.lock().await;
        let uuid = located.uuid;
        let called = self.call(&pool, move |pool: &mut Pool| {
            let of_volume = pool.state().owners.iter().filter(|owner| owner.uuid == uuid || owner.volume == uuid);
            let owners: Vec<u32> = of_volume.map(|owner| owner.id).collect();
            if owners.is_empty() {
                return reply_when_durable(Err(VolumeError::Admin(AdminError::NoSuch)));
            }
            pool.compact(owners);
            reply_when_durable(Ok(()))
        });
        called.await?.map_err(|error| error.into_detail(&pool, &located.name))?;
        let message = format!("volume {} is being compacted", located.name);
        self.inventory.events().info("volume_compacts", message, &[("volume", &located.name)]);
        self.begin_job(&pool, PoolWork::Compaction(uuid), Some(&located.name)).await;
        {
            let tables = self.inventory.read();
            if let Some(served) = tables.pools.get(&pool.uuid).and_then(|entry| entry.served()) {
                served.maintenance.compacts();
            }
        }
        self.volume_of(&pool, uuid).await
    }

    /// Reports the end of a compaction. `made`: extents made since it began; [`None`] if no compaction was requested.
    pub(crate) fn report_compacted(&self, uuid: Uuid, made: Option<ConsolidatedExtents>, is_full: bool) {
        if let Some(served) = self.inventory.read().pools.get(&uuid).and_then(|entry| entry.served()) {
            let state = if is_full { JobState::Failed } else { JobState::Done };
            served.jobs.end(state, |work| matches!(work, PoolWork::Compaction(_)));
        }
        let Some((whole, packed)) = made else { return };
        let name = self.inventory.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let done = format!("{whole} extents of 256 KiB were made of scattered blocks, and {packed} of small parts");
        if is_full {
            let message = format!(
                "the compaction of volumes in pool {name} has stopped for lack of space: {done}; make some free and ask again"
            );
            self.inventory.events().warning("pool_compaction_stopped", message, &[("pool", &name)]);
        } else {
            let message = format!("the compaction of volumes in pool {name} is complete: {done}");
            self.inventory.events().info("pool_compacted", message, &[("pool", &name)]);
        }
    }
}
