//! Nodes and the cluster.

use super::Shared;
use crate::http::{Force, Json, JsonBody, JsonResult, PathName, read_query, run_change};
use crate::lifecycle::Reply;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    Admit, Admitted, ErrorBody, ErrorDetail, InitCluster, Invitation, Invite, JoinCluster, Node, NodeList, NodeTable,
};
use std::sync::Arc;

/// Operations on nodes of the cluster.
pub trait NodeService: Send + Sync + 'static {
    /// Lists all nodes of this daemon's cluster.
    fn nodes(&self) -> NodeList;

    /// Returns one node.
    ///
    /// # Errors
    /// The daemon belongs to no cluster; no node has this name or UUID.
    fn node(&self, name: &str) -> Result<Node, ErrorDetail>;

    /// Removes a node from the cluster.
    ///
    /// # Errors
    /// No such node. Without `force`: the node has replicas, or does not reply; no other node can be notified of this
    /// node's removal.
    fn remove_node(self: Arc<Self>, node: String, force: bool) -> Reply<Node>;

    /// Issues a new certificate to a node.
    ///
    /// # Errors
    /// No such node; it does not reply.
    fn renew_node(self: Arc<Self>, node: String) -> Reply<Node>;

    /// Creates a cluster with this daemon as its only node.
    ///
    /// # Errors
    /// The daemon belongs to a cluster already; the address cannot be listened on.
    fn init_cluster(self: Arc<Self>, request: InitCluster) -> Reply<Node>;

    /// Creates an invitation for one further node.
    ///
    /// # Errors
    /// The daemon belongs to no cluster; there are too many open invitations.
    fn invite(self: Arc<Self>, request: Invite) -> Reply<Invitation>;

    /// Joins the cluster of an invitation.
    ///
    /// # Errors
    /// The daemon belongs to a cluster already; the inviting node does not reply, is not authentic, or refuses; the
    /// address cannot be listened on.
    fn join_cluster(self: Arc<Self>, request: JoinCluster) -> Reply<Node>;

    /// Admits a node that has an invitation: the only path of a node that needs no certificate.
    ///
    /// # Errors
    /// The node has no valid invitation; its name is taken. The invitation then stays valid.
    fn admit(self: Arc<Self>, request: Admit) -> Reply<Admitted>;

    /// Merges another node's table of nodes into this node's, and returns the result.
    ///
    /// # Errors
    /// The table is another cluster's, or is invalid.
    fn exchange(self: Arc<Self>, request: NodeTable) -> Reply<NodeTable>;
}

/// Lists all nodes of this daemon's cluster.
#[utoipa::path(get, path = "/v1/nodes", responses((status = 200, body = NodeList)))]
pub(super) async fn nodes(State(service): Shared) -> Json<NodeList> {
    Json(service.nodes())
}

/// Returns one node.
#[utoipa::path(
    get, path = "/v1/nodes/{node}", params(("node" = String, Path, description = "name or UUID", example = "node1")),
    responses((status = 200, body = Node), (status = 404, body = ErrorBody))
)]
pub(super) async fn node(State(service): Shared, PathName(name): PathName) -> JsonResult<Node> {
    Ok(Json(service.node(&name)?))
}

/// Removes a node from the cluster.
#[utoipa::path(
    delete, path = "/v1/nodes/{node}",
    params(
        ("node" = String, Path, description = "name or UUID", example = "node1"),
        ("force" = Option<bool>, Query, description = "even if it stores replicas or is unreachable, or if no other node can be notified that this node leaves")
    ),
    responses((status = 200, body = Node, description = "as it was"), (status = 409, body = ErrorBody))
)]
pub(super) async fn remove_node(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<Node> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.remove_node(name, force)).await
}

/// Issues a new certificate to a node.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/renew",
    params(("node" = String, Path, description = "name or UUID", example = "node1")),
    responses((status = 200, body = Node), (status = 404, body = ErrorBody))
)]
pub(super) async fn renew_node(State(service): Shared, PathName(name): PathName) -> JsonResult<Node> {
    run_change(service, |service| service.renew_node(name)).await
}

/// Creates a cluster with this daemon as its only node.
#[utoipa::path(
    post, path = "/v1/cluster/init", request_body = InitCluster,
    responses((status = 200, body = Node), (status = 409, body = ErrorBody))
)]
pub(super) async fn init_cluster(State(service): Shared, JsonBody(body): JsonBody<InitCluster>) -> JsonResult<Node> {
    run_change(service, |service| service.init_cluster(body)).await
}

/// Creates an invitation for one further node.
#[utoipa::path(
    post, path = "/v1/cluster/invite", request_body = Option<Invite>,
    responses((status = 200, body = Invitation), (status = 404, body = ErrorBody))
)]
pub(super) async fn invite(State(service): Shared, JsonBody(body): JsonBody<Invite>) -> JsonResult<Invitation> {
    run_change(service, |service| service.invite(body)).await
}

/// Joins the cluster of an invitation.
#[utoipa::path(
    post, path = "/v1/cluster/join", request_body = JoinCluster,
    responses((status = 200, body = Node), (status = 401, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn join_cluster(State(service): Shared, JsonBody(body): JsonBody<JoinCluster>) -> JsonResult<Node> {
    run_change(service, |service| service.join_cluster(body)).await
}

/// Admits a node that has an invitation: the only path of a node that needs no certificate.
#[utoipa::path(
    post, path = "/v1/cluster/admit", request_body = Admit,
    responses((status = 200, body = Admitted), (status = 401, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn admit(State(service): Shared, JsonBody(body): JsonBody<Admit>) -> JsonResult<Admitted> {
    run_change(service, |service| service.admit(body)).await
}

/// Merges another node's table of nodes into this node's, and returns the result.
#[utoipa::path(
    post, path = "/v1/cluster/table", request_body = NodeTable,
    responses((status = 200, body = NodeTable), (status = 404, body = ErrorBody))
)]
pub(super) async fn exchange(State(service): Shared, JsonBody(body): JsonBody<NodeTable>) -> JsonResult<NodeTable> {
    run_change(service, |service| service.exchange(body)).await
}
