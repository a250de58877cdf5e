//! Pools: found, opened, served, and asked.
//!
//! A pool stands on devices: arrays that are active, and disks, each of which becomes a device of its own. While it serves, a shard is its
//! home, and everything that is done with it is a call to that shard. Each pool has a task, which lets it fold what was deleted and
//! commit what is old.
//!
//! Locks: whoever needs the lock of what is listened on takes it before that of a pool.

mod add;
mod awaited;
mod carried;
mod check;
mod close;
mod compact;
mod companions;
mod controllers;
mod create;
mod diff;
mod disks;
mod exported;
mod find;
mod flatten;
mod jobs;
mod labels;
mod level;
mod limits;
mod lost;
mod measure;
mod members;
mod open;
mod place;
mod policies;
mod remove;
mod returns;
mod sessions;
mod shrink;
mod snapshots;
mod space;
mod start;
mod starved;
mod tails;
mod tend;
mod unplaced;
mod view;
mod volumes;

use super::tables::{Active, ArrayEntry, OpenDisk, Tables};
use super::{Claim, Control};
use crate::daemon::state::SavedPoolArray;
use braid_advice::{self as advice, Case, Names, PoolCase};
use braid_api::{ErrorDetail, Kind, PoolState};
use braid_engine::pool::{Pool, PoolShared, VolumeId};
use braid_engine::{DeviceId, DeviceLayout, PoolKey, PoolMembers, PoolNext, ShardId};
use braid_format::pool::PoolLabel;
use braid_ring::{PoolCallError, Throttle};
pub(super) use companions::NewVolume;
pub(super) use controllers::{DataOf, is_controllers, name_for_all};
pub(super) use disks::refuse_higher_tier;
pub use exported::Source;
pub(super) use find::FoundPart;
pub(super) use labels::judge as judge_label;
pub use measure::{PoolMeasured, ServedMeasured, VolumeMeasured};
pub use returns::Appearances;
use space::Counted;
pub use starved::Retries;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;
use tend::Tending;
use uuid::Uuid;
pub use view::attention;
pub(super) use volumes::check_block;

/// What is done to an array that is a member of a pool that is being opened or deleted.
pub const WITH_POOL: &str = "opened or deleted with its pool";

/// What is done to a pool that is being deleted.
const DELETED: &str = "deleted";
/// What is done to a pool that is closed, and opened again with members that are back.
const ANEW: &str = "opened anew";

/// Longest that those who change exports wait for a change of a pool.
const WORK_MAX: Duration = Duration::from_secs(2);

/// Longest that a command waits for another change of its pool to end: the end of a removal, say, that goes on after its command has.
const CLAIM_MAX: Duration = Duration::from_secs(10);

/// What a member of a pool is.
#[derive(Clone)]
pub enum Base {
    /// A disk of its own.
    Disk(Arc<OpenDisk>),
    /// An array, by its identity.
    Array(Uuid),
}

/// A member of a pool that is here.
#[derive(Clone)]
pub struct Part {
    /// What it is.
    pub base: Base,
    /// The device that it is.
    pub device: DeviceId,
    /// Its label, as it is to be.
    pub label: PoolLabel,
    /// It may not be so on the disk.
    pub behind: bool,
    /// Of the two places of the label the second is the worse one.
    pub copy_first: bool,
}

impl Part {
    /// The array that it is.
    fn array(&self) -> Option<Uuid> {
        match self.base {
            Base::Array(uuid) => Some(uuid),
            Base::Disk(_) => None,
        }
    }
}

/// A volume or snapshot that is exported.
#[derive(Clone)]
pub struct ServedVolume {
    /// Its number at home.
    pub id: VolumeId,
    /// The device that it is.
    pub device: DeviceId,
    /// As it was published last.
    pub layout: Arc<DeviceLayout>,
    /// What its exports may take together.
    pub throttle: Arc<Throttle>,
}

/// A pool that serves.
pub struct Served {
    /// Its number on the shards.
    pub key: PoolKey,
    /// Its home.
    pub home: ShardId,
    /// What all shards read of it.
    pub shared: Arc<PoolShared>,
    /// Where its members' extents begin.
    pub places: Arc<PoolMembers>,
    /// Its members, by number.
    pub parts: Vec<Part>,
    /// Members that were removed, and whose disks it has still.
    pub outgoing: Vec<Part>,
    /// Those that are no members any more, or were never, and that it does not let go of, as a disk hangs or has failed: until the daemon
    /// ends it may write to them.
    pub stuck: Vec<Part>,
    /// What is exported of it, by identity.
    pub volumes: BTreeMap<Uuid, ServedVolume>,
    /// What is exported no more, and waits for a disk that hangs.
    pub releasing: BTreeSet<Uuid>,
    /// One change of its volumes at a time.
    pub work: Arc<tokio::sync::Mutex<()>>,
    /// Looks after it.
    pub tending: Tending,
    /// Nothing can be made durable any more.
    pub failed: Arc<AtomicBool>,
    /// The session before did not end in order, and what it left in shared memory was not there.
    pub tail_missed: bool,
    /// Its volumes of which snapshots are taken by themselves.
    pub policies: Vec<policies::WithPolicy>,
    /// Those of them of which none can be taken, by name.
    pub policies_failing: BTreeSet<String>,
    /// How full it is.
    pub vitals: measure::Vitals,
    /// What its volumes have.
    pub contents: Arc<measure::Contents>,
    /// One at a time notes its snapshots, so that the last one to do so has seen all.
    pub noting: Arc<tokio::sync::Mutex<()>>,
    /// Records of its tables that are damaged.
    pub damaged: Arc<AtomicU32>,
    /// Its snapshots, for clients that ask in what something differs from them.
    pub snapshots: Vec<diff::KnownSnapshot>,
    /// What was counted of its space last.
    pub counted: Arc<tokio::sync::Mutex<Option<Counted>>>,
    /// What it does in the background.
    pub jobs: Arc<jobs::PoolJobs>,
    /// Members that it goes on without, and that were seen again, by number: the disk or the array, as it is called.
    pub returned: BTreeMap<u8, String>,
}

impl Served {
    /// All that the pool may write to: its members, and what was one or was to be one until it has let go of it.
    pub fn written(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().chain(&self.outgoing).chain(&self.stuck)
    }
}

/// A pool that does not serve.
pub struct Idle {
    /// Why: incomplete or failed.
    pub state: PoolState,
    /// One sentence each.
    pub attention: Vec<String>,
    /// What to do about it.
    pub remedy: String,
    /// Members that were found, by number: the disk or the array, as it is called.
    pub present: BTreeMap<u8, String>,
    /// Arrays that bear its label, with their numbers: they are its own although it does not serve.
    pub arrays: BTreeMap<Uuid, u8>,
    /// It could not be opened for want of space, and is tried again.
    pub lacks_space: bool,
}

/// Whether a pool serves, and what belongs to that.
pub enum Condition {
    /// It serves.
    Serves(Box<Served>),
    /// It does not.
    Idle(Idle),
}

/// A pool that the daemon knows.
pub struct PoolEntry {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// The newest label, where one was found.
    pub label: Option<PoolLabel>,
    /// Whether it serves.
    pub condition: Condition,
}

impl PoolEntry {
    /// What to say beside its name where it does not serve.
    pub fn idle_word(&self) -> String {
        match &self.condition {
            Condition::Serves(_) => String::new(),
            Condition::Idle(idle) => format!(", which is {},", idle.state.word()),
        }
    }

    /// What belongs to it while it serves.
    pub fn served(&self) -> Option<&Served> {
        match &self.condition {
            Condition::Serves(served) => Some(served),
            Condition::Idle(_) => None,
        }
    }

    /// The same, to change it.
    fn served_mut(&mut self) -> Option<&mut Served> {
        match &mut self.condition {
            Condition::Serves(served) => Some(served),
            Condition::Idle(_) => None,
        }
    }
}

/// A pool that serves, as calls need it.
#[derive(Clone)]
pub struct Reach {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    key: PoolKey,
    home: ShardId,
    shared: Arc<PoolShared>,
    places: Arc<PoolMembers>,
    work: Arc<tokio::sync::Mutex<()>>,
    counted: Arc<tokio::sync::Mutex<Option<Counted>>>,
}

impl Tables {
    /// Where the members of a pool were seen last, as far as is known: number, and disk or array.
    pub fn last_seen_of(&self, pool: Uuid) -> BTreeMap<u8, String> {
        let disks = self.pool_disks.values().filter(|saved| saved.pool == pool);
        let arrays = self.pool_arrays.iter().filter(|saved| saved.pool == pool);
        let array = |saved: &SavedPoolArray| {
            let now = self.arrays.get(&saved.array).map_or(&saved.array_name, |entry| &entry.name);
            (saved.member, format!("array {now}"))
        };
        disks.map(|saved| (saved.member, saved.disk.clone())).chain(arrays.map(array)).collect()
    }

    /// Whether a pool is found again after the daemon ends.
    pub fn is_pool_kept(&self, pool: &PoolEntry) -> bool {
        let keeps = |part: &Part| match &part.base {
            Base::Disk(disk) => !disk.disk.spec().is_volatile(),
            Base::Array(uuid) => self.arrays.get(uuid).and_then(ArrayEntry::active).is_none_or(Active::is_kept),
        };
        pool.served().is_none_or(|served| served.parts.iter().all(keeps))
    }

    /// The pool of this name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`], or [`Kind::InvalidArgument`] when several have the name.
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
                .remedy(advice::remedy(Case::Pool(PoolCase::Unknown), Names::of(name)))),
        }
    }

    /// The pool that has this array as a member, whether it serves or not, and which.
    pub fn pool_on(&self, array: Uuid) -> Option<(&PoolEntry, u8)> {
        let idle = |entry: &PoolEntry| match &entry.condition {
            Condition::Idle(idle) => idle.arrays.get(&array).copied(),
            Condition::Serves(_) => None,
        };
        self.served_on(array).or_else(|| self.pools.values().find_map(|entry| Some((entry, idle(entry)?))))
    }

    /// The same of one that serves.
    pub fn served_on(&self, array: Uuid) -> Option<(&PoolEntry, u8)> {
        let of = |part: &Part| matches!(part.base, Base::Array(uuid) if uuid == array).then_some(part.label.member);
        self.pools.values().find_map(|entry| Some((entry, entry.served()?.written().find_map(of)?)))
    }

    /// Refuses what would take an array from under a pool that serves.
    ///
    /// # Errors
    /// [`Kind::InUse`] naming both.
    pub fn refuse_under_pool(&self, array: Uuid, name: &str, done: &str) -> Result<(), ErrorDetail> {
        let Some((pool, number)) = self.pool_on(array) else { return Ok(()) };
        // Stopping one changes nothing on it.
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

    /// Every open disk of a pool, with the pool's name and its number there.
    pub fn pool_disks_open(&self) -> impl Iterator<Item = (&PoolEntry, u8, &Arc<OpenDisk>)> {
        self.pools.values().filter_map(|entry| Some((entry, entry.served()?))).flat_map(|(entry, served)| {
            served.written().filter_map(move |part| match &part.base {
                Base::Disk(disk) => Some((entry, part.label.member, disk)),
                Base::Array(_) => None,
            })
        })
    }
}

impl Control {
    /// A pool that serves, by name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Incomplete`] or [`Kind::Inactive`] where it does not serve.
    pub(super) fn reach(&self, name: &str) -> Result<Reach, ErrorDetail> {
        let tables = self.read();
        let entry = tables.pool(name)?;
        let name = &entry.name;
        match &entry.condition {
            Condition::Serves(served) => Ok(Reach {
                uuid: entry.uuid,
                name: name.clone(),
                key: served.key,
                home: served.home,
                shared: Arc::clone(&served.shared),
                places: Arc::clone(&served.places),
                work: Arc::clone(&served.work),
                counted: Arc::clone(&served.counted),
            }),
            Condition::Idle(idle) => {
                let kind = if idle.state == PoolState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
                let why = idle.attention.first().map(|why| format!(": {why}")).unwrap_or_default();
                Err(ErrorDetail::new(kind, format!("pool {name} is {}{why}", idle.state.word()))
                    .with("pool", name)
                    .remedy(idle.remedy.clone()))
            }
        }
    }

    /// Every pool that serves.
    fn reach_all(&self) -> Vec<Reach> {
        let names: Vec<String> = {
            let tables = self.read();
            tables.pools.values().filter(|entry| entry.served().is_some()).map(|entry| entry.uuid.to_string()).collect()
        };
        names.iter().filter_map(|name| self.reach(name).ok()).collect()
    }

    /// Calls a pool at its home.
    ///
    /// # Errors
    /// It is not served any more, or nothing can be made durable.
    async fn call<R: Send + 'static>(
        &self,
        pool: &Reach,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> Result<R, ErrorDetail> {
        let shared = Arc::clone(&pool.shared);
        // Another one may be served under its key by now, or the same one opened anew, which numbers its volumes anew.
        let call = move |served: &mut Pool| {
            if !Arc::ptr_eq(served.shared(), &shared) {
                return (PoolNext::Done, None);
            }
            let (next, answer) = call(served);
            (next, Some(answer))
        };
        match self.ring.pool_call(pool.key, pool.home, call).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(PoolCallError::NotServed) => {
                let message = format!("pool {} is not served any more", pool.name);
                Err(ErrorDetail::new(Kind::Inactive, message)
                    .with("pool", &pool.name)
                    .remedy(format!("braid pool show {}", pool.name)))
            }
            Err(PoolCallError::NotCommitted) => Err(self.why_not_committed(pool).await),
        }
    }

    /// The lock of a pool, for those who have that of what is listened on: everybody who changes an export waits for them, and so they do
    /// not wait for a long change of one pool.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    async fn work_soon(&self, pool: &Reach) -> Result<tokio::sync::OwnedMutexGuard<()>, ErrorDetail> {
        let lock = Arc::clone(&pool.work).lock_owned();
        tokio::time::timeout(WORK_MAX, lock).await.map_err(|_| {
            ErrorDetail::new(Kind::InUse, format!("pool {} is being changed", pool.name))
                .with("pool", &pool.name)
                .remedy("try again when that is done")
        })
    }

    /// Refuses what would begin to use a volume of a pool that is being closed.
    pub(super) fn refuse_closing_pool(&self, pool: Uuid) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let Some(doing) = tables.busy.get(&pool).filter(|doing| matches!(**doing, DELETED | ANEW)) else {
            return Ok(());
        };
        let name = tables.pools.get(&pool).map(|entry| entry.name.clone()).unwrap_or_default();
        Err(ErrorDetail::new(Kind::InUse, format!("pool {name} is being {doing}")).with("pool", name))
    }

    /// Marks a pool as being changed until the claim is dropped; waits up to [`CLAIM_MAX`] for a change that is under way.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InUse`] while it is being changed for longer.
    async fn claim_pool(&self, name: &str, doing: &'static str) -> Result<Claim<'_>, ErrorDetail> {
        let deadline = tokio::time::Instant::now() + CLAIM_MAX;
        loop {
            // Asked for before the look, so that an end between the two is not missed.
            let mut unclaimed = std::pin::pin!(self.unclaimed.notified());
            unclaimed.as_mut().enable();
            self.is_open()?;
            let (uuid, name, other) = {
                let tables = self.read();
                let entry = tables.pool(name)?;
                (entry.uuid, entry.name.clone(), tables.busy.get(&entry.uuid).copied())
            };
            if let Some(claim) = self.claim_found(uuid, doing) {
                return Ok(claim);
            }
            if tokio::time::timeout_at(deadline, unclaimed).await.is_err() {
                let other = other.unwrap_or("changed");
                return Err(ErrorDetail::new(Kind::InUse, format!("pool {name} is being {other}"))
                    .with("pool", name)
                    .remedy("wait until that is done, and try again"));
            }
        }
    }
}
