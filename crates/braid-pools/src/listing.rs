//! The contents of a pool at one moment: volumes, snapshots, and the extents that they have.

use crate::PoolManager;
use crate::names::{data_of_replica_metadata, is_controller_snapshot, is_pending};
use braid_api::{ErrorDetail, NamedSpace, PoolSpace, ReplicaSnapshot, Space};
use braid_engine::PoolNext;
use braid_engine::pool::{Accounts, BLOCK_BYTES, EXTENT_BYTES, ExtentId, MEMBERS_MAX, OWNER_HELD, Pool, PoolShared};
use braid_format::pool::{Owner, OwnerKind};
use braid_inventory::PoolHandle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// The contents of a pool at one moment.
pub(crate) struct PoolListing {
    /// All volumes and snapshots.
    pub(crate) owners: Vec<Owner>,
    /// Extents that are free, reserved ones included.
    pub(crate) free_extents: u64,
    /// Extents that are free and reserved for thick volumes, by owner.
    pub(crate) kept: BTreeMap<u32, u64>,
    /// Extents by owner.
    extents: BTreeMap<u32, u64>,
    /// Extents of each member, and how many of them are allocated.
    pub(crate) members: Vec<(u32, u32)>,
    /// The space accounting, if it was requested.
    pub(crate) accounts: Option<Arc<Accounts>>,
    /// Owners with records that may be missing, their own or an ancestor's.
    pub(crate) doubtful: BTreeSet<u32>,
    /// The pool's tables are damaged: the contents of existing extents may not be known either.
    pub(crate) is_damaged: bool,
    /// Owners that are being compacted.
    pub(crate) compacting: BTreeSet<u32>,
    /// The owner that is being flattened, and the progress: extents examined, and extents in all.
    pub(crate) flattening: Option<(u32, u32, u32)>,
    /// Number of zero records, which have no extent.
    zero_records: u64,
}

impl PoolListing {
    fn new(
        owners: Vec<Owner>,
        free_extents: u64,
        kept: BTreeMap<u32, u64>,
        zero_records: u64,
        shared: &PoolShared,
    ) -> PoolListing {
        let ExtentCounts { by_owner: extents, members } = count_extents(shared);
        PoolListing {
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

    /// Returns the volumes or the snapshots, without pending ones.
    pub(crate) fn of_kind(&self, kind: OwnerKind) -> impl Iterator<Item = &Owner> {
        self.owners.iter().filter(move |owner| owner.kind == kind && !is_pending(owner))
    }

    /// Returns the free space that is not reserved.
    pub(crate) fn unreserved_bytes(&self) -> u64 {
        self.free_extents.saturating_sub(self.kept.values().sum()) * EXTENT_BYTES
    }

    /// Returns the free space that is reserved for a volume.
    pub(crate) fn kept_bytes(&self, volume: Uuid) -> u64 {
        let kept = self.volume(volume).and_then(|owner| self.kept.get(&owner.id));
        kept.map_or(0, |kept| kept * EXTENT_BYTES)
    }

    /// Returns the progress of flattening a volume, in percent; [`None`] if that has not begun, or is not requested.
    pub(crate) fn flattened_percent(&self, volume: &Owner) -> Option<u8> {
        let (id, at, all) = self.flattening?;
        let owner = self.owners.iter().find(|owner| owner.id == id && is_volume_or_snapshot(owner, volume))?;
        owner.flattening.then(|| (u64::from(at) * 100 / u64::from(all.max(1))).min(100) as u8)
    }

    /// Returns the space that an owner has allocated, in bytes.
    pub(crate) fn allocated(&self, owner: &Owner) -> u64 {
        self.extents.get(&owner.id).copied().unwrap_or(0) * EXTENT_BYTES
    }

    /// Returns the space accounting of one owner.
    pub(crate) fn space(&self, owner: &Owner) -> Option<Space> {
        let usage = self.accounts.as_ref()?.of(owner.id)?;
        Some(Space {
            data_bytes: usage.visible_blocks * BLOCK_BYTES,
            exclusive_bytes: usage.exclusive_blocks * BLOCK_BYTES,
            shared_bytes: (usage.visible_blocks - usage.exclusive_blocks) * BLOCK_BYTES,
            in_doubt_bytes: match (self.doubtful.contains(&owner.id), self.is_damaged) {
                (false, _) => 0,
                (true, true) => owner.size_bytes,
                // Blocks in its own records are certain.
                (true, false) => owner.size_bytes.saturating_sub(usage.blocks * BLOCK_BYTES),
            },
        })
    }

    /// Returns the space accounting of the whole pool.
    pub(crate) fn pool_space(&self) -> Option<PoolSpace> {
        let accounts = self.accounts.as_ref()?;
        let total = accounts.total();
        let named = |owner: &Owner| {
            let snapshots = self.of_kind(OwnerKind::Snapshot).filter(|other| other.volume == owner.uuid);
            let with_snapshots = (owner.kind == OwnerKind::Volume)
                .then(|| snapshots.fold(self.allocated(owner), |sum, other| sum + self.allocated(other)));
            let space = self.space(owner)?;
            let name = match data_of_replica_metadata(owner.name.as_str()) {
                Some(data) => format!("replica metadata of {}", self.name_of(data).unwrap_or_default()),
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
            freeing_bytes: accounts.unreferenced_blocks * BLOCK_BYTES,
            zero_ranges: total.zero_records,
            zero_ranges_max: self.zero_records,
            volumes,
            snapshots,
        })
    }

    /// Returns the snapshots of a volume that controllers took, including pending ones, in the order in which they were
    /// taken.
    pub(crate) fn controller_snapshots(&self, volume: Uuid) -> Vec<ReplicaSnapshot> {
        let of = |owner: &&Owner| {
            owner.kind == OwnerKind::Snapshot && owner.volume == volume && is_controller_snapshot(owner.uuid)
        };
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

    /// Returns a volume by its identity.
    pub(crate) fn volume(&self, uuid: Uuid) -> Option<&Owner> {
        self.of_kind(OwnerKind::Volume).find(|owner| owner.uuid == uuid)
    }

    /// Returns the name of a volume or snapshot within the pool.
    pub(crate) fn name_of(&self, uuid: Uuid) -> Option<String> {
        let owner = self.owners.iter().find(|owner| owner.uuid == uuid && !owner.name.is_empty())?;
        Some(match owner.kind {
            OwnerKind::Snapshot => {
                let volume = self.volume(owner.volume).map_or("", |volume| volume.name.as_str());
                format!("{volume}@{}", owner.name)
            }
            _ => owner.name.to_string(),
        })
    }

    /// Returns the parent of an owner, if it is a snapshot.
    pub(crate) fn parent_of(&self, owner: &Owner) -> Option<&Owner> {
        let parent = self.owners.iter().find(|other| other.id == owner.parent)?;
        (parent.kind == OwnerKind::Snapshot).then_some(parent)
    }
}

impl PoolManager {
    /// Queries the pool's home for all volumes and snapshots.
    pub(crate) async fn list_pool(&self, pool: &PoolHandle) -> Result<PoolListing, ErrorDetail> {
        let query = |pool: &mut Pool| {
            let owners: Vec<Owner> = pool.state().owners.iter().cloned().collect();
            let state = pool.state();
            let zero_records = state.members().map(|(member, _)| u64::from(state.zero_slots(member))).sum();
            let lacks = |owner: &&Owner| state.chain_may_miss_records(owner.id);
            let doubtful = owners.iter().filter(lacks).map(|owner| owner.id).collect();
            let thick = owners.iter().filter(|owner| owner.thick).map(|owner| owner.id);
            let kept: BTreeMap<u32, u64> = thick.map(|id| (id, pool.reserved_extents_of(id))).collect();
            let compacting = owners.iter().map(|owner| owner.id).filter(|id| pool.is_compacting_owner(*id)).collect();
            let flattening = pool.flattening();
            let doubt = (doubtful, !pool.damaged().is_empty());
            (PoolNext::Done, (owners, pool.free_extents(), kept, zero_records, doubt, compacting, flattening))
        };
        let (owners, free_extents, kept, zero_records, doubt, compacting, flattening) = self.call(pool, query).await?;
        let mut listed = PoolListing::new(owners, free_extents, kept, zero_records, &pool.shared);
        (listed.doubtful, listed.is_damaged) = doubt;
        (listed.compacting, listed.flattening) = (compacting, flattening);
        Ok(listed)
    }
}

/// Returns true if an owner is the volume or one of its snapshots.
pub(crate) fn is_volume_or_snapshot(owner: &Owner, volume: &Owner) -> bool {
    owner.uuid == volume.uuid || owner.volume == volume.uuid
}

/// The extents of a pool, by owner and by member.
pub(crate) struct ExtentCounts {
    /// By the owner's number.
    pub(crate) by_owner: BTreeMap<u32, u64>,
    /// By the member's number: its extents, and those that have an owner.
    pub(crate) members: Vec<(u32, u32)>,
}

/// Reads all records without blocking other components.
pub(crate) fn count_extents(shared: &PoolShared) -> ExtentCounts {
    let mut by_owner: BTreeMap<u32, u64> = BTreeMap::new();
    let mut members = Vec::new();
    for member in 0..MEMBERS_MAX as u8 {
        let (extents, mut used) = (shared.records.extents(member), 0);
        // Neighbouring extents mostly have the same owner.
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
    ExtentCounts { by_owner, members }
}
