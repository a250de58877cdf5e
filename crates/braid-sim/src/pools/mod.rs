//! Simulates pools without shards: the component that serves a pool, its volumes and snapshots, and every operation on
//! them, driven by a seed. The disks return no wrong data but lose what was not flushed; the in-memory log survives a
//! kill.
//!
//! What shards add (several of them at a time, arrays as members) is simulated in [`crate::volumes`].

mod admin;
mod bugs;
mod crash;
mod disk;
mod flatten;
mod full;
mod grow;
mod in_progress;
mod lost_members;
mod member_states;
mod missing_members;
mod moves;
#[cfg(feature = "mutations")]
pub mod mutations;
mod oracle;
mod parameters;
mod record_changes;
mod reopen;
mod report;
mod requests;
pub mod required;
mod rot;
mod sweep;
mod verify;
mod world;

pub use parameters::Focus;
pub use report::{Counters, Outcome};
pub use sweep::sweep;
pub use world::{Options, run};
pub(crate) use world::{Shm, World};
