//! Simulates the storage engine of Braid in a world that owns time, disks and randomness.
//!
//! **What it is.** One thread, one seed, virtual time. The same `braid_engine` code that runs on io_uring runs here on
//! simulated disks with volatile caches. It runs through power cuts, kills, hangs, late writes and errors. The seed
//! interleaves the shards, with delays between them.
//!
//! **What it guarantees.** A seed replays exactly: every seed runs twice and both runs must hash alike. An oracle
//! checks what the engine guarantees to its users. It works from outside, from what reads return, and never looks into
//! the engine. A run counts what it exercises and fails if a required kind never happens.
//!
//! **What it never does.** It reads no clock, environment or random source, iterates over nothing of unstable order,
//! and starts no thread.

#![forbid(unsafe_code)]

pub mod acts;
pub mod arrays;
pub mod bounds;
pub mod content;
pub mod copies;
pub mod counters;
pub mod device_request;
pub mod devices;
pub mod disk;
pub mod disk_pair;
pub mod edges;
pub mod host;
pub mod hostile;
pub mod joblist;
pub mod journal_disks;
pub mod journal_refusal;
pub mod labelled;
mod life_end;
pub mod memory;
pub mod meta;
pub mod mirrors;
#[cfg(feature = "mutations")]
pub mod mutations;
pub mod oracle;
pub mod pools;
pub mod queue;
pub mod replicas;
pub mod required;
pub mod rng;
pub mod rot;
pub mod run_state;
pub mod runs;
pub mod scenario;
mod serve;
pub mod shrink;
pub mod sim;
pub mod stripe_writes;
pub mod trace;
pub mod volumes;
pub mod workload;
pub mod world;
