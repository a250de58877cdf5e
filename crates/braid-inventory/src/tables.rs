//! The tables: arrays, pools, exports, replicas, and the disks of earlier members. Plain data under one lock, which is
//! held briefly.

use crate::arrays::{ActiveArray, ArrayEntry, check_of, damage_of};
use crate::disks::OpenDisk;
use crate::exports::{ExportCondition, ExportEntry, Listener};
use crate::pools::{PoolEntry, ServedPool, WITH_POOL};
use crate::replicas::ReplicaEntry;
use crate::replicated::SavedReplicated;
use crate::state::{
    SavedCheck, SavedDamage, SavedDisk, SavedExport, SavedImport, SavedLoss, SavedPoolArray, SavedPoolDisk,
    SavedReplica, SavedSession, SavedUnassigned, State, VERSION,
};
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames, VolumeCase};
use braid_api::address::Address;
use braid_api::limits::{DEVICES_MAX, POOLS_MAX};
use braid_api::{ErrorDetail, Kind, Tally};
use braid_engine::{DeviceId, PoolKey};
use braid_export::ExportTable;
use braid_ring::{device_at_level, pool_at_level};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use uuid::Uuid;

/// How many objects there are, and how many of them serve.
pub struct Tallies {
    /// Arrays.
    pub arrays: Tally,
    /// Pools.
    pub pools: Tally,
    /// Exports.
    pub exports: Tally,
}

/// What the daemon knows of its objects, and what is in use of names and numbers.
#[derive(Default)]
pub struct Tables {
    /// The arrays, by identity.
    pub arrays: BTreeMap<Uuid, ArrayEntry>,
    /// The exports, by name.
    pub exports: BTreeMap<String, ExportEntry>,
    /// The addresses that are listened on.
    pub listeners: BTreeMap<Address, Listener>,
    /// The counter that the exports of each device share: see [`braid_export::ExportInfo::device_export_count`].
    pub siblings: BTreeMap<DeviceId, Weak<AtomicU64>>,
    /// The pools, by identity.
    pub pools: BTreeMap<Uuid, PoolEntry>,
    /// Disks that were members of arrays, by name.
    pub disks: BTreeMap<String, SavedDisk>,
    /// Disks that were members of pools, by name.
    pub pool_disks: BTreeMap<String, SavedPoolDisk>,
    /// The boot in which each pool was last open.
    pub pool_boots: BTreeMap<Uuid, Uuid>,
    /// The last session of each pool.
    pub pool_sessions: BTreeMap<Uuid, SavedSession>,
    /// Arrays that were members of pools.
    pub pool_arrays: Vec<SavedPoolArray>,
    /// Volumes that were assigned to a pool member which is being removed, by pool and member.
    pub evacuated_volumes: BTreeMap<(Uuid, u8), BTreeSet<Uuid>>,
    /// Volumes that are open as disks, and the pools that they are in.
    pub held_volumes: BTreeMap<Uuid, Uuid>,
    /// Replicas and witnesses, by their volume.
    pub replicas: BTreeMap<Uuid, ReplicaEntry>,
    /// Replicas that were deleted while their pool was missing.
    pub deleted_replicas: Vec<SavedReplica>,
    /// Minimum stack levels for arrays to start on, because other members of their pools are on that level.
    pub stack_levels_min: BTreeMap<Uuid, usize>,
    /// Arrays that a command stopped.
    pub stopped: BTreeSet<Uuid>,
    /// Imported arrays of Linux md, by identity.
    pub imported: BTreeMap<Uuid, SavedImport>,
    /// Checks of arrays that do not serve now: they resume when the array serves again.
    pub checks: BTreeMap<Uuid, SavedCheck>,
    /// Damage of arrays that do not serve now.
    pub damage: BTreeMap<Uuid, SavedDamage>,
    /// Arrays whose journal disk is lost, with that disk, until an operator has acted on it.
    pub lost_journals: BTreeMap<Uuid, String>,
    /// Replicated volumes that this node knows. Each served one has an array with the same identity.
    pub replicated: BTreeMap<Uuid, SavedReplicated>,
    /// Names that a create or rename in progress has claimed.
    pub claimed_names: BTreeSet<String>,
    /// Paths of disks that a create in progress has claimed.
    pub claimed_paths: BTreeSet<PathBuf>,
    /// Arrays and pools that are being changed, and how: the word in `array fast is being renamed`.
    pub busy: BTreeMap<Uuid, &'static str>,
    /// Device numbers in use.
    devices: BTreeSet<u32>,
    /// Pool numbers in use.
    pool_keys: BTreeSet<u16>,
    /// The last layout version: shared by all devices, so that no version is used twice.
    next_version: u32,
}

impl Tables {
    /// Creates the tables of a daemon that has just started.
    pub(crate) fn from_state(state: &State) -> Tables {
        let serving = |saved: &SavedExport| ExportEntry { saved: saved.clone(), serving: ExportCondition::Waiting };
        Tables {
            exports: state.exports.iter().map(|saved| (saved.name.clone(), serving(saved))).collect(),
            disks: state.disks.iter().map(|saved| (saved.disk.clone(), saved.clone())).collect(),
            pool_disks: state.pool_disks.iter().map(|saved| (saved.disk.clone(), saved.clone())).collect(),
            pool_boots: state.pool_boots.clone(),
            pool_sessions: state.pool_sessions.clone(),
            pool_arrays: state.pool_arrays.clone(),
            evacuated_volumes: state
                .unassigned_volumes
                .iter()
                .map(|saved| ((saved.pool, saved.member), saved.volumes.clone()))
                .collect(),
            stopped: state.stopped.iter().copied().collect(),
            imported: state.imported.iter().map(|saved| (saved.array, saved.clone())).collect(),
            checks: state.checks.iter().map(|saved| (saved.array, saved.clone())).collect(),
            damage: state.damage.iter().map(|saved| (saved.array, saved.clone())).collect(),
            lost_journals: state.lost_journals.iter().map(|saved| (saved.array, saved.disk.clone())).collect(),
            replicas: state.replicas.iter().map(|saved| (saved.volume, ReplicaEntry::of_saved(saved))).collect(),
            deleted_replicas: state.forgotten.clone(),
            replicated: state.replicated.iter().map(|saved| (saved.uuid, saved.clone())).collect(),
            ..Tables::default()
        }
    }

    /// Returns the state to be saved. Arrays and pools on memory disks end with the daemon, and so do their exports.
    pub(crate) fn to_state(&self) -> State {
        let kept = |uuid: &Uuid| self.arrays.get(uuid).and_then(ArrayEntry::active).is_none_or(ActiveArray::is_kept);
        let kept_pool = |uuid: &Uuid| self.pools.get(uuid).is_none_or(|pool| self.is_pool_kept(pool));
        let keeps_replicas = |pool: &Uuid| kept_pool(pool) && self.replica_in(*pool).is_some();
        let exported = |saved: &&SavedExport| kept(&saved.array) && saved.pool.as_ref().is_none_or(kept_pool);
        let exports = self.exports.values().map(|export| &export.saved).filter(exported);
        State {
            version: VERSION,
            exports: exports.cloned().collect(),
            disks: self.disks.values().cloned().collect(),
            pool_disks: self.pool_disks.values().cloned().collect(),
            pool_boots: self.pool_boots.clone(),
            pool_sessions: self
                .pool_sessions
                .iter()
                .filter(|(pool, _)| keeps_replicas(pool))
                .map(|(pool, session)| (*pool, *session))
                .collect(),
            pool_arrays: self.pool_arrays.clone(),
            unassigned_volumes: self
                .evacuated_volumes
                .iter()
                .map(|((pool, member), volumes)| SavedUnassigned {
                    pool: *pool,
                    member: *member,
                    volumes: volumes.clone(),
                })
                .collect(),
            stopped: self.stopped.iter().copied().collect(),
            imported: self.imported.values().cloned().collect(),
            checks: self.arrays.values().filter_map(check_of).chain(self.checks.values().cloned()).collect(),
            damage: self.arrays.values().filter_map(damage_of).chain(self.damage.values().cloned()).collect(),
            lost_journals: self
                .lost_journals
                .iter()
                .filter(|(uuid, _)| kept(uuid))
                .map(|(array, disk)| SavedLoss { array: *array, disk: disk.clone() })
                .collect(),
            replicas: self
                .replicas
                .values()
                .map(|entry| &entry.saved)
                .filter(|saved| saved.pool.as_ref().is_none_or(kept_pool))
                .cloned()
                .collect(),
            forgotten: self.deleted_replicas.clone(),
            replicated: self.replicated.values().cloned().collect(),
        }
    }

    /// Returns how many arrays, pools and exports there are, and how many of them serve.
    pub fn tallies(&self) -> Tallies {
        let arrays = self.arrays.values().filter(|entry| entry.active().is_some()).count();
        let pools = self.pools.values().filter(|entry| entry.served().is_some()).count();
        let is_listening = |entry: &&ExportEntry| matches!(entry.serving, ExportCondition::Listening(_));
        let exports = self.exports.values().filter(is_listening).count();
        let tally = |total: usize, serving: usize| Tally { total: total as u64, serving: serving as u64 };
        Tallies {
            arrays: tally(self.arrays.len(), arrays),
            pools: tally(self.pools.len(), pools),
            exports: tally(self.exports.len(), exports),
        }
    }

    /// Returns the array with this name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InvalidArgument`] if several arrays have the name.
    pub fn array(&self, name: &str) -> Result<&ArrayEntry, ErrorDetail> {
        if let Ok(uuid) = Uuid::try_parse(name)
            && let Some(entry) = self.arrays.get(&uuid)
        {
            return Ok(entry);
        }
        let mut found = self.arrays.values().filter(|entry| entry.name == name);
        match (found.next(), found.next()) {
            (Some(entry), None) => Ok(entry),
            (Some(one), Some(other)) => Err(ErrorDetail::new(
                Kind::InvalidArgument,
                format!("several arrays are called {name}, among them {} and {}", one.uuid, other.uuid),
            )
            .with("array", name)
            .remedy("name the one that is meant by its UUID, and rename it")),
            (None, _) => Err(self.no_array(name)),
        }
    }

    /// Returns the error for an array that is not known: a replicated volume of that name may be served elsewhere.
    fn no_array(&self, name: &str) -> ErrorDetail {
        let (message, case) = match self.replicated_volume_name(name) {
            Some(volume) => (
                format!("{volume} is a replicated volume, which this node does not serve now"),
                Case::ReplicatedVolume(VolumeCase::NotServedHere),
            ),
            None => (format!("there is no array {name}"), Case::Array(ArrayCase::Unknown)),
        };
        ErrorDetail::new(Kind::NotFound, message)
            .with("array", name)
            .remedy(advice::remedy(case, ObjectNames::of(name)))
    }

    /// Returns the export with this name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn export(&self, name: &str) -> Result<&ExportEntry, ErrorDetail> {
        let by_uuid = || {
            let uuid = Uuid::try_parse(name).ok()?;
            self.exports.values().find(|export| export.saved.uuid == uuid)
        };
        self.exports.get(name).or_else(by_uuid).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("there is no export {name}"))
                .with("export", name)
                .remedy("`braid export list` shows those there are")
        })
    }

    /// Returns the names of an array's exports.
    pub fn exports_of(&self, array: Uuid) -> Vec<String> {
        self.exports.values().filter(|export| export.saved.array == array).map(|e| e.saved.name.clone()).collect()
    }

    /// Returns the change in progress of an array after which it cannot be exported any more, if there is one.
    pub fn ending(&self, array: Uuid) -> Option<&'static str> {
        let ends = |doing: &&str| matches!(*doing, "stopped" | "deleted" | "made a member of a pool" | WITH_POOL);
        self.busy.get(&array).copied().filter(ends)
    }

    /// Returns the exports at the address of this export, if anything listens there.
    pub fn listener_of(&self, saved: &SavedExport) -> Option<Arc<ExportTable>> {
        let address = Address::parse(&saved.nbd).ok()?;
        self.listeners.get(&address).map(|listener| Arc::clone(&listener.table))
    }

    /// Replaces the saved settings of an export, by its name; does nothing if there is none.
    pub fn set_saved(&mut self, name: &str, saved: SavedExport) {
        if let Some(entry) = self.exports.get_mut(name) {
            entry.saved = saved;
        }
    }

    /// Renames an export, and replaces its condition by `serving`, if given. Returns the condition before; `None`:
    /// nothing was replaced.
    pub fn rename_export(&mut self, old: &str, new: &str, serving: Option<ExportCondition>) -> Option<ExportCondition> {
        let mut entry = self.exports.remove(old)?;
        new.clone_into(&mut entry.saved.name);
        let before = serving.map(|serving| std::mem::replace(&mut entry.serving, serving));
        self.exports.insert(new.to_owned(), entry);
        before
    }

    /// Returns every open disk of an array, with the array and the slot.
    pub fn open_disks(&self) -> impl Iterator<Item = (&ArrayEntry, u16, &Arc<OpenDisk>)> {
        self.arrays.values().flat_map(|entry| {
            entry
                .active()
                .into_iter()
                .flat_map(move |active| active.disks.iter().map(move |slot| (entry, slot.role, &slot.disk)))
        })
    }

    /// Returns the addresses of all remote exports that are open as disks.
    pub fn remotes_open(&self) -> BTreeSet<String> {
        let of_arrays = self.arrays.values().filter_map(|entry| entry.active()).flat_map(ActiveArray::open_disks);
        let of_pools = self.pool_disks_open().map(|(_, _, disk)| Arc::clone(disk));
        of_arrays.chain(of_pools).filter_map(|disk| disk.disk.spec().remote().map(str::to_owned)).collect()
    }

    /// Refuses a name that is taken.
    ///
    /// # Errors
    /// [`Kind::Exists`].
    pub fn refuse_taken_name(&self, name: &str) -> Result<(), ErrorDetail> {
        if self.pools.values().any(|entry| entry.name == name) {
            return Err(ErrorDetail::new(Kind::Exists, format!("there is a pool {name} already"))
                .with("pool", name)
                .remedy("choose another name, or rename that one with `braid pool rename`"));
        }
        if self.claimed_names.contains(name) || self.arrays.values().any(|entry| entry.name == name) {
            self.check_volume_name_free(name)?;
            return Err(ErrorDetail::new(Kind::Exists, format!("there is an array {name} already"))
                .with("array", name)
                .remedy("choose another name, or rename that one with `braid array rename`"));
        }
        Ok(())
    }

    /// Allocates a device number of a stack level.
    ///
    /// # Errors
    /// [`Kind::LimitReached`].
    pub fn allocate_device(&mut self, level: usize) -> Result<DeviceId, ErrorDetail> {
        let used = self.devices_used();
        let is_free = |device: &u32| !self.devices.contains(device) && !used.contains(device);
        let mut on_level = (0..DEVICES_MAX as u32).map(|index| device_at_level(level, index).0);
        let free = on_level.find(is_free).ok_or_else(|| {
            let what = "arrays, disks of pools, and exported volumes and snapshots";
            ErrorDetail::new(Kind::LimitReached, format!("there are {DEVICES_MAX} {what} already"))
                .remedy("stop an array with `braid array stop`, or remove exports of volumes")
        })?;
        self.devices.insert(free);
        Ok(DeviceId(free))
    }

    /// Returns the device numbers that an export or a serving pool may write to. A number that was released by mistake,
    /// or whose array failed under a pool, is not allocated again as long as these exist.
    fn devices_used(&self) -> BTreeSet<u32> {
        let exports = self.exports.values().filter_map(|export| match &export.serving {
            ExportCondition::Listening(export) => Some(export.info().device.0),
            _ => None,
        });
        let served = self.pools.values().filter_map(PoolEntry::served);
        let of_pool = |served: &ServedPool| -> Vec<u32> {
            let volumes = served.volumes.values().map(|volume| volume.device.0);
            served.written().map(|part| part.device.0).chain(volumes).collect()
        };
        exports.chain(served.flat_map(of_pool)).collect()
    }

    /// Releases a device number that no shard knows any more.
    pub fn release_device(&mut self, device: DeviceId) {
        self.devices.remove(&device.0);
    }

    /// Allocates a number for a pool of a stack level.
    ///
    /// # Errors
    /// [`Kind::LimitReached`].
    pub fn allocate_pool_key(&mut self, level: usize) -> Result<PoolKey, ErrorDetail> {
        let mut on_level = (0..POOLS_MAX as u16).map(|index| pool_at_level(level, index).0);
        let free = on_level.find(|key| !self.pool_keys.contains(key)).ok_or_else(|| {
            let served = self.pools.values().filter(|entry| entry.served().is_some()).count();
            match self.pool_keys.len().saturating_sub(served) {
                0 => ErrorDetail::new(Kind::LimitReached, format!("{POOLS_MAX} pools are active already"))
                    .remedy("delete one"),
                left => ErrorDetail::new(
                    Kind::LimitReached,
                    format!(
                        "{POOLS_MAX} pools are active already, including {left} deleted pools with a disk that still hangs"
                    ),
                )
                .remedy("look for that disk in the kernel's log (dmesg); what has hung so far is forgotten when the daemon is restarted"),
            }
        })?;
        self.pool_keys.insert(free);
        Ok(PoolKey(free))
    }

    /// Releases a pool number that no shard knows any more.
    pub fn release_pool_key(&mut self, key: PoolKey) {
        self.pool_keys.remove(&key.0);
    }

    /// Returns a layout version that no layout has had before.
    pub fn next_layout_version(&mut self) -> u32 {
        self.next_version += 1;
        self.next_version
    }
}
