//! What the control plane knows: arrays, exports, where disks were. Plain data, changed under one short lock.

use super::imported::Imported;
use super::keeping::Keeping;
use super::pools::{PoolEntry, Served, WITH_POOL};
use super::replicas::ReplicaEntry;
use super::replicas::here::Here;
use super::replicated::saved::SavedReplicated;
use crate::daemon::state::{
    SavedCheck, SavedDamage, SavedDisk, SavedExport, SavedImport, SavedLoss, SavedPoolArray, SavedPoolDisk,
    SavedReplica, SavedSession, SavedUnplaced, State,
};
use braid_advice::{self as advice, ArrayCase, Case, Names, VolumeCase};
use braid_api::address::Address;
use braid_api::limits::{DEVICES_MAX, POOLS_MAX};
use braid_api::{ArrayState, DiskState, ErrorDetail, Kind};
use braid_engine::lifecycle;
use braid_engine::{DeviceId, LeafId, PoolKey};
use braid_format::{ArrayPart, MemberState};
use braid_host::host::{Entry, Identity};
use braid_nbd::ExportTable;
use braid_ring::{Disk, device_at_level, pool_at_level};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use tokio::task::AbortHandle;
use uuid::Uuid;

/// A disk that is open and known to the shards.
pub struct OpenDisk {
    /// Its name, as on the command line.
    pub name: String,
    /// The disk itself; its lock lives as long as this.
    pub disk: Arc<Disk>,
    /// What makes it the same by whatever path; none for memory.
    pub identity: Option<Identity>,
    /// What its path led to when it was opened.
    pub entry: Option<Entry>,
    /// The volume that it is, if it is one.
    pub volume: Option<Uuid>,
    /// Its place in the table of leaves.
    pub leaf: LeafId,
    /// How it did when it was last looked at.
    pub watch: Mutex<Watch>,
    /// The replica of this very node that it is, if it is one: ends with this.
    #[expect(dead_code, reason = "held, not looked at")]
    pub here: Option<Here>,
}

/// What the watch remembers of a disk.
#[derive(Clone, Debug)]
pub struct Watch {
    /// How it does.
    pub state: DiskState,
    /// The latest trouble, in one sentence.
    pub trouble: Option<String>,
    /// Errors when it was last looked at.
    pub errors_seen: u64,
    /// I/Os done when it was last looked at, and for how many looks that has not changed with some in flight.
    pub done_seen: u64,
    /// See `done_seen`.
    pub looks_without_progress: u32,
    /// Writes and zeroing when it was last looked at.
    pub written_seen: u64,
    /// All its errors are of a full file system below.
    pub is_full: bool,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            state: DiskState::Ok,
            trouble: None,
            errors_seen: 0,
            done_seen: 0,
            looks_without_progress: 0,
            written_seen: 0,
            is_full: false,
        }
    }
}

/// One role of an array that does not serve.
#[derive(Clone, Debug)]
pub struct IdleMember {
    /// Its role.
    pub role: u16,
    /// Its identity.
    pub id: String,
    /// Size of its data area, in bytes.
    pub data_bytes: u64,
    /// The disk that it was found on, now closed again.
    pub disk: Option<String>,
    /// What the labels say of it.
    pub state: MemberState,
    /// Whether it was found.
    pub present: bool,
}

/// Who changes the labels of an array that serves.
#[derive(Clone)]
pub enum Handle {
    /// Whoever has the lock.
    Plain(Arc<tokio::sync::Mutex<lifecycle::Array>>),
    /// Its keeper, which takes orders.
    Kept(Arc<Keeping>),
    /// Nobody: it is one of Linux md, and only read.
    Imported(Arc<Imported>),
}

/// An open disk of an array that serves.
#[derive(Clone)]
pub struct Seat {
    /// Its number in the table of members.
    pub role: u16,
    /// The disk.
    pub disk: Arc<OpenDisk>,
    /// Where its data area begins, in bytes.
    pub data_offset_bytes: u64,
}

/// An array that serves.
pub struct Active {
    /// Through which its labels are changed.
    pub handle: Handle,
    /// What its labels say.
    pub label: ArrayPart,
    /// The device that requests name.
    pub device: DeviceId,
    /// What can be written, in bytes.
    pub size_bytes: u64,
    /// The block of its disks, in bytes.
    pub block_bytes: u32,
    /// Its logical block, in bytes, of which requests are multiples: that of its disks, or less ([`braid_engine::DeviceLayout::in_sectors`]).
    pub request_bytes: u32,
    /// Its disks that are here, by number.
    pub disks: Vec<Seat>,
    /// Disks that are open and that its keeper is about to take, perhaps.
    pub guests: Vec<Arc<OpenDisk>>,
    /// Members without a disk, by number.
    pub away: BTreeMap<u16, Away>,
    /// The disk that the journal was on until just now.
    pub last_journal: Option<String>,
    /// Members that are being left out by command, until the command has ended: they do not return by themselves.
    pub left_out: BTreeSet<u16>,
}

/// What is known of a member whose disk was let go of.
#[derive(Clone, Debug)]
pub struct Away {
    /// The disk, as it was called.
    pub disk: String,
    /// What was wrong with it, in one sentence.
    pub why: String,
    /// It was not there at a look since, or its server was not: when it is there again it returns by itself.
    pub gone: bool,
    /// What its path led to when it was let go of. Something else there now has come since, however short it was gone.
    pub entry: Option<Entry>,
}

impl Active {
    /// Whether it is found again after the daemon ends.
    pub fn is_kept(&self) -> bool {
        self.disks.iter().all(|seat| !seat.disk.disk.spec().is_volatile())
    }

    /// Its disks that are open, whoever holds them.
    pub fn open_disks(&self) -> Vec<Arc<OpenDisk>> {
        self.disks.iter().map(|seat| Arc::clone(&seat.disk)).chain(self.guests.iter().cloned()).collect()
    }

    /// Its keeper, where it has one.
    pub fn keeping(&self) -> Option<&Arc<Keeping>> {
        match &self.handle {
            Handle::Kept(keeping) => Some(keeping),
            Handle::Plain(_) | Handle::Imported(_) => None,
        }
    }

    /// What is known of it as an array of Linux md, if it is one.
    pub fn imported(&self) -> Option<&Imported> {
        match &self.handle {
            Handle::Imported(imported) => Some(imported),
            Handle::Plain(_) | Handle::Kept(_) => None,
        }
    }

    /// Whether more members are lost than it tolerates: every request fails.
    pub fn has_failed(&self) -> bool {
        self.keeping().is_some_and(|keeping| keeping.has_failed())
    }
}

/// An array that does not serve.
pub struct Idle {
    /// Why: incomplete, stopped or failed.
    pub state: ArrayState,
    /// One sentence each.
    pub attention: Vec<String>,
    /// What to do about it.
    pub remedy: String,
    /// The newest label, where there is a whole one.
    pub label: Option<ArrayPart>,
    /// Its roles.
    pub members: Vec<IdleMember>,
}

/// Whether an array serves, and what belongs to that.
pub enum Condition {
    /// It serves.
    Active(Active),
    /// It does not.
    Idle(Idle),
}

/// An array that the daemon knows.
pub struct ArrayEntry {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Whether it serves.
    pub condition: Condition,
}

impl ArrayEntry {
    /// What belongs to it while it serves.
    pub fn active(&self) -> Option<&Active> {
        match &self.condition {
            Condition::Active(active) => Some(active),
            Condition::Idle(_) => None,
        }
    }
}

/// Whether an export serves.
pub enum Serving {
    /// Clients can connect.
    Listening(Arc<braid_nbd::Export>),
    /// Its array does not serve.
    Waiting,
    /// Its address cannot be listened on.
    Failed(ErrorDetail),
}

/// An export that the daemon knows.
pub struct ExportEntry {
    /// What is remembered of it.
    pub saved: SavedExport,
    /// Whether it serves.
    pub serving: Serving,
}

/// An address that is listened on.
pub struct Listener {
    /// What it offers.
    pub table: Arc<ExportTable>,
    /// Ends the task that accepts; dropping the socket with it.
    pub task: AbortHandle,
}

/// Everything.
#[derive(Default)]
pub struct Tables {
    /// The arrays.
    pub arrays: BTreeMap<Uuid, ArrayEntry>,
    /// The exports, by name.
    pub exports: BTreeMap<String, ExportEntry>,
    /// The addresses that are listened on.
    pub listeners: BTreeMap<Address, Listener>,
    /// What the exports of each device hold: see [`braid_nbd::ExportInfo::siblings`].
    pub siblings: BTreeMap<DeviceId, Weak<AtomicU64>>,
    /// The pools.
    pub pools: BTreeMap<Uuid, PoolEntry>,
    /// Disks that were members, by name.
    pub disks: BTreeMap<String, SavedDisk>,
    /// Disks that were members of pools, by name.
    pub pool_disks: BTreeMap<String, SavedPoolDisk>,
    /// In which boot pools were opened last.
    pub pool_boots: BTreeMap<Uuid, Uuid>,
    /// In which session each was last.
    pub pool_sessions: BTreeMap<Uuid, SavedSession>,
    /// Arrays that were members of pools.
    pub pool_arrays: Vec<SavedPoolArray>,
    /// Volumes that were placed on a member of a pool that leaves, by pool and member.
    pub unplaced: BTreeMap<(Uuid, u8), BTreeSet<Uuid>>,
    /// Volumes that are open as disks, and their pools.
    pub held_volumes: BTreeMap<Uuid, Uuid>,
    /// Replicas and witnesses, by the volume of which they are.
    pub replicas: BTreeMap<Uuid, ReplicaEntry>,
    /// Replicas that were deleted while their pool was not there.
    pub forgotten: Vec<SavedReplica>,
    /// Arrays that are started on a tier at least so high, as others of their pools are of that one.
    pub least_tiers: BTreeMap<Uuid, usize>,
    /// Arrays that a command stopped.
    pub stopped: BTreeSet<Uuid>,
    /// Arrays of Linux md that are read.
    pub imported: BTreeMap<Uuid, SavedImport>,
    /// Checks of arrays that do not serve now: they go on when those do again.
    pub checks: BTreeMap<Uuid, SavedCheck>,
    /// Damage of arrays that do not serve now.
    pub damage: BTreeMap<Uuid, SavedDamage>,
    /// Arrays that have lost the disk of their journal, and which it was, until somebody has acted on that.
    pub lost_journals: BTreeMap<Uuid, String>,
    /// Volumes of several nodes that this one knows. Each that is served has an array of the same identity.
    pub replicated: BTreeMap<Uuid, SavedReplicated>,
    /// Names that a create or rename under way has taken.
    pub claimed_names: BTreeSet<String>,
    /// Paths of disks that a create under way is making an array of.
    pub claimed_paths: BTreeSet<PathBuf>,
    /// Arrays and pools that are being changed, and how.
    pub busy: BTreeMap<Uuid, &'static str>,
    /// Devices in use.
    devices: BTreeSet<u32>,
    /// Numbers of pools in use.
    pool_keys: BTreeSet<u16>,
    /// The next layout version: rises over all devices, so that no number is used twice.
    next_version: u32,
}

/// The check that goes on in an array that outlives the daemon.
pub fn check_of(entry: &ArrayEntry) -> Option<SavedCheck> {
    let active = entry.active().filter(|active| active.is_kept())?;
    active.keeping()?.check_to_save(entry.uuid)
}

/// The damage that a check of an array has found, to be remembered after a restart.
pub fn damage_of(entry: &ArrayEntry) -> Option<SavedDamage> {
    let active = entry.active().filter(|active| active.is_kept())?;
    active.keeping()?.damage_to_save(entry.uuid)
}

impl Tables {
    /// The tables of a daemon that has just started.
    pub fn from_state(state: &State) -> Tables {
        let serving = |saved: &SavedExport| ExportEntry { saved: saved.clone(), serving: Serving::Waiting };
        Tables {
            exports: state.exports.iter().map(|saved| (saved.name.clone(), serving(saved))).collect(),
            disks: state.disks.iter().map(|saved| (saved.disk.clone(), saved.clone())).collect(),
            pool_disks: state.pool_disks.iter().map(|saved| (saved.disk.clone(), saved.clone())).collect(),
            pool_boots: state.pool_boots.clone(),
            pool_sessions: state.pool_sessions.clone(),
            pool_arrays: state.pool_arrays.clone(),
            unplaced: state.unplaced.iter().map(|saved| ((saved.pool, saved.member), saved.volumes.clone())).collect(),
            stopped: state.stopped.iter().copied().collect(),
            imported: state.imported.iter().map(|saved| (saved.array, saved.clone())).collect(),
            checks: state.checks.iter().map(|saved| (saved.array, saved.clone())).collect(),
            damage: state.damage.iter().map(|saved| (saved.array, saved.clone())).collect(),
            lost_journals: state.lost_journals.iter().map(|saved| (saved.array, saved.disk.clone())).collect(),
            replicas: state.replicas.iter().map(|saved| (saved.volume, ReplicaEntry::of_saved(saved))).collect(),
            forgotten: state.forgotten.clone(),
            replicated: state.replicated.iter().map(|saved| (saved.uuid, saved.clone())).collect(),
            ..Tables::default()
        }
    }

    /// What is to be remembered. Arrays and pools on memory end with the daemon, and their exports with them.
    pub fn to_state(&self) -> State {
        let kept = |uuid: &Uuid| self.arrays.get(uuid).and_then(ArrayEntry::active).is_none_or(Active::is_kept);
        let kept_pool = |uuid: &Uuid| self.pools.get(uuid).is_none_or(|pool| self.is_pool_kept(pool));
        let keeps_replicas = |pool: &Uuid| kept_pool(pool) && self.replica_in(*pool).is_some();
        let exported = |saved: &&SavedExport| kept(&saved.array) && saved.pool.as_ref().is_none_or(kept_pool);
        let exports = self.exports.values().map(|export| &export.saved).filter(exported);
        State {
            version: crate::daemon::state::VERSION,
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
            unplaced: self
                .unplaced
                .iter()
                .map(|((pool, member), volumes)| SavedUnplaced {
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
            forgotten: self.forgotten.clone(),
            replicated: self.replicated.values().cloned().collect(),
        }
    }

    /// The array of this name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or [`Kind::InvalidArgument`] when several have the name.
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

    fn no_array(&self, name: &str) -> ErrorDetail {
        let (message, case) = match self.volume_of_nodes(name) {
            Some(volume) => (
                format!("{volume} is a volume of several nodes, which this node does not serve now"),
                Case::ReplicatedVolume(VolumeCase::NotServedHere),
            ),
            None => (format!("there is no array {name}"), Case::Array(ArrayCase::Unknown)),
        };
        ErrorDetail::new(Kind::NotFound, message).with("array", name).remedy(advice::remedy(case, Names::of(name)))
    }

    /// The export of this name or UUID.
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

    /// Names of the exports of an array.
    pub fn exports_of(&self, array: Uuid) -> Vec<String> {
        self.exports.values().filter(|export| export.saved.array == array).map(|e| e.saved.name.clone()).collect()
    }

    /// What is being done to an array after which nobody may export it, if so.
    pub fn ending(&self, array: Uuid) -> Option<&'static str> {
        let ends = |doing: &&str| matches!(*doing, "stopped" | "deleted" | "made a member of a pool" | WITH_POOL);
        self.busy.get(&array).copied().filter(ends)
    }

    /// What is offered where this export listens, if anything is.
    pub fn listener_of(&self, saved: &SavedExport) -> Option<Arc<ExportTable>> {
        let address = Address::parse(&saved.nbd).ok()?;
        self.listeners.get(&address).map(|listener| Arc::clone(&listener.table))
    }

    /// Replaces what is saved of an export.
    pub fn set_saved(&mut self, name: &str, saved: SavedExport) {
        if let Some(entry) = self.exports.get_mut(name) {
            entry.saved = saved;
        }
    }

    /// Gives an export another name, and what now serves under it, if it serves. Returns what served before.
    pub fn rename_export(&mut self, old: &str, new: &str, serving: Option<Serving>) -> Option<Serving> {
        let mut entry = self.exports.remove(old)?;
        new.clone_into(&mut entry.saved.name);
        let before = serving.map(|serving| std::mem::replace(&mut entry.serving, serving));
        self.exports.insert(new.to_owned(), entry);
        before
    }

    /// Every open disk, with its array and role.
    pub fn open_disks(&self) -> impl Iterator<Item = (&ArrayEntry, u16, &Arc<OpenDisk>)> {
        self.arrays.values().flat_map(|entry| {
            entry
                .active()
                .into_iter()
                .flat_map(move |active| active.disks.iter().map(move |seat| (entry, seat.role, &seat.disk)))
        })
    }

    /// The addresses of all exports of other servers that are open as disks.
    pub fn remotes_open(&self) -> BTreeSet<String> {
        let of_arrays = self.arrays.values().filter_map(|entry| entry.active()).flat_map(Active::open_disks);
        let of_pools = self.pool_disks_open().map(|(_, _, disk)| Arc::clone(disk));
        of_arrays.chain(of_pools).filter_map(|disk| disk.disk.spec().remote().map(str::to_owned)).collect()
    }

    /// Refuses a name that is taken.
    ///
    /// # Errors
    /// [`Kind::Exists`].
    pub fn name_is_free(&self, name: &str) -> Result<(), ErrorDetail> {
        if self.pools.values().any(|entry| entry.name == name) {
            return Err(ErrorDetail::new(Kind::Exists, format!("there is a pool {name} already"))
                .with("pool", name)
                .remedy("choose another name, or rename that one with `braid pool rename`"));
        }
        if self.claimed_names.contains(name) || self.arrays.values().any(|entry| entry.name == name) {
            self.refuse_name_of_volume(name)?;
            return Err(ErrorDetail::new(Kind::Exists, format!("there is an array {name} already"))
                .with("array", name)
                .remedy("choose another name, or rename that one with `braid array rename`"));
        }
        Ok(())
    }

    /// Takes a free device of a tier.
    ///
    /// # Errors
    /// [`Kind::LimitReached`].
    pub fn take_device(&mut self, tier: usize) -> Result<DeviceId, ErrorDetail> {
        let used = self.devices_used();
        let is_free = |device: &u32| !self.devices.contains(device) && !used.contains(device);
        let mut of_tier = (0..DEVICES_MAX as u32).map(|index| device_at_level(tier, index).0);
        let free = of_tier.find(is_free).ok_or_else(|| {
            let what = "arrays, disks of pools, and exported volumes and snapshots";
            ErrorDetail::new(Kind::LimitReached, format!("there are {DEVICES_MAX} {what} already"))
                .remedy("stop an array with `braid array stop`, or remove exports of volumes")
        })?;
        self.devices.insert(free);
        Ok(DeviceId(free))
    }

    /// Devices that somebody would write to: exports that listen, and pools that serve. Also one that was given back by mistake, or whose
    /// array was lost under a pool, is nobody else's as long as they are there.
    fn devices_used(&self) -> BTreeSet<u32> {
        let exports = self.exports.values().filter_map(|export| match &export.serving {
            Serving::Listening(export) => Some(export.info().device.0),
            _ => None,
        });
        let served = self.pools.values().filter_map(PoolEntry::served);
        let of_pool = |served: &Served| -> Vec<u32> {
            let volumes = served.volumes.values().map(|volume| volume.device.0);
            served.written().map(|part| part.device.0).chain(volumes).collect()
        };
        exports.chain(served.flat_map(of_pool)).collect()
    }

    /// Gives a device back that no shard knows any more.
    pub fn give_device(&mut self, device: DeviceId) {
        self.devices.remove(&device.0);
    }

    /// Takes a number for a pool of a tier.
    ///
    /// # Errors
    /// [`Kind::LimitReached`].
    pub fn take_pool_key(&mut self, tier: usize) -> Result<PoolKey, ErrorDetail> {
        let mut of_tier = (0..POOLS_MAX as u16).map(|index| pool_at_level(tier, index).0);
        let free = of_tier.find(|key| !self.pool_keys.contains(key)).ok_or_else(|| {
            let served = self.pools.values().filter(|entry| entry.served().is_some()).count();
            match self.pool_keys.len().saturating_sub(served) {
                0 => ErrorDetail::new(Kind::LimitReached, format!("{POOLS_MAX} pools are active already"))
                    .remedy("delete one"),
                left => ErrorDetail::new(
                    Kind::LimitReached,
                    format!(
                        "{POOLS_MAX} pools are active already, counting {left} that were deleted while a disk of theirs hung, and hangs still"
                    ),
                )
                .remedy("look for that disk in the kernel's log (dmesg); what has hung so far is forgotten when the daemon is restarted"),
            }
        })?;
        self.pool_keys.insert(free);
        Ok(PoolKey(free))
    }

    /// Gives a number back that no shard knows any more.
    pub fn give_pool_key(&mut self, key: PoolKey) {
        self.pool_keys.remove(&key.0);
    }

    /// A number for a layout that no layout had before.
    pub fn next_version(&mut self) -> u32 {
        self.next_version += 1;
        self.next_version
    }
}
