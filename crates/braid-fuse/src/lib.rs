//! FUSE for Braid: an export as one plain file, without a helper process.
//!
//! The protocol is sans-I/O: [`wire`] defines the structures on the wire, [`ask`] parses bytes into requests. [`server`]
//! serves a file from the shards: each shard has its own channel to the kernel's connection, reads requests in its own ring,
//! and writes replies there. Data of a WRITE arrive directly in memory that the engine can use; data of a READ are sent from it.
//! [`mount`] opens the connection and mounts it.
//!
//! Guarantees: the kernel caches no page of the file, so that all openers see the same content. Any offset and any length is
//! accepted: a write that begins or ends within a block is a read-modify-write and runs alone ([`order`]). No I/O allocates on
//! the heap. From Linux 6.9 on, the kernel resubmits to the next daemon what a killed one had read and not replied to.

pub mod ask;
mod file;
pub mod mount;
pub mod order;
pub mod server;
pub mod wire;

pub use file::{FuseFile, Look};
pub use server::{Attach, Detach, FuseFrontend};
