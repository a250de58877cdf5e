//! Taking nodes out of the cluster.

use super::call::ANSWER_MAX;
use super::connect::{self, Callee};
use super::{Nodes, table};
use braid_api::{ErrorDetail, Kind, MemberNode, Node, ReplicaList};
use hyper::Method;

/// Replicas that a refusal names.
const NAMED_MAX: usize = 4;

impl Nodes {
    /// Takes a node out, this one or another one; answers what it was. For good: it may come back as a new one.
    ///
    /// # Errors
    /// There is no such node; the file cannot be written. Without `force`: it keeps replicas, or cannot be asked whether it does;
    /// none of the others can be told of this one's leaving.
    pub async fn remove(&self, node: &str, force: bool) -> Result<Node, ErrorDetail> {
        let held = self.member()?;
        let line = table::find(&held.cluster.members, node)?.clone();
        let shown = self.node(&line.uuid)?;
        if !force {
            self.refuse_with_replicas(&line).await?;
        }
        if line.uuid == held.cluster.own.to_string() {
            let others: Vec<MemberNode> = held.cluster.others().cloned().collect();
            self.leave(&line, &others, force).await?;
            return Ok(shown);
        }
        let gone = self
            .change(|cluster| {
                let mut gone = table::find(&cluster.members, &line.uuid)?.clone();
                (gone.version, gone.removed) = (gone.version + 1, true);
                table::merge(&mut cluster.members, std::slice::from_ref(&gone));
                Ok(gone)
            })
            .await?;
        self.is_gone(&gone);
        // The others are told. That one itself is not spoken to any more: it learns it when it asks somebody, within seconds.
        self.wake.notify_one();
        Ok(shown)
    }

    /// Refuses to take a node out that keeps replicas, as these would be lost to their volumes.
    async fn refuse_with_replicas(&self, line: &MemberNode) -> Result<(), ErrorDetail> {
        let name = &line.name;
        let answer = match self.call(&line.uuid, Method::GET, "/v1/replicas", None).await {
            Ok(answer) => answer,
            // A daemon that knows no replicas keeps none.
            Err(error) if error.kind == Kind::NotFound => return Ok(()),
            Err(error) => {
                let message = format!("it is not known whether node {name} keeps replicas: {}", error.message);
                return Err(ErrorDetail::new(Kind::NeedsConfirmation, message)
                    .with("node", name)
                    .remedy("bring it back; or add --force if it is gone for good"));
            }
        };
        let list: ReplicaList = serde_json::from_value(answer).map_err(|error| {
            ErrorDetail::new(
                Kind::Internal,
                format!("node {name} lists its replicas in a way that cannot be read: {error}"),
            )
            .remedy("are the daemons of one version? (`braid --version`)")
        })?;
        if list.replicas.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = list.replicas.iter().take(NAMED_MAX).map(|replica| replica.name.as_str()).collect();
        let further = list.replicas.len() - names.len();
        let further = if further > 0 { format!(" and {further} more") } else { String::new() };
        Err(ErrorDetail::new(Kind::InUse, format!("node {name} keeps replicas of {}{further}", names.join(", ")))
            .with("node", name)
            .remedy("move them to other nodes first; or add --force, and the volumes go on without them"))
    }

    /// Takes this node itself out: one of the others has to know, or it would be expected for ever.
    async fn leave(&self, own: &MemberNode, others: &[MemberNode], force: bool) -> Result<(), ErrorDetail> {
        let mut failed = None;
        // Whether it keeps replicas was looked at here.
        let path = format!("/v1/nodes/{}?force=true", own.uuid);
        for other in others {
            let asking = self.call_member(other, Method::DELETE, &path, None);
            match connect::limited(&Callee::of(other), ANSWER_MAX, asking).await {
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
                format!("none of the other nodes can be told that {} leaves: {}", own.name, error.message),
            )
            .with("node", &own.name)
            .remedy(
                "try again when one is here; or add --force, and remove it on another node, too, when that is back",
            ));
        }
        match self.note_own_removal().await {
            // The other one has told it already.
            Err(error) if error.kind == Kind::NotFound => Ok(()),
            noted => noted,
        }
    }

    /// Gives a node another certificate, this one or another one.
    ///
    /// # Errors
    /// There is no such node; it cannot be reached; what it says.
    pub async fn renew(&self, node: &str) -> Result<Node, ErrorDetail> {
        let held = self.member()?;
        let line = table::find(&held.cluster.members, node)?.clone();
        if line.uuid == held.cluster.own.to_string() {
            self.renew_own(super::unix_s()).await?;
            return self.node(&line.uuid);
        }
        let path = format!("/v1/nodes/{}/renew", line.uuid);
        self.call(&line.uuid, Method::POST, &path, None).await?;
        // A new connection shows the new one.
        self.forget(&line.uuid);
        self.tell_table(&line).await;
        self.node(&line.uuid)
    }
}
