//! Volumes that are kept on several nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/replicated`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateReplicated {
    /// Its name: as that of an array, without a pool.
    pub name: String,
    /// Its size in bytes, a multiple of 4096.
    #[serde(default)]
    pub size_bytes: u64,
    /// Where its replicas are: `NODE/POOL` each, on different nodes.
    #[serde(default)]
    pub replicas: Vec<String>,
    /// How many replicas there are to be, on the nodes with the most free space; 0 where they are named.
    #[serde(default)]
    pub count: u8,
    /// Nodes that vote and keep no data.
    #[serde(default)]
    pub witnesses: Vec<String>,
    /// The level of the array above its replicas: raid1 (the default), raid5, raid6.
    #[serde(default)]
    pub level: Option<String>,
    /// Its logical block, in bytes: 4096 if nothing is said, or, of copies alone, 512, for images of disks that count in sectors of 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// A snapshot of another volume of several nodes, which this node serves, as in `db@monday`: it begins as that is, on the nodes that have
    /// it, and with that volume's witnesses. Size, block, level, replicas and witnesses are left out then.
    #[serde(default)]
    pub snapshot: Option<String>,
}

/// `POST /v1/replicated/{volume}/rollback`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"snapshot": "monday"}))]
pub struct RollbackReplicated {
    /// One of its snapshots, by its own name or UUID.
    pub snapshot: String,
}

/// `POST /v1/replicated/{volume}/voters`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"node": "node4", "pool": "tank"}))]
pub struct AddVoter {
    /// On which node.
    pub node: String,
    /// The pool there for a replica's data; none: a witness.
    #[serde(default)]
    pub pool: Option<String>,
}

/// `POST /v1/replicated/{volume}/voters/{node}/rebuild`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildVoter {
    /// Another pool of the same node; none: the one where it is.
    #[serde(default)]
    pub pool: Option<String>,
}

/// How a volume that is kept on several nodes does, on the node that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicatedState {
    /// This node serves it.
    Serving,
    /// This node is about to serve it: it asks the voters.
    Opening,
    /// This node does not serve it.
    Detached,
}

impl ReplicatedState {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            ReplicatedState::Serving => "serving",
            ReplicatedState::Opening => "opening",
            ReplicatedState::Detached => "detached",
        }
    }
}

/// What a voter is to its volume, as the node that serves it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VoterState {
    /// A replica that holds everything.
    InSync,
    /// A replica that is being brought up to date; it takes every write already.
    Filling,
    /// A replica that lacks something.
    Out,
    /// It votes, and keeps no data.
    Witness,
    /// The node that is asked does not serve the volume, and cannot know.
    Unknown,
}

impl VoterState {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            VoterState::InSync => "in sync",
            VoterState::Filling => "filling",
            VoterState::Out => "out",
            VoterState::Witness => "witness",
            VoterState::Unknown => "unknown",
        }
    }
}

/// A replica, or a witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Voter {
    /// Its number.
    pub voter: u8,
    /// Its node.
    pub node: String,
    /// The pool that has its data; none: it is a witness.
    pub pool: Option<String>,
    /// What it is.
    pub state: VoterState,
    /// Whether it answers the node that serves the volume.
    pub answers: bool,
    /// Why it does not.
    pub reason: Option<String>,
}

/// A volume that is kept on several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicatedVolume {
    /// Its identity.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes: 4096, or 512. What clients ask for begins and ends with one.
    #[serde(default = "crate::pool::block_bytes_usual")]
    pub block_bytes: u32,
    /// The level of the array above its replicas: raid1, raid5, raid6.
    pub level: String,
    /// The pool above it that this node knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// How it does here.
    pub state: ReplicatedState,
    /// Counted up with each opening; 0 where it is not served here.
    pub epoch: u64,
    /// Its replicas, then its witnesses, by number.
    pub voters: Vec<Voter>,
    /// Its exports on the node that is asked.
    pub exports: Vec<String>,
    /// How many snapshots it has; absent where the node that is asked does not serve it.
    #[serde(default)]
    pub snapshots: Option<u64>,
    /// What is wrong with it, one sentence each.
    pub attention: Vec<String>,
}

/// `GET /v1/replicated/{volume}/forced`: what opening a volume by force on the node that is asked would mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForcedOpening {
    /// The volume's identity.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// The nodes of the voters that do not answer, and would be given up: what `without` has to say.
    pub without: Vec<String>,
    /// The nodes of the voters that would decide alone.
    pub present: Vec<String>,
    /// The nodes whose replicas it would be served from.
    pub from: Vec<String>,
    /// They were in sync by the newest vote that is known.
    pub newest: bool,
    /// Their nodes have rebooted since that vote.
    pub rebooted: bool,
    /// What may be lost, one sentence each.
    pub losses: Vec<String>,
}

/// All that the node which is asked knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicatedList {
    /// The volumes, by name.
    pub volumes: Vec<ReplicatedVolume>,
}
