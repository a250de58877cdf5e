//! Nodes: the daemons of several machines that know each other.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a node does, as the node that is asked sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeState {
    /// It answers.
    Here,
    /// It does not, or not as it should.
    Away,
    /// The node was started a moment ago, and has not asked it yet.
    Unknown,
    /// It was removed, and takes part in nothing any more.
    Removed,
}

impl NodeState {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            NodeState::Here => "here",
            NodeState::Away => "away",
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
    /// Whether it is the node that answers.
    pub own: bool,
    /// Where other nodes reach its API: host and port.
    pub api: String,
    /// Where other nodes reach the data of its replicas: host and port.
    pub data: String,
    /// Whether data go over TLS.
    pub tls_data: bool,
    /// How it does.
    pub state: NodeState,
    /// Since when it is away, in milliseconds of Unix time.
    pub away_since_unix_ms: Option<u64>,
    /// Why it is away.
    pub reason: Option<String>,
    /// When its certificate ends, in seconds of Unix time; none where it has not been seen yet.
    pub certificate_ends_unix_s: Option<i64>,
    /// The digest (SHA-256) of its public key, by which others know it.
    pub key_sha256: String,
    /// How often its entry in the table was changed.
    pub version: u64,
}

/// All nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The identity of the cluster; none where this daemon belongs to none.
    pub cluster: Option<String>,
    /// The name of the node that answers.
    pub own: Option<String>,
    /// The digest (SHA-256) of the authority's certificate.
    pub authority_sha256: Option<String>,
    /// The nodes, by name; none that were removed.
    pub nodes: Vec<Node>,
}

/// `POST /v1/cluster/init`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitCluster {
    /// The name of this node.
    pub name: String,
    /// Where it listens for other nodes, and where they reach it: host and port (10870 unless named).
    pub listen: String,
    /// Where it offers the data of replicas; without it the same host, port 10871.
    #[serde(default)]
    pub data: Option<String>,
    /// Whether data go without TLS, on a network that is trusted.
    #[serde(default)]
    pub data_plain: bool,
}

/// `POST /v1/cluster/invite`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Invite {
    /// For how long it holds, in seconds; without it an hour.
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// An invitation: a node that has it may join, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    /// What the new node has to be told: a secret.
    pub token: String,
    /// When it ends, in seconds of Unix time.
    pub expires_unix_s: i64,
}

/// `POST /v1/cluster/join`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinCluster {
    /// The invitation.
    pub token: String,
    /// The name of this node.
    pub name: String,
    /// As of [`InitCluster`].
    pub listen: String,
    /// As of [`InitCluster`].
    #[serde(default)]
    pub data: Option<String>,
    /// As of [`InitCluster`].
    #[serde(default)]
    pub data_plain: bool,
}

/// One line of the table of nodes, as nodes tell it to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct MemberNode {
    /// Its identity.
    pub uuid: String,
    /// Counts its changes: of two lines of one node the higher one holds.
    pub version: u64,
    /// Whether it was removed. What is once removed stays so.
    pub removed: bool,
    /// Its name.
    pub name: String,
    /// Where its API is reached.
    pub api: String,
    /// Where its data are reached.
    pub data: String,
    /// Whether data go over TLS.
    pub tls_data: bool,
    /// The digest (SHA-256) of its public key, in hexadecimal digits.
    pub key_sha256: String,
}

/// `POST /v1/cluster/admit`: what a node that wants to join asks the one that has invited it. The only request that a node accepts
/// from an unknown node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Admit {
    /// The secret of the invitation.
    pub secret: String,
    /// The new node.
    pub node: MemberNode,
}

/// What the new node needs. Every node has the authority's key, so that each can invite, and renew its certificate, whichever
/// others are lost.
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

/// `POST /v1/cluster/table`: what one node knows of all; the answer is what the other knows then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeTable {
    /// The identity of the cluster.
    pub cluster: String,
    /// The clock of who says this, in seconds of Unix time.
    pub unix_s: i64,
    /// The table of nodes, with those that were removed.
    pub members: Vec<MemberNode>,
}
