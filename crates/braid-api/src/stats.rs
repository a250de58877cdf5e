//! What clients of an export have done.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Counters of one export since it began to serve, all its clients together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportStats {
    /// READs answered.
    pub reads: u64,
    /// WRITEs answered.
    pub writes: u64,
    /// Other requests answered: flushes, discards, zeroings, questions.
    pub others: u64,
    /// Bytes of READs answered without error.
    pub read_bytes: u64,
    /// Bytes of WRITEs answered without error.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Connections refused because there were too many.
    pub connections_refused: u64,
}
