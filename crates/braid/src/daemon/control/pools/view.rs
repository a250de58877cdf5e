//! What the API shows of pools, volumes and snapshots.

use super::super::Control;
use super::super::tables::Tables;
use super::companions::{data_of_companion, is_companion};
use super::controllers::{is_controllers, is_pending};
use super::limits::rates_of;
use super::measure::{self, Owned};
use super::volumes::block_bytes_of;
use super::{Base, Condition, PoolEntry, Reach};
use braid_advice::{self as advice, Advice, Case, Names, PoolCase, PoolMemberCase};
use braid_api::{
    Attention, ErrorDetail, NamedSpace, Pool, PoolList, PoolMember, PoolSpace, PoolState, ReplicaSnapshot, Snapshot,
    SnapshotConsistency, SnapshotPolicy, Space, Volume,
};
use braid_engine::pool::{Accounts, BLOCK_BYTES, EXTENT_BYTES, PoolShared};
use braid_format::pool::{Owner, OwnerKind, PoolMemberState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

/// What a pool has at one moment.
pub(super) struct Listed {
    owners: Vec<Owner>,
    free_extents: u64,
    /// Extents that are free and kept for thick volumes, by owner.
    kept: BTreeMap<u32, u64>,
    /// Extents by owner.
    extents: BTreeMap<u32, u64>,
    /// Extents of each member, and those of them that are handed out.
    members: Vec<(u32, u32)>,
    /// What was counted, if it was.
    pub(super) accounts: Option<Arc<Accounts>>,
    /// Owners of whom, or of those before them, not all is known.
    pub(super) doubtful: BTreeSet<u32>,
    /// Something of its tables is damaged: also what stands in its extents may not be known.
    pub(super) is_damaged: bool,
    /// What these have scattered is being put together.
    pub(super) compacting: BTreeSet<u32>,
    /// Who gets blocks of his own in place of others', and how far that is: so many of so many.
    pub(super) flattening: Option<(u32, u32, u32)>,
    /// Records without an extent: how many there are.
    zero_records: u64,
}

/// Whether an owner is a volume, or its snapshot.
fn is_of(owner: &Owner, volume: &Owner) -> bool {
    owner.uuid == volume.uuid || owner.volume == volume.uuid
}

impl Listed {
    pub(super) fn new(
        owners: Vec<Owner>,
        free_extents: u64,
        kept: BTreeMap<u32, u64>,
        zero_records: u64,
        shared: &PoolShared,
    ) -> Listed {
        let Owned { by_owner: extents, members } = measure::owned(shared);
        Listed {
            owners,
            free_extents,
            kept,
            extents,
            members,
            accounts: None,
            doubtful: BTreeSet::new(),
            is_damaged: false,
            compacting: BTreeSet::new(),
            flattening: None,
            zero_records,
        }
    }

    fn of_kind(&self, kind: OwnerKind) -> impl Iterator<Item = &Owner> {
        self.owners.iter().filter(move |owner| owner.kind == kind && !is_pending(owner))
    }

    /// What is free and kept for nobody.
    pub(super) fn unreserved_bytes(&self) -> u64 {
        self.free_extents.saturating_sub(self.kept.values().sum()) * EXTENT_BYTES
    }

    /// What is free and kept for a volume.
    pub(super) fn kept_bytes(&self, volume: Uuid) -> u64 {
        let kept = self.volume(volume).and_then(|owner| self.kept.get(&owner.id));
        kept.map_or(0, |kept| kept * EXTENT_BYTES)
    }

    /// How much of what a volume sees of others was looked at, in percent; none while that has not begun, or is not asked for.
    fn flattened_percent(&self, volume: &Owner) -> Option<u8> {
        let (id, at, all) = self.flattening?;
        let owner = self.owners.iter().find(|owner| owner.id == id && is_of(owner, volume))?;
        owner.flattening.then(|| (u64::from(at) * 100 / u64::from(all.max(1))).min(100) as u8)
    }

    fn allocated(&self, owner: &Owner) -> u64 {
        self.extents.get(&owner.id).copied().unwrap_or(0) * EXTENT_BYTES
    }

    /// What is known of the space of one owner.
    fn space(&self, owner: &Owner) -> Option<Space> {
        let usage = self.accounts.as_ref()?.of(owner.id)?;
        Some(Space {
            data_bytes: usage.visible_blocks * BLOCK_BYTES,
            exclusive_bytes: usage.exclusive_blocks * BLOCK_BYTES,
            shared_bytes: (usage.visible_blocks - usage.exclusive_blocks) * BLOCK_BYTES,
            in_doubt_bytes: match (self.doubtful.contains(&owner.id), self.is_damaged) {
                (false, _) => 0,
                (true, true) => owner.size_bytes,
                // What it has on record itself is certain.
                (true, false) => owner.size_bytes.saturating_sub(usage.blocks * BLOCK_BYTES),
            },
        })
    }

    fn pool_space(&self) -> Option<PoolSpace> {
        let accounts = self.accounts.as_ref()?;
        let total = accounts.total();
        let named = |owner: &Owner| {
            let snapshots = self.of_kind(OwnerKind::Snapshot).filter(|other| other.volume == owner.uuid);
            let with_snapshots = (owner.kind == OwnerKind::Volume)
                .then(|| snapshots.fold(self.allocated(owner), |sum, other| sum + self.allocated(other)));
            let space = self.space(owner)?;
            let name = match data_of_companion(owner.name.as_str()) {
                Some(data) => format!("companion of {}", self.name_of(data).unwrap_or_default()),
                None => self.name_of(owner.uuid)?,
            };
            Some(NamedSpace {
                name,
                allocated_bytes: self.allocated(owner),
                with_snapshots_bytes: with_snapshots,
                space,
            })
        };
        let volumes: Vec<NamedSpace> = self.of_kind(OwnerKind::Volume).filter_map(named).collect();
        let snapshots: Vec<NamedSpace> = self.of_kind(OwnerKind::Snapshot).filter_map(named).collect();
        let in_doubt = volumes.iter().chain(&snapshots).map(|named| named.space.in_doubt_bytes);
        Some(PoolSpace {
            in_doubt_bytes: in_doubt.fold(0, u64::saturating_add),
            stored_bytes: total.blocks * BLOCK_BYTES,
            shared_bytes: accounts.shared_blocks * BLOCK_BYTES,
            exclusive_bytes: total.exclusive_blocks * BLOCK_BYTES,
            unseen_bytes: accounts.unreferenced_blocks * BLOCK_BYTES,
            zero_ranges: total.zero_records,
            zero_ranges_max: self.zero_records,
            volumes,
            snapshots,
        })
    }

    /// The snapshots of a volume that controllers had taken, pending ones, too, in that order.
    pub(super) fn of_controllers(&self, volume: Uuid) -> Vec<ReplicaSnapshot> {
        let of =
            |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume && is_controllers(owner.uuid);
        let mut owners: Vec<&Owner> = self.owners.iter().filter(of).collect();
        owners.sort_by_key(|owner| owner.id);
        let show = |owner: &Owner| ReplicaSnapshot {
            uuid: owner.uuid.to_string(),
            name: (!is_pending(owner)).then(|| owner.name.to_string()),
            size_bytes: owner.size_bytes,
            allocated_bytes: self.allocated(owner),
            created_unix_s: owner.created_unix_s,
            frozen: owner.frozen,
        };
        owners.into_iter().map(show).collect()
    }

    fn volume(&self, uuid: Uuid) -> Option<&Owner> {
        self.of_kind(OwnerKind::Volume).find(|owner| owner.uuid == uuid)
    }

    /// What a volume or snapshot is called within the pool.
    pub(super) fn name_of(&self, uuid: Uuid) -> Option<String> {
        let owner = self.owners.iter().find(|owner| owner.uuid == uuid && !owner.name.is_empty())?;
        Some(match owner.kind {
            OwnerKind::Snapshot => {
                let volume = self.volume(owner.volume).map_or("", |volume| volume.name.as_str());
                format!("{volume}@{}", owner.name)
            }
            _ => owner.name.to_string(),
        })
    }

    /// The nearest snapshot that an owner goes on from.
    fn parent_of(&self, owner: &Owner) -> Option<&Owner> {
        let parent = self.owners.iter().find(|other| other.id == owner.parent)?;
        (parent.kind == OwnerKind::Snapshot).then_some(parent)
    }
}

impl Control {
    /// Every pool, by name.
    pub async fn pools(&self) -> PoolList {
        let names: Vec<String> = self.read().pools.keys().map(Uuid::to_string).collect();
        let mut pools = Vec::with_capacity(names.len());
        for name in names {
            // One that was deleted meanwhile is not there.
            pools.extend(self.pool(&name).await);
        }
        pools.sort_by(|a: &Pool, b: &Pool| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        PoolList { pools, incomplete: self.why_incomplete() }
    }

    /// One pool, by name or UUID.
    ///
    /// # Errors
    /// [`braid_api::Kind::NotFound`].
    pub async fn pool(&self, name: &str) -> Result<Pool, ErrorDetail> {
        self.pool_shown(name, false).await
    }

    /// The same, with what each volume and snapshot has.
    ///
    /// # Errors
    /// [`braid_api::Kind::NotFound`].
    pub async fn pool_counted(&self, name: &str) -> Result<Pool, ErrorDetail> {
        self.pool_shown(name, true).await
    }

    async fn pool_shown(&self, name: &str, counted: bool) -> Result<Pool, ErrorDetail> {
        let uuid = self.read().pool(name)?.uuid;
        let listed = match self.reach(&uuid.to_string()) {
            Ok(reach) if counted => self.list_counted(&reach).await.ok(),
            Ok(reach) => self.list_pool(&reach).await.ok(),
            Err(_) => None,
        };
        let tables = self.read();
        let entry = tables.pool(&uuid.to_string())?;
        Ok(self.show_pool(&tables, entry, listed.as_ref()))
    }

    fn show_pool(&self, tables: &Tables, entry: &PoolEntry, listed: Option<&Listed>) -> Pool {
        // The records of one that was removed are there as long as the pool serves.
        let numbers = entry.label.iter().flat_map(|label| label.numbered()).map(|(number, _)| usize::from(number));
        let of = |number| listed.and_then(|listed| listed.members.get(number)).map_or(0, |(all, _)| u64::from(*all));
        let extents: u64 = numbers.map(of).sum();
        let free = listed.map_or(0, |listed| listed.free_extents);
        let kept = listed.map_or(0, |listed| listed.kept.values().sum::<u64>()).min(free);
        let count = |kind| listed.map_or(0, |listed| listed.of_kind(kind).count() as u64);
        let is_hidden = |owner: &&Owner| is_companion(owner.name.as_str());
        let companions = listed.map_or(0, |listed| listed.of_kind(OwnerKind::Volume).filter(is_hidden).count() as u64);
        let (state, attention) = state_and_attention(entry);
        Pool {
            name: entry.name.clone(),
            uuid: entry.uuid.to_string(),
            state,
            attention,
            kept: tables.is_pool_kept(entry),
            created_unix_s: entry.label.as_ref().map_or(0, |label| label.created_unix_s),
            raw_bytes: entry.label.iter().flat_map(|label| label.numbered()).map(|(_, member)| member.size_bytes).sum(),
            size_bytes: extents * EXTENT_BYTES,
            allocated_bytes: extents.saturating_sub(free) * EXTENT_BYTES,
            free_bytes: (free - kept) * EXTENT_BYTES,
            reserved_bytes: kept * EXTENT_BYTES,
            promised_bytes: listed
                .iter()
                .flat_map(|listed| listed.of_kind(OwnerKind::Volume))
                .fold(0, |sum, volume| sum.saturating_add(volume.size_bytes)),
            volumes: count(OwnerKind::Volume) - companions,
            snapshots: count(OwnerKind::Snapshot),
            members: self.show_members(tables, entry, listed),
            space: listed.and_then(Listed::pool_space),
            unplaced: Vec::new(),
        }
    }

    fn show_members(&self, tables: &Tables, entry: &PoolEntry, listed: Option<&Listed>) -> Vec<PoolMember> {
        let seen = tables.last_seen_of(entry.uuid);
        let blank = |number: u8| PoolMember {
            number,
            uuid: String::new(),
            disk: seen.get(&number).filter(|seen| !seen.starts_with("array ")).cloned(),
            array: seen.get(&number).and_then(|seen| seen.strip_prefix("array ")).map(str::to_owned),
            present: false,
            leaves: false,
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
            shown.leaves = member.state == PoolMemberState::Removing;
            shown.given_up = member.state == PoolMemberState::Abandoned;
            let part = served.and_then(|served| served.parts.iter().find(|part| part.label.member == number));
            match part.map(|part| &part.base) {
                Some(Base::Disk(disk)) => {
                    (shown.disk, shown.array, shown.present) = (Some(disk.name.clone()), None, true);
                    shown.unfenced = disk.disk.is_remote();
                    shown.stats = Some(self.stats_of(disk));
                }
                Some(Base::Array(uuid)) => {
                    (shown.disk, shown.present) = (None, true);
                    shown.array = tables.arrays.get(uuid).map(|array| array.name.clone());
                }
                None => {
                    if let Condition::Idle(idle) = &entry.condition
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

    pub(super) fn show_volumes(&self, pool: &Reach, listed: &Listed) -> Vec<Volume> {
        let tables = self.read();
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
            place: tables.place_of(pool, owner),
            in_doubt: listed.doubtful.contains(&owner.id),
            compacts: listed.compacting.contains(&owner.id),
            flattens: listed.owners.iter().any(|other| is_of(other, owner) && other.flattening),
            flattened_percent: listed.flattened_percent(owner),
            moves: listed.owners.iter().any(|other| is_of(other, owner) && other.also_on != 0),
            exports: tables.exports_of(owner.uuid),
            space: listed.space(owner),
        };
        listed.of_kind(OwnerKind::Volume).filter(|owner| !is_companion(owner.name.as_str())).map(show).collect()
    }

    pub(super) fn show_snapshots(&self, pool: &Reach, listed: &Listed, volume: Option<Uuid>) -> Vec<Snapshot> {
        let tables = self.read();
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

/// What is wrong with a pool or a member of it.
struct Trouble {
    message: String,
    what: What,
}

enum What {
    Pool(PoolCase),
    Member(u8, PoolMemberCase),
    /// There is no space on the file system of this file.
    Full(String),
}

impl Trouble {
    fn of_pool(case: PoolCase, message: impl Into<String>) -> Trouble {
        Trouble { message: message.into(), what: What::Pool(case) }
    }
}

/// What is wrong with a pool that serves.
fn troubles(entry: &PoolEntry) -> Vec<Trouble> {
    let Some(served) = entry.served() else { return Vec::new() };
    let mut troubles = Vec::new();
    if served.failed.load(Ordering::Relaxed) {
        let message = "a member has failed a write or a flush: nothing more can be made durable";
        troubles.push(Trouble::of_pool(PoolCase::WriteFailed, message));
    }
    let full = super::starved::full_members(served, served.vitals.lacking);
    troubles.extend(full.into_iter().map(|full| Trouble { message: full.message, what: What::Full(full.path) }));
    for part in served.written() {
        let Base::Disk(disk) = &part.base else { continue };
        let Some(why) = disk.disk.loss_reason().filter(|_| disk.disk.is_short()) else { continue };
        troubles.push(Trouble {
            message: format!("member {} (disk {}): {why}", part.label.member, disk.name),
            what: What::Member(part.label.member, PoolMemberCase::Short),
        });
    }
    for (number, given_up, mut message) in super::lost::absent_in_words(entry) {
        let here = served.returned.get(&number).filter(|_| !given_up);
        if let Some(what) = here {
            message.push_str(&format!("; it is here again, as {what}"));
        }
        let case = match (here, given_up) {
            (Some(_), _) => PoolMemberCase::Back,
            (None, true) => PoolMemberCase::GivenUp,
            (None, false) => PoolMemberCase::Absent,
        };
        troubles.push(Trouble { message, what: What::Member(number, case) });
    }
    match served.damaged.load(Ordering::Relaxed) {
        0 => {}
        damaged => {
            troubles.push(Trouble::of_pool(PoolCase::Damaged, super::check::in_words(&entry.name, damaged)));
        }
    }
    if served.tail_missed {
        troubles.push(Trouble::of_pool(PoolCase::LogMissed, "at its start the tail of the session before was not in shared memory: what was acknowledged and not flushed before that session was killed is lost"));
    }
    if served.tending.has_lost_tail() {
        troubles.push(Trouble::of_pool(PoolCase::LogRemoved, "its tail was removed from shared memory: if the daemon is killed, the last writes that nobody flushed are lost"));
    }
    if let Some(message) = served.vitals.trouble() {
        troubles.push(Trouble::of_pool(PoolCase::Fills, message));
    }
    if let Some(first) = served.policies_failing.first() {
        let others = match served.policies_failing.len() - 1 {
            0 => String::new(),
            others => format!(" and {}", super::super::counted(others, "other", "others")),
        };
        let message = format!("no snapshot of volume {}/{first}{others} could be taken by its policy", entry.name);
        troubles.push(Trouble::of_pool(PoolCase::ScheduleFails, message));
    }
    troubles
}

/// Whether a pool serves, and what needs attention.
pub(super) fn state_and_attention(entry: &PoolEntry) -> (PoolState, Vec<String>) {
    match &entry.condition {
        Condition::Serves(_) => (state_of(entry), troubles(entry).into_iter().map(|trouble| trouble.message).collect()),
        Condition::Idle(idle) => (idle.state, idle.attention.clone()),
    }
}

fn state_of(entry: &PoolEntry) -> PoolState {
    let failed = entry.served().is_some_and(|served| served.failed.load(Ordering::Relaxed));
    if failed { PoolState::Failed } else { PoolState::Active }
}

/// What of pools needs attention.
pub fn attention(tables: &Tables) -> Vec<Attention> {
    let of = |entry: &PoolEntry| -> Vec<Attention> {
        let carrier = tables.carrier_name(entry.uuid);
        let advice = |what: &What| match (what, &carrier) {
            (What::Pool(case), None) => advice::of(Case::Pool(*case), Names::of(&entry.name)),
            (What::Pool(case), Some(volume)) => advice::of(Case::CarriedPool(*case), Names::with(&entry.name, volume)),
            (What::Member(number, case), _) => {
                advice::of(Case::PoolMember(*case), Names::with(&entry.name, &number.to_string()))
            }
            (What::Full(path), _) => advice::of(Case::PoolMember(PoolMemberCase::Full), Names::with(&entry.name, path)),
        };
        let subject = || format!("pool {}", entry.name);
        match &entry.condition {
            Condition::Serves(_) => troubles(entry)
                .into_iter()
                .map(|Trouble { message, what }| advice(&what).attention(subject(), message))
                .collect(),
            Condition::Idle(idle) => {
                let item = |message: &String| {
                    // What is to be done depends on more than that it does not serve, and was chosen when it was looked at.
                    let advice = Advice { remedy: idle.remedy.clone(), ..advice(&What::Pool(PoolCase::Idle)) };
                    advice.attention(subject(), message.clone())
                };
                idle.attention.iter().map(item).collect()
            }
        }
    };
    tables.pools.values().flat_map(of).collect()
}
