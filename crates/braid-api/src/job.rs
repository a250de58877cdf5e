//! Jobs: long work in the background.

use crate::Progress;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One job that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its name: array and number, as in `data:3`.
    pub name: String,
    /// The array that it works on.
    pub array: String,
    /// Its number: of this array, since it serves.
    pub number: u64,
    /// `resync` makes equal what a crash left unequal; `rebuild` brings a member up to date.
    pub kind: String,
    /// The member that a rebuild fills.
    pub member: Option<u16>,
    /// Whether it waits, by command.
    pub paused: bool,
    /// Bytes a second that it may read or write on one member at most; 0: it gives way to clients by itself.
    pub limit_bytes_per_s: u64,
    /// How far it has come.
    pub progress: Progress,
}

/// Every job that has not ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs, by array and number.
    pub jobs: Vec<Job>,
}

/// `PATCH /v1/jobs/{job}`: what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"paused": true}))]
pub struct SetJob {
    /// Whether it waits.
    #[serde(default)]
    pub paused: Option<bool>,
    /// Bytes a second that it may read or write on one member at most; 0: it gives way to clients by itself.
    #[serde(default)]
    pub limit_bytes_per_s: Option<u64>,
}
