//! Paths of nodes, and of the cluster that they are.

use super::{Answer, Ask, Force, Json, Named, Shared, read_query, to_the_end};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{Admit, Admitted, ErrorBody, InitCluster, Invitation, Invite, JoinCluster, Node, NodeList, NodeTable};

/// All nodes of this daemon's cluster.
#[utoipa::path(get, path = "/v1/nodes", responses((status = 200, body = NodeList)))]
pub(super) async fn nodes(State(control): Shared) -> Json<NodeList> {
    Json(control.nodes().list())
}

/// One node.
#[utoipa::path(
    get, path = "/v1/nodes/{node}", params(("node" = String, Path, description = "name or UUID", example = "node1")),
    responses((status = 200, body = Node), (status = 404, body = ErrorBody))
)]
pub(super) async fn node(State(control): Shared, Named(name): Named) -> Answer<Node> {
    Ok(Json(control.nodes().node(&name)?))
}

/// Takes a node out of the cluster.
#[utoipa::path(
    delete, path = "/v1/nodes/{node}",
    params(
        ("node" = String, Path, description = "name or UUID", example = "node1"),
        ("force" = Option<bool>, Query, description = "although it keeps replicas, or cannot be asked; although none of the others can be told of its own leaving")
    ),
    responses((status = 200, body = Node, description = "as it was"), (status = 409, body = ErrorBody))
)]
pub(super) async fn remove_node(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, QueryRejection>,
) -> Answer<Node> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.nodes().remove(&name, force).await }).await
}

/// Gives a node a new certificate.
#[utoipa::path(
    post, path = "/v1/nodes/{node}/renew",
    params(("node" = String, Path, description = "name or UUID", example = "node1")),
    responses((status = 200, body = Node), (status = 404, body = ErrorBody))
)]
pub(super) async fn renew_node(State(control): Shared, Named(name): Named) -> Answer<Node> {
    to_the_end(control, |control| async move { control.nodes().renew(&name).await }).await
}

/// Makes a cluster of this daemon alone.
#[utoipa::path(
    post, path = "/v1/cluster/init", request_body = InitCluster,
    responses((status = 200, body = Node), (status = 409, body = ErrorBody))
)]
pub(super) async fn init_cluster(State(control): Shared, Ask(ask): Ask<InitCluster>) -> Answer<Node> {
    to_the_end(control, |control| async move { control.nodes().init(ask).await }).await
}

/// Makes an invitation for one more node.
#[utoipa::path(
    post, path = "/v1/cluster/invite", request_body = Option<Invite>,
    responses((status = 200, body = Invitation), (status = 404, body = ErrorBody))
)]
pub(super) async fn invite(State(control): Shared, Ask(ask): Ask<Invite>) -> Answer<Invitation> {
    to_the_end(control, |control| async move { control.nodes().invite(ask).await }).await
}

/// Joins the cluster of an invitation.
#[utoipa::path(
    post, path = "/v1/cluster/join", request_body = JoinCluster,
    responses((status = 200, body = Node), (status = 401, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn join_cluster(State(control): Shared, Ask(ask): Ask<JoinCluster>) -> Answer<Node> {
    to_the_end(control, |control| async move { control.nodes().join(ask).await }).await
}

/// Lets a node in that has an invitation: the only path of a node that is there for those without a certificate.
#[utoipa::path(
    post, path = "/v1/cluster/admit", request_body = Admit,
    responses((status = 200, body = Admitted), (status = 401, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn admit(State(control): Shared, Ask(ask): Ask<Admit>) -> Answer<Admitted> {
    to_the_end(control, |control| async move { control.nodes().admit(ask).await }).await
}

/// Takes up what another node knows of all, and tells it what this one knows.
#[utoipa::path(
    post, path = "/v1/cluster/table", request_body = NodeTable,
    responses((status = 200, body = NodeTable), (status = 404, body = ErrorBody))
)]
pub(super) async fn exchange(State(control): Shared, Ask(ask): Ask<NodeTable>) -> Answer<NodeTable> {
    to_the_end(control, |control| async move { control.nodes().hear(ask).await }).await
}
