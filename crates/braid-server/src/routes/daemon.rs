//! The daemon as a whole: its status, disks, events, metrics and probes, and its upgrade.

use super::Shared;
use crate::access::Caller;
use crate::follow::{EventFollower, EventLog};
use crate::http::{ErrorResponse, Json, JsonBody, JsonResult, read_query};
use crate::lifecycle::Reply;
use crate::metrics::{MetricsSnapshot, classic, render};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use braid_api::{Activity, DiskList, ErrorBody, ErrorDetail, EventList, Kind, Limits, Status, Upgrade, Upgrading};
use braid_tasks as tasks;
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Interval of keep-alives to followers of the events.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Operations on the daemon as a whole.
pub trait DaemonService: Send + Sync + 'static {
    /// Returns the status of the daemon.
    fn status(&self) -> Status;

    /// Returns the disks that the daemon has open.
    fn disks(&self) -> DiskList;

    /// Returns the counters of disks and exports since the start.
    fn activity(&self) -> Activity;

    /// Makes the daemon become another program in its own process, once that has shown that it would start.
    ///
    /// # Errors
    /// The program would not start here; another upgrade is in progress; a change in progress does not end in time. The
    /// daemon then serves as before.
    fn upgrade(self: Arc<Self>, request: Upgrade) -> Reply<Upgrading>;

    /// Returns the events.
    fn events(&self) -> Arc<dyn EventLog>;

    /// Returns what metrics show now. Causes no I/O.
    fn metrics(&self) -> MetricsSnapshot;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    follow: bool,
}

/// Returns the status of the daemon.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
pub(super) async fn status(State(service): Shared) -> Json<Status> {
    Json(service.status())
}

/// Returns the limits of this build.
#[utoipa::path(get, path = "/v1/limits", responses((status = 200, body = Limits)))]
pub(super) async fn limits() -> Json<Limits> {
    Json(Limits::current())
}

/// Returns the disks that the daemon has open.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = DiskList)))]
pub(super) async fn disks(State(service): Shared) -> Json<DiskList> {
    Json(service.disks())
}

/// Returns the counters of disks and exports since the start, to be compared with an earlier reply.
#[utoipa::path(get, path = "/v1/activity", responses((status = 200, body = Activity)))]
pub(super) async fn activity(State(service): Shared) -> Json<Activity> {
    Json(service.activity())
}

/// Makes the daemon become another program in its own process, once that has shown that it would start.
#[utoipa::path(
    post, path = "/v1/upgrade", request_body = Upgrade,
    responses(
        (status = 200, body = Upgrading, description = "it has begun; the status says when it is over"),
        (status = 400, body = ErrorBody, description = "the program would not start here; nothing has stopped"),
        (status = 403, body = ErrorBody, description = "only on the machine itself"),
        (status = 409, body = ErrorBody, description = "in_use: another one is under way, or a change that does not end")
    )
)]
pub(super) async fn upgrade(
    State(service): Shared,
    caller: Option<Extension<(Caller, SocketAddr)>>,
    JsonBody(body): JsonBody<Upgrade>,
) -> JsonResult<Upgrading> {
    if caller.is_some() {
        return Err(ErrorResponse::from(
            ErrorDetail::new(Kind::Forbidden, "an upgrade of the daemon can only be requested on its own machine")
                .remedy("there: braid serve --upgrade"),
        ));
    }
    // Runs to its end even if the client disconnects. It is not registered as a change, or the upgrade would wait for
    // itself.
    let upgrading = tasks::spawn(service.upgrade(body));
    match upgrading.await {
        Ok(upgrading) => Ok(Json(upgrading?)),
        Err(error) => Err(ErrorDetail::new(Kind::Internal, format!("the upgrade ended unexpectedly: {error}")).into()),
    }
}

/// Lists the events; with `follow=true` streams them as server-sent events.
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
pub(super) async fn events(
    State(service): Shared,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ErrorResponse> {
    let query = read_query(query)?;
    if !query.follow {
        return Ok(Json(service.events().after(query.after)).into_response());
    }
    // A reader whose stream broke reports the last event that it got.
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.trim().parse().ok());
    let stream = EventFollower::new(service.events(), service.stopping(), resumed.unwrap_or(query.after))?;
    Ok(Sse::new(stream.into_stream()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response())
}

/// Returns counters and latency histograms, in the text format of Prometheus, or as OpenMetrics if the client accepts
/// it.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "as text", content_type = "text/plain", body = String)))]
pub(super) async fn metrics(State(service): Shared, headers: HeaderMap) -> Response {
    let text = render(service.metrics());
    let is_open_metrics =
        |accept: &header::HeaderValue| accept.to_str().is_ok_and(|a| a.contains("application/openmetrics-text"));
    if headers.get_all(header::ACCEPT).iter().any(is_open_metrics) {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return ([(header::CONTENT_TYPE, kind)], text).into_response();
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], classic(&text)).into_response()
}

/// Whether the daemon lives: it answers `ok`. An orchestrator restarts a daemon that does not answer.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String, description = "the daemon answers")))]
pub(super) async fn healthz() -> Response {
    probe(StatusCode::OK, "ok\n")
}

/// Whether the daemon is ready: `ok` from the end of the start's scan of disks to the beginning of a stop.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, body = String, description = "every disk has answered, or was given up"),
    (status = 503, body = String, description = "the daemon starts or stops: the body says which"),
))]
pub(super) async fn readyz(State(service): Shared) -> Response {
    if *service.stopping().borrow() {
        return probe(StatusCode::SERVICE_UNAVAILABLE, "the daemon stops\n");
    }
    if service.is_starting() {
        return probe(StatusCode::SERVICE_UNAVAILABLE, "the daemon starts: it still scans disks\n");
    }
    probe(StatusCode::OK, "ok\n")
}

fn probe(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")], text)
        .into_response()
}
