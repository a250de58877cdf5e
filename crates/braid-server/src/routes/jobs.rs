//! Jobs: rebuilds, checks, moves and other work of arrays and pools that goes on after its request.

use super::Shared;
use crate::http::{Json, JsonBody, JsonResult, PathName, run_change};
use crate::lifecycle::Reply;
use axum::extract::State;
use braid_api::{ErrorBody, ErrorDetail, Job, JobList, SetJob};
use std::sync::Arc;

/// Operations on jobs.
pub trait JobService: Send + Sync + 'static {
    /// Lists the running jobs, and those that have ended recently.
    fn jobs(&self) -> JobList;

    /// Returns one job.
    ///
    /// # Errors
    /// No job has this name.
    fn job(&self, name: &str) -> Result<Job, ErrorDetail>;

    /// Pauses or resumes a job, or changes its limit.
    ///
    /// # Errors
    /// No job has this name; the limit is invalid.
    fn set_job(self: Arc<Self>, name: String, request: SetJob) -> Reply<Job>;

    /// Cancels a job. The member of a cancelled rebuild is dropped again.
    ///
    /// # Errors
    /// No job has this name; it cannot be cancelled.
    fn cancel_job(self: Arc<Self>, name: String) -> Reply<Job>;
}

/// Lists the running jobs, and those that have ended recently.
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = JobList)))]
pub(super) async fn jobs(State(service): Shared) -> Json<JobList> {
    Json(service.jobs())
}

/// Returns one job.
#[utoipa::path(
    get, path = "/v1/jobs/{job}", params(("job" = String, Path, description = "array and number", example = "data:1")),
    responses((status = 200, body = Job), (status = 404, body = ErrorBody))
)]
pub(super) async fn job(State(service): Shared, PathName(name): PathName) -> JsonResult<Job> {
    Ok(Json(service.job(&name)?))
}

/// Pauses or resumes a job, or changes its limit.
#[utoipa::path(
    patch, path = "/v1/jobs/{job}", request_body = SetJob,
    params(("job" = String, Path, description = "array and number", example = "data:1")),
    responses((status = 200, body = Job), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(super) async fn set_job(
    State(service): Shared,
    PathName(name): PathName,
    JsonBody(body): JsonBody<SetJob>,
) -> JsonResult<Job> {
    run_change(service, |service| service.set_job(name, body)).await
}

/// Cancels a job. The member of a cancelled rebuild is dropped again.
#[utoipa::path(
    delete, path = "/v1/jobs/{job}",
    params(("job" = String, Path, description = "array and number", example = "data:1")),
    responses((status = 200, body = Job, description = "as it was"), (status = 404, body = ErrorBody))
)]
pub(super) async fn cancel_job(State(service): Shared, PathName(name): PathName) -> JsonResult<Job> {
    run_change(service, |service| service.cancel_job(name)).await
}
