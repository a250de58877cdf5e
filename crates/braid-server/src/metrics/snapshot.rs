//! What metrics show of a daemon, as plain data.

use braid_api::{Array, DiskState, Export, Member, Node, PoolMeasured, Replica, ReplicatedVolume, Severity, Status};
use braid_ring::stats::{Histogram, LeafStats};
use std::time::Duration;

/// Everything that one scrape of the metrics shows.
#[derive(Debug)]
pub struct MetricsSnapshot {
    /// The status of the daemon.
    pub status: Status,
    /// Whether the state file holds the newest state.
    pub is_state_saved: bool,
    /// When the daemon started, in milliseconds of Unix time.
    pub started_unix_ms: u64,
    /// Number of events since the start, by severity.
    pub events: [(Severity, u64); 3],
    /// Number of events that were evicted before a reader took them.
    pub events_lost: u64,
    /// Number of requests and connections of the network that the API refused; `None` if it is not on the network.
    pub api_refused: Option<u64>,
    /// When the API's certificate expires, in seconds of Unix time.
    pub api_certificate_expiry_unix_s: Option<i64>,
    /// When the certificate of the exports expires, in seconds of Unix time.
    pub nbd_certificate_expiry_unix_s: Option<i64>,
    /// All arrays.
    pub arrays: Vec<Array>,
    /// All pools, as last measured.
    pub pools: Vec<PoolMeasured>,
    /// All replicas and witnesses of this node.
    pub replicas: Vec<Replica>,
    /// The replicated volumes that this node serves, or is about to.
    pub replicated: Vec<ReplicatedMetrics>,
    /// All nodes of the cluster.
    pub nodes: Vec<Node>,
    /// All exports.
    pub exports: Vec<Export>,
    /// Latencies of the exports that serve.
    pub export_latencies: Vec<ExportLatencies>,
    /// The disks that the daemon has open.
    pub disks: Vec<DiskMetrics>,
}

/// A replicated volume that this node serves, or is about to.
#[derive(Debug)]
pub struct ReplicatedMetrics {
    /// The volume.
    pub volume: ReplicatedVolume,
    /// Time until its lease ends if no voter renews it; `None` if it has no lease.
    pub lease_left: Option<Duration>,
    /// The members of the array over its replicas; `None` if there is no such array.
    pub members: Option<Vec<Member>>,
}

/// Latencies of an export, without the wait for its limits.
#[derive(Debug)]
pub struct ExportLatencies {
    /// The export's name.
    pub export: String,
    /// The name of what it exports.
    pub array: String,
    /// Latency of READs.
    pub read: Histogram,
    /// Latency of WRITEs.
    pub write: Histogram,
    /// Latency of other requests.
    pub other: Histogram,
}

/// A disk and its counters.
#[derive(Debug)]
pub struct DiskMetrics {
    /// The name of the array or pool that it belongs to.
    pub owner: String,
    /// Its slot in the array, or its number in the pool.
    pub slot: String,
    /// Its name.
    pub disk: String,
    /// Its state.
    pub state: DiskState,
    /// Its counters since it was added.
    pub stats: LeafStats,
}
