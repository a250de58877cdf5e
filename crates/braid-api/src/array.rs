//! Arrays: what is asked of them and what is told of them.

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
    /// Members are missing; it serves nothing and waits for them.
    Incomplete,
    /// All members are there, but a command stopped it.
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

/// How a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MemberState {
    /// Present, and its content counts.
    InSync,
    /// No disk with its label was found.
    Missing,
    /// Present, but the disk gives errors, or no answers.
    Failing,
    /// The disk is not there any more.
    Gone,
    /// It takes every write, and is being brought up to date.
    Filling,
    /// It was left out: it failed, was not there, or a command said so.
    Out,
    /// No member has this role.
    Absent,
    /// It waits to take over the role of a member that fails.
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
            MemberState::Filling => "filling",
            MemberState::Out => "out",
            MemberState::Absent => "absent",
            MemberState::Spare => "spare",
            MemberState::Journal => "journal",
        }
    }
}

/// One member of an array.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Its place in the array, from 0.
    pub role: u16,
    /// Its identity, as its label says.
    pub uuid: String,
    /// The disk that it is on; for a missing one where it was last seen, if that is known.
    pub disk: Option<String>,
    /// How it does.
    pub state: MemberState,
    /// Size of its data area, in bytes.
    pub data_bytes: u64,
    /// Where its data area begins on the disk, in bytes; absent while the member is missing.
    pub data_offset_bytes: Option<u64>,
    /// Counters since the daemon opened the disk; absent while it is not open.
    pub stats: Option<DiskStats>,
    /// Of a redundant array: it is read only when no other member can answer.
    #[serde(default)]
    pub write_mostly: bool,
    /// Its disk is an export of a server that cannot promise that what an old connection asked for is not carried out after all.
    #[serde(default)]
    pub unfenced: bool,
    /// How far it has been brought up to date, while it is filling and that has begun.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// The job that fills it, as in `data:3`.
    #[serde(default)]
    pub job: Option<String>,
    /// The member whose place it takes when it holds everything.
    #[serde(default)]
    pub replaces: Option<u16>,
}

/// How a redundant array stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Health {
    /// Every member is in sync, and all are equal.
    Whole,
    /// A crash left some of it unequal; it is being brought together, and all members are there.
    Resyncing,
    /// A member is being filled.
    Rebuilding,
    /// Members are out, and no disk replaces them.
    Degraded,
    /// More members are lost than it tolerates: every request gets an error, and nothing more is written.
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

/// How far some work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// What is done, in bytes of the array.
    pub done_bytes: u64,
    /// What there was to do when it began, in bytes of the array.
    pub total_bytes: u64,
    /// How fast it went in the last seconds.
    pub rate_bytes_per_s: u64,
    /// What is left at that rate, in seconds; absent while that is not known.
    pub remaining_s: Option<u64>,
}

/// What only redundant arrays have, while they serve.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Redundancy {
    /// How it stands.
    pub health: Health,
    /// Copies of every byte, where all members are there; 1 at raid5 and raid6.
    pub copies: u16,
    /// Parities of every row: 1 at raid5, 2 at raid6, else 0.
    #[serde(default)]
    pub parities: u16,
    /// How many members may be lost, whichever they are, where all are there.
    #[serde(default)]
    pub tolerates: u16,
    /// How many more members may fail now, whichever they are, with nothing lost; 0 where the next failure may be one too many.
    #[serde(default)]
    pub tolerates_now: u16,
    /// What one bit of the write-intent bitmap stands for, in bytes.
    pub region_bytes: u64,
    /// Regions in all.
    pub regions: u64,
    /// Regions that were written since the array was created; the others read as zeros.
    pub regions_written: u64,
    /// Regions that were written lately, or that a member that is out may lack.
    pub regions_dirty: u64,
    /// How far a crash's traces are removed; absent where there are none.
    pub resync: Option<Progress>,
    /// Blocks of 4 KiB that the last check found and that are not as they should be, or that no member can read.
    #[serde(default)]
    pub damaged_blocks: u64,
    /// Bytes that cannot be read until they are written again: of rows at raid5 and raid6 that were being written when a crash
    /// and the loss of a member came together.
    #[serde(default)]
    pub unreadable_bytes: u64,
    /// Where these are, in the array's order; the first 256 ranges.
    #[serde(default)]
    pub unreadable: Vec<ByteRange>,
    /// Of raid5 and raid6: where the journal is.
    #[serde(default)]
    pub journal: Option<Journal>,
    /// `auto` where it starts by itself without members that may have gone on apart; else `wait`.
    pub start_degraded: String,
}

/// Where the journal of a raid5 or raid6 is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Journal {
    /// The number of its disk among the members; absent where it is on all members.
    pub member: Option<u16>,
    /// Its disk; absent where it is on all members.
    pub disk: Option<String>,
    /// How its disk does: `journal` where it is well; absent where it is on all members.
    pub state: Option<MemberState>,
    /// The disk that it was on and that was lost, until the journal is put somewhere by command. Nothing else was lost with it.
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
    /// The members that it lies on, by role.
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
    /// Contiguous bytes on one member before the next member's turn.
    pub chunk_bytes: u64,
    /// What the user can write, in bytes.
    pub size_bytes: u64,
    /// Smallest unit of reads and writes, in bytes; 0 while it does not serve, as that depends on the disks.
    pub logical_block_bytes: u32,
    /// Whether it serves.
    pub state: ArrayState,
    /// What needs attention, one sentence each; empty when all is well.
    pub attention: Vec<String>,
    /// Whether it is found again after the daemon ends; not with a `mem` or `null` disk in it.
    pub kept: bool,
    /// Whether it is only read: it is an array of Linux md that was imported.
    #[serde(default)]
    pub read_only: bool,
    /// Its members, by role.
    pub members: Vec<Member>,
    /// Its zones, in the array's order.
    pub zones: Vec<Zone>,
    /// Of a redundant array that serves.
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

/// `POST /v1/arrays`: make an array of disks.
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
    /// Contiguous bytes on one member before the next member's turn; 64 KiB if absent.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
    /// The disks, in the order of their roles, named as on the command line with absolute paths.
    pub disks: Vec<String>,
    /// Of levels with redundancy: further disks, which take over the roles of members that fail.
    #[serde(default)]
    pub spares: Vec<String>,
    /// Of raid5 and raid6: the disk that holds the journal instead of the members.
    #[serde(default)]
    pub journal: Option<String>,
    /// Of raid1 and raid10: those of the disks that are read only when no other member can answer, named the same way.
    #[serde(default)]
    pub write_mostly: Vec<String>,
    /// Of levels with redundancy: `auto` to start by itself without members that may have gone on apart, `wait` (the default) to
    /// wait for them or for a command that says so.
    #[serde(default)]
    pub start_degraded: Option<String>,
    /// Take disks that already carry data, and destroy it.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/fail` and `…/remove`: which member.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "1"}))]
pub struct NameMember {
    /// Its number, its disk's name, or its identity.
    pub member: String,
}

/// `POST /v1/arrays/{array}/remove`: take a member off the table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "1"}))]
pub struct RemoveArrayMember {
    /// Its number, its disk's name, or its identity.
    pub member: String,
    /// Of raid1: its role goes with it, and the array has a copy less from then on. Those behind it have the numbers before theirs. So goes
    /// a role without a member, by its number.
    #[serde(default)]
    pub copy: bool,
}

/// `POST /v1/arrays/{array}/disks`: give a disk to a redundant array.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disk": "mem:64M"}))]
pub struct AddDisk {
    /// The disk, named as on the command line with an absolute path.
    pub disk: String,
    /// Make it a spare, also where a role is vacant: it takes that over at once, as any spare does.
    #[serde(default)]
    pub spare: bool,
    /// Of raid1: one copy more. The disk takes a role that the array gets for it, also where others are vacant.
    #[serde(default)]
    pub copy: bool,
    /// Destroy what is on it. A member that is out is filled anew, too, as a new member.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/grow`: take up what the array's disks have gained, and further disks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disks": ["mem:64M"], "dry_run": true}))]
pub struct GrowArray {
    /// Disks that become members, named as on the command line with absolute paths; at levels with redundancy as many as a zone
    /// of the level needs, or fewer where disks of the array have become larger as well.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Take further disks that already carry data, and destroy it. Of raid1: also where what is new has fewer copies than
    /// the rest.
    #[serde(default)]
    pub force: bool,
    /// Change nothing, and say what would come of it.
    #[serde(default)]
    pub dry_run: bool,
}

/// What growing an array has given, or would give.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Growth {
    /// The array's name.
    pub array: String,
    /// Nothing was changed.
    pub dry_run: bool,
    /// What the user could write before, in bytes.
    pub before_bytes: u64,
    /// What the user can write now, in bytes.
    pub size_bytes: u64,
    /// The zones, those of before first; the last of these may have become higher.
    pub zones: Vec<Zone>,
    /// What growing does not do, and what does it instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// `POST /v1/arrays/{array}/replace`: let a disk take the place of a member of a redundant array, which serves until then.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "0", "disk": "mem:64M"}))]
pub struct ReplaceMember {
    /// The member: its number, its disk or its identity.
    pub member: String,
    /// The disk that takes its place, named as on the command line with an absolute path, or a spare; without it any spare that is
    /// large enough.
    #[serde(default)]
    pub disk: Option<String>,
    /// Destroy what is on the disk.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/arrays/{array}/journal`: where the journal of a raid5 or raid6 is to be. Either `disk` or `members`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disk": "mem:64M"}))]
pub struct MoveJournal {
    /// On this disk, named as on the command line with an absolute path.
    #[serde(default)]
    pub disk: Option<String>,
    /// On the members. After the loss of the journal's disk it is there already, and this says that it is to stay.
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
    /// Stop it although it is exported: its exports wait until it is assembled again.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/assemble`: look for members, and start what is complete.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Assemble {
    /// Only this array, by name or UUID; absent: every array that was not stopped by a command.
    #[serde(default)]
    pub array: Option<String>,
    /// Disks to look at beside those known and those in the machine, named with absolute paths.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Use stale members of the array that is named as they are, or leave them out where it is redundant; what was written
    /// while they were away, or to them alone, may be lost.
    #[serde(default)]
    pub force: bool,
    /// Start the redundant array that is named without absent members that may have gone on apart: what was written to these
    /// alone is lost.
    #[serde(default)]
    pub degraded: bool,
}

/// What an assembly did.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Assembled {
    /// Arrays that this started.
    pub started: Vec<String>,
    /// The arrays that were asked for, as they are now.
    pub arrays: Vec<Array>,
}
