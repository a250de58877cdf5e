//! Pools. A name of two parts is one segment of a path: its slash is written `%2F`.

use super::Shared;
use crate::http::{Force, Json, JsonBody, JsonResult, PathName, read_query, run_change};
use crate::lifecycle::{BoxFuture, Reply};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    AddMembers, CheckPool, CreatePool, ErrorBody, Pool, PoolChecked, PoolList, RemoveMember, RenamePool, StartPool,
};
use std::sync::Arc;

/// Operations on pools.
pub trait PoolService: Send + Sync + 'static {
    /// Lists all pools.
    fn pools(self: Arc<Self>) -> BoxFuture<PoolList>;

    /// Creates a pool on disks and arrays.
    ///
    /// # Errors
    /// The name is taken; a member is in use, or holds data that the request does not permit to destroy. Nothing is
    /// left that could be taken for a pool, or the error names it.
    fn create_pool(self: Arc<Self>, request: CreatePool) -> Reply<Pool>;

    /// Returns one pool, with the space of each of its volumes and snapshots: reads all of its records for that.
    ///
    /// # Errors
    /// No pool has this name or UUID.
    fn pool(self: Arc<Self>, name: String) -> Reply<Pool>;

    /// Deletes a pool with all of its volumes and snapshots: removes its labels; its content is lost.
    ///
    /// # Errors
    /// No such pool; without `force`, a volume is exported or a member is missing.
    fn delete_pool(self: Arc<Self>, pool: String, force: bool) -> Reply<Pool>;

    /// Renames a pool.
    ///
    /// # Errors
    /// No such pool; the name is invalid, or taken; the pool does not serve.
    fn rename_pool(self: Arc<Self>, pool: String, new_name: String) -> Reply<Pool>;

    /// Starts a pool that waits for members; by force without the missing ones.
    ///
    /// # Errors
    /// No such pool; it serves already, with all of its members; members are missing, without `force`; it cannot be
    /// opened.
    fn start_pool(self: Arc<Self>, pool: String, request: StartPool) -> Reply<Pool>;

    /// Adds disks and arrays to a pool, while its volumes are in use: one after the other, each durably before the next
    /// one begins.
    ///
    /// # Errors
    /// No such pool or array; a disk is too small, too large or in use. A refusal changes nothing; a later error names
    /// those that are members by then.
    fn add_pool_members(self: Arc<Self>, pool: String, request: AddMembers) -> Reply<Pool>;

    /// Reads and compares all tables of a pool, while its volumes are in use.
    ///
    /// # Errors
    /// No such pool; it does not serve or is being changed; a member cannot be read; what is to be given up is in use,
    /// or can be read now.
    fn check_pool(self: Arc<Self>, pool: String, request: CheckPool) -> Reply<PoolChecked>;

    /// Removes a member from a pool, while its volumes are in use: its data moves to the other members.
    ///
    /// # Errors
    /// No such pool or member; it is the only member; volumes are allocated on it alone; the others have too little
    /// space; without `force` in the request, it is missing.
    fn remove_pool_member(self: Arc<Self>, pool: String, request: RemoveMember) -> Reply<Pool>;
}

/// Lists all pools.
#[utoipa::path(get, path = "/v1/pools", responses((status = 200, body = PoolList)))]
pub(super) async fn pools(State(service): Shared) -> Json<PoolList> {
    Json(service.pools().await)
}

/// Creates a pool on disks and arrays.
#[utoipa::path(
    post, path = "/v1/pools", request_body = CreatePool,
    responses(
        (status = 200, body = Pool),
        (status = 409, body = ErrorBody, description = "exists, in_use, would_destroy")
    )
)]
pub(super) async fn create_pool(State(service): Shared, JsonBody(body): JsonBody<CreatePool>) -> JsonResult<Pool> {
    run_change(service, |service| service.create_pool(body)).await
}

/// Returns one pool, with the space of each of its volumes and snapshots: reads all of its records for that.
#[utoipa::path(
    get, path = "/v1/pools/{pool}", params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses((status = 200, body = Pool), (status = 404, body = ErrorBody))
)]
pub(super) async fn pool(State(service): Shared, PathName(name): PathName) -> JsonResult<Pool> {
    Ok(Json(service.pool(name).await?))
}

/// Deletes a pool with all of its volumes and snapshots: removes its labels; its content is lost.
#[utoipa::path(
    delete, path = "/v1/pools/{pool}",
    params(
        ("pool" = String, Path, description = "name or UUID", example = "tank"),
        ("force" = Option<bool>, Query, description = "even if volumes are exported or members are missing")
    ),
    responses(
        (status = 200, body = Pool, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn delete_pool(
    State(service): Shared,
    PathName(name): PathName,
    query: Result<Query<Force>, QueryRejection>,
) -> JsonResult<Pool> {
    let force = read_query(query)?.force;
    run_change(service, |service| service.delete_pool(name, force)).await
}

/// Renames a pool.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/rename", request_body = RenamePool,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn rename_pool(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RenamePool>,
) -> JsonResult<Pool> {
    run_change(service, |service| service.rename_pool(name, body.name)).await
}

/// Starts a pool that waits for members; by force without the missing ones.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/start", request_body = StartPool,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool, description = "it is active"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it is active already, or members are missing")
    )
)]
pub(super) async fn start_pool(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<StartPool>,
) -> JsonResult<Pool> {
    run_change(service, |service| service.start_pool(name, body)).await
}

/// Adds disks and arrays to a pool, while its volumes are in use: one after the other, each durably before the next one
/// begins.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/members", request_body = AddMembers,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool, description = "all of them are members"),
        (status = 400, body = ErrorBody, description = "too small, too large, or blocks that are too large"),
        (status = 404, body = ErrorBody, description = "no such pool, or no such array"),
        (status = 409, body = ErrorBody, description = "in_use, would_destroy")
    )
)]
pub(super) async fn add_pool_members(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<AddMembers>,
) -> JsonResult<Pool> {
    run_change(service, |service| service.add_pool_members(name, body)).await
}

/// Reads and compares all tables of a pool, while its volumes are in use.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/check", request_body = Option<CheckPool>,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = PoolChecked, description = "what was found"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: a volume that may have had data in the given-up records is exported")
    )
)]
pub(super) async fn check_pool(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<CheckPool>,
) -> JsonResult<PoolChecked> {
    run_change(service, |service| service.check_pool(name, body)).await
}

/// Removes a member from a pool, while its volumes are in use: its data moves to the other members.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/remove", request_body = RemoveMember,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool, description = "it leaves; when it is not among the members any more that is done"),
        (status = 400, body = ErrorBody, description = "it is the only one"),
        (status = 404, body = ErrorBody, description = "no such pool, or no such member of it"),
        (status = 409, body = ErrorBody, description = "volumes are assigned to this member only")
    )
)]
pub(super) async fn remove_pool_member(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<RemoveMember>,
) -> JsonResult<Pool> {
    run_change(service, |service| service.remove_pool_member(name, body)).await
}
