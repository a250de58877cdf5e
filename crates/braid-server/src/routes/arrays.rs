//! Arrays: creating, changing and checking them.

use super::Shared;
use crate::http::{ErrorResponse, Force, Json, JsonBody, JsonResult, PathName, accepted, read_query, run_change};
use crate::lifecycle::Reply;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use braid_api::{
    AddDisk, Array, ArrayList, Assemble, Assembled, CheckArray, CreateArray, ErrorBody, ErrorDetail, GrowArray, Growth,
    ImportMd, Job, MdImport, MoveJournal, NameMember, RemoveArrayMember, RenameArray, ReplaceMember, StopArray,
};
use std::sync::Arc;

/// Operations on arrays.
pub trait ArrayService: Send + Sync + 'static {
    /// Lists all arrays.
    fn arrays(&self) -> ArrayList;

    /// Creates an array on disks.
    ///
    /// # Errors
    /// The name is taken; a disk is in use, or holds data that the request does not permit to destroy. Nothing is left
    /// behind, or the error names what is left.
    fn create_array(self: Arc<Self>, request: CreateArray) -> Reply<Array>;

    /// Returns one array.
    ///
    /// # Errors
    /// No array, or more than one, has this name or UUID.
    fn array(&self, name: &str) -> Result<Array, ErrorDetail>;

    /// Deletes an array: removes its labels; its content is lost.
    ///
    /// # Errors
    /// No such array; without `force`, it is exported or incomplete.
    fn delete_array(self: Arc<Self>, array: String, force: bool) -> Reply<Array>;

    /// Renames an array.
    ///
    /// # Errors
    /// No such array; the name is invalid, or taken; the array is not active.
    fn rename_array(self: Arc<Self>, array: String, new_name: String) -> Reply<Array>;

    /// Stops an array: its disks become free.
    ///
    /// # Errors
    /// No such array; it is not active; without `force`, it is exported.
    fn stop_array(self: Arc<Self>, array: String, force: bool) -> Reply<Array>;

    /// Drops a member of a redundant array, as if it had failed.
    ///
    /// # Errors
    /// No such array or member; some of the array would be lost without it.
    fn fail_member(self: Arc<Self>, array: String, member: String) -> Reply<Array>;

    /// Removes a failed member or a spare from a redundant array.
    ///
    /// # Errors
    /// No such array or member; the member serves.
    fn remove_member(self: Arc<Self>, array: String, request: RemoveArrayMember) -> Reply<Array>;

    /// Adds a disk to a redundant array: a failed member returns, any other disk takes a vacant slot or becomes a
    /// spare. Returns the name of the job that fills it, if one does.
    ///
    /// # Errors
    /// No such array; the disk is too small, cannot be used, or holds data that the request does not permit to destroy.
    fn add_disk(self: Arc<Self>, array: String, request: AddDisk) -> Reply<(Array, Option<String>)>;

    /// Grows an array by the space that its disks have gained, and at concat and raid0 by further disks, while it
    /// serves.
    ///
    /// # Errors
    /// No such array; nothing would be gained; a disk is in use. The array is unchanged then.
    fn grow_array(self: Arc<Self>, array: String, request: GrowArray) -> Reply<Growth>;

    /// Replaces a member of a redundant array by a disk. The member serves until the disk is in sync. Returns the name
    /// of the job that fills it.
    ///
    /// # Errors
    /// No such array or member; the member is not in sync; there is no spare for it; the disk cannot be used.
    fn replace_member(self: Arc<Self>, array: String, request: ReplaceMember) -> Reply<(Array, Option<String>)>;

    /// Moves the journal of a raid5 or raid6 to a disk, or to its members, while it serves.
    ///
    /// # Errors
    /// No such array; it has no journal; the journal is there already; the disk cannot be used.
    fn move_journal(self: Arc<Self>, array: String, request: MoveJournal) -> Reply<Array>;

    /// Compares all copies of all written regions, or stripes with their parity; with `repair`, differences are
    /// corrected.
    ///
    /// # Errors
    /// No such array; it has no redundancy; a check of it is in progress.
    fn check_array(self: Arc<Self>, array: String, request: CheckArray) -> Reply<Job>;

    /// Scans for members, and starts the arrays that are complete.
    ///
    /// # Errors
    /// A named disk cannot be opened; the named array is not found.
    fn assemble(self: Arc<Self>, request: Assemble) -> Reply<Assembled>;

    /// Describes the arrays of Linux md that disks belong to; with a name, serves that array read-only.
    ///
    /// # Errors
    /// A disk is not a member of an md array. With a name: the name is taken; members are missing; a disk is in use;
    /// the disks belong to several arrays.
    fn import_md(self: Arc<Self>, request: ImportMd) -> Reply<MdImport>;
}

/// Lists all arrays.
#[utoipa::path(get, path = "/v1/arrays", responses((status = 200, body = ArrayList)))]
pub(super) async fn arrays(State(service): Shared) -> Json<ArrayList> {
    Json(service.arrays())
}

/// Creates an array on disks.
#[utoipa::path(
    post, path = "/v1/arrays", request_body = CreateArray,
    responses(
        (status = 200, body = Array),
        (status = 409, body = ErrorBody, description = "exists, in_use, would_destroy")
    )
)]
pub(super) async fn create_array(State(service): Shared, JsonBody(body): JsonBody<CreateArray>) -> JsonResult<Array> {
    run_change(service, |service| service.create_array(body)).await
}

/// Returns one array.
#[utoipa::path(
    get, path = "/v1/arrays/{array}", params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 404, body = ErrorBody))
)]
pub(super) async fn array(State(service): Shared, PathName(name): PathName) -> JsonResult<Array> {
    Ok(Json(service.array(&name)?))
}

/// Deletes an array: removes its labels; its content is lost.
#[utoipa::path(
    delete, path = "/v1/arrays/{array}",
    params(
        ("array" = String, Path, description = "name or UUID", example = "fast"),
        ("force" = Option<bool>, Query, description = "although it is exported: its exports are removed")
    ),
    responses((status = 200, body = Array, description = "as it was"), (status = 409, body = ErrorBody))
)]
pub(super) async fn delete_array(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<Array> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.delete_array(name, force)).await
}

/// Renames an array.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/rename", request_body = RenameArray,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 409, body = ErrorBody))
)]
pub(super) async fn rename_array(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RenameArray>,
) -> JsonResult<Array> {
    run_change(service, |service| service.rename_array(name, body.name)).await
}

/// Stops an array: its disks become free.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/stop", request_body = Option<StopArray>,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 409, body = ErrorBody))
)]
pub(super) async fn stop_array(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<StopArray>,
) -> JsonResult<Array> {
    run_change(service, |service| service.stop_array(name, body.force)).await
}

/// Drops a member of a redundant array, as if it had failed.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/fail", request_body = NameMember,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn fail_member(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<NameMember>,
) -> JsonResult<Array> {
    run_change(service, |service| service.fail_member(name, body.member)).await
}

/// Removes a failed member or a spare from a redundant array.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/remove", request_body = RemoveArrayMember,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(super) async fn remove_member(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RemoveArrayMember>,
) -> JsonResult<Array> {
    run_change(service, |service| service.remove_member(name, body)).await
}

/// Adds a disk to a redundant array: a failed member returns, any other disk takes a vacant slot or becomes a spare.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/disks", request_body = AddDisk,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Array, description = "it is a spare"),
        (status = 202, body = Array, description = "a job rebuilds it: the member names it, and the header Location"),
        (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn add_disk(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<AddDisk>,
) -> Result<Response, ErrorResponse> {
    let done = run_change(service, |service| service.add_disk(name, body)).await?;
    let Json((array, job)) = done;
    Ok(match job {
        Some(job) => accepted(&job, &array),
        None => Json(array).into_response(),
    })
}

/// Grows an array by the space that its disks have gained, and at concat and raid0 by further disks, while it serves.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/grow", request_body = Option<GrowArray>,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Growth),
        (status = 400, body = ErrorBody, description = "no capacity would be gained, or not in this way"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn grow_array(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<GrowArray>,
) -> JsonResult<Growth> {
    run_change(service, |service| service.grow_array(name, body)).await
}

/// Replaces a member of a redundant array by a disk. The member serves until the disk is in sync.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/replace", request_body = ReplaceMember,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 202, body = Array, description = "a job rebuilds it: the member names it, and the header Location"),
        (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn replace_member(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<ReplaceMember>,
) -> Result<Response, ErrorResponse> {
    let done = run_change(service, |service| service.replace_member(name, body)).await?;
    let Json((array, job)) = done;
    Ok(accepted(&job.unwrap_or_default(), &array))
}

/// Moves the journal of a raid5 or raid6 to a disk, or to its members, while it serves.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/journal", request_body = MoveJournal,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Array),
        (status = 400, body = ErrorBody, description = "no parity, it is there already, or the disk will not do"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use, would_destroy")
    )
)]
pub(super) async fn move_journal(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<MoveJournal>,
) -> JsonResult<Array> {
    run_change(service, |service| service.move_journal(name, body)).await
}

/// Compares all copies of all written regions, or stripes with their parity; with `repair`, differences are corrected.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/check", request_body = Option<CheckArray>,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 202, body = Job, description = "it has begun"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: a check of it runs already")
    )
)]
pub(super) async fn check_array(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<CheckArray>,
) -> Result<Response, ErrorResponse> {
    let Json(job) = run_change(service, |service| service.check_array(name, body)).await?;
    Ok(accepted(&job.name, &job))
}

/// Scans for members, and starts the arrays that are complete.
#[utoipa::path(
    post, path = "/v1/assemble", request_body = Option<Assemble>,
    responses((status = 200, body = Assembled), (status = 404, body = ErrorBody))
)]
pub(super) async fn assemble(State(service): Shared, JsonBody(body): JsonBody<Assemble>) -> JsonResult<Assembled> {
    run_change(service, |service| service.assemble(body)).await
}

/// Describes the arrays of Linux md that disks belong to; with a name, serves that array read-only.
#[utoipa::path(
    post, path = "/v1/import-md", request_body = ImportMd,
    responses(
        (status = 200, body = MdImport),
        (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists, in use, or it lacks members")
    )
)]
pub(super) async fn import_md(State(service): Shared, JsonBody(body): JsonBody<ImportMd>) -> JsonResult<MdImport> {
    run_change(service, |service| service.import_md(body)).await
}
