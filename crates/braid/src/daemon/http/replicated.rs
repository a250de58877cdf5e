//! Paths of volumes that are kept on several nodes.

use super::{Answer, Ask, Force, Json, Named, NamedTwice, Shared, read_query, to_the_end};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    AddVoter, ClusterVolumeList, CreateReplicated, ErrorBody, ForcedOpening, RebuildVoter, ReplicatedList,
    ReplicatedVolume, RollbackReplicated,
};
use serde::Deserialize;

/// The volumes of several nodes of the whole cluster: which node serves each, and how its replicas stand. All nodes are asked, for 2 s at
/// most; what only one knows that does not answer is unknown.
#[utoipa::path(get, path = "/v1/cluster/volumes", responses((status = 200, body = ClusterVolumeList)))]
pub(super) async fn cluster_volumes(State(control): Shared) -> Json<ClusterVolumeList> {
    Json(control.cluster_volumes().await)
}

/// All volumes of several nodes that this one knows.
#[utoipa::path(get, path = "/v1/replicated", responses((status = 200, body = ReplicatedList)))]
pub(super) async fn replicated_volumes(State(control): Shared) -> Json<ReplicatedList> {
    Json(control.replicated_volumes())
}

/// Makes a volume with replicas on several nodes, and serves it here.
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
    State(control): Shared,
    Ask(ask): Ask<CreateReplicated>,
) -> Answer<ReplicatedVolume> {
    to_the_end(control, |control| async move { control.create_replicated(ask).await }).await
}

/// One of them.
#[utoipa::path(
    get, path = "/v1/replicated/{volume}",
    params(("volume" = String, Path, description = "name or UUID", example = "db")),
    responses((status = 200, body = ReplicatedVolume), (status = 404, body = ErrorBody))
)]
pub(super) async fn replicated_volume(State(control): Shared, Named(name): Named) -> Answer<ReplicatedVolume> {
    Ok(Json(control.replicated_volume(&name)?))
}

/// Serves a volume on this node; whichever node has served it so far is cut off.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/attach",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("force" = Option<bool>, Query, description = "although too few voters answer: those that do not are given up, and what only they have is lost"),
        ("without" = Option<String>, Query, description = "with force: the nodes of all that are given up, as /forced says them, with commas between")
    ),
    responses(
        (status = 200, body = ReplicatedVolume, description = "it is served"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "incomplete: voters or replicas are missing; with force also in_use, needs_confirmation")
    )
)]
pub(super) async fn attach_replicated(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Attach>, QueryRejection>,
) -> Answer<ReplicatedVolume> {
    let Attach { force, without } = read_query(query)?;
    let without: Vec<String> = without.split(',').filter(|node| !node.is_empty()).map(str::to_owned).collect();
    to_the_end(control, |control| async move {
        match force {
            false => control.attach_replicated(&name).await,
            true => control.attach_by_force(&name, &without).await,
        }
    })
    .await
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

/// What it would mean to open a volume by force on this node, as too few of its voters answer. Nothing is changed; it may take 10 s, in
/// which another controller may be heard of.
#[utoipa::path(
    get, path = "/v1/replicated/{volume}/forced",
    params(("volume" = String, Path, description = "name or UUID", example = "db")),
    responses(
        (status = 200, body = ForcedOpening),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: enough voters answer, or another controller is alive; incomplete: nobody who answers has its data")
    )
)]
pub(super) async fn forced_opening(State(control): Shared, Named(name): Named) -> Answer<ForcedOpening> {
    Ok(Json(control.forced_opening(&name).await?))
}

/// Ends serving a volume on this node.
#[utoipa::path(
    post, path = "/v1/replicated/{volume}/detach",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("force" = Option<bool>, Query, description = "although it is exported: clients are cut off")
    ),
    responses((status = 200, body = ReplicatedVolume), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn detach_replicated(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, QueryRejection>,
) -> Answer<ReplicatedVolume> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.detach_replicated(&name, force).await }).await
}

/// Makes a volume be as one of its snapshots is; what it had since is lost. It is served anew, by one replica; the others are filled from that.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<RollbackReplicated>,
) -> Answer<ReplicatedVolume> {
    to_the_end(control, |control| async move { control.roll_back_replicated(&name, &ask.snapshot).await }).await
}

/// Takes a replica or a witness in. It votes when this is answered; a replica is filled from then on.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<AddVoter>,
) -> Answer<ReplicatedVolume> {
    to_the_end(control, |control| async move { control.add_voter(&name, &ask).await }).await
}

/// Leaves the replica or witness of a node out for good, and removes it there.
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
        (status = 503, body = ErrorBody, description = "it is out, and its node does not answer: there it stays"),
        (status = 504, body = ErrorBody, description = "too few voters have agreed yet; it goes on by itself")
    )
)]
pub(super) async fn remove_voter(
    State(control): Shared,
    NamedTwice(name, node): NamedTwice,
) -> Answer<ReplicatedVolume> {
    to_the_end(control, |control| async move { control.remove_voter(&name, &node).await }).await
}

/// Makes a replica anew from nothing: it is left out, removed on its node, made there again, and filled.
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
    State(control): Shared,
    NamedTwice(name, node): NamedTwice,
    Ask(ask): Ask<RebuildVoter>,
) -> Answer<ReplicatedVolume> {
    to_the_end(control, |control| async move { control.rebuild_voter(&name, &node, ask.pool.as_deref()).await }).await
}

/// Deletes a volume with all of its replicas.
#[utoipa::path(
    delete, path = "/v1/replicated/{volume}",
    params(
        ("volume" = String, Path, description = "name or UUID", example = "db"),
        ("force" = Option<bool>, Query, description = "although it is exported, or nodes do not answer")
    ),
    responses(
        (status = 200, body = ReplicatedVolume, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(super) async fn delete_replicated(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, QueryRejection>,
) -> Answer<ReplicatedVolume> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.delete_replicated(&name, force).await }).await
}
