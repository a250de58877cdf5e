//! Counters of disks and exports at one moment, from which clients compute rates.

use crate::{DiskState, DiskStats, ExportState, ExportStats, Health, MemberState, Progress};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/activity`. The difference between two of these gives rates and latencies of the time between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// When the counters were read, in nanoseconds since the daemon started.
    pub at_ns: u64,
    /// The open disks, by array and slot.
    pub disks: Vec<DiskActivity>,
    /// The exports, by name.
    pub exports: Vec<ExportActivity>,
    /// The active arrays, by name.
    #[serde(default)]
    pub arrays: Vec<ArrayActivity>,
}

/// The health of one array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArrayActivity {
    /// Its name.
    pub name: String,
    /// Its health; absent for arrays without redundancy.
    pub health: Option<Health>,
    /// Progress of its background jobs; of several, that of the one with the least done.
    pub progress: Option<Progress>,
}

/// Counters and latencies of one disk since the daemon opened it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskActivity {
    /// Its name, as on the command line.
    pub name: String,
    /// The array, or the pool, that it is a member of.
    pub array: String,
    /// Its slot in the array, or its member number in the pool.
    pub slot: u16,
    /// Its state as a disk.
    pub state: DiskState,
    /// Its state as a member of its array.
    #[serde(default)]
    pub member: Option<MemberState>,
    /// Its counters.
    pub stats: DiskStats,
    /// Latencies of all of its I/Os, by bucket; empty buckets are left out.
    pub latency: Vec<LatencyBucket>,
}

/// One bucket of a latency histogram: I/Os of a disk, or requests to an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// Exclusive upper bound of their latencies, in nanoseconds. The lower bound is at most a quarter less.
    pub below_ns: u64,
    /// Number of I/Os or requests.
    pub count: u64,
}

/// Counters of one export since it began to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportActivity {
    /// Its name.
    pub name: String,
    /// The exported array, volume or snapshot.
    pub array: String,
    /// Whether it serves.
    pub state: ExportState,
    /// Open connections of clients.
    pub connections: u32,
    /// Its counters; absent while it does not serve.
    pub stats: Option<ExportStats>,
    /// Latencies of all requests to it, by bucket, from the receipt of a request to the hand-over of its reply to the socket,
    /// without the delay by the export's limits; empty buckets are left out.
    pub latency: Vec<LatencyBucket>,
}
