//! Looks up pools in the tables: by name, by member, and what is known of their members.

use crate::arrays::{ActiveArray, ArrayEntry};
use crate::disks::OpenDisk;
use crate::pools::{MemberBacking, MemberPart, PoolCondition, PoolEntry, PoolHandle, missing_of};
use crate::state::SavedPoolArray;
use crate::tables::Tables;
use braid_advice::{self as advice, Case, ObjectNames, PoolCase};
use braid_api::{ErrorDetail, Kind, Place};
use braid_format::pool::{AllocationPolicy, Owner};
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

impl Tables {
    /// Returns where the members of a pool were last seen, as far as known: by number, the name of the disk or array.
    pub fn last_seen_of(&self, pool: Uuid) -> BTreeMap<u8, String> {
        let disks = self.pool_disks.values().filter(|saved| saved.pool == pool);
        let arrays = self.pool_arrays.iter().filter(|saved| saved.pool == pool);
        let array = |saved: &SavedPoolArray| {
            let now = self.arrays.get(&saved.array).map_or(&saved.array_name, |entry| &entry.name);
            (saved.member, format!("array {now}"))
        };
        disks.map(|saved| (saved.member, saved.disk.clone())).chain(arrays.map(array)).collect()
    }

    /// Returns true if a pool outlives the daemon: none of its members is, or stands on, a memory disk.
    pub fn is_pool_kept(&self, pool: &PoolEntry) -> bool {
        let keeps = |part: &MemberPart| match &part.backing {
            MemberBacking::Disk(disk) => !disk.disk.spec().is_volatile(),
            MemberBacking::Array(uuid) => {
                self.arrays.get(uuid).and_then(ArrayEntry::active).is_none_or(ActiveArray::is_kept)
            }
        };
        pool.served().is_none_or(|served| served.parts.iter().all(keeps))
    }

    /// Returns the pool with this name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InvalidArgument`] if several pools have the name.
    pub fn pool(&self, name: &str) -> Result<&PoolEntry, ErrorDetail> {
        if let Ok(uuid) = Uuid::try_parse(name)
            && let Some(entry) = self.pools.get(&uuid)
        {
            return Ok(entry);
        }
        let mut found = self.pools.values().filter(|entry| entry.name == name);
        match (found.next(), found.next()) {
            (Some(entry), None) => Ok(entry),
            (Some(one), Some(other)) => Err(ErrorDetail::new(
                Kind::InvalidArgument,
                format!("several pools are called {name}, among them {} and {}", one.uuid, other.uuid),
            )
            .with("pool", name)
            .remedy("name the one that is meant by its UUID, and rename it")),
            (None, _) => Err(ErrorDetail::new(Kind::NotFound, format!("there is no pool {name}"))
                .with("pool", name)
                .remedy(advice::remedy(Case::Pool(PoolCase::Unknown), ObjectNames::of(name)))),
        }
    }

    /// Returns the pool that has this array as a member, whether it serves or not, and the member's number.
    pub fn pool_on(&self, array: Uuid) -> Option<(&PoolEntry, u8)> {
        let idle = |entry: &PoolEntry| match &entry.condition {
            PoolCondition::Idle(idle) => idle.arrays.get(&array).copied(),
            PoolCondition::Serves(_) => None,
        };
        self.serving_pool_on(array).or_else(|| self.pools.values().find_map(|entry| Some((entry, idle(entry)?))))
    }

    /// Returns the pool that serves and has this array as a member, and the member's number.
    pub fn serving_pool_on(&self, array: Uuid) -> Option<(&PoolEntry, u8)> {
        let of = |part: &MemberPart| {
            matches!(part.backing, MemberBacking::Array(uuid) if uuid == array).then_some(part.label.member)
        };
        self.pools.values().find_map(|entry| Some((entry, entry.served()?.written().find_map(of)?)))
    }

    /// Refuses operations that would take an array from under a pool. `done` completes "cannot be".
    ///
    /// # Errors
    /// [`Kind::InUse`], naming both.
    pub fn refuse_under_pool(&self, array: Uuid, name: &str, done: &str) -> Result<(), ErrorDetail> {
        let Some((pool, number)) = self.pool_on(array) else { return Ok(()) };
        // Stopping the array changes nothing on it.
        if pool.served().is_none() && done == "stopped" {
            return Ok(());
        }
        Err(ErrorDetail::new(
            Kind::InUse,
            format!(
                "array {name} is member {number} of pool {}{} and so cannot be {done}",
                pool.name,
                pool.idle_word()
            ),
        )
        .with("array", name)
        .with("pool", &pool.name)
        .remedy(format!(
            "braid pool delete {}{} first, if its volumes are not needed any more; --force does not override this",
            pool.name,
            if pool.served().is_some() { "" } else { " --force" }
        )))
    }

    /// Returns every open disk of a pool, with the pool and the member's number.
    pub fn pool_disks_open(&self) -> impl Iterator<Item = (&PoolEntry, u8, &Arc<OpenDisk>)> {
        self.pools.values().filter_map(|entry| Some((entry, entry.served()?))).flat_map(|(entry, served)| {
            served.written().filter_map(move |part| match &part.backing {
                MemberBacking::Disk(disk) => Some((entry, part.label.member, disk)),
                MemberBacking::Array(_) => None,
            })
        })
    }

    /// Returns the missing members of pools that serve, by pool and number, and the disks where they were last seen.
    pub fn missing_of_pools(&self) -> Vec<((Uuid, u8), DiskSpec)> {
        let serving = self.pools.values().filter(|entry| entry.served().is_some());
        let missing = serving.flat_map(|entry| missing_of(entry).into_iter().map(|(number, _)| (entry.uuid, number)));
        let seen = |of: (Uuid, u8)| {
            let saved = self.pool_disks.values().find(|saved| (saved.pool, saved.member) == of)?;
            Some((of, DiskSpec::parse(&saved.disk).ok()?))
        };
        missing.filter_map(seen).collect()
    }

    /// Returns the name of an active array that is being changed and that was a member of the pool when last seen.
    pub fn changing_array_of(&self, pool: Uuid) -> Option<String> {
        let seen = self.last_seen_of(pool);
        let was = |name: &str| seen.values().any(|seen| seen.strip_prefix("array ") == Some(name));
        let busy = self.arrays.values().filter(|array| self.busy.contains_key(&array.uuid) && array.active().is_some());
        busy.map(|array| array.name.clone()).find(|name| was(name))
    }

    /// Returns true if a member of this array was last seen on a volume of one of these pools, and that volume is not
    /// among these disks.
    pub fn lacks_volumes_of(&self, array: Uuid, disks: &[&OpenDisk], pools: &BTreeSet<Uuid>) -> bool {
        let of = self.disks.values().filter(|saved| saved.array == array);
        let mut known = of.filter_map(|saved| DiskSpec::parse(&saved.disk).ok());
        known.any(|spec| {
            let Some(volume) = spec.volume() else { return false };
            let pool = volume.split_once('/').and_then(|(pool, _)| self.pool(pool).ok());
            let present = disks.iter().any(|disk| disk.disk.spec().volume() == Some(volume));
            !present && pool.is_some_and(|pool| pools.contains(&pool.uuid))
        })
    }

    /// Returns the names of the disks and arrays that are members of a pool that serves, by number.
    pub fn member_names(&self, pool: &PoolHandle) -> BTreeMap<u8, String> {
        let parts: &[MemberPart] =
            self.pools.get(&pool.uuid).and_then(|entry| entry.served()).map_or(&[], |served| &served.parts);
        let name = |part: &MemberPart| match &part.backing {
            MemberBacking::Disk(disk) => disk.name.clone(),
            MemberBacking::Array(uuid) => {
                self.arrays.get(uuid).map_or_else(|| uuid.to_string(), |array| array.name.clone())
            }
        };
        parts.iter().map(|part| (part.label.member, name(part))).collect()
    }

    /// Returns where the blocks of a volume are allocated, in the API's form.
    pub fn placement_of(&self, pool: &PoolHandle, owner: &Owner) -> Place {
        if owner.allocation == AllocationPolicy::Spread {
            return Place::Spread;
        }
        let names = self.member_names(pool);
        let numbers = (0..128u8).filter(|number| owner.on >> number & 1 == 1);
        Place::On(numbers.map(|number| names.get(&number).cloned().unwrap_or_else(|| number.to_string())).collect())
    }
}
