//! Jobs: long work in the background.

use crate::Progress;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One job that goes on, or has ended lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its name: array and number, as in `data:3`.
    pub name: String,
    /// The array that it works on; empty where it is a pool.
    pub array: String,
    /// The pool that it works on; `array` is empty then.
    #[serde(default)]
    pub pool: Option<String>,
    /// The volume that is moved, or put together, as `tank/db`.
    #[serde(default)]
    pub volume: Option<String>,
    /// Its number: of this array or pool, since it serves.
    pub number: u64,
    /// `resync` makes equal what a crash left unequal; `rebuild` brings a member up to date; `replace` fills a
    /// disk that is to take a member's place; `check` compares all copies of
    /// everything that was ever written, or rows with their parity, and `repair` makes equal what differs. Of a pool: `evacuation` empties a
    /// member that is being removed, `move` brings a volume with its snapshots to where it is to be, `compaction` puts together what they have scattered,
    /// `flattening` copies what they see of others.
    pub kind: String,
    /// The member that a rebuild or a replacement fills, or an evacuation empties.
    pub member: Option<u16>,
    /// Of a replacement: the member whose place the disk takes.
    #[serde(default)]
    pub replaces: Option<u16>,
    /// Where it stands.
    #[serde(default)]
    pub state: JobState,
    /// Whether it waits, by command.
    pub paused: bool,
    /// Bytes a second that it may read or write on one member at most; 0: it gives way to clients by itself.
    pub limit_bytes_per_s: u64,
    /// How far it has come.
    pub progress: Progress,
    /// What a check or repair has found so far; of a rebuild, what it could not read, if there is any.
    #[serde(default)]
    pub findings: Option<Findings>,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// It goes on by itself.
    #[default]
    Running,
    /// It waits, by command.
    Paused,
    /// It has done what it should.
    Done,
    /// It was given up, by command.
    Cancelled,
    /// It could not go on: its member, or its array, has failed.
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

/// What a job has found that is not as it should be. All counts are of blocks of `block_bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Findings {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of which at least two copies were compared; blocks of data that were compared with their parity.
    pub compared_blocks: u64,
    /// Blocks that hold something and could not be compared, as fewer than two copies of them are in sync, or not all members of
    /// their row are.
    #[serde(default)]
    pub uncompared_blocks: u64,
    /// Blocks whose copies differed. With parity: lines, one block high over all members of a row, that did not agree with
    /// their parity.
    pub differing_blocks: u64,
    /// Blocks, or lines, that a repair has made right again.
    pub mended_blocks: u64,
    /// Blocks that no disk, or not every disk, can read.
    pub unreadable_blocks: u64,
    /// Where the first differing and unreadable blocks begin, in bytes of the array.
    pub places_bytes: Vec<u64>,
    /// Whose blocks were wrong, as far as that can be told: at raid6, where two parities tell. By member.
    #[serde(default)]
    pub wrong_members: Vec<WrongMember>,
}

/// A member that has blocks wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrongMember {
    /// Its number.
    pub member: u16,
    /// Of the blocks that differed, those that it had wrong.
    pub blocks: u64,
}

impl Findings {
    /// Whether everything that was written was compared.
    pub const fn is_complete(&self) -> bool {
        self.uncompared_blocks == 0
    }

    /// Blocks that are still not as they should be.
    pub const fn left_blocks(&self) -> u64 {
        self.differing_blocks.saturating_sub(self.mended_blocks) + self.unreadable_blocks
    }
}

/// `POST /v1/arrays/{array}/check`: what is absent is no.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"repair": false}))]
pub struct CheckArray {
    /// Make equal what differs: as most copies have it, else as the first member in sync has it. With parity: compute the block
    /// that two parities name (raid6) from the others; else compute the parity.
    #[serde(default)]
    pub repair: bool,
    /// Of a repair at levels with parity: believe the data, and compute every parity that does not agree with them, whatever two
    /// parities say. For after a start without the journal, when parities may be of before the last writes.
    #[serde(default)]
    pub from_data: bool,
}

/// The jobs that go on, and those that have ended lately.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs, by array and number.
    pub jobs: Vec<Job>,
}

/// `PATCH /v1/jobs/{job}`: what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"paused": true}))]
pub struct SetJob {
    /// Whether it waits.
    #[serde(default)]
    pub paused: Option<bool>,
    /// Bytes a second that it may read or write on one member at most; 0: it gives way to clients by itself.
    #[serde(default)]
    pub limit_bytes_per_s: Option<u64>,
}
