//! The API's description of pools, volumes and snapshots.

use crate::PoolManager;
use crate::limits::rates_of;
use crate::listing::{PoolListing, is_volume_or_snapshot};
use crate::names::is_replica_metadata;
use crate::sizes::block_bytes_of;
use braid_advice::{self as advice, Advice, Case, ObjectNames, PoolCase, PoolMemberCase};
use braid_api::{
    Attention, ErrorDetail, Pool, PoolList, PoolMember, PoolState, Snapshot, SnapshotConsistency, SnapshotPolicy,
    Volume,
};
use braid_engine::pool::EXTENT_BYTES;
use braid_format::pool::{Owner, OwnerKind, PoolMemberState};
use braid_inventory::{MemberBacking, PoolCondition, PoolEntry, PoolHandle, Tables};
use std::sync::atomic::Ordering;
use uuid::Uuid;

impl PoolManager {
    /// Returns every pool, by name.
    pub async fn pools(&self) -> PoolList {
        let names: Vec<String> = self.inventory.read().pools.keys().map(Uuid::to_string).collect();
        let mut pools = Vec::with_capacity(names.len());
        for name in names {
            // A pool that was deleted meanwhile is omitted.
            pools.extend(self.pool(&name).await);
        }
        pools.sort_by(|a: &Pool, b: &Pool| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        PoolList { pools, incomplete: self.inventory.why_incomplete() }
    }

    /// Returns one pool, by name or UUID.
    ///
    /// # Errors
    /// [`braid_api::Kind::NotFound`].
    pub(crate) async fn pool(&self, name: &str) -> Result<Pool, ErrorDetail> {
        self.pool_shown(name, false).await
    }

    /// Returns one pool, with the space of each volume and snapshot.
    ///
    /// # Errors
    /// [`braid_api::Kind::NotFound`].
    pub async fn pool_counted(&self, name: &str) -> Result<Pool, ErrorDetail> {
        self.pool_shown(name, true).await
    }

    async fn pool_shown(&self, name: &str, counted: bool) -> Result<Pool, ErrorDetail> {
        let uuid = self.inventory.read().pool(name)?.uuid;
        let listed = match self.serving_pool(&uuid.to_string()) {
            Ok(reach) if counted => self.list_counted(&reach).await.ok(),
            Ok(reach) => self.list_pool(&reach).await.ok(),
            Err(_) => None,
        };
        let tables = self.inventory.read();
        let entry = tables.pool(&uuid.to_string())?;
        Ok(self.show_pool(&tables, entry, listed.as_ref()))
    }

    fn show_pool(&self, tables: &Tables, entry: &PoolEntry, listed: Option<&PoolListing>) -> Pool {
        // The records of a removed member exist as long as the pool serves.
        let numbers = entry.label.iter().flat_map(|label| label.numbered()).map(|(number, _)| usize::from(number));
        let of = |number| listed.and_then(|listed| listed.members.get(number)).map_or(0, |(all, _)| u64::from(*all));
        let extents: u64 = numbers.map(of).sum();
        let free = listed.map_or(0, |listed| listed.free_extents);
        let kept = listed.map_or(0, |listed| listed.kept.values().sum::<u64>()).min(free);
        let count = |kind| listed.map_or(0, |listed| listed.of_kind(kind).count() as u64);
        let is_hidden = |owner: &&Owner| is_replica_metadata(owner.name.as_str());
        let metadata_volumes =
            listed.map_or(0, |listed| listed.of_kind(OwnerKind::Volume).filter(is_hidden).count() as u64);
        let (state, attention) = state_and_attention(entry);
        Pool {
            name: entry.name.clone(),
            uuid: entry.uuid.to_string(),
            state,
            attention,
            persistent: tables.is_pool_kept(entry),
            created_unix_s: entry.label.as_ref().map_or(0, |label| label.created_unix_s),
            raw_bytes: entry.label.iter().flat_map(|label| label.numbered()).map(|(_, member)| member.size_bytes).sum(),
            size_bytes: extents * EXTENT_BYTES,
            allocated_bytes: extents.saturating_sub(free) * EXTENT_BYTES,
            free_bytes: (free - kept) * EXTENT_BYTES,
            reserved_bytes: kept * EXTENT_BYTES,
            provisioned_bytes: listed
                .iter()
                .flat_map(|listed| listed.of_kind(OwnerKind::Volume))
                .fold(0, |sum, volume| sum.saturating_add(volume.size_bytes)),
            volumes: count(OwnerKind::Volume) - metadata_volumes,
            snapshots: count(OwnerKind::Snapshot),
            members: self.show_members(tables, entry, listed),
            space: listed.and_then(PoolListing::pool_space),
            unassigned_volumes: Vec::new(),
        }
    }

    fn show_members(&self, tables: &Tables, entry: &PoolEntry, listed: Option<&PoolListing>) -> Vec<PoolMember> {
        let seen = tables.last_seen_of(entry.uuid);
        let blank = |number: u8| PoolMember {
            number,
            uuid: String::new(),
            disk: seen.get(&number).filter(|seen| !seen.starts_with("array ")).cloned(),
            array: seen.get(&number).and_then(|seen| seen.strip_prefix("array ")).map(str::to_owned),
            present: false,
            removing: false,
            given_up: false,
            unfenced: false,
            size_bytes: 0,
            data_bytes: None,
            allocated_bytes: None,
            stats: None,
        };
        let Some(label) = &entry.label else {
            return seen.keys().map(|number| blank(*number)).collect();
        };
        let served = entry.served();
        let member = |(number, member): (u8, &braid_format::pool::PoolMember)| {
            let mut shown =
                PoolMember { uuid: member.uuid.to_string(), size_bytes: member.size_bytes, ..blank(number) };
            shown.removing = member.state == PoolMemberState::Removing;
            shown.given_up = member.state == PoolMemberState::Abandoned;
            let part = served.and_then(|served| served.parts.iter().find(|part| part.label.member == number));
            match part.map(|part| &part.backing) {
                Some(MemberBacking::Disk(disk)) => {
                    (shown.disk, shown.array, shown.present) = (Some(disk.name.clone()), None, true);
                    shown.unfenced = disk.disk.is_remote();
                    shown.stats = Some(self.arrays.stats_of(disk));
                }
                Some(MemberBacking::Array(uuid)) => {
                    (shown.disk, shown.present) = (None, true);
                    shown.array = tables.arrays.get(uuid).map(|array| array.name.clone());
                }
                None => {
                    if let PoolCondition::Idle(idle) = &entry.condition
                        && let Some(found) = idle.present.get(&number)
                    {
                        shown.present = true;
                        match found.split_once(' ') {
                            Some(("array", array)) => (shown.disk, shown.array) = (None, Some(array.to_owned())),
                            Some((_, disk)) => (shown.disk, shown.array) = (Some(disk.to_owned()), None),
                            None => {}
                        }
                    }
                }
            }
            if let Some((all, used)) = listed.and_then(|listed| listed.members.get(usize::from(number))) {
                shown.data_bytes = Some(u64::from(*all) * EXTENT_BYTES);
                shown.allocated_bytes = Some(u64::from(*used) * EXTENT_BYTES);
            }
            shown
        };
        label.numbered().map(member).collect()
    }

    pub(crate) fn show_volumes(&self, pool: &PoolHandle, listed: &PoolListing) -> Vec<Volume> {
        let tables = self.inventory.read();
        let show = |owner: &Owner| Volume {
            name: format!("{}/{}", pool.name, owner.name),
            uuid: owner.uuid.to_string(),
            pool: pool.name.clone(),
            size_bytes: owner.size_bytes,
            block_bytes: block_bytes_of(owner),
            thick: owner.thick,
            reserved_bytes: listed.kept.get(&owner.id).map_or(0, |kept| kept * EXTENT_BYTES),
            allocated_bytes: listed.allocated(owner),
            created_unix_s: owner.created_unix_s,
            parent: listed
                .parent_of(owner)
                .and_then(|parent| Some(format!("{}/{}", pool.name, listed.name_of(parent.uuid)?))),
            snapshots: listed.of_kind(OwnerKind::Snapshot).filter(|other| other.volume == owner.uuid).count() as u64,
            policy: owner.schedule.map(|policy| SnapshotPolicy { every_s: policy.every_s, keep: policy.keep }),
            iops_max: rates_of(owner).iops,
            bandwidth_bytes_max: rates_of(owner).bandwidth_bytes,
            place: tables.placement_of(pool, owner),
            in_doubt: listed.doubtful.contains(&owner.id),
            compacting: listed.compacting.contains(&owner.id),
            flattening: listed.owners.iter().any(|other| is_volume_or_snapshot(other, owner) && other.flattening),
            flattened_percent: listed.flattened_percent(owner),
            moving: listed.owners.iter().any(|other| is_volume_or_snapshot(other, owner) && other.also_on != 0),
            exports: tables.exports_of(owner.uuid),
            space: listed.space(owner),
        };
        listed.of_kind(OwnerKind::Volume).filter(|owner| !is_replica_metadata(owner.name.as_str())).map(show).collect()
    }

    pub(crate) fn show_snapshots(
        &self,
        pool: &PoolHandle,
        listed: &PoolListing,
        volume: Option<Uuid>,
    ) -> Vec<Snapshot> {
        let tables = self.inventory.read();
        let wanted = |owner: &&Owner| volume.is_none_or(|uuid| owner.volume == uuid);
        let show = |owner: &Owner| Snapshot {
            name: format!("{}/{}", pool.name, listed.name_of(owner.uuid).unwrap_or_default()),
            uuid: owner.uuid.to_string(),
            pool: pool.name.clone(),
            volume: listed.volume(owner.volume).map(|volume| format!("{}/{}", pool.name, volume.name)),
            size_bytes: owner.size_bytes,
            block_bytes: block_bytes_of(owner),
            allocated_bytes: listed.allocated(owner),
            created_unix_s: owner.created_unix_s,
            consistency: if owner.frozen { SnapshotConsistency::Frozen } else { SnapshotConsistency::Crash },
            exports: tables.exports_of(owner.uuid),
            space: listed.space(owner),
            replicas: Vec::new(),
        };
        // Numbers rise with time.
        let mut owners: Vec<&Owner> = listed.of_kind(OwnerKind::Snapshot).filter(wanted).collect();
        owners.sort_by_key(|owner| (listed.volume(owner.volume).map(|volume| volume.name), owner.id));
        owners.into_iter().map(show).collect()
    }
}

/// A fault of a pool or of one of its members.
struct PoolFault {
    message: String,
    what: FaultSubject,
}

enum FaultSubject {
    Pool(PoolCase),
    Member(u8, PoolMemberCase),
    /// There is no space on the file system of this file.
    Full(String),
}

impl PoolFault {
    fn of_pool(case: PoolCase, message: impl Into<String>) -> PoolFault {
        PoolFault { message: message.into(), what: FaultSubject::Pool(case) }
    }
}

/// Returns the faults of a pool that serves.
fn pool_faults(entry: &PoolEntry) -> Vec<PoolFault> {
    let Some(served) = entry.served() else { return Vec::new() };
    let mut pool_faults = Vec::new();
    if served.failed.load(Ordering::Relaxed) {
        let message = "a member has failed a write or a flush: nothing more can be made durable";
        pool_faults.push(PoolFault::of_pool(PoolCase::WriteFailed, message));
    }
    let full = crate::no_space::full_members(served, served.vitals.shortage);
    pool_faults
        .extend(full.into_iter().map(|full| PoolFault { message: full.message, what: FaultSubject::Full(full.path) }));
    for part in served.written() {
        let MemberBacking::Disk(disk) = &part.backing else { continue };
        let Some(why) = disk.disk.loss_reason().filter(|_| disk.disk.is_short()) else { continue };
        pool_faults.push(PoolFault {
            message: format!("member {} (disk {}): {why}", part.label.member, disk.name),
            what: FaultSubject::Member(part.label.member, PoolMemberCase::Truncated),
        });
    }
    for (number, given_up, mut message) in crate::abandoned::describe_missing(entry) {
        let here = served.returned.get(&number).filter(|_| !given_up);
        if let Some(what) = here {
            message.push_str(&format!("; it is here again, as {what}"));
        }
        let case = match (here, given_up) {
            (Some(_), _) => PoolMemberCase::Returned,
            (None, true) => PoolMemberCase::GivenUp,
            (None, false) => PoolMemberCase::Missing,
        };
        pool_faults.push(PoolFault { message, what: FaultSubject::Member(number, case) });
    }
    match served.damaged.load(Ordering::Relaxed) {
        0 => {}
        damaged => {
            pool_faults
                .push(PoolFault::of_pool(PoolCase::Damaged, crate::check::describe_damage(&entry.name, damaged)));
        }
    }
    if served.log_missed {
        pool_faults.push(PoolFault::of_pool(PoolCase::LogLost, "at its start the in-memory log of the previous session was not in shared memory: what was acknowledged and not flushed before that session was killed is lost"));
    }
    if served.maintenance.has_lost_log() {
        pool_faults.push(PoolFault::of_pool(PoolCase::LogRemoved, "its in-memory log was removed from shared memory: if the daemon is killed, the last unflushed writes are lost"));
    }
    if let Some(message) = served.vitals.fill_warning() {
        pool_faults.push(PoolFault::of_pool(PoolCase::NearlyFull, message));
    }
    if let Some(first) = served.policies_failing.first() {
        let others = match served.policies_failing.len() - 1 {
            0 => String::new(),
            others => format!(" and {}", braid_inventory::counted(others, "other", "others")),
        };
        let message = format!("no snapshot of volume {}/{first}{others} could be taken by its policy", entry.name);
        pool_faults.push(PoolFault::of_pool(PoolCase::ScheduleFails, message));
    }
    pool_faults
}

/// Returns whether a pool serves, and what needs attention.
pub(crate) fn state_and_attention(entry: &PoolEntry) -> (PoolState, Vec<String>) {
    match &entry.condition {
        PoolCondition::Serves(_) => {
            (state_of(entry), pool_faults(entry).into_iter().map(|fault| fault.message).collect())
        }
        PoolCondition::Idle(idle) => (idle.state, idle.attention.clone()),
    }
}

fn state_of(entry: &PoolEntry) -> PoolState {
    let failed = entry.served().is_some_and(|served| served.failed.load(Ordering::Relaxed));
    if failed { PoolState::Failed } else { PoolState::Active }
}

/// Returns what needs attention on pools.
pub fn attention(tables: &Tables) -> Vec<Attention> {
    let of = |entry: &PoolEntry| -> Vec<Attention> {
        let replicated_member = tables.replicated_member_name(entry.uuid);
        let advice = |what: &FaultSubject| match (what, &replicated_member) {
            (FaultSubject::Pool(case), None) => advice::of(Case::Pool(*case), ObjectNames::of(&entry.name)),
            (FaultSubject::Pool(case), Some(volume)) => {
                advice::of(Case::PoolOnReplicatedVolume(*case), ObjectNames::with(&entry.name, volume))
            }
            (FaultSubject::Member(number, case), _) => {
                advice::of(Case::PoolMember(*case), ObjectNames::with(&entry.name, &number.to_string()))
            }
            (FaultSubject::Full(path), _) => {
                advice::of(Case::PoolMember(PoolMemberCase::Full), ObjectNames::with(&entry.name, path))
            }
        };
        let subject = || format!("pool {}", entry.name);
        match &entry.condition {
            PoolCondition::Serves(_) => pool_faults(entry)
                .into_iter()
                .map(|PoolFault { message, what }| advice(&what).attention(subject(), message))
                .collect(),
            PoolCondition::Idle(idle) => {
                let item = |message: &String| {
                    // The remedy depends on why the pool does not serve, and was chosen when that was found out.
                    let advice = Advice { remedy: idle.remedy.clone(), ..advice(&FaultSubject::Pool(PoolCase::Idle)) };
                    advice.attention(subject(), message.clone())
                };
                idle.attention.iter().map(item).collect()
            }
        }
    };
    tables.pools.values().flat_map(of).collect()
}
