//! The types of Braid's HTTP/JSON API, shared by the daemon, the command line and other clients.
//!
//! What it is: every request, response, event and error under `/v1`, as plain data.
//! What it guarantees: within `/v1`, fields are added, never removed or given another meaning. Clients ignore
//! an unknown field in a response; the daemon refuses an unknown field in a request, so that a misspelt
//! option is never silently dropped. Numbers are bytes, nanoseconds, milliseconds, seconds or counts, with the
//! unit in their names.
//! What it never does: no I/O, no logic beyond checking names; it knows nothing of the engine.

#![forbid(unsafe_code)]

mod activity;
pub mod address;
mod array;
mod attention;
mod cluster;
mod disk;
mod doctor;
mod error;
mod event;
mod export;
mod job;
pub mod limits;
mod md;
pub mod names;
mod nodes;
mod orphans;
mod placement;
mod pool;
mod pool_check;
mod pool_measured;
mod replicas;
mod replicated;
mod stats;
mod status;
mod upgrade;

pub use activity::*;
pub use array::*;
pub use attention::AttentionCode;
pub use cluster::*;
pub use disk::*;
pub use doctor::*;
pub use error::*;
pub use event::*;
pub use export::*;
pub use job::*;
pub use limits::Limits;
pub use md::*;
pub use nodes::*;
pub use orphans::*;
pub use placement::{AddMembers, MoveVolume, ParsePlaceError, Place, RemoveMember, StartPool};
pub use pool::*;
pub use pool_check::{CheckPool, PoolChecked, PoolDamage};
pub use pool_measured::{PoolContents, PoolMeasured, ServedMeasured, VolumeMeasured};
pub use replicas::*;
pub use replicated::*;
pub use stats::*;
pub use status::*;
pub use upgrade::*;
