//! Continuous measurements of a pool: how full it is, once a second, and the contents of its volumes, from time to
//! time.
//!
//! The first costs the pool's home next to nothing. For the second a separate thread reads all records, and then rests
//! a hundred times as long as that took. Metrics show the last results.

use crate::listing::count_extents;
use crate::names::is_pending;
use crate::no_space::full_members;
use crate::{PoolManager, view};
use braid_api::{ErrorDetail, PoolContents, PoolMeasured, ServedMeasured, VolumeMeasured};
use braid_engine::pool::{EXTENT_BYTES, MemberSpace};
use braid_format::pool::{Owner, OwnerKind};
use braid_inventory::{Fill, IdlePool, PoolCondition, PoolEntry, Vitals, counted};
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Minimum rest between two passes over all records, and its ratio to the duration of the pass.
const REST_MIN: Duration = Duration::from_secs(10);

const REST_TIMES: u32 = 100;

/// Maximum number of volumes of a pool that metrics show individually.
const VOLUMES_SHOWN: usize = 4096;

/// The time before which no further pass over a pool's records begins.
#[derive(Default)]
pub(crate) struct NextPass(Option<Instant>);

impl PoolManager {
    /// Records how full a pool is, and reports a change of level.
    pub(crate) fn note_vitals(&self, uuid: Uuid, mut vitals: Vitals) {
        let (name, before, now, fill_warning, shortage, full) = {
            let mut tables = self.inventory.write();
            let Some(entry) = tables.pools.get_mut(&uuid) else { return };
            let name = entry.name.clone();
            let Some(served) = entry.served_mut() else { return };
            let (size, free) = vitals.open();
            let before = served.vitals.fill;
            vitals.fill = before.next(size, free);
            let (now, fill_warning) = (vitals.fill, vitals.fill_warning());
            let shortage = (served.vitals.shortage, vitals.shortage);
            let full = full_members(served, vitals.shortage);
            served.vitals = vitals;
            (name, before, now, fill_warning, shortage, full)
        };
        self.report_shortage(&name, shortage, &full);
        let context = [("pool", name.as_str())];
        match fill_warning {
            Some(fill_warning) if now > before => {
                let message =
                    format!("pool {name}: {fill_warning}; when it is full, writes to new blocks of its volumes fail");
                match now {
                    Fill::Critical => self.inventory.events().error("pool_nearly_full", message, &context),
                    _ => self.inventory.events().warning("pool_nearly_full", message, &context),
                }
            }
            None if now < before => {
                self.inventory.events().info(
                    "pool_has_space",
                    format!("there is space in pool {name} again"),
                    &context,
                );
            }
            _ => {}
        }
    }

    /// Measures the contents of a pool's volumes, unless that was done recently.
    pub(crate) async fn measure_volumes(&self, uuid: Uuid, rest: &mut NextPass) {
        if rest.0.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let begun = Instant::now();
        if let Ok(contents) = self.contents_of(uuid).await
            && let Some(served) = self.inventory.write().pools.get_mut(&uuid).and_then(PoolEntry::served_mut)
        {
            served.contents = Arc::new(contents);
        }
        rest.0 = Some(Instant::now() + REST_MIN.max(begun.elapsed() * REST_TIMES));
    }

    async fn contents_of(&self, uuid: Uuid) -> Result<PoolContents, ErrorDetail> {
        let pool = self.serving_pool(&uuid.to_string())?;
        let owners = self.named_owners(&pool).await?;
        let shared = Arc::clone(&pool.shared);
        let contents = tasks::blocking(move || contents(&owners, &count_extents(&shared).by_owner)).await;
        Ok(contents.unwrap_or_default())
    }

    /// Returns measurements of every pool, without calls to their homes.
    pub fn pools_measured(&self) -> Vec<PoolMeasured> {
        let tables = self.inventory.read();
        tables.pools.values().map(measured).collect()
    }
}

fn measured(entry: &PoolEntry) -> PoolMeasured {
    let all = entry.label.as_ref().map_or(0, |label| label.numbered().count() as u64);
    let (state, attention) = view::state_and_attention(entry);
    let present = match &entry.condition {
        PoolCondition::Serves(served) => served.parts.len(),
        PoolCondition::Idle(IdlePool { present, .. }) => present.len(),
    };
    let (name, attention) = (entry.name.clone(), attention.len() as u64);
    let served = entry.served().map(|served| {
        let Vitals { members, zero_records, zero_records_max, owners, owners_max, .. } = &served.vitals;
        let bytes = |extents: u32| u64::from(extents) * EXTENT_BYTES;
        let of = |space: &MemberSpace| (space.member, bytes(space.extents), bytes(space.extents - space.free));
        let (size, free) = served.vitals.open();
        ServedMeasured {
            members: members.iter().map(of).collect(),
            free_bytes: free * EXTENT_BYTES,
            reserved_bytes: served.vitals.kept * EXTENT_BYTES,
            used_ratio: if size == 0 { 0.0 } else { (size - free) as f64 / size as f64 },
            zero_records: (*zero_records, *zero_records_max),
            owners: (*owners, *owners_max),
            exported: served.volumes.len() as u64,
            has_uncommitted: served.shared.is_hot(),
            has_lost_log: served.maintenance.has_lost_log() || served.log_missed,
            policies: (served.policies.len() as u64, served.policies_failing.len() as u64),
            contents: Arc::clone(&served.contents),
        }
    });
    PoolMeasured { name, state, attention, members: (all.max(present as u64), present as u64), served }
}

/// Computes the contents of volumes. `owners`: all volumes and snapshots, in the order of their creation.
fn contents(owners: &[Owner], extents: &BTreeMap<u32, u64>) -> PoolContents {
    let allocated = |owner: &Owner| extents.get(&owner.id).copied().unwrap_or(0) * EXTENT_BYTES;
    let mut volumes: BTreeMap<Uuid, VolumeMeasured> = BTreeMap::new();
    let mut all = PoolContents::default();
    for volume in owners.iter().filter(|owner| owner.kind == OwnerKind::Volume) {
        all.volumes += 1;
        all.provisioned_bytes = all.provisioned_bytes.saturating_add(volume.size_bytes);
        let measured = VolumeMeasured {
            name: volume.name.to_string(),
            size_bytes: volume.size_bytes,
            allocated_bytes: allocated(volume),
            snapshots: 0,
            snapshots_allocated_bytes: 0,
            newest_unix_s: 0,
        };
        volumes.insert(volume.uuid, measured);
    }
    for snapshot in owners.iter().filter(|owner| owner.kind == OwnerKind::Snapshot && !is_pending(owner)) {
        all.snapshots += 1;
        if let Some(of) = volumes.get_mut(&snapshot.volume) {
            of.snapshots += 1;
            of.snapshots_allocated_bytes += allocated(snapshot);
            of.newest_unix_s = snapshot.created_unix_s;
        }
    }
    all.each = volumes.into_values().collect();
    all.each.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if all.each.len() > VOLUMES_SHOWN {
        let left = all.each.len() - VOLUMES_SHOWN;
        tracing::debug!("metrics leave {} of a pool out", counted(left, "volume", "volumes"));
        all.each.truncate(VOLUMES_SHOWN);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_level_is_reached_at_once_and_ends_two_points_below() {
        let mut fill = Fill::Normal;
        let mut at = |used: u64| {
            fill = fill.next(1000, 1000 - used);
            fill
        };
        assert_eq!(
            [at(0), at(799), at(800), at(799), at(780)],
            [Fill::Normal, Fill::Normal, Fill::High, Fill::High, Fill::High]
        );
        assert_eq!([at(779), at(799), at(949), at(950)], [Fill::Normal, Fill::Normal, Fill::High, Fill::Critical]);
        assert_eq!([at(930), at(929), at(949), at(1000)], [Fill::Critical, Fill::High, Fill::High, Fill::Critical]);
        assert_eq!([at(779), at(1000)], [Fill::Normal, Fill::Critical]);
        assert_eq!(Fill::Normal.next(0, 0), Fill::Normal, "nothing takes new blocks");
    }
}
