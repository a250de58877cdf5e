//! Counters of the requests of an export's clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Counters of one export since it began to serve, over all of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportStats {
    /// Completed READs.
    pub reads: u64,
    /// Completed WRITEs.
    pub writes: u64,
    /// Other completed requests: flushes, discards, zeroings, queries.
    pub others: u64,
    /// Bytes of successful READs.
    pub read_bytes: u64,
    /// Bytes of successful WRITEs.
    pub written_bytes: u64,
    /// Failed requests.
    pub errors: u64,
    /// Connections refused because there were too many.
    pub connections_refused: u64,
}
