//! NBD for Braid: the protocol, a server for the shards, and a lean client.
//!
//! The protocol is sans-I/O: [`handshake`] and [`transmission`] take bytes and give bytes and verdicts;
//! [`codec`] holds what is on the wire. [`server`] serves exports from a shard through the small
//! [`server::Host`] trait, which the ring implements, and tests too. [`client`] drives any NBD server with
//! many requests in flight.
//!
//! Promises: no bytes from a peer make it panic; what a peer costs in memory is bounded by constants; once
//! a connection is set up nothing is allocated on the heap for it; data is copied only where a small
//! payload must move out of the stream. It never reads a clock, and never logs: it pushes events.

#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
pub mod errno;
pub mod event;
pub mod export;
pub mod fuzz;
pub mod gate;
pub mod handshake;
mod latency;
pub mod memory;
pub mod network;
pub mod server;
mod tls;
pub mod transmission;

pub use errno::Errno;
pub use event::{Cause, EventQueue, NbdEvent};
pub use export::{Export, ExportError, ExportInfo, ExportLimits, ExportStats, ExportTable, ExportTls};
pub use latency::{Batch as LatencyBatch, RequestClass};
pub use network::Network;
