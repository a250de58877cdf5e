//! Pools, alone: the home of a pool over disks that lie about nothing but lose what was not flushed, a tail that survives a kill, volumes,
//! snapshots and everything that is done to them, from a seed.
//!
//! This is the pool below its shards: what shards add (many of them at a time, arrays as members) is simulated with them.

mod absent;
mod admin;
mod bugs;
mod crash;
mod disk;
mod flatten;
mod full;
mod given_up;
mod grow;
mod kinds;
mod moves;
mod nature;
mod oracle;
#[cfg(feature = "planted")]
pub mod plant;
mod reopen;
mod report;
mod requests;
pub mod required;
mod rot;
mod sweep;
mod verify;
mod world;

pub use nature::Focus;
pub use report::{Counters, Outcome};
pub use sweep::sweep;
pub use world::{Options, run};
pub(crate) use world::{Shm, World};
