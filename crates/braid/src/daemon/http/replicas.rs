//! Paths of replicas and witnesses: what a node keeps of volumes that are kept on several, and what their controllers ask of it.

use super::{Answer, Ask, Json, Named, Shared, read_query, to_the_end};
use crate::daemon::control::replicas::ASKING_MAX;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    AskReplica, ChangeReplica, CreateReplica, ErrorBody, Replica, ReplicaAnswer, ReplicaList, ReplicaSnapshotList,
};
use serde::Deserialize;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteReplica {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    since: Option<u64>,
}

/// All replicas and witnesses of this node.
#[utoipa::path(get, path = "/v1/replicas", responses((status = 200, body = ReplicaList)))]
pub(super) async fn replicas(State(control): Shared) -> Json<ReplicaList> {
    Json(control.replicas())
}

/// Makes a replica, or a witness: its register is durable then.
#[utoipa::path(
    post, path = "/v1/replicas", request_body = CreateReplica,
    responses(
        (status = 200, body = Replica),
        (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists")
    )
)]
pub(super) async fn create_replica(State(control): Shared, Ask(ask): Ask<CreateReplica>) -> Answer<Replica> {
    to_the_end(control, |control| async move { control.create_replica(ask).await }).await
}

/// One replica or witness.
#[utoipa::path(
    get, path = "/v1/replicas/{replica}",
    params(("replica" = String, Path, description = "the volume's UUID, or its name", example = "db")),
    responses((status = 200, body = Replica), (status = 404, body = ErrorBody))
)]
pub(super) async fn replica(State(control): Shared, Named(name): Named) -> Answer<Replica> {
    Ok(Json(control.replica(&name)?))
}

/// Deletes a replica with its data, or a witness.
#[utoipa::path(
    delete, path = "/v1/replicas/{replica}",
    params(
        ("replica" = String, Path, description = "the volume's UUID, or its name", example = "db"),
        ("force" = Option<bool>, Query, description = "although a controller is connected, or it has promised something"),
        ("since" = Option<u64>, Query, description = "only the one that has come with this list of places")
    ),
    responses(
        (status = 200, body = Replica, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn delete_replica(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<DeleteReplica>, QueryRejection>,
) -> Answer<Replica> {
    let DeleteReplica { force, since } = read_query(query)?;
    to_the_end(control, |control| async move { control.delete_replica(&name, force, since).await }).await
}

/// Asks a voter what a controller asks. A raise is answered when nothing of older epochs is under way any more, which may take as long as a disk
/// does.
#[utoipa::path(
    post, path = "/v1/replicas/{replica}/ask", request_body = AskReplica,
    params(
        ("replica" = String, Path, description = "the volume's UUID, or its name", example = "db"),
        ("wait_ms" = Option<u64>, Query, description = "so long whoever asks waits for the answer, 60,000 at most; what could only be begun later is not begun")
    ),
    responses(
        (status = 200, body = ReplicaAnswer),
        (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "fenced: another controller is answered; inactive: it cannot answer now")
    )
)]
pub(super) async fn ask_replica(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Wait>, QueryRejection>,
    Ask(ask): Ask<AskReplica>,
) -> Answer<ReplicaAnswer> {
    let limit = read_query(query)?.wait_ms.map_or(ASKING_MAX, Duration::from_millis);
    Ok(Json(control.ask_replica(&name, ask, limit).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    wait_ms: Option<u64>,
}

/// The snapshots of a replica's data that controllers had taken.
#[utoipa::path(
    get, path = "/v1/replicas/{replica}/snapshots",
    params(("replica" = String, Path, description = "the volume's UUID, or its name", example = "db")),
    responses(
        (status = 200, body = ReplicaSnapshotList),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "inactive: its pool does not serve")
    )
)]
pub(super) async fn replica_snapshots(State(control): Shared, Named(name): Named) -> Answer<ReplicaSnapshotList> {
    Ok(Json(control.replica_snapshots(&name).await?))
}

/// Does with the snapshots of a replica's data what its controller wants. It is durable when this is answered.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<ChangeReplica>,
) -> Answer<Replica> {
    to_the_end(control, |control| async move { control.change_replica(&name, ask).await }).await
}
