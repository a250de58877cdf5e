//! Volumes of several nodes, as all nodes of the cluster together answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a node of the cluster serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Service {
    /// The node that is named serves it.
    Served,
    /// No node serves it: every node says so, or so many voters hear of no controller that none can answer.
    Nobody,
    /// Nodes that do not answer may serve it, or a node is just opening it.
    Unknown,
}

impl Service {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            Service::Served => "served",
            Service::Nobody => "nobody",
            Service::Unknown => "unknown",
        }
    }
}

/// How a replica or a witness stands, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// It holds everything: the node that serves the volume says so, or, while none does, the newest vote.
    InSync,
    /// It is there, and lacks something: it is being filled, or was left out.
    Behind,
    /// It cannot be used: its node has nothing of it, its pool does not serve, or the node that serves the volume does not reach it.
    Absent,
    /// Its node does not answer, or too few voters do to tell.
    Unknown,
    /// A witness that answers.
    Witness,
}

impl Standing {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            Standing::InSync => "in sync",
            Standing::Behind => "behind",
            Standing::Absent => "absent",
            Standing::Unknown => "unknown",
            Standing::Witness => "witness",
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
    /// The pool that has its data; none: it is a witness.
    pub pool: Option<String>,
    /// How it stands.
    pub state: Standing,
    /// Why it is not in sync, where that is known.
    pub reason: Option<String>,
}

/// A volume of several nodes, as the cluster has it.
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
    /// What to do about it; none where a node serves it.
    pub remedy: Option<String>,
    /// The commands for that.
    pub commands: Vec<String>,
    /// Its replicas and witnesses, by number.
    pub voters: Vec<ClusterVoter>,
}

/// A node of the cluster, and whether it has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    /// The node.
    pub node: String,
    /// It has answered.
    pub answers: bool,
    /// Why it has not.
    pub reason: Option<String>,
}

/// `GET /v1/cluster/volumes`: the volumes of several nodes of the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolumeList {
    /// The volumes, by name.
    pub volumes: Vec<ClusterVolume>,
    /// The nodes of the table, by name.
    pub nodes: Vec<ClusterNode>,
    /// Why volumes may be missing from the list, one sentence each; empty where the list is complete.
    pub incomplete: Vec<String>,
}
