//! Removes nodes from the cluster, and renews certificates on request.

use super::call::REPLY_MAX;
use super::connect::{self, Callee};
use super::{Nodes, table};
use braid_api::{ErrorDetail, Kind, MemberNode, Node, ReplicaList};
use hyper::Method;

/// Maximum number of replicas that a refusal names.
const NAMED_MAX: usize = 4;

impl Nodes {
    /// Removes a node, this node or another one, and returns the node as it was before. A removal is final: the machine
    /// may join again only as a new node.
    ///
    /// # Errors
    /// There is no such node; the file cannot be written. Without `force`: the node has replicas, or does not reply
    /// with their list; this node is to be removed and can notify no other node.
    pub async fn remove(&self, node: &str, force: bool) -> Result<Node, ErrorDetail> {
        let membership = self.member()?;
        let line = table::find(&membership.cluster.members, node)?.clone();
        let shown = self.node(&line.uuid)?;
        if !force {
            self.refuse_if_replicas(&line).await?;
        }
        if line.uuid == membership.cluster.own.to_string() {
            let others: Vec<MemberNode> = membership.cluster.others().cloned().collect();
            self.leave(&line, &others, force).await?;
            return Ok(shown);
        }
        let removed_line = self
            .change(|cluster| {
                let mut removed_line = table::find(&cluster.members, &line.uuid)?.clone();
                (removed_line.version, removed_line.removed) = (removed_line.version + 1, true);
                table::merge(&mut cluster.members, std::slice::from_ref(&removed_line));
                Ok(removed_line)
            })
            .await?;
        self.drop_removed(&removed_line);
        // The maintenance task notifies the other nodes. The removed node itself is not called any more: it learns of
        // its removal within seconds, from the reply to its next request.
        self.wake.notify_one();
        Ok(shown)
    }

    /// Refuses to remove a node that has replicas, since their volumes would lose them.
    async fn refuse_if_replicas(&self, line: &MemberNode) -> Result<(), ErrorDetail> {
        let name = &line.name;
        let reply = match self.call(&line.uuid, Method::GET, "/v1/replicas", None).await {
            Ok(reply) => reply,
            // The daemon has no such route: it is of a version without replicas.
            Err(error) if error.kind == Kind::NotFound => return Ok(()),
            Err(error) => {
                let message = format!("node {name} cannot be asked whether it has replicas: {}", error.message);
                return Err(ErrorDetail::new(Kind::NeedsConfirmation, message)
                    .with("node", name)
                    .remedy("bring it back; or add --force if it is gone for good"));
            }
        };
        let list: ReplicaList = serde_json::from_value(reply).map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("node {name} sent an invalid list of its replicas: {error}"))
                .remedy("are the daemons of one version? (`braid --version`)")
        })?;
        if list.replicas.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = list.replicas.iter().take(NAMED_MAX).map(|replica| replica.name.as_str()).collect();
        let further = list.replicas.len() - names.len();
        let further = if further > 0 { format!(" and {further} more") } else { String::new() };
        Err(ErrorDetail::new(Kind::InUse, format!("node {name} has replicas of {}{further}", names.join(", ")))
            .with("node", name)
            .remedy("move them to other nodes first; or add --force, and the volumes go on without them"))
    }

    /// Removes this node. At least one other node must be notified; otherwise the others would expect this node for
    /// ever.
    async fn leave(&self, own: &MemberNode, others: &[MemberNode], force: bool) -> Result<(), ErrorDetail> {
        let mut failed = None;
        // This node has already checked its own replicas. `force` makes the other node skip that check.
        let path = format!("/v1/nodes/{}?force=true", own.uuid);
        for other in others {
            let request = self.call_member(other, Method::DELETE, &path, None);
            match connect::with_timeout(&Callee::of(other), REPLY_MAX, request).await {
                Ok(_) => {
                    failed = None;
                    break;
                }
                Err(error) if matches!(error.kind, Kind::Unreachable | Kind::TimedOut) => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = failed.filter(|_| !force) {
            return Err(ErrorDetail::new(
                Kind::NeedsConfirmation,
                format!("no other node can be notified of the removal of {}: {}", own.name, error.message),
            )
            .with("node", &own.name)
            .remedy(
                "try again when one is reachable; or add --force, and remove it on another node, too, when that is reachable again",
            ));
        }
        match self.record_own_removal().await {
            // This node is recorded as removed already: the notified node has sent its table to this one.
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            noted => noted,
        }
    }

    /// Gives a node, this node or another one, a new certificate.
    ///
    /// # Errors
    /// There is no such node; the node cannot be reached; the node's own error.
    pub async fn renew(&self, node: &str) -> Result<Node, ErrorDetail> {
        let membership = self.member()?;
        let line = table::find(&membership.cluster.members, node)?.clone();
        if line.uuid == membership.cluster.own.to_string() {
            self.renew_own(super::unix_s()).await?;
            return self.node(&line.uuid);
        }
        let path = format!("/v1/nodes/{}/renew", line.uuid);
        self.call(&line.uuid, Method::POST, &path, None).await?;
        // A new connection presents the new certificate.
        self.forget_peer(&line.uuid);
        self.exchange_table(&line).await;
        self.node(&line.uuid)
    }
}
