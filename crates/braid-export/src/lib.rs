//! Exports: what the frontends (NBD, FUSE, ublk) share.
//!
//! What it is: an [`Export`] is a device of the engine under a name, with its size, limits, request counters and
//! latencies over all shards. An [`ExportTable`] lists the exports of a listener. [`admission`] has admission control,
//! [`Network`] the allow lists, [`extents`] the states that an export's maps ([`Allocation`], [`Difference`]) report.
//!
//! What it guarantees: an export's limits and counters are the same for every frontend. What a request calls takes no
//! lock and allocates nothing on the heap: counters and latencies are atomics, updated once per batch where a frontend
//! batches its replies. Limits can be changed while clients are connected. Dropping an [`OpenExport`] frees its
//! connection slot, and dropping the last reference to an [`admission::AdmissionPass`] reports its end.
//!
//! What it never does: know a protocol, do I/O, read a clock, start a thread or log.

#![forbid(unsafe_code)]

pub mod admission;
mod export;
pub mod extents;
mod latency;
mod network;

pub use export::{
    Allocation, BLOCK_BYTES_PREFERRED_MAX, CONNECTIONS_DEFAULT, DESCRIPTION_BYTES_MAX, Difference, DifferenceState,
    Differences, EXPORTS_MAX, Export, ExportError, ExportInfo, ExportLimits, ExportStats, ExportTable, ExportTls,
    NAME_BYTES_MAX, OpenExport,
};
pub use latency::{Batch as LatencyBatch, RequestClass};
pub use network::{Network, NetworkError};
