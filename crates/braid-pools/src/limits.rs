//! Rate limits that all exports of a volume share.
//!
//! The limits are stored in the volume's owner. While the volume is exported, its exports share a throttle with these
//! limits, on all shards; the limits of a single export apply in addition. Snapshots have no limits: theirs would be
//! those of an earlier moment than the volume's.

use crate::PoolManager;
use braid_api::{ErrorDetail, SetVolume, Volume};
use braid_format::pool::{Owner, OwnerKind};
use braid_inventory::PoolEntry;
use braid_ring::Rates;
use std::sync::Arc;

/// Returns the limits that the exports of a volume share; none for a snapshot.
pub(crate) fn rates_of(owner: &Owner) -> Rates {
    if owner.kind != OwnerKind::Volume {
        return Rates::default();
    }
    let limit = |limit: u64| Some(limit).filter(|limit| *limit > 0);
    Rates { iops: limit(owner.limit_iops), bandwidth_bytes: limit(owner.limit_bytes_per_s) }
}

impl PoolManager {
    /// Changes the limits that the exports of a volume share. Their clients stay connected.
    ///
    /// # Errors
    /// There is no such volume; nothing can be made durable, and then nothing changes for clients.
    pub async fn set_volume(&self, volume: &str, ask: SetVolume) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        // Serving a volume needs this lock as well: its throttle either has the old limits and is found here, or has
        // the new ones.
        let _one_at_a_time = located.pool.work.lock().await;
        let SetVolume { iops_max, bandwidth_bytes_max } = ask;
        let change = move |owner: &mut Owner| {
            owner.limit_iops = iops_max.unwrap_or(owner.limit_iops);
            owner.limit_bytes_per_s = bandwidth_bytes_max.unwrap_or(owner.limit_bytes_per_s);
        };
        self.alter(&located, OwnerKind::Volume, change).await?;
        let shown = self.volume_of(&located.pool, located.uuid).await?;
        let throttle = |entry: &PoolEntry| Some(Arc::clone(&entry.served()?.volumes.get(&located.uuid)?.throttle));
        let throttle = self.inventory.read().pools.get(&located.pool.uuid).and_then(throttle);
        if let Some(throttle) = throttle {
            throttle.set(&Rates { iops: shown.iops_max, bandwidth_bytes: shown.bandwidth_bytes_max });
            // Requests that wait under the old limits are reconsidered.
            self.exports.tell_exports_changed();
        }
        let message = format!("the limits of volume {} were set", shown.name);
        self.inventory.events().info("volume_set", message, &[("volume", &shown.name)]);
        Ok(shown)
    }
}

/// Returns the owner with these limits; 0 and [`None`] both mean no limit.
pub(crate) fn with_limits(owner: Owner, iops_max: Option<u64>, bandwidth_bytes_max: Option<u64>) -> Owner {
    let (limit_iops, limit_bytes_per_s) = (iops_max.unwrap_or(0), bandwidth_bytes_max.unwrap_or(0));
    Owner { limit_iops, limit_bytes_per_s, ..owner }
}
