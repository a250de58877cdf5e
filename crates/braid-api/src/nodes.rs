//! Nodes: the daemons of several machines that form a cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a node, as the responding node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeState {
    /// It replies to requests.
    Reachable,
    /// It does not reply, or not correctly.
    Unreachable,
    /// Not known yet: the responding node has just started.
    Unknown,
    /// It was removed from the cluster.
    Removed,
}

impl NodeState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            NodeState::Reachable => "reachable",
            NodeState::Unreachable => "unreachable",
            NodeState::Unknown => "unknown",
            NodeState::Removed => "removed",
        }
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Whether it is the responding node.
    pub local: bool,
    /// Address of its API for other nodes: host and port.
    pub api: String,
    /// Address of its replicas' data for other nodes: host and port.
    pub data: String,
    /// Whether data are sent over TLS.
    pub tls_data: bool,
    /// Its state.
    pub state: NodeState,
    /// Since when it does not reply, in milliseconds of Unix time.
    pub unreachable_since_unix_ms: Option<u64>,
    /// Why it does not reply.
    pub reason: Option<String>,
    /// When its certificate expires, in seconds of Unix time; absent where it has not been seen yet.
    pub certificate_expires_unix_s: Option<i64>,
    /// The digest (SHA-256) of its public key, by which other nodes authenticate it.
    pub key_sha256: String,
    /// Number of changes to its entry in the table of nodes.
    pub version: u64,
}

/// All nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The identity of the cluster; absent if this daemon belongs to none.
    pub cluster: Option<String>,
    /// The name of the responding node.
    pub local: Option<String>,
    /// The digest (SHA-256) of the authority's certificate.
    pub authority_sha256: Option<String>,
    /// The nodes, by name; removed ones are left out.
    pub nodes: Vec<Node>,
}

/// `POST /v1/cluster/init`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitCluster {
    /// The name of this node.
    pub name: String,
    /// The address on which it listens, and at which other nodes reach it: host and port (default 10870).
    pub listen: String,
    /// The address for the data of replicas; absent: the same host, port 10871.
    #[serde(default)]
    pub data: Option<String>,
    /// Whether data are sent without TLS, on a trusted network.
    #[serde(default)]
    pub data_plain: bool,
}

/// `POST /v1/cluster/invite`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Invite {
    /// How long it is valid, in seconds; absent: one hour.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// An invitation, with which one node may join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    /// The secret token for the new node.
    pub token: String,
    /// When it expires, in seconds of Unix time.
    pub expires_unix_s: i64,
}

/// `POST /v1/cluster/join`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinCluster {
    /// The token of the invitation.
    pub token: String,
    /// The name of this node.
    pub name: String,
    /// As in [`InitCluster`].
    pub listen: String,
    /// As in [`InitCluster`].
    #[serde(default)]
    pub data: Option<String>,
    /// As in [`InitCluster`].
    #[serde(default)]
    pub data_plain: bool,
}

/// One entry of the table of nodes, as nodes exchange it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct MemberNode {
    /// Its identity.
    pub uuid: String,
    /// Number of its changes: of two entries of one node, the one with the higher version is valid.
    pub version: u64,
    /// Whether the node was removed. A removed node stays removed.
    pub removed: bool,
    /// Its name.
    pub name: String,
    /// Address of its API.
    pub api: String,
    /// Address of its replicas' data.
    pub data: String,
    /// Whether data are sent over TLS.
    pub tls_data: bool,
    /// The digest (SHA-256) of its public key, in hexadecimal digits.
    pub key_sha256: String,
}

/// `POST /v1/cluster/admit`: the request of a joining node to the node that has invited it. The only request that a node accepts
/// from an unknown node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Admit {
    /// The secret of the invitation.
    pub secret: String,
    /// The new node.
    pub node: MemberNode,
}

/// What a new node needs to know. Every node has the authority's key, so that each can invite nodes and renew its certificate,
/// even if all others are lost.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Admitted {
    /// The identity of the cluster.
    pub cluster: String,
    /// The authority's certificate, in PEM.
    pub authority_certificate: String,
    /// The authority's key, in PEM.
    pub authority_key: String,
    /// The table of nodes, the new one among them.
    pub members: Vec<MemberNode>,
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key.
        f.debug_struct("Admitted")
            .field("cluster", &self.cluster)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// `POST /v1/cluster/table`: one node's table of nodes; the response is the other node's table after merging it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeTable {
    /// The identity of the cluster.
    pub cluster: String,
    /// The sender's clock, in seconds of Unix time.
    pub unix_s: i64,
    /// The table of nodes, including removed ones.
    pub members: Vec<MemberNode>,
}
