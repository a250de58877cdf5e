//! What disks and exports have done up to now, to compare with a moment ago.

use crate::{DiskState, DiskStats, ExportState, ExportStats, Health, MemberState, Progress};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/activity`. Two of these, and the time between them, give rates and latencies of that time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// When, in nanoseconds since the daemon started.
    pub at_ns: u64,
    /// The disks that are open, by array and role.
    pub disks: Vec<DiskActivity>,
    /// The exports, by name.
    pub exports: Vec<ExportActivity>,
    /// The arrays that serve, by name.
    #[serde(default)]
    pub arrays: Vec<ArrayActivity>,
}

/// How one array stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArrayActivity {
    /// Its name.
    pub name: String,
    /// How it stands; only of redundant ones.
    pub health: Option<Health>,
    /// How far work in the background has come: of several jobs that which is least done.
    pub progress: Option<Progress>,
}

/// Counters and latencies of one disk since the daemon opened it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskActivity {
    /// Its name, as on the command line.
    pub name: String,
    /// The array, or the pool, that it is a member of.
    pub array: String,
    /// Its role there, or its number.
    pub role: u16,
    /// How it does.
    pub state: DiskState,
    /// What it is to its array.
    #[serde(default)]
    pub member: Option<MemberState>,
    /// Its counters.
    pub stats: DiskStats,
    /// Latencies of all of its I/Os, by bucket; those without an I/O are left out.
    pub latency: Vec<LatencyBucket>,
}

/// I/Os of a disk, or requests to an export, of about the same latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// They took less than this, in nanoseconds, and no less than the bucket before: at most a quarter less.
    pub below_ns: u64,
    /// How many they were.
    pub count: u64,
}

/// Counters of one export since it began to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportActivity {
    /// Its name.
    pub name: String,
    /// The array behind it.
    pub array: String,
    /// Whether it serves.
    pub state: ExportState,
    /// Clients connected now.
    pub connections: u32,
    /// Its counters; absent while it does not serve.
    pub stats: Option<ExportStats>,
    /// Latencies of all requests to it, by bucket, from a request taken in to its reply handed to the socket, without the
    /// wait for the export's limits; those without a request are left out.
    pub latency: Vec<LatencyBucket>,
}
