//! What all exports of a volume may take together.
//!
//! The limits stand in the volume's owner. While it is exported they are a throttle that its exports share, on all shards; what an
//! export alone may take counts besides. Snapshots have none: theirs would be of another moment than those of the volume.

use super::super::Control;
use super::PoolEntry;
use braid_api::{ErrorDetail, SetVolume, Volume};
use braid_format::pool::{Owner, OwnerKind};
use braid_ring::Rates;
use std::sync::Arc;

/// What the exports of a volume, or those of a snapshot, may take together.
pub(super) fn rates_of(owner: &Owner) -> Rates {
    if owner.kind != OwnerKind::Volume {
        return Rates::default();
    }
    let limit = |limit: u64| Some(limit).filter(|limit| *limit > 0);
    Rates { iops: limit(owner.limit_iops), bandwidth_bytes: limit(owner.limit_bytes_per_s) }
}

impl Control {
    /// Changes what the exports of a volume may take together. Their clients are not disturbed.
    ///
    /// # Errors
    /// There is no such volume; nothing can be made durable, and then nothing changes for clients.
    pub async fn set_volume(&self, volume: &str, ask: SetVolume) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        // Who begins to serve the volume has this lock as well: its throttle is of the old limits, and found here, or of the new ones.
        let _one_at_a_time = located.pool.work.lock().await;
        let SetVolume { iops_max, bandwidth_bytes_max } = ask;
        let change = move |owner: &mut Owner| {
            owner.limit_iops = iops_max.unwrap_or(owner.limit_iops);
            owner.limit_bytes_per_s = bandwidth_bytes_max.unwrap_or(owner.limit_bytes_per_s);
        };
        self.alter(&located, OwnerKind::Volume, change).await?;
        let shown = self.volume_of(&located.pool, located.uuid).await?;
        let throttle = |entry: &PoolEntry| Some(Arc::clone(&entry.served()?.volumes.get(&located.uuid)?.throttle));
        let throttle = self.read().pools.get(&located.pool.uuid).and_then(throttle);
        if let Some(throttle) = throttle {
            throttle.set(&Rates { iops: shown.iops_max, bandwidth_bytes: shown.bandwidth_bytes_max });
            // Those who wait by the old ones ask again.
            self.tell_exports_changed();
        }
        let message = format!("the limits of volume {} were set", shown.name);
        self.events().info("volume_set", message, &[("volume", &shown.name)]);
        Ok(shown)
    }
}

/// The owner with these limits; 0, or nothing: none.
pub(super) fn with_limits(owner: Owner, iops_max: Option<u64>, bandwidth_bytes_max: Option<u64>) -> Owner {
    let (limit_iops, limit_bytes_per_s) = (iops_max.unwrap_or(0), bandwidth_bytes_max.unwrap_or(0));
    Owner { limit_iops, limit_bytes_per_s, ..owner }
}
