//! Pools, and their volumes and snapshots: requests to change them, and what the API shows of them.

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
    /// Members are missing; it does not serve, and waits for them.
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
    /// Its identity in the labels.
    pub uuid: String,
    /// Its disk; absent for an array. For a missing member the disk on which it was last seen, if known.
    pub disk: Option<String>,
    /// Its array; absent for a disk.
    pub array: Option<String>,
    /// Whether it is present.
    pub present: bool,
    /// Whether it is being removed: its data move to the other members.
    pub removing: bool,
    /// Whether it was missing and was given up: it cannot return.
    pub given_up: bool,
    /// Whether its disk is an export of a server without fencing, which may still carry out requests of an old connection.
    #[serde(default)]
    pub unfenced: bool,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its capacity for data of volumes, in bytes; absent while the pool does not serve.
    pub data_bytes: Option<u64>,
    /// Bytes of that capacity that are allocated; absent while the pool does not serve.
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
    /// What needs attention, one sentence each; empty when all is well.
    pub attention: Vec<String>,
    /// Whether it survives the end of the daemon; false with a `mem` or `null` disk in it.
    pub persistent: bool,
    /// When it was created, in seconds of Unix time; 0 if no label was found.
    pub created_unix_s: u64,
    /// Total size of its members, in bytes.
    pub raw_bytes: u64,
    /// Its capacity for data of volumes, in bytes; 0 while it does not serve.
    pub size_bytes: u64,
    /// Allocated bytes, in extents of 256 KiB, including those that are not free again yet.
    pub allocated_bytes: u64,
    /// Bytes that can be allocated now, without the reserve for thick volumes.
    pub free_bytes: u64,
    /// Free bytes that are reserved for thick volumes.
    pub reserved_bytes: u64,
    /// Total size of its volumes, in bytes. The pool is overcommitted if this exceeds `size_bytes`.
    pub provisioned_bytes: u64,
    /// Number of its volumes.
    pub volumes: u64,
    /// Number of its snapshots.
    pub snapshots: u64,
    /// Its members.
    pub members: Vec<PoolMember>,
    /// Its space by volume and snapshot; only in a request for one pool, while it serves.
    pub space: Option<PoolSpace>,
    /// Only in the response to a cancelled removal of a member: volumes that were allocated on it by policy, and no longer are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unassigned_volumes: Vec<String>,
}

/// Exclusive and shared space of a volume or snapshot. While the volume is written, the figures are from slightly different moments.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Space {
    /// Bytes of its content that are not zeros, exclusive and shared.
    pub data_bytes: u64,
    /// Bytes that no other volume or snapshot has: they become free when it is deleted.
    pub exclusive_bytes: u64,
    /// Bytes that other volumes or snapshots have as well.
    pub shared_bytes: u64,
    /// Most bytes that may read as errors, as they may be on a missing member, or in damaged tables. Includes blocks that were never
    /// written, as the pool cannot tell.
    pub in_doubt_bytes: u64,
}

/// The space of one volume or snapshot of a pool.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NamedSpace {
    /// Its name within the pool, as in `db` or `db@monday`.
    pub name: String,
    /// Bytes allocated for it alone, in extents of 256 KiB.
    pub allocated_bytes: u64,
    /// Of a volume: bytes allocated for it and all of its snapshots.
    pub with_snapshots_bytes: Option<u64>,
    /// Its exclusive and shared space.
    #[serde(flatten)]
    pub space: Space,
}

/// The space of a pool by volume and snapshot, counted in blocks of 4096 bytes: partly used extents take more.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolSpace {
    /// Bytes of the blocks stored on the members.
    pub stored_bytes: u64,
    /// Bytes of blocks that several volumes and snapshots share, each block counted once.
    pub shared_bytes: u64,
    /// Bytes of blocks that only one volume or snapshot has.
    pub exclusive_bytes: u64,
    /// Bytes of deleted blocks that no volume or snapshot has any longer, and that are being freed.
    pub freeing_bytes: u64,
    /// Most bytes of all volumes and snapshots that may read as errors.
    pub in_doubt_bytes: u64,
    /// Records of ranges that read as zeros without allocated space.
    pub zero_ranges: u64,
    /// Most such records.
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
    /// Its members: disks as for arrays, and arrays by name or UUID. A text that can be a name is the name of an array.
    pub members: Vec<String>,
    /// Use disks and arrays that already carry data, and destroy it.
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
    /// Its logical block, in bytes: 4096 or 512. Requests of clients are multiples of it.
    #[serde(default = "block_bytes_usual")]
    pub block_bytes: u32,
    /// Whether space for all of it is reserved.
    pub thick: bool,
    /// Free bytes that are reserved for it.
    pub reserved_bytes: u64,
    /// Bytes allocated for it alone, in extents of 256 KiB: written since its last snapshot.
    pub allocated_bytes: u64,
    /// When it was created, in seconds of Unix time.
    pub created_unix_s: u64,
    /// Its parent snapshot: its own last one, or, of a clone, the one that it was cloned from. Absent if it has none, or the parent
    /// is deleted.
    pub parent: Option<String>,
    /// Number of its snapshots.
    pub snapshots: u64,
    /// Its snapshot schedule; absent: no snapshots are taken automatically.
    pub policy: Option<SnapshotPolicy>,
    /// Most requests per second, over all of its exports together; absent: no limit.
    pub iops_max: Option<u64>,
    /// Most bytes per second, over all of its exports together; absent: no limit.
    pub bandwidth_bytes_max: Option<u64>,
    /// Its allocation policy: the members of the pool on which its new blocks are allocated.
    pub place: Place,
    /// Whether blocks of it, or of one of its snapshots, are being moved to the members of its allocation policy.
    pub moving: bool,
    /// Whether its packed extents are being compacted.
    pub compacting: bool,
    /// Whether it is being flattened: made independent of its parent.
    pub flattening: bool,
    /// Progress of flattening, in percent; absent while that has not begun.
    pub flattened_percent: Option<u8>,
    /// Whether it may have blocks on a missing member, or in damaged tables: these read as errors.
    pub in_doubt: bool,
    /// Its exports.
    pub exports: Vec<String>,
    /// Its exclusive and shared space; absent in the response to a change.
    pub space: Option<Space>,
}

/// Returns the default logical block of a volume, in bytes.
pub const fn block_bytes_usual() -> u32 {
    VOLUME_BLOCK_BYTES
}

/// Whether a logical block is the default: it is then left out of requests, as older builds do not know the field.
pub fn is_block_usual(block_bytes: &u32) -> bool {
    *block_bytes == block_bytes_usual()
}

/// The snapshot schedule of a volume, and `PUT /v1/volumes/{volume}/policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"every_s": 3600, "keep": 24}))]
pub struct SnapshotPolicy {
    /// Seconds between two snapshots, at least 10: they are taken when Unix time is a multiple of it.
    pub every_s: u32,
    /// Number of scheduled snapshots that are kept, the newest.
    pub keep: u32,
}

/// Volumes of pools, and replicated volumes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
    /// The replicated volumes that this node knows, by name; empty in a request for one pool.
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
    /// Its size, in bytes, a multiple of 4096. It may be larger than the pool: space is allocated by writes.
    pub size_bytes: u64,
    /// Whether space for all of it is reserved from the start: no write fails for want of space, except over a snapshot.
    #[serde(default)]
    pub thick: bool,
    /// Its logical block, in bytes: 4096 (the default), or 512 for disk images whose file systems or partition tables count in sectors of
    /// 512 bytes. Data are stored in blocks of 4096 bytes in any case: a write of part of a block reads the block first.
    #[serde(default = "block_bytes_usual", skip_serializing_if = "is_block_usual")]
    pub block_bytes: u32,
    /// Its allocation policy; absent: `spread`.
    #[serde(default)]
    pub place: Place,
    /// Most requests per second, over all of its exports together; 0 or absent: no limit.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes per second, over all of its exports together; 0 or absent: no limit.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// `PATCH /v1/volumes/{volume}`: absent fields stay unchanged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"iops_max": 3000}))]
pub struct SetVolume {
    /// Most requests per second, over all of its exports together; 0: no limit.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes per second, over all of its exports together; 0: no limit.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// `POST /v1/volumes/{volume}/rename` and `POST /v1/snapshots/{snapshot}/rename`.
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
    /// Shrink it even if it has data beyond the new end: they are lost.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/volumes/{volume}/flatten`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({}))]
pub struct FlattenVolume {
    /// Cancel flattening: blocks copied so far stay its own, and it stays dependent on its parent.
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
    /// Roll back even if the volume is a member of an array that does not serve, or a file system of the daemon's machine is
    /// mounted on it.
    #[serde(default)]
    pub force: bool,
}

/// The consistency of a file system on a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotConsistency {
    /// Crash-consistent, as after a power loss: data that were not flushed may be missing, and a journal may need replay.
    #[default]
    Crash,
    /// The file system was frozen while the snapshot was taken: it has all data that were written to files before.
    Frozen,
}

/// `PATCH /v1/snapshots/{snapshot}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"consistency": "frozen"}))]
pub struct ChangeSnapshot {
    /// The consistency of its file system, as the client knows it. `frozen` is for a client that froze the file system before it
    /// requested the snapshot, and thawed it after the response.
    pub consistency: SnapshotConsistency,
}

/// One snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name, as in `tank/db@monday`.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// The pool that it is in; empty for a snapshot of a replicated volume.
    pub pool: String,
    /// Its volume, as in `tank/db`; absent if that was deleted.
    pub volume: Option<String>,
    /// The size of its volume when it was taken, in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes: that of its volume.
    #[serde(default = "block_bytes_usual")]
    pub block_bytes: u32,
    /// Bytes allocated for it alone, in extents of 256 KiB: written to the volume between the previous snapshot and this one. When
    /// it is deleted, the blocks that its children still need are merged into them.
    pub allocated_bytes: u64,
    /// When it was taken, in seconds of Unix time.
    pub created_unix_s: u64,
    /// The consistency of a file system on it.
    #[serde(default)]
    pub consistency: SnapshotConsistency,
    /// Its exports.
    pub exports: Vec<String>,
    /// Its exclusive and shared space; absent in the response to a change, and for a snapshot of a replicated volume.
    pub space: Option<Space>,
    /// For a snapshot of a replicated volume: the volume's replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<SnapshotReplica>,
}

/// A replica of a volume, and whether it has a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotReplica {
    /// Its node.
    pub node: String,
    /// The pool there.
    pub pool: String,
    /// Whether it has the snapshot. A replica that was failed when the snapshot was taken may lack it; a failed one is not queried.
    pub has_snapshot: bool,
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
    /// Their names, as in `tank/db@monday`, all in one pool. Either all are taken, at the same moment, or none.
    pub snapshots: Vec<String>,
}

/// `POST /v1/snapshots/{snapshot}/clone`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "trial"}))]
pub struct CloneSnapshot {
    /// The name of the clone, in the same pool: `tank/trial`, or `trial`.
    pub name: String,
}

/// A range that has changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangedRange {
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length, in bytes.
    pub length_bytes: u64,
    /// Whether it is known to read as zeros. Other ranges may read as zeros as well.
    pub zeros: bool,
}

/// The ranges in which one volume or snapshot differs from another.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDiff {
    /// The base of the comparison, as in `tank/db@monday`.
    pub from: String,
    /// What is compared with the base, as in `tank/db@tuesday`, or `tank/db` for its current content.
    pub to: String,
    /// The size of `to`, in bytes.
    pub size_bytes: u64,
    /// Total length of `ranges`, in bytes.
    pub changed_bytes: u64,
    /// The ranges written or discarded between the two, in order, even where the content is equal again.
    pub ranges: Vec<ChangedRange>,
    /// More ranges follow from this byte on; absent if these are all.
    pub next_offset_bytes: Option<u64>,
}
