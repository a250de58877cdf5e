//! What a volume has scattered is put together while it is used.

use super::super::Control;
use super::jobs::Work;
use super::volumes::{Told, told};
use braid_api::{ErrorDetail, JobState, Volume};
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::OwnerKind;
use uuid::Uuid;

/// So many extents of each kind were made of scattered blocks since the pool was opened: whole ones, and ones of small parts.
pub(super) type PutTogether = (u64, u64);

impl Control {
    /// Lets what a volume and its snapshots have scattered be put together little by little. The end of the daemon ends it.
    ///
    /// # Errors
    /// There is no such volume, or its pool does not serve.
    pub async fn compact_volume(&self, volume: &str) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let pool = located.pool.clone();
        let _one_at_a_time = pool.work.lock().await;
        let uuid = located.uuid;
        let asked = self.call(&pool, move |pool: &mut Pool| {
            let of_volume = pool.state().owners.iter().filter(|owner| owner.uuid == uuid || owner.volume == uuid);
            let owners: Vec<u32> = of_volume.map(|owner| owner.id).collect();
            if owners.is_empty() {
                return told(Err(Told::Admin(AdminError::NoSuch)));
            }
            pool.compact(owners);
            told(Ok(()))
        });
        asked.await?.map_err(|error| error.into_detail(&pool, &located.name))?;
        let message = format!("what volume {} has scattered is being put together", located.name);
        self.events().info("volume_compacts", message, &[("volume", &located.name)]);
        self.begin_job(&pool, Work::Compaction(uuid), Some(&located.name)).await;
        {
            let tables = self.read();
            if let Some(served) = tables.pools.get(&pool.uuid).and_then(|entry| entry.served()) {
                served.tending.compacts();
            }
        }
        self.volume_of(&pool, uuid).await
    }

    /// It has ended; `made` since it began, and none where there was nothing to do.
    pub(super) fn tell_compacted(&self, uuid: Uuid, made: Option<PutTogether>, is_full: bool) {
        if let Some(served) = self.read().pools.get(&uuid).and_then(|entry| entry.served()) {
            let state = if is_full { JobState::Failed } else { JobState::Done };
            served.jobs.end(state, |work| matches!(work, Work::Compaction(_)));
        }
        let Some((whole, packed)) = made else { return };
        let name = self.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let done = format!("{whole} extents of 256 KiB were made of scattered blocks, and {packed} of small parts");
        if is_full {
            let message = format!(
                "putting together what volumes of pool {name} have scattered has ended for want of space: {done}; make some free and ask again"
            );
            self.events().warning("pool_compaction_stopped", message, &[("pool", &name)]);
        } else {
            let message = format!("what volumes of pool {name} had scattered is put together: {done}");
            self.events().info("pool_compacted", message, &[("pool", &name)]);
        }
    }
}
