//! The engine of Braid in a world that owns time, disks and chance.
//!
//! **What it is.** One thread, one seed, virtual time. The same `braid_engine` code that runs on
//! io_uring runs here on simulated disks with volatile caches, through power cuts, kills, hangs, late
//! writes and errors; shards are interleaved by the seed, with delays between them.
//!
//! **What it promises.** A seed replays exactly: every seed is run twice and must hash alike. What
//! the engine promised its users is judged by an oracle from outside, by what reads return, never by
//! looking into the engine. A run counts what it exercised and fails if something never happened.
//!
//! **What it never does.** Read a clock, the environment or a random source; iterate over anything
//! of unstable order; start a thread.

#![forbid(unsafe_code)]

mod aftermath;
pub mod arrays;
pub mod content;
pub mod copies;
pub mod counters;
pub mod devices;
pub mod disk;
pub mod edges;
pub mod host;
pub mod hostile;
pub mod joblist;
pub mod labelled;
pub mod memory;
pub mod meta;
pub mod oracle;
#[cfg(feature = "planted")]
pub mod plant;
pub mod plot;
pub mod pools;
pub mod queue;
pub mod replicas;
pub mod required;
pub mod rng;
pub mod rot;
pub mod rows;
pub mod runs;
mod serve;
pub mod shrink;
pub mod sim;
pub mod stage;
pub mod trace;
pub mod volumes;
pub mod workload;
pub mod world;
