//! Replicated volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/replicated`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateReplicated {
    /// Its name, without a pool, as that of an array.
    pub name: String,
    /// Its size in bytes, a multiple of 4096.
    #[serde(default)]
    pub size_bytes: u64,
    /// The locations of its replicas: `NODE/POOL` each, on different nodes.
    #[serde(default)]
    pub replicas: Vec<String>,
    /// Number of replicas, placed on the nodes with the most free space; 0 if `replicas` names them.
    #[serde(default)]
    pub count: u8,
    /// The nodes of its witnesses, which vote and keep no data.
    #[serde(default)]
    pub witnesses: Vec<String>,
    /// The level of the array above its replicas: raid1 (the default), raid5, raid6.
    #[serde(default)]
    pub level: Option<String>,
    /// Its logical block, in bytes: 4096 (the default), or, at raid1 only, 512 for disk images that count in sectors of 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// The snapshot to clone, as in `db@monday`, of a replicated volume that this node serves. The clone is on the nodes that have the
    /// snapshot, with the witnesses of that volume. Size, block, level, replicas and witnesses are left out then.
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
    /// The new voter's node.
    pub node: String,
    /// The pool there for a replica's data; absent: a witness.
    #[serde(default)]
    pub pool: Option<String>,
}

/// `POST /v1/replicated/{volume}/voters/{node}/rebuild`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildVoter {
    /// Another pool of the same node; absent: its current pool.
    #[serde(default)]
    pub pool: Option<String>,
}

/// The state of a replicated volume on the responding node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicatedState {
    /// This node serves it.
    Serving,
    /// This node is about to serve it: it collects votes.
    Opening,
    /// This node does not serve it.
    Detached,
}

impl ReplicatedState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            ReplicatedState::Serving => "serving",
            ReplicatedState::Opening => "opening",
            ReplicatedState::Detached => "detached",
        }
    }
}

/// The state of a voter, as the node that serves the volume sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VoterState {
    /// A replica in sync.
    InSync,
    /// A replica that is being rebuilt; it takes every write.
    Rebuilding,
    /// A failed replica: it lacks data.
    Failed,
    /// It votes, and keeps no data.
    Witness,
    /// Not known, as the responding node does not serve the volume.
    Unknown,
}

impl VoterState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            VoterState::InSync => "in sync",
            VoterState::Rebuilding => "rebuilding",
            VoterState::Failed => "failed",
            VoterState::Witness => "witness",
            VoterState::Unknown => "unknown",
        }
    }
}

/// A voter of a replicated volume: a replica or a witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Voter {
    /// Its number.
    pub voter: u8,
    /// Its node.
    pub node: String,
    /// The pool that has its data; absent: it is a witness.
    pub pool: Option<String>,
    /// Its state.
    pub state: VoterState,
    /// Whether it replies to the node that serves the volume.
    pub reachable: bool,
    /// Why it does not.
    pub reason: Option<String>,
}

/// A replicated volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicatedVolume {
    /// Its identity.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its logical block, in bytes: 4096 or 512. Requests of clients are multiples of it.
    #[serde(default = "crate::pool::block_bytes_usual")]
    pub block_bytes: u32,
    /// The level of the array above its replicas: raid1, raid5, raid6.
    pub level: String,
    /// The pool on it, if this node knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Its state on the responding node.
    pub state: ReplicatedState,
    /// Its epoch, which each opening raises; 0 if the responding node does not serve it.
    pub epoch: u64,
    /// Its replicas, then its witnesses, by number.
    pub voters: Vec<Voter>,
    /// Its exports on the responding node.
    pub exports: Vec<String>,
    /// Number of its snapshots; absent if the responding node does not serve it.
    #[serde(default)]
    pub snapshots: Option<u64>,
    /// What needs attention, one sentence each; empty when all is well.
    pub attention: Vec<String>,
}

/// `GET /v1/replicated/{volume}/forced`: the consequences of a forced opening of a volume on the responding node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForcedOpening {
    /// The volume's identity.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// The nodes of the voters that do not reply, and would be given up: the value that `without` needs.
    pub without: Vec<String>,
    /// The nodes of the voters that would form the quorum.
    pub present: Vec<String>,
    /// The nodes of the replicas from which it would be served.
    pub from: Vec<String>,
    /// Whether these replicas were in sync by the newest known vote.
    pub newest: bool,
    /// Whether their nodes have rebooted since that vote, so that data not flushed by then may be lost.
    pub rebooted: bool,
    /// What may be lost, one sentence each.
    pub losses: Vec<String>,
}

/// The replicated volumes that the responding node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicatedList {
    /// The volumes, by name.
    pub volumes: Vec<ReplicatedVolume>,
}
