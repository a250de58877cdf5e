//! Pools that the daemon knows, active or not.

use crate::disks::OpenDisk;
use crate::pool_jobs::PoolJobs;
use crate::pool_maintenance::Maintenance;
use crate::pool_vitals::Vitals;
use crate::snapshot_schedules::ScheduledVolume;
use braid_api::{PoolContents, PoolState};
use braid_engine::pool::{Accounts, PoolShared, VolumeId};
use braid_engine::{DeviceId, DeviceLayout, PoolKey, PoolMembers, ShardId};
use braid_format::pool::{PoolLabel, PoolMember, PoolMemberState};
use braid_ring::Throttle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Word of a claim: the array is a member of a pool which is being opened or deleted.
pub const WITH_POOL: &str = "opened or deleted with its pool";

/// Word of a claim: the pool is being deleted.
pub const DELETED: &str = "deleted";

/// Word of a claim: the pool is closed and reopened, with members that have returned.
pub const REOPENED: &str = "opened anew";

/// The device behind a member of a pool.
#[derive(Clone)]
pub enum MemberBacking {
    /// A disk that is not part of an array.
    Disk(Arc<OpenDisk>),
    /// An array, by its identity.
    Array(Uuid),
}

/// A member of a pool that is present.
#[derive(Clone)]
pub struct MemberPart {
    /// The disk or array.
    pub backing: MemberBacking,
    /// The device that the pool addresses it by.
    pub device: DeviceId,
    /// Its label, as the disk is to have it; the disk has an older one if `behind` is set.
    pub label: PoolLabel,
    /// The label on the disk may be older.
    pub behind: bool,
    /// The copy of the label, at its second location, is torn or older, and is written first.
    pub copy_first: bool,
}

impl MemberPart {
    /// Returns the array that it is; `None`: it is a disk.
    pub fn array(&self) -> Option<Uuid> {
        match self.backing {
            MemberBacking::Array(uuid) => Some(uuid),
            MemberBacking::Disk(_) => None,
        }
    }
}

/// A volume or snapshot that is served.
#[derive(Clone)]
pub struct ServedVolume {
    /// Its number on the pool's home shard.
    pub id: VolumeId,
    /// Its device.
    pub device: DeviceId,
    /// The layout that was published last.
    pub layout: Arc<DeviceLayout>,
    /// The throttle that its exports share.
    pub throttle: Arc<Throttle>,
}

/// A pool that serves.
pub struct ServedPool {
    /// Its key on the shards.
    pub key: PoolKey,
    /// The shard that changes its tables.
    pub home: ShardId,
    /// The state that all shards read.
    pub shared: Arc<PoolShared>,
    /// Where its members' extents begin.
    pub locations: Arc<PoolMembers>,
    /// Its members, by number.
    pub parts: Vec<MemberPart>,
    /// Removed members whose disks the pool still has.
    pub outgoing: Vec<MemberPart>,
    /// Members that were removed, or were never added, and that the pool cannot release, as a disk hangs or has failed:
    /// the pool may write to them until the daemon ends.
    pub stuck: Vec<MemberPart>,
    /// Its served volumes and snapshots, by identity.
    pub volumes: BTreeMap<Uuid, ServedVolume>,
    /// Volumes that are not exported any more, and wait for a disk that hangs.
    pub releasing: BTreeSet<Uuid>,
    /// Locked by each change of its volumes.
    pub work: Arc<tokio::sync::Mutex<()>>,
    /// Its maintenance task.
    pub maintenance: Maintenance,
    /// A member has failed, and the pool can make nothing durable any more.
    pub failed: Arc<AtomicBool>,
    /// The session before did not end cleanly, and its in-memory log was not found in shared memory.
    pub log_missed: bool,
    /// Its volumes with a snapshot schedule, as the maintenance task saw them last.
    pub policies: Vec<ScheduledVolume>,
    /// The names of the volumes with a schedule of which no snapshot can be taken.
    pub policies_failing: BTreeSet<String>,
    /// How full it is, as its home reported last.
    pub vitals: Vitals,
    /// The contents of its volumes.
    pub contents: Arc<PoolContents>,
    /// Locked while its snapshots are recorded, so that the last record contains all of them.
    pub noting: Arc<tokio::sync::Mutex<()>>,
    /// Number of damaged records in its tables.
    pub damaged: Arc<AtomicU32>,
    /// Its snapshots, for clients that request differences from them.
    pub snapshots: Vec<KnownSnapshot>,
    /// The last space accounting; `None`: there was none since the pool was opened.
    pub counted: Arc<tokio::sync::Mutex<Option<Counted>>>,
    /// Its background jobs.
    pub jobs: Arc<PoolJobs>,
    /// Missing members that were found again, by number: the name of the disk or array.
    pub returned: BTreeMap<u8, String>,
}

impl ServedPool {
    /// Returns everything that the pool may write to: its members, and former or rejected members until they are
    /// released.
    pub fn written(&self) -> impl Iterator<Item = &MemberPart> {
        self.parts.iter().chain(&self.outgoing).chain(&self.stuck)
    }
}

/// A pool that does not serve.
pub struct IdlePool {
    /// Why: incomplete or failed.
    pub state: PoolState,
    /// What needs attention, one sentence each.
    pub attention: Vec<String>,
    /// What to do about it, as a command where there is one.
    pub remedy: String,
    /// The members that were found, by number: the name of the disk or array.
    pub present: BTreeMap<u8, String>,
    /// Arrays with its label, and their member numbers: the pool keeps them although it does not serve.
    pub arrays: BTreeMap<Uuid, u8>,
    /// It could not be opened for lack of space; it is tried again.
    pub lacks_space: bool,
}

/// Whether a pool serves, with the data of that state.
pub enum PoolCondition {
    /// The pool serves.
    Serves(Box<ServedPool>),
    /// The pool does not serve.
    Idle(IdlePool),
}

/// A pool that the daemon knows.
pub struct PoolEntry {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// The newest label, if one was found.
    pub label: Option<PoolLabel>,
    /// Whether it serves.
    pub condition: PoolCondition,
}

impl PoolEntry {
    /// Returns a remark to put after the pool's name if the pool does not serve; empty if it serves.
    pub fn idle_word(&self) -> String {
        match &self.condition {
            PoolCondition::Serves(_) => String::new(),
            PoolCondition::Idle(idle) => format!(", which is {},", idle.state.word()),
        }
    }

    /// Returns the data of a pool that serves; `None` if it does not serve.
    pub fn served(&self) -> Option<&ServedPool> {
        match &self.condition {
            PoolCondition::Serves(served) => Some(served),
            PoolCondition::Idle(_) => None,
        }
    }

    /// Returns the data of a pool that serves, to change it; `None` if it does not serve.
    pub fn served_mut(&mut self) -> Option<&mut ServedPool> {
        match &mut self.condition {
            PoolCondition::Serves(served) => Some(served),
            PoolCondition::Idle(_) => None,
        }
    }
}

/// A pool that serves, with what calls to it need: a copy that is used without the lock of the tables.
#[derive(Clone)]
pub struct PoolHandle {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// As [`ServedPool::key`].
    pub key: PoolKey,
    /// As [`ServedPool::home`].
    pub home: ShardId,
    /// As [`ServedPool::shared`].
    pub shared: Arc<PoolShared>,
    /// As [`ServedPool::locations`].
    pub locations: Arc<PoolMembers>,
    /// As [`ServedPool::work`].
    pub work: Arc<tokio::sync::Mutex<()>>,
    /// As [`ServedPool::counted`].
    pub counted: Arc<tokio::sync::Mutex<Option<Counted>>>,
}

/// A snapshot as it is known to exports of its volume and of the volume's other snapshots.
#[derive(Clone)]
pub struct KnownSnapshot {
    /// Its identity.
    pub uuid: Uuid,
    /// Its volume: identity and name.
    pub volume: (Uuid, String),
    /// Its own name, without the volume's.
    pub name: String,
}

/// The result of a space accounting. It is used again for some time, longer the longer it took.
pub struct Counted {
    /// When it was completed.
    pub at: Instant,
    /// How long the home of the pool was busy with it, about.
    pub took: Duration,
    /// The space of each volume and snapshot.
    pub accounts: Arc<Accounts>,
}

/// Returns the missing members that the pool would take back, by number; none if no label of the pool was found.
pub fn missing_of(entry: &PoolEntry) -> Vec<(u8, PoolMember)> {
    let Some(label) = &entry.label else { return Vec::new() };
    let missing = label
        .numbered()
        .filter(|(number, member)| label.missing() >> number & 1 == 1 && member.state != PoolMemberState::Abandoned);
    missing.map(|(number, member)| (number, *member)).collect()
}

/// Returns the data of a pool between its close and its reopening: its members have no other use meanwhile.
pub fn while_reopening(served: &ServedPool) -> IdlePool {
    let disk = |part: &MemberPart| match &part.backing {
        MemberBacking::Disk(disk) => Some((part.label.member, format!("disk {}", disk.name))),
        MemberBacking::Array(_) => None,
    };
    let array = |part: &MemberPart| match part.backing {
        MemberBacking::Array(uuid) => Some((uuid, part.label.member)),
        MemberBacking::Disk(_) => None,
    };
    IdlePool {
        state: PoolState::Incomplete,
        attention: vec!["it is being opened anew, with a member that is back".to_owned()],
        remedy: "wait for a moment".to_owned(),
        present: served.parts.iter().filter_map(disk).collect(),
        arrays: served.parts.iter().filter_map(array).collect(),
        lacks_space: false,
    }
}
