//! The administration of Braid's arrays: their labels, what is done to them from creation to deletion, and the
//! reconciler of a redundant array that serves; sans-I/O.
//!
//! What it is: asynchronous procedures. [`lifecycle`] has those over the disks alone ([`MetaIo`](braid_engine::MetaIo)):
//! create, find and start, grow, replace, delete. [`reconciler`] has the one that runs while an array serves, over the
//! shards as well ([`EngineIo`](braid_engine::EngineIo)): drops, rebuilds, resyncs and checks.
//!
//! What it guarantees: at every moment, the labels on the disks suffice to say which members are current. What a label
//! says is durable before anything relies on it.
//!
//! What it never does: carry a client's data; read a clock, a random source, a file or the environment; start a thread;
//! need an executor of its own; iterate over anything of unstable order. The engine knows nothing of this crate.
#![forbid(unsafe_code)]

pub mod lifecycle;
pub mod reconciler;
