//! Volumes of pools. Their names have two parts, and a slash is written `%2F` in a path.

use super::Shared;
use crate::http::{Force, Json, JsonBody, JsonResult, PathName, read_query, run_change};
use crate::lifecycle::Reply;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    CreateVolume, ErrorBody, FlattenVolume, MoveVolume, RenameVolume, ResizeVolume, RollbackVolume, SetVolume,
    SnapshotPolicy, Volume, VolumeList,
};
use serde::Deserialize;
use std::sync::Arc;

/// Operations on volumes.
pub trait VolumeService: Send + Sync + 'static {
    /// Lists all volumes, or those of one pool.
    ///
    /// # Errors
    /// No such pool, or it does not serve.
    fn volumes(self: Arc<Self>, pool: Option<String>) -> Reply<VolumeList>;

    /// Creates a volume.
    ///
    /// # Errors
    /// No such pool; the name is taken or invalid; a limit is reached.
    fn create_volume(self: Arc<Self>, request: CreateVolume) -> Reply<Volume>;

    /// Returns one volume.
    ///
    /// # Errors
    /// No volume has this name or UUID.
    fn volume(self: Arc<Self>, name: String) -> Reply<Volume>;

    /// Changes the shared limits of a volume's exports, while they are in use.
    ///
    /// # Errors
    /// No such volume; the change cannot be made durable, and then nothing changes.
    fn set_volume(self: Arc<Self>, volume: String, request: SetVolume) -> Reply<Volume>;

    /// Deletes a volume that has no snapshots.
    ///
    /// # Errors
    /// No such volume; it has snapshots; without `force`, it is exported, or was a member of an array that does not
    /// serve.
    fn delete_volume(self: Arc<Self>, volume: String, force: bool) -> Reply<Volume>;

    /// Sets the volume's snapshot schedule.
    ///
    /// # Errors
    /// No such volume; the schedule is invalid.
    fn set_policy(self: Arc<Self>, volume: String, policy: SnapshotPolicy) -> Reply<Volume>;

    /// Disables the volume's snapshot schedule. Existing snapshots are kept.
    ///
    /// # Errors
    /// No such volume.
    fn end_policy(self: Arc<Self>, volume: String) -> Reply<Volume>;

    /// Renames a volume.
    ///
    /// # Errors
    /// No such volume; the name is invalid, or taken.
    fn rename_volume(self: Arc<Self>, volume: String, new_name: String) -> Reply<Volume>;

    /// Resizes a volume, while it is in use.
    ///
    /// # Errors
    /// No such volume; a limit is reached; without `force` in the request, data beyond the new end would be destroyed.
    fn resize_volume(self: Arc<Self>, volume: String, request: ResizeVolume) -> Reply<Volume>;

    /// Moves the blocks of a volume and of its snapshots to other members of its pool, while it is in use.
    ///
    /// # Errors
    /// No such volume, or no such member of its pool.
    fn move_volume(self: Arc<Self>, volume: String, request: MoveVolume) -> Reply<Volume>;

    /// Makes the scattered blocks of a volume and of its snapshots contiguous, while they are in use.
    ///
    /// # Errors
    /// No such volume; its pool does not serve.
    fn compact_volume(self: Arc<Self>, volume: String) -> Reply<Volume>;

    /// Flattens a volume and its snapshots, while they are in use: copies the blocks that they share with their origin.
    /// After that the origin of a clone can be deleted, which frees its space.
    ///
    /// # Errors
    /// No such volume; its pool does not serve, or has too little space; some of the shared blocks are in doubt.
    fn flatten_volume(self: Arc<Self>, volume: String, request: FlattenVolume) -> Reply<Volume>;

    /// Rolls a volume back to a snapshot; its later content is lost.
    ///
    /// # Errors
    /// No such volume, or no such snapshot in its pool; requests in flight do not end in time; without `force` in the
    /// request, a file system is mounted on the volume, or it was a member of an array that does not serve.
    fn rollback_volume(self: Arc<Self>, volume: String, request: RollbackVolume) -> Reply<Volume>;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InPool {
    pool: Option<String>,
}

/// Lists all volumes, or those of one pool.
#[utoipa::path(
    get, path = "/v1/volumes", params(("pool" = Option<String>, Query, description = "only those of this pool")),
    responses((status = 200, body = VolumeList), (status = 404, body = ErrorBody))
)]
pub(super) async fn volumes(
    State(service): Shared,
    query: Result<Query<InPool>, QueryRejection>,
) -> JsonResult<VolumeList> {
    let pool = read_query(query)?.pool;
    Ok(Json(service.volumes(pool).await?))
}

/// Creates a volume.
#[utoipa::path(
    post, path = "/v1/volumes", request_body = CreateVolume,
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists")
    )
)]
pub(super) async fn create_volume(
    State(service): Shared,
    JsonBody(body): JsonBody<CreateVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.create_volume(body)).await
}

/// Returns one volume.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}",
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 404, body = ErrorBody))
)]
pub(super) async fn volume(State(service): Shared, PathName(name): PathName) -> JsonResult<Volume> {
    Ok(Json(service.volume(name).await?))
}

/// Changes the shared limits of a volume's exports, while they are in use.
#[utoipa::path(
    patch, path = "/v1/volumes/{volume}", request_body = SetVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 404, body = ErrorBody))
)]
pub(super) async fn set_volume(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<SetVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.set_volume(name, body)).await
}

/// Deletes a volume that has no snapshots.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}",
    params(
        ("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db"),
        ("force" = Option<bool>, Query, description = "although it is exported: its exports are removed")
    ),
    responses(
        (status = 200, body = Volume, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn delete_volume(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<Volume> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.delete_volume(name, force)).await
}

/// Sets the volume's snapshot schedule.
#[utoipa::path(
    put, path = "/v1/volumes/{volume}/policy", request_body = SnapshotPolicy,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(super) async fn set_policy(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<SnapshotPolicy>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.set_policy(name, body)).await
}

/// Disables the volume's snapshot schedule. Existing snapshots are kept.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}/policy",
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 404, body = ErrorBody))
)]
pub(super) async fn end_policy(State(service): Shared, PathName(name): PathName) -> JsonResult<Volume> {
    run_change(service, |service| service.end_policy(name)).await
}

/// Renames a volume.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/rename", request_body = RenameVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn rename_volume(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RenameVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.rename_volume(name, body.name)).await
}

/// Resizes a volume, while it is in use.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/resize", request_body = ResizeVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "would_destroy: it has data beyond the new end")
    )
)]
pub(super) async fn resize_volume(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<ResizeVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.resize_volume(name, body)).await
}

/// Moves the blocks of a volume and of its snapshots to other members of its pool, while it is in use.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/move", request_body = MoveVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume, description = "it moves; `moves` says when that has ended"),
        (status = 404, body = ErrorBody, description = "no such volume, or no such member of its pool")
    )
)]
pub(super) async fn move_volume(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<MoveVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.move_volume(name, body)).await
}

/// Makes the scattered blocks of a volume and of its snapshots contiguous, while they are in use.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/compact",
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume, description = "it has begun; `compacts` says when that has ended"),
        (status = 404, body = ErrorBody)
    )
)]
pub(super) async fn compact_volume(State(service): Shared, PathName(name): PathName) -> JsonResult<Volume> {
    run_change(service, |service| service.compact_volume(name)).await
}

/// Flattens a volume and its snapshots, while they are in use: copies the blocks that they share with their origin.
/// After that the origin of a clone can be deleted, which frees its space.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/flatten", request_body = FlattenVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/trial")),
    responses(
        (status = 200, body = Volume, description = "it has begun; `flattens` says when that has ended, at once where there is nothing to do"),
        (status = 404, body = ErrorBody),
        (status = 507, body = ErrorBody, description = "no_space: less is free than it sees of others")
    )
)]
pub(super) async fn flatten_volume(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<FlattenVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.flatten_volume(name, body)).await
}

/// Rolls a volume back to a snapshot; its later content is lost. Clients of its exports wait meanwhile.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/rollback", request_body = RollbackVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: a file system is mounted on it")
    )
)]
pub(super) async fn rollback_volume(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RollbackVolume>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.rollback_volume(name, body)).await
}
