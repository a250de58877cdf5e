//! Replicas and witnesses: what a node stores of replicated volumes, and the requests of their controllers.

use super::Shared;
use crate::http::{Json, JsonBody, JsonResult, PathName, read_query, run_change};
use crate::lifecycle::Reply;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    ChangeReplica, CreateReplica, ErrorBody, ErrorDetail, Replica, ReplicaList, ReplicaReply, ReplicaRequest,
    ReplicaSnapshotList,
};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Operations on replicas and witnesses of this node.
pub trait ReplicaService: Send + Sync + 'static {
    /// Lists all replicas and witnesses of this node.
    fn replicas(&self) -> ReplicaList;

    /// Creates a replica or a witness. Its register is durable when this is answered.
    ///
    /// # Errors
    /// The node has a replica of the volume already; the name is taken; the pool has too little space. Nothing is left
    /// then.
    fn create_replica(self: Arc<Self>, request: CreateReplica) -> Reply<Replica>;

    /// Returns one replica or witness.
    ///
    /// # Errors
    /// No replica, or more than one, has this volume UUID or name.
    fn replica(&self, name: &str) -> Result<Replica, ErrorDetail>;

    /// Deletes a replica with its data, or a witness. With `since`, only the one that was created with that list of
    /// voters.
    ///
    /// # Errors
    /// No such replica, or not the one of `since`; its data has snapshots; its pool does not serve; without `force`, a
    /// controller uses it, or it has voted.
    fn delete_replica(self: Arc<Self>, volume: String, force: bool, since: Option<u64>) -> Reply<Replica>;

    /// Sends a request of a controller to a voter. The request for a higher epoch is answered when no request of an
    /// older epoch is in flight any more, which may take as long as a disk does. `wait` is the longest time for the
    /// reply; without one it is the maximum that the daemon permits.
    ///
    /// # Errors
    /// No such replica; another controller is admitted; it cannot reply now.
    fn request_voter(
        self: Arc<Self>,
        volume: String,
        request: ReplicaRequest,
        wait: Option<Duration>,
    ) -> Reply<ReplicaReply>;

    /// Lists the snapshots of a replica's data that controllers have taken.
    ///
    /// # Errors
    /// No such replica; its pool does not serve.
    fn replica_snapshots(self: Arc<Self>, volume: String) -> Reply<ReplicaSnapshotList>;

    /// Changes the snapshots of a replica's data for its controller. The change is durable when this is answered.
    ///
    /// # Errors
    /// No such replica; another controller is admitted; the name is taken; it is exported; its pool does not serve.
    fn change_replica(self: Arc<Self>, volume: String, request: ChangeReplica) -> Reply<Replica>;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteReplica {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    since: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    wait_ms: Option<u64>,
}

/// Lists all replicas and witnesses of this node.
#[utoipa::path(get, path = "/v1/replicas", responses((status = 200, body = ReplicaList)))]
pub(super) async fn replicas(State(service): Shared) -> Json<ReplicaList> {
    Json(service.replicas())
}

/// Creates a replica or a witness. Its register is durable when this is answered.
#[utoipa::path(
    post, path = "/v1/replicas", request_body = CreateReplica,
    responses(
        (status = 200, body = Replica),
        (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists")
    )
)]
pub(super) async fn create_replica(
    State(service): Shared,
    JsonBody(body): JsonBody<CreateReplica>,
) -> JsonResult<Replica> {
    run_change(service, |service| service.create_replica(body)).await
}

/// Returns one replica or witness.
#[utoipa::path(
    get, path = "/v1/replicas/{replica}",
    params(("replica" = String, Path, description = "the volume's UUID, or its name", example = "db")),
    responses((status = 200, body = Replica), (status = 404, body = ErrorBody))
)]
pub(super) async fn replica(State(service): Shared, PathName(name): PathName) -> JsonResult<Replica> {
    Ok(Json(service.replica(&name)?))
}

/// Deletes a replica with its data, or a witness.
#[utoipa::path(
    delete, path = "/v1/replicas/{replica}",
    params(
        ("replica" = String, Path, description = "the volume's UUID, or its name", example = "db"),
        ("force" = Option<bool>, Query, description = "even if a controller is connected, or it has granted a vote"),
        ("since" = Option<u64>, Query, description = "only the replica that this version of the membership added")
    ),
    responses(
        (status = 200, body = Replica, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn delete_replica(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<DeleteReplica>, QueryRejection>,
) -> JsonResult<Replica> {
    let DeleteReplica { force, since } = read_query(query)?;
    run_change(service, |service| service.delete_replica(name, force, since)).await
}

/// Sends a request of a controller to a voter. The request for a higher epoch is answered when no request of an older
/// epoch is in flight any more, which may take as long as a disk does.
#[utoipa::path(
    post, path = "/v1/replicas/{replica}/request", request_body = ReplicaRequest,
    params(
        ("replica" = String, Path, description = "the volume's UUID, or its name", example = "db"),
        ("wait_ms" = Option<u64>, Query, description = "how long the client waits for the reply, at most 60,000; a request that could only begin later is not begun")
    ),
    responses(
        (status = 200, body = ReplicaReply),
        (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "fenced: another controller is answered; inactive: it cannot answer now")
    )
)]
pub(super) async fn request_voter(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Wait>, QueryRejection>,
    JsonBody(body): JsonBody<ReplicaRequest>,
) -> JsonResult<ReplicaReply> {
    let wait = read_query(query)?.wait_ms.map(Duration::from_millis);
    Ok(Json(service.request_voter(name, body, wait).await?))
}

/// Lists the snapshots of a replica's data that controllers have taken.
#[utoipa::path(
    get, path = "/v1/replicas/{replica}/snapshots",
    params(("replica" = String, Path, description = "the volume's UUID, or its name", example = "db")),
    responses(
        (status = 200, body = ReplicaSnapshotList),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "inactive: its pool does not serve")
    )
)]
pub(super) async fn replica_snapshots(
    State(service): Shared,
    PathName(name): PathName,
) -> JsonResult<ReplicaSnapshotList> {
    Ok(Json(service.replica_snapshots(name).await?))
}

/// Changes the snapshots of a replica's data for its controller. The change is durable when this is answered.
#[utoipa::path(
    post, path = "/v1/replicas/{replica}/snapshots", request_body = ChangeReplica,
    params(("replica" = String, Path, description = "the volume's UUID, or its name", example = "db")),
    responses(
        (status = 200, body = Replica),
        (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "fenced: another controller or session is answered; exists: the name is taken; in_use: it is exported; inactive")
    )
)]
pub(super) async fn change_replica(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<ChangeReplica>,
) -> JsonResult<Replica> {
    run_change(service, |service| service.change_replica(name, body)).await
}
