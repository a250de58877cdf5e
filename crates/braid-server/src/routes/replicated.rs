//! Replicated volumes, as the node that serves them has them.

use super::Shared;
use crate::http::{Force, Json, JsonBody, JsonResult, PathName, PathNames, read_query, run_change};
use crate::lifecycle::{BoxFuture, Reply};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    AddVoter, ClusterVolumeList, CreateReplicated, ErrorBody, ErrorDetail, ForcedOpening, RebuildVoter, ReplicatedList,
    ReplicatedVolume, RollbackReplicated,
};
use serde::Deserialize;
use std::sync::Arc;

/// Operations on replicated volumes.
pub trait ReplicationService: Send + Sync + 'static {
    /// Lists all replicated volumes that this node knows.
    fn replicated_volumes(&self) -> ReplicatedList;

    /// Creates a volume with replicas on several nodes, and serves it on this node.
    ///
    /// # Errors
    /// The name is taken; there are too few replicas; a node or pool does not exist; a node does not reply. Nothing is
    /// left, or the error names what is left.
    fn create_replicated(self: Arc<Self>, request: CreateReplicated) -> Reply<ReplicatedVolume>;

    /// Returns one replicated volume.
    ///
    /// # Errors
    /// No replicated volume has this name or UUID.
    fn replicated_volume(&self, name: &str) -> Result<ReplicatedVolume, ErrorDetail>;

    /// Deletes a volume with all of its replicas.
    ///
    /// # Errors
    /// No such volume; without `force`, it is exported, or a node does not reply.
    fn delete_replicated(self: Arc<Self>, volume: String, force: bool) -> Reply<ReplicatedVolume>;

    /// Attaches a volume on this node; the node that has served it so far is fenced.
    ///
    /// # Errors
    /// No node that replies knows such a volume; it is not served in time, and then it is not attached.
    fn attach_replicated(self: Arc<Self>, volume: String) -> Reply<ReplicatedVolume>;

    /// Attaches a volume on this node although too few voters reply. `without` names the nodes of all voters that are
    /// given up; what only they have is lost.
    ///
    /// # Errors
    /// As [`ReplicationService::forced_opening`]; other voters than those of `without` do not reply; the volume is not
    /// served in time.
    fn force_attach(self: Arc<Self>, volume: String, without: Vec<String>) -> Reply<ReplicatedVolume>;

    /// Returns the consequences of a forced attach on this node while too few voters answer. Nothing is changed; the
    /// reply may take 10 s, in which another controller may be detected.
    ///
    /// # Errors
    /// No such volume; enough voters reply, or another controller may serve it; no voter that replies has its data.
    fn forced_opening(self: Arc<Self>, volume: String) -> Reply<ForcedOpening>;

    /// Detaches a volume from this node.
    ///
    /// # Errors
    /// No such volume; this node does not serve it; without `force`, it is exported.
    fn detach_replicated(self: Arc<Self>, volume: String, force: bool) -> Reply<ReplicatedVolume>;

    /// Rolls a volume back to one of its snapshots; its later content is lost. One replica serves it again, and the
    /// others are rebuilt from that.
    ///
    /// # Errors
    /// No such volume or snapshot; this node does not serve the volume; it is exported, or a replica is on its node.
    /// Nothing is lost then.
    fn rollback_replicated(self: Arc<Self>, volume: String, snapshot: String) -> Reply<ReplicatedVolume>;

    /// Adds a replica or a witness. It votes when this is answered; a replica is rebuilt from then on.
    ///
    /// # Errors
    /// No such volume; this node does not serve it; the node is unknown, has a voter already, or cannot create one; too
    /// few voters agree in time: the change goes on then.
    fn add_voter(self: Arc<Self>, volume: String, request: AddVoter) -> Reply<ReplicatedVolume>;

    /// Removes the replica or witness of a node from the voters permanently, and deletes it on that node.
    ///
    /// # Errors
    /// No such volume or voter; this node does not serve the volume; no other replica is in sync; too few voters agree
    /// in time. If the node does not reply, the voter is removed all the same, and the error says so.
    fn remove_voter(self: Arc<Self>, volume: String, node: String) -> Reply<ReplicatedVolume>;

    /// Rebuilds a replica from nothing: removes it from the voters, deletes it on its node, creates it there again, and
    /// rebuilds it.
    ///
    /// # Errors
    /// As [`ReplicationService::remove_voter`] and [`ReplicationService::add_voter`].
    fn rebuild_voter(self: Arc<Self>, volume: String, node: String, pool: Option<String>) -> Reply<ReplicatedVolume>;

    /// Lists the replicated volumes of the whole cluster: which node serves each, and the state of its replicas. All
    /// nodes are queried, for 2 s at most; what only an unreachable node knows is unknown.
    fn cluster_volumes(self: Arc<Self>) -> BoxFuture<ClusterVolumeList>;
}

/// How a volume is to be attached.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attach {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    without: String,
}

/// Lists all replicated volumes that this node knows.
#[utoipa::path(get, path = "/v1/replicated", responses((status = 200, body = ReplicatedList)))]
pub(super) async fn replicated_volumes(State(service): Shared) -> Json<ReplicatedList> {
    Json(service.replicated_volumes())
}

/// Creates a volume with replicas on several nodes, and serves it on this node.
#[utoipa::path(
    post, path = "/v1/replicated", request_body = CreateReplicated,
    responses(
        (status = 200, body = ReplicatedVolume),
        (status = 400, body = ErrorBody, description = "too few replicas, a node named twice"),
        (status = 404, body = ErrorBody, description = "no such node, or no such pool there"),
        (status = 409, body = ErrorBody, description = "exists, incomplete"),
        (status = 503, body = ErrorBody, description = "a node does not answer")
    )
)]
pub(super) async fn create_replicated(
    State(service): Shared,
    JsonBody(body): JsonBody<CreateReplicated>,
) -> JsonResult<ReplicatedVolume> {
    run_change(service, |service| service.create_replicated(body)).await
}

/// Returns one replicated volume.
#[utoipa::path(
    get, path = "/v1/replicated/{volume}",
    params(("volume" = String, Path, description = "name or UUID", example = "db")),
    responses((status = 200, body = ReplicatedVolume), (status = 404, body = ErrorBody))
)]
pub(super) async fn replicated_volume(
    State(service): Shared,
    PathName(name): PathName,
) -> JsonResult<ReplicatedVolume> {
    Ok(Json(service.replicated_volume(&name)?))
}

/// Deletes a volume with all of its replicas.
#[utoipa::path(
    delete, path = "/v1/replicated/{volume}",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("force" = Option<bool>, Query, description = "even if it is exported, or nodes do not answer")
    ),
    responses(
        (status = 200, body = ReplicatedVolume, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(super) async fn delete_replicated(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<ReplicatedVolume> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.delete_replicated(name, force)).await
}

/// Attaches a volume on this node; the node that has served it so far is fenced.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/attach",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("force" = Option<bool>, Query, description = "even if too few voters answer: the others are given up, and data that only they have is lost"),
        ("without" = Option<String>, Query, description = "with force: the nodes that are given up, as /forced reports them, separated by commas")
    ),
    responses(
        (status = 200, body = ReplicatedVolume, description = "it is served"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "incomplete: voters or replicas are missing; with force also in_use, needs_confirmation")
    )
)]
pub(super) async fn attach_replicated(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Attach>, QueryRejection>,
) -> JsonResult<ReplicatedVolume> {
    let Attach { force, without } = read_query(query)?;
    let without: Vec<String> = without.split(',').filter(|node| !node.is_empty()).map(str::to_owned).collect();
    run_change(service, |service| match force {
        false => service.attach_replicated(name),
        true => service.force_attach(name, without),
    })
    .await
}

/// Returns the consequences of a forced attach on this node while too few voters answer. Nothing is changed; the reply
/// may take 10 s, in which another controller may be detected.
#[utoipa::path(
    get, path = "/v1/replicated/{volume}/forced",
    params(("volume" = String, Path, description = "name or UUID", example = "db")),
    responses(
        (status = 200, body = ForcedOpening),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: enough voters answer, or another controller is alive; incomplete: no node that answers has its data")
    )
)]
pub(super) async fn forced_opening(State(service): Shared, PathName(name): PathName) -> JsonResult<ForcedOpening> {
    Ok(Json(service.forced_opening(name).await?))
}

/// Detaches a volume from this node.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/detach",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("force" = Option<bool>, Query, description = "although it is exported: clients are cut off")
    ),
    responses((status = 200, body = ReplicatedVolume), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn detach_replicated(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<ReplicatedVolume> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.detach_replicated(name, force)).await
}

/// Rolls a volume back to one of its snapshots; its later content is lost. One replica serves it again, and the others
/// are rebuilt from that.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/rollback", request_body = RollbackReplicated,
    params(("volume" = String, Path, description = "name or UUID", example = "db")),
    responses(
        (status = 200, body = ReplicatedVolume),
        (status = 404, body = ErrorBody, description = "no such volume, or no such snapshot of it"),
        (status = 409, body = ErrorBody, description = "in_use: it is exported; inactive: this node does not serve it")
    )
)]
pub(super) async fn rollback_replicated(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RollbackReplicated>,
) -> JsonResult<ReplicatedVolume> {
    run_change(service, |service| service.rollback_replicated(name, body.snapshot)).await
}

/// Adds a replica or a witness. It votes when this is answered; a replica is rebuilt from then on.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/voters", request_body = AddVoter,
    params(("volume" = String, Path, description = "name or UUID", example = "db")),
    responses(
        (status = 200, body = ReplicatedVolume),
        (status = 404, body = ErrorBody, description = "no such volume or node"),
        (status = 409, body = ErrorBody, description = "exists: the node has one; inactive: this node does not serve the volume"),
        (status = 504, body = ErrorBody, description = "too few voters have agreed yet; it goes on by itself")
    )
)]
pub(super) async fn add_voter(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<AddVoter>,
) -> JsonResult<ReplicatedVolume> {
    run_change(service, |service| service.add_voter(name, body)).await
}

/// Removes the replica or witness of a node from the voters permanently, and deletes it on that node.
#[utoipa::path(
    delete, path = "/v1/replicated/{volume}/voters/{node}",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("node" = String, Path, description = "its node", example = "node3")
    ),
    responses(
        (status = 200, body = ReplicatedVolume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "incomplete: no other replica holds everything"),
        (status = 503, body = ErrorBody, description = "it is removed from the voters, but its node does not answer and keeps it"),
        (status = 504, body = ErrorBody, description = "too few voters have agreed yet; it goes on by itself")
    )
)]
pub(super) async fn remove_voter(
    State(service): Shared,
    PathNames(name, node): PathNames,
) -> JsonResult<ReplicatedVolume> {
    run_change(service, |service| service.remove_voter(name, node)).await
}

/// Rebuilds a replica from nothing: removes it from the voters, deletes it on its node, creates it there again, and
/// rebuilds it.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/voters/{node}/rebuild", request_body = RebuildVoter,
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("node" = String, Path, description = "its node", example = "node3")
    ),
    responses(
        (status = 200, body = ReplicatedVolume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "incomplete: no other replica holds everything"),
        (status = 504, body = ErrorBody, description = "too few voters have agreed yet")
    )
)]
pub(super) async fn rebuild_voter(
    State(service): Shared,
    PathNames(name, node): PathNames,
    JsonBody(body): JsonBody<RebuildVoter>,
) -> JsonResult<ReplicatedVolume> {
    run_change(service, |service| service.rebuild_voter(name, node, body.pool)).await
}

/// Lists the replicated volumes of the whole cluster: which node serves each, and the state of its replicas. All nodes
/// are queried, for 2 s at most; what only an unreachable node knows is unknown.
#[utoipa::path(get, path = "/v1/cluster/volumes", responses((status = 200, body = ClusterVolumeList)))]
pub(super) async fn cluster_volumes(State(service): Shared) -> Json<ClusterVolumeList> {
    Json(service.cluster_volumes().await)
}
