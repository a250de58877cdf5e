//! The API over HTTP: reads requests, asks the control plane, writes answers. No decision is taken here.

mod imported;
mod nodes;
mod orphans;
mod pools;
mod replicas;
mod replicated;
mod upgrade;

use super::control::Control;
use super::describe::Everywhere;
use super::follow::Follow;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{
    DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State, rejection::BytesRejection,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use braid_api::limits::{API_BODY_BYTES_MAX, API_REQUEST_TIMEOUT_MS};
use braid_api::{
    Activity, AddDisk, AddExport, Array, ArrayList, Assemble, Assembled, CheckArray, CreateArray, DiskList, ErrorBody,
    ErrorDetail, Event, EventList, Export, ExportList, GrowArray, Growth, Job, JobList, Kind, Limits, MoveJournal,
    NameMember, RemoveArrayMember, RenameArray, RenameExport, ReplaceMember, SetExport, SetJob, Status, StopArray,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use utoipa::OpenApi;

/// Longest time in which the body of a request has to arrive.
const BODY_MAX: Duration = Duration::from_millis(API_REQUEST_TIMEOUT_MS);
/// After how long a client that was told to come back may do so, in seconds.
const RETRY_AFTER_S: &str = "1";
/// Between two signs of life to those who follow the events.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(15);

type Shared = State<Arc<Control>>;
type Answer<T> = Result<Json<T>, Refusal>;

/// Every route, in the order of `docs/api.md`.
pub fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/limits", get(limits))
        .route("/v1/disks", get(disks))
        .route("/v1/activity", get(activity))
        .route("/v1/arrays", get(arrays).post(create_array))
        .route("/v1/arrays/{array}", get(array).delete(delete_array))
        .route("/v1/arrays/{array}/rename", post(rename_array))
        .route("/v1/arrays/{array}/stop", post(stop_array))
        .route("/v1/arrays/{array}/fail", post(fail_member))
        .route("/v1/arrays/{array}/remove", post(remove_member))
        .route("/v1/arrays/{array}/disks", post(add_disk))
        .route("/v1/arrays/{array}/grow", post(grow_array))
        .route("/v1/arrays/{array}/replace", post(replace_member))
        .route("/v1/arrays/{array}/journal", post(move_journal))
        .route("/v1/arrays/{array}/check", post(check_array))
        .route("/v1/assemble", post(assemble))
        .route("/v1/import-md", post(imported::import_md))
        .route("/v1/pools", get(pools::pools).post(pools::create_pool))
        .route("/v1/pools/{pool}", get(pools::pool).delete(pools::delete_pool))
        .route("/v1/pools/{pool}/rename", post(pools::rename_pool))
        .route("/v1/pools/{pool}/start", post(pools::start_pool))
        .route("/v1/pools/{pool}/members", post(pools::add_pool_members))
        .route("/v1/pools/{pool}/check", post(pools::check_pool))
        .route("/v1/pools/{pool}/remove", post(pools::remove_pool_member))
        .route("/v1/volumes", get(pools::volumes).post(pools::create_volume))
        .route("/v1/volumes/{volume}", get(pools::volume).patch(pools::set_volume).delete(pools::delete_volume))
        .route("/v1/volumes/{volume}/policy", put(pools::set_policy).delete(pools::end_policy))
        .route("/v1/volumes/{volume}/rename", post(pools::rename_volume))
        .route("/v1/volumes/{volume}/resize", post(pools::resize_volume))
        .route("/v1/volumes/{volume}/move", post(pools::move_volume))
        .route("/v1/volumes/{volume}/compact", post(pools::compact_volume))
        .route("/v1/volumes/{volume}/flatten", post(pools::flatten_volume))
        .route("/v1/volumes/{volume}/rollback", post(pools::rollback_volume))
        .route("/v1/replicated", get(replicated::replicated_volumes).post(replicated::create_replicated))
        .route("/v1/replicated/{volume}", get(replicated::replicated_volume).delete(replicated::delete_replicated))
        .route("/v1/replicated/{volume}/attach", post(replicated::attach_replicated))
        .route("/v1/replicated/{volume}/forced", get(replicated::forced_opening))
        .route("/v1/replicated/{volume}/detach", post(replicated::detach_replicated))
        .route("/v1/replicated/{volume}/rollback", post(replicated::rollback_replicated))
        .route("/v1/replicated/{volume}/voters", post(replicated::add_voter))
        .route("/v1/replicated/{volume}/voters/{node}", axum::routing::delete(replicated::remove_voter))
        .route("/v1/replicated/{volume}/voters/{node}/rebuild", post(replicated::rebuild_voter))
        .route("/v1/snapshots", get(pools::snapshots).post(pools::create_snapshots))
        .route(
            "/v1/snapshots/{snapshot}",
            get(pools::snapshot).patch(pools::change_snapshot).delete(pools::delete_snapshot),
        )
        .route("/v1/snapshots/{snapshot}/diff", get(pools::diff))
        .route("/v1/snapshots/{snapshot}/rename", post(pools::rename_snapshot))
        .route("/v1/snapshots/{snapshot}/clone", post(pools::clone_snapshot))
        .route("/v1/replicas", get(replicas::replicas).post(replicas::create_replica))
        .route("/v1/replicas/{replica}", get(replicas::replica).delete(replicas::delete_replica))
        .route("/v1/replicas/{replica}/ask", post(replicas::ask_replica))
        .route("/v1/replicas/{replica}/snapshots", get(replicas::replica_snapshots).post(replicas::change_replica))
        .route("/v1/jobs", get(jobs))
        .route("/v1/jobs/{job}", get(job).patch(set_job).delete(cancel_job))
        .route("/v1/exports", get(exports).post(add_export))
        .route("/v1/exports/{export}", get(export).patch(set_export).delete(remove_export))
        .route("/v1/exports/{export}/rename", post(rename_export))
        .route("/v1/orphans", post(orphans::remove_orphans))
        .route("/v1/nodes", get(nodes::nodes))
        .route("/v1/nodes/{node}", get(nodes::node).delete(nodes::remove_node))
        .route("/v1/nodes/{node}/renew", post(nodes::renew_node))
        .route("/v1/cluster/volumes", get(replicated::cluster_volumes))
        .route("/v1/cluster/init", post(nodes::init_cluster))
        .route("/v1/cluster/invite", post(nodes::invite))
        .route("/v1/cluster/join", post(nodes::join_cluster))
        .route("/v1/cluster/admit", post(nodes::admit))
        .route("/v1/cluster/table", post(nodes::exchange))
        .route("/v1/upgrade", post(upgrade::upgrade))
        .route("/v1/events", get(events))
        .route("/v1/openapi.json", get(openapi))
        .route("/metrics", get(metrics))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::map_response_with_state(Arc::clone(&control), unknown_while_starting))
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .with_state(control)
}

/// The description of the API that `/v1/openapi.json` serves.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Braid",
        description = "Mixed disks become fast block volumes. Errors of every path have the shape of ErrorBody.",
        license(name = "Apache-2.0")
    ),
    paths(
        status,
        limits,
        disks,
        activity,
        arrays,
        create_array,
        array,
        delete_array,
        rename_array,
        stop_array,
        fail_member,
        remove_member,
        add_disk,
        grow_array,
        replace_member,
        move_journal,
        check_array,
        assemble,
        imported::import_md,
        pools::pools,
        pools::create_pool,
        pools::pool,
        pools::delete_pool,
        pools::rename_pool,
        pools::start_pool,
        pools::add_pool_members,
        pools::check_pool,
        pools::remove_pool_member,
        pools::volumes,
        pools::create_volume,
        pools::volume,
        pools::delete_volume,
        pools::set_volume,
        pools::set_policy,
        pools::end_policy,
        pools::rename_volume,
        pools::resize_volume,
        pools::move_volume,
        pools::compact_volume,
        pools::flatten_volume,
        pools::rollback_volume,
        replicated::cluster_volumes,
        replicated::replicated_volumes,
        replicated::create_replicated,
        replicated::replicated_volume,
        replicated::attach_replicated,
        replicated::forced_opening,
        replicated::detach_replicated,
        replicated::rollback_replicated,
        replicated::add_voter,
        replicated::remove_voter,
        replicated::rebuild_voter,
        replicated::delete_replicated,
        pools::snapshots,
        pools::create_snapshots,
        pools::snapshot,
        pools::change_snapshot,
        pools::delete_snapshot,
        pools::diff,
        pools::rename_snapshot,
        pools::clone_snapshot,
        replicas::replicas,
        replicas::create_replica,
        replicas::replica,
        replicas::delete_replica,
        replicas::ask_replica,
        replicas::replica_snapshots,
        replicas::change_replica,
        jobs,
        job,
        set_job,
        cancel_job,
        exports,
        add_export,
        export,
        set_export,
        remove_export,
        rename_export,
        nodes::nodes,
        nodes::node,
        nodes::remove_node,
        nodes::renew_node,
        nodes::init_cluster,
        nodes::invite,
        nodes::join_cluster,
        nodes::admit,
        nodes::exchange,
        orphans::remove_orphans,
        upgrade::upgrade,
        events,
        metrics
    ),
    components(schemas(ErrorBody, Event)),
    modifiers(&Everywhere)
)]
pub struct Description;

/// An answer as JSON.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    let text = serde_json::to_vec(value).expect("the API's types have string keys and no failing fields");
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// An error in the shape of the API, with its HTTP status.
pub struct Refusal(ErrorDetail, Option<StatusCode>);

impl From<ErrorDetail> for Refusal {
    fn from(detail: ErrorDetail) -> Refusal {
        Refusal(detail, None)
    }
}

impl Refusal {
    /// The body is, or says that it will be, longer than what is read.
    fn too_long() -> Refusal {
        let message = format!("the body is longer than {API_BODY_BYTES_MAX} bytes");
        Refusal(ErrorDetail::new(Kind::InvalidArgument, message), Some(StatusCode::PAYLOAD_TOO_LARGE))
    }
}

/// In a request: to be called when all of it has arrived. Until then its client keeps no place from others.
#[derive(Clone)]
pub struct Arrived(pub Arc<dyn Fn() + Send + Sync>);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let of_kind = || StatusCode::from_u16(self.0.kind.http_status());
        let status = self.1.map_or_else(of_kind, Ok).expect("kinds have statuses between 400 and 599");
        let mut response = json(status, &ErrorBody { error: self.0.clone() });
        if self.0.kind == Kind::NotFound {
            response.extensions_mut().insert(Missing(self.0));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        response
    }
}

/// Marks a response that says that an object does not exist.
#[derive(Clone)]
struct Missing(ErrorDetail);

/// Replaces "there is no such object" by "not known yet" while disks are still being found: the object may be on one of
/// them. This is the one place that does so, for every path and every kind of object.
async fn unknown_while_starting(State(control): Shared, mut response: Response) -> Response {
    match response.extensions_mut().remove::<Missing>() {
        Some(Missing(missing)) => match control.unknown_yet(missing) {
            Some(unknown) => Refusal::from(unknown).into_response(),
            None => response,
        },
        None => response,
    }
}

/// The body of a request as JSON, whatever its content type says.
pub struct Ask<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Ask<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Ask<T>, Refusal> {
        let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|len| len > API_BODY_BYTES_MAX as u64) {
            return Err(Refusal::too_long());
        }
        let arrived = request.extensions().get::<Arrived>().cloned();
        let body = tokio::time::timeout(BODY_MAX, Bytes::from_request(request, state)).await.map_err(|_| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the body did not arrive within {} s", BODY_MAX.as_secs()))
        })?;
        let bytes = body.map_err(|rejection: BytesRejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Refusal::too_long()
            } else {
                ErrorDetail::new(Kind::InvalidArgument, format!("the body cannot be read: {rejection}")).into()
            }
        })?;
        if let Some(Arrived(tell)) = arrived {
            tell();
        }
        // No body at all is an empty object: requests whose fields all have defaults need none.
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let refused = |why: &dyn std::fmt::Display| {
            Refusal::from(
                ErrorDetail::new(Kind::InvalidArgument, format!("the body is not what this path takes: {why}"))
                    .remedy("see /v1/openapi.json or docs/api.md for its fields"),
            )
        };
        // serde would take a list for the fields in their order, and an empty one for defaults.
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(refused(&"it is a list, and not an object"));
        }
        serde_json::from_slice(bytes).map(Ask).map_err(|error| refused(&error))
    }
}

/// The name or UUID in the path of a request.
struct Named(String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named, Refusal> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        name.map(|Path(name)| Named(name)).map_err(|error| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the path cannot be read: {error}"))
                .remedy("name the array or export by its name or UUID, for example /v1/arrays/fast")
                .into()
        })
    }
}

/// Two names in the path of a request.
struct NamedTwice(String, String);

impl<S: Send + Sync> FromRequestParts<S> for NamedTwice {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<NamedTwice, Refusal> {
        let names = Path::<(String, String)>::from_request_parts(parts, state).await;
        names.map(|Path((first, second))| NamedTwice(first, second)).map_err(|error| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the path cannot be read: {error}"))
                .remedy("docs/api.md shows every path")
                .into()
        })
    }
}

/// Does a change to its end, also when the client goes away in the middle: half of a change helps nobody.
async fn to_the_end<T: Send + 'static, F>(control: Arc<Control>, change: impl FnOnce(Arc<Control>) -> F) -> Answer<T>
where
    F: Future<Output = Result<T, ErrorDetail>> + Send + 'static,
{
    let under_way = control.begin_change();
    let change = change(control);
    let change = async move {
        let done = change.await;
        drop(under_way);
        done
    };
    match tokio::spawn(change).await {
        Ok(done) => Ok(Json(done?)),
        Err(error) => Err(ErrorDetail::new(Kind::Internal, format!("the change ended unexpectedly: {error}"))
            .remedy("this is a mistake in Braid; the daemon's log says where")
            .into()),
    }
}

/// How the daemon does.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn status(State(control): Shared) -> Json<Status> {
    Json(control.status())
}

/// The limits of this build.
#[utoipa::path(get, path = "/v1/limits", responses((status = 200, body = Limits)))]
async fn limits() -> Json<Limits> {
    Json(Limits::current())
}

/// The disks that the daemon has open.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = DiskList)))]
async fn disks(State(control): Shared) -> Json<DiskList> {
    Json(control.disks())
}

/// What disks and exports have done up to now, to compare with a moment ago.
#[utoipa::path(get, path = "/v1/activity", responses((status = 200, body = Activity)))]
async fn activity(State(control): Shared) -> Json<Activity> {
    Json(control.activity())
}

/// All arrays.
#[utoipa::path(get, path = "/v1/arrays", responses((status = 200, body = ArrayList)))]
async fn arrays(State(control): Shared) -> Json<ArrayList> {
    Json(control.arrays())
}

/// Makes an array of disks.
#[utoipa::path(
    post, path = "/v1/arrays", request_body = CreateArray,
    responses(
        (status = 200, body = Array),
        (status = 409, body = ErrorBody, description = "exists, in_use, would_destroy")
    )
)]
async fn create_array(State(control): Shared, Ask(ask): Ask<CreateArray>) -> Answer<Array> {
    to_the_end(control, |control| async move { control.create_array(ask).await }).await
}

/// One array.
#[utoipa::path(
    get, path = "/v1/arrays/{array}", params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 404, body = ErrorBody))
)]
async fn array(State(control): Shared, Named(name): Named) -> Answer<Array> {
    Ok(Json(control.array(&name)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Force {
    #[serde(default)]
    force: bool,
}

/// Deletes an array: its labels are removed, its content is lost.
#[utoipa::path(
    delete, path = "/v1/arrays/{array}",
    params(
        ("array" = String, Path, description = "name or UUID", example = "fast"),
        ("force" = Option<bool>, Query, description = "although it is exported: its exports are removed")
    ),
    responses((status = 200, body = Array, description = "as it was"), (status = 409, body = ErrorBody))
)]
async fn delete_array(
    State(control): Shared,
    Named(name): Named,
    query: Result<Query<Force>, axum::extract::rejection::QueryRejection>,
) -> Answer<Array> {
    let force = read_query(query)?.force;
    to_the_end(control, |control| async move { control.delete_array(&name, force).await }).await
}

/// Gives an array another name.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/rename", request_body = RenameArray,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 409, body = ErrorBody))
)]
async fn rename_array(State(control): Shared, Named(name): Named, Ask(ask): Ask<RenameArray>) -> Answer<Array> {
    to_the_end(control, |control| async move { control.rename_array(&name, &ask.name).await }).await
}

/// Stops an array: its disks become free.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/stop", request_body = Option<StopArray>,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 409, body = ErrorBody))
)]
async fn stop_array(State(control): Shared, Named(name): Named, Ask(ask): Ask<StopArray>) -> Answer<Array> {
    to_the_end(control, |control| async move { control.stop_array(&name, ask.force).await }).await
}

/// Leaves a member of a redundant array out, as if it had failed.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/fail", request_body = NameMember,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
async fn fail_member(State(control): Shared, Named(name): Named, Ask(ask): Ask<NameMember>) -> Answer<Array> {
    to_the_end(control, |control| async move { control.fail_member(&name, &ask.member).await }).await
}

/// Takes a member that is out, or a spare, off the table of a redundant array.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/remove", request_body = RemoveArrayMember,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Array), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
async fn remove_member(State(control): Shared, Named(name): Named, Ask(ask): Ask<RemoveArrayMember>) -> Answer<Array> {
    to_the_end(control, |control| async move { control.remove_member(&name, ask).await }).await
}

/// Gives a disk to a redundant array: a member that is out returns, any other takes a vacant role or becomes a spare.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/disks", request_body = AddDisk,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Array, description = "it is a spare"),
        (status = 202, body = Array, description = "a job fills it: the member names it, and the header Location"),
        (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
async fn add_disk(State(control): Shared, Named(name): Named, Ask(ask): Ask<AddDisk>) -> Result<Response, Refusal> {
    let done = to_the_end(control, |control| async move { control.add_disk(&name, ask).await }).await?;
    let Json((array, job)) = done;
    Ok(match job {
        Some(job) => begun(&job, &array),
        None => Json(array).into_response(),
    })
}

/// Takes up what the array's disks have gained, and at concat and raid0 further disks, while it serves.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/grow", request_body = Option<GrowArray>,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Growth),
        (status = 400, body = ErrorBody, description = "nothing would be gained, or not so"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
async fn grow_array(State(control): Shared, Named(name): Named, Ask(ask): Ask<GrowArray>) -> Answer<Growth> {
    to_the_end(control, |control| async move { control.grow_array(&name, ask).await }).await
}

/// Lets a disk take the place of a member of a redundant array, which serves until the disk holds everything.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/replace", request_body = ReplaceMember,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 202, body = Array, description = "a job fills it: the member names it, and the header Location"),
        (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)
    )
)]
async fn replace_member(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<ReplaceMember>,
) -> Result<Response, Refusal> {
    let done = to_the_end(control, |control| async move { control.replace_member(&name, ask).await }).await?;
    let Json((array, job)) = done;
    Ok(begun(&job.unwrap_or_default(), &array))
}

/// Puts the journal of a raid5 or raid6 on a disk, or on its members, while it serves.
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
async fn move_journal(State(control): Shared, Named(name): Named, Ask(ask): Ask<MoveJournal>) -> Answer<Array> {
    to_the_end(control, |control| async move { control.move_journal(&name, ask).await }).await
}

/// Compares all copies of everything that was ever written, or rows with their parity; with `repair` what differs is made right.
#[utoipa::path(
    post, path = "/v1/arrays/{array}/check", request_body = Option<CheckArray>,
    params(("array" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 202, body = Job, description = "it has begun"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "in_use: it is gone over already")
    )
)]
async fn check_array(
    State(control): Shared,
    Named(name): Named,
    Ask(ask): Ask<CheckArray>,
) -> Result<Response, Refusal> {
    let Json(job) = to_the_end(control, |control| async move { control.check_array(&name, ask).await }).await?;
    Ok(begun(&job.name, &job))
}

/// The answer to a change that has begun and goes on as a job.
fn begun(job: &str, body: &impl Serialize) -> Response {
    let place = [(header::LOCATION, format!("/v1/jobs/{job}"))];
    (place, json(StatusCode::ACCEPTED, body)).into_response()
}

/// Looks for members, and starts what is complete.
#[utoipa::path(
    post, path = "/v1/assemble", request_body = Option<Assemble>,
    responses((status = 200, body = Assembled), (status = 404, body = ErrorBody))
)]
async fn assemble(State(control): Shared, Ask(ask): Ask<Assemble>) -> Answer<Assembled> {
    to_the_end(control, |control| async move { control.assemble(ask).await }).await
}

/// The jobs that go on, and those that have ended lately.
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = JobList)))]
async fn jobs(State(control): Shared) -> Json<JobList> {
    Json(control.jobs())
}

/// One job.
#[utoipa::path(
    get, path = "/v1/jobs/{job}", params(("job" = String, Path, description = "array and number", example = "data:1")),
    responses((status = 200, body = Job), (status = 404, body = ErrorBody))
)]
async fn job(State(control): Shared, Named(name): Named) -> Answer<Job> {
    Ok(Json(control.job(&name)?))
}

/// Lets a job wait or go on, or gives it another limit.
#[utoipa::path(
    patch, path = "/v1/jobs/{job}", request_body = SetJob,
    params(("job" = String, Path, description = "array and number", example = "data:1")),
    responses((status = 200, body = Job), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
async fn set_job(State(control): Shared, Named(name): Named, Ask(ask): Ask<SetJob>) -> Answer<Job> {
    to_the_end(control, |control| async move { control.set_job(&name, ask).await }).await
}

/// Gives a job up. The member that a rebuild was filling is left out again.
#[utoipa::path(
    delete, path = "/v1/jobs/{job}",
    params(("job" = String, Path, description = "array and number", example = "data:1")),
    responses((status = 200, body = Job, description = "as it was"), (status = 404, body = ErrorBody))
)]
async fn cancel_job(State(control): Shared, Named(name): Named) -> Answer<Job> {
    to_the_end(control, |control| async move { control.cancel_job(&name).await }).await
}

/// All exports.
#[utoipa::path(get, path = "/v1/exports", responses((status = 200, body = ExportList)))]
async fn exports(State(control): Shared) -> Json<ExportList> {
    Json(control.exports())
}

/// Lets clients use an array.
#[utoipa::path(
    post, path = "/v1/exports", request_body = AddExport,
    responses((status = 200, body = Export), (status = 409, body = ErrorBody))
)]
async fn add_export(State(control): Shared, Ask(ask): Ask<AddExport>) -> Answer<Export> {
    to_the_end(control, |control| async move { control.add_export(ask).await }).await
}

/// One export.
#[utoipa::path(
    get, path = "/v1/exports/{export}", params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Export), (status = 404, body = ErrorBody))
)]
async fn export(State(control): Shared, Named(name): Named) -> Answer<Export> {
    Ok(Json(control.export(&name)?))
}

/// Changes what an export's clients may take; those who may stay, do.
#[utoipa::path(
    patch, path = "/v1/exports/{export}", request_body = SetExport,
    params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Export), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
async fn set_export(State(control): Shared, Named(name): Named, Ask(ask): Ask<SetExport>) -> Answer<Export> {
    to_the_end(control, |control| async move { control.set_export(&name, ask).await }).await
}

/// Takes an export away; its clients are disconnected.
#[utoipa::path(
    delete, path = "/v1/exports/{export}", params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses((status = 200, body = Export, description = "as it was"), (status = 404, body = ErrorBody))
)]
async fn remove_export(State(control): Shared, Named(name): Named) -> Answer<Export> {
    to_the_end(control, |control| async move { control.remove_export(&name).await }).await
}

/// Gives an export another name.
#[utoipa::path(
    post, path = "/v1/exports/{export}/rename", request_body = RenameExport,
    params(("export" = String, Path, description = "name or UUID", example = "fast")),
    responses(
        (status = 200, body = Export),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists, in_use")
    )
)]
async fn rename_export(State(control): Shared, Named(name): Named, Ask(ask): Ask<RenameExport>) -> Answer<Export> {
    to_the_end(control, |control| async move { control.rename_export(&name, &ask).await }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    follow: bool,
}

/// What happened; with `follow=true` as server-sent events that go on.
#[utoipa::path(
    get, path = "/v1/events",
    params(
        ("after" = Option<u64>, Query, description = "only events with higher numbers"),
        ("follow" = Option<bool>, Query, description = "server-sent events (text/event-stream), data is an Event")
    ),
    responses(
        (status = 200, description = "a list; with follow=true a stream of text/event-stream", body = EventList),
        (status = 429, body = ErrorBody, description = "too many follow already")
    )
)]
async fn events(
    State(control): Shared,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refusal> {
    let query = read_query(query)?;
    if !query.follow {
        return Ok(Json(control.events().after(query.after)).into_response());
    }
    // A reader whose stream broke says by itself where it was.
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.trim().parse().ok());
    let stream = Follow::new(Arc::clone(control.events()), control.stopping(), resumed.unwrap_or(query.after))?;
    Ok(Sse::new(stream.into_stream()).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE_EVERY)).into_response())
}

fn read_query<T>(query: Result<Query<T>, axum::extract::rejection::QueryRejection>) -> Result<T, Refusal> {
    query.map(|Query(query)| query).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("the query is not what this path takes: {error}"))
            .remedy("see /v1/openapi.json or docs/api.md for its fields")
            .into()
    })
}

async fn openapi() -> Response {
    json(StatusCode::OK, &Description::openapi())
}

/// Counters and latency histograms, in the text format of Prometheus, or as OpenMetrics for those who accept it.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "as text", content_type = "text/plain", body = String)))]
async fn metrics(State(control): Shared, headers: HeaderMap) -> Response {
    let text = super::metrics::render(&control);
    let accepts =
        |accept: &header::HeaderValue| accept.to_str().is_ok_and(|a| a.contains("application/openmetrics-text"));
    if headers.get_all(header::ACCEPT).iter().any(accepts) {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return ([(header::CONTENT_TYPE, kind)], text).into_response();
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], super::metrics::classic(&text)).into_response()
}

async fn no_such_path(request: Request) -> Refusal {
    ErrorDetail::new(Kind::NotFound, format!("there is no path {}", request.uri().path()))
        .with("path", request.uri().path())
        .remedy("see /v1/openapi.json or docs/api.md for those there are")
        .into()
}

async fn no_such_method(request: Request) -> Response {
    let detail = ErrorDetail::new(
        Kind::InvalidArgument,
        format!("{} cannot be done with {}", request.method(), request.uri().path()),
    )
    .remedy("see /v1/openapi.json or docs/api.md for what can");
    json(StatusCode::METHOD_NOT_ALLOWED, &ErrorBody { error: detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::{ErrorBody, names};

    #[test]
    fn docs_api_lists_every_path() {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md")).expect("it is there");
        let description = serde_json::to_value(Description::openapi()).expect("it is JSON");
        let paths = description["paths"].as_object().expect("paths are an object");
        assert!(paths.len() >= 10);
        for (path, methods) in paths {
            for method in methods.as_object().expect("methods are an object").keys() {
                let row = format!("| `{} {path}", method.to_uppercase());
                assert!(text.contains(&row), "docs/api.md has no row {row}");
            }
        }
    }

    /// Every event that the source adds is in the document's table.
    #[test]
    fn docs_api_lists_every_event() {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md")).expect("it is there");
        let sources = [
            include_str!("api/mod.rs"),
            include_str!("control/assemble.rs"),
            include_str!("control/change.rs"),
            include_str!("control/create.rs"),
            include_str!("control/exports.rs"),
            include_str!("control/keeping/mod.rs"),
            include_str!("control/keeping/journal.rs"),
            include_str!("control/keeping/members.rs"),
            include_str!("control/keeping/replace.rs"),
            include_str!("control/keeping/notes.rs"),
            include_str!("encryption.rs"),
            include_str!("control/mod.rs"),
            include_str!("control/watch.rs"),
            include_str!("nodes/join.rs"),
            include_str!("nodes/tend.rs"),
            include_str!("upgrade/mod.rs"),
            include_str!("control/pools/close.rs"),
            include_str!("control/pools/create.rs"),
            include_str!("control/pools/find.rs"),
            include_str!("control/pools/snapshots.rs"),
            include_str!("control/pools/tend.rs"),
            include_str!("control/pools/volumes.rs"),
            include_str!("control/replicas/create.rs"),
            include_str!("control/replicas/open.rs"),
        ];
        let mut kinds = 0;
        for source in sources {
            // Nodes tell by two short ways of their own.
            let source =
                source.replace("self.tell(", "self.events().info(").replace("self.warn(", "self.events().warn(");
            for call in source.split("self.events()").chain(source.split("self.events.")).skip(1) {
                let head = call.split(';').next().unwrap_or_default();
                let Some(kind) = head.split('"').nth(1) else { continue };
                if head.trim_start_matches('.').starts_with(['i', 'w', 'e']) && kind.contains('_') {
                    kinds += 1;
                    assert!(text.contains(&format!("`{kind}`")), "docs/api.md does not list the event {kind}");
                }
            }
        }
        assert!(kinds >= 10, "only {kinds} events were found in the source");
    }

    #[tokio::test]
    async fn bodies_are_judged() {
        async fn read(body: impl Into<Body>) -> Result<CreateArray, ErrorDetail> {
            let request = Request::new(body.into());
            Ask::from_request(request, &()).await.map(|Ask(ask)| ask).map_err(|Refusal(error, _)| error)
        }
        let ask = read(r#"{"name":"a","level":"raid0","disks":["mem:1G"]}"#).await.expect("a right body");
        assert!(!ask.force && ask.chunk_bytes.is_none());
        for wrong in ["", "{", "[]", r#"{"name":"a","level":"raid0","disks":[],"sise":1}"#, "\u{0}"] {
            let error = read(wrong).await.expect_err(wrong);
            assert_eq!(error.kind, Kind::InvalidArgument, "{wrong}");
        }
        assert!(names::check_name(&ask.name).is_ok());
        // Where every field may be absent, too.
        let request = Request::new(Body::from(" []"));
        assert!(Ask::<braid_api::RemoveOrphans>::from_request(request, &()).await.is_err());
    }

    #[test]
    fn errors_have_the_one_shape() {
        let response = Refusal::from(ErrorDetail::new(Kind::Incomplete, "m")).into_response();
        assert_eq!(response.status().as_u16(), 409);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let body = serde_json::to_value(ErrorBody { error: ErrorDetail::new(Kind::Incomplete, "m") }).expect("JSON");
        assert_eq!(body["error"]["kind"], "incomplete");
    }
}
