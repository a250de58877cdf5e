//! Operations on nodes of the cluster.

use crate::Daemon;
use braid_api::{
    Admit, Admitted, ErrorDetail, InitCluster, Invitation, Invite, JoinCluster, Node, NodeList, NodeTable,
};
use braid_server::{NodeService, Reply};
use std::sync::Arc;

impl NodeService for Daemon {
    fn nodes(&self) -> NodeList {
        self.nodes.list()
    }

    fn node(&self, name: &str) -> Result<Node, ErrorDetail> {
        self.nodes.node(name)
    }

    fn remove_node(self: Arc<Self>, node: String, force: bool) -> Reply<Node> {
        Box::pin(async move { self.nodes.remove(&node, force).await })
    }

    fn renew_node(self: Arc<Self>, node: String) -> Reply<Node> {
        Box::pin(async move { self.nodes.renew(&node).await })
    }

    fn init_cluster(self: Arc<Self>, request: InitCluster) -> Reply<Node> {
        Box::pin(async move { self.nodes.init(request).await })
    }

    fn invite(self: Arc<Self>, request: Invite) -> Reply<Invitation> {
        Box::pin(async move { self.nodes.invite(request).await })
    }

    fn join_cluster(self: Arc<Self>, request: JoinCluster) -> Reply<Node> {
        Box::pin(async move { self.nodes.join(request).await })
    }

    fn admit(self: Arc<Self>, request: Admit) -> Reply<Admitted> {
        Box::pin(async move { self.nodes.admit(request).await })
    }

    fn exchange(self: Arc<Self>, request: NodeTable) -> Reply<NodeTable> {
        Box::pin(async move { self.nodes.receive_table(request).await })
    }
}
