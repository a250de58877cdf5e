//! The types of Braid's HTTP/JSON API, shared by the daemon, the command line and other clients.
//!
//! What it is: every request, answer, event and error under `/v1`, as plain data.
//! What it promises: fields are added, never removed or given another meaning, within `/v1`; an unknown
//! field in an answer is ignored by clients, an unknown field in a request is refused by the daemon (a
//! misspelt option is never silently dropped). Numbers carry their unit in the name and are bytes,
//! nanoseconds or counts.
//! What it never does: no I/O, no logic beyond checking names; it knows nothing of the engine.

#![forbid(unsafe_code)]

mod activity;
pub mod address;
mod array;
mod checked;
mod cluster;
mod disk;
mod error;
mod event;
mod export;
mod job;
pub mod limits;
mod md;
pub mod names;
mod nodes;
mod orphans;
mod place;
mod pool;
mod replicas;
mod replicated;
mod stats;
mod status;
mod upgrade;

pub use activity::*;
pub use array::*;
pub use checked::{CheckPool, PoolChecked, PoolDamage};
pub use cluster::*;
pub use disk::*;
pub use error::*;
pub use event::*;
pub use export::*;
pub use job::*;
pub use limits::Limits;
pub use md::*;
pub use nodes::*;
pub use orphans::*;
pub use place::{AddMembers, MoveVolume, ParsePlaceError, Place, RemoveMember, StartPool};
pub use pool::*;
pub use replicas::*;
pub use replicated::*;
pub use stats::*;
pub use status::*;
pub use upgrade::*;
