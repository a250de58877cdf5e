//! What the API shows of nodes.

use super::call::Seen;
use super::identity::{digest_of, digest_text};
use super::{Held, Nodes, table};
use braid_api::{ErrorDetail, MemberNode, Node, NodeList, NodeState};

impl Nodes {
    /// Every node, by name.
    pub fn list(&self) -> NodeList {
        let Ok(held) = self.member() else {
            return NodeList { cluster: None, own: None, authority_sha256: None, nodes: Vec::new() };
        };
        let mut nodes: Vec<Node> = self.members().iter().map(|line| self.show(&held, line)).collect();
        nodes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        NodeList {
            cluster: Some(held.cluster.cluster.to_string()),
            own: Some(held.cluster.own_line().name.clone()),
            authority_sha256: digest_of(&held.cluster.authority.certificate).ok().map(|digest| digest_text(&digest)),
            nodes,
        }
    }

    /// One node, by name or UUID.
    ///
    /// # Errors
    /// There is none; this daemon belongs to no cluster.
    pub fn node(&self, name: &str) -> Result<Node, ErrorDetail> {
        let held = self.member()?;
        Ok(self.show(&held, table::find(&held.cluster.members, name)?))
    }

    fn show(&self, held: &Held, line: &MemberNode) -> Node {
        let own = line.uuid == held.cluster.own.to_string();
        let (seen, ends) = match own {
            true => (Seen::Here, Some(held.credentials.good_unix_s.1)),
            false => self.peer(&line.uuid, |peer| (peer.seen.clone(), peer.ends_unix_s)),
        };
        let (state, away_since_unix_ms, reason) = match seen {
            _ if line.removed => (NodeState::Removed, None, None),
            Seen::Never => (NodeState::Unknown, None, None),
            Seen::Here => (NodeState::Here, None, None),
            Seen::Away { since_unix_ms, reason } => (NodeState::Away, Some(since_unix_ms), Some(reason)),
        };
        Node {
            name: line.name.clone(),
            uuid: line.uuid.clone(),
            own,
            api: line.api.clone(),
            data: line.data.clone(),
            tls_data: line.tls_data,
            state,
            away_since_unix_ms,
            reason,
            certificate_ends_unix_s: ends,
            key_sha256: line.key_sha256.clone(),
            version: line.version,
        }
    }
}
