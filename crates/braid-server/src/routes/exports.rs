//! Exports of arrays, volumes and snapshots.

use super::Shared;
use crate::http::{Json, JsonBody, JsonResult, PathName, run_change};
use crate::lifecycle::Reply;
use axum::extract::State;
use braid_api::{
    AddExport, ErrorBody, ErrorDetail, Export, ExportList, OrphanList, RemoveOrphans, RenameExport, SetExport,
};
use std::sync::Arc;

/// Operations on exports.
pub trait ExportService: Send + Sync + 'static {
    /// Lists all exports.
    fn exports(&self) -> ExportList;

    /// Exports an array, volume or snapshot.
    ///
    /// # Errors
    /// No such array, volume or snapshot, or it does not serve; the name or the address is taken; other hosts could
    /// reach the export without TLS.
    fn add_export(self: Arc<Self>, request: AddExport) -> Reply<Export>;

    /// Returns one export.
    ///
    /// # Errors
    /// No export has this name or UUID.
    fn export(&self, name: &str) -> Result<Export, ErrorDetail>;

    /// Changes the limits of an export; clients that are within the new limits stay connected.
    ///
    /// # Errors
    /// No such export; a value is invalid. Nothing changes then.
    fn set_export(self: Arc<Self>, export: String, request: SetExport) -> Reply<Export>;

    /// Removes an export; its clients are disconnected.
    ///
    /// # Errors
    /// No such export; it is a file or a block device that is in use.
    fn remove_export(self: Arc<Self>, export: String) -> Reply<Export>;

    /// Renames an export.
    ///
    /// # Errors
    /// No such export; the name is taken or invalid; clients are connected and the request does not force it. The old
    /// name stays then.
    fn rename_export(self: Arc<Self>, export: String, request: RenameExport) -> Reply<Export>;

    /// Removes block devices of Braid and mounts of files that no export claims and no daemon serves; or only lists
    /// them.
    ///
    /// # Errors
    /// The driver of block devices, or the mount table, cannot be queried.
    fn remove_orphans(self: Arc<Self>, dry_run: bool) -> Reply<OrphanList>;
}

/// Lists all exports.
#[utoipa::path(get, path = "/v1/exports", responses((status = 200, body = ExportList)))]
pub(super) async fn exports(State(service): Shared) -> Json<ExportList> {
    Json(service.exports())
}

/// Exports an array, volume or snapshot.
#[utoipa::path(
    post, path = "/v1/exports", request_body = AddExport,
    responses((status = 200, body = Export), (status = 409, body = ErrorBody))
)]
pub(super) async fn add_export(State(service): Shared, JsonBody(body): JsonBody<AddExport>) -> JsonResult<Export> {
    run_change(service, |service| service.add_export(body)).await
}

/// Returns one export.
#[utoipa::path(
    get, path = "/v1/exports/{export}", params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Export), (status = 404, body = ErrorBody))
)]
pub(super) async fn export(State(service): Shared, PathName(name): PathName) -> JsonResult<Export> {
    Ok(Json(service.export(&name)?))
}

/// Changes the limits of an export; clients that are within the new limits stay connected.
#[utoipa::path(
    patch, path = "/v1/exports/{export}", request_body = SetExport,
    params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Export), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(super) async fn set_export(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<SetExport>,
) -> JsonResult<Export> {
    run_change(service, |service| service.set_export(name, body)).await
}

/// Removes an export; its clients are disconnected.
#[utoipa::path(
    delete, path = "/v1/exports/{export}", params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Export, description = "as it was"), (status = 404, body = ErrorBody))
)]
pub(super) async fn remove_export(State(service): Shared, PathName(name): PathName) -> JsonResult<Export> {
    run_change(service, |service| service.remove_export(name)).await
}

/// Renames an export.
#[utoipa::path(
    post, path = "/v1/exports/{export}/rename", request_body = RenameExport,
    params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Export),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists, in_use")
    )
)]
pub(super) async fn rename_export(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RenameExport>,
) -> JsonResult<Export> {
    run_change(service, |service| service.rename_export(name, body)).await
}

/// Removes block devices of Braid and mounts of files that no export claims and no daemon serves; or only lists them.
#[utoipa::path(
    post, path = "/v1/orphans", request_body = Option<RemoveOrphans>,
    responses((status = 200, body = OrphanList), (status = 400, body = ErrorBody))
)]
pub(super) async fn remove_orphans(
    State(service): Shared,
    JsonBody(body): JsonBody<RemoveOrphans>,
) -> JsonResult<OrphanList> {
    run_change(service, |service| service.remove_orphans(body.dry_run)).await
}
