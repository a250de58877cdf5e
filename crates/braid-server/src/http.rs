//! What every route shares: bodies and queries, replies and errors as JSON, and changes that run to their end.

use crate::lifecycle::{ChangeGuard, Lifecycle, Reply};
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use braid_api::limits::{API_BODY_BYTES_MAX, API_REQUEST_TIMEOUT_MS};
use braid_api::{ErrorBody, ErrorDetail, Kind};
use braid_tasks as tasks;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time in which the body of a request has to arrive.
const BODY_MAX: Duration = Duration::from_millis(API_REQUEST_TIMEOUT_MS);
/// The value of `Retry-After`, in seconds.
const RETRY_AFTER_S: &str = "1";

/// What most routes return.
pub type JsonResult<T> = Result<Json<T>, ErrorResponse>;

/// A response body as JSON.
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
pub struct ErrorResponse(ErrorDetail, Option<StatusCode>);

impl From<ErrorDetail> for ErrorResponse {
    fn from(detail: ErrorDetail) -> ErrorResponse {
        ErrorResponse(detail, None)
    }
}

impl ErrorResponse {
    /// The body is longer than the limit, or is announced to be.
    fn too_long() -> ErrorResponse {
        let message = format!("the body is longer than {API_BODY_BYTES_MAX} bytes");
        ErrorResponse(ErrorDetail::new(Kind::InvalidArgument, message), Some(StatusCode::PAYLOAD_TOO_LARGE))
    }
}

/// A request extension, called when the whole request has arrived. Until then its client's connection can be evicted.
#[derive(Clone)]
pub struct OnArrival(pub Arc<dyn Fn() + Send + Sync>);

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let of_kind = || StatusCode::from_u16(self.0.kind.http_status());
        let status = self.1.map_or_else(of_kind, Ok).expect("kinds have statuses between 400 and 599");
        let mut response = json(status, &ErrorBody { error: self.0.clone() });
        if self.0.kind == Kind::NotFound {
            response.extensions_mut().insert(NotFoundResponse(self.0));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        response
    }
}

/// Marks a response that says that an object does not exist.
#[derive(Clone)]
struct NotFoundResponse(ErrorDetail);

/// Replaces "there is no such object" by "not known yet" while the start still scans disks: the object may be on one of
/// them. Only this function does so, for every path and every kind of object.
pub async fn mark_unknown_while_starting<S: Lifecycle + ?Sized>(
    State(service): State<Arc<S>>,
    mut response: Response,
) -> Response {
    match response.extensions_mut().remove::<NotFoundResponse>() {
        Some(NotFoundResponse(missing)) => match service.unknown_yet(missing) {
            Some(unknown) => ErrorResponse::from(unknown).into_response(),
            None => response,
        },
        None => response,
    }
}

/// The body of a request as JSON, whatever its content type.
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request<Body>, _: &S) -> Result<JsonBody<T>, ErrorResponse> {
        let bytes = body_of(request).await?;
        serde_json::from_slice(&bytes).map(JsonBody).map_err(|error| wrong_body(&error))
    }
}

/// Reads the whole body of a request. Not generic, so that it is compiled once and not for each type of a body.
async fn body_of(request: Request<Body>) -> Result<Bytes, ErrorResponse> {
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|len| len > API_BODY_BYTES_MAX as u64) {
        return Err(ErrorResponse::too_long());
    }
    let on_arrival = request.extensions().get::<OnArrival>().cloned();
    let body = tokio::time::timeout(BODY_MAX, Bytes::from_request(request, &())).await.map_err(|_| {
        ErrorDetail::new(Kind::InvalidArgument, format!("the body did not arrive within {} s", BODY_MAX.as_secs()))
    })?;
    let bytes = body.map_err(|rejection: BytesRejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            ErrorResponse::too_long()
        } else {
            ErrorDetail::new(Kind::InvalidArgument, format!("the body cannot be read: {rejection}")).into()
        }
    })?;
    if let Some(OnArrival(notify)) = on_arrival {
        notify();
    }
    // serde would accept a list of the fields in order, and an empty list for defaults.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(wrong_body(&"it is a list, and not an object"));
    }
    // An absent body is an empty object: requests whose fields all have defaults need none.
    Ok(if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes })
}

fn wrong_body(why: &dyn std::fmt::Display) -> ErrorResponse {
    ErrorDetail::new(Kind::InvalidArgument, format!("the body is not what this path takes: {why}"))
        .remedy("see /v1/openapi.json or docs/reference/api.md for its fields")
        .into()
}

/// The name or UUID in the path of a request.
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathName, ErrorResponse> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        name.map(|Path(name)| PathName(name)).map_err(|error| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the path cannot be read: {error}"))
                .remedy("name the array or export by its name or UUID, for example /v1/arrays/fast")
                .into()
        })
    }
}

/// Two names in the path of a request.
pub struct PathNames(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathNames {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathNames, ErrorResponse> {
        let names = Path::<(String, String)>::from_request_parts(parts, state).await;
        names.map(|Path((first, second))| PathNames(first, second)).map_err(|error| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the path cannot be read: {error}"))
                .remedy("docs/reference/api.md shows every path")
                .into()
        })
    }
}

/// Runs a change to its end, even if the client disconnects meanwhile: no change is left half-done.
pub fn run_change<S: Lifecycle + ?Sized, T: Send + 'static>(
    service: Arc<S>,
    change: impl FnOnce(Arc<S>) -> Reply<T>,
) -> impl Future<Output = JsonResult<T>> {
    let in_progress = Arc::clone(&service).begin_change();
    finish_change(change(service), in_progress)
}

/// Runs a change in a task of its own. Generic over the result only, so that it is not compiled for each change.
async fn finish_change<T: Send + 'static>(change: Reply<T>, in_progress: ChangeGuard) -> JsonResult<T> {
    let change = tasks::spawn(async move {
        let done = change.await;
        drop(in_progress);
        done
    });
    match change.await {
        Ok(done) => Ok(Json(done?)),
        Err(error) => Err(ErrorDetail::new(Kind::Internal, format!("the change ended unexpectedly: {error}"))
            .remedy("this is a bug in Braid; look at the daemon's log (journalctl -u braid) and report it")
            .into()),
    }
}

/// The query of a change that can be forced.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Force {
    /// Whether it is forced.
    #[serde(default)]
    pub force: bool,
}

/// Returns the response to a change that continues as a job.
pub fn accepted(job: &str, body: &impl Serialize) -> Response {
    let place = [(header::LOCATION, format!("/v1/jobs/{job}"))];
    (place, json(StatusCode::ACCEPTED, body)).into_response()
}

/// Returns the query of a request.
///
/// # Errors
/// A field is unknown, missing or invalid.
pub fn read_query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ErrorResponse> {
    query.map(|Query(query)| query).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("the query is not what this path takes: {error}"))
            .remedy("see /v1/openapi.json or docs/reference/api.md for its fields")
            .into()
    })
}

/// Replies to a request of a path that does not exist.
pub async fn no_such_path(request: Request) -> ErrorResponse {
    ErrorDetail::new(Kind::NotFound, format!("there is no path {}", request.uri().path()))
        .with("path", request.uri().path())
        .remedy("see /v1/openapi.json or docs/reference/api.md for those there are")
        .into()
}

/// Replies to a request of a path that exists, with a method that it does not have.
pub async fn no_such_method(request: Request) -> Response {
    let detail = ErrorDetail::new(
        Kind::InvalidArgument,
        format!("{} cannot be done with {}", request.method(), request.uri().path()),
    )
    .remedy("see /v1/openapi.json or docs/reference/api.md for what can");
    json(StatusCode::METHOD_NOT_ALLOWED, &ErrorBody { error: detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::{CreateArray, names};

    #[tokio::test]
    async fn bodies_are_validated() {
        async fn read(body: impl Into<Body>) -> Result<CreateArray, ErrorDetail> {
            let request = Request::new(body.into());
            JsonBody::from_request(request, &())
                .await
                .map(|JsonBody(body)| body)
                .map_err(|ErrorResponse(error, _)| error)
        }
        let body = read(r#"{"name":"a","level":"raid0","disks":["mem:1G"]}"#).await.expect("a right body");
        assert!(!body.force && body.chunk_bytes.is_none());
        for wrong in ["", "{", "[]", r#"{"name":"a","level":"raid0","disks":[],"sise":1}"#, "\u{0}"] {
            let error = read(wrong).await.expect_err(wrong);
            assert_eq!(error.kind, Kind::InvalidArgument, "{wrong}");
        }
        assert!(names::check_name(&body.name).is_ok());
        // A list is refused as well where every field may be absent.
        let request = Request::new(Body::from(" []"));
        assert!(JsonBody::<braid_api::RemoveOrphans>::from_request(request, &()).await.is_err());
    }

    #[test]
    fn errors_have_the_one_shape() {
        let response = ErrorResponse::from(ErrorDetail::new(Kind::Incomplete, "m")).into_response();
        assert_eq!(response.status().as_u16(), 409);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let body = serde_json::to_value(ErrorBody { error: ErrorDetail::new(Kind::Incomplete, "m") }).expect("JSON");
        assert_eq!(body["error"]["kind"], "incomplete");
    }
}
