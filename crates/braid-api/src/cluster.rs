//! Replicated volumes as the whole cluster reports them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a node of the cluster serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Service {
    /// The named node serves it.
    Served,
    /// No node serves it: every node reports so, or the voters that may have a controller are too few for a lease.
    Unserved,
    /// Nodes that do not reply may serve it, or a node is opening it.
    Unknown,
}

impl Service {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            Service::Served => "served",
            Service::Unserved => "unserved",
            Service::Unknown => "unknown",
        }
    }
}

/// The state of a replica or a witness, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClusterVoterState {
    /// In sync: by the node that serves the volume, or, while none does, by the newest vote.
    InSync,
    /// Present and not in sync: it is being rebuilt, or was dropped.
    OutOfSync,
    /// Unusable: its node does not have it, its pool does not serve, or the node that serves the volume does not reach it.
    Unavailable,
    /// Its node does not reply, or too few voters do to tell.
    Unknown,
    /// A witness that replies.
    Witness,
}

impl ClusterVoterState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            ClusterVoterState::InSync => "in sync",
            ClusterVoterState::OutOfSync => "out of sync",
            ClusterVoterState::Unavailable => "unavailable",
            ClusterVoterState::Unknown => "unknown",
            ClusterVoterState::Witness => "witness",
        }
    }
}

/// A replica or a witness of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterVoter {
    /// Its number.
    pub voter: u8,
    /// Its node.
    pub node: String,
    /// The pool that has its data; absent: it is a witness.
    pub pool: Option<String>,
    /// Its state.
    pub state: ClusterVoterState,
    /// Why it is not in sync, if known.
    pub reason: Option<String>,
}

/// A replicated volume, as the cluster reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolume {
    /// Its identity.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether a node serves it.
    pub service: Service,
    /// The node that serves it.
    pub served_by: Option<String>,
    /// Why that is not known, or why no node serves it.
    pub reason: Option<String>,
    /// What to do about it; absent where a node serves it.
    pub remedy: Option<String>,
    /// The commands of the remedy.
    pub commands: Vec<String>,
    /// Its replicas and witnesses, by number.
    pub voters: Vec<ClusterVoter>,
}

/// A node of the cluster, and whether it has replied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    /// The node.
    pub node: String,
    /// Whether it has replied.
    pub reachable: bool,
    /// Why it has not.
    pub reason: Option<String>,
}

/// `GET /v1/cluster/volumes`: the replicated volumes of the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolumeList {
    /// The volumes, by name.
    pub volumes: Vec<ClusterVolume>,
    /// The nodes of the cluster, by name.
    pub nodes: Vec<ClusterNode>,
    /// Why volumes may be missing from the list, one sentence each; empty if the list is complete.
    pub incomplete: Vec<String>,
}
