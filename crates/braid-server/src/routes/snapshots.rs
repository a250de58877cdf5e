//! Snapshots of volumes. Their names have two parts, and a slash is written `%2F` in a path.

use super::Shared;
use crate::http::{Force, Json, JsonBody, JsonResult, PathName, read_query, run_change};
use crate::lifecycle::Reply;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    ChangeSnapshot, CloneSnapshot, CreateSnapshots, ErrorBody, RenameVolume, Snapshot, SnapshotDiff, SnapshotList,
    Volume,
};
use serde::Deserialize;
use std::sync::Arc;

/// Operations on snapshots.
pub trait SnapshotService: Send + Sync + 'static {
    /// Lists all snapshots, or those of one pool or volume.
    ///
    /// # Errors
    /// No such pool or volume.
    fn snapshots(self: Arc<Self>, of: Option<String>) -> Reply<SnapshotList>;

    /// Takes snapshots of volumes of a pool, all at one instant.
    ///
    /// # Errors
    /// A volume does not exist, or a name is taken: no snapshot is taken then. A disk hangs: the snapshots are durable
    /// when it responds.
    fn create_snapshots(self: Arc<Self>, request: CreateSnapshots) -> Reply<SnapshotList>;

    /// Returns one snapshot.
    ///
    /// # Errors
    /// No snapshot has this name or UUID.
    fn snapshot(self: Arc<Self>, name: String) -> Reply<Snapshot>;

    /// Records what the client that took a snapshot knows about the file system on it.
    ///
    /// # Errors
    /// No such snapshot; its pool cannot write.
    fn change_snapshot(self: Arc<Self>, snapshot: String, request: ChangeSnapshot) -> Reply<Snapshot>;

    /// Deletes a snapshot, even if volumes were cloned from it.
    ///
    /// # Errors
    /// No such snapshot; without `force`, it is exported.
    fn delete_snapshot(self: Arc<Self>, snapshot: String, force: bool) -> Reply<Snapshot>;

    /// Compares a volume or snapshot with the snapshot `from`, from `offset_bytes` on: returns up to 65,536 ranges that
    /// differ. Without `to`, the snapshot's own volume is compared.
    ///
    /// # Errors
    /// One of the two does not exist; they are in different pools, or have no common ancestor.
    fn diff(self: Arc<Self>, from: String, to: Option<String>, offset_bytes: u64) -> Reply<SnapshotDiff>;

    /// Renames a snapshot.
    ///
    /// # Errors
    /// No such snapshot; the name is invalid, or taken.
    fn rename_snapshot(self: Arc<Self>, snapshot: String, new_name: String) -> Reply<Snapshot>;

    /// Creates a volume whose initial content is that of a snapshot.
    ///
    /// # Errors
    /// No such snapshot; the name is taken or invalid; a limit is reached.
    fn clone_snapshot(self: Arc<Self>, snapshot: String, request: CloneSnapshot) -> Reply<Volume>;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfVolume {
    of: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffQuery {
    to: Option<String>,
    #[serde(default)]
    offset_bytes: u64,
}

/// Lists all snapshots, or those of one pool or volume.
#[utoipa::path(
    get, path = "/v1/snapshots", params(("of" = Option<String>, Query, description = "only those of this pool or volume")),
    responses((status = 200, body = SnapshotList), (status = 404, body = ErrorBody))
)]
pub(super) async fn snapshots(
    State(service): Shared,
    query: Result<Query<OfVolume>, QueryRejection>,
) -> JsonResult<SnapshotList> {
    let of = read_query(query)?.of;
    Ok(Json(service.snapshots(of).await?))
}

/// Takes snapshots of volumes of a pool, all at one instant.
#[utoipa::path(
    post, path = "/v1/snapshots", request_body = CreateSnapshots,
    responses(
        (status = 200, body = SnapshotList, description = "those that were taken"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists")
    )
)]
pub(super) async fn create_snapshots(
    State(service): Shared,
    JsonBody(body): JsonBody<CreateSnapshots>,
) -> JsonResult<SnapshotList> {
    run_change(service, |service| service.create_snapshots(body)).await
}

/// Returns one snapshot.
#[utoipa::path(
    get, path = "/v1/snapshots/{snapshot}",
    params(("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday")),
    responses((status = 200, body = Snapshot), (status = 404, body = ErrorBody))
)]
pub(super) async fn snapshot(State(service): Shared, PathName(name): PathName) -> JsonResult<Snapshot> {
    Ok(Json(service.snapshot(name).await?))
}

/// Records what the client that took a snapshot knows about the file system on it.
#[utoipa::path(
    patch, path = "/v1/snapshots/{snapshot}", request_body = ChangeSnapshot,
    params(("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday")),
    responses((status = 200, body = Snapshot), (status = 404, body = ErrorBody))
)]
pub(super) async fn change_snapshot(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<ChangeSnapshot>,
) -> JsonResult<Snapshot> {
    run_change(service, |service| service.change_snapshot(name, body)).await
}

/// Deletes a snapshot, even if volumes were cloned from it.
#[utoipa::path(
    delete, path = "/v1/snapshots/{snapshot}",
    params(
        ("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday"),
        ("force" = Option<bool>, Query, description = "although it is exported: its exports are removed")
    ),
    responses(
        (status = 200, body = Snapshot, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn delete_snapshot(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<Snapshot> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.delete_snapshot(name, force)).await
}

/// Compares a volume or snapshot with a snapshot: returns up to 65,536 ranges that differ.
#[utoipa::path(
    get, path = "/v1/snapshots/{snapshot}/diff",
    params(
        ("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday"),
        ("to" = Option<String>, Query, description = "the volume or snapshot that is compared; without it the volume as it is now"),
        ("offset_bytes" = Option<u64>, Query, description = "from this byte on")
    ),
    responses(
        (status = 200, body = SnapshotDiff),
        (status = 400, body = ErrorBody, description = "they have nothing in common"),
        (status = 404, body = ErrorBody)
    )
)]
pub(super) async fn diff(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<DiffQuery>, QueryRejection>,
) -> JsonResult<SnapshotDiff> {
    let DiffQuery { to, offset_bytes } = read_query(query)?;
    Ok(Json(service.diff(name, to, offset_bytes).await?))
}

/// Renames a snapshot.
#[utoipa::path(
    post, path = "/v1/snapshots/{snapshot}/rename", request_body = RenameVolume,
    params(("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday")),
    responses(
        (status = 200, body = Snapshot),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn rename_snapshot(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RenameVolume>,
) -> JsonResult<Snapshot> {
    run_change(service, |service| service.rename_snapshot(name, body.name)).await
}

/// Creates a volume whose initial content is that of a snapshot.
#[utoipa::path(
    post, path = "/v1/snapshots/{snapshot}/clone", request_body = CloneSnapshot,
    params(("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday")),
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists")
    )
)]
pub(super) async fn clone_snapshot(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<CloneSnapshot>,
) -> JsonResult<Volume> {
    run_change(service, |service| service.clone_snapshot(name, body)).await
}
