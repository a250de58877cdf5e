//! Nodes as the API shows them.

use super::call::PeerStatus;
use super::identity::{digest_of, digest_text};
use super::{Membership, Nodes, table};
use braid_api::{ErrorDetail, MemberNode, Node, NodeList, NodeState};

impl Nodes {
    /// Returns every node, sorted by name.
    pub fn list(&self) -> NodeList {
        let Ok(membership) = self.member() else {
            return NodeList { cluster: None, local: None, authority_sha256: None, nodes: Vec::new() };
        };
        let mut nodes: Vec<Node> = self.members().iter().map(|line| self.show(&membership, line)).collect();
        nodes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        NodeList {
            cluster: Some(membership.cluster.cluster.to_string()),
            local: Some(membership.cluster.own_line().name.clone()),
            authority_sha256: digest_of(&membership.cluster.authority.certificate)
                .ok()
                .map(|digest| digest_text(&digest)),
            nodes,
        }
    }

    /// Returns one node, by name or UUID.
    ///
    /// # Errors
    /// There is no such node; the daemon belongs to no cluster.
    pub fn node(&self, name: &str) -> Result<Node, ErrorDetail> {
        let membership = self.member()?;
        Ok(self.show(&membership, table::find(&membership.cluster.members, name)?))
    }

    fn show(&self, membership: &Membership, line: &MemberNode) -> Node {
        let own = line.uuid == membership.cluster.own.to_string();
        let (status, ends) = match own {
            true => (PeerStatus::Reachable, Some(membership.credentials.validity_unix_s.1)),
            false => self.peer(&line.uuid, |peer| (peer.status.clone(), peer.ends_unix_s)),
        };
        let (state, unreachable_since_unix_ms, reason) = match status {
            _ if line.removed => (NodeState::Removed, None, None),
            PeerStatus::Unknown => (NodeState::Unknown, None, None),
            PeerStatus::Reachable => (NodeState::Reachable, None, None),
            PeerStatus::Unreachable { since_unix_ms, reason } => {
                (NodeState::Unreachable, Some(since_unix_ms), Some(reason))
            }
        };
        Node {
            name: line.name.clone(),
            uuid: line.uuid.clone(),
            local: own,
            api: line.api.clone(),
            data: line.data.clone(),
            tls_data: line.tls_data,
            state,
            unreachable_since_unix_ms,
            reason,
            certificate_expires_unix_s: ends,
            key_sha256: line.key_sha256.clone(),
            version: line.version,
        }
    }
}
