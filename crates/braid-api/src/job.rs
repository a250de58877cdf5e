//! Jobs: long-running work in the background.

use crate::Progress;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One job that is running, or has ended recently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its name: array and number, as in `data:3`.
    pub name: String,
    /// The array that it works on; empty for a pool's job.
    pub array: String,
    /// The pool that it works on; `array` is empty then.
    #[serde(default)]
    pub pool: Option<String>,
    /// The volume that it works on, as in `tank/db`.
    #[serde(default)]
    pub volume: Option<String>,
    /// Its number among the jobs of this array or pool since that became active.
    pub number: u64,
    /// Of an array: `resync` makes the copies equal after a crash; `rebuild` makes a member in sync, from nothing or by a delta
    /// resync; `replace` fills a disk that replaces a member; `check` compares all copies of everything ever written, or stripes with
    /// their parity; `repair` also corrects the differences. Of a pool: `evacuation` moves the data off a member that is being removed,
    /// `move` moves a volume and its snapshots to other members, `compaction` merges their packed extents into whole extents, `flattening`
    /// copies the blocks that they share with their ancestors.
    pub kind: String,
    /// The member that a rebuild or a replacement fills, or an evacuation empties.
    pub member: Option<u16>,
    /// Of a replacement: the member that the disk replaces.
    #[serde(default)]
    pub replaces: Option<u16>,
    /// Its state.
    #[serde(default)]
    pub state: JobState,
    /// Whether it was paused by command.
    pub paused: bool,
    /// Most bytes per second that it reads or writes on one member; 0: it adapts to the load of clients.
    pub limit_bytes_per_s: u64,
    /// Its progress.
    pub progress: Progress,
    /// The findings of a check or repair so far; of a rebuild, what it could not read, if anything.
    #[serde(default)]
    pub findings: Option<Findings>,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// It is running.
    #[default]
    Running,
    /// It was paused by command.
    Paused,
    /// It has completed.
    Done,
    /// It was cancelled by command.
    Cancelled,
    /// It could not continue: its member, or its array, has failed.
    Failed,
}

impl JobState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Done => "done",
            JobState::Cancelled => "cancelled",
            JobState::Failed => "failed",
        }
    }

    /// Whether it has ended.
    pub const fn is_over(self) -> bool {
        !matches!(self, JobState::Running | JobState::Paused)
    }
}

/// The damage that a job has found. All counts are of blocks of `block_bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Findings {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of which at least two copies were compared; data blocks that were compared with their parity.
    pub compared_blocks: u64,
    /// Written blocks that could not be compared, as fewer than two of their copies, or not all members of their stripe, are in
    /// sync.
    #[serde(default)]
    pub uncompared_blocks: u64,
    /// Blocks whose copies differed. With parity: stripe sections, one block high on every member of a stripe, that did not
    /// match their parity.
    pub differing_blocks: u64,
    /// Blocks, or stripe sections, that a repair has corrected.
    pub repaired_blocks: u64,
    /// Blocks that no disk, or not every disk, can read.
    pub unreadable_blocks: u64,
    /// Offsets of the first differing and unreadable blocks, in bytes of the array.
    pub offsets_bytes: Vec<u64>,
    /// The members with wrong blocks, by slot, as far as known: at raid6, where two parities locate a wrong block.
    #[serde(default)]
    pub wrong_members: Vec<WrongMember>,
}

/// A member with wrong blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrongMember {
    /// Its slot.
    pub member: u16,
    /// Number of differing blocks that were wrong on this member.
    pub blocks: u64,
}

impl Findings {
    /// Whether everything written was compared.
    pub const fn is_complete(&self) -> bool {
        self.uncompared_blocks == 0
    }

    /// Returns the number of blocks that are still wrong or unreadable.
    pub const fn left_blocks(&self) -> u64 {
        self.differing_blocks.saturating_sub(self.repaired_blocks) + self.unreadable_blocks
    }
}

/// `POST /v1/arrays/{array}/check`: compare all copies, or stripes with their parity.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"repair": false}))]
pub struct CheckArray {
    /// Correct differences: by the majority of the copies, else by the first member in sync. With parity: recompute the block that
    /// two parities locate (raid6) from the others; else recompute the parity.
    #[serde(default)]
    pub repair: bool,
    /// Of a repair at levels with parity: trust the data, and recompute every parity that does not match them, even where two
    /// parities locate a wrong block. For use after a start without the journal, when parity may be older than the last writes.
    #[serde(default)]
    pub from_data: bool,
}

/// The jobs that are running, and those that have ended recently.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs, by array and number.
    pub jobs: Vec<Job>,
}

/// `PATCH /v1/jobs/{job}`: absent fields stay unchanged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"paused": true}))]
pub struct SetJob {
    /// Whether it is paused.
    #[serde(default)]
    pub paused: Option<bool>,
    /// Most bytes per second that it reads or writes on one member; 0: it adapts to the load of clients.
    #[serde(default)]
    pub limit_bytes_per_s: Option<u64>,
}
