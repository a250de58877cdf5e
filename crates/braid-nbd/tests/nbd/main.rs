//! The tests of the server and the client that can share a process. The one that counts allocations is a program of its own
//! beside this folder.
#![allow(clippy::unwrap_used)]

mod admission;
mod any_bytes;
mod common;
mod conformance_extended;
mod conformance_handshake;
mod conformance_tls;
mod conformance_transmission;
mod ended_clients;
mod fair_shares;
mod half_dead_clients;
mod latencies;
mod limits;
mod over_a_real_ring;
mod over_tls;
mod random_lives;
mod real_clients;
mod the_client;

#[path = "../bed/mod.rs"]
mod bed;
#[path = "../pki/mod.rs"]
mod pki;
