//! Paths of pools, volumes and snapshots. Names of two parts stand in one segment of a path: the slash is written `%2F`.

use super::{Answer, Ask, Force, Json, Named, Shared, read_query, to_the_end};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use braid_api::{
    AddMembers, ChangeSnapshot, CheckPool, CloneSnapshot, CreatePool, CreateSnapshots, CreateVolume, ErrorBody,
    FlattenVolume, MoveVolume, Pool, PoolChecked, PoolList, RemoveMember, RenamePool, RenameVolume, ResizeVolume,
    RollbackVolume, SetVolume, Snapshot, SnapshotDiff, SnapshotList, SnapshotPolicy, StartPool, Volume, VolumeList,
};
use serde::Deserialize;

/// All pools.
#[utoipa::path(get, path = "/v1/pools", responses((status = 200, body = PoolList)))]
pub(super) async fn pools(State(control): Shared) -> Json<PoolList> {
    Json(control.pools().await)
}

/// Makes a pool of disks and arrays.
#[utoipa::path(
    post, path = "/v1/pools", request_body = CreatePool,
    responses(
        (status = 200, body = Pool),
        (status = 409, body = ErrorBody, description = "exists, in_use, would_destroy")
    )
)]
pub(super) async fn create_pool(State(control): Shared, Ask(ask): Ask<CreatePool>) -> Answer<Pool> {
    to_the_end(control, |control| async move { control.create_pool(ask).await }).await
}

/// One pool, with what each of its volumes and snapshots has: all of its records are looked at for that.
#[utoipa::path(
    get, path = "/v1/pools/{pool}", params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses((status = 200, body = Pool), (status = 404, body = ErrorBody))
)]
pub(super) async fn pool(State(control): Shared, Named(name): Named) -> Answer<Pool> {
    Ok(Json(control.pool_counted(&name).await?))
}

/// Deletes a pool with all of its volumes and snapshots: its labels are removed, its content is lost.
#[utoipa::path(
    delete, path = "/v1/pools/{pool}",
    params(
        ("pool" = String, Path, description = "name or UUID", example = "tank"),
        ("force" = Option<bool>, Query, description = "although volumes are exported, or members are missing")
    ),
    responses(
        (status = 200, body = Pool, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn delete_pool(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, QueryRejection>,
) -> Answer<Pool> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.delete_pool(&name, force).await }).await
}

/// Gives a pool another name.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/rename", request_body = RenamePool,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
pub(super) async fn rename_pool(State(control): Shared, Named(name): Named, Ask(ask): Ask<RenamePool>) -> Answer<Pool> {
    to_the_end(control, |control| async move { control.rename_pool(&name, &ask.name).await }).await
}

/// Starts a pool that waits for members; by force without those that are not there.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/start", request_body = StartPool,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool, description = "it is active"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it is active already, or members are missing")
    )
)]
pub(super) async fn start_pool(State(control): Shared, Named(name): Named, Ask(ask): Ask<StartPool>) -> Answer<Pool> {
    to_the_end(control, |control| async move { control.start_pool(&name, ask).await }).await
}

/// Adds disks and arrays to a pool, while its volumes are used: one after the other, each of them for good when the next one begins.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<AddMembers>,
) -> Answer<Pool> {
    to_the_end(control, |control| async move { control.add_pool_members(&name, ask).await }).await
}

/// Reads and compares all tables of a pool, while its volumes are used.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/check", request_body = Option<CheckPool>,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = PoolChecked, description = "what was found"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: who may have had something in what is to be given up is exported")
    )
)]
pub(super) async fn check_pool(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<CheckPool>,
) -> Answer<PoolChecked> {
    to_the_end(control, |control| async move { control.check_pool(&name, ask).await }).await
}

/// Removes a member from a pool, while its volumes are used: what it has moves to the others.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/remove", request_body = RemoveMember,
    params(("pool" = String, Path, description = "name or UUID", example = "tank")),
    responses(
        (status = 200, body = Pool, description = "it leaves; when it is not among the members any more that is done"),
        (status = 400, body = ErrorBody, description = "it is the only one"),
        (status = 404, body = ErrorBody, description = "no such pool, or no such member of it"),
        (status = 409, body = ErrorBody, description = "volumes are placed on it alone")
    )
)]
pub(super) async fn remove_pool_member(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<RemoveMember>,
) -> Answer<Pool> {
    to_the_end(control, |control| async move { control.remove_pool_member(&name, ask).await }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InPool {
    pool: Option<String>,
}

/// All volumes, or those of one pool.
#[utoipa::path(
    get, path = "/v1/volumes", params(("pool" = Option<String>, Query, description = "only those of this pool")),
    responses((status = 200, body = VolumeList), (status = 404, body = ErrorBody))
)]
pub(super) async fn volumes(
    State(control): Shared,
    query: Result<Query<InPool>, QueryRejection>,
) -> Answer<VolumeList> {
    let pool = read_query(query)?.pool;
    Ok(Json(control.volumes(pool.as_deref()).await?))
}

/// Makes a volume.
#[utoipa::path(
    post, path = "/v1/volumes", request_body = CreateVolume,
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists")
    )
)]
pub(super) async fn create_volume(State(control): Shared, Ask(ask): Ask<CreateVolume>) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.create_volume(ask).await }).await
}

/// One volume.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}",
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 404, body = ErrorBody))
)]
pub(super) async fn volume(State(control): Shared, Named(name): Named) -> Answer<Volume> {
    Ok(Json(control.volume(&name).await?))
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
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, QueryRejection>,
) -> Answer<Volume> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.delete_volume(&name, force).await }).await
}

/// Changes what a volume's exports may take together, while they are used.
#[utoipa::path(
    patch, path = "/v1/volumes/{volume}", request_body = SetVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 404, body = ErrorBody))
)]
pub(super) async fn set_volume(State(control): Shared, Named(name): Named, Ask(ask): Ask<SetVolume>) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.set_volume(&name, ask).await }).await
}

/// Lets snapshots of a volume be taken by themselves.
#[utoipa::path(
    put, path = "/v1/volumes/{volume}/policy", request_body = SnapshotPolicy,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(super) async fn set_policy(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<SnapshotPolicy>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.set_policy(&name, Some(ask)).await }).await
}

/// Lets snapshots of a volume be taken by themselves no more. Those that there are stay.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}/policy",
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses((status = 200, body = Volume), (status = 404, body = ErrorBody))
)]
pub(super) async fn end_policy(State(control): Shared, Named(name): Named) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.set_policy(&name, None).await }).await
}

/// Gives a volume another name.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<RenameVolume>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.rename_volume(&name, &ask.name).await }).await
}

/// Gives a volume another size, while it is used.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<ResizeVolume>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.resize_volume(&name, ask).await }).await
}

/// Lets a volume have its blocks, and those of its snapshots, on other members of its pool, while it is used.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/move", request_body = MoveVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume, description = "it moves; `moves` says when that has ended"),
        (status = 404, body = ErrorBody, description = "no such volume, or no such member of its pool")
    )
)]
pub(super) async fn move_volume(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<MoveVolume>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.move_volume(&name, ask).await }).await
}

/// Lets what a volume and its snapshots have scattered be put together, while they are used.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/compact",
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume, description = "it has begun; `compacts` says when that has ended"),
        (status = 404, body = ErrorBody)
    )
)]
pub(super) async fn compact_volume(State(control): Shared, Named(name): Named) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.compact_volume(&name).await }).await
}

/// Lets a volume and its snapshots get blocks of their own in place of what they see of others, while they are used: of a clone, what it
/// began as can be deleted then, and gives its space back.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<FlattenVolume>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.flatten_volume(&name, ask).await }).await
}

/// Makes a volume be as a snapshot is; what it had since is lost.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/rollback", request_body = RollbackVolume,
    params(("volume" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db")),
    responses(
        (status = 200, body = Volume),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: it is exported")
    )
)]
pub(super) async fn rollback_volume(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<RollbackVolume>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.rollback_volume(&name, ask).await }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfVolume {
    of: Option<String>,
}

/// All snapshots, or those of one pool or volume.
#[utoipa::path(
    get, path = "/v1/snapshots", params(("of" = Option<String>, Query, description = "only those of this pool or volume")),
    responses((status = 200, body = SnapshotList), (status = 404, body = ErrorBody))
)]
pub(super) async fn snapshots(
    State(control): Shared,
    query: Result<Query<OfVolume>, QueryRejection>,
) -> Answer<SnapshotList> {
    let of = read_query(query)?.of;
    Ok(Json(control.snapshots(of.as_deref()).await?))
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
pub(super) async fn create_snapshots(State(control): Shared, Ask(ask): Ask<CreateSnapshots>) -> Answer<SnapshotList> {
    to_the_end(control, |control| async move { control.create_snapshots(ask).await }).await
}

/// One snapshot.
#[utoipa::path(
    get, path = "/v1/snapshots/{snapshot}",
    params(("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday")),
    responses((status = 200, body = Snapshot), (status = 404, body = ErrorBody))
)]
pub(super) async fn snapshot(State(control): Shared, Named(name): Named) -> Answer<Snapshot> {
    Ok(Json(control.snapshot(&name).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffQuery {
    to: Option<String>,
    #[serde(default)]
    offset_bytes: u64,
}

/// In what a volume or snapshot differs from a snapshot: up to 65,536 ranges at a time.
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
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<DiffQuery>, QueryRejection>,
) -> Answer<SnapshotDiff> {
    let DiffQuery { to, offset_bytes } = read_query(query)?;
    Ok(Json(control.diff(&name, to.as_deref(), offset_bytes).await?))
}

/// Deletes a snapshot, whatever was cloned from it.
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
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, QueryRejection>,
) -> Answer<Snapshot> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.delete_snapshot(&name, force).await }).await
}

/// Notes what the client that took a snapshot knows of the file system on it.
#[utoipa::path(
    patch, path = "/v1/snapshots/{snapshot}", request_body = ChangeSnapshot,
    params(("snapshot" = String, Path, description = "name, its slash written %2F, or UUID", example = "tank/db@monday")),
    responses((status = 200, body = Snapshot), (status = 404, body = ErrorBody))
)]
pub(super) async fn change_snapshot(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<ChangeSnapshot>,
) -> Answer<Snapshot> {
    to_the_end(control, |control| async move { control.change_snapshot(&name, ask).await }).await
}

/// Gives a snapshot another name.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<RenameVolume>,
) -> Answer<Snapshot> {
    to_the_end(control, |control| async move { control.rename_snapshot(&name, &ask.name).await }).await
}

/// Makes a volume that begins as a snapshot is.
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
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<CloneSnapshot>,
) -> Answer<Volume> {
    to_the_end(control, |control| async move { control.clone_snapshot(&name, ask).await }).await
}
