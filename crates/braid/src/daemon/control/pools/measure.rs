//! What is watched of a pool all the time: how full it is, once a second, and what its volumes have, now and then.
//!
//! The first costs its home nothing to speak of. For the second all records are looked at, by a thread of its own, which rests a hundred
//! times as long as it took. Metrics show what was found last.

use super::super::{Control, counted};
use super::controllers::is_pending;
use super::starved::{Lacking, full_members};
use super::{Condition, Idle, PoolEntry, view};
use braid_api::{ErrorDetail, PoolState};
use braid_engine::pool::{EXTENT_BYTES, ExtentId, MEMBERS_MAX, MemberSpace, OWNER_HELD, Pool, PoolShared};
use braid_format::pool::{Owner, OwnerKind};
use braid_geometry::units::format_size;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The shortest rest between two looks at all records, and how many times as long as the look took.
const REST: Duration = Duration::from_secs(10);
const REST_TIMES: u32 = 100;
/// Volumes of a pool that metrics show one by one.
const VOLUMES_SHOWN: usize = 4096;

/// How full a pool is, in levels that are said once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Fill {
    /// There is room.
    #[default]
    Room,
    /// 80 % are handed out.
    Much,
    /// 95 %.
    NearlyAll,
}

impl Fill {
    /// The level now. One that was reached is left at two points below it.
    fn next(self, size: u64, free: u64) -> Fill {
        let used = u128::from(size.saturating_sub(free)) * 100;
        let over = |percent: u32| size > 0 && used >= u128::from(size) * u128::from(percent);
        let at = |level: Fill, percent: u32| over(percent) || self >= level && over(percent - 2);
        match () {
            () if at(Fill::NearlyAll, 95) => Fill::NearlyAll,
            () if at(Fill::Much, 80) => Fill::Much,
            () => Fill::Room,
        }
    }
}

/// How full a pool is, as its home said within the last second.
#[derive(Clone, Debug, Default)]
pub struct Vitals {
    members: Vec<MemberSpace>,
    /// Extents that are free and kept for thick volumes.
    kept: u64,
    zero_records: u64,
    zero_records_max: u64,
    owners: u64,
    owners_max: u64,
    fill: Fill,
    /// Where its own writes find no space below.
    pub lacking: Lacking,
}

impl Vitals {
    /// Asked at home.
    pub fn of(pool: &Pool) -> Vitals {
        let (members, state) = (pool.space(), pool.state());
        let zero_records_max = members.iter().map(|space| u64::from(state.zero_slots(space.member))).sum();
        let owners_max = u64::from(state.owners.slots());
        Vitals {
            members,
            kept: pool.reserved_extents(),
            zero_records: zero_records_max - state.free_zero_slots() as u64,
            zero_records_max,
            owners: owners_max - u64::from(state.owners.free_slots()),
            owners_max,
            fill: Fill::Room,
            lacking: Lacking::of(pool),
        }
    }

    /// Extents of members that take new blocks, and those of them that anybody can have.
    fn open(&self) -> (u64, u64) {
        let open = self.members.iter().filter(|space| !space.closed);
        let sum = |(all, free), space: &MemberSpace| (all + u64::from(space.extents), free + u64::from(space.free));
        let (all, free) = open.fold((0, 0), sum);
        (all, free.saturating_sub(self.kept))
    }

    /// How full it is, if that needs attention.
    pub fn trouble(&self) -> Option<String> {
        let (all, free) = self.open();
        let percent = (all - free) * 100 / all.max(1);
        (self.fill > Fill::Room)
            .then(|| format!("it is {percent} % full, {} are free", format_size(free * EXTENT_BYTES)))
    }
}

/// What one volume has.
#[derive(Clone, Debug)]
pub struct VolumeMeasured {
    /// As in `tank/db`, without the pool.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Extents of its own.
    pub allocated_bytes: u64,
    /// How many snapshots of it there are.
    pub snapshots: u64,
    /// Extents that stand under their names.
    pub snapshots_allocated_bytes: u64,
    /// When the last one was taken; 0: there is none.
    pub newest_unix_s: u64,
}

/// What the volumes of a pool have, as of the last look.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// How many there are.
    pub volumes: u64,
    /// Their sizes together.
    pub promised_bytes: u64,
    /// How many snapshots of them.
    pub snapshots: u64,
    /// The first ones, by name.
    pub each: Vec<VolumeMeasured>,
}

/// When all records of a pool are looked at again.
#[derive(Default)]
pub struct Rest(Option<Instant>);

/// One pool, as metrics show it. Whatever is not known is absent.
pub struct PoolMeasured {
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub state: PoolState,
    /// How many things need attention.
    pub attention: u64,
    /// Members that it has, and those that are here.
    pub members: (u64, u64),
    /// Of a pool that serves.
    pub served: Option<ServedMeasured>,
}

/// What is known of a pool that serves.
pub struct ServedMeasured {
    /// By number: what it has for data, and what of that is handed out, in bytes.
    pub members: Vec<(u8, u64, u64)>,
    /// What can be handed out now, in bytes.
    pub free_bytes: u64,
    /// What is free and kept for thick volumes, in bytes.
    pub reserved_bytes: u64,
    /// What is handed out or kept of members that take new blocks, from 0 to 1.
    pub used_ratio: f64,
    /// Records of zeros, and how many there can be.
    pub zero_records: (u64, u64),
    /// Volumes and snapshots, also deleted ones of which something is left, and how many there can be.
    pub owners: (u64, u64),
    /// Volumes and snapshots that are exported.
    pub exported: u64,
    /// Something that was acknowledged is in the tail alone.
    pub is_hot: bool,
    /// The tail was lost.
    pub has_lost_tail: bool,
    /// Volumes with a policy, and those of which no snapshot can be taken.
    pub policies: (u64, u64),
    /// What its volumes have.
    pub contents: Arc<Contents>,
}

impl Control {
    /// Notes how full a pool is, and says so where that has become another level.
    pub(super) fn note_vitals(&self, uuid: Uuid, mut vitals: Vitals) {
        let (name, before, now, trouble, lacking, full) = {
            let mut tables = self.write();
            let Some(entry) = tables.pools.get_mut(&uuid) else { return };
            let name = entry.name.clone();
            let Some(served) = entry.served_mut() else { return };
            let (size, free) = vitals.open();
            let before = served.vitals.fill;
            vitals.fill = before.next(size, free);
            let (now, trouble) = (vitals.fill, vitals.trouble());
            let lacking = (served.vitals.lacking, vitals.lacking);
            let full = full_members(served, vitals.lacking);
            served.vitals = vitals;
            (name, before, now, trouble, lacking, full)
        };
        self.tell_lacking(&name, lacking, &full);
        let context = [("pool", name.as_str())];
        match trouble {
            Some(trouble) if now > before => {
                let message =
                    format!("pool {name}: {trouble}; when nothing is, writes to new blocks of its volumes get errors");
                match now {
                    Fill::NearlyAll => self.events().error("pool_nearly_full", message, &context),
                    _ => self.events().warning("pool_nearly_full", message, &context),
                }
            }
            None if now < before => {
                self.events().info("pool_has_space", format!("there is space in pool {name} again"), &context);
            }
            _ => {}
        }
    }

    /// Looks what the volumes of a pool have, unless that was done a while ago.
    pub(super) async fn measure_volumes(&self, uuid: Uuid, rest: &mut Rest) {
        if rest.0.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let begun = Instant::now();
        if let Ok(contents) = self.contents_of(uuid).await
            && let Some(served) = self.write().pools.get_mut(&uuid).and_then(PoolEntry::served_mut)
        {
            served.contents = Arc::new(contents);
        }
        rest.0 = Some(Instant::now() + REST.max(begun.elapsed() * REST_TIMES));
    }

    async fn contents_of(&self, uuid: Uuid) -> Result<Contents, ErrorDetail> {
        let pool = self.reach(&uuid.to_string())?;
        let owners = self.named_owners(&pool).await?;
        let shared = Arc::clone(&pool.shared);
        let contents = tokio::task::spawn_blocking(move || contents(&owners, &owned(&shared).by_owner)).await;
        Ok(contents.unwrap_or_default())
    }

    /// Every pool, as it can be seen without asking its home.
    pub fn pools_measured(&self) -> Vec<PoolMeasured> {
        let tables = self.read();
        tables.pools.values().map(measured).collect()
    }
}

fn measured(entry: &PoolEntry) -> PoolMeasured {
    let all = entry.label.as_ref().map_or(0, |label| label.numbered().count() as u64);
    let (state, attention) = view::state_and_attention(entry);
    let here = match &entry.condition {
        Condition::Serves(served) => served.parts.len(),
        Condition::Idle(Idle { present, .. }) => present.len(),
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
            is_hot: served.shared.is_hot(),
            has_lost_tail: served.tending.has_lost_tail() || served.tail_missed,
            policies: (served.policies.len() as u64, served.policies_failing.len() as u64),
            contents: Arc::clone(&served.contents),
        }
    });
    PoolMeasured { name, state, attention, members: (all.max(here as u64), here as u64), served }
}

/// Who has how many extents of a pool.
pub(super) struct Owned {
    /// By the owner's number.
    pub by_owner: BTreeMap<u32, u64>,
    /// By the member's number: its extents, and those that are somebody's.
    pub members: Vec<(u32, u32)>,
}

/// Looks at all records, without keeping anybody waiting.
pub(super) fn owned(shared: &PoolShared) -> Owned {
    let mut by_owner: BTreeMap<u32, u64> = BTreeMap::new();
    let mut members = Vec::new();
    for member in 0..MEMBERS_MAX as u8 {
        let (extents, mut used) = (shared.records.extents(member), 0);
        // Neighbours are mostly of the same owner.
        let (mut same, mut count) = (0, 0);
        for index in 0..extents {
            let owner = shared.records.owner(ExtentId { member, index }) & !OWNER_HELD;
            if owner != same {
                if same != 0 {
                    *by_owner.entry(same).or_default() += count;
                }
                (same, count) = (owner, 0);
            }
            count += 1;
            used += u32::from(owner != 0);
        }
        if same != 0 {
            *by_owner.entry(same).or_default() += count;
        }
        members.push((extents, used));
    }
    Owned { by_owner, members }
}

/// What volumes have: `owners` are all volumes and snapshots, in the order in which they were made.
fn contents(owners: &[Owner], extents: &BTreeMap<u32, u64>) -> Contents {
    let allocated = |owner: &Owner| extents.get(&owner.id).copied().unwrap_or(0) * EXTENT_BYTES;
    let mut volumes: BTreeMap<Uuid, VolumeMeasured> = BTreeMap::new();
    let mut all = Contents::default();
    for volume in owners.iter().filter(|owner| owner.kind == OwnerKind::Volume) {
        all.volumes += 1;
        all.promised_bytes = all.promised_bytes.saturating_add(volume.size_bytes);
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
    fn a_level_is_reached_at_once_and_left_two_points_below() {
        let mut fill = Fill::Room;
        let mut at = |used: u64| {
            fill = fill.next(1000, 1000 - used);
            fill
        };
        assert_eq!(
            [at(0), at(799), at(800), at(799), at(780)],
            [Fill::Room, Fill::Room, Fill::Much, Fill::Much, Fill::Much]
        );
        assert_eq!([at(779), at(799), at(949), at(950)], [Fill::Room, Fill::Room, Fill::Much, Fill::NearlyAll]);
        assert_eq!([at(930), at(929), at(949), at(1000)], [Fill::NearlyAll, Fill::Much, Fill::Much, Fill::NearlyAll]);
        assert_eq!([at(779), at(1000)], [Fill::Room, Fill::NearlyAll]);
        assert_eq!(Fill::Room.next(0, 0), Fill::Room, "nothing takes new blocks");
    }
}
