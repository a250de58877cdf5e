//! Pools, and the volumes and snapshots in them: what is asked of them and what is told of them.

use crate::limits::VOLUME_BLOCK_BYTES;
use crate::{DiskStats, Place};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a pool serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolState {
    /// Its volumes can be used.
    Active,
    /// Members are missing; it serves nothing and waits for them.
    Incomplete,
    /// It could not be opened, or a member has failed; the reason is in `attention`.
    Failed,
}

impl PoolState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            PoolState::Active => "active",
            PoolState::Incomplete => "incomplete",
            PoolState::Failed => "failed",
        }
    }
}

/// One member of a pool.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolMember {
    /// Its number in the pool, from 0.
    pub number: u8,
    /// Its identity, as the labels say.
    pub uuid: String,
    /// The disk that it is; absent for an array. For a missing one where it was last seen, if that is known.
    pub disk: Option<String>,
    /// The array that it is; absent for a disk.
    pub array: Option<String>,
    /// Whether it is here.
    pub present: bool,
    /// Whether it is being removed: what it has moves to the others.
    pub leaves: bool,
    /// Whether it was absent and given up: it is not taken back.
    pub given_up: bool,
    /// Its disk is an export of a server that cannot promise that what an old connection asked for is not carried out after all.
    #[serde(default)]
    pub unfenced: bool,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// What of it holds data of volumes, or could, in bytes; absent while the pool does not serve.
    pub data_bytes: Option<u64>,
    /// What of that is handed out, in bytes; absent while the pool does not serve.
    pub allocated_bytes: Option<u64>,
    /// Counters since the daemon opened the disk; absent for an array, and while the disk is not open.
    pub stats: Option<DiskStats>,
}

/// One pool.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Whether it serves.
    pub state: PoolState,
    /// What needs attention, a sentence each.
    pub attention: Vec<String>,
    /// Whether it is found again after the daemon ends; not with `mem` and `null`.
    pub kept: bool,
    /// When it was created, in seconds of Unix time.
    pub created_unix_s: u64,
    /// The size of its members together, in bytes.
    pub raw_bytes: u64,
    /// What its members have for data of volumes, in bytes; 0 while it does not serve.
    pub size_bytes: u64,
    /// What of that is handed out, in extents of 256 KiB, or not yet free again, in bytes.
    pub allocated_bytes: u64,
    /// What can be handed out now, in bytes; what is kept for thick volumes is not in it.
    pub free_bytes: u64,
    /// What is free and kept for thick volumes, in bytes.
    pub reserved_bytes: u64,
    /// What its volumes would take if all of them were written, in bytes. May exceed its size.
    pub promised_bytes: u64,
    /// How many volumes it has.
    pub volumes: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// Its members.
    pub members: Vec<PoolMember>,
    /// Who has how much; only where one pool is asked for, and serves.
    pub space: Option<PoolSpace>,
    /// Only in the answer to letting a member stay that was to leave: volumes that had been placed on it, and are not any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<String>,
}

/// Of what a volume or snapshot shows, how much it shares. While the volume is written, the figures are of slightly different moments.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Space {
    /// Its content that is not zeros, in bytes: its own, and what it has in common with others.
    pub data_bytes: u64,
    /// What of that no other volume or snapshot has, in bytes: so much becomes free when it is deleted.
    pub exclusive_bytes: u64,
    /// What other volumes or snapshots have, too, in bytes.
    pub shared_bytes: u64,
    /// What reads as errors, at most, in bytes: it may stand on a member that the pool goes on without, or where its tables are damaged. Also
    /// what was never written is in it, as the pool cannot tell.
    pub in_doubt_bytes: u64,
}

/// The space of one volume or snapshot of a pool.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NamedSpace {
    /// Its name within the pool, as in `db` or `db@monday`.
    pub name: String,
    /// What stands under this name, in extents of 256 KiB, in bytes.
    pub allocated_bytes: u64,
    /// Of a volume: the same with that of all of its snapshots.
    pub with_snapshots_bytes: Option<u64>,
    /// What it shows.
    #[serde(flatten)]
    pub space: Space,
}

/// Who has how much of a pool. Blocks are counted, of 4096 bytes: extents that are not full have more.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolSpace {
    /// Blocks that stand on the members, in bytes.
    pub stored_bytes: u64,
    /// Those of them that several volumes and snapshots have, each counted once, in bytes.
    pub shared_bytes: u64,
    /// Those that one alone has, in bytes.
    pub exclusive_bytes: u64,
    /// Those that no volume or snapshot has any more, in bytes: what was deleted, and is on its way to be free.
    pub unseen_bytes: u64,
    /// What of all volumes and snapshots reads as errors, at most, in bytes.
    pub in_doubt_bytes: u64,
    /// Records that say of blocks that they read as zeros, without space for them.
    pub zero_ranges: u64,
    /// How many of these there can be.
    pub zero_ranges_max: u64,
    /// Its volumes.
    pub volumes: Vec<NamedSpace>,
    /// Its snapshots.
    pub snapshots: Vec<NamedSpace>,
}

/// Every pool of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// The pools, by name.
    pub pools: Vec<Pool>,
    /// Why objects may be missing from the list, one sentence each; empty where the list is complete.
    #[serde(default)]
    pub incomplete: Vec<String>,
}

/// `POST /v1/pools`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "tank", "members": ["mem:64M"]}))]
pub struct CreatePool {
    /// The new pool's name.
    pub name: String,
    /// Its members: disks as for arrays, and arrays by name or UUID. What could be a name is the name of an array.
    pub members: Vec<String>,
    /// Take disks and arrays that already carry data, and destroy it.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/pools/{pool}/rename`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "deep"}))]
pub struct RenamePool {
    /// The new name.
    pub name: String,
}

/// One volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name, as in `tank/db`.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// The pool that it is in.
    pub pool: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes: 4096, or 512. What clients ask for begins and ends with one.
    #[serde(default = "block_bytes_usual")]
    pub block_bytes: u32,
    /// Whether space for all of it is kept.
    pub thick: bool,
    /// What is free and kept for it, in bytes.
    pub reserved_bytes: u64,
    /// What it has of its own, in extents of 256 KiB: written since its last snapshot, in bytes.
    pub allocated_bytes: u64,
    /// When it was created, in seconds of Unix time.
    pub created_unix_s: u64,
    /// The snapshot that it goes on from: its own last one, or, of a clone, the one that it was cloned from. Absent where that is none,
    /// or is deleted.
    pub parent: Option<String>,
    /// How many snapshots of it there are.
    pub snapshots: u64,
    /// How snapshots of it are taken by themselves; absent: they are not.
    pub policy: Option<SnapshotPolicy>,
    /// Most requests a second, over all of its exports together; absent: as many as there are.
    pub iops_max: Option<u64>,
    /// Most bytes a second, likewise.
    pub bandwidth_bytes_max: Option<u64>,
    /// On which members of the pool its new blocks go.
    pub place: Place,
    /// Whether it, or one of its snapshots, has blocks elsewhere: they are being moved.
    pub moves: bool,
    /// Whether what it has scattered is being put together.
    pub compacts: bool,
    /// Whether it is being made independent of what it began as.
    pub flattens: bool,
    /// How much of that was looked at, in percent; absent while that has not begun.
    pub flattened_percent: Option<u8>,
    /// Whether it may have blocks on a member that the pool goes on without, or where its tables are damaged: these read as errors.
    pub in_doubt: bool,
    /// The exports by which clients use it.
    pub exports: Vec<String>,
    /// What it shows and shares; absent in the answer to a change.
    pub space: Option<Space>,
}

/// The logical block of a volume, in bytes, where nothing else is said.
pub const fn block_bytes_usual() -> u32 {
    VOLUME_BLOCK_BYTES
}

/// Whether a logical block is the usual one: then it is left out of what other builds read.
pub fn is_block_usual(block_bytes: &u32) -> bool {
    *block_bytes == block_bytes_usual()
}

/// Snapshots that are taken by themselves, and `PUT /v1/volumes/{volume}/policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"every_s": 3600, "keep": 24}))]
pub struct SnapshotPolicy {
    /// One every so many seconds, 10 at least: at times of the clock that are multiples of it in UTC.
    pub every_s: u32,
    /// How many of them are kept, the newest.
    pub keep: u32,
}

/// Volumes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
    /// Volumes of several nodes that this one knows, by name; none where those of one pool were asked for.
    #[serde(default)]
    pub replicated: Vec<crate::ReplicatedVolume>,
    /// Why objects may be missing from the list, one sentence each; empty where the list is complete.
    #[serde(default)]
    pub incomplete: Vec<String>,
}

/// `POST /v1/volumes`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "tank/db", "size_bytes": 1073741824}))]
pub struct CreateVolume {
    /// Its name, with that of its pool: `tank/db`.
    pub name: String,
    /// Its size, in bytes, a multiple of 4096. It may be larger than the pool: space is taken by what is written.
    pub size_bytes: u64,
    /// Whether space for all of it is kept from the beginning: nothing of it is refused for want of space, except over a snapshot.
    #[serde(default)]
    pub thick: bool,
    /// Its logical block, in bytes: 4096 if nothing is said, or 512, for images of disks whose file systems or tables of partitions count in sectors of 512
    /// bytes. Data stand in blocks of 4096 bytes all the same: a write that covers a block in part reads it first.
    #[serde(default = "block_bytes_usual", skip_serializing_if = "is_block_usual")]
    pub block_bytes: u32,
    /// On which members of the pool it has its blocks; on all if nothing is said.
    #[serde(default)]
    pub place: Place,
    /// Most requests a second, over all of its exports together; 0, or nothing: as many as there are.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes a second, likewise.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// `PATCH /v1/volumes/{volume}`. What is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"iops_max": 3000}))]
pub struct SetVolume {
    /// Most requests a second, over all of its exports together; 0: as many as there are.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes a second, likewise.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// `POST /v1/volumes/{volume}/rename`, and the same of snapshots.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "sales"}))]
pub struct RenameVolume {
    /// The new name, without that of the pool (and of the volume).
    pub name: String,
}

/// `POST /v1/volumes/{volume}/resize`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"size_bytes": 2147483648u64}))]
pub struct ResizeVolume {
    /// The new size, in bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// Make it smaller although it has data beyond the new end: they are lost.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/volumes/{volume}/flatten`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({}))]
pub struct FlattenVolume {
    /// Let it be: what was copied is its own, and it stays dependent.
    #[serde(default)]
    pub cancel: bool,
}

/// `POST /v1/volumes/{volume}/rollback`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"snapshot": "tank/db@monday"}))]
pub struct RollbackVolume {
    /// The snapshot, as in `tank/db@monday`, or its UUID.
    pub snapshot: String,
    /// Also where an array that does not serve had the volume as a member.
    #[serde(default)]
    pub force: bool,
}

/// What a file system on a snapshot is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotConsistency {
    /// Crash-consistent: as after a loss of power. What was not flushed may be missing, and a journal may have to be replayed.
    #[default]
    Crash,
    /// Its file system was frozen while it was taken: what had been written to files before is in it.
    Frozen,
}

/// `PATCH /v1/snapshots/{snapshot}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"consistency": "frozen"}))]
pub struct ChangeSnapshot {
    /// What the client that took it knows of its file system. `frozen` is for a client that froze the file system before it asked for the
    /// snapshot, and thawed it after the answer.
    pub consistency: SnapshotConsistency,
}

/// One snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name, as in `tank/db@monday`.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// The pool that it is in; empty where its volume is kept on several nodes.
    pub pool: String,
    /// The volume that it is of, as in `tank/db`; absent where that is not there any more.
    pub volume: Option<String>,
    /// The size that the volume had, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes: that of its volume.
    #[serde(default = "block_bytes_usual")]
    pub block_bytes: u32,
    /// What is kept under its name, in extents of 256 KiB: what was written to the volume between the snapshot before and this one, in
    /// bytes. When it is deleted, what later ones still need of that goes to them.
    pub allocated_bytes: u64,
    /// When it was taken, in seconds of Unix time.
    pub created_unix_s: u64,
    /// What a file system on it is like.
    #[serde(default)]
    pub consistency: SnapshotConsistency,
    /// The exports by which clients read it.
    pub exports: Vec<String>,
    /// What it shows and shares; absent in the answer to a change, and where its volume is kept on several nodes.
    pub space: Option<Space>,
    /// Of a volume that is kept on several nodes: its replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<SnapshotReplica>,
}

/// A replica of a volume that has a snapshot, or lacks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotReplica {
    /// Its node.
    pub node: String,
    /// The pool there.
    pub pool: String,
    /// Whether it has the snapshot: one that was out when that was taken may lack it; one that is out now is not asked.
    pub has: bool,
}

/// Snapshots.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// The snapshots, by volume, the oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Why objects may be missing from the list, one sentence each; empty where the list is complete.
    #[serde(default)]
    pub incomplete: Vec<String>,
}

/// `POST /v1/snapshots`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"snapshots": ["tank/db@monday"]}))]
pub struct CreateSnapshots {
    /// Their names, as in `tank/db@monday`: all of one pool, all taken at one instant, or none.
    pub snapshots: Vec<String>,
}

/// `POST /v1/snapshots/{snapshot}/clone`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "trial"}))]
pub struct CloneSnapshot {
    /// The name of the volume that begins as the snapshot is, in the same pool: `tank/trial`, or `trial`.
    pub name: String,
}

/// Neighbouring blocks that have changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangedRange {
    /// Where, in bytes.
    pub offset_bytes: u64,
    /// How long, in bytes.
    pub length_bytes: u64,
    /// It is known to read as zeros now. What is not known so may do so as well.
    pub zeros: bool,
}

/// In what one volume or snapshot differs from another.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDiff {
    /// What it is compared with, as in `tank/db@monday`.
    pub from: String,
    /// What is compared, as in `tank/db@tuesday`, or `tank/db` as it is now.
    pub to: String,
    /// The size of the latter, in bytes.
    pub size_bytes: u64,
    /// How much has changed, in bytes: the sum of the ranges here.
    pub changed_bytes: u64,
    /// What was written or discarded on the way from one to the other, in order, also if it is the same again.
    pub ranges: Vec<ChangedRange>,
    /// There are more, from this byte on; absent where these are all.
    pub next_offset_bytes: Option<u64>,
}
