//! Taking nodes out of the cluster.

use super::call::ANSWER_MAX;
use super::connect::{self, Callee};
use super::{Nodes, table};
use braid_api::{ErrorDetail, Kind, MemberNode, Node};
use hyper::Method;
use std::sync::Arc;

impl Nodes {
    /// Takes a node out, this one or another one; answers what it was. For good: it may come back as a new one.
    ///
    /// # Errors
    /// There is no such node; none of the others can be told of this one's leaving, without `force`; the file cannot be written.
    pub async fn remove(self: &Arc<Self>, node: &str, force: bool) -> Result<Node, ErrorDetail> {
        let held = self.member()?;
        let line = table::find(&held.cluster.members, node)?.clone();
        let shown = self.node(&line.uuid)?;
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
        self.wake.notify_one();
        // It is told if it can be; where it cannot, it learns it when it asks somebody.
        let nodes = Arc::clone(self);
        tokio::spawn(async move { nodes.tell_table(&gone).await });
        Ok(shown)
    }

    /// Takes this node itself out: one of the others has to know, or it would be expected for ever.
    async fn leave(&self, own: &MemberNode, others: &[MemberNode], force: bool) -> Result<(), ErrorDetail> {
        let mut failed = None;
        let path = format!("/v1/nodes/{}?force={force}", own.uuid);
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
