//! NBD for Braid: the protocol, a server for the shards, and a lean client.
//!
//! The protocol is sans-I/O: [`handshake`] and [`transmission`] take bytes and return replies and decisions; [`codec`]
//! holds the wire format. [`server`] serves exports from a shard through the small [`server::Host`] trait, which the
//! ring and the tests implement. [`client`] drives any NBD server with many requests in flight. What is served, its
//! limits and its counters are `braid-export`'s.
//!
//! Guarantees: no bytes from a peer cause a panic; constants bound the memory that a peer costs; an established
//! connection allocates nothing on the heap; data is copied only where a small payload must move out of the stream. The
//! crate never reads a clock and never logs: it pushes events.

#![forbid(unsafe_code)]

pub mod client;
pub mod codec;
pub mod errno;
pub mod event;
pub mod fuzz;
pub mod handshake;
pub mod memory;
pub mod server;
mod tls;
pub mod transmission;

pub use errno::Errno;
pub use event::{Cause, EventQueue, NbdEvent};
