//! Arrays: requests to change them, and what the API shows of them.

use crate::DiskStats;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether an array serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ArrayState {
    /// It serves reads and writes.
    Active,
    /// Members are missing; it does not serve, and waits for them.
    Incomplete,
    /// All members are present, but a command stopped it.
    Stopped,
    /// It could not be started for another reason, given in `attention`.
    Failed,
}

impl ArrayState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            ArrayState::Active => "active",
            ArrayState::Incomplete => "incomplete",
            ArrayState::Stopped => "stopped",
            ArrayState::Failed => "failed",
        }
    }
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MemberState {
    /// Present and in sync.
    InSync,
    /// No disk with its label was found.
    Missing,
    /// Present, but its disk returns errors, or does not complete I/Os.
    Failing,
    /// Its disk has disappeared.
    Gone,
    /// Being rebuilt or resynced; it takes every write.
    Rebuilding,
    /// Failed: it was dropped for errors, was missing, or was failed by command.
    Failed,
    /// The slot has no member.
    Vacant,
    /// A spare: it takes over the slot of a member that fails.
    Spare,
    /// It holds no data, but the journal of a raid5 or raid6.
    Journal,
}

impl MemberState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            MemberState::InSync => "in_sync",
            MemberState::Missing => "missing",
            MemberState::Failing => "failing",
            MemberState::Gone => "gone",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Failed => "failed",
            MemberState::Vacant => "vacant",
            MemberState::Spare => "spare",
            MemberState::Journal => "journal",
        }
    }
}

/// One member of an array.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Its slot in the array, from 0.
    pub slot: u16,
    /// Its identity in its label.
    pub uuid: String,
    /// Its disk; for a missing member the disk on which it was last seen, if known.
    pub disk: Option<String>,
    /// Its state.
    pub state: MemberState,
    /// Size of its data area, in bytes.
    pub data_bytes: u64,
    /// Where its data area begins on the disk, in bytes; absent while the member is missing.
    pub data_offset_bytes: Option<u64>,
    /// Counters since the daemon opened the disk; absent while it is not open.
    pub stats: Option<DiskStats>,
    /// Of a redundant array: whether it is read only when no other member can serve the read.
    #[serde(default)]
    pub write_mostly: bool,
    /// Whether its disk is an export of a server without fencing, which may still carry out requests of an old connection.
    #[serde(default)]
    pub unfenced: bool,
    /// Progress of its rebuild or resync, once that has begun.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// The job that rebuilds it, as in `data:3`.
    #[serde(default)]
    pub job: Option<String>,
    /// The member whose slot it takes over when it is in sync.
    #[serde(default)]
    pub replaces: Option<u16>,
}

/// The health of a redundant array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Health {
    /// All members are in sync and equal.
    Whole,
    /// All members are present; regions that a crash may have left unequal are being resynced.
    Resyncing,
    /// A member is being rebuilt.
    Rebuilding,
    /// Members are failed, or slots vacant, and no disk replaces them.
    Degraded,
    /// More members are lost than it tolerates: every request fails, and nothing is written any longer.
    Failed,
}

impl Health {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            Health::Whole => "whole",
            Health::Resyncing => "resyncing",
            Health::Rebuilding => "rebuilding",
            Health::Degraded => "degraded",
            Health::Failed => "failed",
        }
    }
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Bytes of the array that are done.
    pub done_bytes: u64,
    /// Bytes of the array that there were to do when it began.
    pub total_bytes: u64,
    /// Its rate in the last seconds.
    pub rate_bytes_per_s: u64,
    /// Seconds left at that rate; absent while not known.
    pub remaining_s: Option<u64>,
}

/// The redundancy of an active redundant array.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Redundancy {
    /// The array's health.
    pub health: Health,
    /// Copies of every byte with all members in sync; 1 at raid5 and raid6.
    pub copies: u16,
    /// Parity chunks of every stripe: 1 at raid5, 2 at raid6, else 0.
    #[serde(default)]
    pub parities: u16,
    /// Number of members that may fail, in any combination, without data loss, starting with all in sync.
    #[serde(default)]
    pub tolerates: u16,
    /// Number of further members that may fail now, in any combination, without data loss; 0: the next failure may lose data.
    #[serde(default)]
    pub tolerates_now: u16,
    /// Size of a region, in bytes: what one bit of the write-intent bitmap covers.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u64,
    /// Regions written since the array was created; the others read as zeros.
    pub regions_written: u64,
    /// Dirty regions: written recently, or possibly outdated on a failed member.
    pub regions_dirty: u64,
    /// Progress of the resync after a crash; absent where none is needed.
    pub resync: Option<Progress>,
    /// Blocks of 4 KiB that the last check found wrong and nothing has repaired since, or that no member can read.
    #[serde(default)]
    pub damaged_blocks: u64,
    /// Bytes that cannot be read until they are rewritten: of stripes at raid5 and raid6 that were being written when a crash
    /// and the loss of a member coincided.
    #[serde(default)]
    pub unreadable_bytes: u64,
    /// The ranges of these bytes, in array order; the first 256.
    #[serde(default)]
    pub unreadable: Vec<ByteRange>,
    /// Of raid5 and raid6: the journal.
    #[serde(default)]
    pub journal: Option<Journal>,
    /// `auto`: the array starts without missing members that may hold newer data; `wait`: it waits for them.
    pub start_degraded: String,
}

/// The journal of a raid5 or raid6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Journal {
    /// The slot of its disk; absent where it is on all members.
    pub member: Option<u16>,
    /// Its disk; absent where it is on all members.
    pub disk: Option<String>,
    /// The state of its disk, `journal` where the disk works; absent where it is on all members.
    pub state: Option<MemberState>,
    /// The disk that it was on and that was lost, until a command moves the journal. No data was lost with that disk.
    pub lost_disk: Option<String>,
}

/// A range of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ByteRange {
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length, in bytes.
    pub bytes: u64,
}

/// A span of an array over which the set of members is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Zone {
    /// First byte in the array.
    pub array_start_bytes: u64,
    /// Length in the array, in bytes.
    pub array_bytes: u64,
    /// First byte in the data area of each of its members.
    pub member_start_bytes: u64,
    /// Length on each of its members, in bytes.
    pub member_bytes: u64,
    /// The members that it spans, by slot.
    pub members: Vec<u16>,
}

/// One array.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// `concat`, `raid0`, …
    pub level: String,
    /// `linear`, `alternate`, …
    pub layout: String,
    /// Contiguous bytes on one member before the next member follows.
    pub chunk_bytes: u64,
    /// Its usable size, in bytes.
    pub size_bytes: u64,
    /// Smallest unit of reads and writes, in bytes; 0 while it does not serve, as that depends on the disks.
    pub logical_block_bytes: u32,
    /// Whether it serves.
    pub state: ArrayState,
    /// What needs attention, one sentence each; empty when all is well.
    pub attention: Vec<String>,
    /// Whether it survives the end of the daemon; false with a `mem` or `null` disk in it.
    pub persistent: bool,
    /// Whether it is read-only: an imported array of Linux md.
    #[serde(default)]
    pub read_only: bool,
    /// Its members, by slot.
    pub members: Vec<Member>,
    /// Its zones, in the array's order.
    pub zones: Vec<Zone>,
    /// Its redundancy; absent for an array without redundancy, or one that does not serve.
    #[serde(default)]
    pub redundancy: Option<Redundancy>,
    /// Names of its exports.
    pub exports: Vec<String>,
}

/// Every array of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ArrayList {
    /// The arrays, by name.
    pub arrays: Vec<Array>,
    /// Why objects may be missing from the list, one sentence each; empty where the list is complete.
    #[serde(default)]
    pub incomplete: Vec<String>,
}

/// `POST /v1/arrays`: create an array of disks.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "fast", "level": "raid0", "disks": ["mem:64M", "mem:64M"]}))]
pub struct CreateArray {
    /// Its name.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    pub name: String,
    /// `concat`, `raid0`, `raid1`, `raid10`, `raid5` or `raid6`.
    pub level: String,
    /// Of raid10: copies of every byte, from 2; 2 if absent.
    #[serde(default)]
    pub copies: Option<u16>,
    /// Contiguous bytes on one member before the next member follows; 64 KiB if absent.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
    /// The disks, in the order of their slots, named as on the command line with absolute paths.
    pub disks: Vec<String>,
    /// Of levels with redundancy: spare disks, which take over the slots of members that fail.
    #[serde(default)]
    pub spares: Vec<String>,
    /// Of raid5 and raid6: the disk that holds the journal instead of the members.
    #[serde(default)]
    pub journal: Option<String>,
    /// Of raid1 and raid10: those of `disks` that are read only when no other member can serve the read, named the same way.
    #[serde(default)]
    pub write_mostly: Vec<String>,
    /// Of levels with redundancy: `auto` to start without missing members that may hold newer data; `wait` (the default) to wait
    /// for them, or for a command that accepts the loss.
    #[serde(default)]
    pub start_degraded: Option<String>,
    /// Use disks that already carry data, and destroy it.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/fail`: fail a member.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "1"}))]
pub struct NameMember {
    /// The member: its slot, its disk, or its identity.
    pub member: String,
}

/// `POST /v1/arrays/{array}/remove`: remove a failed member or a spare.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "1"}))]
pub struct RemoveArrayMember {
    /// The member: its slot, its disk, or its identity.
    pub member: String,
    /// Of raid1: remove its slot, too, so that the array has one copy less. Later slots are renumbered. A vacant slot is removed by
    /// its number.
    #[serde(default)]
    pub copy: bool,
}

/// `POST /v1/arrays/{array}/disks`: add a disk to a redundant array.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disk": "mem:64M"}))]
pub struct AddDisk {
    /// The disk, named as on the command line with an absolute path.
    pub disk: String,
    /// Add it as a spare. If a slot is vacant, it takes that over at once, as any spare does.
    #[serde(default)]
    pub spare: bool,
    /// Of raid1: add one copy. The disk takes a new slot, even where others are vacant.
    #[serde(default)]
    pub copy: bool,
    /// Destroy what is on the disk. A failed member of the array is rebuilt from nothing as well, as a new member.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/grow`: use the space that the array's disks have gained, and additional disks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disks": ["mem:64M"], "dry_run": true}))]
pub struct GrowArray {
    /// Disks that become members, named as on the command line with absolute paths. Levels with redundancy need enough disks for a
    /// zone, counting disks of the array that have become larger as well.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Use additional disks that already carry data, and destroy it. Of raid1: also grow where the new space has fewer copies
    /// than the rest.
    #[serde(default)]
    pub force: bool,
    /// Change nothing, and return the result that growing would have.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of growing an array, or of a dry run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Growth {
    /// The array's name.
    pub array: String,
    /// Whether this was a dry run, which changed nothing.
    pub dry_run: bool,
    /// The usable size before, in bytes.
    pub before_bytes: u64,
    /// The usable size now, in bytes.
    pub size_bytes: u64,
    /// The zones, existing ones first; the last existing zone may have become longer.
    pub zones: Vec<Zone>,
    /// What growing did not do, and the command that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// `POST /v1/arrays/{array}/replace`: replace a member of a redundant array by a disk; the member serves until the disk is in sync.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "0", "disk": "mem:64M"}))]
pub struct ReplaceMember {
    /// The member: its slot, its disk, or its identity.
    pub member: String,
    /// The new disk, named as on the command line with an absolute path, or a spare; absent: any spare that is large enough.
    #[serde(default)]
    pub disk: Option<String>,
    /// Destroy what is on the disk.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/journal`: move the journal of a raid5 or raid6. Either `disk` or `members`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disk": "mem:64M"}))]
pub struct MoveJournal {
    /// To this disk, named as on the command line with an absolute path.
    #[serde(default)]
    pub disk: Option<String>,
    /// To the members. After the loss of the journal's disk the journal is there already, and this accepts that.
    #[serde(default)]
    pub members: bool,
    /// Destroy what is on the disk.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/rename`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "faster"}))]
pub struct RenameArray {
    /// The new name.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    pub name: String,
}

/// `POST /v1/arrays/{array}/stop`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopArray {
    /// Stop it even if it is exported: its exports wait until it is assembled again.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/assemble`: search for members, and start complete arrays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Assemble {
    /// Only this array, by name or UUID; absent: every array that was not stopped by a command.
    #[serde(default)]
    pub array: Option<String>,
    /// Disks to search besides the known ones and those of the machine, named with absolute paths.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Use stale members of the named array as they are, or fail them where it is redundant. Data written while they were
    /// missing, or to them alone, may be lost.
    #[serde(default)]
    pub force: bool,
    /// Start the named redundant array without missing members that may hold newer data: what was written to these alone
    /// is lost.
    #[serde(default)]
    pub degraded: bool,
}

/// The result of an assembly.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Assembled {
    /// Arrays that this started.
    pub started: Vec<String>,
    /// The requested arrays, in their current state.
    pub arrays: Vec<Array>,
}
