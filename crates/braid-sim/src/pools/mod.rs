//! Pools, alone: the home of a pool over disks that lie about nothing but lose what was not flushed, a tail that survives a kill, volumes,
//! snapshots and everything that is done to them, from a seed.
//!
//! This is the pool below its shards: what shards add (many of them at a time, arrays as members) is simulated with them.

mod disk;
mod oracle;
mod reopen;
mod verify;
mod world;

pub use world::{Counters, Options, Outcome, run};
