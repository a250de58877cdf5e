//! Operations on jobs.

use crate::Daemon;
use braid_api::{ErrorDetail, Job, JobList, SetJob};
use braid_server::{JobService, Reply};
use std::sync::Arc;

impl JobService for Daemon {
    fn jobs(&self) -> JobList {
        self.arrays.jobs()
    }

    fn job(&self, name: &str) -> Result<Job, ErrorDetail> {
        self.arrays.job(name)
    }

    fn set_job(self: Arc<Self>, name: String, request: SetJob) -> Reply<Job> {
        Box::pin(async move { self.arrays.set_job(&name, request).await })
    }

    fn cancel_job(self: Arc<Self>, name: String) -> Reply<Job> {
        Box::pin(async move { self.arrays.cancel_job(&name).await })
    }
}
